//! Whether what clients of one record were told could have happened one after another: the
//! algorithm of Wing and Gong with Lowe's memory of what was tried (Lowe, "Testing for
//! linearizability", 2017). Values are numbers, each written once; requests without an answer may
//! have happened at any time, or never.

use std::collections::HashSet;

/// What a client asked, and was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The record had this value, or there was none.
    Read(Option<u64>),
    /// It has this value, or is deleted, whatever was there before.
    Put(Option<u64>),
    /// It has the second value, or is deleted; there was the first.
    Swap(Option<u64>, Option<u64>),
    /// Unlike [`Call::Swap`] with none: nothing was changed, for this was there.
    Refused(Option<u64>),
    /// Deleted: there was something.
    Delete,
}

/// A call with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub call: Call,
    pub begins: u64,
    /// None: no answer came.
    pub ends: Option<u64>,
}

/// What the record is after the call, if it can be made of it and the answer is right.
fn step(state: Option<u64>, call: Call) -> Option<Option<u64>> {
    match call {
        Call::Read(seen) | Call::Refused(seen) => (seen == state).then_some(state),
        Call::Put(value) => Some(value),
        Call::Swap(expected, value) => (expected == state).then_some(value),
        Call::Delete => state.is_some().then_some(None),
    }
}

/// Whether there is an order of these calls on a record that is absent at first.
pub fn is_linearizable(operations: &[Operation]) -> bool {
    let mut sorted: Vec<Operation> = operations.to_vec();
    sorted.sort_by_key(|o| o.begins);
    let mut search = Search {
        done: vec![false; sorted.len()],
        first: 0,
        tried: HashSet::new(),
        operations: &sorted,
    };
    search.run(None)
}

struct Search<'a> {
    operations: &'a [Operation],
    done: Vec<bool>,
    /// All before this one are done.
    first: usize,
    tried: HashSet<(Vec<u64>, Option<u64>)>,
}

impl Search<'_> {
    /// Tries each call that may be the next one, depth first, without the machine's stack.
    fn run(&mut self, start: Option<u64>) -> bool {
        // The state before each call that is taken, and the candidate that is looked at next.
        let mut taken: Vec<(usize, Option<u64>)> = Vec::new();
        let (mut state, mut from) = (start, 0);
        loop {
            if self.is_over() {
                return true;
            }
            match self.next(from, state) {
                Some((at, after)) => {
                    self.done[at] = true;
                    if self.tried.insert((self.bits(), after)) {
                        taken.push((at, state));
                        (state, from) = (after, 0);
                    } else {
                        self.done[at] = false;
                        from = at + 1;
                    }
                }
                None => {
                    let Some((at, before)) = taken.pop() else { return false };
                    self.done[at] = false;
                    (state, from) = (before, at + 1);
                }
            }
        }
    }

    fn is_over(&mut self) -> bool {
        let open = |(o, done): (&Operation, &bool)| !done && o.ends.is_some();
        !self.operations.iter().zip(&self.done).any(open)
    }

    /// The next candidate from `from` on that begins before any other one that is left has ended.
    fn next(&mut self, from: usize, state: Option<u64>) -> Option<(usize, Option<u64>)> {
        let left = || (0..self.operations.len()).filter(|i| !self.done[*i]);
        self.first = left().next()?;
        let ends = left().filter_map(|i| self.operations[i].ends).min().unwrap_or(u64::MAX);
        let candidates = (from.max(self.first)..self.operations.len())
            .take_while(|i| self.operations[*i].begins <= ends)
            .filter(|i| !self.done[*i]);
        let mut possible =
            candidates.filter_map(|i| Some((i, step(state, self.operations[i].call)?)));
        possible.next()
    }

    fn bits(&self) -> Vec<u64> {
        let chunks = self.done.chunks(64);
        chunks.map(|c| c.iter().enumerate().fold(0, |b, (i, d)| b | u64::from(*d) << i)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;

    fn op(call: Call, begins: u64, ends: u64) -> Operation {
        Operation { call, begins, ends: (ends > 0).then_some(ends) }
    }

    #[test]
    fn cases_that_a_person_can_follow() {
        use Call::{Delete, Put, Read, Refused, Swap};
        let put = |value, begins, ends| op(Put(Some(value)), begins, ends);
        let read = |value, begins, ends| op(Read(value), begins, ends);
        for (holds, what, operations) in [
            (true, "nothing", vec![]),
            (true, "in order", vec![put(1, 1, 2), read(Some(1), 3, 4)]),
            (false, "an old value", vec![put(1, 1, 2), put(2, 3, 4), read(Some(1), 5, 6)]),
            (
                true,
                "either one of two at once",
                vec![put(1, 1, 4), put(2, 2, 3), read(Some(1), 5, 6)],
            ),
            (
                false,
                "first the new value, then the old one",
                vec![put(1, 1, 2), put(2, 3, 9), read(Some(2), 4, 5), read(Some(1), 6, 7)],
            ),
            (true, "what nobody answered happened", vec![put(1, 1, 0), read(Some(1), 5, 6)]),
            (true, "or did not", vec![put(1, 1, 0), read(None, 5, 6)]),
            (false, "but not both", vec![put(1, 1, 0), read(Some(1), 5, 6), read(None, 7, 8)]),
            (false, "a value of nobody", vec![read(Some(7), 1, 2)]),
            (
                false,
                "a refusal that was not true yet",
                vec![op(Refused(Some(1)), 1, 2), put(1, 3, 4)],
            ),
            (
                true,
                "one of two inserts",
                vec![op(Swap(None, Some(1)), 1, 5), op(Refused(Some(1)), 2, 6)],
            ),
            (
                false,
                "both of two inserts",
                vec![op(Swap(None, Some(1)), 1, 5), op(Swap(None, Some(2)), 2, 6)],
            ),
            (
                true,
                "a deletion between",
                vec![
                    op(Swap(None, Some(1)), 1, 2),
                    op(Delete, 3, 4),
                    op(Swap(None, Some(2)), 5, 6),
                ],
            ),
            (false, "a deletion of nothing", vec![op(Delete, 1, 2)]),
        ] {
            assert_eq!(is_linearizable(&operations), holds, "{what}");
        }
    }

    /// Every order of every subset that keeps times: slow, and plainly right.
    fn by_brute_force(operations: &[Operation], done: u32, state: Option<u64>) -> bool {
        let left = |i: &usize| done >> i & 1 == 0;
        let all = 0..operations.len();
        if all.clone().filter(left).all(|i| operations[i].ends.is_none()) {
            return true;
        }
        all.clone().filter(left).any(|i| {
            let waits = |j: usize| operations[j].ends.is_some_and(|e| e < operations[i].begins);
            let free = !all.clone().filter(left).any(waits);
            let after = step(state, operations[i].call);
            free && after.is_some_and(|after| by_brute_force(operations, done | 1 << i, after))
        })
    }

    #[test]
    fn it_agrees_with_brute_force_on_histories_of_up_to_eight_calls() {
        let mut held = [0, 0];
        for seed in 0..6_000 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(8);
            let mut operations = Vec::new();
            for i in 0..count {
                let value = |random: &mut Random| match random.below(4) {
                    0 => None,
                    n => Some(n),
                };
                let call = match random.below(6) {
                    0 | 1 => Call::Read(value(&mut random)),
                    2 => Call::Put(value(&mut random)),
                    3 => Call::Swap(value(&mut random), value(&mut random)),
                    4 => Call::Refused(value(&mut random)),
                    _ => Call::Delete,
                };
                let begins = i * 3 + random.below(12);
                let ends = begins + 1 + random.below(14);
                let ends = (random.below(5) > 0).then_some(ends);
                operations.push(Operation { call, begins, ends });
            }
            let holds = is_linearizable(&operations);
            assert_eq!(holds, by_brute_force(&operations, 0, None), "seed {seed}: {operations:?}");
            held[usize::from(holds)] += 1;
        }
        assert!(held.iter().all(|n| *n > 500), "{held:?} did not hold and held");
    }
}
