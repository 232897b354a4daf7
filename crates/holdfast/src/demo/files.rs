//! The demonstration's files: found below a directory, stored through every node, read while the
//! cluster is repaired, and compared with their sources in the end.

use holdfast_base::limits::PACKED_BYTES_MAX;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, NewFile};
use holdfast_command::LocalCluster;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// More would take longer to store than to watch.
const FILES_MAX: usize = 20_000;

#[derive(Clone, Debug)]
struct File {
    local: PathBuf,
    path: String,
    bytes: u64,
}

/// The files that are stored, and where they came from.
pub struct Source {
    directory: PathBuf,
    files: Arc<Vec<File>>,
}

/// What was read while somebody watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Read {
    /// Read so far; files that were read twice count twice.
    pub files: u64,
    /// The longest that one read took.
    pub longest: Duration,
}

impl Source {
    /// Regular files below `directory`, in the order of their names, up to so many bytes.
    pub fn find(directory: Option<&Path>, bytes_max: u64) -> Result<Source> {
        let usual = Path::new("/usr/share/doc");
        let directory = match directory {
            Some(named) => named.to_path_buf(),
            None if usual.is_dir() => usual.to_path_buf(),
            None => PathBuf::from("."),
        };
        let doing = |e: std::io::Error| {
            Error::from(e).context(format_args!("list the files of `{}`", directory.display()))
        };
        let mut files = Vec::new();
        let mut left = bytes_max;
        let mut directories = vec![directory.clone()];
        while let Some(next) = directories.pop() {
            let mut entries = std::fs::read_dir(&next)
                .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
                .map_err(doing)?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let kind = entry.file_type().map_err(doing)?;
                let local = entry.path();
                // What has no name in UTF-8 could not be named below.
                let below = local.strip_prefix(&directory).ok().and_then(Path::to_str);
                let Some(path) = below.map(|below| format!("/demo/{below}")) else { continue };
                if kind.is_dir() {
                    directories.push(local);
                } else if kind.is_file() && std::fs::File::open(&local).is_ok() {
                    let bytes = entry.metadata().map_err(doing)?.len();
                    if bytes <= left && files.len() < FILES_MAX {
                        left -= bytes;
                        files.push(File { local, path, bytes });
                    }
                }
            }
        }
        if files.is_empty() {
            return Err(Error::not_found(format!(
                "find files below `{}`: there are none of at most {bytes_max} bytes; name another \
                 directory with --files",
                directory.display()
            )));
        }
        Ok(Source { directory, files: Arc::new(files) })
    }

    /// The local directory below which they were found.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Number of files; at least one.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Stores every file, some through each node.
    pub fn put(&self, cluster: &LocalCluster) -> Result<Duration> {
        self.on_every_node(cluster, put)
    }

    /// Reads every file, some through each node that is left, and compares it.
    pub fn verify(&self, cluster: &LocalCluster) -> Result<Duration> {
        self.on_every_node(cluster, compare)
    }

    fn on_every_node(
        &self,
        cluster: &LocalCluster,
        work: impl Fn(&mut Client, &File) -> Result<()> + Sync,
    ) -> Result<Duration> {
        let began = Instant::now();
        let nodes = super::NODES;
        std::thread::scope(|scope| {
            let part = |i: usize| {
                let work = &work;
                move || -> Result<()> {
                    // A node that is gone hands its client on to the next.
                    let mut client = (i..i + nodes)
                        .find_map(|at| cluster.client(1 + at % nodes).ok())
                        .ok_or_else(|| Error::retry("reach the cluster: no node answers"))?;
                    self.files.iter().skip(i).step_by(nodes).try_for_each(|f| work(&mut client, f))
                }
            };
            let parts: Vec<_> = (0..nodes).map(|i| scope.spawn(part(i))).collect();
            let gone = || Error::bug("work on files: a thread panicked");
            parts.into_iter().try_for_each(|part| part.join().unwrap_or_else(|_| Err(gone())))
        })?;
        Ok(began.elapsed())
    }
}

fn read_local(file: &File) -> Result<Vec<u8>> {
    std::fs::read(&file.local)
        .map_err(|e| Error::from(e).context(format_args!("read `{}`", file.local.display())))
}

fn put(client: &mut Client, file: &File) -> Result<()> {
    let bytes = read_local(file)?;
    let new = NewFile { parents: true, ..NewFile::default() };
    if bytes.len() as u64 <= PACKED_BYTES_MAX {
        client.put(&file.path, &bytes, &new)?;
        return Ok(());
    }
    let mut writer = client.create(&file.path, &new)?;
    writer.write(&bytes)?;
    writer.close()?;
    Ok(())
}

fn compare(client: &mut Client, file: &File) -> Result<()> {
    if client.get(&file.path)? == read_local(file)? {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "compare `{}` with `{}`: they differ; did the source change meanwhile?",
        file.path,
        file.local.display()
    )))
}

/// Somebody who reads one file after another, and compares it.
pub struct Reading {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<Read>>,
}

impl Reading {
    /// Reads in a thread of its own, through node 1, until [`Reading::stop`].
    pub fn start(source: &Source, cluster: &LocalCluster) -> Result<Reading> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, files) = (stop.clone(), source.files.clone());
        let mut client = cluster.client(1)?;
        let thread = std::thread::spawn(move || {
            let mut read = Read::default();
            for file in files.iter().cycle() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                compare(&mut client, file)?;
                read.files += 1;
                read.longest = read.longest.max(began.elapsed());
            }
            Ok(read)
        });
        Ok(Reading { stop, thread })
    }

    /// What was read; the error if a read failed or compared unequal.
    pub fn stop(self) -> Result<Read> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(Error::bug("read files: the thread panicked")))
    }
}
