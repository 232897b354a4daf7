//! Images that are damaged on their disks: who reads one hears that it is, nobody is sent a byte of the
//! damage, and another image is made in its place.

use super::horizons::living;
use crate::world::guest::Visitor;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind};
use holdfast_env::HoldMutex;
use holdfast_env::disk::Access;
use holdfast_node::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Rounds of a node until one of its images is damaged, and how often that is.
const EVERY_ROUNDS: u64 = 25;
/// One gateway's images alone: those of others are whole.
const GATEWAY: usize = 4;
const TIMES_MAX: usize = 3;

#[derive(Clone, Default)]
pub(super) struct Damage(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    rounds: u64,
    times: usize,
    /// Marks of which an image of the node is damaged.
    marks: BTreeSet<Index>,
    /// What somebody was told of: the first mark.
    told: Option<Index>,
}

impl Damage {
    /// A second has passed on a node.
    pub fn round(&self, node: &Arc<Node>) {
        if living(node, GATEWAY) != Some(node.id) {
            return;
        }
        let mut state = self.0.held();
        state.rounds += 1;
        if !state.rounds.is_multiple_of(EVERY_ROUNDS) || state.times == TIMES_MAX {
            return;
        }
        // Another one each time, and another byte.
        let parts = parts(node);
        let Some((mark, part)) = parts.get(state.times % parts.len().max(1)) else { return };
        if flip(node, part, state.rounds).is_some() {
            state.times += 1;
            state.marks.insert(*mark);
        }
    }

    /// Whether a rider hears that an image is damaged, which it is.
    pub fn is_told(&self, visitor: &Visitor, gateway: usize, mark: Index, e: &Error) -> bool {
        let mut state = self.0.held();
        let is = e.kind == Kind::Corrupt && gateway == GATEWAY && state.marks.contains(&mark);
        if is {
            visitor.sometimes(true, "a rider was told of a damaged image");
            state.told.get_or_insert(mark);
        }
        is
    }

    /// A node has these images.
    pub fn look(&self, visitor: &Visitor, gateway: usize, images: &[Index]) {
        let told = self.0.held().told;
        let again = told.is_some_and(|mark| images.iter().any(|index| *index > mark));
        let again = again && gateway == GATEWAY;
        visitor.sometimes(again, "an image failed its checksum and was made again");
    }
}

/// Files that hold slabs of images that have a name, in order.
fn parts(node: &Node) -> Vec<(Index, PathBuf)> {
    let disk = &node.machine.disk;
    let mut found = BTreeMap::new();
    for view in disk.list(Path::new("/data/views")).unwrap_or_default() {
        let place = Path::new("/data/views").join(view.name);
        for file in disk.list(&place).unwrap_or_default() {
            let name = file.name.clone();
            let Some((image, _)) = name.split_once('.') else { continue };
            let Some(index) = image.strip_prefix("image-").and_then(|index| index.parse().ok())
            else {
                continue;
            };
            if !name.ends_with(".tmp") && disk.exists(&place.join(image)).unwrap_or(false) {
                found.insert((Index(index), place.join(name)), ());
            }
        }
    }
    // The newest first: they are ridden most.
    found.into_keys().rev().collect()
}

fn flip(node: &Node, part: &Path, at: u64) -> Option<()> {
    let file = node.machine.disk.open(part, Access::Cached).ok()?;
    let bytes = file.len().ok().filter(|bytes| *bytes > 0)?;
    // Files end in padding, which nobody reads.
    let (mut byte, at) = ([0], at * 7 % bytes.min(200));
    file.read_exact_at(&mut byte, at).ok()?;
    file.write_at(&[byte[0] ^ 4], at).ok()
}
