//! Tables: opens those that there are, has time pass for them where the log is kept, and follows them
//! elsewhere.

use super::{Context, Metrics, Role, Rounds};
use holdfast_base::Result;
use holdfast_node::Watch;
use holdfast_table::face::TableFace;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::time::Duration;

/// What a region takes for a unit of time.
const TICK: Duration = Duration::from_millis(100);
/// Between two looks for tables that are new elsewhere.
const FOLLOW: Duration = Duration::from_secs(2);

struct TablesRole {
    tables: Arc<TableFace>,
    ticks: Rounds,
    follows: Rounds,
}

/// Always there.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let tables = context.tables.clone();
    if let Err(e) = tables.open_all() {
        context.node.report_finding(format!("open the tables: {e}"));
    }
    let (ticked, followed) = (tables.clone(), tables.clone());
    let ticks = Rounds::start(context, ("table-ticks", TICK), move |_| ticked.tick())?;
    let follows = Rounds::start(context, ("table-follower", FOLLOW), move |_| followed.round())?;
    Ok(Some(Box::new(TablesRole { tables, ticks, follows })))
}

impl Role for TablesRole {
    fn health(&self) -> Option<Watch> {
        let (ticks, follows) = (self.ticks.watch(), self.follows.watch());
        Some(Box::new(move || ticks().into_iter().chain(follows()).collect()))
    }

    fn metrics(&self) -> Option<Metrics> {
        let tables = self.tables.clone();
        Some(Box::new(move |registry| {
            let records = Family::<Vec<(&'static str, String)>, Gauge>::default();
            let bytes = Family::<Vec<(&'static str, String)>, Gauge>::default();
            for (table, held) in tables.held() {
                let name = vec![("table", table)];
                records.get_or_create(&name).set(held.records as i64);
                bytes.get_or_create(&name).set(held.bytes as i64);
            }
            registry.register("table_records", "Records of a table, as this node has it", records);
            registry.register(
                "table_bytes",
                "Bytes of keys and values of a table in memory",
                bytes,
            );
        }))
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.follows.end();
        self.ticks.end();
        Ok(())
    }
}
