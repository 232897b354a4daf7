//! What must hold whenever the core rests. What costs a look at every rider is asked by builds with
//! debug assertions only.

use super::allowance::{Payer, Timer};
use super::head::Who;
use super::private::Private;
use super::terms::{Reader, RiderId, Source};
use super::{Carousel, Ground, Spool, Stir, Stream};

impl Carousel {
    pub(super) fn check(&self) {
        assert!(self.turns.holders.len() <= self.limits.private_max, "scans take turns");
        if !cfg!(debug_assertions) {
            return;
        }
        assert_eq!(self.stir, Stir::default(), "what was stirred was looked at");
        assert!(self.timers.first().is_none_or(|(at, _)| *at > self.now), "what is due is done");
        self.check_spins();
        self.check_riders();
        self.check_timers();
        let are_given = self.turns.holders.len() == self.limits.private_max;
        assert!(are_given || self.turns.queue.is_empty(), "turns are given while there are some");
        for (rider, head) in self.turns.holders.iter().chain(&self.turns.queue) {
            let stream = self.riders[rider].streams.get(head);
            assert!(matches!(stream, Some(Stream::Private(_))), "turns are for private readers");
        }
    }

    fn check_spins(&self) {
        let shared_max = self.limits.spins_max;
        for (is_dedicated, most) in [(false, shared_max), (true, self.limits.dedicated_max)] {
            let spins = self.spins_of(is_dedicated);
            assert!(spins <= most, "spins are bounded");
            let waits = self.first_waiting(is_dedicated).is_some();
            assert!(spins == most || !waits, "who can have a spin has one");
        }
        let has_room = self.spins_of(false) < shared_max;
        assert!(!has_room || self.due.is_none(), "an image that can have a spin has one");
        for spin in self.spins.values() {
            let is_spooled = matches!(spin.spool, Spool::Writing | Spool::Sealing);
            let is_held = spin.index.is_none() || !spin.riders.is_empty() || is_spooled;
            assert!(is_held || spin.under_way > 0, "a snapshot that nobody needs is given back");
            for head in &spin.heads {
                head.check(self.limits.window_bytes);
                for seat in &head.seats {
                    match seat.who {
                        Who::Image => assert_eq!(spin.spool, Spool::Writing, "a writer writes"),
                        Who::Rider(rider) => assert!(spin.riders.contains(&rider)),
                    }
                }
            }
        }
    }

    /// Nothing wakes the core for who has gone.
    fn check_timers(&self) {
        for (at, timer) in &self.timers {
            let set = match timer {
                Timer::Idle(rider) => self.riders[rider].watched_ns,
                Timer::Stall(Payer::Rider(rider)) => self.riders[rider].account.alarm_ns(),
                Timer::Stall(Payer::Image(spin)) => self.spins[spin].writer.alarm_ns(),
            };
            assert_eq!(set, Some(*at), "{timer:?} is known to whom it is about");
        }
    }

    fn check_private(&self, rider: RiderId, head: usize, private: &Private) {
        let Some(scan) = private.scan.map(|scan| &self.scans[&scan]) else { return };
        assert_eq!((scan.reader, scan.head), (Reader::Private(rider), head));
        match (scan.source, self.riders[&rider].ground) {
            (Source::Image(_), Ground::Spin(spin)) => {
                let is_there = scan.is_busy || self.spins[&spin].spool != Spool::None;
                assert!(is_there, "who has a snapshot keeps no image that is to go");
            }
            (Source::Snapshot(spin), _) if !self.spins[&spin].is_dedicated => {
                let has_turn = self.turns.holders.contains(&(rider, head));
                assert!(has_turn, "who scans a shared snapshot by itself has a turn");
            }
            _ => {}
        }
    }

    fn check_riders(&self) {
        for (id, rider) in &self.riders {
            assert!(!rider.streams.is_empty(), "who is through has gone");
            let waits = self.platform.contains(id);
            assert_eq!(waits, rider.ground == Ground::Platform, "who has no ground waits for it");
            match rider.ground {
                Ground::Platform => {}
                Ground::Image(image) => assert!(self.images.contains_key(&image), "it is kept"),
                Ground::Spin(spin) => assert!(self.spins[&spin].riders.contains(id)),
            }
            for (head, stream) in &rider.streams {
                let has_begun = match rider.ground {
                    Ground::Platform => false,
                    Ground::Image(_) => true,
                    Ground::Spin(spin) => self.spins[&spin].index.is_some(),
                };
                assert_eq!(has_begun, !matches!(stream, Stream::Boarding { .. }));
                match stream {
                    Stream::Boarding { .. } => {}
                    // Panics where there is none.
                    Stream::Shared => drop(self.seat(*id, *head)),
                    Stream::Private(private) => self.check_private(*id, *head, private),
                }
            }
        }
    }
}
