//! `holdfast ride --check`: what came, held against what views say that they have. A slab's checksums tell that
//! each byte is as it was sent; that nothing was left out, or sent twice, only sums over all items tell. Those of
//! the views come of a scan of their rows, not of a ride.

use super::follow::Nodes;
use crate::view::{Node, verify};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_client::view::{Rode, Slab};
use holdfast_command::output::Output;
use holdfast_wire::slab::{Differing, Sums, shown};
use holdfast_wire::view::Summed;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// The sums of what came, by the entry that it is as of.
#[derive(Default)]
pub struct Check(BTreeMap<Index, Sums>);

impl Check {
    /// Adds what came.
    pub fn add(&mut self, slab: &Slab) -> Result<()> {
        let mut sums = Sums::default();
        let index = slab.sum_up(&mut sums)?;
        self.0.entry(index).or_default().add_sums(&sums);
        Ok(())
    }

    /// Asks the nodes for the sums of what was ridden. `Corrupt` where they are others.
    pub fn run(
        &self,
        nodes: Nodes<'_>,
        topic: &str,
        versions: bool,
        rode: &[Rode],
        out: &mut Output,
    ) -> Result<()> {
        let doing = |e: Error| e.context(format_args!("check a ride of topic `{topic}`"));
        // One that has broken off meanwhile is done without.
        let mut nodes: Vec<Node> = nodes(None).filter_map(Result::ok).collect();
        let mut held: BTreeMap<Index, Vec<Summed>> = BTreeMap::new();
        let mut horizons: BTreeMap<Index, Index> = BTreeMap::new();
        for Rode { range, boarded, .. } in rode {
            let of_range = verify::held(&mut nodes, topic, *range, boarded.index).map_err(doing)?;
            held.entry(boarded.index).or_default().extend(of_range);
            horizons.insert(boarded.index, boarded.horizon);
        }
        let nothing = Sums::default();
        for (index, held) in &held {
            let came = self.0.get(index).unwrap_or(&nothing);
            // Versions that the horizon has passed since were ridden, and are not there any more.
            let all = versions && held.iter().all(|one| one.horizon == horizons[index]);
            let differ = differing(came, held, all);
            if !differ.is_empty() {
                return Err(doing(Error::corrupt(format!(
                    "what came as of entry {index} is not what the views hold of it, of keys with hashes {}: \
                     `holdfast view verify {topic}` says whether they agree with each other",
                    shown(&differ)
                ))));
            }
            let what = if all { "all versions" } else { "the newest values" };
            out.line(
                || format!("as of entry {index} that is what the views hold: {what}"),
                || json!({"topic": topic, "checked": index.0, "versions": all}),
            )?;
        }
        Ok(())
    }
}

/// Sub-ranges in which what came is not what is held.
fn differing(came: &Sums, held: &[Summed], all: bool) -> BTreeSet<u8> {
    let mut total = Sums::default();
    held.iter().for_each(|one| total.add_sums(&one.sums));
    let Differing { newest, earlier } = came.differing(&total);
    newest.into_iter().chain(earlier.into_iter().filter(|_| all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_wire::slab::Item;

    fn sums(items: &[(u32, u64, bool)]) -> Sums {
        let mut sums = Sums::default();
        for (hash, index, newest) in items {
            let item =
                Item { hash: *hash, collection: 1, key: b"k", index: *index, value: Some(b"v") };
            sums.add(&item, *newest);
        }
        sums
    }

    #[test]
    fn an_item_that_is_missing_or_came_twice_is_found_where_it_lies() {
        let piece = |items: &[(u32, u64, bool)]| {
            let (at, horizon, sums) = (Index(9), Index(2), sums(items));
            Summed { at, horizon, keys: items.len() as u64, sums }
        };
        let held = [piece(&[(7, 3, true), (7, 2, false)]), piece(&[(0xab00_0000, 4, true)])];
        let (a, older, b) = ((7, 3, true), (7, 2, false), (0xab00_0000, 4, true));
        let found = |items: &[_], all| Vec::from_iter(differing(&sums(items), &held, all));
        assert_eq!(found(&[b, older, a], true), [0u8; 0]);
        assert_eq!(found(&[a, b], false), [0u8; 0], "the newest alone");
        assert_eq!(found(&[a, b], true), [0]);
        assert_eq!(found(&[a, older], true), [0xab]);
        assert_eq!(found(&[a, older, b, b], true), [0xab]);
        assert_eq!(found(&[], false), [0, 0xab]);
    }
}
