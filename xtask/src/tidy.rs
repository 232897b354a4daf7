//! `cargo xtask tidy`: the habits of this codebase as checks. Each rule is a pure function from
//! text to findings with its own test; this file walks the tree and hands them the files.

mod crates;
mod events;
mod licences;
mod links;
mod picture;
mod planted;
mod source;

use events::Events;
use planted::Planted;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files past this length are named in the output; near it is where to stop.
const LINES_WANTED: usize = 600;
/// Files past this length fail.
const LINES_MAX: usize = 1000;

/// Files and directories that may hold unsafe code. A crate with an entry here other than `env`
/// says `#![deny(unsafe_code)]` at its root, and `#[allow]`s it in the listed module alone.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/env/",
    "crates/cluster/src/names/prefetch.rs",
    "crates/kafka/src/identity.rs",
    "crates/sort/src/kernel/stream.rs",
    // An allocator that counts.
    "crates/cluster/tests/memory.rs",
];

/// Who may write to standard error as it likes: tools, and the one place of the command line. All
/// else tells events.
const STDERR_ALLOWED: &[&str] = &[
    "crates/brokers/",
    "crates/env/src/trial.rs",
    "crates/command/src/output.rs",
    "crates/hotpaths/",
    "crates/sim/",
    "xtask/",
];

/// The rules' own samples would trip them.
const RULES: &[&str] = &["xtask/src/tidy.rs", "xtask/src/tidy/"];

/// Made by tools, or not ours to word.
const SKIPPED: &[&str] = &["target", "data", ".git", "Cargo.lock", "LICENSE"];

/// Something to put right.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    /// From 1; 0 for the whole file.
    line: usize,
    what: String,
}

impl Finding {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding { file: file.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.what),
            line => write!(f, "{}:{line}: {}", self.file, self.what),
        }
    }
}

/// Checks the tree below `root`.
pub fn run(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    walk(root, root, &mut files)?;
    let tracked = tracked(root);
    let mut findings = Vec::new();
    let mut manifests = Vec::new();
    let mut page = String::new();
    let mut planted = Planted::default();
    let mut events = Events::default();
    for file in &files {
        let path = root.join(file);
        let bytes = read(&path)?;
        let text = match source::text(file, bytes) {
            Ok(text) => text,
            // What a run leaves is told from what somebody would publish.
            Err(finding) if tracked.as_ref().is_none_or(|tracked| tracked.contains(file)) => {
                findings.extend(finding);
                continue;
            }
            Err(_) => continue,
        };
        if listed(RULES, file) {
            continue;
        }
        findings.extend(source::machine_paths(file, &text));
        findings.extend(source::unfinished(file, &text));
        if file.ends_with(".rs") {
            findings.extend(check_source(file, &text));
            planted.look(file, &text);
            events.look(file, &text);
        } else if file.ends_with(".md") {
            let read = |target: &str| fs::read_to_string(root.join(target)).ok();
            let exists = |target: &str| root.join(target).exists();
            findings.extend(links::check(file, &text, &exists, &read));
            if file == picture::PAGE {
                page = text;
            }
        } else if file.ends_with("Cargo.toml") {
            manifests.push((file.clone(), text));
        }
    }
    findings.extend(crates::check(&manifests));
    findings.extend(picture::check(&page, &manifests));
    findings.extend(planted.check(root));
    findings.extend(events.check());
    findings.extend(licences::check(root));
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} files are in order", files.len());
            Ok(())
        }
        n => Err(format!("tidy: {n} things to put right, each named above with its place")),
    }
}

/// Draws the crates in ARCHITECTURE.md anew.
#[expect(clippy::disallowed_methods, reason = "a tool for people, not part of the system")]
pub fn renew_picture(root: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    walk(root, root, &mut files)?;
    files.retain(|file| file.ends_with("Cargo.toml"));
    let text = |file: &String| {
        let text = fs::read_to_string(root.join(file));
        text.map(|text| (file.clone(), text)).map_err(|e| format!("read {file}: {e}"))
    };
    let manifests = files.iter().map(text).collect::<Result<Vec<_>, String>>()?;
    let page = root.join(picture::PAGE);
    let old = fs::read_to_string(&page).map_err(|e| format!("read {}: {e}", page.display()))?;
    let new = picture::renew(&old, &picture::draw(&manifests))
        .ok_or_else(|| format!("{} has no place for the picture", picture::PAGE))?;
    fs::write(&page, new).map_err(|e| format!("write {}: {e}", page.display()))
}

fn check_source(file: &str, text: &str) -> Vec<Finding> {
    let code = source::blank_text(text);
    let mut findings = source::leftovers(file, &code);
    findings.extend(source::sleeping_tests(file, &code));
    findings.extend(source::rooms_apart(file, &code));
    findings.extend(source::long_functions(file, &code));
    if !listed(STDERR_ALLOWED, file) && !file.contains("/tests/") {
        findings.extend(source::said_to_stderr(file, &code));
    }
    if !listed(UNSAFE_ALLOWED, file) {
        findings.extend(source::unsafe_code(file, &code));
    }
    let level = match file.split("/src/").next() {
        Some("crates/env") => None,
        Some(of) if UNSAFE_ALLOWED.iter().any(|m| m.starts_with(&format!("{of}/"))) => Some("deny"),
        _ => Some("forbid"),
    };
    if let Some(level) = level {
        findings.extend(source::unsafe_forbidden(file, &code, level));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        let what = format!("has {lines} lines, the limit is {LINES_MAX}: split it");
        findings.push(Finding::new(file, 0, what));
    } else if lines > LINES_WANTED {
        println!("{file}: has {lines} lines, more than {LINES_WANTED}: think about splitting it");
    }
    findings
}

/// Whether `file` is one of `list`, or in one of its directories (which end with `/`).
fn listed(list: &[&str], file: &str) -> bool {
    list.iter().any(|entry| file == *entry || entry.ends_with('/') && file.starts_with(entry))
}

#[expect(clippy::disallowed_methods, reason = "a tool for people, not part of the system")]
fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("read `{}`: {e}", path.display()))
}

/// What git keeps of this tree; nothing where git cannot say: then everything counts.
fn tracked(root: &Path) -> Option<BTreeSet<String>> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().ok()?;
    let names = String::from_utf8(listed.stdout).ok().filter(|_| listed.status.success())?;
    Some(names.split('\0').map(str::to_owned).collect())
}

/// Collects files, relative to `root` with `/` between the parts, sorted.
#[expect(clippy::disallowed_methods, reason = "a tool for people, not part of the system")]
fn walk(root: &Path, dir: &Path, files: &mut Vec<String>) -> Result<(), String> {
    let failed = |e| format!("list `{}`: {e}", dir.display());
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    paths.sort();
    for path in paths {
        let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if SKIPPED.contains(&relative.as_str()) || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, files)?;
        } else {
            files.push(relative);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_files_and_directories() {
        assert!(listed(&["a/"], "a/b.rs") && listed(&["a.rs"], "a.rs"));
        assert!(!listed(&["a"], "a/b.rs") && !listed(&["a/"], "ab.rs"));
    }

    #[test]
    fn long_files_fail() {
        let findings = |lines: usize| check_source("crates/x/src/y.rs", &"\n".repeat(lines));
        assert_eq!(findings(1000), []);
        assert_eq!(findings(1001).len(), 1);
    }

    #[test]
    fn unsafe_code_is_for_listed_modules() {
        let text = "fn f() { unsafe { g() } }\n";
        assert_eq!(check_source("crates/x/src/y.rs", text).len(), 1);
        assert_eq!(check_source("crates/env/src/y.rs", text), []);
        assert_eq!(check_source("crates/x/src/lib.rs", "").len(), 1, "forbid is missing");
        assert_eq!(check_source("crates/env/src/lib.rs", ""), []);
    }
}
