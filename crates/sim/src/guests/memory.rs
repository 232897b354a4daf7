//! The tier in memory as a guest: files of class `dram` that are put, replaced, deleted and read
//! through any node while processes end. What was acknowledged is there, whole, for as long as no
//! process has ended since. From then on it may be gone, and whoever reads it is told that it was in
//! memory; its name, which nobody has synced, may be as it was before, where the log's host lost
//! power. Nobody is ever given bytes that were not put there, and all nodes say the same.

use super::names::{ATTEMPTS, Desk, Known, draw_version, until_told};
use crate::SimNet;
use crate::world::client::new_file;
use crate::world::guest::{Guest, Lodging, Visitor, Work};
use crate::world::scene::Version;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Durability, Tier};
use holdfast_base::node::StorageClass;
use holdfast_base::{Kind, Result};
use holdfast_env::HoldMutex;
use holdfast_node::Node;
use holdfast_wire::{self as wire, Call, file as msg};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const CLIENTS: usize = 2;
/// What each node has; small enough to become full of what waits for its readers' grace.
const MEMORY_BYTES: u64 = 2 << 20;
/// What a reader is told of bytes that ended with their process.
const GONE: &str = "in the memory of a process that has ended";

/// A name in a directory of class `dram`.
#[derive(Default)]
struct Name {
    known: Known,
    /// Processes that had started when the last change was asked for of which it is known whether it was
    /// carried out: one that starts later may have taken what the name holds.
    starts: u64,
}

/// What a reader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Bytes(Vec<u8>),
    NoFile,
    Gone,
}

#[derive(Default)]
struct Files {
    names: Mutex<BTreeMap<String, Name>>,
}

/// A guest of a schedule.
pub fn memory() -> Arc<dyn Guest> {
    Arc::new(Files::default())
}

impl Guest for Files {
    fn open(&self, _: &Arc<Node>, _: &SimNet) -> Result<Lodging> {
        Ok(Lodging::nothing())
    }

    fn memory_bytes(&self) -> u64 {
        MEMORY_BYTES
    }

    fn clients(&self) -> usize {
        CLIENTS
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            let mut desk = Desk::new(&visitor, "/memory/");
            while visitor.now_ns() < end_ns {
                let (gateway, name) = desk.turn(&visitor).await;
                let sure = match visitor.below(10) {
                    0..=3 => self.put(&visitor, gateway, &name).await,
                    4 => self.delete(&visitor, gateway, &name).await,
                    _ => {
                        self.read(&visitor, gateway, &name, false).await;
                        true
                    }
                };
                desk.over(&visitor, &name, sure);
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            for gateway in 1..=visitor.gateways() {
                let name = format!("/memory/last-{gateway}");
                let mut put = false;
                for _ in 0..ATTEMPTS {
                    put = self.put(&visitor, gateway, &name).await;
                    if put {
                        break;
                    }
                    visitor.pause().await;
                }
                if !put {
                    return visitor.violate(&format!("n{gateway} takes nothing into memory"));
                }
            }
            let names: Vec<String> = self.names.held().keys().cloned().collect();
            for name in names {
                let mut first: Option<Found> = None;
                for gateway in 1..=visitor.gateways() {
                    let ask = || self.read(&visitor, gateway, &name, true);
                    let found = until_told(&visitor, (gateway, &name), ask).await;
                    let Some(found) = found else { return };
                    visitor.sometimes(found == Found::Gone, "what was in memory was gone");
                    visitor.sometimes(
                        matches!(found, Found::Bytes(_)),
                        "what was in memory was there in the end",
                    );
                    // Nothing is on its way any more: all see the same.
                    match &first {
                        Some(first) if *first != found => {
                            return visitor.violate(&format!(
                                "`{name}` is {} at n{gateway} and was {} at another",
                                found.describe(),
                                first.describe()
                            ));
                        }
                        _ => first = Some(found),
                    }
                }
            }
        })
    }
}

impl Found {
    fn describe(&self) -> String {
        match self {
            Found::Bytes(bytes) => format!("{} bytes", bytes.len()),
            other => format!("{other:?}"),
        }
    }
}

impl Files {
    /// Whether its end is known.
    async fn put(&self, visitor: &Visitor, gateway: usize, name: &str) -> bool {
        let version = draw_version(visitor);
        let content = version.content();
        {
            let mut names = self.names.held();
            let name = names.entry(name.to_owned()).or_default();
            name.known.ever.insert(version);
        }
        let starts = visitor.starts();
        let class = StorageClass::new(&[Tier::Dram], Durability::Memory);
        let node = msg::NewNode { class, ..new_file(name) };
        let put = msg::Put { call: Call::default(), node, crc: crc32c(&content) };
        let done = visitor.ask(gateway, wire::OP_PUT, put.to_bytes(), Some(&content)).await;
        self.settle(visitor, name, Some(version), (starts, done.map(drop)))
    }

    async fn delete(&self, visitor: &Visitor, gateway: usize, name: &str) -> bool {
        let starts = visitor.starts();
        let action = msg::Action::Delete { path: name.to_owned(), recursive: false };
        let change = msg::Change { call: Call::default(), action };
        match visitor.ask(gateway, wire::OP_CHANGE, change.to_bytes(), None).await {
            // The gateway may be behind the put; nothing was changed.
            Err(e) if e.kind == Kind::NotFound => true,
            done => self.settle(visitor, name, None, (starts, done.map(drop))),
        }
    }

    fn settle(
        &self,
        visitor: &Visitor,
        name: &str,
        version: Option<Version>,
        (starts, done): (u64, Result<()>),
    ) -> bool {
        let mut names = self.names.held();
        let of = names.entry(name.to_owned()).or_default();
        let is_known = of.known.settle(visitor, name, version, done);
        // What it held before may be there still, or have ended with its process.
        if is_known {
            of.starts = starts;
        }
        is_known
    }

    /// What a name holds, if anybody says; what it cannot hold is a broken promise. `settled`: the
    /// gateway knows everything that was acknowledged.
    async fn read(
        &self,
        visitor: &Visitor,
        gateway: usize,
        name: &str,
        settled: bool,
    ) -> Option<Found> {
        let get = msg::Get {
            path: name.to_owned(),
            follow: false,
            offset: 0,
            bytes_max: 1 << 20,
            locate: false,
        };
        let found = match visitor.ask(gateway, wire::OP_GET, get.to_bytes(), None).await {
            Ok(reply) => Found::Bytes(reply.body),
            Err(e) if e.message.contains(GONE) => Found::Gone,
            Err(e) if e.kind == Kind::NotFound => Found::NoFile,
            Err(e) => {
                visitor.note(&format!("is not told by n{gateway} what `{name}` is: {e}"));
                return None;
            }
        };
        let names = self.names.held();
        let default = Name::default();
        let Name { known, starts } = names.get(name).unwrap_or(&default);
        let is = |version: &Version| Found::Bytes(version.content()) == found;
        // A gateway that is behind may know of what has changed since.
        let sure = settled && visitor.starts() == *starts;
        let fine = match &found {
            Found::Gone => !sure,
            Found::NoFile => !sure || known.now.is_empty() || known.now.contains(&None),
            Found::Bytes(_) if sure => known.now.iter().flatten().any(is),
            Found::Bytes(_) => known.ever.iter().any(is),
        };
        if !fine {
            visitor.violate(&format!(
                "`{name}` is {} at n{gateway}, not {:?}; {} processes have started since",
                found.describe(),
                known.now,
                visitor.starts() - starts
            ));
        }
        Some(found)
    }
}
