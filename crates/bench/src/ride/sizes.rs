//! Whether a ride's cost an item stays as it is when there are more of them.

use super::{Node, RideBench, load, of_all, ratio, ride};
use crate::report::{median, rounded};
use holdfast_base::Result;
use holdfast_command::output::Output;
use serde_json::json;

pub(super) fn run(options: &RideBench, out: &mut Output) -> Result<()> {
    let mut costs = Vec::new();
    for nodes in [options.nodes / 10, options.nodes / 2, options.nodes * 2] {
        let mut node = Node::start(options)?;
        load(&node, nodes)?;
        // What is left of the load's own work is done by then.
        node.end()?;
        node.up()?;
        ride(&node, &of_all(1, &[]))?;
        let rides = (0..options.repetitions).map(|_| ride(&node, &of_all(1, &[])));
        let rides = rides.collect::<Result<Vec<_>>>()?;
        let items = 2.0 * nodes as f64;
        let ns = 1e9 * median(rides.iter().map(|ridden| ridden.server_cpu)) / items;
        out.line(
            || format!("a ride of {items} items: server {} cpu ns an item", rounded(ns)),
            || json!({"case": "a ride's cost", "operations": items, "ns_per_item": rounded(ns)}),
        )?;
        costs.push(ns);
    }
    let (least, most) = costs.iter().fold((f64::MAX, 0f64), |(a, b), ns| (a.min(*ns), b.max(*ns)));
    let case = ("cost, most to least", most / least);
    ratio(out, case, "of the least, an item", Some(1.15), "lower")
}
