//! Entries of moves that are under way. Each waits for its own topic alone: one whose log does not answer holds
//! up no other, nor the rest of the housekeeping, for longer than a moment. Knows nothing of what they say.

use crate::Node;
use holdfast_base::ids::Durability;
use holdfast_base::{Error, Result};
use holdfast_chunk::Done;
use holdfast_cluster::Command;
use holdfast_cluster::moves::{Errand, Unfinished};
use holdfast_env::HoldMutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How long a round waits for an answer where none comes.
const WAIT_MS: u64 = 1000;

type Answer = (Errand, Result<()>);

/// What answers come to.
#[derive(Default)]
struct Desk {
    answers: Vec<Answer>,
    /// Who waits for the next.
    waiter: Option<Done<()>>,
}

/// Entries that were begun, until their answers are taken.
#[derive(Default)]
pub(super) struct UnderWay {
    steps: BTreeMap<Errand, Unfinished>,
    /// Held for moments, and while nothing is called.
    desk: Arc<Mutex<Desk>>,
}

/// Where an answer goes, also where nobody gives one.
struct Slip {
    desk: Arc<Mutex<Desk>>,
    errand: Option<Errand>,
}

impl Slip {
    fn answer(&mut self, result: Result<()>) {
        let Some(errand) = self.errand.take() else { return };
        let waiter = {
            let mut desk = self.desk.held();
            desk.answers.push((errand, result));
            desk.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter(Ok(()));
        }
    }
}

impl Drop for Slip {
    fn drop(&mut self) {
        self.answer(Err(Error::retry("wait for an entry: whoever owed its answer has ended")));
    }
}

impl UnderWay {
    pub(super) fn has(&self, errand: &Errand) -> bool {
        self.steps.contains_key(errand)
    }

    pub(super) fn is_none(&self) -> bool {
        self.steps.is_empty()
    }

    /// Has an entry written, behind what it follows from.
    pub(super) fn begin(&mut self, node: &Arc<Node>, step: Unfinished) {
        let errand = step.errand();
        let mut slip = Slip { desk: self.desk.clone(), errand: Some(errand.clone()) };
        let (shard, command, durability) = (step.shard, step.command.clone(), step.durability());
        let behind = step.behind;
        self.steps.insert(errand, step);
        let writes = node.clone();
        let write = move |synced: Result<_>| match synced {
            Ok(_) => writes.command(
                shard,
                &command,
                durability,
                Box::new(move |result| slip.answer(result.map(drop))),
            ),
            Err(e) => slip.answer(Err(e)),
        };
        match behind {
            // A synced entry syncs those before it: a power cut must not take what this follows from, and leave
            // this.
            Some(behind) => {
                let nothing = Command::Forget { budget: 0 };
                node.command(
                    behind,
                    &nothing,
                    Durability::Durable,
                    Box::new(|o| write(o.map(drop))),
                );
            }
            None => write(Ok(())),
        }
    }

    /// The answers that have come; where none has, it waits for the first, but not for long.
    pub(super) fn answers(&mut self, node: &Node) -> Vec<(Unfinished, Result<()>)> {
        let wait = |done: Done<()>| {
            let mut desk = self.desk.held();
            match desk.answers.is_empty() {
                true => {
                    desk.waiter = Some(done);
                    drop(desk);
                    let late = self.desk.clone();
                    let over = move || {
                        let waiter = late.held().waiter.take();
                        waiter.into_iter().for_each(|waiter| waiter(Ok(())));
                    };
                    node.machine.peers.after(WAIT_MS, Box::new(over));
                }
                false => {
                    drop(desk);
                    done(Ok(()));
                }
            }
        };
        // A node that ends: nobody waits any more.
        let _ = node.wait_for(wait);
        let answers = std::mem::take(&mut self.desk.held().answers);
        let known = |(errand, result)| Some((self.steps.remove(&errand)?, result));
        answers.into_iter().filter_map(known).collect()
    }
}
