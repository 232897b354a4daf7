//! The door: Scribe's port. Reads frames, has the messages of calls taken, and answers fb303. Knows nothing
//! of where messages go; what is too much is bounded by places, a budget and the intake.

use crate::aside::BEGINNING_BYTES_MAX;
use crate::batch::MESSAGE_BYTES_MAX;
use crate::call::{self, Answer, Call, Entry, Health, LENGTH_BYTES, Method, Reply, encode_reply};
use crate::category::Category;
use crate::intake::{Bad, Intake, Taken};
use crate::stores::{Sorted, Stores};
use holdfast_base::Result;
use holdfast_env::budget::{Budget, Share};
use holdfast_env::runtime::{self, Activity, Place, Places, Runtime, Stream};
use holdfast_env::{HoldMutex, Rng};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Scribe's own.
pub const PORT: u16 = 1463;
/// Connections; for further ones those that do least make way.
pub const CONNECTIONS_MAX: usize = 1024;
/// Until the next attempt to accept after one that failed.
const ACCEPT_REST: Duration = Duration::from_millis(10);
/// Categories that are counted apart.
const COUNTED_MAX: usize = 4096;
/// In front of counts of all categories together, as Scribe has it.
const OVERALL: &str = "scribe_overall";

const GOOD: &str = "received good";
const BAD: &str = "received bad";
const IGNORED: &str = "ignored";
const LATER: &str = "requests told to try later";

/// What the door does with calls.
pub struct Service {
    intake: Intake,
    counts: Mutex<BTreeMap<String, i64>>,
    since_s: i64,
    stores: Stores,
    /// What decides about buckets by chance.
    rng: Arc<dyn Rng>,
    more: Box<dyn Fn() -> More + Send + Sync>,
}

/// What a door answers beside its own, made when it is asked for.
#[derive(Debug, Default)]
pub struct More {
    pub counters: Vec<(String, i64)>,
    /// What a person should know, a sentence each.
    pub details: Vec<String>,
}

impl More {
    /// And how many messages are kept aside, of so many that were given up again.
    pub fn with_aside(mut self, messages: u64, given_up: u64) -> More {
        let aside = [("messages aside", messages), ("messages aside given up", given_up)];
        let counters = aside.map(|(what, count)| (format!("{OVERALL}:{what}"), count as i64));
        self.counters.extend(counters);
        self
    }
}

impl Service {
    /// Alive since that second of 1970's calendar; `more` is answered beside what the door knows itself.
    pub fn new(
        intake: Intake,
        (stores, rng): (Stores, Arc<dyn Rng>),
        since_s: i64,
        more: impl Fn() -> More + Send + Sync + 'static,
    ) -> Arc<Service> {
        let (counts, more) = (Mutex::default(), Box::new(more));
        Arc::new(Service { intake, counts, since_s, stores, rng, more })
    }

    pub fn intake(&self) -> &Intake {
        &self.intake
    }

    /// All counts, as fb303 names them.
    pub fn counters(&self) -> Vec<(String, i64)> {
        let mut counters: Vec<(String, i64)> =
            self.counts.held().iter().map(|(name, count)| (name.clone(), *count)).collect();
        counters.extend((self.more)().counters);
        counters
    }

    /// Why the door, or what is behind it, does not do all that it should; empty where it does.
    fn details(&self) -> String {
        let own = self.intake.trouble();
        own.into_iter().chain((self.more)().details).collect::<Vec<_>>().join("; ")
    }

    fn count(&self, category: Option<&Category>, what: &str, by: i64) {
        let mut counts = self.counts.held();
        *counts.entry(format!("{OVERALL}:{what}")).or_default() += by;
        let Some(category) = category else { return };
        let name = format!("{category}:{what}");
        if counts.len() < COUNTED_MAX || counts.contains_key(&name) {
            *counts.entry(name).or_default() += by;
        }
    }

    /// The messages that can be taken, and how many of each category. What never can be is counted: its
    /// client is told OK, as Scribe does, for it would send it for ever.
    fn messages(&self, entries: &[Entry<'_>]) -> (Sorted, BTreeMap<Category, i64>) {
        let (mut sorted, mut good) = (Sorted::default(), BTreeMap::<Category, i64>::new());
        sorted.messages.messages.reserve(entries.len());
        let mut bad = Vec::new();
        for Entry { category: name, message } in entries {
            let why = match Category::of_bytes(name) {
                Err(_) => "its category's name is none",
                Ok(_) if message.len() > MESSAGE_BYTES_MAX => "it is too long",
                Ok(category) => match self.sort(&category, message, &mut sorted) {
                    Err(why) => why,
                    Ok(is_kept) => {
                        if is_kept {
                            *good.entry(category).or_default() += 1;
                        }
                        continue;
                    }
                },
            };
            let kept = &message[..message.len().min(BEGINNING_BYTES_MAX)];
            bad.push(Bad {
                why,
                category: name[..name.len().min(BEGINNING_BYTES_MAX)].to_vec(),
                message: kept.to_vec(),
                bytes: message.len(),
            });
        }
        if !bad.is_empty() {
            self.count(None, BAD, bad.len() as i64);
            self.intake.aside(bad);
        }
        (sorted, good)
    }

    /// Puts a message where its category's store says; whether anybody keeps it.
    fn sort(
        &self,
        category: &Category,
        message: &[u8],
        to: &mut Sorted,
    ) -> std::result::Result<bool, &'static str> {
        const TOO_MANY: &str = "there are too many categories";
        if self.stores.are_topics() {
            if !self.intake.knows_or_may(category) {
                return Err(TOO_MANY);
            }
            to.messages.messages.push((category.clone(), message.to_vec()));
            return Ok(true);
        }
        let sorted = self.stores.sort(category, message, &|| self.rng.next_u64())?;
        let mut topics = sorted.messages.messages.iter();
        let may = topics.all(|(category, _)| self.intake.knows_or_may(category))
            && sorted.lines.iter().all(|(place, _)| self.intake.may_write(place));
        if !may {
            return Err(TOO_MANY);
        }
        let is_kept = !sorted.is_nothing();
        to.append(sorted);
        Ok(is_kept)
    }

    async fn log(&self, entries: &[Entry<'_>]) -> Answer {
        let (call, good) = self.messages(entries);
        let ignored = call.ignored.clone();
        let taken = match call.is_nothing() {
            true => Some(Taken { answer: Answer::Ok, never: Vec::new() }),
            false => runtime::answer(|done| self.intake.take(call, done)).await,
        };
        match taken {
            Some(Taken { answer: Answer::Ok, never }) => {
                for (category, n) in &good {
                    let is_never = never.contains(category);
                    self.count(Some(category), if is_never { BAD } else { GOOD }, *n);
                }
                for (category, n) in &ignored {
                    self.count(Some(category), IGNORED, *n);
                }
                Answer::Ok
            }
            _ => {
                self.count(None, LATER, 1);
                Answer::TryLater
            }
        }
    }

    async fn reply(&self, method: &Method<'_>) -> Reply {
        match method {
            Method::Log(entries) => Reply::Log(self.log(entries).await),
            Method::Name => Reply::Text(b"scribe".to_vec()),
            Method::Version => {
                Reply::Text(format!("holdfast {}", env!("CARGO_PKG_VERSION")).into_bytes())
            }
            Method::Status => Reply::Health(match self.details().is_empty() {
                true => Health::Alive,
                false => Health::Warning,
            }),
            Method::StatusDetails => Reply::Text(self.details().into_bytes()),
            Method::Counters => Reply::Counters(self.counters()),
            Method::Counter(name) => {
                let counters = self.counters();
                let count = counters.iter().find(|(one, _)| one.as_bytes() == *name);
                Reply::Number(count.map_or(0, |(_, count)| *count))
            }
            Method::Option(_) | Method::CpuProfile => Reply::Text(Vec::new()),
            Method::Options => Reply::Texts(Vec::new()),
            Method::AliveSince => Reply::Number(self.since_s),
            Method::SetOption | Method::Ignored => Reply::Nothing,
            Method::Unknown => Reply::UnknownMethod,
        }
    }
}

/// Serves a port until the result is dropped.
pub fn serve(
    address: SocketAddr,
    service: Arc<Service>,
    connections_max: usize,
    budget: Arc<Budget>,
) -> Result<Runtime> {
    let places = Places::new(connections_max);
    runtime::serve("scribe", address, move |listener| async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, or the client is gone again.
                runtime::sleep(ACCEPT_REST).await;
                continue;
            };
            let Some(place) = places.enter() else { continue };
            let _ = stream.set_nodelay(true);
            let (service, budget) = (service.clone(), budget.clone());
            let serves = async move {
                let work = connection(Stream::from(stream), &service, &place, &budget);
                runtime::unless(place.ends(), work).await;
            };
            // It ends with its connection, or with the runtime.
            drop(runtime::spawn(serves));
        }
    })
}

/// Ends with the connection, and where a frame is none: what follows it could be anything.
async fn connection(mut stream: Stream, service: &Service, place: &Place, budget: &Arc<Budget>) {
    let activity = place.activity();
    let mut frame = Vec::new();
    loop {
        frame.clear();
        if !matches!(stream.receive(&mut frame, LENGTH_BYTES).await, Ok(true)) {
            return;
        }
        let busy = activity.begin();
        let length: [u8; LENGTH_BYTES] = frame[..].try_into().expect("so many were received");
        let Ok(bytes) = call::frame_bytes(length) else { return };
        frame.clear();
        let Some(held) = receive(&mut stream, &mut frame, bytes, budget, &activity).await else {
            return;
        };
        let Ok(call) = Call::decode(&frame) else { return };
        let reply = service.reply(&call.method).await;
        let answer = call.is_answered().then(|| encode_reply(&call.header, &reply));
        // Who never reads an answer holds no more than that.
        drop(held);
        if let Some(answer) = answer
            && stream.send(&answer).await.is_err()
        {
            return;
        }
        drop(busy);
        if frame.capacity() > KEPT_BYTES_MAX {
            frame = Vec::new();
        }
    }
}

/// Receives a frame, for whose bytes, and for its messages, room is taken as they come: who says that it
/// sends much and does not takes nothing from others. Who finds no room connects again, as when it is told to
/// try later.
async fn receive(
    stream: &mut Stream,
    frame: &mut Vec<u8>,
    bytes: usize,
    budget: &Arc<Budget>,
    activity: &Activity,
) -> Option<Share> {
    let mut held = budget.hold(0);
    while frame.len() < bytes {
        let more = (bytes - frame.len()).min(PIECE_BYTES);
        if !held.grow(2 * more as u64) {
            return None;
        }
        let received = runtime::within(PIECE_TIME, stream.receive(frame, more)).await;
        if !matches!(received, Some(Ok(true))) {
            return None;
        }
        activity.moved();
    }
    Some(held)
}

/// A part of a call, and how long it may take: whoever sends the most of a call and then nothing would hold
/// its room for ever.
const PIECE_BYTES: usize = 256 << 10;
const PIECE_TIME: Duration = Duration::from_secs(60);

/// What a quiet connection keeps for its next frame.
const KEPT_BYTES_MAX: usize = 64 << 10;
