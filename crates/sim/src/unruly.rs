//! A log that keeps what every engine promises, and nothing beyond: it leaves gaps, loses the answer of
//! an append that it kept, shows one that it refused seconds later, writes entries twice, is slow for one
//! topic, fails over. Entries lie in an embedded log, and so do gaps, as entries that nobody is shown:
//! indices are the same on both sides. Decides by a generator, so a seed says it all.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Result};
use holdfast_env::net::Peers;
use holdfast_env::{HoldMutex, Rng, SeededRng, sometimes};
use holdfast_log::{Done, EmbeddedLog, Info, Log, Mode, Scope};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// What lies in the place of an entry that is none.
const GAP: &[u8] = b"\xffno entry has this index";

/// An embedded log, of which some entries are gaps.
pub struct Gapped(pub Arc<EmbeddedLog>);

impl Gapped {
    fn tail_past_gaps(log: Arc<EmbeddedLog>, topic: String, from: Index, wake: Done<()>) {
        let (behind, name) = (log.clone(), topic.clone());
        let there = move |there: Result<()>| {
            let page = there.and_then(|()| behind.read(&name, from, 1, 1, Scope::Durable));
            match page.as_ref().map(|page| page.first()) {
                Ok(Some((index, entry))) if entry == GAP => {
                    Gapped::tail_past_gaps(behind, name, Index(index.0 + 1), wake);
                }
                // Whoever reads from there hears what is wrong.
                _ => wake(page.map(drop)),
            }
        };
        log.tail(&topic, from, Box::new(there));
    }
}

impl Log for Gapped {
    fn create(&self, topic: &str) -> Result<()> {
        self.0.create(topic)
    }

    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>) {
        self.0.append(topic, entries, mode, done);
    }

    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        let mut from = from;
        loop {
            let mut page = self.0.read(topic, from, entries_max, bytes_max, scope)?;
            let Some((last, _)) = page.last() else { return Ok(page) };
            from = Index(last.0 + 1);
            page.retain(|(_, entry)| entry != GAP);
            if !page.is_empty() {
                return Ok(page);
            }
        }
    }

    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        Gapped::tail_past_gaps(self.0.clone(), topic.to_owned(), from, wake);
    }

    fn sync(&self, topic: &str) -> Result<()> {
        self.0.sync(topic)
    }

    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        self.0.trim(topic, before)
    }

    fn info(&self, topic: &str) -> Result<Info> {
        let info = self.0.info(topic)?;
        let behind_an_entry = |mut next: Index| -> Result<Index> {
            while next > info.first {
                let last = Index(next.0 - 1);
                let page = self.0.read(topic, last, 1, 1, Scope::Written)?;
                if page.first().is_none_or(|(_, entry)| entry != GAP) {
                    break;
                }
                next = last;
            }
            Ok(next)
        };
        Ok(Info {
            next: behind_an_entry(info.next)?,
            durable: behind_an_entry(info.durable)?,
            ..info
        })
    }

    fn topics(&self) -> Vec<String> {
        self.0.topics()
    }
}

/// The log of a simulated node.
pub struct UnrulyLog(Arc<Inner>);

struct Inner {
    log: Gapped,
    peers: Arc<dyn Peers>,
    rng: SeededRng,
    /// Never held while anything is called.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    fails_over: bool,
    /// Topics that are slow, and what waits behind that.
    slow: BTreeMap<String, VecDeque<Append>>,
}

struct Append {
    topic: String,
    entries: Vec<Vec<u8>>,
    mode: Mode,
    done: Done<Indices>,
}

/// What becomes of an append, in this order of a thousand.
enum Fate {
    FailsOver,
    LosesItsAnswer,
    AppearsLater,
    AppearsTwice,
    IsSlow,
    None,
}

impl UnrulyLog {
    /// Of what `log` keeps, for as long as `peers` count time.
    pub fn new(log: Arc<EmbeddedLog>, peers: Arc<dyn Peers>, rng: SeededRng) -> UnrulyLog {
        let inner = Inner { log: Gapped(log), peers, rng, state: Mutex::default() };
        UnrulyLog(Arc::new(inner))
    }
}

/// Said of each append of which nobody is told what became of it.
pub const UNKNOWN: &str = "whether it was kept is unknown";

fn unknown(topic: &str, why: &str) -> Error {
    Error::retry(format!("append to topic `{topic}`: {why}: {UNKNOWN}, ask again"))
}

impl Inner {
    fn below(&self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn after(self: &Arc<Self>, ms: u64, then: impl FnOnce(&Arc<Inner>) + Send + 'static) {
        let weak = Arc::downgrade(self);
        let then = move || {
            if let Some(inner) = weak.upgrade() {
                then(&inner);
            }
        };
        self.peers.after(ms, Box::new(then));
    }

    fn fate(&self) -> Fate {
        match self.below(1000) {
            0..3 => Fate::FailsOver,
            3..18 => Fate::LosesItsAnswer,
            18..28 => Fate::AppearsLater,
            28..43 => Fate::AppearsTwice,
            43..50 => Fate::IsSlow,
            _ => Fate::None,
        }
    }

    fn append(self: &Arc<Self>, append: Append) {
        let fails_over = {
            let mut state = self.state.held();
            if let Some(waiting) = state.slow.get_mut(&append.topic) {
                return waiting.push_back(append);
            }
            state.fails_over
        };
        if fails_over {
            return self.refuse(append, "its engine fails over");
        }
        match self.fate() {
            Fate::FailsOver => self.fail_over(append),
            Fate::LosesItsAnswer => {
                sometimes!("the answer of an append that was kept was lost");
                let Append { topic, entries, mode, done } = append;
                let e = unknown(&topic, "the answer was lost");
                self.put(&topic, entries, mode, Box::new(move |kept| done(kept.and(Err(e)))));
            }
            Fate::AppearsLater => {
                let ms = 100 + self.below(4000);
                let told = || sometimes!("a failed append appeared later");
                self.appears(ms, &append.topic, &append.entries, told);
                self.refuse(append, "no answer came");
            }
            Fate::AppearsTwice => {
                let told = || sometimes!("an entry appeared that had been answered before");
                self.appears(self.below(3000), &append.topic, &append.entries, told);
                self.perform(append);
            }
            Fate::IsSlow => {
                sometimes!("the log was slow for one topic");
                let topic = append.topic.clone();
                self.state.held().slow.insert(topic.clone(), VecDeque::from([append]));
                self.after(20 + self.below(1500), move |inner| inner.is_quick_again(&topic));
            }
            Fate::None => self.perform(append),
        }
    }

    fn perform(&self, append: Append) {
        let Append { topic, entries, mode, done } = append;
        self.put(&topic, entries, mode, done);
    }

    fn refuse(&self, append: Append, why: &str) {
        (append.done)(Err(unknown(&append.topic, why)));
    }

    /// A copy arrives, which nobody hears of.
    fn appears(self: &Arc<Self>, ms: u64, topic: &str, entries: &[Vec<u8>], told: fn()) {
        let (topic, entries) = (topic.to_owned(), entries.to_vec());
        self.after(ms, move |inner| {
            told();
            inner.put(&topic, entries, Mode::Synced, Box::new(|_| ()));
        });
    }

    /// What comes is refused for a while, and may have been kept.
    fn fail_over(self: &Arc<Self>, append: Append) {
        sometimes!("the log failed over");
        self.state.held().fails_over = true;
        self.after(100 + self.below(2000), |inner| inner.state.held().fails_over = false);
        if self.below(2) == 0 {
            let told = || sometimes!("a failed append appeared later");
            self.appears(self.below(3000), &append.topic, &append.entries, told);
        }
        self.refuse(append, "its engine fails over");
    }

    fn is_quick_again(&self, topic: &str) {
        let waiting = self.state.held().slow.remove(topic).unwrap_or_default();
        waiting.into_iter().for_each(|append| self.perform(append));
    }

    /// Appends with gaps in between, now and then.
    fn put(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>) {
        if self.below(20) > 0 {
            return self.log.append(topic, entries, mode, done);
        }
        sometimes!("the log left a gap");
        let gathered = Gathered { indices: Vec::new(), left: entries.len(), done: Some(done) };
        let gathered = Arc::new(Mutex::new(gathered));
        for entry in entries {
            for _ in 0..self.below(3) {
                self.log.append(topic, vec![GAP.to_vec()], mode, Box::new(|_| ()));
            }
            let gathered = gathered.clone();
            let one = move |kept: Result<Indices>| Gathered::take(&gathered, kept);
            self.log.append(topic, vec![entry], mode, Box::new(one));
        }
        for _ in 0..self.below(2) {
            self.log.append(topic, vec![GAP.to_vec()], mode, Box::new(|_| ()));
        }
    }
}

/// The answers of one append's entries.
struct Gathered {
    indices: Vec<Index>,
    left: usize,
    done: Option<Done<Indices>>,
}

impl Gathered {
    fn take(gathered: &Mutex<Gathered>, kept: Result<Indices>) {
        let mut state = gathered.held();
        state.left -= 1;
        let answer = match kept {
            Ok(indices) => {
                state.indices.push(indices.first());
                if state.left > 0 {
                    return;
                }
                Indices::of(std::mem::take(&mut state.indices))
                    .ok_or_else(|| Error::bug("the log's answers came out of order"))
            }
            Err(e) => Err(e),
        };
        let done = state.done.take();
        drop(state);
        if let Some(done) = done {
            done(answer);
        }
    }
}

impl Log for UnrulyLog {
    fn create(&self, topic: &str) -> Result<()> {
        self.0.log.create(topic)
    }

    fn append(&self, topic: &str, entries: Vec<Vec<u8>>, mode: Mode, done: Done<Indices>) {
        self.0.append(Append { topic: topic.to_owned(), entries, mode, done });
    }

    fn read(
        &self,
        topic: &str,
        from: Index,
        entries_max: usize,
        bytes_max: usize,
        scope: Scope,
    ) -> Result<Vec<(Index, Vec<u8>)>> {
        self.0.log.read(topic, from, entries_max, bytes_max, scope)
    }

    fn tail(&self, topic: &str, from: Index, wake: Done<()>) {
        self.0.log.tail(topic, from, wake);
    }

    fn sync(&self, topic: &str) -> Result<()> {
        self.0.is_quick_again(topic);
        self.0.log.sync(topic)
    }

    fn trim(&self, topic: &str, before: Index) -> Result<()> {
        self.0.log.trim(topic, before)
    }

    fn info(&self, topic: &str) -> Result<Info> {
        self.0.log.info(topic)
    }

    fn topics(&self) -> Vec<String> {
        self.0.log.topics()
    }
}
