//! A node's own door as the first hop: what can be taken goes to the log at once, and what never can be is kept
//! aside in a place of the node's own, as far as there is one. Decides nothing about what is refused.

use crate::aside::{Aside, Place};
use crate::batch::Packed;
use crate::category::Category;
use crate::door::More;
use crate::intake::{Keeps, NotKept};
use holdfast_base::Kind;
use holdfast_env::planted;
use std::sync::Arc;

/// Batches that are kept aside by one commit.
const ASIDE_AT_ONCE: usize = 3;

/// See the module.
pub struct OwnDoor {
    /// Who keeps what can be taken.
    pub keeps: Arc<dyn Keeps>,
    pub aside: Option<Place>,
}

impl OwnDoor {
    /// What the door's counters say of it, as an agent's do.
    pub fn more(&self) -> More {
        let (messages, given_up) = self.aside.as_ref().map(Place::counts).unwrap_or_default();
        More::default().with_aside(messages, given_up)
    }
}

impl Keeps for OwnDoor {
    fn knows_or_may(&self, category: &Category) -> bool {
        self.keeps.knows_or_may(category)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.keeps.has_room(bytes)
    }

    fn keep(&self, groups: &[Vec<Packed>]) -> Vec<NotKept> {
        let not_kept = self.keeps.keep(groups);
        // Their clients are about to hear OK.
        if planted!("scribe.refused-not-aside") {
            return not_kept;
        }
        let mut refused: Vec<(&str, Vec<u8>)> = Vec::new();
        for (group, errors) in groups.iter().zip(&not_kept) {
            for packed in group {
                let e = errors.get(&packed.category).filter(|e| e.kind == Kind::Invalid);
                refused.extend(e.map(|e| (&*e.message, packed.without_number())));
            }
        }
        for some in refused.chunks(ASIDE_AT_ONCE) {
            let all: Vec<_> = some.iter().map(|(why, batch)| Aside::Batch { why, batch }).collect();
            self.keep_aside(&all);
        }
        not_kept
    }

    fn keep_aside(&self, all: &[Aside<'_>]) {
        // What can never be taken is worth no more than an attempt; the node's log says what is wrong with a disk.
        if let Some(place) = &self.aside {
            let _ = place.keep(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aside;
    use crate::batch::{self, Messages as Read};
    use crate::gather::{Messages, Round};
    use holdfast_base::{Error, Result};
    use holdfast_log::Drive;
    use holdfast_sim::SimDisk;
    use std::path::Path;

    /// A log that never takes one category, and has no room for another one.
    struct Refuses;

    impl Keeps for Refuses {
        fn knows_or_may(&self, _: &Category) -> bool {
            true
        }

        fn has_room(&self, _: usize) -> bool {
            true
        }

        fn keep(&self, groups: &[Vec<Packed>]) -> Vec<NotKept> {
            let refuse = |packed: &Packed| {
                let e = match packed.category.name() {
                    "beyond" => Error::invalid("there are 256 already"),
                    "later" => Error::retry("it has no room"),
                    _ => return None,
                };
                Some((packed.category.clone(), e))
            };
            groups.iter().map(|group| group.iter().filter_map(refuse).collect()).collect()
        }
    }

    /// A node answered OK for messages of a category that its log never takes, counted them, and had them no more.
    #[test]
    fn what_the_log_never_takes_is_kept_aside_and_nothing_else_is() -> Result<()> {
        let disk: Arc<dyn holdfast_env::Disk> = Arc::new(SimDisk::new(4));
        let directory = Path::new("/node/scribe");
        let place = Place::open(disk.clone(), directory, Drive::Pump)?;
        let door = OwnDoor { keeps: Arc::new(Refuses), aside: Some(place) };
        let mut wanted = Vec::new();
        for number in 0..20_u32 {
            let mut round = Round::default();
            let messages = ["good", "beyond", "later"].map(|name| {
                let text = format!("{name} {number}").into_bytes();
                (Category::new(name).unwrap(), text)
            });
            round.add(&Messages { messages: messages.to_vec() });
            let not_kept = door.keep(&round.pack());
            assert_eq!(not_kept[0].len(), 2);
            wanted.push(format!("beyond {number}"));
        }
        let more = door.more().counters;
        assert_eq!(more[0], ("scribe_overall:messages aside".to_owned(), 20));
        let mut kept = Vec::new();
        let scratch = Path::new("/tmp/look");
        aside::look(&disk, directory, scratch, Drive::Pump, &mut |_, entry| {
            let Aside::Batch { why, batch } = Aside::decode(entry)? else { panic!() };
            assert_eq!(why, "there are 256 already");
            batch::verify(batch)?;
            let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
            kept.extend(Read::of(batch)?.iter().map(text));
            Ok(())
        })?;
        assert_eq!(kept, wanted);
        Ok(())
    }
}
