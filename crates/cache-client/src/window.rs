//! One congestion window for everything that a client has outstanding, at all its servers: answers
//! meet in the switch port before the client, so what must be bounded is their sum. Counts the
//! datagrams that answers are expected to take; grows by one a round trip (twofold at first),
//! shrinks when answers are lost or late. Holds no clock: every moment is handed in.

/// How a window behaves; every time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Datagrams outstanding at first, at least and at most.
    pub initial: f64,
    pub least: f64,
    pub most: f64,
    /// Answers that are later than the fastest by more than this, on average over a round trip,
    /// wait in a queue that is too long.
    pub queue_ns: u64,
    /// Bounds of how long an answer is waited for; `timeout_initial_ns` before the first came.
    pub timeout_least_ns: u64,
    pub timeout_most_ns: u64,
    pub timeout_initial_ns: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            initial: 16.0,
            least: 2.0,
            most: 65_536.0,
            queue_ns: 150_000,
            timeout_least_ns: 1_000_000,
            timeout_most_ns: 200_000_000,
            timeout_initial_ns: 50_000_000,
        }
    }
}

impl Settings {
    /// No window: everything is sent at once. For comparison.
    pub fn unbounded() -> Settings {
        let all = f64::INFINITY;
        Settings { initial: all, least: all, most: all, ..Settings::default() }
    }
}

/// The fastest round trip is the fastest of so long, and is looked for anew after it.
const FASTEST_NS: u64 = 5_000_000_000;
/// At most this part of a window is left after one cut.
const CUT: f64 = 0.5;
/// Timeouts without any answer between them double at most so often.
const BACKOFFS_MAX: u32 = 6;

pub struct Window {
    settings: Settings,
    size: f64,
    /// Below, the window grows by as much as was answered; above, by one a round trip.
    threshold: f64,
    outstanding: u64,
    /// What was sent before is no reason for a further cut.
    cut_ns: u64,
    /// The round trip that is being looked at: when it began, the sum and number of its times.
    round_ns: u64,
    round_sum_ns: u64,
    round_count: u64,
    /// Something was kept back in this round trip, or the one before: only then does it grow.
    is_full: bool,
    was_full: bool,
    fastest: Fastest,
    smooth_ns: f64,
    deviation_ns: f64,
    backoffs: u32,
    /// What the last cut was for, if it was for losses.
    undo: Option<Undo>,
}

/// A window before it was cut for losses, and how many requests of then are still taken for lost:
/// if all of them are answered after all, nothing was (Eifel, RFC 4015; F-RTO, RFC 5682).
struct Undo {
    size: f64,
    threshold: f64,
    lost: u64,
}

/// The least of two periods: this one and the one before.
#[derive(Default)]
struct Fastest {
    now_ns: Option<u64>,
    before_ns: Option<u64>,
    since_ns: u64,
}

impl Fastest {
    fn get(&self) -> Option<u64> {
        match (self.now_ns, self.before_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Says whether a new period begins.
    fn add(&mut self, now_ns: u64, time_ns: u64) -> bool {
        let turns = now_ns.saturating_sub(self.since_ns) > FASTEST_NS;
        if turns {
            (self.before_ns, self.now_ns, self.since_ns) = (self.now_ns, None, now_ns);
        }
        self.now_ns = Some(self.now_ns.map_or(time_ns, |least| least.min(time_ns)));
        turns && self.before_ns.is_some()
    }
}

impl Window {
    pub fn new(settings: Settings) -> Window {
        Window {
            settings,
            size: settings.initial,
            threshold: settings.most,
            outstanding: 0,
            cut_ns: 0,
            round_ns: 0,
            round_sum_ns: 0,
            round_count: 0,
            is_full: false,
            was_full: false,
            fastest: Fastest::default(),
            smooth_ns: 0.0,
            deviation_ns: 0.0,
            backoffs: 0,
            undo: None,
        }
    }

    /// Whether so many datagrams more may be asked for. A request larger than the window goes
    /// when it is alone.
    pub fn admits(&mut self, datagrams: u32) -> bool {
        let fits =
            self.outstanding == 0 || (self.outstanding + u64::from(datagrams)) as f64 <= self.size;
        self.is_full |= !fits;
        fits
    }

    pub fn sent(&mut self, datagrams: u32) {
        self.outstanding += u64::from(datagrams);
    }

    /// An answer turned out to be of another length.
    pub fn revise(&mut self, from: u32, to: u32) {
        self.outstanding = (self.outstanding + u64::from(to)).saturating_sub(u64::from(from));
    }

    /// Datagrams came, or will not come.
    pub fn settle(&mut self, datagrams: u32) {
        self.outstanding = self.outstanding.saturating_sub(u64::from(datagrams));
    }

    /// So many datagrams were answered: what lets the window grow.
    pub fn grow(&mut self, datagrams: u32) {
        if !(self.is_full || self.was_full) {
            return;
        }
        let by = match self.size < self.threshold {
            true => f64::from(datagrams),
            false => f64::from(datagrams) / self.size,
        };
        self.size = (self.size + by).min(self.settings.most);
    }

    /// The first part of an answer came over UDP: its time counts for timeouts, too.
    pub fn timed(&mut self, now_ns: u64, sent_ns: u64) {
        self.estimate(now_ns, sent_ns);
        self.observed(now_ns, sent_ns);
    }

    fn estimate(&mut self, now_ns: u64, sent_ns: u64) {
        let time = now_ns.saturating_sub(sent_ns) as f64;
        if self.smooth_ns == 0.0 {
            (self.smooth_ns, self.deviation_ns) = (time, time / 2.0);
        } else {
            self.deviation_ns += ((time - self.smooth_ns).abs() - self.deviation_ns) / 4.0;
            self.smooth_ns += (time - self.smooth_ns) / 8.0;
        }
        self.backoffs = 0;
    }

    /// An answer's time, which says how long the queue is.
    pub fn observed(&mut self, now_ns: u64, sent_ns: u64) {
        let time_ns = now_ns.saturating_sub(sent_ns);
        if self.fastest.add(now_ns, time_ns) {
            // So that a queue which is always there is not taken for the way.
            self.cut_for_delay(now_ns, CUT);
        }
        if sent_ns >= self.round_ns && self.round_count > 0 {
            self.end_round(now_ns);
        }
        self.round_sum_ns += time_ns;
        self.round_count += 1;
    }

    /// Once a round trip: looks at the queue that the answers of it waited in.
    fn end_round(&mut self, now_ns: u64) {
        let mean_ns = self.round_sum_ns as f64 / self.round_count as f64;
        let wanted_ns = self.fastest.get().unwrap_or(0) + self.settings.queue_ns;
        if mean_ns > wanted_ns as f64 && self.round_ns >= self.cut_ns {
            self.cut_for_delay(now_ns, (wanted_ns as f64 / mean_ns).max(CUT));
        }
        (self.round_ns, self.round_sum_ns, self.round_count) = (now_ns, 0, 0);
        (self.was_full, self.is_full) = (self.is_full, false);
    }

    /// An answer to what was sent at `sent_ns` did not come in time. Losses of one round trip are
    /// one sign.
    pub fn lost(&mut self, now_ns: u64, sent_ns: u64) {
        if sent_ns >= self.cut_ns {
            let (size, threshold) = (self.size, self.threshold);
            self.cut(now_ns, CUT);
            self.undo = Some(Undo { size, threshold, lost: 0 });
        }
    }

    /// One more answer is missing to what was sent at `sent_ns`.
    pub fn counts_as_lost(&mut self, sent_ns: u64) {
        if let Some(undo) = self.undo.as_mut().filter(|_| sent_ns < self.cut_ns) {
            undo.lost += 1;
        }
    }

    /// What counted as lost was answered after all, but late. Timeouts get longer; and if nothing
    /// was lost of all that the window was cut for, it is what it was.
    pub fn late(&mut self, now_ns: u64, sent_ns: u64) {
        self.estimate(now_ns, sent_ns);
        let Some(undo) = self.undo.as_mut().filter(|_| sent_ns < self.cut_ns) else { return };
        undo.lost = undo.lost.saturating_sub(1);
        if undo.lost == 0 {
            (self.size, self.threshold) = (self.size.max(undo.size), undo.threshold);
            self.undo = None;
        }
    }

    /// A timeout passed without any answer at all.
    pub fn back_off(&mut self) {
        self.backoffs = (self.backoffs + 1).min(BACKOFFS_MAX);
    }

    /// Servers may be what is slow, which a smaller window does not help: only losses make it
    /// smaller than it was at first.
    fn cut_for_delay(&mut self, now_ns: u64, part: f64) {
        let least = self.size.min(self.settings.initial);
        self.cut(now_ns, (least / self.size).max(part));
    }

    fn cut(&mut self, now_ns: u64, part: f64) {
        self.size = (self.size * part).max(self.settings.least);
        self.threshold = self.size;
        self.cut_ns = now_ns;
        self.undo = None;
    }

    /// How long an answer is waited for: a few round trips.
    pub fn timeout_ns(&self) -> u64 {
        let settings = &self.settings;
        if self.smooth_ns == 0.0 {
            return (settings.timeout_initial_ns << self.backoffs).min(settings.timeout_most_ns);
        }
        let time = (self.smooth_ns + (4.0 * self.deviation_ns).max(self.smooth_ns)) as u64;
        let time = time.max(settings.timeout_least_ns) << self.backoffs;
        time.min(settings.timeout_most_ns)
    }

    /// A quarter of a round trip: by so much may datagrams overtake each other.
    pub fn disorder_ns(&self) -> u64 {
        self.fastest.get().unwrap_or(self.settings.timeout_least_ns) / 4
    }

    pub fn size(&self) -> f64 {
        self.size
    }

    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The mean time of an answer.
    pub fn round_trip_ns(&self) -> u64 {
        self.smooth_ns as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// Rounds over a way of 100 us whose queue passes a datagram a microsecond and drops what
    /// does not fit: the window after each.
    fn run(window: &mut Window, buffer: u64, start_ns: u64, rounds: u64) -> Vec<f64> {
        let mut now = start_ns;
        let mut sizes = Vec::new();
        for _ in 0..rounds {
            let mut asked = 0;
            while window.admits(1) {
                window.sent(1);
                asked += 1;
            }
            let fits = asked.min(100 + buffer);
            for i in 0..fits {
                let queued = i.saturating_sub(100) * US;
                window.settle(1);
                window.grow(1);
                window.timed(now + 100 * US + queued, now);
            }
            for _ in fits..asked {
                window.settle(1);
                window.lost(now + 1000 * US, now);
            }
            now += 1000 * US;
            sizes.push(window.size());
        }
        sizes
    }

    #[test]
    fn it_grows_twofold_then_by_one_and_halves_once_a_round_trip_for_losses() {
        let mut window = Window::new(Settings::default());
        let sizes = run(&mut window, 60, 0, 40);
        assert_eq!(sizes[..3], [32.0, 64.0, 128.0]);
        let after_loss = sizes.windows(2).find(|w| w[1] < w[0]).unwrap();
        assert!(after_loss[1] >= after_loss[0] / 2.0, "{sizes:?}");
        assert!(sizes[20..].iter().all(|s| (64.0..200.0).contains(s)), "{sizes:?}");
        let steps: Vec<f64> = sizes[5..].windows(2).map(|w| w[1] - w[0]).collect();
        assert!(steps.iter().all(|step| *step < 1.01), "{sizes:?}");
    }

    #[test]
    fn a_deep_queue_is_not_filled() {
        let settings = Settings { queue_ns: 50 * US, ..Settings::default() };
        let mut window = Window::new(settings);
        let sizes = run(&mut window, 100_000, 0, 300);
        // 100 on the way and some 100 waiting: the mean of a round waits half as long as its last.
        assert!(sizes[50..].iter().all(|size| *size < 330.0), "{sizes:?}");
        assert!(sizes[299] > 100.0, "{sizes:?}");
    }

    #[test]
    fn slow_servers_do_not_shrink_it_below_where_it_began() {
        let mut window = Window::new(Settings::default());
        for round in 1..200 {
            let now = round * 10_000 * US;
            while window.admits(1) {
                window.sent(1);
            }
            for i in 0..window.outstanding() {
                window.settle(1);
                window.grow(1);
                window.timed(now + (100 + 300 * (i % 20)) * US, now);
            }
        }
        assert!((16.0..40.0).contains(&window.size()), "{}", window.size());
    }

    #[test]
    fn one_that_is_not_filled_does_not_grow() {
        let mut window = Window::new(Settings::default());
        for now in 1..1000 {
            assert!(window.admits(1));
            window.sent(1);
            window.settle(1);
            window.grow(1);
            window.timed(now * 200 * US, now * 200 * US - 100 * US);
        }
        assert_eq!((window.size(), window.outstanding()), (16.0, 0));
    }

    #[test]
    fn a_timeout_is_a_few_round_trips_and_doubles_only_while_nothing_comes() {
        let mut window = Window::new(Settings::default());
        assert_eq!(window.timeout_ns(), 50_000 * US);
        for i in 0..100 {
            window.timed((i + 1) * 1000 * US, (i + 1) * 1000 * US - 400 * US);
        }
        let usual = window.timeout_ns();
        assert!((1000 * US..1100 * US).contains(&usual), "{usual}");
        window.back_off();
        assert_eq!(window.timeout_ns(), 2 * usual);
        (0..20).for_each(|_| window.back_off());
        assert!(window.timeout_ns() <= 200_000 * US);
        window.timed(200_000 * US, 199_600 * US);
        assert_eq!(window.timeout_ns(), usual);
    }

    #[test]
    fn a_cut_is_undone_when_all_that_it_was_for_is_answered_late() {
        let mut window = Window::new(Settings::default());
        (0..100).for_each(|i| window.timed(i * 1000 * US + 100 * US, i * 1000 * US));
        let sent = 200_000 * US;
        let lose = |window: &mut Window, requests: u64| {
            window.lost(sent + 1000 * US, sent);
            (0..requests).for_each(|_| window.counts_as_lost(sent));
        };
        let timeout = window.timeout_ns();
        lose(&mut window, 2);
        assert_eq!(window.size(), 8.0);
        window.late(sent + 3000 * US, sent);
        assert_eq!(window.size(), 8.0, "the other may be lost");
        window.late(sent + 3000 * US, sent);
        assert_eq!(window.size(), 16.0);
        assert!(window.timeout_ns() > 2 * timeout, "{}", window.timeout_ns());
        // Late answers to what was sent after the cut say nothing about it, and neither do any
        // about a cut for a queue that was too long.
        let mut window = Window::new(Settings::default());
        lose(&mut window, 1);
        window.late(sent + 5000 * US, sent + 2000 * US);
        assert_eq!(window.size(), 8.0);
        window.cut(sent + 6000 * US, CUT);
        window.late(sent + 7000 * US, sent);
        assert_eq!(window.size(), 4.0);
    }

    #[test]
    fn a_request_larger_than_the_window_goes_alone() {
        let mut window = Window::new(Settings::default());
        assert!(window.admits(100));
        window.sent(100);
        assert!(!window.admits(1));
        window.revise(100, 3);
        assert!(window.admits(13) && !window.admits(14));
        window.settle(3);
        assert_eq!(window.outstanding(), 0);
    }
}
