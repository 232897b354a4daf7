//! One topic of a log that another node hosts: what is asked of the host next, and what its answers
//! change. Its mirror is compared with the host's log before it is read on, so that a log which was
//! put back from an older copy is found out. Decides only; what is to be called is handed back.

use super::mirror::Mirror;
use super::{GOES_ON, Key, TRIMMED, decode, unknown};
use crate::Done;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Kind, Result};
use holdfast_env::net::PeerReply;
use holdfast_env::planted;
use holdfast_wire::peer::Sender;
use holdfast_wire::{log as msg, peer_log as wire};
use std::collections::BTreeMap;

/// How long one read waits at the host for an entry.
const POLL_MS: u32 = 20_000;
const INFO_MS: u32 = 2_000;
const ENTRIES_MAX: u32 = 4096;

/// One topic.
#[derive(Default)]
pub(super) struct Feed {
    /// From the first index that anybody wanted on.
    pub(super) mirror: Option<Mirror>,
    /// Behind the last entry that was ever here: a mirror that begins anew, further in front, does
    /// not have it any more.
    reached: Index,
    /// What the host said of the topic last.
    pub(super) info: Option<msg::Info>,
    /// Whether to compare positions with the host before the next read: at first, and after every
    /// failure, because it may be another host then, or one with an older copy.
    compared: bool,
    /// And whether the host has the last entry that was read here: a log that was put back grows,
    /// and reaches as far again with other entries.
    pub(super) proven: bool,
    /// That entry, and its CRC32C where it was here.
    last: Option<(Index, Option<u32>)>,
    /// A request or a pause is under way, with this number; what belongs to an earlier one is
    /// dropped.
    pub(super) busy: bool,
    pub(super) round: u64,
    pub(super) failures: u32,
    pub(super) tails: Vec<(Index, Done<()>)>,
    /// Acknowledged by the host and not in the mirror yet, by the index of the last entry.
    pub(super) arriving: BTreeMap<Index, (Indices, Done<Indices>)>,
    /// Somebody looks after `arriving`.
    pub(super) watched: bool,
    /// What kept the last attempt from succeeding.
    pub(super) trouble: Option<Error>,
    /// The host's log is not the one that was mirrored here, as it is now: the host is asked again
    /// until it has the right one.
    pub(super) doubt: Option<Error>,
    /// Who waits for that.
    pub(super) recovers: Vec<Done<()>>,
    /// The topic cannot be followed any more.
    pub(super) ended: Option<Error>,
}

/// Callbacks to call once the lock is given back.
pub(super) type Calls = Vec<Box<dyn FnOnce() + Send>>;

impl Feed {
    /// Makes sure that the entry at `from` is here or on its way.
    pub(super) fn want(&mut self, from: Index) {
        let from = Index(from.0.max(1));
        if self.mirror.as_ref().is_none_or(|mirror| mirror.is_before(from)) {
            self.reached = self.reached.max(self.next());
            self.mirror = Some(Mirror::new(from));
            self.compare_anew();
            self.interrupt();
        }
    }

    /// Why nothing of the topic is given out.
    pub(super) fn refused(&self) -> Option<&Error> {
        self.ended.as_ref().or(self.doubt.as_ref())
    }

    /// Before anything is read, the host is asked again how far its log goes.
    pub(super) fn compare_anew(&mut self) {
        (self.compared, self.proven) = (false, false);
    }

    /// Whatever is under way does not count any more.
    pub(super) fn interrupt(&mut self) {
        self.busy = false;
        self.round += 1;
    }

    pub(super) fn holds(&self, from: Index) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| mirror.holds(from))
    }

    /// What is fetched next.
    pub(super) fn next(&self) -> Index {
        self.mirror.as_ref().map_or(Index(0), Mirror::next)
    }

    /// Behind the last entry that is known to be there: never less than it was.
    pub(super) fn end_seen(&self) -> Index {
        match planted!("log.mirror-forgets-the-end") {
            false => self.reached.max(self.next()),
            true => self.next(),
        }
    }

    /// New entries are here: whom that concerns.
    pub(super) fn arrived(&mut self, calls: &mut Calls) {
        let next = self.next();
        while let Some(first) = self.arriving.first_entry()
            && *first.key() < next
        {
            let (indices, done) = first.remove();
            calls.push(Box::new(move || done(Ok(indices))));
        }
        let mirror = &self.mirror;
        let here = |tail: &mut (Index, Done<()>)| {
            mirror.as_ref().is_some_and(|mirror| mirror.holds(tail.0))
        };
        for (_, wake) in self.tails.extract_if(.., here) {
            calls.push(Box::new(move || wake(Ok(()))));
        }
    }

    /// Appends whose entry did not come: whether it will is unknown.
    pub(super) fn give_up_arriving(&mut self, topic: &str, calls: &mut Calls) {
        for (_, (_, done)) in std::mem::take(&mut self.arriving) {
            let e = unknown(topic);
            calls.push(Box::new(move || done(Err(e))));
        }
    }

    /// Gives nothing out any more.
    fn refuse(&mut self, topic: &str, e: &Error, calls: &mut Calls) {
        self.give_up_arriving(topic, calls);
        for (_, wake) in std::mem::take(&mut self.tails) {
            let e = e.clone();
            calls.push(Box::new(move || wake(Err(e))));
        }
    }

    /// Ends the topic for good.
    pub(super) fn end(&mut self, topic: &str, e: Error, calls: &mut Calls) {
        self.interrupt();
        self.refuse(topic, &e, calls);
        for wake in std::mem::take(&mut self.recovers) {
            let e = e.clone();
            calls.push(Box::new(move || wake(Err(e))));
        }
        self.ended = Some(e);
    }

    /// Gives nothing out until the host has the log again that was read here.
    fn doubt(&mut self, topic: &str, why: &str, calls: &mut Calls) {
        let e = Error::corrupt(format!(
            "follow topic `{topic}`: {why}: it is another log than this node has read, or an older \
             copy of it: put the log of the host back as it was: {GOES_ON}; only where that log is \
             lost for good, start this node with an empty directory"
        ));
        self.refuse(topic, &e, calls);
        self.doubt = Some(e);
    }

    /// Whether the host's log ends before the last entry that was read here.
    fn is_beyond(&self, info: &msg::Info) -> bool {
        self.last.is_some_and(|(last, _)| last >= info.next)
    }

    /// Compares what the host says of the topic with what was mirrored, and with where its readers
    /// are.
    pub(super) fn compare(&mut self, topic: &str, info: msg::Info, calls: &mut Calls) {
        let (reached, seen) = (self.next(), self.end_seen());
        let wanted = self.tails.iter().map(|tail| tail.0).max().unwrap_or(seen).max(seen);
        // What a reader wants, it has the entry in front of.
        let last = Index(wanted.0.saturating_sub(1));
        if last.0 > 0 && self.last.is_none_or(|(known, _)| known < last) {
            self.last = Some((last, None));
        }
        let short = self.is_beyond(&info);
        if !short && reached < info.first {
            let why = format!(
                "the log {TRIMMED} up to entry {} while this node, at {reached}, was away: start it \
                 again, and it begins with a snapshot of the log's host",
                info.first
            );
            let e = Error::corrupt(format!("follow topic `{topic}`: {why}"));
            return self.end(topic, e, calls);
        }
        if short {
            let why = format!(
                "the host's log ends before entry {}, this node was at {wanted}",
                info.next
            );
            self.doubt(topic, &why, calls);
        }
        // Also if it is in doubt: the host learns of that by the next question.
        (self.compared, self.proven) = (true, self.last.is_none());
        // Not to nothing: a host that answers this and fails every read is still let rest.
        self.failures = self.failures.min(1);
        self.info = Some(info);
    }

    /// The host has said whether it has the last entry that was read here.
    pub(super) fn prove(
        &mut self,
        topic: &str,
        answer: Result<()>,
        calls: &mut Calls,
    ) -> Result<()> {
        match answer {
            Err(e) if e.kind == Kind::Corrupt => {
                self.doubt(topic, &format!("the host says: {}", e.message), calls);
                return Ok(());
            }
            // A build before this was asked: it has said how far its log goes.
            Err(e) if !matches!(e.kind, Kind::Unsupported | Kind::Invalid) => return Err(e),
            _ => {}
        }
        if !self.info.as_ref().is_some_and(|info| self.is_beyond(info)) {
            self.proven = true;
            self.doubt = None;
            for wake in std::mem::take(&mut self.recovers) {
                calls.push(Box::new(move || wake(Ok(()))));
            }
        }
        Ok(())
    }

    /// What is asked of the host next; nothing while there is enough of its entries here.
    pub(super) fn question(&self, key: &Key, sender: Sender) -> Option<(u16, Vec<u8>, u32)> {
        let mirror = self.mirror.as_ref()?;
        let Key { topic, reader } = key.clone();
        if !self.compared {
            let describe = wire::Describe { sender, topic };
            return Some((wire::OP_PEER_LOG_INFO, describe.to_bytes(), INFO_MS));
        }
        if let Some((index, crc)) = self.last.filter(|_| !self.proven) {
            let reached = wire::Reached { topic, index, crc };
            let compare = wire::Compare { sender, reached };
            return Some((wire::OP_PEER_LOG_COMPARE, compare.to_bytes(), INFO_MS));
        }
        let (from, entries_max) = (mirror.next(), ENTRIES_MAX);
        let read = wire::Read { sender, topic, from, entries_max, wait: true, reader };
        mirror.has_room().then(|| (wire::OP_PEER_LOG_READ, read.to_bytes(), POLL_MS))
    }

    /// Takes what was read. The last entry of all is remembered, to be compared.
    pub(super) fn push(&mut self, reply: &PeerReply) -> Result<()> {
        let entries: wire::Entries = decode(&reply.meta)?;
        let entries = wire::decode_indexed(&reply.body, entries.crc)?;
        let last = entries.last().map(|(index, entry)| (*index, Some(crc32c(entry))));
        self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.push(entries))?;
        if last.is_some_and(|last| self.last.is_none_or(|known| known.0 <= last.0)) {
            self.last = last;
        }
        self.failures = 0;
        Ok(())
    }
}
