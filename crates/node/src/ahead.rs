//! Whether other nodes have read further than the log goes that this one keeps, or other entries
//! than it has: it was put back from an older copy then, and whatever it took in would be a second
//! history beside theirs. They are asked at the start, before anything is appended, and say so
//! themselves whenever they come back to it. Who keeps no log answers here, and asks nobody.

use super::reached::folded_topics;
use super::snapshots::request;
use super::views::wait_for;
use super::{Machine, Node};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::NodeId;
use holdfast_base::{Error, Kind, Result};
use holdfast_chunk::Done;
use holdfast_cluster::ClusterView;
use holdfast_cluster::topics::folded_by;
use holdfast_env::net::{PeerReply, PeerRequest};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::{Log, missing};
use holdfast_view::Fold;
use holdfast_wire::peer::Sender;
use holdfast_wire::peer_log as msg;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How long a start waits for the other nodes, all at once: one whose others are all away starts.
const ASK_MS: u32 = 1000;

/// What the nodes said that answered.
type Told = Vec<(NodeId, Vec<msg::Reached>)>;

/// Answers that are waited for, all together.
struct Answers {
    told: Told,
    missing: usize,
    done: Option<Done<Told>>,
}

/// Topics in which another node has read what the log here does not have, and why that is known.
pub(super) fn topics_behind(
    machine: &Machine,
    sender: Sender,
    cluster: &Fold<ClusterView>,
    log: &dyn Log,
) -> Result<BTreeMap<String, Error>> {
    let members: Vec<(NodeId, String)> = cluster.read_last(|view| {
        let others = view.nodes().filter(|(id, info)| *id != sender.node && info.is_member());
        others.map(|(id, info)| (id, info.address.clone())).collect()
    });
    let mut behind = BTreeMap::new();
    if members.is_empty() || planted!("node.starts-unasked") {
        return Ok(behind);
    }
    let told = wait_for(&*machine.peers, &|| {}, |done| ask(machine, sender, members, done))?;
    for (node, reached) in told {
        for msg::Reached { topic, index, crc } in reached {
            if folded_by(&topic).is_some()
                && let Some(what) = missing(log, &topic, index, crc)
            {
                behind.entry(topic).or_insert_with(|| put_back(node, &what));
            }
        }
    }
    // All topics of a log are of one age: in the others, too, what it says is not what was read.
    if let Some(why) = behind.values().next().cloned() {
        for topic in folded_topics(log) {
            behind.entry(topic).or_insert(why.clone());
        }
    }
    Ok(behind)
}

fn ask(machine: &Machine, sender: Sender, members: Vec<(NodeId, String)>, done: Done<Told>) {
    let answers = Answers { told: Vec::new(), missing: members.len(), done: Some(done) };
    let answers = Arc::new(Mutex::new(answers));
    let describe = msg::Describe { sender, topic: String::new() };
    for (node, address) in members {
        let answers = answers.clone();
        let answered = move |reply: Result<PeerReply>| {
            let said = reply.and_then(|reply| Ok(Vec::from_bytes(&reply.meta)?));
            let over = {
                let mut answers = answers.held();
                answers.missing -= 1;
                answers.told.extend(said.ok().map(|said| (node, said)));
                let over = answers.missing == 0;
                over.then(|| (answers.done.take(), std::mem::take(&mut answers.told)))
            };
            if let Some((Some(done), told)) = over {
                done(Ok(told));
            }
        };
        let ask = request(msg::OP_PEER_LOG_REACHED, &describe);
        let ask = PeerRequest { deadline_ms: ASK_MS, ..ask };
        machine.peers.call(&address, ask, Box::new(answered));
    }
}

fn put_back(node: NodeId, what: &str) -> Error {
    Error::corrupt(format!(
        "the log is older than node `{node}` has read it: {what}: entries are missing, and what \
         they said would be: put back the log as it was, with its snapshots, and start this node; \
         no change of this topic is taken until then; to go on without them, start each node that \
         has them with an empty directory"
    ))
}

impl Node {
    /// Says how far this node has read each topic that it folds.
    pub fn answer_reached(&self) -> PeerReply {
        let views = self.views.one_a_topic().into_iter();
        let reached = views.filter_map(|(topic, view)| {
            let (index, crc) = view.reached();
            (index.0 > 0).then_some(msg::Reached { topic, index, crc: Some(crc) })
        });
        PeerReply { meta: reached.collect::<Vec<_>>().to_bytes(), body: Vec::new() }
    }

    /// What another node was answered that has compared the log here with what it has read: where it
    /// is another one, its views stop.
    pub fn compared_log(&self, meta: &[u8], answer: &Result<PeerReply>) {
        let Err(Error { kind: Kind::Corrupt, message, .. }) = answer else { return };
        let Ok(msg::Compare { sender, reached }) = msg::Compare::from_bytes(meta) else { return };
        if folded_by(&reached.topic).is_none() || planted!("node.members-further-believed") {
            return;
        }
        let why = put_back(sender.node, message);
        // All topics of a log are of one age. In another one the entries that were compared may be
        // the same by chance, as signs of life are.
        for topic in folded_topics(&*self.log).chain([reached.topic]) {
            let why = self.older.held().entry(topic.clone()).or_insert(why.clone()).clone();
            self.views.of(&topic).for_each(|view| view.stop(why.clone()));
        }
    }

    /// Refuses a topic whose log was put back from an older copy.
    pub(super) fn check_log_age(&self, topic: &str) -> Result<()> {
        self.older.held().get(topic).map_or(Ok(()), |why| Err(why.clone()))
    }

    /// As [`Node::check_log_age`], for what another node asks of the log here. How far it goes is
    /// told: the others find out by that.
    pub fn check_log_request(&self, opcode: u16, meta: &[u8]) -> Result<()> {
        if self.older.held().is_empty() {
            return Ok(());
        }
        match opcode {
            msg::OP_PEER_LOG_APPEND => self.check_log_age(&msg::Append::from_bytes(meta)?.topic),
            msg::OP_PEER_LOG_READ => self.check_log_age(&msg::Read::from_bytes(meta)?.topic),
            _ => Ok(()),
        }
    }
}
