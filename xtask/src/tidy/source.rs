//! Rules about single files. Those about code get it with comments and literals blanked out, so
//! that a word in a sentence is not taken for a statement.

use super::Finding;

/// Directories of people's and build machines.
const MACHINE_PATHS: &[&str] = &["/work/", "/home/", "/root/", "/Users/"];
const UNFINISHED: &[&str] = &["FIXME", "TODO", "XXX"];
const LEFTOVERS: &[&str] = &["dbg!", "todo!", "unimplemented!"];

/// The text of a file, or what is wrong with it: a binary one is a leftover of some run, unless it
/// is a golden file, which shows that what an older build wrote can be read.
pub fn text(file: &str, bytes: Vec<u8>) -> Result<String, Option<Finding>> {
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ if file.contains("/tests/golden/") => Err(None),
        _ => {
            let what = "is binary: remove it; only golden files below `tests/golden` may be";
            Err(Some(Finding::new(file, 0, what)))
        }
    }
}

/// Paths of a machine that nobody else has.
pub fn machine_paths(file: &str, text: &str) -> Vec<Finding> {
    each_line(file, text, |line| {
        let found = MACHINE_PATHS.iter().find(|path| {
            line.match_indices(**path).any(|(at, _)| {
                // `crates/work/x` and `https://host/home/x` are something else.
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}".contains(c))
            })
        })?;
        Some(format!("names `{found}`, a directory of one machine"))
    })
}

/// Notes to self.
pub fn unfinished(file: &str, text: &str) -> Vec<Finding> {
    each_line(file, text, |line| {
        let found = UNFINISHED.iter().find(|word| has_word(line, word))?;
        Some(format!("says {found}: do it, or write down why not"))
    })
}

/// Macros that do not belong into finished code, and tests that do not run.
pub fn leftovers(file: &str, code: &str) -> Vec<Finding> {
    each_line(file, code, |line| {
        if let Some(found) = LEFTOVERS.iter().find(|name| has_word(line, name)) {
            return Some(format!("has a leftover `{found}`"));
        }
        (line.contains("#[ignore") || line.contains("cfg_attr(") && line.contains(", ignore"))
            .then(|| "ignores a test: make it run, or remove it".to_owned())
    })
}

/// Waiting for time to pass, in tests: slow on a fast machine, wrong on a slow one.
pub fn sleeping_tests(file: &str, code: &str) -> Vec<Finding> {
    let whole = file.contains("/tests/") || file.ends_with("/tests.rs");
    let mut in_tests = whole;
    each_line(file, code, |line| {
        in_tests |= line.contains("#[cfg(test)]");
        (in_tests && has_word(line, "sleep(") && !line.contains("fn sleep("))
            .then(|| "sleeps in a test: wait for an event instead".to_owned())
    })
}

/// Rooms inside a crate that know nothing of each other, and words that would show that they do.
const APART: &[(&str, &[&str])] = &[
    ("crates/cluster/src/names", &["StoreId", "ClusterView"]),
    ("crates/cluster/src/chunks", &["names", "ClusterView"]),
];

/// Names know pointers and extents, no store; chunks know owners, no path.
pub fn rooms_apart(file: &str, code: &str) -> Vec<Finding> {
    let inside = |room: &str| {
        file.strip_prefix(room).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    let words = APART.iter().filter(|(room, _)| inside(room)).flat_map(|(_, words)| *words);
    let words: Vec<&str> = words.copied().collect();
    each_line(file, code, |line| {
        let found = words.iter().find(|word| has_word(line, word))?;
        Some(format!("names `{found}`, which this room knows nothing of: ask through the seam"))
    })
}

/// What is said to nobody in particular, without a name or a level.
pub fn said_to_stderr(file: &str, code: &str) -> Vec<Finding> {
    each_line(file, code, |line| {
        let said = has_word(line, "eprintln!") || has_word(line, "eprint!");
        said.then(|| {
            "writes to standard error: tell an event (`env::events`), or, from a command, use \
             `output::aside`"
                .to_owned()
        })
    })
}

/// A function that is longer has more than one purpose, or steps that have names.
const FUNCTION_LINES_MAX: usize = 80;

/// Functions of more lines than fit on a screen, from `fn` to the brace that ends them.
pub fn long_functions(file: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("fn ").map(|at| from + at) {
        from = at + 3;
        // `Fn(..)`, `dyn Fn` and function pointers have no name behind a word of its own.
        let is_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_word && let Some(body) = body_bytes(&code[at..]) {
            let lines = code[at..at + body].lines().count();
            if lines > FUNCTION_LINES_MAX {
                let line = code[..at].matches('\n').count() + 1;
                let name: String =
                    code[from..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let what = format!(
                    "`{name}` has {lines} lines, the limit is {FUNCTION_LINES_MAX}: give its steps names"
                );
                findings.push(Finding::new(file, line, what));
            }
        }
    }
    findings
}

/// Where the function that begins here ends; nothing if it has no body.
fn body_bytes(code: &str) -> Option<usize> {
    // Of parentheses and brackets, in which a semicolon ends nothing.
    let (mut nested, mut braces) = (0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => nested += 1,
            ')' | ']' => nested -= 1,
            ';' if nested == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        // What follows is no function of its own: a pointer's type in a signature that ended.
        if nested < 0 || braces < 0 {
            return None;
        }
    }
    None
}

pub fn unsafe_code(file: &str, code: &str) -> Vec<Finding> {
    each_line(file, code, |line| {
        has_word(line, "unsafe").then(|| {
            "has unsafe code: use a safe interface of `env`, or list the module".to_owned()
        })
    })
}

/// The root of every crate says that it has no unsafe code.
pub fn unsafe_forbidden(file: &str, code: &str, level: &str) -> Option<Finding> {
    let is_root = file.ends_with("src/lib.rs")
        || file.ends_with("src/main.rs")
        || file.contains("/src/bin/")
        || file.ends_with("/build.rs");
    let wanted = format!("#![{level}(unsafe_code)]");
    (is_root && !code.contains(&wanted)).then(|| Finding::new(file, 0, format!("lacks `{wanted}`")))
}

fn each_line(file: &str, text: &str, mut rule: impl FnMut(&str) -> Option<String>) -> Vec<Finding> {
    let lines = text.lines().enumerate();
    lines.filter_map(|(index, line)| Some(Finding::new(file, index + 1, rule(line)?))).collect()
}

/// Whether `word` stands in `line` with no identifier running on at either side.
fn has_word(line: &str, word: &str) -> bool {
    let runs_on = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let after = &line[at + word.len()..];
        let bounded = !word.ends_with(runs_on) || !after.starts_with(runs_on);
        bounded && !line[..at].ends_with(runs_on)
    })
}

/// The source with comments, strings and character literals replaced by spaces, line by line.
pub fn blank_text(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let before = out.chars().next_back().unwrap_or(' ');
        let blanked = text_at(rest, before);
        if blanked == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            let text = &rest[..blanked];
            out.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[blanked..];
        }
    }
    out
}

/// Length of the comment or literal that starts here, or 0.
fn text_at(rest: &str, before: char) -> usize {
    let to = |end: Option<usize>| end.unwrap_or(rest.len());
    if rest.starts_with("//") {
        return to(rest.find('\n'));
    }
    if rest.starts_with("/*") {
        return block_comment(rest);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('r') && !before.is_alphanumeric() && before != '_'
        || rest.starts_with('r') && before == 'b'
    {
        let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
        if rest[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = 2 + hashes;
            return to(rest[body..].find(&end).map(|at| body + at + end.len()));
        }
    }
    // A lifetime has no closing quote behind its first character.
    let mut chars = rest.chars();
    if chars.next() == Some('\'') {
        let inner = chars.next();
        if inner == Some('\\') || inner.is_some() && chars.next() == Some('\'') {
            return quoted(rest, '\'');
        }
    }
    0
}

fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    rest.len()
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: Vec<Finding>) -> Vec<usize> {
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        let source =
            "a /* \"x\n */ b // c\nlet s = \"un\\\"safe\"; let r = r#\"q\"q\"#; 'x' '\\'' &'a z";
        let code = blank_text(source);
        assert_eq!(code.lines().count(), 3);
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "let", "s", "=", ";", "let", "r", "=", ";", "&'a", "z"]);
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let text = "see /home/me/x\nin `/work/a`\ncrates/work/a\nhttps://host/home/x\n/root\n";
        assert_eq!(lines(machine_paths("a", text)), [1, 2]);
    }

    #[test]
    fn binary_files_are_golden_or_refused() {
        assert_eq!(text("a.rs", b"fn f() {}\n".to_vec()), Ok("fn f() {}\n".to_owned()));
        for leftover in [&b"\xff\xfe"[..], b"ELF\0\0"] {
            assert!(matches!(text("default.profraw", leftover.to_vec()), Err(Some(_))));
            assert!(matches!(text("crates/x/src/golden/a", leftover.to_vec()), Err(Some(_))));
            assert_eq!(text("crates/x/tests/golden/a", leftover.to_vec()), Err(None));
        }
    }

    #[test]
    fn notes_to_self_are_found() {
        assert_eq!(lines(unfinished("a", "// TODO: x\n// METHODOLOGY\n# FIXME\n")), [1, 3]);
    }

    #[test]
    fn leftover_macros_and_ignored_tests_are_found() {
        let code = "dbg!(x);\nmy_dbg!(x);\ntodo!()\n#[ignore]\n#[ignore = \" \"]\n";
        assert_eq!(lines(leftovers("a.rs", code)), [1, 3, 4, 5]);
        assert_eq!(lines(leftovers("a.rs", &blank_text("// dbg!(x)\n\"todo!\""))), [0; 0]);
    }

    #[test]
    fn only_tests_must_not_sleep() {
        let code = "thread::sleep(a);\n#[cfg(test)]\nthread::sleep(a);\ntokio::time::sleep(b)\n";
        assert_eq!(lines(sleeping_tests("crates/x/src/a.rs", code)), [3, 4]);
        assert_eq!(lines(sleeping_tests("crates/x/tests/a.rs", code)), [1, 3, 4]);
        assert_eq!(lines(sleeping_tests("crates/x/src/a/tests.rs", "asleep(1);\nsleep(1)")), [2]);
    }

    #[test]
    fn a_room_names_nothing_of_the_one_beside_it() {
        let code = "use x::StoreId;\nlet stores = 1;\nuse crate::names::Names;\n";
        assert_eq!(lines(rooms_apart("crates/cluster/src/names/tree.rs", code)), [1]);
        assert_eq!(lines(rooms_apart("crates/cluster/src/chunks.rs", code)), [3]);
        assert_eq!(lines(rooms_apart("crates/cluster/src/namespace.rs", code)), [0; 0]);
    }

    #[test]
    fn standard_error_is_for_events() {
        let code = "eprintln!(a);\nmy_eprintln!(a);\n event!(Finding, a); eprint!(b)\n";
        assert_eq!(lines(said_to_stderr("a.rs", code)), [1, 3]);
    }

    #[test]
    fn a_function_fits_on_a_screen() {
        let body = |lines: usize| "    a(\"}\");\n".repeat(lines);
        let of = |name: &str, lines: usize| {
            // With its first line and its last.
            format!("pub fn {name}(a: [u8; 3]) -> X\n{{\n{}}}\n", body(lines - 3))
        };
        let found = |code: &str| lines(long_functions("a.rs", &blank_text(code)));
        assert_eq!(found(&of("short", 80)), [0; 0]);
        assert_eq!(found(&of("long", 81)), [1]);
        assert_eq!(found(&format!("{}{}", of("a", 80), of("b", 81))), [81]);
        // One inside, the trait's without a body, a type, a word that ends so.
        let inside = format!("fn outer() {{\n{}}}\n", of("inner", 79));
        assert_eq!(found(&inside), [1]);
        let none = format!("fn a();\ntype F = fn (u8);\nlet often = 1;\n{}", body(100));
        assert_eq!(found(&none), [0; 0]);
    }

    #[test]
    fn unsafe_is_a_word_of_its_own() {
        let code = "#![forbid(unsafe_code)]\nunsafe { x }\nunsafe fn f() {}\n";
        assert_eq!(lines(unsafe_code("a.rs", code)), [2, 3]);
    }

    #[test]
    fn crate_roots_forbid_unsafe_code() {
        let good = "#![forbid(unsafe_code)]\n";
        assert_eq!(unsafe_forbidden("crates/x/src/lib.rs", good, "forbid"), None);
        assert_eq!(unsafe_forbidden("crates/x/src/other.rs", "", "forbid"), None);
        assert_eq!(unsafe_forbidden("crates/x/src/rebuild.rs", "", "forbid"), None);
        assert!(unsafe_forbidden("crates/x/src/lib.rs", good, "deny").is_some());
        assert!(unsafe_forbidden("crates/x/src/main.rs", "", "forbid").is_some());
    }
}
