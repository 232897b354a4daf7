//! What recovery may take of this node's link: alpha of it, less what the foreground takes now,
//! and never less than a floor (eq. 1 of Dayu). A core: it is told what went over the link, and
//! answers bytes a second. Knows no copy; called 25 times a second.

use holdfast_cluster::repair::Terms;
use holdfast_env::net::Flow;
use std::collections::VecDeque;

/// A gigabit: what a link is taken for when nobody has said anything.
pub const LINK_BYTES_PER_SECOND: u64 = 125_000_000;
/// What the foreground takes "now": long enough for some blocks, short enough for a burst.
const NOW_NS: u64 = 120_000_000;
/// What reports are the mean of.
const REPORT_NS: u64 = 1_000_000_000;

/// Totals since the start, looked at now and then: what a second adds to them, lately.
#[derive(Debug)]
pub struct Means<const N: usize> {
    /// When, and the totals; oldest first, of a little more than [`REPORT_NS`].
    samples: VecDeque<(u64, [u64; N])>,
}

impl<const N: usize> Default for Means<N> {
    fn default() -> Means<N> {
        Means { samples: VecDeque::new() }
    }
}

impl<const N: usize> Means<N> {
    pub fn sample(&mut self, at_ns: u64, totals: [u64; N]) {
        self.samples.push_back((at_ns, totals));
        while self.samples.get(1).is_some_and(|next| next.0 + REPORT_NS <= at_ns) {
            self.samples.pop_front();
        }
    }

    /// Of the last `ns`, as far as is known.
    fn over(&self, ns: u64) -> [u64; N] {
        let Some(last) = self.samples.back() else { return [0; N] };
        let since = self.samples.iter().rev().find(|sample| sample.0 + ns <= last.0);
        let Some(first) = since.or(self.samples.front()) else { return [0; N] };
        let took_ns = (last.0 - first.0) as u128;
        let grown = |i: usize| u128::from(last.1[i] - first.1[i]);
        let per_second = |i| (grown(i) * 1_000_000_000).checked_div(took_ns).unwrap_or(0) as u64;
        std::array::from_fn(per_second)
    }

    pub fn now(&self) -> [u64; N] {
        self.over(NOW_NS)
    }

    pub fn last_second(&self) -> [u64; N] {
        self.over(REPORT_NS)
    }
}

#[derive(Debug, Default)]
pub struct Share {
    /// Of each direction, bytes a second; 0 for the default.
    pub link: u64,
    /// Of the rack's link, likewise; 0 where it limits nothing.
    pub rack_link: u64,
    pub terms: Terms,
    /// Received, all and for recovery; sent, all and for recovery.
    means: Means<4>,
}

/// The foreground, and recovery. Recovery's bytes are counted by block and the others by packet,
/// so that the difference is right over some blocks only.
fn told_apart([received, imported, sent, exported]: [u64; 4]) -> (Flow, Flow) {
    let (of_received, of_sent) = (received.saturating_sub(imported), sent.saturating_sub(exported));
    let foreground = Flow { received: of_received, sent: of_sent };
    (foreground, Flow { received: imported, sent: exported })
}

impl Share {
    pub fn link(&self) -> u64 {
        if self.link == 0 { LINK_BYTES_PER_SECOND } else { self.link }
    }

    /// Takes totals since the start: of everything, and of recovery alone.
    pub fn sample(&mut self, at_ns: u64, all: Flow, recovery: Flow) {
        let totals = [all.received, recovery.received, all.sent, recovery.sent];
        self.means.sample(at_ns, totals);
    }

    /// What recovery may take from now on.
    pub fn allowed(&self) -> Flow {
        let (foreground, _) = told_apart(self.means.now());
        let rack = self.terms.rack;
        let allow = |foreground, rack: u64| {
            let most = if rack == 0 { u64::MAX } else { rack };
            self.terms.allow(self.link(), foreground).min(most)
        };
        Flow {
            received: allow(foreground.received, rack.received),
            sent: allow(foreground.sent, rack.sent),
        }
    }

    /// The foreground and recovery of the last second.
    pub fn report(&self) -> (Flow, Flow) {
        told_apart(self.means.last_second())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn flow(received: u64, sent: u64) -> Flow {
        Flow { received, sent }
    }

    #[test]
    fn recovery_gets_alpha_less_the_foreground_and_never_less_than_the_floor() {
        let terms = Terms::default();
        // The paper's figures, in bytes: 250 MB/s, alpha 0.75, B_min 30.
        assert_eq!(terms.allow(250 * MB, 0), 187_500_000);
        assert_eq!(terms.allow(250 * MB, 100 * MB), 87_500_000);
        assert_eq!(terms.allow(250 * MB, 250 * MB), 30 * MB);
        let terms = Terms { alpha_per_mille: 1000, floor: 5 * MB, rate_max: 60 * MB, ..terms };
        assert_eq!(terms.allow(250 * MB, 100 * MB), 60 * MB, "the limit");
        assert_eq!(terms.allow(250 * MB, 249 * MB), 5 * MB);
    }

    #[test]
    fn a_burst_is_answered_within_tenths_of_a_second_and_reports_are_means() {
        let mut share = Share { link: 100 * MB, ..Share::default() };
        let (mut all, mut recovery) = (flow(0, 0), flow(0, 0));
        let mut step = |share: &mut Share, tick: u64, foreground: u64| {
            // 20 MB/s of recovery come in, and the foreground.
            recovery.received += 2 * MB;
            all.received += 2 * MB + foreground / 10;
            share.sample(tick * 100_000_000, all, recovery);
        };
        for tick in 0..20 {
            step(&mut share, tick, 30 * MB);
        }
        assert_eq!(share.allowed(), flow(45 * MB, 75 * MB));
        assert_eq!(share.report(), (flow(30 * MB, 0), flow(20 * MB, 0)));
        (20..23).for_each(|tick| step(&mut share, tick, 60 * MB));
        assert_eq!(share.allowed().received, 15 * MB);
        let mean = share.report().0.received;
        assert!((35 * MB..45 * MB).contains(&mean), "{mean}");
    }

    #[test]
    fn blocks_counted_before_they_are_sent_are_no_foreground() {
        let mut share = Share { link: 10 * MB, ..Share::default() };
        let mut sent = 0;
        for tick in 0..11u64 {
            // Handed over at once, on the wire later.
            share.sample(tick * 100_000_000, flow(0, sent), flow(0, (tick + 1) * MB / 4));
            sent = (tick + 1) * MB / 4;
        }
        assert_eq!(share.report().0, flow(0, 0));
        assert_eq!(share.allowed(), flow(7_500_000, 7_500_000));
    }
}
