//! Images that somebody has put into a view's directory: of the same view in another cluster, and of the same
//! cluster with a log that is another one. A name and an index say nothing of that.

use super::boots::{check, filled, image_files, images, mark, name};
use super::world::*;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_env::disk::{ReplaceSites, read_file, replace_file};
use holdfast_env::events;
use holdfast_view::Position;
use holdfast_view::items::log_topic;
use holdfast_wire::slab::Sums;
use holdfast_wire::{self as wire, view as msg};
use std::path::PathBuf;

/// Everything of `from`'s images, in the same places.
fn put_images(from: &World, to: &World) -> Vec<PathBuf> {
    let files = image_files(from);
    let sites = ReplaceSites { data: "put.data", name: "put.name" };
    for file in &files {
        let bytes = read_file(&from.disk, file, 1 << 24).unwrap();
        replace_file(&to.disk, file, &bytes, sites).unwrap();
    }
    files
}

/// A world with one image, and one with a longer log and without any, into which the image is put.
fn two_worlds(seeds: (u64, u64)) -> (Index, World, Model, Vec<PathBuf>) {
    let (other, mut asks, _) = filled(seeds.0);
    mark(&other, &mut asks);
    let at = Index(images(&other)[0]);
    let (mut own, mut asks, mut model) = filled(seeds.1);
    let rng = holdfast_env::SeededRng::new(9);
    let below = |n: u64| holdfast_env::Rng::next_u64(&rng) % n;
    (0..20).for_each(|_| change(&mut asks, &mut model, &below));
    let files = put_images(&other, &own);
    assert!(files.len() > 1 && images(&own).is_empty());
    own = own.restarted(2);
    (at, own, model, files)
}

/// An image of another log was taken for the view's own: it was told of, ridden, and would have counted for the
/// trim of a log that has nothing to do with it.
#[test]
fn images_of_another_log_are_not_used_and_stay_where_they_are() {
    // Other seeds draw other clusters; of equal seeds the logs differ alone.
    for seeds in [(3, 4), (3, 3)] {
        let (world, told) = events::told_by(|| {
            let (at, mut own, model, files) = two_worlds(seeds);
            assert_eq!(images(&own), [0; 0], "it is told to nobody");
            let mut rider = own.connect();
            let board = msg::Board { at: Some(at), ..all_of(disk_view()) };
            rider.send(wire::OP_RIDE_BEGIN, &board, &[]);
            assert_eq!(rider.failures().len(), 1, "nobody rides it");
            assert!(files.iter().all(|file| image_files(&own).contains(file)), "it stays");
            (own, model)
        });
        let said = if seeds.0 == seeds.1 { "of another log" } else { "of another cluster's log" };
        assert!(told.iter().any(|event| event.to_string().contains(said)), "{told:?}");
        let (mut own, model) = world;
        // The log is folded anew, where it is whole, ...
        own.views.run(&name(msg::ViewKind::Memory {}, 0, 1)).unwrap();
        check(&own, &name(msg::ViewKind::Memory {}, 0, 1), &model, "folded");
        check(&own, &disk_view(), &model, "its rows");
        // ... and where it is not, its own image is what views begin with.
        let mut asks = own.connect();
        mark(&own, &mut asks);
        let mark = Index(images(&own)[0]);
        own.views.topic(TOPIC).unwrap().snapshot_now().unwrap();
        own.node.log.trim(&log_topic(TOPIC).unwrap(), mark).unwrap();
        let half = name(msg::ViewKind::Disk {}, 1, 2);
        own.views.run(&half).unwrap();
        own.node.pump();
        check(&own, &half, &model, "it began with an image");
        own.views.end().unwrap();
    }
}

/// As a build before wrote it: without the log's number, and with two totals in the place of the sums.
fn as_version_1(table: &[u8]) -> Vec<u8> {
    let (table, _) = table.split_last_chunk::<4>().unwrap();
    let mut rest = Reader::new(table);
    assert_eq!(u16::decode(&mut rest).unwrap(), 2);
    let _log = u64::decode(&mut rest).unwrap();
    let about = rest.remaining();
    msg::ViewName::decode(&mut rest).unwrap();
    Position::decode(&mut rest).unwrap();
    Vec::<u8>::decode(&mut rest).unwrap();
    let sums = rest.remaining();
    Sums::decode(&mut rest).unwrap();
    let end = table.len();
    let mut before = 1u16.to_bytes();
    before.extend_from_slice(&table[end - about..end - sums]);
    before.extend_from_slice(&[0; 32]);
    before.extend_from_slice(&table[end - rest.remaining()..]);
    crc32c(&before).encode(&mut before);
    before
}

/// An update must not leave a trimmed log without an image: those of the build before are ridden, and begun with;
/// but they cannot be compared, and are missed until there are others.
#[test]
fn images_of_a_build_before_are_ridden_and_made_again() {
    let (mut world, mut asks, model) = filled(6);
    mark(&world, &mut asks);
    let at = Index(images(&world)[0]);
    let table = image_files(&world).into_iter().find(|file| file.extension().is_none()).unwrap();
    let bytes = as_version_1(&read_file(&world.disk, &table, 1 << 24).unwrap());
    let sites = ReplaceSites { data: "put.data", name: "put.name" };
    replace_file(&world.disk, &table, &bytes, sites).unwrap();
    world.views.topic(TOPIC).unwrap().snapshot_now().unwrap();
    world.node.log.trim(&log_topic(TOPIC).unwrap(), at).unwrap();
    world = world.restarted(2);
    assert_eq!(images(&world), [at.0]);
    assert_eq!(world.views.lost_image(TOPIC), at, "it is missed");
    let half = name(msg::ViewKind::Memory {}, 1, 2);
    world.views.run(&half).unwrap();
    check(&world, &half, &model, "it began with the image of a build before");
    let mut asks = world.connect();
    mark(&world, &mut asks);
    assert_eq!(world.views.lost_image(TOPIC), Index(0));
    assert!(images(&world).contains(&at.0) && images(&world).len() == 2);
    world.views.end().unwrap();
}
