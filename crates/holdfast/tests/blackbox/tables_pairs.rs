//! Tables in three regions of two nodes each: of each pair one keeps the log and decides, the other one follows, and
//! passes on what it is asked, by clients and by other regions. Either of them is killed.

use crate::common::{Node, SETTINGS, Scratch, attempts, free_port};
use crate::tables::{beside_writers, judge};
use holdfast_client::Client;
use holdfast_wire::table::{Level, Record};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Of a pair, who keeps the log and who follows.
const KEEPER: usize = 0;
const FOLLOWER: usize = 1;

struct Pairs {
    nodes: [[Option<Node>; 2]; 3],
    scratch: Scratch,
    ports: [[u16; 2]; 3],
}

impl Pairs {
    fn start() -> Pairs {
        let ports = [(); 3].map(|()| [free_port(), free_port()]);
        let mut pairs = Pairs { scratch: Scratch::new(), ports, nodes: Default::default() };
        for region in 0..3 {
            for at in [KEEPER, FOLLOWER] {
                pairs.set(region, at);
                pairs.begin(region, at);
            }
        }
        for region in 0..3 {
            pairs.introduce(region);
        }
        pairs
    }

    fn data(&self, region: usize, at: usize) -> PathBuf {
        self.scratch.path(&format!("region-{region}-{at}"))
    }

    fn token(&self, of: usize, at: usize) -> PathBuf {
        self.scratch.path(&format!("{of}-at-{at}.token"))
    }

    /// Makes the tokens by which the others are known to a region.
    fn introduce(&self, at: usize) {
        for of in (0..3).filter(|of| *of != at) {
            let (name, rule) = (format!("region-{of}"), format!("region:{of}:rw"));
            let out = self.token(of, at);
            let words = ["token", "create", &name, "--allow", &rule, "--out"];
            let words = [&words[..], &[out.to_str().unwrap()]].concat();
            self.node(at, FOLLOWER).run(&words).ok();
        }
    }

    /// Others ask the one that follows first.
    fn set(&self, region: usize, at: usize) {
        let own = self.ports[region][at];
        let mut settings = SETTINGS.replace("native_port = 0", &format!("native_port = {own}"));
        settings += &format!("region = {region}\n");
        for other in (0..3).filter(|other| *other != region) {
            let [keeper, follower] = self.ports[other];
            settings += &format!(
                "[regions.{other}]\nservers = \"127.0.0.1:{follower}, 127.0.0.1:{keeper}\"\ntoken = {:?}\n",
                self.token(region, other)
            );
        }
        fs::create_dir_all(self.data(region, at)).unwrap();
        fs::write(self.data(region, at).join("holdfast.toml"), settings).unwrap();
    }

    fn begin(&mut self, region: usize, at: usize) {
        let data = self.data(region, at);
        let node = match at {
            KEEPER => Node::start(&data),
            _ => Node::join(&data, self.node(region, KEEPER), self.ports[region][KEEPER]),
        };
        self.nodes[region][at] = Some(node);
    }

    fn kill(&mut self, region: usize, at: usize) {
        self.nodes[region][at].take().unwrap().kill();
    }

    fn node(&self, region: usize, at: usize) -> &Node {
        self.nodes[region][at].as_ref().unwrap()
    }

    /// Until more was written than there was, as that node says.
    fn goes_on(&self, region: usize, at: usize, what: &str) {
        let mut client = self.node(region, at).client();
        let mut applied = || {
            let info = client.table_describe("t");
            info.map_or(0, |info| info.tablets.iter().map(|tablet| tablet.applied).sum::<u64>())
        };
        let before = attempts().map(|()| applied()).find(|applied| *applied > 0).unwrap_or(0);
        assert!(attempts().any(|()| applied() > before + 40), "{what}");
    }
}

#[test]
fn pairs_of_nodes_keep_a_table_whichever_of_them_is_killed() {
    let mut pairs = Pairs::start();
    let create = ["table", "create", "t", "--mode", "strong", "--tablets", "2"];
    let create = |pairs: &Pairs| pairs.node(1, FOLLOWER).run(&create);
    let made = attempts().map(|()| create(&pairs)).find(|made| made.code == Some(0));
    assert!(made.is_some(), "{:?}", create(&pairs));
    let clients: Vec<Client> = (0..3).map(|region| pairs.node(region, FOLLOWER).client()).collect();
    let all = beside_writers(clients, || {
        pairs.goes_on(0, FOLLOWER, "three followers pass on what they are asked");
        // Its region is away; another one leads its homes.
        pairs.kill(0, KEEPER);
        let mut client = pairs.node(1, FOLLOWER).client();
        let mut is_led = || {
            let info = client.table_describe("t").unwrap();
            !info.tablets.iter().flat_map(|t| &t.streams).any(|stream| stream.leader == 0)
        };
        assert!(attempts().any(|()| is_led()), "nobody takes region 0 over");
        pairs.goes_on(1, FOLLOWER, "a region is away");
        pairs.begin(0, KEEPER);
        // The others turn to the one that keeps the log.
        pairs.kill(1, FOLLOWER);
        pairs.goes_on(2, FOLLOWER, "one of a pair is away, which does not decide");
        pairs.goes_on(0, FOLLOWER, "region 0 is back");
        pairs.begin(1, FOLLOWER);
        pairs.goes_on(1, FOLLOWER, "the pair is whole again");
    });
    let read = |region: usize, at: usize, key: &str| -> Option<Record> {
        let mut client = pairs.node(region, at).client();
        client.table("t").get(key.as_bytes(), Level::Strong).unwrap()
    };
    judge(&all, |key| read(2, FOLLOWER, key));
    let keys: BTreeMap<&String, ()> = all.iter().flat_map(|m| m.keys()).map(|k| (k, ())).collect();
    for key in keys.into_keys() {
        let shown = [(0, KEEPER), (0, FOLLOWER), (1, FOLLOWER), (1, KEEPER)];
        let shown = shown.map(|(region, at)| read(region, at, key));
        assert!(shown.windows(2).all(|two| two[0] == two[1]), "{key}: {shown:?}");
    }
    let file = pairs.scratch.path("session");
    for round in 0..12 {
        let (region, at) = (round % 3, round / 3 % 2);
        let session = ["--session", file.to_str().unwrap()];
        let value = format!("round {round}");
        let with = |region, at, words: &[&str]| {
            pairs.node(region, at).run(&[&["table"], words, &session].concat())
        };
        with(region, at, &["put", "t", "k", &value]).ok();
        assert_eq!(with((region + 1) % 3, 1 - at, &["get", "t", "k"]).ok(), value);
    }
}
