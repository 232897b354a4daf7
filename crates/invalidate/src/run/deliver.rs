//! From the topic to the servers: tells each what it is to drop, and writes down how far they have confirmed.

use super::{ENTRIES, REST, Shared, known};
use crate::entry::Entry;
use crate::history::History;
use crate::lease::Leases;
use crate::rings;
use crate::send::{Due, Sender, What};
use holdfast_base::Result;
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_cache_client::lookaside::standing::lease_key;
use holdfast_cache_client::{CacheClientOptions, Client as CacheClient, Drops};
use holdfast_client::Client;
use holdfast_env::event;
use std::sync::Arc;
use std::time::Duration;

/// How long the topic is waited for, while all servers have confirmed, and while some have not.
const WAIT: Duration = Duration::from_millis(200);
const WAIT_AWAY: Duration = Duration::from_millis(20);
/// How often confirmations are written down.
const CONFIRM_NS: u64 = 1_000_000_000;

const WHAT: &str = "keys are dropped";
const LEASES: &str = "servers have leases";

pub fn run(shared: &Arc<Shared>) {
    while !shared.stop.is_requested() {
        if let Err(e) = deliver(shared) {
            shared.waits(WHAT, &e.message);
        }
        shared.stop.sleep_until_stop(REST);
    }
}

/// Which entries of the topic stay.
struct Keeps {
    /// The first that a later start needs.
    needed: Index,
    history: History,
}

impl Keeps {
    fn first(&self, sender: &Sender) -> Index {
        let history = self.history.first().unwrap_or(self.needed);
        self.needed.min(sender.needed()).min(history)
    }
}

/// Who is told what next, and what stays for a later start; nothing as long as the topic has nothing to say.
fn sender(shared: &Shared, client: &mut Client) -> Result<Option<(Sender, Keeps)>> {
    let settings = &shared.settings;
    let known = known(client, &shared.topic)?;
    let Some((last, ..)) = known.position else { return Ok(None) };
    let servers = rings::servers(&settings.plan, settings.pool).into_iter();
    let servers =
        servers.map(|number| (number, settings.plan.members[number as usize].to_string()));
    let (kept, mut confirmed) = known.confirmed.unwrap_or((last, Vec::new()));
    let gainers = rings::gainers(&known.rings, &rings::describe(&settings.plan, settings.pool));
    let before = confirmed.len();
    confirmed.retain(|(server, _)| !gainers.contains(server));
    if confirmed.len() < before {
        let why = "servers of the pool went, or weigh another amount: whoever has their keys now was not told of \
                   them";
        event!(InvalidateEmptied, why);
    }
    let sender = Sender::new(servers, &confirmed, known.first, known.next);
    let mut history = History::default();
    // Those behind are read again.
    let before = known.changes.iter().take_while(|noted| noted.index < sender.next());
    before.for_each(|noted| history.push(noted.index, noted.bytes));
    Ok(Some((sender, Keeps { needed: kept.min(last), history })))
}

/// One life of the connections; ends with the first to the cluster that fails.
fn deliver(shared: &Arc<Shared>) -> Result<()> {
    let settings = &shared.settings;
    let mut client = (shared.connect)()?;
    let Some((mut sender, mut keeps)) = sender(shared, &mut client)? else { return Ok(()) };
    let (options, clock) = (CacheClientOptions::default(), shared.clock.clone());
    let mut cache = CacheClient::of_plan(&settings.plan, options, clock)?;
    let holders = |key: &[u8]| rings::holders(&settings.plan, settings.pool, key);
    let rings = rings::describe(&settings.plan, settings.pool);
    let confirmed = |servers: Vec<(String, Index)>| {
        Entry::Confirmed { servers, rings: rings.clone() }.to_bytes()
    };
    let (mut written, mut written_ns) = (Vec::new(), 0);
    let mut leases = Leases::new(settings.lease_s, settings.lease_grace_s);
    while !shared.stop.is_requested() {
        lease(shared, &mut client, &mut cache, &sender, &mut leases)?;
        let due = sender.due();
        settings.about.progress.change(|counts| counts.servers = sender.lacks());
        let wait = if due.is_empty() { WAIT } else { WAIT_AWAY };
        let entries = match round(shared, &mut cache, &mut sender, due)? {
            true => client.log().read(&shared.topic, sender.next(), ENTRIES)?,
            false => client.log().tail(&shared.topic, sender.next(), wait)?,
        };
        for entry in entries {
            let said = Entry::read(entry.index, &entry.bytes)?;
            if matches!(said, Entry::Keys { .. } | Entry::Empty { .. }) {
                keeps.needed = keeps.needed.max(entry.index);
                keeps.history.push(entry.index, entry.bytes.len());
            }
            sender.push(entry.index, &said, holders);
        }
        let now_ns = shared.clock.monotonic_ns();
        let positions = sender.positions();
        if positions != written && now_ns.saturating_sub(written_ns) >= CONFIRM_NS {
            client.log().append(&shared.topic, &[confirmed(positions.clone())])?;
            // The last position, what some server needs and what was lately stay, and so does what was just written.
            client.log().trim(&shared.topic, keeps.first(&sender))?;
            (written, written_ns) = (positions, now_ns);
        }
    }
    client.log().append(&shared.topic, &[confirmed(sender.positions())])?;
    Ok(())
}

/// Gives leases to those that were told everything, and asks for the numbers of the next ones.
fn lease(
    shared: &Shared,
    client: &mut Client,
    cache: &mut CacheClient,
    sender: &Sender,
    leases: &mut Leases,
) -> Result<()> {
    let settings = &shared.settings;
    let key = lease_key(&settings.plan.pools[settings.pool].name);
    if leases.is_fenced(shared.fence.answered_ns()) {
        leases.ends(client.log().info(&shared.topic)?.next);
        shared.goes_on(LEASES);
    }
    let good = leases.to_give(|server| sender.told(server));
    if !good.is_empty() {
        // For people who look; what counts is that it is there.
        let value = format!("{}", shared.clock.unix_ms() / 1000);
        cache.store_for(&good, &key, value.as_bytes(), leases.lease_s())?;
    }
    let now_ns = shared.clock.monotonic_ns();
    if leases.is_due(now_ns) {
        if leases.is_unfenced() {
            let why = "give leases: the database's log was not read to its end for as long as one lasts: readers \
                       leave out all servers, and load from the database, until it is";
            shared.waits(LEASES, why);
        }
        let servers = rings::servers(&settings.plan, settings.pool);
        let tokens = cache.tokens(&servers, &key, leases.lease_s())?;
        // Behind the numbers: a server that froze may have given them long after it was asked.
        let given_ns = shared.clock.monotonic_ns();
        leases.given(given_ns, servers.into_iter().zip(tokens));
        shared.fence.ask(given_ns);
    }
    Ok(())
}

/// Tells servers what is due; whether all confirmed something.
fn round(
    shared: &Shared,
    cache: &mut CacheClient,
    sender: &mut Sender,
    due: Vec<Due>,
) -> Result<bool> {
    let orders: Vec<(u32, Drops<'_>)> = due
        .iter()
        .map(|due| match &due.what {
            What::Keys(keys) => (due.server, Drops::Keys(keys)),
            What::Empty => (due.server, Drops::All),
        })
        .collect();
    let done = cache.drop_at(&orders, shared.settings.stale_s)?;
    drop(orders);
    for (due, done) in due.iter().zip(&done) {
        let server = shared.settings.plan.members[due.server as usize].to_string();
        let what = format!("`{server}` is told what to drop");
        if *done {
            sender.confirmed(due);
            shared.goes_on(&what);
        } else {
            let why = format!(
                "tell cache `{server}` what to drop: it does not answer, or refuses; it is told once it does"
            );
            shared.waits(&what, &why);
        }
    }
    if done.iter().all(|done| *done) {
        shared.goes_on(WHAT);
    }
    Ok(!done.is_empty() && done.iter().all(|done| *done))
}
