//! Writes categories' hours into files, where the log is looked after: `/scribe/CATEGORY/2026-11-22/13.zst`, each
//! message a line. Which hour is due the view says ([`crate::hour`]); a file appears whole, and once it is there
//! an entry says so. Whoever dies between the two finds the file, and says so again.

use crate::batch::Messages;
use crate::category::Category;
use crate::face::ScribeFace;
use crate::hour::{Hour, Hours, Mark, Over};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, NewFile};
use holdfast_env::{event, sometimes};
use std::sync::Arc;

/// Lines of one zstd frame: as much as compresses well, and little to begin reading in the middle.
const FRAME_BYTES: usize = 1 << 20;
/// As batches are.
const LEVEL: i32 = 3;
/// Below it each category has a directory.
const ROOT: &str = "/scribe";

/// Takes what a file is made of, piece by piece.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Where hours' files are kept.
pub trait HourFiles: Send {
    /// Has `write` write a file that appears whole; one that is there already stays.
    fn write(&mut self, path: &str, write: &mut dyn FnMut(Sink<'_>) -> Result<()>) -> Result<()>;
    /// Removes a file, if there is one.
    fn remove(&mut self, path: &str) -> Result<()>;
}

/// Files of the cluster, by whichever client `connect` makes.
pub struct ClusterFiles<C> {
    connect: C,
    client: Option<Client>,
}

impl<C: FnMut() -> Result<Client> + Send> ClusterFiles<C> {
    pub fn new(connect: C) -> ClusterFiles<C> {
        ClusterFiles { connect, client: None }
    }

    /// After an error the next one begins with a new connection.
    fn with<R>(&mut self, work: impl FnOnce(&mut Client) -> Result<R>) -> Result<R> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => (self.connect)()?,
        };
        let done = work(&mut client)?;
        self.client = Some(client);
        Ok(done)
    }
}

impl<C: FnMut() -> Result<Client> + Send> HourFiles for ClusterFiles<C> {
    fn write(&mut self, path: &str, write: &mut dyn FnMut(Sink<'_>) -> Result<()>) -> Result<()> {
        self.with(|client| {
            if client.stat(path).is_ok() {
                return Ok(());
            }
            let mut file = client.create(path, &NewFile { parents: true, ..NewFile::default() })?;
            if let Err(e) = write(&mut |bytes| file.write(bytes)) {
                let _ = file.abandon();
                return Err(e);
            }
            match file.close() {
                Err(e) if e.kind == Kind::Exists => Ok(()),
                closed => closed.map(drop),
            }
        })
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        self.with(|client| match client.delete(path, false) {
            Err(e) if e.kind == Kind::NotFound => Ok(()),
            deleted => deleted,
        })?;
        let day = path.rsplit_once('/').map_or(path, |(day, _)| day).to_owned();
        // A day whose last hour is gone; others are not empty.
        self.with(|client| {
            let _ = client.delete(&day, false);
            Ok(())
        })
    }
}

/// See the module.
pub struct HourWriter<F> {
    face: Arc<ScribeFace>,
    files: F,
}

/// An entry of a batch, and its bytes.
pub type Indexed = (Index, Vec<u8>);

/// Where an hour of a category is.
pub fn path(category: &Category, hour: Hour) -> String {
    format!("{ROOT}/{category}/{}.zst", hour.name())
}

impl<F: HourFiles> HourWriter<F> {
    pub fn new(face: Arc<ScribeFace>, files: F) -> HourWriter<F> {
        HourWriter { face, files }
    }

    /// Begins hours, writes those that are over, and removes files whose entries are gone. A category in which
    /// something fails leaves the others, and is tried again with the next round.
    pub fn round(&mut self, unix_ms: u64) {
        for category in self.face.with_hours() {
            if let Err(e) = self.of_category(&category, Hour::at_ms(unix_ms)) {
                event!(
                    ScribeFilesWait,
                    e.context(format_args!("write hours of category `{category}`")).message
                );
            }
        }
    }

    fn of_category(&mut self, category: &Category, now: Hour) -> Result<()> {
        let begins = |hours: &Hours| hours.is_on() && now > hours.last();
        if self.face.hours(category, begins)? {
            self.face.mark_hours(category, Mark::Begins(now))?;
        }
        while let Some((hour, over)) = self.face.hours(category, Hours::to_write)? {
            self.write(category, hour, over)?;
            self.face.mark_hours(category, Mark::Written(hour))?;
            sometimes!("an hour of a category is in a file");
        }
        loop {
            let first = self.face.first(category)?;
            let goes = self.face.hours(category, |hours| hours.to_give_up(first))?;
            let Some(hour) = goes else { return Ok(()) };
            self.files.remove(&path(category, hour))?;
            self.face.mark_hours(category, Mark::GivenUp(hour))?;
            sometimes!("a file went with its entries");
        }
    }

    fn write(&mut self, category: &Category, hour: Hour, over: Over) -> Result<()> {
        let face = self.face.clone();
        self.files.write(&path(category, hour), &mut |out| {
            let mut lines = Vec::new();
            // What went before it was written is gone.
            let mut from = over.from.max(face.first(category)?);
            while from < over.until {
                let (batches, next) = face.batches(category, from)?;
                for (_, batch) in batches.iter().filter(|(index, _)| *index < over.until) {
                    for message in Messages::of(batch)?.iter() {
                        lines.extend_from_slice(message.strip_suffix(b"\n").unwrap_or(message));
                        lines.push(b'\n');
                        if lines.len() >= FRAME_BYTES {
                            out(&frame(&lines)?)?;
                            lines.clear();
                        }
                    }
                }
                if next == from {
                    break;
                }
                from = next;
            }
            match lines.is_empty() {
                true => Ok(()),
                false => out(&frame(&lines)?),
            }
        })
    }
}

fn frame(lines: &[u8]) -> Result<Vec<u8>> {
    zstd::bulk::compress(lines, LEVEL)
        .map_err(|e| Error::retry(format!("compress lines ({e}): try again")))
}
