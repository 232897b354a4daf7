//! Shards: those that were added are opened, and moves of directories between them are finished. A move is
//! begun by whoever asks for it, with one entry; whoever leads proposes the next, as often as it takes:
//! entries name their move, so that one which is late, or comes again, changes nothing. What is next is read
//! from the views, by `holdfast_cluster::moves`.

use super::Keeper;
use super::rest::Rest;
use holdfast_base::ids::{Durability, Index};
use holdfast_base::{Error, Kind, Result};
use holdfast_cluster::Command;
use holdfast_cluster::moves::{Errand, Unfinished, began_at, unfinished};
use holdfast_env::{planted, sometimes};
use std::collections::{BTreeMap, BTreeSet};

/// Entries that a round proposes of each move: the other housekeeping waits meanwhile.
const ENTRIES_MAX: usize = 256;
/// How long an entry that was refused is not tried again, at most.
const REST_MS_MAX: u64 = 600_000;

/// What this node remembers of moves; nothing that it could not do without.
#[derive(Default)]
pub(super) struct Moving {
    /// By directory, the freeze of which this node has proposed an entry in its life.
    taking: BTreeMap<String, Index>,
    /// Entries that were refused though the views here did not say that they would be.
    resting: BTreeMap<Errand, Rest>,
}

impl Keeper {
    pub(super) fn open_shards(&mut self, _now_ns: u64) -> Result<()> {
        self.node.open_shards()
    }

    /// Has the shards do what is next of all that moves. What cannot go on holds up nothing else: what a
    /// shard would refuse is not written (`moves::waiting` tells people of it), and what fails all the same
    /// is left alone for the rest of the round, or for longer. Answers with the first that failed.
    pub(super) fn finish_moves(&mut self, now_ns: u64) -> Result<()> {
        let node = self.node.clone();
        let mut failed: BTreeSet<Errand> = BTreeSet::new();
        let mut first = Ok(());
        for _ in 0..ENTRIES_MAX {
            let Some(claim) = node.leading.shard(0) else { break };
            if node.is_behind() {
                break;
            }
            // What the log keeps for what frees space is not for names, wherever they come from.
            let has_room = node.takes_names().is_ok();
            let (left, refused) = node.read_all(|all| {
                let finds_room =
                    |step: &Unfinished| has_room || !matches!(step.command, Command::Take { .. });
                let can = |step: &Unfinished| {
                    finds_room(step)
                        && (step.check(all).is_ok() || planted!("node.refused-moves-are-written"))
                };
                unfinished(all).into_iter().partition::<Vec<_>, _>(can)
            })?;
            if left.is_empty() && refused.is_empty() {
                self.moving.taking.clear();
            }
            let is_left = |errand: &Errand| left.iter().any(|step| step.errand() == *errand);
            self.moving.resting.retain(|errand, _| is_left(errand));
            let mut went_on = false;
            for step in left {
                let errand = step.errand();
                let rest = self.moving.resting.get(&errand);
                if failed.contains(&errand) || rest.is_some_and(|rest| !rest.is_over(now_ns)) {
                    continue;
                }
                match self.carry_on(&step, claim) {
                    Ok(()) => {
                        went_on = true;
                        self.moving.resting.remove(&errand);
                    }
                    Err(e) => {
                        self.put_aside(errand.clone(), now_ns, &e);
                        failed.insert(errand);
                        first = first.and(Err(e));
                    }
                }
            }
            if !went_on {
                break;
            }
        }
        first
    }

    /// What was decided against rests; what nobody has heard of is tried again in the next round.
    fn put_aside(&mut self, errand: Errand, now_ns: u64, e: &Error) {
        if !matches!(e.kind, Kind::Retry | Kind::Fenced) {
            let rest = self.moving.resting.entry(errand).or_insert(Rest::new(now_ns));
            rest.failed(now_ns, REST_MS_MAX);
        }
    }

    fn carry_on(&mut self, step: &Unfinished, claim: Index) -> Result<()> {
        let node = &self.node;
        if let Some(behind) = step.behind {
            // A synced entry syncs those before it: a power cut must not take what this follows from, and
            // leave this.
            let nothing = Command::Forget { budget: 0 };
            node.command_and_wait(behind, &nothing, Durability::Durable)?;
        }
        node.command_and_wait(step.shard, &step.command, step.durability())?;
        let of = match &step.command {
            Command::Take { dir, stamp, part, .. } => Some((dir, stamp.freeze, *part)),
            Command::Depart { dir, freeze, parts } => Some((dir, *freeze, *parts)),
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
            Command::Own { .. } => sometimes!("a directory came from another shard"),
            Command::Arrive { parts, .. } if *parts > 0 => {
                sometimes!("a directory came from another shard with its content");
            }
            Command::Discard { .. } => sometimes!("what was taken of a directory was discarded"),
            _ => {}
        }
        if began_at(step).is_some_and(|number| number < claim) {
            sometimes!("a move was finished by another leader than it began under");
        }
        Ok(())
    }
}
