//! Blobs on several nodes: put through one, got through all, and all there when a node is lost with
//! its disk.

use super::cluster::Dev;
use super::common::{Scratch, attempts, bytes};
use super::photos::{client, put, send};
use holdfast_s3::{Client, Request};

const OBJECTS: usize = 30;

fn content(i: usize) -> Vec<u8> {
    bytes(i as u64, [0, 100, 5_000, 70_000, 300_000][i % 5])
}

/// Gets an object through a node that may not have heard of it yet.
#[track_caller]
fn assert_got(s3: &mut Client, path: &str, content: &[u8]) {
    for () in attempts() {
        let got = s3.send(&Request::new("GET", path)).unwrap();
        match got.status {
            404 => {}
            // Its replicas are being looked for.
            503 => {}
            _ => {
                let got = got.ok(path).unwrap();
                assert!(got.body == content, "{path}: {} bytes", got.body.len());
                return;
            }
        }
    }
    panic!("{path} never came");
}

#[test]
fn blobs_outlive_a_node_with_its_disk_and_are_got_through_any() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let dev = Dev::start_with_s3(&data, 4);
    let through = |node: u16| client(&data.join(format!("node-{node}")));
    let (mut one, mut two, mut four) = (through(1), through(2), through(4));
    put(&mut one, "/box", b"");
    let key = |i: usize| format!("/box/{i}");
    for i in 0..OBJECTS {
        put(&mut one, &key(i), &content(i));
    }
    let large = bytes(99, 20 << 20);
    put(&mut one, "/box/large", &large);
    for s3 in [&mut two, &mut four] {
        (0..OBJECTS).for_each(|i| assert_got(s3, &key(i), &content(i)));
        assert_got(s3, "/box/large", &large);
    }
    dev.order(&["kill", "3", "--hard"]).ok();
    dev.order(&["erase", "3"]).ok();
    // While it is missed, then repaired: nothing is refused for long, and nothing is lost.
    for i in OBJECTS..2 * OBJECTS {
        let content = content(i);
        let stored = attempts().any(|()| {
            let request = Request { body: &content, ..Request::new("PUT", key(i)) };
            two.send(&request).is_ok_and(|answer| answer.status == 200)
        });
        assert!(stored, "{i} was never stored");
    }
    dev.until_repaired(3);
    for s3 in [&mut one, &mut two, &mut four] {
        (0..2 * OBJECTS).for_each(|i| assert_got(s3, &key(i), &content(i)));
        assert_got(s3, "/box/large", &large);
    }
    // What one node deletes is gone through another.
    send(&mut four, Request::new("DELETE", key(0)));
    let gone = |s3: &mut Client| s3.send(&Request::new("GET", key(0))).unwrap().status == 404;
    assert!(attempts().any(|()| gone(&mut one)), "it is still there");
}

fn latest(path: &str) -> Request<'_> {
    let mut request = Request::new("GET", path);
    request.headers.push(("x-holdfast-read", "latest".to_owned()));
    request
}

/// Who was told of a write and read at another node at once got what was there before, 51 times of
/// 400 beside faults, and nothing said that it was old. With the header the node waits until it has
/// everything that anybody was told of, or says that it cannot know.
#[test]
fn a_write_is_seen_at_once_at_another_node_by_who_asks_for_the_latest() {
    const ROUNDS: usize = 60;
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let dev = Dev::start_with_s3(&data, 3);
    let through = |node: u16| client(&data.join(format!("node-{node}")));
    let mut all = [through(1), through(2), through(3)];
    put(&mut all[0], "/box", b"");
    for i in 0..ROUNDS {
        let content = format!("round {i}").into_bytes();
        put(&mut all[i % 3], "/box/a", &content);
        for other in [(i + 1) % 3, (i + 2) % 3] {
            let got = all[other].send(&latest("/box/a")).unwrap();
            assert_eq!((got.status, got.body), (200, content.clone()), "round {i}, node {other}");
        }
        send(&mut all[(i + 1) % 3], Request::new("DELETE", "/box/a"));
        assert_eq!(all[i % 3].send(&latest("/box/a")).unwrap().status, 404, "round {i}");
    }
    // Any other value is a mistake, which must not look like an answer.
    let mut wrong = Request::new("GET", "/box/a");
    wrong.headers.push(("x-holdfast-read", "last".to_owned()));
    assert_eq!(all[1].send(&wrong).unwrap().status, 400);
    // Cut off from the log, a node cannot know, and says so; without the header it answers with
    // what it has.
    put(&mut all[2], "/box/b", b"old");
    assert_eq!(all[1].send(&latest("/box/b")).unwrap().body, b"old");
    dev.order(&["cut", "1", "2"]).ok();
    put(&mut all[2], "/box/b", b"new");
    assert_eq!(all[1].send(&latest("/box/b")).unwrap().status, 503);
    dev.order(&["cut", "1", "2", "--heal"]).ok();
    let mut answers = attempts().map(|()| all[1].send(&latest("/box/b")).unwrap());
    let seen = answers.find(|answer| answer.status != 503).unwrap();
    assert_eq!((seen.status, &seen.body[..]), (200, &b"new"[..]));
}
