//! The view against a plain model: any additions, from a snapshot at any place.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::stream;
use holdfast_counter::{Add, Counters, TOPIC};
use holdfast_view::{Applied, Context, View};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn command() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just(String::new()), "[ab]", Just("x".repeat(256))];
    let by = prop_oneof![Just(0), Just(u64::MAX), 0..10u64];
    let good = (name, by).prop_map(|(name, by)| Add::new(&name, by).to_bytes());
    // Nonsense is refused, and changes nothing.
    prop_oneof![9 => good, 1 => proptest::collection::vec(0..2u8, 0..9)]
}

proptest! {
    #[test]
    fn sums_are_what_a_map_would_say_from_a_snapshot_at_any_place(
        commands in proptest::collection::vec(command(), 0..40),
        place in 0..40usize,
    ) {
        let context = Context::of(TOPIC);
        let (mut view, mut model) = (Counters::begin(&context), BTreeMap::<String, u64>::new());
        for (i, command) in commands.iter().enumerate() {
            if i == place {
                let mut bytes = Vec::new();
                stream::collect(&mut bytes, |out| view.snapshot(out));
                let restored = stream::read_all(&bytes, |source| Counters::restore(&context, source));
                prop_assert_eq!(&restored.unwrap(), &view);
                view = stream::read_all(&bytes, |source| Counters::restore(&context, source)).unwrap();
            }
            let known = Add::from_bytes(command).ok().filter(|add| command[0] == 1 && {
                (1..=255).contains(&add.name.len())
            });
            let sum = known.as_ref().and_then(|add| {
                model.get(&add.name).copied().unwrap_or_default().checked_add(add.by)
            });
            match (view.apply(Index(i as u64 + 1), command), sum, known) {
                (Applied::Ok(told), Some(sum), Some(add)) => {
                    prop_assert_eq!(told, sum.to_bytes());
                    model.insert(add.name, sum);
                }
                (Applied::Refused(_), None, _) => {}
                (other, sum, _) => prop_assert!(false, "{:?} where {:?} was due", other, sum),
            }
        }
        for (name, sum) in &model {
            prop_assert_eq!(view.sum(name), *sum);
        }
    }
}

#[test]
fn an_addition_of_a_later_build_stops_the_view() {
    let mut later = Add::new("a", 1).to_bytes();
    later[0] = 2;
    let applied = Counters::begin(&Context::of(TOPIC)).apply(Index(1), &later);
    assert!(matches!(applied, Applied::UnknownVersion(_)), "{applied:?}");
}
