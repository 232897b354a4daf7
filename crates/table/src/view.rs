//! A tablet's topic as a view of a node: the entry that makes it, then those of its region's log. On
//! the node that keeps the log a [`Region`] decides around it; on every other one it only follows.

use crate::entry::{Entry, VERSION};
use crate::ids::{LogId, RegionId};
use crate::region::{Region, Settings};
use crate::stream::Accepted;
use crate::tablet::{Form, Tablet};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::{HoldRwLock, planted};
use holdfast_view::{Apart, Applied, Context, View};
use std::sync::RwLock;

/// The kinds of entries in front of those of a tablet, told apart from [`Entry`]'s: what makes it, and what
/// numbers the log of one that is to be in several regions.
const MADE: u8 = 6;
const PREPARED: u8 = 8;
/// The last kind that this build knows.
const LAST: u8 = 10;

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

    fn of_command(command: &[u8]) -> Option<Result<Made, DecodeError>> {
        let body = command.strip_prefix(&[VERSION, MADE])?;
        let mut reader = Reader::new(body);
        Some(Made::decode(&mut reader).and_then(|made| reader.finish().map(|()| made)))
    }
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

enum State {
    Unmade,
    /// The log has a number.
    Prepared(LogId),
    Follows {
        made: Made,
        tablet: Box<Tablet>,
    },
    Decides {
        made: Made,
        region: Box<Region>,
    },
}

/// See the module. The lock is a reader's of the fold: who asks the region to decide holds the fold
/// for reading, and entries are applied by nobody meanwhile.
pub struct TabletView(RwLock<State>);

impl TabletView {
    /// What it was made as; nothing before that.
    pub fn made(&self) -> Option<Made> {
        self.0.held_shared().tablet().map(|(made, _)| made.clone())
    }

    /// Looks at what is held and shown.
    pub fn look<R>(&self, look: impl FnOnce(&Tablet) -> R) -> Option<R> {
        self.0.held_shared().tablet().map(|(_, tablet)| look(tablet))
    }

    /// The number of the topic's log, if it has one.
    pub fn log(&self) -> Option<LogId> {
        match &*self.0.held_shared() {
            State::Prepared(log) => Some(*log),
            state => state.tablet().map(|(_, tablet)| tablet.log()),
        }
    }

    /// From here on a region decides, unless one does; whether there is a tablet to decide about. `start` is
    /// the index of an entry that was appended since the last start: so no other one of this log has it.
    /// Nothing where there is no other region, and so nobody who would answer what an earlier start has asked.
    pub fn decide(&self, settings: Settings, start: Option<Index>) -> bool {
        let mut state = self.0.held_alone();
        *state = match std::mem::replace(&mut *state, State::Unmade) {
            State::Follows { made, tablet } if start.is_some() || made.form.members.len() == 1 => {
                // An erased log has no tablet; one that was made anew has a number of its own.
                let log = tablet.log();
                let start = number_of_start(log, start.map_or(tablet.applied(), |index| index.0));
                let region = Box::new(Region::start(*tablet, log, start, settings));
                State::Decides { made, region }
            }
            state => state,
        };
        matches!(*state, State::Decides { .. })
    }

    /// Has the region do something, if one decides here.
    pub fn with_region<R>(&self, with: impl FnOnce(&mut Region) -> R) -> Option<R> {
        match &mut *self.0.held_alone() {
            State::Decides { region, .. } => Some(with(region)),
            State::Unmade | State::Prepared(_) | State::Follows { .. } => None,
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
            State::Unmade | State::Prepared(_) => None,
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

    fn make(&mut self, made: Made) -> Applied {
        if self.tablet().is_some() {
            return Applied::Refused(Error::exists("make a tablet: it is made already"));
        }
        let Some(own) = made.form.members.iter().find(|member| member.region == made.region) else {
            return Applied::Refused(Error::invalid("make a tablet: it is in none of its regions"));
        };
        if made.tablet >= made.tablets {
            return Applied::Refused(Error::invalid("make a tablet: its table has fewer"));
        }
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
        let tablet = Box::new(Tablet::made(&made.form, made.region, log));
        *self = State::Follows { made, tablet };
        Applied::Ok(Vec::new())
    }

    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Accepted> {
        match self {
            State::Unmade | State::Prepared(_) => {
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

/// Of a tablet that is made.
fn write(
    made: &Made,
    tablet: &Tablet,
    out: &mut Writer<'_>,
    goes_on: &mut dyn FnMut() -> Result<()>,
) {
    out.put(&MADE_STATE);
    out.put(made);
    tablet.snapshot_while(out, goes_on);
}

impl View for TabletView {
    const NAME: &'static str = "tablet";
    const VERSION: u32 = 1;
    const WEIGHS: bool = true;

    fn begin(_: &Context) -> TabletView {
        TabletView(RwLock::new(State::Unmade))
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        if let Some(version) = command.first().filter(|version| **version != VERSION) {
            return Applied::UnknownVersion(format!("version {version} of a tablet's entry"));
        }
        if let Some(tag) = command.get(1).filter(|tag| **tag > LAST) {
            return Applied::UnknownVersion(format!("tag {tag} of a tablet's entry"));
        }
        let mut state = self.0.held_alone();
        match of_prepared(command) {
            Some(Ok(log)) => return state.prepare(log),
            Some(Err(e)) => {
                return Applied::Refused(Error::from(e).context("number a tablet's log"));
            }
            None => {}
        }
        match Made::of_command(command) {
            Some(Ok(made)) => state.make(made),
            Some(Err(e)) => Applied::Refused(Error::from(e).context("make a tablet")),
            None => match state.apply(index.0, command) {
                Ok(accepted) => Applied::Ok(encode(accepted)),
                Err(e) => Applied::Refused(e),
            },
        }
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        match &*self.0.held_shared() {
            State::Unmade => out.put(&UNMADE_STATE),
            State::Prepared(log) => {
                out.put(&PREPARED_STATE);
                out.put(log);
            }
            State::Follows { made, tablet } => write(made, tablet, out, &mut || Ok(())),
            State::Decides { made, region } => write(made, region.tablet(), out, &mut || Ok(())),
        }
    }

    /// As it is now, written while others go on: values are shared, so what is copied is little.
    fn snapshot_apart(&self) -> Option<Apart> {
        let state = self.0.held_shared();
        let (made, tablet) = state.tablet()?;
        let (made, tablet) = (made.clone(), tablet.clone());
        Some(Box::new(move |out, goes_on| write(&made, &tablet, out, goes_on)))
    }

    fn describe(command: &[u8]) -> String {
        if let Some(Ok(made)) = Made::of_command(command) {
            return format!("tablet {} of {} is made", made.tablet, made.tablets);
        }
        if let Some(Ok(log)) = of_prepared(command) {
            return format!("the log is log {}", log.0);
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
        match source.get::<u8>()? {
            UNMADE_STATE => return Ok(TabletView(RwLock::new(State::Unmade))),
            PREPARED_STATE => {
                return Ok(TabletView(RwLock::new(State::Prepared(source.get()?))));
            }
            MADE_STATE => {}
            _ => return Err(Error::corrupt("restore a tablet: its state is none")),
        }
        let made: Made = source.get()?;
        let tablet = Box::new(Tablet::restore(&made.form, made.region, source)?);
        Ok(TabletView(RwLock::new(State::Follows { made, tablet })))
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
}
