//! Images that are wrong on one of two nodes: who rides one receives what it lacks, or is told; its node hears of it,
//! uses it no more, and makes another one.

use super::common::{Node, Scratch, binary, finish, free_port};
use super::stopped_views::files_below;
use super::views::{images, view_once};
use holdfast_base::checksum::crc32c;
use serde_json::Value;
use std::path::{Path, PathBuf};

const SETTINGS: &str = "dram = \"0\"\nscrub = \"0\"\n";
const VIEW: &str = "orders disk 0/1";
const ITEMS: usize = 300;
/// Of a slab's header, in front of its columns, and of a column in there.
const FRONT: usize = 28;
const COLUMN: usize = 16;

struct Pair {
    _scratch: Scratch,
    first: Node,
    second: Node,
}

impl Pair {
    /// Two nodes with a view of all keys each, and an image of each.
    fn new() -> (Pair, u64) {
        let scratch = Scratch::new();
        let port = free_port();
        let settings = |port: u16| format!("{SETTINGS}native_port = {port}\n");
        let first = Node::start_with(&scratch.path("1"), &settings(port));
        let other = scratch.path("2");
        Node::set(&other, &settings(free_port()));
        let second = Node::join(&other, &first, port);
        first.run(&["view", "create", "orders", "nodes"]).ok();
        for node in [&first, &second] {
            node.run(&["view", "run", "disk", "orders"]).ok();
        }
        let lines: String = (0..ITEMS).map(|i| format!("k{i:03}\tvalue {i}\n")).collect();
        let load = ["view", "load", "lines", "orders", "nodes", "-"];
        finish(&mut first.command(&load), lines.as_bytes()).ok();
        let pair = Pair { _scratch: scratch, first, second };
        let mark = pair.mark();
        (pair, mark)
    }

    /// Asks for images, and waits for both.
    fn mark(&self) -> u64 {
        let mark = self.first.json(&["view", "mark", "orders"])[0]["index"].as_u64().unwrap();
        for node in [&self.first, &self.second] {
            view_once(node, VIEW, |view| images(view).contains(&mark));
        }
        mark
    }

    fn servers(&self) -> String {
        let server = |node: &Node| format!("unix:{}", node.socket().display());
        format!("{},{}", server(&self.first), server(&self.second))
    }

    /// Rides images of an entry, of the first node as long as it has one, and has it checked.
    fn ride(&self, mark: u64) -> (Option<i32>, Vec<Value>, String) {
        let (servers, mark) = (self.servers(), mark.to_string());
        let words = ["--json", "--server", &servers, "ride", "orders", "--at", &mark];
        let done = finish(binary().args(words).args(["--check", "--print"]), b"");
        let said = String::from_utf8(done.out).unwrap();
        let said = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        (done.code, said, done.err)
    }

    fn is_whole(&self, mark: u64, told: &str) {
        let (code, said, err) = self.ride(mark);
        assert_eq!(code, Some(0), "{told}: {err}");
        let keys = said.iter().filter(|line| line["key"].is_string()).count();
        let checked = said.iter().any(|line| line["checked"] == mark && line["by"] == "image");
        assert_eq!((keys, checked), (ITEMS, true), "{told}: {err}");
    }
}

/// The file of an image that has its first slab.
fn part_of(data: &Path, mark: u64) -> PathBuf {
    let name = format!("image-{mark:020}.0");
    let files = files_below(&data.join("views")).into_iter();
    files.into_iter().find(|file| file.ends_with(&name)).expect("the image is there")
}

fn number(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Flips a bit in the last value of the first slab of an image's file, and says in which sub-range of the hashes it
/// lies. `as_made` has the checksums be those of what is there then, as where it flipped before they were taken.
fn flip_in(part: &Path, as_made: bool) -> u8 {
    let mut bytes = std::fs::read(part).unwrap();
    assert_eq!(&bytes[..4], b"HFSL");
    let columns = number(&bytes, 24);
    let header = FRONT + COLUMN * columns;
    let all: usize = (0..columns).map(|c| number(&bytes, FRONT + COLUMN * c + 8)).sum();
    // The last column is of values, and ends with one.
    let of_values = FRONT + COLUMN * (columns - 1);
    assert_eq!(bytes[of_values + 3], 1);
    let end = header + 4 + all;
    bytes[end - 1] ^= 4;
    if as_made {
        let begin = end - number(&bytes, of_values + 8);
        let crc = crc32c(&bytes[begin..end]).to_le_bytes();
        bytes[of_values + 12..of_values + 16].copy_from_slice(&crc);
        let crc = crc32c(&bytes[..header]).to_le_bytes();
        bytes[header..header + 4].copy_from_slice(&crc);
    }
    let sub_range = bytes[7];
    std::fs::write(part, bytes).unwrap();
    sub_range
}

/// A bit on the disk: the node finds it when it reads the slab, and what is missing comes from the other one.
#[test]
fn a_flipped_bit_in_an_image_costs_the_image_and_no_ride() {
    let (pair, mark) = Pair::new();
    pair.is_whole(mark, "nothing is wrong");
    flip_in(&part_of(&pair.first.data, mark), false);
    let (code, _, err) = pair.ride(mark);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("goes on elsewhere") && err.contains("checksum"), "{err}");
    pair.is_whole(mark, "the other image");
    view_once(&pair.first, VIEW, |view| !images(view).contains(&mark));
    let Pair { mut first, second, _scratch } = pair;
    second.stop();
    first.kill_and_be_told("view.image-given-up", "checksum");
}

/// A bit that had flipped before the slab had a checksum: the node has no means to find it but its own image's sums, and
/// holds what it reads against them when a rider says that they differ. It was told by nobody, views began with such an
/// image, and each ride of it failed.
#[test]
fn an_image_that_was_wrong_before_its_checksums_is_found_by_riders_and_made_again() {
    let (pair, mark) = Pair::new();
    let sub_range = flip_in(&part_of(&pair.first.data, mark), true);
    let (code, _, err) = pair.ride(mark);
    assert_eq!(code, Some(1), "{err}");
    let place = format!("of keys with hashes {sub_range:02x}");
    assert!(err.contains(&place) && err.contains("look whether that is wrong"), "{err}");
    // The other one is doubted as well, and is what it says of itself.
    view_once(&pair.first, VIEW, |view| !images(view).contains(&mark));
    pair.is_whole(mark, "the other image");
    let again = pair.mark();
    pair.is_whole(again, "the one that was made again");
    let held = images(&view_once(&pair.second, VIEW, |_| true));
    assert_eq!(held, [mark, again], "nothing was wrong there");
    let Pair { mut first, second, _scratch } = pair;
    second.stop();
    first.kill_and_be_told("view.image-given-up", &place);
}
