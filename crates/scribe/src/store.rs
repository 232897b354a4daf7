//! Where an agent's spool is kept: an embedded log of one topic, below a directory of its own. Keeps groups
//! and marks, gives up what the core lets go, and reads what is to be sent. Decides nothing about numbers.

use crate::batch::{self, Packed, Position, SpoolId};
use crate::category::Category;
use crate::intake::Keeps;
use crate::spool::{Kept, Progress, Spool, decode_entry};
use holdfast_base::ids::Index;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::tasks::Stop;
use holdfast_env::{Disk, HoldMutex, Rng, planted, sometimes};
use holdfast_log::{Done, Drive, EmbeddedLog, Log, LogOptions, Mode, Scope};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::Duration;

/// Its topic.
const TOPIC: &str = "spool";
/// Files of the spool: it is given up file by file.
pub const SEGMENT_BYTES: u64 = 16 * MIB;
/// Files that a spool has besides those that count: one that is ready, and one more for what is under way.
const BESIDES_SEGMENTS: u64 = 2;
/// The smallest bound, in files.
pub const SEGMENTS_MIN: u64 = 8;
/// Entries of one append: they become one commit, whole or not at all.
const COMMIT_BYTES_MAX: usize = 3 << 20;
/// Entries of one read.
const READ_BYTES_MAX: usize = 1 << 20;
const READ_ENTRIES_MAX: usize = 256;

const _: () = assert!(BESIDES_SEGMENTS < SEGMENTS_MIN);

/// How a spool is kept; without threads ([`Drive::Pump`]) whoever keeps messages moves the disk, too.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of all of its files.
    pub bound_bytes: u64,
    pub segment_bytes: u64,
    pub drive: Drive,
}

/// A batch to be sent, and its category.
pub struct Outgoing {
    pub category: Category,
    pub bytes: Vec<u8>,
}

/// See the module.
pub struct Store {
    log: EmbeddedLog,
    bounds: Bounds,
    /// What is known; held for a look or a change. Locked after `appends`.
    core: Mutex<Spool>,
    /// Held from numbering until the core knows what was kept: entries come in their order.
    appends: Mutex<()>,
    /// Why nothing is kept any more: whether the last entry was, nobody knows.
    failed: Mutex<Option<Error>>,
    /// Told when there is something to send, when something was delivered, and at the end.
    changed: Condvar,
    /// Raw bytes on their way to the log.
    under_way: AtomicUsize,
}

impl Store {
    /// Opens the spool in `directory`, or begins one there, with an identity that is drawn.
    pub fn open(
        disk: Arc<dyn Disk>,
        directory: &Path,
        bounds: Bounds,
        rng: &dyn Rng,
    ) -> Result<Store> {
        let doing = |e: Error| e.context(format_args!("open the spool `{}`", directory.display()));
        if bounds.bound_bytes < SEGMENTS_MIN * bounds.segment_bytes {
            return Err(doing(Error::invalid(format!(
                "its bound is {} bytes: give it {} or more",
                bounds.bound_bytes,
                SEGMENTS_MIN * bounds.segment_bytes
            ))));
        }
        let options = LogOptions {
            drive: bounds.drive,
            segment_bytes: bounds.segment_bytes,
            ..LogOptions::default()
        };
        let log = EmbeddedLog::open(disk, directory, options).map_err(doing)?;
        log.create(TOPIC).map_err(doing)?;
        let mut core = recover(&log).map_err(doing)?;
        if core.id() == SpoolId::NONE {
            core = begin(&log, bounds.drive, rng).map_err(doing)?;
        }
        Ok(Store {
            log,
            bounds,
            core: Mutex::new(core),
            appends: Mutex::default(),
            failed: Mutex::default(),
            changed: Condvar::new(),
            under_way: AtomicUsize::new(0),
        })
    }

    /// Looks at what is known.
    pub fn look<R>(&self, look: impl FnOnce(&Spool) -> R) -> R {
        look(&self.core.held())
    }

    /// Bytes of the spool's entries.
    pub fn bytes(&self) -> u64 {
        self.log.info(TOPIC).map_or(0, |info| info.bytes)
    }

    /// Waits until there is something to send, or the stop, or for so long; whether there is something.
    pub fn wait_to_send(&self, most: Duration, stop: &Stop) -> bool {
        let none = |core: &mut Spool| core.first_to_send().is_none() && !stop.is_requested();
        self.wait(most, none).first_to_send().is_some()
    }

    /// Waits until everything was delivered, or for so long; how many batches are left.
    pub fn wait_delivered(&self, most: Duration) -> usize {
        self.wait(most, |core| core.first_to_send().is_some()).pending()
    }

    fn wait(&self, most: Duration, waits: impl FnMut(&mut Spool) -> bool) -> MutexGuard<'_, Spool> {
        let waited = self.changed.wait_timeout_while(self.core.held(), most, waits);
        waited.expect("nobody panics who holds it").0
    }

    /// Wakes whoever waits, to look again.
    pub fn nudge(&self) {
        // Who has looked and does not wait yet hears of it, too.
        drop(self.core.held());
        self.changed.notify_all();
    }

    /// Batches to send from an entry on, up to so many bytes but at least one, none of categories that are
    /// left out; and where to go on, if there may be more.
    pub fn to_send(
        &self,
        from: Index,
        bytes_max: usize,
        without: &BTreeSet<Category>,
    ) -> Result<(Vec<Outgoing>, Option<Index>)> {
        let (mut outgoing, mut bytes) = (Vec::<Outgoing>::new(), 0);
        let mut from = from;
        loop {
            let page =
                self.log.read(TOPIC, from, READ_ENTRIES_MAX, READ_BYTES_MAX, Scope::Durable)?;
            if page.is_empty() {
                return Ok((outgoing, None));
            }
            for (index, entry) in page {
                let mut wanted = self.wanted(&entry, without)?;
                let more: usize = wanted.iter().map(|one| 4 + one.bytes.len()).sum();
                if bytes + more > bytes_max && !outgoing.is_empty() {
                    return Ok((outgoing, Some(index)));
                }
                bytes += more;
                outgoing.append(&mut wanted);
                from = Index(index.0 + 1);
            }
        }
    }

    fn wanted(&self, entry: &[u8], without: &BTreeSet<Category>) -> Result<Vec<Outgoing>> {
        let Kept::Group(batches) = decode_entry(entry)? else { return Ok(Vec::new()) };
        let core = self.core.held();
        let mut wanted = Vec::new();
        for bytes in batches {
            let (head, _) = batch::decode(bytes)?;
            if core.wants_to_send(&head) && !without.contains(&head.category) {
                wanted.push(Outgoing { category: head.category, bytes: bytes.to_vec() });
            }
        }
        Ok(wanted)
    }

    /// Somebody says where the spool is in a category. What its topic has is given up in time.
    pub fn learn(&self, category: &Category, position: Position) -> Result<Progress> {
        let mut core = self.core.held();
        let progress = core.learn(category, position);
        let gives_up = core.given_up_bytes() >= self.bounds.segment_bytes
            || (core.pending() == 0 && core.given_up_bytes() >= self.bounds.segment_bytes / 4);
        drop(core);
        self.changed.notify_all();
        if gives_up {
            self.give_up()?;
        }
        Ok(progress)
    }

    /// Writes a mark, and gives up the files that nobody needs then.
    fn give_up(&self) -> Result<()> {
        let appends = self.appends.held();
        let mark = self.core.held().mark();
        let index =
            append(&self.log, self.bounds.drive, vec![mark]).map_err(|e| self.note_failure(e))?;
        let before = {
            let mut core = self.core.held();
            core.marked(index[0]);
            core.trim_before()
        };
        drop(appends);
        sometimes!("a spool gave up what was delivered");
        before.map_or(Ok(()), |before| self.log.trim(TOPIC, before))
    }

    /// After an error other than these, an entry may be there that the core does not know.
    fn note_failure(&self, e: Error) -> Error {
        if !matches!(e.kind, Kind::Full | Kind::Invalid) {
            self.failed.held().get_or_insert(e.clone());
        }
        e
    }

    /// Fails once an append did whose outcome nobody knows.
    fn check(&self) -> Result<()> {
        match &*self.failed.held() {
            None => Ok(()),
            Some(e) => Err(e.clone().context(
                "keep messages: an earlier write of the spool failed; look at the disk, and start again",
            )),
        }
    }
}

impl Keeps for Store {
    fn knows_or_may(&self, category: &Category) -> bool {
        self.core.held().knows_or_may(category)
    }

    fn has_room(&self, bytes: usize) -> bool {
        let Ok(info) = self.log.info(TOPIC) else { return false };
        let files = info.segments as u64 + BESIDES_SEGMENTS;
        // Twice: a commit that does not fit leaves the end of a file unused.
        let waits = 2 * (bytes + self.under_way.load(Ordering::Relaxed));
        files * self.bounds.segment_bytes + waits as u64 <= self.bounds.bound_bytes
    }

    fn keep(&self, groups: Vec<Vec<Packed>>) -> Result<()> {
        self.check()?;
        let _appends = self.appends.held();
        let bytes = groups.iter().flatten().map(Packed::bytes).sum();
        self.under_way.store(bytes, Ordering::Relaxed);
        let mut numbered = self.core.held().number(&groups);
        let mut result = Ok(());
        while !numbered.is_empty() && result.is_ok() {
            let mut count = 0;
            let mut commit_bytes = 0;
            while count < numbered.len()
                && (count == 0 || commit_bytes + numbered[count].entry.len() <= COMMIT_BYTES_MAX)
            {
                commit_bytes += numbered[count].entry.len();
                count += 1;
            }
            let some: Vec<_> = numbered.drain(..count).collect();
            let entries = some.iter().map(|one| one.entry.clone()).collect();
            result = append(&self.log, self.bounds.drive, entries)
                .map_err(|e| self.note_failure(e))
                .map(|indices| {
                    let mut core = self.core.held();
                    some.iter().zip(indices).for_each(|(one, index)| core.kept(index, one));
                });
        }
        self.under_way.store(0, Ordering::Relaxed);
        self.changed.notify_all();
        result
    }
}

/// Takes in what is there.
fn recover(log: &EmbeddedLog) -> Result<Spool> {
    let mut core = Spool::opening();
    let mut from = log.info(TOPIC)?.first;
    loop {
        let page = log.read(TOPIC, from, READ_ENTRIES_MAX, READ_BYTES_MAX, Scope::Durable)?;
        let Some((last, _)) = page.last() else { return Ok(core) };
        from = Index(last.0 + 1);
        for (index, entry) in &page {
            core.recover(*index, entry)?;
        }
    }
}

fn begin(log: &EmbeddedLog, drive: Drive, rng: &dyn Rng) -> Result<Spool> {
    let mut core = Spool::new(SpoolId(rng.next_u64().max(1)));
    let index = append(log, drive, vec![core.mark()])?;
    core.marked(index[0]);
    Ok(core)
}

/// Appends, synced, and waits for it.
fn append(log: &EmbeddedLog, drive: Drive, entries: Vec<Vec<u8>>) -> Result<Vec<Index>> {
    let (done, came) = mpsc::channel();
    let count = entries.len();
    let acknowledged: Done<Indices> = Box::new(move |indices| drop(done.send(indices)));
    let mode = match planted!("scribe.ok-before-the-sync") {
        true => Mode::Ordered,
        false => Mode::Synced,
    };
    log.append(TOPIC, entries, mode, acknowledged);
    if drive == Drive::Pump {
        while log.pump() {}
    }
    let indices = came.recv().map_err(|_| Error::retry("keep messages: the spool has ended"))??;
    Ok((0..count).map(|at| indices.get(at).expect("an index an entry")).collect())
}
