//! What one shard knows of directories that move with their content: which are frozen here, which have left,
//! and what was taken aside of those that come. Says which entry of a move is next, late, or a repetition;
//! the names themselves are `names/parts.rs`'s. Pure; a part of the shard's borders.
//!
//! **Invariant:** parts are taken in their order, of the last freeze alone; a directory departs only as it
//! was when it was frozen. So what arrives is what departed.

mod copies;
mod course;
mod unfinished;

pub use copies::{CHANGES_MAX, Change, Copies, Copying, Following, SUBTREE_MAX};
pub use unfinished::{Errand, Unfinished, began_at, unfinished, waiting};

use crate::names::{Content, PartNode};
use crate::namespace::ensure;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::{planted, sometimes};
use std::collections::BTreeMap;

/// A directory that is to go, and is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frozen {
    pub to: u16,
    /// The entry that froze it.
    pub at: Index,
}
codec_struct!(Frozen { to, at });

/// How a directory left that had content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub freeze: Index,
    /// What the target had taken of it, which is all.
    pub parts: u32,
}
codec_struct!(Left { freeze, parts });

/// Which freeze of which move something is about. A later one is greater, whatever shard froze it: moves are
/// numbered by shard 0's topic, and while a move's number stays only one shard freezes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    pub number: Index,
    pub freeze: Index,
}
codec_struct!(Stamp { number, freeze });

/// What was taken aside of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arriving {
    pub stamp: Stamp,
    /// Those that are in.
    pub parts: u32,
    /// Place of the directory, which has no name yet.
    pub(crate) root: u32,
    /// Of the last node that came: the next one follows it in the order of paths.
    pub(crate) last: u32,
}
codec_struct!(Arriving { stamp, parts, root, last });

/// All by the directory's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    pub(crate) frozen: BTreeMap<String, Frozen>,
    /// The last freeze that was taken back. Stays: by it the target knows that what it took is worth nothing.
    pub(crate) undone: BTreeMap<String, Index>,
    pub(crate) left: BTreeMap<String, Left>,
    pub(crate) arriving: BTreeMap<String, Arriving>,
    pub(crate) copies: Copies,
}

/// What a part is, seen from what was taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The first of its freeze.
    First,
    Next(Arriving),
    /// It is in, or its freeze is over.
    Late,
}

impl Moves {
    pub(crate) fn is_none(&self) -> bool {
        *self == Moves::default()
    }

    /// Directories that do not change here.
    pub fn frozen(&self) -> impl Iterator<Item = (&str, Frozen)> {
        self.frozen.iter().map(|(name, frozen)| (name.as_str(), *frozen))
    }

    /// Directories that are coming, with what was taken of them.
    pub fn arriving(&self) -> impl Iterator<Item = (&str, Arriving)> {
        self.arriving.iter().map(|(name, arriving)| (name.as_str(), *arriving))
    }

    /// Directories that are copied, or were and are frozen for the rest.
    pub fn copying(&self) -> impl Iterator<Item = (&str, &Copying)> {
        self.copies.copying.iter().map(|(name, copying)| (name.as_str(), copying))
    }

    /// How far a directory has come that is copied to here.
    pub fn following(&self, name: &str) -> Option<&Following> {
        self.copies.following.get(name)
    }

    /// A move from here is over before its directory has left: what was taken of it is worth nothing.
    pub(crate) fn undo(&mut self, name: &str) {
        let frozen = self.frozen.remove(name).map(|frozen| frozen.at);
        let copying = self.copies.copying.remove(name).map(|copying| copying.at);
        if let Some(at) = frozen.max(copying) {
            self.undone.insert(name.to_owned(), at);
        }
    }

    pub(crate) fn check_frozen(&self, name: &str) -> Result<()> {
        match self.frozen.get(name) {
            None => Ok(()),
            Some(frozen) => Err(Error::retry(format!(
                "`/{name}` is moving to shard {}, and takes no changes until it is there: ask again",
                frozen.to
            ))),
        }
    }

    pub(crate) fn turn(
        &self,
        name: &str,
        stamp: Stamp,
        (part, is_copy): (u32, bool),
    ) -> Result<Turn> {
        let gap = || {
            Err(Error::retry(format!("part {part} of `/{name}` is not the next one: look again")))
        };
        match self.arriving.get(name) {
            Some(now) if now.stamp > stamp => Ok(Turn::Late),
            // What is copied is not taken in parts.
            Some(_) if self.copies.following.contains_key(name) != is_copy => gap(),
            Some(now) if now.stamp == stamp && part < now.parts => {
                sometimes!("a part of a move came twice");
                match planted!("cluster.part-taken-twice") {
                    true => Ok(Turn::Next(*now)),
                    false => Ok(Turn::Late),
                }
            }
            Some(now) if now.stamp == stamp && part == now.parts => Ok(Turn::Next(*now)),
            // What there is of an earlier freeze is discarded first, and forgotten.
            None if part == 0 => Ok(Turn::First),
            _ => gap(),
        }
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        write_map(&self.frozen, out);
        write_map(&self.undone, out);
        write_map(&self.left, out);
        write_map(&self.arriving, out);
    }

    /// The inverse of [`Moves::write`].
    pub(crate) fn read(source: &mut Source<'_>) -> Result<Moves> {
        let (frozen, undone) = (read_map(source)?, read_map(source)?);
        let (left, arriving, copies) = (read_map(source)?, read_map(source)?, Copies::default());
        Ok(Moves { frozen, undone, left, arriving, copies })
    }
}

fn write_map<T: holdfast_base::codec::Encode>(map: &BTreeMap<String, T>, out: &mut Writer<'_>) {
    out.put(&(map.len() as u32));
    for (name, what) in map {
        out.put(name);
        out.put(what);
    }
}

fn read_map<T: holdfast_base::codec::Decode>(
    source: &mut Source<'_>,
) -> Result<BTreeMap<String, T>> {
    let mut map = BTreeMap::new();
    for _ in 0..source.get::<u32>()? {
        let (name, what): (String, T) = (source.get()?, source.get()?);
        let last = map.last_key_value().is_none_or(|(last, _)| *last < name);
        ensure(last, || format!("`{}` moves out of order", name.escape_debug()))?;
        map.insert(name, what);
    }
    Ok(map)
}

/// Bytes that a node takes in an entry, about.
pub(crate) fn node_bytes(node: &PartNode) -> usize {
    let content = match &node.content {
        Content::None {} => 0,
        Content::Packed { .. } => 20,
        Content::Extents { extents, .. } => 32 + extents.len() * 16,
        Content::Target { target } => 4 + target.len(),
    };
    32 + node.name.len() + node.metadata.len() + content
}
