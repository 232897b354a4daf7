//! `holdfast fs`: files, by hand. The local side is the user's own file system, so these modules
//! use the standard library's calls for it.
#![allow(clippy::disallowed_methods, reason = "works on the user's files, not on Holdfast's")]

mod get;
mod put;
mod show;

use crate::cli::Fs;
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::text::shown;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, NewFile};
use holdfast_command::output::{self, Output, aside};
use holdfast_wire::file::{Action, MTIME_NOW};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};

/// What a copy did.
#[derive(Debug, Default)]
pub struct Totals {
    /// Regular ones.
    pub files: u64,
    /// Made, or there already.
    pub directories: u64,
    /// Symbolic ones, copied as such.
    pub links: u64,
    /// Of the files' contents.
    pub bytes: u64,
    /// What could not be copied, and why.
    pub skipped: Vec<String>,
}

impl Totals {
    fn skip(&mut self, why: String) {
        aside(format_args!("skipped: {}", shown(&why)));
        self.skipped.push(why);
    }
}

/// Bytes of small files that are in flight at once.
fn window_bytes() -> u64 {
    holdfast_base::limits::CONNECTION_BYTES_MAX / 4
}

/// A bar with an estimate, where standard error is a terminal.
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Whether somebody sees standard error.
    pub fn wanted() -> bool {
        std::io::stderr().is_terminal()
    }

    /// A bar of so many bytes; none where nobody sees it, or there is nothing to copy.
    pub fn new(what: &'static str, bytes: u64) -> Progress {
        if !Progress::wanted() || bytes == 0 {
            return Progress(None);
        }
        let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
        let bar = ProgressBar::new(bytes).with_message(what);
        Progress(ProgressStyle::with_template(style).ok().map(|style| bar.with_style(style)))
    }

    /// So many bytes more are copied.
    pub fn add(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes);
        }
    }

    /// Takes the bar off the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn class(text: &Option<String>) -> Result<Option<StorageClass>> {
    text.as_deref().map(|text| text.parse().map_err(Error::invalid)).transpose()
}

fn kind(text: &str) -> Result<NodeKind> {
    match text {
        "directory" => Ok(NodeKind::Directory),
        "multifile" => Ok(NodeKind::MultiFile),
        "table" => Ok(NodeKind::Table),
        _ => Err(Error::invalid(format!(
            "make a `{text}`: choose `directory`, `multifile` or `table`"
        ))),
    }
}

/// Carries out one `fs` command.
pub fn run(client: &mut Client, command: &Fs, out: &mut Output) -> Result<()> {
    match command {
        Fs::Put { recursive, force, parents, class: text, paths } => {
            let options = put::PutOptions {
                recursive: *recursive,
                force: *force,
                parents: *parents,
                class: class(text)?,
            };
            let (target, sources) = paths.split_last().expect("clap asks for two at least");
            report(put::put(client, sources, target, &options)?, "put", out)
        }
        Fs::Get { recursive, force, paths } => {
            let options = get::GetOptions { recursive: *recursive, force: *force };
            let (target, sources) = paths.split_last().expect("clap asks for two at least");
            let totals = get::get(client, sources, target, &options)?;
            if target == "-" { Ok(()) } else { report(totals, "got", out) }
        }
        Fs::Ls { path, long, recursive } => show::ls(client, path, *long, *recursive, out),
        Fs::Cat { paths } => paths.iter().try_for_each(|path| cat(client, path)),
        Fs::Stat { paths } => paths.iter().try_for_each(|path| show::stat(client, path, out)),
        Fs::Mkdir { parents, class: text, kind: kind_text, paths } => {
            let new = NewFile {
                kind: kind(kind_text)?,
                mode: 0o755,
                class: class(text)?,
                parents: *parents,
                ..NewFile::default()
            };
            paths.iter().try_for_each(|path| client.make_dir(path, &new))
        }
        Fs::Mv { force, from, to } => {
            // As mv does: into a directory that is there.
            let into = match client.stat(to) {
                Ok(info) => info.kind == NodeKind::Directory,
                // Whether it is one is not known now.
                Err(e) if e.kind == Kind::Retry => return Err(e),
                Err(_) => false,
            };
            let to = match holdfast_base::path::split(from) {
                Some((_, name)) if into => put::join(to, name),
                _ => to.clone(),
            };
            client.rename(from, &to, *force)
        }
        Fs::Rm { recursive, force, paths } => {
            paths.iter().try_for_each(|path| match client.delete(path, *recursive) {
                Err(e) if *force && e.kind == Kind::NotFound => Ok(()),
                other => other,
            })
        }
        Fs::Du { path } => show::du(client, path, out),
        Fs::Ln { target, path } => client.symlink(path, target, MTIME_NOW),
        Fs::SetClass { class: text, path } => {
            let class = text.parse().map_err(Error::invalid)?;
            client.act(Action::SetClass { path: path.clone(), class })
        }
        Fs::Unclosed { discard } if discard.is_empty() => show::unclosed(client, out),
        Fs::Unclosed { discard } => discard.iter().try_for_each(|file| {
            let file = holdfast_base::ids::FileId(*file);
            client.act(Action::Abandon { file }).map_err(|e| match e.kind {
                Kind::NotFound => Error::not_found(format!(
                    "discard file `{file}`: no file with this number is being written; see `holdfast fs unclosed`"
                )),
                _ => e,
            })
        }),
        Fs::Salvage { file, path } => {
            let file = holdfast_base::ids::FileId(*file);
            client.act(Action::Salvage { file, path: path.clone() })
        }
    }
}

fn cat(client: &mut Client, path: &str) -> Result<()> {
    let mut reader = client.open(path)?;
    let mut stdout = output::stdout();
    loop {
        let bytes = reader.next_bytes()?;
        if bytes.is_empty() {
            return Ok(stdout.flush()?);
        }
        stdout.write_all(bytes)?;
        let n = bytes.len();
        reader.consume(n);
    }
}

fn report(totals: Totals, verb: &str, out: &mut Output) -> Result<()> {
    out.line(
        || {
            format!(
                "{verb} {} files, {} directories, {} links, {}",
                totals.files,
                totals.directories,
                totals.links,
                holdfast_base::units::format_bytes(totals.bytes)
            )
        },
        || {
            serde_json::json!({
                "files": totals.files,
                "directories": totals.directories,
                "links": totals.links,
                "bytes": totals.bytes,
                "skipped": totals.skipped,
            })
        },
    )?;
    match totals.skipped.len() {
        0 => Ok(()),
        n => Err(Error::invalid(format!(
            "{n} entries were skipped, see above; everything else was copied"
        ))),
    }
}
