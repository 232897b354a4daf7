use super::*;
use holdfast_base::Kind;

/// A statement behind a comment was taken for none: a table was truncated, and its keys stayed.
#[test]
fn a_statement_begins_behind_its_comments() {
    for text in [
        "TRUNCATE t",
        " \n TRUNCATE t",
        "/* shop */ TRUNCATE t",
        "/*a*//*b*/\t(TRUNCATE t",
        "-- why\n# and why\nTRUNCATE t",
        "/*!40000 TRUNCATE t",
        "/*M!100100 /* x */ TRUNCATE t",
    ] {
        assert_eq!(words(text), "TRUNCATE t", "{text}");
    }
    for text in ["", "/*", "--", "# TRUNCATE t", "/* TRUNCATE t */"] {
        assert_eq!(words(text), "", "{text}");
    }
}

/// A file of MariaDB 10.11, in hexadecimal, of the statements in `binlog.sql` beside it.
fn file() -> Vec<u8> {
    let text = include_str!("../../../tests/binlog.hex").replace('\n', "");
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Its events, without their sums.
fn events(file: &[u8]) -> Vec<Event<'_>> {
    let (mut events, mut at) = (Vec::new(), 4);
    let number =
        |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes")) as usize;
    while at < file.len() {
        let bytes = number(at + 9);
        events.push(Event {
            kind: file[at + 4],
            changed_s: number(at) as u64,
            server: number(at + 5) as u32,
            end: number(at + 13) as u64,
            data: &file[at + 19..at + bytes - 4],
        });
        at += bytes;
    }
    events
}

fn map(keys: &[&str]) -> Map {
    let of = |key: &&str| {
        let (table, key) = key.split_once(' ').unwrap();
        format!("[[keys]]\ntable = \"shop.{table}\"\nkey = \"{key}\"\n")
    };
    Map::parse(&keys.iter().map(of).collect::<String>()).unwrap()
}

/// Each transaction's number, with its keys, or why they are not known.
fn read(events: &[Event<'_>], map: &Map) -> Vec<(u64, String)> {
    let mut rows = Rows::default();
    let changes = events.iter().filter_map(|event| rows.take(event, map).unwrap());
    changes
        .map(|(change, why)| {
            assert_eq!(change.keys.is_none(), why.is_some());
            let keys = change.keys.unwrap_or_default();
            let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
            (change.mark.gtid.sequence, why.unwrap_or(keys.join(" ")))
        })
        .collect()
}

#[test]
fn transactions_of_a_real_log_have_the_keys_of_their_rows_before_and_after() {
    let file = file();
    let read = read(&events(&file), &map(&["items item:{id}", "items name:{name}"]));
    let of = |number: u64| read.iter().find(|(of, _)| *of == number).unwrap().1.as_str();
    assert!(read.iter().map(|(number, _)| *number).eq(1..=15), "{read:?}");
    assert!(of(1).contains("a table of the map was changed: `CREATE DATABASE shop"));
    assert_eq!((of(3), of(4)), ("", ""), "tables that are in no key");
    assert!(of(2).contains("a table of the map was changed: `CREATE TABLE shop.items"));
    assert_eq!(of(5), "item:1 item:18446744073709551608 name:one name:two");
    assert_eq!(of(6), "item:1 name:one name:three");
    assert_eq!((of(7), of(8)), ("", ""));
    assert_eq!(of(9), "item:1 name:three");
    assert_eq!((of(10), of(11)), ("", ""), "another table, and what is only prepared");
    assert!(of(12).contains("(XA)") && of(13).contains("TRUNCATE"), "{read:?}");
    assert!(of(14).contains("`binlog_format`"), "{read:?}");
}

/// `log_bin_compress` is looked at when an invalidator starts. Whoever switched it on behind that had rows whose events
/// were not known, and were passed over: their keys stayed for good, and nothing was said.
#[test]
fn rows_that_the_log_compresses_make_their_transaction_unknown() {
    let file = file();
    let read = read(&events(&file), &map(&["items item:{id}"]));
    assert!(read.last().unwrap().1.contains("`log_bin_compress`"), "{read:?}");
}

/// One column of each type: those that keys may name are as a SELECT shows them, and those behind others that are not
/// are found all the same.
#[test]
fn columns_behind_columns_of_every_type_are_read() {
    let columns = [
        ("a", "-1"),
        ("b", "255"),
        ("c", "-300"),
        ("d", "-8388608"),
        ("e", "16777215"),
        ("f", "-2147483648"),
        ("g", "4294967295"),
        ("h", "-9223372036854775808"),
        ("q", "ab"),
        ("r", "long"),
        ("t", "bin"),
        ("u", "vbin"),
        ("ad", "xyz"),
    ];
    let keys = columns.map(|(name, _)| format!("kinds {name}:{{{name}}}"));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let file = file();
    let read = read(&events(&file), &map(&keys));
    let found: BTreeSet<&str> = read[6].1.split(' ').collect();
    let wanted: Vec<String> =
        columns.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    assert_eq!(found, wanted.iter().map(String::as_str).collect());
    assert_eq!(read[7].1, "a:7", "nulls are in no key");
    for other in ["i", "k", "l", "m", "n", "o", "p", "v", "x", "y", "z", "aa", "ab", "ae"] {
        let of = format!("kinds {other}:{{{other}}}");
        let read = self::read(&events(&file), &map(&[of.as_str()]));
        assert!(read[6].1.contains(&format!("no column `{other}`")), "{read:?}");
    }
}

/// What stands in a log that is not as it should be empties the pool, and does not pass for nothing.
#[test]
fn events_that_are_cut_unknown_or_without_end_leave_no_change_out() {
    let file = file();
    let (all, map) = (events(&file), map(&["items item:{id}"]));
    let begins = all.iter().rposition(|event| event.kind == kind::UPDATE_ROWS_V1).unwrap();
    // Its transaction: a beginning, a remark, a description, rows, and the end.
    let whole = &all[begins - 3..=begins + 1];
    assert_eq!(read(whole, &map)[0].1, "item:1");
    for cut in 0..whole[3].data.len() {
        let rows = Event { data: &whole[3].data[..cut], ..whole[3] };
        let said = read(&[whole[0], whole[2], rows, whole[4]], &map);
        let is_between = said[0].1 == "item:1" || said[0].1.is_empty();
        assert!(said[0].1.contains("cannot be read") || is_between, "{cut}: {said:?}");
        assert!(!is_between || cut == 11, "{cut}: {said:?}");
    }
    let strange = Event { kind: 99, ..whole[3] };
    let said = read(&[whole[0], whole[2], strange, whole[4]], &map);
    assert!(said[0].1.contains("kind 99"), "{said:?}");
    let load = Event { kind: kind::EXECUTE_LOAD_QUERY, ..whole[3] };
    assert!(read(&[whole[0], load, whole[4]], &map)[0].1.contains("`LOAD`"));
    let said = read(&[whole[0], whole[3], whole[4]], &map);
    assert!(said[0].1.contains("no description"), "{said:?}");
    let said = read(&[whole[0], whole[2], whole[3], whole[0], whole[4]], &map);
    assert!(said[0].1.contains("has no end") && said[1].1.is_empty(), "{said:?}");
    let format = Event { kind: kind::FORMAT, ..whole[4] };
    let said = read(&[whole[0], whole[2], whole[3], format, whole[0], whole[4]], &map);
    assert_eq!(said, [(6, String::new())], "of a server that died, and has taken it back");
    let incident = Event { kind: kind::INCIDENT, ..whole[4] };
    let lost = Rows::default().take(&incident, &map).unwrap_err();
    assert_eq!(lost.kind, Kind::NotFound, "outside of any transaction");
    assert!(read(&[whole[0], incident, whole[4]], &map)[0].1.contains("lost changes"));
}

/// The first word of a log came with a sum behind the name of its file, before anything said that there are sums: the
/// file was `bin.000001` and four odd bytes, which had no number, and each change in it was taken for visible as soon
/// as it was read.
#[test]
fn a_file_s_name_has_no_sum_behind_it() {
    let map = map(&["items item:{id}"]);
    let rotate = |name: &[u8]| {
        let data = [&[4, 0, 0, 0, 0, 0, 0, 0][..], name].concat();
        let event = Event { kind: kind::ROTATE, changed_s: 0, server: 1, end: 0, data: &data };
        let mut rows = Rows::default();
        rows.take(&event, &map).map(|_| rows.file)
    };
    for name in ["bin.000001", "a.b.999999", "bin.1000000", "bin.123456789"] {
        assert_eq!(rotate(name.as_bytes()).as_deref(), Ok(name));
        for sum in [[115, 143, 130, 165], *b"....", *b"1234", [0; 4]] {
            assert_eq!(rotate(&[name.as_bytes(), &sum].concat()).as_deref(), Ok(name), "{sum:?}");
        }
    }
    for name in ["", "bin", "bin.", "bin.00001", "bin000001", "bin.00000x"] {
        let wrong = rotate(name.as_bytes()).unwrap_err();
        assert!(wrong.kind == Kind::Corrupt && wrong.message.contains("number"), "{wrong}");
    }
}
