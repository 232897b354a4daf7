//! The HTTP port: health for load balancers, metrics for Prometheus, and the log for whoever has a
//! token.

mod log;

use crate::roles::{Announcement, Context, Metrics, Role};
use axum::Router;
use axum::extract::{FromRef, Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use holdfast_base::Result;
use holdfast_command::secrets::HTTP_TOKEN;
use holdfast_env::runtime::{self, Runtime};
use holdfast_env::{Budget, HoldMutex, Secret, planted};
use holdfast_node::Condition;
use holdfast_s3::door::{self, Terms};
use holdfast_server::Native;
use holdfast_wire::admin::{Status, Store};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Sources = (Arc<Native>, Arc<Mutex<Vec<Metrics>>>);

/// Where requests for the log are taken to.
#[derive(Clone)]
struct Door {
    /// The node's own native port, if it has one.
    native: Option<SocketAddr>,
    /// Pages of entries that wait for their readers are taken from it.
    budget: Arc<Budget>,
}

#[derive(Clone)]
struct Served {
    sources: Sources,
    door: Door,
}

impl FromRef<Served> for Sources {
    fn from_ref(served: &Served) -> Sources {
        served.sources.clone()
    }
}

impl FromRef<Served> for Door {
    fn from_ref(served: &Served) -> Door {
        served.door.clone()
    }
}

/// Until the next attempt to accept after one that failed.
const ACCEPT_REST: Duration = Duration::from_millis(10);
/// Connections of this port: scrapers and load balancers, each with one or two.
pub const CONNECTIONS_MAX: usize = 256;
/// For the head of a request, and for taking an answer: both are a few kilobytes.
const PATIENCE: Duration = Duration::from_secs(10);

struct HttpRole {
    runtime: Runtime,
    address: SocketAddr,
    token: PathBuf,
    has_certificates: bool,
}

/// Nothing if it is switched off.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let Some(address) = context.config.address(context.config.http_port) else { return Ok(None) };
    let budget = context.budget.clone();
    let certificates = context.certificates.clone();
    let places = door::places(context.places.http, certificates.as_ref(), &budget);
    let places = runtime::Places::new(places);
    let terms =
        Terms { certificates, head: PATIENCE, stall: PATIENCE, places, budget: budget.clone() };
    let sources = (context.native.clone(), context.metrics.clone());
    let has_certificates = context.certificates.is_some();
    // A port on all addresses is on this machine's own, too.
    let native = context.config.address(context.config.native_port).map(|mut native| {
        if native.ip().is_unspecified() {
            native.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        native
    });
    let served = Served { sources, door: Door { native, budget } };
    let runtime = serve(address, served, context.secret, terms)?;
    let token = context.data.join(HTTP_TOKEN);
    Ok(Some(Box::new(HttpRole { runtime, address, token, has_certificates })))
}

impl Role for HttpRole {
    fn announce(&self, said: &mut Announcement) {
        let address = self.address;
        said.listens("metrics and health", format!("http://{address}/metrics and /health"));
        if self.has_certificates {
            said.listens("", format!("https://{address} for other machines"));
        }
        let token = self.token.display();
        said.listens("", format!("metrics for who sends the token in {token}"));
        said.fields.insert("http".into(), json!(address.to_string()));
    }

    fn end(self: Box<Self>) -> Result<()> {
        drop(self.runtime);
        Ok(())
    }
}

fn serve(address: SocketAddr, served: Served, secret: &Secret, terms: Terms) -> Result<Runtime> {
    let router = Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/log/{*topic}", get(log::read).post(log::append))
        .layer(middleware::from_fn_with_state(secret.clone(), admit))
        .with_state(served);
    runtime::serve("http", address, move |listener| async move {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                // Out of descriptors, or the client is gone again.
                runtime::sleep(ACCEPT_REST).await;
                continue;
            };
            let service = TowerToHyperService::new(router.clone());
            door::serve(stream, peer.ip(), |_| service, &terms);
        }
    })
}

/// Everybody may ask for health; the log asks for tokens of its own; for the rest one needs the token.
async fn admit(State(secret): State<Secret>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let path = request.uri().path();
    let open = path == "/health"
        || path.starts_with("/log/")
        || planted!("holdfast.metrics-for-everybody");
    if open || given.is_some_and(|given| secret.is_bearer(given)) {
        return next.run(request).await;
    }
    let why = format!(
        "send `Authorization: Bearer TOKEN`, with the token in the file `{HTTP_TOKEN}` of the data directory\n"
    );
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], why).into_response()
}

/// 200 while the node does all of its work, else 503 and a line for each thing that keeps it.
async fn health(State((native, _)): State<Sources>) -> impl IntoResponse {
    let conditions = native.conditions();
    let slowed = slowed(&native);
    if conditions.is_empty() {
        return (StatusCode::OK, format!("ok\n{slowed}"));
    }
    let line = |condition: &Condition| format!("{}: {}\n", condition.name, condition.sentence);
    let lines: String = conditions.iter().map(line).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines + &slowed)
}

/// A line about clients that have to wait now. Everybody may read it, so it names nobody.
fn slowed(native: &Native) -> String {
    let mut waits: Vec<(String, u64)> =
        native.slowed().into_iter().map(|one| (one.client, one.left_ms)).collect();
    waits.retain(|(_, left_ms)| *left_ms > 0);
    let Some(longest_ms) = waits.iter().map(|(_, left_ms)| *left_ms).max() else {
        return String::new();
    };
    let clients = waits.into_iter().map(|(client, _)| client).collect::<BTreeSet<_>>().len();
    format!("slowed: clients {clients}, for {} s at most\n", longest_ms.div_ceil(1000))
}

async fn metrics(State((native, roles)): State<Sources>) -> impl IntoResponse {
    match native.status() {
        Ok(status) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([("content-type", kind)], render(&status, native.budget(), &roles)).into_response()
        }
        Err(e) => (StatusCode::SERVICE_UNAVAILABLE, format!("{e}\n")).into_response(),
    }
}

type Labels = Vec<(&'static str, String)>;
type Value = fn(&Store) -> u64;

/// The status in Prometheus' words.
fn render(status: &Status, held: &Budget, roles: &Mutex<Vec<Metrics>>) -> String {
    let mut registry = Registry::with_prefix("holdfast");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(value as i64);
        registry.register(name, help, gauge);
    };
    gauge("files", "Files, links and key-values", status.files);
    gauge("directories", "Directories, multifiles and tables", status.directories);
    gauge("file_bytes", "Bytes of all files", status.bytes);
    gauge("unclosed_files", "Files begun and not closed", status.unclosed);
    gauge("findings", "What doctor would show", status.findings.len() as u64);
    gauge("clients_memory_bytes", "What may be held for clients", held.limit());
    gauge("clients_held_bytes", "What is held for clients now", held.used());
    gauge("clients_held_bytes_peak", "The most that was held for clients", held.peak());
    gauge("uptime_ms", "Milliseconds since the start", status.uptime_ms);
    let entries = Counter::<u64, AtomicU64>::default();
    entries.inc_by(status.index.0);
    let refused = Counter::<u64, AtomicU64>::default();
    refused.inc_by(held.refused());
    registry.register("clients_refused", "How often a client waited for memory", refused);
    registry.register("log_entries", "Entries of the namespace topic applied", entries);
    let per_store: [(&str, &str, Value); 6] = [
        ("store_capacity_bytes", "Capacity of a store", |s| s.capacity_bytes),
        ("store_used_bytes", "Bytes that chunks take", |s| s.used_bytes),
        ("store_free_bytes", "Bytes that may still be taken", |s| s.free_bytes),
        ("store_chunks", "Chunks of a store", |s| s.chunks),
        ("store_read_only", "1 if the store takes no writes", |s| s.read_only as u64),
        ("store_bad_blocks", "Bad blocks that scrubbing found", |s| s.bad_blocks),
    ];
    for (name, help, value) in per_store {
        let family = Family::<Labels, Gauge<i64>>::default();
        for store in &status.stores {
            let labels = vec![
                ("store", store.id.0.to_string()),
                ("tier", store.tier.name().to_owned()),
                ("place", store.place.clone()),
            ];
            family.get_or_create(&labels).set(value(store) as i64);
        }
        registry.register(name, help, family);
    }
    let roles = roles.held();
    roles.iter().for_each(|metrics| metrics(&mut registry));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        Err(_) => "# EOF\n".to_owned(),
    }
}
