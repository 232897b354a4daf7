//! Files that were begun and that nobody seems to write any more. Their last chunk is sealed first,
//! which loses nothing and gives its reserved space back: a writer that lives goes on in another
//! one. A long time after that, the file itself is ended. Until then it can be salvaged.

use super::Keeper;
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Durability, FileId, Tier};
use holdfast_cluster::{Chunk, ChunkState, Command, Namespace};
use std::collections::BTreeMap;

/// What is seen of a file: its chunks, whether the last one is open, and its acknowledged bytes.
/// While it stays, nobody writes.
type Mark = (usize, bool, u64);

/// What this node saw of unclosed files, and since when each looks like that.
#[derive(Default)]
pub(super) struct Unclosed {
    seen: BTreeMap<FileId, (Mark, u64)>,
    next_ns: u64,
}

impl Keeper {
    /// The node that writes a file's last chunk looks after the file, or the leader where that is
    /// sealed. Counted from the last start: a file is ended too late rather than too early.
    pub(super) fn end_unclosed(&mut self, now_ns: u64) -> Result<()> {
        if now_ns < self.unclosed.next_ns {
            return Ok(());
        }
        let rest_ns = self.options.unclosed_rest_ms * 1_000_000;
        let idle_ns = self.options.unclosed_idle_ms.saturating_mul(1_000_000);
        self.unclosed.next_ns = now_ns + rest_ns.min(idle_ns.max(8)) / 8;
        let node = self.node.clone();
        let files: Vec<(FileId, Vec<Chunk>)> = node.read_all(|all| {
            let chunks = |ids: Vec<ChunkId>| {
                let known = ids.into_iter().filter_map(|id| all.chunk(id).ok()?);
                known.cloned().collect()
            };
            let files = all.iter().flat_map(Namespace::unclosed);
            files.map(|file| (file.file, chunks(file.chunks))).collect()
        })?;
        let before = std::mem::take(&mut self.unclosed.seen);
        for (file, chunks) in files {
            let open = chunks.last().filter(|last| last.state == ChunkState::Open);
            if !open.map_or(node.leads(), |last| last.node == node.id) {
                continue;
            }
            let written = open.map_or(0, |last| node.chunk_length(last));
            let mark: Mark = (chunks.len(), open.is_some(), written);
            let since_ns = match before.get(&file) {
                Some((same, since_ns)) if *same == mark => *since_ns,
                _ => now_ns,
            };
            let still_ns = now_ns - since_ns;
            match open {
                Some(last) if still_ns >= rest_ns => self.end_open(last)?,
                Some(_) => {}
                None if is_lost(&chunks) || (idle_ns > 0 && still_ns >= idle_ns) => {
                    node.propose_and_wait(Command::Abandon { file }, Durability::Durable)?;
                    continue;
                }
                None => {}
            }
            self.unclosed.seen.insert(file, (mark, since_ns));
        }
        Ok(())
    }

    /// Fences first: what is appended meanwhile is refused, or was acknowledged and is kept.
    fn end_open(&self, last: &Chunk) -> Result<()> {
        let node = &self.node;
        if let Some(store) = node.alone(&last.replicas) {
            let length = store.fence(last.id)?;
            node.seal(last.id, length)?;
        } else if node.replicator.open_set(last.id).is_some() {
            node.seal_for_writer(last.id, u64::MAX, Box::new(|_| ()));
        } else {
            node.seal_silent(last.id, Box::new(|_| ()));
        }
        Ok(())
    }
}

/// All that it ever had was in memory that is gone: there is nothing to salvage.
fn is_lost(chunks: &[Chunk]) -> bool {
    let lost = |chunk: &Chunk| chunk.tier == Tier::Dram && chunk.is_lost();
    !chunks.is_empty() && chunks.iter().all(lost)
}
