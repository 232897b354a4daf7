//! Scans: the records that show, in order of their keys, merged from tablets that each have some of them.

use super::cut::Cut;
use crate::tablet::Tablet;
use crate::tablets::OpenTablet;
use holdfast_base::ordered;
use holdfast_base::{Error, Result};
use holdfast_env::sometimes;
use holdfast_env::trial::Knob;
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
struct Cursor<'a> {
    tablet: &'a OpenTablet,
    /// Its hashes when the scan began.
    span: (u32, u32),
    from: Vec<u8>,
    until: Option<Vec<u8>>,
    ready: VecDeque<Found>,
    ended: bool,
}

impl Cursor<'_> {
    /// False where the tablet has other keys than when the scan began: others have them, among whose records they lie.
    fn fill(&mut self, backwards: bool) -> Result<bool> {
        if self.ended || !self.ready.is_empty() {
            return Ok(true);
        }
        let page = self.tablet.fold().read(|view, _| {
            view.look(|tablet| {
                let span = (tablet.span().first, tablet.span().last);
                (span == self.span).then(|| self.page(tablet, backwards))
            })
        })?;
        let Some((page, ended)) = page.unwrap_or_else(|| Some(Default::default())) else {
            return Ok(false);
        };
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
        if let Some(page) = scan_once(&*table()?, scan)? {
            return Ok(page);
        }
        sometimes!("a scan began anew behind a split");
    }
    Err(Error::retry("its tablets are split faster than it is scanned: ask again"))
}

/// Nothing where a tablet was split meanwhile.
fn scan_once(tablets: &Cut, scan: &msg::Scan) -> Result<Option<Page>> {
    let longest = scan.until.as_ref().map_or(0, Vec::len).max(scan.from.len());
    if longest > KEY_BYTES_MAX + 1 {
        return Err(Error::invalid(format!(
            "a bound has {longest} bytes: give it up to {KEY_BYTES_MAX}, as keys have"
        )));
    }
    let rows_max = (scan.rows_max as usize).clamp(1, SCAN_ROWS_MAX);
    let cursor = |(number, tablet)| Cursor {
        tablet,
        span: tablets.span(number),
        from: scan.from.clone(),
        until: scan.until.clone(),
        ready: VecDeque::new(),
        ended: false,
    };
    let each = (0..).zip(tablets.iter().map(|tablet| &**tablet));
    let mut cursors: Vec<Cursor<'_>> = each.map(cursor).collect();
    let (mut all, mut bytes) = (Vec::<Found>::new(), 0);
    let mut is_more = false;
    loop {
        for cursor in &mut cursors {
            if !cursor.fill(scan.backwards)? {
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
