//! Stories that are told step by step.

use crate::view::View;
use crate::world::World;
use holdfast_base::ids::Index;
use holdfast_ride::carousel::{Limits, Ticket};

fn limits() -> Limits {
    Limits { window_bytes: 300, private_max: 2, ..Limits::usual() }
}

pub const NOW: Ticket = Ticket::Shared { at_least: Index(0) };

#[test]
fn a_rider_gets_everything_and_the_snapshot_is_given_back() {
    let mut world = World::new(View { seed: 3, heads: 1, slabs: 6 }, limits());
    world.join(1, 0..1, NOW);
    world.finish();
    assert_eq!(world.riders[&holdfast_ride::carousel::RiderId(1)].ended, Some(Ok(())));
}
