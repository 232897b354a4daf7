//! One topic of a log that another node hosts: what is asked of the host next, and what its answers
//! change. Its mirror is compared with the host's log before it is read on, so that a log which was
//! put back from an older copy is found out. Decides only; what is to be called is handed back.

use super::{Key, decode};
use crate::feed::{Calls, Feed};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::PeerReply;
use holdfast_wire::peer::Sender;
use holdfast_wire::{log as msg, peer_log as wire};

/// How long one read waits at the host for an entry.
const POLL_MS: u32 = 20_000;
const INFO_MS: u32 = 2_000;
const ENTRIES_MAX: u32 = 4096;

/// What a person does where the host's log is another one.
const WAY_OUT: &str = "put the log of the host back as it was";

/// One topic.
pub(super) struct Following {
    pub(super) feed: Feed,
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
    /// What kept the last attempt from succeeding.
    pub(super) trouble: Option<Error>,
}

impl Following {
    pub(super) fn new(topic: &str) -> Following {
        Following {
            feed: Feed::new(topic),
            info: None,
            compared: false,
            proven: false,
            last: None,
            busy: false,
            round: 0,
            failures: 0,
            trouble: None,
        }
    }

    /// Makes sure that the entry at `from` is here or on its way.
    pub(super) fn want(&mut self, from: Index) {
        if self.feed.want(from) {
            self.compare_anew();
            self.interrupt();
        }
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

    /// Ends the topic for good.
    pub(super) fn end(&mut self, e: Error) -> Calls {
        self.interrupt();
        self.feed.end(e)
    }

    /// Whether the host's log ends before the last entry that was read here.
    fn is_beyond(&self, info: &msg::Info) -> bool {
        self.last.is_some_and(|(last, _)| last >= info.next)
    }

    /// Compares what the host says of the topic with what was mirrored, and with where its readers
    /// are.
    pub(super) fn compare(&mut self, info: msg::Info) -> Calls {
        let wanted = self.feed.wanted();
        // What a reader wants, it has the entry in front of.
        let last = Index(wanted.0.saturating_sub(1));
        if last.0 > 0 && self.last.is_none_or(|(known, _)| known < last) {
            self.last = Some((last, None));
        }
        let short = self.is_beyond(&info);
        if !short && self.feed.next() < info.first {
            self.interrupt();
            return self.feed.end_trimmed(info.first);
        }
        let calls = match short {
            true => {
                let why = format!(
                    "the host's log ends before entry {}, this node was at {wanted}",
                    info.next
                );
                self.feed.doubt(&why, WAY_OUT)
            }
            false => Calls::new(),
        };
        // Also if it is in doubt: the host learns of that by the next question.
        (self.compared, self.proven) = (true, self.last.is_none());
        // Not to nothing: a host that answers this and fails every read is still let rest.
        self.failures = self.failures.min(1);
        self.info = Some(info);
        calls
    }

    /// The host has said whether it has the last entry that was read here.
    pub(super) fn prove(&mut self, answer: Result<()>) -> Result<Calls> {
        match answer {
            Err(e) if e.kind == Kind::Corrupt => {
                return Ok(self.feed.doubt(&format!("the host says: {}", e.message), WAY_OUT));
            }
            // A build before this was asked: it has said how far its log goes.
            Err(e) if !matches!(e.kind, Kind::Unsupported | Kind::Invalid) => return Err(e),
            _ => {}
        }
        if self.info.as_ref().is_some_and(|info| self.is_beyond(info)) {
            return Ok(Calls::new());
        }
        self.proven = true;
        Ok(self.feed.believe())
    }

    /// What is asked of the host next; nothing while there is enough of its entries here.
    pub(super) fn question(&self, key: &Key, sender: Sender) -> Option<(u16, Vec<u8>, u32)> {
        if !self.feed.is_wanted() {
            return None;
        }
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
        let (from, entries_max) = (self.feed.next(), ENTRIES_MAX);
        let read = wire::Read { sender, topic, from, entries_max, wait: true, reader };
        self.feed.has_room().then(|| (wire::OP_PEER_LOG_READ, read.to_bytes(), POLL_MS))
    }

    /// Takes what was read. The last entry of all is remembered, to be compared.
    pub(super) fn push(&mut self, reply: &PeerReply) -> Result<Calls> {
        let entries: wire::Entries = decode(&reply.meta)?;
        let entries = wire::decode_indexed(&reply.body, entries.crc)?;
        let last = entries.last().map(|(index, entry)| (*index, Some(crc32c(entry))));
        let calls = self.feed.push(entries)?;
        if last.is_some_and(|last| self.last.is_none_or(|known| known.0 <= last.0)) {
            self.last = last;
        }
        self.failures = 0;
        Ok(calls)
    }
}
