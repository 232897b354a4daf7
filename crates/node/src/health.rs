//! What keeps this node from all of its work, as it is now: one condition each, for `/health`,
//! `status` and whoever watches. Empty is well. Asked by the faces, which may add their own; it
//! changes nothing.

use super::LogKeeper;
use super::Node;
use holdfast_base::Error;
use holdfast_base::node::StorageClass;
use holdfast_cluster::CLUSTER_TOPIC;
use holdfast_env::HoldMutex;

/// One thing that is wrong now. It goes by itself, or by what the sentence says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// One word for whoever filters: `view`, `differs`, `store`, `space`, `memory` ...
    pub name: &'static str,
    /// What is wrong and what to do.
    pub sentence: String,
}

impl Condition {
    pub fn new(name: &'static str, sentence: impl Into<String>) -> Condition {
        Condition { name, sentence: sentence.into() }
    }
}

/// Tells what is wrong with something that the node runs, whenever it is asked.
pub type Watch = Box<dyn Fn() -> Vec<Condition> + Send + Sync>;

impl Node {
    /// Its conditions are the node's, too, from now on.
    pub fn watch(&self, watch: Watch) {
        self.watches.held().push(watch);
    }

    pub fn conditions(&self) -> Vec<Condition> {
        let stopped = self.stopped_views().into_iter();
        let mut all: Vec<Condition> = stopped.map(|why| Condition::new("view", why)).collect();
        let views_apply = all.is_empty();
        all.extend(self.unopened().into_iter().map(|why| Condition::new("view", why)));
        let broken = self.stores.iter().filter(|own| own.store.usage().read_only);
        all.extend(broken.map(|own| {
            let sentence = format!(
                "store {} in {} takes no writes since one failed: check the disk, then restart",
                own.id, own.place
            );
            Condition::new("store", sentence)
        }));
        // Where a view has stopped or the store has failed, the reason is said already.
        if views_apply
            && all.is_empty()
            && let Err(e) = self.takes_chunks()
        {
            all.push(Condition::new("space", e.message));
        }
        let left_out = self.stores.left_out().iter();
        all.extend(left_out.map(|why| Condition::new("store", why.clone())));
        let shortage = self.hosted().and_then(|log| log.shortage());
        all.extend(shortage.map(|why| Condition::new("space", why)));
        all.extend(self.silence());
        let refusals = self.shared().map_or(Vec::new(), |log| log.refusals()).into_iter();
        all.extend(refusals.map(|why| Condition::new("log", format!("nothing is written: {why}"))));
        all.extend(self.doubts());
        let watches = self.watches.held();
        all.extend(watches.iter().flat_map(|watch| watch()));
        all
    }

    /// What keeps this node from hearing of the log, while it answers from what it knew.
    fn silence(&self) -> Option<Condition> {
        if !self.is_behind() {
            return None;
        }
        let (who, trouble, look_at) = match &self.kept {
            LogKeeper::Here(_) => return None,
            LogKeeper::Node { log, host } => {
                (format!("the log's host `{host}`"), log.trouble(CLUSTER_TOPIC), "that node")
            }
            LogKeeper::Shared(log) => {
                (format!("the log's brokers ({})", log.place()), log.trouble(CLUSTER_TOPIC), "them")
            }
        };
        let why = trouble.map_or(String::new(), |e| format!(": {e}"));
        let sentence = format!(
            "nothing was heard from {who} for a while: what is read here may be old, and nothing is \
             written{why}: look at {look_at}, and at the way there"
        );
        Some(Condition::new("log", sentence))
    }

    /// Whether the log takes what adds names, or only what frees space.
    pub fn takes_names(&self) -> Result<(), Error> {
        self.hosted().map_or(Ok(()), |log| log.check_room())
    }

    /// Whether the next chunk of ordinary, durable bytes would find its stores: asked of what
    /// places chunks, so that this is refused exactly when writes are.
    fn takes_chunks(&self) -> Result<(), Error> {
        self.spot_of(StorageClass::DEFAULT).map(drop)
    }
}
