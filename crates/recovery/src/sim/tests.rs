use super::*;
use crate::select::Algorithm;

/// As many chunks a survivor as the paper's cluster has: about 71.
fn setup(seed: u64) -> Setup {
    Setup::new(350, 25_000, seed)
}

fn paper(algorithm: Algorithm) -> Config {
    Config::slots(PlannerOptions::paper(Params::default(), algorithm))
}

#[test]
fn every_byte_arrives_once_and_nobody_beats_the_ideal() {
    let scenario = setup(1).scenario(0, None);
    let total: f64 = (0..25_000).map(|task| f64::from(scenario.tasks.mb(task))).sum();
    let bound = ideal(&scenario, &Params::default());
    assert!(bound.fluid_s > 40.0 && bound.feasible_s >= bound.fluid_s, "{bound:?}");
    assert!(bound.feasible_s < 1.35 * bound.fluid_s, "{bound:?}");
    for (name, algorithm) in Algorithm::ALL {
        if algorithm == Algorithm::Naive {
            continue;
        }
        for config in
            [paper(algorithm), Config::horizon(PlannerOptions::paper(Params::default(), algorithm))]
        {
            let outcome = simulate(&scenario, &config).unwrap();
            let moved = outcome.moved_mb - outcome.resent_mb;
            assert!((moved / total - 1.0).abs() < 1e-4, "{name}: {moved} of {total}: {outcome:?}");
            // Links give more than eq. 1 when foreground falls short of its report.
            assert!(outcome.seconds > 0.97 * bound.feasible_s, "{name}: {outcome:?}, {bound:?}");
            assert_eq!(outcome, simulate(&scenario, &config).unwrap(), "{name} repeats");
        }
    }
}

/// The paper's order: greedy before random, adjusting stragglers before not, planning in time
/// before planning late, and our best method before all.
#[test]
fn better_plans_recover_sooner() {
    let scenario = setup(2).scenario(1, None);
    let seconds = |config: &Config| simulate(&scenario, config).unwrap().seconds;
    let dayu = seconds(&paper(Algorithm::Dayu));
    assert!(seconds(&paper(Algorithm::Random)) > 1.2 * dayu);
    let mut config = paper(Algorithm::Random);
    config.options.picks_skip = false;
    assert!(seconds(&config) > 2.0 * dayu);
    config = paper(Algorithm::Dayu);
    config.options.adjust = false;
    assert!(seconds(&config) > dayu);
    config = paper(Algorithm::G1);
    config.compute.tasks_per_second = 3_000.0;
    assert!(seconds(&config) > 1.05 * dayu);
    let best = Config::horizon(PlannerOptions::paper(Params::default(), Algorithm::Dayu));
    let best = simulate(&scenario, &best).unwrap();
    assert!(best.seconds < dayu && best.interference < 0.015, "{best:?}, {dayu} s");
}

/// Tasks without end: what is recovered in 20 slots is what the links give.
#[test]
fn endless_tasks_use_the_links_all_the_time() {
    let mut setup = setup(3);
    setup.chunks = 1;
    let scenario = setup.scenario(0, None);
    let config = Config { endless_s: Some(300.0), ..paper(Algorithm::Dayu) };
    let outcome = simulate(&scenario, &config).unwrap();
    let rate = outcome.moved_mb / 300.0 / 349.0;
    assert!((70.0..=100.0).contains(&rate), "{rate} MB/s a node");
}

/// Golden: the same seed gives these figures on every machine.
#[test]
fn one_seed_gives_known_figures() {
    let scenario = setup(7).scenario(0, None);
    let outcome = simulate(&scenario, &paper(Algorithm::Dayu)).unwrap();
    let best = Config::horizon(PlannerOptions::paper(Params::default(), Algorithm::Dayu));
    let best = simulate(&scenario, &best).unwrap();
    let bound = ideal(&scenario, &Params::default());
    let figures = format!(
        "dayu {:.2} s {:.4} {} stragglers {} restarted, best {:.2} s {:.4}, fluid {:.2} feasible {:.2}",
        outcome.seconds,
        outcome.interference,
        outcome.stragglers,
        outcome.restarted,
        best.seconds,
        best.interference,
        bound.fluid_s,
        bound.feasible_s
    );
    let known = "dayu 59.93 s 0.0177 180 stragglers 15 restarted, \
                 best 58.22 s 0.0083, fluid 48.24 feasible 55.03";
    assert_eq!(figures, known);
}

#[test]
fn impossible_settings_are_refused() {
    let scenario = setup(1).scenario(0, None);
    let params = Params { alpha: 1.5, ..Params::default() };
    let config = Config::slots(PlannerOptions::paper(params, Algorithm::Dayu));
    assert!(simulate(&scenario, &config).unwrap_err().message.contains("alpha"));
}

/// With copysets, only some nodes have what is to be copied; the feasible ideal was looked for
/// up to twice the fluid one, and given as that.
#[test]
fn with_copysets_the_feasible_ideal_is_what_the_holders_can_send() {
    let mut setup = setup(1);
    setup.placement.scatter = 10;
    let scenario = setup.scenario(0, None);
    let bound = ideal(&scenario, &Params::default());
    assert!(bound.feasible_s > 3.0 * bound.fluid_s, "{bound:?}");
    let best = Config::horizon(PlannerOptions::paper(Params::default(), Algorithm::Dayu));
    let outcome = simulate(&scenario, &best).unwrap();
    let ratio = outcome.seconds / bound.feasible_s;
    assert!((0.98..1.5).contains(&ratio), "{ratio} {bound:?}");
}
