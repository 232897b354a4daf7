//! The views that a node keeps, by their topics: its own two, and one for each face that folds a
//! topic. Who is asked about views (for its health, by nodes that compare or begin with a snapshot)
//! asks here and knows no face. Owns none of them and never applies an entry.

use super::snapshots::{no_view, take_over_if_trimmed};
use super::{Node, snapshot_store};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_view::{Context, Fold, FoldStatus, SnapshotPart, View};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// What every view can be asked, whatever it holds.
pub trait Folded: Send + Sync {
    fn status(&self) -> FoldStatus;
    /// As [`View::OUTLIVES`].
    fn outlives(&self) -> bool;
    /// As [`Fold::reached`].
    fn reached(&self) -> (Index, u32);
    /// As [`Fold::covered`].
    fn covered(&self) -> Option<Index>;
    /// As [`Fold::digests`].
    fn digests(&self) -> Vec<(Index, u64)>;
    /// As [`Fold::snapshot_now`].
    fn snapshot(&self) -> Result<Index>;
    /// As [`Fold::snapshot_part`].
    fn part(&self, index: Option<Index>, offset: u64, bytes: u32) -> Result<SnapshotPart>;
    /// As [`Fold::stop`].
    fn stop(&self, why: Error);
}

impl<V: View> Folded for Fold<V> {
    fn status(&self) -> FoldStatus {
        Fold::status(self)
    }

    fn outlives(&self) -> bool {
        V::OUTLIVES
    }

    fn reached(&self) -> (Index, u32) {
        Fold::reached(self)
    }

    fn covered(&self) -> Option<Index> {
        Fold::covered(self)
    }

    fn digests(&self) -> Vec<(Index, u64)> {
        Fold::digests(self)
    }

    fn snapshot(&self) -> Result<Index> {
        self.snapshot_now()
    }

    fn part(&self, index: Option<Index>, offset: u64, bytes: u32) -> Result<SnapshotPart> {
        self.snapshot_part(index, offset, bytes)
    }

    fn stop(&self, why: Error) {
        Fold::stop(self, why);
    }
}

enum Entry {
    /// Its owner may have dropped it.
    Open(Weak<dyn Folded>),
    /// It could not be opened.
    Failed(String),
}

#[derive(Default)]
pub(crate) struct Registry {
    views: Mutex<BTreeMap<String, Entry>>,
}

impl Registry {
    pub fn open<V: View>(&self, topic: &str, view: &Arc<Fold<V>>) {
        let view: Arc<dyn Folded> = view.clone();
        self.views.held().insert(topic.to_owned(), Entry::Open(Arc::downgrade(&view)));
    }

    /// The first reason stays, and so does that of a view which stopped by itself.
    fn failed(&self, topic: &str, why: &Error) {
        let told = self.view(topic).is_ok_and(|view| view.status().stopped.is_some());
        let mut views = self.views.held();
        if !told && !matches!(views.get(topic), Some(Entry::Failed(_))) {
            views.insert(topic.to_owned(), Entry::Failed(why.message.clone()));
        }
    }

    /// Those that are open, in the order of their topics.
    pub fn all(&self) -> Vec<(String, Arc<dyn Folded>)> {
        let views = self.views.held();
        let open = views.iter().filter_map(|(topic, entry)| match entry {
            Entry::Open(view) => Some((topic.clone(), view.upgrade()?)),
            Entry::Failed(_) => None,
        });
        open.collect()
    }

    pub fn view(&self, topic: &str) -> Result<Arc<dyn Folded>> {
        match self.views.held().get(topic) {
            Some(Entry::Open(view)) => view.upgrade().ok_or_else(|| no_view(topic)),
            _ => Err(no_view(topic)),
        }
    }

    /// Topics whose views have stopped or could not be opened, and why.
    pub fn stopped(&self) -> Vec<(String, String)> {
        let open = self.all().into_iter();
        let mut stopped: Vec<_> = open
            .filter_map(|(topic, view)| Some((topic, view.status().stopped?.message)))
            .collect();
        stopped.extend(self.views.held().iter().filter_map(|(topic, entry)| match entry {
            Entry::Failed(why) => Some((topic.clone(), why.clone())),
            Entry::Open(_) => None,
        }));
        stopped.sort();
        stopped
    }
}

impl Node {
    /// Opens a face's view of the context's topic, in the context's rows or in memory, and makes it
    /// one of the node's: compared with other nodes', lent to them, covering its log, and told of
    /// when it stops. Begins with a snapshot of the log's host where the log was trimmed behind
    /// what is here. The face owns it: with its owner it goes.
    pub fn open_view<V: View>(&self, context: Context) -> Result<Arc<Fold<V>>> {
        let topic = context.topic.clone();
        self.check_log_age(&topic)?;
        self.log.create(&topic)?;
        let snapshots = snapshot_store(&self.machine, &self.data, &topic);
        if self.hosted.is_none() {
            let host = (self.log_host.as_str(), self.sender);
            let taken =
                take_over_if_trimmed::<V>(&*self.machine.peers, host, &context, &snapshots)?;
            self.replicator.events.snapshots_taken_over.fetch_add(taken as u64, Ordering::Relaxed);
        }
        // What is kept in rows waits for their engine, which no thread of the log should.
        let fold = match context.rows.is_some() && !self.workers.is_inline() {
            true => Fold::open_on_thread(self.log.clone(), context, snapshots, self.fold)?,
            false => Fold::open_member(self.log.clone(), context, snapshots, self.fold)?,
        };
        let fold = Arc::new(fold);
        self.views.open(&topic, &fold);
        Ok(fold)
    }

    /// Whether one of this node's views folds the topic: nobody else writes or trims it.
    pub fn folds(&self, topic: &str) -> bool {
        self.views.view(topic).is_ok()
    }

    /// Takes a snapshot of every view, now; the first failure, if there is one.
    pub fn snapshot_views(&self) -> Result<()> {
        let views = self.views.all().into_iter();
        let failed: Vec<Error> = views.filter_map(|(_, view)| view.snapshot().err()).collect();
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// A face says that it could not open its view of a topic.
    pub fn view_failed(&self, topic: &str, why: &Error) {
        self.views.failed(topic, why);
    }
}
