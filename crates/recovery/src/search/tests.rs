use super::*;
use crate::random::Random;

struct World {
    side: Side,
    bandwidths: Vec<f32>,
    rack_of: Vec<u32>,
}

fn world(nodes: usize, racks: usize, seed: u64) -> World {
    let mut random = Random::new(seed);
    let bandwidths: Vec<f32> = (0..nodes)
        .map(|node| match node % 7 {
            0 => 30.0,
            1 if node % 3 == 0 => 0.0,
            _ => 30.0 + 157.5 * random.unit(),
        })
        .collect();
    let mut side = Side::new(bandwidths.iter().copied());
    for load in &mut side.load_mb {
        *load = 100.0 * random.unit();
    }
    World { side, bandwidths, rack_of: (0..nodes).map(|node| (node * 31 % racks) as u32).collect() }
}

/// Places tasks with one search, and holds each choice against the best one at the same loads.
/// `other_sizes_s` is what a choice made for the common size may cost an empty chunk.
fn assert_best<S: Search>(
    world: &World,
    tolerance: f32,
    other_sizes_s: f32,
    sizes: fn(&mut Random) -> f32,
) {
    let mut side = world.side.clone();
    let mut search = S::new(&side, &world.rack_of, 64.0);
    let mut random = Random::new(99);
    let racks = *world.rack_of.iter().max().unwrap() as usize + 1;
    for task in 0..900 {
        let mb = sizes(&mut random);
        let avoided = [random.below(racks) as u32, random.below(racks) as u32];
        let avoid = Avoid { rack_of: &world.rack_of, racks: &avoided, nodes: &[], all_but: None };
        let (node, promised) = search.best(mb, &avoid).unwrap();
        assert!(!avoid.excludes(node), "an avoided rack was chosen");
        assert!(world.bandwidths[node as usize] > 0.0, "a node that is away was chosen");
        let finish = side.finish_s(node, mb);
        assert!(promised >= finish * 0.9999, "promised {promised} s, it takes {finish} s");
        assert!(search.floor(mb) <= promised * 1.0001);
        let mut naive = Naive::new(&side, &world.rack_of, 64.0);
        let (_, best) = naive.best(mb, &avoid).unwrap();
        let slack = best * tolerance + other_sizes_s * (64.0 - mb) / 64.0;
        assert!(finish <= best + slack, "task {task}: {finish} s, the best is {best} s");
        search.add(node, mb);
        side.load_mb[node as usize] += mb;
    }
}

/// Buckets of 1 MB/s from 30 on are 3.3% wide; the other searches are exact.
#[test]
fn all_searches_agree_to_a_buckets_width() {
    for seed in 0..20 {
        let world = world(60 + 13 * seed as usize, 9, seed);
        let common = |_: &mut Random| 64.0;
        assert_best::<Scan>(&world, 1e-4, 0.0, common);
        assert_best::<Tree>(&world, 1e-4, 0.0, common);
        assert_best::<Tops>(&world, 0.034, 0.0, common);
        assert_best::<Hull>(&world, 0.034, 0.0, common);
    }
}

/// The tree is made for one size: another's choice is within the difference at the slowest node.
#[test]
fn sizes_may_differ() {
    for seed in 20..30 {
        let world = world(150, 9, seed);
        let mixed = |r: &mut Random| if r.unit() < 0.5 { 64.0 } else { 1.0 + 63.0 * r.unit() };
        assert_best::<Scan>(&world, 1e-4, 0.0, mixed);
        assert_best::<Tree>(&world, 1e-4, 64.0 / 30.0, mixed);
        assert_best::<Tops>(&world, 0.034, 0.0, mixed);
        assert_best::<Hull>(&world, 0.034, 0.0, mixed);
    }
}

/// A dev cluster has one rack: then only the holders themselves are avoided.
#[test]
fn single_nodes_are_avoided_where_racks_are_too_few() {
    fn check<S: Search>() {
        let rack_of = [0; 4];
        let side = Side::new([50.0, 50.0, 90.0, 60.0].into_iter());
        let mut search = S::new(&side, &rack_of, 64.0);
        let avoid = |nodes| Avoid { rack_of: &rack_of, racks: &[], nodes, all_but: None };
        assert_eq!(search.best(64.0, &avoid(&[])).unwrap().0, 2);
        assert_eq!(search.best(64.0, &avoid(&[2, 0])).unwrap().0, 3);
        assert_eq!(search.best(64.0, &avoid(&[2, 0, 3])).unwrap().0, 1);
        assert_eq!(search.best(64.0, &avoid(&[2, 0, 3, 1])), None);
        let nowhere = Avoid { rack_of: &rack_of, racks: &[0], nodes: &[], all_but: None };
        assert_eq!(search.best(64.0, &nowhere), None);
    }
    check::<Naive>();
    check::<Scan>();
    check::<Tops>();
    check::<Hull>();
    check::<Tree>();
}

/// Both choose among the same buckets, the hull by its tangent: what it leaves out is never first.
#[test]
fn the_hull_finds_what_a_scan_of_the_same_buckets_finds() {
    for seed in 0..40 {
        let world = world(20 + 7 * seed as usize, 9, seed);
        let mut hull = Hull::new(&world.side, &world.rack_of, 64.0);
        let mut tops = Tops::new(&world.side, &world.rack_of, 64.0);
        let mut random = Random::new(seed);
        for task in 0..400 {
            let mb = 1.0 + 63.0 * random.unit();
            let (floor, least) = (hull.floor(mb), tops.floor(mb));
            assert!((floor - least).abs() <= 1e-4 * least, "task {task}: {floor} s, {least} s");
            let nowhere = Avoid { rack_of: &world.rack_of, racks: &[], nodes: &[], all_but: None };
            let (node, _) = tops.best(mb, &nowhere).unwrap();
            hull.add(node, mb);
            tops.add(node, mb);
        }
    }
}

/// Nodes that are away stand behind no candidate.
#[test]
fn the_reduction_is_live_nodes_to_a_bucket_in_use() {
    let of = |bandwidths: &[f32]| reduction(&Side::new(bandwidths.iter().copied()));
    assert_eq!(of(&[30.0, 90.0, 30.0, 0.0, 90.0, 90.0, 30.0, 0.0]), 3.0);
    assert_eq!(of(&[30.0, 90.0, 30.0]), 1.5);
    assert_eq!(of(&[0.0, 0.0]), 0.0);
}
