//! A topic written anew with other bytes in some of its entries, under the same indices: for what
//! must not stay in a log that has no snapshots to trim it by. Before anything else opens the log;
//! what is cut short is begun again by the next call, and until the last step the topic is as it
//! was.

use crate::{Drive, EmbeddedLog, Log, LogOptions, Mode, Scope, topic};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Indices, Result};
use holdfast_env::{Disk, local};
use std::path::Path;
use std::sync::{Arc, mpsc};

/// Where the new segments are written, beside the topics.
const ASIDE: &str = "rewrite";
/// One read, and one commit, of the copy.
const PAGE_ENTRIES: usize = 1024;
const PAGE_BYTES: usize = 1 << 20;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The first entry that the topic holds: 1 unless it was trimmed.
    pub first: Index,
    /// Entries with other bytes than before.
    pub changed: u64,
}

/// Writes `topic` of the log in `directory` anew if `change` answers other bytes for an entry.
/// Nothing if there is no such topic.
pub fn rewrite(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    topic: &str,
    change: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Option<Rewritten>> {
    let doing = |e: Error| e.context(format_args!("write topic `{topic}` anew"));
    let place = directory.join("topics").join(topic::directory_name(topic));
    let aside = directory.join(ASIDE);
    let replaced = aside.join("replaced");
    let io = |e: std::io::Error| doing(e.into());
    if disk.exists(&replaced).map_err(io)? && !disk.exists(&place).map_err(io)? {
        // Between the two renames below.
        disk.rename(&replaced, &place).map_err(io)?;
    }
    if disk.exists(&aside).map_err(io)? {
        local::remove_tree(&aside).map_err(io)?;
    }
    if !disk.exists(&place).map_err(io)? {
        return Ok(None);
    }
    let options = LogOptions { drive: Drive::Pump, ..LogOptions::default() };
    let old = EmbeddedLog::open(disk.clone(), directory, options).map_err(doing)?;
    let info = old.info(topic).map_err(doing)?;
    let first = info.first;
    let mut changed = 0;
    each_page(&old, topic, first, &mut |page| {
        changed += page.iter().filter(|(_, entry)| change(entry).is_some()).count() as u64;
        Ok(())
    })
    .map_err(doing)?;
    if changed == 0 {
        return Ok(Some(Rewritten { first, changed }));
    }
    let new = EmbeddedLog::open(disk.clone(), &aside, options).map_err(doing)?;
    new.create_from(topic, first).map_err(doing)?;
    each_page(&old, topic, first, &mut |page| {
        let entries = page.into_iter().map(|(_, entry)| change(&entry).unwrap_or(entry));
        append(&new, topic, entries.collect())
    })
    .map_err(doing)?;
    let whole = new.info(topic).map_err(doing)?.durable;
    if whole != info.next {
        return Err(doing(Error::bug(format!("entry {whole} comes next, not {}", info.next))));
    }
    drop((old, new));
    disk.rename(&place, &replaced).map_err(io)?;
    let made = aside.join("topics").join(topic::directory_name(topic));
    disk.rename(&made, &place).map_err(io)?;
    disk.sync_dir(&directory.join("topics"), "log.rewritten-name").map_err(io)?;
    local::remove_tree(&aside).map_err(io)?;
    Ok(Some(Rewritten { first, changed }))
}

type Page = Vec<(Index, Vec<u8>)>;

fn each_page(
    log: &EmbeddedLog,
    topic: &str,
    first: Index,
    each: &mut dyn FnMut(Page) -> Result<()>,
) -> Result<()> {
    let (mut next, end) = (first, log.info(topic)?.next);
    while next < end {
        let page = log.read(topic, next, PAGE_ENTRIES, PAGE_BYTES, Scope::Written)?;
        let Some((last, _)) = page.last() else { break };
        next = Index(last.0 + 1);
        each(page)?;
    }
    Ok(())
}

fn append(log: &EmbeddedLog, topic: &str, entries: Vec<Vec<u8>>) -> Result<()> {
    let (send, receive) = mpsc::channel();
    let done = Box::new(move |appended: Result<Indices>| drop(send.send(appended)));
    log.append(topic, entries, Mode::Synced, done);
    while log.pump() {}
    let closed = |_| Error::bug("an append was not answered");
    receive.try_recv().map_err(closed)?.map(|_| ())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "looks at what lies on the disk")]
mod tests {
    use super::*;
    use holdfast_env::RealDisk;
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("holdfast-rewrite-{}-{name}", std::process::id()));
        let _ = local::remove_tree(&dir);
        dir
    }

    fn disk() -> Arc<dyn Disk> {
        Arc::new(RealDisk)
    }

    fn open(dir: &Path) -> EmbeddedLog {
        let options =
            LogOptions { drive: Drive::Pump, segment_bytes: 64 << 10, ..LogOptions::default() };
        EmbeddedLog::open(disk(), dir, options).unwrap()
    }

    fn fill(dir: &Path, trimmed: u64) {
        let log = open(dir);
        for name in ["t/0", "other"] {
            log.create(name).unwrap();
            for i in 0..3000u32 {
                let secret = if i % 500 == 7 { "hush" } else { "said" };
                append(&log, name, vec![format!("{secret} {i}").into_bytes()]).unwrap();
            }
        }
        log.trim("t/0", Index(trimmed)).unwrap();
    }

    fn entries(dir: &Path, topic: &str) -> Page {
        let log = open(dir);
        let mut all = Vec::new();
        each_page(&log, topic, log.info(topic).unwrap().first, &mut |page| {
            all.extend(page);
            Ok(())
        })
        .unwrap();
        all
    }

    fn redacted(entry: &[u8]) -> Option<Vec<u8>> {
        let rest = entry.strip_prefix(b"hush")?;
        Some([b"a longer one than before", rest].concat())
    }

    /// Whether any file below holds the bytes.
    fn holds(dir: &Path, what: &[u8]) -> bool {
        RealDisk.list(dir).unwrap().into_iter().any(|entry| {
            let path = dir.join(&entry.name);
            match entry.is_dir {
                true => holds(&path, what),
                false => std::fs::read(&path).unwrap().windows(what.len()).any(|w| w == what),
            }
        })
    }

    #[test]
    fn entries_change_under_their_indices_and_their_old_bytes_are_gone() {
        for trimmed in [1, 1200] {
            let dir = scratch(&format!("changes-{trimmed}"));
            fill(&dir, trimmed);
            let (before, other) = (entries(&dir, "t/0"), entries(&dir, "other"));
            let done = rewrite(&disk(), &dir, "t/0", &redacted).unwrap().unwrap();
            assert_eq!(done.first, before[0].0);
            assert!(done.changed >= 3, "{done:?}");
            let after = entries(&dir, "t/0");
            let expected = before.into_iter().map(|(i, e)| (i, redacted(&e).unwrap_or(e)));
            assert!(after == expected.collect::<Page>());
            assert!(entries(&dir, "other") == other, "other topics stay as they were");
            assert!(!holds(&dir.join("topics/t+0"), b"hush"));
            assert!(!RealDisk.exists(&dir.join(ASIDE)).unwrap());
            // It goes on as a log does.
            let log = open(&dir);
            append(&log, "t/0", vec![b"more".to_vec()]).unwrap();
            assert_eq!(log.info("t/0").unwrap().next, Index(3002));
            drop(log);
            let again = rewrite(&disk(), &dir, "t/0", &redacted).unwrap().unwrap();
            assert_eq!(again.changed, 0);
            local::remove_tree(&dir).unwrap();
        }
    }

    #[test]
    fn what_was_cut_short_between_the_renames_is_begun_again() {
        let dir = scratch("cut");
        fill(&dir, 1);
        let before = entries(&dir, "t/0");
        std::fs::create_dir_all(dir.join("rewrite/topics")).unwrap();
        std::fs::rename(dir.join("topics/t+0"), dir.join("rewrite/replaced")).unwrap();
        let done = rewrite(&disk(), &dir, "t/0", &redacted).unwrap().unwrap();
        assert!(done.changed > 0 && entries(&dir, "t/0").len() == before.len());
        assert_eq!(rewrite(&disk(), &dir, "no/such", &redacted).unwrap(), None);
        local::remove_tree(&dir).unwrap();
    }
}
