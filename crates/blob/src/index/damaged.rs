//! What becomes of an index that is damaged. It holds nothing that the log does not: its directory
//! is set aside, for people to look at, and the next open folds a new one.

use holdfast_base::{Error, Result};
use holdfast_env::Disk;
use holdfast_env::disk::{ReplaceSites, replace_file};
use std::path::{Path, PathBuf};

/// Directories of damaged indexes that are kept; of more, a person has heard.
const KEPT_MAX: u32 = 8;
const MARK_SITES: ReplaceSites = ReplaceSites { data: "blobs.mark-data", name: "blobs.mark-name" };

fn beside(place: &Path, suffix: &str) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    place.with_file_name(name)
}

/// Damage was found while the index was in use: the next start sets it aside. Whether this is news.
pub fn mark(disk: &dyn Disk, place: &Path, why: &Error) -> bool {
    let mark = beside(place, ".damaged");
    if matches!(disk.exists(&mark), Ok(true)) {
        return false;
    }
    // Where this fails, the next start finds the damage as this one did.
    let _ = replace_file(disk, &mark, why.message.as_bytes(), MARK_SITES);
    true
}

/// As [`set_aside`], if an earlier process has marked the index.
pub fn set_aside_if_marked(
    disk: &dyn Disk,
    place: &Path,
    find: &mut dyn FnMut(String),
) -> Result<()> {
    let mark = beside(place, ".damaged");
    if disk.exists(&mark)? {
        set_aside(disk, place, &Error::corrupt("the last process found it damaged"), find)?;
        disk.remove(&mark)?;
    }
    Ok(())
}

/// Moves the index away, and tells where it is.
pub fn set_aside(
    disk: &dyn Disk,
    place: &Path,
    why: &Error,
    find: &mut dyn FnMut(String),
) -> Result<()> {
    if !disk.exists(place)? {
        return Ok(());
    }
    for number in 1..=KEPT_MAX {
        let aside = beside(place, &format!(".damaged-{number}"));
        if disk.exists(&aside)? {
            continue;
        }
        disk.rename(place, &aside)?;
        find(format!(
            "the index of blobs in `{}` was damaged ({why}): it is in `{}`, and was folded anew \
             from the log; nothing is missing",
            place.display(),
            aside.display()
        ));
        return Ok(());
    }
    Err(Error::full(format!(
        "set the damaged index of blobs in `{}` aside: there are {KEPT_MAX} others: look at the \
         disk, then remove them ({why})",
        place.display()
    )))
}
