//! Files in several shards, through one node: all that is done with files is done in a directory that another
//! shard keeps, and the node's restarts keep it apart from the others.

mod common;

use common::work::{
    Work, add_shards, forward, freeze, is_settled, keeps, move_to, order_move, shard_of,
};
use common::{World, assert_same, open_session, pattern, replacing};
use holdfast_base::Kind;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Sequence, SessionId};
use holdfast_client::aio::{AsyncClient, block_on};
use holdfast_client::{Client, ClientOptions, NewFile};
use holdfast_cluster::Command;
use holdfast_cluster::names::{NODES_MAX, PART_BYTES};
use holdfast_env::trial::Trial;
use holdfast_wire::admin::{MOVE_WAITS, Order};
use holdfast_wire::{self as wire, Call, file as msg};
use std::time::Duration;

#[test]
fn all_that_is_done_with_files_is_done_in_any_shard() {
    let mut world = World::with_chunks("shards", 1 << 20);
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/there", &NewFile::default()).unwrap();
    client.make_dir("/here", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 2);
    move_to(&world, &mut work, &mut client, "/there", 2);
    let (small, large) = (pattern(5000, 1), pattern(3 << 20, 2));
    for dir in ["/here", "/there"] {
        client.put(&format!("{dir}/small"), &small, &NewFile::default()).unwrap();
        let mut stream = client.create(&format!("{dir}/large"), &NewFile::default()).unwrap();
        stream.write(&large).unwrap();
        stream.close().unwrap();
        let parents = NewFile { parents: true, ..NewFile::default() };
        client.make_dir(&format!("{dir}/in/deep"), &parents).unwrap();
        client.put(&format!("{dir}/in/deep/er"), b"x", &NewFile::default()).unwrap();
    }
    assert_eq!(shard_of(&mut client, "/there/small"), 2);
    assert_eq!(shard_of(&mut client, "/here/small"), 0);
    // Its bytes are in chunks of its shard.
    let chunks = |shard: u16| {
        let ids =
            |view: &holdfast_cluster::Chunks, _| view.iter().map(|c| c.id).collect::<Vec<_>>();
        world.node().read_chunks(shard, ids).unwrap()
    };
    assert!(chunks(2).len() >= 4 && chunks(2).iter().all(|chunk| chunk.shard() == 2));
    assert_eq!(chunks(1), []);
    let refused = client.rename("/there/small", "/here/other", false).unwrap_err();
    assert!(
        refused.kind == Kind::Invalid && refused.message.contains("copy it there"),
        "{refused}"
    );
    client.rename("/there/small", "/there/in/small", false).unwrap();
    let refused = client.delete("/there", true).unwrap_err();
    assert!(refused.message.contains("shard move DIR --to 0"), "{refused}");
    assert_eq!(client.usage("/").unwrap().files, 6);
    let names: Vec<String> =
        client.list("/", "").unwrap().entries.into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["here", "there"]);

    let check = |world: &World| {
        let mut client = world.client();
        assert_same(&client.get("/there/in/small").unwrap(), &small, "small");
        assert_same(&client.get("/here/small").unwrap(), &small, "small");
        for dir in ["/here", "/there"] {
            let read = client.open(&format!("{dir}/large")).unwrap().read_to_end().unwrap();
            assert_same(&read, &large, dir);
        }
        assert_eq!(world.node().findings(), Vec::<String>::new());
    };
    check(&world);
    drop((work, client));
    world.restart();
    check(&world);
    world.node().snapshot_views().unwrap();
    world.restart();
    check(&world);

    // What is deleted is freed there, and what is emptied goes back.
    let mut work = Work::new(&world);
    let mut client = world.client();
    for name in ["in", "large"] {
        client.delete(&format!("/there/{name}"), true).unwrap();
    }
    world.node().retire();
    work.until(&world, |world| {
        let freed = |view: &holdfast_cluster::Chunks, _| view.iter().all(|c| c.live_objects == 0);
        let chunks = world.node().read_chunks(2, |view, _| view.iter().count()).unwrap();
        chunks == 0 && world.node().read_chunks(2, freed).unwrap()
    });
    move_to(&world, &mut work, &mut client, "/there", 0);
    client.put("/there/small", &small, &replacing()).unwrap();
    assert_eq!(shard_of(&mut client, "/there/small"), 0);
    client.delete("/there", true).unwrap();
    assert_eq!(world.node().findings(), Vec::<String>::new());
}

/// Names move, chunks stay: read before, meanwhile and after, through restarts and a compaction of what is
/// held, there, back, and in a third shard; and what is deleted there is freed where it lies.
#[test]
fn a_directory_goes_from_shard_to_shard_with_all_that_is_in_it() {
    let mut world = World::with_chunks("shard-content", 1 << 20);
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 2);
    let (small, large) = (pattern(5000, 1), pattern((3 << 20) + 77, 2));
    let parents = NewFile { parents: true, ..NewFile::default() };
    for i in 0..20 {
        client.put(&format!("/d/in/deep/{i}"), &small, &parents).unwrap();
    }
    client.put("/d/nothing", b"", &NewFile::default()).unwrap();
    let mut stream = client.create("/d/large", &NewFile::default()).unwrap();
    stream.write(&large).unwrap();
    let refused = stream_is_open(&world);
    assert!(refused.message.contains("being written"), "{refused}");
    stream.close().unwrap();
    let mut opened = world.client();
    let mut reader = opened.open("/d/large").unwrap();
    let usage = client.usage("/").unwrap();

    order_move(&mut client, "/d", 1);
    assert_same(&client.get("/d/in/deep/3").unwrap(), &small, "copied");
    assert_eq!(world.node().shard_to_write("/d/x").unwrap(), 0, "it takes changes meanwhile");
    let check = |world: &World, work: &mut Work, client: &mut Client, to: u16| {
        move_to(world, work, client, "/d", to);
        work.until(world, is_settled);
        assert_eq!(shard_of(client, "/d/in/deep/3"), to);
        for i in 0..20 {
            assert_same(&client.get(&format!("/d/in/deep/{i}")).unwrap(), &small, "small");
        }
        assert_same(&client.get("/d/nothing").unwrap(), b"", "nothing");
        let read = client.open("/d/large").unwrap().read_to_end().unwrap();
        assert_same(&read, &large, "large");
        assert_eq!(client.usage("/").unwrap(), usage);
        assert_eq!(world.node().findings(), Vec::<String>::new());
    };
    check(&world, &mut work, &mut client, 1);
    assert_same(&reader.read_to_end().unwrap(), &large, "opened before");
    drop(reader);
    drop((work, client, opened));
    world.restart();
    world.node().snapshot_views().unwrap();
    world.restart();
    let mut work = Work::new(&world);
    let mut client = world.client();
    work.until(&world, |world| world.node().leads());
    check(&world, &mut work, &mut client, 1);

    drop(client);
    what_is_deleted_there_is_freed_where_it_lies(&world, &mut work, (&small, &large));
}

/// Of 20 small files in `/d`, which shard 1 keeps, 16 are deleted; the rest goes to a third shard.
fn what_is_deleted_there_is_freed_where_it_lies(
    world: &World,
    work: &mut Work,
    (small, large): (&[u8], &[u8]),
) {
    let mut client = world.client();
    // What shares its chunks goes: they are compacted, by the shard that has none of the names.
    for i in 4..20 {
        client.delete(&format!("/d/in/deep/{i}"), false).unwrap();
    }
    world.node().retire();
    work.until(world, |world| {
        let compacted = |view: &holdfast_cluster::Chunks, _| {
            view.iter().any(|c| c.generation.0 > 0 && view.is_held(c.id))
        };
        is_settled(world) && world.node().read_chunks(0, compacted).unwrap()
    });
    for i in 0..4 {
        assert_same(&client.get(&format!("/d/in/deep/{i}")).unwrap(), small, "compacted");
    }
    for to in [0, 2] {
        move_to(world, work, &mut client, "/d", to);
        work.until(world, is_settled);
    }
    client.put("/d/in/deep/2", &large[..9000], &replacing()).unwrap();
    assert_same(&client.get("/d/in/deep/2").unwrap(), &large[..9000], "replaced there");
    let read = client.open("/d/large").unwrap().read_to_end().unwrap();
    assert_same(&read, large, "large");
    for name in ["in", "large", "nothing"] {
        client.delete(&format!("/d/{name}"), true).unwrap();
    }
    world.node().retire();
    work.until(world, |world| {
        let count = |shard| world.node().read_chunks(shard, |view, _| view.count()).unwrap();
        is_settled(world) && (0..3).all(|shard| count(shard) == 0)
    });
    assert_eq!(world.node().findings(), Vec::<String>::new());
}

/// What is deeper in a directory that a shard keeps was said to go there, and nothing went anywhere.
#[test]
fn what_is_below_a_directory_does_not_move_to_the_shard_that_has_it() {
    let world = World::new("shard-below");
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    move_to(&world, &mut work, &mut client, "/d", 1);
    for dir in ["/d/e", "/d/e/f", "/"] {
        for to in [0, 1] {
            let refused = client.order(&Order::MoveDirectory { dir: dir.into(), to }).unwrap_err();
            assert!(refused.message.contains("right below the root"), "{dir} to {to}: {refused}");
        }
    }
    client.order(&Order::MoveDirectory { dir: "/d".into(), to: 1 }).unwrap();
}

/// A move is refused while a file is written for its directory.
fn stream_is_open(world: &World) -> holdfast_base::Error {
    let order = Order::MoveDirectory { dir: "/d".into(), to: 1 };
    world.client().order(&order).unwrap_err()
}

/// What was carried out in one shard is not carried out again in another: a request whose answer was lost is
/// repeated when its directory was emptied, moved, and came back.
#[test]
fn a_repeated_request_gets_its_first_answer_from_wherever_its_directory_was() {
    let world = World::new("shard-answers");
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    let mut connection = world.connection();
    let session = open_session(&mut connection).unwrap();
    let mut ask = |sequence: u64, action: msg::Action| {
        let (sequence, acknowledged_below) = (Sequence(sequence), Sequence(1));
        let call = Call { session, sequence, acknowledged_below };
        let change = msg::Change { call, action };
        connection.call(wire::OP_CHANGE, |out| change.encode(out), &[]).map(|_| ())
    };
    let link = |target: &str| msg::Action::Symlink {
        path: "/d/link".into(),
        target: target.into(),
        mtime_ns: 1,
    };
    let delete = || msg::Action::Delete { path: "/d/link".into(), recursive: false };
    let mut sequence = 0;
    for to in [1, 0] {
        ask(sequence + 1, link("x")).unwrap();
        assert_eq!(ask(sequence + 2, link("y")).unwrap_err().kind, Kind::Exists);
        ask(sequence + 3, delete()).unwrap();
        move_to(&world, &mut work, &mut client, "/d", to);
        ask(sequence + 1, link("x")).unwrap();
        let there = client.stat("/d/link").map(|info| info.id);
        assert_eq!(there.unwrap_err().kind, Kind::NotFound, "it was made once");
        assert_eq!(ask(sequence + 2, link("y")).unwrap_err().kind, Kind::Exists);
        ask(sequence + 3, delete()).unwrap();
        sequence += 3;
    }
    ask(sequence + 1, link("z")).unwrap();
    assert!(client.stat("/d/link").is_ok());
}

/// The same of one that stayed there, and moved along.
#[test]
fn a_repeated_request_is_not_carried_out_again_where_its_file_has_moved_to() {
    let world = World::new("shard-answers-moved");
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    client.put("/d/kept", b"kept", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    let mut connection = world.connection();
    let session = open_session(&mut connection).unwrap();
    let mut ask = |sequence: u64, action: msg::Action| {
        let (sequence, acknowledged_below) = (Sequence(sequence), Sequence(1));
        let call = Call { session, sequence, acknowledged_below };
        let change = msg::Change { call, action };
        connection.call(wire::OP_CHANGE, |out| change.encode(out), &[]).map(|_| ())
    };
    let rename = |from: &str, to: &str| {
        let (from, to) = (format!("/d/{from}"), format!("/d/{to}"));
        msg::Action::Rename { from, to, replace: false }
    };
    ask(1, rename("kept", "there")).unwrap();
    freeze(&world, "/d", 1);
    ask(1, rename("kept", "there")).unwrap();
    assert_eq!(ask(2, rename("there", "late")).unwrap_err().kind, Kind::Retry);
    work.until(&world, is_settled);
    ask(1, rename("kept", "there")).unwrap();
    assert_eq!(client.get("/d/there").unwrap(), b"kept");
    // It was refused for the time of the move, and is carried out now.
    ask(2, rename("there", "late")).unwrap();
    order_move(&mut client, "/d", 0);
    order_move(&mut client, "/d", 1);
    work.until(&world, is_settled);
    ask(3, rename("late", "last")).unwrap();
    assert_eq!(shard_of(&mut client, "/d/last"), 1, "it stayed after all");
}

/// A request that came into the log behind a freeze was refused there for now, and that was its answer for
/// good: repeated, it was refused for as long as its client was patient, though the directory had stayed.
#[test]
fn what_a_move_refused_is_carried_out_when_it_is_asked_again() {
    let world = World::new("shard-refused");
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    client.put("/d/kept", b"kept", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    let mut connection = world.connection();
    let session = open_session(&mut connection).unwrap();
    let call = Call { session, sequence: Sequence(1), acknowledged_below: Sequence(1) };
    let link = || ("/d/link".to_owned(), "x".to_owned());
    // It was under way when the freeze came in front of it.
    freeze(&world, "/d", 1);
    let (path, target) = link();
    let late = Command::Symlink { path, target, mtime: 1 };
    let root = world.node().shards.root();
    let entry = root.read(|root, _| late.to_entry_by(root.borders())).unwrap();
    let told = world.node().wait_for(|done| {
        let request = holdfast_view::Request::of(call, entry, holdfast_log::Mode::Synced);
        root.propose(request, done);
    });
    assert_eq!(told.unwrap_err().kind, Kind::Retry);
    // Somebody changes their mind.
    order_move(&mut client, "/d", 0);
    let mut ask = || {
        let (path, target) = link();
        let change =
            msg::Change { call, action: msg::Action::Symlink { path, target, mtime_ns: 1 } };
        connection.call(wire::OP_CHANGE, |out| change.encode(out), &[]).map(|_| ())
    };
    ask().unwrap();
    client.delete("/d/link", false).unwrap();
    ask().unwrap();
    assert_eq!(client.stat("/d/link").unwrap_err().kind, Kind::NotFound, "it is done once");
}

/// While a directory was between two shards, who listed it was told to ask again and did not: a listing of many
/// pages ended in the middle.
#[test]
fn a_patient_client_waits_for_a_directory_that_is_between_two_shards() {
    let world = World::new("shard-patience");
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    forward(&world, "/d", 1);
    let refused = client.list("/d", "").unwrap_err();
    assert!(refused.kind == Kind::Retry && refused.message.contains("on its way"), "{refused}");
    let options = ClientOptions { patience: Duration::from_secs(60), ..ClientOptions::default() };
    let endpoint = world.endpoint();
    let asks = || Client::connect(&endpoint, &options).unwrap();
    std::thread::scope(|scope| {
        let [lists, measures, looks, reads] = [
            scope.spawn(|| drop(asks().list("/d", "").unwrap())),
            scope.spawn(|| assert_eq!(asks().usage("/d").unwrap().files, 0)),
            scope.spawn(|| drop(asks().stat("/d").unwrap())),
            scope.spawn(|| {
                assert_eq!(asks().open("/d/x").map(drop).unwrap_err().kind, Kind::NotFound)
            }),
        ];
        work.until(&world, is_settled);
        for asked in [lists, measures, looks, reads] {
            asked.join().unwrap();
        }
    });
}

/// The same of tasks that share a connection: they were refused at once, whatever the options said, both what
/// reads and what changes; and a change that was asked again was carried out once.
#[test]
fn patient_tasks_wait_for_a_directory_that_moves() {
    let world = World::new("shard-patience-async");
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/d", &NewFile::default()).unwrap();
    client.put("/d/kept", b"kept", &NewFile::default()).unwrap();
    client.make_dir("/empty", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    freeze(&world, "/d", 1);
    forward(&world, "/empty", 1);
    let none = ClientOptions { patience: Duration::ZERO, ..ClientOptions::default() };
    let some = ClientOptions { patience: Duration::from_secs(60), ..ClientOptions::default() };
    let endpoint = world.endpoint();
    let asks = async |options: &ClientOptions| {
        let client = AsyncClient::connect(&endpoint, options).await?;
        client.rename("/d/kept", "/d/there", false).await?;
        client.put("/d/new", b"new", &NewFile::default()).await?;
        let mut stream = client.create("/d/large", &NewFile::default())?;
        stream.write(&pattern(3 << 20, 2)).await?;
        stream.close().await?;
        assert_eq!(client.get("/d/there").await?, b"kept");
        Ok::<_, holdfast_base::Error>(())
    };
    let looks = async |options: &ClientOptions| {
        let client = AsyncClient::connect(&endpoint, options).await?;
        client.stat("/empty").await?;
        client.list("/empty", "").await?;
        client.usage("/empty").await?;
        let opened = client.open("/empty/x").await.map(drop);
        assert_eq!(opened.unwrap_err().kind, Kind::NotFound);
        Ok::<_, holdfast_base::Error>(())
    };
    let refused = block_on(asks(&none)).unwrap().unwrap_err();
    assert!(refused.kind == Kind::Retry && refused.message.contains("moving"), "{refused}");
    let refused = block_on(looks(&none)).unwrap().unwrap_err();
    assert!(refused.kind == Kind::Retry && refused.message.contains("on its way"), "{refused}");
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| block_on(asks(&some)).unwrap());
        let looked = scope.spawn(|| block_on(looks(&some)).unwrap());
        work.until(&world, is_settled);
        asked.join().unwrap().unwrap();
        looked.join().unwrap().unwrap();
    });
    assert_eq!(shard_of(&mut client, "/d/there"), 1);
    assert_eq!(client.usage("/d").unwrap().files, 3, "each was done once");
}

/// As many empty files as that, in a directory.
fn fill(client: &mut Client, dir: &str, count: usize) {
    let tickets: Vec<_> = (0..count)
        .map(|i| client.submit_put(&format!("{dir}/{i:03}"), b"", &NewFile::default()).unwrap())
        .collect();
    for ticket in tickets {
        client.wait_put(ticket).unwrap();
    }
}

/// The target was full: two entries a round were written for ever, each refused, nobody was told, and
/// whatever else moved went on by one entry a round.
#[test]
fn a_move_that_its_target_refuses_waits_and_holds_up_no_other() {
    let _trial = Trial::new().with(&NODES_MAX, 700).with(&PART_BYTES, 1000).enter();
    let world = World::new("shard-full");
    let mut work = Work::new(&world);
    let mut client = world.client();
    for dir in ["/d", "/e", "/full"] {
        client.make_dir(dir, &NewFile::default()).unwrap();
    }
    add_shards(&world, &mut work, &mut client, 2);
    move_to(&world, &mut work, &mut client, "/full", 1);
    work.until(&world, is_settled);
    client.make_dir("/full/in", &NewFile::default()).unwrap();
    // There is room for a directory, but not for all that is in this one.
    fill(&mut client, "/full/in", 425);
    fill(&mut client, "/d", 300);
    fill(&mut client, "/e", 100);
    let indices =
        |world: &World| [0, 1].map(|shard| world.node().shards.get(shard).unwrap().applied());
    let waits = |world: &World| {
        let found = world.node().findings().into_iter();
        found.filter(|what| what.starts_with(MOVE_WAITS)).collect::<Vec<_>>()
    };
    order_move(&mut client, "/d", 1);
    order_move(&mut client, "/e", 2);
    work.rounds(2);
    assert!(keeps(&world, 2, "e"), "it finds room there");
    let before = indices(&world);
    work.rounds(500);
    assert_eq!(indices(&world), before, "what would be refused is not written");
    let told = waits(&world).join("\n");
    for word in ["`/d`", "shard 1 cannot take parts", "delete some", "shard move /d --to 0"] {
        assert!(told.contains(word), "`{word}` in {told}");
    }
    client.put("/d/299", b"x", &replacing()).unwrap();
    assert_eq!(client.stat("/d/299").unwrap().id.shard(), 0, "it is read");

    // Taken back, it is as it was.
    order_move(&mut client, "/d", 0);
    work.until(&world, is_settled);
    assert_eq!(waits(&world), Vec::<String>::new());
    client.put("/d/new", b"new", &NewFile::default()).unwrap();
    // Once there is room it goes on by itself.
    order_move(&mut client, "/d", 1);
    work.rounds(5);
    assert_eq!(waits(&world).len(), 1);
    client.delete("/full/in", true).unwrap();
    work.until(&world, |world| keeps(world, 1, "d") && is_settled(world));
    assert_eq!(client.get("/d/new").unwrap(), b"new");
    assert_eq!(world.node().findings(), Vec::<String>::new());
}

/// Somebody's build wrote an entry that this one does not know: the view of that shard stops, at each start.
fn stop_view(world: &World, shard: u16) {
    let fold = world.node().shards.get(shard).unwrap();
    let none = Sequence(0);
    let call = Call { session: SessionId(0), sequence: none, acknowledged_below: none };
    let told = world.node().wait_for(|done| {
        let request = holdfast_view::Request::of(call, vec![99, 99], holdfast_log::Mode::Synced);
        fold.propose(request, done);
    });
    told.unwrap_err();
    assert!(fold.status().stopped.is_some());
}

/// Where the view of one shard had stopped, nothing was looked after any more in any: names that were deleted
/// were not reclaimed, their bytes were not freed, chunks not compacted, and nobody led.
#[test]
fn a_shard_whose_view_has_stopped_leaves_the_others_their_housekeeping() {
    let mut world = World::with_chunks("shard-stopped", 1 << 20);
    let mut work = Work::new(&world);
    let mut client = world.client();
    let dirs = ["/a", "/stops", "/z"];
    dirs.iter().for_each(|dir| client.make_dir(dir, &NewFile::default()).unwrap());
    add_shards(&world, &mut work, &mut client, 2);
    move_to(&world, &mut work, &mut client, "/stops", 1);
    move_to(&world, &mut work, &mut client, "/z", 2);
    let small = pattern(5000, 1);
    for (dir, i) in dirs.iter().flat_map(|dir| (0..20).map(move |i| (dir, i))) {
        client.put(&format!("{dir}/{i}"), &small, &NewFile::default()).unwrap();
    }
    stop_view(&world, 1);
    let on = |world: &World, shard: u16, what: &dyn Fn(&holdfast_cluster::Namespace) -> bool| {
        world.node().shards.get(shard).unwrap().read(|view, _| what(view)).unwrap()
    };
    for start in 0..2 {
        let is_stopped = |world: &World| world.node().shards.get(1).unwrap().status().stopped;
        assert!(is_stopped(&world).is_some());
        for (dir, i) in ["/a", "/z"].iter().flat_map(|dir| (1..19).map(move |i| (dir, i))) {
            client.delete(&format!("{dir}/{i}"), false).unwrap();
        }
        world.node().retire();
        work.until(&world, |world| {
            [0, 2].iter().all(|shard| {
                on(world, *shard, &|view| {
                    let compacted = |c: &holdfast_cluster::Chunk| c.generation.0 > start;
                    !view.names().needs_reclaim() && view.chunks().iter().any(compacted)
                })
            })
        });
        // Sessions that nobody uses end in both, and none of them is left in the first.
        work.now_ns += 2 * 3_600_000_000_000;
        work.rounds(1);
        work.now_ns += 2 * 3_600_000_000_000;
        work.rounds(1);
        for shard in [0, 2] {
            assert_eq!(world.node().shards.get(shard).unwrap().status().sessions, 0);
        }
        let opened = client.get("/a/0").unwrap();
        assert_same(&opened, &small, "served");
        assert!(client.get("/stops/0").is_err(), "not known");
        drop((work, client));
        world.restart();
        work = Work::new(&world);
        client = world.client();
        work.until(&world, |world| world.node().leads());
        for (dir, i) in ["/a", "/z"].iter().flat_map(|dir| (1..19).map(move |i| (dir, i))) {
            client.put(&format!("{dir}/{i}"), &small, &NewFile::default()).unwrap();
        }
    }
    for (dir, i) in ["/a", "/z"].iter().flat_map(|dir| (0..20).map(move |i| (dir, i))) {
        client.delete(&format!("{dir}/{i}"), false).unwrap();
    }
    world.node().retire();
    let count = |view: &holdfast_cluster::Namespace| view.chunks().count() == 0;
    work.until(&world, |world| [0, 2].iter().all(|shard| on(world, *shard, &count)));
    let stopped = world.node().shards.get(1).unwrap();
    let kept = stopped.read_last(|view| view.chunks().iter().map(|c| c.id).collect::<Vec<_>>());
    let store = &world.node().stores.iter().next().unwrap().store;
    let shown = client.cluster().unwrap().nodes[0].stores[0].replicas;
    assert_eq!(shown, kept.len() as u64, "its node is not to be taken away as empty");
    assert!(!kept.is_empty() && kept.iter().all(|chunk| store.info(*chunk).is_some()), "untouched");
}

/// What a shard had whose view had stopped was left out of what `status` counts: of chunks that were short of
/// copies it said that there were none.
#[test]
fn status_counts_what_is_short_in_a_shard_whose_view_has_stopped() {
    let world = World::with_chunks("shard-stopped-short", 1 << 20);
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/here", &NewFile::default()).unwrap();
    client.make_dir("/stops", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    move_to(&world, &mut work, &mut client, "/stops", 1);
    for dir in ["/here", "/stops"] {
        client.put(&format!("{dir}/x"), &pattern(5000, 1), &NewFile::default()).unwrap();
    }
    world.node().retire();
    let node = world.node().id;
    client.order(&Order::Drain { node, on: true }).unwrap();
    let short = |world: &World| world.client().cluster().unwrap().recovery.short;
    work.until(&world, |world| short(world) == 2);
    stop_view(&world, 1);
    assert_eq!(short(&world), 2);
}

/// Names were made again for chunks of the first shard alone; of every other chunk it was said that there was no
/// such shard, and its files were gone.
#[test]
fn names_of_all_shards_are_made_again_from_the_stores() {
    let mut world = World::with_chunks("shard-rebuild", 1 << 20);
    let mut work = Work::new(&world);
    let mut client = world.client();
    for dir in ["/stays", "/goes", "/there"] {
        client.make_dir(dir, &NewFile::default()).unwrap();
    }
    add_shards(&world, &mut work, &mut client, 2);
    move_to(&world, &mut work, &mut client, "/there", 2);
    let parents = NewFile { parents: true, replace: true, ..NewFile::default() };
    let mut wanted = Vec::new();
    let mut write = |client: &mut Client, path: String, bytes: usize| {
        let content = pattern(bytes, wanted.len() as u64);
        let mut stream = client.create(&path, &parents).unwrap();
        stream.write(&content).unwrap();
        stream.close().unwrap();
        wanted.push((path, content));
    };
    for dir in ["/stays", "/goes", "/there"] {
        write(&mut client, format!("{dir}/in/small"), 5000);
        write(&mut client, format!("{dir}/large"), (2 << 20) + 77);
    }
    // Its first files stay where they lie; what is written from then on lies with their names.
    move_to(&world, &mut work, &mut client, "/goes", 1);
    work.until(&world, is_settled);
    write(&mut client, "/goes/in/later".to_owned(), 6000);
    write(&mut client, "/goes/larger".to_owned(), (3 << 20) + 5);
    // Of several versions, in two shards, the last one has the path.
    write(&mut client, "/goes/in/small".to_owned(), 7000);
    let older = wanted.remove(2);
    assert_eq!(older.0, "/goes/in/small");
    drop((work, client));
    world.lose_log();

    let rebuilt = world.node().rebuild_names().unwrap();
    assert_eq!(rebuilt.refused, Vec::<String>::new());
    assert_eq!((rebuilt.files, rebuilt.elsewhere), (wanted.len() as u64, 1));
    let check = |world: &World| {
        let mut client = world.client();
        for (path, content) in &wanted {
            let read = client.open(path).unwrap().read_to_end().unwrap();
            assert_same(&read, content, path);
        }
        let aside = client.list("/recovered/older/goes/in", "").unwrap().entries;
        let path = format!("/recovered/older/goes/in/{}", aside[0].name);
        assert_same(&client.get(&path).unwrap(), &older.1, &path);
        let names = client.list("/", "").unwrap().entries;
        let names: Vec<_> = names.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["goes", "recovered", "stays", "there"]);
    };
    check(&world);
    world.restart();
    check(&world);
    assert_eq!(world.node().findings(), Vec::<String>::new());
    // Its shards are there, and take directories; what they hold is freed when it is deleted.
    let mut work = Work::new(&world);
    let mut client = world.client();
    work.until(&world, |world| world.node().leads());
    move_to(&world, &mut work, &mut client, "/goes", 1);
    work.until(&world, is_settled);
    check(&world);
    for dir in ["/goes/in", "/goes/large", "/goes/larger", "/stays", "/there", "/recovered"] {
        client.delete(dir, true).unwrap();
    }
    world.node().retire();
    work.until(&world, |world| {
        let count = |shard| world.node().read_chunks(shard, |view, _| view.count()).unwrap();
        is_settled(world) && (0..3).all(|shard| count(shard) == 0)
    });
}

/// A session is one topic's, and has results in each shard: what is asked again is answered as it was, in
/// each; and where it has ended nothing of it is carried out any more, in none.
#[test]
fn a_session_has_its_results_in_every_shard_and_ends_in_all_of_them() {
    let world = World::new("shard-sessions");
    let mut work = Work::new(&world);
    let mut client = world.client();
    client.make_dir("/there", &NewFile::default()).unwrap();
    add_shards(&world, &mut work, &mut client, 1);
    move_to(&world, &mut work, &mut client, "/there", 1);
    let mut connection = world.connection();
    let session = open_session(&mut connection).unwrap();
    let mut make = |path: &str, sequence: u64| {
        let node = msg::NewNode {
            path: path.into(),
            kind: holdfast_base::node::NodeKind::Directory,
            mode: 0o755,
            mtime_ns: 1,
            class: None,
            replace: false,
            parents: false,
            metadata: Vec::new(),
        };
        let (sequence, acknowledged_below) = (Sequence(sequence), Sequence(1));
        let call = Call { session, sequence, acknowledged_below };
        let change = msg::Change { call, action: msg::Action::Make { node } };
        connection.call(wire::OP_CHANGE, |out| change.encode(out), &[]).map(|_| ())
    };
    for path in ["/there/a", "/there/a"] {
        make(path, 1).unwrap();
    }
    make("/b", 2).unwrap();
    make("/b", 2).unwrap();
    assert_eq!(make("/there/a", 3).unwrap_err().kind, Kind::Exists);
    let ended = world.node().wait_for(|done| world.node().end_session(session, done));
    ended.unwrap();
    for (path, sequence) in [("/there/a", 1), ("/there/c", 4), ("/c", 5)] {
        assert_eq!(make(path, sequence).unwrap_err().kind, Kind::Fenced);
    }
    // A copy of its first request that the log shows late.
    let late = Command::Delete { path: "/there/a".into(), recursive: false };
    let fold = world.node().shards.get(1).unwrap();
    let sequence = Sequence(9);
    let call = Call { session, sequence, acknowledged_below: Sequence(1) };
    let told = world.node().wait_for(|done| {
        let request = holdfast_view::Request::of(call, late.to_entry(), holdfast_log::Mode::Synced);
        fold.propose(request, done);
    });
    assert_eq!(told.unwrap_err().kind, Kind::Fenced);
    assert!(client.stat("/there/a").is_ok());
}
