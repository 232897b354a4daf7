//! Every event that the list names is told somewhere, or the page for operators would speak of what
//! cannot happen. (That what is told is in the list, the compiler sees to.)

use super::Finding;
use std::collections::BTreeSet;

const LIST: &str = "crates/env/src/events.rs";

#[derive(Default)]
pub(super) struct Events {
    listed: Vec<(usize, String)>,
    told: BTreeSet<String>,
}

impl Events {
    pub(super) fn look(&mut self, file: &str, text: &str) {
        if file == LIST {
            let lines = text.lines().enumerate().skip_while(|(_, line)| *line != "events! {");
            let lines = lines.skip(1).take_while(|(_, line)| *line != "}");
            // `    Name = "what.happened", LEVEL,`
            let names = lines.filter_map(|(at, line)| {
                let (name, _) = line.strip_prefix("    ")?.split_once(" = ")?;
                (!name.contains(' ')).then(|| (at + 1, name.to_owned()))
            });
            self.listed = names.collect();
        } else if file.contains("/src/") && !file.contains("/tests") {
            let told = text.split("event!(").skip(1).map(|rest| {
                rest.trim_start().chars().take_while(|c| c.is_alphanumeric()).collect()
            });
            self.told.extend(told);
        }
    }

    pub(super) fn check(&self) -> Vec<Finding> {
        let silent = self.listed.iter().filter(|(_, name)| !self.told.contains(name));
        let what = |name| format!("lists the event `{name}`, which nothing tells");
        silent.map(|(line, name)| Finding::new(LIST, *line, what(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_events_are_told() {
        let mut events = Events::default();
        let list = "x\nevents! {\n    A = \"a.a\", INFO,\n        \"x = y\", \"\";\n    B = \"b\", WARN,\n}\n    C = 1\n";
        events.look(LIST, list);
        events.look("crates/x/src/y.rs", "event!(A, \"a\");\nevent!(\n    D, 1)");
        let found: Vec<_> = events.check().iter().map(Finding::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/env/src/events.rs:5") && found[0].contains("`B`"));
    }
}
