//! Fences and seals on all replicas of a chunk. The log decides lengths; this asks stores what
//! they have and tells them what was decided. Each step may be repeated.

use super::fence::{Decision, FenceRound};
use super::{Answer, CONTROL_MS, Replicator, Target, Wanted};
use holdfast_base::ids::{ChunkId, Generation, StoreId};
use holdfast_base::limits::BLOCK_BYTES;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_chunk::{ChunkKind, ChunkSpec, Done};
use holdfast_env::{HoldMutex, planted};
use holdfast_wire::peer;
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

/// A round of fences, and who waits for what comes of it.
type Fencing = (FenceRound, Option<Done<Decision>>);

fn finish(round: &Mutex<Fencing>, decided: Result<Decision>) {
    let done = round.held().1.take();
    if let Some(done) = done {
        done(decided);
    }
}

impl Replicator {
    /// Fences all replicas whose node is not lost, and answers what to propose. Of a raw chunk, a
    /// replica that says it has more than another one has to show the last of it.
    pub fn fence_replicas(
        self: &Arc<Self>,
        chunk: ChunkId,
        kind: ChunkKind,
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
            let (round, with) = (round.clone(), self.clone());
            let answered: Done<u64> = Box::new(move |length| {
                let mut state = round.held();
                let decided = state.0.answered(store, length);
                drop(state);
                if let Some(decided) = decided {
                    with.decided(chunk, kind, &round, decided);
                }
            });
            self.fence_one(chunk, store, target, answered);
        }
    }

    /// Makes a chunk, empty, that no replica holds, so that fences have something to hold back: its
    /// writer was allocated it, and may be about to make it. `done` when all have answered, be it
    /// that it is there by now.
    pub fn make_to_fence(
        self: &Arc<Self>,
        spec: ChunkSpec,
        replicas: &[StoreId],
        done: Box<dyn FnOnce() + Send>,
    ) {
        let targets = replicas.iter().filter_map(|store| Some((*store, self.target(*store).ok()?)));
        let targets: Vec<(StoreId, Target)> = targets.collect();
        if targets.is_empty() {
            return done();
        }
        let waiting = Arc::new(Mutex::new((targets.len(), Some(done))));
        for (store, target) in targets {
            let waiting = waiting.clone();
            let made: Done<()> = Box::new(move |_| {
                let last = {
                    let mut waiting = waiting.held();
                    waiting.0 -= 1;
                    if waiting.0 == 0 { waiting.1.take() } else { None }
                };
                if let Some(done) = last {
                    done();
                }
            });
            self.create_on(store, &target, spec, made);
        }
    }

    fn fence_one(
        self: &Arc<Self>,
        chunk: ChunkId,
        store: StoreId,
        target: Target,
        answered: Done<u64>,
    ) {
        match target {
            Target::Own(own) => self.workers.run(move || answered(own.fence(chunk))),
            Target::Peer(place) => {
                let fence = peer::Fence { sender: self.directory.sender(), store, chunk };
                let op = peer::OP_PEER_FENCE;
                self.ask(&place.address, op, &fence, None, CONTROL_MS, answered);
            }
        }
    }

    /// Hands over what a round decided, once those that claim more than others have shown it.
    fn decided(
        self: &Arc<Self>,
        chunk: ChunkId,
        kind: ChunkKind,
        round: &Arc<Mutex<Fencing>>,
        decided: Result<Decision>,
    ) {
        let claims = match &decided {
            // Which objects a packed chunk has nobody can ask for without their cookies.
            Ok(decision) if decision.contested && kind == ChunkKind::Raw => decision.clone(),
            _ => return finish(round, decided),
        };
        let (store, length) = (claims.replicas[0], claims.length);
        let offset = (length - 1) / BLOCK_BYTES * BLOCK_BYTES;
        let (generation, bytes) = (Generation(0), (length - offset) as u32);
        let (with, round) = (self.clone(), round.clone());
        let shown = move |shown: Result<Answer>| match shown {
            Ok(_) => finish(&round, Ok(claims)),
            // It says itself that it has no such bytes, or they are not what they should be. Silence,
            // or a store that cannot be read now, proves nothing.
            Err(e) if matches!(e.kind, Kind::Invalid | Kind::NotFound | Kind::Corrupt) => {
                with.not_shown(chunk, kind, &round, (store, length), e);
            }
            Err(e) => finish(&round, Err(e)),
        };
        let wanted = Wanted::Raw { chunk, generation, offset, bytes };
        let with = self.clone();
        self.workers.run(move || with.look_for(store, wanted, Box::new(shown)));
    }

    /// A store did not show what it said that it has. It may have been sealed meanwhile at less, as
    /// another one's seal decided: then it says so when it is asked again, and has not lied.
    fn not_shown(
        self: &Arc<Self>,
        chunk: ChunkId,
        kind: ChunkKind,
        round: &Arc<Mutex<Fencing>>,
        (store, length): (StoreId, u64),
        e: Error,
    ) {
        let target = match self.target(store) {
            Ok(target) => target,
            Err(e) => return finish(round, Err(e)),
        };
        let (with, round) = (self.clone(), round.clone());
        let answered = move |again: Result<u64>| {
            let mut state = round.held();
            let decided = match again {
                Ok(now) if now < length => state.0.corrected(store, now),
                Ok(_) => {
                    let why = format!(
                        "it says that it has {length} bytes, and does not show the last of them: {e}"
                    );
                    with.report_bad(store, chunk, &why);
                    state.0.refuted(store, Error::corrupt(why))
                }
                Err(e) => {
                    drop(state);
                    return finish(&round, Err(e));
                }
            };
            drop(state);
            with.decided(chunk, kind, &round, decided);
        };
        self.fence_one(chunk, store, target, Box::new(answered));
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
                let mut round = round.held();
                let report = &mut round.1;
                match result {
                    Ok(()) => report.sealed.push(store),
                    Err(e) if matches!(e.kind, Kind::Invalid | Kind::NotFound | Kind::Corrupt) => {
                        report.short.push((store, e.message));
                    }
                    Err(e) if planted!("node.silent-replica-dropped") => {
                        report.short.push((store, e.message));
                    }
                    // Also of one that was sealed at another length, which nobody decided.
                    Err(e) if e.is(Reason::SealedOtherwise) => {
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
