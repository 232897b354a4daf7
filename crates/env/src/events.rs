//! Events: what a process says about itself while it serves, on standard error, a line or a JSON
//! object each. Every event has a name and a level here, with what it means and what to do, and
//! [`table`] is the page of them; [`event!`](crate::event) tells one. An error is told once, where
//! it is handled, and `error` means that a person must look.
//!
//! What carries them is `tracing`, so that a program that links a client or a node gets them in its
//! own subscriber. Cores tell nothing: they return what happened.

use crate::locks::HoldMutex;
use holdfast_base::text::{shown, utc};
use holdfast_base::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Level, Metadata};

macro_rules! events {
    ($($event:ident = $name:literal, $level:ident, $means:literal, $advice:literal;)*) => {
        /// Everything that a process tells of.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Event {
            $(#[doc = $means] $event,)*
        }

        impl Event {
            pub const ALL: &[Event] = &[$(Event::$event),*];

            /// As it is written and searched for: `what.happened`.
            pub const fn name(self) -> &'static str {
                match self { $(Event::$event => $name,)* }
            }

            pub const fn level(self) -> Level {
                match self { $(Event::$event => Level::$level,)* }
            }

            /// What happened, and what to do about it.
            const fn page(self) -> (&'static str, &'static str) {
                match self { $(Event::$event => ($means, $advice),)* }
            }
        }
    };
}

events! {
    ThreadPanicked = "process.panicked", ERROR,
        "A thread panicked; the process has ended with status 70, for without it some requests would hang for ever.",
        "Start again: what was acknowledged is there. Report the lines before it.";
    NodeEnds = "node.ends", ERROR,
        "The node may not be itself any more (another process goes on under its number, or it was left behind), and has ended so that nobody is answered by it.",
        "Read the sentence; start it again unless it says that two processes run on copies of one directory.";
    StoreFailed = "store.failed", ERROR,
        "A write or sync of a store failed. It takes no more writes until a restart; reads go on.",
        "Look at the disk, then restart the node ([a failed write or sync](#faults)).";
    StoreLeftOut = "store.left-out", ERROR,
        "The node started without one of its disks: the directory is empty though a store was there, or holds one that was given up. The others are served.",
        "Mount the disk and start the node again, or do what the sentence says ([a disk that is not mounted](#faults)).";
    LogFailed = "log.failed", ERROR,
        "A write or sync of a topic of the log failed. It takes no more entries until a restart.",
        "Look at the disk, then restart the node.";
    ViewStopped = "view.stopped", ERROR,
        "A view cannot apply an entry, and has stopped in front of it, or its rows find no room; what other views hold is served.",
        "Start a build that can apply the entry ([a view that has stopped](#faults)), or free space.";
    RequestBug = "request.bug", ERROR,
        "A request of the native protocol was answered with `Bug`: Holdfast broke a promise to itself.",
        "Report it, with its number.";
    RequestFailed = "request.failed", WARN,
        "S3 or DynamoDB's API answered a request with 500: bytes that it needs are damaged, or Holdfast broke a promise to itself.",
        "Ask `holdfast doctor`, which names what is damaged; if nothing is, report it, with the request's number.";
    LogClientReplaced = "log.client-replaced", WARN,
        "Appends to the log's brokers failed, and the client library that sends them was replaced. What was under way was answered as unknown, and is asked again by whoever asked.",
        "Nothing, if brokers were away. Else read the sentence: it says what to check.";
    Finding = "node.finding", WARN,
        "Something that `holdfast doctor` lists from now on.",
        "Ask `holdfast doctor`.";
    ViewRuns = "view.runs", INFO,
        "A view of items is open, from now on or again.",
        "Nothing.";
    ViewBooted = "view.booted", INFO,
        "A view of items began with images that other views had made.",
        "Nothing.";
    RiderMoved = "ride.moved", INFO,
        "A rider was so slow that others would have waited for it: it reads on by itself.",
        "Nothing; if it happens often, look at the way to that rider.";
    ImageMade = "view.image", INFO,
        "An image of a disk view is whole: views begin with it, and the log may be trimmed up to it.",
        "Nothing.";
    ImageGivenUp = "view.image-given-up", WARN,
        "An image of a disk view was not made, or cannot be read and is removed, or is of another view or another log and stays unused. Riders and views go on without it.",
        "Read the sentence: make room, look at the disk, or move what belongs elsewhere away. The next mark makes another one.";
    HoldRanOut = "ride.hold-ran-out", WARN,
        "A ride, or one that has just ended, held more of its topic's log than it may: the log is trimmed, or the horizon moves, past it. The ride goes on; who reads the log behind it finds it trimmed.",
        "Nothing; that rider rides the newest image (`holdfast ride --at`, `holdfast view status`). If it happens often, look at why riders are slow.";
    ItemsSwept = "view.swept", INFO,
        "Versions of items that the horizon has passed were removed from a disk view's rows.",
        "Nothing.";
    NodeWaits = "node.waits", WARN,
        "The node starts, and waits for the log's host.",
        "Start the log's host, or look at the way to it.";
    OpenToAll = "port.open-to-all", WARN,
        "A cache or router listens beyond loopback, where nobody is asked who they are.",
        "Let it listen on loopback, or close the port to strangers.";
    StolenNumber = "peer.stolen-number", WARN,
        "A node's message named another node than its certificate does. It was refused.",
        "Look at the machine whose certificate is named: two data directories share one certificate, or somebody tries to pass for a node ([security](security.md)).";
    AuditLost = "audit.lost", WARN,
        "A line of the audit trail could not be kept; what it tells of was done or refused all the same. `/health` says it until one is kept again.",
        "Make room, or look at the way to the log's host. What changed meanwhile is in the topics alone.";
    FewDescriptors = "process.few-descriptors", WARN,
        "The machine allows fewer descriptors than connections were asked for; clients beyond them wait.",
        "Raise `ulimit -n`.";
    CacheNote = "cache.note", WARN,
        "A cache could not take over what the one before had kept, or begins without something that it was asked for.",
        "Read the sentence; the cache serves.";
    TlsKept = "tls.kept", WARN,
        "The files of certificates changed and cannot be used; those from before stay in force, until they end.",
        "Mend what the sentence says: the node looks again within a second. `/health` says it until then.";
    LogRetained = "log.retained", INFO,
        "Entries of a topic were given up, as its limits of age or size say.",
        "Nothing; `holdfast log set` changes the limits.";
    TlsRenewed = "tls.renewed", INFO,
        "New connections use the certificates that are in the files now; open ones go on.",
        "Nothing.";
    ClientSlowed = "client.slowed", INFO,
        "A client asks for more than a limit of the node's settings allows, and has to wait; others go on. Told once a minute for each.",
        "Ask `holdfast status` by how much. Raise the setting if the client may have more, or look at what it does ([limits](operations.md#limits-of-clients)).";
    ViewResumed = "view.resumed", INFO,
        "A view that had stopped goes on: there is room for its rows again.",
        "Nothing.";
    CacheKept = "cache.kept", INFO,
        "A cache ended and keeps its items for the next one.",
        "Nothing.";
    ScribeCopied = "scribe.copied", ERROR,
        "Somebody else sends a category's messages under the identity of this agent's spool: its directory was copied. It sends nothing more of that category, and gives nothing of it up.",
        "End one of the two agents, and send again what only its spool has: `holdfast scribe resend` ([scribe](scribe.md#a-copied-spool)).";
    ScribeLost = "scribe.lost", WARN,
        "A spool was erased: another one began under its name, and it had not said that it was empty. Messages that it had and had not brought are lost: from which number on, the sentence says.",
        "Find out why the directory is empty, and what of it is still somewhere ([scribe](scribe.md#an-erased-spool)).";
    ScribeNameShared = "scribe.name-shared", WARN,
        "A spool that counted as lost is there: it sends, and counts as lost no more. Two agents have one name, or a spool's directory was away for a while.",
        "Give each agent a name of its own (`--name`), or see that its disk is mounted before it starts ([scribe](scribe.md#an-erased-spool)).";
    ScribeFilesWait = "scribe.files-wait", WARN,
        "An hour of a category cannot be written into its file, or a file not be removed. It is tried again; messages are where they were.",
        "Read the sentence. If nothing else is wrong, look for something of another kind in the file's place ([scribe](scribe.md#hourly-files)).";
    ScribeWaits = "scribe.waits", WARN,
        "An agent cannot bring messages to their topics. It keeps them in its spool and tries again. A carrier says so of those of other agents, which keep them themselves.",
        "Read the sentence. While the spool has room, clients notice nothing.";
    ScribeAside = "scribe.aside", WARN,
        "A category never takes messages that an agent has. They are kept aside, beside the spool, and others go on.",
        "Read the sentence, and have the application use another category; `holdfast scribe aside` shows what is there ([scribe](scribe.md#aside)).";
    ScribeFull = "scribe.full", WARN,
        "Scribe's clients are told to try later: the spool has reached its bound, or cannot be written.",
        "Look at why messages do not leave (`scribe.waits`), or give the spool more room.";
    ScribeGoesOn = "scribe.goes-on", INFO,
        "An agent brings messages to their topics again, or takes them again.",
        "Nothing.";
    InvalidateEmptied = "invalidate.emptied", WARN,
        "Nobody knows which keys a database changed: all servers of a pool are emptied, and fill again from the database.",
        "Read the sentence. If the database's log was purged, keep it for longer than an invalidator may be away ([invalidate](invalidate.md#when-a-pool-is-emptied)).";
    InvalidateWaits = "invalidate.waits", WARN,
        "An invalidator cannot read its database, write its topic, or reach a cache server. Keys there stay old until it can; it tries again.",
        "Read the sentence, and mend what it names.";
    CacheUnleased = "cache.unleased", WARN,
        "A router or a lookaside takes values of servers by leases (`server_lease`), and none of those that answer has had one for ten seconds: everything is a miss, and the database has all reads.",
        "Run `holdfast invalidate run --server-lease` for the pool that the sentence names, look at why it waits, or correct the name ([leases](invalidate.md#leases)).";
    InvalidateGoesOn = "invalidate.goes-on", INFO,
        "An invalidator goes on where it had to wait.",
        "Nothing.";
    NodeStarted = "node.started", INFO,
        "The node serves.",
        "Nothing.";
    NodeEnding = "node.ending", INFO,
        "A signal asked the process to end, and it does, in order.",
        "Nothing.";
    RegionUnreached = "region.unreached", WARN,
        "Another region of the tables cannot be reached: its writes do not come here, and this one's do not go there.",
        "Look at that region's nodes, at the network, and at `regions` in the settings: address, token and authority.";
    RegionReached = "region.reached", INFO,
        "A region that could not be reached answers again.",
        "Nothing.";
    SplitWaits = "table.split-waits", WARN,
        "A tablet that is being split cannot go on, since nothing can be appended to one of its two topics. Writes to the half that leaves are told to ask again; all else goes on. It is tried again ten times a second.",
        "Read the sentence: as a rule the disk of the node that keeps the log wants room ([a split](tables.md#a-tablet-that-is-split)).";
    SplitGoesOn = "table.split-goes-on", INFO,
        "A split that could not go on does.",
        "Nothing.";
    SplitQueued = "table.split-queued", INFO,
        "A split was asked for while another one of the cluster's tables is under way, and is told to ask again. Told once for each that is under way.",
        "Nothing: commands ask again by themselves. `holdfast table describe` shows the one that is under way.";
}

/// By which a subscriber tells Holdfast's events from those of libraries.
pub const TARGET: &str = "holdfast";

/// Tells an event: its name in [`Event`], the sentence, then fields as `tracing` takes them:
/// `event!(ViewStopped, why, topic, node = id.0)`.
#[macro_export]
macro_rules! event {
    ($event:ident, $text:expr $(, $($field:tt)+)?) => {
        $crate::tracing::event!(
            name: $crate::events::Event::$event.name(),
            target: $crate::events::TARGET,
            $crate::events::Event::$event.level(),
            { message = %$text $(, $($field)+)? }
        )
    };
}

/// The page of events, in Markdown: `docs/operations.md` holds it.
pub fn table() -> String {
    let mut page =
        String::from("| event | level | what it means | what to do |\n|---|---|---|---|\n");
    for event in Event::ALL {
        let (means, advice) = event.page();
        let level = level_name(event.level());
        page += &format!("| `{}` | {level} | {means} | {advice} |\n", event.name());
    }
    page
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// `TIME LEVEL EVENT FIELD=VALUE...: SENTENCE`, for people.
    #[default]
    Lines,
    /// An object a line: `time`, `level`, `event`, the fields, `message`.
    Json,
}

impl FromStr for Form {
    type Err = Error;

    fn from_str(text: &str) -> Result<Form> {
        match text {
            "lines" => Ok(Form::Lines),
            "json" => Ok(Form::Json),
            _ => Err(Error::invalid(format!("write events as `{text}`: say `lines` or `json`"))),
        }
    }
}

/// The least level that is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastLevel(Level);

impl LeastLevel {
    pub const ERROR: LeastLevel = LeastLevel(Level::ERROR);
}

impl FromStr for LeastLevel {
    type Err = Error;

    fn from_str(text: &str) -> Result<LeastLevel> {
        [Level::ERROR, Level::WARN, Level::INFO]
            .into_iter()
            .find(|level| level_name(*level) == text)
            .map(LeastLevel)
            .ok_or_else(|| {
                Error::invalid(format!("tell events of `{text}`: say `error`, `warn` or `info`"))
            })
    }
}

/// The number of the process's node; 0 before it has one. Events that name their node themselves,
/// as in a simulation of several, are not given this one.
static NODE: AtomicU32 = AtomicU32::new(0);

/// From now on the process's events carry its node.
pub fn name_node(node: u32) {
    NODE.store(node, Ordering::Relaxed);
}

/// Has the process's events written to standard error, from now to its end. Once a process; a
/// program that has its own subscriber keeps it.
pub fn write_to_stderr(form: Form, least: LeastLevel) {
    let to = To::Stderr(form);
    let _ = tracing::subscriber::set_global_default(Teller { least: least.0, to });
}

/// What was told: for tests, and for lines and objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub event: &'static str,
    pub level: Level,
    /// In the order in which they were given.
    pub fields: Vec<(&'static str, Value)>,
    pub message: String,
}

impl Told {
    pub fn is_error(&self) -> bool {
        self.level == Level::ERROR
    }

    fn object(&self, time: &str) -> String {
        let mut object = Map::new();
        object.insert("time".to_owned(), time.into());
        object.insert("level".to_owned(), level_name(self.level).into());
        object.insert("event".to_owned(), self.event.into());
        for (name, value) in &self.fields {
            object.insert((*name).to_owned(), value.clone());
        }
        object.insert("message".to_owned(), self.message.as_str().into());
        Value::Object(object).to_string()
    }
}

/// For people; what others have named cannot move a terminal's cursor.
impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", level_name(self.level), self.event)?;
        for (name, value) in &self.fields {
            match value.as_str() {
                Some(text) if !text.contains([' ', ':']) => write!(f, " {name}={}", shown(text))?,
                _ => write!(f, " {name}={value}")?,
            }
        }
        write!(f, ": {}", shown(&self.message))
    }
}

/// Runs `work` and gives what this thread told of meanwhile, of every level.
pub fn told_by<T>(work: impl FnOnce() -> T) -> (T, Vec<Told>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let teller = Teller { least: Level::TRACE, to: To::Kept(kept.clone()) };
    let done = tracing::subscriber::with_default(teller, work);
    let told = std::mem::take(&mut *kept.held());
    (done, told)
}

enum To {
    Stderr(Form),
    Kept(Arc<Mutex<Vec<Told>>>),
}

/// Writes or keeps Holdfast's events; spans and libraries' events are switched off where they are
/// made.
struct Teller {
    least: Level,
    to: To,
}

impl Teller {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == TARGET && *metadata.level() <= self.least
    }
}

impl Subscriber for Teller {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.least.into())
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let metadata = event.metadata();
        let mut seen = Seen::default();
        event.record(&mut seen);
        let told = Told {
            event: metadata.name(),
            level: *metadata.level(),
            fields: seen.fields,
            message: seen.message,
        };
        match &self.to {
            To::Kept(kept) => kept.held().push(told),
            To::Stderr(form) => write(*form, told),
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Sentences that are remembered; with more, all are forgotten.
const SENTENCES_MAX: usize = 1000;

/// Whether this was not told yet. What every request meets (a view that has stopped) is told once,
/// or clients could fill a disk with it.
fn is_news(sentences: &mut BTreeSet<(&'static str, String)>, told: &Told) -> bool {
    if sentences.len() >= SENTENCES_MAX {
        sentences.clear();
    }
    told.level == Level::INFO || sentences.insert((told.event, told.message.clone()))
}

fn write(form: Form, mut told: Told) {
    static SENTENCES: Mutex<BTreeSet<(&'static str, String)>> = Mutex::new(BTreeSet::new());
    if !is_news(&mut SENTENCES.held(), &told) {
        return;
    }
    let node = NODE.load(Ordering::Relaxed);
    if node != 0 && !told.fields.iter().any(|(name, _)| *name == "node") {
        told.fields.insert(0, ("node", node.into()));
    }
    #[expect(clippy::disallowed_methods, reason = "for people; nothing decides by it")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = format!("{}.{:03}Z", utc(now.as_secs() as i64, 'T'), now.subsec_millis());
    let line = match form {
        Form::Lines => format!("{time} {told}\n"),
        Form::Json => format!("{}\n", told.object(&time)),
    };
    // In one write, so that lines of several threads do not mix. Who has closed standard error does
    // not want to hear.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

#[derive(Default)]
struct Seen {
    fields: Vec<(&'static str, Value)>,
    message: String,
}

impl Seen {
    fn keep(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value.into());
    }
}

#[cfg(test)]
mod tests;
