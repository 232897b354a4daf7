//! Tables and rows as shops have them: names with blanks, dots and letters of all kinds, keys of every type that
//! may be in one, identities by an index, nulls, and rows of many megabytes.

use super::common::{Scratch, resident_bytes};
use super::invalidate_postgres::{MAP, shop};
use super::postgres::SETTINGS;

const ODD_MAP: &str = r#"
[[keys]]
table = "Mein Laden.Straße 1.a"
key = 'ort:{Nr. ☃}:{"}'
[[keys]]
table = "shop.types"
key = "types:{s}:{i}:{c}:{v}:{u}:{b}"
[[keys]]
table = "shop.by_index"
key = "by:{code}"
"#;

#[test]
fn names_types_and_identities_of_all_kinds_have_their_keys() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    for text in [
        r#"CREATE SCHEMA "Mein Laden""#,
        r#"CREATE TABLE "Mein Laden"."Straße 1.a" ("Nr. ☃" int, """" text, "it's" int, PRIMARY KEY ("Nr. ☃", """"))"#,
        "CREATE TABLE shop.types (s smallint, i int, c char(6), v varchar(9), u uuid, b bytea, \
         at timestamptz, arr text[], n numeric, j jsonb)",
        "ALTER TABLE shop.types REPLICA IDENTITY FULL",
        "CREATE TABLE shop.by_index (id int PRIMARY KEY, code text NOT NULL, n int, big text)",
        "CREATE UNIQUE INDEX by_code ON shop.by_index (code) INCLUDE (n)",
        "ALTER TABLE shop.by_index REPLICA IDENTITY USING INDEX by_code",
        r#"ALTER PUBLICATION holdfast_main ADD TABLE "Mein Laden"."Straße 1.a", shop.types, shop.by_index"#,
    ] {
        sql.run(text);
    }
    std::fs::write(&shop.map, format!("{MAP}{ODD_MAP}")).unwrap();
    let invalidator = shop.start();
    let ort = ["ort:1:x", "ort:2:x", "ort:2:'é\\", "ort:3:x"];
    let gone = shop.gone(&ort, || {
        sql.run(r#"INSERT INTO "Mein Laden"."Straße 1.a" VALUES (1, 'x', 1), (3, 'a b', 1)"#);
        sql.run(
            r#"UPDATE "Mein Laden"."Straße 1.a" SET "Nr. ☃" = 2, """" = '''é\' WHERE "Nr. ☃" = 1"#,
        );
    });
    assert_eq!(gone, ["ort:1:x", "ort:2:'é\\"]);
    let uuid = "0123abcd-0000-0000-0000-00000000000a";
    let types = [
        format!("types:-7:2147483647:ab:é:{uuid}:\u{f1}"),
        format!("types:-7:2147483647:ab:é:{uuid}:z"),
    ];
    let keys: Vec<&str> = types.iter().map(String::as_str).collect();
    let gone = shop.gone(&keys, || {
        sql.run(&format!(
            "INSERT INTO shop.types VALUES (-7, 2147483647, 'ab', 'é', '{uuid}', '\\xc3b1', now(), \
             '{{a,NULL}}', 'NaN', '{{}}')"
        ));
        // A null is in no key, and neither is an image of it.
        sql.run("INSERT INTO shop.types VALUES (NULL, 1, '', '', NULL, NULL)");
        sql.run("UPDATE shop.types SET s = 1 WHERE s IS NULL");
        sql.run("DELETE FROM shop.types");
    });
    assert_eq!(gone, [keys[0]]);
    let gone = shop.gone(&["by:a", "by:b", "by:c"], || {
        sql.run(
            "INSERT INTO shop.by_index VALUES (1, 'a', 1, repeat('x', 5000)), (2, 'c', 1, NULL)",
        );
        shop.settle();
        sql.run("UPDATE shop.by_index SET code = 'b' WHERE id = 1");
    });
    assert_eq!(gone, ["by:a", "by:b", "by:c"]);
    assert_eq!(
        shop.gone(&["by:a", "by:b"], || sql.run("UPDATE shop.by_index SET n = 2 WHERE id = 1")),
        ["by:b"]
    );
    // The identity is another from here on, and says nothing of the key: each change empties the pool.
    shop.drops(&["other:1"], || sql.run("ALTER TABLE shop.by_index REPLICA IDENTITY DEFAULT"));
    shop.settle();
    shop.drops(&["other:1"], || sql.run("UPDATE shop.by_index SET n = 3 WHERE id = 1"));
    let said = invalidator.kill().whole();
    assert!(said.contains("REPLICA IDENTITY FULL"), "{said}");
}

/// A row of 20 MB comes and goes, with its old image, and its memory is given back; a transaction of a million
/// rows, parts of which were taken back, empties the pool, and the next one does not.
#[test]
fn long_rows_and_long_transactions_take_no_memory_for_good() {
    let scratch = Scratch::new();
    let Some(shop) = shop(&scratch, SETTINGS) else { return };
    let mut sql = shop.database.sql();
    sql.run("ALTER TABLE shop.items ALTER pad SET STORAGE EXTERNAL");
    let invalidator = shop.start();
    shop.settle();
    let before = resident_bytes(invalidator.pid());
    let keys = ["item:1", "name:n1", "name:other"];
    let gone = shop.gone(&keys, || {
        sql.run("UPDATE shop.items SET pad = repeat('€', 7 << 20), name = 'other' WHERE id = 1");
        sql.run("UPDATE shop.items SET price = 2 WHERE id = 1");
        sql.run("UPDATE shop.items SET pad = NULL WHERE id = 1");
    });
    assert_eq!(gone, keys);
    let grown = resident_bytes(invalidator.pid()).saturating_sub(before);
    assert!(grown < 24 << 20, "{grown}");
    shop.drops(&["other:1"], || {
        sql.run("BEGIN");
        sql.run("INSERT INTO shop.items SELECT NULL, 1, n, NULL, 1 FROM generate_series(10000, 1010000) n");
        sql.run("SAVEPOINT part");
        sql.run("DELETE FROM shop.items WHERE id < 100");
        sql.run("ROLLBACK TO SAVEPOINT part");
        sql.run("COMMIT");
    });
    shop.settle();
    let update = "UPDATE shop.items SET price = 3 WHERE id = 1";
    assert_eq!(shop.gone(&["item:1", "other:1"], || sql.run(update)), ["item:1"]);
    let grown = resident_bytes(invalidator.pid()).saturating_sub(before);
    assert!(grown < 80 << 20, "{grown}");
    invalidator.kill().judge();
}
