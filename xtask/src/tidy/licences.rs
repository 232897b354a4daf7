//! Every crate that is built has a licence that `deny.toml` allows. Quick, so that it runs at
//! every test; vulnerabilities are for cargo-deny (`make deny`), which takes minutes to build.

use super::Finding;
use std::path::Path;
use std::process::Command;

const LIST: &str = "deny.toml";

/// Asks cargo for the licences of what the workspace builds here, with its tests.
pub fn check(root: &Path) -> Vec<Finding> {
    let told = |what: String| vec![Finding::new(LIST, 0, what)];
    let list = match super::read(&root.join(LIST)) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) => return told(e),
    };
    let allowed = allowed(&list);
    if allowed.is_empty() {
        return told("lists no licences: `allow = [` and one a line".to_owned());
    }
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    cargo.args(["tree", "--workspace", "--locked", "--prefix", "none", "--format", "{p}|{l}"]);
    match cargo.current_dir(root).output() {
        Ok(done) if done.status.success() => {
            refused(&allowed, &String::from_utf8_lossy(&done.stdout))
        }
        Ok(done) => told(format!("list licences: {}", String::from_utf8_lossy(&done.stderr))),
        Err(e) => told(format!("list licences: cargo does not start: {e}")),
    }
}

/// The quoted lines of `allow`.
fn allowed(list: &str) -> Vec<String> {
    let lines = list.lines().map(str::trim).skip_while(|line| *line != "allow = [").skip(1);
    let lines = lines.take_while(|line| *line != "]");
    lines.map(|line| line.trim_matches([',', '"']).to_owned()).collect()
}

/// Of lines `crate vVERSION ...|LICENCE`, as cargo prints them, repeated crates once.
fn refused(allowed: &[String], tree: &str) -> Vec<Finding> {
    let mut crates: Vec<&str> = tree.lines().map(|l| l.trim_end_matches(" (*)")).collect();
    crates.sort_unstable();
    crates.dedup();
    let refused = crates.into_iter().filter_map(|line| {
        let (name, licence) = line.rsplit_once('|')?;
        let what = match licence {
            "" => format!("`{name}` says no licence"),
            licence if permits(allowed, licence) => return None,
            licence => format!("`{name}` is licensed `{licence}`, which is not allowed here"),
        };
        Some(Finding::new(LIST, 0, what))
    });
    refused.collect()
}

/// Whether what is allowed satisfies an SPDX expression. `/` is an older word for `OR`; whatever is
/// not understood is refused.
fn permits(allowed: &[String], expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = &words[..];
    any(allowed, &mut words) && words.is_empty()
}

fn any(allowed: &[String], words: &mut &[&str]) -> bool {
    let mut holds = all(allowed, words);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        // Both sides are read, whatever the first one says.
        holds |= all(allowed, words);
    }
    holds
}

fn all(allowed: &[String], words: &mut &[&str]) -> bool {
    let mut holds = one(allowed, words);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        holds &= one(allowed, words);
    }
    holds
}

fn one(allowed: &[String], words: &mut &[&str]) -> bool {
    let named = |name: &str| allowed.iter().any(|licence| licence == name);
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let holds = any(allowed, words);
            let [")", rest @ ..] = *words else { return false };
            *words = rest;
            holds
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            named(&format!("{licence} WITH {exception}"))
        }
        [licence, rest @ ..] => {
            *words = rest;
            named(licence)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_what_the_list_allows() {
        let list = "x = [\n]\nallow = [\n    \"MIT\",\n    \"A WITH E\",\n    \"ISC\",\n]\ny = 1\n";
        let allowed = allowed(list);
        assert_eq!(allowed, ["MIT", "A WITH E", "ISC"]);
        for good in ["MIT", "GPL OR MIT", "MIT/GPL", "A WITH E AND ISC", "(GPL OR ISC) AND MIT"] {
            assert!(permits(&allowed, good), "{good}");
        }
        for bad in ["", "GPL", "MIT AND GPL", "A", "MIT WITH E", "MIT ISC", "(MIT", "GPL AND X OR"]
        {
            assert!(!permits(&allowed, bad), "{bad}");
        }
        let tree = "a v1|MIT\nb v1 (*)|GPL\na v1|MIT\nc v1|\nb v1 (*)|GPL (*)\n";
        let found: Vec<_> = refused(&allowed, tree).iter().map(Finding::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("GPL") && found[1].contains("no licence"), "{found:?}");
    }
}
