//! A graph of real packages: who depends on whom, as views say it and as apt does; while the graph
//! changes and a node is killed.

use super::common::{Node, Scratch, binary, finish, free_port};
use holdfast_base::ids::Index;
use holdfast_client::view::Changes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// Of all that there are; so many are folded in seconds by a build that is not optimised.
const PACKAGES: usize = 20_000;
/// Packages whose dependents are compared.
const SAMPLE: usize = 24;
const TOPIC: &str = "debian";

/// What is installed here has dependencies of its own, which are no part of what is loaded.
pub fn apt(words: &[&str]) -> Option<String> {
    let mut command = Command::new("apt-cache");
    let done = command.args(["-o", "Dir::State::status=/dev/null"]).args(words).output().ok()?;
    done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
}

pub fn name(stanza: &str) -> &str {
    stanza.lines().find_map(|line| line.strip_prefix("Package: ")).unwrap()
}

type Dependents = BTreeMap<String, BTreeSet<String>>;

/// By apt: of each package those that depend on it, alternatives among them.
fn by_apt(packages: &[String]) -> Dependents {
    let only_depends = ["pre-depends", "recommends", "suggests", "conflicts", "breaks", "replaces"];
    let flags: Vec<String> = only_depends.iter().map(|kind| format!("--no-{kind}")).collect();
    let mut words = vec!["rdepends", "--no-enhances"];
    words.extend(flags.iter().map(String::as_str));
    words.extend(packages.iter().map(String::as_str));
    let mut found = Dependents::new();
    let mut of = String::new();
    for line in apt(&words).unwrap().lines() {
        match line.strip_prefix("  ").or(line.strip_prefix(" |")) {
            // Its architecture, where it is not this machine's.
            Some(dependent) => {
                let dependent = dependent.split(':').next().unwrap().to_owned();
                found.entry(of.clone()).or_default().insert(dependent);
            }
            None if line == "Reverse Depends:" => {}
            None => of = line.to_owned(),
        }
    }
    found
}

struct Nodes {
    /// Of both.
    server: String,
}

impl Nodes {
    fn json(&self, words: &[&str]) -> Vec<Value> {
        let mut command = binary();
        command.args(["--json", "--server", &self.server, "view"]).args(words);
        let text = finish(&mut command, b"").ok();
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    fn dependents(&self, package: &str, reached: &str) -> BTreeSet<String> {
        let words = ["find", TOPIC, "packages", "depends", package, "--reached", reached];
        let found = self.json(&words).into_iter();
        found.map(|line| line["key"].as_str().unwrap().to_owned()).collect()
    }

    /// Each view agrees, of which there are so many.
    fn agree(&self, views: usize) {
        let lines = self.json(&["verify", TOPIC]);
        assert_eq!(lines.len(), views, "{lines:?}");
        for line in &lines {
            let is_index = line["view"].as_str().unwrap().contains("index");
            assert!(is_index || line["is_measure"] == true || line["agrees"] == true, "{lines:?}");
        }
    }
}

/// Has whoever changes the graph end, also when a test fails.
pub struct UntilDropped<'a>(pub &'a AtomicBool);

impl Drop for UntilDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Packages to ask about: those that most depend on, and some that few do.
pub fn sample(stanzas: &[&str]) -> Vec<String> {
    let loaded: BTreeSet<&str> = stanzas.iter().map(|stanza| name(stanza)).collect();
    let mut counts: BTreeMap<&str, usize> = loaded.iter().map(|name| (*name, 0)).collect();
    let mut of_any = BTreeSet::new();
    for stanza in stanzas {
        let depends = stanza.lines().find_map(|line| line.strip_prefix("Depends: "));
        for one in depends.unwrap_or_default().split([',', '|']) {
            let one = one.trim().split(' ').next().unwrap();
            // For apt, a package of any architecture is another one, and has no dependents.
            match one.split_once(':') {
                Some((name, _)) => _ = of_any.insert(name),
                None => *counts.entry(one).or_default() += 1,
            }
        }
    }
    let mut ranked: Vec<(usize, &str)> = counts
        .into_iter()
        .filter(|(name, count)| *count > 0 && loaded.contains(name) && !of_any.contains(name))
        .map(|(name, count)| (count, name))
        .collect();
    ranked.sort();
    let few = ranked.iter().step_by(1 + ranked.len() / (SAMPLE / 2)).take(SAMPLE / 2);
    let most = ranked.iter().rev().take(SAMPLE / 2);
    few.chain(most)
        .map(|(_, name)| (*name).to_owned())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// Whether there are several versions of a package: apt has the dependents of all of them.
fn has_versions(package: &str) -> bool {
    let shown = apt(&["show", "-a", package]).unwrap_or_default();
    shown.lines().filter(|line| line.starts_with("Version: ")).count() > 1
}

/// The index of dependencies, or a part of it: to be run, or stopped.
fn index<'a>(order: &'a str, part: &'a str) -> [&'a str; 9] {
    ["view", order, "index", TOPIC, part, "--collection", "packages", "--field", "depends"]
}

/// What the index has is what apt says of the packages that are loaded.
fn compare_with_apt(nodes: &Nodes, sample: &[String], names: &BTreeSet<&str>, last: &str) {
    let by_apt = by_apt(sample);
    let mut compared = 0;
    for package in sample {
        let found = nodes.dependents(package, last);
        let mut wanted = by_apt[package].clone();
        wanted.retain(|name| names.contains(name.as_str()));
        compared += found.len();
        let missing: Vec<_> =
            wanted.difference(&found).filter(|name| !has_versions(name)).collect();
        let extra: Vec<_> = found.difference(&wanted).collect();
        let is_equal = missing.is_empty() && extra.is_empty();
        assert!(is_equal, "{package}: not {missing:?}, but {extra:?}");
    }
    assert!(compared > 100, "{compared} dependents");
}

/// Changes one package after the other, telling each change's index, until it is enough.
fn change(
    node: &Node,
    (names, sample): (&BTreeSet<&str>, &[String]),
    told: &mpsc::Sender<Index>,
    is_enough: &AtomicBool,
) {
    let mut client = node.client();
    let mut view = client.view(TOPIC);
    let of = view.collection("packages").unwrap();
    for (n, name) in (0..).zip(names.iter().cycle()) {
        let mut changes = Changes::default();
        match n % 3 {
            0 => changes.delete(of, name.as_bytes()),
            _ => {
                let depends = [&sample[n % sample.len()], &sample[n / 7 % sample.len()]];
                let value = serde_json::json!({ "depends": depends, "n": n });
                changes.put(of, name.as_bytes(), value.to_string().as_bytes());
            }
        }
        let index = view.change(&changes).unwrap();
        if told.send(index).is_err() || is_enough.load(Ordering::Relaxed) {
            break;
        }
    }
}

/// Two nodes in one cluster.
fn start(scratch: &Scratch) -> (Node, Node, u16) {
    let port = free_port();
    let with = |number: u16, port: u16| {
        let settings = "dram = \"0\"\nscrub = \"0\"\n";
        format!("{settings}native_port = {port}\nhost = \"h{number}\"\n")
    };
    let first = Node::start_with(&scratch.path("1"), &with(1, port));
    let other = scratch.path("2");
    Node::set(&other, &with(2, 0));
    let second = Node::join(&other, &first, port);
    (first, second, port)
}

#[test]
fn who_depends_on_a_package_is_what_apt_says_whatever_happens_meanwhile() {
    let Some(dump) = apt(&["dumpavail"]).filter(|dump| dump.contains("Package: ")) else {
        eprintln!("SKIPPED: apt-cache knows no packages here (apt-get update would tell it)");
        return;
    };
    let stanzas: Vec<&str> =
        dump.split("\n\n").filter(|stanza| !stanza.is_empty()).take(PACKAGES).collect();
    let scratch = Scratch::new();
    let (first, second, port) = start(&scratch);
    let sockets =
        [first.socket(), second.socket()].map(|socket| format!("unix:{}", socket.display()));
    let nodes = Nodes { server: sockets.join(",") };
    let words = ["--json", "view", "load", "packages", TOPIC, "packages", "-"];
    let loaded = finish(&mut first.command(&words), stanzas.join("\n\n").as_bytes()).ok();
    let loaded: Value = serde_json::from_str(&loaded).unwrap();
    assert_eq!(loaded["items"], stanzas.len());
    first.run(&["view", "run", "disk", TOPIC, "0/2"]).ok();
    second.run(&["view", "run", "disk", TOPIC, "1/2"]).ok();
    first.run(&["view", "run", "memory", TOPIC]).ok();
    first.run(&index("run", "0/2")).ok();
    second.run(&index("run", "1/2")).ok();
    let sample = sample(&stanzas);
    assert!(sample.len() > SAMPLE / 2, "{sample:?}");
    let names: BTreeSet<&str> = stanzas.iter().map(|stanza| name(stanza)).collect();
    compare_with_apt(&nodes, &sample, &names, &loaded["last"].to_string());
    nodes.agree(5);

    // The graph changes on, a node is killed and comes back, and everybody is asked meanwhile.
    let (told, changes) = mpsc::channel();
    let is_enough = AtomicBool::new(false);
    let second = std::thread::scope(|scope| {
        let (first, names, sample, is_enough) = (&first, &names, &sample, &is_enough);
        let _changing = UntilDropped(is_enough);
        scope.spawn(move || change(first, (names, sample), &told, is_enough));
        let after = |count: usize| changes.iter().nth(count).expect("it goes on");
        after(50);
        let data = second.kill();
        after(50);
        let second = Node::join(&data, first, port);
        nodes.agree(5);
        after(50);
        nodes.agree(5);
        second
    });
    let last = changes.iter().last().expect("the last change").to_string();

    // Views that begin now say the same.
    let before: Vec<_> = sample.iter().map(|package| nodes.dependents(package, &last)).collect();
    assert!(before.iter().map(BTreeSet::len).sum::<usize>() > 100);
    second.run(&["view", "run", "disk", TOPIC]).ok();
    second.run(&["view", "run", "memory", TOPIC]).ok();
    first.run(&["view", "run", "memory", TOPIC, "0/6"]).ok();
    nodes.agree(8);
    first.run(&index("stop", "0/2")).ok();
    second.run(&index("stop", "1/2")).ok();
    first.run(&index("run", "0/1")).ok();
    let after: Vec<_> = sample.iter().map(|package| nodes.dependents(package, &last)).collect();
    assert_eq!(after, before);
    second.stop();
    first.stop();
}
