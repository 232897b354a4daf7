//! Router against server: what a client hears through a router is what the server itself says.

use super::streams::{Streams, Style, comparable, difference};
use super::{ITEM_BYTES_MAX, cache, converse};
use holdfast_cache_client::fleet;
use holdfast_cache_client::route::{PoolPlan, RoutePlan, Server, Settings};
use holdfast_cache_client::{Hashing, Member};
use holdfast_env::trial::Trial;
use holdfast_env::{RealClock, tasks};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

const CLIENTS: u64 = 4;
const STREAMS: u64 = 40;
const TRIALS_MIN: u64 = 6;
const TRIALS_MAX: u64 = 60;

fn route(servers: &[SocketAddr]) -> Server {
    let servers = servers.iter().map(|s| Member::parse(&s.to_string()).unwrap()).collect();
    let pool = PoolPlan { name: "all".into(), servers, ..PoolPlan::default() };
    let pool = PoolPlan { hashing: Hashing::default(), ..pool };
    let plan = RoutePlan::new(vec![pool], Vec::new(), "all", 10).unwrap();
    let mut settings = Settings {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 2,
        connections_max: 100,
        // What an item may hold beside its key, as memcached counts.
        value_bytes_max: ITEM_BYTES_MAX - 60,
        fleet: fleet::Settings::default(),
    };
    // A busy machine is silent for long.
    settings.fleet.patience_ns = 30_000_000_000;
    Server::start(plan, settings, Arc::new(RealClock::new())).unwrap()
}

/// A router and a cache that read `delete a noreply\0x` differently gave clients the answers of
/// others: the cache ended the line at the NUL and answered nothing, the router did not, waited,
/// and took the next answer for this one. Since then both read with one parser; any other such
/// difference shows here, because each client compares each byte with what a cache of its own says,
/// while others are at it through the same connections.
#[test]
fn a_router_s_clients_hear_what_the_server_would_say_and_nothing_of_each_other() {
    let borders = [
        "cache-client.route-commands",
        "cache-client.route-keys",
        "cache-client.route-unsent",
        "cache-client.route-waiting",
    ];
    let mut crossed = BTreeSet::new();
    // As it runs, and with limits drawn small: how much comes together at a border is the threads'
    // chance, so that trials go on until each was crossed.
    for (trial, servers) in (0..TRIALS_MAX).flat_map(|seed| [(seed, 1), (seed, 3)]) {
        if trial >= TRIALS_MIN && borders.iter().all(|border| crossed.contains(border)) {
            break;
        }
        let entered = if trial == 0 { Trial::new() } else { Trial::drawn(trial) }.enter();
        let direct = cache();
        let behind: Vec<_> = (0..servers).map(|_| cache()).collect();
        let router = route(&behind.iter().map(|s| s.tcp_addresses()[0]).collect::<Vec<_>>());
        let (direct_at, router_at) = (direct.tcp_addresses()[0], router.addresses()[0]);
        let found = Arc::new(Mutex::new(Vec::new()));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let found = found.clone();
                let compare = move || {
                    let differs = client_compares(client, servers, direct_at, router_at);
                    found.lock().unwrap().extend(differs.err());
                };
                tasks::spawn(&format!("client-{client}"), compare).unwrap()
            })
            .collect();
        clients.into_iter().for_each(tasks::Task::join);
        let found = found.lock().unwrap();
        assert!(found.is_empty(), "{servers} servers, trial {trial}: {}", found.join("\n"));
        let knobs = entered.knobs().into_iter().filter(|(_, knob)| knob.crossed);
        crossed.extend(knobs.map(|(name, _)| name));
    }
    for border in borders {
        assert!(crossed.contains(border), "nothing came to {border}: {crossed:?}");
    }
}

fn client_compares(
    client: u64,
    servers: usize,
    direct: SocketAddr,
    router: SocketAddr,
) -> Result<(), String> {
    let tag = format!("~{client}~");
    for seed in 0..STREAMS {
        // Several servers answer a get of several keys in any order.
        let keys_max = if servers == 1 { 150 } else { 1 };
        let streams = Streams::new(seed * CLIENTS + client, Style::Wild, &tag, keys_max);
        let stream = streams.next();
        let parts = streams.parts(&stream);
        let (said, was_reset) = converse(direct, &parts);
        let (passed, router_reset) = converse(router, &parts);
        let (mut said, mut passed) = (comparable(&said), comparable(&passed));
        if was_reset || router_reset {
            // What was on its way is gone with the connection.
            let n = said.len().min(passed.len());
            let cut = |text: String| String::from_utf8_lossy(&text.as_bytes()[..n]).into_owned();
            (said, passed) = (cut(said), cut(passed));
        }
        let is_anothers = (0..CLIENTS)
            .filter(|other| *other != client)
            .any(|other| passed.contains(&format!("~{other}~")));
        if let Some(at) = difference(&said, &passed) {
            let shown: String = stream.escape_ascii().to_string().chars().take(2000).collect();
            return Err(format!("client {client}, seed {seed}: answers differ {at}\nto {shown}"));
        }
        if is_anothers {
            return Err(format!("client {client}, seed {seed}: another's answer: {passed}"));
        }
    }
    Ok(())
}
