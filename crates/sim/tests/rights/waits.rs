//! How many may wait for what may never come. The clock stands still: nobody's wait ends by itself.

use super::*;
use holdfast_base::codec::Decode;
use holdfast_wire as wire;
use holdfast_wire::table::{self, TabletChanges};
use std::collections::BTreeSet;

/// Who follows tables at once: one more is answered as it is.
const FOLLOWERS_MAX: u64 = 256;

fn send(connection: &Inline, opcode: u16, id: u64, meta: &[u8], body: &[u8]) {
    let (mut request, bytes) = (Vec::new(), body.len() as u32);
    let fill = |m: &mut Vec<u8>| m.extend_from_slice(meta);
    frame::encode(&mut request, FrameKind::Request, opcode, id, 0, bytes, fill);
    request.extend_from_slice(body);
    connection.receive(&request).unwrap();
}

/// Requests that were answered since, with what.
fn answered(connection: &Inline) -> BTreeMap<u64, Vec<u8>> {
    let (answers, mut at, mut all) = (connection.take(), 0, BTreeMap::new());
    while let Ok(Decoded::Frame(header)) = frame::decode(&answers[at..]) {
        let meta = at + HEADER_BYTES;
        let body = meta + header.meta_bytes as usize;
        at = body + header.body_bytes as usize;
        let said = String::from_utf8_lossy(&answers[meta..body]).into_owned();
        assert_eq!(header.status(), 0, "request {}: {said}", header.request_id);
        let new = all.insert(header.request_id, answers[body..at].to_vec());
        assert!(new.is_none(), "request {} is answered twice", header.request_id);
    }
    assert_eq!(at, answers.len());
    all
}

fn changes(answer: &[u8]) -> Vec<TabletChanges> {
    Vec::<TabletChanges>::from_bytes(answer).unwrap()
}

/// Each takes memory of the node until something shows, and whoever may read a table may send any number.
#[test]
fn so_many_follow_tables_at_once_and_one_more_is_answered_as_it_is() {
    let world = World::new();
    world.tables.open_all();
    let connection = world.connect(Who::Owner);
    let (table, mode) = ("items".to_owned(), table::TableMode::Timeline);
    let make = table::Make { table: table.clone(), mode, tablets: 2, everywhere: false };
    send(&connection, wire::OP_TABLE_MAKE, 1, &make.to_bytes(), &[]);
    let mut asked =
        table::Changes { table: table.clone(), from: Vec::new(), values: false, wait_ms: 10_000 };
    send(&connection, wire::OP_TABLE_CHANGES, 2, &asked.to_bytes(), &[]);
    let mut answers = answered(&connection);
    let now = changes(&answers.remove(&2).unwrap());
    asked.from = now.iter().map(|tablet| tablet.at.clone()).collect();
    let (first, last) = (10, 10 + FOLLOWERS_MAX);
    for id in first..last {
        send(&connection, wire::OP_TABLE_CHANGES, id, &asked.to_bytes(), &[]);
    }
    assert_eq!(answered(&connection), BTreeMap::new(), "so many wait");
    for more in 0..3 {
        send(&connection, wire::OP_TABLE_CHANGES, last + more, &asked.to_bytes(), &[]);
        let answers = answered(&connection);
        assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [last + more]);
        assert_eq!(changes(&answers[&(last + more)]), now, "nothing has shown");
    }
    // Who waited is told as soon as something shows, and leaves room for others.
    let write = table::Write { table, session: 1, below: 1 };
    let (key, value) = (b"k".to_vec(), Some(b"v".to_vec()));
    let rows = vec![table::Row { sequence: 1, expect: table::Expect::Any, key, value }];
    send(&connection, wire::OP_TABLE_WRITE, 3, &write.to_bytes(), &rows.to_bytes());
    world.node.pump();
    world.tables.round();
    world.node.pump();
    let mut answers = answered(&connection);
    assert!(answers.remove(&3).is_some());
    assert_eq!(answers.keys().copied().collect::<BTreeSet<_>>(), (first..last).collect());
    for answer in answers.values() {
        let shown: usize = changes(answer).iter().map(|tablet| tablet.changes.len()).sum();
        assert_eq!(shown, 1);
    }
    let shown = changes(&answers[&first]);
    asked.from = shown.into_iter().map(|tablet| tablet.at).collect();
    send(&connection, wire::OP_TABLE_CHANGES, 4, &asked.to_bytes(), &[]);
    assert_eq!(answered(&connection), BTreeMap::new(), "there is room again");
}
