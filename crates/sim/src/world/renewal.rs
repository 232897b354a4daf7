//! Certificates of nodes, renewed while they work: now and then one is given another, and goes on over
//! the connections that it has; some seconds later the one before is revoked. Whoever does it has an
//! order of draws of its own, so that schedules without certificates are what they were.

use super::cell::{Cell, SECOND};
use super::{World, mix};
use holdfast_cluster::ClusterCommand;
use holdfast_env::{Rng, SeededRng};
use std::sync::Arc;

/// Between two renewals; and between one and the revocation of what was there before.
const BETWEEN_NS: (u64, u64) = (3 * SECOND, 12 * SECOND);
const REVOKED_NS: (u64, u64) = (SECOND / 10, 5 * SECOND);

fn draw(rng: &SeededRng, (least, most): (u64, u64)) -> u64 {
    least + rng.next_u64() % (most - least)
}

impl World {
    /// Renews certificates until `end_ns`, where there are some.
    pub(super) fn renew_certificates(self: &Arc<World>, end_ns: u64) {
        if self.schedule.certificates {
            let rng = Arc::new(SeededRng::new(mix(self.schedule.seed, 4)));
            self.renew_soon(rng, end_ns);
        }
    }

    fn renew_soon(self: &Arc<World>, rng: Arc<SeededRng>, end_ns: u64) {
        let world = self.clone();
        self.net.after_ns(draw(&rng, BETWEEN_NS), move || {
            if world.net.now_ns() >= end_ns {
                return;
            }
            let cell = &world.cells[rng.next_u64() as usize % world.cells.len()];
            world.renew(cell, &rng);
            world.renew_soon(rng, end_ns);
        });
    }

    fn renew(self: &Arc<World>, cell: &Arc<Cell>, rng: &SeededRng) {
        let waits = self.net.outstanding_of(&cell.address);
        let Some(before) = cell.renew_certificate() else { return };
        self.net.note(&format!("{} has another certificate, {waits} calls wait", cell.address));
        let busy = cell.is_up() && waits > 0;
        self.shared.sometimes(busy, "a certificate was exchanged under load");
        let (world, serial) = (self.clone(), before.serial);
        self.net.after_ns(draw(rng, REVOKED_NS), move || world.revoke(serial));
    }

    /// Through any node that runs; where none does, it stays as good as the new one.
    fn revoke(self: &Arc<World>, serial: String) {
        let Some(node) = self.cells.iter().find_map(|cell| cell.node()) else { return };
        let (until_s, now_s) = (i64::MAX, 0);
        let revoke = ClusterCommand::Revoke { serial, until_s, now_s };
        let shared = self.shared.clone();
        node.propose_cluster(
            &revoke,
            Box::new(move |done| shared.sometimes(done.is_ok(), "a certificate was revoked")),
        );
        node.pump();
    }
}
