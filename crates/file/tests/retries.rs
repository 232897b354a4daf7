//! Broken connections, lost answers, restarts and ended sessions: what was asked for happens once.

mod common;

use common::{Proxy, World, assert_same, open_session, pattern, replacing};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{FileId, Sequence};
use holdfast_base::{Kind, Result};
use holdfast_client::{Client, Connection, NewFile};
use holdfast_log::Mode;
use holdfast_node::{Keeper, KeeperOptions};
use holdfast_view::SESSIONS_MAX;
use holdfast_wire::{self as wire, Call, file as msg};

fn put(connection: &mut Connection, call: Call, path: &str, bytes: &[u8]) -> FileId {
    let node = msg::NewNode {
        path: path.to_owned(),
        kind: holdfast_base::node::NodeKind::File,
        mode: 0o644,
        mtime_ns: 1,
        class: None,
        replace: false,
        parents: false,
        metadata: Vec::new(),
    };
    let put = msg::Put { call, node, crc: holdfast_base::checksum::crc32c(bytes) };
    let response = connection.call(wire::OP_PUT, |out| put.encode(out), &[bytes]).unwrap();
    FileId::from_bytes(response.meta()).unwrap()
}

/// A put without `replace` that was carried out stood in the way of its own repetition: the check
/// before the append refused it, although the session knew its first answer.
#[test]
fn a_repeated_put_gets_its_first_answer_even_after_a_restart() {
    let mut world = World::new("repeat");
    let mut connection = world.connection();
    let session = open_session(&mut connection).unwrap();
    let call = Call { session, sequence: Sequence(1), acknowledged_below: Sequence(1) };
    let first = put(&mut connection, call, "/f", b"bytes");
    assert_eq!(put(&mut connection, call, "/f", b"bytes"), first);
    drop(connection);
    world.restart();
    let mut connection = world.connection();
    assert_eq!(put(&mut connection, call, "/f", b"bytes"), first);
    assert_eq!(world.client().usage("/").unwrap().files, 1);
}

#[test]
fn changes_whose_answer_was_lost_happen_once() {
    let world = World::new("lost-answers");
    let proxy = Proxy::new(&world);
    let mut client = proxy.client();
    client.put("/warm", b"", &NewFile::default()).unwrap();
    let lose = |count| {
        proxy.lose_answers(count);
        &proxy
    };
    lose(1);
    client.put("/a", b"a", &NewFile::default()).unwrap();
    lose(3);
    client.make_dir("/d", &NewFile::default()).unwrap();
    lose(1);
    client.rename("/a", "/d/a", false).unwrap();
    lose(1);
    assert_eq!(client.get("/d/a").unwrap(), b"a");
    lose(1);
    client.delete("/d/a", false).unwrap();
    assert_eq!(lose(0).left(), 0);
    let tickets: Vec<_> = (0..20)
        .map(|i| client.submit_put(&format!("/d/{i}"), &[i], &NewFile::default()).unwrap())
        .collect();
    lose(1);
    for ticket in tickets {
        client.wait_put(ticket).unwrap();
    }
    let usage = world.client().usage("/").unwrap();
    assert_eq!(usage.files, 21, "`warm` and twenty");
}

#[test]
fn a_request_that_never_gets_through_fails_and_the_client_goes_on() {
    let world = World::new("give-up");
    let proxy = Proxy::new(&world);
    let mut client = proxy.client();
    client.put("/f", b"f", &NewFile::default()).unwrap();
    proxy.lose_answers(1000);
    assert_eq!(client.get("/f").unwrap_err().kind, Kind::Retry);
    proxy.lose_answers(0);
    assert_eq!(client.get("/f").unwrap(), b"f");
}

/// Look-ups and pings went to the connection as it was: a client that asked for nothing else after one that broke
/// for good heard of that failure for ever, also of a node that had long been back.
#[test]
fn whatever_is_asked_first_behind_a_broken_connection_makes_it_anew() {
    let world = World::new("retries-first");
    let proxy = Proxy::new(&world);
    let mut client = proxy.client();
    client.put("/f", b"f", &NewFile::default()).unwrap();
    type Ask = fn(&mut Client) -> Result<()>;
    let asks: [(&str, Ask); 4] = [
        ("stat", |client| client.stat("/f").map(drop)),
        ("stat_followed", |client| client.stat_followed("/f").map(drop)),
        ("ping", Client::ping),
        ("get", |client| client.get("/f").map(drop)),
    ];
    for (name, ask) in asks {
        proxy.lose_answers(1000);
        assert_eq!(client.get("/f").unwrap_err().kind, Kind::Retry);
        proxy.lose_answers(0);
        assert_eq!(ask(&mut client), Ok(()), "{name}");
    }
}

#[test]
fn a_stream_survives_broken_connections_and_restarts() {
    let mut world = World::new("stream-restart");
    let bytes = pattern(20 << 20, 1);
    let mut client = world.client();
    let mut writer = client.create("/f", &NewFile::default()).unwrap();
    for (i, part) in bytes.chunks(1 << 20).enumerate() {
        writer.write(part).unwrap();
        match i {
            3 | 4 | 9 => world.cut_connections(),
            6 | 12 => world.restart(),
            _ => {}
        }
    }
    world.cut_connections();
    writer.close().unwrap();
    assert_same(&client.get("/f").unwrap(), &bytes, "written");
    let mut reader = client.open("/f").unwrap();
    let mut read = Vec::new();
    loop {
        let ready = reader.next_bytes().unwrap();
        if ready.is_empty() {
            break;
        }
        read.extend_from_slice(ready);
        let n = ready.len();
        reader.consume(n);
        match read.len() >> 20 {
            4 | 5 => world.cut_connections(),
            9 => world.restart(),
            _ => {}
        }
    }
    assert_same(&read, &bytes, "read");
    drop(reader);
    assert!(client.unclosed().unwrap().is_empty());
}

#[test]
fn a_stream_whose_answers_are_lost_is_whole() {
    let world = World::new("stream-lost");
    let proxy = Proxy::new(&world);
    let mut client = proxy.client();
    for sized in [false, true] {
        let bytes = pattern((66 << 20) + 5, 2);
        let new = replacing();
        let mut writer = match sized {
            false => client.create("/f", &new).unwrap(),
            true => client.create_sized("/f", &new, bytes.len() as u64).unwrap(),
        };
        for (i, part) in bytes.chunks(5 << 20).enumerate() {
            if i % 4 == 0 {
                proxy.lose_answers(1);
            }
            writer.write(part).unwrap();
        }
        proxy.lose_answers(1);
        writer.close().unwrap();
        assert_same(&client.get("/f").unwrap(), &bytes, "whole");
    }
}

#[test]
fn sessions_that_nobody_uses_end_and_their_clients_go_on_with_new_ones() {
    let world = World::new("idle");
    let mut idle = world.client();
    let mut busy = world.client();
    idle.put("/idle", b"1", &NewFile::default()).unwrap();
    busy.put("/busy", b"1", &NewFile::default()).unwrap();
    let options = KeeperOptions { session_idle_ms: 1000, ..KeeperOptions::default() };
    let mut keeper = Keeper::new(world.node().clone(), options);
    let sessions = || world.node().shards.root().status().sessions;
    let second = 1_000_000_000;
    keeper.step(second);
    assert_eq!(sessions(), 2);
    busy.put("/busy", b"2", &replacing()).unwrap();
    keeper.step(second + second / 2);
    busy.put("/busy", b"3", &replacing()).unwrap();
    keeper.step(2 * second + 1);
    assert_eq!(sessions(), 1, "one was used meanwhile");
    let tickets: Vec<_> = (0..5)
        .map(|i| idle.submit_put(&format!("/{i}"), b"x", &NewFile::default()).unwrap())
        .collect();
    for ticket in tickets {
        idle.wait_put(ticket).unwrap();
    }
    assert_eq!(sessions(), 2);
    busy.put("/busy", b"4", &replacing()).unwrap();
    assert_eq!(idle.usage("/").unwrap().files, 7);
    keeper.step(9 * second);
    keeper.step(19 * second);
    assert_eq!(sessions(), 0);
    let mut writer = idle.create("/stream", &NewFile::default()).unwrap();
    writer.write(&pattern(2 << 20, 1)).unwrap();
    writer.flush().unwrap();
    keeper.step(29 * second);
    keeper.step(39 * second);
    assert_eq!(sessions(), 0, "appends carry no session");
    writer.close().unwrap();
    assert_eq!(idle.stat("/stream").unwrap().size, 2 << 20);
}

/// A client opened sessions without end, and for an hour everybody's writes were refused, behind a
/// restart, too. Those that nobody uses make way at once; of those that were used once, the ones
/// that rest are ended in a minute while there are many.
#[test]
fn sessions_that_one_client_opens_without_end_shut_nobody_out() {
    let world = World::new("crowd");
    let mut client = world.client();
    client.put("/f", b"1", &NewFile::default()).unwrap();
    let names = &world.node().shards.root();
    let open = |sessions: usize| {
        let (sender, opened) = std::sync::mpsc::channel();
        for _ in 0..sessions {
            let sender = sender.clone();
            names.open_session(Mode::Ordered, Box::new(move |id| drop(sender.send(id))));
        }
        opened.into_iter().take(sessions).collect::<Vec<_>>()
    };
    assert!(open(SESSIONS_MAX + 10).iter().all(|session| session.is_ok()));
    assert_eq!(names.status().sessions, SESSIONS_MAX);
    let mut late = world.client();
    late.put("/late", b"1", &NewFile::default()).unwrap();
    client.put("/f", b"2", &replacing()).unwrap();
    let mut keeper = Keeper::new(world.node().clone(), KeeperOptions::default());
    let second = 1_000_000_000;
    for round in 1..10 {
        keeper.step(round * 10 * second);
    }
    assert_eq!(names.status().sessions, 0);
    late.put("/late", b"2", &replacing()).unwrap();
    client.put("/f", b"3", &replacing()).unwrap();
}

#[test]
fn an_ended_session_is_not_replaced_for_a_request_that_may_have_been_carried_out() {
    let world = World::new("in-doubt");
    let proxy = Proxy::new(&world);
    let mut client = proxy.client();
    client.put("/f", b"1", &NewFile::default()).unwrap();
    let mut keeper = Keeper::new(
        world.node().clone(),
        KeeperOptions { session_idle_ms: 1000, ..KeeperOptions::default() },
    );
    keeper.step(0);
    keeper.step(10_000_000_000);
    assert_eq!(world.node().shards.root().status().sessions, 0);
    proxy.lose_answers(1);
    let error = client.put("/f", b"2", &replacing()).unwrap_err();
    assert_eq!(error.kind, Kind::Fenced, "{error}");
    client.put("/f", b"3", &replacing()).unwrap();
    assert_eq!(client.get("/f").unwrap(), b"3");
}
