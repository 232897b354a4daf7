//! Records: written, and read as new as is asked for, where the log is kept. What a client has seen goes along
//! with every answer, so that it may ask for nothing older, in any region.

use super::TableFace;
use super::cut::Cut;
use super::form::{
    check_keys, check_level, check_rows, check_seen, expected, fits, found, token_of, written,
};
use crate::entry::Asked;
use crate::ids::{Place, StreamId};
use crate::message::{Answer, Level, Op, Request as Asking};
use crate::record::Record;
use crate::tablet::Tablet;
use crate::tablets::OpenTablet;
use crate::token::Token;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Result};
use holdfast_env::net::Parts;
use holdfast_env::planted;
use holdfast_server::{Gather, Request, answer};
use holdfast_wire::table::{self as msg, Seen};
use std::sync::Arc;

/// Results, and what whoever gets them has seen by them.
pub(super) type Shown<T> = (Vec<T>, Vec<Seen>);

impl TableFace {
    pub(super) fn serve_write(self: Arc<Self>, request: Request<'_>) {
        let doing = "write to a table";
        let Some((write, body, reply)) = request.decode_with_body::<msg::Write>(doing) else {
            return;
        };
        let done = move |written: Result<Shown<msg::Written>>| {
            let told = |(written, seen): Shown<msg::Written>| {
                (seen.to_bytes(), Parts::from(written.to_bytes()))
            };
            answer(reply, written.map(told));
        };
        match Vec::<msg::Row>::from_bytes(body.as_slice()) {
            Ok(rows) => self.write_here(&write, rows, done),
            Err(e) => {
                done(Err(Error::invalid(format!("{doing}: {e}: use matching builds"))));
            }
        }
    }

    /// Writes, where the log is kept.
    pub(super) fn write_here(
        self: &Arc<Self>,
        write: &msg::Write,
        rows: Vec<msg::Row>,
        done: impl FnOnce(Result<Shown<msg::Written>>) + Send + 'static,
    ) {
        let name = write.table.clone();
        let done = move |written: Result<Shown<msg::Written>>| {
            let doing = format_args!("write to table `{}`", name.escape_debug());
            done(written.map_err(|e| e.context(doing)));
        };
        let asked = check_rows(&rows).and_then(|()| self.table(&write.table)).and_then(|tablets| {
            let size = |row: &'_ msg::Row| row.value.as_ref().map(Vec::len);
            let sizes: Vec<_> = rows.iter().map(|row| (&row.key[..], size(row))).collect();
            self.check_bytes(&sizes, &tablets).map(|()| tablets)
        });
        let tablets = match asked {
            Ok(tablets) => tablets,
            Err(e) => return done(Err(e)),
        };
        let gather = Gather::new(rows.len(), move |all: Result<Vec<(msg::Written, Seen)>>| {
            done(all.map(|all| {
                let (written, seen): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                (written, joined(seen))
            }));
        });
        for (at, row) in rows.into_iter().enumerate() {
            let msg::Row { sequence, expect, key, value } = row;
            let expect = expected(expect);
            let asked = Asked { session: write.session, sequence, below: write.below };
            let gather = gather.clone();
            let told = move |told: Result<Answer>, number: u16| {
                gather.came(at, told.and_then(|told| written(told, number)));
            };
            self.ask_of(&tablets, Asking { key, op: Op::Write { asked, value, expect } }, told);
        }
    }

    pub(super) fn serve_read(self: Arc<Self>, request: Request<'_>) {
        let Some((read, reply)) = request.decode::<msg::Read>("read a table") else { return };
        self.read_here(read, move |found| {
            let told = |(found, seen): Shown<Option<msg::Record>>| {
                (seen.to_bytes(), Parts::from(found.to_bytes()))
            };
            answer(reply, found.map(told));
        });
    }

    /// Reads, where the log is kept: of the keys from the first on as many as there is room for.
    pub(super) fn read_here(
        self: &Arc<Self>,
        read: msg::Read,
        done: impl FnOnce(Result<Shown<Option<msg::Record>>>) + Send + 'static,
    ) {
        let name = read.table.clone();
        let done = move |found: Result<Shown<Option<msg::Record>>>| {
            let doing = format_args!("read table `{}`", name.escape_debug());
            done(found.map_err(|e| e.context(doing)));
        };
        let asked = check_keys(&read.keys)
            .and_then(|()| check_seen(&read.seen))
            .and_then(|()| self.table(&read.table));
        let tablets = match asked {
            Ok(asked) => asked,
            Err(e) => return done(Err(e)),
        };
        if read.level == msg::Level::Any {
            let shown = read.keys.iter().map(|key| self.shown(&tablets, key));
            return done(bounded(shown));
        }
        let gather = Gather::new(read.keys.len(), move |found: Result<Vec<_>>| {
            done(found.and_then(|found| bounded(found.into_iter().map(Ok))));
        });
        for (at, key) in read.keys.iter().enumerate() {
            let number = tablets.number(key);
            let level = match read.level {
                msg::Level::Any => Level::Any,
                msg::Level::Critical { version } => Level::Critical(version),
                msg::Level::Latest => Level::Latest,
                msg::Level::Strong => Level::Strong,
                msg::Level::Session if read.forgot >> number & 1 == 1 => Level::Latest,
                // Whoever has seen a key where it was before a split has seen it there: the tablet that has it now began
                // with all that showed.
                msg::Level::Session => Level::Session(token_of(&read.seen, number)),
            };
            let (gather, asked) = (gather.clone(), read.level);
            let told = move |told: Result<Answer>, number: u16| {
                let found = told.and_then(found).and_then(|found| check_level(found, asked));
                gather.came(at, found.map(|found| (found, number)));
            };
            self.ask_of(&tablets, Asking { key: key.clone(), op: Op::Read(level) }, told);
        }
    }

    /// What shows under a key, and in which tablet.
    fn shown(&self, tablets: &Cut, key: &[u8]) -> Result<((Option<msg::Record>, Token), u16)> {
        let number = tablets.number(key);
        if let Some(found) = shown(&tablets[usize::from(number)], key)? {
            return Ok((found, number));
        }
        // A split has given it away meanwhile, and perhaps another one since.
        self.shown(&*self.table(tablets.name.as_str())?, key)
    }
}

/// Those from the first on that there is room for.
fn bounded(
    found: impl Iterator<Item = Result<((Option<msg::Record>, Token), u16)>>,
) -> Result<Shown<Option<msg::Record>>> {
    let (mut all, mut seen, mut bytes) = (Vec::new(), Vec::new(), 0);
    for record in found {
        let ((record, token), tablet) = record?;
        if !fits(&mut bytes, record.as_ref()) && !all.is_empty() {
            break;
        }
        all.push(record);
        let place = |(stream, place): (StreamId, Place)| Seen {
            tablet,
            stream: stream.0,
            epoch: place.epoch.0,
            number: place.number,
        };
        seen.extend(token.places().map(place));
    }
    Ok((all, joined(seen)))
}

/// Of each tablet, stream and epoch the furthest place.
pub(super) fn joined(mut seen: Vec<Seen>) -> Vec<Seen> {
    seen.sort_unstable_by_key(|s| (s.tablet, s.stream, s.epoch, std::cmp::Reverse(s.number)));
    seen.dedup_by_key(|s| (s.tablet, s.stream, s.epoch));
    seen
}

/// What shows under a key; nothing where the tablet does not have it any more.
fn shown(tablet: &OpenTablet, key: &[u8]) -> Result<Option<(Option<msg::Record>, Token)>> {
    tablet.fold().read(|view, _| {
        let look = |tablet: &Tablet| {
            let record = |record: &Record| {
                let value = record.value.as_ref()?.to_vec();
                Some(msg::Record { version: record.version, value })
            };
            let has = tablet.span().has(key) || planted!("table.read-behind-a-split");
            has.then(|| (tablet.record(key).and_then(record), tablet.seen_by(key)))
        };
        // One that was dropped a moment ago shows nothing.
        view.look(look).unwrap_or_else(|| Some(Default::default()))
    })
}
