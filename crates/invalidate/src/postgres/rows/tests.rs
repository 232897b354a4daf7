use super::*;
use crate::position::Lsn;
use holdfast_env::{Rng, SeededRng};

const MAP: &str = "[[keys]]\ntable = \"shop.items\"\nkey = \"item:{id}\"\n\
    [[keys]]\ntable = \"shop.items\"\nkey = \"name:{name}\"\n\
    [[keys]]\ntable = \"shop.codes\"\nkey = \"code:{code}:{raw}\"\n";

const ITEMS: u32 = 16385;
const CODES: u32 = 16390;

/// Writes the plugin's messages, as the manual has them.
#[derive(Default)]
struct Log(Vec<Vec<u8>>);

impl Log {
    fn begin(mut self, xid: u32) -> Log {
        let time_us = 3_000_001i64;
        self.0.push([&b"B"[..], &[0; 8], &time_us.to_be_bytes(), &xid.to_be_bytes()].concat());
        self
    }

    fn commit(mut self, end: u64) -> Log {
        self.0.push([&b"C\0"[..], &[0; 8], &end.to_be_bytes(), &[0; 8]].concat());
        self
    }

    /// Columns: name, part of the identity, type.
    fn relation(mut self, number: u32, table: &str, columns: &[(&str, bool, u32)]) -> Log {
        let mut bytes = [&b"R"[..], &number.to_be_bytes(), b"shop\0"].concat();
        bytes.extend_from_slice(table.as_bytes());
        bytes.extend_from_slice(b"\0d");
        bytes.extend_from_slice(&(columns.len() as u16).to_be_bytes());
        for (name, is_identity, kind) in columns {
            bytes.push(u8::from(*is_identity));
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&u32::MAX.to_be_bytes());
        }
        self.0.push(bytes);
        self
    }

    fn items(self) -> Log {
        self.relation(
            ITEMS,
            "items",
            &[("price", false, 20), ("id", true, 20), ("name", false, 1043)],
        )
    }

    fn whole_items(self) -> Log {
        self.relation(
            ITEMS,
            "items",
            &[("price", true, 20), ("id", true, 20), ("name", true, 1043)],
        )
    }

    /// A message of rows: each an image's letter and its cells; `NULL`, and `SAME` for what was left out.
    fn rows(mut self, kind: u8, number: u32, images: &[(u8, &[&str])]) -> Log {
        let mut bytes = [&[kind][..], &number.to_be_bytes()].concat();
        for (letter, cells) in images {
            bytes.push(*letter);
            bytes.extend_from_slice(&(cells.len() as u16).to_be_bytes());
            for cell in *cells {
                match *cell {
                    "NULL" => bytes.push(b'n'),
                    "SAME" => bytes.push(b'u'),
                    text => {
                        bytes.push(b't');
                        bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
                        bytes.extend_from_slice(text.as_bytes());
                    }
                }
            }
        }
        self.0.push(bytes);
        self
    }

    fn truncate(mut self, number: u32) -> Log {
        self.0.push([&b"T\0\0\0\x01\0"[..], &number.to_be_bytes()].concat());
        self
    }

    /// The transactions that come of it.
    fn read(&self, rows: &mut Rows) -> Vec<(Change<At>, Option<String>)> {
        self.0.iter().filter_map(|message| rows.take(message).unwrap()).collect()
    }
}

fn rows() -> Rows {
    Rows::new(Arc::new(Map::parse(MAP).unwrap()), BTreeSet::from([ITEMS]))
}

/// The keys of one transaction; or why nobody knows them.
fn keys(log: Log) -> std::result::Result<Vec<String>, String> {
    let mut read = log.commit(9).read(&mut rows());
    let (change, why) = read.pop().unwrap();
    assert!(read.is_empty());
    match (change.keys, why) {
        (Some(keys), None) => {
            Ok(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
        }
        (None, Some(why)) => Err(why),
        odd => panic!("{odd:?}"),
    }
}

#[test]
fn a_transaction_has_the_keys_of_its_rows_before_and_after() {
    let mut rows = rows();
    let log = Log::default().begin(7).whole_items();
    assert!(log.read(&mut rows).is_empty() && rows.is_open());
    let log = Log::default()
        .rows(b'I', ITEMS, &[(b'N', &["1", "5", "a"])])
        .rows(b'U', ITEMS, &[(b'O', &["1", "5", "a"]), (b'N', &["1", "6", "NULL"])])
        .rows(b'D', ITEMS, &[(b'O', &["1", "7", "z"])])
        .commit(0x0102);
    let (change, why) = log.read(&mut rows).pop().unwrap();
    let keys =
        ["item:5", "item:6", "item:7", "name:a", "name:z"].map(|key| key.as_bytes().to_vec());
    let mark = At { xid: Some(7), end: Lsn(0x0102) };
    assert_eq!(change, Change { mark, changed_s: YEAR_2000_S + 3, keys: Some(keys.to_vec()) });
    assert!(why.is_none() && !rows.is_open());
}

/// A key that is made of a column outside the identity was not dropped for the row as it was: the log did not
/// say what that had been, and nulls stood for it.
#[test]
fn what_the_identity_leaves_out_makes_a_transaction_unknown() {
    let unknown = |log: Log| {
        let why = keys(log).unwrap_err();
        assert!(why.contains("ALTER TABLE shop.items REPLICA IDENTITY FULL"), "{why}");
    };
    let log = || Log::default().begin(7).items();
    unknown(log().rows(b'U', ITEMS, &[(b'N', &["2", "5", "a"])]));
    unknown(log().rows(b'U', ITEMS, &[(b'K', &["NULL", "5", "NULL"]), (b'N', &["2", "6", "a"])]));
    unknown(log().rows(b'D', ITEMS, &[(b'K', &["NULL", "5", "NULL"])]));
    let inserted = log().rows(b'I', ITEMS, &[(b'N', &["2", "5", "a"])]);
    assert_eq!(keys(inserted).unwrap(), ["item:5", "name:a"]);
}

#[test]
fn an_identity_that_did_not_change_is_the_one_of_before() {
    let map = "[[keys]]\ntable = \"shop.items\"\nkey = \"item:{id}\"\n";
    let mut rows = Rows::new(Arc::new(Map::parse(map).unwrap()), BTreeSet::new());
    let log = Log::default()
        .begin(7)
        .items()
        .rows(b'U', ITEMS, &[(b'N', &["2", "5", "a"])])
        .rows(b'U', ITEMS, &[(b'K', &["NULL", "6", "NULL"]), (b'N', &["2", "7", "a"])])
        .commit(1);
    let (change, _) = log.read(&mut rows).pop().unwrap();
    assert_eq!(change.keys.unwrap(), [b"item:5", b"item:6", b"item:7"]);
}

/// Long values are stored apart; the log leaves out those that did not change.
#[test]
fn a_value_that_was_left_out_is_taken_from_the_row_before_or_unknown() {
    let log = || Log::default().begin(7).whole_items();
    let update = log().rows(b'U', ITEMS, &[(b'O', &["1", "5", "a"]), (b'N', &["2", "5", "SAME"])]);
    assert_eq!(keys(update).unwrap(), ["item:5", "name:a"]);
    let update = log().rows(b'U', ITEMS, &[(b'N', &["2", "5", "SAME"])]);
    assert!(keys(update).unwrap_err().contains("`name`"));
}

#[test]
fn tables_that_are_not_what_they_were_make_a_transaction_unknown() {
    let row: (u8, &[&str]) = (b'N', &["1", "5", "a"]);
    let log = || Log::default().begin(7).items();
    assert!(keys(log().truncate(ITEMS)).unwrap_err().contains("truncated: `shop.items`"));
    let renamed = log().relation(ITEMS, "others", &[("id", true, 20)]);
    let renamed = renamed.rows(b'I', ITEMS, &[(b'N', &["5"])]);
    assert!(keys(renamed).unwrap_err().contains("renamed: now `shop.others`"));
    let altered = Log::default().begin(7).relation(ITEMS, "items", &[("id", true, 20)]);
    let altered = altered.rows(b'I', ITEMS, &[(b'N', &["5"])]);
    assert!(keys(altered).unwrap_err().contains("no column `name`"));
    assert!(keys(Log::default().begin(7).rows(b'I', ITEMS, &[row])).is_err(), "no description");
    // Others are none of ours, whatever happens to them.
    let other = Log::default().begin(7).relation(5, "others", &[("id", true, 20)]);
    let other = other.rows(b'I', 5, &[(b'N', &["5"])]).truncate(5);
    assert_eq!(keys(other).unwrap(), [""; 0]);
}

#[test]
fn char_is_taken_without_its_padding_and_bytea_as_bytes() {
    let log = |code: &str, raw: &str| {
        let columns = [("code", true, BPCHAR), ("raw", true, BYTEA)];
        let log = Log::default().begin(7).relation(CODES, "codes", &columns);
        keys(log.rows(b'I', CODES, &[(b'N', &[code, raw])]))
    };
    assert_eq!(log("EU  ", "\\x41427a").unwrap(), ["code:EU:ABz"]);
    assert_eq!(log("    ", "\\x").unwrap(), ["code::"]);
    for wrong in ["4142", "\\x4", "\\x4g"] {
        assert!(log("EU", wrong).unwrap_err().contains("`raw`"), "{wrong}");
    }
}

#[test]
fn a_transaction_of_too_many_keys_is_unknown_and_the_next_one_is_not() {
    let mut rows = rows();
    let mut log = Log::default().begin(7).whole_items();
    for id in 0..TRANSACTION_KEYS_MAX / 2 + 1 {
        let id = id.to_string();
        log = log.rows(b'I', ITEMS, &[(b'N', &["1", &id, &id])]);
    }
    let log = log.commit(1).begin(8).rows(b'I', ITEMS, &[(b'N', &["1", "5", "a"])]).commit(2);
    let read = log.read(&mut rows);
    assert!(read[0].1.as_ref().unwrap().contains("more than 100000 keys"), "{:?}", read[0].1);
    assert_eq!((read[0].0.keys.clone(), read[1].0.keys.as_ref().unwrap().len()), (None, 2));
}

/// Messages cut anywhere, and noise: errors, and no panic.
#[test]
fn what_is_no_message_is_an_error() {
    let log = Log::default()
        .begin(7)
        .whole_items()
        .rows(b'U', ITEMS, &[(b'O', &["1", "5", "a"]), (b'N', &["1", "6", "SAME"])])
        .rows(b'D', ITEMS, &[(b'K', &["NULL", "7", "z"])])
        .truncate(ITEMS)
        .commit(1);
    for message in &log.0 {
        let mut rows = rows();
        for cut in 0..message.len() {
            assert!(rows.take(&message[..cut]).is_err(), "{} at {cut}", message[0] as char);
        }
        assert!(rows.take(&[&message[..], b"x"].concat()).is_err());
    }
    assert!(rows().take(&log.0[5]).is_err(), "an end without a beginning");
    for other in [&b"O\0"[..], b"Y\0", b"M\0"] {
        assert!(rows().take(other).unwrap().is_none());
    }
    let rng = SeededRng::new(3);
    let mut rows = rows();
    for message in &log.0 {
        for _ in 0..2000 {
            let mut noise = message.clone();
            for _ in 0..1 + rng.next_u64() % 3 {
                let at = rng.next_u64() as usize % noise.len();
                noise[at] = rng.next_u64() as u8;
            }
            let _ = rows.take(&noise);
        }
    }
}
