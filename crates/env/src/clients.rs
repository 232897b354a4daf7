//! What each client of this process may take a second, on whatever port: the driver of
//! [`holdfast_base::rates`], which decides. Ports ask it for a turn and tell what was taken; it
//! counts, and tells the event. Never waits itself.

use crate::locks::HoldMutex;
use crate::{event, planted};
use holdfast_base::rates::{self, Allowance, Limit, Rates, Turn, Wait};
use holdfast_base::text::shown;
use holdfast_base::{Error, Result};
use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Clients of either kind that are remembered: more than a cluster has tokens, and about a
/// megabyte.
const REMEMBERED_MAX: usize = 4096;
/// What of an address of IPv6 is one client: a network, within which its owner has all.
const NETWORK_BITS: u32 = 64;
const MS_NS: u64 = 1_000_000;
/// Between two looks at a connection that waits: meanwhile more than one request's worth flows in,
/// and a client with many connections is not looked at all the time.
const REST_NS: u64 = 10 * MS_NS;
/// Between two refusals over one connection, so that who is refused cannot be heard all the time.
const REFUSED_REST_NS: u64 = 1000 * MS_NS;

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// Whom a token or a certificate names.
    Name(String),
    /// Whoever signs with this access key of S3.
    Key(String),
    /// A reader without a signature.
    Address(IpAddr),
}

impl Client {
    /// Somebody of whom nothing is known but where they are.
    pub fn at(address: IpAddr) -> Client {
        Client::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() & (u128::MAX << (128 - NETWORK_BITS));
                Ipv6Addr::from_bits(network).into()
            }
            address => address,
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Name(name) => write!(f, "client `{}`", shown(name)),
            Client::Key(key) => write!(f, "access key `{}`", shown(key)),
            Client::Address(IpAddr::V6(network)) => {
                write!(f, "readers in {network}/{NETWORK_BITS}")
            }
            Client::Address(address) => write!(f, "readers at {address}"),
        }
    }
}

/// A client that was slowed within the last minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slowed {
    /// As people call it.
    pub client: String,
    /// The setting.
    pub limit: &'static str,
    /// Its value.
    pub allowed: u64,
    /// The same, for people.
    pub amount: String,
    /// Of the last 60, in which it had to wait.
    pub seconds: u64,
    /// Until it has to wait no more, if it asks for nothing meanwhile.
    pub left_ms: u64,
}

/// Clients who are allowed the same.
#[derive(Debug)]
struct Group {
    allowed: Allowance,
    /// What the limits are called, by their places in [`Limit::ALL`].
    settings: [&'static str; 3],
    rates: Mutex<Rates<Client>>,
    /// How often one of them had to wait, by the same places.
    waits: [AtomicU64; 3],
}

impl Group {
    fn new(allowed: Allowance, settings: [&'static str; 3]) -> Group {
        let rates = Mutex::new(Rates::new(allowed, REMEMBERED_MAX));
        Group { allowed, settings, rates, waits: Default::default() }
    }

    /// As people read it: the setting and what it is.
    fn limit(&self, limit: Limit) -> String {
        let amount = limit.amount(self.allowed.of(limit));
        format!("`{}`, {amount}", self.settings[limit as usize])
    }

    /// Counts a wait, and tells of it now and then.
    fn slow(&self, client: &Client, wait: &Wait) {
        self.waits[wait.limit as usize].fetch_add(1, Ordering::Relaxed);
        if wait.tell {
            let limit = self.limit(wait.limit);
            event!(ClientSlowed, format!("slow down {client}: more was asked for than {limit}"));
        }
    }

    fn slow_for(&self, client: &Client, turn: &Turn) {
        if let Turn::Wait(wait) | Turn::Refuse(wait) = turn {
            self.slow(client, wait);
        }
    }
}

/// What clients have taken lately; of one process.
#[derive(Debug)]
pub struct Clients {
    known: Group,
    strangers: Group,
}

impl Clients {
    /// What each client with a name, or an access key, may take, and what each stranger.
    pub fn new(known: Allowance, strangers: Allowance) -> Arc<Clients> {
        let known = Group::new(known, ["client_requests", "client_bytes", "client_connections"]);
        let settings = ["anonymous_requests", "anonymous_bytes", "anonymous_connections"];
        Arc::new(Clients { known, strangers: Group::new(strangers, settings) })
    }

    /// Of whom nothing is counted.
    pub fn without_limits() -> Arc<Clients> {
        Clients::new(Allowance::default(), Allowance::default())
    }

    fn group(&self, client: &Client) -> &Group {
        match client {
            Client::Name(_) | Client::Key(_) => &self.known,
            Client::Address(_) => &self.strangers,
        }
    }

    /// Whether such a client may ever have to wait. Others are not to be counted: it costs a lock.
    pub fn has_rates(&self, client: &Client) -> bool {
        self.group(client).allowed.has_rates()
    }

    /// Whether anybody who asks S3 may ever have to wait.
    pub fn limits_s3(&self) -> bool {
        self.known.allowed.has_rates() || self.strangers.allowed.has_rates()
    }

    /// Whether `client` may go on now; see [`Rates::turn`].
    pub fn turn(&self, client: &Client, now_ns: u64) -> Turn {
        let group = self.group(client);
        let turn = group.rates.held().turn(client, now_ns);
        group.slow_for(client, &turn);
        turn
    }

    /// Takes a request or an answer ahead; see [`Rates::reserve`].
    pub fn reserve(
        &self,
        client: &Client,
        now_ns: u64,
        longest_ns: u64,
        wanted: rates::Wanted,
    ) -> Turn {
        let group = self.group(client);
        let turn = group.rates.held().reserve(client, now_ns, longest_ns, wanted);
        group.slow_for(client, &turn);
        turn
    }

    /// What `client` has used.
    pub fn take(&self, client: &Client, now_ns: u64, requests: u64, bytes: u64) {
        self.group(client).rates.held().take(client, now_ns, requests, bytes);
    }

    /// What `client` took ahead and has not used.
    pub fn give_back(&self, client: &Client, bytes: u64) {
        self.group(client).rates.held().give_back(client, bytes);
    }

    /// The setting that a wait is for, and its value, for people.
    pub fn limit(&self, client: &Client, limit: Limit) -> String {
        self.group(client).limit(limit)
    }

    /// A place for one connection of the client of this name; nothing where nothing is limited.
    /// `Retry` where it has its limit of connections already.
    pub fn seat(self: &Arc<Self>, name: &str, now_ns: u64) -> Result<Option<Seat>> {
        let Group { allowed, rates, .. } = &self.known;
        if *allowed == Allowance::default() {
            return Ok(None);
        }
        let name = if planted!("env.debt-is-anothers") { "" } else { name };
        let client = Client::Name(name.to_owned());
        let seated = rates.held().connect(&client, now_ns);
        seated.map_err(|wait| {
            self.known.slow(&client, &wait);
            let allowed = self.known.allowed.of(wait.limit);
            Error::retry(format!(
                "connect as `{}`: it has its limit of {allowed} connections to this node (`{}`): close some, or try again later",
                shown(name),
                self.known.settings[wait.limit as usize]
            ))
        })?;
        let (clients, has_rates) = (self.clone(), allowed.has_rates());
        Ok(Some(Seat { clients, client, has_rates, refused_ns: None }))
    }

    /// Who was slowed within the last minute, those first who have to wait longest.
    pub fn slowed(&self, now_ns: u64) -> Vec<Slowed> {
        let of = |group: &Group| {
            let slowed = group.rates.held().slowed(now_ns);
            let named = slowed.into_iter().map(|rates::Slowed { key, limit, seconds, left_ns }| {
                let allowed = group.allowed.of(limit);
                Slowed {
                    client: key.to_string(),
                    limit: group.settings[limit as usize],
                    allowed,
                    amount: limit.amount(allowed),
                    seconds,
                    left_ms: left_ns.div_ceil(MS_NS),
                }
            });
            named.collect::<Vec<_>>()
        };
        let mut all = [of(&self.known), of(&self.strangers)].concat();
        all.sort_by_key(|slowed| Reverse(slowed.left_ms));
        all
    }

    /// How often somebody had to wait, or was refused, since the start, by the setting.
    pub fn waits(&self) -> Vec<(&'static str, u64)> {
        let of = |group: &Group, limits: &[Limit]| {
            let waits = |limit: &Limit| group.waits[*limit as usize].load(Ordering::Relaxed);
            let setting = |limit: &Limit| group.settings[*limit as usize];
            let each = limits.iter().map(|limit| (setting(limit), waits(limit)));
            each.collect::<Vec<_>>()
        };
        [of(&self.known, &Limit::ALL), of(&self.strangers, &[Limit::Requests, Limit::Bytes])]
            .concat()
    }
}

/// One connection of a client with a name; it counts until this is dropped.
#[derive(Debug)]
pub struct Seat {
    clients: Arc<Clients>,
    client: Client,
    /// Whether the client may ever have to wait.
    pub has_rates: bool,
    /// When a request of this connection was refused last, because its client owes too much.
    refused_ns: Option<u64>,
}

/// What a connection does with what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Takes so many requests at once; never 0.
    Take { requests: usize },
    /// Reads nothing before then.
    Wait { until_ns: u64 },
    /// Reads, and answers each request with this, until it has told [`Seat::refused`].
    Refuse(Error),
}

impl Seat {
    /// What its connection does now. The one place where this is decided, for all who have seats.
    pub fn next(&self, now_ns: u64) -> Next {
        let wait = match self.clients.turn(&self.client, now_ns) {
            Turn::Go { requests } => {
                return Next::Take { requests: usize::try_from(requests).unwrap_or(usize::MAX) };
            }
            Turn::Wait(wait) => wait,
            Turn::Refuse(wait) if planted!("env.debtors-hear-nothing") => wait,
            Turn::Refuse(wait) => {
                let again_ns = self.refused_ns.map(|at| at.saturating_add(REFUSED_REST_NS));
                return match again_ns.filter(|again_ns| *again_ns > now_ns) {
                    Some(until_ns) => Next::Wait { until_ns },
                    None => Next::Refuse(self.refusal(&wait)),
                };
            }
        };
        Next::Wait { until_ns: now_ns.saturating_add(wait.ns.max(REST_NS)) }
    }

    /// Somebody was answered so: the next refusal is some time away, for each costs a little, too.
    pub fn refused(&mut self, now_ns: u64) {
        self.refused_ns = Some(now_ns);
    }

    fn refusal(&self, wait: &Wait) -> Error {
        let seconds = wait.ns.div_ceil(1_000_000_000);
        let limit = self.clients.limit(&self.client, wait.limit);
        Error::retry(format!(
            "answer {}: it owes {seconds} s of {limit}: ask again in {seconds} s",
            self.client
        ))
    }

    /// What its client has used.
    pub fn take(&self, now_ns: u64, requests: u64, bytes: u64) {
        self.clients.take(&self.client, now_ns, requests, bytes);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !planted!("env.ended-connections-count") {
            self.clients.known.rates.held().disconnect(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::told_by;

    const S: u64 = 1_000_000_000;

    #[test]
    fn networks_of_ipv6_are_one_reader_and_addresses_in_them_ipv4s() {
        let at = |text: &str| Client::at(text.parse().unwrap());
        assert_eq!(at("2001:db8:1:2::7"), at("2001:db8:1:2:ffff::1"));
        assert_ne!(at("2001:db8:1:2::7"), at("2001:db8:1:3::7"));
        assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
        assert_eq!(at("2001:db8:1:2::7").to_string(), "readers in 2001:db8:1:2::/64");
    }

    #[test]
    fn who_is_slowed_is_named_with_the_setting_counted_and_told_of() {
        let two = Allowance { requests: 2, bytes: 0, connections: 1 };
        let clients = Clients::new(two, Allowance { requests: 1, ..Allowance::default() });
        let seat = clients.seat("noisy", 0).unwrap().unwrap();
        let other = clients.seat("quiet", 0).unwrap().unwrap();
        seat.take(0, 3, 0);
        let (next, told) = told_by(|| (seat.next(0), seat.next(0)).0);
        assert_eq!(next, Next::Wait { until_ns: S });
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].event, "client.slowed");
        assert!(told[0].message.contains("client `noisy`"), "{}", told[0].message);
        assert!(told[0].message.contains("`client_requests`, 2/s"), "{}", told[0].message);
        assert_eq!(other.next(0), Next::Take { requests: 2 });
        let why = clients.seat("noisy", 0).unwrap_err().message;
        assert!(why.contains("limit of 1") && why.contains("`client_connections`"), "{why}");
        let slowed = |limit, allowed, amount: &str, left_ms| {
            let (client, amount) = ("client `noisy`".into(), amount.into());
            Slowed { client, limit, allowed, amount, seconds: 1, left_ms }
        };
        let both =
            [slowed("client_requests", 2, "2/s", 1000), slowed("client_connections", 1, "1", 0)];
        assert_eq!(clients.slowed(0), both);
        assert_eq!(clients.slowed(61 * S), []);
        let counts: Vec<u64> = clients.waits().iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 0, 1, 0, 0]);
        drop(seat);
        assert!(clients.seat("noisy", 0).is_ok(), "its connection has ended");
    }

    #[test]
    fn who_owes_too_much_hears_how_long_it_takes_and_not_all_the_time() {
        let allowed = Allowance { bytes: 10 << 20, ..Allowance::default() };
        let clients = Clients::new(allowed, Allowance::default());
        let mut seat = clients.seat("large", 0).unwrap().unwrap();
        let beside = clients.seat("large", 0).unwrap().unwrap();
        let ceiling_s = rates::DEBT_NS_MAX / S;
        seat.take(0, 1, (ceiling_s + 1) * allowed.bytes);
        assert_eq!(seat.next(0), Next::Wait { until_ns: ceiling_s * S });
        seat.take(0, 1, 1);
        let Next::Refuse(why) = seat.next(0) else { panic!("it owes more than anybody may") };
        assert!(why.message.contains("`client_bytes`, 10 MB/s"), "{why}");
        assert!(why.message.ends_with(&format!("ask again in {} s", ceiling_s + 1)), "{why}");
        seat.refused(0);
        assert_eq!(seat.next(1), Next::Wait { until_ns: REFUSED_REST_NS });
        assert!(matches!(beside.next(1), Next::Refuse(_)), "each connection is told");
        seat.take(0, 1, 10 * allowed.bytes);
        assert!(matches!(seat.next(REFUSED_REST_NS), Next::Refuse(_)));
        assert!(matches!(seat.next(20 * S), Next::Wait { .. }));
        assert!(matches!(seat.next(60 * S), Next::Take { .. }), "a debt is paid in the end");
    }

    #[test]
    fn without_limits_nobody_has_a_seat() {
        assert!(Clients::without_limits().seat("a", 0).unwrap().is_none());
    }
}
