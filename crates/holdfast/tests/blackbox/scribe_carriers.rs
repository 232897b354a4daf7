//! Agents in front of carriers, from outside: whoever is killed, each line is read once; who may send.

use super::common::{Node, Scratch, attempts, binary, finish, free_port};
use super::scribe::{Agent, Client, judge_lines, lines, send_lines, until};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const CARRIED: &str = "scribe_overall:batches carried";

/// An application, its agent, two carriers and a node; one after the other is killed with all that it knows,
/// the carrier that works just then twice as often. A carrier has no disk that counts: it begins in an empty
/// directory each time.
#[test]
fn each_line_is_read_once_while_agent_carriers_and_node_are_killed_in_turn() {
    let scratch = Scratch::new();
    let (data, spool, port) = (scratch.path("node"), scratch.path("spool"), free_port());
    let ports = [free_port(), free_port()];
    let secret = scratch.path("carriers.secret");
    let mut starts = 0;
    let mut carrier = |at: usize, secret: &Path| {
        starts += 1;
        let (port, secret) = (ports[at].to_string(), secret.to_str().unwrap());
        let more = ["--carry-port", &port, "--carry-secret", secret];
        Agent::start(&scratch.path(&format!("carrier-{starts}")), 0, &data, &more)
    };
    let mut node = Some(Node::start(&data));
    std::fs::copy(data.join("secret"), &secret).unwrap();
    let mut carriers: Vec<_> = (0..2).map(|at| Some(carrier(at, &secret))).collect();
    let to = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let start = || Agent::start_to(&spool, port, &to, &["--secret", secret.to_str().unwrap()]);
    let mut agent = Some(start());
    let address = agent.as_ref().unwrap().address;
    let done = AtomicBool::new(false);
    let told: Vec<_> = std::thread::scope(|scope| {
        let done = &done;
        let send = |writer| scope.spawn(move || send_lines(address, writer, done));
        let writers: Vec<_> = (0..2).map(send).collect();
        for round in 0..8 {
            let mut client = Client::new(address);
            let mark = format!("mark {round}");
            while client.log(&[("marks", mark.as_bytes())]) != Some(true) {}
            match round % 4 {
                0 => {
                    agent.take().unwrap().kill();
                    agent = Some(start());
                }
                2 => {
                    node.take().unwrap().kill();
                    node = Some(Node::start(&data));
                }
                _ => {
                    let at = busy(&carriers);
                    carriers[at].take().unwrap().kill();
                    carriers[at] = Some(carrier(at, &secret));
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(agent.take().unwrap().stop(), 0);
    let node = node.unwrap();
    judge_lines(&node, &told);
    // What an application hands to a carrier itself is its own spool's.
    let carrier = carriers[0].take().unwrap();
    assert_eq!(Client::new(carrier.address).log(&[("own", b"of the carrier")]), Some(true));
    until(&node, "own", 1);
    assert_eq!(lines(&node, "own"), ["of the carrier"]);
    assert_eq!(carrier.stop(), 0);
    carriers[1].take().unwrap().stop();
    node.stop();
}

/// The one of which something is carried while it is looked at.
fn busy(carriers: &[Option<Agent>]) -> usize {
    let mut clients: Vec<Client> =
        carriers.iter().flatten().map(|carrier| Client::new(carrier.address)).collect();
    let before: Vec<i64> = clients.iter_mut().map(|client| client.counter(CARRIED)).collect();
    for () in attempts() {
        for (at, client) in clients.iter_mut().enumerate() {
            if client.counter(CARRIED) > before[at] {
                return at;
            }
        }
    }
    panic!("no carrier carries anything");
}

/// A carrier's secret opens the carrier, for batches alone, and nothing of the cluster.
#[test]
fn a_carrier_takes_batches_of_who_has_its_secret_and_does_nothing_else() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("node"));
    let at = scratch.path("carrier");
    let carrier = Agent::start(&at, 0, &node.data, &["--carry-port", "0"]);
    let address = carrier.carries.unwrap().to_string();
    let secret = at.join("secret");
    let secret = secret.to_str().unwrap();
    let asked = |secret: &str| {
        let asks = ["--server", &address, "--secret", secret, "scribe", "status"];
        finish(binary().args(asks), b"")
    };
    asked(secret).refused(&["does nothing else"]);
    // The cluster's secret is another one, and a token is of the cluster.
    let of_node = node.data.join("secret");
    asked(of_node.to_str().unwrap()).refused(&["secret"]);
    let agent = Agent::start_to(&scratch.path("spool"), 0, &address, &["--secret", secret]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"one"), ("D", b"two")]), Some(true));
    until(&node, "c", 1);
    assert_eq!(agent.stop(), 0);
    assert!(Client::new(carrier.address).counter(CARRIED) >= 2);
    // Beyond this machine nothing goes in clear.
    let mut open = binary();
    open.args(["scribe", "agent", "--port", "0", "--to", &address, "--carry-port", "0"]);
    open.args(["--carry-listen", "0.0.0.0", "--spool"]).arg(scratch.path("open"));
    finish(&mut open, b"").refused(&["--carry-tls"]);
    assert_eq!(carrier.stop(), 0);
    node.stop();
}

/// An agent behind a carrier behind a carrier; while the one in between is away, all is kept.
#[test]
fn a_carrier_may_be_in_front_of_another() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("node"));
    let [first, second, spool] = ["first", "second", "spool"].map(|name| scratch.path(name));
    let proves = |directory: &Path| directory.join("secret").to_str().unwrap().to_owned();
    let near = Agent::start(&first, 0, &node.data, &["--carry-port", "0"]);
    let (port, to_near) = (free_port().to_string(), near.carries.unwrap().to_string());
    let between = ["--secret", &proves(&first), "--carry-port", &port];
    let far = Agent::start_to(&second, 0, &to_near, &between);
    let secret = ["--secret", &proves(&second)];
    let agent = Agent::start_to(&spool, 0, &format!("127.0.0.1:{port}"), &secret);
    let wanted: Vec<String> = (0..20).map(|n| format!("line {n}")).collect();
    let mut client = Client::new(agent.address);
    let mut say = |lines: &[String]| {
        for line in lines {
            assert_eq!(client.log(&[("c", line.as_bytes())]), Some(true));
        }
    };
    say(&wanted[..10]);
    until(&node, "c", 10);
    far.kill();
    say(&wanted[10..]);
    let far = Agent::start_to(&second, 0, &to_near, &between);
    until(&node, "c", 20);
    assert_eq!(lines(&node, "c"), wanted);
    assert_eq!((agent.stop(), far.stop(), near.stop()), (0, 0, 0));
    node.stop();
}

/// Carriers that named each other waited for each other, and nobody was told that they did.
#[test]
fn carriers_in_a_ring_say_so_and_go_on_where_one_of_them_has_another_way() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("node"));
    let ports = [free_port(), free_port()];
    let secret = scratch.path("carriers.secret");
    std::fs::copy(node.data.join("secret"), &secret).unwrap();
    let secret = secret.to_str().unwrap();
    let carrier = |at: usize, to: &str| {
        let port = ports[at].to_string();
        let more = ["--secret", secret, "--carry-port", &port, "--carry-secret", secret];
        Agent::start_to(&scratch.path(&format!("carrier-{at}")), 0, to, &more)
    };
    let [first_at, second_at] = ports.map(|port| format!("127.0.0.1:{port}"));
    let (first, second) = (carrier(0, &second_at), carrier(1, &first_at));
    let agent = Agent::start_to(&scratch.path("spool"), 0, &first_at, &["--secret", secret]);
    assert_eq!(Client::new(agent.address).log(&[("c", b"one")]), Some(true));
    for hop in [&agent, &first, &second] {
        Client::new(hop.address).until_told("in a ring");
    }
    second.kill();
    let to = format!("{first_at},unix:{}", node.socket().display());
    let second = carrier(1, &to);
    until(&node, "c", 1);
    assert_eq!((agent.stop(), first.stop(), second.stop()), (0, 0, 0));
    assert_eq!(lines(&node, "c"), ["one"]);
    node.stop();
}

/// Over TLS to whom the authority has signed, and to nobody else; from there on everything is as without.
#[test]
fn agents_speak_tls_to_a_carrier_that_their_authority_has_signed() {
    let scratch = Scratch::new();
    let node = Node::start(&scratch.path("node"));
    let cert =
        |words: &[&str], path: &Path| finish(binary().arg("cert").args(words).arg(path), b"").ok();
    let authority = |name: &str| {
        let at = scratch.path(name);
        cert(&["init", name, "--dir"], &at);
        at
    };
    let (tls, other, own) = (authority("tls"), authority("other"), scratch.path("own"));
    cert(&["node", "carrier", "--host", "127.0.0.1", "--dir"], &tls);
    std::fs::create_dir(&own).unwrap();
    for (from, to) in
        [("carrier.pem", "node.pem"), ("carrier.key", "node.key"), ("ca.pem", "ca.pem")]
    {
        std::fs::copy(tls.join(from), own.join(to)).unwrap();
    }
    let at = scratch.path("carrier");
    let more = ["--carry-port", "0", "--carry-tls", own.to_str().unwrap()];
    let carrier = Agent::start(&at, 0, &node.data, &more);
    let to = carrier.carries.unwrap().to_string();
    let proves = at.join("secret").to_str().unwrap().to_owned();
    let start = |authority: &Path| {
        let ca = authority.join("ca.pem");
        let more = ["--secret", &proves, "--drain", "1", "--cacert", ca.to_str().unwrap()];
        let agent = Agent::start_to(&authority.join("spool"), 0, &to, &more);
        let mut client = Client::new(agent.address);
        assert_eq!(client.log(&[("c", b"one"), ("d", b"two")]), Some(true));
        (agent, client)
    };
    let ((good, _), (strange, mut its)) = (start(&tls), start(&other));
    until(&node, "c", 1);
    until(&node, "d", 1);
    its.until_told("certificate");
    assert_eq!(good.stop(), 0);
    assert!(strange.stop() > 0);
    assert_eq!((lines(&node, "c").len(), carrier.stop()), (1, 0));
    node.stop();
}
