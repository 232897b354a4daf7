//! Snapshots between nodes: a node whose own snapshot ends before the log begins takes over the log
//! host's. What of the log may go is said where views are compared. Called by a node that opens and
//! by the service.

use super::views::wait_for;
use super::{LogKeeper, Node};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Reason, Result};
use holdfast_env::net::{PeerReply, PeerRequest, Peers};
use holdfast_log::{Info, Log, Scope};
use holdfast_view::{Context, SnapshotPart, SnapshotStore, View};
use holdfast_wire::peer::Sender;
use holdfast_wire::peer_log as msg;

/// Bytes of one part of a snapshot on its way.
const PART_BYTES: u32 = 1 << 20;
/// How long an answer may take.
pub(super) const ANSWER_MS: u32 = 5000;

/// What nodes ask about each other's snapshots, answered by [`Node::answer_about_snapshots`].
pub const SNAPSHOT_OPERATIONS: [u16; 2] = [msg::OP_PEER_COVERED, msg::OP_PEER_SNAPSHOT];

pub(super) fn request(opcode: u16, message: &impl Encode) -> PeerRequest {
    PeerRequest { opcode, meta: message.to_bytes(), body: None, deadline_ms: ANSWER_MS }
}

/// Before a node that does not keep the log itself opens its view of a topic: where the log begins behind
/// what the node has of it, the newest snapshot of the node at `lender` is taken over. Whether it was.
pub(super) fn take_over_if_trimmed<V: View>(
    (peers, log): (&dyn Peers, &dyn Log),
    (lender, sender): (Option<&str>, Sender),
    context: &Context,
    snapshots: &SnapshotStore,
) -> Result<bool> {
    let topic = &context.topic;
    let info = wait_for(peers, &|| {}, |done| log.ask(topic, done))?;
    // The entry at the snapshot itself must be there: it proves that both are of one log.
    let kept = V::begin(context).kept()?.map_or(Index(1), |(position, _)| position.applied);
    if info.first <= snapshots.newest()?.max(kept).max(Index(1)) {
        return Ok(false);
    }
    let Some(lender) = lender else {
        return Err(Error::invalid(format!(
            "begin with topic `{topic}`: it begins at entry {}, what is in front of that is in snapshots \
             of the cluster's nodes: start with `--join HOST:PORT` of one that runs",
            info.first
        )));
    };
    let ask = |request| wait_for(peers, &|| {}, |done| peers.call(lender, request, done));
    let fetch = |index: Option<Index>, offset| {
        let (topic, index) = (topic.to_owned(), index.unwrap_or_default());
        let part = msg::Snapshot { sender, topic, index, offset, bytes: PART_BYTES };
        let PeerReply { meta, body } = ask(request(msg::OP_PEER_SNAPSHOT, &part))?;
        let part = msg::SnapshotPart::from_bytes(&meta)?;
        if crc32c(&body) != part.crc {
            return Err(Error::retry("part of a snapshot was damaged on its way: ask again"));
        }
        Ok(SnapshotPart { index: part.index, bytes_total: part.bytes_total, bytes: body })
    };
    snapshots.install(fetch).map_err(|e| {
        e.context(format_args!("take over the snapshot of topic `{topic}` from `{lender}`"))
    })?;
    Ok(true)
}

/// Where a topic begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The first entry that is there, or will be.
    pub first: Index,
    /// The last durable one; 0 before the first.
    pub last: Index,
}

/// What a topic has at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryAt {
    /// An entry with this CRC32C.
    Kept(u32),
    /// It was trimmed, if there was one.
    Trimmed,
    /// None: there is a gap, or the topic ends in front of it.
    None,
}

impl EntryAt {
    fn among(entries: &[(Index, Vec<u8>)], index: Index) -> EntryAt {
        let there = entries.iter().find(|(at, _)| *at == index);
        there.map_or(EntryAt::None, |(_, entry)| EntryAt::Kept(crc32c(entry)))
    }

    /// As the log said it.
    fn told(read: Result<EntryAt>) -> Result<EntryAt> {
        match read {
            Err(e) if e.is(Reason::Trimmed) => Ok(EntryAt::Trimmed),
            read => read,
        }
    }
}

impl Node {
    /// Asks what a topic has at an index, of whoever keeps the log: not of its mirror here, which would go
    /// back there for this. `done` may be called at once.
    pub fn ask_entry(
        &self,
        topic: &str,
        index: Index,
        done: impl FnOnce(Result<EntryAt>) + Send + 'static,
    ) {
        let read = move |log: &dyn Log, topic: &str| {
            // Here a view may have applied what is on its way to the disk.
            let entries = log.read(topic, index, 1, 1, Scope::Written);
            EntryAt::told(entries.map(|entries| EntryAt::among(&entries, index)))
        };
        match &self.kept {
            LogKeeper::Here(log) => done(read(&**log, topic)),
            LogKeeper::Shared(_) => {
                let (log, topic) = (self.log_for_clients(), topic.to_owned());
                self.workers.run(move || done(read(&*log, &topic)));
            }
            LogKeeper::Node { host, .. } => {
                // Of none of this node's own readers, who would have to ask again.
                let (sender, topic, reader) = (self.sender, topic.to_owned(), u32::MAX);
                let asked =
                    msg::Read { sender, topic, from: index, entries_max: 1, wait: false, reader };
                let answered = move |reply: Result<PeerReply>| {
                    let read = reply.and_then(|PeerReply { meta, body }| {
                        let crc = msg::Entries::from_bytes(&meta)?.crc;
                        Ok(EntryAt::among(&msg::decode_indexed(&body, crc)?, index))
                    });
                    done(EntryAt::told(read));
                };
                let ask = request(msg::OP_PEER_LOG_READ, &asked);
                self.machine.peers.call(host, ask, Box::new(answered));
            }
        }
    }

    /// Asks where a topic begins and ends by now: its first entry, and its last durable one (0 where there
    /// is none). `done` may be called at once.
    pub fn ask_ends(&self, topic: &str, done: impl FnOnce(Result<Ends>) + Send + 'static) {
        let ends =
            |info: Info| Ends { first: info.first, last: Index(info.durable.0.saturating_sub(1)) };
        self.log.ask(topic, Box::new(move |info| done(info.map(ends))));
    }

    /// Whether the log has a topic; asks whoever keeps it, so it may wait.
    pub fn has_topic(&self, topic: &str) -> Result<bool> {
        match self.wait_for(|done| self.log.ask(topic, done)) {
            Ok(_) => Ok(true),
            Err(e) if e.kind == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Answers another node about this one's snapshots; may read a file.
    pub fn answer_about_snapshots(&self, opcode: u16, meta: &[u8]) -> Result<PeerReply> {
        if opcode == msg::OP_PEER_COVERED {
            let told = self.told(&msg::Describe::from_bytes(meta)?.topic)?;
            return Ok(PeerReply { meta: told.to_bytes(), body: Vec::new() });
        }
        let msg::Snapshot { topic, index, offset, bytes, .. } = msg::Snapshot::from_bytes(meta)?;
        self.check_lends(&topic)?;
        let (index, bytes) = ((index.0 != 0).then_some(index), bytes.min(PART_BYTES));
        let part = self.views.view(&topic)?.part(index, offset, bytes)?;
        let (index, bytes_total, crc) = (part.index, part.bytes_total, crc32c(&part.bytes));
        let meta = msg::SnapshotPart { index, bytes_total, crc }.to_bytes();
        Ok(PeerReply { meta, body: part.bytes })
    }
}

pub(super) fn no_view(topic: &str) -> Error {
    Error::not_found(format!("read a snapshot of topic `{topic}`: this node folds no such topic"))
}
