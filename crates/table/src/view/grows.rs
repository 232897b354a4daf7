//! A topic whose tablet is cut off another one: the entry by which it begins, the pieces that it is given, and the tablet
//! that it is with the last of them. Until then it has no tablet, and nobody decides.

use super::{GROWS_STATE, Made, State, TabletView, encode};
use crate::entry::VERSION;
use crate::stream::Accepted;
use crate::tablet::Tablet;
use crate::tablet::span::Span;
use crate::tablet::split::{Growing, Growth, Pieces};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::HoldRwLock;
use holdfast_view::Applied;

/// The kinds of entries: see [`super::MADE`].
pub(super) const CHILD: u8 = 14;
pub(super) const PIECES: u8 = 15;

/// A tablet that begins with a half of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Which tablet it is; and of how many the table was made.
    pub made: Made,
    /// Its hashes.
    pub span: Span,
}
codec_struct!(Child { made, span });

impl Child {
    /// The entry's bytes.
    pub fn command(&self) -> Vec<u8> {
        let mut out = vec![VERSION, CHILD];
        self.encode(&mut out);
        out
    }
}

/// The entry by which it is given pieces.
pub fn given(pieces: &Pieces) -> Vec<u8> {
    let mut out = vec![VERSION, PIECES];
    pieces.encode(&mut out);
    out
}

fn of_command<T: Decode>(command: &[u8], kind: u8) -> Option<Result<T, DecodeError>> {
    let body = command.strip_prefix(&[VERSION, kind])?;
    let mut reader = Reader::new(body);
    Some(T::decode(&mut reader).and_then(|told| reader.finish().map(|()| told)))
}

pub(super) fn describe(command: &[u8]) -> Option<String> {
    if let Some(Ok(Child { made, span })) = of_command::<Child>(command, CHILD) {
        let (first, last) = (span.first, span.last);
        return Some(format!("tablet {} begins, with hashes {first:08x}-{last:08x}", made.tablet));
    }
    match of_command::<Pieces>(command, PIECES)? {
        Ok(pieces) => Some(format!("part {} of another tablet's half", pieces.number)),
        Err(_) => None,
    }
}

pub(super) fn write(child: &Child, growing: &Growing, out: &mut Writer<'_>) {
    out.put(&GROWS_STATE);
    out.put(child);
    out.put(&growing.attempt());
    out.put(&growing.next());
    growing.tablet().snapshot(out);
}

impl State {
    /// The inverse of [`write`].
    pub(super) fn restore_growing(source: &mut Source<'_>) -> Result<State> {
        let child: Child = source.get()?;
        let (attempt, next) = (source.get()?, source.get()?);
        let tablet = Tablet::restore(&child.made.form, child.made.region, source)?;
        let growing = Box::new(Growing::restored(attempt, next, child.span.clone(), tablet));
        Ok(State::Grows { child, growing })
    }

    /// What a tablet that was made so has been given goes, if it is that one.
    pub(super) fn drop_growing(&mut self, made: &Made) {
        if let State::Grows { child, .. } = self
            && child.made.everywhere() == *made
        {
            *self = State::Unmade;
        }
    }

    /// Nothing where the entry is of another kind.
    pub(super) fn apply_growing(&mut self, index: Index, command: &[u8]) -> Option<Applied> {
        let told = match of_command(command, CHILD) {
            Some(Ok(child)) => self.begin_growing(child),
            Some(Err(e)) => Err(Error::from(e).context("begin a tablet")),
            None => match of_command(command, PIECES)? {
                Ok(pieces) => self.grow(index, pieces),
                Err(e) => Err(Error::from(e).context("take pieces of a tablet")),
            },
        };
        Some(match told {
            Ok(accepted) => Applied::Ok(encode(accepted)),
            Err(e) => Applied::Refused(e),
        })
    }

    /// One that was begun otherwise, and is not whole, is none: whoever gives it a half says so again.
    fn begin_growing(&mut self, child: Child) -> Result<Accepted> {
        let Made { form, region, .. } = &child.made;
        let Some(own) = form.members.first().filter(|own| own.region == *region) else {
            return Err(Error::invalid("begin a tablet: it is in none of its regions"));
        };
        if form.members.len() > 1 || child.span.first > child.span.last {
            return Err(Error::invalid("begin a tablet: it has no keys, or several regions"));
        }
        match self {
            State::Unmade | State::Grows { .. } => {
                let growing = Growing::new(form, *region, own.log, child.span.clone());
                *self = State::Grows { child, growing: Box::new(growing) };
                Ok(Accepted::Yes)
            }
            State::Prepared(_) | State::Follows { .. } | State::Decides { .. } => {
                Err(Error::exists("begin a tablet: it is made already"))
            }
        }
    }

    fn grow(&mut self, index: Index, pieces: Pieces) -> Result<Accepted> {
        let State::Grows { growing, .. } = self else {
            return Err(Error::invalid(
                "take pieces of a tablet: it is none that begins with some",
            ));
        };
        let Some(is_whole) = growing.take(index.0, pieces)? else { return Ok(Accepted::Gap) };
        if is_whole && let State::Grows { child, growing } = std::mem::replace(self, State::Unmade)
        {
            let mut tablet = growing.into_tablet();
            tablet.is_made_at(index.0);
            *self = State::Follows { made: child.made, tablet };
        }
        Ok(Accepted::Yes)
    }
}

impl TabletView {
    /// How far the tablet of a split has come here.
    pub fn growth(&self) -> Growth {
        match &self.0.held_shared().state {
            State::Unmade | State::Prepared(_) => Growth::None,
            State::Grows { growing, .. } => Growth::Grows {
                span: growing.span().clone(),
                attempt: growing.attempt(),
                next: growing.next(),
            },
            state => match state.tablet() {
                Some((_, tablet)) => {
                    let span = tablet.span();
                    Growth::Whole(Span::between(span.first, span.last))
                }
                None => Growth::None,
            },
        }
    }

    /// What it was made as, or begun as where it is not whole yet.
    pub fn made_or_begun(&self) -> Option<Made> {
        match &self.0.held_shared().state {
            State::Grows { child, .. } => Some(child.made.clone()),
            state => state.tablet().map(|(made, _)| made.clone()),
        }
    }
}
