//! `holdfast ride --check`: what came, held against what images of the same entry say of themselves, and of the
//! rest, against what views say that they have. A slab's checksums tell that each byte is as it was sent; that
//! nothing was left out, or sent twice, only sums over all items tell. Those of the views come of a scan of their
//! rows, not of a ride.

use super::follow::Nodes;
use crate::view::{Node, verify};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_client::view::{ImageSums, Itinerary, Rode, Slab, all_disk_views};
use holdfast_command::output::{Output, aside};
use holdfast_wire::slab::{Differing, Range, Sums, Tallied, Tally, runs, shown};
use holdfast_wire::view::Summed;
use serde_json::json;
use std::collections::BTreeMap;

/// What came, by the entry that it is as of.
#[derive(Default)]
pub struct Check(BTreeMap<Index, Tally>);

impl Check {
    /// Of a ride that goes on, with what came before its token.
    pub fn behind(itinerary: &Itinerary) -> Result<Check> {
        let Some(came) = itinerary.came() else {
            return Err(Error::invalid(
                "check a ride: its token does not say what came before, as it is of a ride without `--check`: \
                 go on without it, or ride everything anew with it",
            ));
        };
        Ok(Check(BTreeMap::from([(itinerary.index(), Tally::behind(came.clone()))])))
    }

    /// The sums of what came of a mark, also before a token.
    pub fn came(&self) -> Sums {
        self.0.values().next().map_or_else(Sums::default, |tally| tally.sums().clone())
    }

    /// Adds what came.
    pub fn add(&mut self, slab: &Slab) -> Result<()> {
        slab.whole(|index, reader| self.0.entry(index).or_default().came(reader))
    }

    /// An image says what it has.
    pub fn said(&mut self, by: &ImageSums) {
        self.0.entry(by.index).or_default().said(by.range, &by.sums);
    }

    /// Asks the nodes for the sums of what was ridden and no image told. `Corrupt` where they are others.
    pub fn run(
        &self,
        nodes: Nodes<'_>,
        topic: &str,
        versions: bool,
        rode: &[Rode],
        out: &mut Output,
    ) -> Result<()> {
        let doing = |e: Error| e.context(format_args!("check a ride of topic `{topic}`"));
        let mut of_entries: BTreeMap<Index, (Index, Vec<Range>)> = BTreeMap::new();
        for Rode { range, boarded, .. } in rode {
            let of_entry = of_entries.entry(boarded.index).or_insert((boarded.horizon, Vec::new()));
            of_entry.1.push(*range);
        }
        let nothing = Tally::default();
        // Connected to once they are needed.
        let mut connected: Option<Vec<Node>> = None;
        for (index, (horizon, ranges)) in &of_entries {
            let came = self.0.get(index).unwrap_or(&nothing);
            let Tallied { mut differing, unsaid } = came.compared(ranges, versions);
            let is_by_images = unsaid.is_empty();
            let mut all = versions;
            if !is_by_images {
                // One that has broken off meanwhile is done without.
                let nodes = connected.get_or_insert_with(|| {
                    nodes(None).filter_map(Result::ok).collect::<Vec<Node>>()
                });
                let mut held = Vec::new();
                for range in within(ranges, &unsaid) {
                    held.extend(verify::held(nodes, topic, range, *index).map_err(doing)?);
                }
                // Versions that the horizon has passed since were ridden, and are not there any more.
                all &= held.iter().all(|one| one.horizon == *horizon);
                differing.extend(differ(came.sums(), &held, &unsaid, all));
                differing.sort_unstable();
            }
            let who = if is_by_images { "image says" } else { "views hold" };
            if !differing.is_empty() {
                doubt(nodes, topic, *index, &differing);
                return Err(doing(Error::corrupt(format!(
                    "what came as of entry {index} is not what the {who} of it, of keys with hashes {}: \
                     nodes with an image of it look whether that is wrong, if they have not just done so, and make \
                     another one if it is; \
                     `holdfast view verify {topic}` says whether the views agree with each other",
                    shown(&differing)
                ))));
            }
            let what = if all { "all versions" } else { "the newest values" };
            out.line(
                || format!("as of entry {index} that is what the {who}: {what}"),
                || {
                    let by = if is_by_images { "image" } else { "views" };
                    json!({"topic": topic, "checked": index.0, "versions": all, "by": by})
                },
            )?;
        }
        Ok(())
    }
}

/// Tells all nodes with an image of an entry and of these sub-ranges that it may be wrong: which one is, each finds out
/// by reading its own. Nobody waits for that, and who does not answer is not told. Who has read it a moment ago says
/// what came of that, and does not look again.
fn doubt(nodes: Nodes<'_>, topic: &str, index: Index, differing: &[u8]) {
    for Node { name, mut client } in nodes(None).filter_map(Result::ok) {
        for one in all_disk_views(&mut client, topic).unwrap_or_default() {
            let range = Range::part(one.view.part, one.view.of);
            let has_image = one.images.iter().any(|image| image.index == index);
            if has_image
                && differing.iter().any(|s| range.overlaps(Range::of_sub_range(*s)))
                && let Err(e) = client.doubt(&one.view, index)
            {
                aside(format_args!("{name}: {e}"));
            }
        }
    }
}

/// What of ranges lies in sub-ranges.
fn within(ranges: &[Range], sub_ranges: &[u8]) -> Vec<Range> {
    let runs = runs(&sub_ranges.iter().map(|s| Range::of_sub_range(*s)).collect::<Vec<_>>());
    let both = |range: &Range| runs.iter().map(|run| run.intersection(*range)).collect::<Vec<_>>();
    ranges.iter().flat_map(both).filter(|both| !both.is_empty()).collect()
}

/// Those of these sub-ranges in which what came is not what is held.
fn differ(came: &Sums, held: &[Summed], of: &[u8], all: bool) -> Vec<u8> {
    let mut total = Sums::default();
    held.iter().for_each(|one| total.add_sums(&one.sums));
    let Differing { newest, earlier } = came.differing(&total);
    let found = newest.into_iter().chain(earlier.into_iter().filter(|_| all));
    found.filter(|s| of.contains(s)).collect()
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
        let everywhere: Vec<u8> = (0..=255).collect();
        let found = |items: &[_], all| differ(&sums(items), &held, &everywhere, all);
        assert_eq!(found(&[b, older, a], true), [0u8; 0]);
        assert_eq!(found(&[a, b], false), [0u8; 0], "the newest alone");
        assert_eq!(found(&[a, b], true), [0]);
        assert_eq!(found(&[a, older], true), [0xab]);
        assert_eq!(found(&[a, older, b, b], true), [0xab]);
        assert_eq!(found(&[], false), [0, 0xab]);
        assert_eq!(differ(&sums(&[]), &held, &[0xab], true), [0xab], "images told the others");
    }

    /// What came before a token counts as what comes behind it: an item that is missing in either is found, and who has
    /// no sums of what came before is told so.
    #[test]
    fn what_came_before_a_token_is_checked_with_what_comes_behind_it() {
        let (a, b) = ((7, 3, true), (0xab00_0000, 4, true));
        let (index, range) = (Index(9), Range::ALL);
        let itinerary = Itinerary::new(index, range, 1);
        for (before, behind, wrong) in
            [(&[a][..], &[b][..], None), (&[], &[b], Some(0)), (&[a], &[], Some(0xab))]
        {
            let token = itinerary.token_with(&sums(before));
            let mut check = Check::behind(&Itinerary::of_token(&token, 1).unwrap()).unwrap();
            let mut came = check.came();
            came.add_sums(&sums(behind));
            check.0.insert(index, Tally::behind(came));
            check.said(&ImageSums { range, index, sums: sums(&[a, b]) });
            let found = check.0[&index].compared(&[range], false);
            assert_eq!(found.differing, Vec::from_iter(wrong));
        }
        let token = Itinerary::of_token(&itinerary.token(), 1).unwrap();
        let e = Check::behind(&token).err().expect("it has none");
        assert!(e.message.contains("without `--check`"), "{e}");
    }

    /// Who rides a third rides sub-ranges that its image's borders do not cut alone: the views are asked for two.
    #[test]
    fn views_are_asked_for_what_no_image_told_alone() {
        let third = Range::part(1, 3);
        let borders = [0x55, 0xaa].map(|s| Range::of_sub_range(s).intersection(third));
        assert_eq!(within(&[third], &[0x55, 0xaa]), borders);
        let halves = [Range::part(0, 2), Range::part(1, 2)];
        let run = Range::new(Range::of_sub_range(0x7e).low(), Range::of_sub_range(0x81).high());
        let parts = halves.map(|half| half.intersection(run));
        assert_eq!(within(&halves, &[0x7e, 0x7f, 0x80, 0x81]), parts);
        assert_eq!(within(&halves, &(0..=255).collect::<Vec<u8>>()), halves);
        assert!(within(&halves, &[]).is_empty());
    }
}
