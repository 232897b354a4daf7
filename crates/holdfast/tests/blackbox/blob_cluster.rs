//! Blobs on several nodes: put through one, got through all, and all there when a node is lost with
//! its disk.

use super::cluster::Dev;
use super::common::{Scratch, bytes};
use super::photos::{client, put, send};
use holdfast_s3::{Client, Request};

const OBJECTS: usize = 30;

fn content(i: usize) -> Vec<u8> {
    bytes(i as u64, [0, 100, 5_000, 70_000, 300_000][i % 5])
}

/// Gets an object through a node that may not have heard of it yet; every attempt is a round trip.
#[track_caller]
fn assert_got(s3: &mut Client, path: &str, content: &[u8]) {
    for _ in 0..100_000 {
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
        let stored = (0..100_000).any(|_| {
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
    assert!((0..100_000).any(|_| gone(&mut one)), "it is still there");
}
