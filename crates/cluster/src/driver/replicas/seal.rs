//! Fences and seals on all replicas of a chunk. The log decides lengths; this asks stores what
//! they have and tells them what was decided. Each step may be repeated.

use super::fence::{Decision, FenceRound};
use super::{CONTROL_MS, Replicator, Target};
use holdfast_base::ids::{ChunkId, StoreId};
use holdfast_base::{Kind, Result};
use holdfast_chunk::Done;
use holdfast_client::wire::peer;
use std::sync::{Arc, Mutex};

/// What a round of seals came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealReport {
    pub sealed: Vec<StoreId>,
    /// They do not hold it, or less of it: to be dropped from the chunk's replicas, with why.
    pub short: Vec<(StoreId, String)>,
    /// They did not answer, and follow when they look at the view.
    pub silent: Vec<StoreId>,
}

impl Replicator {
    /// Fences all replicas whose node is not lost, and answers what to propose.
    pub fn fence_replicas(
        self: &Arc<Self>,
        chunk: ChunkId,
        replicas: &[StoreId],
        done: Done<Decision>,
    ) {
        let targets: Vec<(StoreId, Target)> = replicas
            .iter()
            .filter_map(|&store| Some((store, self.target(store).ok()?)))
            .filter(|(_, target)| !matches!(target, Target::Peer(place) if place.lost))
            .collect();
        let mut round = FenceRound::new(chunk, targets.len());
        if targets.is_empty() {
            let refused = round.answered(StoreId(0), Err(super::Error::retry("nobody to ask")));
            return done(refused.unwrap_or_else(|| Err(super::Error::bug("an endless round"))));
        }
        let round = Arc::new(Mutex::new((round, Some(done))));
        for (store, target) in targets {
            let round = round.clone();
            let answered: Done<u64> = Box::new(move |length| {
                let mut round = round.lock().expect("no holder of this lock panics");
                let decided = round.0.answered(store, length);
                let done = decided.and_then(|decided| Some((round.1.take()?, decided)));
                drop(round);
                if let Some((done, decided)) = done {
                    done(decided);
                }
            });
            match target {
                Target::Own(own) => self.workers.run(move || answered(own.fence(chunk))),
                Target::Peer(place) => {
                    let fence = peer::Fence { sender: self.directory.sender(), store, chunk };
                    let op = peer::OP_PEER_FENCE;
                    self.ask(&place.address, op, &fence, None, CONTROL_MS, answered);
                }
            }
        }
    }

    /// Tells all `replicas` the length that the log decided.
    pub fn seal_replicas(
        self: &Arc<Self>,
        chunk: ChunkId,
        length: u64,
        replicas: &[StoreId],
        done: impl FnOnce(SealReport) + Send + 'static,
    ) {
        if replicas.is_empty() {
            return done(SealReport::default());
        }
        let round = Arc::new(Mutex::new((replicas.len(), SealReport::default(), Some(done))));
        for &store in replicas {
            let round = round.clone();
            let answered: Done<()> = Box::new(move |result: Result<()>| {
                let mut round = round.lock().expect("no holder of this lock panics");
                let report = &mut round.1;
                match result {
                    Ok(()) => report.sealed.push(store),
                    Err(e) if matches!(e.kind, Kind::Invalid | Kind::NotFound | Kind::Corrupt) => {
                        report.short.push((store, e.message));
                    }
                    // Also of one that was sealed at another length, which nobody decided.
                    Err(e) if e.kind == Kind::Fenced && e.message.contains("sealed at") => {
                        report.short.push((store, e.message));
                    }
                    Err(_) => report.silent.push(store),
                }
                round.0 -= 1;
                let last = round.0 == 0;
                let done = if last { round.2.take() } else { None };
                let report = std::mem::take(&mut round.1);
                if !last {
                    round.1 = report;
                    return;
                }
                drop(round);
                if let Some(done) = done {
                    done(report);
                }
            });
            match self.target(store) {
                Ok(Target::Own(own)) => {
                    self.workers.run(move || answered(own.seal(chunk, length)));
                }
                Ok(Target::Peer(place)) => {
                    let seal = peer::Seal { sender: self.directory.sender(), store, chunk, length };
                    let op = peer::OP_PEER_SEAL;
                    self.ask(&place.address, op, &seal, None, CONTROL_MS, answered);
                }
                Err(e) => answered(Err(e)),
            }
        }
    }
}
