//! `scribe agent`: a door beside an application, a spool on its disk, and a thread that brings what is kept
//! to the topics, through whichever node answers. Ends when what it holds is delivered, or its time is up.

use crate::batch::Position;
use crate::category::Category;
use crate::door::{self, Service};
use crate::intake::Intake;
use crate::spool::Progress;
use crate::store::{Bounds, Store};
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::runtime::Runtime;
use holdfast_env::tasks::{self, Stop, Task};
use holdfast_env::{Budget, Clock, Disk, HoldMutex, Rng, event};
use holdfast_wire::scribe as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Batches of one request.
const WINDOW_BYTES: usize = 4 << 20;
/// Categories of one question.
const ASK_CATEGORIES: usize = 1000;
/// Before a node is asked again after one could not be.
const REST: Duration = Duration::from_millis(500);
/// The longest sleep of the thread that has nothing to send.
const IDLE: Duration = Duration::from_secs(3600);

const _: () = assert!(WINDOW_BYTES <= msg::APPEND_BYTES_MAX);
const _: () = assert!(ASK_CATEGORIES <= msg::ASK_CATEGORIES_MAX);

/// How an agent runs.
pub struct Settings {
    /// The spool's directory, which is this agent's alone.
    pub spool: PathBuf,
    pub bounds: Bounds,
    /// Where Scribe's clients are served.
    pub listen: SocketAddr,
    /// Nodes of one cluster: the first that answers is used.
    pub to: Vec<Endpoint>,
    pub client: ClientOptions,
    pub connections_max: usize,
    /// What may be held for clients.
    pub budget: Arc<Budget>,
}

struct Shared {
    store: Arc<Store>,
    to: Vec<Endpoint>,
    client: ClientOptions,
    stop: Stop,
    /// Why messages do not leave, while they do not; which categories take nothing, and why.
    trouble: Mutex<Option<String>>,
    refused: Mutex<BTreeMap<Category, String>>,
    told_copied: Mutex<BTreeSet<Category>>,
}

/// A running agent.
pub struct Agent {
    door: Runtime,
    service: Arc<Service>,
    shared: Arc<Shared>,
    forwards: Task,
}

impl Agent {
    pub fn start(
        settings: Settings,
        disk: Arc<dyn Disk>,
        rng: &dyn Rng,
        clock: &dyn Clock,
    ) -> Result<Agent> {
        let store = Arc::new(Store::open(disk, &settings.spool, settings.bounds, rng)?);
        let intake = Intake::start(store.clone())?;
        let shared = Arc::new(Shared {
            store,
            to: settings.to,
            client: settings.client,
            stop: Stop::new(),
            trouble: Mutex::default(),
            refused: Mutex::default(),
            told_copied: Mutex::default(),
        });
        let counts = shared.clone();
        let since_s = (clock.unix_ms() / 1000) as i64;
        let service = Service::new(intake, since_s, move || counts.counters());
        let (connections, budget) = (settings.connections_max, settings.budget);
        let door = door::serve(settings.listen, service.clone(), connections, budget)?;
        let runs = shared.clone();
        let forwards = tasks::spawn("scribe-forward", move || runs.run())?;
        Ok(Agent { door, service, shared, forwards })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.door.address()
    }

    /// The spool's identity.
    pub fn spool(&self) -> String {
        self.shared.store.look(|core| core.id().to_string())
    }

    /// Takes nothing more, and ends when everything was delivered or `most` is over; how many batches stay
    /// in the spool, for the next start.
    pub fn end(self, most: Duration) -> usize {
        drop(self.door);
        self.service.intake().end();
        let left = self.shared.store.wait_delivered(most);
        self.shared.stop.request();
        self.shared.store.nudge();
        if left == 0 {
            self.forwards.join();
        }
        // Otherwise it waits for a node, and ends with the process: all that it knows is in the spool.
        left
    }
}

impl Shared {
    fn counters(&self) -> Vec<(String, i64)> {
        let mut counters = self.store.look(|core| {
            let lag =
                core.lag().map(|(name, lag)| (format!("{name}:messages in spool"), lag as i64));
            let mut counters: Vec<(String, i64)> = lag.collect();
            counters.push(("scribe_overall:batches in spool".to_owned(), core.pending() as i64));
            counters.push(("scribe_overall:copied".to_owned(), core.copied().count() as i64));
            counters
        });
        counters.push(("scribe_overall:bytes of spool".to_owned(), self.store.bytes() as i64));
        let waits = self.trouble.held().is_some() as i64;
        counters.push(("scribe_overall:next hop away".to_owned(), waits));
        let refused = self.refused.held().len() as i64;
        counters.push(("scribe_overall:categories refused".to_owned(), refused));
        counters
    }

    fn run(&self) {
        let mut client = None;
        while !self.stop.is_requested() {
            if !self.store.wait_to_send(IDLE, &self.stop) {
                continue;
            }
            let sent = self.forward(&mut client);
            if let Err(e) = &sent {
                client = None;
                self.trouble(&e.message);
            }
            if !matches!(sent, Ok(true)) {
                self.stop.sleep_until_stop(REST);
            }
        }
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
    fn forward(&self, client: &mut Option<Client>) -> Result<bool> {
        let client = match client {
            Some(client) => client,
            none => {
                let mut connected = self.connect()?;
                self.ask(&mut connected)?;
                none.insert(connected)
            }
        };
        let (mut delivered, mut without) = (0, BTreeSet::new());
        let mut from = self.store.look(|core| core.first_to_send());
        while let Some(at) = from
            && !self.stop.is_requested()
        {
            let (outgoing, next) = self.store.to_send(at, WINDOW_BYTES, &without)?;
            if !outgoing.is_empty() {
                delivered += self.send(client, &outgoing, &mut without)?;
            }
            from = next;
        }
        if without.is_empty() {
            self.goes_on();
        }
        Ok(delivered > 0)
    }

    fn connect(&self) -> Result<Client> {
        let mut last = None;
        for at in 0..self.to.len() {
            let mut others = self.to.clone();
            let first = others.remove(at);
            let options = ClientOptions { others, ..self.client.clone() };
            match Client::connect(&first, &options) {
                Ok(client) => return Ok(client),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| Error::invalid("bring messages to a node: none was named")))
    }

    /// Where the spool is, before anything is sent: what topics have already is not sent again.
    fn ask(&self, client: &mut Client) -> Result<()> {
        let categories: Vec<Category> =
            self.store.look(|core| core.categories().cloned().collect());
        let spool = self.store.look(|core| core.id());
        for some in categories.chunks(ASK_CATEGORIES) {
            let names = some.iter().map(|category| category.name().to_owned()).collect();
            let positions = client.scribe_ask(spool.0, names)?;
            for (category, position) in some.iter().zip(positions) {
                self.learn(category, &position, &mut BTreeSet::new())?;
            }
        }
        Ok(())
    }

    /// One request; how many batches their topics are known to have by it.
    fn send(
        &self,
        client: &mut Client,
        outgoing: &[crate::store::Outgoing],
        without: &mut BTreeSet<Category>,
    ) -> Result<usize> {
        let names: BTreeSet<&Category> = outgoing.iter().map(|one| &one.category).collect();
        let names = names.into_iter().map(|category| category.name().to_owned()).collect();
        let batches: Vec<&[u8]> = outgoing.iter().map(|one| &one.bytes[..]).collect();
        let positions = client.scribe_append(names, &batches)?;
        let mut delivered = 0;
        for (one, position) in outgoing.iter().zip(&positions) {
            delivered += self.learn(&one.category, position, without)?;
        }
        Ok(delivered)
    }

    /// Takes in an answer. A category that takes nothing now is left out of this pass.
    fn learn(
        &self,
        category: &Category,
        position: &msg::Position,
        without: &mut BTreeSet<Category>,
    ) -> Result<usize> {
        if !position.refused.is_empty() {
            without.insert(category.clone());
            let known = self.refused.held().insert(category.clone(), position.refused.clone());
            if known.as_ref() != Some(&position.refused) {
                event!(ScribeWaits, position.refused);
            }
            return Ok(0);
        }
        self.refused.held().remove(category);
        let position = Position { next: position.next, checksum: position.checksum };
        match self.store.learn(category, position)? {
            Progress::Has(batches) => Ok(batches),
            Progress::Behind => {
                without.insert(category.clone());
                self.trouble(&format!(
                    "bring messages of `{category}` to their topic: it has fewer than it had: another \
                     cluster answers, or a node that is behind"
                ));
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
}
