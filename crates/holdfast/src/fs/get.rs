//! `fs get`: files and trees out of the namespace, with modes, times and links. A file appears
//! under its name only when it is whole: it is written beside it and renamed.

use super::put::join;
use super::{Progress, Totals};
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output;
use holdfast_wire::file::FileInfo;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Flags of `fs get`.
pub struct GetOptions {
    /// Directories with all that is below them.
    pub recursive: bool,
    /// Over local files that are there.
    pub force: bool,
}

struct Getter<'a> {
    client: &'a mut Client,
    options: &'a GetOptions,
    totals: Totals,
    progress: Progress,
}

/// Copies `sources` to the local `target`, as cp does: into it if it is a directory, else as it;
/// `-` is standard output.
pub fn get(
    client: &mut Client,
    sources: &[String],
    target: &str,
    options: &GetOptions,
) -> Result<Totals> {
    let into_directory = target != "-" && Path::new(target).is_dir();
    if sources.len() > 1 && !into_directory && target != "-" {
        return Err(Error::invalid(format!(
            "get {} files to `{target}`: the target is not a directory; make it first",
            sources.len()
        )));
    }
    let mut expected = 0;
    if Progress::wanted() {
        for source in sources {
            expected += client.usage(source)?.bytes;
        }
    }
    let mut getter = Getter {
        client,
        options,
        totals: Totals::default(),
        progress: Progress::new("get", expected),
    };
    for source in sources {
        if target == "-" {
            getter.copy_out(source, &mut output::stdout(), "standard output")?;
            continue;
        }
        let to = match holdfast_base::path::split(source) {
            Some((_, name)) if into_directory => Path::new(target).join(name),
            _ => PathBuf::from(target),
        };
        let info = getter.client.stat_followed(source)?;
        getter.get_one(source, &info, &to)?;
    }
    getter.progress.finish();
    Ok(getter.totals)
}

fn local(doing: &str, path: &Path, e: std::io::Error) -> Error {
    Error::from(e).context(format_args!("{doing} local `{}`", path.display()))
}

impl Getter<'_> {
    fn get_one(&mut self, source: &str, info: &FileInfo, to: &Path) -> Result<()> {
        match info.kind {
            NodeKind::Directory | NodeKind::Table => self.get_directory(source, info, to),
            NodeKind::Symlink => self.get_link(info, to),
            // A multifile is read as one stream.
            NodeKind::File | NodeKind::KeyValue | NodeKind::MultiFile => {
                self.get_file(source, info, to)
            }
        }
    }

    fn get_directory(&mut self, source: &str, info: &FileInfo, to: &Path) -> Result<()> {
        if !self.options.recursive {
            return Err(Error::invalid(format!(
                "get `{source}`: it is a directory; add -r to copy it with everything below"
            )));
        }
        if !to.is_dir() {
            fs::create_dir(to).map_err(|e| local("make", to, e))?;
        }
        self.totals.directories += 1;
        let mut after = String::new();
        loop {
            let page = self.client.list(source, &after)?;
            for entry in &page.entries {
                self.get_one(&join(source, &entry.name), &entry.info, &to.join(&entry.name))?;
            }
            match page.entries.last() {
                Some(last) if page.more => after = last.name.clone(),
                _ => break,
            }
        }
        let directory = File::open(to).map_err(|e| local("open", to, e))?;
        set_attributes(&directory, info, to)
    }

    fn get_link(&mut self, info: &FileInfo, to: &Path) -> Result<()> {
        if self.options.force && to.symlink_metadata().is_ok() {
            fs::remove_file(to).map_err(|e| local("replace", to, e))?;
        }
        std::os::unix::fs::symlink(&info.target, to).map_err(|e| local("make link", to, e))?;
        holdfast_env::local::set_link_mtime(to, info.mtime_ns)
            .map_err(|e| local("set the time of", to, e))?;
        self.totals.links += 1;
        Ok(())
    }

    fn get_file(&mut self, source: &str, info: &FileInfo, to: &Path) -> Result<()> {
        if !self.options.force && to.symlink_metadata().is_ok() {
            return Err(Error::exists(format!(
                "get `{source}`: local `{}` exists; add -f to replace it",
                to.display()
            )));
        }
        // Short, because the target's own name may be as long as names get.
        let part = to.with_file_name(format!(".holdfast-part-{}", std::process::id()));
        let copied = File::create(&part).map_err(|e| local("make", to, e)).and_then(|mut file| {
            self.copy_out(source, &mut file, &to.display().to_string())?;
            set_attributes(&file, info, to)?;
            fs::rename(&part, to).map_err(|e| local("name", to, e))
        });
        if copied.is_err() {
            let _ = fs::remove_file(&part);
        }
        copied?;
        self.totals.files += 1;
        Ok(())
    }

    fn copy_out(&mut self, source: &str, out: &mut dyn Write, name: &str) -> Result<()> {
        let failed = |e: std::io::Error| Error::from(e).context(format_args!("write `{name}`"));
        let mut reader = self.client.open(source)?;
        loop {
            let bytes = reader.next_bytes()?;
            if bytes.is_empty() {
                return out.flush().map_err(failed);
            }
            out.write_all(bytes).map_err(failed)?;
            let n = bytes.len();
            reader.consume(n);
            self.totals.bytes += n as u64;
            self.progress.add(n as u64);
        }
    }
}

fn set_attributes(file: &File, info: &FileInfo, path: &Path) -> Result<()> {
    file.set_permissions(Permissions::from_mode(info.mode as u32))
        .map_err(|e| local("set the mode of", path, e))?;
    let nanoseconds = Duration::from_nanos(info.mtime_ns.unsigned_abs());
    let time = if info.mtime_ns < 0 { UNIX_EPOCH - nanoseconds } else { UNIX_EPOCH + nanoseconds };
    file.set_modified(time).map_err(|e| local("set the time of", path, e))
}
