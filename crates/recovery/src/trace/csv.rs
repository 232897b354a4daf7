//! A foreground trace from CSV: `slot,node,in_mb_s,out_mb_s`, with that header, slots and nodes
//! numbered from 0, every node in every slot, in any order.

use super::{Foreground, RECORD_S, Trace};
use holdfast_base::{Error, Result};

/// Slots and nodes that a trace may have: a week at 15 s, ten times the largest simulation.
const SLOTS_MAX: usize = 1 << 20;
const NODES_MAX: usize = 250_000;

/// Reads a trace; refuses what is missing, twice, negative or faster than `total_mb_s`.
pub fn parse_csv(text: &str, nodes: usize, total_mb_s: f32) -> Result<Trace> {
    let fail = |line: usize, what: String| {
        Err(Error::invalid(format!("read trace: line {}: {what}", line + 1)))
    };
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line.trim());
    if header != "slot,node,in_mb_s,out_mb_s" {
        return fail(0, format!("the header is `{header}`, write `slot,node,in_mb_s,out_mb_s`"));
    }
    if nodes == 0 || nodes > NODES_MAX {
        return fail(0, format!("a trace of {nodes} nodes; use between 1 and {NODES_MAX}"));
    }
    let mut steps: Vec<Foreground> = Vec::new();
    for (number, line) in lines {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [slot, node, rest @ ..] = fields.as_slice() else {
            return fail(number, format!("`{line}` is not four fields"));
        };
        let (Ok(slot), Ok(node), 2) = (slot.parse::<usize>(), node.parse::<usize>(), rest.len())
        else {
            return fail(number, format!("`{line}` is not `slot,node,in_mb_s,out_mb_s`"));
        };
        if slot >= SLOTS_MAX {
            return fail(number, format!("slot `{slot}` is past the limit of {SLOTS_MAX}"));
        }
        if node >= nodes {
            return fail(number, format!("node `{node}` is unknown, the cluster has {nodes}"));
        }
        while steps.len() <= slot {
            // No line for them yet; NaN is not a bandwidth that a line can give.
            let nothing = vec![f32::NAN; nodes];
            steps.push(Foreground { in_mb_s: nothing.clone(), out_mb_s: nothing });
            if steps.len() * nodes > text.len() {
                return fail(
                    number,
                    format!("slot `{slot}` comes, but most before it are missing"),
                );
            }
        }
        let step = &mut steps[slot];
        for (field, values) in rest.iter().zip([&mut step.in_mb_s, &mut step.out_mb_s]) {
            match field.parse::<f32>() {
                Ok(value) if (0.0..=total_mb_s).contains(&value) => {
                    if !values[node].is_nan() {
                        return fail(
                            number,
                            format!("slot `{slot}` of node `{node}` is there twice"),
                        );
                    }
                    values[node] = value;
                }
                _ => {
                    let range = format!("a bandwidth is between 0 and {total_mb_s} MB/s");
                    return fail(number, format!("`{field}` is impossible, {range}"));
                }
            }
        }
    }
    if steps.is_empty() {
        return fail(0, "no slot follows the header".into());
    }
    for (slot, step) in steps.iter().enumerate() {
        if let Some(node) = step.in_mb_s.iter().position(|value| value.is_nan()) {
            return Err(Error::invalid(format!(
                "read trace: slot `{slot}` has no line for node `{node}`; give every node in every slot"
            )));
        }
    }
    Ok(Trace { step_s: RECORD_S, steps })
}
