//! A small world of one home's stream, searched exhaustively: three production tablets, a write or
//! two, takeovers, entries that arrive at any time later or never. Whatever anybody was told is one
//! chain, for ever. Rules are broken on purpose, too: a search that finds nothing shows nothing.

use holdfast_base::codec::Encode;
use holdfast_env::trial::Trial;
use holdfast_table::entry::{Body, Entry, Refusal, StreamEntry};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId};
use holdfast_table::stream::Accepted;
use holdfast_table::tablet::{Form, Mode, Tablet};
use std::collections::{BTreeMap, HashSet, VecDeque};

const STREAM: StreamId = StreamId(0);
const REGIONS: usize = 3;

#[derive(Clone)]
struct State {
    tablets: Vec<Tablet>,
    /// What the leader of each epoch has decided or taken over: it may arrive at any time.
    sent: BTreeMap<Epoch, Vec<StreamEntry>>,
    /// How far each region has said that it follows an epoch.
    acks: BTreeMap<Epoch, [u64; REGIONS]>,
    /// Epochs that are asked for: who has promised, and held what.
    claims: BTreeMap<Epoch, BTreeMap<usize, Vec<StreamEntry>>>,
    told: Vec<Place>,
    writes: usize,
}

/// How much may happen, and whether a takeover believes the longest tail.
#[derive(Clone, Copy)]
struct Bounds {
    writes: usize,
    takeovers: usize,
    by_number: bool,
}

fn apply(tablet: &mut Tablet, entry: &Entry) -> bool {
    let applied = tablet.apply(tablet.applied() + 1, &entry.to_bytes(), &mut Vec::new());
    applied.unwrap().accepted == Accepted::Yes
}

fn held(tablet: &Tablet) -> Vec<StreamEntry> {
    tablet.stream(STREAM).behind(0, usize::MAX).to_vec()
}

fn next_entry(tablet: &Tablet, epoch: Epoch, body: Body) -> Entry {
    let tail = tablet.stream(STREAM).tail();
    let place = Place::new(epoch, tail.number + 1);
    let entry = StreamEntry { place, before: tail.epoch, asked: None, body };
    Entry::Decided { stream: STREAM, entry }
}

impl State {
    fn first() -> State {
        let form = Form::new(Mode::Strong, REGIONS as u8);
        let tablet = |region: usize| {
            let mut tablet = Tablet::new(&form, RegionId(region as u8));
            apply(&mut tablet, &Entry::Log(LogId(1)));
            tablet
        };
        let first = STREAM.first_epoch();
        State {
            tablets: (0..REGIONS).map(tablet).collect(),
            sent: BTreeMap::from([(first, Vec::new())]),
            acks: BTreeMap::from([(first, [0; REGIONS])]),
            claims: BTreeMap::new(),
            told: Vec::new(),
            writes: 0,
        }
    }

    /// Everything that tells states from each other, as numbers.
    fn key(&self) -> Vec<u64> {
        let places = |entries: &[StreamEntry], key: &mut Vec<u64>| {
            key.push(entries.len() as u64);
            key.extend(entries.iter().map(|entry| entry.place.epoch.0));
        };
        let mut key = vec![self.writes as u64, self.told.len() as u64];
        key.extend(self.told.iter().map(|place| place.epoch.0));
        for tablet in &self.tablets {
            let stream = tablet.stream(STREAM);
            let matched = stream.matched();
            let leading = stream.leading().map_or(0, |epoch| epoch.0);
            key.extend([stream.promised().0, leading, matched.epoch.0, matched.number]);
            places(&held(tablet), &mut key);
        }
        for (epoch, entries) in &self.sent {
            key.push(epoch.0);
            places(entries, &mut key);
            key.extend(self.acks[epoch]);
        }
        for (epoch, promises) in &self.claims {
            key.extend([epoch.0, promises.len() as u64]);
            for (region, entries) in promises {
                key.push(*region as u64);
                places(entries, &mut key);
            }
        }
        key
    }

    fn steps(&self, bounds: Bounds, out: &mut Vec<State>) {
        for region in 0..REGIONS {
            self.write(region, bounds, out);
            self.follow(region, out);
            self.tell(region, out);
            self.claim(region, bounds, out);
        }
        for epoch in self.claims.keys() {
            self.open(*epoch, bounds, out);
        }
    }

    fn write(&self, region: usize, bounds: Bounds, out: &mut Vec<State>) {
        let Some(epoch) = self.tablets[region].stream(STREAM).leading() else { return };
        if self.writes == bounds.writes {
            return;
        }
        let mut next = self.clone();
        next.writes += 1;
        let entry = next_entry(&next.tablets[region], epoch, Body::Refused(Refusal::Absent));
        assert!(apply(&mut next.tablets[region], &entry), "who leads decides");
        next.leader_has(region, epoch);
        out.push(next);
    }

    fn leader_has(&mut self, region: usize, epoch: Epoch) {
        let entries = held(&self.tablets[region]);
        self.acks.entry(epoch).or_default()[region] = entries.len() as u64;
        self.sent.insert(epoch, entries);
    }

    fn follow(&self, region: usize, out: &mut Vec<State>) {
        for (epoch, sent) in &self.sent {
            if usize::from(epoch.leader().0) == region {
                continue;
            }
            for count in 1..=sent.len() {
                if self.acks[epoch][region] >= count as u64 {
                    continue;
                }
                let mut next = self.clone();
                let (under, entries) = (*epoch, sent[..count].to_vec());
                let before = Place::default();
                let entry = Entry::Followed { stream: STREAM, under, before, entries };
                if apply(&mut next.tablets[region], &entry) {
                    next.acks.entry(under).or_default()[region] = count as u64;
                    out.push(next);
                }
            }
        }
    }

    /// Whoever matches a leader tells what a majority has said that it holds.
    fn tell(&self, region: usize, out: &mut Vec<State>) {
        let stream = self.tablets[region].stream(STREAM);
        let Some(acks) = self.acks.get(&stream.matched().epoch) else { return };
        let kept = stream.majority_holds(|member| Some(acks[usize::from(member.region.0)]));
        if let Some(kept) = kept.filter(|kept| *kept > 0) {
            let mut next = self.clone();
            let chain = stream.behind(0, kept as usize).iter().map(|entry| entry.place).collect();
            next.told = chain;
            out.push(next);
        }
    }

    fn claim(&self, region: usize, bounds: Bounds, out: &mut Vec<State>) {
        let asked = self.claims.keys().chain(self.sent.keys());
        let round = asked.map(|epoch| epoch.round()).max().unwrap_or(1) + 1;
        let mut epochs: Vec<Epoch> = self.claims.keys().copied().collect();
        if round as usize <= 1 + bounds.takeovers {
            epochs.push(Epoch::new(round, RegionId(region as u8)));
        }
        for epoch in epochs {
            let known = self.claims.get(&epoch);
            if known.is_some_and(|promises| promises.contains_key(&region)) {
                continue;
            }
            let mut next = self.clone();
            if apply(&mut next.tablets[region], &Entry::Promised { stream: STREAM, epoch }) {
                let entries = held(&next.tablets[region]);
                next.claims.entry(epoch).or_default().insert(region, entries);
                out.push(next);
            }
        }
    }

    fn open(&self, epoch: Epoch, bounds: Bounds, out: &mut Vec<State>) {
        let (promises, region) = (&self.claims[&epoch], usize::from(epoch.leader().0));
        if promises.len() <= REGIONS / 2 {
            return;
        }
        let tail = |entries: &&Vec<StreamEntry>| {
            let place = entries.last().map_or(Place::default(), |entry| entry.place);
            let by = if bounds.by_number { Epoch::default() } else { place.epoch };
            Place::new(by, place.number)
        };
        let best = promises.values().max_by_key(tail).cloned().unwrap_or_default();
        let mut next = self.clone();
        let (before, entries) = (Place::default(), best);
        let fetched = Entry::Followed { stream: STREAM, under: epoch, before, entries };
        let taken = apply(&mut next.tablets[region], &fetched);
        let opens = next_entry(&next.tablets[region], epoch, Body::Open);
        if taken && apply(&mut next.tablets[region], &opens) {
            next.claims.remove(&epoch);
            next.leader_has(region, epoch);
            out.push(next);
        }
    }
}

/// All states, or the first in which somebody is told what contradicts what was told before.
fn search(bounds: Bounds) -> Result<usize, usize> {
    let first = State::first();
    let mut seen = HashSet::from([first.key()]);
    let mut left = VecDeque::from([first]);
    let mut next = Vec::new();
    while let Some(state) = left.pop_front() {
        state.steps(bounds, &mut next);
        for mut next in next.drain(..) {
            let common = next.told.len().min(state.told.len());
            if next.told[..common] != state.told[..common] {
                return Err(seen.len());
            }
            if next.told.len() < state.told.len() {
                next.told = state.told.clone();
            }
            if seen.insert(next.key()) {
                left.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

const TWO_WRITES: Bounds = Bounds { writes: 2, takeovers: 1, by_number: false };
const TWO_TAKEOVERS: Bounds = Bounds { writes: 1, takeovers: 2, by_number: false };

#[test]
fn what_was_told_is_one_chain_whoever_leads() {
    for bounds in [TWO_WRITES, TWO_TAKEOVERS] {
        let states = search(bounds).expect("one chain");
        println!("{states} states");
        assert!(states > 1_000, "{states} states");
    }
}

#[test]
fn broken_rules_are_found() {
    {
        let _entered = Trial::new().planting("table.old-epoch-accepted").enter();
        assert!(search(TWO_WRITES).is_err(), "an old epoch is accepted");
    }
    let by_number = Bounds { writes: 2, takeovers: 2, by_number: true };
    assert!(search(by_number).is_err(), "the longest tail is not the furthest");
}
