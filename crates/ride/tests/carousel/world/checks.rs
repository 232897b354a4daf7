//! What must hold: of a ride when it ends, and of everything whenever all effects were carried out.

use super::{Allowance, Scan, Spin, Spool, Task, World};
use crate::laps::{Laps, Who};
use crate::view::Row;
use holdfast_base::Error;
use holdfast_ride::carousel::{Reader, RiderId, Source, SpinId, Ticket};
use std::collections::{BTreeMap, BTreeSet};

impl World {
    pub(super) fn check_ride(&self, rider: RiderId, head: usize) {
        let wanted = self.wanted(rider, head);
        let got = &self.riders[&rider].got[&head];
        let mut numbers = got.iter().map(|content| content.slab.number).collect::<Vec<_>>();
        let mut last: BTreeMap<u8, Row> = BTreeMap::new();
        for row in got.iter().flat_map(|content| &content.rows) {
            let before = last.insert(row.key, *row);
            assert!(before.is_none_or(|before| before < *row), "{rider} got {row:?} too late");
        }
        numbers.sort_unstable();
        let all = wanted.iter().map(|content| content.slab.number).collect::<Vec<_>>();
        assert_eq!(numbers, all, "{rider} gets each slab of head {head} once");
    }

    pub(super) fn check_reason(&self, rider: RiderId, error: &Error) {
        let found = &self.riders[&rider];
        let message = &error.message;
        if let Some(scan) = message.strip_suffix(" failed") {
            let scan = self.scans.iter().find(|(id, _)| id.to_string() == scan);
            let (_, scan) = scan.expect("a scan that failed is known");
            assert!(found.heads.contains(&scan.head) && !found.through.contains(&scan.head));
            match (scan.reader, scan.source) {
                (Reader::Private(reader), _) => assert_eq!(reader, rider),
                (Reader::Shared, source) => {
                    assert_eq!(Some(source), found.on, "{rider} shared that scan");
                    assert!(!found.private.contains(&scan.head), "{rider} reads by itself");
                }
            }
        } else if message.contains("nothing was asked for") {
            let idle = self.now - found.active_ns;
            assert!(idle >= self.limits.waited_ns, "{rider} was idle for {idle} ns alone");
            assert!(found.asked.values().all(|asked| *asked == 0), "{rider} had asked");
        } else if message.contains("the view is at") {
            assert!(found.index.is_none(), "{rider} rode");
        } else if message.contains("neither an image") {
            let Ticket::At { index, .. } = found.ticket else { panic!("{rider}: {message}") };
            let is_here = self.images.contains(&index.0) && !self.going.contains(&index.0);
            assert!(!is_here, "{rider}: there is an image");
            // What there is to ride instead, it says.
            let named = match self.images.difference(&self.going).max() {
                Some(newest) => format!("ride at {newest}, of which there is an image"),
                None => "there is no image here".to_owned(),
            };
            assert!(message.contains(&named), "{rider}: `{message}` does not say: {named}");
        } else {
            assert_eq!(message, "no snapshot", "{rider} was told so");
        }
    }

    pub(super) fn check(&self) {
        let mut stalled = BTreeSet::new();
        let kept = self.kept();
        for (id, spin) in &self.spins {
            self.check_need(*id, spin);
            for (head, laps) in spin.heads.iter().enumerate() {
                let does = kept.get(&(*id, head)).copied().unwrap_or(0);
                if self.check_head(*id, head, laps, does) {
                    stalled.insert(*id);
                }
            }
        }
        self.check_idle();
        let turns = self.scans.values().filter(|scan| !scan.is_stopped && self.takes_turn(scan));
        assert!(turns.count() <= self.limits.private_max, "private scans take turns");
        if self.tasks.is_empty() {
            self.check_progress(&stalled);
        }
    }

    /// Whether a scan is one rider's, of a snapshot that it shares.
    fn takes_turn(&self, scan: &Scan) -> bool {
        let (Reader::Private(rider), Source::Snapshot(_)) = (scan.reader, scan.source) else {
            return false;
        };
        let rider = self.riders.get(&rider).expect("scans stop when their rider goes");
        !matches!(rider.ticket, Ticket::Dedicated { .. })
    }

    /// Bytes that are held for each head.
    fn kept(&self) -> BTreeMap<(SpinId, usize), u64> {
        let mut kept = BTreeMap::new();
        for (held, content) in &self.held {
            let scan = &self.scans[&held.scan];
            let (Reader::Shared, Source::Snapshot(spin)) = (scan.reader, scan.source) else {
                panic!("{held:?} is kept for one rider")
            };
            *kept.entry((spin, scan.head)).or_default() += content.slab.bytes;
        }
        kept
    }

    /// A snapshot is open for somebody.
    fn check_need(&self, id: SpinId, spin: &Spin) {
        let source = Source::Snapshot(id);
        let writes = matches!(spin.image, Spool::Writing | Spool::Sealing);
        let reads =
            |task: &Task| matches!(task, Task::Scan(scan) if self.scans[scan].source == source);
        let mut riders = self.riders.values();
        let rides = riders.any(|rider| rider.ended.is_none() && rider.on == Some(source));
        assert!(writes || rides || self.tasks.iter().any(reads), "{id} is open for nobody");
        let is_overdrawn = spin.allowance.is_overdrawn();
        assert!(!writes || self.is_late || !is_overdrawn, "the writer held up others for too long");
    }

    /// A head keeps what somebody needs and no more than a window; who waits for it waits because
    /// the window is full, and nobody is the reason for longer than allowed. Whether it stalls.
    fn check_head(&self, id: SpinId, head: usize, laps: &Laps, does: u64) -> bool {
        let window = self.limits.window_bytes;
        let (must, last) = laps.kept();
        assert_eq!(does, must, "head {head} of {id} keeps what somebody needs");
        assert!(must - last < window, "head {head} of {id} keeps {must} bytes");
        let (waiting, _) = laps.held_up(&|who| self.asks(id, head, who));
        assert!(waiting.is_empty() || must >= window, "{waiting:?} wait for head {head} of {id}");
        for who in laps.seats.keys() {
            if let Who::Rider(rider) = who {
                let mut allowance = self.riders[rider].allowance.iter();
                let is_overdrawn = allowance.any(Allowance::is_overdrawn);
                assert!(self.is_late || !is_overdrawn, "{rider} held up others for too long");
            }
        }
        !waiting.is_empty()
    }

    fn check_idle(&self) {
        for (id, rider) in &self.riders {
            let rides = rider.on.is_some() && rider.ended.is_none();
            let asks = rider.asked.values().any(|asked| *asked > 0);
            let idle = self.now - rider.active_ns;
            let is_fine = !rides || asks || idle <= self.limits.idle_ns;
            assert!(is_fine, "{id} rides, idle for {idle} ns");
        }
    }

    /// Where nothing is under way, whoever has asked waits for somebody who holds it up, or for a
    /// spin while there are as many as may be.
    fn check_progress(&self, stalled: &BTreeSet<SpinId>) {
        for (id, rider) in &self.riders {
            let waits = |head: &usize| rider.asked[head] > 0 && !rider.through.contains(head);
            let waiting = rider.heads.clone().filter(waits).collect::<Vec<_>>();
            if rider.ended.is_some() || waiting.is_empty() {
                continue;
            }
            let has_reason = match rider.on {
                None => self.spins.len() >= self.limits.spins_max.min(self.limits.dedicated_max),
                Some(Source::Image(_)) => false,
                Some(Source::Snapshot(spin)) => stalled.contains(&spin),
            };
            assert!(has_reason, "{id} waits for heads {waiting:?}, and nothing is done");
            assert!(self.core.next_wake().is_some(), "{id} waits without end");
        }
    }
}
