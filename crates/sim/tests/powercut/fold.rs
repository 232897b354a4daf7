//! The fold on the log: its state is what its entries say, a request that is sent again gets its
//! first answer, and snapshots never hold what the log has lost, nor miss what it has trimmed.

use crate::common::{Answer, Outcome, below, ensure, powered};
use crate::log::open;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};
use holdfast_env::SeededRng;
use holdfast_log::{Log, Mode};
use holdfast_sim::SimDisk;
use holdfast_sim::powercut::{self, CutPlan, Layer, Life, Seen};
use holdfast_view::{Applied, Context, Fold, FoldOptions, Request, SnapshotStore, View};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

const TOPIC: &str = "sums";
const KEYS: u64 = 5;
/// A sum does not grow past this: the refusal is an answer that must be remembered, too.
const SUM_MAX: u64 = 500;

/// Adds to a few sums; the answer is the new sum, so that nothing may be applied twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums(BTreeMap<u64, u64>);

impl View for Sums {
    const NAME: &'static str = "sums";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> Sums {
        Sums::default()
    }

    fn apply(&mut self, _: Index, command: &[u8]) -> Applied {
        let mut reader = Reader::new(command);
        let (Ok(key), Ok(add)) = (u64::decode(&mut reader), u64::decode(&mut reader)) else {
            return Applied::Refused(Error::invalid("no command"));
        };
        let sum = self.0.entry(key).or_default();
        if *sum + add > SUM_MAX {
            return Applied::Refused(Error::full("the sum is large enough"));
        }
        *sum += add;
        Applied::Ok(sum.to_bytes())
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&(self.0.len() as u32));
        for (key, sum) in &self.0 {
            out.put(key);
            out.put(sum);
        }
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<Sums> {
        let mut sums = BTreeMap::new();
        for _ in 0..source.get::<u32>()? {
            sums.insert(source.get()?, source.get()?);
        }
        Ok(Sums(sums))
    }
}

#[derive(Clone, Copy)]
enum Entry {
    Claim,
    OpenSession,
    Add { session: u64, sequence: u64, key: u64, add: u64 },
}

/// What an entry answers: the sum, or that it was refused.
type Reply = Option<u64>;

#[derive(Clone, Default)]
pub struct Model {
    /// From index 1 on.
    entries: Vec<Entry>,
    durable: u64,
    written: u64,
}

#[derive(Default)]
struct Replay {
    sums: Sums,
    answers: BTreeMap<(u64, u64), Reply>,
    last: Reply,
}

impl Model {
    /// What the first `count` entries make, by the plainest code there is.
    fn replay(&self, count: u64) -> Replay {
        let mut replay = Replay::default();
        for entry in &self.entries[..count as usize] {
            let Entry::Add { session, sequence, key, add } = *entry else { continue };
            let known = replay.answers.get(&(session, sequence)).copied();
            replay.last = known.unwrap_or_else(|| {
                let sum = replay.sums.0.entry(key).or_default();
                (*sum + add <= SUM_MAX).then(|| {
                    *sum += add;
                    *sum
                })
            });
            replay.answers.insert((session, sequence), replay.last);
        }
        replay
    }

    fn sessions(&self) -> Vec<u64> {
        let entries = (1..).zip(&self.entries);
        entries.filter(|(_, e)| matches!(e, Entry::OpenSession)).map(|(i, _)| i).collect()
    }
}

pub struct FoldLayer;

fn snapshots(disk: &SimDisk) -> SnapshotStore {
    SnapshotStore {
        disk: Arc::new(disk.clone()),
        directory: PathBuf::from("/snapshots").join(TOPIC),
    }
}

impl Layer for FoldLayer {
    type Model = Model;

    fn live(&self, disk: &SimDisk, model: &mut Model, life: Life, seen: &mut Seen) -> Outcome<()> {
        live(false, disk, model, life, seen)
    }

    fn power_was_cut(&self, model: &mut Model) {
        model.written = model.durable;
    }
}

/// A member of a cluster, on the node that hosts the log.
struct MemberLayer;

impl Layer for MemberLayer {
    type Model = Model;

    fn live(&self, disk: &SimDisk, model: &mut Model, life: Life, seen: &mut Seen) -> Outcome<()> {
        live(true, disk, model, life, seen)
    }

    fn power_was_cut(&self, model: &mut Model) {
        model.written = model.durable;
    }
}

fn live(
    member: bool,
    disk: &SimDisk,
    model: &mut Model,
    life: Life,
    seen: &mut Seen,
) -> Outcome<()> {
    let log = Arc::new(powered!(disk, "open the log", open(disk)));
    if log.topics().iter().any(|topic| topic == TOPIC) {
        let info = powered!(disk, "look at the log", log.info(TOPIC));
        let there = info.next.0 - 1;
        let (least, most) = (model.durable.max(model.written), model.entries.len() as u64);
        ensure((least..=most).contains(&there), || {
            format!("{there} entries, {least} acknowledged, {most} appended")
        })?;
        model.entries.truncate(there as usize);
        (model.durable, model.written) = (there, there);
    } else {
        ensure(model.durable == 0, || "the topic is gone".into())?;
        model.entries.clear();
    }
    let options = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
    let fold = if member {
        Fold::<Sums>::open_member(log.clone(), TOPIC, snapshots(disk), options)
    } else {
        model.entries.push(Entry::Claim);
        Fold::<Sums>::open_as_leader(log.clone(), TOPIC, snapshots(disk), options)
    };
    let fold = powered!(disk, "open the fold", fold);
    model.durable = model.entries.len() as u64;
    model.written = model.durable;
    let stopped = fold.status().stopped.filter(|_| !disk.crashed());
    ensure(stopped.is_none(), || format!("the fold has stopped: {stopped:?}"))?;
    check(&fold, model, seen)?;
    let mut world = World { disk, log: &log, fold: &fold, rng: life.rng() };
    for _ in 0..life.steps {
        match below(&world.rng, 12) {
            0 if !model.entries.is_empty() => {
                let taken = powered!(disk, "take a snapshot", fold.snapshot_now());
                model.durable = model.durable.max(taken.0);
                model.written = model.written.max(taken.0);
            }
            1 | 2 => powered!(disk, "send again", world.send_again(model, seen)?),
            _ => powered!(disk, "add", world.add(model)?),
        }
    }
    check(&fold, model, seen)
}

fn check(fold: &Fold<Sums>, model: &Model, seen: &mut Seen) -> Outcome<()> {
    let count = model.entries.len() as u64;
    let status = fold.status();
    if status.applied.0 != count {
        // The power went between an append and its answer.
        return Ok(());
    }
    seen.sometimes(status.snapshot.is_some_and(|i| i.0 < count), "snapshot boot");
    let reports = status.reports;
    ensure(reports.is_empty(), || format!("snapshots were passed over: {reports:?}"))?;
    let replay = model.replay(count);
    let state = fold.read(|view, _| view.clone()).map_err(|e| e.message)?;
    let touched = |sums: &Sums| -> Vec<(u64, u64)> {
        sums.0.iter().filter(|(_, sum)| **sum > 0).map(|(k, s)| (*k, *s)).collect()
    };
    ensure(touched(&state) == touched(&replay.sums), || {
        format!("the fold has {state:?}, its entries say {:?}", replay.sums)
    })
}

struct World<'a> {
    disk: &'a SimDisk,
    log: &'a holdfast_log::EmbeddedLog,
    fold: &'a Fold<Sums>,
    rng: SeededRng,
}

impl World<'_> {
    fn add(&mut self, model: &mut Model) -> Outcome<Result<()>> {
        let sessions = model.sessions();
        if sessions.len() < 2 {
            model.entries.push(Entry::OpenSession);
            let (answer, done) = Answer::new();
            self.fold.open_session(Mode::Synced, done);
            while self.log.pump() {}
            let opened = answer.get();
            return self.acknowledged(model, Mode::Synced, opened.map(|id| id.0));
        }
        let session = sessions[below(&self.rng, sessions.len() as u64) as usize];
        let used = model.entries.iter().filter_map(|e| match e {
            Entry::Add { session: s, sequence, .. } if *s == session => Some(*sequence),
            _ => None,
        });
        let sequence = used.max().unwrap_or(0) + 1;
        let (key, add) = (below(&self.rng, KEYS), 1 + below(&self.rng, 90));
        self.send(model, Entry::Add { session, sequence, key, add })
    }

    /// The client got no answer, or does not remember it.
    fn send_again(&mut self, model: &mut Model, seen: &mut Seen) -> Outcome<Result<()>> {
        let adds: Vec<Entry> =
            model.entries.iter().filter(|e| matches!(e, Entry::Add { .. })).copied().collect();
        if adds.is_empty() {
            return Ok(Ok(()));
        }
        let again = adds[below(&self.rng, adds.len() as u64) as usize];
        seen.sometimes(true, "session dedupe");
        self.send(model, again)
    }

    fn send(&mut self, model: &mut Model, entry: Entry) -> Outcome<Result<()>> {
        let Entry::Add { session, sequence, key, add } = entry else { return Ok(Ok(())) };
        let mode = if below(&self.rng, 2) == 0 { Mode::Synced } else { Mode::Ordered };
        let mut command = key.to_bytes();
        add.encode(&mut command);
        let request = Request {
            session: SessionId(session),
            sequence: Sequence(sequence),
            acknowledged_below: Sequence(0),
            command,
            mode,
        };
        model.entries.push(entry);
        let (answer, done) = Answer::new();
        self.fold.propose(request, done);
        while self.log.pump() {}
        let answer = answer.get();
        let wanted = model.replay(model.entries.len() as u64).last;
        match answer {
            Ok((index, bytes)) => {
                let sum = u64::from_bytes(&bytes).ok();
                ensure(sum == wanted, || format!("answered {sum:?} where {wanted:?} is right"))?;
                self.acknowledged(model, mode, Ok(index.0))
            }
            Err(_) if !self.disk.crashed() && wanted.is_none() => {
                let index = model.entries.len() as u64;
                self.acknowledged(model, mode, Ok(index))
            }
            Err(e) => Ok(self.acknowledged(model, mode, Err(e))?),
        }
    }

    fn acknowledged(
        &self,
        model: &mut Model,
        mode: Mode,
        index: Result<u64>,
    ) -> Outcome<Result<()>> {
        let index = match index {
            Ok(index) => index,
            Err(e) => return Ok(Err(e)),
        };
        let end = model.entries.len() as u64;
        ensure(index == end, || format!("entry {index} where {end} was appended"))?;
        model.written = end;
        if mode == Mode::Synced {
            model.durable = end;
        }
        Ok(Ok(()))
    }
}

pub fn plan(seed: u64, steps: u64, stride: u64) -> CutPlan {
    CutPlan { seed, steps, stride, outcomes: 4 }
}

#[test]
fn the_fold_keeps_its_promises_wherever_the_power_is_cut() {
    let mut seen = Seen::default();
    let mut outcomes = 0;
    for seed in 0..4 {
        outcomes += powercut::explore(&FoldLayer, plan(seed, 14, 1), &mut seen).unwrap();
    }
    for seed in 100..106 {
        outcomes += powercut::explore(&FoldLayer, plan(seed, 60, 23), &mut seen).unwrap();
    }
    println!("fold: {outcomes} outcomes");
    seen.assert_all(&["snapshot boot", "session dedupe", "second cut"]);
}

#[test]
fn a_member_keeps_them_as_well() {
    let mut seen = Seen::default();
    for seed in 200..202 {
        powercut::explore(&MemberLayer, plan(seed, 14, 1), &mut seen).unwrap();
    }
    for seed in 300..304 {
        powercut::explore(&MemberLayer, plan(seed, 60, 23), &mut seen).unwrap();
    }
    seen.assert_all(&["snapshot boot", "session dedupe", "second cut"]);
}

#[test]
fn no_sync_of_the_snapshots_can_be_left_out() {
    let plans: Vec<CutPlan> = (0..20).map(|seed| plan(seed, 24, 5)).collect();
    crate::common::prove_sites(&FoldLayer, "snapshot.", &plans);
}
