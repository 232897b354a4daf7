//! The picture of the crates in ARCHITECTURE.md: made from their manifests, from the top down, and
//! compared with what the page shows. Arrows that follow from others are left out.

use super::Finding;
use super::crates::{LAYERS, arrows_of};
use std::collections::{BTreeMap, BTreeSet};

pub const PAGE: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- the crates, drawn by `cargo xtask picture` -->\n";
const END: &str = "<!-- the crates end here -->";

/// Takes (path, text) of each manifest.
pub fn draw(manifests: &[(String, String)]) -> String {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, text) in manifests {
        let (package, arrows) = arrows_of(text);
        uses.insert(package, arrows.into_iter().collect());
    }
    let mut drawn = String::from("```\n");
    for layer in LAYERS.iter().rev() {
        for name in *layer {
            let below = direct(name, &uses);
            let line = format!("{:<14}", short(name));
            let arrow = if below.is_empty() { String::new() } else { format!("-> {below}") };
            drawn.push_str(format!("{line}{arrow}").trim_end());
            drawn.push('\n');
        }
    }
    drawn + "```\n"
}

/// What a crate uses itself and not through another one that it uses.
fn direct(name: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> String {
    let none = BTreeSet::new();
    let own = uses.get(name).unwrap_or(&none);
    let through = |other: &String| reached(other, uses);
    let further: BTreeSet<String> = own.iter().flat_map(through).collect();
    let direct: Vec<&str> = own.difference(&further).map(|name| short(name)).collect();
    direct.join(", ")
}

/// All that lies below a crate.
fn reached(name: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let mut below = BTreeSet::new();
    let mut todo: Vec<&String> = uses.get(name).into_iter().flatten().collect();
    while let Some(next) = todo.pop() {
        if below.insert(next.clone()) {
            todo.extend(uses.get(next).into_iter().flatten());
        }
    }
    below
}

fn short(name: &str) -> &str {
    name.strip_prefix("holdfast-").unwrap_or(name)
}

/// The page with its picture drawn anew; `None` where it has no place for one.
pub fn renew(page: &str, drawn: &str) -> Option<String> {
    let start = page.find(BEGIN)? + BEGIN.len();
    let end = start + page[start..].find(END)?;
    Some(format!("{}{drawn}{}", &page[..start], &page[end..]))
}

pub fn check(page: &str, manifests: &[(String, String)]) -> Option<Finding> {
    let renewed = renew(page, &draw(manifests));
    (renewed.as_deref() != Some(page)).then(|| {
        Finding::new(PAGE, 0, "does not show the crates as they are: run `cargo xtask picture`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, uses: &[&str]) -> (String, String) {
        let uses: String = uses.iter().map(|u| format!("{u}.workspace = true\n")).collect();
        let tests = "[dev-dependencies]\nholdfast-sim.workspace = true\n";
        let text =
            format!("[package]\nname = \"{name}\"\n[dependencies]\nlibc = \"1\"\n{uses}{tests}");
        (format!("{name}/Cargo.toml"), text)
    }

    #[test]
    fn arrows_that_follow_from_others_are_left_out() {
        let manifests = [
            manifest("holdfast-base", &[]),
            manifest("holdfast-env", &["holdfast-base"]),
            manifest("holdfast-wire", &["holdfast-base", "holdfast-env"]),
        ];
        let drawn = draw(&manifests);
        assert!(drawn.contains("\nwire          -> env\n"), "{drawn}");
        assert!(drawn.contains("\nenv           -> base\n"), "{drawn}");
        assert!(drawn.ends_with("\nbase\n```\n"), "{drawn}");
    }

    #[test]
    fn a_page_that_shows_other_crates_is_found_and_renewed() {
        let manifests = [manifest("holdfast-base", &[])];
        let page = format!("before\n{BEGIN}old\n{END}\nbehind\n");
        assert!(check(&page, &manifests).is_some());
        let renewed = renew(&page, &draw(&manifests)).unwrap();
        assert!(renewed.starts_with("before\n") && renewed.ends_with("behind\n"));
        assert_eq!(check(&renewed, &manifests), None);
        assert!(check("a page without a place", &manifests).is_some());
    }
}
