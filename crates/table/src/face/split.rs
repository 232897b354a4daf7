//! A tablet that is split, while its table is used: its upper half is copied into the topic of another tablet, and handed
//! over to it. Each step is an entry of one of the two topics, and what is to be done next is what they have come to:
//! whoever starts anew goes on from there. One split at a time.

use super::TableFace;
use super::cut::Cut;
use crate::message::Answer;
use crate::name::{DYNAMODB, TableName};
use crate::tablet::span::{Half, Span};
use crate::tablet::split::{Next, Splitting};
use crate::tablets::OpenTablet;
use crate::view::{Child, Made, TabletView, given};
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_env::net::Parts;
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
    /// How far the last one came, so that it goes on there where a step failed.
    last: Mutex<Option<(TableName, u16, Splitting)>>,
    /// Why its last step failed: empty where it did not.
    trouble: Mutex<String>,
}

/// Nobody else carries a split on while this is there.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
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
        if name.as_str() == DYNAMODB {
            return Err(Error::unsupported(
                "all of DynamoDB's tables lie in it, and what is written together there has to lie in one tablet",
            ));
        }
        let tablets = self.table(name.as_str())?;
        let made = made_of(&tablets[0])?;
        if made.form.members.len() > 1 {
            return Err(Error::unsupported(
                "the table is in several regions, and only tables of one region are split: make another one, of more \
                 tablets",
            ));
        }
        let turn = self.splits.turn()?;
        // One that was begun is ended first, whoever has begun it.
        self.carry_on(&name)?;
        let tablets = self.table(name.as_str())?;
        if split.at == 0 || !tablets.begins_at(split.at) {
            self.begin(&tablets, split, &made)?;
            self.carry_on(&name)?;
        }
        drop(turn);
        self.info(&name)
    }

    fn begin(&self, tablets: &Cut, split: &msg::Split, made: &Made) -> Result<()> {
        let child = tablets.len() as u16;
        let parent = tablets.get(usize::from(split.tablet)).ok_or_else(|| {
            Error::invalid(format!("the table has tablets 0 to {}: name one of them", child - 1))
        })?;
        let (first, last) = tablets.span(split.tablet);
        let at = split.at;
        if !(first < at && at <= last) {
            return Err(Error::invalid(format!(
                "it has hashes {first:08x} to {last:08x}, and {at:08x} leaves one of its halves without any: split it \
                 behind its first one, up to its last one"
            )));
        }
        self.check_room(tablets, parent, at)?;
        // The other tablet begins before anything leaves this one: where that is not possible, nothing has happened.
        let open = self.open(&tablets.name, child)?;
        let begins =
            Child { made: Made { tablet: child, ..made.clone() }, span: Span::between(at, last) };
        // Of a table of this name that was dropped nothing is given to one of this.
        *self.splits.last.held() = None;
        self.append(&open, begins.command())?;
        let half = Half { at, child };
        let told = self.node.wait_for(|done| parent.split(half, done))?;
        expect_split(told)
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
            let trouble = stepped.as_ref().err().map_or(String::new(), |e| e.message.clone());
            *self.splits.trouble.held() = trouble;
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
                self.append(&open, Child { made, span }.command())
            }
            Some(Next::Give(_, pieces)) => self.append(&open, given(&pieces)),
            Some(Next::HandOver(child)) => {
                open.decide(self.settings)?;
                let told = self.node.wait_for(|done| parent.hand_over(child, done))?;
                expect_split(told)
            }
        }
    }

    /// What came of the entry, the topic tells who looks at it next.
    fn append(&self, open: &OpenTablet, entry: Vec<u8>) -> Result<()> {
        let entry = Proposal::of(Call::default(), entry, Append::Synced);
        self.node.wait_for(|done| open.fold().propose(entry, done)).map(drop)
    }
}

impl Splits {
    fn turn(&self) -> Result<Turn<'_>> {
        match self.is_carried_on.swap(true, Ordering::AcqRel) {
            false => Ok(Turn(&self.is_carried_on)),
            true => Err(Error::retry(
                "a tablet of this cluster's tables is being split: say it again in a moment",
            )),
        }
    }

    /// How far the split came that gives a half to this tablet.
    fn take(&self, name: &TableName, child: u16) -> Option<Splitting> {
        let (_, _, splitting) =
            self.last.held().take_if(|(of, number, _)| (&*of, *number) == (name, child))?;
        Some(splitting)
    }
}

fn made_of(tablet: &OpenTablet) -> Result<Made> {
    let made = tablet.fold().read(|view, _| view.made())?;
    made.ok_or_else(|| Error::retry("it was dropped meanwhile"))
}

fn expect_split(told: Answer) -> Result<()> {
    match told {
        Answer::Split => Ok(()),
        other => Err(Error::bug(format!("a split was answered {other:?}"))),
    }
}
