//! What is left to do of a directory that is copied while it changes: the next entry, as both shards stand.

use super::copies::REST_MAX;
use super::unfinished::{Unfinished, after, by_and_by};
use super::{CHANGES_MAX, Copying, Stamp};
use crate::names::{Next, Target};
use crate::{AllShards, Command, Namespace};

/// A directory on its way from its source, and what the target has of this copy.
pub(super) struct Course<'a> {
    source: &'a Namespace,
    target: &'a Namespace,
    name: &'a str,
    copying: &'a Copying,
    stamp: Stamp,
    /// That the target has taken.
    steps: u32,
    there: Option<Target<'a>>,
}

impl<'a> Course<'a> {
    /// None while the target has something of another copy, which goes first.
    pub fn of(
        all: &AllShards<'a>,
        source: &'a Namespace,
        name: &'a str,
        copying: &'a Copying,
    ) -> Option<Course<'a>> {
        let target = all.get(copying.to).ok()?;
        let stamp = source.borders().stamp_of(name, copying.at);
        let moves = target.borders().moves();
        if target.borders().keeps(name) {
            return None;
        }
        let (steps, there) = match moves.arriving.get(name) {
            None => (0, None),
            Some(arriving) => {
                let following = moves.following(name).filter(|_| arriving.stamp == stamp)?;
                let there = Target { names: target.names(), root: arriving.root, following };
                (arriving.parts, Some(there))
            }
        };
        Some(Course { source, target, name, copying, stamp, steps, there })
    }

    /// What goes on changing: its next step, or that it is still, once there is little left.
    pub fn copy(&self) -> Option<Unfinished> {
        let Some(there) = self.there else { return self.step() };
        if there.following.is_broken {
            return Some(self.copied_no_more());
        }
        let left = self.copying.total().checked_sub(there.following.heard)?;
        match there.following.is_all() && left <= REST_MAX {
            true => Some(still(self.source, self.name, self.copying, true)),
            false => self.step(),
        }
    }

    /// What is still: the rest, or that it goes.
    pub fn rest(&self) -> Option<Unfinished> {
        let again = still(self.source, self.name, self.copying, false);
        match self.step() {
            Some(step) if matches!(step.command, Command::Step { .. }) => return Some(step),
            // It is copied no more, but goes in parts.
            Some(_) => return Some(again),
            None => {}
        }
        let following = self.there?.following;
        let changes = self.copying.total();
        if following.heard != changes || !following.is_all() {
            return None;
        }
        let command = match following.is_broken {
            true => again.command,
            false => {
                let (dir, copy) = (self.dir(), self.copying.at);
                Command::Go { dir, copy, steps: self.steps, changes }
            }
        };
        Some(after(self.source.shard(), command, self.target.shard()))
    }

    /// That changes are told, once there are many of them: they are kept no more.
    pub fn tell(&self) -> Option<Unfinished> {
        let heard = self.there?.following.heard;
        let many = (CHANGES_MAX.size() as u64 / 8).max(1);
        if heard < self.copying.told + many || heard > self.copying.total() {
            return None;
        }
        let copied = self.copied(heard);
        Some(after(self.source.shard(), copied, self.target.shard()))
    }

    fn step(&self) -> Option<Unfinished> {
        let waits = self.there.is_none_or(|there| there.following.waits);
        if waits && self.target.names().is_leaving() {
            return None;
        }
        let (dir, source) = (self.dir(), self.source);
        let next = |has_room| {
            source.names().next_step(source.chunks(), &dir, self.copying, self.there, has_room)
        };
        let mut found = next(true)?;
        let is_full = match &found {
            Next::Step { changes, .. } => self.target.names().check_step(changes).is_err(),
            Next::TooDeep {} => false,
        };
        // What goes needs no room, and others may wait for it.
        if is_full && let Some(gone) = next(false) {
            found = gone;
        }
        Some(match found {
            Next::Step { through, changes, reach } => {
                let (stamp, step) = (self.stamp, self.steps);
                let step = Command::Step { dir, stamp, step, through, changes, reach };
                after(self.target.shard(), step, source.shard())
            }
            Next::TooDeep {} => self.copied_no_more(),
        })
    }

    fn dir(&self) -> String {
        format!("/{}", self.name)
    }

    fn copied(&self, through: u64) -> Command {
        Command::Copied { dir: self.dir(), copy: self.copying.at, through }
    }

    fn copied_no_more(&self) -> Unfinished {
        by_and_by(self.source.shard(), self.copied(u64::MAX))
    }
}

/// That a directory takes no changes, or takes them again.
pub(super) fn still(source: &Namespace, name: &str, copying: &Copying, still: bool) -> Unfinished {
    let command = Command::Still { dir: format!("/{name}"), copy: copying.at, still };
    by_and_by(source.shard(), command)
}
