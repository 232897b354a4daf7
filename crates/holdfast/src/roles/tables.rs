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

/// Time between two rounds.
const REST: Duration = Duration::from_millis(50);

struct TablesRole {
    tables: Arc<TableFace>,
    rounds: Rounds,
}

/// Always there.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let tables = context.tables.clone();
    tables.open_all();
    let runs = tables.clone();
    let rounds = Rounds::start(context, ("tables", REST), move |_| runs.round())?;
    Ok(Some(Box::new(TablesRole { tables, rounds })))
}

impl Role for TablesRole {
    fn health(&self) -> Option<Watch> {
        Some(self.rounds.watch())
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
        self.rounds.end();
        Ok(())
    }
}
