//! What `deploy/` has: each command line and each setting in there is tried, or known to the binary.

use crate::common::{Node, Scratch, binary, finish, until};
use holdfast_brokers::Brokers;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(deploy(name)).unwrap()
}

/// The node's unit as it is, but for the directory: it serves, and ends in order.
#[test]
fn the_unit_starts_a_node() {
    let unit = text("systemd/holdfast.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[0], "/usr/local/bin/holdfast");
    let scratch = Scratch::new();
    let data = scratch.path("data");
    Node::set(&data, "");
    let at = words.iter().position(|word| *word == "/var/lib/holdfast").unwrap();
    let mut command = binary();
    command.arg("--json").args(&words[1..at]).arg(&data).args(&words[at + 1..]);
    let node = Node::start_by(&mut command, &data);
    node.run(&["fs", "mkdir", "/made"]).ok();
    node.stop();
}

#[test]
fn systemd_and_helm_find_nothing_wrong() {
    let scratch = Scratch::new();
    let is_there = |name: &str| {
        let found = Command::new(name).arg("--help").stdout(Stdio::null()).status().is_ok();
        if !found {
            eprintln!("!! SKIPPED: {name} is not here, so what deploy/ has for it was not checked");
        }
        found
    };
    if is_there("systemd-analyze") {
        // It looks for the binary.
        let ours = binary().get_program().to_str().unwrap().to_owned();
        for name in ["holdfast.service", "holdfast-scribe.service"] {
            let unit = text(&format!("systemd/{name}")).replace("/usr/local/bin/holdfast", &ours);
            let file = scratch.path(name);
            std::fs::write(&file, unit).unwrap();
            let said = finish(Command::new("systemd-analyze").arg("verify").arg(&file), b"");
            let about = said.err.lines().filter(|line| line.contains(name)).collect::<Vec<_>>();
            assert!(about.is_empty(), "{about:?}");
        }
    }
    if is_there("helm") {
        let log = ["--set-string", "log=kafka://b1:9092/prod", "--set", "settings.dram=4G"];
        let mut helm = Command::new("helm");
        finish(helm.arg("lint").args(["--strict"]).args(log).arg(deploy("helm")), b"").ok();
        let mut helm = Command::new("helm");
        let made = finish(helm.args(["template", "h"]).args(log).arg(deploy("helm")), b"").ok();
        assert!(made.contains("HOLDFAST_DRAM") && made.contains("kafka://b1:9092/prod"), "{made}");
    }
}

/// A setting that is misspelled would be passed over: `HOLDFAST_` names others, too.
#[test]
fn every_variable_is_a_setting_or_an_option() {
    let known = finish(binary().args(["config", "print-default"]), b"").ok().to_uppercase();
    let options = ["HOLDFAST_SCRIBE_TO", "HOLDFAST_TOKEN_FILE", "HOLDFAST_CA_FILE"];
    let mut named = BTreeSet::new();
    for file in [
        "systemd/holdfast.service",
        "systemd/holdfast-scribe.service",
        "compose/compose.yaml",
        "helm/templates/statefulset.yaml",
    ] {
        let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
        for word in text(file).split(|c: char| !is_name(c)) {
            if word.starts_with("HOLDFAST_") && !options.contains(&word) {
                named.insert(word.to_owned());
            }
        }
    }
    // What a chart's user sets.
    named.remove("HOLDFAST_");
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        let key = name.strip_prefix("HOLDFAST_").unwrap();
        assert!(known.contains(&format!("\n# {key} = ")), "{name} is no setting");
    }
}

/// The nodes of the composition, with its command lines and variables, its certificates and a real broker:
/// on this machine's loopback, for there are no containers.
#[test]
fn the_composition_is_a_cluster() {
    let Some(brokers) = Brokers::start(1, &[]) else { return };
    let composition = text("compose/compose.yaml");
    let scratch = Scratch::new();
    let certificates = scratch.path("certificates");
    std::fs::create_dir(&certificates).unwrap();
    // The script of the service that makes them.
    let script: String = composition
        .lines()
        .skip_while(|line| !line.contains("cd /certificates"))
        .take_while(|line| !line.contains("volumes:"))
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    let script = script
        .replace("/certificates", certificates.to_str().unwrap())
        .replace("--host $$node", "--host 127.0.0.1")
        .replace("$$", "$");
    let ours = binary().get_program().to_owned();
    let path = format!(
        "{}:{}",
        Path::new(&ours).parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    for _ in 0..2 {
        // Once more at each start, and nothing changes.
        let mut shell = Command::new("sh");
        finish(shell.args(["-ec", &script]).env("PATH", &path), b"").ok();
    }
    let log = "kafka://broker-1:9092,broker-2:9092,broker-3:9092/";
    let here = format!("kafka://{}/", brokers.addresses());
    let start = |number: usize| {
        let service = composition.split_once(&format!("\n  node-{number}:\n")).unwrap().1;
        let line = service.lines().find_map(|line| line.trim_start().strip_prefix("command: "));
        let words: Vec<String> = serde_json::from_str(line.unwrap()).unwrap();
        let data = scratch.path(&format!("node-{number}"));
        Node::set(&data, "");
        let mut command = binary();
        command.arg("--json");
        for word in words {
            let word = match &*word {
                "/data" => data.to_str().unwrap().to_owned(),
                "/first/secret" => scratch.path("node-1/secret").to_str().unwrap().to_owned(),
                word => word.replace(log, &here),
            };
            command.arg(word);
        }
        let shared = composition.lines().filter(|line| line.contains("HOLDFAST_TLS_AUTHORITIES"));
        let own = service.lines().take_while(|line| !line.contains("volumes:"));
        for line in shared.chain(own).filter(|line| line.contains("HOLDFAST_TLS")) {
            let (name, value) = line.trim_start().split_once(": ").unwrap();
            let value = value.replace("/certificates", certificates.to_str().unwrap());
            command.env(name, value);
        }
        Node::start_by(&mut command, &data)
    };
    let nodes: Vec<Node> = (1..=3).map(start).collect();
    nodes[2].run(&["fs", "mkdir", "/made"]).ok();
    // Each process is a client of its own, and a node may be behind another by a moment.
    until("the second shows it", || nodes[1].run(&["fs", "ls", "/"]).ok().contains("made"));
    let live = || nodes[0].run(&["node", "ls"]).ok().matches("live").count();
    until("the first sees all of them", || live() == 3);
    nodes.into_iter().rev().for_each(|node| drop(node.stop()));
}
