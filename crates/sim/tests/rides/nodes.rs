//! Views of several nodes in the simulated cluster, step by step: those of one half on two of them. Node 1 keeps the
//! log.

use super::sums::lose_one;
use holdfast_base::Result;
use holdfast_base::codec::{Decode, Encode, put_bytes};
use holdfast_env::trial::Trial;
use holdfast_env::{Disk, events};
use holdfast_ride::REPLAYED_BYTES_MAX;
use holdfast_sim::SimDisk;
use holdfast_sim::guests;
use holdfast_sim::world::cell::{End, SECOND};
use holdfast_sim::world::scene::Scene;
use holdfast_wire::slab::Hashed;
use holdfast_wire::{self as wire, Call, view as msg};
use std::path::{Path, PathBuf};

/// As the guest has it.
const TOPIC: &str = "things";
const NODES: usize = 3;

fn ask<T: Decode>(scene: &Scene, number: usize, opcode: u16, message: &impl Encode) -> Result<T> {
    let reply = scene.ask(number, opcode, message.to_bytes(), None)?;
    Ok(T::from_bytes(&reply.meta)?)
}

/// A cluster whose nodes run views of a topic, each a half.
fn cluster(seed: u64) -> Scene {
    let scene = Scene::with_guests(seed, NODES, vec![guests::items]);
    let collection = msg::Collection { name: "c".to_owned(), hashed: Hashed::All, json: true };
    let make = msg::Make { topic: TOPIC.to_owned(), collection };
    ask::<msg::Changed>(&scene, 1, wire::OP_VIEW_MAKE, &make).unwrap();
    assert!(scene.until(60 * SECOND, |scene| (1..=NODES).all(|n| half(scene, n).is_some())));
    scene
}

fn put(scene: &Scene, keys: std::ops::Range<u32>, value: &str) {
    for key in keys {
        let mut body = 1u32.to_bytes();
        1u16.encode(&mut body);
        put_bytes(&mut body, format!("k{key}").as_bytes());
        true.encode(&mut body);
        put_bytes(&mut body, format!(r#""{value}""#).as_bytes());
        let change = msg::Change { topic: TOPIC.to_owned(), call: Call::default() };
        scene.ask(1, wire::OP_VIEW_CHANGE, change.to_bytes(), Some(&body)).unwrap();
    }
}

/// How a node's half is doing.
fn half(scene: &Scene, number: usize) -> Option<msg::ViewStatus> {
    let all: Vec<msg::ViewStatus> =
        ask(scene, number, wire::OP_VIEW_STATUS, &TOPIC.to_owned()).ok()?;
    let is_half =
        |one: &msg::ViewStatus| one.view.of == 2 && one.view.kind == msg::ViewKind::Disk {};
    all.into_iter().find(|one| is_half(one) && one.applied.0 > 0)
}

fn has_image(scene: &Scene, number: usize, at: u64) -> bool {
    half(scene, number).is_some_and(|one| one.images.iter().any(|image| image.index.0 == at))
}

fn mark(scene: &Scene) -> u64 {
    let mark = msg::Mark { topic: TOPIC.to_owned(), call: Call::default() };
    ask::<msg::Changed>(scene, 1, wire::OP_VIEW_MARK, &mark).unwrap().index.0
}

/// Files of a half's images on a disk.
fn files(disk: &SimDisk) -> Vec<PathBuf> {
    let place = Path::new("/data/views");
    let views = disk.list(place).unwrap().into_iter();
    let half = views.map(|view| place.join(view.name));
    let half = half.filter(|view| {
        view.to_string_lossy().contains("things-disk") && view.to_string_lossy().contains("-2-")
    });
    let list = |view: PathBuf| {
        let files =
            disk.list(&view).unwrap().into_iter().filter(|file| file.name.starts_with("image-"));
        files.map(|file| view.join(file.name)).collect::<Vec<_>>()
    };
    half.flat_map(list).collect()
}

fn copy(from: &SimDisk, to: &SimDisk, path: &Path) {
    use holdfast_env::disk::{ReplaceSites, read_file, replace_file};
    let sites = ReplaceSites { data: "put.data", name: "put.name" };
    let bytes = read_file(from, path, 1 << 24).unwrap();
    replace_file(to, path, &bytes, sites).unwrap();
}

/// A node that does not keep the log took an image of a log that was put back for its view's own until a view began with
/// it: it was told of, ridden, and counted for the trim. Now the log is asked, and it is used for nothing before the
/// answer.
#[test]
fn an_image_of_a_log_that_was_put_back_is_known_when_the_log_says_what_it_has() {
    let ((), told) = events::told_by(|| {
        let other = cluster(5);
        put(&other, 0..20, "other");
        let at = mark(&other);
        assert!(other.until(60 * SECOND, |scene| has_image(scene, 3, at)));
        let left = other.disk(3);

        let scene = cluster(5);
        put(&scene, 0..40, "own");
        assert!(scene.until(60 * SECOND, |scene| half(scene, 3).unwrap().applied.0 > at));
        scene.end(3, End::Kill);
        let disk = scene.disk(3);
        let of_other = files(&left);
        assert!(of_other.len() > 1, "{of_other:?}");
        of_other.iter().for_each(|path| copy(&left, &disk, path));
        scene.start(3);
        assert!(scene.until(60 * SECOND, |scene| half(scene, 3).is_some()));
        scene.run_for(10 * SECOND);
        assert!(!has_image(&scene, 3, at), "it is of another log");
        let stays = files(&scene.disk(3));
        assert!(of_other.iter().all(|path| stays.contains(path)), "it may be somebody's only copy");
        // Its own is used, also behind a start.
        let own = mark(&scene);
        assert!(scene.until(60 * SECOND, |scene| has_image(scene, 3, own)));
        scene.end(3, End::Kill);
        scene.start(3);
        assert!(scene.until(60 * SECOND, |scene| has_image(scene, 3, own)));
    });
    let told: Vec<String> = told.iter().map(|event| event.to_string()).collect();
    assert!(told.iter().any(|event| event.contains("of another log")), "{told:?}");
}

/// Another node's image lacks an item, and every byte of it passes its checksum: the view that rode it begins anew, with
/// the same half of another node.
#[test]
fn a_view_that_received_less_than_an_image_says_begins_with_another_nodes() {
    let trial = Trial::new().with(&REPLAYED_BYTES_MAX, 1).enter();
    let ((), told) = events::told_by(|| {
        let scene = cluster(6);
        put(&scene, 0..60, "v");
        let at = mark(&scene);
        assert!(scene.until(60 * SECOND, |scene| (1..=NODES).all(|n| has_image(scene, n, at))));
        // Of the upper half, the node that would be asked first.
        scene.end(1, End::Kill);
        let disk = scene.disk(1);
        let table = files(&disk).into_iter().find(|file| file.extension().is_none()).unwrap();
        lose_one(&disk, &table);
        scene.start(1);
        assert!(scene.until(60 * SECOND, |scene| has_image(scene, 1, at)));
        scene.run_for(2 * SECOND);
        let name = msg::ViewName {
            topic: TOPIC.to_owned(),
            kind: msg::ViewKind::Memory {},
            part: 0,
            of: 7,
        };
        scene.ask(2, wire::OP_VIEW_RUN, name.to_bytes(), None).unwrap();
        let name = msg::ViewName { part: 6, ..name };
        scene.ask(2, wire::OP_VIEW_RUN, name.to_bytes(), None).unwrap();
        let runs = |scene: &Scene| {
            let all: Vec<msg::ViewStatus> =
                ask(scene, 2, wire::OP_VIEW_STATUS, &TOPIC.to_owned()).unwrap();
            all.iter().any(|one| one.view == name && one.applied.0 >= at && one.stopped.is_empty())
        };
        assert!(scene.until(60 * SECOND, runs));
        // And whose image it is hears of it, and finds that it is so.
        assert!(scene.until(60 * SECOND, |scene| !has_image(scene, 1, at)));
        let again = mark(&scene);
        assert!(scene.until(60 * SECOND, |scene| has_image(scene, 1, again)));
    });
    let told: Vec<String> = told.iter().map(|event| event.to_string()).collect();
    let finding = |event: &&String| event.contains("node.finding") && event.contains("hashes ff");
    assert!(told.iter().any(|event| finding(&event)), "{told:?}");
    // What it says differs from what the others say, too: all are named.
    let differ = |event: &String| event.contains("of entry") && event.contains("of nodes 1 and ");
    assert!(told.iter().any(differ), "{told:?}");
    let happened = trial.happened();
    for what in [
        "a view began anew, for what came was not what its images say",
        "a view that begins doubted an image that it was given",
        "an image that somebody doubted was wrong",
    ] {
        assert!(happened.contains_key(what), "{what}");
    }
}

/// Nodes found out that their images of one mark differ, and nobody looked whose it is: it was ridden on, and views began
/// with it.
#[test]
fn a_node_whose_image_differs_from_others_reads_it_and_makes_another_one() {
    let trial = Trial::new().enter();
    let ((), told) = events::told_by(|| {
        let scene = cluster(6);
        put(&scene, 0..60, "v");
        let at = mark(&scene);
        assert!(scene.until(60 * SECOND, |scene| (1..=NODES).all(|n| has_image(scene, n, at))));
        scene.end(1, End::Kill);
        let disk = scene.disk(1);
        let table = files(&disk).into_iter().find(|file| file.extension().is_none()).unwrap();
        lose_one(&disk, &table);
        scene.start(1);
        assert!(scene.until(60 * SECOND, |scene| has_image(scene, 1, at)));
        assert!(scene.until(60 * SECOND, |scene| !has_image(scene, 1, at)));
        scene.run_for(20 * SECOND);
        assert!((2..=NODES).all(|n| has_image(&scene, n, at)), "theirs are what they say");
        let is_newer = |scene: &Scene| {
            half(scene, 1).is_some_and(|one| one.images.iter().any(|image| image.index.0 > at))
        };
        assert!(scene.until(300 * SECOND, is_newer), "images are asked for again");
    });
    let told: Vec<String> = told.iter().map(|event| event.to_string()).collect();
    let is_said = |words: &str| told.iter().any(|event| event.contains(words));
    assert!(is_said("view.image-given-up") && is_said("are not those that it says"), "{told:?}");
    assert!(trial.happened().contains_key("an image that somebody doubted was wrong"));
}
