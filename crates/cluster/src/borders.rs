//! Which directories of the root which shard keeps, as one shard has it. Shard 0's borders are the map:
//! what it does not say is kept elsewhere is its own. Another shard knows the directories that were given
//! to it. Both sides number a move by the entry of shard 0's topic that began it, so that nothing which
//! is late of a move before changes anything. Pure; a part of the namespace's fold.
//!
//! **Invariant:** a path has one owner at most, at any pair of indices of two shards: who gives a directory
//! away refuses everything below it from that entry on, and who takes it does so by a later one.

use crate::AllShards;
use crate::all::SHARDS_MAX;
use crate::command::METADATA_BYTES_MAX;
use crate::moves::{Copying, Frozen, Left, Moves, Stamp};
use crate::namespace::{Shown, ensure};
use holdfast_base::codec_struct;
use holdfast_base::ids::Index;
use holdfast_base::node::StorageClass;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, path};
use holdfast_env::{planted, sometimes};
use std::collections::BTreeMap;

/// Directories that one shard may have given away, or have been given: a person's, not a program's.
pub const BORDERS_MAX: usize = 4096;

/// What a directory has beside its entries, on its way from shard to shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirAttributes {
    pub mode: u16,
    pub mtime: i64,
    pub class: StorageClass,
    pub metadata: Vec<u8>,
}
codec_struct!(DirAttributes { mode, mtime, class, metadata });

/// A directory of the root that another shard keeps, or is to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    pub to: u16,
    /// Of the move: the entry of shard 0's topic that gave it away.
    pub number: Index,
}
codec_struct!(Forwarded { to, number });

/// A directory that this shard was given once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Of the last move that brought it here.
    pub number: Index,
    /// It was given back since, and looked like this. The number stays for ever: a late copy of the entry
    /// that brought it must not bring it again.
    pub gone: Option<DirAttributes>,
}
codec_struct!(Given { number, gone });

/// What one shard knows of itself and the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Borders {
    shard: u16,
    /// In shard 0: how many shards there are. Elsewhere 0: it is not known there.
    count: u16,
    /// In shard 0, by name.
    forwarded: BTreeMap<String, Forwarded>,
    /// In shard 0, by name, those that came back: with the number of the last move that took them away.
    back: BTreeMap<String, Index>,
    /// Elsewhere, by name.
    given: BTreeMap<String, Given>,
    /// Of directories that go with their content.
    moves: Moves,
}

/// The first component of a path.
#[inline]
pub(crate) fn top(path: &str) -> &str {
    let rest = path.strip_prefix('/').unwrap_or(path);
    rest.split('/').next().unwrap_or(rest)
}

/// Whether a path names something directly below the root.
pub(crate) fn is_top(path: &str) -> bool {
    path::components(path).count() == 1
}

impl Borders {
    pub(crate) fn new(shard: u16) -> Borders {
        let count = if shard == 0 { 1 } else { 0 };
        let (forwarded, back, given, moves) = Default::default();
        Borders { shard, count, forwarded, back, given, moves }
    }

    /// Whether there never was another shard, as far as this one has heard.
    pub(crate) fn is_plain(&self) -> bool {
        *self == Borders::new(self.shard)
    }

    /// In shard 0: how many shards there are, itself included.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// In shard 0: which directories of the root other shards keep, or are to keep.
    pub fn forwarded(&self) -> impl Iterator<Item = (&str, Forwarded)> {
        self.forwarded.iter().map(|(name, forwarded)| (name.as_str(), *forwarded))
    }

    /// Elsewhere: the directories that this shard was given, those that it gave back included.
    pub fn given(&self) -> impl Iterator<Item = (&str, &Given)> {
        self.given.iter().map(|(name, given)| (name.as_str(), given))
    }

    /// Elsewhere: those that it keeps.
    pub fn kept(&self) -> impl Iterator<Item = &str> {
        self.given.iter().filter(|(_, given)| given.gone.is_none()).map(|(name, _)| name.as_str())
    }

    /// In shard 0: who keeps a path, or is to keep it.
    #[inline]
    pub fn keeper(&self, path: &str) -> u16 {
        if self.forwarded.is_empty() {
            return 0;
        }
        self.keeper_of(top(path))
    }

    /// As [`Borders::keeper`], of a name in the root.
    pub fn keeper_of(&self, name: &str) -> u16 {
        self.forwarded.get(name).map_or(0, |forwarded| forwarded.to)
    }

    /// In shard 0: the number of the last move of the directory that this path lies in; 0 where there was
    /// none. What is proposed for it says this, so that it counts in the time between two moves in which
    /// it was asked, and in no other.
    pub fn number_of(&self, path: &str) -> Index {
        let name = top(path);
        let forwarded = self.forwarded.get(name).map(|forwarded| forwarded.number);
        forwarded.or(self.back.get(name).copied()).unwrap_or(Index(0))
    }

    /// In shard 0: whether another keeps anything.
    #[inline]
    pub fn is_any_away(&self) -> bool {
        !self.forwarded.is_empty()
    }

    /// Of directories that go, or come, with their content.
    pub fn moves(&self) -> &Moves {
        &self.moves
    }

    pub(crate) fn moves_mut(&mut self) -> &mut Moves {
        &mut self.moves
    }

    /// Refuses what lies in a directory that is moving: it has its answer when that is there.
    pub fn check_still(&self, path: &str) -> Result<()> {
        match self.moves.frozen.is_empty() {
            true => Ok(()),
            false => self.moves.check_frozen(top(path)),
        }
    }

    /// Whether this shard is the one that keeps a name of the root.
    pub fn keeps(&self, name: &str) -> bool {
        if self.shard == 0 {
            return !self.forwarded.contains_key(name);
        }
        self.given.get(name).is_some_and(|given| given.gone.is_none())
    }

    /// Refuses what is another shard's, and what was asked before the directory's last move: it may have
    /// been long on its way, and others have come and gone since. `Retry`, for whoever asks has an older
    /// map.
    pub(crate) fn check(&self, path: &str, number: Index) -> Result<()> {
        if planted!("cluster.border-not-checked") {
            return Ok(());
        }
        self.check_kept(path)?;
        self.check_frozen(path)?;
        self.check_number(path, number)
    }

    fn check_frozen(&self, path: &str) -> Result<()> {
        match planted!("cluster.frozen-and-written") {
            true => Ok(()),
            false => self.check_still(path),
        }
    }

    /// Refuses what is another shard's.
    pub(crate) fn check_kept(&self, path: &str) -> Result<()> {
        let name = top(path);
        if self.keeps(name) {
            return Ok(());
        }
        sometimes!("a gateway with an old map was refused");
        Err(Error::retry(match self.forwarded.get(name) {
            Some(forwarded) => {
                format!("`/{name}` is kept by shard {} (now): ask again", forwarded.to)
            }
            None => format!("`/{name}` is not kept by shard {} (now): ask again", self.shard),
        }))
    }

    /// Of a directory that was given here once.
    pub(crate) fn given_as(&self, name: &str) -> Option<&Given> {
        self.given.get(name)
    }

    fn check_number(&self, path: &str, number: Index) -> Result<()> {
        let given = self.given.get(top(path)).map(|given| given.number);
        let current = given.unwrap_or_else(|| self.number_of(path));
        if number == current || planted!("cluster.asked-before-the-move") {
            return Ok(());
        }
        Err(Error::retry(format!(
            "it was asked of `/{}` before its move {current} (behind {number}): ask again",
            top(path)
        )))
    }

    /// Refuses a second path of one command, or that of a file which was begun here, where the first or
    /// the file is this shard's: that would be a move from shard to shard.
    pub(crate) fn check_second(&self, path: &str, number: Index) -> Result<()> {
        if self.keeps(top(path)) {
            self.check_frozen(path)?;
            return self.check_number(path, number);
        }
        Err(Error::invalid(format!(
            "{} is kept by another shard than shard {}: names do not move from shard to shard: copy \
             it there, and delete it here",
            Shown(path),
            self.shard
        )))
    }

    /// Refuses to delete or rename a directory that was given from shard to shard, as a whole.
    pub(crate) fn check_whole(&self, path: &str) -> Result<()> {
        if self.shard == 0 || !is_top(path) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "shard {} keeps it, and shard 0 its name: give it back first (`holdfast shard move DIR \
             --to 0`)",
            self.shard
        )))
    }

    /// One more, in shard 0; its number.
    /// The shard of this number, once, however often it is asked for.
    pub(crate) fn add(&mut self, shard: u16) -> Result<()> {
        self.check_root("add a shard")?;
        if shard as usize >= SHARDS_MAX {
            return Err(Error::full(format!("there are {SHARDS_MAX} shards, and can be no more")));
        }
        if shard > self.count {
            return Err(Error::invalid(format!(
                "there are {} shards: that is the next",
                self.count
            )));
        }
        self.count = self.count.max(shard + 1);
        Ok(())
    }

    fn check_root(&self, doing: &str) -> Result<()> {
        match self.shard {
            0 => Ok(()),
            shard => Err(Error::invalid(format!("{doing}: shard 0 does, this is shard {shard}"))),
        }
    }

    /// Freezes a directory that may be, or takes that back.
    pub(crate) fn freeze(&mut self, index: Index, name: &str, to: u16) -> Result<()> {
        if self.check_begin(name, to)? {
            self.moves.frozen.insert(name.to_owned(), Frozen { to, at: index });
        }
        Ok(())
    }

    /// As [`Borders::freeze`]; what it has is copied first.
    pub(crate) fn copy(&mut self, index: Index, name: &str, to: u16) -> Result<()> {
        if self.check_begin(name, to)? {
            let copying = Copying::new(to, index);
            self.moves.copies.copying.insert(name.to_owned(), copying);
        }
        Ok(())
    }

    /// Whether a move there begins. One that has begun goes on, or is taken back.
    fn check_begin(&mut self, name: &str, to: u16) -> Result<bool> {
        let frozen = self.moves.frozen.get(name).map(|frozen| frozen.to);
        let copying = self.moves.copies.copying.get(name).map(|copying| copying.to);
        match frozen.or(copying) {
            Some(_) if to == self.shard => self.moves.undo(name),
            Some(other) if other != to => {
                return Err(Error::exists(format!(
                    "it is moving to shard {other} already: wait, or take that back first (`--to {}`)",
                    self.shard
                )));
            }
            Some(_) => {}
            None if to == self.shard => {
                return Err(Error::invalid(format!("shard {to} keeps it already")));
            }
            None => {
                self.check_forward(to)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What the move is called of a directory that was frozen here by this entry.
    pub(crate) fn stamp_of(&self, name: &str, freeze: Index) -> Stamp {
        let number = self.given.get(name).map_or(freeze, |given| given.number);
        Stamp { number, freeze }
    }

    /// Whether a frozen directory departs now: `None` where it has. All of it was taken.
    pub(crate) fn check_depart(&self, name: &str, freeze: Index) -> Result<Option<u16>> {
        if self.moves.left.get(name).is_some_and(|left| left.freeze >= freeze) {
            return Ok(None);
        }
        let is_copied = self.moves.copies.copying.contains_key(name);
        match self.moves.frozen.get(name) {
            Some(frozen) if frozen.at == freeze && !is_copied => Ok(Some(frozen.to)),
            _ => {
                Err(Error::retry(format!("`/{name}` is not frozen by entry {freeze}: look again")))
            }
        }
    }

    pub(crate) fn depart(
        &mut self,
        name: &str,
        (freeze, parts): (Index, u32),
        to: u16,
        attributes: DirAttributes,
    ) {
        self.moves.frozen.remove(name);
        self.forward(freeze, name, to, attributes);
        self.moves.left.insert(name.to_owned(), Left { freeze, parts });
    }

    /// Whether a directory can be given away from here to there.
    pub(crate) fn check_forward(&self, to: u16) -> Result<()> {
        if self.shard != 0 && to != 0 {
            return Err(Error::invalid(format!(
                "shard {} gives it back to shard 0 alone: move it there first (`--to 0`)",
                self.shard
            )));
        }
        if self.shard != 0 {
            return Ok(());
        }
        if to == 0 {
            return Err(Error::invalid("shard 0 keeps it already"));
        }
        if to >= self.count {
            return Err(Error::not_found(format!(
                "there is no shard {to}: there are {}: add one first (`holdfast shard add`)",
                self.count
            )));
        }
        if self.forwarded.len() + self.back.len() >= BORDERS_MAX {
            return Err(Error::full(format!("{BORDERS_MAX} directories are with other shards")));
        }
        Ok(())
    }

    /// It goes, by the move of this number where this is shard 0.
    pub(crate) fn forward(&mut self, index: Index, name: &str, to: u16, attributes: DirAttributes) {
        self.moves.left.remove(name);
        match self.given.get_mut(name) {
            Some(given) => given.gone = Some(attributes),
            None => {
                self.back.remove(name);
                self.forwarded.insert(name.to_owned(), Forwarded { to, number: index });
            }
        }
    }

    /// What an `Own` of this move is to do here: `true` to take the directory, `false` for nothing,
    /// because it was done, or is late.
    pub(crate) fn check_own(&self, name: &str, number: Index) -> Result<bool> {
        if self.shard == 0 {
            // Back from where it was given to, by that move.
            let given = self.forwarded.get(name);
            return Ok(given.is_some_and(|given| given.number == number));
        }
        match self.given.get(name) {
            Some(_) if planted!("cluster.own-without-its-number") => Ok(true),
            Some(given) => Ok(given.gone.is_some() && given.number < number),
            None => self.check_gets(name).map(|()| true),
        }
    }

    /// Refuses a directory that would be one too many.
    pub(crate) fn check_gets(&self, name: &str) -> Result<()> {
        if self.given.len() < BORDERS_MAX || self.given.contains_key(name) {
            return Ok(());
        }
        Err(Error::full(format!("shard {} was given {BORDERS_MAX}", self.shard)))
    }

    /// As [`Borders::check_gets`], with all counted that are on their way here: one that has left elsewhere
    /// is never refused.
    pub(crate) fn check_gets_more(&self, name: &str) -> Result<()> {
        let is_new = |name: &&String| !self.given.contains_key(*name);
        let coming = self.moves.arriving.keys().filter(is_new).count();
        if self.shard == 0 || self.given.contains_key(name) {
            return Ok(());
        }
        match self.given.len() + coming < BORDERS_MAX {
            true => Ok(()),
            false => Err(Error::full(format!("shard {} was given {BORDERS_MAX}", self.shard))),
        }
    }

    pub(crate) fn own(&mut self, name: &str, number: Index) {
        match self.shard {
            0 => {
                self.forwarded.remove(name);
                self.back.insert(name.to_owned(), number);
            }
            _ => drop(self.given.insert(name.to_owned(), Given { number, gone: None })),
        }
    }

    /// What a snapshot tells of copies is of what is there.
    pub(crate) fn check_copies(&self) -> Result<()> {
        let Moves { frozen, arriving, copies, .. } = &self.moves;
        let kept = |name: &String| self.keeps(name);
        let still = |(name, copying): (&String, &Copying)| {
            frozen.get(name).is_none_or(|f| (f.at, f.to) == (copying.at, copying.to))
        };
        let copying = copies.copying.keys().all(kept) && copies.copying.iter().all(still);
        let following = copies.following.keys().all(|name| arriving.contains_key(name));
        ensure(copying && following, || "copies do not agree with moves".to_owned())
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.count);
        out.put(&(self.forwarded.len() as u32));
        for (name, forwarded) in &self.forwarded {
            out.put(name);
            out.put(forwarded);
        }
        out.put(&(self.back.len() as u32));
        for (name, number) in &self.back {
            out.put(name);
            out.put(number);
        }
        out.put(&(self.given.len() as u32));
        for (name, given) in &self.given {
            out.put(name);
            out.put(given);
        }
    }

    /// The inverse of [`Borders::write`].
    pub(crate) fn read(shard: u16, source: &mut Source<'_>) -> Result<Borders> {
        let mut borders = Borders { count: source.get()?, ..Borders::new(shard) };
        for _ in 0..source.get::<u32>()? {
            let (name, forwarded): (String, Forwarded) = (source.get()?, source.get()?);
            let last = borders.forwarded.last_key_value().is_none_or(|(last, _)| *last < name);
            ensure(last && shard == 0 && (1..borders.count).contains(&forwarded.to), || {
                format!("`{}` is forwarded out of order, or nowhere", name.escape_debug())
            })?;
            borders.forwarded.insert(name, forwarded);
        }
        for _ in 0..source.get::<u32>()? {
            let (name, number): (String, Index) = (source.get()?, source.get()?);
            let last = borders.back.last_key_value().is_none_or(|(last, _)| *last < name);
            let away = borders.forwarded.contains_key(&name);
            ensure(last && shard == 0 && !away, || {
                format!("`{}` came back out of order, or is away", name.escape_debug())
            })?;
            borders.back.insert(name, number);
        }
        for _ in 0..source.get::<u32>()? {
            let (name, given): (String, Given) = (source.get()?, source.get()?);
            let last = borders.given.last_key_value().is_none_or(|(last, _)| *last < name);
            ensure(last && shard != 0, || {
                format!("`{}` is given out of order, or to shard 0", name.escape_debug())
            })?;
            borders.given.insert(name, given);
        }
        let counted = if shard == 0 { 1..=SHARDS_MAX as u16 } else { 0..=0 };
        ensure(counted.contains(&borders.count), || format!("there are {} shards", borders.count))?;
        Ok(borders)
    }
}

/// Whether what is here of the shards shows all that was done in a directory before it came to who keeps it
/// now: only then is it known here what was asked in it, and answered, elsewhere. Of one that has been with a
/// shard from whose topic nothing of that has arrived here, and with another one since, it is not seen.
pub fn shows_moves(all: &AllShards<'_>, path: &str) -> bool {
    let (name, root) = (top(path), all.root().borders());
    let given =
        || all.iter().skip(1).filter_map(|shard| Some((shard, shard.borders().given.get(name)?)));
    if let Some(number) = root.back.get(name) {
        let is_back = |given: &Given| {
            given.number > *number || given.number == *number && given.gone.is_some()
        };
        return given().any(|(_, given)| is_back(given));
    }
    // Who was given it before has given it back.
    let keeper = root.keeper_of(name);
    given().all(|(shard, given)| shard.shard() == keeper || given.gone.is_some())
}

/// Refuses attributes that no directory has.
pub(crate) fn check_attributes(attributes: &DirAttributes) -> Result<()> {
    if attributes.mode > crate::namespace::MODE_MAX
        || attributes.metadata.len() > METADATA_BYTES_MAX
    {
        return Err(Error::invalid("no directory has such attributes"));
    }
    Ok(())
}
