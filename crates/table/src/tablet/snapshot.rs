//! A tablet as a snapshot has it: everything that its entries have made of it.

use super::branch::Branches;
use super::image::Taking;
use super::{Form, Shown, Tablet};
use crate::ids::RegionId;
use crate::sessions::Sessions;
use crate::stream::Stream;
use holdfast_base::codec::put_bytes;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};

/// Records that a snapshot writes before it asks whether it is still wanted.
const RECORDS_AT_ONCE: usize = 1024;

/// What a snapshot of a tablet of several regions has behind what all have.
const TAKING: u8 = 1;
const BRANCHES: u8 = 2;
const LOST: u8 = 4;

impl Tablet {
    /// Writes everything that the entries have made of it.
    pub fn snapshot(&self, out: &mut Writer<'_>) {
        self.snapshot_while(out, &mut || Ok(()));
    }

    /// As [`Tablet::snapshot`], which ends where this fails: it is asked now and then.
    pub fn snapshot_while(&self, out: &mut Writer<'_>, goes_on: &mut dyn FnMut() -> Result<()>) {
        out.put(&self.log);
        out.put(&self.applied);
        out.put(&self.floor);
        for (id, stream) in &self.streams {
            let Shown { place, digest } = self.shown[id];
            out.put(id);
            out.put(&place);
            out.put(&digest);
            stream.snapshot(out);
        }
        out.put(&(self.records.len() as u64));
        for (at, (key, record)) in self.records.iter().enumerate() {
            if at % RECORDS_AT_ONCE == 0
                && let Err(e) = goes_on()
            {
                return out.fail(e);
            }
            out.put_with(|out| put_bytes(out, key));
            out.put(record);
        }
        self.sessions.snapshot(out);
        if self.has_others() {
            let taking = if self.taking.is_some() { TAKING } else { 0 };
            let branches = if self.branches.is_empty() { 0 } else { BRANCHES };
            let lost = if self.lost.is_some() { LOST } else { 0 };
            out.put(&(taking | branches | lost));
            if let Some(taking) = &self.taking {
                taking.snapshot(out, goes_on);
            }
            if !self.branches.is_empty() {
                self.branches.snapshot(out);
            }
            if let Some(lost) = &self.lost {
                out.put(lost);
            }
        }
    }

    /// The inverse, for a tablet of this form.
    pub fn restore(form: &Form, region: RegionId, source: &mut Source<'_>) -> Result<Tablet> {
        let mut tablet = Tablet::new(form, region);
        tablet.log = source.get()?;
        tablet.applied = source.get()?;
        tablet.floor = source.get()?;
        for _ in form.streams() {
            let id = source.get()?;
            let shown = Shown { place: source.get()?, digest: source.get()? };
            if tablet.shown.insert(id, shown).is_none() {
                return Err(Error::corrupt("restore a tablet: it has a stream of no region"));
            }
            let stream = Stream::restore(id, shown.place.number, source)?;
            tablet.streams.insert(id, stream);
        }
        for _ in 0..source.get::<u64>()? {
            let key = source.get_with(|reader| Ok(reader.bytes()?.to_vec()))?;
            let record = source.get()?;
            tablet.put_record(key, record);
        }
        tablet.sessions = Sessions::restore(source)?;
        let parts: u8 = if tablet.has_others() { source.get()? } else { 0 };
        if parts & !(TAKING | BRANCHES | LOST) != 0 {
            return Err(Error::corrupt("restore a tablet: it has parts of no build"));
        }
        if parts & TAKING != 0 {
            tablet.taking = Some(Box::new(Taking::restore(&tablet, source)?));
        }
        if parts & BRANCHES != 0 {
            tablet.branches = Branches::restore(source)?;
        }
        if parts & LOST != 0 {
            tablet.lost = Some(source.get()?);
        }
        tablet.changes.begin_anew(&tablet.shown);
        Ok(tablet)
    }
}
