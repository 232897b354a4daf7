//! A tablet that is split, while its table is used: its upper half is copied into the topic of another tablet, and handed
//! over to it. Each step is an entry of one of the two topics, and what is to be done next is what they have come to:
//! whoever starts anew goes on from there. One split at a time.

use super::cut::Cut;
use super::{Done, TableFace};
use crate::message::Answer;
use crate::name::{DYNAMODB, TableName};
use crate::tablet::span::{Half, Span};
use crate::tablet::split::{Next, Splitting};
use crate::tablets::OpenTablet;
use crate::view::{Child, Made, TabletView, given};
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::Parts;
use holdfast_env::{HoldMutex, event, planted, sometimes};
use holdfast_log::Mode as Append;
use holdfast_server::{Request, answer};
use holdfast_view::Request as Proposal;
use holdfast_wire::Call;
use holdfast_wire::table::{self as msg, TABLETS_MAX};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What this node knows of splits beside what the topics say.
#[derive(Default)]
pub(super) struct Splits {
    /// Somebody carries one on.
    is_carried_on: AtomicBool,
    /// Who asked for another one meanwhile was told of.
    has_queue: AtomicBool,
    /// Tables that are being dropped, once for each who does: none of them is split. Held while a step is proposed, so that what was proposed
    /// before a table is here lies in front of the entries that drop it.
    dropping: Mutex<Vec<TableName>>,
    /// How far the last one came, so that it goes on there where a step failed.
    last: Mutex<Option<(TableName, u16, Splitting)>>,
    /// Why its last step failed: empty where it did not.
    trouble: Mutex<String>,
}

/// Nobody else carries a split on while this is there.
struct Turn<'a>(&'a Splits);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.has_queue.store(false, Ordering::Release);
        self.0.is_carried_on.store(false, Ordering::Release);
    }
}

/// A table is not split while this is there.
pub(super) struct Unsplit<'a>(&'a Splits, TableName);

impl Drop for Unsplit<'_> {
    fn drop(&mut self) {
        let mut dropping = self.0.dropping.held();
        if let Some(at) = dropping.iter().position(|name| *name == self.1) {
            dropping.swap_remove(at);
        }
    }
}

impl TableFace {
    pub(super) fn serve_split(self: Arc<Self>, request: Request<'_>) {
        let Some((split, reply)) = request.decode::<msg::Split>("split a tablet") else { return };
        self.ask_split(split, move |told| {
            answer(reply, told.map(|info| (info.to_bytes(), Parts::None)));
        });
    }

    /// Splits a tablet, where the log is kept: answered once both halves are served.
    pub fn ask_split(
        self: &Arc<Self>,
        split: msg::Split,
        done: impl FnOnce(Result<msg::TableInfo>) + Send + 'static,
    ) {
        let face = self.clone();
        self.node.workers.run(move || {
            let doing = format_args!(
                "split tablet {} of table `{}`",
                split.tablet,
                split.table.escape_debug()
            );
            done(face.split(&split).map_err(|e| e.context(doing)));
        });
    }

    fn split(&self, split: &msg::Split) -> Result<msg::TableInfo> {
        self.check_log()?;
        let name = TableName::new(&split.table)?;
        if name.as_str() == DYNAMODB && !planted!("table.split-of-dynamodb") {
            return Err(Error::unsupported(
                "all of DynamoDB's tables lie in it, and what is written together there has to lie in one tablet",
            ));
        }
        check_regions(&*self.table(name.as_str())?)?;
        let turn = self.splits.turn().inspect_err(|e| self.splits.tell_queued(split, e))?;
        // One that was begun is ended first, whoever has begun it.
        self.carry_on(&name)?;
        let tablets = self.table(name.as_str())?;
        if !is_split(&tablets, split)? {
            self.begin(&tablets, split)?;
            self.carry_on(&name)?;
            // One that was made in its place since has other tablets, or those that it was made with.
            if !is_split(&*self.table(name.as_str())?, split)? {
                return Err(Error::not_found("it was dropped meanwhile, and made anew"));
            }
        }
        drop(turn);
        self.info(&name)
    }

    fn begin(&self, tablets: &Cut, split: &msg::Split) -> Result<()> {
        let made = check_regions(tablets)?;
        let child = tablets.len() as u16;
        let parent = parent_of(tablets, split)?;
        let (first, last) = tablets.span(split.tablet);
        let at = split.at;
        if first == last {
            return Err(Error::invalid(format!(
                "it has the hash {first:08x} alone, and nothing to give away"
            )));
        }
        if !(first < at && at <= last) {
            return Err(Error::invalid(format!(
                "it has hashes {first:08x} to {last:08x}, and {at:08x} leaves one of its halves without any: split it \
                 behind its first one, up to its last one"
            )));
        }
        self.check_room(tablets, parent, at)?;
        // The other tablet begins before anything leaves this one: where that is not possible, nothing has happened.
        let open = self.open(&tablets.name, child)?;
        let begins = Child { made: Made { tablet: child, ..made }, span: Span::between(at, last) };
        // Of a table of this name that was dropped nothing is given to one of this.
        *self.splits.last.held() = None;
        self.append(&tablets.name, &open, begins.command())?;
        self.decide(&tablets.name, |done| parent.split(Half { at, child }, done))
    }

    /// One more tablet is to have room among those of the table, and of the cluster; and what is copied, in memory.
    fn check_room(&self, tablets: &Cut, parent: &OpenTablet, at: u32) -> Result<()> {
        let count = tablets.len();
        if count >= usize::from(TABLETS_MAX) {
            return Err(Error::invalid(format!(
                "the table has {count} tablets, and {TABLETS_MAX} are the most"
            )));
        }
        self.check_size(&tablets.name, count as u16 + 1)?;
        let look = |view: &TabletView| view.look(|tablet| tablet.bytes_from(at));
        let copied = parent.fold().read_last(look).unwrap_or(0);
        let held: u64 = self.held().iter().map(|(_, held)| held.bytes).sum();
        match held + copied <= self.bytes_max {
            true => Ok(()),
            false => Err(Error::full(format!(
                "{copied} bytes of it are in memory twice until the other tablet has them, and the tables of this node \
                 have {held} bytes and may have {}: delete records, or give them more (`tables_memory`)",
                self.bytes_max
            ))),
        }
    }

    /// Carries on what splits the topics say were begun, where nobody does: a start, or a failure, came in between.
    pub(super) fn go_on_with_splits(self: &Arc<Self>) {
        let is_leaving = |open: &Arc<OpenTablet>| {
            let leaves = |view: &TabletView| view.look(|tablet| tablet.span().leaving.is_some());
            open.fold().read_last(leaves) == Some(true)
        };
        let tables = self.tables.held().clone();
        let begun = tables.into_iter().find(|(_, tablets)| tablets.values().any(is_leaving));
        let Some((name, _)) = begun else { return };
        if self.splits.is_carried_on.load(Ordering::Acquire) {
            return;
        }
        let face = self.clone();
        self.node.workers.run(move || {
            let Ok(_turn) = face.splits.turn() else { return };
            // Why it failed is kept, and the next round tries again.
            let _ = face.carry_on(&name);
        });
    }

    /// Ends the split of the table that was begun, if there is one.
    fn carry_on(&self, name: &TableName) -> Result<()> {
        loop {
            // It may be dropped between two steps.
            let tablets = self.table(name.as_str())?;
            let leaving = |open: &Arc<OpenTablet>| {
                let half = |view: &TabletView| view.look(|tablet| tablet.span().leaving).flatten();
                open.fold().read_last(half)
            };
            let begun = tablets.iter().enumerate().find_map(|(at, of)| Some((at, leaving(of)?)));
            let Some((number, half)) = begun else { return Ok(()) };
            let mut splitting = self
                .splits
                .take(name, half.child)
                .unwrap_or_else(|| Splitting::new(self.node.machine.rng.next_u64()));
            let stepped = self.step(&tablets, number, half.child, &mut splitting);
            *self.splits.last.held() = Some((name.clone(), half.child, splitting));
            self.splits.came_to(name, number, &stepped);
            stepped?;
        }
    }

    /// What a tablet is giving away, for people.
    pub(super) fn split_info(&self, half: Half) -> msg::SplitInfo {
        let trouble = self.splits.trouble.held().clone();
        msg::SplitInfo { at: half.at, into: half.child, trouble }
    }

    fn step(
        &self,
        tablets: &Cut,
        number: usize,
        child: u16,
        splitting: &mut Splitting,
    ) -> Result<()> {
        let parent = &tablets[number];
        let open = self.open(&tablets.name, child)?;
        let growth = open.fold().read(|view, _| view.growth())?;
        let next = parent.fold().read(|view, _| {
            view.look(|tablet| splitting.next(tablet, &growth)).unwrap_or(Ok(None))
        })??;
        match next {
            None => Ok(()),
            Some(Next::Begin(child, span)) => {
                let made = Made { tablet: child, ..made_of(parent)? };
                self.append(&tablets.name, &open, Child { made, span }.command())
            }
            Some(Next::Give(_, pieces)) => self.append(&tablets.name, &open, given(&pieces)),
            Some(Next::HandOver(child)) => {
                open.decide(self.settings)?;
                self.decide(&tablets.name, |done| parent.hand_over(child, done))
            }
        }
    }

    /// What came of the entry, the topic tells who looks at it next.
    fn append(&self, name: &TableName, open: &OpenTablet, entry: Vec<u8>) -> Result<()> {
        let entry = Proposal::of(Call::default(), entry, Append::Synced);
        self.node
            .wait_for(|done| {
                self.splits.propose(name, done, |done| open.fold().propose(entry, done))
            })
            .map(drop)
    }

    fn decide(&self, name: &TableName, decide: impl FnOnce(Done<Answer>)) -> Result<()> {
        let told = self.node.wait_for(|done| self.splits.propose(name, done, decide))?;
        match told {
            Answer::Split => Ok(()),
            other => Err(Error::bug(format!("a split was answered {other:?}"))),
        }
    }

    /// None of the table's tablets is split any more, while it is dropped: what was proposed for that is in front of
    /// what drops them.
    pub(super) fn end_splits(&self, name: &TableName) -> Unsplit<'_> {
        self.splits.dropping.held().push(name.clone());
        Unsplit(&self.splits, name.clone())
    }
}

impl Splits {
    fn turn(&self) -> Result<Turn<'_>> {
        match self.is_carried_on.swap(true, Ordering::AcqRel)
            && !planted!("table.two-splits-at-once")
        {
            false => Ok(Turn(self)),
            true => Err(Error::retry(
                "a tablet of this cluster's tables is being split: say it again in a moment",
            )),
        }
    }

    /// Once for each that is under way.
    fn tell_queued(&self, split: &msg::Split, why: &Error) {
        if !self.has_queue.swap(true, Ordering::AcqRel) {
            event!(SplitQueued, why.message, table = split.table, tablet = split.tablet);
        }
    }

    /// Proposes a step, unless the table is being dropped.
    fn propose<T>(&self, name: &TableName, done: Done<T>, propose: impl FnOnce(Done<T>)) {
        let dropping = self.dropping.held();
        if !dropping.contains(name) || planted!("table.split-while-dropped") {
            return propose(done);
        }
        drop(dropping);
        sometimes!("a tablet was to be split whose table was being dropped");
        done(Err(Error::not_found(format!("use table `{name}`: it is being dropped"))));
    }

    /// How far the split came that gives a half to this tablet.
    fn take(&self, name: &TableName, child: u16) -> Option<Splitting> {
        let (_, _, splitting) =
            self.last.held().take_if(|(of, number, _)| (&*of, *number) == (name, child))?;
        Some(splitting)
    }

    /// Tells when a split has to wait, and when it goes on. One whose table is dropped does neither.
    fn came_to(&self, name: &TableName, tablet: usize, stepped: &Result<()>) {
        let now = match stepped {
            Err(e) if e.kind != Kind::NotFound => e.message.clone(),
            _ => String::new(),
        };
        let before = std::mem::replace(&mut *self.trouble.held(), now.clone());
        if before.is_empty() && !now.is_empty() {
            event!(SplitWaits, now, table = name.as_str(), tablet);
        } else if !before.is_empty() && stepped.is_ok() {
            event!(SplitGoesOn, "it goes on", table = name.as_str(), tablet);
        }
    }
}

fn made_of(tablet: &OpenTablet) -> Result<Made> {
    let made = tablet.fold().read(|view, _| view.made())?;
    made.ok_or_else(|| Error::retry("it was dropped meanwhile"))
}

/// As what the table was made, if it is in one region.
fn check_regions(tablets: &Cut) -> Result<Made> {
    let made = made_of(&tablets[0])?;
    match made.form.members.len() {
        1 => Ok(made),
        _ if planted!("table.split-in-regions") => Ok(made),
        _ => Err(Error::unsupported(
            "the table is in several regions, and only tables of one region are split: make another one, of more \
             tablets",
        )),
    }
}

fn parent_of<'a>(tablets: &'a Cut, split: &msg::Split) -> Result<&'a Arc<OpenTablet>> {
    tablets.get(usize::from(split.tablet)).ok_or_else(|| {
        let last = tablets.len() - 1;
        Error::invalid(format!("the table has tablets 0 to {last}: name one of them"))
    })
}

/// Whether the tablet was split there: it is said again, since nobody heard what came of it.
fn is_split(tablets: &Cut, split: &msg::Split) -> Result<bool> {
    if planted!("table.split-of-any-tablet") {
        return Ok(tablets.begins_at(split.at));
    }
    let has_given = |view: &TabletView| {
        view.look(|tablet| tablet.span().left.iter().any(|half| half.at == split.at))
    };
    Ok(parent_of(tablets, split)?.fold().read_last(has_given) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::events::told_by;

    /// The events of a split whose steps come to this, one after another.
    fn told(steps: &[Result<()>]) -> Vec<(&'static str, String)> {
        let name = TableName::new("users").unwrap();
        let splits = Splits::default();
        let ((), told) = told_by(|| steps.iter().for_each(|step| splits.came_to(&name, 3, step)));
        for told in &told {
            let fields: Vec<String> =
                told.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(fields, ["table=\"users\"", "tablet=3"], "{told}");
        }
        told.into_iter().map(|told| (told.event, told.message)).collect()
    }

    /// Ten times a second it is tried again.
    #[test]
    fn a_split_that_waits_for_room_says_so_once_and_once_that_it_goes_on() {
        let full = || Err(Error::full("the log has no room"));
        let waits = || ("table.split-waits", "the log has no room".to_owned());
        let goes_on = || ("table.split-goes-on", "it goes on".to_owned());
        assert_eq!(told(&[Ok(()), full(), full(), full()]), [waits()]);
        assert_eq!(told(&[full(), Ok(()), Ok(()), full()]), [waits(), goes_on(), waits()]);
        // One whose table is dropped neither waits nor goes on, and nor does the next one for it.
        let gone = || Err(Error::not_found("it was dropped"));
        assert_eq!(told(&[full(), gone(), Ok(())]), [waits()]);
    }

    #[test]
    fn who_asks_for_a_split_while_another_one_is_under_way_is_told_of_once() {
        let splits = Splits::default();
        let split = msg::Split { table: "users".into(), tablet: 3, at: 1 };
        let ask = || splits.turn().inspect_err(|e| splits.tell_queued(&split, e));
        let ((), told) = told_by(|| {
            for _ in 0..2 {
                let turn = ask().expect("nobody splits anything");
                for _ in 0..3 {
                    assert_eq!(ask().err().unwrap().kind, Kind::Retry);
                }
                drop(turn);
            }
        });
        let told: Vec<String> = told.iter().map(ToString::to_string).collect();
        let line = "info table.split-queued table=users tablet=3: a tablet of this cluster's tables is being split: \
                    say it again in a moment";
        assert_eq!(told, [line, line]);
    }
}
