//! A tablet's topic as a view of a node: the entry that makes it, then those of its region's log. On
//! the node that keeps the log a [`Region`] decides around it; on every other one it only follows.

use crate::entry::{Entry, VERSION};
use crate::ids::RegionId;
use crate::region::{Region, Settings};
use crate::stream::Accepted;
use crate::tablet::{Form, Tablet};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::HoldRwLock;
use holdfast_view::{Apart, Applied, Context, View};
use std::sync::RwLock;

/// The kind of the entry that makes a tablet, behind those of [`Entry`].
const MADE: u8 = 6;
/// Starts of a region are told apart by so many bits.
const START_MASK: u64 = 0xffff_ffff;

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

enum State {
    Unmade,
    Follows { made: Made, tablet: Box<Tablet> },
    Decides { made: Made, region: Box<Region> },
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

    /// From here on a region decides, unless one does; whether there is a tablet to decide about. Of one of
    /// several regions, which a later build has made, none does: nobody carries its messages.
    pub fn decide(&self, settings: Settings) -> bool {
        let mut state = self.0.held_alone();
        *state = match std::mem::replace(&mut *state, State::Unmade) {
            State::Follows { made, tablet } if made.form.members.len() == 1 => {
                // Nobody who asked an earlier start waits: what it marked was answered, or forgotten.
                let start = tablet.applied() & START_MASK;
                // An erased log has no tablet.
                let log = tablet.log();
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
            State::Unmade | State::Follows { .. } => None,
        }
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
            State::Unmade => None,
            State::Follows { made, tablet } => Some((made, tablet)),
            State::Decides { made, region } => Some((made, region.tablet())),
        }
    }

    fn make(&mut self, made: Made) -> Applied {
        if !matches!(self, State::Unmade) {
            return Applied::Refused(Error::exists("make a tablet: it is made already"));
        }
        if made.form.regions().all(|region| region != made.region) || made.tablet >= made.tablets {
            return Applied::Refused(Error::invalid("make a tablet: it is in none of its regions"));
        }
        let tablet = Box::new(Tablet::made(&made.form, made.region));
        *self = State::Follows { made, tablet };
        Applied::Ok(Vec::new())
    }

    fn apply(&mut self, index: u64, command: &[u8]) -> Result<Accepted> {
        match self {
            State::Unmade => Err(Error::invalid("write to a tablet: it is not made yet")),
            State::Follows { tablet, .. } => {
                let accepted = tablet.apply(index, command, &mut Vec::new())?.accepted;
                tablet.forget_entries();
                Ok(accepted)
            }
            State::Decides { region, .. } => region.appended(index, command),
        }
    }
}

/// Of a tablet that is made.
fn write(
    made: &Made,
    tablet: &Tablet,
    out: &mut Writer<'_>,
    goes_on: &mut dyn FnMut() -> Result<()>,
) {
    out.put(&true);
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
        if let Some(tag) = command.get(1).filter(|tag| **tag > MADE) {
            return Applied::UnknownVersion(format!("tag {tag} of a tablet's entry"));
        }
        let mut state = self.0.held_alone();
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
        match self.0.held_shared().tablet() {
            None => out.put(&false),
            Some((made, tablet)) => write(made, tablet, out, &mut || Ok(())),
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
            Err(_) => format!("an entry of {} bytes", command.len()),
        }
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<TabletView> {
        if !source.get::<bool>()? {
            return Ok(TabletView(RwLock::new(State::Unmade)));
        }
        let made: Made = source.get()?;
        let tablet = Box::new(Tablet::restore(&made.form, made.region, source)?);
        Ok(TabletView(RwLock::new(State::Follows { made, tablet })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tablet::Mode;

    /// A log that a later build has written: its entries are folded, and nobody decides what nobody carries
    /// to the other regions.
    #[test]
    fn a_tablet_of_several_regions_is_followed_alone() {
        for (regions, decides) in [(1, true), (3, false)] {
            let mut view = TabletView::begin(&Context::of("table/t/0"));
            assert!(!view.decide(Settings::default()), "it is not made");
            let (form, region) = (Form::new(Mode::Strong, regions), RegionId(0));
            let made = Made { form, region, tablet: 0, tablets: 1 };
            assert_eq!(view.apply(Index(1), &made.command()), Applied::Ok(Vec::new()));
            assert_eq!(view.decide(Settings::default()), decides, "{regions} regions");
            assert_eq!(view.made(), Some(made));
        }
    }
}
