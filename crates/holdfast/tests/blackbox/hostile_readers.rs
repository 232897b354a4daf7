//! Riders, and readers of the log over HTTP, that ask for much and read nothing: what they cost the process in
//! memory, and that others are served beside them.

use super::common::{Node, Scratch, attempts, finish, free_port, resident_bytes};
use holdfast_base::codec::{Decode, Encode};
use holdfast_client::{Client, Connection};
use holdfast_wire::slab::Range;
use holdfast_wire::{OP_RIDE_BEGIN, OP_RIDE_NEXT, view as msg};
use std::io::{Read, Write};
use std::net::TcpStream;

const MIB: u64 = 1 << 20;
/// The smallest there is.
const BUDGET: u64 = 64 * MIB;
/// What a process may grow by beside its budget: sockets, threads' stacks, pieces of heaps, and what a debug
/// build takes for its tasks. Where four other processes took both processors, it was up to 125 MiB.
const BESIDE: u64 = 300 * MIB;
/// What a view keeps of its last slabs for riders that are behind: not more than it has, here.
const ITEMS: usize = 300;
const VALUE_BYTES: usize = 200_000;
const WINDOWS: u64 = (ITEMS * VALUE_BYTES) as u64;
const RIDERS: usize = 100;
/// Requests of each head that a rider has under way: as many as a view lets wait.
const ASKED: usize = 16;
/// A slab with its header: five values here.
const SLAB: u64 = 1_010_000;
const FOLLOWERS: usize = 150;

fn view() -> msg::ViewName {
    msg::ViewName { topic: "orders".into(), kind: msg::ViewKind::Disk {}, part: 0, of: 1 }
}

/// Asks for all that it may, and reads nothing of it.
fn rider(node: &Node) -> Connection {
    let mut rider = Connection::connect(&node.endpoint()).unwrap();
    let board = msg::Board::of(view(), Range::ALL);
    let begun = rider.call(OP_RIDE_BEGIN, |meta| board.encode(meta), &[]).unwrap();
    let msg::Boarded { ride, heads, .. } = msg::Boarded::from_bytes(begun.meta()).unwrap();
    for _ in 0..ASKED {
        for head in 0..heads {
            let next = msg::Next { ride, head };
            rider.submit(OP_RIDE_NEXT, |meta| next.encode(meta), &[]).unwrap();
        }
    }
    rider.flush().unwrap();
    rider
}

#[track_caller]
fn keeps_within(node: &Node, before: u64, most: u64) {
    let grown = resident_bytes(node.pid()).saturating_sub(before);
    assert!(grown < most, "{} MiB more than before, not {}", grown / MIB, most / MIB);
    let held = node.client().held().unwrap();
    let (peak, limit) = (held.peak_bytes, held.limit_bytes);
    assert!(peak <= limit + limit / 8, "{} MiB were held", peak / MIB);
}

/// A slab was asked for without asking whether there was room for it: each rider that reads nothing had as
/// many as it might ask for, beside what was counted.
#[test]
fn riders_that_read_nothing_take_their_share_and_others_ride() {
    let scratch = Scratch::new();
    let settings = "dram = \"0\"\nscrub = \"0\"\nclients_memory = \"64M\"\nview_cache = \"8M\"\n";
    let node = Node::start_with(&scratch.path("data"), settings);
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    let value = "v".repeat(VALUE_BYTES);
    let lines: String = (0..ITEMS).map(|i| format!("k{i:03}\t{value}\n")).collect();
    finish(&mut node.command(&["view", "load", "lines", "orders", "nodes", "-"]), lines.as_bytes())
        .ok();
    let ridden = || -> u64 {
        let said = node.json(&["ride", "orders"]);
        said.iter().filter_map(|one| one["items"].as_u64()).sum()
    };
    let rides = || assert_eq!(ridden(), ITEMS as u64);
    // The view comes behind the log.
    assert!(attempts().any(|()| ridden() == ITEMS as u64), "the view does not come to the end");
    let before = resident_bytes(node.pid());
    let mut riders = Vec::new();
    for turn in 0..5 {
        riders.extend((0..RIDERS / 5).map(|_| rider(&node)));
        rides();
        node.run(&["log", "append", "beside", &format!("good {turn}")]).ok();
        keeps_within(&node, before, BUDGET + BESIDE + WINDOWS);
        let held = node.client().held().unwrap();
        let most = BUDGET / 4 + (riders.len() as u64 + 1) * SLAB;
        assert!(
            held.held_bytes <= most,
            "{} KiB for {} riders",
            held.held_bytes >> 10,
            riders.len()
        );
    }
    drop(riders);
    rides();
    let mut client = node.client();
    while client.held().unwrap().held_bytes > 0 {}
    node.stop();
}

/// Pages of the log that nobody had taken yet were counted nowhere: 256 readers, each with one of a megabyte
/// and its text.
#[test]
fn readers_of_the_log_over_http_that_read_nothing_take_their_share() {
    let scratch = Scratch::new();
    let (http, native) = (free_port(), free_port());
    let settings = format!(
        "dram = \"0\"\nscrub = \"0\"\nclients_memory = \"64M\"\nhttp_port = {http}\nnative_port = {native}\n"
    );
    let node = Node::start_with(&scratch.path("data"), &settings);
    let entry = "e".repeat(900_000);
    for _ in 0..8 {
        node.run(&["log", "append", "orders", &entry[..100_000]]).ok();
        finish(&mut node.command(&["log", "append", "orders"]), entry.as_bytes()).ok();
    }
    let token = node.run(&["token", "create", "app", "--allow", "log:orders:rw"]).ok();
    let token = token.trim();
    let asks = format!(
        "GET /log/orders?follow=1&from=1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let before = resident_bytes(node.pid());
    let mut followers = Vec::new();
    for turn in 0..3 {
        for _ in 0..FOLLOWERS / 3 {
            let mut follower = TcpStream::connect(("127.0.0.1", http)).unwrap();
            follower.write_all(asks.as_bytes()).unwrap();
            followers.push(follower);
        }
        let line = format!("good {turn}");
        node.run(&["log", "append", "orders", &line]).ok();
        assert!(node.run(&["log", "info", "orders"]).ok().contains("orders"));
        keeps_within(&node, before, BUDGET + BESIDE);
    }
    drop(followers);
    let mut client: Client = node.client();
    while client.held().unwrap().held_bytes > 0 {}
    // Who reads is answered.
    let mut good = TcpStream::connect(("127.0.0.1", http)).unwrap();
    let get = format!(
        "GET /log/orders?from=1&count=2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    good.write_all(get.as_bytes()).unwrap();
    let mut said = String::new();
    good.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 "), "{}", &said[..said.len().min(300)]);
    node.stop();
}
