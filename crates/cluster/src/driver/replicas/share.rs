//! What recovery may take of this node's link: alpha of it, less what the foreground takes now,
//! and never less than a floor (eq. 1 of Dayu). A core: it is told what went over the link, and
//! answers bytes a second. Knows no copy; called 25 times a second.

use holdfast_env::net::Flow;
use std::collections::VecDeque;

/// A gigabit: what a link is taken for when nobody has said anything.
pub const LINK_BYTES_PER_SECOND: u64 = 125_000_000;
/// Share of a link that foreground and recovery together may take, unless somebody says otherwise.
pub const ALPHA_PER_MILLE: u32 = 750;
/// B_min of the paper: 30 of 250 MB/s.
const FLOOR_PER_MILLE: u64 = 120;
/// What the foreground takes "now": long enough for some blocks, short enough for a burst.
const NOW_NS: u64 = 120_000_000;
/// What reports are the mean of.
const REPORT_NS: u64 = 1_000_000_000;

/// What is asked of recovery; zeros for the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub alpha_per_mille: u32,
    pub floor: u64,
    pub rate_max: u64,
    /// This node's share of its rack's link; 0 for no such limit.
    pub rack: Flow,
}

impl Terms {
    /// Eq. 1 for one direction of a link, in bytes a second.
    pub fn allow(&self, link: u64, foreground: u64) -> u64 {
        let alpha = match self.alpha_per_mille {
            0 => ALPHA_PER_MILLE,
            alpha => alpha,
        } as u64;
        let floor = match self.floor {
            0 => link / 1000 * FLOOR_PER_MILLE,
            floor => floor,
        };
        let most = if self.rate_max == 0 { u64::MAX } else { self.rate_max };
        (link / 1000 * alpha).saturating_sub(foreground).max(floor).min(most).max(1)
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: u64,
    /// Bytes since the start.
    all: Flow,
    recovery: Flow,
}

#[derive(Debug, Default)]
pub struct Share {
    /// Of each direction, bytes a second; 0 for the default.
    pub link: u64,
    /// Of the rack's link, likewise; 0 where it limits nothing.
    pub rack_link: u64,
    pub terms: Terms,
    /// Oldest first, of a little more than [`REPORT_NS`].
    samples: VecDeque<Sample>,
}

impl Share {
    pub fn link(&self) -> u64 {
        if self.link == 0 { LINK_BYTES_PER_SECOND } else { self.link }
    }

    /// Takes totals since the start: of everything, and of recovery alone.
    pub fn sample(&mut self, at_ns: u64, all: Flow, recovery: Flow) {
        self.samples.push_back(Sample { at_ns, all, recovery });
        while self.samples.get(1).is_some_and(|next| next.at_ns + REPORT_NS <= at_ns) {
            self.samples.pop_front();
        }
    }

    /// Bytes a second of the foreground and of recovery over the last `ns`, as far as is known.
    /// Recovery's bytes are counted by block and the others by packet, so that the difference is
    /// right over some blocks only.
    fn mean(&self, ns: u64) -> (Flow, Flow) {
        let Some(last) = self.samples.back() else { return Default::default() };
        let since = self.samples.iter().rev().find(|sample| sample.at_ns + ns <= last.at_ns);
        let Some(first) = since.or(self.samples.front()) else { return Default::default() };
        let took_ns = (last.at_ns - first.at_ns) as u128;
        if took_ns == 0 {
            return Default::default();
        }
        let per_second = |bytes: u64| (bytes as u128 * 1_000_000_000 / took_ns) as u64;
        let grown = |of: fn(&Flow) -> u64| {
            let recovery = of(&last.recovery) - of(&first.recovery);
            let all = of(&last.all) - of(&first.all);
            (per_second(all.saturating_sub(recovery)), per_second(recovery))
        };
        let (received, sent) = (grown(|flow| flow.received), grown(|flow| flow.sent));
        (Flow { received: received.0, sent: sent.0 }, Flow { received: received.1, sent: sent.1 })
    }

    /// What recovery may take from now on.
    pub fn allowed(&self) -> Flow {
        let (foreground, _) = self.mean(NOW_NS);
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
        self.mean(REPORT_NS)
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
