//! Where an agent's spool is kept: an embedded log of one topic, below a directory of its own. Keeps groups
//! and marks, gives up what the core lets go, and reads what is to be sent. Decides nothing about numbers.

use crate::aside::{self, Aside};
use crate::batch::{self, Head, Packed, Position, SpoolId};
use crate::category::Category;
use crate::intake::{Keeps, NotKept};
use crate::spool::{Kept, Numbered, Progress, Spool, decode_entry};
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
/// The log keeps this part of a file ready, for a full disk.
const RESERVE_PART: u64 = 4;
/// The smallest bound, in files.
pub const SEGMENTS_MIN: u64 = 8;
/// Entries of one append: they become one commit, whole or not at all.
const COMMIT_BYTES_MAX: usize = 3 << 20;
/// Batches that are kept aside by one commit.
const ASIDE_AT_ONCE: usize = 3;
/// Entries of one read.
const READ_BYTES_MAX: usize = 1 << 20;
const READ_ENTRIES_MAX: usize = 256;

/// There is a mark in so large a part of a file: what is delivered can be given up without a byte more, for
/// a full disk has none.
const MARKS_OF_A_SEGMENT: u64 = 4;

const _: () = assert!(BESIDES_SEGMENTS + aside::SEGMENTS_MAX + 1 < SEGMENTS_MIN);

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
    aside: aside::Kept,
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
        let log = open_log(disk, directory, bounds.segment_bytes, bounds.drive)?;
        log.create(TOPIC).map_err(doing)?;
        let mut core = recover(&log).map_err(doing)?;
        if core.id() == SpoolId::NONE {
            core = begin(&log, bounds.drive, rng).map_err(doing)?;
        }
        let aside = aside::Kept::open(&log, bounds.drive).map_err(doing)?;
        Ok(Store {
            log,
            bounds,
            aside,
            core: Mutex::new(core),
            appends: Mutex::default(),
            failed: Mutex::default(),
            changed: Condvar::new(),
            under_way: AtomicUsize::new(0),
        })
    }

    /// As [`Store::open`], of a spool that is there, for whoever keeps nothing more in it.
    pub fn open_there(
        disk: Arc<dyn Disk>,
        directory: &Path,
        bounds: Bounds,
        rng: &dyn Rng,
    ) -> Result<Store> {
        if !EmbeddedLog::has_topic(&*disk, directory, TOPIC)? {
            return Err(Error::not_found(format!(
                "open the spool `{}`: there is none: name the directory of an agent",
                directory.display()
            )));
        }
        Store::open(disk, directory, bounds, rng)
    }

    /// Looks at what is known.
    pub fn look<R>(&self, look: impl FnOnce(&Spool) -> R) -> R {
        look(&self.core.held())
    }

    /// Bytes of the spool's entries.
    pub fn bytes(&self) -> u64 {
        self.log.info(TOPIC).map_or(0, |info| info.bytes)
    }

    /// Messages that were kept aside, and how many of them were given up again since the start.
    pub fn aside(&self) -> (u64, u64) {
        self.aside.counts()
    }

    /// Waits until there is something to send, of categories that are not left out, or the stop, or for so
    /// long; whether there is something.
    pub fn wait_to_send(&self, most: Duration, stop: &Stop, without: &BTreeSet<Category>) -> bool {
        let none = |core: &mut Spool| core.first_to_send(without).is_none() && !stop.is_requested();
        self.wait(most, none).first_to_send(without).is_some()
    }

    /// Waits until everything was delivered, or for so long; how many batches are left.
    pub fn wait_delivered(&self, most: Duration) -> usize {
        self.wait(most, |core| core.first_to_send(&BTreeSet::new()).is_some()).pending()
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
            // An entry may be in the log a moment before it is known, and its category with it.
            let end = self.look(|core| core.end());
            let is_known = |(index, _): &(Index, _)| {
                *index < end || planted!("scribe.sends-what-is-not-known")
            };
            let page: Vec<_> = page.into_iter().take_while(is_known).collect();
            if page.is_empty() {
                return Ok((outgoing, None));
            }
            for (index, entry) in page {
                let mut wanted = self.wanted(index, &entry, without)?;
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

    fn wanted(
        &self,
        index: Index,
        entry: &[u8],
        without: &BTreeSet<Category>,
    ) -> Result<Vec<Outgoing>> {
        self.chosen(entry, |core, head| {
            core.wants_to_send(index, head) && !without.contains(&head.category)
        })
    }

    fn chosen(
        &self,
        entry: &[u8],
        is_chosen: impl Fn(&Spool, &Head) -> bool,
    ) -> Result<Vec<Outgoing>> {
        let Kept::Group(batches) = decode_entry(entry)? else { return Ok(Vec::new()) };
        let core = self.core.held();
        let mut wanted = Vec::new();
        for bytes in batches {
            let (head, _) = batch::decode(bytes)?;
            if is_chosen(&core, &head) {
                wanted.push(Outgoing { category: head.category, bytes: bytes.to_vec() });
            }
        }
        Ok(wanted)
    }

    /// Calls back with each batch of these categories that its topic is not known to have, in their order.
    pub fn each_pending(
        &self,
        of: &BTreeSet<Category>,
        call: &mut dyn FnMut(Outgoing) -> Result<()>,
    ) -> Result<()> {
        let first = |category| self.look(|core| core.first_pending(category));
        let Some(mut from) = of.iter().filter_map(first).min() else { return Ok(()) };
        loop {
            let page =
                self.log.read(TOPIC, from, READ_ENTRIES_MAX, READ_BYTES_MAX, Scope::Durable)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            from = Index(last.0 + 1);
            for (index, entry) in &page {
                let is_one = |core: &Spool, head: &Head| {
                    of.contains(&head.category) && core.is_pending(*index, head)
                };
                self.chosen(entry, is_one)?.into_iter().try_for_each(&mut *call)?;
            }
        }
    }

    /// Somebody says where the spool is in a category. What its topic has is given up in time.
    pub fn learn(&self, category: &Category, position: Position) -> Progress {
        let mut core = self.core.held();
        let progress = core.learn(category, position);
        self.went(core);
        progress
    }

    /// As [`Store::learn`], of an answer that may be older than others; see [`Spool::hear`].
    pub fn hear(&self, category: &Category, position: Position, known: u64) -> Progress {
        let mut core = self.core.held();
        let progress = core.hear(category, position, known);
        self.went(core);
        progress
    }

    /// Something has left: whoever waits for it hears of it, and files are given up when it is worth it.
    fn went(&self, core: MutexGuard<'_, Spool>) {
        let given_up = core.given_up_bytes();
        let gives_up = given_up >= self.bounds.segment_bytes
            || (core.pending() == 0 && given_up >= self.bounds.segment_bytes / 4);
        drop(core);
        self.changed.notify_all();
        if gives_up {
            // What was delivered stays so. Where nothing can be written, [`Store::check`] says why.
            let _ = self.give_up();
        }
    }

    /// Gives up the files that nobody needs, with a mark behind them, if there is room for one: otherwise
    /// those in front of the last mark that there is.
    fn give_up(&self) -> Result<()> {
        let appends = self.appends.held();
        if self.core.held().wants_mark() {
            let mark = self.core.held().mark();
            match append(&self.log, TOPIC, self.bounds.drive, vec![mark]) {
                Ok(index) => self.core.held().marked(index[0]),
                Err(e) if e.kind == Kind::Full => sometimes!("a full spool is trimmed"),
                Err(e) => return Err(self.note_failure(e)),
            }
        }
        let before = {
            let mut core = self.core.held();
            core.gave_up();
            core.trim_before()
        };
        drop(appends);
        sometimes!("a spool gave up what was delivered");
        before.map_or(Ok(()), |before| self.log.trim(TOPIC, before))
    }

    /// Keeps aside what a category's topic is not known to have, since it never takes it, and gives it up;
    /// how many batches. What comes later has its numbers.
    pub fn set_aside(&self, category: &Category, why: &str) -> Result<usize> {
        self.check()?;
        let appends = self.appends.held();
        let mut from = self.core.held().first_pending(category);
        while let Some(at) = from {
            let page =
                self.log.read(TOPIC, at, READ_ENTRIES_MAX, READ_BYTES_MAX, Scope::Durable)?;
            from = page.last().map(|(index, _)| Index(index.0 + 1));
            let mut refused = Vec::new();
            for (index, entry) in &page {
                let all = self.wanted(*index, entry, &BTreeSet::new())?;
                refused.extend(all.into_iter().filter(|one| one.category == *category));
            }
            let batch = |one: &'_ Outgoing| one.bytes.clone();
            let bytes: Vec<Vec<u8>> = refused.iter().map(batch).collect();
            let all: Vec<_> = bytes.iter().map(|batch| Aside::Batch { why, batch }).collect();
            // So many are a commit.
            for some in all.chunks(ASIDE_AT_ONCE) {
                self.aside.keep(&self.log, some)?;
            }
        }
        let Some(turn) = self.core.held().turn(category) else { return Ok(0) };
        let index = append(&self.log, TOPIC, self.bounds.drive, vec![turn])
            .map_err(|e| self.note_failure(e))?;
        let mut core = self.core.held();
        let batches = core.turned(index[0], category);
        drop(appends);
        self.went(core);
        Ok(batches)
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
        // What is aside has its room from the beginning, so that it never takes another's.
        let files = info.segments as u64 + aside::SEGMENTS_MAX + 1 + BESIDES_SEGMENTS;
        // Twice: a commit that does not fit leaves the end of a file unused.
        let waits = 2 * (bytes + self.under_way.load(Ordering::Relaxed));
        let kept_ready = self.bounds.segment_bytes / RESERVE_PART;
        files * self.bounds.segment_bytes + kept_ready + waits as u64 <= self.bounds.bound_bytes
    }

    fn keep(&self, groups: &[Vec<Packed>]) -> Vec<NotKept> {
        let _appends = self.appends.held();
        let bytes = groups.iter().flatten().map(Packed::bytes).sum();
        self.under_way.store(bytes, Ordering::Relaxed);
        let mut numbered = self.core.held().number(groups);
        let mut not_kept = Vec::with_capacity(numbered.len());
        let mut failed = None;
        while !numbered.is_empty() {
            let mut count = 0;
            let mut commit_bytes = 0;
            while count < numbered.len()
                && (count == 0 || commit_bytes + numbered[count].entry.len() <= COMMIT_BYTES_MAX)
            {
                commit_bytes += numbered[count].entry.len();
                count += 1;
            }
            let some: Vec<_> = numbered.drain(..count).collect();
            // What is behind a group that is not kept has numbers behind its.
            if failed.is_none() {
                // Of a spool nothing is refused for good.
                failed = self.keep_some(&some).err().map(|e| Error::retry(e.message));
            }
            not_kept.extend(some.iter().map(|one| {
                let all = one.ends().iter().map(|(category, _)| category.clone());
                failed.iter().flat_map(|e| all.clone().map(|of| (of, e.clone()))).collect()
            }));
        }
        self.under_way.store(0, Ordering::Relaxed);
        self.changed.notify_all();
        not_kept
    }

    fn keep_aside(&self, all: &[Aside<'_>]) {
        // What can never be taken is worth no more than an attempt; whoever writes next hears of a disk.
        let _ = self.aside.keep(&self.log, all);
    }
}

impl Store {
    /// One commit, with a mark in front of it when it is time for one.
    fn keep_some(&self, some: &[Numbered]) -> Result<()> {
        self.check()?;
        let marks = {
            let core = self.core.held();
            let due = core.unmarked_bytes() >= self.bounds.segment_bytes / MARKS_OF_A_SEGMENT;
            due.then(|| core.mark())
        };
        let mut entries: Vec<Vec<u8>> = marks.into_iter().collect();
        let is_marked = !entries.is_empty();
        entries.extend(some.iter().map(|one| one.entry.clone()));
        let indices = append(&self.log, TOPIC, self.bounds.drive, entries)
            .map_err(|e| self.note_failure(e))?;
        let mut core = self.core.held();
        let (mark, groups) = indices.split_at(usize::from(is_marked));
        mark.iter().for_each(|index| core.marked(*index));
        some.iter().zip(groups).for_each(|(one, index)| core.kept(*index, one));
        Ok(())
    }
}

/// The log of a spool, or of what is kept aside; refused while somebody has it open.
pub fn open_log(
    disk: Arc<dyn Disk>,
    directory: &Path,
    segment_bytes: u64,
    drive: Drive,
) -> Result<EmbeddedLog> {
    // With a reserve, for to give files up takes some room, too: nobody else may have all of it.
    let needed: Option<fn(&str) -> bool> = Some(|_| false);
    let options = LogOptions { drive, segment_bytes, needed, ..LogOptions::default() };
    EmbeddedLog::open(disk, directory, options)
        .map_err(|e| e.context(format_args!("open log messages in `{}`", directory.display())))
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
    let index = append(log, TOPIC, drive, vec![core.mark()])?;
    core.marked(index[0]);
    Ok(core)
}

/// Appends, synced, and waits for it.
pub(crate) fn append(
    log: &EmbeddedLog,
    topic: &str,
    drive: Drive,
    entries: Vec<Vec<u8>>,
) -> Result<Vec<Index>> {
    let (done, came) = mpsc::channel();
    let count = entries.len();
    let acknowledged: Done<Indices> = Box::new(move |indices| drop(done.send(indices)));
    let mode = match planted!("scribe.ok-before-the-sync") {
        true => Mode::Ordered,
        false => Mode::Synced,
    };
    log.append(topic, entries, mode, acknowledged);
    if drive == Drive::Pump {
        while log.pump() {}
    }
    let indices = came.recv().map_err(|_| Error::retry("keep messages: the spool has ended"))??;
    Ok((0..count).map(|at| indices.get(at).expect("an index an entry")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Builder;
    use holdfast_env::SeededRng;
    use holdfast_sim::SimDisk;

    fn batch(category: &str, message: &[u8]) -> Packed {
        let mut builder = Builder::default();
        builder.push(message);
        builder.pack(Category::new(category).unwrap())
    }

    /// Whoever sends reads the log beside whoever keeps messages in it: an entry that was synced, and not taken down
    /// yet, with a category's first message ended the agent; one of a category that was known was passed over, and
    /// what came behind it was sent in front of it.
    #[test]
    fn an_entry_is_sent_once_it_is_known() -> Result<()> {
        let (bound_bytes, segment_bytes, drive) = (64 << 20, 1 << 20, Drive::Pump);
        let bounds = Bounds { bound_bytes, segment_bytes, drive };
        let disk = Arc::new(SimDisk::new(3));
        let store = Store::open(disk, Path::new("/spool"), bounds, &SeededRng::new(3))?;
        let all = |categories: &[&str]| {
            let groups = categories.iter().map(|one| vec![batch(one, b"text")]);
            store.look(|core| core.number(&groups.collect::<Vec<_>>()))
        };
        store.keep_some(&all(&["old"]))?;
        let sent = || {
            let (outgoing, next) = store.to_send(Index(1), 1 << 20, &BTreeSet::new())?;
            assert_eq!(next, None);
            Ok::<_, Error>(outgoing.into_iter().map(|one| one.category.to_string()).collect())
        };
        let before: Vec<String> = sent()?;
        assert_eq!(before, ["old"]);
        let numbered = all(&["old", "new"]);
        let entries = numbered.iter().map(|one| one.entry.clone()).collect();
        let indices = append(&store.log, TOPIC, drive, entries)?;
        assert_eq!(sent()?, before, "they are in the log, and nobody knows them");
        let mut core = store.core.held();
        indices.iter().zip(&numbered).for_each(|(index, one)| core.kept(*index, one));
        drop(core);
        assert_eq!(sent()?, ["old", "old", "new"]);
        Ok(())
    }
}
