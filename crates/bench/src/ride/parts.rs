//! Two views of halves, and eight of eighths, on one node, ridden by one consumer: its time beside that
//! of a ride on the one view of everything.

use super::images::wait_for_all;
use super::{Node, TOPIC, of_all, ratio, ride};
use crate::report::median;
use holdfast_base::Result;
use holdfast_command::output::Output;

pub(super) fn run(node: &Node, times: usize, out: &mut Output) -> Result<()> {
    let walls = || -> Result<f64> {
        ride(node, &of_all(1, &[]))?;
        let all = (0..times).map(|_| Ok(ride(node, &of_all(1, &[]))?.each[0]));
        Ok(median(all.collect::<Result<Vec<f64>>>()?))
    };
    let one = walls()?;
    for (of, reach) in [(2, Some(0.55)), (8, None)] {
        let parts: Vec<String> = (0..of).map(|part| format!("{part}/{of}")).collect();
        for part in &parts {
            node.ask(&["view", "run", "disk", TOPIC, part])?;
        }
        // Beside the one of everything, which riders leave out from now on.
        wait_for_all(node, parts.len() + 1)?;
        let case = format!("{of} partitions, wall");
        ratio(out, (&case, walls()? / one), "of one partition's", reach, "lower")?;
        for part in &parts {
            node.ask(&["view", "stop", "disk", TOPIC, part])?;
        }
    }
    Ok(())
}
