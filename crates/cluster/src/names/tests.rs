//! The children of containers against a plain model, across the borders of their blocks.
//!
//! The story: of 600 files put into one directory in order, the 513th began a block of its own.
//! Taking it out looked for it in the block before, and the view panicked: for ever, for the entry
//! was in the log.

mod model;
mod tree;

use super::children::{BLOCK_MAX, Families};
use super::nodes::Nodes;
use crate::{NodeKind, StorageClass};
use holdfast_env::trial::Trial;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Remove(u8),
    Above(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u8>().prop_map(Step::Insert),
        3 => any::<u8>().prop_map(Step::Remove),
        1 => any::<u8>().prop_map(Step::Above),
    ];
    prop::collection::vec(step, 0..300)
}

/// A name for each number; every third is too long to live in its node.
fn name(number: u8) -> String {
    let long = if number.is_multiple_of(3) { "-with-a-name-that-is-kept-elsewhere" } else { "" };
    format!("f{number:03}{long}")
}

/// One container's children, and what they should be.
struct World {
    nodes: Nodes,
    families: Families,
    handle: u32,
    model: BTreeMap<String, u32>,
}

impl World {
    fn new() -> World {
        let (nodes, families) = (Nodes::new(0), Families::default());
        World { nodes, families, handle: 0, model: BTreeMap::new() }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert(number) if !self.model.contains_key(&name(number)) => {
                let child = self.nodes.make(NodeKind::File, 0, 0, StorageClass::DEFAULT);
                self.nodes.set_name(child, name(number).as_bytes());
                self.handle = self.families.insert(&self.nodes, self.handle, child);
                self.model.insert(name(number), child);
            }
            Step::Remove(number) => {
                let Some(child) = self.model.remove(&name(number)) else { return };
                self.handle = self.families.remove(&self.nodes, self.handle, child);
                self.nodes.release(child);
            }
            Step::Above(number) => self.is_as_it_should_be(Some(&name(number))),
            Step::Insert(_) => {}
        }
        self.is_as_it_should_be(None);
    }

    fn is_as_it_should_be(&self, after: Option<&str>) {
        let children = self.families.get(self.handle);
        assert_eq!(children.is_some(), !self.model.is_empty());
        let Some(children) = children else { return };
        assert_eq!(children.len() as usize, self.model.len());
        assert_eq!(children.first(), self.model.values().next().copied());
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let expected = self.model.range::<str, _>((from, Bound::Unbounded)).map(|(_, at)| *at);
        let listed: Vec<u32> = children.above(&self.nodes, after).collect();
        assert_eq!(listed, expected.collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn blocks_of_children_hold_what_a_map_holds(full in 4..9u64, steps in steps()) {
        let _trial = Trial::new().with(&BLOCK_MAX, full).enter();
        let mut world = World::new();
        steps.iter().for_each(|step| world.step(step));
    }
}

#[test]
fn any_child_of_a_directory_filled_in_order_can_go_first() {
    let _trial = Trial::new().with(&BLOCK_MAX, 4).enter();
    for gone in 0..20 {
        let mut world = World::new();
        (0..20).for_each(|number| world.step(&Step::Insert(number)));
        world.step(&Step::Remove(gone));
        (0..20).for_each(|number| world.step(&Step::Remove(number)));
        assert!(world.model.is_empty());
    }
}
