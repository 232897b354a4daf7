//! A spool under power cuts: what was kept is there, numbers go on, and what was given up is what its topic
//! has. The topic is a model that takes a spool's next batch only.

use holdfast_base::Kind;
use holdfast_base::random::Random;
use holdfast_env::SeededRng;
use holdfast_log::Drive;
use holdfast_scribe::aside::{self, Aside};
use holdfast_scribe::batch::{self, Messages as Read, Position, SpoolId};
use holdfast_scribe::category::Category;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::intake::Keeps;
use holdfast_scribe::spool::Progress;
use holdfast_scribe::store::{Bounds, Outgoing, SEGMENTS_MIN, Store, open_log};
use holdfast_sim::{SimDisk, SimDiskOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const SEGMENT_BYTES: u64 = 4 * 4096;
const BOUND_BYTES: u64 = SEGMENTS_MIN * SEGMENT_BYTES;

/// What a topic took, by its rule.
#[derive(Default)]
struct Topic {
    position: BTreeMap<Category, Position>,
    texts: BTreeMap<Category, Vec<String>>,
}

impl Topic {
    fn take(&mut self, bytes: &[u8]) -> (Category, Position) {
        let (head, _) = batch::verify(bytes).unwrap();
        let position = self.position.entry(head.category.clone()).or_insert(Position::START);
        if head.begins() == *position {
            *position = head.ends();
            let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
            let texts = self.texts.entry(head.category.clone()).or_default();
            texts.extend(Read::of(bytes).unwrap().iter().map(text));
        }
        (head.category, *position)
    }
}

fn open(disk: &SimDisk, seed: u64) -> holdfast_base::Result<Store> {
    open_bounded(disk, seed, BOUND_BYTES)
}

fn open_bounded(disk: &SimDisk, seed: u64, bound_bytes: u64) -> holdfast_base::Result<Store> {
    let bounds = Bounds { bound_bytes, segment_bytes: SEGMENT_BYTES, drive: Drive::Pump };
    Store::open(Arc::new(disk.clone()), Path::new("/spool"), bounds, &SeededRng::new(seed))
}

struct World {
    topic: Topic,
    /// Kept for sure, in order; and, of the last one, perhaps.
    kept: BTreeMap<Category, Vec<String>>,
    in_doubt: Vec<(Category, String)>,
    texts: u64,
    id: Option<SpoolId>,
    refused: u64,
    given_up: u64,
}

impl World {
    /// One life; an error is the power's.
    fn live(&mut self, disk: &SimDisk, random: &mut Random) -> holdfast_base::Result<()> {
        let store = open(disk, random.next())?;
        let id = store.look(|core| core.id());
        assert_eq!(*self.id.get_or_insert(id), id, "its identity stays");
        for _ in 0..40 {
            match random.below(3) {
                0 | 1 => self.keep(&store, random)?,
                _ => self.send(&store, random)?,
            }
        }
        Ok(())
    }

    fn keep(&mut self, store: &Store, random: &mut Random) -> holdfast_base::Result<()> {
        let (mut round, mut texts) = (Round::default(), Vec::new());
        for _ in 0..1 + random.below(3) {
            self.texts += 1;
            let category = Category::new(["a", "B"][random.below(2) as usize]).unwrap();
            let long = holdfast_base::random::bytes(self.texts, 1 + random.below(700) as usize);
            let hex: String = long.iter().map(|byte| format!("{byte:02x}")).collect();
            texts.push((category, format!("{} {hex}", self.texts)));
        }
        let messages = texts.iter().map(|(of, text)| (of.clone(), text.clone().into_bytes()));
        let call = Messages { messages: messages.collect() };
        if !store.has_room(call.cost()) {
            self.refused += 1;
            return Ok(());
        }
        round.add(&call);
        self.in_doubt = texts;
        if let Some(e) = store.keep(&round.pack()).iter().find_map(|group| group.values().next()) {
            return Err(e.clone());
        }
        for (category, text) in std::mem::take(&mut self.in_doubt) {
            self.kept.entry(category).or_default().push(text);
        }
        Ok(())
    }

    /// Sends some; the answer may be lost.
    fn send(&mut self, store: &Store, random: &mut Random) -> holdfast_base::Result<()> {
        let Some(from) = store.look(|core| core.first_to_send(&BTreeSet::new())) else {
            return Ok(());
        };
        let bytes = 1 + random.below(20_000) as usize;
        let (outgoing, _) = store.to_send(from, bytes, &BTreeSet::new())?;
        assert!(!outgoing.is_empty(), "there was something");
        for Outgoing { bytes, .. } in &outgoing {
            let (category, position) = self.topic.take(bytes);
            if random.below(3) > 0 {
                let before = store.bytes();
                let progress = store.learn(&category, position);
                assert!(matches!(progress, Progress::Has(_)), "{progress:?}");
                self.given_up += u64::from(store.bytes() < before);
            }
        }
        Ok(())
    }
}

#[test]
fn what_was_kept_reaches_its_topic_once_whenever_the_power_goes() {
    let (mut cuts, mut refused, mut given_up, mut in_doubt) = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut disk = SimDisk::new(seed);
        let mut world = World {
            topic: Topic::default(),
            kept: BTreeMap::new(),
            in_doubt: Vec::new(),
            texts: 0,
            id: None,
            refused: 0,
            given_up: 0,
        };
        for _ in 0..4 {
            disk.crash_at(disk.operations() + 5 + random.below(250));
            if let Err(e) = world.live(&disk, &mut random) {
                assert!(disk.crashed(), "seed {seed}: {e}");
                cuts += 1;
            }
            disk = disk.power_cut(random.next());
            // What nobody knew of is there or not: where it is, it was kept after all.
            if world.id.is_some() {
                let store = open(&disk, 1).unwrap();
                settle(&mut world, &store);
                let doubted = std::mem::take(&mut world.in_doubt);
                for (category, text) in doubted {
                    in_doubt += 1;
                    if world.topic.texts.get(&category).is_some_and(|all| all.contains(&text)) {
                        world.kept.entry(category).or_default().push(text);
                    }
                }
            }
            assert_eq!(world.topic.texts, world.kept, "seed {seed}");
        }
        refused += world.refused;
        given_up += world.given_up;
    }
    for (times, what) in [
        (cuts, "the power went"),
        (refused, "there was no room"),
        (given_up, "files were given up"),
        (in_doubt, "nobody knew of a call"),
    ] {
        assert!(times > 10, "{what}: {times} times");
    }
}

/// Everything reaches the topic.
fn settle(world: &mut World, store: &Store) {
    for (category, position) in world.topic.position.clone() {
        assert_ne!(store.learn(&category, position), Progress::Copied);
    }
    while let Some(from) = store.look(|core| core.first_to_send(&BTreeSet::new())) {
        let (outgoing, _) = store.to_send(from, 1 << 20, &BTreeSet::new()).unwrap();
        for Outgoing { bytes, .. } in outgoing {
            let (category, position) = world.topic.take(&bytes);
            store.learn(&category, position);
        }
    }
}

/// The disk was full before the spool had reached its bound. Everything was delivered then, but to give it
/// up took a mark, for which there was no room; and the attempt ended the pass, so nothing more was
/// delivered either. Such an agent took nothing more, and gave nothing back, until somebody helped.
#[test]
fn a_spool_on_a_full_disk_gives_up_what_was_delivered() {
    let options = SimDiskOptions { capacity_bytes: 4 * BOUND_BYTES, ..SimDiskOptions::default() };
    let disk = SimDisk::with_options(1, options);
    let store = open_bounded(&disk, 1, 100 * BOUND_BYTES).unwrap();
    let mut topic = Topic::default();
    let category = Category::new("a").unwrap();
    let keep = |number: u64| {
        let mut round = Round::default();
        let hex: String =
            holdfast_base::random::bytes(number, 900).iter().map(|b| format!("{b:02x}")).collect();
        round.add(&Messages { messages: vec![(category.clone(), hex.into_bytes())] });
        let not_kept = store.keep(&round.pack());
        let e = not_kept[0].get(&category);
        assert!(e.is_none_or(|e| e.kind == Kind::Retry), "{e:?}");
        e.is_none()
    };
    let mut kept = 0;
    for round in 0..4 {
        let before = kept;
        // Files are unlinked beside: the first attempt may come before that.
        kept += u64::from(keep(kept));
        while keep(kept) {
            kept += 1;
        }
        assert!(kept > before + 3, "round {round}: it takes messages again");
        while let Some(from) = store.look(|core| core.first_to_send(&BTreeSet::new())) {
            let (outgoing, _) = store.to_send(from, 4000, &BTreeSet::new()).unwrap();
            for Outgoing { bytes, .. } in outgoing {
                let (category, position) = topic.take(&bytes);
                assert_eq!(store.learn(&category, position), Progress::Has(1));
            }
        }
        assert_eq!(topic.texts[&category].len() as u64, kept);
    }
    drop(store);
    let store = open_bounded(&disk, 2, 100 * BOUND_BYTES).unwrap();
    assert_eq!(store.look(|core| core.pending()), 0);
}

/// As on the disk of an agent: what a topic refuses is kept aside, survives the power, and makes room.
#[test]
fn what_is_set_aside_is_there_and_the_spool_goes_on() {
    let disk = SimDisk::new(3);
    let store = open_bounded(&disk, 1, 4 * BOUND_BYTES).unwrap();
    let [good, beyond] = ["good", "beyond"].map(|name| Category::new(name).unwrap());
    let mut topic = Topic::default();
    for number in 0..300_u64 {
        let mut round = Round::default();
        let text = format!("{number} {}", "x".repeat(400));
        let of = if number % 3 == 0 { &beyond } else { &good };
        round.add(&Messages { messages: vec![(of.clone(), text.into_bytes())] });
        assert!(store.has_room(500), "message {number}");
        assert!(store.keep(&round.pack())[0].is_empty());
        if number % 10 == 9 {
            assert!(store.set_aside(&beyond, "there are too many").unwrap() >= 3);
            let from = store.look(|core| core.first_to_send(&BTreeSet::new())).unwrap();
            for Outgoing { bytes, category } in
                store.to_send(from, 1 << 20, &BTreeSet::new()).unwrap().0
            {
                assert_eq!(category, good);
                let (category, position) = topic.take(&bytes);
                store.learn(&category, position);
            }
        }
    }
    assert_eq!(topic.texts[&good].len(), 200);
    assert_eq!(store.aside().0, 100);
    assert_eq!(store.set_aside(&beyond, "again").unwrap(), 0);
    drop(store);
    let disk = disk.power_cut(1);
    let log = open_log(Arc::new(disk.clone()), Path::new("/spool"), SEGMENT_BYTES, Drive::Pump);
    let mut numbers = Vec::new();
    aside::each(&log.unwrap(), &mut |_, entry| {
        let Aside::Batch { why, batch } = Aside::decode(entry)? else { panic!() };
        assert_eq!(why, "there are too many");
        for text in Read::of(batch)?.iter() {
            let text = std::str::from_utf8(text).unwrap();
            numbers.push(text.split(' ').next().unwrap().parse::<u64>().unwrap());
        }
        Ok(())
    })
    .unwrap();
    // The oldest is given up; what is left is in its order and goes up to the last one.
    let wanted: Vec<u64> = (0..300).filter(|number| number % 3 == 0).collect();
    assert!(!numbers.is_empty() && wanted.ends_with(&numbers), "{numbers:?}");
    assert_eq!(open(&disk, 2).unwrap().look(|core| core.pending()), 0);
}
