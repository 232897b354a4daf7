//! S3 as part of a node: opens the blob face, serves the port, keeps house; and the commands that
//! ask administrators' things of it.

use crate::config::Config;
use holdfast_base::{Error, Result};
use holdfast_blob::{BLOBS_TOPIC, Blobs, BlobsOptions, Housekeeping, Prober};
use holdfast_env::Secret;
use holdfast_env::tasks::{self, Stop, Task};
use holdfast_node::Node;
use holdfast_s3::{Credentials, Hot, Lifecycle, Limits, Server};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two rounds of the blobs' housekeeping.
const KEEP: Duration = Duration::from_secs(1);

/// The running face.
pub struct S3 {
    blobs: Arc<Blobs>,
    server: Server,
    pub credentials: Credentials,
}

/// Nothing if it is switched off, or if its view cannot be opened: that ends no node, which says
/// why and serves what its other views hold.
pub fn start(
    config: &Config,
    data: &Path,
    node: &Arc<Node>,
    secret: &Secret,
    limits: Limits,
) -> Result<Option<S3>> {
    let Some(address) = config.address(config.s3_port) else { return Ok(None) };
    let doing = |e: Error| e.context("start S3 (`s3_port`, 0 for none)");
    let (cache_bytes, class) = (config.s3_cache_bytes(), config.s3_class());
    let options = BlobsOptions { cache_bytes, class, ..BlobsOptions::new(data, secret.clone()) };
    let endpoint = format!("http://{address}");
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
            node.view_stopped(BLOBS_TOPIC, &doing(e));
            return Ok(None);
        }
    };
    let limits = Limits { hot_bytes: config.s3_hot_bytes(), ..limits };
    let server = Server::start(address, blobs.clone(), limits).map_err(doing)?;
    Ok(Some(S3 { blobs, server, credentials }))
}

impl S3 {
    pub fn keep_house(&self, stop: &Stop) -> Result<Task> {
        let mut housekeeping = Housekeeping::new(&self.blobs);
        let mut lifecycle = Lifecycle::new(&self.blobs);
        let mut prober = Prober::new(&self.blobs);
        let (clock, stop) = (self.blobs.node().machine.clock.clone(), stop.clone());
        tasks::spawn("blob-keeper", move || {
            while !stop.sleep_until_stop(KEEP) {
                housekeeping.step(clock.monotonic_ns());
                lifecycle.step(clock.monotonic_ns());
                prober.step(clock.monotonic_ns());
            }
        })
    }

    pub fn hot(&self) -> &Arc<Hot> {
        self.server.hot()
    }

    /// For whoever has the AWS command line.
    pub fn lines_to_try(&self, data: &Path) -> String {
        let endpoint = &self.credentials.endpoint;
        let file = data.join(holdfast_s3::CREDENTIALS_FILE);
        let file = file.display();
        // The keys stay in their file: what is printed here ends in logs.
        format!(
            "  export AWS_REGION={} AWS_ACCESS_KEY_ID=$(jq -r .access_key {file}) AWS_SECRET_ACCESS_KEY=$(jq -r .secret_key {file})\n  \
             aws --endpoint-url {endpoint} s3 mb s3://photos\n  \
             aws --endpoint-url {endpoint} s3 cp README.md s3://photos/readme\n",
            holdfast_s3::REGION
        )
    }

    /// Ends serving, then applying; writes the index out.
    pub fn end(self) -> Result<()> {
        drop(self.server);
        self.blobs.end()
    }
}
