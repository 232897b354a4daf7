//! What a node runs beside its views: ports, and threads with rounds of their own. Each is a value
//! that starts, says where it listens, watches its health and ends; [`ROLES`] lists them, and `up`
//! starts each in turn. Decides nothing about data; to add one is a file here and a line there.

mod cache;
mod certificates;
mod housekeeping;
mod native;
mod scribe;
mod tables;
mod views;

pub use housekeeping::Rounds;

use crate::config::Config;
use crate::credentials::NodeCredentials;
use crate::{http, s3};
use holdfast_base::{Error, Result};
use holdfast_env::tls::Certificates;
use holdfast_env::{Budget, HoldMutex, Secret, local};
use holdfast_node::{Audit, Node, Watch};
use holdfast_ride::Views;
use holdfast_scribe::face::ScribeFace;
use holdfast_server::Native;
use holdfast_table::face::TableFace;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Starts one; nothing where the settings switch it off.
type Start = fn(&Context<'_>) -> Result<Option<Box<dyn Role>>>;

/// In the order in which they start, and end. S3 is last: its view may have to be folded anew, and
/// the node serves and beats meanwhile.
pub const ROLES: &[Start] = &[
    native::start,
    certificates::start,
    cache::start,
    http::start,
    housekeeping::keeper,
    housekeeping::member,
    views::start,
    scribe::start,
    tables::start,
    s3::start,
];

/// Registers what is counted now.
pub type Metrics = Box<dyn Fn(&mut Registry) + Send + Sync>;

/// Something that a node runs.
pub trait Role {
    /// Where it listens and what to try, for whoever started the node.
    fn announce(&self, said: &mut Announcement) {
        let _ = said;
    }

    /// What tells its health from now on, for `/health`, `status` and `doctor`.
    fn health(&self) -> Option<Watch> {
        None
    }

    /// What registers its counts whenever somebody scrapes them.
    fn metrics(&self) -> Option<Metrics> {
        None
    }

    /// Ends it in order; those that started before it have ended.
    fn end(self: Box<Self>) -> Result<()>;
}

/// What roles are started with.
pub struct Context<'a> {
    /// The node's directory.
    pub data: &'a Path,
    /// As read at the start; nothing changes it later.
    pub config: &'a Config,
    /// Open already.
    pub node: &'a Arc<Node>,
    /// The native protocol, with the routes that every face has registered.
    pub native: &'a Arc<Native>,
    /// Views of items; those that ran before are yet to be opened.
    pub views: &'a Arc<Views>,
    /// Scribe's categories, which are yet to be opened.
    pub scribe: &'a Arc<ScribeFace>,
    /// Tables, which are yet to be opened.
    pub tables: &'a Arc<TableFace>,
    /// What is written down of what clients change.
    pub audit: &'a Arc<Audit>,
    /// Of the cluster: who has it may ask for everything.
    pub secret: &'a Secret,
    /// What its ports show and believe; none where they speak without TLS.
    pub certificates: &'a Option<Arc<Certificates>>,
    /// The same, as nodes know each other by them.
    pub credentials: &'a Option<Arc<NodeCredentials>>,
    /// What this process may hold for its clients.
    pub budget: &'a Arc<Budget>,
    /// How many connections each port may have.
    pub places: &'a Places,
    /// What the roles that have started count.
    pub metrics: &'a Arc<Mutex<Vec<Metrics>>>,
}

/// The roles that run.
#[derive(Default)]
pub struct Running(Vec<Box<dyn Role>>);

impl Running {
    /// Starts all that the settings ask for. When one cannot start, those that did are ended.
    pub fn start(context: &Context<'_>) -> Result<Running> {
        let mut running = Running::default();
        for start in ROLES {
            match start(context) {
                Ok(Some(role)) => running.add(context, role),
                Ok(None) => {}
                Err(e) => {
                    let _ = running.end();
                    return Err(e);
                }
            }
        }
        Ok(running)
    }

    fn add(&mut self, context: &Context<'_>, role: Box<dyn Role>) {
        if let Some(watch) = role.health() {
            context.node.watch(watch);
        }
        if let Some(metrics) = role.metrics() {
            context.metrics.held().push(metrics);
        }
        self.0.push(role);
    }

    /// What all of them have to say, in the order of their starts.
    pub fn announce(&self) -> Announcement {
        let mut said = Announcement::default();
        self.0.iter().for_each(|role| role.announce(&mut said));
        said
    }

    /// Ends all of them, also when one of them cannot end in order; the first reason is answered.
    pub fn end(self) -> Result<()> {
        self.0.into_iter().map(|role| role.end()).fold(Ok(()), Result::and)
    }
}

/// What is said once a node is ready.
#[derive(Default)]
pub struct Announcement {
    /// What it is, or nothing for one more place of the line above; and where.
    pub listens: Vec<(&'static str, String)>,
    /// Commands, without what calls this program.
    pub tries: Vec<String>,
    /// Commands of other programs.
    pub others: Vec<String>,
    /// For programs.
    pub fields: Map<String, Value>,
}

impl Announcement {
    /// Adds a line of what listens where.
    pub fn listens(&mut self, what: &'static str, place: impl Into<String>) {
        self.listens.push((what, place.into()));
    }
}

/// As metrics say it.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Threads that serve a port: one a core, at most four.
pub fn threads_of_a_port() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4))
}

/// Connections that each port may have.
pub struct Places {
    /// Of the native protocol over TCP and its Unix socket together.
    pub native: usize,
    /// Of S3's port.
    pub s3: usize,
    /// Of memcached's port.
    pub cache: usize,
    /// Of metrics and health.
    pub http: usize,
    /// Of Scribe's port.
    pub scribe: usize,
    /// Of DynamoDB's.
    pub dynamodb: usize,
}

impl Places {
    /// What each wants, or its share of the descriptors that this process gets: what files need is
    /// left to them, so that connections cannot end writes.
    pub fn of_ports() -> Result<Places> {
        let limit = local::raise_descriptors(local::DESCRIPTORS_WANTED).map_err(|e| {
            Error::from(e).context("ask how many descriptors this process may have")
        })?;
        let cache = holdfast_cache::Settings::default().connections_max;
        let wanted = [
            holdfast_env::net::CONNECTIONS_MAX,
            holdfast_s3::CONNECTIONS_MAX,
            cache,
            http::CONNECTIONS_MAX,
            holdfast_scribe::door::CONNECTIONS_MAX,
            holdfast_s3::CONNECTIONS_MAX,
        ];
        let shares = local::share_descriptors(limit, &wanted);
        let [native, s3, cache, http, scribe, dynamodb] = shares[..] else {
            return Err(Error::bug("share descriptors: there are not as many shares as ports"));
        };
        Ok(Places { native, s3, cache, http, scribe, dynamodb })
    }
}
