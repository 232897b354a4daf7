//! `scribe agent`: a door beside an application, a spool on its disk, and a thread that brings what is kept
//! to the topics, through whichever node or carrier answers; and, where that is asked for, a port on which it
//! carries for other agents. Ends when what it holds is delivered, or its time is up.

mod window;
mod words;

use crate::batch::{Position, SpoolId};
use crate::carrier::{self, Carries};
use crate::category::Category;
use crate::door::{self, More, Service};
use crate::files::{Files, WithFiles};
use crate::hops::{Hop, Hops};
use crate::intake::Intake;
use crate::spool::Progress;
use crate::store::{Bounds, Outgoing, Store};
use crate::stores::Stores;
use crate::word::check_name;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::runtime::Runtime;
use holdfast_env::tasks::{self, Stop, Task};
use holdfast_env::{Budget, Clock, Disk, HoldMutex, Rng, event};
use holdfast_wire::scribe as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use words::Words;

/// Categories of one question.
const ASK_CATEGORIES: usize = 1000;
/// Before a node is asked again after one could not be.
const REST: Duration = Duration::from_millis(500);
/// The longest sleep of the thread that has nothing to send.
const IDLE: Duration = Duration::from_secs(3600);
/// Before a category is sent again that took nothing: what it holds would be read from the disk each time.
const REFUSED_REST: Duration = Duration::from_secs(10);

/// Categories of which the door says why they take nothing.
const DETAILS_MAX: usize = 10;

const _: () = assert!(ASK_CATEGORIES <= msg::ASK_CATEGORIES_MAX);

/// How an agent runs.
pub struct Settings {
    /// The spool's directory, which is this agent's alone.
    pub spool: PathBuf,
    /// What outlives the directory: who begins another spool under this name is in this one's place.
    pub name: String,
    pub bounds: Bounds,
    /// Where Scribe's clients are served.
    pub listen: SocketAddr,
    /// What becomes of messages, by category.
    pub stores: Stores,
    /// Nodes of one cluster, or carriers on the way to it: each spool likes another one best.
    pub to: Vec<Endpoint>,
    pub client: ClientOptions,
    /// Where it carries for other agents, if it does.
    pub carries: Option<carrier::Settings>,
    pub connections_max: usize,
    /// What may be held for clients.
    pub budget: Arc<Budget>,
}

struct Shared {
    store: Arc<Store>,
    hops: Hops,
    clock: Arc<dyn Clock>,
    stop: Stop,
    /// Why messages do not leave, while they do not; which categories take nothing.
    trouble: Mutex<Option<String>>,
    refused: Mutex<BTreeMap<Category, Refused>>,
    /// Whether a right was missing in this pass.
    is_denied: AtomicBool,
    told_copied: Mutex<BTreeSet<Category>>,
    told_denied: Mutex<BTreeSet<Category>>,
    words: Words,
    /// Whether the thread that forwards has ended; told once it has.
    has_ended: Mutex<bool>,
    ended: Condvar,
}

/// Why a category takes nothing, and when it is asked again.
struct Refused {
    why: String,
    until_ns: u64,
}

/// A running agent.
pub struct Agent {
    door: Runtime,
    service: Arc<Service>,
    shared: Arc<Shared>,
    forwards: Task,
    carries: Option<Carries>,
}

impl Agent {
    pub fn start(
        settings: Settings,
        disk: Arc<dyn Disk>,
        rng: Arc<dyn Rng>,
        clock: Arc<dyn Clock>,
    ) -> Result<Agent> {
        check_name(&settings.name)?;
        let store = Store::open(disk.clone(), &settings.spool, settings.bounds, &*rng)?;
        let store = Arc::new(store);
        let files = Files::new(disk, clock.clone(), settings.stores.files().to_vec());
        let intake = Intake::start(Arc::new(WithFiles { others: store.clone(), files }))?;
        let spool = store.look(|core| core.id().0);
        // The thread that forwards has rests of its own.
        let client = ClientOptions { patience: Duration::ZERO, ..settings.client };
        let hops = || Hops::new(settings.to.clone(), spool, client.clone(), clock.clone());
        let shared = Arc::new(Shared {
            store,
            hops: hops(),
            clock: clock.clone(),
            stop: Stop::new(),
            trouble: Mutex::default(),
            refused: Mutex::default(),
            is_denied: AtomicBool::new(false),
            told_copied: Mutex::default(),
            told_denied: Mutex::default(),
            words: Words::new(settings.name),
            has_ended: Mutex::default(),
            ended: Condvar::new(),
        });
        let start = |carries| Carries::start(carries, hops(), clock.clone());
        let carries = settings.carries.map(start).transpose()?;
        let counts = shared.clone();
        let carried = carries.as_ref().map(Carries::more);
        let since_s = (clock.unix_ms() / 1000) as i64;
        let service = Service::new(intake, (settings.stores, rng), since_s, move || {
            let mut more = counts.more();
            if let Some(carried) = &carried {
                let of_carrier = carried();
                more.counters.extend(of_carrier.counters);
                more.details.extend(of_carrier.details);
            }
            more
        });
        let (connections, budget) = (settings.connections_max, settings.budget);
        let door = door::serve(settings.listen, service.clone(), connections, budget)?;
        let runs = shared.clone();
        let forwards = tasks::spawn("scribe-forward", move || runs.run())?;
        Ok(Agent { door, service, shared, forwards, carries })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// Where it carries for other agents, if it does.
    pub fn carries(&self) -> Option<SocketAddr> {
        self.carries.as_ref().map(Carries::address)
    }

    /// The spool's identity.
    pub fn spool(&self) -> String {
        self.shared.store.look(|core| core.id().to_string())
    }

    /// Takes nothing more, and ends when everything was delivered and the topics were told that this is all, or
    /// `most` is over; how many batches stay in the spool, for the next start.
    pub fn end(self, most: Duration) -> usize {
        let from_ns = self.shared.clock.monotonic_ns();
        drop(self.door);
        if let Some(carries) = self.carries {
            carries.end();
        }
        self.service.intake().end();
        let left = self.shared.store.wait_delivered(most);
        self.shared.stop.request();
        self.shared.store.nudge();
        let spent_ns = self.shared.clock.monotonic_ns().saturating_sub(from_ns);
        let rest = most.saturating_sub(Duration::from_nanos(spent_ns));
        if left == 0 && self.shared.wait_ended(rest) {
            self.forwards.join();
        }
        // Otherwise it waits for a node, and ends with the process: all that it knows is in the spool.
        left
    }
}

impl Shared {
    fn more(&self) -> More {
        let mut counters = self.store.look(|core| {
            let lag =
                core.lag().map(|(name, lag)| (format!("{name}:messages in spool"), lag as i64));
            let mut counters: Vec<(String, i64)> = lag.collect();
            counters.push(("scribe_overall:batches in spool".to_owned(), core.pending() as i64));
            counters.push(("scribe_overall:copied".to_owned(), core.copied().count() as i64));
            counters
        });
        counters.push(("scribe_overall:bytes of spool".to_owned(), self.store.bytes() as i64));
        let mut details: Vec<String> = self.trouble.held().iter().cloned().collect();
        let waits = details.len() as i64;
        counters.push(("scribe_overall:next hop away".to_owned(), waits));
        let refused = self.refused.held();
        counters.push(("scribe_overall:categories refused".to_owned(), refused.len() as i64));
        counters.extend(refused.keys().map(|category| (format!("{category}:refused"), 1)));
        let why = |(category, refused): (&Category, &Refused)| {
            format!("`{category}` takes nothing: {}", refused.why)
        };
        details.extend(refused.iter().take(DETAILS_MAX).map(why));
        drop(refused);
        let (aside, given_up) = self.store.aside();
        More { counters, details }.with_aside(aside, given_up)
    }

    fn run(&self) {
        let mut hop = None;
        while !self.stop.is_requested() {
            let resting = self.resting();
            let most = if resting.is_empty() { IDLE } else { REFUSED_REST };
            if !self.store.wait_to_send(most, &self.stop, &resting) {
                continue;
            }
            let sent = self.forward(&mut hop, resting);
            if let Err(e) = &sent {
                // It may be the hop: the next one has the next attempt.
                self.hops.failed(&mut hop);
                self.trouble(&e.message);
            }
            if !matches!(sent, Ok(true)) {
                self.stop.sleep_until_stop(REST);
            }
        }
        // Where a hop is away now, nobody waits for it: nothing of the messages is left.
        if self.store.look(|core| core.pending()) == 0 {
            let _ = self.say_ends(&mut hop);
        }
        *self.has_ended.held() = true;
        self.ended.notify_all();
    }

    /// Whether the thread that forwards ends within this time.
    fn wait_ended(&self, most: Duration) -> bool {
        let waits = |has_ended: &mut bool| !*has_ended;
        let waited = self.ended.wait_timeout_while(self.has_ended.held(), most, waits);
        *waited.expect("nobody panics who holds it").0
    }

    /// Categories that took nothing, and are not asked again yet.
    fn resting(&self) -> BTreeSet<Category> {
        let now_ns = self.clock.monotonic_ns();
        let refused = self.refused.held();
        let rests = refused.iter().filter(|(_, refused)| refused.until_ns > now_ns);
        rests.map(|(category, _)| category.clone()).collect()
    }

    /// Takes down that a category takes nothing; whether that is news.
    fn refuse(&self, category: &Category, why: &str) -> bool {
        let until_ns = self.clock.monotonic_ns() + REFUSED_REST.as_nanos() as u64;
        let refused = Refused { why: why.to_owned(), until_ns };
        let known = self.refused.held().insert(category.clone(), refused);
        known.is_none_or(|known| known.why != why)
    }

    fn trouble(&self, why: &str) {
        let mut trouble = self.trouble.held();
        if trouble.is_none() {
            event!(ScribeWaits, why);
        }
        *trouble = Some(why.to_owned());
    }

    fn goes_on(&self) {
        if self.trouble.held().take().is_some() {
            event!(ScribeGoesOn, "messages reach their topics again");
        }
    }

    /// Sends what there is, from the front; whether something was delivered.
    fn forward(&self, hop: &mut Option<Hop>, mut without: BTreeSet<Category>) -> Result<bool> {
        let client = self.hops.reach(hop, |client| self.ask(client))?;
        let delivered = self.pass(client, &mut without)?;
        match self.is_denied.swap(false, Ordering::Relaxed) {
            // Another hop may have rights that this one has not.
            true => self.hops.failed(hop),
            false => self.hops.worked(hop),
        }
        // Some categories may take nothing; but whoever is there answers.
        if without.is_empty() || delivered > 0 {
            self.goes_on();
        }
        Ok(delivered > 0)
    }

    /// Where the spool is, before anything is sent: what topics have already is not sent again.
    fn ask(&self, client: &mut Client) -> Result<()> {
        self.words.try_again();
        let categories: Vec<Category> =
            self.store.look(|core| core.categories().cloned().collect());
        let spool = self.store.look(|core| core.id());
        for some in categories.chunks(ASK_CATEGORIES) {
            self.ask_some(client, spool, some)?;
        }
        Ok(())
    }

    fn ask_some(&self, client: &mut Client, spool: SpoolId, some: &[Category]) -> Result<()> {
        let names = some.iter().map(|category| category.name().to_owned()).collect();
        let positions = match client.scribe_ask(spool.0, names) {
            Err(e) if e.kind == Kind::Denied => {
                if let [one] = some {
                    self.deny(one, &e);
                    return Ok(());
                }
                // A request is denied as a whole, and nobody knows for which of them.
                let (some, others) = some.split_at(some.len() / 2);
                self.ask_some(client, spool, some)?;
                return self.ask_some(client, spool, others);
            }
            positions => positions?,
        };
        for (category, position) in some.iter().zip(positions) {
            self.learn(category, &position, None, &mut BTreeSet::new())?;
        }
        Ok(())
    }

    /// There is no right to write a category: it stands still, and the others go on.
    fn deny(&self, category: &Category, e: &Error) {
        self.is_denied.store(true, Ordering::Relaxed);
        self.refuse(category, &e.message);
        if self.told_denied.held().insert(category.clone()) {
            event!(ScribeWaits, e.message);
        }
    }

    /// One request, and nothing else under way; how many batches their topics are known to have by it.
    fn send(
        &self,
        client: &mut Client,
        outgoing: &[&Outgoing],
        without: &mut BTreeSet<Category>,
    ) -> Result<usize> {
        let categories: BTreeSet<&Category> = outgoing.iter().map(|one| &one.category).collect();
        let names = categories.iter().map(|category| category.name().to_owned()).collect();
        let batches: Vec<&[u8]> = outgoing.iter().map(|one| &one.bytes[..]).collect();
        let mut delivered = 0;
        let positions = match client.scribe_append(names, &batches) {
            Err(e) if e.kind == Kind::Denied => {
                let names: Vec<&Category> = categories.into_iter().collect();
                if let [one] = names[..] {
                    self.deny(one, &e);
                    without.insert(one.clone());
                    return Ok(0);
                }
                // As of a question.
                let (some, others) = names.split_at(names.len() / 2);
                for part in [some, others] {
                    let own = outgoing.iter().copied().filter(|one| part.contains(&&one.category));
                    delivered += self.send(client, &own.collect::<Vec<_>>(), without)?;
                }
                return Ok(delivered);
            }
            positions => positions?,
        };
        for (one, position) in outgoing.iter().zip(&positions) {
            delivered += self.learn(&one.category, position, None, without)?;
        }
        Ok(delivered)
    }

    /// Takes in an answer; `known`: before which message the topic was known to have everything when it was
    /// asked, where others were under way. A category that takes nothing now is left out of this pass.
    fn learn(
        &self,
        category: &Category,
        position: &msg::Position,
        known: Option<u64>,
        without: &mut BTreeSet<Category>,
    ) -> Result<usize> {
        if !position.refused.is_empty() {
            without.insert(category.clone());
            let is_news = self.refuse(category, &position.refused);
            return match position.never {
                true => self.set_aside(category, &position.refused, is_news),
                false => {
                    if is_news {
                        event!(ScribeWaits, position.refused);
                    }
                    Ok(0)
                }
            };
        }
        self.refused.held().remove(category);
        let position = Position { next: position.next, checksum: position.checksum };
        let progress = match known {
            Some(known) => self.store.hear(category, position, known),
            None => self.store.learn(category, position),
        };
        match progress {
            Progress::Has(batches) => Ok(batches),
            Progress::Behind => {
                without.insert(category.clone());
                let why = format!(
                    "bring messages of `{category}` to their topic: it has fewer than it had: another \
                     cluster answers, or a node that is behind"
                );
                if self.refuse(category, &why) {
                    event!(ScribeWaits, why);
                }
                Ok(0)
            }
            Progress::Copied => {
                if self.told_copied.held().insert(category.clone()) {
                    let id = self.store.look(|core| core.id());
                    let why = format!(
                        "`{category}`: its topic has messages of spool {id} that were not sent from here: \
                         the spool's directory was copied, and another agent sends from the copy"
                    );
                    event!(ScribeCopied, why);
                }
                Ok(0)
            }
        }
    }

    /// Its topic never takes it: without this the spool would fill up behind it, and take nothing more of
    /// any category.
    fn set_aside(&self, category: &Category, why: &str, is_news: bool) -> Result<usize> {
        let batches = self.store.set_aside(category, why)?;
        if is_news {
            let what = format!("messages of `{category}` are kept aside: {why}");
            event!(ScribeAside, what);
        }
        Ok(batches)
    }
}
