//! Shards of the simulated cluster: a person adds them while it works, and each client has its directory moved
//! to one of them now and then, empty, as only such are moved.

use super::client::Client;
use super::guest::Visitor;
use super::model::Change;
use holdfast_base::Kind;
use holdfast_base::codec::{Decode, Encode};
use holdfast_wire::{self as wire, admin, file as msg};

/// Until there are so many beside the first. More, where the log showed an order twice or late.
pub(super) async fn add(person: Visitor, count: u16) {
    loop {
        let gateway = person.any_gateway();
        let told = person.ask(gateway, wire::OP_SHARDS, Vec::new(), None).await;
        let shards = told.and_then(|told| Ok(Vec::<admin::Shard>::from_bytes(&told.meta)?));
        match shards {
            Ok(shards) if shards.len() > count as usize => return,
            Ok(_) => {
                let order = admin::Order::AddShard {}.to_bytes();
                let _ = person.ask(gateway, wire::OP_ORDER, order, None).await;
                // As long as it takes until all have heard of it, or another is added.
                person.think().await;
            }
            Err(_) => {}
        }
        person.pause().await;
        if person.is_over() {
            return;
        }
    }
}

impl Client {
    /// Empties its directory, and has it moved. Whether it is: the next changes show.
    pub(super) async fn move_own(&mut self) {
        for path in self.paths() {
            let action = msg::Action::Delete { path: path.clone(), recursive: false };
            let message = move |call| msg::Change { call, action: action.clone() };
            self.carry_out(Change::Delete(path), wire::OP_CHANGE, None, message).await;
        }
        let dir = self.directory();
        for file in self.unclosed().await {
            let action = msg::Action::Abandon { file };
            let message = move |call| msg::Change { call, action: action.clone() };
            let _ = self.change(wire::OP_CHANGE, None, message).await;
        }
        let to = self.any_shard();
        let order = admin::Order::MoveDirectory { dir: dir.clone(), to };
        let moved = self.ask(wire::OP_ORDER, order.to_bytes()).await;
        match moved {
            Ok(_) => self.note(&format!("has `{dir}` moved to shard {to}")),
            Err(e) => {
                self.note(&format!("cannot have `{dir}` moved to shard {to}: {e}"));
                if e.kind == Kind::Bug {
                    self.violate(&format!("move `{dir}`: {e}"));
                }
            }
        }
    }
}
