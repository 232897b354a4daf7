//! Gathers the messages of many calls into groups of batches, which are kept together by one sync. A call
//! that fits lies in one group, so it is kept whole or not at all. Pure.

use crate::batch::{BATCH_BYTES_MAX, Builder, Packed, message_cost};
use crate::category::Category;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Messages of a group, with four bytes for each: its largest batch is as large.
pub const GROUP_BYTES_MAX: usize = BATCH_BYTES_MAX;
/// Categories of a group: what heads of batches take stays small beside the messages.
pub const GROUP_CATEGORIES_MAX: usize = 512;

/// One call's messages, which were checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    pub messages: Vec<(Category, Vec<u8>)>,
}

impl Messages {
    /// What they take of a group.
    pub fn cost(&self) -> usize {
        self.messages.iter().map(|(_, message)| message_cost(message)).sum()
    }
}

#[derive(Default)]
struct Group {
    categories: BTreeMap<Category, Builder>,
    bytes: usize,
}

impl Group {
    fn has_room(&self, bytes: usize, categories: usize) -> bool {
        self.bytes + bytes <= GROUP_BYTES_MAX
            && self.categories.len() + categories <= GROUP_CATEGORIES_MAX
    }
}

/// What one sync keeps.
#[derive(Default)]
pub struct Round {
    groups: Vec<Group>,
}

impl Round {
    /// Adds a call; one that is larger than a group is divided among several. In which groups it lies.
    pub fn add(&mut self, call: &Messages) -> Range<usize> {
        let cost = call.cost();
        let own: BTreeSet<&Category> = call.messages.iter().map(|(category, _)| category).collect();
        if own.is_empty() {
            return 0..0;
        }
        if self.groups.last().is_none_or(|group| !group.has_room(cost, own.len())) {
            self.groups.push(Group::default());
        }
        let first = self.groups.len() - 1;
        for (category, message) in &call.messages {
            let cost = message_cost(message);
            if !self.groups.last().is_some_and(|group| group.has_room(cost, 1)) {
                self.groups.push(Group::default());
            }
            let group = self.groups.last_mut().expect("there is one");
            group.bytes += cost;
            group.categories.entry(category.clone()).or_default().push(message);
        }
        first..self.groups.len()
    }

    /// Compresses what was gathered: of each group a batch for each of its categories.
    pub fn pack(self) -> Vec<Vec<Packed>> {
        let pack = |group: Group| {
            let batches = group.categories.into_iter();
            batches.map(|(category, builder)| builder.pack(category)).collect::<Vec<_>>()
        };
        self.groups.into_iter().map(pack).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Messages as Read, Position, SpoolId};

    fn call(messages: &[(&str, usize)]) -> Messages {
        let of = |(name, bytes): &(&str, usize)| (Category::new(name).unwrap(), vec![b'x'; *bytes]);
        Messages { messages: messages.iter().map(of).collect() }
    }

    #[test]
    fn calls_that_fit_lie_in_one_group_and_order_is_kept() {
        let mut round = Round::default();
        let big = GROUP_BYTES_MAX / 2;
        for one in [&[("a", 3), ("b", 4)][..], &[("a", 5)], &[("a", big - 4), ("b", big - 4)], &[]]
        {
            round.add(&call(one));
        }
        // It does not fit beside the third, and is larger than a group by itself.
        round.add(&call(&[("a", big), ("a", big), ("a", 1)]));
        let groups = round.pack();
        let read: Vec<Vec<(String, Vec<usize>)>> = groups
            .iter()
            .map(|group| {
                let batch = |packed: &Packed| {
                    let batch = packed.number(SpoolId(1), Position::START);
                    let lengths = Read::of(&batch).unwrap().iter().map(<[u8]>::len).collect();
                    (packed.category.name().to_owned(), lengths)
                };
                group.iter().map(batch).collect()
            })
            .collect();
        let of = |name: &str, lengths: &[usize]| (name.to_owned(), lengths.to_vec());
        assert_eq!(
            read,
            [
                vec![of("a", &[3, 5]), of("b", &[4])],
                vec![of("a", &[big - 4]), of("b", &[big - 4])],
                vec![of("a", &[big])],
                vec![of("a", &[big, 1])],
            ]
        );
    }

    #[test]
    fn many_categories_are_several_groups() {
        let names: Vec<String> = (0..GROUP_CATEGORIES_MAX + 1).map(|i| format!("c{i}")).collect();
        let all: Vec<(&str, usize)> = names.iter().map(|name| (&**name, 1)).collect();
        let mut round = Round::default();
        round.add(&call(&all));
        let groups = round.pack();
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [GROUP_CATEGORIES_MAX, 1]);
    }
}
