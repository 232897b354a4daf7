//! What has shown in a table, for who follows it. Answered where records are read, so what is told there readers see.
//! Who asks waits for it, up to a while, without a thread.

use super::TableFace;
use crate::ids::{Epoch, Place, StreamId};
use crate::tablet::changes::{ChangesAt, Steps, follow};
use crate::tablet::{Shown, Tablet};
use crate::tablets::OpenTablet;
use crate::view::TabletView;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Result};
use holdfast_env::net::Parts;
use holdfast_env::{HoldMutex, planted, sometimes};
use holdfast_log::Done;
use holdfast_server::{Request, answer};
use holdfast_wire::table::{self as msg, ANSWER_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Requests that wait at once; the next one is answered as it is.
const WAITING_MAX: usize = 256;

struct Waiting {
    asked: msg::Changes,
    until_ns: u64,
    done: Done<Vec<msg::TabletChanges>>,
}

/// Who waits until something shows.
#[derive(Default)]
pub struct Watchers {
    face: OnceLock<Weak<TableFace>>,
    /// By table. Held while they are looked at: what shows meanwhile is looked at behind that.
    waiting: Mutex<BTreeMap<String, Vec<Waiting>>>,
    /// How many there are, or are about to be.
    count: AtomicUsize,
    due: Mutex<Due>,
}

/// What is to be looked at.
#[derive(Default)]
struct Due {
    /// Tables in which something may show that did not.
    tables: BTreeSet<String>,
    /// Somebody is about to look.
    is_coming: bool,
}

impl Watchers {
    pub(super) fn belong_to(&self, face: &Arc<TableFace>) {
        self.face.get_or_init(|| Arc::downgrade(face));
    }

    /// Whether anybody waits.
    pub fn are_there(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Something may show in this table that did not.
    pub fn look(&self, table: &str) {
        self.look_at(Some(table));
    }

    /// Time has passed: whoever has waited for long enough is answered.
    pub(super) fn time_passes(&self) {
        self.look_at(None);
    }

    fn look_at(&self, table: Option<&str>) {
        let face = self.face.get().and_then(Weak::upgrade);
        let Some(face) = face.filter(|_| self.are_there()) else { return };
        {
            let mut due = self.due.held();
            due.tables.extend(table.map(str::to_owned));
            if std::mem::replace(&mut due.is_coming, true) {
                return;
            }
        }
        let looks = face.clone();
        face.node.workers.run(move || {
            let due = std::mem::take(&mut *looks.watchers.due.held());
            looks.answer_waiting(&due.tables);
        });
    }
}

impl TableFace {
    pub(super) fn serve_changes(self: Arc<Self>, request: Request<'_>) {
        let Some((asked, reply)) = request.decode::<msg::Changes>("follow a table") else { return };
        self.ask_changes(asked, move |told| {
            answer(reply, told.map(|told| (Vec::new(), Parts::from(told.to_bytes()))));
        });
    }

    /// Tells what has shown since, where the log is kept: once there is something, or the time that is asked for is over.
    pub fn ask_changes(
        self: &Arc<Self>,
        asked: msg::Changes,
        done: impl FnOnce(Result<Vec<msg::TabletChanges>>) + Send + 'static,
    ) {
        let wait_ms = asked.wait_ms.min(msg::CHANGES_WAIT_MS_MAX);
        let table = asked.table.clone();
        // Before it is looked at: so nothing shows that nobody looks at.
        let has_room = self.watchers.count.fetch_add(1, Ordering::SeqCst) < WAITING_MAX
            || planted!("table.followers-without-end");
        let wait_ns = if has_room { u64::from(wait_ms) * 1_000_000 } else { 0 };
        let until_ns = self.node.machine.clock.monotonic_ns() + wait_ns;
        let waiting = Waiting { asked, until_ns, done: Box::new(done) };
        self.watchers.waiting.held().entry(table.clone()).or_default().push(waiting);
        self.watchers.look(&table);
    }

    /// Of the tables that are due all are looked at; of the others those whose time is over.
    fn answer_waiting(&self, due: &BTreeSet<String>) {
        let now_ns = self.node.machine.clock.monotonic_ns();
        let mut ready = Vec::new();
        let mut waiting = self.watchers.waiting.held();
        for (table, of_table) in waiting.iter_mut() {
            let is_due = due.contains(table) || planted!("table.changes-wake-all");
            for one in std::mem::take(of_table) {
                if one.until_ns > now_ns && !is_due {
                    of_table.push(one);
                    continue;
                }
                sometimes!("who waits for a table's changes was looked at");
                let told = self.changes(&one.asked);
                let is_empty = |told: &Vec<msg::TabletChanges>| {
                    one.asked.from.iter().eq(told.iter().map(|tablet| &tablet.at))
                };
                if one.until_ns > now_ns && told.as_ref().is_ok_and(is_empty) {
                    of_table.push(one);
                    continue;
                }
                self.watchers.count.fetch_sub(1, Ordering::SeqCst);
                let doing = format_args!("follow table `{}`", one.asked.table.escape_debug());
                ready.push((one.done, told.map_err(|e| e.context(doing))));
            }
        }
        waiting.retain(|_, of_table| !of_table.is_empty());
        drop(waiting);
        // Who is told may ask again at once.
        ready.into_iter().for_each(|(done, told)| done(told));
    }

    fn changes(&self, asked: &msg::Changes) -> Result<Vec<msg::TabletChanges>> {
        let tablets = self.table(&asked.table)?;
        if asked.from.is_empty() {
            return tablets.iter().map(|tablet| now(tablet)).collect();
        }
        if asked.from.len() > tablets.len() {
            return Err(Error::not_found("it has fewer tablets than it had: it was made anew"));
        }
        let mut left = ANSWER_BYTES_MAX as u64;
        let behind = |number: usize| {
            let from = &asked.from[number];
            if left == 0 {
                // The next answer has them.
                return Ok((msg::TabletChanges { at: from.clone(), changes: Vec::new() }, false));
            }
            let told = behind(&tablets[number], from, asked.values, left)?;
            let (changes, is_all) = told.ok_or_else(|| {
                Error::not_found(format!(
                    "what has shown in its tablet {number} since is not known any more"
                ))
            })?;
            let bytes: usize = changes.changes.iter().map(bytes).sum();
            left = left.saturating_sub(bytes as u64);
            Ok((changes, is_all))
        };
        let parent = |number: usize| {
            let has_given = |view: &TabletView| {
                view.look(|tablet| {
                    tablet.span().left.iter().any(|half| usize::from(half.child) == number)
                })
            };
            tablets.iter().position(|tablet| tablet.fold().read_last(has_given) == Some(true))
        };
        let cut_off = |number: usize| {
            cut_off(&tablets[number])?.ok_or_else(|| {
                Error::not_found(format!(
                    "its tablet {number} was cut off another one since, and what has shown there is not known any more"
                ))
            })
        };
        follow(asked.from.len(), tablets.len(), behind, parent, cut_off)
    }
}

fn bytes(change: &msg::RecordChange) -> usize {
    let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
    change.key.len() + value(&change.before) + value(&change.after)
}

/// Looks at a tablet, as it was made and with the number of its life; one that was dropped a moment ago is in none.
fn look<R>(
    open: &OpenTablet,
    look: impl FnOnce(&Tablet, &dyn Fn(ChangesAt) -> msg::ChangesAt) -> R,
) -> Result<R> {
    open.fold()
        .read(|view, _| {
            let made = view.made().map_or(0, |made| made.checksum());
            view.look(|tablet| {
                let form = [u64::from(made).to_le_bytes(), tablet.log().0.to_le_bytes()].concat();
                let form = crc32c(&form);
                let life = open.life(tablet);
                look(tablet, &|at| told(form, life, at))
            })
        })?
        .ok_or_else(|| Error::not_found("it was dropped"))
}

fn now(open: &OpenTablet) -> Result<msg::TabletChanges> {
    look(open, |tablet, told| msg::TabletChanges {
        at: told(tablet.changes_now()),
        changes: Vec::new(),
    })
}

fn behind(
    open: &OpenTablet,
    from: &msg::ChangesAt,
    values: bool,
    bytes_max: u64,
) -> Result<Option<(msg::TabletChanges, bool)>> {
    look(open, |tablet, told| {
        let here = told(tablet.changes_now());
        let next = match here.life == from.life {
            true => Some(from.next),
            false if here.form != from.form => None,
            false => tablet.changes_resume(&seen(&from.seen)),
        };
        let Steps { changes, at, is_cut } =
            tablet.changes_behind(next?, msg::CHANGES_MAX, bytes_max)?;
        let value = |value: Option<crate::ids::Value>| value.filter(|_| values).map(|v| v.to_vec());
        let changes = changes.into_iter().map(|change| msg::RecordChange {
            key: change.key,
            before: value(change.before),
            after: value(change.after),
        });
        Some((msg::TabletChanges { at: told(at), changes: changes.collect() }, !is_cut))
    })
}

/// Where a tablet is followed from by who has followed the one that it was cut off.
fn cut_off(open: &OpenTablet) -> Result<Option<msg::TabletChanges>> {
    look(open, |tablet, told| {
        let at = told(tablet.changes_cut_off()?);
        Some(msg::TabletChanges { at, changes: Vec::new() })
    })
}

fn told(form: u32, life: u64, at: ChangesAt) -> msg::ChangesAt {
    let shown = |(stream, shown): (StreamId, Shown)| msg::ShownAt {
        stream: stream.0,
        epoch: shown.place.epoch.0,
        number: shown.place.number,
        digest: shown.digest,
    };
    let seen = at.seen.into_iter().map(shown).collect();
    msg::ChangesAt { form, life, next: at.next, seen }
}

fn seen(seen: &[msg::ShownAt]) -> Vec<(StreamId, Shown)> {
    let shown = |at: &msg::ShownAt| {
        let place = Place::new(Epoch(at.epoch), at.number);
        (StreamId(at.stream), Shown { place, digest: at.digest })
    };
    seen.iter().map(shown).collect()
}
