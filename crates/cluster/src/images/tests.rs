use super::*;

const HALF: u64 = HASHES / 2;

fn image(low: u64, high: u64, index: u64) -> Image {
    Image { low, high, index: Index(index), sum: 7 }
}

fn told<'a>(all: &[(u32, &'a str, &[Image])]) -> Told<'a> {
    all.iter().map(|(id, host, images)| (NodeId(*id), (*host, images.to_vec()))).collect()
}

#[test]
fn every_part_needs_two_hosts_and_an_image_of_the_mark_itself() {
    let (left, right) = (image(0, HALF, 10), image(HALF, HASHES, 10));
    let one_each = told(&[(1, "a", &[left]), (2, "b", &[right])]);
    assert_eq!(trim_before(&one_each), None, "each part is on one host");
    let twice = told(&[(1, "a", &[left, right]), (2, "b", &[left, right])]);
    assert_eq!(trim_before(&twice), Some(Index(10)));
    let same_host = told(&[(1, "a", &[left, right]), (2, "a", &[left, right]), (3, "b", &[])]);
    assert_eq!(trim_before(&same_host), None, "two nodes of one host");
    let half_twice = told(&[(1, "a", &[left, right]), (2, "b", &[left])]);
    assert_eq!(trim_before(&half_twice), None, "one part has one alone");
    // A later image stands in for the second one.
    let later = told(&[(1, "a", &[left, right]), (2, "b", &[image(0, HASHES, 20)])]);
    assert_eq!(trim_before(&later), Some(Index(10)));
    // But views begin with images of one mark: none is left without the first host.
    let apart = told(&[
        (1, "a", &[left, right]),
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
    let (good, other) = (image(0, HASHES, 10), Image { sum: 8, ..image(0, HASHES, 10) });
    let older = image(0, HASHES, 5);
    let told = told(&[(1, "a", &[older, good]), (2, "b", &[older, other]), (3, "c", &[older])]);
    let differ = differing(&told);
    assert_eq!(differ.len(), 1);
    assert_eq!(differ[0].nodes, [NodeId(1), NodeId(2)]);
    let said = "images of entry 10, hashes 0 to 4294967296, of nodes 1 and 2";
    assert_eq!(differ[0].to_string(), said);
    assert_eq!(trim_before(&told), Some(Index(5)));
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
