use super::*;
use holdfast_wire::slab::Item;
use std::slice::from_ref;

const HALF: u64 = HASHES / 2;

fn image(low: u64, high: u64, index: u64) -> Image {
    holding(low, high, index, &[])
}

/// With a key of each of these hashes.
fn holding(low: u64, high: u64, index: u64, hashes: &[u32]) -> Image {
    let mut sums = Sums::default();
    for hash in hashes {
        sums.add(&Item { hash: *hash, collection: 1, key: b"k", index: 3, value: None }, false);
    }
    Image { low, high, index: Index(index), sums: Arc::new(sums) }
}

fn told<'a>(all: &[(u32, &'a str, &[Image])]) -> Told<'a> {
    all.iter().map(|(id, host, images)| (NodeId(*id), (*host, images.to_vec()))).collect()
}

#[test]
fn every_part_needs_two_hosts_and_an_image_of_the_mark_itself() {
    let (left, right) = (image(0, HALF, 10), image(HALF, HASHES, 10));
    let one_each = told(&[(1, "a", from_ref(&left)), (2, "b", from_ref(&right))]);
    assert_eq!(trim_before(&one_each), None, "each part is on one host");
    let twice =
        told(&[(1, "a", &[left.clone(), right.clone()]), (2, "b", &[left.clone(), right.clone()])]);
    assert_eq!(trim_before(&twice), Some(Index(10)));
    let same_host = told(&[
        (1, "a", &[left.clone(), right.clone()]),
        (2, "a", &[left.clone(), right.clone()]),
        (3, "b", &[]),
    ]);
    assert_eq!(trim_before(&same_host), None, "two nodes of one host");
    let half_twice = told(&[(1, "a", &[left.clone(), right.clone()]), (2, "b", from_ref(&left))]);
    assert_eq!(trim_before(&half_twice), None, "one part has one alone");
    // A later image stands in for the second one.
    let later =
        told(&[(1, "a", &[left.clone(), right.clone()]), (2, "b", &[image(0, HASHES, 20)])]);
    assert_eq!(trim_before(&later), Some(Index(10)));
    // But views begin with images of one mark: none is left without the first host.
    let apart = told(&[
        (1, "a", &[left.clone(), right.clone()]),
        (2, "b", &[image(0, HALF, 15)]),
        (3, "c", &[image(HALF, HASHES, 20)]),
    ]);
    assert_eq!(trim_before(&apart), None);
}

#[test]
fn one_host_needs_two_images() {
    let whole = |index| image(0, HASHES, index);
    assert_eq!(trim_before(&told(&[(1, "a", &[whole(10)])])), None);
    assert_eq!(trim_before(&told(&[(1, "a", &[whole(10), whole(20)])])), Some(Index(10)));
    let halves = [image(0, HALF, 10), image(HALF, HASHES, 10), whole(10)];
    assert_eq!(trim_before(&told(&[(1, "a", &halves)])), Some(Index(10)));
}

#[test]
fn images_that_differ_are_said_and_count_for_nothing() {
    let (good, other) = (image(0, HASHES, 10), holding(0, HASHES, 10, &[0x0700_0001, 0x08ff_ffff]));
    let older = image(0, HASHES, 5);
    let told = told(&[
        (1, "a", &[older.clone(), good]),
        (2, "b", &[older.clone(), other]),
        (3, "c", &[older]),
    ]);
    let differ = differing(&told);
    assert_eq!(differ.len(), 1);
    let said = "images of entry 10 of nodes 1 and 2, in keys with hashes 07-08";
    assert_eq!(differ[0].to_string(), said);
    assert_eq!(trim_before(&told), Some(Index(5)));
}

/// Two totals say nothing of images of different parts: a half that had lost keys, beside two wholes that had
/// them, counted for the trim. Where parts begin and end inside a sub-range, what they have of it has other sums
/// by right.
#[test]
fn images_of_different_parts_are_compared_where_both_have_all_of_a_sub_range() {
    let keys = [0x1000_0000, 0x5540_0000, 0x9000_0000];
    let whole = holding(0, HASHES, 10, &keys);
    let (left, right) = (holding(0, HALF, 10, &keys[..2]), holding(HALF, HASHES, 10, &keys[2..]));
    let agree = told(&[(1, "a", from_ref(&whole)), (2, "b", &[left.clone(), right.clone()])]);
    assert_eq!((differing(&agree), trim_before(&agree)), (Vec::new(), Some(Index(10))));
    let lost = holding(0, HALF, 10, &keys[..1]);
    let differ = told(&[
        (1, "a", from_ref(&whole)),
        (2, "b", &[lost, right.clone()]),
        (3, "c", from_ref(&right)),
    ]);
    let found = differing(&differ);
    assert_eq!(found[0].sub_ranges, BTreeSet::from([0x55]));
    assert_eq!(found[0].nodes, BTreeSet::from([NodeId(1), NodeId(2)]));
    assert_eq!((trim_before(&differ), newest_mark(&differ)), (None, None));
    // The first third ends inside of 55.
    let third = HASHES / 3;
    let parts = [
        holding(0, third, 10, &keys[..2]),
        holding(third, 2 * third, 10, &[0x5560_0000]),
        holding(2 * third, HASHES, 10, &[]),
    ];
    let thirds = told(&[
        (1, "a", &[holding(0, HASHES, 10, &[keys[0], keys[1], 0x5560_0000])]),
        (2, "b", &parts),
    ]);
    assert_eq!((differing(&thirds), trim_before(&thirds)), (Vec::new(), Some(Index(10))));
}

/// The rule in other words: tried for every host, mark and hash at which something begins.
#[test]
fn after_a_trim_any_host_may_be_lost() {
    let rng = holdfast_env::SeededRng::new(1);
    let below = |n: u64| holdfast_env::Rng::next_u64(&rng) % n;
    let mut trims = 0;
    for _ in 0..20_000 {
        let hosts = ["a", "b", "c"];
        let mut all = Told::new();
        for id in 0..1 + below(4) as u32 {
            let images = (0..below(6)).map(|_| {
                let of = 1 + below(3);
                let part = below(of);
                image(HASHES * part / of, HASHES * (part + 1) / of, 1 + below(3))
            });
            all.insert(NodeId(id), (hosts[below(3) as usize], images.collect()));
        }
        let there: BTreeSet<&str> = all.values().map(|(host, _)| *host).collect();
        let begins_without = |lost: &str, from: u64| {
            let left = all.values().filter(|(host, _)| *host != lost);
            let left: Vec<Image> = left.flat_map(|(_, images)| images.clone()).collect();
            (from..=3).any(|mark| {
                let of_mark: Vec<&Image> = left.iter().filter(|i| i.index.0 == mark).collect();
                let has = |at: u64| of_mark.iter().any(|i| i.low <= at && at < i.high);
                let ends = of_mark.iter().map(|i| i.high).filter(|high| *high < HASHES);
                has(0) && ends.into_iter().all(has)
            })
        };
        if there.len() == 1 {
            continue;
        }
        let safe = |from: u64| there.iter().all(|lost| begins_without(lost, from));
        let expected = (1..=3).rev().find(|from| safe(*from)).map(Index);
        assert_eq!(trim_before(&all), expected, "{all:?}");
        trims += u32::from(expected.is_some());
    }
    assert!(trims > 500, "{trims}");
}
