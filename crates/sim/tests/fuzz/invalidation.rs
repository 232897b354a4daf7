//! What an invalidator reads: events of MariaDB's row log, PostgreSQL's messages in pieces, what its plugin writes of
//! transactions, and entries of the topic.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_invalidate::entry::Entry;
use holdfast_invalidate::map::Map;
use holdfast_invalidate::mariadb::event::{Event, kind};
use holdfast_invalidate::mariadb::rows;
use holdfast_invalidate::position::Position;
use holdfast_invalidate::postgres::output::Sent;
use holdfast_invalidate::postgres::rows::Rows;
use holdfast_invalidate::postgres::wire::{Received, Said};
use holdfast_sim::fuzz;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A message with its tag and length.
fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// All messages of what is received in these pieces; nothing behind the first that is none.
fn messages(pieces: &[&[u8]]) -> Vec<(u8, Vec<u8>)> {
    let (mut received, mut got) = (Received::default(), Vec::new());
    for piece in pieces {
        received.space().extend_from_slice(piece);
        loop {
            match received.message() {
                Ok(Some((tag, body))) => got.push((tag, body.to_vec())),
                Ok(None) => break,
                Err(_) => return got,
            }
        }
    }
    got
}

#[test]
fn messages_of_a_database_are_the_same_in_whatever_pieces_they_come() {
    let asked = message(b'R', b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
    let refused = message(b'E', b"SERROR\0C55006\0Mis active\0\0");
    let row = message(b'D', b"\0\x02\0\0\0\x01x\xff\xff\xff\xff");
    let copied = message(b'd', &[b"k", &[7; 17][..]].concat());
    let samples = [[asked, refused].concat(), [row, message(b'Z', b"I"), copied].concat()];
    let mut said = 0;
    fuzz::run("postgres.wire", &samples, |input| {
        let (first, second) = input.split_at(input.len() / 3);
        let got = messages(&[input]);
        assert_eq!(messages(&[first, second]), got);
        for (tag, body) in &got {
            said += usize::from(Said::read(*tag, body).is_ok_and(|said| said != Said::Other));
        }
    });
    assert!(said > 1000, "only {said} mutated messages were read");
}

const TABLE: u32 = 16385;

/// What the plugin writes of transactions, each message with its length in front.
fn log(messages: &[&[u8]]) -> Vec<u8> {
    let framed = |message: &&[u8]| [&(message.len() as u16).to_be_bytes(), *message].concat();
    messages.iter().flat_map(framed).collect()
}

fn each(mut log: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = log.split_first_chunk::<2>() {
        let (message, rest) = rest.split_at(rest.len().min(u16::from_be_bytes(*length).into()));
        messages.push(message);
        log = rest;
    }
    messages
}

#[test]
fn transactions_of_a_log_have_their_keys_or_say_why_not() {
    let number = TABLE.to_be_bytes();
    let begin = [&b"B"[..], &[0; 16], &7u32.to_be_bytes()].concat();
    let relation = [
        &b"R"[..],
        &number,
        b"shop\0items\0d\0\x02\x01id\0\0\0\0\x14\xff\xff\xff\xff\0name\0\0\0\x04\x13\xff\xff\xff\xff",
    ]
    .concat();
    let insert = [&b"I"[..], &number, b"N\0\x02t\0\0\0\x017t\0\0\0\x02ab"].concat();
    let update =
        [&b"U"[..], &number, b"O\0\x02t\0\0\0\x017t\0\0\0\x02abN\0\x02t\0\0\0\x018u"].concat();
    let delete = [&b"D"[..], &number, b"O\0\x02t\0\0\0\x018t\0\0\0\x02ab"].concat();
    let truncate = [&b"T\0\0\0\x01\0"[..], &number].concat();
    let commit = [&b"C\0"[..], &[1; 24]].concat();
    let alive = [&b"k"[..], &[9; 16], &[1]].concat();
    let whole = log(&[&begin, &relation, &insert, &update, &delete, &commit]);
    let samples = [whole.clone(), log(&[&begin, &relation, &truncate, &commit, &alive]), whole];
    let map = Map::parse(
        "[[keys]]\ntable = \"shop.items\"\nkey = \"item:{id}\"\n[[keys]]\ntable = \"shop.items\"\nkey = \"name:{name}\"\n",
    );
    let map = Arc::new(map.unwrap());
    let (mut known, mut unknown) = (0, 0);
    fuzz::run("postgres.output", &samples, |input| {
        let mut rows = Rows::new(map.clone(), BTreeSet::from([TABLE]));
        for message in each(input) {
            let _ = Sent::read(message);
            let Ok(read) = rows.take(message) else { return };
            let Some((change, why)) = read else { continue };
            assert!(!rows.is_open());
            assert_eq!(change.keys.is_none(), why.is_some());
            known += usize::from(why.is_none());
            unknown += usize::from(why.is_some());
        }
    });
    assert!(known > 1000 && unknown > 1000, "{known} and {unknown} transactions were read");
}

/// A file of MariaDB's log, in hexadecimal.
const BINLOG: &str = include_str!("../../../invalidate/tests/binlog.hex");

/// Events by what they say of their own length, without the sum that ends each. Cut ones are events, too.
fn events(log: &[u8]) -> Vec<Event<'_>> {
    let (mut events, mut rest) = (Vec::new(), log);
    while let Some((header, data)) = rest.split_at_checked(19) {
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let length = (number(9) as usize).saturating_sub(19).min(data.len());
        let (data, behind) = data.split_at(length);
        events.push(Event {
            kind: header[4],
            changed_s: number(0).into(),
            server: number(5),
            end: number(13).into(),
            data: &data[..length.saturating_sub(4)],
        });
        rest = behind;
    }
    events
}

/// The log's events from one of this kind up to the next, each with what is behind it.
fn transactions(log: &[u8]) -> Vec<Vec<u8>> {
    let (mut each, mut rest) = (vec![Vec::new()], log);
    while let Some(length) = rest.get(9..13) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        if rest[4] == kind::GTID {
            each.push(Vec::new());
        }
        let (event, behind) = rest.split_at(length);
        each.last_mut().unwrap().extend_from_slice(event);
        rest = behind;
    }
    each
}

/// A log that lies about its lengths, kinds and columns: no panic, no rows without end, and what is not known is said.
#[test]
fn events_of_mariadb_s_log_have_their_keys_or_say_why_not() {
    let text = BINLOG.replace('\n', "");
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    let file: Vec<u8> =
        text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect();
    let mut samples = transactions(&file[4..]);
    assert_eq!(samples.len(), 16, "what is in front, and fifteen transactions");
    samples.push(file[4..].to_vec());
    let keys = [
        "items\"\nkey = \"item:{id}",
        "items\"\nkey = \"name:{name}",
        "kinds\"\nkey = \"item:{ad}",
    ];
    let keys = keys.map(|key| format!("[[keys]]\ntable = \"shop.{key}\"\n"));
    let map = Map::parse(&keys.concat()).unwrap();
    let (mut known, mut unknown, mut with_keys) = (0, 0, 0);
    fuzz::run("mariadb.rows", &samples, |input| {
        let mut rows = rows::Rows::default();
        for event in events(input) {
            let Ok(read) = rows.take(&event, &map) else { continue };
            let Some((change, why)) = read else { continue };
            assert_eq!(change.keys.is_none(), why.is_some());
            for key in change.keys.iter().flatten() {
                assert!(key.starts_with(b"item:") || key.starts_with(b"name:"));
            }
            with_keys += usize::from(change.keys.is_some_and(|keys| !keys.is_empty()));
            known += usize::from(why.is_none());
            unknown += usize::from(why.is_some());
        }
    });
    let counts = [known, unknown, with_keys];
    assert!(counts.iter().all(|count| *count > 1000), "{counts:?} transactions were read");
}

#[test]
fn entries_of_the_topic_are_refused_or_mean_one_thing() {
    let at = |text: &str| Position::parse(text).unwrap();
    let (servers, rings) = (vec![("h:1".to_owned(), Index(9))], vec!["main W h:1 1".to_owned()]);
    let keys = vec![b"item:1".to_vec(), b"b".to_vec()];
    let samples = [
        Entry::Keys { position: at("0-1-100,7-2-3"), changed_s: 7, keys },
        Entry::Empty { position: at("pg-7-1-5-00000000deadbeef-16/B374D848"), changed_s: 8 },
        Entry::Confirmed { servers, rings },
    ]
    .map(|entry| entry.to_bytes());
    let mut accepted = 0;
    fuzz::run("invalidate.entry", &samples, |input| {
        if let Ok(entry) = Entry::from_bytes(input) {
            accepted += 1;
            assert_eq!(Entry::from_bytes(&entry.to_bytes()).as_ref(), Ok(&entry));
        }
    });
    assert!(accepted > 1000, "only {accepted} mutated entries were accepted");
}
