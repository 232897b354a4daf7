//! The native protocol: over a Unix socket for who runs the node, over TCP for who has its secret,
//! and for the cluster's nodes by their certificates.

use super::{Announcement, Context, Metrics, Role, threads_of_a_port};
use crate::config::Config;
use holdfast_base::Result;
use holdfast_command::files::SOCKET;
use holdfast_command::secrets;
use holdfast_env::net::{Credentials, Server, ServerConfig};
use holdfast_server::Native;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Unit;
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Clients that metrics name, those who wait longest: each is a series, and readers without a name
/// are as many as they like.
const SLOWED_MAX: usize = 20;

struct NativeRole {
    server: Server,
    native: Arc<Native>,
    data: PathBuf,
    tcp: Option<SocketAddr>,
    with_tls: bool,
}

/// Always there; `native_port` 0 leaves the Unix socket.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let Context { config, data, native, .. } = *context;
    let machine = &context.node.machine;
    let tcp = config.address(config.native_port);
    let server_config = ServerConfig {
        tcp: tcp.into_iter().collect(),
        unix: Some(data.join(SOCKET)),
        reactors: reactors(config),
        spin: config.spin,
        meter: Some(machine.meter.clone()),
        secret: Some(context.secret.clone()),
        credentials: context.credentials.clone().map(|own| own as Arc<dyn Credentials>),
        connections_max: context.places.native,
        budget: context.budget.clone(),
        ..ServerConfig::default()
    };
    let server = Server::start(server_config, native.clone(), machine.clock.clone())?;
    let (native, data) = (native.clone(), data.to_owned());
    let with_tls = context.credentials.is_some();
    Ok(Some(Box::new(NativeRole { server, native, data, tcp, with_tls })))
}

/// As for other ports; a polling thread has a core to itself.
fn reactors(config: &Config) -> usize {
    match config.reactors {
        0 if config.spin => 1,
        0 => threads_of_a_port(),
        n => n,
    }
}

impl Role for NativeRole {
    fn announce(&self, said: &mut Announcement) {
        let socket = self.data.join(SOCKET).display().to_string();
        said.listens("native protocol", socket.as_str());
        if let Some(tcp) = self.tcp {
            let secret = self.data.join(secrets::FILE);
            let how = if self.with_tls { ", TLS from other machines," } else { "" };
            said.listens("", format!("{tcp}{how} for who has {}", secret.display()));
        }
        let server = match self.data == Path::new("data") {
            true => String::new(),
            false => format!(" --server unix:{socket}"),
        };
        for line in ["fs put README.md /readme", "fs ls -l /", "fs cat /readme"] {
            said.tries.push(format!("{server} {line}"));
        }
        said.fields.insert("socket".into(), json!(socket));
        said.fields.insert("native".into(), json!(self.tcp.map(|tcp| tcp.to_string())));
    }

    fn metrics(&self) -> Option<Metrics> {
        let native = self.native.clone();
        Some(Box::new(move |registry| {
            let family = Family::<Vec<(&'static str, &'static str)>, Counter>::default();
            for (limit, waits) in native.clients().waits() {
                family.get_or_create(&vec![("limit", limit)]).inc_by(waits);
            }
            registry.register("clients_slowed", "How often a client had to wait", family);
            let family = Family::<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>>::default();
            for slowed in native.slowed().into_iter().take(SLOWED_MAX) {
                let labels = vec![("client", slowed.client), ("limit", slowed.limit.to_owned())];
                family.get_or_create(&labels).set(slowed.left_ms as f64 / 1000.0);
            }
            let what = "For how much longer a client that was slowed has to wait";
            registry.register_with_unit("client_slowed_left", what, Unit::Seconds, family);
        }))
    }

    fn end(self: Box<Self>) -> Result<()> {
        // Other nodes' reads of the log wait for entries that come no more.
        self.native.release_peers();
        self.server.shutdown();
        Ok(())
    }
}
