//! The formulas of docs/tables.md, against what regions take in virtual time.

use holdfast_table::sim::distance::Distance;
use holdfast_table::sim::figures::{Cell, Loss, cell, loss, mix, moved};
use holdfast_table::sim::world::Costs;
use holdfast_table::tablet::Mode;

fn middle(mut values: Vec<u64>, part: f64) -> f64 {
    values.sort_unstable();
    values[((values.len() as f64 * part) as usize).min(values.len() - 1)] as f64
}

#[test]
fn every_request_takes_what_its_formula_says() {
    let costs = Costs::default();
    let (three, five) = (Distance::three(), Distance::five());
    let mut cells: Vec<(&Distance, Cell, usize, usize)> = Vec::new();
    for kind in Cell::ALL {
        cells.extend((0..9).map(|i| (&three, kind, i / 3, i % 3)));
    }
    for kind in [Cell::StrongWrite, Cell::StrongRead] {
        cells.extend((0..25).map(|i| (&five, kind, i / 5, i % 5)));
    }
    for (distance, kind, c, m) in cells {
        // What shows at home shows at once.
        if kind == Cell::CriticalAbsent && c == m {
            continue;
        }
        let formula = kind.formula_us(distance, &costs, c, m) as f64;
        let p50 = middle(cell(kind, distance, &costs, (c, m), 5).unwrap(), 0.5);
        let ratio = p50 / formula;
        assert!((0.95..=1.05).contains(&ratio), "{kind:?} from {c} to {m}: {p50} of {formula}");
    }
}

#[test]
fn strength_costs_the_median_and_not_the_far_end() {
    let (costs, three) = (Costs::default(), Distance::three());
    let of = |mode| mix(mode, &three, &costs, 85, 4_000).unwrap();
    let (timeline, strong) = (of(Mode::Timeline), of(Mode::Strong));
    for part in [0.99, 0.999] {
        let ratio = middle(strong.clone(), part) / middle(timeline.clone(), part);
        assert!(ratio <= 1.05, "{ratio} at {part}");
    }
    let (timeline, strong) = (middle(timeline, 0.5), middle(strong, 0.5));
    assert!(timeline < 2_000.0 && (80_000.0..90_000.0).contains(&strong), "{timeline} {strong}");
}

#[test]
fn a_home_follows_its_users_within_four_writes() {
    let (costs, three) = (Costs::default(), Distance::three());
    let remote = moved(&three, &costs, 5).unwrap();
    assert_eq!(remote[..2], [100.0, 100.0]);
    assert!(remote[3..].iter().all(|percent| *percent < 5.0), "{remote:?}");
}

#[test]
fn a_lost_region_costs_its_neighbours_distance_and_the_silence() {
    let lost = loss(&Distance::three(), &Costs::default());
    let Loss { read_any_us, write_us, write_formula_us, .. } = lost;
    assert_eq!(read_any_us.0, read_any_us.1);
    let near = |a: u64, b: u64| (a as f64 / b as f64 - 1.0).abs() < 0.1;
    assert!(near(write_us.0, write_formula_us.0), "{lost:?}");
    assert!(near(write_us.1, write_formula_us.1), "{lost:?}");
    assert!(lost.takeover_us < lost.takeover_formula_us + 1_000_000, "{lost:?}");
}
