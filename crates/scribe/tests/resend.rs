//! Copies of a spool that are sent again, whoever dies between and however often it is done: each message counts
//! once, in the order of the copy that had it. The topics are production's views of categories.

use holdfast_base::ids::Index;
use holdfast_base::random::Random;
use holdfast_base::{Error, Result};
use holdfast_client::ScribePage;
use holdfast_env::SeededRng;
use holdfast_log::Drive;
use holdfast_scribe::batch::{self, Messages as Read, Position, SpoolId};
use holdfast_scribe::category::Category;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::intake::Keeps;
use holdfast_scribe::resend::{Came, Outcome, Topics, resend};
use holdfast_scribe::spool::Progress;
use holdfast_scribe::store::{Bounds, Outgoing, SEGMENTS_MIN, Store};
use holdfast_scribe::view::{self, CategoryView};
use holdfast_sim::SimDisk;
use holdfast_view::{Applied, View};
use holdfast_wire::scribe as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const SEGMENT_BYTES: u64 = 4 * 4096;

struct Topic {
    view: CategoryView,
    entries: Vec<Vec<u8>>,
    /// The first that was not trimmed.
    first: u64,
}

/// A cluster, and how many requests it answers before the way to it breaks.
#[derive(Default)]
struct Cluster {
    topics: BTreeMap<Category, Topic>,
    answers: Option<u64>,
}

impl Cluster {
    fn topic(&mut self, category: &Category) -> &mut Topic {
        let begin = || Topic {
            view: CategoryView::begin(&view::context(category)),
            entries: Vec::new(),
            first: 1,
        };
        self.topics.entry(category.clone()).or_insert_with(begin)
    }

    fn take(&mut self, bytes: &[u8]) -> msg::Position {
        let (head, _) = batch::verify(bytes).unwrap();
        let topic = self.topic(&head.category);
        topic.entries.push(bytes.to_vec());
        let Applied::Ok(position) =
            topic.view.apply(Index(topic.entries.len() as u64), topic.entries.last().unwrap())
        else {
            panic!()
        };
        told(view::decode_position(&position).unwrap())
    }

    /// Whether the answer comes; what was asked for was done.
    fn answered(&mut self) -> Result<()> {
        match &mut self.answers {
            Some(0) => Err(Error::retry("the way broke")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Texts of a category, in its order.
    fn texts(&self, category: &Category) -> Vec<String> {
        let Some(topic) = self.topics.get(category) else { return Vec::new() };
        let taken = (1..).map(Index).zip(&topic.entries);
        let taken = taken.filter(|(index, _)| topic.view.has_taken(*index));
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        taken
            .flat_map(|(_, bytes)| Read::of(bytes).unwrap().iter().map(text).collect::<Vec<_>>())
            .collect()
    }
}

fn told(Position { next, checksum }: Position) -> msg::Position {
    msg::Position { next, checksum, refused: String::new(), never: false }
}

impl Topics for Cluster {
    fn ask(&mut self, spool: SpoolId, categories: &[Category]) -> Result<Vec<msg::Position>> {
        self.answered()?;
        let of = |category| {
            self.topics.get(category).map_or(Position::START, |topic| topic.view.position(spool))
        };
        Ok(categories.iter().map(of).map(told).collect())
    }

    fn append(&mut self, _: Vec<String>, batches: &[&[u8]]) -> Result<Vec<msg::Position>> {
        let positions = batches.iter().map(|batch| self.take(batch)).collect();
        self.answered()?;
        Ok(positions)
    }

    fn read(&mut self, category: &Category, from: Index) -> Result<ScribePage> {
        self.answered()?;
        let topic = self.topic(category);
        let from = Index(from.0.max(topic.first));
        // Pages of three entries.
        let next = Index((from.0 + 3).min(topic.entries.len() as u64 + 1).max(from.0));
        let taken = (from.0..next.0).map(Index).filter(|index| topic.view.has_taken(*index));
        let batches = taken.map(|index| (index, topic.entries[index.0 as usize - 1].clone()));
        Ok(ScribePage { batches: batches.collect(), next })
    }
}

/// A machine with a spool, and what its clients were told is kept, beside what the copy had when it was made.
struct Machine {
    disk: SimDisk,
    told: BTreeMap<Category, Vec<String>>,
}

fn open(machine: &Machine) -> Store {
    let bounds = Bounds {
        bound_bytes: 1000 * SEGMENTS_MIN * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        drive: Drive::Pump,
    };
    let (disk, rng) = (Arc::new(machine.disk.clone()), SeededRng::new(7));
    Store::open(disk, Path::new("/spool"), bounds, &rng).unwrap()
}

impl Machine {
    fn new(seed: u64) -> Machine {
        Machine { disk: SimDisk::new(seed), told: BTreeMap::new() }
    }

    /// Somebody copies its disk, while nothing runs there.
    fn copied(&self) -> Machine {
        Machine { disk: self.disk.durable_copy(), told: self.told.clone() }
    }

    fn keep(&mut self, store: &Store, random: &mut Random, texts: &mut u64) {
        let mut round = Round::default();
        for _ in 0..1 + random.below(4) {
            *texts += 1;
            let category = Category::new(["a", "B"][random.below(2) as usize]).unwrap();
            // Some that are compressed, and some that are not.
            let text = format!("{texts} {}", "x".repeat(random.below(400) as usize));
            round.add(&Messages { messages: vec![(category.clone(), text.clone().into_bytes())] });
            self.told.entry(category).or_default().push(text);
        }
        assert!(store.keep(&round.pack())[0].is_empty());
    }

    /// One life of its agent.
    fn live(&mut self, cluster: &mut Cluster, random: &mut Random, texts: &mut u64) {
        let store = open(self);
        for _ in 0..random.below(8) {
            match random.below(3) {
                0 => self.keep(&store, random, texts),
                1 => self.keep(&store, random, texts),
                _ => deliver(&store, cluster, random),
            }
        }
    }
}

/// As an agent does, some of what there is; an answer may be lost.
fn deliver(store: &Store, cluster: &mut Cluster, random: &mut Random) {
    let Some(from) = store.look(|core| core.first_to_send(&BTreeSet::new())) else { return };
    let most = 1 + random.below(2000) as usize;
    let (outgoing, _) = store.to_send(from, most, &BTreeSet::new()).unwrap();
    for Outgoing { category, bytes } in outgoing {
        let position = cluster.take(&bytes);
        if random.below(4) > 0 {
            let position = Position { next: position.next, checksum: position.checksum };
            assert_ne!(store.learn(&category, position), Progress::Behind);
        }
    }
}

/// Until it was done once, whatever breaks; and once more.
fn sent_again(machine: &Machine, cluster: &mut Cluster, random: &mut Random) -> (Outcome, u64) {
    for attempts in 0.. {
        cluster.answers = (random.below(3) > 0).then(|| random.below(12));
        let done = resend(&open(machine), cluster, false);
        cluster.answers = None;
        if let Ok(outcome) = done {
            let once_more = resend(&open(machine), cluster, false).unwrap();
            for (category, came) in &once_more {
                if let Came::Copied { messages, before, .. } = came {
                    assert_eq!(messages, before, "`{category}` has it all");
                }
            }
            return (outcome, attempts);
        }
    }
    unreachable!("the way holds now and then")
}

#[derive(Default)]
struct Seen {
    alone: u64,
    own: u64,
    broken: u64,
    nothing: u64,
}

#[test]
fn what_only_a_copy_has_is_sent_again_and_counts_once() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut cluster, mut texts) = (Cluster::default(), 0);
        let mut machines = vec![Machine::new(seed)];
        for _ in 0..3 + random.below(6) {
            let at = random.below(machines.len() as u64) as usize;
            machines[at].live(&mut cluster, &mut random, &mut texts);
            if machines.len() < 5 && random.below(2) == 0 {
                let of = random.below(machines.len() as u64) as usize;
                machines.push(machines[of].copied());
            }
        }
        for machine in &machines {
            let (outcome, attempts) = sent_again(machine, &mut cluster, &mut random);
            seen.broken += attempts;
            for came in outcome.values() {
                match came {
                    Came::Own { messages } => seen.own += messages,
                    Came::Copied { messages: 0, .. } => seen.nothing += 1,
                    Came::Copied { .. } => seen.alone += 1,
                    Came::Refused(why) => panic!("seed {seed}: {why}"),
                }
            }
        }
        judge(&machines, &cluster, seed);
    }
    for (times, what) in [
        (seen.alone, "a copy had messages that nobody else had"),
        (seen.own, "messages went out under the spool's own identity"),
        (seen.broken, "the way broke"),
        (seen.nothing, "a copy had nothing of its own"),
    ] {
        assert!(times > 20, "{what}: {times} times");
    }
}

/// Each message is there once, and those of a machine are in its order.
fn judge(machines: &[Machine], cluster: &Cluster, seed: u64) {
    for name in ["a", "B"] {
        let category = Category::new(name).unwrap();
        let texts = cluster.texts(&category);
        let times: BTreeSet<&String> = texts.iter().collect();
        assert_eq!(times.len(), texts.len(), "seed {seed}: something is read twice");
        let of = |machine: &Machine| machine.told.get(&category).cloned().unwrap_or_default();
        let all: BTreeSet<String> = machines.iter().flat_map(of).collect();
        assert_eq!(times.len(), all.len(), "seed {seed}: `{name}`");
        for machine in machines {
            let told = of(machine);
            let own: Vec<&String> = texts.iter().filter(|text| told.contains(text)).collect();
            assert!(own.into_iter().eq(&told), "seed {seed}: `{name}`, in another order");
        }
    }
}

/// A topic that was trimmed past what copies share does not say any more what it lacks. Nothing is sent then that
/// may be there, unless somebody says so.
#[test]
fn where_nobody_knows_what_a_topic_lacks_a_person_decides() {
    let category = Category::new("a").unwrap();
    let mut cluster = Cluster::default();
    let mut first = Machine::new(1);
    let say = |machine: &mut Machine, text: &str| {
        let store = open(machine);
        let mut round = Round::default();
        round.add(&Messages { messages: vec![(category.clone(), text.as_bytes().to_vec())] });
        assert!(store.keep(&round.pack())[0].is_empty());
        machine.told.entry(category.clone()).or_default().push(text.to_owned());
    };
    say(&mut first, "shared");
    let mut copy = first.copied();
    say(&mut first, "first's");
    say(&mut first, "first's, too");
    say(&mut copy, "copy's");
    resend(&open(&first), &mut cluster, false).unwrap();
    let entries = cluster.topics[&category].entries.len() as u64;
    assert_eq!(entries, 3);
    // It begins where what is shared ends: that says enough.
    cluster.topics.get_mut(&category).unwrap().first = 2;
    let mut other = copy.copied();
    let came = resend(&open(&other), &mut cluster, false).unwrap();
    assert!(matches!(came[&category], Came::Copied { messages: 1, before: 0, .. }), "{came:?}");
    assert_eq!(cluster.texts(&category), ["shared", "first's", "first's, too", "copy's"]);

    say(&mut other, "other's");
    say(&mut copy, "copy's second");
    cluster.topics.get_mut(&category).unwrap().first = 4;
    let refused = resend(&open(&other), &mut cluster, false).unwrap();
    let Came::Refused(why) = &refused[&category] else { panic!("{refused:?}") };
    assert!(why.contains("--repeat"), "{why}");
    assert_eq!(cluster.texts(&category).len(), 4);
    let came = resend(&open(&other), &mut cluster, true).unwrap();
    assert!(matches!(came[&category], Came::Copied { messages: 3, .. }), "{came:?}");
    let texts = cluster.texts(&category);
    assert_eq!(texts[4..], ["shared", "copy's", "other's"]);
    // One that begins with the same messages has them there by now, and is told from the other one.
    let came = resend(&open(&copy), &mut cluster, true).unwrap();
    assert!(matches!(came[&category], Came::Copied { messages: 1, .. }), "{came:?}");
    assert_eq!(cluster.texts(&category)[7..], ["copy's second"]);
}

/// Whoever names a directory without a spool makes none there.
#[test]
fn a_directory_without_a_spool_is_refused() {
    let disk = SimDisk::new(1);
    let bounds = Bounds {
        bound_bytes: SEGMENTS_MIN * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        drive: Drive::Pump,
    };
    let rng = SeededRng::new(1);
    let open = Store::open_there(Arc::new(disk.clone()), Path::new("/none"), bounds, &rng);
    assert!(open.err().unwrap().message.contains("there is none"));
    assert!(!holdfast_env::Disk::exists(&disk, Path::new("/none")).unwrap());
}
