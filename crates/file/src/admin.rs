//! What a node says of itself.

use crate::service::{FileService, answer};
use holdfast_base::codec::Encode;
use holdfast_client::wire::admin as msg;
use holdfast_env::net::{Parts, Reply};

impl FileService {
    pub fn status_now(&self) -> holdfast_base::Result<msg::Status> {
        let node = &self.node;
        let fold = node.namespace.status();
        let (totals, unclosed) =
            node.namespace.read(|view, _| (view.totals(), view.unclosed().len() as u64))?;
        let stores = node
            .stores
            .iter()
            .map(|own| {
                let usage = own.store.usage();
                let scrub = node.scrubbed(own.id);
                msg::Store {
                    id: own.id,
                    tier: own.tier,
                    place: own.place.clone(),
                    capacity_bytes: usage.capacity_bytes,
                    used_bytes: usage.used_bytes,
                    free_bytes: usage.free_bytes,
                    chunks: usage.chunks,
                    read_only: usage.read_only,
                    scrubbed_bytes: scrub.bytes,
                    bad_blocks: scrub.bad,
                }
            })
            .collect();
        let uptime_ns = node.machine.clock.monotonic_ns() - self.started_ns;
        Ok(msg::Status {
            node: node.id,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: uptime_ns / 1_000_000,
            files: totals.files,
            directories: totals.directories,
            bytes: totals.bytes,
            unclosed,
            index: fold.applied,
            digest: fold.digest,
            stores,
            findings: node.findings(),
        })
    }

    pub(crate) fn status(&self, reply: Reply) {
        answer(reply, self.status_now().map(|status| (status.to_bytes(), Parts::None)));
    }
}
