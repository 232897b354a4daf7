//! What images of a topic's views allow of its log: up to where it may be trimmed. Judged from what
//! nodes tell of theirs, and from nothing else. Pure.

use holdfast_base::ids::{Index, NodeId};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

#[cfg(test)]
mod tests;

/// Hashes are below this.
const HASHES: u64 = 1 << 32;

/// A verified image of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Image {
    /// Keys' hashes from this one on, and below that one.
    pub low: u64,
    /// See `low`.
    pub high: u64,
    /// The mark.
    pub index: Index,
    /// Of its items: equal for all images of this range and mark, or one of them is wrong.
    pub sum: u128,
}

/// Images of one range and mark that hold different items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub index: Index,
    pub low: u64,
    pub high: u64,
    pub nodes: Vec<NodeId>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|id| id.0.to_string()).collect();
        let Difference { index, low, high, .. } = self;
        let nodes = nodes.join(" and ");
        write!(f, "images of entry {index}, hashes {low} to {high}, of nodes {nodes}")
    }
}

/// A node that lives, with the host that it runs on, and the images that it has.
pub type Told<'a> = BTreeMap<NodeId, (&'a str, Vec<Image>)>;

/// Images that differ from others that should be equal. None of them counts.
pub fn differing(told: &Told<'_>) -> Vec<Difference> {
    let mut equal: BTreeMap<(Index, u64, u64), Vec<(NodeId, u128)>> = BTreeMap::new();
    for (id, (_, images)) in told {
        for Image { low, high, index, sum } in images {
            equal.entry((*index, *low, *high)).or_default().push((*id, *sum));
        }
    }
    equal.retain(|_, sums| sums.iter().any(|(_, sum)| *sum != sums[0].1));
    let nodes = |sums: Vec<(NodeId, u128)>| sums.into_iter().map(|(id, _)| id).collect();
    let difference =
        |((index, low, high), sums)| Difference { index, low, high, nodes: nodes(sums) };
    equal.into_iter().map(difference).collect()
}

/// Up to where the log may be trimmed: whichever host is lost, the others have images of one mark, at
/// or behind this entry, of every part; where there is one host, whichever image. So views of any
/// part begin with what is left, and go on with the log.
pub fn trim_before(told: &Told<'_>) -> Option<Index> {
    let differ = differing(told);
    let differs = |image: &Image| {
        differ.iter().any(|d| (d.index, d.low, d.high) == (image.index, image.low, image.high))
    };
    let images = told.values().flat_map(|(host, images)| images.iter().map(move |i| (*host, *i)));
    let counts: Vec<(&str, Image)> = images.filter(|(_, image)| !differs(image)).collect();
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
    let differ = differing(told);
    let differs =
        |i: &Image| differ.iter().any(|d| (d.index, d.low, d.high) == (i.index, i.low, i.high));
    newest_whole(told.values().flat_map(|(_, images)| images).filter(|i| !differs(i)).copied())
}

/// The newest mark of which these images have every part.
fn newest_whole(images: impl Iterator<Item = Image>) -> Option<Index> {
    let mut of_marks: BTreeMap<Index, Vec<Image>> = BTreeMap::new();
    images.for_each(|image| of_marks.entry(image.index).or_default().push(image));
    of_marks.into_iter().rev().find(|(_, images)| is_whole(images)).map(|(mark, _)| mark)
}

fn is_whole(images: &[Image]) -> bool {
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
