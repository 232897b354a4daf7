//! What the stores hold, made to follow what the log decided: seals, switches and replicas that
//! were let go while this node was away; and what is missing here is told.

use super::{Held, Keeper};
use crate::OwnStore;
use holdfast_base::ids::{ChunkId, Generation, Tier};
use holdfast_base::{Kind, Result};
use holdfast_chunk::{ChunkInfo, QUARANTINE_S};
use holdfast_cluster::{Chunk, ChunkKind, ChunkState};
use holdfast_env::planted;
use std::collections::BTreeSet;

impl Keeper {
    /// After a start, before anything is served: seals and generations that the log decided are
    /// carried out; chunks that were open are sealed at their verified length, if this node has
    /// all there is of them; replicas that are missing or short do not count any more.
    pub fn settle(&mut self) -> Result<()> {
        for held in self.held() {
            let (chunk, info) = (held.info.chunk, held.info);
            let known = self
                .node
                .read_chunk(chunk, |view, _| (view.get(chunk).cloned(), view.was_allocated(chunk)));
            let (known, was_allocated) = match known {
                Ok(known) => known,
                // There is no such shard.
                Err(e) if e.kind == Kind::NotFound => (None, false),
                // Of a shard whose view has stopped nothing is known; the others are settled.
                Err(_) if self.node.has_root() => continue,
                Err(e) => return Err(e),
            };
            let Some(known) = known else {
                if was_allocated {
                    self.let_go_again(&held, held.info.generation);
                    continue;
                }
                self.node.report_finding(format!(
                    "store `{}` holds chunk `{chunk}` that the namespace does not know ({} bytes, owner {}); it is kept and not served",
                    held.store_id, info.stored_bytes, info.owner
                ));
                continue;
            };
            let done = self
                .settle_one(&held, &known)
                .and_then(|()| self.settle_old(&held, known.generation));
            if let Err(e) = done {
                let doing = format_args!("settle chunk `{chunk}` after the start");
                self.node.report_failure(doing, &e);
            }
        }
        self.report_missing()?;
        self.end_former_chunks()
    }

    pub(super) fn settle_one(&self, held: &Held, known: &Chunk) -> Result<()> {
        let chunk = held.info.chunk;
        // Behind what the view said: since the round began, while it waited for the log, the store
        // may have got what the seal counts on.
        let info = match planted!("node.settled-by-an-old-look") {
            false => held.store.info(chunk),
            true => Some(held.info),
        };
        let Some(info) = info else { return Ok(()) };
        let counted = known.replicas.contains(&held.store_id);
        if info.damaged && counted {
            let what = "the start found part of it damaged";
            self.node.replicator.report_bad(held.store_id, chunk, what);
        }
        let alone = self.node.replicator.is_alone(&known.replicas);
        if info.state != holdfast_chunk::ReplicaState::Sealed {
            match known.state {
                // A store accepts no more appends to chunks that it held open.
                ChunkState::Open if alone => {
                    self.node.seal(chunk, info.length)?;
                }
                // Others have it, too: whoever leads asks them all.
                ChunkState::Open => return Ok(()),
                _ if info.length < known.length && alone => self.node.report_finding(format!(
                    "chunk `{chunk}` was sealed at {} {}, but only {} of them can be verified; what is left is served",
                    known.length, unit(known.kind), info.length
                )),
                _ if info.length < known.length => {
                    if counted {
                        let (generation, class) = (known.generation, known.durability);
                        self.node.drop_replica(chunk, generation, held.store_id, class);
                    }
                    return Ok(());
                }
                _ => held.store.seal(chunk, known.length)?,
            }
        }
        if let Some(own) = self.node.stores.get(held.store_id) {
            self.node.remove_given_up(own, chunk)?;
        }
        // Who was left out of a switch, or missed it, keeps the old generation until it is unlinked.
        let unfollowed = planted!("node.switch-not-followed");
        if counted && info.generation != known.generation && !unfollowed {
            match self.follow_switch(held, known) {
                // It had it, or it would not count: that file is lost, and what is left is the one
                // before, or one that was computed from it for a switch that has not come. Should
                // this view only be behind a switch, the log refuses.
                Err(e)
                    if matches!(e.kind, Kind::NotFound | Kind::Invalid)
                        && self.is_lost(&info, known) =>
                {
                    let (generation, class) = (known.generation, known.durability);
                    self.node.drop_replica(chunk, generation, held.store_id, class);
                }
                switched => switched?,
            }
        }
        Ok(())
    }

    /// Switches to what the log decided. A file of that number which is not what was decided must
    /// not be served for it: it is set aside, and counts as lost, where there are others to copy.
    fn follow_switch(&self, held: &Held, known: &Chunk) -> Result<()> {
        let (chunk, generation) = (known.id, known.generation);
        if known.replicas.len() > 1
            && self.differs(held, known)?
            && !planted!("node.switch-unverified")
        {
            let until = self.unix_s() + QUARANTINE_S;
            let place = held.store.set_aside(chunk, generation, until)?;
            self.node.report_finding(format!(
                "store `{}` holds chunk `{chunk}` generation `{generation}` with other objects than \
                 the log has switched to: it is kept in `{}` for a day, and made anew from the others",
                held.store_id,
                place.display()
            ));
        }
        held.store.switch(chunk, generation)
    }

    fn differs(&self, held: &Held, known: &Chunk) -> Result<bool> {
        let on_disk = |own: &OwnStore| own.tier == Tier::Disk;
        // What is in memory was computed by this process. Of what was adopted nobody knows.
        if known.digest == 0 || !self.node.stores.get(held.store_id).is_some_and(on_disk) {
            return Ok(false);
        }
        match held.store.digest(known.id, known.generation) {
            Ok(digest) => Ok(digest != known.digest),
            Err(e) if e.kind == Kind::Corrupt => Ok(true),
            // It is not here: the switch says so.
            Err(e) if e.kind == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn is_lost(&self, info: &ChunkInfo, known: &Chunk) -> bool {
        let kept = match info.generation < known.generation {
            true => planted!("node.lost-generation-kept"),
            false => planted!("node.lost-source-kept"),
        };
        known.replicas.len() > 1 && !kept
    }

    /// Old generations that an accepted entry has let go.
    fn settle_old(&self, held: &Held, current: Generation) -> Result<()> {
        let chunk = held.info.chunk;
        for generation in held.store.other_generations(chunk) {
            let named = self.node.read_chunk(chunk, |view, _| {
                view.names_replica(chunk, generation, held.store_id)
            })?;
            // A later one waits for its switch.
            if generation < current && !named {
                self.let_go_again(held, generation);
            }
        }
        Ok(())
    }

    /// An accepted entry has let this replica go, and its file was not removed, for the process
    /// ended: it is set aside, to be removed in a day.
    pub(super) fn let_go_again(&self, held: &Held, generation: Generation) {
        let (chunk, store) = (held.info.chunk, &held.store);
        let until = self.unix_s() + QUARANTINE_S;
        let mut generations = vec![generation];
        if generation == held.info.generation {
            // The current one goes last.
            generations.splice(..0, store.other_generations(chunk));
        }
        for generation in generations {
            if let Err(e) = store.set_aside(chunk, generation, until) {
                self.node.report_finding(format!("set chunk `{chunk}` aside: {e}"));
                return;
            }
        }
        self.node.report_finding(format!(
            "store `{}` held chunk `{chunk}` generation `{generation}`, which an entry had let go before; it is in `quarantine` for a day",
            held.store_id
        ));
    }

    /// What the view says is here and is not: a disk that was replaced, a file that was lost.
    pub(super) fn report_missing(&self) -> Result<()> {
        let unreported = planted!("node.missing-replica-unreported");
        for own in self.node.stores.iter() {
            let here: BTreeSet<ChunkId> = own.store.list().iter().map(|info| info.chunk).collect();
            let missing: Vec<Chunk> = self.node.gather_chunks(|view| {
                let on = view.on(own.id);
                // One without bytes may never have been made.
                let gone = |known: &&Chunk| known.length > 0 && !here.contains(&known.id);
                on.filter(|known| known.is_kept() && !unreported)
                    .filter(gone)
                    .cloned()
                    .collect::<Vec<_>>()
            })?;
            for known in missing {
                self.node.report_finding(format!(
                    "chunk `{}` is missing in `{}`, where the namespace has a replica of it",
                    known.id, own.place
                ));
                if known.replicas.len() > 1 {
                    let (generation, class) = (known.generation, known.durability);
                    self.node.drop_replica(known.id, generation, own.id, class);
                }
            }
        }
        self.node.pump();
        Ok(())
    }

    /// What an earlier process of this node was writing with others: nobody goes on with it.
    fn end_former_chunks(&self) -> Result<()> {
        let former: Vec<ChunkId> = self.node.gather_chunks(|view| {
            let mine = view.open().filter(|known| known.node == self.node.id);
            let shared = mine.filter(|known| !self.node.replicator.is_alone(&known.replicas));
            shared.map(|known| known.id).collect::<Vec<_>>()
        })?;
        for chunk in former {
            let node = self.node.clone();
            let done = move |sealed: Result<u64>| {
                if let Err(e) = sealed {
                    node.report_finding(format!(
                        "seal chunk `{chunk}`, which this node was writing: {e}"
                    ));
                }
            };
            self.node.seal_silent(chunk, Box::new(done));
        }
        self.node.drop_ended()
    }
}

/// What the length of a chunk counts.
fn unit(kind: ChunkKind) -> &'static str {
    match kind {
        ChunkKind::Raw => "bytes",
        ChunkKind::Packed => "objects",
    }
}
