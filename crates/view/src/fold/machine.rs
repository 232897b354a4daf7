//! The fold's core: view, sessions, epoch and digest, changed by entries and by nothing else.
//! No log, file, thread or clock; the same entries give the same machine everywhere.

use super::View;
use super::digests::Digests;
use super::envelope::{Decoded, EntryKind, Envelope};
use super::place::{Context, Position};
use super::sessions::{Admission, Outcome, Sessions, Whose, outcome_of, unknown};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Decode;
use holdfast_base::error::panic_text;
use holdfast_base::ids::{Index, Term};
use holdfast_base::random::mix;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_env::{planted, sometimes};
use std::any::Any;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub struct Machine<V> {
    pub context: Context,
    pub view: V,
    pub sessions: Sessions,
    /// Index of the last claim; commands under another one are refused.
    pub epoch: Index,
    /// The highest term that was claimed for. Of no view that is kept in rows: nobody leads its topic.
    term: Term,
    /// The last entry applied, its checksum, and the digest up to it.
    pub applied: Index,
    pub entry_crc: u32,
    pub digest: u64,
    /// Commands of deposed leaders that were refused since the machine was made.
    pub fenced: u64,
    /// As far as it was kept last, of a view that outlives its process.
    kept: Position,
    /// The digest at earlier places, for other nodes to compare.
    pub digests: Digests,
    /// Why no further entry is applied.
    pub stopped: Option<Error>,
    /// It stopped since the place in which the view is kept took no more, which passes.
    pub held_up: bool,
    /// What was applied must not be lent either: not the next entry is wrong, the view is.
    pub withdrawn: bool,
    /// See [`super::Fold::refuse_next`].
    pub refuse_next: bool,
}

impl<V: View> Machine<V> {
    pub fn new(context: &Context) -> Machine<V> {
        Machine {
            context: context.clone(),
            view: V::begin(context),
            sessions: sessions_of(context),
            epoch: Index(0),
            term: Term::default(),
            applied: Index(0),
            entry_crc: 0,
            digest: 0,
            fenced: 0,
            kept: Position::default(),
            digests: Digests::default(),
            stopped: None,
            held_up: false,
            withdrawn: false,
            refuse_next: false,
        }
    }

    /// As the view was kept, if it outlives its process and was.
    pub fn kept(context: &Context) -> Result<Machine<V>> {
        let mut machine = Machine::<V>::new(context);
        if let Some((position, sessions)) = machine.view.kept()? {
            let Position { applied, entry_crc, digest, epoch } = position;
            (machine.applied, machine.entry_crc) = (applied, entry_crc);
            (machine.digest, machine.epoch) = (digest, epoch);
            machine.kept = position;
            machine.sessions.keep_track(&sessions, false)?;
        } else if V::OUTLIVES {
            machine.sessions.keep_track(&[], false)?;
        }
        Ok(machine)
    }

    /// A page of entries was applied: what they have changed is kept, where the view outlives its
    /// process. Nobody hears of their results before.
    pub fn keep(&mut self) -> Result<()> {
        if !V::OUTLIVES {
            return Ok(());
        }
        let Machine { applied, entry_crc, digest, epoch, .. } = *self;
        let position = Position { applied, entry_crc, digest, epoch };
        let kept = self.view.keep((position, self.sessions.take_changed()));
        match &kept {
            Ok(()) => self.kept = position,
            Err(e) => {
                // The rows say `Retry` of writes behind the one that failed.
                self.held_up = matches!(e.kind, Kind::Full | Kind::Retry);
                self.stopped.get_or_insert(e.clone());
                // Readers see no more than that, and nobody may be told that they do.
                if !planted!("view.applied-is-kept") {
                    let Position { applied, entry_crc, digest, epoch } = self.kept;
                    (self.applied, self.entry_crc) = (applied, entry_crc);
                    (self.digest, self.epoch) = (digest, epoch);
                }
            }
        }
        kept
    }

    /// Applies the entry at `index`, which must lie behind all applied before. An entry that this
    /// build does not know stops the machine in front of it.
    pub fn apply(&mut self, index: Index, entry: &[u8]) -> Outcome {
        assert!(index > self.applied, "entry {index} was applied already");
        if let Some(e) = &self.stopped {
            return Err(e.clone());
        }
        // Whatever an application that unwinds has left half done is dropped below, never looked at.
        let applied = catch_unwind(AssertUnwindSafe(|| self.outcome(index, entry)));
        let applied = match applied {
            Ok(applied) => applied,
            Err(panic) => return Err(self.give_up(index, entry, &*panic)),
        };
        match applied {
            Ok(outcome) => {
                self.digests.pass(self.applied, self.digest, index);
                self.entry_crc = crc32c(entry);
                self.digest = digest(self.digest, index, entry.len(), self.entry_crc, &outcome);
                self.applied = index;
                outcome
            }
            Err(e) => {
                let (topic, view) = (&self.context.topic, V::NAME);
                let e = e.context(format_args!(
                    "apply entry {index} of topic `{topic}` to view `{view}`"
                ));
                self.stopped = Some(e.clone());
                Err(e)
            }
        }
    }

    /// The application of an entry has panicked: the machine stops in front of it, by its name, and
    /// nothing of what it has half applied can be read or kept in a snapshot. Every start comes to
    /// this again, until a build starts that can apply the entry.
    fn give_up(&mut self, index: Index, entry: &[u8], panic: &(dyn Any + Send)) -> Error {
        let e = Error::bug(format!(
            "apply entry {index} of topic `{}` ({}): the view `{}` panicked ({}): it stops in \
             front of this entry, which is kept; start a build that can apply it",
            self.context.topic,
            describe::<V>(entry),
            V::NAME,
            panic_text(panic)
        ));
        self.stopped = Some(e.clone());
        // What is inconsistent may panic once more when it goes.
        let _ = catch_unwind(AssertUnwindSafe(|| self.view.give_up(&self.context)));
        if !V::OUTLIVES {
            self.sessions = sessions_of(&self.context);
        }
        e
    }

    /// What an entry comes to; an error stops the machine in front of it.
    fn outcome(&mut self, index: Index, entry: &[u8]) -> Result<Outcome> {
        let (envelope, command) = match Envelope::decode(entry, V::BARE) {
            Decoded::Entry(envelope, command) => (envelope, command),
            Decoded::Unknown(name) => return Err(unknown(&name)),
            Decoded::Malformed => {
                let e = format!("entry {index} is no envelope: append through a fold only");
                return Ok(Err(Error::invalid(e)));
            }
        };
        if envelope.kind.claims() {
            // As long as a term is: else it is no envelope.
            let term = Some(command).filter(|_| envelope.kind == EntryKind::Term);
            let term = term.and_then(|bytes| Term::from_bytes(bytes).ok());
            return self.once(&envelope, |machine| Ok(machine.claim(index, term)));
        }
        if self.is_fenced(envelope.epoch) {
            self.fenced += 1;
            // Not remembered for the session: the same request is good under the new leader.
            return Ok(Err(fenced(envelope.epoch, self.epoch)));
        }
        match envelope.kind {
            EntryKind::OpenSession => {
                self.once(&envelope, |machine| Ok(machine.sessions.open(index)))
            }
            EntryKind::EndSession => Ok(self.sessions.end(envelope.session)),
            _ => self.command(index, envelope, command),
        }
    }

    /// A claim that was long on its way must not depose who has led since: else two of which each sees
    /// itself lead would take the topic from each other in turns.
    fn claim(&mut self, index: Index, term: Option<Term>) -> Outcome {
        if let Some(term) = term {
            if term < self.term && !planted!("view.claim-without-term") {
                return Err(Error::fenced(format!(
                    "claim topic `{}` for the term {term}: it was claimed for the term {} already: \
                     another node leads",
                    self.context.topic, self.term
                )));
            }
            self.term = self.term.max(term);
        }
        if !planted!("log.claim-without-effect") {
            self.epoch = index;
        }
        Ok(Vec::new())
    }

    /// Whether a command under this claim is refused. One under none is nobody's who leads.
    pub fn is_fenced(&self, epoch: Index) -> bool {
        is_fenced(epoch, self.epoch)
    }

    fn command(&mut self, index: Index, envelope: Envelope, command: &[u8]) -> Result<Outcome> {
        if cfg!(debug_assertions) && std::mem::take(&mut self.refuse_next) {
            return Ok(Err(Error::invalid("refused here and nowhere else")));
        }
        self.once(&envelope, |machine| outcome_of(machine.view.apply(index, command)))
    }

    /// Does what an entry says, unless it is a copy of one before: that has its result already. Or of
    /// one that was answered long ago, which nobody waits for.
    fn once(
        &mut self,
        envelope: &Envelope,
        does: impl FnOnce(&mut Self) -> Result<Outcome>,
    ) -> Result<Outcome> {
        let Some(whose) = envelope.whose() else { return does(self) };
        if matches!(whose, Whose::Node(_)) && planted!("view.nodes-commands-twice") {
            return does(self);
        }
        let sequence = envelope.sequence;
        match self.sessions.admit(whose, sequence, envelope.acknowledged_below) {
            Admission::Known(outcome) => {
                match whose {
                    Whose::Session(_) => sometimes!("a session dropped a duplicate"),
                    Whose::Node(_) => sometimes!("a node's numbers dropped a duplicate"),
                }
                Ok(outcome)
            }
            Admission::Refused(e) => Ok(Err(e)),
            Admission::Apply => {
                let outcome = does(self)?;
                let forgotten = match outcome.is_ok() {
                    true => planted!("view.answer-forgotten"),
                    false => planted!("log.refusal-forgotten"),
                };
                if !forgotten && !is_undecided(whose, &outcome) {
                    self.sessions.remember(whose, sequence, &outcome);
                }
                Ok(outcome)
            }
        }
    }

    /// Writes the state that a snapshot's payload holds; position and digest are in its header. The
    /// machine goes back to who applies as soon as the view can be written apart from it, which it
    /// is for as long as `goes_on` says so.
    pub fn write(
        held: impl Deref<Target = Self>,
        goes_on: impl Fn() -> Result<()>,
        out: &mut Writer<'_>,
    ) -> Result<()> {
        out.put(&held.epoch);
        out.put(&held.term);
        held.sessions.write(out);
        let written = catch_unwind(AssertUnwindSafe(|| match held.view.snapshot_apart() {
            None => held.view.snapshot(out),
            Some(apart) => {
                drop(held);
                apart(out, &mut || goes_on());
            }
        }));
        written.map_err(|panic| {
            let what = panic_text(&*panic);
            Error::bug(format!("take a snapshot of view `{}`: it panicked ({what})", V::NAME))
        })
    }

    /// The inverse of [`Machine::write`], with the snapshot's position: the last entry applied,
    /// its checksum, and the digest. What builds before wrote, and rides bring, has no term.
    pub fn read(
        context: &Context,
        source: &mut Source<'_>,
        (applied, entry_crc, digest): (Index, u32, u64),
        has_term: bool,
    ) -> Result<Self> {
        let epoch = source.get()?;
        let term = if has_term { source.get()? } else { Term::default() };
        let sessions = Sessions::read(sessions_of(context), source)?;
        // As damage: an older snapshot, or the log from its beginning, may do.
        let restored = catch_unwind(AssertUnwindSafe(|| V::restore(context, source)));
        let view = restored.unwrap_or_else(|panic| {
            Err(Error::corrupt(format!("it panicked ({})", panic_text(&*panic))))
        })?;
        let mut machine = Machine {
            context: context.clone(),
            view,
            sessions,
            epoch,
            term,
            applied,
            entry_crc,
            digest,
            fenced: 0,
            kept: Position::default(),
            digests: Digests::default(),
            stopped: None,
            held_up: false,
            withdrawn: false,
            refuse_next: false,
        };
        if V::OUTLIVES {
            machine.sessions.keep_track(&[], true)?;
        }
        machine.keep()?;
        Ok(machine)
    }
}

/// Sessions before the first entry: their ids are the first shard's to give.
fn sessions_of(context: &Context) -> Sessions {
    if context.shard == 0 { Sessions::default() } else { Sessions::of_others() }
}

/// What an entry is, for people: its kind, and the name that the view has for its command.
fn describe<V: View>(entry: &[u8]) -> String {
    let named = || match Envelope::decode(entry, V::BARE) {
        Decoded::Entry(Envelope { kind: EntryKind::Command, .. }, command) => V::describe(command),
        Decoded::Entry(envelope, _) => format!("{:?}", envelope.kind),
        _ => format!("{} bytes", entry.len()),
    };
    // The same bytes have brought one panic already.
    catch_unwind(named).unwrap_or_else(|_| format!("{} bytes", entry.len()))
}

/// Whether a command under one claim is refused behind another.
pub fn is_fenced(own: Index, current: Index) -> bool {
    own.0 != 0 && own != current && !planted!("log.stale-epoch-accepted")
}

pub fn fenced(own: Index, current: Index) -> Error {
    Error::fenced(format!(
        "a command under claim {own} follows claim {current}: another leader took over: open the view again"
    ))
}

/// The digest after one more entry. A refusal counts by its kind alone, because a build may word
/// its messages better than the one before.
fn digest(before: u64, index: Index, len: usize, entry_crc: u32, outcome: &Outcome) -> u64 {
    let (tag, crc) = match outcome {
        Ok(_) if planted!("log.digest-without-results") => (0, 0),
        Ok(bytes) => (bytes.len() as u64, crc32c(bytes)),
        Err(e) => (1 << 31 | e.kind as u64, 0),
    };
    let mut x = mix(before ^ index.0);
    x = mix(x ^ ((len as u64) << 32 | entry_crc as u64));
    mix(x ^ (tag << 32 | crc as u64))
}

/// Whether a client's request was refused for now, by what it would change and is moving. Its repetition is
/// carried out, and so is a late copy, for as long as its client has not acknowledged that it was told.
fn is_undecided(whose: Whose, outcome: &Outcome) -> bool {
    let for_now = |e: &Error| e.kind == Kind::Retry && !e.is(Reason::WriteAgain);
    matches!(whose, Whose::Session(_))
        && outcome.as_ref().is_err_and(for_now)
        && !planted!("view.answers-for-now-stay")
}
