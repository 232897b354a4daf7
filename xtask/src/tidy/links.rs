//! Links in Markdown that point at files or headings of this repository must point at something.
//! Links to the outside are left alone: a build must not need the network.

use super::Finding;

/// `exists` and `read` take paths relative to the repository.
pub fn check(
    file: &str,
    text: &str,
    exists: &dyn Fn(&str) -> bool,
    read: &dyn Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let dir = file.rsplit_once('/').map_or("", |(dir, _)| dir);
    let mut findings = Vec::new();
    for (line, target) in targets(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let path = if path.is_empty() { file.to_owned() } else { join(dir, path) };
        let wrong = if !exists(&path) {
            format!("links to `{target}`, which does not exist")
        } else if !anchor.is_empty()
            && path.ends_with(".md")
            && !read(&path).is_some_and(|text| anchors(&text).any(|a| a == anchor))
        {
            format!("links to `{target}`, and no heading there has that name")
        } else {
            continue;
        };
        findings.push(Finding::new(file, line, wrong));
    }
    findings
}

/// Lines outside of code blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code).then_some((index + 1, line))
    })
}

/// Every `](target)` and `[name]: target` outside of code.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Every second part of a line split at backticks is code.
        let words: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let mut rest = words.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            let target = target.split_whitespace().next().unwrap_or_default();
            found.push((number, target.trim_matches(['<', '>']).to_owned()));
            rest = after;
        }
        if words.starts_with('[')
            && let Some((_, target)) = words.split_once("]: ")
        {
            found.push((number, target.trim().to_owned()));
        }
    }
    found
}

/// The names that headings get: lower case, dashes for spaces, no punctuation.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

fn join(dir: &str, path: &str) -> String {
    let mut parts: Vec<&str> = dir.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<usize> {
        let tree = ["docs/a.md", "docs/b.md", "README.md", "docs"];
        let exists = |path: &str| tree.contains(&path);
        let read = |path: &str| (path == "docs/b.md").then(|| "# B\n## Two words, `x`!\n".into());
        check("docs/a.md", text, &exists, &read).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn good_links_pass() {
        let good = "[b](b.md) and [readme](../README.md)\n[web](https://example.com/x)\n\
                    [dir](../docs) [h](b.md#two-words-x)\n[ref]: b.md\n";
        assert_eq!(findings(good), [0; 0]);
    }

    #[test]
    fn dead_links_are_found_with_their_line() {
        assert_eq!(findings("\n[c](c.md) [b](b.md)\n[h](b.md#three)\n[r]: no.md\n"), [2, 3, 4]);
    }

    #[test]
    fn code_is_not_a_link() {
        assert_eq!(findings("`[c](c.md)`\n```\n[c](c.md)\n```\n"), [0; 0]);
    }
}
