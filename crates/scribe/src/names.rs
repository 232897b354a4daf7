//! Whose spools are in a category, and which of them count as lost. A spool's name outlives its directory: when
//! another spool begins under the same name, the one before is gone, and what it had and had not brought is
//! lost, unless it said that it had nothing more. Part of a category's view ([`crate::view`]): total, and
//! deterministic.
//!
//! A word may be under way for long, and come when others have come by another way. So each says which entry
//! it knows, and counts only where no later one of its name is there: who is told of a later one says it again,
//! if it is there to do so.

use crate::batch::{Position, SpoolId};
use crate::word::Heard;
use holdfast_base::Result;
use holdfast_base::codec::DecodeError;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// By which word a spool counts as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its entry.
    pub entry: Index,
    /// The spool that said it.
    pub by: SpoolId,
    /// When, by the clock of the node that heard it.
    pub unix_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// As far as anybody knows.
    Sends,
    /// It said that it has nothing more.
    Ended,
    Lost(Lost),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    name: Arc<str>,
    /// The entry with which it began last.
    begun: Index,
    fate: Fate,
}

/// Spools that have said their names: no more than there are spools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    spools: BTreeMap<SpoolId, Named>,
    /// The same, the other way.
    by_name: BTreeMap<Arc<str>, BTreeSet<SpoolId>>,
    /// How many of them count as lost: metrics ask each time they are read, and there may be a million spools.
    lost: u64,
}

impl Names {
    /// What becomes of a spool's word that it begins, if it is the entry `at`.
    pub fn hear_begins(&self, at: Index, spool: SpoolId, name: &str, knows: Index) -> Heard {
        let known = self.spools.get(&spool).filter(|known| *known.name == *name);
        if let Some(Named { begun, fate: Fate::Sends, .. }) = known {
            return Heard { counts: true, entry: *begun, ..Heard::default() };
        }
        let last = self.of(name).map(|(_, named)| named.begun).max().unwrap_or_default();
        if knows < last {
            return Heard { entry: last, ..Heard::default() };
        }
        let was_lost = known.is_some_and(|known| matches!(known.fate, Fate::Lost(_)));
        let mut heard = Heard { counts: true, entry: at, was_lost, lost: Vec::new() };
        // Who is known under this name comes back: others may send beside it.
        if known.is_none() && !planted!("scribe.erased-spools-unnamed") {
            let others = self.of(name).filter(|(other, named)| {
                *other != spool
                    && (named.fate == Fate::Sends || planted!("scribe.drained-spools-lost"))
            });
            heard.lost = others.map(|(other, _)| (other, 0)).collect();
        }
        heard
    }

    /// It is that entry.
    pub fn begin(&mut self, heard: &Heard, spool: SpoolId, name: &str, unix_ms: u64) {
        for (other, _) in &heard.lost {
            let lost = Lost { entry: heard.entry, by: spool, unix_ms };
            self.set(*other, Fate::Lost(lost));
        }
        self.put(spool, Named { name: name.into(), begun: heard.entry, fate: Fate::Sends });
    }

    /// What becomes of a spool's word that it has nothing more than its topic, which is at `position`.
    pub fn hear_ends(&self, spool: SpoolId, knows: Index, says: Position, is: Position) -> Heard {
        // One without a name is never counted as lost.
        let Some(named) = self.spools.get(&spool) else { return Heard::default() };
        let counts = knows >= named.begun && says == is;
        Heard { counts, entry: named.begun, ..Heard::default() }
    }

    /// It counts. Also of one that counts as lost: it was all there.
    pub fn end(&mut self, spool: SpoolId) {
        self.set(spool, Fate::Ended);
    }

    /// Of a spool that was found.
    fn set(&mut self, spool: SpoolId, fate: Fate) {
        let named = self.spools.get_mut(&spool).expect("it was found");
        let before = std::mem::replace(&mut named.fate, fate);
        self.count(Some(before), fate);
    }

    /// One is what another one was, or is new.
    fn count(&mut self, before: Option<Fate>, fate: Fate) {
        let is_lost = |fate: Fate| u64::from(matches!(fate, Fate::Lost(_)));
        self.lost = self.lost + is_lost(fate) - before.map_or(0, is_lost);
    }

    /// How many count as lost.
    pub fn lost_count(&self) -> u64 {
        self.lost
    }

    /// Whether it has said so, and nothing came since.
    pub fn has_ended(&self, spool: SpoolId) -> bool {
        self.spools.get(&spool).is_some_and(|named| named.fate == Fate::Ended)
    }

    /// A batch of it was taken: there was more. One of a spool that counts as lost may have been under way
    /// when it was erased.
    pub fn took(&mut self, spool: SpoolId) {
        if let Some(named) = self.spools.get_mut(&spool)
            && named.fate == Fate::Ended
        {
            named.fate = Fate::Sends;
        }
    }

    /// Those that count as lost, with their names.
    pub fn lost(&self) -> impl Iterator<Item = (SpoolId, &str, Lost)> {
        self.spools.iter().filter_map(|(spool, named)| match named.fate {
            Fate::Lost(lost) => Some((*spool, &*named.name, lost)),
            _ => None,
        })
    }

    fn of(&self, name: &str) -> impl Iterator<Item = (SpoolId, &Named)> {
        let spools = self.by_name.get(name).into_iter().flatten();
        spools.map(|spool| (*spool, &self.spools[spool]))
    }

    fn put(&mut self, spool: SpoolId, named: Named) {
        let (name, fate) = (named.name.clone(), named.fate);
        let before = self.spools.insert(spool, named);
        self.count(before.as_ref().map(|before| before.fate), fate);
        let before = before.map(|before| before.name);
        if let Some(before) = before.filter(|before| *before != name)
            && let Some(spools) = self.by_name.get_mut(&before)
        {
            spools.remove(&spool);
            if spools.is_empty() {
                self.by_name.remove(&before);
            }
        }
        self.by_name.entry(name).or_default().insert(spool);
    }

    /// As a part of the view's snapshot.
    pub fn write(&self, out: &mut Writer<'_>) {
        out.put(&(self.spools.len() as u64));
        for (spool, Named { name, begun, fate }) in &self.spools {
            out.put(&spool.0);
            out.put(&name.to_string());
            out.put(&begun.0);
            match fate {
                Fate::Sends => out.put(&0_u8),
                Fate::Ended => out.put(&1_u8),
                Fate::Lost(Lost { entry, by, unix_ms }) => {
                    out.put(&2_u8);
                    [entry.0, by.0, *unix_ms].iter().for_each(|number| out.put(number));
                }
            }
        }
    }

    /// The inverse.
    pub fn read(source: &mut Source<'_>) -> Result<Names> {
        let mut names = Names::default();
        for _ in 0..source.get::<u64>()? {
            let spool = SpoolId(source.get()?);
            let name: String = source.get()?;
            let begun = Index(source.get()?);
            let fate = match source.get::<u8>()? {
                0 => Fate::Sends,
                1 => Fate::Ended,
                2 => Fate::Lost(Lost {
                    entry: Index(source.get()?),
                    by: SpoolId(source.get()?),
                    unix_ms: source.get()?,
                }),
                _ => return Err(DecodeError::BadValue("fate").into()),
            };
            names.put(spool, Named { name: name.into(), begun, fate });
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::stream;
    use holdfast_env::{Rng, SeededRng};

    /// Says it until it counts; the entry, and who is lost by it.
    fn begin(names: &mut Names, at: u64, spool: u64, name: &str) -> Vec<u64> {
        let spool = SpoolId(spool);
        let first = names.hear_begins(Index(at), spool, name, Index(0));
        let heard = names.hear_begins(Index(at), spool, name, first.entry);
        assert!(heard.counts, "{heard:?}");
        if heard.entry == Index(at) {
            names.begin(&heard, spool, name, 1000 + at);
        }
        let mut bytes = Vec::new();
        stream::collect(&mut bytes, |out| names.write(out));
        assert_eq!(stream::read_all(&bytes, Names::read).as_ref(), Ok(&*names));
        heard.lost.into_iter().map(|(spool, _)| spool.0).collect()
    }

    fn lost(names: &Names) -> Vec<u64> {
        names.lost().map(|(spool, _, _)| spool.0).collect()
    }

    /// The count goes along with whatever is said, in any order: it is what a walk over all finds.
    #[test]
    fn how_many_are_lost_is_what_a_walk_finds() {
        let rng = SeededRng::new(5);
        let below = |n: u64| rng.next_u64() % n;
        let (mut names, mut most) = (Names::default(), 0);
        for at in 1..3000 {
            let (spool, name) = (10 + below(8), ["a", "b", "c"][below(3) as usize]);
            match below(4) {
                0 if names.spools.contains_key(&SpoolId(spool)) => names.end(SpoolId(spool)),
                1 => names.took(SpoolId(spool)),
                // With what it reads back, which counts anew.
                _ => drop(begin(&mut names, at, spool, name)),
            }
            assert_eq!(names.lost_count(), lost(&names).len() as u64);
            most = most.max(names.lost_count());
        }
        assert!(most > 2, "at most {most} were lost at once");
    }

    #[test]
    fn who_takes_a_name_is_in_the_place_of_who_had_it() {
        let mut names = Names::default();
        assert_eq!(begin(&mut names, 1, 10, "a"), [0; 0]);
        assert_eq!(begin(&mut names, 2, 20, "b"), [0; 0]);
        assert_eq!(begin(&mut names, 3, 10, "a"), [0; 0], "it is known");
        assert_eq!(begin(&mut names, 4, 11, "a"), [10]);
        let all: Vec<_> = names.lost().collect();
        let why = Lost { entry: Index(4), by: SpoolId(11), unix_ms: 1004 };
        assert_eq!(all, [(SpoolId(10), "a", why)]);
        // The one before that was named already.
        assert_eq!(begin(&mut names, 5, 12, "a"), [11]);
        assert_eq!(lost(&names), [10, 11]);
    }

    /// Two agents with one name: each says that it is there, and neither is said to be lost for long.
    #[test]
    fn a_spool_that_is_there_says_so_and_wakes_nobody_again() {
        let mut names = Names::default();
        begin(&mut names, 1, 10, "a");
        assert_eq!(begin(&mut names, 2, 11, "a"), [10]);
        // A word from before that changes nothing.
        let late = names.hear_begins(Index(3), SpoolId(10), "a", Index(1));
        assert_eq!((late.counts, late.entry), (false, Index(2)));
        let there = names.hear_begins(Index(3), SpoolId(10), "a", Index(2));
        assert!(there.counts && there.was_lost && there.lost.is_empty());
        names.begin(&there, SpoolId(10), "a", 0);
        assert_eq!(lost(&names), [0; 0]);
        for at in 4..8 {
            assert_eq!(begin(&mut names, at, 10 + at % 2, "a"), [0; 0]);
        }
        // A third one is in the place of both.
        assert_eq!(begin(&mut names, 9, 12, "a"), [10, 11]);
    }

    /// A directory is moved with what is in it, and a new one begins where it was.
    #[test]
    fn a_spool_that_has_another_name_now_is_not_lost_under_its_first() {
        let mut names = Names::default();
        begin(&mut names, 1, 10, "a");
        assert_eq!(begin(&mut names, 2, 10, "b"), [0; 0]);
        assert_eq!(begin(&mut names, 3, 11, "a"), [0; 0]);
        assert_eq!(begin(&mut names, 4, 12, "b"), [10]);
    }

    #[test]
    fn who_has_ended_with_nothing_left_is_not_lost_until_there_is_more() {
        let mut names = Names::default();
        let at = |next| Position { next, checksum: 5 };
        begin(&mut names, 1, 10, "a");
        let ends = |names: &Names, knows, says| {
            names.hear_ends(SpoolId(10), Index(knows), says, at(3)).counts
        };
        assert!(!ends(&names, 0, at(3)), "it is of an earlier process");
        assert!(!ends(&names, 1, at(2)), "there was more");
        assert!(ends(&names, 1, at(3)));
        names.end(SpoolId(10));
        let mut others = names.clone();
        assert_eq!(begin(&mut others, 2, 11, "a"), [0; 0]);
        // A batch behind its last word, or a word that it begins again.
        let mut more = names.clone();
        more.took(SpoolId(10));
        assert_eq!(begin(&mut more, 2, 11, "a"), [10]);
        assert_eq!(begin(&mut names, 2, 10, "a"), [0; 0]);
        assert!(!ends(&names, 1, at(3)), "its last word was said twice, and came late");
        assert_eq!(begin(&mut names, 3, 11, "a"), [10]);
        assert!(!names.hear_ends(SpoolId(99), Index(0), at(1), at(1)).counts, "it has no name");
    }
}
