//! Scans: the records that show, in order of their keys, merged from tablets that each have some of them.

use super::cut::Cut;
use crate::tablet::Tablet;
use holdfast_base::ordered;
use holdfast_base::{Error, Result};
use holdfast_env::trial::Knob;
use holdfast_env::{planted, sometimes};
use holdfast_wire::table::{
    self as msg, ANSWER_BYTES_MAX, Found, KEY_BYTES_MAX, Page, SCAN_ROWS_MAX,
};
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

/// Records and bytes that are taken from one tablet at a time: what lies ready of all of them is in memory.
static AHEAD_ROWS: Knob = Knob::new("table.scan-ahead", 32, &[1, 2]);
const AHEAD_BYTES: usize = 128 << 10;

/// So often a scan begins anew, since a tablet of its table was split.
const ATTEMPTS: usize = 8;

/// What is left of one tablet.
struct Cursor {
    number: usize,
    /// Its hashes when the scan began.
    span: (u32, u32),
    from: Vec<u8>,
    until: Option<Vec<u8>>,
    ready: VecDeque<Found>,
    ended: bool,
}

/// The next records of a tablet, and whether they are the last ones; nothing where it has other keys than when the scan
/// began: others have them, among whose records they lie.
type Read = Option<(Vec<Found>, bool)>;

impl Cursor {
    fn of(number: usize, span: (u32, u32), scan: &msg::Scan) -> Cursor {
        let (from, until) = (scan.from.clone(), scan.until.clone());
        Cursor { number, span, from, until, ready: VecDeque::new(), ended: false }
    }

    /// False where the tablet has other keys than when the scan began.
    fn fill(
        &mut self,
        backwards: bool,
        read: &mut impl FnMut(&Cursor) -> Result<Read>,
    ) -> Result<bool> {
        if self.ended || !self.ready.is_empty() {
            return Ok(true);
        }
        let Some((page, ended)) = read(self)? else { return Ok(false) };
        self.ended = ended;
        if let Some(last) = page.last() {
            match backwards {
                true => self.until = Some(last.key.clone()),
                false => self.from = ordered::next(&last.key),
            }
        }
        self.ready = page.into();
        Ok(true)
    }

    fn read(&self, tablet: &Tablet, backwards: bool) -> Read {
        let span = (tablet.span().first, tablet.span().last);
        let is_as_it_was = span == self.span || planted!("table.scan-of-what-left");
        is_as_it_was.then(|| self.page(tablet, backwards))
    }

    /// The next records, and whether they are the last ones.
    fn page(&self, tablet: &Tablet, backwards: bool) -> (Vec<Found>, bool) {
        let mut found = Vec::new();
        if self.until.as_ref().is_some_and(|until| *until <= self.from) {
            return (found, true);
        }
        let end = self.until.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = tablet.records().range::<[u8], _>((Bound::Included(&self.from[..]), end));
        let mut bytes = 0;
        while let Some((key, record)) = if backwards { range.next_back() } else { range.next() } {
            let Some(value) = &record.value else { continue };
            bytes += key.len() + value.len();
            let record = msg::Record { version: record.version, value: value.to_vec() };
            found.push(Found { key: key.clone(), record });
            if found.len() >= AHEAD_ROWS.size() || bytes >= AHEAD_BYTES {
                AHEAD_ROWS.cross();
                return (found, false);
            }
        }
        (found, true)
    }
}

/// What a scan finds in a table, which is looked up again where one of its tablets was split meanwhile.
pub fn scan(table: impl Fn() -> Result<Arc<Cut>>, scan: &msg::Scan) -> Result<Page> {
    for _ in 0..ATTEMPTS {
        let tablets = table()?;
        let spans = (0..tablets.len() as u16).map(|number| tablets.span(number));
        let read = |cursor: &Cursor| {
            let read = tablets[cursor.number]
                .fold()
                .read(|view, _| view.look(|tablet| cursor.read(tablet, scan.backwards)))?;
            // One that was dropped meanwhile has none.
            Ok(read.unwrap_or_else(|| Some((Vec::new(), true))))
        };
        if let Some(page) = merge(spans, scan, read)? {
            return Ok(page);
        }
        sometimes!("a scan began anew behind a split");
    }
    Err(Error::retry("its tablets are split faster than it is scanned: ask again"))
}

/// A page of the records of tablets that have these hashes, by their numbers; nothing where one was split meanwhile.
fn merge(
    spans: impl Iterator<Item = (u32, u32)>,
    scan: &msg::Scan,
    mut read: impl FnMut(&Cursor) -> Result<Read>,
) -> Result<Option<Page>> {
    let longest = scan.until.as_ref().map_or(0, Vec::len).max(scan.from.len());
    if longest > KEY_BYTES_MAX + 1 {
        return Err(Error::invalid(format!(
            "a bound has {longest} bytes: give it up to {KEY_BYTES_MAX}, as keys have"
        )));
    }
    let rows_max = (scan.rows_max as usize).clamp(1, SCAN_ROWS_MAX);
    let mut cursors: Vec<Cursor> =
        spans.enumerate().map(|(number, span)| Cursor::of(number, span, scan)).collect();
    let (mut all, mut bytes) = (Vec::<Found>::new(), 0);
    let mut is_more = false;
    loop {
        for cursor in &mut cursors {
            if !cursor.fill(scan.backwards, &mut read)? {
                return Ok(None);
            }
        }
        let heads = cursors.iter_mut().filter(|cursor| !cursor.ready.is_empty());
        let next = match scan.backwards {
            false => heads.min_by(|a, b| a.ready[0].key.cmp(&b.ready[0].key)),
            true => heads.max_by(|a, b| a.ready[0].key.cmp(&b.ready[0].key)),
        };
        let Some(next) = next else { break };
        let found = &next.ready[0];
        bytes += found.key.len() + found.record.value.len();
        if all.len() == rows_max || (bytes > ANSWER_BYTES_MAX && !all.is_empty()) {
            is_more = true;
            break;
        }
        all.extend(next.ready.pop_front());
    }
    let next = all.last().filter(|_| is_more).map(|last| match scan.backwards {
        // As the end of what is to come.
        true => last.key.clone(),
        false => ordered::next(&last.key),
    });
    Ok(Some(Page { found: all, next }))
}

#[cfg(test)]
mod tests;
