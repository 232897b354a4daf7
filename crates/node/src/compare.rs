//! Nodes compare their views. Every ten seconds each asks all others that live how far their
//! snapshots cover the log and what their digests are; a view that differs from most stops here,
//! one that is in doubt is neither lent nor counted, and the log's host gives up what the others
//! cover. Who differs is judged in `holdfast_cluster::digests`. Called by the keeper and by the
//! service.

use super::registry::Folded;
use super::snapshots::{ANSWER_MS, request};
use super::{Condition, Node};
use holdfast_base::codec::Decode;
use holdfast_base::ids::{Index, NodeId};
use holdfast_base::{Error, Result};
use holdfast_cluster::NodeState;
use holdfast_cluster::cluster::NodeInfo;
use holdfast_cluster::digests::{Standing, Told, judge, trim_before};
use holdfast_cluster::images::{self, Image};
use holdfast_cluster::topics::{ITEMS, is_covered_by_snapshots};
use holdfast_env::net::PeerReply;
use holdfast_env::{HoldMutex, planted, sometimes};
use holdfast_wire::peer_log as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// Digests that are taken of one answer; a node sends fewer.
const DIGESTS_MAX: usize = 1024;
/// And so many images.
const IMAGES_MAX: usize = 1024;
/// And so many holds.
const HOLDS_MAX: usize = 1024;

/// What this node has of images of a topic.
#[derive(Clone, Default)]
pub(super) struct Imaged {
    images: Vec<Image>,
    /// The newest mark of which one of its views lost the image; 0 for none.
    lost: Index,
}

/// What is known of a topic's views since the last round.
#[derive(Default)]
pub(super) struct Compared {
    /// Where this node stands.
    own: Standing,
    /// Others that do not agree.
    others: Vec<(NodeId, Standing)>,
}

/// Answers of one topic; none of who failed.
type Answers = BTreeMap<NodeId, Option<Told>>;

/// One round of questions. Answers that come after its end are for nobody.
pub(super) struct Round {
    begun_ns: u64,
    /// Who was asked, as which start of itself.
    asked: BTreeMap<NodeId, Index>,
    answers: Vec<(String, Arc<Mutex<Answers>>)>,
}

fn locked(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.held()
}

impl Round {
    pub fn is_over(&self, now_ns: u64) -> bool {
        let all = self.asked.len() + 1;
        now_ns.saturating_sub(self.begun_ns) > ANSWER_MS as u64 * 1_000_000
            || self.answers.iter().all(|(_, answers)| locked(answers).len() == all)
    }
}

/// A node that takes part in the judgement.
pub(super) struct Other {
    pub id: NodeId,
    pub address: String,
    host: String,
    incarnation: Index,
    pub state: NodeState,
}

impl Node {
    fn compared(&self) -> MutexGuard<'_, BTreeMap<String, Compared>> {
        self.compared.held()
    }

    /// Members of the cluster but for this one; none while nobody knows them.
    pub(super) fn others(&self) -> Option<Vec<Other>> {
        let others = self.cluster.read(|view, _| {
            let others = view.nodes().filter(|(id, info)| *id != self.id && info.is_member());
            let other = |(id, info): (NodeId, &NodeInfo)| {
                let (address, host) = (info.address.clone(), info.host.clone());
                Other { id, address, host, incarnation: info.incarnation, state: info.state }
            };
            others.map(other).collect()
        });
        others.ok()
    }

    /// The host that this node runs on.
    fn own_host(&self) -> String {
        let own = self.cluster.read(|view, _| view.node(self.id).map(|info| info.host.clone()));
        own.ok().flatten().unwrap_or_default()
    }

    /// Where the other nodes are that live; nothing while nobody knows them.
    pub fn neighbours(&self) -> Vec<String> {
        let others = self.others().unwrap_or_default().into_iter();
        others.filter(|o| o.state == NodeState::Live).map(|other| other.address).collect()
    }

    /// What this node says of its view of a topic.
    pub(super) fn told(&self, topic: &str) -> Result<msg::Covered> {
        match self.views.view(topic) {
            Ok(view) => Ok(self.told_of(topic, &*view)),
            // Who has no view of a topic of items needs nothing of it: one that begins later begins
            // with images.
            Err(_) if !is_covered_by_snapshots(topic) => {
                let holds = self.held_now(topic);
                let covered = Index(u64::MAX);
                Ok(msg::Covered { covered, holds, ..msg::Covered::default() })
            }
            Err(e) => Err(e),
        }
    }

    /// What this node has of images of a topic, from now on: for the log's host, which trims it.
    /// `lost` is the newest mark of which a view of it should have one and has none; 0 for none.
    pub fn tell_images(&self, topic: &str, images: Vec<Image>, lost: Index) {
        self.images.held().insert(topic.to_owned(), Imaged { images, lost });
    }

    /// The newest mark of which some node said in the last round that a view of it lost its image; 0 for
    /// none. Known where the log is kept.
    pub fn lost_image(&self, topic: &str) -> Index {
        self.lost_images.held().get(topic).copied().unwrap_or_default()
    }

    /// Marks of which this node's images of a topic are not what others have: one of them is wrong, and whose
    /// it is, each finds out by reading its own.
    pub fn differing_images(&self, topic: &str) -> BTreeSet<Index> {
        self.differing_images.held().get(topic).cloned().unwrap_or_default()
    }

    fn held_now(&self, topic: &str) -> Vec<Index> {
        self.holds.of(topic, self.machine.clock.monotonic_ns())
    }

    /// Up to where this node's views of a topic need its log no more.
    fn covered(&self, topic: &str, view: &dyn Folded) -> Option<Index> {
        if is_covered_by_snapshots(topic) {
            return view.covered();
        }
        // The catalog takes snapshots; the others have their rows, or begin with images.
        let covered = self.views.of(topic).filter_map(|view| view.covered()).max()?;
        self.views.of(topic).map(|view| view.reached().0).chain([covered]).min()
    }

    fn told_of(&self, topic: &str, view: &dyn Folded) -> msg::Covered {
        let (covered, digests) = (self.covered(topic, view), view.digests());
        let Imaged { images, lost } = self.images.held().get(topic).cloned().unwrap_or_default();
        let holds = self.held_now(topic);
        let image = |Image { low, high, index, sums }: Image| {
            let sums = Arc::unwrap_or_clone(sums);
            msg::Image { low, high, index, sums }
        };
        let images = images.into_iter().map(image).collect();
        let own = self.compared().get(topic).map(|known| known.own.clone()).unwrap_or_default();
        let withdrawn = matches!(own, Standing::Outvoted(_));
        let digest = |(index, digest)| msg::Digest { index, digest };
        let digests = digests.into_iter().map(digest).collect();
        let covered = covered.unwrap_or_default();
        msg::Covered { covered, withdrawn, digests, images, holds, lost }
    }

    /// Asks all others that live. Waits for nobody.
    pub(super) fn ask_about_views(&self, now_ns: u64) -> Result<Option<Round>> {
        let Some(mut others) = self.others() else { return Ok(None) };
        if planted!("cluster.one-node-applies-otherwise")
            && others.iter().all(|other| other.id < self.id)
        {
            self.shards.root().refuse_next();
        }
        others.retain(|other| other.state == NodeState::Live);
        let asked = others.iter().map(|other| (other.id, other.incarnation)).collect();
        let mut round = Round { begun_ns: now_ns, asked, answers: Vec::new() };
        for (topic, view) in self.views.one_a_topic() {
            let own = BTreeMap::from([(self.id, Some(told(self.told_of(&topic, &*view))))]);
            let answers = Arc::new(Mutex::new(own));
            round.answers.push((topic.clone(), answers.clone()));
            let describe = msg::Describe { sender: self.sender, topic };
            for other in &others {
                let (id, answers) = (other.id, answers.clone());
                let answered = move |reply: Result<PeerReply>| {
                    let said = reply.and_then(|reply| Ok(msg::Covered::from_bytes(&reply.meta)?));
                    locked(&answers).insert(id, said.ok().map(told));
                };
                let ask = request(msg::OP_PEER_COVERED, &describe);
                self.machine.peers.call(&other.address, ask, Box::new(answered));
            }
        }
        Ok(Some(round))
    }

    /// Judges what was told, stops a view that most differ from, and trims the log if it is here.
    pub(super) fn judge_views(&self, round: &Round) -> Result<()> {
        let Some(others) = self.others() else { return Ok(()) };
        for (topic, answers) in &round.answers {
            let mut told: BTreeMap<NodeId, Told> = locked(answers)
                .iter()
                .filter_map(|(id, told)| Some((*id, told.clone()?)))
                .collect();
            // What an earlier start of a node said is not what it has now.
            told.retain(|id, _| {
                let same = |o: &Other| o.id == *id && round.asked.get(id) == Some(&o.incarnation);
                *id == self.id || others.iter().any(same)
            });
            self.judge_topic(topic, &others, &told)?;
        }
        Ok(())
    }

    fn judge_topic(
        &self,
        topic: &str,
        others: &[Other],
        told: &BTreeMap<NodeId, Told>,
    ) -> Result<()> {
        let nodes = others.len() + 1;
        let mut standings = judge(nodes, told);
        let trim = trim_before(nodes, told, &standings);
        let trim = match is_covered_by_snapshots(topic) {
            true => trim,
            false => {
                let lost = told.values().map(|told| told.lost).max();
                self.lost_images.held().insert(topic.to_owned(), lost.unwrap_or_default());
                trim.min(self.trim_by_images(topic, others, told))
            }
        };
        let own = standings.remove(&self.id).unwrap_or_default();
        let own = {
            let mut compared = self.compared();
            let known = compared.entry(topic.to_owned()).or_default();
            let stays = match &known.own {
                Standing::Outvoted(_) => true,
                // Whom it differed from is silent: that settles nothing.
                Standing::Disputed(difference) if own == Standing::Agrees => difference
                    .others(self.id)
                    .any(|id| others.iter().any(|o| o.id == id) && !told.contains_key(&id)),
                _ => false,
            };
            if !stays {
                known.own = own;
            }
            standings.retain(|_, standing| *standing != Standing::Agrees);
            known.others = standings.into_iter().collect();
            known.own.clone()
        };
        match &own {
            Standing::Outvoted(difference) => {
                let why = Error::corrupt(format!(
                    "the views of nodes differ: {difference}: this is node {}, which has applied \
                     something otherwise than most: what it holds is not served, not lent, and \
                     covers nothing of the log; end it, move {} away from its data directory and \
                     start it: it folds the log anew, or begins with a snapshot of the log's host \
                     (on the host itself, put the directory of another node there); if it happens \
                     again, look at the memory of its machine and which build it runs",
                    self.id.0,
                    self.kept_of(topic)
                ));
                if !planted!("cluster.minority-goes-on") {
                    self.views.of(topic).for_each(|view| view.stop(why.clone()));
                }
                Ok(())
            }
            Standing::Disputed(_) => Ok(()),
            _ => self.trim_log(topic, others, told, trim),
        }
    }

    /// Up to where images of its views cover a topic of items. Says which differ.
    fn trim_by_images(
        &self,
        topic: &str,
        others: &[Other],
        told: &BTreeMap<NodeId, Told>,
    ) -> Option<Index> {
        let host = |id: &NodeId| match others.iter().find(|other| other.id == *id) {
            Some(other) => other.host.as_str(),
            None => "",
        };
        // One that does not live has nothing that could be relied on.
        let lives = |id: &NodeId| {
            let other = others.iter().find(|other| other.id == *id);
            other.is_none_or(|other| other.state == NodeState::Live)
        };
        let own = self.own_host();
        let of_node = |(id, told): (&NodeId, &Told)| {
            let host = if *id == self.id { own.as_str() } else { host(id) };
            (*id, (host, told.images.clone()))
        };
        // Nothing of it is missed when a machine is lost that only answers, and has no images.
        let counts = |id: &NodeId, told: &Told| {
            let keeps_chunks = self.cluster.read(|view, _| view.keeps_chunks(*id)).unwrap_or(true);
            keeps_chunks || !told.images.is_empty()
        };
        let all = told.iter().filter(|(id, told)| lives(id) && counts(id, told));
        let all = all.map(of_node).collect();
        let mut own_differ = BTreeSet::new();
        for difference in images::differing(&all) {
            own_differ
                .extend(Some(difference.index).filter(|_| difference.nodes.contains(&self.id)));
            self.report_finding(format!(
                "the images of views of topic `{topic}` hold different items: {difference}: those that have \
                 such keys do not count for the trim of its log; `holdfast view verify` says which view \
                 is wrong; compare the nodes' builds and look at the memory of their machines; the next \
                 mark makes others"
            ));
        }
        self.differing_images.held().insert(topic.to_owned(), own_differ);
        let mut marks = self.marks.held();
        match images::newest_mark(&all) {
            Some(mark) => drop(marks.insert(topic.to_owned(), mark)),
            None => drop(marks.remove(topic)),
        }
        drop(marks);
        images::trim_before(&all)
    }

    /// What somebody can begin with who finds that entries of a topic were trimmed; nothing where it has no
    /// views.
    pub fn where_to_begin(&self, topic: &str) -> Option<String> {
        let name = topic.strip_prefix(ITEMS)?.strip_prefix('/')?;
        // As the last round found them; in front of the first one, of this node's own.
        let known = self.marks.held().get(topic).copied();
        let own = || self.own_mark(topic).filter(|_| !planted!("node.own-images-unnamed"));
        Some(match known.or_else(own) {
            Some(mark) => format!(
                "begin with what `holdfast ride {name} --at {mark}` gives, and go on behind that entry"
            ),
            None => format!(
                "begin with an image: `holdfast view status` at the nodes that run views of `{name}` says of \
                 which entries there are some"
            ),
        })
    }

    /// The newest mark of which this node alone has images of all keys.
    fn own_mark(&self, topic: &str) -> Option<Index> {
        let own = self.images.held().get(topic)?.images.clone();
        images::newest_mark(&BTreeMap::from([(self.id, ("", own))]))
    }

    /// Gives up the entries that two snapshots of every node cover, at the node that looks after it. A
    /// node that is away holds it up until it counts as lost; then it gets a snapshot when it
    /// returns.
    fn trim_log(
        &self,
        topic: &str,
        others: &[Other],
        told: &BTreeMap<NodeId, Told>,
        before: Option<Index>,
    ) -> Result<()> {
        let all_live = others.iter().all(|other| other.state == NodeState::Live);
        let Some(before) = before.filter(|_| all_live && self.looks_after_log()) else {
            return Ok(());
        };
        let first = self.log.info(topic)?.first;
        if before <= first {
            return Ok(());
        }
        let held = told.iter().map(|(id, told)| (*id, told.holds.clone())).collect();
        let before = self.bounded_by_holds(topic, before, &held);
        if before > first {
            // The entry at a snapshot itself stays: a boot compares it with the snapshot's.
            self.log.trim(topic, before)?;
            if !is_covered_by_snapshots(topic) {
                sometimes!("the log of items was trimmed");
                if held.values().any(|held| !held.is_empty()) {
                    sometimes!("a trim happened during a ride");
                }
            }
        }
        Ok(())
    }

    /// Refuses to lend a snapshot of a view that is in doubt. One that has stopped refuses itself.
    pub(super) fn check_lends(&self, topic: &str) -> Result<()> {
        match self.doubt(topic) {
            Some(doubt) if !planted!("cluster.differing-views-lend") => {
                Err(Error::retry(format!("lend a snapshot of topic `{topic}`: {doubt}")))
            }
            _ => Ok(()),
        }
    }

    /// What a node keeps of a view, below its data directory.
    fn kept_of(&self, topic: &str) -> String {
        let outlives = self.views.view(topic).is_ok_and(|view| view.outlives());
        let rows = if outlives { ", and the index that belongs to it," } else { "" };
        format!("`snapshots/{}`{rows}", topic.replace('/', "-"))
    }

    fn doubt(&self, topic: &str) -> Option<String> {
        let compared = self.compared();
        let Standing::Disputed(difference) = &compared.get(topic)?.own else { return None };
        Some(format!(
            "the views of `{topic}` differ: {difference}, and neither side is more than half of \
             the cluster's nodes: neither lends snapshots, and the log is not trimmed; end a node \
             that you take for wrong, put {} of one that you take for right in the place of its \
             own, and start it; if it happens again, compare their builds and look at their memory",
            self.kept_of(topic)
        ))
    }

    /// Views of this node that differ from others' without a majority on either side.
    pub(super) fn doubts(&self) -> Vec<Condition> {
        let topics = self.views.one_a_topic().into_iter();
        let doubts = topics.filter_map(|(topic, _)| self.doubt(&topic));
        doubts.map(|doubt| Condition::new("differs", doubt)).collect()
    }

    /// Other nodes whose views differ from this one's, or from each other's.
    pub(super) fn differing(&self) -> Vec<String> {
        let compared = self.compared();
        let all = compared.iter().flat_map(|(topic, known)| {
            known.others.iter().filter_map(move |(id, standing)| {
                let difference = match standing {
                    Standing::Agrees => return None,
                    Standing::Withdrawn => String::new(),
                    Standing::Outvoted(of) | Standing::Disputed(of) => format!(" ({of})"),
                };
                Some(format!(
                    "the view of `{topic}` of node {} differs from others'{difference}: it covers \
                     nothing of the log; `holdfast doctor --server` there says what to do",
                    id.0
                ))
            })
        });
        all.collect()
    }
}

pub(super) fn told(said: msg::Covered) -> Told {
    let digests = said.digests.into_iter().take(DIGESTS_MAX);
    let digests = digests.map(|one| (one.index, one.digest)).collect();
    let image = |image: msg::Image| {
        let msg::Image { low, high, index, sums } = image;
        Image { low, high, index, sums: Arc::new(sums) }
    };
    let images = said.images.into_iter().take(IMAGES_MAX).map(image).collect();
    let holds = said.holds.into_iter().take(HOLDS_MAX).collect();
    let (covered, withdrawn, lost) = (said.covered, said.withdrawn, said.lost);
    Told { covered, withdrawn, digests, images, holds, lost }
}
