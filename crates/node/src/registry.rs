//! The views that a node keeps, by their names: its own two, and those of faces that fold a topic, of
//! which there may be several of one topic. Who is asked about views (for its health, by nodes that compare or begin with a snapshot)
//! asks here and knows no face. Owns none of them and never applies an entry.

use super::snapshots::{no_view, take_over_if_trimmed};
use super::{Node, snapshot_store};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::Log;
use holdfast_view::{
    Arrival, Context, Fold, FoldOptions, FoldStatus, SnapshotPart, SnapshotStore, View,
};
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
    /// By its name, the topic of each.
    views: Mutex<BTreeMap<String, (String, Entry)>>,
}

impl Registry {
    pub fn open<V: View>(&self, context: &Context, view: &Arc<Fold<V>>) {
        let view: Arc<dyn Folded> = view.clone();
        let entry = (context.topic.clone(), Entry::Open(Arc::downgrade(&view)));
        self.views.held().insert(context.name.clone(), entry);
    }

    /// The first reason stays, and so does that of a view which stopped by itself.
    fn failed(&self, topic: &str, why: &Error) {
        let told = self.view(topic).is_ok_and(|view| view.status().stopped.is_some());
        let mut views = self.views.held();
        if !told && !matches!(views.get(topic), Some((_, Entry::Failed(_)))) {
            let entry = (topic.to_owned(), Entry::Failed(why.message.clone()));
            views.insert(topic.to_owned(), entry);
        }
    }

    /// Those that are open, each with its topic, in the order of their names.
    pub fn all(&self) -> Vec<(String, Arc<dyn Folded>)> {
        let views = self.views.held();
        let open = views.values().filter_map(|(topic, entry)| match entry {
            Entry::Open(view) => Some((topic.clone(), view.upgrade()?)),
            Entry::Failed(_) => None,
        });
        open.collect()
    }

    /// One of each topic: what they say of the topic's entries is the same.
    pub fn one_a_topic(&self) -> BTreeMap<String, Arc<dyn Folded>> {
        let topics = self.all().into_iter().map(|(topic, _)| topic);
        topics.filter_map(|topic| Some((topic.clone(), self.view(&topic).ok()?))).collect()
    }

    /// All of a topic.
    pub fn of(&self, topic: &str) -> impl Iterator<Item = Arc<dyn Folded>> + use<> {
        let topic = topic.to_owned();
        self.all().into_iter().filter(move |(of, _)| *of == topic).map(|(_, view)| view)
    }

    /// The view of a whole topic, which has its name; else one of it.
    pub fn view(&self, topic: &str) -> Result<Arc<dyn Folded>> {
        let whole = {
            let views = self.views.held();
            match views.get(topic) {
                Some((_, Entry::Open(view))) if !planted!("node.any-view-lends") => view.upgrade(),
                _ => None,
            }
        };
        whole.or_else(|| self.of(topic).next()).ok_or_else(|| no_view(topic))
    }

    /// Views that have stopped or could not be opened, and why.
    pub fn stopped(&self) -> Vec<(String, String)> {
        // A view is asked, and may go, once the registry is free.
        let entries: Vec<_> = {
            let views = self.views.held();
            let entry = |(name, (_, entry)): (&String, &(String, Entry))| match entry {
                Entry::Open(view) => Some((name.clone(), Ok(view.upgrade()?))),
                Entry::Failed(why) => Some((name.clone(), Err(why.clone()))),
            };
            views.iter().filter_map(entry).collect()
        };
        let why = |(name, entry): (String, std::result::Result<Arc<dyn Folded>, String>)| {
            let why = entry.map_or_else(Some, |view| Some(view.status().stopped?.message));
            Some((name, why?))
        };
        entries.into_iter().filter_map(why).collect()
    }
}

impl Node {
    /// Opens a face's view of the context's topic, in the context's rows or in memory, and makes it
    /// one of the node's: compared with other nodes', lent to them, covering its log, and told of
    /// when it stops. Begins with a snapshot of the log's host where the log was trimmed behind
    /// what is here. The face owns it: with its owner it goes.
    pub fn open_view<V: View>(&self, context: Context) -> Result<Arc<Fold<V>>> {
        self.check_log_age(&context.topic)?;
        self.log.create(&context.topic)?;
        let snapshots = snapshot_store(&self.machine, &self.data, &context.name);
        if self.hosted().is_none() {
            let lender = self.lender();
            let asks = (lender.as_deref(), self.sender);
            let there = (&*self.machine.peers, &*self.log);
            let taken = take_over_if_trimmed::<V>(there, asks, &context, &snapshots)?;
            self.replicator.events.snapshots_taken_over.fetch_add(taken as u64, Ordering::Relaxed);
        }
        let fold = self.open_from(self.log.clone(), context, snapshots, self.fold, None)?;
        fold.number_as(self.id, self.sender.incarnation);
        Ok(fold)
    }

    /// Opens a view of a topic that may have several, each with a name of its own. Nobody lends it a
    /// snapshot: it begins with what is kept of it here, or with what arrives; and it takes none by
    /// itself, so it covers nothing of its log.
    pub fn open_one_of_several<V: View>(
        &self,
        context: Context,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<Arc<Fold<V>>> {
        self.check_log_age(&context.topic)?;
        let snapshots = snapshot_store(&self.machine, &self.data, &context.name);
        let never = FoldOptions { snapshot_entries: 0, snapshot_bytes: 0 };
        // With entries of its own: one that is far behind would take them from the others.
        self.open_from(self.another_reader(), context, snapshots, never, arrival)
    }

    fn open_from<V: View>(
        &self,
        log: Arc<dyn Log>,
        context: Context,
        snapshots: SnapshotStore,
        options: FoldOptions,
        arrival: Option<Arrival<'_, '_>>,
    ) -> Result<Arc<Fold<V>>> {
        let name = context.clone();
        // What is kept in rows waits for their engine, which no thread of the log should.
        let fold = match context.rows.is_some() && !self.workers.is_inline() {
            true => Fold::open_on_thread_from(log, context, snapshots, options, arrival)?,
            false => Fold::open_member_from(log, context, snapshots, options, arrival)?,
        };
        let fold = Arc::new(fold);
        self.views.open(&name, &fold);
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
