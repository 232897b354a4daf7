//! Moves of directories that go on changing, and shards that cannot be opened: what one node does of it, round
//! by round.

mod common;

use common::work::{Work, add_shards, is_settled, keeps, move_to, order_move, shard_of};
use common::{World, assert_same, pattern, replacing};
use holdfast_base::Kind;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::{ChunkId, Durability};
use holdfast_chunk::{ChunkKind, ChunkSpec};
use holdfast_client::NewFile;
use holdfast_cluster::names::PART_BYTES;
use holdfast_env::trial::Trial;
use holdfast_wire::admin::Order;

/// Writes to a directory waited from the freeze on until all of it was copied. Now a round begins and ends with
/// it taking changes, but for the one in which it goes; what is written while it is copied is there behind.
#[test]
fn a_directory_is_written_to_while_it_is_copied() {
    // So many steps that no move is over in a round, however fast the machine.
    let _trial = Trial::new().with(&PART_BYTES, 1).enter();
    let world = World::with_chunks("move-written", 1 << 20);
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    client.make_dir("/d/in", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 2);
    let small = pattern(5000, 1);
    for i in 0..600 {
        let bytes = if i % 20 == 0 { small.as_slice() } else { b"" };
        client.put(&format!("/d/in/{i:03}"), bytes, &NewFile::default()).unwrap();
    }
    let mut expected = vec![600; 600];
    let mut written = 0;
    for to in [1, 0, 2] {
        order_move(&mut client, "/d", to);
        let mut rounds = 0;
        while !(is_settled(&world) && (to == 0 || keeps(&world, to, "d"))) {
            let at = (rounds * 37) % 600;
            let bytes = pattern(100 + rounds, 3);
            client.put(&format!("/d/in/{at:03}"), &bytes, &replacing()).unwrap();
            expected[at] = bytes.len();
            written += 1;
            work.rounds(1);
            rounds += 1;
            let frozen =
                |view: &holdfast_cluster::Namespace, _| view.borders().moves().frozen().count();
            for (shard, fold) in world.node().shards.all() {
                assert_eq!(fold.read(frozen).unwrap(), 0, "shard {shard} has one that is still");
            }
            assert!(rounds < 1000, "it never comes there: {:?}", world.node().findings());
        }
        assert_eq!(shard_of(&mut client, "/d/in/001"), to);
    }
    assert!(written > 3, "{written}");
    for (at, bytes) in expected.iter().enumerate().filter(|(_, bytes)| **bytes != 600) {
        let read = client.get(&format!("/d/in/{at:03}")).unwrap();
        assert_eq!(read.len(), *bytes, "/d/in/{at:03}");
    }
    assert_eq!(client.usage("/d").unwrap().files, 600);
    client.delete("/d/in", true).unwrap();
    world.node().retire();
    work.until(&world, |world| {
        let count = |shard| world.node().read_chunks(shard, |view, _| view.count()).unwrap();
        is_settled(world) && (0..3).all(|shard| count(shard) == 0)
    });
    assert_eq!(world.node().findings(), Vec::<String>::new());
}

/// Entries of moves were written one after the other, each waited for: one whose topic did not answer had all
/// other moves wait, and the rest of the housekeeping.
#[test]
fn an_entry_that_is_not_answered_holds_up_no_other_move() {
    let _trial = Trial::new().with(&PART_BYTES, 200).enter();
    let (world, hold) = World::with_held_log("move-held");
    let mut work = Work::new(&world);
    let mut client = world.client();
    for dir in ["/d", "/e"] {
        client.make_dir(dir, &NewFile::default()).unwrap();
        for i in 0..50 {
            client.put(&format!("{dir}/{i}"), b"", &NewFile::default()).unwrap();
        }
    }
    add_shards(&world, &mut work, &mut client, 2);
    hold.hold("namespace/1");
    order_move(&mut client, "/d", 1);
    // Its first step is under way, and another one's go on meanwhile.
    work.until(&world, |_| hold.waiting() > 0);
    order_move(&mut client, "/e", 2);
    work.until(&world, |world| keeps(world, 2, "e"));
    client.put("/d/0", b"", &replacing()).unwrap();
    client.put("/e/0", b"", &replacing()).unwrap();
    assert_eq!((shard_of(&mut client, "/d/1"), shard_of(&mut client, "/e/1")), (0, 2));
    hold.let_go();
    work.until(&world, |world| keeps(world, 1, "d") && is_settled(world));
    assert_eq!(shard_of(&mut client, "/d/1"), 1);
    assert_eq!(client.usage("/").unwrap().files, 100);
}

/// Shards were opened in their order, up to the first that could not be: with one whose snapshots could not be
/// read, all behind it stayed closed, at each start too, and nobody was told which.
#[test]
#[expect(clippy::disallowed_methods, reason = "what a person does with the directory")]
fn a_shard_that_cannot_be_opened_keeps_no_other_closed() {
    let mut world = World::with_chunks("shard-unopened", 1 << 20);
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    client.make_dir("/e", &NewFile::default()).unwrap();
    // Where the snapshots of its names go.
    let in_the_way = world.data.join("snapshots/namespace-1");
    std::fs::create_dir_all(world.data.join("snapshots")).unwrap();
    std::fs::write(&in_the_way, b"a file").unwrap();
    for shard in [1, 2] {
        client.order(&Order::AddShard { shard }).unwrap();
    }
    let is_open = |world: &World, shard: u16| world.node().shards.get(shard).is_ok();
    let is_told = |world: &World| {
        let told = |said: &String| said.contains("open shard 1: ");
        let conditions = world.node().conditions();
        world.node().findings().iter().any(told)
            && conditions.iter().any(|condition| told(&condition.sentence))
    };
    for start in 0..2 {
        work.until(&world, |world| is_open(world, 2) && world.node().leads());
        assert!(!is_open(&world, 1) && is_told(&world), "{:?}", world.node().findings());
        if start == 0 {
            move_to(&world, &mut work, &mut client, "/e", 2);
            client.put("/e/x", b"served", &NewFile::default()).unwrap();
        }
        assert_same(&client.get("/e/x").unwrap(), b"served", "served");
        client.put("/d/x", b"too", &replacing()).unwrap();
        let refused = client.order(&Order::MoveDirectory { dir: "/d".into(), to: 1 });
        if start == 0 {
            // It waits there for the shard.
            refused.unwrap();
        }
        drop((work, client));
        world.restart();
        (work, client) = (Work::new(&world), world.client());
    }
    // It is opened by itself once it can be.
    std::fs::remove_file(&in_the_way).unwrap();
    work.until(&world, |world| is_open(world, 1) && world.node().leads());
    work.until(&world, |world| keeps(world, 1, "d") && is_settled(world));
    assert!(!is_told(&world));
    assert_same(&client.get("/d/x").unwrap(), b"too", "moved");
    assert_eq!(client.stat("/d/none").unwrap_err().kind, Kind::NotFound);
}

/// One file with an id that names a shard beyond the last had a rebuild refused, with all names of all others;
/// one that counted too far was taken for a shard's, which then drew no id any more.
#[test]
fn a_chunk_whose_id_nobody_drew_ends_no_rebuild() {
    let mut world = World::with_chunks("rebuild-strange", 1 << 20);
    let mut client = world.client();
    let small = pattern(5000, 1);
    client.put("/kept", &small, &NewFile::default()).unwrap();
    let store = world.node().stores.iter().next().unwrap().store.clone();
    let strange = [ChunkId::new(200, 1), ChunkId::new(0, (1 << ChunkId::COUNTER_BITS) - 1)];
    for chunk in strange {
        store.create(ChunkSpec::new(chunk, ChunkKind::Raw, 99)).unwrap();
        let (body, crcs) = (pattern(1000, 2), vec![crc32c(&pattern(1000, 2))]);
        let appended = world.node().wait_for(|done| {
            store.append_raw(chunk, 0, Box::new(body), crcs, Durability::Durable, done);
        });
        appended.unwrap();
        store.seal(chunk, 1000).unwrap();
    }
    drop((client, store));
    world.lose_log();
    let rebuilt = world.node().rebuild_names().unwrap();
    assert_eq!((rebuilt.files, rebuilt.refused.len()), (1, 2), "{:?}", rebuilt.refused);
    let said = rebuilt.refused.join("\n");
    for word in ["names shard 200, and there are 64 at most", "none has drawn so many"] {
        assert!(said.contains(word), "`{word}` in {said}");
    }
    let mut client = world.client();
    assert_same(&client.get("/kept").unwrap(), &small, "kept");
    client.put("/new", &small, &NewFile::default()).unwrap();
    let store = &world.node().stores.iter().next().unwrap().store;
    assert!(strange.iter().all(|chunk| store.info(*chunk).is_some()), "untouched");
}
