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
        check_dir(dir)?;
        let name = top(dir);
        if !self.borders.check_own(name, stamp.number)? {
            return Ok(Outcome::Done {});
        }
        let before = match self.borders.moves().turn(name, stamp, part)? {
            Turn::Late => return Ok(Outcome::Done {}),
            // Else it might have names of bytes that an earlier freeze's parts still have.
            Turn::First if self.names.is_leaving() => {
                return Err(Error::retry("names that have left are not forgotten yet: ask again"));
            }
            Turn::First => None,
            Turn::Next(before) => Some(before),
        };
        let (root, last) = self.names.take_part(&mut self.chunks, before, nodes)?;
        let arriving = Arriving { stamp, parts: part + 1, root, last };
        self.borders.moves_mut().arriving.insert(name.to_owned(), arriving);
        Ok(Outcome::Done {})
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
        if let Some(arriving) = self.borders.moves_mut().arriving.remove(name) {
            self.names.leave(arriving.root);
        }
    }
}
