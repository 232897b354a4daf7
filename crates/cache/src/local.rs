//! One client that talks to a cache without sockets, in its caller's thread: for tests, for
//! fuzzing, and for counting the instructions of the path that every request takes.

use crate::engine::Engine;
use crate::out::Out;
use crate::session::{Batch, Session, Wants};
use crate::settings::{Settings, Shared};
use crate::store::Store;
use holdfast_base::{Error, Result};
use holdfast_env::Clock;
use holdfast_env::arena::SLACK_BYTES;
use holdfast_env::poll::Waker;
use std::mem::{replace, take};
use std::sync::Arc;

pub struct Local {
    engine: Engine,
    session: Session,
    batch: Batch,
    out: Out,
    /// Given and not used: half a command; with slack behind it while it is served.
    input: Vec<u8>,
    lives: bool,
}

impl Local {
    /// A cache of its own, whose hash does not differ from run to run.
    pub fn new(settings: Settings, clock: Arc<dyn Clock>) -> Result<Local> {
        let store = Store::new(settings.memory_bytes, 1, settings.evicts, 1)?;
        let writer = store.writer(0);
        let waker = Waker::new().map_err(|e| Error::from(e).context("make an event"))?;
        let shared = Arc::new(Shared::new(settings, clock, waker)?);
        shared.tick(&store);
        let engine = Engine { store: Arc::new(store), shared, writer, scratch: Vec::new() };
        Ok(Local {
            engine,
            session: Session::default(),
            batch: Batch::default(),
            out: Out::new(),
            input: Vec::new(),
            lives: true,
        })
    }

    /// Says something; `answer` is told all that comes back, in parts. False once the cache has
    /// hung up.
    pub fn say(&mut self, bytes: &[u8], mut answer: impl FnMut(&[u8])) -> bool {
        self.input.extend_from_slice(bytes);
        let (len, mut at) = (self.input.len(), 0);
        self.input.resize(len + SLACK_BYTES, 0);
        while self.lives {
            let (engine, input) = (&mut self.engine, (&self.input[at..], len - at));
            let (used, wants) = self.session.consume(engine, &mut self.batch, input, &mut self.out);
            at += used;
            answer(self.out.as_slice());
            self.out.clear();
            match wants {
                Wants::More => break,
                Wants::Drain => {}
                Wants::Close => self.lives = false,
            }
        }
        self.input.truncate(len);
        self.input.drain(..at);
        self.lives
    }

    /// Says something as another client of the same cache, who comes, is served, and goes.
    pub fn say_as_another(&mut self, bytes: &[u8], answer: impl FnMut(&[u8])) -> bool {
        let first =
            (take(&mut self.session), take(&mut self.input), replace(&mut self.lives, true));
        let lives = self.say(bytes, answer);
        take(&mut self.session).abandon(&mut self.engine);
        (self.session, self.input, self.lives) = first;
        lives
    }

    /// What is kept of commands that are not complete.
    pub fn kept_bytes(&self) -> usize {
        self.input.len()
    }
}
