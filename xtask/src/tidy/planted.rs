//! Every bug that is planted in shipped code is in the catalogue, and the other way round.

use super::Finding;
use crate::mutants;
use std::collections::BTreeMap;
use std::path::Path;

/// Where bugs are planted: the file of each.
#[derive(Default)]
pub(super) struct Planted(BTreeMap<String, String>);

impl Planted {
    pub(super) fn look(&mut self, file: &str, text: &str) {
        // Where the macro is defined, its tests plant bugs of their own.
        let shipped = file.starts_with("crates/") && file.contains("/src/");
        if shipped && file != "crates/env/src/trial.rs" && !file.contains("/tests") {
            for name in mutants::planted(text) {
                self.0.insert(name.to_owned(), file.to_owned());
            }
        }
    }

    pub(super) fn check(&self, root: &Path) -> Vec<Finding> {
        let file = mutants::CATALOGUE;
        let text = super::read(&root.join(file)).map(|b| String::from_utf8_lossy(&b).into_owned());
        match text.and_then(|text| mutants::parse(&text)) {
            Ok(bugs) => self.compare(&bugs.into_iter().map(|bug| bug.name).collect::<Vec<_>>()),
            Err(e) => vec![Finding::new(file, 0, e)],
        }
    }

    fn compare(&self, listed: &[String]) -> Vec<Finding> {
        let missing = self.0.iter().filter(|(name, _)| !listed.contains(name)).map(|(name, at)| {
            let what = format!("plants `{name}`, which `{}` does not list", mutants::CATALOGUE);
            Finding::new(at, 0, what)
        });
        let gone = listed.iter().filter(|name| !self.0.contains_key(*name));
        let gone = gone.map(|name| {
            Finding::new(mutants::CATALOGUE, 0, format!("lists `{name}`, which no code plants"))
        });
        missing.chain(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_catalogue_name_the_same_bugs() {
        let mut planted = Planted::default();
        planted.look("crates/x/src/y.rs", r#"planted!("x.a"); planted!("x.b")"#);
        planted.look("crates/x/tests/y.rs", r#"planted!("x.test")"#);
        let listed = ["x.a".to_owned(), "x.c".to_owned()];
        let found: Vec<_> = planted.compare(&listed).into_iter().map(|f| f.to_string()).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("x.b") && found[1].contains("x.c"), "{found:?}");
    }
}
