//! What the core wants: each effect is carried out if it may be.

use super::{Allowance, Scan, Spin, Spool, Task, World};
use crate::laps::Who;
use crate::view::Content;
use holdfast_base::Error;
use holdfast_ride::carousel::{
    Effect, Held, Place, Reader, RiderId, ScanId, Source, SpinId, Ticket,
};
use std::collections::BTreeMap;

impl World {
    pub(super) fn carry_out(&mut self) {
        while let Some(effect) = self.core.next_effect() {
            self.carry_out_one(effect);
        }
        self.take_from_images();
        self.check();
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Open { spin, image } => {
                let index = image.map_or(self.index, |image| image.0);
                self.tasks.push(Task::Open { spin, image, index });
            }
            Effect::Close { spin } => self.close(spin),
            Effect::Boarded { rider, index, on } => self.boarded(rider, index.0, on),
            Effect::Scan { scan, source, head, at, reader } => {
                self.scan(scan, source, head, at, reader);
            }
            Effect::Stop { scan } => {
                let found = self.scans.get_mut(&scan).expect("a scan that began");
                assert!(!std::mem::replace(&mut found.is_stopped, true), "{scan} stops once");
            }
            Effect::Send { rider, head, slab } => self.sent(rider, head, slab),
            Effect::Spool { spin, head, slab } => {
                let content = &self.held[&slab];
                let open = self.spins.get_mut(&spin).expect("what is spooled is open");
                assert_eq!(content.index, open.index, "an image is of one snapshot");
                assert_eq!(open.image, Spool::Writing);
                assert!(open.writes.insert(head), "one slab of a head is written at a time");
                open.heads[head].sent(Who::Writer, content.slab.number);
                self.tasks.push(Task::Spool { spin, head });
            }
            Effect::Seal { spin } => {
                let index = self.spins[&spin].index;
                for head in 0..self.view.heads {
                    let slabs = self.view.slabs(index, head).len();
                    assert_eq!(self.spins[&spin].written[head], slabs, "an image has everything");
                }
                self.spins.get_mut(&spin).expect("it is open").image = Spool::Sealing;
                self.tasks.push(Task::Seal(spin));
            }
            Effect::Abandon { spin } => {
                let open = self.spins.get_mut(&spin).expect("it is open");
                open.image = Spool::None;
                open.heads.iter_mut().for_each(|head| head.stand_up(Who::Writer));
            }
            Effect::Remove { image } => {
                let is_read = |scan: &Scan| scan.source == Source::Image(image) && !scan.is_stopped;
                assert!(!self.scans.values().any(is_read), "an image that is read stays");
                self.images.remove(&image.0);
                self.going.remove(&image.0);
                self.for_images.remove(&image.0);
            }
            Effect::Forget { slab } => {
                assert!(self.held.remove(&slab).is_some(), "{slab:?} is forgotten once");
            }
            Effect::Moved { rider, head } => self.moved(rider, head),
            Effect::End { rider, result } => self.ended(rider, result),
        }
    }

    /// Who is through with lap 1 takes what it missed from the image, if that is written.
    fn take_from_images(&mut self) {
        let mut gone = Vec::new();
        for spin in self.spins.values().filter(|spin| spin.image != Spool::None) {
            for (head, laps) in spin.heads.iter().enumerate() {
                let written = spin.written[head] as u64;
                gone.extend(laps.turns(written).map(|rider| (rider, head)));
            }
        }
        gone.into_iter().for_each(|(rider, head)| self.stand_up(rider, head));
    }

    fn close(&mut self, spin: SpinId) {
        let reads = |task: &Task| matches!(task, Task::Scan(scan) if self.scans[scan].source == Source::Snapshot(spin));
        assert!(!self.tasks.iter().any(reads), "a snapshot that is read stays");
        let scans = self.scans.values().filter(|scan| scan.source == Source::Snapshot(spin));
        assert!(scans.into_iter().all(|scan| scan.is_stopped), "scans stop before");
        assert!(self.spins.remove(&spin).is_some(), "{spin} is closed once");
    }

    fn boarded(&mut self, rider: RiderId, index: u64, on: Source) {
        let found = self.riders.get_mut(&rider).expect("a rider that came");
        assert_eq!(found.index.replace(index), None, "a rider boards once");
        found.on = Some(on);
        found.allowance = Some(Allowance::new(&self.limits));
        found.active_ns = self.now;
        let from = match &found.ticket {
            Ticket::Shared { at_least } | Ticket::Dedicated { at_least } => {
                assert!(index >= at_least.0, "{rider} asked for {at_least} or later, got {index}");
                None
            }
            Ticket::At { index: wanted, from } => {
                assert_eq!(index, wanted.0);
                from.clone()
            }
        };
        let Source::Snapshot(spin) = on else {
            found.private = found.heads.clone().collect();
            return;
        };
        let open = self.spins.get_mut(&spin).expect("who boards a spin finds it open");
        assert_eq!(open.index, index);
        for head in found.heads.clone() {
            assert!(open.heads[head].is_in_lap_1(), "riders join in lap 1");
            let resumes = from.is_some() && head == found.heads.start;
            if resumes || matches!(found.ticket, Ticket::Dedicated { .. }) {
                found.private.insert(head);
            } else {
                open.heads[head].sit(Who::Rider(rider));
            }
        }
    }

    fn scan(
        &mut self,
        scan: ScanId,
        source: Source,
        head: usize,
        at: Option<Place>,
        reader: Reader,
    ) {
        let index = match source {
            Source::Snapshot(spin) => self.spins.get(&spin).expect("it is open").index,
            Source::Image(image) => image.0,
        };
        let slabs = self.view.slabs(index, head);
        if let Some(place) = at {
            let at = match &place.first {
                None => 0,
                Some(row) => {
                    let begins = |content: &Content| content.slab.first == *row;
                    slabs.iter().position(begins).expect("a scan begins where a slab does")
                }
            };
            let number = place.number;
            let fresh = Scan { source, head, reader, at, number, is_stopped: false };
            let before = self.scans.insert(scan, fresh);
            assert!(before.is_none(), "{scan} begins once");
        }
        let found = self.scans.get(&scan).expect("a scan that goes on has begun");
        assert!(!found.is_stopped && found.at < slabs.len(), "{scan} has come to its end");
        if let Source::Image(image) = source {
            let writing = self.spins.values().find(|spin| {
                spin.index == image.0 && matches!(spin.image, Spool::Writing | Spool::Sealing)
            });
            let written = writing.map_or(slabs.len(), |spin| spin.written[head]);
            assert!(self.images.contains(&image.0) || writing.is_some(), "there is such an image");
            assert!(found.at < written, "what is read is written");
        }
        match reader {
            Reader::Private(rider) => {
                self.stand_up(rider, head);
            }
            Reader::Shared => {
                let works_for = |spin: &&mut Spin| spin.heads[head].under_way.is_none();
                // A scan that is told to read another spin is found out by what it makes.
                let spin = match source {
                    Source::Snapshot(spin) if at_spin(&self.spins, spin, head) => {
                        self.spins.get_mut(&spin)
                    }
                    _ => self.spins.values_mut().find(works_for),
                };
                spin.expect("a scan for all has its head").heads[head].asked(scan);
            }
        }
        self.tasks.push(Task::Scan(scan));
    }

    /// A rider reads a head by itself from now on.
    fn stand_up(&mut self, rider: RiderId, head: usize) {
        let found = self.riders.get_mut(&rider).expect("who reads rides");
        found.private.insert(head);
        if let Some(Source::Snapshot(spin)) = found.on
            && let Some(open) = self.spins.get_mut(&spin)
        {
            open.heads[head].stand_up(Who::Rider(rider));
        }
    }

    fn sent(&mut self, rider: RiderId, head: usize, slab: Held) {
        let content = self.held.get(&slab).expect("what is sent is held").clone();
        let reader = self.scans[&slab.scan].reader;
        let found = self.riders.get_mut(&rider).expect("who is sent something rides");
        assert!(found.ended.is_none(), "{rider} is sent nothing behind its end");
        assert_eq!(Some(content.index), found.index, "{rider} gets items of its index alone");
        let asked = found.asked.get_mut(&head).expect("a head that it wants");
        assert!(*asked > 0, "{rider} is sent what it asked for");
        *asked -= 1;
        found.active_ns = self.now;
        found.got.get_mut(&head).expect("a head that it wants").push(content.clone());
        match reader {
            Reader::Private(reader) => assert_eq!(reader, rider),
            Reader::Shared => {
                let Some(Source::Snapshot(spin)) = found.on else {
                    panic!("{rider} shares no scan")
                };
                let laps = &mut self.spins.get_mut(&spin).expect("it is open").heads[head];
                laps.sent(Who::Rider(rider), content.slab.number);
            }
        }
        self.look_whether_through(rider, head);
    }

    fn look_whether_through(&mut self, rider: RiderId, head: usize) {
        let wanted = self.wanted(rider, head);
        let found = self.riders.get_mut(&rider).expect("who is sent something rides");
        if found.got[&head].len() >= wanted.len() {
            found.through.insert(head);
            found.asked.insert(head, 0);
        }
    }

    /// What a rider must have got of a head in the end, in the order of the view.
    pub(super) fn wanted(&self, rider: RiderId, head: usize) -> Vec<Content> {
        let found = &self.riders[&rider];
        let mut slabs = self.view.slabs(found.index.expect("it rides"), head);
        if let Ticket::At { from: Some(row), .. } = &found.ticket
            && head == found.heads.start
        {
            let at = slabs.iter().position(|content| content.slab.first == *row);
            slabs.drain(..at.expect("a row where a slab begins"));
        }
        slabs
    }

    fn moved(&mut self, rider: RiderId, head: usize) {
        self.moves += 1;
        let found = &self.riders[&rider];
        let is_used_up = found.allowance.as_ref().is_some_and(Allowance::is_used_up);
        // A late driver may find several of them, one behind the other.
        assert!(self.is_late || is_used_up, "{rider} was moved too early: {found:?}");
        assert_eq!(found.asked[&head], 0, "who waits holds up nobody");
        self.stand_up(rider, head);
    }

    pub(super) fn let_go(&mut self, rider: RiderId) {
        for spin in self.spins.values_mut() {
            spin.heads.iter_mut().for_each(|laps| laps.stand_up(Who::Rider(rider)));
        }
    }

    /// V1: who ends well got everything of its index, once, each key's rows in their order.
    fn ended(&mut self, rider: RiderId, result: Result<(), Error>) {
        self.let_go(rider);
        let found = &self.riders[&rider];
        assert!(found.ended.is_none(), "{rider} ends once");
        if result.is_ok() {
            for head in found.heads.clone() {
                self.check_ride(rider, head);
            }
        } else if let Err(error) = &result {
            self.check_reason(rider, error);
        }
        self.riders.get_mut(&rider).expect("it rides").ended = Some(result);
    }
}

fn at_spin(spins: &BTreeMap<SpinId, Spin>, spin: SpinId, head: usize) -> bool {
    let laps = spins.get(&spin).map(|spin| &spin.heads[head]);
    laps.is_some_and(|laps| laps.under_way.is_none() && !laps.seats.is_empty())
}
