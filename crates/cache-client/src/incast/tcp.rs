//! TCP as a model: one connection a server, open from round to round with the window that it has
//! learned. Slow start from ten segments, congestion avoidance, selective acknowledgements (one a
//! segment, without delay), fast recovery, timeouts that double, restart after idleness; tail loss
//! probes and RACK if asked for. No handshake, no Nagle, no reordering: all in TCP's favour.

use super::network::{Network, PAYLOAD_BYTES};
use super::{Outcome, Scenario, Tcp};
use holdfast_base::Result;

const WINDOW_INITIAL: f64 = 10.0;
const WINDOW_AFTER_LOSS_MIN: f64 = 2.0;
/// Probes wait at least two of the kernel's ticks, of a millisecond each.
const PROBE_LEAST_NS: u64 = 2_000_000;
/// What a probe of a single segment waits longer: its acknowledgement could be delayed.
const PROBE_SINGLE_NS: u64 = 200_000_000;
const TIMEOUT_MOST_NS: u64 = 120_000_000_000;

enum Event {
    Served {
        server: u32,
    },
    AtSwitch {
        server: u32,
        segment: u32,
    },
    AtClient {
        server: u32,
        segment: u32,
    },
    /// An acknowledgement is at the server.
    Acknowledged {
        server: u32,
        round: u32,
        segment: u32,
    },
    Timer {
        server: u32,
        number: u64,
    },
}

#[derive(Clone, Copy, Default)]
struct Segment {
    sent_ns: u64,
    is_sent: bool,
    is_acknowledged: bool,
    /// Taken for lost, and not sent again since.
    is_lost: bool,
    /// Sent more than once: its time says nothing, and another loss of it shows by timeout only.
    is_repeated: bool,
    /// At the client.
    has_arrived: bool,
}

/// A server's end.
struct Connection {
    window: f64,
    threshold: f64,
    /// Segments below this were sent before the last cut.
    recovers_to: u32,
    segments: Vec<Segment>,
    next: u32,
    acknowledged: u32,
    arrived: u32,
    smooth_ns: f64,
    deviation_ns: f64,
    backoffs: u32,
    probed: bool,
    /// Timers of other numbers are void.
    timer: u64,
    is_probe_timer: bool,
    last_ns: u64,
}

struct World<'a> {
    scenario: &'a Scenario,
    settings: Tcp,
    network: Network<Event>,
    connections: Vec<Connection>,
    round: u32,
    left: u32,
    timers: u64,
}

pub fn run(scenario: &Scenario, settings: Tcp) -> Result<Outcome> {
    let count = u64::from(scenario.answer_bytes).div_ceil(PAYLOAD_BYTES) as usize;
    let connection = || Connection {
        window: WINDOW_INITIAL,
        threshold: f64::INFINITY,
        recovers_to: 0,
        segments: vec![Segment::default(); count],
        next: 0,
        acknowledged: 0,
        arrived: 0,
        smooth_ns: 0.0,
        deviation_ns: 0.0,
        backoffs: 0,
        probed: false,
        timer: 0,
        is_probe_timer: false,
        last_ns: 0,
    };
    let mut world = World {
        scenario,
        settings,
        network: Network::new(scenario),
        connections: (0..scenario.servers).map(|_| connection()).collect(),
        round: 0,
        left: 0,
        timers: 0,
    };
    for round in 0..scenario.rounds {
        world.round = round;
        world.run_round()?;
    }
    Ok(world.network.outcome)
}

impl Connection {
    fn outstanding(&self) -> f64 {
        let out = |s: &&Segment| s.is_sent && !s.is_acknowledged && !s.is_lost;
        self.segments.iter().filter(out).count() as f64
    }

    fn timeout_ns(&self, settings: &Tcp) -> u64 {
        // RFC 6298: a second before anything is known; Linux keeps the deviation's part apart
        // from the least time, which comes on top.
        if self.smooth_ns == 0.0 {
            return 1_000_000_000 << self.backoffs.min(7);
        }
        let time = self.smooth_ns as u64
            + ((4.0 * self.deviation_ns) as u64).max(settings.timeout_least_ns);
        (time << self.backoffs.min(16)).min(TIMEOUT_MOST_NS)
    }

    fn measured(&mut self, time_ns: f64) {
        if self.smooth_ns == 0.0 {
            (self.smooth_ns, self.deviation_ns) = (time_ns, time_ns / 2.0);
        } else {
            self.deviation_ns += ((time_ns - self.smooth_ns).abs() - self.deviation_ns) / 4.0;
            self.smooth_ns += (time_ns - self.smooth_ns) / 8.0;
        }
    }

    /// Halves the window, once for all that was sent before.
    fn cut(&mut self) {
        if self.acknowledged_below() >= self.recovers_to {
            self.threshold = (self.window / 2.0).max(WINDOW_AFTER_LOSS_MIN);
            self.window = self.threshold;
            self.recovers_to = self.next;
        }
    }

    /// The first segment that is not acknowledged.
    fn acknowledged_below(&self) -> u32 {
        self.segments.iter().position(|s| !s.is_acknowledged).unwrap_or(self.segments.len()) as u32
    }
}

impl World<'_> {
    fn run_round(&mut self) -> Result<()> {
        self.network.round_begins();
        self.left = self.scenario.servers;
        for server in 0..self.scenario.servers {
            let at_ns = self.network.served_ns();
            self.network.at(at_ns, Event::Served { server });
        }
        while self.left > 0 {
            let Some(event) = self.network.next()? else { break };
            self.event(event);
        }
        self.network.round_ends();
        Ok(())
    }

    fn payload_bytes(&self, segment: u32) -> u64 {
        let sent = u64::from(segment) * PAYLOAD_BYTES;
        (u64::from(self.scenario.answer_bytes) - sent).min(PAYLOAD_BYTES)
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Served { server } => self.begin(server),
            Event::AtSwitch { server, segment } => {
                if let Some(at_ns) = self.network.passes(self.payload_bytes(segment)) {
                    self.network.at(at_ns, Event::AtClient { server, segment });
                }
            }
            Event::AtClient { server, segment } => self.arrives(server, segment),
            Event::Acknowledged { server, round, segment } => {
                if round == self.round {
                    self.acknowledged(server, segment);
                }
            }
            Event::Timer { server, number } => {
                if self.connections[server as usize].timer == number {
                    self.timer(server);
                }
            }
        }
    }

    /// A server has its answer ready.
    fn begin(&mut self, server: u32) {
        let now_ns = self.network.now_ns;
        let settings = self.settings;
        let of = &mut self.connections[server as usize];
        if of.last_ns > 0 && now_ns - of.last_ns > of.timeout_ns(&settings) {
            of.window = of.window.min(WINDOW_INITIAL);
        }
        of.segments.fill(Segment::default());
        (of.next, of.acknowledged, of.arrived, of.recovers_to, of.probed) = (0, 0, 0, 0, false);
        self.send(server);
    }

    /// Sends what the window admits: what was lost first.
    fn send(&mut self, server: u32) {
        loop {
            let of = &self.connections[server as usize];
            if of.outstanding() + 1.0 > of.window.floor().max(1.0) {
                break;
            }
            let lost = of.segments.iter().position(|s| s.is_lost).map(|n| n as u32);
            let Some(segment) = lost.or((of.next < of.segments.len() as u32).then_some(of.next))
            else {
                break;
            };
            self.transmit(server, segment);
        }
        self.set_timer(server, false);
    }

    fn transmit(&mut self, server: u32, segment: u32) {
        let now_ns = self.network.now_ns;
        let of = &mut self.connections[server as usize];
        let state = &mut of.segments[segment as usize];
        state.is_repeated = state.is_sent;
        (state.sent_ns, state.is_sent, state.is_lost) = (now_ns, true, false);
        of.next = of.next.max(segment + 1);
        of.last_ns = now_ns;
        let at_ns = self.network.leaves(server, self.payload_bytes(segment));
        self.network.at(at_ns, Event::AtSwitch { server, segment });
    }

    fn set_timer(&mut self, server: u32, after_probe: bool) {
        let settings = self.settings;
        self.timers += 1;
        let of = &mut self.connections[server as usize];
        of.timer = self.timers;
        if of.acknowledged as usize == of.segments.len() || of.next == 0 {
            return;
        }
        let timeout_ns = of.timeout_ns(&settings);
        let single_ns = if of.outstanding() > 1.0 { 0 } else { PROBE_SINGLE_NS };
        let probe_ns = ((2.0 * of.smooth_ns) as u64).max(PROBE_LEAST_NS) + single_ns;
        of.is_probe_timer = settings.probes
            && !of.probed
            && !after_probe
            && of.smooth_ns > 0.0
            && of.backoffs == 0
            && probe_ns < timeout_ns;
        let time_ns = if of.is_probe_timer { probe_ns } else { timeout_ns };
        let number = of.timer;
        self.network.at(self.network.now_ns + time_ns, Event::Timer { server, number });
    }

    fn timer(&mut self, server: u32) {
        let of = &mut self.connections[server as usize];
        if of.is_probe_timer {
            of.probed = true;
            let last = of.segments.iter().rposition(|s| s.is_sent && !s.is_acknowledged);
            if let Some(segment) = last {
                self.transmit(server, segment as u32);
            }
            return self.set_timer(server, true);
        }
        of.threshold = (of.window / 2.0).max(WINDOW_AFTER_LOSS_MIN);
        of.window = 1.0;
        of.backoffs += 1;
        of.recovers_to = of.next;
        for segment in of.segments.iter_mut().filter(|s| s.is_sent && !s.is_acknowledged) {
            segment.is_lost = true;
        }
        self.send(server);
    }

    /// A segment is at the client, which acknowledges it at once.
    fn arrives(&mut self, server: u32, segment: u32) {
        let at_ns = self.network.now_ns + self.network.way_ns();
        self.network.at(at_ns, Event::Acknowledged { server, round: self.round, segment });
        let of = &mut self.connections[server as usize];
        let state = &mut of.segments[segment as usize];
        if std::mem::replace(&mut state.has_arrived, true) {
            return;
        }
        of.arrived += 1;
        if of.arrived as usize == of.segments.len() {
            self.left -= 1;
            self.network.outcome.answers += 1;
            self.network.outcome.bytes += u64::from(self.scenario.answer_bytes);
        }
    }

    fn acknowledged(&mut self, server: u32, segment: u32) {
        let now_ns = self.network.now_ns;
        let later_segments = self.settings.later_segments;
        let of = &mut self.connections[server as usize];
        // The window was in use when this was sent; otherwise it would grow for nothing.
        let was_full = of.outstanding() + 1.0 >= of.window.floor();
        let state = &mut of.segments[segment as usize];
        if state.is_acknowledged {
            return;
        }
        (state.is_acknowledged, state.is_lost) = (true, false);
        let (is_repeated, sent_ns) = (state.is_repeated, state.sent_ns);
        of.acknowledged += 1;
        if !is_repeated {
            of.measured((now_ns - sent_ns) as f64);
            of.backoffs = 0;
        }
        if was_full && of.recovers_to <= segment {
            of.window += if of.window < of.threshold { 1.0 } else { 1.0 / of.window };
        }
        // What was sent before three that have arrived is lost; a repeated one only by timeout.
        let mut later = 0;
        let mut has_lost = false;
        for i in (0..of.next as usize).rev() {
            let state = &mut of.segments[i];
            if state.is_acknowledged {
                later += 1;
            } else if later >= later_segments && !state.is_repeated && !state.is_lost {
                state.is_lost = true;
                has_lost = true;
            }
        }
        if has_lost {
            of.cut();
        }
        self.send(server);
    }
}
