//! Rounds, turns and bounds; what becomes of batches is in `tests/once` and `tests/world.rs`.

use super::*;
use crate::batch::{Builder, Position};
use crate::category::Category;
use holdfast_base::codec::put_bytes;

fn batch(spool: u64, category: &str, bytes: usize) -> Vec<u8> {
    let mut builder = Builder::default();
    // Of such numbers nothing is saved by compressing them.
    let noise = (0..bytes).map(|at| (holdfast_base::random::mix(at as u64) >> 7) as u8);
    builder.push(&noise.collect::<Vec<u8>>());
    let packed = builder.pack(Category::new(category).unwrap());
    match spool {
        0 => packed.without_number(),
        spool => packed.number(SpoolId(spool), Position::START),
    }
}

fn named(names: &[&str]) -> msg::Append {
    msg::Append { categories: names.iter().map(|name| (*name).to_owned()).collect() }
}

fn append(spool: u64, category: &str, bytes: usize) -> Asked {
    let mut body = Vec::new();
    put_bytes(&mut body, &batch(spool, category, bytes));
    Asked::append(named(&[category]), body).unwrap()
}

fn at(next: u64) -> Told {
    Told::Position(msg::Position { next, checksum: 0, refused: String::new(), never: false })
}

fn tickets(round: &Round<u32>) -> Vec<u32> {
    round.0.iter().map(|part| part.ticket).collect()
}

#[test]
fn what_waits_goes_together_and_each_hears_of_its_own() {
    let mut carrier = Carrier::default();
    let mut two = Vec::new();
    put_bytes(&mut two, &batch(2, "b", 10));
    put_bytes(&mut two, &batch(2, "a", 10));
    assert!(carrier.take(1, append(1, "a", 10), 10).is_empty());
    let both = Asked::append(named(&["a", "b", "unused"]), two.clone()).unwrap();
    assert!(carrier.take(2, both, 20).is_empty());
    assert!(carrier.take(1, append(1, "c", 10), 11).is_empty());
    let ask = msg::Ask { spool: 3, categories: vec!["a".into(), "b".into()] };
    assert!(carrier.take(3, Asked::ask(ask.clone()).unwrap(), 30).is_empty());
    let round = carrier.next_round().unwrap();
    assert_eq!(tickets(&round), [10, 20]);
    let Request::Append { categories, bodies, count } = round.request() else { panic!() };
    assert_eq!((categories, count), (vec!["a".to_owned(), "b".to_owned()], 3));
    assert_eq!(bodies[1], two, "not a byte is another");
    let outcomes = carrier.came(round, Ok(vec![at(1), at(2), at(3)]));
    assert_eq!(outcomes, [(10, Ok(vec![at(1)])), (20, Ok(vec![at(2), at(3)]))]);
    // A question goes by itself, in its turn.
    let round = carrier.next_round().unwrap();
    assert!(matches!(round.request(), Request::Ask(asked) if *asked == ask));
    assert_eq!(carrier.came(round, Ok(vec![at(4), at(5)])), [(30, Ok(vec![at(4), at(5)]))]);
    assert_eq!(tickets(&carrier.next_round().unwrap()), [11]);
    // So do words.
    let knows = holdfast_base::ids::Index(0);
    let word = msg::Word { category: "a".into(), knows, drained: None };
    let say = msg::Say { spool: 3, name: "h:/s".into(), words: vec![word] };
    assert!(carrier.take(3, Asked::say(say.clone()).unwrap(), 31).is_empty());
    assert!(carrier.take(1, append(1, "d", 10), 12).is_empty());
    let round = carrier.next_round().unwrap();
    assert!(matches!(round.request(), Request::Say(said) if *said == say));
    let heard = Told::Heard(msg::Heard { counts: true, entry: knows, refused: String::new() });
    assert_eq!(carrier.came(round, Ok(vec![heard.clone()])), [(31, Ok(vec![heard]))]);
    assert_eq!(tickets(&carrier.next_round().unwrap()), [12]);
    assert!(carrier.next_round().is_none());
    assert_eq!((carrier.waiting_bytes(), carrier.carried()), (0, 3));
}

/// A request is refused as a whole: one agent with a wrong batch, or without a right, stopped all others.
#[test]
fn one_that_is_refused_stops_nobody_else() {
    let mut carrier = Carrier::default();
    for from in 1..=3 {
        carrier.take(from, append(from, "a", 10), from as u32);
    }
    let wrong = Error::corrupt("its checksum is another");
    let round = carrier.next_round().unwrap();
    assert!(carrier.came(round, Err(wrong.clone())).is_empty());
    for from in 1..=3 {
        let round = carrier.next_round().unwrap();
        assert_eq!(tickets(&round), [from]);
        let answer = if from == 2 { Err(wrong.clone()) } else { Ok(vec![at(7)]) };
        assert_eq!(carrier.came(round, answer.clone()), [(from, answer)]);
    }
    // From now on the others go together, and what that one sends goes by itself.
    for from in [1, 2, 3, 4] {
        carrier.take(from, append(from, "a", 10), 10 + from as u32);
    }
    let mut rounds = Vec::new();
    while let Some(round) = carrier.next_round() {
        let own = tickets(&round);
        let answers = vec![at(8); own.len()];
        rounds.push(own);
        carrier.came(round, Ok(answers));
    }
    assert_eq!(rounds, [vec![11], vec![12], vec![13, 14]]);
    // Whether a hop that is away has taken something, nobody knows: all are told.
    carrier.take(1, append(1, "a", 10), 21);
    carrier.take(3, append(3, "a", 10), 23);
    let away = Error::retry("it is away");
    let round = carrier.next_round().unwrap();
    assert_eq!(
        carrier.came(round, Err(away.clone())),
        [(21, Err(away.clone())), (23, Err(away.clone()))]
    );
    carrier.take(1, append(1, "a", 10), 31);
    assert_eq!(carrier.give_back(&away), [(31, Err(away))]);
    assert!(carrier.next_round().is_none() && carrier.waiting_bytes() == 0);
}

#[test]
fn the_bound_holds_and_who_has_most_makes_way() {
    let mut carrier = Carrier::default();
    let one = batch(9, "a", 500_000);
    let large = |batches: usize| {
        let mut body = Vec::new();
        (0..batches).for_each(|_| put_bytes(&mut body, &one));
        Asked::append(named(&["a"]), body).unwrap()
    };
    for n in 0..=REQUESTS_OF_ONE_MAX {
        let told = carrier.take(1, large(1), n as u32);
        assert_eq!(told.len(), usize::from(n == REQUESTS_OF_ONE_MAX), "{n}");
    }
    let mut told = Vec::new();
    for from in 2..=5 {
        for n in 0..REQUESTS_OF_ONE_MAX {
            told.extend(carrier.take(from, large(15), 10 * from as u32 + n as u32));
            assert!(carrier.waiting_bytes() <= WAITING_BYTES_MAX);
        }
    }
    assert!(!told.is_empty() && told.iter().all(|(_, told)| told.is_err()));
    // One that has nothing yet is taken, however full it is of others'; one of them makes way.
    let mut from = 10;
    while carrier.waiting_bytes() + 600_000 < WAITING_BYTES_MAX {
        assert!(carrier.take(from, large(1), 0).is_empty());
        from += 1;
    }
    let told = carrier.take(99, large(2), 990);
    assert!(told.len() == 1 && (20..60).contains(&told[0].0), "{told:?}");
    assert!(carrier.waits.contains_key(&99) && carrier.waiting_bytes() <= WAITING_BYTES_MAX);
    // Who is gone leaves nothing.
    (1..=99).for_each(|from| carrier.gone(from));
    assert_eq!((carrier.waiting_bytes(), carrier.next_round().is_none()), (0, true));
    carrier.take(1, append(1, "a", 1), 1);
    assert_eq!(carrier.end().len(), 1);
    assert_eq!(carrier.take(1, append(1, "a", 1), 2).len(), 1);
}

/// Who has the carriers' secret can send anything.
#[test]
fn what_is_no_request_is_refused_where_it_comes_in() {
    let mut body = Vec::new();
    put_bytes(&mut body, &batch(1, "a", 10));
    let refused = |append: msg::Append, body: &[u8]| {
        Asked::append(append, body.to_vec()).unwrap_err().message
    };
    for cut in 1..body.len() {
        Asked::append(named(&["a"]), body[..cut].to_vec()).unwrap_err();
    }
    assert!(refused(named(&["b"]), &body).contains("does not name"));
    assert!(refused(named(&["a"]), &[]).contains("there are none"));
    let mut nobodys = Vec::new();
    put_bytes(&mut nobodys, &batch(0, "a", 10));
    assert!(refused(named(&["a"]), &nobodys).contains("no number"));
    let many = body.repeat(msg::APPEND_BATCHES_MAX + 1);
    assert!(refused(named(&["a"]), &many).contains("too many"));
    let large = vec![0; msg::APPEND_BYTES_MAX + 1];
    assert!(refused(named(&["a"]), &large).contains("too large"));
    let names = vec![String::new(); msg::ASK_CATEGORIES_MAX + 1];
    assert!(Asked::ask(msg::Ask { spool: 1, categories: names.clone() }).is_err());
    let knows = holdfast_base::ids::Index(0);
    let word = |category| msg::Word { category, knows, drained: None };
    let words = names.into_iter().map(word).collect();
    assert!(Asked::say(msg::Say { spool: 1, name: "a".into(), words }).is_err());
}
