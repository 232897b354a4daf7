//! Tables in three regions, each a process with a log of its own: written from all sides while a home is killed,
//! made anew where a log was lost, and what people set up wrongly.

use crate::common::{Node, SETTINGS, Scratch, attempts, binary, finish, free_port};
use crate::tables::{beside_writers, judge};
use holdfast_client::Client;
use holdfast_wire::table::{Found, Level, Record};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Three regions that know each other.
pub struct Regions {
    /// In front of their directories: they end before those go.
    pub nodes: [Option<Node>; 3],
    scratch: Scratch,
    ports: [u16; 3],
    tls: bool,
}

impl Regions {
    /// Each with an authority of its own, if they speak TLS.
    pub fn start(tls: bool) -> Regions {
        let ports = [free_port(), free_port(), free_port()];
        let mut regions =
            Regions { scratch: Scratch::new(), ports, nodes: [None, None, None], tls };
        (0..3).for_each(|region| regions.certify(region));
        for region in 0..3 {
            fs::create_dir_all(regions.data(region)).unwrap();
            regions.set(region);
            regions.begin(region);
        }
        // They look for their tokens whenever they connect.
        (0..3).for_each(|region| regions.introduce(region));
        for region in 0..3 {
            regions.settled(region);
        }
        regions
    }

    /// Until a region reaches the others: it looks for its tokens now and then.
    fn settled(&self, region: usize) {
        self.create(region, &[&format!("probe-{region}")]);
    }

    /// Makes a table; asks again, as one is told to, where another region does not answer in time.
    fn create(&self, region: usize, words: &[&str]) {
        let create = || self.node(region).run(&[&["table", "create"], words].concat());
        let made = attempts().map(|()| create()).find(|made| made.code == Some(0));
        assert!(made.is_some(), "{:?}", create());
    }

    fn listens(&self, region: usize) -> String {
        format!("native_port = {}", self.ports[region])
    }

    fn data(&self, region: usize) -> PathBuf {
        self.scratch.path(&format!("region-{region}"))
    }

    fn token(&self, of: usize, at: usize) -> PathBuf {
        self.scratch.path(&format!("{of}-at-{at}.token"))
    }

    fn ca(&self, region: usize) -> PathBuf {
        self.scratch.path(&format!("tls-{region}")).join("ca.pem")
    }

    fn certify(&self, region: usize) {
        if !self.tls {
            return;
        }
        let own = self.ca(region).parent().unwrap().to_owned();
        let cert = |words: &[&str]| finish(binary().arg("cert").args(words).arg(&own), b"").ok();
        cert(&["init", &format!("region-{region}"), "--dir"]);
        cert(&["node", "n1", "--host", "127.0.0.1", "--dir"]);
        let tls = self.data(region).join("tls");
        fs::create_dir_all(&tls).unwrap();
        for (from, to) in [("n1.pem", "node.pem"), ("n1.key", "node.key"), ("ca.pem", "ca.pem")] {
            fs::copy(own.join(from), tls.join(to)).unwrap();
        }
    }

    /// Makes the tokens by which the others are known to a region.
    fn introduce(&self, at: usize) {
        for of in (0..3).filter(|of| *of != at) {
            let (name, rule) = (format!("region-{of}"), format!("region:{of}:rw"));
            let out = self.token(of, at);
            let _ = fs::remove_file(&out);
            let words = ["token", "create", &name, "--allow", &rule, "--out"];
            let words = [&words[..], &[out.to_str().unwrap()]].concat();
            self.node(at).run(&words).ok();
        }
    }

    fn set(&self, region: usize) {
        let mut settings = SETTINGS.replace("native_port = 0", &self.listens(region));
        settings += &format!("region = {region}\n");
        for other in (0..3).filter(|other| *other != region) {
            settings += &format!(
                "[regions.{other}]\nservers = \"127.0.0.1:{}\"\ntoken = {:?}\n",
                self.ports[other],
                self.token(region, other)
            );
            if self.tls {
                settings += &format!("cacert = {:?}\n", self.ca(other));
            }
        }
        fs::write(self.data(region).join("holdfast.toml"), settings).unwrap();
    }

    pub fn begin(&mut self, region: usize) {
        self.nodes[region] = Some(Node::start(&self.data(region)));
    }

    pub fn kill(&mut self, region: usize) {
        self.nodes[region].take().unwrap().kill();
    }

    pub fn node(&self, region: usize) -> &Node {
        self.nodes[region].as_ref().unwrap()
    }

    /// All records of `t`, as a region shows them.
    fn shown(&self, region: usize) -> Vec<Found> {
        let mut client = self.node(region).client();
        client.table("t").scan(b"", None, false, 1000).map_or(Vec::new(), |page| page.found)
    }

    /// Until all regions show the same.
    #[track_caller]
    fn settle(&self) -> Vec<Found> {
        for () in attempts() {
            let shown = self.shown(0);
            if !shown.is_empty() && shown == self.shown(1) && shown == self.shown(2) {
                return shown;
            }
        }
        panic!("they do not agree: {:?}", [0, 1, 2].map(|region| self.shown(region)));
    }
}

fn written_while_a_home_is_killed(tls: bool, mode: &str) {
    let mut regions = Regions::start(tls);
    regions.create(1, &["t", "--mode", mode, "--tablets", "2"]);
    let clients: Vec<Client> = (0..3).map(|region| regions.node(region).client()).collect();
    let all = beside_writers(clients, || {
        for victim in 0..2 {
            let survivor = 1 - victim;
            let mut client = regions.node(survivor).client();
            let grew = |client: &mut Client| {
                client.table_describe("t").unwrap().tablets.iter().map(|t| t.applied).sum::<u64>()
            };
            let before = grew(&mut client);
            assert!(attempts().any(|()| grew(&mut client) > before + 60), "{mode}: {victim}");
            regions.kill(victim);
            if mode == "strong" {
                // Its homes are led by somebody else, and all that was told is there.
                let lost = |client: &mut Client| {
                    let info = client.table_describe("t").unwrap();
                    let streams = info.tablets.iter().flat_map(|tablet| &tablet.streams);
                    streams.filter(|s| usize::from(s.leader) == victim).count() > 0
                };
                assert!(attempts().any(|()| !lost(&mut client)), "nobody takes {victim} over");
                let before = grew(&mut client);
                assert!(attempts().any(|()| grew(&mut client) > before + 20), "{victim} is lost");
            }
            // Where nobody leads its homes, whoever writes there waits for it.
            regions.begin(victim);
        }
    });
    let shown = regions.settle();
    let shown: BTreeMap<String, Record> = shown
        .into_iter()
        .map(|found| (String::from_utf8(found.key).unwrap(), found.record))
        .collect();
    judge(&all, |key| shown.get(key).cloned());
    for region in 0..3 {
        let mut client = regions.node(region).client();
        let read = client.table("t").get(b"own 0", Level::Strong).unwrap();
        assert_eq!(read.as_ref(), shown.get("own 0"), "{mode}: region {region}");
    }
}

#[test]
fn a_strong_table_is_written_from_all_sides_while_its_homes_are_killed() {
    written_while_a_home_is_killed(false, "strong");
}

#[test]
fn a_timeline_table_is_written_over_tls_while_its_homes_are_killed() {
    written_while_a_home_is_killed(true, "timeline");
}

/// Whose log is lost begins with another one, is given all that there was, and counts again: the other two may
/// be lost one after the other.
#[test]
fn a_region_whose_log_is_lost_is_made_again() {
    let mut regions = Regions::start(false);
    let t = |regions: &Regions, region: usize, words: &[&str]| {
        regions.node(region).run(&[&["table"], words].concat())
    };
    regions.create(0, &["t", "--mode", "strong"]);
    for region in 0..3 {
        t(&regions, region, &["put", "t", &format!("k{region}"), "before"]).ok();
    }
    regions.kill(2);
    fs::remove_dir_all(regions.data(2)).unwrap();
    fs::create_dir_all(regions.data(2)).unwrap();
    regions.set(2);
    regions.begin(2);
    t(&regions, 2, &["get", "t", "k0"]).refused(&["there is none"]);
    // Those whom the others know it by are those of another cluster now.
    regions.introduce(2);
    t(&regions, 2, &["create", "t", "--tablets", "2", "--mode", "strong"]).refused(&["1 tablets"]);
    t(&regions, 2, &["create", "t", "--mode", "strong"]).ok();
    t(&regions, 2, &["put", "t", "k2", "behind", "--if-version", "1"]).ok();
    let shown = regions.settle();
    assert_eq!(shown.len(), 3);
    // It counts once it has everything: then it and another one are a majority.
    let counts = |regions: &Regions| {
        let info = regions.node(2).client().table_describe("t").unwrap();
        let streams = &info.tablets[0].streams;
        // That it is admitted, and that it counts; and the three inserts, where absent keys belong.
        let least = |home: u8| if home == 0 { 5 } else { 2 };
        streams.iter().all(|s| s.held == s.shown && s.held >= least(s.home))
    };
    assert!(attempts().any(|()| counts(&regions)), "it is not counted");
    regions.kill(0);
    t(&regions, 2, &["put", "t", "k0", "behind"]).ok();
    assert_eq!(t(&regions, 1, &["get", "t", "k0", "--strong"]).ok(), "behind");
}

/// A region is lost, and the others go on without it once an operator says so. What it alone had acknowledged comes
/// back with it, beside what was written meanwhile, for somebody to see to.
#[test]
fn a_region_that_was_sealed_comes_back_with_branches() {
    let mut regions = Regions::start(false);
    let t = |regions: &Regions, region: usize, words: &[&str]| {
        regions.node(region).run(&[&["table"], words].concat())
    };
    let seal = |regions: &Regions, lost: &str| {
        t(regions, 0, &["seal", "t", "--lost", lost, "--wait", "0"])
    };
    regions.create(0, &["t", "--tablets", "2"]);
    regions.create(0, &["s", "--mode", "strong"]);
    for key in ["changed", "deleted", "left"] {
        t(&regions, 2, &["put", "t", key, "before"]).ok();
    }
    regions.settle();
    seal(&regions, "2").refused(&["region 2", "a moment ago", "say it again in"]);
    seal(&regions, "0").refused(&["none of the table's other regions"]);
    seal(&regions, "7").refused(&["none of the table's other regions"]);
    t(&regions, 0, &["seal", "s", "--lost", "2"]).refused(&["strong"]);
    t(&regions, 0, &["resolve", "t", "left", "--keep", "record"]).refused(&["no such branch"]);
    // What is at home in region 2 it decides alone while nobody hears it.
    regions.kill(0);
    regions.kill(1);
    t(&regions, 2, &["put", "t", "changed", "alone"]).ok();
    t(&regions, 2, &["put", "t", "changed", "alone, too"]).ok();
    t(&regions, 2, &["delete", "t", "deleted"]).ok();
    regions.kill(2);
    // One of the two that are to promise is away: the order is written down, and carried out once it is there, though
    // the node that has it started again meanwhile and nobody says it any more.
    regions.begin(0);
    let told = t(&regions, 0, &["seal", "t", "--lost", "2", "--wait", "12"]);
    assert_ne!(told.code, Some(0), "{told:?}");
    for says in
        ["region 2 may be there: waiting", "region 1 did not promise yet", "it is written down"]
    {
        assert!(told.err.contains(says), "{told:?}");
    }
    regions.kill(0);
    regions.begin(0);
    regions.begin(1);
    let described = || t(&regions, 0, &["describe", "t"]).ok();
    let put = || t(&regions, 1, &["put", "t", "left", "before"]);
    assert!(attempts().any(|()| put().code == Some(0)), "{}", described());
    assert!(described().contains("called lost"), "{}", described());
    t(&regions, 0, &["seal", "t", "--lost", "2"]).ok();
    t(&regions, 1, &["put", "t", "changed", "meanwhile", "--if-version", "1"]).ok();
    t(&regions, 0, &["put", "t", "deleted", "meanwhile", "--if-version", "1"]).ok();
    regions.begin(2);
    let branches = |region: usize| {
        let list = |regions: &Regions| t(regions, region, &["branches", "t"]);
        let listed = attempts().map(|()| list(&regions).ok());
        let both = |listed: &String| listed.lines().count() == 2;
        listed.into_iter().find(both).unwrap_or_else(|| panic!("{:?}", list(&regions)))
    };
    let all = branches(0);
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split('\t').collect()).collect();
    let line = |key: &str| lines.iter().find(|line| line[0] == key).unwrap().clone();
    assert_eq!(line("changed")[2..], ["1..3", "alone, too"]);
    assert_eq!(line("deleted")[2..], ["1..2", "(deleted)"]);
    for region in [1, 2] {
        assert_eq!(branches(region), all);
        assert_eq!(t(&regions, region, &["get", "t", "changed", "--latest"]).ok(), "meanwhile");
        assert_eq!(t(&regions, region, &["get", "t", "left"]).ok(), "before");
    }
    let described = t(&regions, 2, &["describe", "t"]).ok();
    assert!(described.contains("branches: what sealed regions had alone"), "{described}");
    t(&regions, 1, &["resolve", "t", "changed", "--keep", "branch", "--branch", "0.0.0"])
        .refused(&["no such branch"]);
    t(&regions, 1, &["resolve", "t", "changed", "--keep", "branch"]).ok();
    t(&regions, 0, &["resolve", "t", "deleted", "--keep", "record"]).ok();
    for region in 0..3 {
        let none = || t(&regions, region, &["branches", "t"]).ok().is_empty();
        assert!(attempts().any(|()| none()), "region {region}");
        assert_eq!(t(&regions, region, &["get", "t", "changed", "--latest"]).ok(), "alone, too");
        assert_eq!(t(&regions, region, &["get", "t", "deleted", "--latest"]).ok(), "meanwhile");
    }
    regions.settle();
}

/// What somebody has seen in one region he sees in another, by a line of text that goes along.
#[test]
fn a_session_goes_along_from_region_to_region() {
    let regions = Regions::start(false);
    let file = regions.scratch.path("session");
    let with = |region: usize, words: &[&str]| {
        let session = ["--session", file.to_str().unwrap()];
        regions.node(region).run(&[&["table"], words, &session].concat())
    };
    regions.create(0, &["t", "--tablets", "2"]);
    for round in 1..=20 {
        let (writes, reads) = (round % 3, (round + 1) % 3);
        let value = format!("round {round}");
        with(writes, &["put", "t", "k", &value]).ok();
        assert_eq!(with(reads, &["get", "t", "k"]).ok(), value);
    }
    regions.node(0).run(&["table", "create", "u", "--here"]).ok();
    with(0, &["put", "u", "k", "x"]).refused(&["session", "of table `t`"]);
    fs::write(&file, "hfs1.00").unwrap();
    with(0, &["get", "t", "k"]).refused(&["session", "not whole"]);
}

#[test]
fn regions_that_are_set_up_wrongly_are_told_what_to_do() {
    let mut regions = Regions::start(false);
    let create = |regions: &Regions, table: &str| {
        regions.node(0).run(&["table", "create", table, "--mode", "strong"])
    };
    create(&regions, "t").ok();
    // What one region has made alone stands in nobody's way elsewhere, and is not made over.
    regions.node(1).run(&["table", "create", "own", "--here"]).ok();
    create(&regions, "own").refused(&["region 1", "made before"]);
    regions.kill(2);
    create(&regions, "u").refused(&["region 2", "all regions"]);
    regions.node(0).run(&["table", "get", "u", "x"]).refused(&["there is none"]);
    let described = regions.node(0).run(&["table", "describe", "t"]).ok();
    assert!(described.contains("region 2: cannot be reached"), "{described}");
    // It takes region 1 for itself.
    let path = regions.data(2).join("holdfast.toml");
    let settings = fs::read_to_string(&path).unwrap();
    fs::write(&path, settings.replace("region = 2\n", "region = 1\n")).unwrap();
    let refused = Node::try_start(&regions.data(2)).err().unwrap();
    assert!(refused.err.contains("region 1 is this one"), "{refused:?}");
    // One number, in two ways: one of the two would be nobody.
    fs::write(&path, settings.replace("[regions.1]", "[regions.01]")).unwrap();
    let refused = Node::try_start(&regions.data(2)).err().unwrap();
    assert!(refused.err.contains("`regions.01`"), "{refused:?}");
    // It shows a token of another region.
    let swapped = settings.replace("2-at-0.token", "1-at-0.token");
    fs::write(&path, swapped).unwrap();
    regions.begin(2);
    let told = regions.node(2).run(&["table", "create", "v", "--mode", "strong"]);
    told.refused(&["region 0", "region:2:rw"]);
    fs::write(&path, settings).unwrap();
    regions.kill(2);
    regions.begin(2);
    regions.settled(0);
    create(&regions, "u").ok();
    regions.node(2).run(&["table", "put", "u", "x", "1"]).ok();
}

/// A table is dropped while a region is away, which drops it when it is back; another one of its name has nothing of it.
#[test]
fn a_table_is_dropped_by_a_region_that_was_away_too() {
    let mut regions = Regions::start(false);
    let t = |regions: &Regions, region: usize, words: &[&str]| {
        regions.node(region).run(&[&["table"], words].concat())
    };
    t(&regions, 0, &["drop", "t"]).refused(&["there is none"]);
    regions.create(0, &["t", "--tablets", "2"]);
    for key in ["a", "b", "c"] {
        t(&regions, 2, &["put", "t", key, "before"]).ok();
    }
    regions.settle();
    regions.kill(2);
    let dropped = t(&regions, 1, &["drop", "t"]);
    assert!(dropped.err.contains("region 2 cannot be reached"), "{dropped:?}");
    assert_eq!((dropped.code, &dropped.out[..]), (Some(0), &b"dropped\n"[..]), "{dropped:?}");
    for words in [&["get", "t", "a"][..], &["put", "t", "a", "x"], &["scan", "t"], &["drop", "t"]] {
        for region in [0, 1] {
            t(&regions, region, words).refused(&["table `t`", "it was dropped"]);
        }
    }
    assert!(!t(&regions, 0, &["ls"]).ok().contains("t  timeline"));
    regions.begin(2);
    let gone = || t(&regions, 2, &["get", "t", "a"]);
    let is_gone = |told: &crate::common::Finished| told.err.contains("it was dropped");
    assert!(attempts().any(|()| is_gone(&gone())), "{:?}", gone());
    regions.create(2, &["t", "--tablets", "2"]);
    assert_eq!(t(&regions, 2, &["put", "t", "a", "after"]).ok().trim(), "version 1");
    assert_eq!(regions.settle().len(), 1);
    for region in 0..3 {
        regions.kill(region);
        regions.begin(region);
    }
    assert_eq!(regions.settle().len(), 1);
}
