//! Directories that are copied to another shard while they go on changing. The source numbers what changes in
//! one from its Copy on, and keeps that until it is where the directory goes; the target knows which of it it has
//! heard of, and how far the copy has come. Each step is one entry, whose number the target counts: of two that
//! were made of the same state, whoever made them, the first that comes counts.

use super::{read_map, write_map};
use crate::names::Reach;
use crate::namespace::ensure;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Result, codec_enum, codec_struct};
use holdfast_env::sometimes;
use holdfast_env::trial::Knob;
use std::collections::{BTreeMap, VecDeque};

/// Changes of one directory that wait to be told: who changes more than is copied has the rest of it moved
/// while it is frozen.
pub static CHANGES_MAX: Knob = Knob::new("namespace.copy-changes", 65_536, &[3, 8, 40]);
/// Nodes of a subtree that is renamed into or within such a directory: each is a change of its own.
pub static SUBTREE_MAX: Knob = Knob::new("namespace.copy-subtree", 1024, &[1024]);
/// With so many changes left, and no more, a directory is held still for them.
pub(crate) const REST_MAX: u64 = 1000;

/// A change of a directory. Paths are those below it, without a slash in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something was made there, or has other attributes or bytes.
    Set { path: String },
    /// What was there, and all below it, is not there any more.
    Drop { path: String },
}
codec_enum!(Change: "noted change" {
    1 => Set { path },
    2 => Drop { path },
});

/// A directory that is being copied to another shard, as the one has it that keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copying {
    pub to: u16,
    /// The entry that began it.
    pub at: Index,
    /// Changes in front of the first that is kept here: they are told.
    pub told: u64,
    /// More has changed than is kept: what was copied is worth nothing.
    pub is_spoilt: bool,
    changes: VecDeque<Change>,
}

impl Copying {
    pub(crate) fn new(to: u16, at: Index) -> Copying {
        Copying { to, at, told: 0, is_spoilt: false, changes: VecDeque::new() }
    }

    /// How many changes there were.
    pub fn total(&self) -> u64 {
        self.told + self.changes.len() as u64
    }

    /// Changes from this number on, each with its own.
    pub(crate) fn behind(&self, heard: u64) -> impl Iterator<Item = (u64, &Change)> {
        let skipped = heard.saturating_sub(self.told) as usize;
        (self.told..).zip(&self.changes).skip(skipped)
    }

    pub(crate) fn note(&mut self, change: Change) {
        if self.is_spoilt {
            return;
        }
        if self.changes.len() >= CHANGES_MAX.size() {
            CHANGES_MAX.cross();
            return self.spoil();
        }
        self.changes.push_back(change);
    }

    pub(crate) fn spoil(&mut self) {
        sometimes!("a copy of a directory was spoilt by its changes");
        self.is_spoilt = true;
        self.told = self.total();
        self.changes.clear();
    }

    /// Those up to this number are told.
    pub(crate) fn tell(&mut self, through: u64) -> Result<()> {
        if through == u64::MAX {
            self.spoil();
            return Ok(());
        }
        ensure(through <= self.total(), || format!("there were no {through} changes"))
            .map_err(|e| holdfast_base::Error::invalid(e.message))?;
        let told = through.saturating_sub(self.told);
        self.changes.drain(..told as usize);
        self.told += told;
        Ok(())
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.to);
        out.put(&self.at);
        out.put(&self.told);
        out.put(&self.is_spoilt);
        out.put(&(self.changes.len() as u32));
        self.changes.iter().for_each(|change| out.put(change));
    }

    fn read(source: &mut Source<'_>) -> Result<Copying> {
        let (to, at, told) = (source.get()?, source.get()?, source.get()?);
        let is_spoilt: bool = source.get()?;
        let mut changes = VecDeque::new();
        for _ in 0..source.get::<u32>()? {
            changes.push_back(source.get()?);
        }
        ensure(!is_spoilt || changes.is_empty(), || "a spoilt copy has changes".to_owned())?;
        Ok(Copying { to, at, told, is_spoilt, changes })
    }
}

/// How far a directory has come that is being copied here, beside its `Arriving`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// Changes that it has.
    pub heard: u64,
    pub(crate) reach: Reach,
    /// A step did not fit: all of it is worth nothing.
    pub is_broken: bool,
    /// A step let go of more than one name, which are forgotten before the next.
    pub(crate) waits: bool,
}
codec_struct!(Following { heard, reach, is_broken, waits });

impl Following {
    /// Whether the copy has come to its end, but for changes.
    pub fn is_all(&self) -> bool {
        self.reach == Reach::End {}
    }
}

/// All by the directory's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    pub(crate) copying: BTreeMap<String, Copying>,
    pub(crate) following: BTreeMap<String, Following>,
}

impl Copies {
    pub(crate) fn is_none(&self) -> bool {
        self.copying.is_empty() && self.following.is_empty()
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.put(&(self.copying.len() as u32));
        for (name, copying) in &self.copying {
            out.put(name);
            copying.write(out);
        }
        write_map(&self.following, out);
    }

    /// The inverse of [`Copies::write`].
    pub(crate) fn read(source: &mut Source<'_>) -> Result<Copies> {
        let mut copying = BTreeMap::new();
        for _ in 0..source.get::<u32>()? {
            let name: String = source.get()?;
            let last = copying.last_key_value().is_none_or(|(last, _)| *last < name);
            ensure(last, || format!("`{}` is copied out of order", name.escape_debug()))?;
            copying.insert(name, Copying::read(source)?);
        }
        Ok(Copies { copying, following: read_map(source)? })
    }
}
