//! S3 as part of a node: opens the blob face, serves the port and the other one of its users, and keeps house. Decides nothing
//! about data. The commands that ask things of it are in `blob.rs`.

use crate::dynamo::Dynamo;
use crate::roles::{Announcement, Context, Metrics, Role, Rounds};
use holdfast_base::{Error, Kind, Result};
use holdfast_blob::{BLOBS_TOPIC, Blobs, BlobsOptions, Housekeeping, Prober};
use holdfast_node::{Node, Watch};
use holdfast_s3::{Credentials, Entrance, HotCounts, Lifecycle, Limits, Server};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::json;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Time between two rounds of the blobs' housekeeping.
const KEEP: Duration = Duration::from_secs(1);

struct S3Role {
    blobs: Arc<Blobs>,
    server: Server,
    credentials: Credentials,
    /// The credentials' file.
    file: PathBuf,
    keeper: Rounds,
    /// The users' other port.
    dynamo: Option<Dynamo>,
    /// Where other machines ask, if there are certificates.
    https: Option<String>,
}

/// Nothing where `s3_port` is 0; nor where the view of blobs cannot be opened: the node then says
/// why, and goes on without S3, for the sake of what its other views hold.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let Context { data, config, node, secret, .. } = *context;
    let Some(address) = config.address(config.s3_port) else { return Ok(None) };
    let doing = |e: Error| e.context("start S3 (`s3_port`, 0 for none)");
    let (cache_bytes, class) = (config.s3_cache_bytes(), config.s3_class());
    let options = BlobsOptions { cache_bytes, class, ..BlobsOptions::new(data, secret.clone()) };
    let (certificates, domain) = (context.certificates.clone(), config.s3_domain());
    let scheme = scheme_of_commands(certificates.is_some(), address.ip());
    let endpoint = format!("{scheme}://{address}");
    let opened = Blobs::open(node, &options).and_then(|blobs| {
        let disk = &*node.machine.disk;
        match holdfast_s3::find_or_make(disk, data, &blobs, &endpoint) {
            Ok(credentials) => Ok((blobs, credentials)),
            Err(e) => {
                let _ = blobs.end();
                Err(e)
            }
        }
    });
    let (blobs, credentials) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            node.view_failed(BLOBS_TOPIC, &doing(without_the_host(node, e)));
            return Ok(None);
        }
    };
    let limits = Limits {
        hot_bytes: config.s3_hot_bytes(),
        connections: context.places.s3,
        budget: context.budget.clone(),
        clients: context.native.clients().clone(),
        ..Limits::default()
    };
    let https = certificates.as_ref().map(|_| format!("https://{address}"));
    let audit = Some(context.audit.clone());
    let entrance = Entrance { certificates, domain, audit };
    let server = Server::start(address, blobs.clone(), limits, entrance).map_err(doing)?;
    let keeper = keep_house(context, &blobs)?;
    let dynamo = Dynamo::start(context, &blobs)?;
    let file = data.join(holdfast_s3::CREDENTIALS_FILE);
    Ok(Some(Box::new(S3Role { blobs, server, credentials, file, keeper, dynamo, https })))
}

/// The node that keeps the log makes the topic as it starts its own S3; what it says of one that is not there helps
/// nobody.
fn without_the_host(node: &Node, e: Error) -> Error {
    match e.kind == Kind::NotFound && node.hosted().is_none() {
        true => Error::not_found(
            "the node that keeps the log has S3 off, and the names of blobs are kept there: set `s3_port` there, or \
             to 0 here",
        ),
        false => e,
    }
}

/// How this machine's own commands reach the port. Over loopback they need no encryption; through
/// another address of the machine they are strangers like all others.
fn scheme_of_commands(has_certificates: bool, listen: IpAddr) -> &'static str {
    match has_certificates && !listen.is_loopback() && !listen.is_unspecified() {
        true => "https",
        false => "http",
    }
}

fn keep_house(context: &Context<'_>, blobs: &Arc<Blobs>) -> Result<Rounds> {
    let mut housekeeping = Housekeeping::new(blobs);
    let mut lifecycle = Lifecycle::new(blobs);
    let mut prober = Prober::new(blobs);
    Rounds::start(context, ("blob-keeper", KEEP), move |now_ns| {
        housekeeping.step(now_ns);
        lifecycle.step(now_ns);
        prober.step(now_ns);
    })
}

impl Role for S3Role {
    fn announce(&self, said: &mut Announcement) {
        let (endpoint, file) = (&self.credentials.endpoint, self.file.display());
        said.listens("S3", endpoint.as_str());
        if let Some(https) = &self.https {
            said.listens("", format!("{https} for other machines"));
        }
        said.listens("", format!("keys in {file}"));
        said.fields.insert("s3".into(), json!(endpoint));
        // For whoever has the AWS command line. The keys stay in their file: what is printed here
        // ends in logs.
        said.others.push(format!(
            "export AWS_REGION={} AWS_ACCESS_KEY_ID=$(jq -r .access_key {file}) AWS_SECRET_ACCESS_KEY=$(jq -r .secret_key {file})",
            holdfast_s3::REGION
        ));
        said.others.push(format!("aws --endpoint-url {endpoint} s3 mb s3://photos"));
        said.others
            .push(format!("aws --endpoint-url {endpoint} s3 cp README.md s3://photos/readme"));
        if let Some(dynamo) = &self.dynamo {
            dynamo.announce(said);
        }
    }

    fn health(&self) -> Option<Watch> {
        let dynamo = self.dynamo.as_ref().map(Dynamo::watch);
        let keeper = self.keeper.watch();
        Some(Box::new(move || {
            keeper().into_iter().chain(dynamo.iter().flat_map(|w| w())).collect()
        }))
    }

    fn metrics(&self) -> Option<Metrics> {
        let hot = self.server.hot().clone();
        Some(Box::new(move |registry| register_hot(registry, &hot.counts())))
    }

    /// Housekeeping ends first, then the port, and then the view, which writes its index out.
    fn end(self: Box<Self>) -> Result<()> {
        self.keeper.end();
        if let Some(dynamo) = self.dynamo {
            dynamo.end();
        }
        drop(self.server);
        self.blobs.end()
    }
}

fn register_hot(registry: &mut Registry, counts: &HotCounts) {
    for (name, help, count) in [
        ("blob_cache_hits", "Gets of objects served from memory", counts.hits),
        ("blob_cache_misses", "Gets of objects that could have been", counts.misses),
        ("blob_cache_admitted", "Objects that were kept in memory", counts.admitted),
    ] {
        let counter = Counter::<u64, AtomicU64>::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
    for (name, help, level) in [
        ("blob_cache_bytes", "Memory of objects", counts.bytes),
        ("blob_cache_objects", "Objects in memory", counts.objects),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(level as i64);
        registry.register(name, help, gauge);
    }
}
