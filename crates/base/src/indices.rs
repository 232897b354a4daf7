//! The indices that one append's entries got. Pure; a run of neighbours, which is the rule, is two numbers.

use crate::ids::Index;

/// The indices of one append's entries, in their order: increasing, and with gaps between them where
/// the log's engine leaves some. None for an append of nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indices(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Run {
        first: Index,
        count: u64,
    },
    /// Two or more that are no run.
    Apart(Vec<Index>),
}

impl Indices {
    /// `count` of them, each directly behind the one before.
    pub fn run(first: Index, count: usize) -> Indices {
        Indices(Form::Run { first, count: count as u64 })
    }

    /// These, which increase; `None` where they do not.
    pub fn of(indices: Vec<Index>) -> Option<Indices> {
        let (first, count) = (indices.first().copied().unwrap_or(Index(0)), indices.len());
        if indices.windows(2).any(|pair| pair[0] >= pair[1]) {
            return None;
        }
        let is_run = indices.last().is_none_or(|last| last.0 - first.0 == count as u64 - 1);
        Some(if is_run { Indices::run(first, count) } else { Indices(Form::Apart(indices)) })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        match &self.0 {
            Form::Run { count, .. } => *count as usize,
            Form::Apart(indices) => indices.len(),
        }
    }

    /// The first one; 0 of an append of nothing.
    pub fn first(&self) -> Index {
        self.get(0).unwrap_or(Index(0))
    }

    /// The last one; 0 of an append of nothing.
    pub fn last(&self) -> Index {
        self.count().checked_sub(1).and_then(|at| self.get(at)).unwrap_or(Index(0))
    }

    /// That of the entry at this place of the append.
    pub fn get(&self, at: usize) -> Option<Index> {
        match &self.0 {
            Form::Run { first, count } => {
                ((at as u64) < *count).then(|| Index(first.0 + at as u64))
            }
            Form::Apart(indices) => indices.get(at).copied(),
        }
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Index> + '_ {
        (0..self.count()).filter_map(|at| self.get(at))
    }

    /// Nothing of a run, all of others: what has to be said beside the first one and the count.
    pub fn apart(&self) -> &[Index] {
        match &self.0 {
            Form::Run { .. } => &[],
            Form::Apart(indices) => indices,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_and_what_is_none_say_what_a_list_says() {
        let lists: [&[u64]; 7] =
            [&[], &[7], &[7, 8, 9], &[7, 9], &[1, 2, 4], &[1, 3, 4], &[5, 100, 101, 200]];
        for list in lists {
            let list: Vec<Index> = list.iter().map(|index| Index(*index)).collect();
            let indices = Indices::of(list.clone()).unwrap();
            assert_eq!(indices.iter().collect::<Vec<_>>(), list);
            assert_eq!(indices.count(), list.len());
            assert_eq!(indices.first(), list.first().copied().unwrap_or_default());
            assert_eq!(indices.last(), list.last().copied().unwrap_or_default());
            assert_eq!(indices.get(list.len()), None);
            let is_run = (1..list.len()).all(|at| list[at].0 == list[0].0 + at as u64);
            assert_eq!(indices.apart().is_empty(), is_run, "{list:?}");
            if is_run && !list.is_empty() {
                assert_eq!(indices, Indices::run(list[0], list.len()));
            }
        }
        assert_eq!(Indices::of(vec![Index(3), Index(3)]), None);
        assert_eq!(Indices::of(vec![Index(3), Index(2)]), None);
    }
}
