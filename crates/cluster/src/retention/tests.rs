//! Retention beside a plain model that knows when every entry came, and its file.

use super::*;
use holdfast_env::{Rng, SeededRng};

const HOUR_MS: u64 = 3_600_000;

fn segments(firsts: &[u64], bytes: u64) -> Vec<Segment> {
    firsts.iter().map(|first| Segment { first: Index(*first), bytes }).collect()
}

fn with(limits: Limits) -> Retention {
    let mut retention = Retention::default();
    retention.set("t", limits);
    retention
}

#[test]
fn the_oldest_segments_go_until_the_others_fit_and_the_last_one_stays() {
    let all = segments(&[1, 11, 21, 31], 100);
    for (bytes, before) in [
        (0, None),
        (400, None),
        (399, Some(11)),
        (300, Some(11)),
        (299, Some(21)),
        (100, Some(31)),
        (1, Some(31)),
    ] {
        let retention = with(Limits { bytes, age_ms: 0 });
        assert_eq!(retention.trim_before("t", &all, None, None), before.map(Index), "{bytes}");
        assert_eq!(retention.trim_before("other", &all, None, None), None);
    }
    assert_eq!(with(Limits { bytes: 1, age_ms: 0 }).trim_before("t", &[], None, None), None);
}

/// Whoever reads a topic from an index that it holds would find it gone.
#[test]
fn nothing_that_must_stay_is_given_up() {
    let all = segments(&[1, 11, 21, 31], 100);
    let retention = with(Limits { bytes: 1, age_ms: 0 });
    for (stays, before) in [
        (40, Some(31)),
        (31, Some(31)),
        (30, Some(21)),
        (21, Some(21)),
        (11, Some(11)),
        (10, None),
        (1, None),
        (0, None),
    ] {
        assert_eq!(
            retention.trim_before("t", &all, Some(Index(stays)), None),
            before.map(Index),
            "{stays}"
        );
    }
}

/// Random ages, appends, rests of the clock, restarts: no entry goes before its age, and all of a
/// segment goes once its last entry is older than the age and a step or two.
#[test]
fn entries_go_with_their_segment_once_all_of_it_is_old_and_not_before() {
    for seed in 1..=40 {
        let rng = SeededRng::new(seed);
        let age_ms = 1000 + rng.next_u64() % HOUR_MS;
        let mut retention = with(Limits { bytes: 0, age_ms });
        // By index, when each entry came; and the segments' borders.
        let (mut came, mut firsts, mut now_ms) = (Vec::new(), vec![1u64], 0);
        let mut trimmed = 0;
        for round in 0..2000 {
            let passes = 1 + rng.next_u64() % (age_ms / 20).min(ROUND_MS_MAX);
            retention.pass(passes);
            now_ms += passes;
            (0..rng.next_u64() % 4).for_each(|_| came.push(now_ms));
            if round % 37 == 0 && *firsts.last().unwrap() < came.len() as u64 + 1 {
                firsts.push(came.len() as u64 + 1);
            }
            retention.note("t", Index(came.len() as u64 + 1));
            if round % 101 == 0 {
                retention = Retention::parse(retention.text().as_bytes()).unwrap();
            }
            assert!(retention.topics["t"].own.notes.len() <= NOTES_MAX);
            let before = retention.trim_before("t", &segments(&firsts, 1), None, None);
            if let Some(before) = before {
                let youngest = came[before.0 as usize - 2];
                assert!(now_ms - youngest >= age_ms, "seed {seed}: {before} is too young");
                firsts.retain(|first| *first >= before.0);
                trimmed += 1;
            }
            if let [_, second, ..] = firsts[..] {
                let late_ms = 2 * age_ms / STEPS + age_ms / 20 + 1;
                let last = came[second as usize - 2];
                assert!(
                    now_ms - last < age_ms + 2 * late_ms,
                    "seed {seed}: entries stay for too long"
                );
            }
        }
        assert!(trimmed > 0, "seed {seed}");
    }
}

/// A calendar that was set an hour ahead, or a machine that slept for one, emptied topics of half an
/// hour: nothing of what came a moment before was left.
#[test]
fn a_clock_that_jumps_empties_nothing() {
    let mut retention = with(Limits { bytes: 0, age_ms: HOUR_MS / 2 });
    retention.note("t", Index(100));
    for jump_ms in [HOUR_MS, 1000 * HOUR_MS, u64::MAX] {
        let mut jumped = retention.clone();
        jumped.pass(jump_ms);
        jumped.note("t", Index(200));
        assert_eq!(jumped.trim_before("t", &segments(&[1, 50, 100], 1), None, None), None);
    }
    // One that goes back passes nothing; what was noted stays, and so does what is in the topic.
    retention.pass(0);
    assert_eq!(retention.trim_before("t", &segments(&[1, 50, 100], 1), None, None), None);
    for _ in 0..30 {
        retention.pass(ROUND_MS_MAX);
    }
    assert_eq!(
        retention.trim_before("t", &segments(&[1, 50, 100], 1), None, None),
        Some(Index(100))
    );
}

/// A topic that begins anew with an older log: notes of the other one would call what comes old.
#[test]
fn notes_of_another_log_say_nothing() {
    let mut retention = with(Limits { bytes: 0, age_ms: 1000 });
    retention.note("t", Index(100));
    retention.pass(1000);
    retention.note("t", Index(20));
    assert_eq!(retention.trim_before("t", &segments(&[1, 10, 20], 1), None, None), None);
}

#[test]
fn the_file_comes_back_and_whatever_is_not_as_it_was_written_says_nothing() {
    let mut retention = with(Limits { bytes: 5, age_ms: 1000 });
    retention.set("a/b", Limits { bytes: 0, age_ms: 7 });
    retention.pass(9);
    retention.note("t", Index(3));
    let text = retention.text();
    assert_eq!(
        text,
        "ran 9\nkeep a/b 0 7\nkeep t 5 1000\nnote t 9 3\ncheck 00000000\n"
            .replace("00000000", &text[text.len() - 9..text.len() - 1])
    );
    assert_eq!(Retention::parse(text.as_bytes()), Some(retention.clone()));
    for bit in 0..text.len() * 8 {
        let mut bad = text.clone().into_bytes();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Retention::parse(&bad), None, "bit {bit}");
    }
    for cut in 0..text.len() {
        assert_eq!(Retention::parse(&text.as_bytes()[..cut]), None, "cut at {cut}");
    }
    retention.set("t", Limits::default());
    retention.set("a/b", Limits::default());
    assert_eq!(retention.topics().count(), 0);
}

/// A reader that is slower than the limits found its place trimmed: what it had not read was gone. Now it holds
/// that, and a limit of its own ends it: one that never comes back would have filled the disk.
#[test]
fn what_readers_need_stays_within_limits_of_its_own() {
    let all = segments(&[1, 11, 21, 31], 100);
    let before = |retention: &Retention, readers: Option<u64>| {
        let before = retention.trim_before("t", &all, None, readers.map(Index));
        before.map_or(0, |before| before.0)
    };
    let mut retention = with(Limits { bytes: 100, age_ms: 0 });
    assert_eq!(before(&retention, Some(5)), 31, "they hold nothing unless that was asked for");
    retention.set_held("t", Limits { bytes: 300, age_ms: 0 });
    for (readers, wanted) in
        [(None, 31), (Some(40), 31), (Some(25), 21), (Some(11), 11), (Some(5), 11)]
    {
        assert_eq!(before(&retention, readers), wanted, "{readers:?}");
    }
    // What must stay for others does, whatever the limits are.
    assert_eq!(retention.trim_before("t", &all, Some(Index(9)), Some(Index(25))), None);
    // A limit that is narrower than the first one holds nothing, and makes nothing go earlier.
    retention.set_held("t", Limits { bytes: 1, age_ms: 0 });
    assert_eq!(before(&retention, Some(5)), 31);
    retention.set("t", Limits { bytes: 300, age_ms: 0 });
    assert_eq!(before(&retention, Some(5)), 11);
    // By age, counted as that of the first limits.
    let mut retention = with(Limits { bytes: 100, age_ms: 0 });
    retention.set_held("t", Limits { bytes: 0, age_ms: 10 * ROUND_MS_MAX });
    retention.note("t", Index(21));
    assert_eq!(before(&retention, Some(5)), 0);
    for round in 0..10 {
        assert_eq!(before(&retention, Some(5)), 0, "round {round}");
        retention.pass(ROUND_MS_MAX);
        retention.note("t", Index(40));
        let text = retention.text();
        assert_eq!(Retention::parse(text.as_bytes()), Some(retention.clone()), "{text}");
    }
    assert_eq!(before(&retention, Some(5)), 21);
    assert_eq!(before(&retention, Some(22)), 21);
    retention.set("t", Limits::default());
    assert_eq!(before(&retention, None), 0, "nothing goes without the first limits");
    retention.set_held("t", Limits::default());
    assert_eq!(retention.topics().count(), 0);
}
