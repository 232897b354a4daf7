//! Shards: those that were added are opened, and moves of directories between them are finished. A move is
//! begun by whoever asks for it, with one entry; whoever leads proposes the next, as often as it takes:
//! entries name their move, so that one which is late, or comes again, changes nothing. What is next is read
//! from the views, by `holdfast_cluster::moves`.

use super::Keeper;
use holdfast_base::Result;
use holdfast_base::ids::{Durability, Index};
use holdfast_cluster::Command;
use holdfast_cluster::moves::{Unfinished, began_at, unfinished};
use holdfast_env::sometimes;
use std::collections::BTreeMap;

/// Entries that a round proposes of each move: the other housekeeping waits meanwhile.
const ENTRIES_MAX: usize = 256;

/// By directory, the freeze of which this node has proposed an entry in its life.
pub(super) type Taking = BTreeMap<String, Index>;

impl Keeper {
    pub(super) fn open_shards(&mut self, _now_ns: u64) -> Result<()> {
        self.node.open_shards()
    }

    /// Has the shards do what is next of all that moves. What cannot go on holds up nothing else.
    pub(super) fn finish_moves(&mut self, _now_ns: u64) -> Result<()> {
        let node = self.node.clone();
        for _ in 0..ENTRIES_MAX {
            let Some(claim) = node.leading.shard(0) else { return Ok(()) };
            if node.is_behind() {
                return Ok(());
            }
            let left = node.read_all(unfinished)?;
            if left.is_empty() {
                self.taking.clear();
                return Ok(());
            }
            let mut first = Ok(());
            for step in left {
                let done = self.carry_on(&step, claim);
                first = first.and(done);
            }
            first?;
        }
        Ok(())
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
            let before = self.taking.insert(dir.clone(), freeze);
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
