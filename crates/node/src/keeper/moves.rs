//! Shards: those that were added are opened, and moves of directories between them are finished. A move is
//! begun by whoever asks for it, with one entry; whoever leads proposes the next, as often as it takes:
//! entries name their move, so that one which is late, or comes again, changes nothing.

use super::Keeper;
use holdfast_base::Result;
use holdfast_base::ids::Durability;
use holdfast_cluster::Command;
use holdfast_cluster::borders::{Unfinished, unfinished};
use holdfast_env::sometimes;

impl Keeper {
    pub(super) fn open_shards(&mut self, _now_ns: u64) -> Result<()> {
        self.node.open_shards()
    }

    /// Has the shard that a directory goes to take it.
    pub(super) fn finish_moves(&mut self, _now_ns: u64) -> Result<()> {
        let node = &self.node;
        let Some(claim) = node.leading.shard(0) else { return Ok(()) };
        if node.is_behind() {
            return Ok(());
        }
        for Unfinished { shard, name, number, attributes } in node.read_all(unfinished)? {
            let own = Command::Own { dir: format!("/{name}"), number, attributes };
            node.command_and_wait(shard, &own, Durability::Durable)?;
            sometimes!("a directory came from another shard");
            if number < claim {
                sometimes!("a move was finished by another leader than it began under");
            }
        }
        Ok(())
    }
}
