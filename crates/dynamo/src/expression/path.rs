//! Paths into documents: what lies at one, and what of an item lies on several. Pure.

use crate::value::{Item, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Of a map, or of the item.
    Name(Arc<str>),
    /// Of a list, from 0.
    Index(usize),
}

/// A path; its first step is an attribute's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<Step>);

/// How two paths of one request are in each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// One lies on the other.
    Overlap,
    /// One takes for a list what is a map for the other.
    Conflict,
}

impl Path {
    /// The attribute that it begins with.
    pub fn head(&self) -> &str {
        match self.0.first() {
            Some(Step::Name(name)) => name,
            _ => "",
        }
    }

    /// Whether it leads into an attribute.
    pub fn is_nested(&self) -> bool {
        self.0.len() > 1
    }

    /// What lies there.
    pub fn find<'a>(&self, item: &'a Item) -> Option<&'a Value> {
        let mut steps = self.0.iter();
        let mut found = match steps.next() {
            Some(Step::Name(name)) => item.get(&**name)?,
            _ => return None,
        };
        for step in steps {
            found = match (step, found) {
                (Step::Name(name), Value::M(map)) => map.get(&**name)?,
                (Step::Index(index), Value::L(list)) => list.get(*index)?,
                _ => return None,
            };
        }
        Some(found)
    }

    /// Whether two paths can be asked for at once.
    pub fn clash(&self, other: &Path) -> Option<Clash> {
        for (a, b) in self.0.iter().zip(&other.0) {
            match (a, b) {
                (Step::Name(_), Step::Index(_)) | (Step::Index(_), Step::Name(_)) => {
                    return Some(Clash::Conflict);
                }
                _ if a != b => return None,
                _ => {}
            }
        }
        Some(Clash::Overlap)
    }
}

/// As errors tell it: `[a, [0], b]`.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = |step: &Step| match step {
            Step::Name(name) => name.to_string(),
            Step::Index(index) => format!("[{index}]"),
        };
        write!(f, "[{}]", self.0.iter().map(step).collect::<Vec<_>>().join(", "))
    }
}

/// Paths as a tree.
#[derive(Default)]
struct Tree<'a> {
    is_whole: bool,
    below: BTreeMap<&'a Step, Tree<'a>>,
}

impl Tree<'_> {
    fn of_value(&self, value: &Value) -> Option<Value> {
        if self.is_whole {
            return Some(value.clone());
        }
        match value {
            Value::M(map) => {
                let found = self.of_map(map);
                (!found.is_empty()).then_some(Value::M(found))
            }
            Value::L(list) => {
                // In the list's order, close together.
                let found = self.below.iter().filter_map(|(step, tree)| match step {
                    Step::Index(index) => tree.of_value(list.get(*index)?),
                    Step::Name(_) => None,
                });
                let found: Vec<Value> = found.collect();
                (!found.is_empty()).then_some(Value::L(found))
            }
            _ => None,
        }
    }

    fn of_map(&self, map: &Item) -> Item {
        let found = self.below.iter().filter_map(|(step, tree)| match step {
            Step::Name(name) => Some((name.to_string(), tree.of_value(map.get(&**name)?)?)),
            Step::Index(_) => None,
        });
        found.collect()
    }
}

/// What of an item lies at the paths, in the shape that it has there.
pub fn project(paths: &[Path], item: &Item) -> Item {
    let mut tree = Tree::default();
    for path in paths {
        let leaf = path.0.iter().fold(&mut tree, |tree, step| tree.below.entry(step).or_default());
        leaf.is_whole = true;
    }
    tree.of_map(item)
}

/// The first two paths that clash, by [`Clash::Overlap`] before [`Clash::Conflict`], and the
/// sentence for it.
pub fn clashes(paths: &[Path]) -> (Option<String>, Option<String>) {
    let told = |how: &str, one: &Path, two: &Path| {
        format!(
            "Two document paths {how} with each other; must remove or rewrite one of these paths; \
             path one: {one}, path two: {two}"
        )
    };
    let (mut overlap, mut conflict) = (None, None);
    for (at, two) in paths.iter().enumerate() {
        for one in &paths[..at] {
            match one.clash(two) {
                Some(Clash::Overlap) if overlap.is_none() => {
                    overlap = Some(told("overlap", one, two));
                }
                Some(Clash::Conflict) if conflict.is_none() => {
                    conflict = Some(told("conflict", one, two));
                }
                _ => {}
            }
        }
    }
    (overlap, conflict)
}
