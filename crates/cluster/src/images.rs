//! What images of a topic's views allow of its log: up to where it may be trimmed. Judged from what
//! nodes tell of theirs, and from nothing else. Pure.

use holdfast_base::ids::{Index, NodeId};
use holdfast_env::planted;
use holdfast_wire::slab::{SUB_RANGES, Sums, shown};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Hashes are below this.
const HASHES: u64 = 1 << 32;
/// Hashes of which an image has a sum.
const SUB_RANGE: u64 = HASHES / SUB_RANGES as u64;

/// A verified image of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Keys' hashes from this one on, and below that one.
    pub low: u64,
    /// See `low`.
    pub high: u64,
    /// The mark.
    pub index: Index,
    /// Of its items: equal, where they are of the same hashes, in all images of this mark, or one of them
    /// is wrong.
    pub sums: Arc<Sums>,
}

impl Image {
    /// What it has of a sub-range of the hashes.
    fn within(&self, sub_range: u8) -> (u64, u64) {
        let low = u64::from(sub_range) * SUB_RANGE;
        (self.low.max(low), self.high.min(low + SUB_RANGE))
    }

    fn has_of(&self, sub_range: u8) -> bool {
        let (low, high) = self.within(sub_range);
        low < high
    }

    /// Sub-ranges of which both have the same hashes, and not the same items.
    fn differing(&self, other: &Image) -> BTreeSet<u8> {
        let mut found = self.sums.differing(&other.sums).all();
        let same = |s: &u8| self.has_of(*s) && self.within(*s) == other.within(*s);
        found.retain(|s| same(s) && !planted!("view.differing-images-count"));
        found
    }
}

/// Images of one mark that hold different items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub index: Index,
    /// Of the hashes.
    pub sub_ranges: BTreeSet<u8>,
    /// Of whom one at least is wrong.
    pub nodes: BTreeSet<NodeId>,
}

impl Difference {
    /// Whether it may be this one that is wrong.
    fn is_about(&self, image: &Image) -> bool {
        self.index == image.index && self.sub_ranges.iter().any(|s| image.has_of(*s))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|id| id.0.to_string()).collect();
        let (nodes, hashes) = (nodes.join(" and "), shown(&self.sub_ranges));
        write!(f, "images of entry {} of nodes {nodes}, in keys with hashes {hashes}", self.index)
    }
}

/// A node that lives, with the host that it runs on, and the images that it has.
pub type Told<'a> = BTreeMap<NodeId, (&'a str, Vec<Image>)>;

/// What images of one mark differ in: the halves of one node and the whole of another as well as two wholes. None
/// that has keys of such sub-ranges counts.
pub fn differing(told: &Told<'_>) -> Vec<Difference> {
    let mut of_marks: BTreeMap<Index, Vec<(NodeId, &Image)>> = BTreeMap::new();
    for (id, (_, images)) in told {
        images.iter().for_each(|i| of_marks.entry(i.index).or_default().push((*id, i)));
    }
    let mut all = Vec::new();
    for (index, images) in of_marks {
        let (mut sub_ranges, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for (at, (id, image)) in images.iter().enumerate() {
            for (other_id, other) in &images[..at] {
                let found = image.differing(other);
                if !found.is_empty() {
                    sub_ranges.extend(found);
                    nodes.extend([*id, *other_id]);
                }
            }
        }
        if !nodes.is_empty() {
            all.push(Difference { index, sub_ranges, nodes });
        }
    }
    all
}

/// Images that no other one differs from, with the host of each.
fn counting<'a>(told: &'a Told<'_>) -> Vec<(&'a str, &'a Image)> {
    let differ = differing(told);
    let all = told.values().flat_map(|(host, images)| images.iter().map(move |i| (*host, i)));
    all.filter(|(_, image)| !differ.iter().any(|d| d.is_about(image))).collect()
}

/// Up to where the log may be trimmed: whichever host is lost, the others have images of one mark, at
/// or behind this entry, of every part; where there is one host, whichever image. So views of any
/// part begin with what is left, and go on with the log.
pub fn trim_before(told: &Told<'_>) -> Option<Index> {
    let counts = counting(told);
    let hosts: BTreeSet<&str> = told.values().map(|(host, _)| *host).collect();
    let newest = |is_left: &dyn Fn(usize, &str) -> bool| {
        let left = counts.iter().enumerate().filter(|(at, (host, _))| is_left(*at, host));
        newest_whole(left.map(|(_, (_, image))| *image))
    };
    let without_each: Vec<Option<Index>> = match hosts.len() {
        0 | 1 => (0..counts.len()).map(|lost| newest(&|at, _| at != lost)).collect(),
        _ => hosts.iter().map(|lost| newest(&|_, host| host != *lost)).collect(),
    };
    without_each.into_iter().min().flatten()
}

/// The newest mark of which there are images of every part: where a view, or a rider, can begin.
pub fn newest_mark(told: &Told<'_>) -> Option<Index> {
    newest_whole(counting(told).into_iter().map(|(_, image)| image))
}

/// The newest mark of which these images have every part.
fn newest_whole<'a>(images: impl Iterator<Item = &'a Image>) -> Option<Index> {
    let mut of_marks: BTreeMap<Index, Vec<&Image>> = BTreeMap::new();
    images.for_each(|image| of_marks.entry(image.index).or_default().push(image));
    of_marks.into_iter().rev().find(|(_, images)| is_whole(images)).map(|(mark, _)| mark)
}

fn is_whole(images: &[&Image]) -> bool {
    let mut covered = 0;
    while covered < HASHES {
        let goes_on = images.iter().filter(|i| i.low <= covered && covered < i.high);
        match goes_on.map(|image| image.high).max() {
            Some(_) if planted!("view.trim-looks-at-one-part") => return true,
            Some(high) => covered = high,
            None => return false,
        }
    }
    true
}
