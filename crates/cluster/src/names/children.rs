//! The children of containers, in order of their names: sorted blocks of node numbers, 4 bytes a
//! child. The names stay in the nodes, so an insertion reads about log2(n) of them, and a page
//! of a listing starts with one such search however many children there are.

use super::nodes::Nodes;
use holdfast_env::planted;
use holdfast_env::trial::Knob;

/// Children in one block.
pub(super) static BLOCK_MAX: Knob = Knob::new("namespace.children-block", 512, &[4, 5, 6, 8]);

#[derive(Default)]
pub(super) struct Children {
    /// None is empty.
    blocks: Vec<Vec<u32>>,
    len: u32,
}

impl Children {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn first(&self) -> Option<u32> {
        self.blocks.first().and_then(|block| block.first().copied())
    }

    /// Block and place of the first child whose name is not below `name` (not above: `after`).
    /// The place may be the block's end.
    fn search(&self, nodes: &Nodes, name: &[u8], after: bool) -> (usize, usize) {
        let below = |at: u32| if after { nodes.name(at) <= name } else { nodes.name(at) < name };
        // A child of that name may begin its block, so blocks are compared with `<=` in any case.
        let starts = |block: &Vec<u32>| match planted!("cluster.child-at-a-border") {
            true => below(block[0]),
            false => nodes.name(block[0]) <= name,
        };
        let block = self.blocks.partition_point(starts).saturating_sub(1);
        let place = match self.blocks.get(block) {
            Some(block) => block.partition_point(|at| below(*at)),
            None => 0,
        };
        (block, place)
    }

    /// Adds a child whose name is set and not among the others.
    pub(super) fn insert(&mut self, nodes: &Nodes, child: u32) {
        self.len += 1;
        if self.blocks.is_empty() {
            self.blocks = Vec::with_capacity(1);
            self.blocks.push(vec![child]);
            return;
        }
        let (mut b, mut place) = self.search(nodes, nodes.name(child), false);
        let full = BLOCK_MAX.size();
        if self.blocks[b].len() == full {
            BLOCK_MAX.cross();
            // Names that arrive in order fill their blocks; others halve them.
            let last = b + 1 == self.blocks.len() && place == full;
            let cut = if last { full } else { full / 2 };
            let mut tail = Vec::with_capacity(if last { 4 } else { full });
            tail.extend(self.blocks[b].drain(cut..));
            self.blocks.insert(b + 1, tail);
            if place >= cut {
                b += 1;
                place -= cut;
            }
        }
        self.blocks[b].insert(place, child);
    }

    /// Takes out a child whose name is still set.
    pub(super) fn remove(&mut self, nodes: &Nodes, child: u32) {
        let (b, place) = self.search(nodes, nodes.name(child), false);
        assert_eq!(self.blocks[b][place], child, "children are in order of their names");
        let block = &mut self.blocks[b];
        block.remove(place);
        self.len -= 1;
        if block.is_empty() {
            self.blocks.remove(b);
        } else if block.len() < BLOCK_MAX.size() / 4 && b + 1 < self.blocks.len() {
            // Sparse neighbours become one block, so that deletions give memory back.
            if self.blocks[b].len() + self.blocks[b + 1].len() <= BLOCK_MAX.size() / 2 {
                let next = self.blocks.remove(b + 1);
                self.blocks[b].extend(next);
            }
        }
    }

    /// The children with names above `after`, in order.
    pub(super) fn above<'a>(
        &'a self,
        nodes: &Nodes,
        after: Option<&str>,
    ) -> impl Iterator<Item = u32> + 'a {
        let (b, place) = match after {
            Some(name) => self.search(nodes, name.as_bytes(), true),
            None => (0, 0),
        };
        let skip = move |i: usize| if i == 0 { place } else { 0 };
        let blocks = self.blocks.get(b..).unwrap_or(&[]);
        blocks.iter().enumerate().flat_map(move |(i, block)| block[skip(i)..].iter().copied())
    }
}

/// The children of all containers, by handle; handle 0 is a container without any.
#[derive(Default)]
pub(super) struct Families {
    slab: Vec<Children>,
    free: Vec<u32>,
}

impl Families {
    pub(super) fn get(&self, handle: u32) -> Option<&Children> {
        self.slab.get((handle as usize).checked_sub(1)?)
    }

    /// Adds a child and tells the handle from now on.
    pub(super) fn insert(&mut self, nodes: &Nodes, handle: u32, child: u32) -> u32 {
        let handle = match (handle, self.free.pop_if(|_| handle == 0)) {
            (0, Some(free)) => free,
            (0, None) => {
                self.slab.push(Children::default());
                self.slab.len() as u32
            }
            (handle, _) => handle,
        };
        self.slab[handle as usize - 1].insert(nodes, child);
        handle
    }

    /// Takes a child out and tells the handle from now on.
    pub(super) fn remove(&mut self, nodes: &Nodes, handle: u32, child: u32) -> u32 {
        let children = &mut self.slab[handle as usize - 1];
        children.remove(nodes, child);
        if children.len == 0 {
            self.slab[handle as usize - 1] = Children::default();
            self.free.push(handle);
            return 0;
        }
        handle
    }
}
