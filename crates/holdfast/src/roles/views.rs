//! Views of items: opens those that the node ran when it ended, and keeps house for them.

use super::{Context, Metrics, Role, Rounds, seconds};
use holdfast_base::Result;
use holdfast_node::{Condition, Watch};
use holdfast_ride::Views;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Time between two rounds, which make rows durable.
const KEEP: Duration = Duration::from_secs(1);

struct ViewsRole {
    views: Arc<Views>,
    keeper: Rounds,
}

/// Always there. A view that cannot be opened says why, and the node goes on without it.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let views = context.views.clone();
    if let Err(e) = views.open_all() {
        context.node.report_finding(format!("open the views of this node: {e}"));
    }
    let rounds = views.clone();
    let keeper = Rounds::start(context, ("view-keeper", KEEP), move |_| rounds.round())?;
    Ok(Some(Box::new(ViewsRole { views, keeper })))
}

type OfViews<M> = Family<Vec<(&'static str, String)>, M>;

/// Beats of views: once a second, from when the log is asked for its end until that was applied.
fn register_beats(registry: &mut Registry, views: &Views) {
    let count = OfViews::<Counter>::default();
    let taken = OfViews::<Counter<f64, AtomicU64>>::default();
    let last = OfViews::<Gauge<f64, AtomicU64>>::default();
    let level = OfViews::<Gauge<f64, AtomicU64>>::default();
    for (name, beaten, age_ns) in views.beaten() {
        let name = vec![("view", name)];
        count.get_or_create(&name).inc_by(beaten.count);
        taken.get_or_create(&name).inc_by(seconds(beaten.taken_ns));
        last.get_or_create(&name).set(seconds(beaten.last_ns));
        if let Some(age_ns) = age_ns {
            level.get_or_create(&name).set(seconds(age_ns));
        }
    }
    registry.register("view_beats", "Beats that a view has read", count);
    let help = "How long beats took from the log's end until a view had read it, all together";
    registry.register_with_unit("view_beat", help, Unit::Seconds, taken);
    let help = "How long the last beat took from the log's end until a view had read it";
    registry.register_with_unit("view_beat_last", help, Unit::Seconds, last);
    let help = "For how long nobody knows that a view has all that the log has";
    registry.register_with_unit("view_level_age", help, Unit::Seconds, level);
    let slabs = Gauge::<i64>::default();
    slabs.set(views.slabs_bytes() as i64);
    let help = "Slabs that rides keep for riders that are behind (`view_windows`)";
    registry.register_with_unit("view_windows", help, Unit::Bytes, slabs);
}

impl Role for ViewsRole {
    fn health(&self) -> Option<Watch> {
        let (views, stuck) = (self.views.clone(), self.keeper.watch());
        Some(Box::new(move || {
            let stopped = views.stopped().into_iter();
            let stopped = stopped.map(|sentence| Condition::new("view", sentence));
            stopped.chain(stuck()).collect()
        }))
    }

    fn metrics(&self) -> Option<Metrics> {
        let views = self.views.clone();
        Some(Box::new(move |registry| {
            let behind = OfViews::<Gauge>::default();
            let riders = OfViews::<Gauge>::default();
            for status in views.status() {
                let name = vec![("view", holdfast_ride::describe(&status.view))];
                let entries = status.last.0.saturating_sub(status.applied.0);
                behind.get_or_create(&name).set(entries as i64);
                riders.get_or_create(&name).set(i64::from(status.riders));
            }
            registry.register(
                "view_behind_entries",
                "Entries that a view has yet to apply",
                behind,
            );
            registry.register("view_riders", "Rides over a view under way", riders);
            register_beats(registry, &views);
        }))
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.keeper.end();
        self.views.end()
    }
}
