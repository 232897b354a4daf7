//! DynamoDB's API as part of a node: its port over the node's tables, for the users of S3, and what keeps
//! house for it. Decides nothing about items.

use crate::roles::{Announcement, Context, Rounds};
use holdfast_base::{Error, Kind, Result};
use holdfast_blob::Blobs;
use holdfast_dynamo::api::Api;
use holdfast_dynamo::server::{Limits, Server};
use holdfast_dynamo::tables::Tables;
use holdfast_dynamo::users::{Key, Keys};
use holdfast_env::runtime::Background;
use holdfast_node::Watch;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks for items of tables that are gone, and for those whose time is over.
const SWEEP: Duration = Duration::from_secs(2);

/// The users of S3. Whoever may do everything there may do so here; others nothing, for no policy speaks of
/// tables.
struct Users(Arc<Blobs>);

impl Keys for Users {
    fn key(&self, name: &str) -> Result<Option<Key>> {
        let key = self.0.access_key(name)?;
        Ok(key.map(|key| Key {
            reads: key.admin,
            writes: key.admin && !key.read_only,
            secret: key.secret,
        }))
    }
}

/// The port, while it serves.
pub struct Dynamo {
    server: Server,
    endpoint: String,
    sweeper: Rounds,
}

impl Dynamo {
    /// Nothing where `dynamodb_port` is 0.
    pub fn start(context: &Context<'_>, blobs: &Arc<Blobs>) -> Result<Option<Dynamo>> {
        let Some(address) = context.config.address(context.config.dynamodb_port) else {
            return Ok(None);
        };
        let doing = |e: Error| e.context("start DynamoDB's API (`dynamodb_port`, 0 for none)");
        let machine = &context.node.machine;
        let tables = Tables::new(context.tables.clone(), machine.rng.clone());
        let chance = (machine.clock.clone(), machine.rng.clone());
        let api = Api::new(tables.clone(), chance, context.budget.clone());
        let of_s3 = holdfast_s3::Limits::default();
        let limits = Limits {
            connections: context.places.dynamodb,
            budget: context.budget.clone(),
            head: of_s3.head,
            stall: of_s3.stall,
            threads: of_s3.threads,
        };
        let users = Arc::new(Users(blobs.clone()));
        let parts = (api, users as Arc<dyn Keys>, machine.clock.clone());
        let server = Server::start(address, parts, limits, context.certificates.clone());
        let server = server.map_err(doing)?;
        let node = context.node.clone();
        let sweeps = Background::start("dynamo-sweeps")?;
        let sweeper = Rounds::start(context, ("dynamo-sweeper", SWEEP), move |_| {
            // One node does it for all.
            if node.hosted().is_none() {
                return;
            }
            let now_s = node.machine.clock.unix_ms() / 1000;
            let tables = tables.clone();
            match sweeps.wait_for(async move { tables.sweep(now_s).await }) {
                Err(e) if !matches!(e.kind, Kind::Retry | Kind::Full) => {
                    node.report_finding(format!(
                        "remove items of deleted tables, and those whose time is over: {e}"
                    ));
                }
                // What is left goes later.
                Ok(()) | Err(_) => {}
            }
        })?;
        let endpoint = format!("http://{}", server.address().unwrap_or(address));
        Ok(Some(Dynamo { server, endpoint, sweeper }))
    }

    /// Where it listens.
    pub fn announce(&self, said: &mut Announcement) {
        said.listens("DynamoDB", self.endpoint.as_str());
        said.fields.insert("dynamodb".into(), json!(self.endpoint));
        said.others.push(format!("aws --endpoint-url {} dynamodb list-tables", self.endpoint));
    }

    /// Its thread's health.
    pub fn watch(&self) -> Watch {
        self.sweeper.watch()
    }

    /// Ends it in order.
    pub fn end(self) {
        self.sweeper.end();
        drop(self.server);
    }
}
