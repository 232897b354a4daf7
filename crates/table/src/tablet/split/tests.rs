use super::plain::Table;
use super::*;
use crate::entry::Asked;
use crate::name::hash_of;
use holdfast_base::random::Random;
use holdfast_env::trial::Trial;
use std::collections::VecDeque;

const MIDDLE: u32 = 1 << 31;
const SEEDS: u64 = 300;

/// Keys of one half, in order of their numbers.
fn keys(is_upper: bool) -> impl Iterator<Item = Vec<u8>> {
    let all = (0u32..).map(|number| number.to_string().into_bytes());
    all.filter(move |key| (hash_of(key) >= MIDDLE) == is_upper)
}

/// A session that did one thing.
fn asked(session: u64) -> Asked {
    Asked { session, sequence: 1, below: 1 }
}

/// A table whose upper half is leaving, and keys of its lower half. Of the upper records' sessions each has a number
/// between those of sessions that may come meanwhile.
fn leaving() -> (Table, Vec<Vec<u8>>) {
    let mut table = Table::new();
    let (lower, upper): (Vec<_>, Vec<_>) =
        (keys(false).take(3).collect(), keys(true).take(3).collect());
    for (number, key) in (1..).zip(upper.iter().chain(&lower)) {
        table.put(asked(1000 * number), key, key);
    }
    assert_eq!(table.begin(MIDDLE), Some(0));
    (table, lower)
}

/// What is wrong with a half that is whole, if anything is.
fn wrong(table: &Table, child: Growing) -> Option<String> {
    let is_upper = |(key, _): &(&Vec<u8>, &Record)| hash_of(key) >= MIDDLE;
    let tablet = child.into_tablet();
    let gone = table.tablets[0].records().iter().filter(is_upper);
    if !gone.eq(tablet.records()) {
        return Some(format!("it has other records: {:?}", tablet.records()));
    }
    let unknown = |session: &u64| !tablet.sessions().knows(asked(*session));
    let unknown: Vec<u64> = (1..=6).map(|session| 1000 * session).filter(unknown).collect();
    (!unknown.is_empty()).then(|| format!("nothing is known of sessions {unknown:?}"))
}

/// Whoever carries a split on gives pieces of one attempt, until another one takes his place, who begins anew: what
/// the first one gave comes late, or never, and the lower half's clients go on meanwhile, so that of what both give no
/// part of a number is the same. What is wrong with the tablet that comes out, if anything is.
fn given_by_several(seed: u64) -> Option<String> {
    let mut random = Random::new(seed);
    let (mut table, lower) = leaving();
    let parent = 0;
    let mut child = table.child(parent);
    let (mut splitting, mut attempts) = (Splitting::new(1), 1);
    let (mut on_the_way, mut late) = (VecDeque::<Pieces>::new(), Vec::<Pieces>::new());
    let (mut writes, mut comes_late) = (0..12, 0..40);
    for index in 1.. {
        let comes = match random.below(20) {
            // It waits for what it has given.
            0..10 if on_the_way.is_empty() => {
                on_the_way.push_back(table.pieces(parent, &child, &mut splitting));
                None
            }
            0..10 => on_the_way.pop_front(),
            10 => {
                late.extend(on_the_way.drain(..));
                None
            }
            // As often as it likes: it counts once, or not at all.
            11..14 if !late.is_empty() && comes_late.next().is_some() => {
                Some(late[random.below(late.len() as u64) as usize].clone())
            }
            14 if attempts < 4 => {
                attempts += 1;
                splitting = Splitting::new(attempts);
                late.extend(on_the_way.drain(..));
                None
            }
            _ if writes.next().is_none() => None,
            _ => {
                let at = random.below(lower.len() as u64) as usize;
                table.put(asked(1 + random.below(6000)), &lower[at], b"again");
                None
            }
        };
        if let Some(pieces) = comes
            && child.take(index, pieces).unwrap() == Some(true)
        {
            break;
        }
    }
    wrong(&table, child)
}

/// A part of an attempt that was given up comes while another attempt has given its part of that number: sessions that
/// came meanwhile lie in front of what both tell, so in the second one's part is something else.
fn given_by_two(seed: u64) -> Option<String> {
    let mut random = Random::new(seed);
    let (mut table, lower) = leaving();
    let (mut child, mut splitting) = (table.child(0), Splitting::new(1));
    let mut indices = 1..;
    let mut take = |child: &mut Growing, pieces| {
        child.take(indices.next().unwrap(), pieces).unwrap() == Some(true)
    };
    // The last one of eleven would make it whole.
    let late = 1 + random.below(9);
    for _ in 0..late {
        let pieces = table.pieces(0, &child, &mut splitting);
        assert!(!take(&mut child, pieces));
    }
    let late = table.pieces(0, &child, &mut splitting);
    for _ in 0..1 + random.below(3) {
        table.put(asked(1 + random.below(6000)), &lower[0], b"again");
    }
    splitting = Splitting::new(2);
    loop {
        let pieces = table.pieces(0, &child, &mut splitting);
        if pieces.number == late.number && pieces.attempt != late.attempt {
            take(&mut child, late.clone());
        }
        if take(&mut child, pieces) {
            return wrong(&table, child);
        }
    }
}

/// A copy that was begun, given up and begun again, by whoever carries it on, is of one attempt.
#[test]
fn a_half_is_whole_whoever_gives_it_up_and_begins_again() {
    let entered = Trial::new().with(&PIECES_BYTES, 1).enter();
    for seed in 0..SEEDS {
        assert_eq!(given_by_several(seed), None, "seed {seed}");
    }
    assert!(entered.happened().contains_key("what was given of a half began anew"));
}

/// Of parts of both a tablet could be put together that lacks what lay behind a border in the one and in front of it in
/// the other.
#[test]
fn a_half_is_of_one_attempt_though_a_part_of_another_comes_late() {
    let _entered = Trial::new().with(&PIECES_BYTES, 1).enter();
    for seed in 0..SEEDS {
        assert_eq!(given_by_two(seed), None, "seed {seed}");
    }
}

/// A check that never fails checks nothing.
#[test]
fn a_half_of_two_attempts_is_noticed() {
    let _entered =
        Trial::new().with(&PIECES_BYTES, 1).planting("table.split-of-two-attempts").enter();
    let noticed = (0..SEEDS).find_map(given_by_two);
    println!("{}", noticed.expect("nobody notices it"));
}
