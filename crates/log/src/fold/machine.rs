//! The fold's core: view, sessions, epoch and digest, changed by entries and by nothing else.
//! No log, file, thread or clock; the same entries give the same machine everywhere.

use super::View;
use super::envelope::{Decoded, EntryKind, Envelope};
use super::sessions::{Admission, Outcome, Sessions, outcome_of};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::planted;

pub struct Machine<V> {
    pub view: V,
    pub sessions: Sessions,
    /// Index of the last claim; commands under another one are refused.
    pub epoch: Index,
    /// The last entry applied, its checksum, and the digest up to it.
    pub applied: Index,
    pub entry_crc: u32,
    pub digest: u64,
    /// Commands of deposed leaders that were refused since the machine was made.
    pub fenced: u64,
    /// Why no further entry is applied.
    pub stopped: Option<Error>,
}

impl<V: View> Machine<V> {
    pub fn new() -> Machine<V> {
        Machine {
            view: V::default(),
            sessions: Sessions::default(),
            epoch: Index(0),
            applied: Index(0),
            entry_crc: 0,
            digest: 0,
            fenced: 0,
            stopped: None,
        }
    }

    /// Applies the entry at `index`, which must lie behind all applied before. An entry that this
    /// build does not know stops the machine in front of it.
    pub fn apply(&mut self, index: Index, entry: &[u8]) -> Outcome {
        assert!(index > self.applied, "entry {index} was applied already");
        if let Some(e) = &self.stopped {
            return Err(e.clone());
        }
        match self.outcome(index, entry) {
            Ok(outcome) => {
                self.entry_crc = crc32c(entry);
                self.digest = digest(self.digest, index, entry.len(), self.entry_crc, &outcome);
                self.applied = index;
                outcome
            }
            Err(name) => {
                let e = Error::unsupported(format!(
                    "apply entry {index} to view `{}`: this build does not know its {name}: start a newer build",
                    V::NAME
                ));
                self.stopped = Some(e.clone());
                Err(e)
            }
        }
    }

    fn outcome(&mut self, index: Index, entry: &[u8]) -> std::result::Result<Outcome, String> {
        let (envelope, command) = match Envelope::decode(entry) {
            Decoded::Entry(envelope, command) => (envelope, command),
            Decoded::Unknown(name) => return Err(name),
            Decoded::Malformed => {
                let e = format!("entry {index} is no envelope: append through a fold only");
                return Ok(Err(Error::invalid(e)));
            }
        };
        if envelope.kind == EntryKind::Claim {
            self.epoch = index;
            return Ok(Ok(Vec::new()));
        }
        if self.is_fenced(envelope.epoch) {
            self.fenced += 1;
            // Not remembered for the session: the same request is good under the new leader.
            return Ok(Err(fenced(envelope.epoch, self.epoch)));
        }
        match envelope.kind {
            EntryKind::OpenSession => Ok(self.sessions.open(index)),
            EntryKind::EndSession => Ok(self.sessions.end(envelope.session)),
            _ => self.command(index, envelope, command),
        }
    }

    /// Whether a command under this claim is refused. One under none is nobody's who leads.
    pub fn is_fenced(&self, epoch: Index) -> bool {
        epoch.0 != 0 && epoch != self.epoch && !planted!("log.stale-epoch-accepted")
    }

    fn command(
        &mut self,
        index: Index,
        envelope: Envelope,
        command: &[u8],
    ) -> std::result::Result<Outcome, String> {
        let Envelope { session, sequence, acknowledged_below, .. } = envelope;
        if session.0 == 0 {
            return outcome_of(self.view.apply(index, command));
        }
        match self.sessions.admit(session, sequence, acknowledged_below) {
            Admission::Known(outcome) => Ok(outcome),
            Admission::Refused(e) => Ok(Err(e)),
            Admission::Apply => {
                let outcome = outcome_of(self.view.apply(index, command))?;
                if outcome.is_ok() || !planted!("log.refusal-forgotten") {
                    self.sessions.remember(session, sequence, &outcome);
                }
                Ok(outcome)
            }
        }
    }

    /// The state that a snapshot's payload holds; position and digest are in its header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.epoch.encode(out);
        self.sessions.encode(out);
        self.view.snapshot(out);
    }

    pub fn decode(payload: &[u8], applied: Index, entry_crc: u32, digest: u64) -> Result<Self> {
        let mut reader = Reader::new(payload);
        let epoch = Index::decode(&mut reader)?;
        let sessions = Sessions::decode(&mut reader)?;
        let rest = reader.remaining();
        let view = V::restore(&payload[payload.len() - rest..])?;
        Ok(Machine { view, sessions, epoch, applied, entry_crc, digest, fenced: 0, stopped: None })
    }
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
        Ok(bytes) => (bytes.len() as u64, crc32c(bytes)),
        Err(e) => (1 << 31 | e.kind as u64, 0),
    };
    let mut x = mix(before ^ index.0);
    x = mix(x ^ ((len as u64) << 32 | entry_crc as u64));
    mix(x ^ (tag << 32 | crc as u64))
}

/// SplitMix64's step and finaliser: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
