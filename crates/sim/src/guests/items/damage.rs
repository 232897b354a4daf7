//! Images and rows that are damaged on their disks: who reads an image hears that it is, nobody is sent a byte
//! of the damage, and another image is made in its place. Whoever comes upon a damaged row, a rider, a fold or
//! a sweeper, is told to ask again, and the view begins anew while its node runs.

use super::horizons::living;
use crate::rows::{is_spoilt, spoil_row};
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
/// Of one gateway's views rows are damaged, between the images.
const GATEWAY_OF_ROWS: usize = 3;
const EVERY_ROUNDS_OF_ROWS: u64 = 9;

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
    rows: SpoiltRows,
}

#[derive(Default)]
struct SpoiltRows {
    rounds: u64,
    times: usize,
    /// Which of the node's processes.
    life: usize,
    /// Whose rows are damaged, until they are made anew.
    views: BTreeSet<PathBuf>,
    begun_anew: bool,
}

impl Damage {
    /// A second has passed on a node.
    pub fn round(&self, node: &Arc<Node>) {
        if living(node, GATEWAY_OF_ROWS) == Some(node.id) {
            self.0.held().rows.round(node);
        }
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

    /// Somebody has found every view as it should be, wherever rows were damaged.
    pub fn look_at_rows(&self, visitor: &Visitor) {
        let begun_anew = self.0.held().rows.begun_anew;
        visitor.sometimes(begun_anew, "a view began anew, since a row was damaged while it ran");
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

impl SpoiltRows {
    fn round(&mut self, node: &Arc<Node>) {
        let disk = &*node.machine.disk;
        let life = Arc::as_ptr(node) as usize;
        if self.life != life {
            // Who starts opens its rows anew, which is another way to find out.
            self.life = life;
            self.views.clear();
        }
        let views = std::mem::take(&mut self.views);
        for rows in views {
            match is_spoilt(disk, &rows) {
                Ok(Some(false)) => self.begun_anew = true,
                // It was stopped, and went with its rows.
                Ok(None) => {}
                _ => drop(self.views.insert(rows)),
            }
        }
        self.rounds += 1;
        if !self.rounds.is_multiple_of(EVERY_ROUNDS_OF_ROWS) || self.times == TIMES_MAX {
            return;
        }
        let views = disk.list(Path::new("/data/views")).unwrap_or_default();
        let rows =
            views.into_iter().map(|view| Path::new("/data/views").join(view.name).join("rows"));
        let rows: Vec<PathBuf> =
            rows.filter(|rows| is_spoilt(disk, rows) == Ok(Some(false))).collect();
        let Some(rows) = rows.get(self.times % rows.len().max(1)) else { return };
        if spoil_row(disk, rows, self.rounds * 7) == Ok(true) {
            self.times += 1;
            self.views.insert(rows.clone());
        }
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
