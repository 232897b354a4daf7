//! No room left: writes are refused with the reason, reads go on, deleting heals it without a
//! restart, and a start on the full disk works.

use crate::common::{Node, Scratch, attempts, bytes, free_port, until};
use crate::http;
use crate::mount::Mount;
use crate::s3;
use holdfast_base::ids::Index;
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::{Error, Kind};
use holdfast_client::view::Changes;
use holdfast_client::{Client, NewFile};
use holdfast_wire::view::Key;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

const FILE_BYTES: usize = 1 << 20;
/// Of the log.
const SEGMENT_BYTES: usize = 64 << 20;
/// More than fits anywhere here.
const FILES_MAX: usize = 600;

fn content(i: usize) -> &'static [u8] {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    let pool = POOL.get_or_init(|| bytes(1, FILE_BYTES + 4096 * FILES_MAX));
    &pool[4096 * i..][..FILE_BYTES]
}

fn put(client: &mut Client, i: usize) -> Result<(), Error> {
    client.put(&format!("/f{i}"), content(i), &NewFile::default()).map(|_| ())
}

/// As [`put`], while housekeeping still works: a rewrite takes room before it gives more back.
fn put_when_there_is_room(client: &mut Client, i: usize) {
    for () in attempts() {
        match put(client, i) {
            Err(e) if e.kind == Kind::Full => {}
            other => return other.unwrap(),
        }
    }
    panic!("room for /f{i} never came: {:?}", client.status());
}

fn assert_whole(client: &mut Client, files: impl Iterator<Item = usize>) {
    for i in files {
        assert!(client.get(&format!("/f{i}")).unwrap() == content(i), "/f{i}");
    }
}

/// Others take all room of the file system, to its last byte.
pub fn fill_with_others(outside: &Path) {
    let mut others = fs::File::create(outside.join("others")).unwrap();
    let block = [1; 4096];
    while others.write_all(&block).is_ok() {}
}

/// The story of both tests: fill, be refused, read, restart, free, write again.
fn fill_and_heal(data: &Path, settings: &str) {
    let node = Node::start_with(data, &format!("grace_ms = 0\n{settings}"));
    let mut client = node.client();
    let mut count = 0;
    let refused = loop {
        assert!(count < FILES_MAX, "it never became full");
        match put(&mut client, count) {
            Ok(()) => count += 1,
            Err(e) => break e,
        }
    };
    assert!(count > 3, "{count} files fit: {refused}");
    assert_eq!(refused.kind, Kind::Full, "{refused}");
    let what_to_do = ["remove files", "delete something"];
    let message = &refused.message;
    assert!(message.contains(&format!("`/f{count}`")), "{message}");
    assert!(what_to_do.iter().any(|words| message.contains(words)), "{message}");
    assert_eq!(client.stat(&format!("/f{count}")).unwrap_err().kind, Kind::NotFound);
    // A stream is refused as well, and a second time.
    let streamed = client
        .create("/stream", &NewFile::default())
        .and_then(|mut w| w.write(&vec![1; 100 << 20]).and_then(|()| w.close()));
    assert_eq!(streamed.unwrap_err().kind, Kind::Full);
    // It kept what it had taken for a week, from those that were refused for want of it.
    assert_eq!(client.unclosed().unwrap(), [], "a refused stream is given up");
    assert_eq!(put(&mut client, count).unwrap_err().kind, Kind::Full);
    assert_whole(&mut client, 0..count);
    node.run(&["doctor"]);
    drop(client);

    let node = Node::start(&node.kill());
    let mut client = node.client();
    assert_whole(&mut client, 0..count);
    let status = client.status().unwrap();
    assert!(status.stores.iter().all(|store| !store.read_only), "{status:?}");
    // The names of what is left alternate with those of what goes: chunks must be rewritten.
    let keeps = |i: &usize| i.is_multiple_of(4);
    for i in (0..count).filter(|i| !keeps(i)) {
        client.delete(&format!("/f{i}"), false).unwrap();
    }
    // Room is taken a chunk at a time.
    let needed = (count / 8 * FILE_BYTES) as u64 + CHUNK_BYTES;
    node.until("the deleted bytes are free", |status| status.stores[0].free_bytes > needed);
    for i in (0..count).filter(|i| !keeps(i)).take(count / 8) {
        put_when_there_is_room(&mut client, i);
    }
    assert_whole(&mut client, (0..count).filter(keeps));
    assert_whole(&mut client, (0..count).filter(|i| !keeps(i)).take(count / 8));
    drop(client);
    node.stop();
}

#[test]
fn a_store_that_reached_its_capacity_refuses_reads_on_and_heals() {
    let scratch = Scratch::new();
    fill_and_heal(&scratch.path("data"), "capacity = \"340M\"\n");
}

#[test]
fn a_full_file_system_refuses_reads_on_and_heals() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let Some(_mount) = Mount::new(&data, "500m") else { return };
    fill_and_heal(&data, "");
}

/// Others had filled the disk to its last byte, and the node did not start: it wanted to write a
/// file that was there, so that nobody could delete anything in it.
#[test]
fn a_node_starts_where_others_have_left_no_room_at_all() {
    let scratch = Scratch::new();
    let outside = scratch.path("mount");
    let Some(_mount) = Mount::new(&outside, "700m") else { return };
    let node = Node::start(&outside.join("data"));
    node.client().put("/f", content(0), &NewFile::default()).unwrap();
    let data = node.kill();
    fill_with_others(&outside);
    let node = Node::start(&data);
    let mut client = node.client();
    assert!(client.get("/f").unwrap() == content(0));
    fs::remove_file(outside.join("others")).unwrap();
    client.delete("/f", false).unwrap();
    drop(client);
    node.stop();
}

/// The index of blobs found no room once, and S3 answered nothing until a restart, though there was
/// room again.
#[test]
fn s3_goes_on_when_its_index_finds_room_again() {
    let scratch = Scratch::new();
    let outside = scratch.path("mount");
    let Some(_mount) = Mount::new(&outside, "700m") else { return };
    let mut node = s3::start(&outside.join("data"));
    node.told.announce("view.stopped");
    let make = |i: usize| s3::blob(&node.data, &["mb", &format!("bucket-{i}")], b"");
    make(0).ok();
    fill_with_others(&outside);
    let (mut made, mut refused) = (vec![0], None);
    for i in 1..2000 {
        let done = make(i);
        if done.code != Some(0) {
            refused = Some(done.err);
            break;
        }
        made.push(i);
    }
    let refused = refused.expect("the index takes room");
    assert!(refused.contains("space"), "{refused}");
    fs::remove_file(outside.join("others")).unwrap();
    let goes_on = (0..500).any(|i| make(10_000 + i).code == Some(0));
    assert!(goes_on, "{:?}", node.client().status());
    let listed = s3::blob(&node.data, &["ls"], b"").ok();
    for i in made {
        assert!(listed.contains(&format!("\"bucket-{i}\"")), "bucket-{i}: {listed}");
    }
    node.stop();
}

/// A view of items that had stopped for want of room answered with what it had then as with the latest: a key that was
/// acknowledged was not there. And one that could not be begun was listed until the next start, though nothing had
/// written down that it was to run.
#[test]
fn a_view_that_found_no_room_answers_nothing_until_there_is_some() {
    let scratch = Scratch::new();
    let outside = scratch.path("mount");
    let Some(_mount) = Mount::new(&outside, "700m") else { return };
    let mut node = Node::start(&outside.join("data"));
    node.told.announce("view.stopped");
    node.run(&["view", "create", "orders", "nodes"]).ok();
    node.run(&["view", "run", "disk", "orders"]).ok();
    fill_with_others(&outside);
    node.run(&["view", "run", "memory", "orders"]).refused(&["which has it run", "space"]);
    assert_eq!(node.json(&["view", "status"]).len(), 1);
    let mut client = node.client();
    let put = |client: &mut Client, key: &str| {
        let mut changes = Changes::default();
        changes.put(1, key.as_bytes(), &[7; 4096]);
        client.view("orders").change(&changes)
    };
    let has_stopped = |i: usize| {
        put(&mut client, &format!("k{i}")).unwrap();
        !client.views("orders").unwrap()[0].stopped.is_empty()
    };
    assert!((0..500).any(has_stopped), "its rows take room");
    put(&mut client, "last").unwrap();
    let get = |client: &mut Client| {
        let key = Key { collection: 1, key: b"last".to_vec() };
        client.view("orders").get(vec![key], None, Index(0)).map(|got| got.found[0].is_some())
    };
    let refused = get(&mut client).expect_err("what it has is not the latest");
    assert!(refused.message.contains("rows of view `orders disk 0/1`"), "{refused}");
    fs::remove_file(outside.join("others")).unwrap();
    until("it goes on", || get(&mut client).is_ok_and(|is_there| is_there));
    node.run(&["view", "run", "memory", "orders"]).ok();
    drop(client);
    node.stop();
}

/// The names' segment ended on a full disk, and the next one found no room: deletions, directories
/// and trims were all refused, and after a kill the node did not start, so that nobody read either.
#[test]
fn names_can_be_removed_where_others_have_left_no_room_at_all() {
    let scratch = Scratch::new();
    let outside = scratch.path("mount");
    let Some(_mount) = Mount::new(&outside, "700m") else { return };
    let port = free_port();
    let node = Node::start_with(&outside.join("data"), &format!("http_port = {port}\n"));
    let mut client = node.client();
    client.put("/f", content(0), &NewFile::default()).unwrap();
    node.run(&["log", "append", "mine", "x"]).ok();
    fill_with_others(&outside);
    // Each name is an entry of a sector: more of them than a segment holds.
    let target = "x".repeat(3900);
    let names_max = 2 * SEGMENT_BYTES / target.len();
    let link = |client: &mut Client, i: usize| client.symlink(&format!("/l{i}"), &target, 0);
    let refused = (0..names_max).find_map(|i| Some((i, link(&mut client, i).err()?)));
    let (made, refused) = refused.expect("the log became full");
    assert_eq!(refused.kind, Kind::Full, "{refused}");
    assert!(refused.message.contains("delete something"), "{refused}");
    let said = http::get(port, "/health", "");
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("\nspace: "), "{said}");
    node.run(&["log", "trim", "mine", "2"]).ok();
    client.delete(&format!("/l{}", made - 1), false).unwrap();
    drop(client);

    let node = Node::start(&node.kill());
    let mut client = node.client();
    assert!(client.get("/f").unwrap() == content(0));
    for i in 0..100 {
        client.delete(&format!("/l{i}"), false).unwrap();
    }
    fs::remove_file(outside.join("others")).unwrap();
    node.until("names are taken again", |_| {
        node.client().make_dir("/d", &NewFile::default()).is_ok()
    });
    drop(client);
    node.stop();
}

/// Two of three hosts were full, and writes were refused as for a passing reason, which clients tried
/// again for as long as their patience lasted, and which S3 said with 503.
#[test]
fn a_cluster_with_room_on_one_host_of_three_is_full() {
    let scratch = Scratch::new();
    let (port, http) = (free_port(), free_port());
    let settings = format!("native_port = {port}\nhttp_port = {http}\nhost = \"h1\"\n");
    let first = Node::start_with(&scratch.path("1"), &settings);
    // The reserve, and less than a chunk.
    let small = |number: u16| {
        let data = scratch.path(&number.to_string());
        let port_of_its_own = free_port();
        let settings = format!("native_port = {port_of_its_own}\nhost = \"h{number}\"\n");
        Node::set(&data, &format!("{settings}capacity = \"160MiB\"\n"));
        Node::join(&data, &first, port)
    };
    let second = small(2);
    let (third, mut client) = (small(3), first.client());
    let refused = client.put("/f", b"x", &NewFile::default()).unwrap_err();
    assert_eq!(refused.kind, Kind::Full, "{refused}");
    assert!(refused.message.contains("1 of 3 hosts have room"), "{refused}");
    let said = http::get(http, "/health", "");
    assert!(said.contains("\nspace: ") && said.contains("1 of 3 hosts have room"), "{said}");
    drop(client);
    [third, second, first].into_iter().for_each(|node| drop(node.stop()));
}

/// What had failed while the disk was full was listed by `doctor` until a restart, though there was
/// room again: it kept what is true for a while as if it were for good.
#[test]
fn doctor_forgets_a_full_disk_when_there_is_room_again() {
    let scratch = Scratch::new();
    let outside = scratch.path("mount");
    let Some(_mount) = Mount::new(&outside, "700m") else { return };
    let port = free_port();
    let settings = format!("http_port = {port}\nsnapshot_entries = 2\ncapacity = \"500M\"\n");
    let node = Node::start_with(&outside.join("data"), &settings);
    let mut client = node.client();
    for i in 0..200 {
        client.symlink(&format!("/l{i}"), "target", 0).unwrap();
    }
    client.put("/f", content(0), &NewFile::default()).unwrap();
    fill_with_others(&outside);
    for i in 0..200 {
        client.delete(&format!("/l{i}"), false).unwrap();
    }
    assert_eq!(node.run(&["doctor"]).code, Some(1), "the disk is full");
    fs::remove_file(outside.join("others")).unwrap();
    node.until("it is well again", |_| http::get(port, "/health", "").starts_with("HTTP/1.1 200 "));
    assert_eq!(node.run(&["doctor"]).ok(), "the node is well\n");
    drop(client);
    node.stop();
}

/// `/health` said 200 while every put was refused: a chunk's file takes two sectors more than the
/// chunk, and the one who asked for room did not count them.
#[test]
fn health_and_puts_agree_where_a_chunk_just_fits() {
    let reserve_bytes = 2 * CHUNK_BYTES;
    for (more_bytes, fits) in [(0, false), (4096, false), (8192, true)] {
        let scratch = Scratch::new();
        let capacity = reserve_bytes + (1 << 20) + more_bytes;
        let port = free_port();
        let settings = format!("http_port = {port}\nchunk = \"1M\"\ncapacity = \"{capacity}\"\n");
        let node = Node::start_with(&scratch.path("data"), &settings);
        let said = http::get(port, "/health", "");
        assert_eq!(said.starts_with("HTTP/1.1 200 "), fits, "{more_bytes}: {said}");
        let put = node.client().put("/f", &[1; 100], &NewFile::default());
        assert_eq!(put.as_ref().err().map(|e| e.kind), (!fits).then_some(Kind::Full), "{put:?}");
        node.stop();
    }
}

/// A file system can run out of inodes while it has bytes: writes were refused, and nothing said so.
#[test]
fn a_disk_that_takes_no_more_files_is_said_by_health() {
    let scratch = Scratch::new();
    let outside = scratch.path("mount");
    let Some(_mount) = Mount::new(&outside, "900m,nr_inodes=300") else { return };
    let port = free_port();
    let settings = format!("http_port = {port}\nchunk = \"1M\"\ngrace_ms = 0\n");
    let node = Node::start_with(&outside.join("data"), &settings);
    let mut client = node.client();
    put(&mut client, 0).unwrap();
    let others = outside.join("others");
    fs::create_dir(&others).unwrap();
    let made = (0..300).take_while(|i| fs::File::create(others.join(i.to_string())).is_ok());
    assert!(made.count() > 10);
    let said = http::get(port, "/health", "");
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("inodes"), "{said}");
    let refused = (1..FILES_MAX).find_map(|i| put(&mut client, i).err()).unwrap();
    assert_eq!(refused.kind, Kind::Full, "{refused}");
    client.delete("/f0", false).unwrap();
    fs::remove_dir_all(&others).unwrap();
    node.until("it is well again", |_| http::get(port, "/health", "").starts_with("HTTP/1.1 200 "));
    put(&mut client, FILES_MAX - 1).unwrap();
    drop(client);
    node.stop();
}
