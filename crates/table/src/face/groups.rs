//! Records of one tablet that are written as one, and read as they show at one moment, where the log is kept.

use super::TableFace;
use super::cut::Cut;
use super::form::{check_group, expected, group_written, token_of, value_bytes};
use super::records::{Shown, joined};
use crate::entry::Asked;
use crate::message::{Answer, GroupDo, GroupWrite, Op, Request as Asking};
use crate::tablet::{Covers, Tablet};
use crate::tablets::OpenTablet;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Result};
use holdfast_env::net::Parts;
use holdfast_env::planted;
use holdfast_server::{Request, answer};
use holdfast_wire::table::{self as msg, Seen};
use std::sync::Arc;

/// What came of a group, and what whoever is told that has seen by it.
pub(super) type Told = (msg::GroupWritten, Vec<Seen>);

impl TableFace {
    pub(super) fn serve_group(self: Arc<Self>, request: Request<'_>) {
        let doing = "write a group to a table";
        let Some((group, body, reply)) = request.decode_with_body::<msg::Group>(doing) else {
            return;
        };
        let done = move |told: Result<Told>| {
            answer(reply, told.map(|(told, seen)| (seen.to_bytes(), Parts::from(told.to_bytes()))));
        };
        match Vec::<msg::GroupRow>::from_bytes(body.as_slice()) {
            Ok(rows) => self.group_here(&group, rows, done),
            Err(e) => {
                done(Err(Error::invalid(format!("{doing}: {e}: use matching builds"))));
            }
        }
    }

    /// Writes records that stand or fall together, where the log is kept.
    pub(super) fn group_here(
        self: &Arc<Self>,
        group: &msg::Group,
        rows: Vec<msg::GroupRow>,
        done: impl FnOnce(Result<Told>) + Send + 'static,
    ) {
        let name = group.table.clone();
        let done = move |told: Result<Told>| {
            let doing = format_args!("write a group to table `{}`", name.escape_debug());
            done(told.map_err(|e| e.context(doing)));
        };
        let asked = check_group(&rows).and_then(|()| {
            if group.sequence == 0 {
                return Err(Error::invalid(
                    "a group has number 0: number a session's writes from 1",
                ));
            }
            let tablets = self.table(&group.table)?;
            let writes = |row: &&msg::GroupRow| row.what != msg::GroupDo::Check;
            let sizes: Vec<_> =
                rows.iter().filter(writes).map(|row| (&row.key[..], value_bytes(row))).collect();
            self.check_bytes(&sizes, &tablets).map(|()| tablets)
        });
        let tablets = match asked {
            Ok(tablets) => tablets,
            Err(e) => return done(Err(e)),
        };
        let asked = Asked { session: group.session, sequence: group.sequence, below: group.below };
        let wanted: Vec<(msg::Expect, bool)> =
            rows.iter().map(|row| (row.expect, row.what != msg::GroupDo::Check)).collect();
        let request = Asking::group(asked, rows.into_iter().map(write_of).collect());
        self.group_of(&tablets, request, wanted, Box::new(done));
    }

    fn group_of(
        self: &Arc<Self>,
        tablets: &Cut,
        request: Asking,
        wanted: Vec<(msg::Expect, bool)>,
        done: Box<dyn FnOnce(Result<Told>) + Send>,
    ) {
        let number = tablets.number(&request.key);
        let tablet = &tablets[usize::from(number)];
        // That is so for ever, of this table: no entry has to say it. What was written before a split came between its
        // records is known all the same to whoever has the first one.
        let other = apart(tablets, &request).filter(|_| !planted!("table.group-of-two-tablets"));
        if let Some(at) = other
            && !tablet.knows(request.asked())
        {
            return done(Ok((msg::GroupWritten::OtherTablet { at: at as u16 }, Vec::new())));
        }
        let (face, name) = (self.clone(), tablets.name.clone());
        let told = move |told: Result<Answer>| match told {
            Ok(Answer::Elsewhere(request)) => match face.table(name.as_str()) {
                Ok(tablets) => face.group_of(&tablets, *request, wanted, done),
                Err(e) => done(Err(e)),
            },
            told => {
                let told = told.and_then(|told| group_written(told, number, &wanted));
                done(told.map(|(written, seen)| (written, vec![seen])));
            }
        };
        tablet.ask(request, Box::new(told));
    }

    pub(super) fn serve_read_group(self: Arc<Self>, request: Request<'_>) {
        let Some((read, reply)) = request.decode::<msg::Read>("read a group of a table") else {
            return;
        };
        self.read_group_here(read, move |found| {
            let told = |(found, seen): Shown<Option<msg::Record>>| {
                (seen.to_bytes(), Parts::from(found.to_bytes()))
            };
            answer(reply, found.map(told));
        });
    }

    /// Reads records of one tablet as they show at one moment, where the log is kept: each is as new as is asked for,
    /// and no half of a group is among them.
    pub(super) fn read_group_here(
        self: &Arc<Self>,
        read: msg::Read,
        done: impl FnOnce(Result<Shown<Option<msg::Record>>>) + Send + 'static,
    ) {
        let tablet = match self.table(&read.table).and_then(|all| tablet_of_all(&all, &read.keys)) {
            Ok(tablet) => tablet,
            Err(e) => {
                let doing = format_args!("read table `{}`", read.table.escape_debug());
                return done(Err(e.context(doing)));
            }
        };
        // What this says of one record may be older than what it says of another one; it all shows by now.
        let keys = read.keys.clone();
        self.read_here(read, move |found| {
            done(found.and_then(|(found, seen)| {
                if planted!("table.group-read-one-by-one") {
                    return Ok((found, seen));
                }
                if found.len() < keys.len() {
                    return Err(too_large());
                }
                let now = tablet
                    .1
                    .fold()
                    .read(|view, _| view.look(|shown| read_now(shown, tablet.0, &keys, &seen)))?;
                now.unwrap_or_else(|| Err(Error::retry("the table was dropped meanwhile")))
            }));
        });
    }
}

fn too_large() -> Error {
    Error::invalid(format!(
        "the records have together more than {} bytes: read fewer at once",
        msg::ANSWER_BYTES_MAX
    ))
}

/// Which of a group's records is the first one that lies in another tablet than the first.
fn apart(tablets: &Cut, request: &Asking) -> Option<usize> {
    let Op::Group { writes, .. } = &request.op else { return None };
    let number = tablets.number(&request.key);
    writes.iter().position(|write| tablets.number(&write.key) != number)
}

fn tablet_of_all(tablets: &Cut, keys: &[Vec<u8>]) -> Result<(u16, Arc<OpenTablet>)> {
    let first = keys.first().map_or(0, |key| tablets.number(key));
    match keys.iter().position(|key| tablets.number(key) != first) {
        None => Ok((first, tablets[usize::from(first)].clone())),
        Some(at) => Err(Error::invalid(format!(
            "key {at} of the group, from 0, lies in another tablet than the first one: read it by itself, or make a \
             table of one tablet"
        ))),
    }
}

/// What shows of these keys now, if it is all that was seen of them.
fn read_now(
    shown: &Tablet,
    tablet: u16,
    keys: &[Vec<u8>],
    seen: &[Seen],
) -> Result<Shown<Option<msg::Record>>> {
    if !keys.iter().all(|key| shown.span().has(key)) {
        return Err(Error::retry("its tablet was split meanwhile"));
    }
    if shown.covers(&token_of(seen, tablet)) != Covers::Yes {
        return Err(Error::retry("what another region shows of the group does not show here yet"));
    }
    let (mut found, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
    for key in keys {
        let record = shown.record(key).and_then(|record| {
            let value = record.value.as_ref()?.to_vec();
            Some(msg::Record { version: record.version, value })
        });
        if !super::form::fits(&mut bytes, record.as_ref()) && !found.is_empty() {
            return Err(too_large());
        }
        found.push(record);
        let place = |(stream, place): (crate::ids::StreamId, crate::ids::Place)| {
            super::form::seen_at(tablet, stream, place)
        };
        places.extend(shown.seen_by(key).places().map(place));
    }
    Ok((found, joined(places)))
}

fn write_of(row: msg::GroupRow) -> GroupWrite {
    let what = match row.what {
        msg::GroupDo::Put(value) => GroupDo::Put(value.into()),
        msg::GroupDo::Delete => GroupDo::Delete,
        msg::GroupDo::Check => GroupDo::Check,
    };
    GroupWrite { key: row.key, expect: expected(row.expect), what }
}
