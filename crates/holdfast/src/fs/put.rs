//! `fs put`: local files, trees and standard input into the namespace. Small files travel many at
//! a time, each in one round trip; large ones as streams. Directories get their times last.

use super::{Progress, Totals, window_bytes};
use holdfast_base::limits::PACKED_BYTES_MAX;
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, NewFile, Ticket};
use holdfast_wire::file::{Action, MTIME_NOW};
use std::collections::VecDeque;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Small files in flight at once, and their bytes.
const PUTS_OUTSTANDING_MAX: usize = 128;

/// Flags of `fs put`.
pub struct PutOptions {
    /// Directories with all that is below them.
    pub recursive: bool,
    /// Over files that are there.
    pub force: bool,
    /// Makes missing directories above the target.
    pub parents: bool,
    /// Where bytes go; what the directory says, if there is none.
    pub class: Option<StorageClass>,
}

struct Putter<'a> {
    client: &'a mut Client,
    options: &'a PutOptions,
    outstanding: VecDeque<(Ticket, u64)>,
    outstanding_bytes: u64,
    /// Modes and times of directories, set when everything below them is there.
    directories: Vec<(String, i64)>,
    totals: Totals,
    progress: Progress,
}

/// Copies `sources` to `target`, as cp does: into it if it is a directory, else as it.
pub fn put(
    client: &mut Client,
    sources: &[String],
    target: &str,
    options: &PutOptions,
) -> Result<Totals> {
    holdfast_base::path::check(target)?;
    let into = match client.stat(target) {
        Ok(info) => info.kind.is_container(),
        Err(e) if e.kind == Kind::NotFound => false,
        Err(e) => return Err(e),
    };
    let into_directory = into || target.ends_with('/');
    if sources.len() > 1 && !into_directory {
        return Err(Error::invalid(format!(
            "put {} files to `{target}`: the target is not a directory; make it with `holdfast fs mkdir {target}`",
            sources.len()
        )));
    }
    let mut putter = Putter {
        client,
        options,
        outstanding: VecDeque::new(),
        outstanding_bytes: 0,
        directories: Vec::new(),
        totals: Totals::default(),
        progress: Progress::new("put", measure(sources, options.recursive)),
    };
    for source in sources {
        let to = if into_directory && source != "-" {
            let name = Path::new(source).canonicalize().ok();
            let name = name.as_deref().and_then(Path::file_name).unwrap_or_default();
            join(target, utf8(Path::new(name))?)
        } else {
            target.to_owned()
        };
        putter.put_one(source, &to)?;
    }
    putter.finish()
}

/// Bytes and files that a progress bar counts up to.
fn measure(sources: &[String], recursive: bool) -> u64 {
    fn walk(path: &Path, recursive: bool) -> u64 {
        let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
        if metadata.is_dir() && recursive {
            let Ok(entries) = fs::read_dir(path) else { return 0 };
            return entries.flatten().map(|entry| walk(&entry.path(), true)).sum();
        }
        if metadata.is_file() { metadata.len() } else { 0 }
    }
    if !Progress::wanted() {
        return 0;
    }
    sources.iter().map(|source| walk(Path::new(source), recursive)).sum()
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Error::invalid(format!("put `{}`: the name is not UTF-8; rename it first", path.display()))
    })
}

/// A path of the namespace below another one.
pub fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

fn local(doing: &str, path: &Path, e: std::io::Error) -> Error {
    Error::from(e).context(format_args!("{doing} local `{}`", path.display()))
}

impl Putter<'_> {
    fn put_one(&mut self, source: &str, to: &str) -> Result<()> {
        if source == "-" {
            let new = self.new_file(0o644, MTIME_NOW);
            return self.put_stream(std::io::stdin().lock(), to, &new, None);
        }
        let path = Path::new(source);
        // What is named on the command line is followed, as cp does; what lies below is not.
        let metadata = fs::metadata(path).map_err(|e| local("put", path, e))?;
        if metadata.is_dir() {
            if !self.options.recursive {
                return Err(Error::invalid(format!(
                    "put `{source}`: it is a directory; add -r to copy it with everything below"
                )));
            }
            return self.put_directory(path, &metadata, to);
        }
        self.put_file(path, &metadata, to)
    }

    fn new_file(&self, mode: u16, mtime_ns: i64) -> NewFile {
        NewFile {
            mode,
            mtime_ns,
            class: self.options.class,
            replace: self.options.force,
            parents: self.options.parents,
            ..NewFile::default()
        }
    }

    fn put_directory(&mut self, path: &Path, metadata: &Metadata, to: &str) -> Result<()> {
        let new = NewFile {
            kind: NodeKind::Directory,
            ..self.new_file((metadata.mode() & 0o7777) as u16, mtime_ns(metadata))
        };
        match self.client.make_dir(to, &new) {
            Ok(()) => {}
            // Copying into a tree that is there merges, as cp does.
            Err(e) if e.kind == Kind::Exists && self.client.stat(to)?.kind.is_container() => {}
            Err(e) => return Err(e),
        }
        self.directories.push((to.to_owned(), mtime_ns(metadata)));
        self.totals.directories += 1;
        let entries = fs::read_dir(path).map_err(|e| local("list", path, e))?;
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.map_err(|e| local("list", path, e))?.file_name());
        }
        names.sort();
        for name in names {
            let child = path.join(&name);
            let to = join(to, utf8(Path::new(&name))?);
            let metadata = fs::symlink_metadata(&child).map_err(|e| local("put", &child, e))?;
            if metadata.is_dir() {
                self.put_directory(&child, &metadata, &to)?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(&child).map_err(|e| local("read link", &child, e))?;
                if self.options.force && self.client.stat(&to).is_ok() {
                    self.client.delete(&to, false)?;
                }
                self.client.symlink(&to, utf8(&target)?, mtime_ns(&metadata))?;
                self.totals.links += 1;
            } else if metadata.is_file() {
                self.put_file(&child, &metadata, &to)?;
            } else {
                self.totals
                    .skip(format!("`{}` is neither file, directory nor link", child.display()));
            }
        }
        Ok(())
    }

    fn put_file(&mut self, path: &Path, metadata: &Metadata, to: &str) -> Result<()> {
        let new = self.new_file((metadata.mode() & 0o7777) as u16, mtime_ns(metadata));
        let file = File::open(path).map_err(|e| local("open", path, e))?;
        // Files that say 0 bytes may still have some (/proc); the stream finds out.
        if metadata.len() == 0 || metadata.len() > PACKED_BYTES_MAX.min(window_bytes()) {
            return self.put_stream(file, to, &new, Some((path, metadata.len())));
        }
        let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
        file.take(PACKED_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| local("read", path, e))?;
        while self.outstanding.len() >= PUTS_OUTSTANDING_MAX
            || self.outstanding_bytes + bytes.len() as u64 > window_bytes()
        {
            if self.outstanding.is_empty() {
                break;
            }
            self.settle_one()?;
        }
        let ticket = self.client.submit_put(to, &bytes, &new)?;
        self.outstanding_bytes += bytes.len() as u64;
        self.outstanding.push_back((ticket, bytes.len() as u64));
        Ok(())
    }

    fn put_stream(
        &mut self,
        mut source: impl Read,
        to: &str,
        new: &NewFile,
        local_file: Option<(&Path, u64)>,
    ) -> Result<()> {
        while !self.outstanding.is_empty() {
            self.settle_one()?;
        }
        // The end of a file whose length is known is packed.
        let mut writer = match local_file {
            Some((_, bytes)) if bytes > 0 => self.client.create_sized(to, new, bytes)?,
            _ => self.client.create(to, new)?,
        };
        let mut buffer = vec![0; 512 << 10];
        let name = local_file.map_or(Path::new("standard input"), |(path, _)| path);
        loop {
            let n = source.read(&mut buffer).map_err(|e| local("read", name, e))?;
            if n == 0 {
                break;
            }
            writer.write(&buffer[..n])?;
            self.totals.bytes += n as u64;
            self.progress.add(n as u64);
        }
        writer.close()?;
        self.totals.files += 1;
        Ok(())
    }

    fn settle_one(&mut self) -> Result<()> {
        if let Some((ticket, bytes)) = self.outstanding.pop_front() {
            self.outstanding_bytes -= bytes;
            self.client.wait(ticket)?;
            self.totals.files += 1;
            self.totals.bytes += bytes;
            self.progress.add(bytes);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Totals> {
        while !self.outstanding.is_empty() {
            self.settle_one()?;
        }
        while let Some((path, mtime_ns)) = self.directories.pop() {
            self.client.act(Action::SetAttributes {
                path,
                mode: None,
                mtime_ns: Some(mtime_ns),
                metadata: None,
            })?;
        }
        self.progress.finish();
        Ok(self.totals)
    }
}
