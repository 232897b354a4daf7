//! A directory that is copied to another shard while it changes: what each entry changes in it is noted, and the
//! entries of the copy ask the borders whether their turn has come, and have the names do it.

use super::{Namespace, check_dir, misrouted};
use crate::borders::{is_top, top};
use crate::moves::{Arriving, Change, Copying, Following, Frozen, SUBTREE_MAX, Stamp};
use crate::names::Taken;
use crate::{Command, Outcome};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result, path};
use holdfast_env::planted;

/// What a command changes in a directory that is being copied.
enum Touch<'a> {
    /// These prefixes of a path, by how many components they have, and it.
    Set {
        path: &'a str,
        from: usize,
    },
    /// All that is there afterwards is new.
    SetAll {
        path: &'a str,
    },
    Drop {
        path: &'a str,
    },
    /// The directory itself goes, or is another one.
    End {
        name: &'a str,
    },
}

/// The part of a path that is below its first component.
fn below(path: &str) -> String {
    path::components(path).skip(1).collect::<Vec<_>>().join("/")
}

impl Namespace {
    /// Carries a command out, and notes what it changes in directories that are being copied.
    pub(super) fn carry_out_noted(&mut self, index: Index, command: &Command) -> Result<Outcome> {
        if self.borders.moves().copies.copying.is_empty() {
            return self.carry_out(index, command);
        }
        let touches = self.touches(command);
        let outcome = self.carry_out(index, command)?;
        for touch in touches {
            self.note(&touch);
        }
        Ok(outcome)
    }

    /// What a command would change, seen from in front of it.
    fn touches<'a>(&self, command: &'a Command) -> Vec<Touch<'a>> {
        use Command::*;
        match command {
            MakeDir { path, .. } | Put { path, .. } => {
                // Directories above may be made with it.
                let there = self.names.depth_of_existing(path);
                let whole = path::components(path).count();
                vec![Touch::Set { path, from: (there + 1).min(whole) }]
            }
            Symlink { path, .. }
            | Close { path, .. }
            | Salvage { path, .. }
            | SetAttributes { path, .. }
            | SetClass { path, .. } => {
                vec![Touch::Set { path, from: path::components(path).count() }]
            }
            Delete { path, .. } => vec![gone(path)],
            Rename { from, to, .. } if is_top(to) => vec![gone(from), gone(to)],
            Rename { from, to, .. } => vec![gone(from), Touch::SetAll { path: to }],
            Forward { dir, .. } => vec![Touch::End { name: top(dir) }],
            // Where bytes are, of names that stay as they are; a file that begins has none.
            Begin { .. } | BeginRewrite { .. } | Rewrite { .. } | Abandon { .. } => Vec::new(),
            AllocateChunk { .. } | SealChunk { .. } | CloseChunk { .. } | AdoptChunk { .. } => {
                Vec::new()
            }
            AllocateCopies { .. } | AddReplica { .. } | DropReplica { .. } => Vec::new(),
            SwitchReplicas { .. } | SwitchGeneration { .. } | RaiseCopies { .. } => Vec::new(),
            Reclaim { .. } | Unlink { .. } | Release { .. } | FreeChunk { .. } => Vec::new(),
            // Moves themselves, and what others know of them.
            AddShard { .. } | Own { .. } | Behind { .. } | Freeze { .. } => Vec::new(),
            Take { .. } | Depart { .. } | Arrive { .. } | Discard { .. } => Vec::new(),
            Forget { .. } | LetGo { .. } | LetGone { .. } => Vec::new(),
            Copy { .. } | Step { .. } | Copied { .. } | Still { .. } | Go { .. } => Vec::new(),
        }
    }

    fn note(&mut self, touch: &Touch<'_>) {
        let (Touch::Set { path, .. } | Touch::SetAll { path } | Touch::Drop { path }) = touch
        else {
            let Touch::End { name } = touch else { return };
            return self.borders.moves_mut().undo(name);
        };
        let all = match touch {
            // Looked for only where it is wanted.
            Touch::SetAll { path } if self.is_copying(path) => {
                self.names.paths_below(path, SUBTREE_MAX.size())
            }
            _ => None,
        };
        let Some(copying) = self.copying_mut(path) else { return };
        match touch {
            Touch::Set { path, from } => {
                let whole = path::components(path).count();
                // The directory's own attributes go with it.
                for count in (*from).max(2)..=whole {
                    let parts: Vec<&str> = path::components(path).take(count).skip(1).collect();
                    copying.note(Change::Set { path: parts.join("/") });
                }
            }
            Touch::SetAll { .. } => match all {
                Some(paths) => {
                    paths.into_iter().for_each(|path| copying.note(Change::Set { path }))
                }
                None => {
                    SUBTREE_MAX.cross();
                    copying.spoil();
                }
            },
            Touch::Drop { path } => copying.note(Change::Drop { path: below(path) }),
            Touch::End { .. } => {}
        }
    }

    fn is_copying(&self, path: &str) -> bool {
        self.borders.moves().copies.copying.contains_key(top(path))
    }

    fn copying_mut(&mut self, path: &str) -> Option<&mut Copying> {
        self.borders.moves_mut().copies.copying.get_mut(top(path))
    }

    pub(super) fn copy(&mut self, index: Index, dir: &str, to: u16) -> Result<Outcome> {
        check_dir(dir)?;
        self.borders.check_kept(dir)?;
        if to != self.shard() {
            self.names.still_dir(dir)?;
        }
        self.borders.copy(index, top(dir), to)?;
        Ok(Outcome::Done {})
    }

    /// What came before a step whose turn it is; `None` for one that is late.
    pub(super) fn step_turn(
        &self,
        dir: &str,
        stamp: Stamp,
        step: u32,
    ) -> Result<Option<Option<Arriving>>> {
        let turn = self.turn_of(dir, stamp, (step, true))?;
        let name = top(dir);
        match turn {
            // It has its place among those that were given from here on: what has left must find it.
            Some(None) => {
                self.borders.check_gets_more(name)?;
                self.names.check_room_for(1)?;
            }
            Some(Some(_)) => {
                let waits = self.borders.moves().following(name).is_some_and(|f| f.waits);
                if waits && self.names.is_leaving() {
                    return Err(Error::retry(
                        "names that have left are not forgotten yet: ask again",
                    ));
                }
            }
            None => {}
        }
        Ok(turn)
    }

    pub(super) fn step(&mut self, command: &Command) -> Result<Outcome> {
        let Command::Step { dir, stamp, step, through, changes, reach } = command else {
            return Err(misrouted());
        };
        let Some(before) = self.step_turn(dir, *stamp, *step)? else {
            return Ok(Outcome::Done {});
        };
        self.names.check_step(changes)?;
        let known = self.borders.moves().following(top(dir));
        let was_broken = known.is_some_and(|following| following.is_broken);
        let place = before.map(|arriving| arriving.root);
        let Taken { root, fits, leaves } = self.names.take_step(&mut self.chunks, place, changes);
        let moves = self.borders.moves_mut();
        let arriving = Arriving { stamp: *stamp, parts: step + 1, root, last: root };
        moves.arriving.insert(top(dir).to_owned(), arriving);
        let (heard, reach, is_broken) = (*through, reach.clone(), was_broken || !fits);
        let following = Following { heard, reach, is_broken, waits: leaves };
        moves.copies.following.insert(top(dir).to_owned(), following);
        Ok(Outcome::Done {})
    }

    /// Of a copy that this entry began, and which goes on.
    fn copying_by(&mut self, dir: &str, copy: Index) -> Option<&mut Copying> {
        self.copying_mut(dir).filter(|copying| copying.at == copy)
    }

    pub(super) fn copied(&mut self, dir: &str, copy: Index, through: u64) -> Result<Outcome> {
        check_dir(dir)?;
        // What is still is not spoilt any more: it may have gone by what it says.
        let is_still = self.borders.moves().frozen.contains_key(top(dir));
        match self.copying_by(dir, copy) {
            Some(copying) if through < u64::MAX || !is_still => copying.tell(through)?,
            // It is late.
            _ => {}
        }
        Ok(Outcome::Done {})
    }

    pub(super) fn still(
        &mut self,
        index: Index,
        dir: &str,
        copy: Index,
        still: bool,
    ) -> Result<Outcome> {
        check_dir(dir)?;
        let name = top(dir);
        let frozen = self.borders.moves().frozen.get(name).copied();
        let copied = self.copying_by(dir, copy).map(|copying| (copying.to, copying.is_spoilt));
        let moves = match (still, frozen, copied) {
            (true, None, Some(_)) => {
                self.names.still_dir(dir)?;
                self.borders.moves_mut()
            }
            (false, Some(Frozen { at, .. }), _) if at == copy => self.borders.moves_mut(),
            // It is late.
            _ => return Ok(Outcome::Done {}),
        };
        match (still, copied, frozen) {
            // What was copied is worth nothing: all of it goes in parts, by this freeze.
            (true, Some((to, true)), _) => {
                moves.copies.copying.remove(name);
                moves.frozen.insert(name.to_owned(), Frozen { to, at: index });
            }
            (true, Some((to, false)), _) => {
                moves.frozen.insert(name.to_owned(), Frozen { to, at: copy });
            }
            (false, copied, Some(Frozen { to, .. })) => {
                moves.frozen.remove(name);
                if copied.is_none() {
                    moves.copies.copying.insert(name.to_owned(), Copying::new(to, index));
                }
            }
            _ => {}
        }
        Ok(Outcome::Done {})
    }

    pub(super) fn go(
        &mut self,
        dir: &str,
        copy: Index,
        steps: u32,
        changes: u64,
    ) -> Result<Outcome> {
        check_dir(dir)?;
        let name = top(dir);
        let moves = self.borders.moves();
        if moves.left.get(name).is_some_and(|left| left.freeze >= copy) {
            return Ok(Outcome::Done {});
        }
        let copying = moves.copies.copying.get(name).filter(|copying| copying.at == copy);
        let is_still = moves.frozen.get(name).is_some_and(|frozen| frozen.at == copy);
        let is_all = |copying: &&Copying| {
            copying.total() == changes || planted!("cluster.goes-with-changes-left")
        };
        let Some(to) = copying.filter(is_all).filter(|_| is_still).map(|copying| copying.to) else {
            let why = format!("`/{name}` is not still with {changes} changes: look again");
            return Err(Error::retry(why));
        };
        let attributes = self.names.still_dir(dir)?;
        let is_root = self.shard() == 0;
        self.names.depart(&mut self.chunks, dir, &attributes, is_root)?;
        self.borders.moves_mut().copies.copying.remove(name);
        self.borders.depart(name, (copy, steps), to, attributes);
        Ok(Outcome::Done {})
    }
}

/// Something goes from its place.
fn gone(path: &str) -> Touch<'_> {
    match is_top(path) {
        true => Touch::End { name: top(path) },
        false => Touch::Drop { path },
    }
}
