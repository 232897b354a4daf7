//! Disks that are not there when their node starts: it goes on with the others, says which one is
//! missing, and makes nothing in its place until a person has given it up.

use crate::common::{Node, Scratch, attempts, binary, bytes, finish, free_port};
use crate::health::{ill, well};
use holdfast_client::{Client, NewFile};
use holdfast_wire::admin::Cluster;
use std::fs;
use std::path::Path;

const FILES: u64 = 12;

/// Small chunks, so that all stores have some; and less room than the file system has: it has the
/// same for all stores on it, and what else fills it meanwhile would choose between them.
const ROOM: &str = "chunk = \"1M\"\ncapacity = \"2GiB\"\n";

fn content(i: u64) -> Vec<u8> {
    bytes(i, 700_000)
}

/// How many of the files can be read; all that can are whole.
fn whole(node: &Node) -> u64 {
    let mut client = node.client();
    let got = |i: &u64| match client.get(&format!("/f{i}")) {
        Ok(got) => {
            assert!(got == content(*i), "/f{i}");
            true
        }
        Err(_) => false,
    };
    (0..FILES).filter(got).count() as u64
}

/// As when a disk is not mounted: its mount point is an empty directory.
fn unmount(disk: &Path, away: &Path) {
    fs::rename(disk, away).unwrap();
    fs::create_dir(disk).unwrap();
}

fn mount(away: &Path, disk: &Path) {
    fs::remove_dir_all(disk).unwrap();
    fs::rename(away, disk).unwrap();
}

fn start_without(data: &Path) -> Node {
    let mut node = Node::start(data);
    node.told.announce("store.left-out");
    node
}

/// A store was made anew in the empty mount point of a disk that was not mounted: it filled the
/// root's disk, and what the right one held counted as lost, which nobody was told.
#[test]
fn a_node_starts_without_a_disk_that_is_not_mounted_and_makes_nothing_in_its_place() {
    let scratch = Scratch::new();
    let (data, disk, away) = (scratch.path("data"), scratch.path("disk"), scratch.path("away"));
    let port = free_port();
    let disks = format!("disks = [{:?}]", disk.display().to_string());
    let settings = format!("http_port = {port}\n{ROOM}{disks}\n");
    let node = Node::start_with(&data, &settings);
    let mut client = node.client();
    for i in 0..FILES {
        client.put(&format!("/f{i}"), &content(i), &NewFile::default()).unwrap();
    }
    let stores = client.status().unwrap().stores;
    drop(client);
    assert!(stores.len() == 2 && stores.iter().all(|store| store.chunks > 0), "{stores:?}");
    let place = disk.display().to_string();
    let number_of = |here: bool| stores.iter().find(|s| (s.place == place) == here).unwrap().id.0;
    let (number, other) = (number_of(true).to_string(), number_of(false).to_string());
    node.run(&["node", "store", &other, "gone"]).refused(&["give up store", "live"]);
    let data = node.stop();

    unmount(&disk, &away);
    for _ in 0..2 {
        let node = start_without(&data);
        let said = ill(&node, port, "store", "is its disk mounted?");
        assert!(said.contains(&place) && said.contains(&number), "{said}");
        let left = whole(&node);
        assert!(0 < left && left < FILES, "{left} files are on the other disk");
        node.client().put("/more", &content(99), &NewFile::default()).unwrap();
        node.client().delete("/more", false).unwrap();
        node.run(&["node", "store", &number, "writable"]).refused(&[&number, "gone"]);
        node.stop();
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "nothing is made there");
    }
    let offline = finish(binary().args(["doctor", "--data"]).arg(&data), b"");
    assert_eq!(offline.code, Some(1), "{offline:?}");
    assert!(String::from_utf8_lossy(&offline.out).contains("is its disk mounted?"), "{offline:?}");

    // Mounted again, it is as it was.
    mount(&away, &disk);
    let node = Node::start(&data);
    well(port);
    assert_eq!(whole(&node), FILES);
    let data = node.stop();

    // Gone for good: a person says so, and only then a new store is made.
    unmount(&disk, &away);
    let node = start_without(&data);
    let left = whole(&node);
    node.run(&["node", "store", &number, "gone"]).ok();
    let data = node.stop();
    let node = Node::start(&data);
    well(port);
    assert!(disk.join("STORE").exists());
    assert_eq!(whole(&node), left);
    let data = node.stop();

    // It turns up after all: it is not taken for the new one, and nothing of it is touched.
    mount(&away, &disk);
    let node = start_without(&data);
    ill(&node, port, "store", "gone for good");
    assert!(whole(&node) < FILES);
    node.stop();
}

/// The disk of another cluster in the right one's place was taken, its chunks' numbers beside the
/// node's own, and nobody said that a store was missing. Nor did anybody when a directory was taken
/// out of the settings, nor when there were two copies of one store, between which writes were split.
#[test]
fn what_is_in_a_directory_is_the_store_that_was_there_or_is_not_used() {
    let scratch = Scratch::new();
    let (data, disk, away) = (scratch.path("data"), scratch.path("disk"), scratch.path("away"));
    let port = free_port();
    let settings = |disks: &[&Path]| {
        let disks: Vec<String> = disks.iter().map(|disk| format!("{:?}", disk)).collect();
        format!("http_port = {port}\n{ROOM}disks = [{}]\n", disks.join(", "))
    };
    let filled = |data: &Path, disk: &Path| {
        let node = Node::start_with(data, &settings(&[disk]));
        for i in 0..FILES {
            node.client().put(&format!("/f{i}"), &content(i), &NewFile::default()).unwrap();
        }
        let place = disk.display().to_string();
        let stores = node.client().status().unwrap().stores;
        let id = stores.iter().find(|store| store.place == place).unwrap().id.0;
        (node.stop(), id.to_string())
    };
    let (other_data, other_disk) = (scratch.path("other"), scratch.path("other-disk"));
    let (_, others) = filled(&other_data, &other_disk);
    let (data, number) = filled(&data, &disk);

    fs::rename(&disk, &away).unwrap();
    fs::rename(&other_disk, &disk).unwrap();
    let node = start_without(&data);
    let said = ill(&node, port, "store", "is the right disk mounted?");
    assert!(said.contains(&number) && said.contains(&others), "{said}");
    assert!(whole(&node) < FILES);
    node.client().put("/more", &content(99), &NewFile::default()).unwrap();
    node.client().delete("/more", false).unwrap();
    let data = node.stop();
    fs::rename(&disk, &other_disk).unwrap();
    // Nor is it where nothing is missing: it was, and at the start after that no name was served.
    fs::rename(&away, &disk).unwrap();
    fs::write(data.join("holdfast.toml"), settings(&[&disk, &other_disk])).unwrap();
    for _ in 0..2 {
        let node = start_without(&data);
        let said = ill(&node, port, "store", "chunks of another cluster");
        assert!(said.contains(&others), "{said}");
        assert_eq!(whole(&node), FILES);
        node.stop();
    }
    fs::rename(&disk, &away).unwrap();

    // Taken out of the settings.
    let mut node = Node::start_with(&data, &settings(&[]));
    node.told.announce("store.left-out");
    let said = ill(&node, port, "store", "in no directory of this node");
    assert!(said.contains(&number), "{said}");
    let data = node.stop();

    // A copy beside it.
    fs::rename(&away, &disk).unwrap();
    let copy = scratch.path("copy");
    let copied = std::process::Command::new("cp").arg("-a").args([&disk, &copy]).status().unwrap();
    assert!(copied.success());
    fs::write(data.join("holdfast.toml"), settings(&[&disk, &copy])).unwrap();
    let refused = Node::try_start(&data).err().expect("it has one store twice");
    refused.refused(&["hold the same store", "copy", "disk"]);

    let node = Node::start_with(&data, &settings(&[&disk]));
    well(port);
    assert_eq!(whole(&node), FILES);
    node.stop();
}

/// Asked of a place where no node was, doctor made one there and said that it was well.
#[test]
fn doctor_makes_nothing_where_no_node_keeps_its_data() {
    let scratch = Scratch::new();
    let empty = scratch.path("empty");
    fs::create_dir(&empty).unwrap();
    for place in [empty.clone(), scratch.path("none")] {
        finish(binary().args(["doctor", "--data"]).arg(&place), b"").refused(&[
            place.to_str().unwrap(),
            "no node keeps its data there",
            "mounted",
        ]);
    }
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    assert!(!scratch.path("none").exists());
}

/// With its only disk away a node serves the names that it has, and refuses bytes with the reason.
#[test]
fn a_node_without_any_of_its_disks_says_so_and_takes_no_bytes() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let port = free_port();
    let node = Node::start_with(&data, &format!("http_port = {port}\n"));
    node.client().put("/f0", &content(0), &NewFile::default()).unwrap();
    let data = node.stop();
    let (chunks, away) = (data.join("chunks"), scratch.path("away"));
    unmount(&chunks, &away);
    let node = start_without(&data);
    ill(&node, port, "store", "is its disk mounted?");
    assert!(node.run(&["fs", "ls", "/"]).ok().contains("f0"));
    let put = node.client().put("/g", &content(1), &NewFile::default()).unwrap_err();
    assert!(put.message.contains("is its disk mounted?"), "{put}");
    assert_eq!(whole(&node), 0);
    let data = node.stop();
    mount(&away, &chunks);
    let node = Node::start(&data);
    well(port);
    assert_eq!(whole(&node), 1);
    node.stop();
}

/// The log is another node's, and is asked before anything is made. What was on the disk is made up
/// for elsewhere, and counts again when the disk is back.
#[test]
fn a_member_without_one_of_its_disks_is_made_up_for_and_has_it_back() {
    let scratch = Scratch::new();
    let (disk, away) = (scratch.path("disk"), scratch.path("away"));
    let port = free_port();
    let settings = |number: u16, port: u16| {
        format!("native_port = {port}\nhost = \"h{number}\"\nchunk = \"1M\"\n")
    };
    let first = Node::start_with(&scratch.path("1"), &settings(1, port));
    let member = |number: u16, more: &str| {
        let data = scratch.path(&number.to_string());
        Node::set(&data, &format!("{}{more}", settings(number, free_port())));
        Node::join(&data, &first, port)
    };
    let third = member(3, "");
    let second = member(2, &format!("disks = [{:?}]\n", disk.display().to_string()));
    let mut client = first.client();
    // Of its two stores each chunk has one, by chance.
    let mut files = 0;
    while second.client().status().unwrap().stores.iter().any(|store| store.chunks == 0) {
        assert!(files < 200, "one of two stores got no chunk");
        client.put(&format!("/f{files}"), &content(files), &NewFile::default()).unwrap();
        files += 1;
    }
    let all_there = |client: &mut Client| {
        (0..files).all(|i| client.get(&format!("/f{i}")).unwrap() == content(i))
    };
    let until = |client: &mut Client, state: &str| {
        let there = |cluster: &Cluster| {
            let stores = cluster.nodes.iter().flat_map(|node| &node.stores);
            let other = stores.filter(|store| store.state != "live").map(|store| &store.state);
            let recovery = &cluster.recovery;
            let states: Vec<&String> = other.collect();
            let as_wanted = if state == "live" { states.is_empty() } else { states == [state] };
            as_wanted && (recovery.short, recovery.lost) == (0, 0)
        };
        let looks = attempts().any(|()| there(&client.cluster().unwrap()));
        assert!(looks, "{:?}", client.cluster());
    };
    let data = second.stop();
    unmount(&disk, &away);
    let mut second = Node::join(&data, &first, port);
    second.told.announce("store.left-out");
    until(&mut client, "absent");
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "nothing is made there");
    assert!(all_there(&mut client));
    let data = second.stop();
    mount(&away, &disk);
    let second = Node::join(&data, &first, port);
    until(&mut client, "live");
    assert!(all_there(&mut client));
    drop(client);
    [third, second, first].into_iter().for_each(|node| drop(node.stop()));
}
