//! Values beside a plain map, across the borders of leaves.

use super::{LEAF_BYTES, Values, place};
use holdfast_env::trial::Trial;
use holdfast_env::{Rng, SeededRng};
use holdfast_wire::slab::Item;
use std::collections::BTreeMap;

type Model = BTreeMap<(u32, u16, Vec<u8>), (u64, Vec<u8>)>;

struct Draw(SeededRng);

impl Draw {
    fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    /// Few hashes, so that many keys have one.
    fn key(&self) -> (u32, u16, Vec<u8>) {
        let hash = [0, 1, 7, u32::MAX][self.below(4) as usize];
        let key = (0..1 + self.below(3)).map(|_| [0, b'a', 255][self.below(3) as usize]);
        (hash, 1 + self.below(2) as u16, key.collect())
    }

    fn value(&self) -> Vec<u8> {
        let bytes = [0, 8, 8, 40, 1000][self.below(5) as usize];
        vec![self.below(256) as u8; bytes]
    }
}

fn items(model: &Model) -> Vec<Item<'_>> {
    model
        .iter()
        .map(|((hash, collection, key), (index, value))| Item {
            hash: *hash,
            collection: *collection,
            key,
            index: *index,
            value: Some(value),
        })
        .collect()
}

fn check(values: &Values, model: &Model, draw: &Draw, told: &str) {
    let wanted = items(model);
    assert_eq!(values.len(), wanted.len(), "{told}");
    assert_eq!(values.from(Vec::new()).collect::<Vec<_>>(), wanted, "{told}");
    let (hash, collection, key) = draw.key();
    let at = place(hash, collection, &key);
    let found = values.get(&at).map(|item| (item.index, item.value.unwrap().to_vec()));
    let sought = (hash, collection, key);
    assert_eq!(found, model.get(&sought).cloned(), "{told}: {sought:?}");
    let behind = model.range(sought..).count();
    let from: Vec<_> = values.from(at).collect();
    assert_eq!(from, wanted[wanted.len() - behind..], "{told}: from a place on");
    // What is gone does not stay for ever, and a leaf is not empty.
    for leaf in values.leaves.values() {
        assert!(!leaf.items.is_empty() && 2 * leaf.dead <= leaf.bytes.len(), "{told}");
    }
}

/// Puts, removals and runs in order, which lie behind everything, between items, or among them.
#[test]
fn values_are_those_of_a_plain_map() {
    let (mut most, mut runs) = (0, 0);
    for seed in 0..60 {
        let _trial = Trial::new().with(&LEAF_BYTES, [1, 90, 300, 4000][seed as usize % 4]).enter();
        let draw = Draw(SeededRng::new(seed));
        let (mut values, mut model) = (Values::default(), Model::new());
        for step in 0..200 {
            let told = format!("seed {seed}, step {step}");
            match draw.below(10) {
                0 => {
                    let keys = (0..draw.below(20)).map(|_| (draw.key(), (step, draw.value())));
                    let mut run: Model = keys.collect();
                    if draw.below(2) == 0 {
                        // Behind all that is there.
                        let last = model.last_key_value().map(|(key, _)| key.clone());
                        run.retain(|key, _| last.as_ref().is_none_or(|last| key > last));
                    }
                    runs += u32::from(run.len() > 1);
                    values.append(&items(&run));
                    model.append(&mut run);
                }
                1..4 => {
                    let (hash, collection, key) = draw.key();
                    values.remove(&place(hash, collection, &key));
                    model.remove(&(hash, collection, key));
                }
                4 if draw.below(10) == 0 => {
                    let all = std::mem::take(&mut model);
                    all.keys().for_each(|(h, c, key)| values.remove(&place(*h, *c, key)));
                    assert!(values.leaves.is_empty(), "{told}");
                }
                _ => {
                    let (key, value) = (draw.key(), (step, draw.value()));
                    let (hash, collection) = (key.0, key.1);
                    let item = Item {
                        hash,
                        collection,
                        key: &key.2,
                        index: value.0,
                        value: Some(&value.1),
                    };
                    values.put(&item);
                    model.insert(key, value);
                }
            }
            most = most.max(values.leaves.len());
            check(&values, &model, &draw, &told);
        }
    }
    assert!(most > 50 && runs > 300, "{most} leaves, {runs} runs");
}
