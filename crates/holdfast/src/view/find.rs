//! `holdfast view find`: which keys have a value in a field, by the part of an index that has the value.

use super::{Node, member};
use holdfast_base::ids::Index;
use holdfast_base::{Kind, Result};
use holdfast_command::output::Output;
use holdfast_wire::view::Find;

/// Asks one node after the other until one runs an index that has the value; prints at most `count`
/// keys. A node that cannot be reached matters only where no other one answers.
pub fn run(
    nodes: &mut dyn Iterator<Item = Result<Node>>,
    mut find: Find,
    mut count: u64,
    out: &mut Output,
) -> Result<()> {
    let mut failed = None;
    for node in nodes {
        let printed = node.and_then(|node| print_all(node, &mut find, &mut count, out));
        match printed {
            // What was printed stays printed: the next one goes on behind it.
            Err(e) if matches!(e.kind, Kind::NotFound | Kind::Retry) => {
                failed = failed.or(Some(e));
            }
            other => return other,
        }
    }
    failed.map_or(Ok(()), Err)
}

fn print_all(mut node: Node, find: &mut Find, left: &mut u64, out: &mut Output) -> Result<()> {
    let topic = find.topic.clone();
    let mut view = node.client.view(&topic);
    while *left > 0 {
        find.keys_max = u32::try_from(*left).unwrap_or(u32::MAX);
        let found = view.find(find)?;
        *left = left.saturating_sub(found.keys.len() as u64);
        for having in &found.keys {
            out.line_of(
                || String::from_utf8_lossy(&having.key).escape_debug().to_string(),
                || format!("{{{},\"index\":{}}}", member("key", &having.key), having.index.0),
            )?;
        }
        if !found.more {
            break;
        }
        find.reached = find.reached.max(found.applied);
        find.after = found.keys.last().map(|having| having.key.clone());
    }
    Ok(())
}

/// What is asked for first.
pub fn first(words: [&str; 4], reached: u64) -> Find {
    let [topic, collection, field, value] = words.map(str::to_owned);
    let (reached, value) = (Index(reached), value.into_bytes());
    Find { topic, reached, collection, field, value, after: None, keys_max: 0 }
}
