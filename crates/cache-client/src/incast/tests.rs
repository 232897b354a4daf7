use super::*;

fn p99_us(outcome: &Outcome) -> u64 {
    let mut all = outcome.rounds_ns.clone();
    all.sort_unstable();
    all[all.len() * 99 / 100] / 1000
}

fn run(change: impl FnOnce(&mut Scenario), sender: Sender) -> Outcome {
    let mut scenario = Scenario { rounds: 50, ..Scenario::default() };
    change(&mut scenario);
    scenario.run(sender).unwrap()
}

fn fleet(change: impl FnOnce(&mut fleet::Settings)) -> Sender {
    let mut settings = fleet::Settings { retries: 20, ..fleet::Settings::default() };
    change(&mut settings);
    Sender::Fleet(settings)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for sender in [fleet(|_| ()), Sender::Tcp(Tcp::RECENT)] {
        let once = run(|s| s.servers = 200, sender);
        assert_eq!(once, run(|s| s.servers = 200, sender));
        assert_ne!(once, run(|s| (s.servers, s.seed) = (200, 2), sender));
    }
}

#[test]
fn every_answer_arrives_and_one_server_alone_loses_nothing() {
    for sender in
        [fleet(|_| ()), Sender::Tcp(Tcp::CLASSIC), Sender::Tcp(Tcp::RECENT), Sender::Tcp(Tcp::FINE)]
    {
        let many = run(|s| s.servers = 300, sender);
        assert_eq!((many.answers, many.lost), (300 * 50, 0), "{sender:?}");
        assert_eq!(many.bytes, 300 * 50 * 4096);
        let one = run(|s| s.servers = 1, sender);
        assert_eq!((one.answers, one.dropped), (50, 0), "{sender:?}");
        // Three packets of 1.2 us, the way and the server: some 125 us.
        assert!((105..300).contains(&p99_us(&one)), "{sender:?}: {} us", p99_us(&one));
    }
}

/// The seed's story: synchronised losses of small windows cost 200 ms each.
#[test]
fn tcp_waits_for_timeouts_where_the_window_does_not() {
    let servers = |s: &mut Scenario| s.servers = 200;
    let ours = run(servers, fleet(|_| ()));
    let tcp = run(servers, Sender::Tcp(Tcp::CLASSIC));
    assert!(tcp.dropped > 0 && p99_us(&tcp) > 200_000, "{} us", p99_us(&tcp));
    assert!(p99_us(&ours) < 20_000, "{} us", p99_us(&ours));
    assert!(ours.time_ns * 10 < tcp.time_ns);
}

#[test]
fn the_window_loses_less_than_none_does() {
    let misses = fleet(|s| s.retries = 0);
    let ours = run(|s| s.servers = 400, misses);
    let open = run(
        |s| s.servers = 400,
        fleet(|s| (s.retries, s.window) = (0, crate::window::Settings::unbounded())),
    );
    assert!(open.lost > 20 * ours.lost.max(1), "{} {}", open.lost, ours.lost);
    assert!(ours.lost * 20 < ours.answers, "{} of {}", ours.lost, ours.answers);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    for change in [
        |s: &mut Scenario| s.servers = 0,
        |s: &mut Scenario| s.buffer_bytes = 100,
        |s: &mut Scenario| s.rounds = 0,
    ] {
        let mut scenario = Scenario::default();
        change(&mut scenario);
        assert!(scenario.run(fleet(|_| ())).is_err());
    }
}
