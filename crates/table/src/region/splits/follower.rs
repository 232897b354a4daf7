//! Who follows the table whose tablet is split, as `Client::table_changes` does, and keeps what both keys show by what
//! he is told. Each change follows on what he has, none is missing in the end, and he begins anew for nothing but a
//! start. Behind a start he may be told once more what he was told before: then he keeps a key no more that changes, as
//! caches do.

use super::{World, key};
use crate::ids::StreamId;
use crate::tablet::Shown;
use crate::tablet::changes::{self, ChangesAt, RowChange};
use std::hash::{Hash, Hasher};

/// How often he asks until nothing is new.
const ASKS: usize = 5;

#[derive(Clone, Default, Hash)]
pub(super) struct Follower {
    /// Which start this is.
    pub life: u64,
    /// Of each tablet that he knows; none before he begins.
    places: Vec<Place>,
    /// He went on behind a start.
    is_again: bool,
    /// What he keeps of the lower key, and of the upper one.
    has: [Option<Option<Vec<u8>>>; 2],
}

#[derive(Clone)]
struct Place {
    /// In which start he was told, and as what tablet it was made.
    life: (u64, u64),
    next: u64,
    seen: Vec<(StreamId, Shown)>,
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let seen = self.seen.iter().map(|(_, shown)| (shown.place.number, shown.digest));
        (self.life, self.next, seen.collect::<Vec<_>>()).hash(hasher);
    }
}

type Told = (Place, Vec<RowChange>);

impl World {
    /// At most so many steps of each tablet.
    pub(super) fn follow(&mut self, most: usize) {
        let places = std::mem::take(&mut self.follower.places);
        if places.is_empty() {
            return self.follow_anew();
        }
        let count = self.cut().len();
        let behind = |number: usize| self.told_behind(number, &places[number], most).ok_or(());
        // There is one split, of the first tablet.
        let parent = |number: usize| number.checked_sub(1);
        let cut_off = |number| self.cut_off(number).ok_or(());
        let told = changes::follow(places.len(), count, behind, parent, cut_off);
        match told {
            Ok(told) => {
                self.follower.is_again |=
                    places.iter().any(|place| place.life.0 != self.follower.life);
                for (place, changes) in told {
                    self.follower.places.push(place);
                    changes.into_iter().for_each(|change| self.was_changed(change));
                }
            }
            // A tablet that was whole at a start and is handed over since does not say where it began.
            Err(()) if self.follower.life == 0 => {
                self.is_wrong("who follows begins anew, and nothing was started".to_owned());
            }
            Err(()) => self.follow_anew(),
        }
    }

    fn follow_anew(&mut self) {
        for number in 0..self.cut().len() {
            let now = self.views[number].look(|tablet| tablet.changes_now()).unwrap();
            let place = self.place(number, now);
            self.follower.places.push(place);
        }
        self.follower.is_again = false;
        self.follower.has = [false, true].map(|is_upper| Some(self.shows(is_upper)));
    }

    fn place(&self, number: usize, at: ChangesAt) -> Place {
        let made_at = self.views[number].look(|tablet| tablet.made_at()).unwrap();
        Place { life: (self.follower.life, made_at), next: at.next, seen: at.seen }
    }

    /// As the face does it.
    fn told_behind(&self, number: usize, from: &Place, most: usize) -> Option<(Told, bool)> {
        let steps = self.views[number].look(|tablet| {
            let next = match from.life == (self.follower.life, tablet.made_at()) {
                true => Some(from.next),
                false => tablet.changes_resume(&from.seen),
            };
            tablet.changes_behind(next?, most, u64::MAX)
        });
        let steps = steps.flatten()?;
        Some(((self.place(number, steps.at), steps.changes), !steps.is_cut))
    }

    fn cut_off(&self, number: usize) -> Option<Told> {
        let at = self.views[number].look(|tablet| tablet.changes_cut_off()).flatten()?;
        Some((self.place(number, at), Vec::new()))
    }

    fn was_changed(&mut self, change: RowChange) {
        let upper = usize::from(change.key == key(true));
        let bytes = |value: Option<crate::ids::Value>| value.map(|value| value.to_vec());
        let (before, after) = (bytes(change.before), bytes(change.after));
        if self.follower.is_again {
            self.follower.has[upper] = None;
            return;
        }
        let has = self.follower.has[upper].replace(after.clone());
        if has.as_ref() != Some(&before) {
            self.is_wrong(format!("who has {has:?} is told that {before:?} became {after:?}"));
        }
    }

    fn shows(&self, is_upper: bool) -> Option<Vec<u8>> {
        let key = key(is_upper);
        let number = usize::from(self.number_of(&key));
        let record = self.views[number].look(|tablet| tablet.record(&key).cloned()).unwrap();
        record.and_then(|record| record.value).map(|value| value.to_vec())
    }

    /// What is wrong with what he has once he was told all.
    pub(super) fn followed(&mut self) -> Option<String> {
        if self.follower.places.is_empty() {
            return None;
        }
        (0..ASKS).for_each(|_| self.follow(usize::MAX));
        for (upper, has) in self.follower.has.clone().into_iter().enumerate() {
            let shown = self.shows(upper == 1);
            if has.as_ref().is_some_and(|has| *has != shown) {
                self.is_wrong(format!("who follows has {has:?}, and {shown:?} shows"));
            }
        }
        self.wrong.clone()
    }
}
