//! Simulated rows: a journal of batches on the simulated disk, whose faults they share. They keep
//! exactly what [`Rows`] promises and no more: a power cut leaves the batches that were persisted
//! and some of those behind them, in order, each whole; the end of a process takes what the engine
//! had not given to the system yet. A row may be damaged: they open all the same, as production's do,
//! and whoever comes past it is told. Used by tests of whatever keeps a view in rows.

use crate::SimDisk;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::{Error, Reason, Result};
use holdfast_env::HoldMutex;
use holdfast_env::disk::{
    Access, Disk, File, ReplaceSites, create_dir_durable, read_file, replace_file,
};
use holdfast_env::rows::{Batch, Cursor, Each, Engine, MemoryRows, Moment, Rows};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a process buffers before it gives it to the system; lost with the process.
const BUFFER_BYTES: usize = 2000;
/// Of a journal, which is never made shorter.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;
/// Length and checksum in front of each batch. The checksum covers the batches before, too, so that
/// what an earlier life wrote behind the end is not taken for this one's.
const HEADER_BYTES: usize = 8;
const JOURNAL: &str = "journal";
/// Beside the journal: the row that is damaged.
const SPOILT: &str = "spoilt";
const ROW_BYTES_MAX: u64 = 1 << 20;
const CLEAN_SITES: ReplaceSites = ReplaceSites { data: "rows.clean-data", name: "rows.clean-name" };

/// A row that cannot be read, and how that is told.
#[derive(Clone)]
struct Spoilt {
    row: Vec<u8>,
    told: Error,
}

/// Damages one of the rows that are in the directory `place` on the disk, the `nth` of them counted round and
/// round: whoever reads it hears of it, until the rows are made anew. False where there are none.
pub fn spoil_row(disk: &dyn Disk, place: &Path, nth: u64) -> Result<bool> {
    let path = place.join(JOURNAL);
    if !disk.exists(&path)? {
        return Ok(false);
    }
    let (shown, _, _) = Journal::shown(&read_file(disk, &path, JOURNAL_BYTES_MAX)?)?;
    let mut rows = Vec::new();
    shown.scan(&[], &[0xff; 64], &mut |row, _| {
        rows.push(row.to_vec());
        Ok(true)
    })?;
    let Some(at) = nth.checked_rem(rows.len() as u64) else { return Ok(false) };
    replace_file(disk, &place.join(SPOILT), &rows.swap_remove(at as usize), CLEAN_SITES)?;
    Ok(true)
}

/// Whether a row there is damaged; nothing where there are no rows.
pub fn is_spoilt(disk: &dyn Disk, place: &Path) -> Result<Option<bool>> {
    let are_there = disk.exists(&place.join(JOURNAL))?;
    Ok(if are_there { Some(disk.exists(&place.join(SPOILT))?) } else { None })
}

impl Engine for SimDisk {
    fn open_rows(&self, place: &Path, what: &str, _cache_bytes: u64) -> Result<Arc<dyn Rows>> {
        let opened = SimRows::open(self, place, what);
        let doing = |e: Error| e.context(format_args!("open {what} in `{}`", place.display()));
        Ok(Arc::new(opened.map_err(doing)?))
    }
}

struct SimRows {
    disk: SimDisk,
    shown: MemoryRows,
    place: PathBuf,
    what: String,
    /// Held while a batch is written, so that the journal's order is the one that is shown.
    journal: Mutex<Journal>,
}

struct Journal {
    file: Arc<dyn File>,
    /// Where `buffer` belongs.
    end: u64,
    buffer: Vec<u8>,
    chain: u32,
    /// A write or a sync has failed: what is on the disk is not known any more.
    failed: bool,
}

impl SimRows {
    fn open(disk: &SimDisk, place: &Path, what: &str) -> Result<SimRows> {
        let (shown, journal) = Journal::open(disk, place)?;
        let (disk, place, what) = (disk.clone(), place.to_owned(), what.to_owned());
        Ok(SimRows { disk, shown, place, what, journal: Mutex::new(journal) })
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.held()
    }

    fn spoilt(&self) -> Result<Option<Spoilt>> {
        let path = self.place.join(SPOILT);
        if !self.disk.exists(&path)? {
            return Ok(None);
        }
        let row = read_file(&self.disk, &path, ROW_BYTES_MAX)?;
        let told = Error::corrupt("a block of them fails its checksum")
            .because(Reason::Rows)
            .context(format_args!("read {} in `{}`", self.what, self.place.display()));
        Ok(Some(Spoilt { row, told }))
    }

    fn done(&self, journal: &mut Journal, doing: &str, done: std::io::Result<()>) -> Result<()> {
        done.map_err(|e| {
            journal.failed = true;
            Error::from(e).context(format_args!(
                "{doing} {} in `{}`",
                self.what,
                self.place.display()
            ))
        })
    }
}

impl Journal {
    fn open(disk: &SimDisk, place: &Path) -> Result<(MemoryRows, Journal)> {
        create_dir_durable(disk, place, 1, "rows.directory")?;
        let path = place.join(JOURNAL);
        match disk.exists(&path)? {
            false => replace_file(disk, &path, &[], CLEAN_SITES)?,
            // Whoever made it may have been killed before its name was durable.
            true => disk.sync_dir(place, CLEAN_SITES.name)?,
        }
        let bytes = read_file(disk, &path, JOURNAL_BYTES_MAX)?;
        let (shown, end, chain) = Journal::shown(&bytes)?;
        if end < bytes.len() {
            replace_file(disk, &path, &bytes[..end], CLEAN_SITES)?;
        }
        let file = disk.open(&path, Access::Cached)?;
        let journal = Journal { file, end: end as u64, buffer: Vec::new(), chain, failed: false };
        Ok((shown, journal))
    }

    /// What a journal's bytes show, where the last whole batch ends, and its checksum.
    fn shown(bytes: &[u8]) -> Result<(MemoryRows, usize, u32)> {
        let shown = MemoryRows::default();
        let (mut end, mut chain) = (0, 0);
        while let Some((batch, next)) = parse(&bytes[end..], chain) {
            shown.write(batch)?;
            end += next;
            chain = u32::from_le_bytes(bytes[end - next + 4..][..4].try_into().expect("4 bytes"));
        }
        Ok((shown, end, chain))
    }

    fn check(&self) -> std::io::Result<()> {
        if self.failed { Err(std::io::Error::other("a write has failed before")) } else { Ok(()) }
    }

    fn give(&mut self) -> std::io::Result<()> {
        self.check()?;
        self.file.write_at(&self.buffer, self.end)?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn append(&mut self, batch: &Batch) {
        let mut payload = Vec::new();
        for (row, value) in &batch.changes {
            put_bytes(&mut payload, row);
            value.is_some().encode(&mut payload);
            put_bytes(&mut payload, value.as_deref().unwrap_or_default());
        }
        (payload.len() as u32).encode(&mut self.buffer);
        self.chain = chained(self.chain, &payload);
        self.chain.encode(&mut self.buffer);
        self.buffer.extend_from_slice(&payload);
    }
}

fn chained(chain: u32, payload: &[u8]) -> u32 {
    let header = [chain, payload.len() as u32, 0x726f_7773];
    crc32c(&header.map(u32::to_le_bytes).concat()) ^ crc32c(payload)
}

/// The batch at the front of a journal's rest, and its bytes there; nothing where it is not whole.
fn parse(rest: &[u8], chain: u32) -> Option<(Batch, usize)> {
    let mut header = Reader::new(rest.get(..HEADER_BYTES)?);
    let bytes = u32::decode(&mut header).ok()? as usize;
    let crc = u32::decode(&mut header).ok()?;
    let payload = rest.get(HEADER_BYTES..HEADER_BYTES.checked_add(bytes)?)?;
    if chained(chain, payload) != crc {
        return None;
    }
    Some((decode(payload).ok()?, HEADER_BYTES + bytes))
}

fn decode(payload: &[u8]) -> std::result::Result<Batch, DecodeError> {
    let mut reader = Reader::new(payload);
    let mut batch = Batch::default();
    while reader.remaining() > 0 {
        let row = reader.bytes()?.to_vec();
        let kept = bool::decode(&mut reader)?;
        let value = reader.bytes()?.to_vec();
        batch.changes.insert(row, kept.then_some(value));
    }
    Ok(batch)
}

impl Rows for SimRows {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(spoilt) = self.spoilt()? {
            spoilt.meets(row)?;
        }
        self.shown.get(row)
    }

    fn moment(&self) -> Result<Arc<dyn Moment>> {
        let moment = self.shown.moment()?;
        Ok(match self.spoilt()? {
            Some(spoilt) => Arc::new(SpoiltMoment { moment, spoilt }),
            None => moment,
        })
    }

    fn write(&self, batch: Batch) -> Result<()> {
        let mut journal = self.journal();
        let mut given = journal.check();
        if given.is_ok() {
            journal.append(&batch);
            if journal.buffer.len() >= BUFFER_BYTES {
                given = journal.give();
            }
        }
        self.done(&mut journal, "write", given)?;
        self.shown.write(batch)
    }

    fn persist(&self, site: &'static str) -> Result<()> {
        let mut journal = self.journal();
        let synced = journal.give().and_then(|()| journal.file.sync(site));
        self.done(&mut journal, "sync", synced)
    }

    fn open_again(&self) -> Result<()> {
        let mut journal = self.journal();
        journal.failed = true;
        let (shown, opened) = Journal::open(&self.disk, &self.place).map_err(|e| {
            e.context(format_args!("open {} in `{}`", self.what, self.place.display()))
        })?;
        self.shown.replace(shown);
        *journal = opened;
        Ok(())
    }
}

impl Spoilt {
    fn meets(&self, row: &[u8]) -> Result<()> {
        if self.row == row { Err(self.told.clone()) } else { Ok(()) }
    }
}

struct SpoiltMoment {
    moment: Arc<dyn Moment>,
    spoilt: Spoilt,
}

impl Moment for SpoiltMoment {
    fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        self.spoilt.meets(row)?;
        self.moment.get(row)
    }

    fn last(&self, from: &[u8], until: &[u8]) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let last = self.moment.last(from, until)?;
        last.iter().try_for_each(|(row, _)| self.spoilt.meets(row))?;
        Ok(last)
    }

    fn cursor(&self, from: &[u8], until: &[u8]) -> Result<Box<dyn Cursor>> {
        let (cursor, spoilt) = (self.moment.cursor(from, until)?, self.spoilt.clone());
        Ok(Box::new(SpoiltCursor { cursor, spoilt }))
    }
}

struct SpoiltCursor {
    cursor: Box<dyn Cursor>,
    spoilt: Spoilt,
}

impl Cursor for SpoiltCursor {
    fn advance(&mut self, each: &mut Each<'_>) -> Result<bool> {
        let spoilt = &self.spoilt;
        self.cursor.advance(&mut |row, value| {
            spoilt.meets(row)?;
            each(row, value)
        })
    }
}
