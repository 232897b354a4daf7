//! Carriers beside each other, by their cores: what one brings to the next, which brings it on.

use holdfast_base::codec::put_bytes;
use holdfast_base::{Error, Kind};
use holdfast_scribe::batch::{Builder, Position, SpoolId};
use holdfast_scribe::carry::{Asked, Carrier};
use holdfast_scribe::category::Category;
use holdfast_wire::scribe as msg;

fn append(spool: u64, text: &str) -> Asked {
    let mut builder = Builder::default();
    builder.push(text.as_bytes());
    let packed = builder.pack(Category::new("a").unwrap());
    let mut body = Vec::new();
    put_bytes(&mut body, &packed.number(SpoolId(spool), Position::START));
    Asked::append(msg::Append { categories: vec!["a".into()] }, body).unwrap()
}

/// Carriers that name each other waited for each other's answers until they gave up, a quarter of a minute
/// later and again and again, and nobody was told why nothing came anywhere.
#[test]
fn what_is_under_way_and_comes_in_again_is_refused_until_it_is_answered() {
    let (mut first, mut second) = (Carrier::default(), Carrier::default());
    let ask: fn() -> Asked =
        || Asked::ask(msg::Ask { spool: 3, categories: vec!["a".into()] }).unwrap();
    let batch: fn() -> Asked = || append(1, "one");
    for asked in [batch, ask] {
        assert!(first.take(1, asked(), 1).is_empty());
        let round = first.next_round().unwrap();
        assert!(second.take(7, asked(), 2).is_empty());
        let behind = second.next_round().unwrap();
        // The second one's next hop is the first.
        let refused = first.take(8, asked(), 3);
        let [(3, Err(why))] = &refused[..] else { panic!("{refused:?}") };
        assert!(why.kind == Kind::Retry && why.message.contains("in a ring"), "{why}");
        // What is another's goes on, also if it is of the same spool.
        assert!(first.take(8, append(1, "another"), 4).is_empty());
        let told = second.came(behind, Err(why.clone()));
        let [(2, Err(why))] = &told[..] else { panic!("{told:?}") };
        let told = first.came(round, Err(why.clone()));
        assert!(matches!(&told[..], [(1, Err(e))] if e.message.contains("in a ring")), "{told:?}");
        // From then on it may come by another way.
        assert!(first.take(1, asked(), 5).is_empty());
        while let Some(round) = first.next_round() {
            first.came(round, Err(Error::retry("away")));
        }
    }
}
