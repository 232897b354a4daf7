//! Shards: those that were added are opened, and moves of directories between them are finished. A move is
//! begun by whoever asks for it, with one entry; whoever leads proposes the next, as often as it takes:
//! entries name their move, so that one which is late, or comes again, changes nothing. What is next is read
//! from the views, by `holdfast_cluster::moves`.

use super::Keeper;
use super::errands::UnderWay;
use super::rest::Rest;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_cluster::Command;
use holdfast_cluster::moves::{Errand, Unfinished, began_at, unfinished};
use holdfast_env::{planted, sometimes};
use std::collections::{BTreeMap, BTreeSet};

/// Entries that a round proposes of each move: the other housekeeping waits meanwhile.
const ENTRIES_MAX: usize = 256;
/// With fewer left, no directory is held still in that round.
const HOLD_LEFT: usize = 32;
/// Entries behind those for what must not wait.
const URGENT_MAX: usize = 64;
/// How long an entry that was refused is not tried again, at most.
const REST_MS_MAX: u64 = 600_000;

/// What this node remembers of moves; nothing that it could not do without.
#[derive(Default)]
pub(super) struct Moving {
    /// By directory, the freeze of which this node has proposed an entry in its life.
    taking: BTreeMap<String, Index>,
    /// Entries that were refused though the views here did not say that they would be.
    resting: BTreeMap<Errand, Rest>,
    under_way: UnderWay,
}

impl Keeper {
    pub(super) fn open_shards(&mut self, _now_ns: u64) -> Result<()> {
        self.node.open_shards();
        Ok(())
    }

    /// Has the shards do what is next of all that moves. What cannot go on holds up nothing else: what a
    /// shard would refuse is not written (`moves::waiting` tells people of it), what fails all the same is left
    /// alone for the rest of the round, or for longer, and what is not answered is waited for by nobody. Answers
    /// with the first that failed.
    pub(super) fn finish_moves(&mut self, now_ns: u64) -> Result<()> {
        let mut round = Round { now_ns, left: ENTRIES_MAX, tried: BTreeSet::new(), first: Ok(()) };
        // What takes no changes is not left so for a round.
        for urgent in [false, true] {
            if urgent {
                round.left = URGENT_MAX;
            }
            while round.left > 0 {
                let Some(claim) = self.node.leading.shard(0) else { return round.first };
                if self.node.is_behind() || !self.move_on(&mut round, claim, urgent)? {
                    break;
                }
                round.left -= 1;
            }
        }
        round.first
    }

    /// Begins what can be, and takes answers; whether anything came of it.
    fn move_on(&mut self, round: &mut Round, claim: Index, urgent_alone: bool) -> Result<bool> {
        let node = self.node.clone();
        let mut steps = self.next_steps(round, urgent_alone)?;
        if planted!("node.one-slow-topic-stops-all-moves") && !self.moving.under_way.is_none() {
            steps.clear();
        }
        let is_any = !steps.is_empty();
        steps.into_iter().for_each(|step| self.moving.under_way.begin(&node, step));
        if self.moving.under_way.is_none() {
            return Ok(false);
        }
        let answers = self.moving.under_way.answers(&node);
        let is_answered = !answers.is_empty();
        for (step, result) in answers {
            let errand = step.errand();
            match result {
                Ok(()) => {
                    self.moving.resting.remove(&errand);
                    self.went_on(&step, claim);
                }
                Err(e) => {
                    self.put_aside(errand.clone(), round.now_ns, &e);
                    round.tried.insert(errand);
                    round.first = std::mem::replace(&mut round.first, Ok(())).and(Err(e));
                }
            }
        }
        // Where only one is under way that is not answered, there is more to do than to wait for it.
        Ok(is_answered || is_any && !self.moving.under_way.is_none() && round.left > 1)
    }

    /// What is next, but for what waits, rests, or was tried in this round. Where a directory takes no changes
    /// until something is done, that is done alone.
    fn next_steps(&mut self, round: &mut Round, urgent_alone: bool) -> Result<Vec<Unfinished>> {
        let node = self.node.clone();
        // What the log keeps for what frees space is not for names, wherever they come from.
        let has_room = node.takes_names().is_ok();
        let finds_room = |step: &Unfinished| {
            let adds = matches!(step.command, Command::Take { .. } | Command::Step { .. });
            has_room || !adds
        };
        let (can, refused) = node.read_all(|all| {
            let can = |step: &Unfinished| {
                finds_room(step)
                    && (step.check(all).is_ok() || planted!("node.refused-moves-are-written"))
            };
            unfinished(all).into_iter().partition::<Vec<_>, _>(can)
        })?;
        if can.is_empty() && refused.is_empty() && self.moving.under_way.is_none() {
            self.moving.taking.clear();
        }
        let is_left = |errand: &Errand| can.iter().any(|step| step.errand() == *errand);
        self.moving.resting.retain(|errand, _| is_left(errand));
        let Moving { resting, under_way, .. } = &self.moving;
        let is_ready = |step: &Unfinished| {
            let errand = step.errand();
            let rests = resting.get(&errand).is_some_and(|rest| !rest.is_over(round.now_ns));
            !rests && !under_way.has(&errand) && !round.tried.contains(&errand)
        };
        let mut steps: Vec<Unfinished> = can.into_iter().filter(is_ready).collect();
        // Who is held still at the end of a round would be so until the next.
        let holds = |step: &Unfinished| matches!(step.command, Command::Still { still: true, .. });
        steps.retain(|step| round.left > HOLD_LEFT || !holds(step));
        if urgent_alone || steps.iter().any(|step| step.is_urgent) {
            steps.retain(|step| step.is_urgent);
        }
        Ok(steps)
    }

    /// What was decided against rests; what nobody has heard of is tried again in the next round.
    fn put_aside(&mut self, errand: Errand, now_ns: u64, e: &Error) {
        if !matches!(e.kind, Kind::Retry | Kind::Fenced) {
            let rest = self.moving.resting.entry(errand).or_insert(Rest::new(now_ns));
            rest.failed(now_ns, REST_MS_MAX);
        }
    }

    /// Notes what has been done.
    fn went_on(&mut self, step: &Unfinished, claim: Index) {
        let of = match &step.command {
            Command::Take { dir, stamp, part, .. } => Some((dir, stamp.freeze, *part)),
            Command::Step { dir, stamp, step, .. } => Some((dir, stamp.freeze, *step)),
            Command::Depart { dir, freeze, parts } => Some((dir, *freeze, *parts)),
            Command::Go { dir, copy, steps, .. } => Some((dir, *copy, *steps)),
            Command::Arrive { dir, stamp, parts, .. } => Some((dir, stamp.freeze, *parts)),
            _ => None,
        };
        if let Some((dir, freeze, taken)) = of {
            let before = self.moving.taking.insert(dir.clone(), freeze);
            if taken > 0 && before != Some(freeze) {
                sometimes!("a move was resumed by another node");
            }
        }
        match &step.command {
            Command::Arrive { parts, .. } if *parts > 0 => {
                sometimes!("a directory came from another shard with its content");
            }
            Command::Step { step, changes, .. } if *step > 0 && !changes.is_empty() => {
                sometimes!("a directory was copied in several steps");
            }
            Command::Still { still: true, .. } => sometimes!("a directory was held still"),
            Command::Discard { .. } => sometimes!("what was taken of a directory was discarded"),
            _ => {}
        }
        if began_at(step).is_some_and(|number| number < claim) {
            sometimes!("a move was finished by another leader than it began under");
        }
    }
}

/// One round of the housekeeping.
struct Round {
    now_ns: u64,
    /// Times that it looks what is next.
    left: usize,
    /// What failed in it.
    tried: BTreeSet<Errand>,
    first: Result<()>,
}
