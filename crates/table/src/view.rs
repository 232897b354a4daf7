//! A tablet's topic as a view of a node: the entry that makes it, then those of its region's log. On
//! the node that keeps the log a [`Region`] decides around it; on every other one it only follows.

use crate::entry::{Entry, SPLITS, VERSION};
use crate::ids::{LogId, RegionId};
use crate::region::{Region, Settings};
use crate::stream::Accepted;
use crate::tablet::span::Span;
use crate::tablet::split::Growing;
use crate::tablet::{Form, Tablet};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::{HoldRwLock, planted};
use holdfast_view::{Apart, Applied, Context, View};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

mod grows;

pub use grows::{Child, given};

/// The kinds of entries in front of those of a tablet, told apart from [`Entry`]'s: what makes it, and what
/// numbers the log of one that is to be in several regions.
const MADE: u8 = 6;
const PREPARED: u8 = 8;
/// The tablet is dropped.
const DROPPED: u8 = 11;
const _: () = assert!(SPLITS < grows::CHILD && grows::CHILD < grows::PIECES);
/// The last kind that this build knows.
const LAST: u8 = grows::PIECES;

/// Tablets of a topic that were dropped and are remembered, the last ones: a region that was away for longer than
/// so many tables of one name goes on with its own.
const DROPPED_MAX: usize = 8;

/// How often tablets of this process became others: see [`shapes`].
static SHAPES: AtomicU64 = AtomicU64::new(0);

/// How often a tablet of this process was opened, made or dropped, or gave a part of its hashes away. While that stays,
/// so does what a table consists of: who answers a request need not look at each of its tablets for it.
pub fn shapes() -> u64 {
    SHAPES.load(Ordering::Acquire)
}

/// One became another one, and can be seen as that.
pub(crate) fn reshaped() {
    SHAPES.fetch_add(1, Ordering::Release);
}

/// Whether an entry of this kind may make a tablet another one.
fn reshapes(kind: u8) -> bool {
    matches!(kind, MADE | PREPARED | DROPPED) || kind >= SPLITS
}

/// What a tablet is, said by the first entry of its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    pub form: Form,
    /// Whose topic it is.
    pub region: RegionId,
    /// Which tablet of the table it is, from 0, and of how many: keys' hashes are divided among them.
    pub tablet: u16,
    pub tablets: u16,
}
codec_struct!(Made { form, region, tablet, tablets });

impl Made {
    /// The entry's bytes.
    pub fn command(&self) -> Vec<u8> {
        let mut out = vec![VERSION, MADE];
        self.encode(&mut out);
        out
    }

    fn of_command(command: &[u8], kind: u8) -> Option<Result<Made, DecodeError>> {
        let body = command.strip_prefix(&[VERSION, kind])?;
        let mut reader = Reader::new(body);
        Some(Made::decode(&mut reader).and_then(|made| reader.finish().map(|()| made)))
    }

    /// Its hashes, as the table was made; nothing for one that was cut off another one since.
    fn span(&self) -> Option<Span> {
        (self.tablet < self.tablets).then(|| Span::of(self.tablet, self.tablets))
    }

    /// As it is the same in all regions.
    fn everywhere(&self) -> Made {
        Made { region: RegionId::default(), ..self.clone() }
    }

    /// What tells messages of this tablet from those of another one of its name.
    pub fn checksum(&self) -> u32 {
        crc32c(&self.everywhere().to_bytes())
    }

    /// Whether no other tablet was ever made so: its logs have numbers that nobody else drew.
    fn is_unique(&self) -> bool {
        self.form.members.len() > 1
    }
}

/// The entry by which a tablet that was made so is dropped; where there is none, it is never made.
pub fn dropped(made: &Made) -> Vec<u8> {
    let mut out = vec![VERSION, DROPPED];
    made.everywhere().encode(&mut out);
    out
}

/// The entry that gives a topic's log its number, before a tablet in several regions is made: so the form can
/// name the logs that count. An erased log draws another one, which no form names.
pub fn prepared(log: LogId) -> Vec<u8> {
    let mut out = vec![VERSION, PREPARED];
    log.encode(&mut out);
    out
}

fn of_prepared(command: &[u8]) -> Option<Result<LogId, DecodeError>> {
    let body = command.strip_prefix(&[VERSION, PREPARED])?;
    let mut reader = Reader::new(body);
    Some(LogId::decode(&mut reader).and_then(|log| reader.finish().map(|()| log)))
}

#[cfg_attr(test, derive(Clone))]
enum State {
    Unmade,
    /// The log has a number.
    Prepared(LogId),
    /// It is being given a half of another tablet.
    Grows {
        child: Child,
        growing: Box<Growing>,
    },
    Follows {
        made: Made,
        tablet: Box<Tablet>,
    },
    Decides {
        made: Made,
        region: Box<Region>,
    },
}

/// What a topic has come to.
#[cfg_attr(test, derive(Clone))]
struct Topic {
    state: State,
    /// Tablets that were dropped here, and are never made again, as of any region.
    dropped: Vec<Made>,
}

/// See the module. The lock is a reader's of the fold: who asks the region to decide holds the fold
/// for reading, and entries are applied by nobody meanwhile.
pub struct TabletView(RwLock<Topic>);

impl TabletView {
    /// What it was made as; nothing before that.
    pub fn made(&self) -> Option<Made> {
        self.0.held_shared().state.tablet().map(|(made, _)| made.clone())
    }

    /// Looks at what is held and shown.
    pub fn look<R>(&self, look: impl FnOnce(&Tablet) -> R) -> Option<R> {
        self.0.held_shared().state.tablet().map(|(_, tablet)| look(tablet))
    }

    /// The number of the topic's log, if it has one.
    pub fn log(&self) -> Option<LogId> {
        match &self.0.held_shared().state {
            State::Prepared(log) => Some(*log),
            state => state.tablet().map(|(_, tablet)| tablet.log()),
        }
    }

    /// From here on a region decides, unless one does; whether there is a tablet to decide about. `start` is
    /// the index of an entry that was appended since the last start: so no other one of this log has it.
    /// Nothing where there is no other region, and so nobody who would answer what an earlier start has asked.
    pub fn decide(&self, settings: Settings, start: Option<Index>) -> bool {
        let mut topic = self.0.held_alone();
        topic.state = match std::mem::replace(&mut topic.state, State::Unmade) {
            State::Follows { made, tablet } if start.is_some() || made.form.members.len() == 1 => {
                // An erased log has no tablet; one that was made anew has a number of its own.
                let log = tablet.log();
                let start = number_of_start(log, start.map_or(tablet.applied(), |index| index.0));
                let region = Box::new(Region::start(*tablet, log, start, settings));
                State::Decides { made, region }
            }
            state => state,
        };
        matches!(topic.state, State::Decides { .. })
    }

    /// Whether there was a tablet that is dropped, and none was made since.
    pub fn was_dropped(&self) -> bool {
        let topic = self.0.held_shared();
        topic.state.tablet().is_none() && !topic.dropped.is_empty()
    }

    /// Whether a tablet that was made so is dropped here, whatever its region.
    pub fn has_dropped(&self, made: &Made) -> bool {
        self.0.held_shared().has_dropped(made)
    }

    /// The tablet of this checksum, if it is dropped here and other regions may have it.
    pub fn dropped_as(&self, checksum: u32) -> Option<Made> {
        let topic = self.0.held_shared();
        let is = |made: &&Made| made.is_unique() && made.checksum() == checksum;
        topic.dropped.iter().find(is).cloned()
    }

    /// Has the region do something, if one decides here.
    pub fn with_region<R>(&self, with: impl FnOnce(&mut Region) -> R) -> Option<R> {
        match &mut self.0.held_alone().state {
            State::Decides { region, .. } => Some(with(region)),
            State::Unmade | State::Prepared(_) | State::Grows { .. } | State::Follows { .. } => {
                None
            }
        }
    }
}

/// The number of a start, unlike that of any other start of the region. An entry's index alone is not: the
/// starts of an erased log had the same ones, and what they asked for is still in streams that the new one is
/// sent. Of one log no two are the same, since a checksum tells four bytes from four others.
fn number_of_start(log: LogId, index: u64) -> u64 {
    if planted!("table.start-without-log") {
        return index;
    }
    if planted!("table.start-number-again") {
        return 1;
    }
    u64::from(crc32c(&[log.0.to_le_bytes(), index.to_le_bytes()].concat()))
}

impl Topic {
    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        match of_prepared(command) {
            Some(Ok(log)) => return self.state.prepare(log),
            Some(Err(e)) => {
                return Applied::Refused(Error::from(e).context("number a tablet's log"));
            }
            None => {}
        }
        match Made::of_command(command, DROPPED) {
            Some(Ok(made)) => return self.drop_tablet(made),
            Some(Err(e)) => return Applied::Refused(Error::from(e).context("drop a tablet")),
            None => {}
        }
        if let Some(applied) = self.state.apply_growing(index, command) {
            return applied;
        }
        match Made::of_command(command, MADE) {
            Some(Ok(made)) => self.make(index, made),
            Some(Err(e)) => Applied::Refused(Error::from(e).context("make a tablet")),
            None => match self.state.apply(index.0, command) {
                Ok(accepted) => Applied::Ok(encode(accepted)),
                Err(e) => Applied::Refused(e),
            },
        }
    }

    fn has_dropped(&self, made: &Made) -> bool {
        made.is_unique() && self.dropped.contains(&made.everywhere())
    }

    fn make(&mut self, index: Index, made: Made) -> Applied {
        if self.has_dropped(&made) && !planted!("table.dropped-is-made-again") {
            return Applied::Refused(Error::invalid(
                "make a tablet: a table that was made so is dropped, and this is another region's answer to who \
                 does not know it yet: say it again",
            ));
        }
        self.state.make(index, made)
    }

    /// All that it has goes: records, streams, what clients were told.
    fn drop_tablet(&mut self, made: Made) -> Applied {
        let made = made.everywhere();
        match self.state.tablet() {
            Some((own, _)) if own.everywhere() != made => {
                return Applied::Refused(Error::not_found("drop a tablet: it was made otherwise"));
            }
            Some(_) => self.state = State::Unmade,
            None => self.state.drop_growing(&made),
        }
        if !self.dropped.contains(&made) {
            self.dropped.push(made);
            let many = self.dropped.len().saturating_sub(DROPPED_MAX);
            self.dropped.drain(..many);
        }
        Applied::Ok(Vec::new())
    }
}

#[cfg(test)]
impl Clone for TabletView {
    fn clone(&self) -> TabletView {
        TabletView(RwLock::new(self.0.held_shared().clone()))
    }
}

fn encode(accepted: Accepted) -> Vec<u8> {
    vec![match accepted {
        Accepted::Yes => 1,
        Accepted::Fenced => 2,
        Accepted::Gap => 3,
    }]
}

impl State {
    fn tablet(&self) -> Option<(&Made, &Tablet)> {
        match self {
            State::Unmade | State::Prepared(_) | State::Grows { .. } => None,
            State::Follows { made, tablet } => Some((made, tablet)),
            State::Decides { made, region } => Some((made, region.tablet())),
        }
    }

    fn prepare(&mut self, log: LogId) -> Applied {
        match self {
            State::Unmade if log != LogId(0) => {
                *self = State::Prepared(log);
                Applied::Ok(Vec::new())
            }
            _ => Applied::Refused(Error::exists("number a tablet's log: it has a number already")),
        }
    }

    fn make(&mut self, index: Index, made: Made) -> Applied {
        if self.tablet().is_some() {
            return Applied::Refused(Error::exists("make a tablet: it is made already"));
        }
        let Some(own) = made.form.members.iter().find(|member| member.region == made.region) else {
            return Applied::Refused(Error::invalid("make a tablet: it is in none of its regions"));
        };
        let Some(span) = made.span() else {
            return Applied::Refused(Error::invalid("make a tablet: its table has fewer"));
        };
        let log = match self {
            State::Prepared(_) if planted!("table.erased-log-named-by-form") => own.log,
            State::Prepared(log) => *log,
            // Of one region, nobody counts logs.
            _ if made.form.members.len() == 1 => own.log,
            _ => {
                let why = "make a tablet in several regions: its log has no number yet";
                return Applied::Refused(Error::invalid(why));
            }
        };
        let mut tablet = Box::new(Tablet::made(&made.form, made.region, log));
        tablet.take_span(span);
        tablet.is_made_at(index.0);
        *self = State::Follows { made, tablet };
        Applied::Ok(Vec::new())
    }

    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Accepted> {
        match self {
            State::Unmade | State::Prepared(_) | State::Grows { .. } => {
                Err(Error::invalid("write to a tablet: it is not made yet"))
            }
            State::Follows { tablet, .. } => {
                let accepted = tablet.apply(index, command, &mut Vec::new())?.accepted;
                tablet.forget_entries();
                Ok(accepted)
            }
            State::Decides { region, .. } => region.appended(index, command),
        }
    }
}

/// What a snapshot begins with.
const UNMADE_STATE: u8 = 0;
const MADE_STATE: u8 = 1;
const PREPARED_STATE: u8 = 2;
/// Tablets that were dropped, and behind them one of the others.
const DROPPED_STATE: u8 = 3;
/// One that is being given a half of another one.
const GROWS_STATE: u8 = 4;
/// One that has other keys than it was made with.
const SPLIT_STATE: u8 = 5;

fn write_dropped(dropped: &Vec<Made>, out: &mut Writer<'_>) {
    if !dropped.is_empty() {
        out.put(&DROPPED_STATE);
        out.put(dropped);
    }
}

/// Of a tablet that is made.
fn write(
    made: &Made,
    tablet: &Tablet,
    out: &mut Writer<'_>,
    goes_on: &mut dyn FnMut() -> Result<()>,
) {
    if made.span().as_ref() == Some(tablet.span()) {
        out.put(&MADE_STATE);
    } else {
        out.put(&SPLIT_STATE);
        out.put(tablet.span());
    }
    out.put(made);
    tablet.snapshot_while(out, goes_on);
}

/// The inverse, behind the span.
fn restore_made(span: Option<Span>, source: &mut Source<'_>) -> Result<State> {
    let made: Made = source.get()?;
    let mut tablet = Box::new(Tablet::restore(&made.form, made.region, source)?);
    let span = span.or_else(|| made.span());
    tablet.take_span(span.ok_or_else(|| Error::corrupt("restore a tablet: it has no keys"))?);
    Ok(State::Follows { made, tablet })
}

impl View for TabletView {
    const NAME: &'static str = "tablet";
    const VERSION: u32 = 1;
    const WEIGHS: bool = true;

    fn begin(_: &Context) -> TabletView {
        TabletView(RwLock::new(Topic { state: State::Unmade, dropped: Vec::new() }))
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        if let Some(version) = command.first().filter(|version| **version != VERSION) {
            return Applied::UnknownVersion(format!("version {version} of a tablet's entry"));
        }
        if let Some(tag) = command.get(1).filter(|tag| **tag > LAST) {
            return Applied::UnknownVersion(format!("tag {tag} of a tablet's entry"));
        }
        let applied = self.0.held_alone().apply(index, command);
        let may_reshape = command.get(1).is_some_and(|kind| reshapes(*kind));
        // Nobody reads this view yet.
        if may_reshape && !planted!("table.tablets-as-they-were") {
            reshaped();
        }
        applied
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        let topic = self.0.held_shared();
        write_dropped(&topic.dropped, out);
        match &topic.state {
            State::Unmade => out.put(&UNMADE_STATE),
            State::Prepared(log) => {
                out.put(&PREPARED_STATE);
                out.put(log);
            }
            State::Grows { child, growing } => grows::write(child, growing, out),
            State::Follows { made, tablet } => write(made, tablet, out, &mut || Ok(())),
            State::Decides { made, region } => write(made, region.tablet(), out, &mut || Ok(())),
        }
    }

    /// As it is now, written while others go on: values are shared, so what is copied is little.
    fn snapshot_apart(&self) -> Option<Apart> {
        let topic = self.0.held_shared();
        let (made, tablet) = topic.state.tablet()?;
        let (dropped, made, tablet) = (topic.dropped.clone(), made.clone(), tablet.clone());
        Some(Box::new(move |out, goes_on| {
            write_dropped(&dropped, out);
            write(&made, &tablet, out, goes_on);
        }))
    }

    fn describe(command: &[u8]) -> String {
        if let Some(Ok(made)) = Made::of_command(command, MADE) {
            return format!("tablet {} of {} is made", made.tablet, made.tablets);
        }
        if let Some(Ok(made)) = Made::of_command(command, DROPPED) {
            return format!("tablet {} of {} is dropped", made.tablet, made.tablets);
        }
        if let Some(Ok(log)) = of_prepared(command) {
            return format!("the log is log {}", log.0);
        }
        if let Some(text) = grows::describe(command) {
            return text;
        }
        match Entry::from_bytes(command) {
            Ok(Entry::Log(log)) => format!("the log is log {} from here on", log.0),
            Ok(Entry::Decided { stream, entry }) => {
                format!("entry {} of home {} is decided", entry.place, stream.0)
            }
            Ok(Entry::Followed { stream, entries, .. }) => {
                format!("{} entries of home {} are followed", entries.len(), stream.0)
            }
            Ok(Entry::Promised { stream, epoch }) => {
                format!("home {} is promised to region {}", stream.0, epoch.leader().0)
            }
            Ok(Entry::Checked { stream, .. }) => format!("home {} is still led here", stream.0),
            Ok(Entry::Settled(settled)) => {
                format!("of {} homes it is known what all regions show", settled.len())
            }
            Ok(Entry::Image(part)) => {
                format!("part {} of an image of region {}", part.number, part.image.region.0)
            }
            Ok(Entry::Lost { region, is_lost: true }) => format!("{region} is called lost"),
            Ok(Entry::Lost { region, is_lost: false }) => format!("{region} is not lost any more"),
            Err(_) => format!("an entry of {} bytes", command.len()),
        }
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<TabletView> {
        let (mut kind, mut dropped) = (source.get::<u8>()?, Vec::new());
        if kind == DROPPED_STATE {
            dropped = source.get()?;
            kind = source.get()?;
        }
        let state = match kind {
            UNMADE_STATE => State::Unmade,
            PREPARED_STATE => State::Prepared(source.get()?),
            MADE_STATE => restore_made(None, source)?,
            SPLIT_STATE => restore_made(Some(source.get()?), source)?,
            GROWS_STATE => State::restore_growing(source)?,
            _ => return Err(Error::corrupt("restore a tablet: its state is none")),
        };
        Ok(TabletView(RwLock::new(Topic { state, dropped })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StreamId;
    use crate::tablet::Mode;

    /// The first entries of a tablet of three regions, in every order: its log has a number before it is made,
    /// and only the one that the form names leads.
    #[test]
    fn a_tablet_of_several_regions_is_made_once_its_log_has_a_number() {
        let form = Form::of(Mode::Strong, StreamId(0), (0..3).map(|r| (RegionId(r), LogId(9))));
        let made = Made { form, region: RegionId(1), tablet: 0, tablets: 1 };
        for (log, leads) in [(LogId(9), true), (LogId(10), false)] {
            let mut view = TabletView::begin(&Context::of("table/t/0"));
            let early = view.apply(Index(1), &made.command());
            assert!(matches!(early, Applied::Refused(_)), "{early:?}");
            assert_eq!(view.apply(Index(2), &prepared(log)), Applied::Ok(Vec::new()));
            let again = view.apply(Index(3), &prepared(LogId(11)));
            assert!(matches!(again, Applied::Refused(_)), "{again:?}");
            assert_eq!(view.log(), Some(log));
            assert_eq!(view.apply(Index(4), &made.command()), Applied::Ok(Vec::new()));
            assert!(!view.decide(Settings::default(), None), "which start it is, an entry says");
            assert!(view.decide(Settings::default(), Some(Index(5))));
            let home = StreamId::of(RegionId(1));
            assert_eq!(view.with_region(|region| region.leads(home)), Some(leads), "{log:?}");
        }
    }

    /// A log and the one that replaces it have entries of the same indices, and what the first one's starts asked
    /// for is in streams that the second one is sent.
    #[test]
    fn starts_of_two_logs_have_other_numbers() {
        let numbers = |log| (1..100).map(move |index| number_of_start(LogId(log), index));
        let mut all: Vec<u64> = numbers(1 << 32 | 7).chain(numbers(2 << 32 | 7)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2 * 99);
        assert!(all.iter().all(|number| *number < 1 << 32));
    }

    fn snapshot(view: &TabletView) -> Vec<u8> {
        let mut bytes = Vec::new();
        holdfast_base::stream::collect(&mut bytes, |out| view.snapshot(out));
        bytes
    }

    fn restored(view: &TabletView) -> TabletView {
        let context = Context::of("table/t/0");
        let restore = |source: &mut Source<'_>| TabletView::restore(&context, source);
        holdfast_base::stream::read_all(&snapshot(view), restore).unwrap()
    }

    /// What is dropped is gone, and another one of the same name has nothing of it; what was made so is never made
    /// again, whoever still knows it. Kept so by snapshots.
    #[test]
    fn a_tablet_that_is_dropped_is_never_made_again() {
        let made = |log: u64| {
            let form =
                Form::of(Mode::Timeline, StreamId(0), (0..2).map(|r| (RegionId(r), LogId(log))));
            Made { form, region: RegionId(1), tablet: 0, tablets: 1 }
        };
        let mut view = TabletView::begin(&Context::of("table/t/0"));
        let mut index = 0;
        let mut apply = |view: &mut TabletView, entry: Vec<u8>| {
            index += 1;
            *view = restored(view);
            view.apply(Index(index), &entry)
        };
        let is_refused = |applied: Applied| matches!(applied, Applied::Refused(_));
        let ok = || Applied::Ok(Vec::new());
        assert!(!view.was_dropped());
        for log in [9, 10] {
            assert_eq!(apply(&mut view, prepared(LogId(log))), ok());
            assert_eq!(apply(&mut view, made(log).command()), ok());
            assert!(
                is_refused(apply(&mut view, dropped(&made(log + 50)))),
                "it was made otherwise"
            );
            assert!(view.made().is_some() && !view.was_dropped());
            assert_eq!(apply(&mut view, dropped(&made(log))), ok());
            assert_eq!(apply(&mut view, dropped(&made(log))), ok(), "twice is once");
            assert!(view.made().is_none() && view.was_dropped() && view.log().is_none());
            assert_eq!(view.dropped_as(made(log).checksum()), Some(made(log).everywhere()));
            assert!(is_refused(apply(&mut view, prepared(LogId(0)))));
            let entry = Entry::Log(LogId(1)).to_bytes();
            assert!(is_refused(apply(&mut view, entry)), "what was on its way is nobody's");
        }
        assert_eq!(apply(&mut view, prepared(LogId(11))), ok());
        for log in [9, 10] {
            assert!(is_refused(apply(&mut view, made(log).command())), "{log}");
        }
        assert_eq!(apply(&mut view, made(11).command()), ok());
        assert!(!view.was_dropped() && view.has_dropped(&made(9)));
        // So many are remembered.
        for log in 100..100 + DROPPED_MAX as u64 {
            assert!(is_refused(apply(&mut view, dropped(&made(log)))));
        }
        assert_eq!(apply(&mut view, dropped(&made(11))), ok());
        for log in 100..100 + DROPPED_MAX as u64 {
            assert_eq!(apply(&mut view, dropped(&made(log))), ok());
        }
        assert!(!view.has_dropped(&made(11)) && view.has_dropped(&made(100)));
    }
}
