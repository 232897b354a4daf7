//! Commands on their way: into the topic, through the fold, and back with what came of them.

use crate::answer;
use crate::command::{Command, Outcome};
use crate::service::{Answer, Blobs};
use holdfast_base::Error;
use holdfast_base::ids::{Index, Sequence, SessionId};
use holdfast_env::{HoldMutex, runtime};
use holdfast_log::{Done, Mode};
use holdfast_view::Request;
use std::sync::{Arc, Mutex};

/// Called once with what came of it, on whatever thread learned that.
type Told<T> = Box<dyn FnOnce(T) + Send>;

/// A command that changes nothing: when it is applied, all before it is.
pub(crate) const BARRIER: Command = Command::ReleaseHold { id: 0 };

/// A request in no session: sessions are for clients that may send a command twice, and the node
/// sends its own once.
fn request(command: &Command) -> Request {
    let (session, none) = (SessionId(0), Sequence(0));
    let (sequence, acknowledged_below, mode) = (none, none, Mode::Synced);
    Request { session, sequence, acknowledged_below, command: command.to_command(), mode }
}

/// Reads what the fold answers as an outcome or a refusal.
fn heard(done: Told<Answer<Outcome>>) -> Done<(Index, Vec<u8>)> {
    Box::new(move |result| done(answer::read_answer(result.map(|(_, bytes)| bytes))))
}

/// Collects the answers to a batch, in the order of its commands, until the last one is there.
struct Answers {
    answers: Vec<Option<Answer<Outcome>>>,
    left: usize,
    done: Option<Told<Vec<Answer<Outcome>>>>,
}

impl Answers {
    fn add(all: &Mutex<Answers>, at: usize, answer: Answer<Outcome>) {
        let (answers, done) = {
            let mut all = all.held();
            all.answers[at] = Some(answer);
            all.left -= 1;
            if all.left > 0 {
                return;
            }
            (std::mem::take(&mut all.answers), all.done.take())
        };
        if let Some(done) = done {
            done(answers.into_iter().flatten().collect());
        }
    }
}

impl Blobs {
    fn send(&self, command: &Command, done: Told<Answer<Outcome>>) {
        self.fold.propose(request(command), heard(done));
    }

    /// Appends a command and waits until it is durable and applied here.
    pub async fn propose(&self, command: &Command) -> Answer<Outcome> {
        if command.adds_names() {
            self.node.takes_names()?;
        }
        let applied = runtime::answer(|done: Told<Answer<Outcome>>| self.send(command, done));
        match applied.await {
            Some(answer) => answer,
            None => Err(Error::retry("name a blob: the node is ending").into()),
        }
    }

    /// Waits until this node has applied every command that was acknowledged anywhere before this
    /// call. Costs an append.
    pub async fn catch_up(&self) -> Answer<()> {
        self.propose(&BARRIER).await.map(|_| ())
    }

    /// Proposes without waiting, and hears nothing of it: for what housekeeping does again should it
    /// be lost.
    pub(crate) fn propose_soon(&self, command: &Command) {
        self.send(command, Box::new(|_| ()));
    }

    /// As [`Blobs::propose`] for several, in one append; one answer for each.
    pub(crate) async fn propose_all(&self, commands: &[Command]) -> Answer<Vec<Answer<Outcome>>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let applied = runtime::answer(|done: Told<Vec<Answer<Outcome>>>| {
            let (left, done) = (commands.len(), Some(done));
            let all = Arc::new(Mutex::new(Answers { answers: vec![None; left], left, done }));
            let one = |(at, command)| {
                let all = all.clone();
                let hear = heard(Box::new(move |answer| Answers::add(&all, at, answer)));
                (request(command), hear)
            };
            self.fold.propose_all(commands.iter().enumerate().map(one).collect(), Mode::Synced);
        });
        let ending = || Error::retry("name blobs: the node is ending").into();
        applied.await.ok_or_else(ending)
    }

    /// As [`Blobs::propose`], but blocks its thread: for those of housekeeping, which serve nobody.
    pub(crate) fn propose_and_wait(&self, command: &Command) -> Answer<Outcome> {
        let outcome = self.node.wait_for(|done| {
            self.send(command, Box::new(move |applied| done(Ok(applied))));
        });
        outcome?
    }
}
