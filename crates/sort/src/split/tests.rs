use super::*;
use crate::key::{Key, LineOptions};
use holdfast_env::{Rng, SeededRng};

/// What `find` must answer, by comparing with one boundary after another.
fn naive(splitters: &Splitters, order: &Order, body: &[u8]) -> usize {
    let mut partition = 0;
    for (boundary, alone) in splitters.boundaries() {
        match order.compare(boundary, body) {
            std::cmp::Ordering::Greater => return partition,
            std::cmp::Ordering::Equal => return partition + 1,
            std::cmp::Ordering::Less => partition += 1 + usize::from(alone),
        }
    }
    partition
}

fn words(seed: u64, count: usize, alphabet: u64) -> Vec<Vec<u8>> {
    let rng = SeededRng::new(seed);
    (0..count)
        .map(|_| {
            let len = rng.next_u64() % 14;
            let mut word: Vec<u8> =
                (0..len).map(|_| b'a' + (rng.next_u64() % alphabet) as u8).collect();
            word.push(b'\n');
            word
        })
        .collect()
}

#[test]
fn every_record_finds_the_partition_that_comparing_finds() {
    let by_key = LineOptions { keys: vec![Key::parse("1.2,1.12").unwrap()], ..Default::default() };
    let orders = [
        Order::lines(&LineOptions::default()).unwrap(),
        Order::lines(&LineOptions { letters: "r".into(), ..Default::default() }).unwrap(),
        Order::lines(&LineOptions { letters: "f".into(), ..Default::default() }).unwrap(),
        Order::lines(&by_key).unwrap(),
    ];
    let format = Format::Delimited(b'\n');
    for (seed, order) in orders.iter().enumerate() {
        for alphabet in [1, 2, 26] {
            let words = words(seed as u64, 3000, alphabet);
            for wanted in [1, 2, 3, 64, 200] {
                let splitters = Splitters::new(format, order, &words[..1000], wanted);
                for word in &words {
                    let body = format.body(word);
                    let found = splitters.find(order, body);
                    assert_eq!(found, naive(&splitters, order, body), "{body:?}");
                    if splitters.is_alone(found) {
                        let mut all = splitters.boundaries();
                        assert!(all.any(|(b, alone)| alone && order.compare(b, body).is_eq()));
                    }
                }
            }
        }
    }
}

#[test]
fn a_record_that_fills_a_partition_gets_one_of_its_own() {
    let order = Order::range(Format::Fixed(2), 0, None, false).unwrap();
    let mut sample: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i, 0]).collect();
    sample.extend((0..100).map(|_| vec![50, 0]));
    let splitters = Splitters::new(Format::Fixed(2), &order, &sample, 8);
    let alone = splitters.find(&order, &[50, 0]);
    assert!(splitters.is_alone(alone));
    assert_eq!(splitters.find(&order, &[49, 0]), alone - 1);
    assert_eq!(splitters.find(&order, &[50, 1]), alone + 1);
    assert_eq!(splitters.find(&order, &[0, 0]), 0);
    assert_eq!(splitters.find(&order, &[255, 255]), splitters.partitions() - 1);
    let again = Splitters::of(splitters.boundaries().map(|(b, alone)| (b.to_vec(), alone)), &order);
    assert_eq!(again.partitions(), splitters.partitions());
}

#[test]
fn partitions_know_what_their_keys_share() {
    let order = Order::lines(&LineOptions::default()).unwrap();
    let boundaries = ["2024-01-01 a", "2024-01-01 c", "2024-01-02 b"];
    let splitters =
        Splitters::of(boundaries.iter().map(|b| (b.as_bytes().to_vec(), false)), &order);
    let skips = [0, 1, 2, 3].map(|p| splitters.shared(p, &order).skip);
    assert_eq!(skips, [0, 11, 9, 0]);
}
