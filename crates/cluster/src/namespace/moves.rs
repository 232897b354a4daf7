//! Entries of moves of directories with content: each asks the borders whether its turn has come, and has the
//! names do it.

use super::{Namespace, check_dir};
use crate::borders::{check_attributes, top};
use crate::moves::{Arriving, Stamp, Turn};
use crate::names::PartNode;
use crate::{Command, Outcome};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};

impl Namespace {
    pub(super) fn freeze(&mut self, index: Index, dir: &str, to: u16) -> Result<Outcome> {
        check_dir(dir)?;
        self.borders.check_kept(dir)?;
        self.names.still_dir(dir)?;
        self.borders.freeze(index, top(dir), to)?;
        Ok(Outcome::Done {})
    }

    pub(super) fn take(
        &mut self,
        dir: &str,
        stamp: Stamp,
        part: u32,
        nodes: &[PartNode],
    ) -> Result<Outcome> {
        let Some(before) = self.turn_of(dir, stamp, (part, false))? else {
            return Ok(Outcome::Done {});
        };
        let (root, last) = self.names.take_part(&mut self.chunks, before, nodes)?;
        let arriving = Arriving { stamp, parts: part + 1, root, last };
        self.borders.moves_mut().arriving.insert(top(dir).to_owned(), arriving);
        Ok(Outcome::Done {})
    }

    /// What came before a part whose turn it is; `None` for one that is late.
    pub(super) fn turn_of(
        &self,
        dir: &str,
        stamp: Stamp,
        turn: (u32, bool),
    ) -> Result<Option<Option<Arriving>>> {
        check_dir(dir)?;
        let name = top(dir);
        if !self.borders.check_own(name, stamp.number)? {
            return Ok(None);
        }
        match self.borders.moves().turn(name, stamp, turn)? {
            Turn::Late => Ok(None),
            // Else it might have names of bytes that an earlier freeze's parts still have.
            Turn::First if self.names.is_leaving() => {
                Err(Error::retry("names that have left are not forgotten yet: ask again"))
            }
            Turn::First => Ok(Some(None)),
            Turn::Next(before) => Ok(Some(Some(before))),
        }
    }

    /// What this shard would answer to the next entry of a move, as it is now: asked before that is
    /// written, for one that is refused is in the log all the same.
    pub(crate) fn check_step(&self, command: &Command) -> Result<()> {
        match command {
            Command::Take { dir, stamp, part, nodes } => {
                match self.turn_of(dir, *stamp, (*part, false))? {
                    Some(before) => self.names.check_taken(&self.chunks, before, nodes).map(drop),
                    None => Ok(()),
                }
            }
            Command::Step { dir, stamp, step, changes, .. } => {
                match self.step_turn(dir, *stamp, *step)? {
                    Some(_) => self.names.check_step(changes),
                    None => Ok(()),
                }
            }
            Command::Still { dir, still: true, .. } => self.names.still_dir(dir).map(drop),
            Command::Go { .. } => self.names.check_room(),
            Command::Depart { .. } => self.names.check_room(),
            Command::Arrive { dir, stamp, parts, .. } => {
                match self.borders.check_own(top(dir), stamp.number)? {
                    true if *parts > 0 => self.names.check_arrive(dir),
                    true => self.names.check_dir(dir),
                    false => Ok(()),
                }
            }
            Command::Own { dir, number, .. } => match self.borders.check_own(top(dir), *number)? {
                true => self.names.check_dir(dir),
                false => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Whether one more directory can be given to this shard: before it leaves where it is.
    pub fn check_gets(&self, dir: &str) -> Result<()> {
        let checked = self.borders.check_gets(top(dir)).and_then(|()| self.names.check_room());
        checked.map_err(|e| e.context(format_args!("give `{dir}` to shard {}", self.shard())))
    }

    pub(super) fn depart(&mut self, dir: &str, freeze: Index, parts: u32) -> Result<Outcome> {
        check_dir(dir)?;
        let name = top(dir);
        let Some(to) = self.borders.check_depart(name, freeze)? else {
            return Ok(Outcome::Done {});
        };
        let attributes = self.names.still_dir(dir)?;
        let is_root = self.shard() == 0;
        self.names.depart(&mut self.chunks, dir, &attributes, is_root)?;
        self.borders.depart(name, (freeze, parts), to, attributes);
        Ok(Outcome::Done {})
    }

    pub(super) fn arrive(&mut self, command: &Command) -> Result<Outcome> {
        let Command::Arrive { dir, stamp, parts, attributes } = command else {
            return Err(super::misrouted());
        };
        check_dir(dir)?;
        check_attributes(attributes)?;
        let name = top(dir);
        if !self.borders.check_own(name, stamp.number)? {
            return Ok(Outcome::Done {});
        }
        let all = |arriving: &&Arriving| arriving.stamp == *stamp && arriving.parts == *parts;
        match self.borders.moves().arriving.get(name).filter(all).copied() {
            Some(arriving) => {
                self.names.arrive(&mut self.chunks, dir, arriving.root, attributes)?;
                self.borders.moves_mut().arriving.remove(name);
                self.borders.moves_mut().copies.following.remove(name);
            }
            None if *parts == 0 => {
                self.drop_arriving(name);
                self.names.take_dir(&mut self.chunks, dir, attributes)?;
            }
            None => return Err(Error::retry(format!("its {parts} parts are not here"))),
        }
        self.borders.own(name, stamp.number);
        Ok(Outcome::Done {})
    }

    pub(super) fn discard(&mut self, dir: &str, stamp: Stamp) -> Result<Outcome> {
        check_dir(dir)?;
        let arriving = self.borders.moves().arriving.get(top(dir));
        if arriving.is_some_and(|arriving| arriving.stamp == stamp) {
            self.drop_arriving(top(dir));
        }
        Ok(Outcome::Done {})
    }

    /// What was taken aside goes as what has left does: its bytes are its shard's, or held again.
    pub(super) fn drop_arriving(&mut self, name: &str) {
        self.borders.moves_mut().copies.following.remove(name);
        if let Some(arriving) = self.borders.moves_mut().arriving.remove(name) {
            self.names.leave(arriving.root);
        }
    }
}
