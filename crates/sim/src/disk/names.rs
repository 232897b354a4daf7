//! Names of the simulated disk: what is visible, what is durable, and the changes between the
//! two. Never looks into a file. Called by [`super::SimDisk`] under its lock.

use super::cut::Cut;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Dir,
    File(u64),
}

/// One change of names that is kept whole or lost whole: a rename has both parts.
#[derive(Clone)]
struct Change {
    /// The directory whose sync makes it durable; a rename's is that of its target.
    dir: PathBuf,
    removes: Option<(PathBuf, Node)>,
    adds: Option<(PathBuf, Node)>,
    /// A directory that has another name, with what is in it.
    moves: Option<(PathBuf, PathBuf)>,
}

impl Change {
    fn apply(&self, map: &mut BTreeMap<PathBuf, Node>) {
        if let Some((from, to)) = &self.moves {
            let moved: Vec<_> = map.extract_if(.., |path, _| path.starts_with(from)).collect();
            map.extend(moved.into_iter().map(|(path, node)| (rerooted(&path, from, to), node)));
        }
        if let Some((path, node)) = &self.removes
            && map.get(path) == Some(node)
        {
            map.remove(path);
        }
        if let Some((path, node)) = &self.adds {
            if let Node::File(_) = node {
                // There are no hard links: when an earlier rename of this file was lost and this
                // one is kept, the file must not appear under both names.
                map.retain(|_, other| other != node);
            }
            map.insert(path.clone(), *node);
        }
    }
}

#[derive(Clone)]
pub(super) struct Names {
    visible: BTreeMap<PathBuf, Node>,
    durable: BTreeMap<PathBuf, Node>,
    pending: Vec<Change>,
}

fn error(kind: io::ErrorKind, path: &Path, why: &str) -> io::Error {
    io::Error::new(kind, format!("`{}` {why}", path.display()))
}

impl Names {
    /// Only the root.
    pub fn new() -> Names {
        let root = BTreeMap::from([(PathBuf::from("/"), Node::Dir)]);
        Names { visible: root.clone(), durable: root, pending: Vec::new() }
    }

    pub fn get(&self, path: &Path) -> Option<Node> {
        self.visible.get(path).copied()
    }

    pub fn file(&self, path: &Path) -> io::Result<u64> {
        match self.get(path) {
            Some(Node::File(id)) => Ok(id),
            Some(Node::Dir) => Err(error(io::ErrorKind::IsADirectory, path, "is a directory")),
            None => Err(self.absent(path)),
        }
    }

    pub fn check_dir(&self, path: &Path) -> io::Result<()> {
        match self.get(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => {
                Err(error(io::ErrorKind::NotADirectory, path, "is not a directory"))
            }
            None => Err(self.absent(path)),
        }
    }

    fn absent(&self, path: &Path) -> io::Error {
        let is_file = |dir: &Path| matches!(self.get(dir), Some(Node::File(_)));
        match path.ancestors().skip(1).find(|dir| is_file(dir)) {
            Some(file) => error(io::ErrorKind::NotADirectory, file, "is not a directory"),
            None => error(io::ErrorKind::NotFound, path, "does not exist"),
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.visible);
        self.pending.push(change);
    }

    pub fn create(&mut self, path: &Path, id: u64) -> io::Result<()> {
        let dir = parent(path)?;
        self.check_dir(dir)?;
        if self.get(path).is_some() {
            return Err(error(io::ErrorKind::AlreadyExists, path, "exists"));
        }
        let adds = Some((path.to_owned(), Node::File(id)));
        self.change(Change { dir: dir.to_owned(), removes: None, adds, moves: None });
        Ok(())
    }

    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        let id = self.file(path)?;
        let removes = Some((path.to_owned(), Node::File(id)));
        let dir = parent(path)?.to_owned();
        self.change(Change { dir, removes, adds: None, moves: None });
        Ok(())
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_dir(parent(from)?)?;
        let dir = parent(to)?;
        self.check_dir(dir)?;
        if self.get(from) == Some(Node::Dir) {
            return self.rename_dir(from, dir, to);
        }
        let node = Node::File(self.file(from)?);
        if self.get(to) == Some(Node::Dir) {
            return Err(match from.starts_with(to) {
                true => error(io::ErrorKind::DirectoryNotEmpty, to, "is not empty"),
                false => error(io::ErrorKind::IsADirectory, to, "is a directory"),
            });
        }
        if from == to {
            return Ok(());
        }
        let (removes, adds) = (Some((from.to_owned(), node)), Some((to.to_owned(), node)));
        self.change(Change { dir: dir.to_owned(), removes, adds, moves: None });
        Ok(())
    }

    fn rename_dir(&mut self, from: &Path, dir: &Path, to: &Path) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        if to.starts_with(from) {
            return Err(error(io::ErrorKind::InvalidInput, to, "is in what is renamed"));
        }
        if self.get(to).is_some() && !self.list(to)?.is_empty() {
            return Err(error(io::ErrorKind::DirectoryNotEmpty, to, "is not empty"));
        }
        // What happened in it and is not durable happened in what it is called now: it is lost where this
        // change is, though a machine may keep it.
        let moved = |path: &mut PathBuf| {
            if path.starts_with(from) {
                *path = rerooted(path, from, to);
            }
        };
        for change in self.pending.iter_mut().filter(|change| change.dir.starts_with(from)) {
            moved(&mut change.dir);
            let named = [&mut change.removes, &mut change.adds].into_iter().flatten();
            named.for_each(|(path, _)| moved(path));
            change.moves.iter_mut().for_each(|(from, to)| {
                moved(from);
                moved(to);
            });
        }
        let moves = Some((from.to_owned(), to.to_owned()));
        self.change(Change { dir: dir.to_owned(), removes: None, adds: None, moves });
        Ok(())
    }

    pub fn create_dir_all(&mut self, path: &Path, volatile: bool) -> io::Result<()> {
        let mut missing = Vec::new();
        for dir in path.ancestors() {
            match self.get(dir) {
                Some(Node::Dir) => break,
                Some(Node::File(_)) if dir == path => {
                    return Err(error(io::ErrorKind::AlreadyExists, path, "exists"));
                }
                Some(Node::File(_)) => return self.check_dir(dir),
                None => missing.push(dir),
            }
        }
        for dir in missing.into_iter().rev() {
            if volatile {
                let adds = Some((dir.to_owned(), Node::Dir));
                let dir = parent(dir)?.to_owned();
                self.change(Change { dir, removes: None, adds, moves: None });
            } else {
                self.visible.insert(dir.to_owned(), Node::Dir);
                self.durable.insert(dir.to_owned(), Node::Dir);
            }
        }
        Ok(())
    }

    /// Children of a directory, by name.
    pub fn list(&self, dir: &Path) -> io::Result<Vec<(String, Node)>> {
        self.check_dir(dir)?;
        let below = self.visible.range(dir.to_owned()..).skip(1);
        Ok(below
            .take_while(|(path, _)| path.starts_with(dir))
            .filter(|(path, _)| path.parent() == Some(dir))
            .filter_map(|(path, node)| {
                Some((path.file_name()?.to_string_lossy().into_owned(), *node))
            })
            .collect())
    }

    /// Makes the changes in `dir` durable.
    pub fn sync_dir(&mut self, dir: &Path) {
        for change in self.pending.extract_if(.., |change| change.dir == dir) {
            change.apply(&mut self.durable);
        }
    }

    pub fn files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.visible.iter().filter_map(|(path, node)| match node {
            Node::File(id) => Some((path.as_path(), *id)),
            Node::Dir => None,
        })
    }

    /// The names after a power cut: every pending change is kept or lost on its own.
    pub fn survive(&self, cut: &Cut) -> Names {
        let mut kept = self.durable.clone();
        for change in &self.pending {
            if cut.keeps() {
                change.apply(&mut kept);
            }
        }
        // What lies in a directory that was lost is lost with it.
        let dirs = kept.clone();
        kept.retain(|path, _| path.ancestors().all(|dir| dirs.contains_key(dir)));
        Names { visible: kept.clone(), durable: kept, pending: Vec::new() }
    }
}

fn rerooted(path: &Path, from: &Path, to: &Path) -> PathBuf {
    let below = path.strip_prefix(from).expect("it lies there");
    // No path ends in a separator: paths are compared.
    if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) }
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| error(io::ErrorKind::InvalidInput, path, "has no directory"))
}
