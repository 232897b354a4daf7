//! The buckets against a model that keeps everybody for ever and counts what they lack; and what
//! clocks and strangers may do.

use super::*;
use crate::random::Random;

const S: u64 = SECOND_NS;

/// What one lacks of full buckets, in units times nanoseconds.
#[derive(Default)]
struct Lacks {
    requests: u128,
    bytes: u128,
    connections: u64,
    /// When, and until when it was slowed, by the limit's place.
    slowed: [Vec<(u64, u64)>; 3],
}

struct Model {
    allowed: Allowance,
    all: BTreeMap<u64, Lacks>,
    now_ns: u64,
}

impl Model {
    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        for lacks in self.all.values_mut() {
            let flows = |rate: u64| u128::from(ns) * u128::from(rate);
            lacks.requests = lacks.requests.saturating_sub(flows(self.allowed.requests));
            lacks.bytes = lacks.bytes.saturating_sub(flows(self.allowed.bytes));
        }
    }

    fn take(&mut self, key: u64, requests: u64, bytes: u64) {
        let lacks = self.all.entry(key).or_default();
        lacks.requests +=
            u128::from(requests) * u128::from(S) * u128::from(self.allowed.requests.min(1));
        lacks.bytes += u128::from(bytes) * u128::from(S) * u128::from(self.allowed.bytes.min(1));
    }

    fn give_back(&mut self, key: u64, bytes: u64) {
        let back = u128::from(bytes) * u128::from(S);
        let lacks = self.all.entry(key).or_default();
        lacks.bytes = lacks.bytes.saturating_sub(back);
    }

    /// Nanoseconds until there is a whole request, and until there is no debt of bytes.
    fn waits(&mut self, key: u64) -> [u64; 2] {
        let (allowed, lacks) = (self.allowed, self.all.entry(key).or_default());
        let wait = |rate: u64, lacks: u128, whole: u64| match rate {
            0 => 0,
            rate => {
                let room = u128::from(rate - whole) * u128::from(S);
                lacks.saturating_sub(room).div_ceil(u128::from(rate)) as u64
            }
        };
        [wait(allowed.requests, lacks.requests, 1), wait(allowed.bytes, lacks.bytes, 0)]
    }

    /// Nanoseconds until a request may go on, and for which limit.
    fn wait(&mut self, key: u64) -> (u64, Limit) {
        let [requests, bytes] = self.waits(key);
        if bytes > requests { (bytes, Limit::Bytes) } else { (requests, Limit::Requests) }
    }

    fn slow(&mut self, key: u64, limit: Limit, ns: u64) {
        let (now_ns, lacks) = (self.now_ns, self.all.entry(key).or_default());
        lacks.slowed[limit as usize].push((now_ns, now_ns + ns));
    }

    /// Seconds of the last minute that one of the times touches.
    fn seconds(&self, key: u64, limit: Limit) -> u64 {
        let Some(lacks) = self.all.get(&key) else { return 0 };
        let now_s = self.now_ns / S;
        let touched = |second: &u64| {
            let within = |(from, until): &(u64, u64)| from / S <= *second && *second * S < *until;
            let begun = |(from, _): &(u64, u64)| from / S == *second;
            lacks.slowed[limit as usize].iter().any(|time| within(time) || begun(time))
        };
        ((now_s + 1).saturating_sub(REMEMBERED_S)..=now_s).filter(touched).count() as u64
    }
}

fn wait_of(turn: Turn) -> u64 {
    match turn {
        Turn::Go { .. } => 0,
        Turn::Wait(wait) | Turn::Refuse(wait) => wait.ns,
    }
}

/// A request or an answer is taken ahead, and some of it may come to nothing.
fn reserve(rates: &mut Rates<u64>, model: &mut Model, random: &mut Random, key: u64) -> String {
    let (longest_ns, bytes) = (random.below(2 * S), random.below(30));
    let (wanted, (expected, limit)) = match random.below(3) {
        0 => (Wanted::Answer { bytes }, (model.waits(key)[1], Limit::Bytes)),
        _ => (Wanted::Request { bytes }, model.wait(key)),
    };
    let turn = rates.reserve(&key, model.now_ns, longest_ns, wanted);
    assert_eq!(wait_of(turn), expected);
    assert_eq!(matches!(turn, Turn::Refuse(_)), expected > longest_ns);
    if expected <= longest_ns {
        model.take(key, u64::from(matches!(wanted, Wanted::Request { .. })), bytes);
        if random.below(4) == 0 {
            rates.give_back(&key, bytes / 2);
            model.give_back(key, bytes / 2);
        }
    }
    if expected > 0 {
        model.slow(key, limit, expected.min(longest_ns));
    }
    format!("{key} reserves {wanted:?} within {longest_ns}")
}

/// One step of either; says what it was, for whoever reads a failure.
fn step(rates: &mut Rates<u64>, model: &mut Model, random: &mut Random) -> String {
    let (key, now_ns) = (random.below(4), model.now_ns);
    match random.below(7) {
        0 => {
            let ns = [0, 1, S / 7, S, 3 * S, 100 * S][random.below(6) as usize];
            model.pass(ns);
            format!("{ns} ns pass")
        }
        1 | 2 => {
            // Now and then more than anybody may owe.
            let much = [1, 1, 1, 100][random.below(4) as usize];
            let (requests, bytes) = (random.below(4) * much, random.below(40) * much);
            rates.take(&key, now_ns, requests, bytes);
            model.take(key, requests, bytes);
            format!("{key} takes {requests}, {bytes}")
        }
        3 => {
            let (expected, limit) = model.wait(key);
            let turn = rates.turn(&key, now_ns);
            let refuses = matches!(turn, Turn::Refuse(_));
            assert_eq!(refuses, expected > DEBT_NS_MAX, "{key} waits {expected} ns");
            match turn {
                Turn::Go { requests } => {
                    assert!(requests > 0 && expected == 0, "{key} goes on {expected} ns early");
                    let lacks = model.all[&key].requests.div_ceil(u128::from(S)) as u64;
                    let left = model.allowed.requests.checked_sub(lacks);
                    let left = left.filter(|_| model.allowed.requests > 0);
                    assert_eq!(requests, left.unwrap_or(u64::MAX));
                }
                Turn::Wait(wait) | Turn::Refuse(wait) => {
                    assert_eq!((wait.ns, wait.limit), (expected, limit));
                    model.slow(key, limit, expected);
                }
            }
            format!("{key} asks")
        }
        4 => reserve(rates, model, random, key),
        5 => {
            let (max, has) =
                (model.allowed.connections, model.all.entry(key).or_default().connections);
            let done = rates.connect(&key, now_ns);
            assert_eq!(done.is_ok(), max == 0 || has < max, "{key} has {has}");
            match done {
                Ok(()) => model.all.entry(key).or_default().connections += 1,
                Err(_) => model.slow(key, Limit::Connections, 0),
            }
            format!("{key} connects")
        }
        _ => {
            if let Some(lacks) = model.all.get_mut(&key).filter(|lacks| lacks.connections > 0) {
                lacks.connections -= 1;
                rates.disconnect(&key);
            }
            format!("{key} disconnects")
        }
    }
}

#[test]
fn each_waits_for_what_it_took_itself_and_no_longer() {
    for seed in 0..300 {
        let random = &mut Random::new(seed);
        let mut few = |most| [0, 1, random.below(most) + 1][random.below(3) as usize];
        let allowed = Allowance { requests: few(6), bytes: few(50), connections: few(3) };
        let mut rates = Rates::new(allowed, 100);
        // A clock may begin anywhere.
        let now_ns = random.below(1000) * S / 3;
        let mut model = Model { allowed, all: BTreeMap::new(), now_ns };
        let mut steps = Vec::new();
        for _ in 0..120 {
            steps.push(step(&mut rates, &mut model, random));
            let slowed = rates.slowed(model.now_ns);
            for key in 0..4 {
                for limit in Limit::ALL {
                    let found = slowed.iter().find(|one| (one.key, one.limit) == (key, limit));
                    let seconds = found.map_or(0, |one| one.seconds);
                    let expected = model.seconds(key, limit);
                    assert_eq!(seconds, expected, "seed {seed}: {limit:?} {steps:?}");
                }
                let left = slowed.iter().filter(|one| one.key == key).map(|one| one.left_ns).max();
                let left = left.unwrap_or(0);
                let (wait, limit) = model.wait(key);
                assert!(left <= wait, "seed {seed}: {left} of {wait} {steps:?}");
                // Who waits for the worst of its debts is told how long.
                if model.seconds(key, limit) > 0 {
                    assert_eq!(left, wait, "seed {seed}: {steps:?}");
                }
            }
        }
    }
}

#[test]
fn strangers_fill_a_bounded_table_and_forgetting_only_forgives() {
    const MAX: usize = 16;
    for seed in 0..50 {
        let random = &mut Random::new(seed);
        let allowed = Allowance { requests: 2, bytes: 0, connections: 2 };
        let (mut rates, mut model) =
            (Rates::new(allowed, MAX), Model { allowed, all: BTreeMap::new(), now_ns: 0 });
        // Who is connected, or owes most, is not forgotten for others.
        rates.connect(&u64::MAX, 0).unwrap();
        rates.take(&(u64::MAX - 1), 0, 1000, 0);
        for _ in 0..500 {
            let key = random.below(200);
            match random.below(3) {
                0 => model.pass(random.below(S)),
                1 => {
                    rates.take(&key, model.now_ns, 1, 0);
                    model.take(key, 1, 0);
                }
                _ => {
                    let expected = model.wait(key).0;
                    assert!(wait_of(rates.turn(&key, model.now_ns)) <= expected);
                }
            }
            assert!(rates.entries.len() <= MAX);
        }
        assert_eq!(rates.entries[&u64::MAX].connections, 1);
        assert!(wait_of(rates.turn(&(u64::MAX - 1), model.now_ns)) > 200 * S);
    }
}

#[test]
fn a_clock_that_stands_goes_back_or_jumps_gives_a_second_of_it_at_most() {
    let allowed = Allowance { requests: 5, bytes: u64::MAX, connections: 0 };
    let mut rates = Rates::new(allowed, 4);
    rates.take(&1, 10 * S, 5, u64::MAX);
    assert_eq!(wait_of(rates.turn(&1, 10 * S)), S / 5);
    assert_eq!(wait_of(rates.turn(&1, 10 * S)), S / 5, "it stands");
    assert_eq!(wait_of(rates.turn(&1, 2 * S)), S / 5, "it goes back");
    assert_eq!(rates.turn(&1, u64::MAX), Turn::Go { requests: 5 }, "it jumps");
    rates.take(&1, u64::MAX, 6, u64::MAX);
    assert!(wait_of(rates.turn(&1, u64::MAX)) > 0);
    assert_eq!(rates.slowed(u64::MAX).len(), 1);
}

#[test]
fn a_client_is_told_of_once_a_minute() {
    let mut rates = Rates::new(Allowance { requests: 1, ..Allowance::default() }, 4);
    let mut told = Vec::new();
    for second in 0..150 {
        rates.take(&1, second * S, 2, 0);
        match rates.turn(&1, second * S) {
            Turn::Wait(wait) | Turn::Refuse(wait) if wait.tell => told.push(second),
            _ => {}
        }
    }
    assert_eq!(told, [0, 60, 120]);
    let left_ns = rates.slowed(149 * S)[0].left_ns;
    let slowed = Slowed { key: 1, limit: Limit::Requests, seconds: 60, left_ns };
    assert_eq!(rates.slowed(149 * S), [slowed]);
    assert_eq!(left_ns, 151 * S, "one too many in each second, and the next one");
}
