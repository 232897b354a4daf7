//! TCP as a model, one connection: slow start from ten segments, congestion avoidance, an acknowledgement a segment,
//! what was sent before an acknowledged one is lost (RACK; the way keeps the order), tail loss probes, timeouts that
//! double. No handshake, no limit of the receiver but the exchange's own. Times come from outside.

use std::collections::VecDeque;

const WINDOW_INITIAL: f64 = 10.0;
const WINDOW_AFTER_LOSS_MIN: f64 = 2.0;
/// A probe waits at least two of the kernel's ticks, a timeout so long beside the measured time.
const PROBE_LEAST_NS: u64 = 2_000_000;
const TIMEOUT_LEAST_NS: u64 = 200_000_000;
const BACKOFFS_MOST: u32 = 9;

/// One connection, both ends; segments are numbered from 0.
pub struct Flow {
    /// What the application has given.
    given: u64,
    /// The first that was never sent.
    next: u64,
    /// From the first that is not acknowledged: whether each is.
    base: u64,
    acknowledged: VecDeque<bool>,
    /// Sent and not heard of, in the order of sending, each with its moment and whether it was its first time.
    under_way: VecDeque<(u64, u64, bool)>,
    lost: VecDeque<u64>,
    window: f64,
    threshold: f64,
    recovers_to: u64,
    smooth_ns: f64,
    deviation_ns: f64,
    backoffs: u32,
    probed: bool,
    /// When something is to be done unless something is heard; never while nothing is under way.
    pub deadline_ns: Option<u64>,
    /// Whether a timer is in the queue.
    pub has_timer: bool,
    pub repeated: u64,
    pub timeouts: u64,
}

impl Flow {
    pub fn new(round_trip_ns: u64) -> Flow {
        Flow {
            given: 0,
            next: 0,
            base: 0,
            acknowledged: VecDeque::new(),
            under_way: VecDeque::new(),
            lost: VecDeque::new(),
            window: WINDOW_INITIAL,
            threshold: f64::INFINITY,
            recovers_to: 0,
            // As the handshake measured it.
            smooth_ns: round_trip_ns as f64,
            deviation_ns: round_trip_ns as f64 / 2.0,
            backoffs: 0,
            probed: false,
            deadline_ns: None,
            has_timer: false,
            repeated: 0,
            timeouts: 0,
        }
    }

    /// The application has so many segments more. What is under way is waited for no longer by that.
    pub fn give(&mut self, segments: u64) {
        let silent = self.under_way.is_empty() && self.lost.is_empty();
        if silent && self.deadline_ns.is_none() && self.given > 0 {
            // After a rest the way may be another's.
            self.window = self.window.min(self.threshold.max(WINDOW_INITIAL));
        }
        self.given += segments;
    }

    /// The first segment that has not arrived: all before have.
    pub fn arrived_below(&self) -> u64 {
        self.base
    }

    /// A segment that the window lets go now.
    pub fn send(&mut self, now_ns: u64) -> Option<u64> {
        if self.under_way.len() as f64 + 1.0 > self.window.floor().max(1.0) {
            return None;
        }
        while let Some(segment) = self.lost.pop_front() {
            if !self.is_acknowledged(segment) {
                self.goes(segment, now_ns, false);
                return Some(segment);
            }
        }
        if self.next == self.given {
            return None;
        }
        let segment = self.next;
        self.next += 1;
        self.acknowledged.push_back(false);
        self.goes(segment, now_ns, true);
        Some(segment)
    }

    fn goes(&mut self, segment: u64, now_ns: u64, first: bool) {
        self.repeated += u64::from(!first);
        self.under_way.push_back((segment, now_ns, first));
        if self.deadline_ns.is_none() {
            self.rest(now_ns);
        }
    }

    fn is_acknowledged(&self, segment: u64) -> bool {
        segment < self.base || self.acknowledged[(segment - self.base) as usize]
    }

    fn timeout_ns(&self) -> u64 {
        let time = self.smooth_ns as u64 + ((4.0 * self.deviation_ns) as u64).max(TIMEOUT_LEAST_NS);
        time << self.backoffs.min(BACKOFFS_MOST)
    }

    /// Something was heard, or the first of what is under way was sent: the wait begins anew.
    fn rest(&mut self, now_ns: u64) {
        self.deadline_ns = (!self.under_way.is_empty()).then(|| {
            let probe_ns = ((2.0 * self.smooth_ns) as u64).max(PROBE_LEAST_NS);
            let probes = !self.probed && self.backoffs == 0;
            now_ns + if probes { probe_ns.min(self.timeout_ns()) } else { self.timeout_ns() }
        });
    }

    /// The acknowledgement of a segment that was sent at a moment.
    pub fn acknowledged(&mut self, segment: u64, sent_ns: u64, now_ns: u64) {
        let was_full = self.under_way.len() as f64 + 1.0 >= self.window.floor();
        let mut has_lost = false;
        // The way keeps the order: what was sent before is lost.
        while let Some((front, at_ns, first)) = self.under_way.front().copied() {
            if at_ns > sent_ns {
                break;
            }
            self.under_way.pop_front();
            if (front, at_ns) == (segment, sent_ns) {
                if first {
                    self.measured((now_ns - sent_ns) as f64);
                }
                break;
            }
            if !self.is_acknowledged(front) {
                self.lost.push_back(front);
                has_lost = true;
            }
        }
        (self.backoffs, self.probed) = (0, false);
        if segment >= self.base {
            self.acknowledged[(segment - self.base) as usize] = true;
        }
        while self.acknowledged.front() == Some(&true) {
            self.acknowledged.pop_front();
            self.base += 1;
        }
        if has_lost {
            self.cut();
        } else if was_full && self.base >= self.recovers_to {
            self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        }
        self.rest(now_ns);
    }

    fn measured(&mut self, time_ns: f64) {
        self.deviation_ns += ((time_ns - self.smooth_ns).abs() - self.deviation_ns) / 4.0;
        self.smooth_ns += (time_ns - self.smooth_ns) / 8.0;
    }

    /// Halves the window, once for all that was sent before.
    fn cut(&mut self) {
        if self.base >= self.recovers_to {
            self.threshold = (self.window / 2.0).max(WINDOW_AFTER_LOSS_MIN);
            self.window = self.threshold;
            self.recovers_to = self.next;
        }
    }

    /// Nothing was heard until the deadline. A probe is what is to be sent now.
    pub fn ran_out(&mut self, now_ns: u64) -> Option<u64> {
        if !self.probed && self.backoffs == 0 {
            self.probed = true;
            let last = self.under_way.iter().rev().map(|(segment, _, _)| *segment);
            let probe = last.into_iter().find(|segment| !self.is_acknowledged(*segment));
            if let Some(segment) = probe {
                self.goes(segment, now_ns, false);
            }
            self.rest(now_ns);
            return probe;
        }
        self.timeouts += 1;
        self.backoffs += 1;
        self.threshold = (self.window / 2.0).max(WINDOW_AFTER_LOSS_MIN);
        self.window = 1.0;
        self.recovers_to = self.next;
        let all = std::mem::take(&mut self.under_way);
        let mut lost: Vec<u64> = all.into_iter().map(|(segment, _, _)| segment).collect();
        lost.extend(std::mem::take(&mut self.lost));
        lost.sort_unstable();
        lost.dedup();
        lost.retain(|segment| !self.is_acknowledged(*segment));
        self.lost = lost.into();
        self.deadline_ns = None;
        None
    }
}
