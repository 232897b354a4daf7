//! Words of spools, where the log is kept: which of them become entries, what operators are told of those, and
//! which spools are lost.

use super::{ScribeFace, is_about_one};
use crate::batch::{Position, SpoolId};
use crate::category::Category;
use crate::names::Lost;
use crate::view::CategoryView;
use crate::word::{self, Heard, Says, Word};
use holdfast_base::codec::{Decode, DecodeError, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::Parts;
use holdfast_env::{HoldMutex, event, sometimes};
use holdfast_log::Mode;
use holdfast_server::{Gather, Request, Told, answer};
use holdfast_view::Fold;
use holdfast_wire::{Call, scribe as msg};
use std::sync::Arc;

type Done = Box<dyn FnOnce(Result<Heard>) + Send>;

/// The categories in which something is said.
pub(super) fn said_in(meta: &[u8]) -> Result<Vec<String>, DecodeError> {
    let say = msg::Say::from_bytes(meta)?;
    Ok(say.words.into_iter().map(|word| word.category).collect())
}

/// For the audit trail.
pub(super) fn say_told(meta: &[u8]) -> Told {
    let say = msg::Say::from_bytes(meta).ok()?;
    let categories: Vec<&str> = say.words.iter().map(|word| &*word.category).collect();
    Some(("scribe say", format!("{} {}", SpoolId(say.spool), categories.join(" "))))
}

impl ScribeFace {
    pub(super) fn serve_say(self: Arc<Self>, request: Request<'_>) {
        let doing = "hear a spool's words";
        let Some((say, reply)) = request.decode::<msg::Say>(doing) else { return };
        let face = self.clone();
        self.node.workers.run(move || {
            let done = move |heard: Result<Vec<msg::Heard>>| {
                let heard = heard.map_err(|e| e.context(doing));
                answer(reply, heard.map(|heard| (msg::AllHeard { heard }.to_bytes(), Parts::None)));
            };
            if let Err(e) = check(&say) {
                return done(Err(e));
            }
            let gather = Gather::new(say.words.len(), done);
            for (at, word) in say.words.into_iter().enumerate() {
                let gather = gather.clone();
                let heard = Box::new(move |heard| gather.came(at, told(heard)));
                face.hear(SpoolId(say.spool), &say.name, word, heard);
            }
        });
    }

    fn hear(&self, spool: SpoolId, name: &str, said: msg::Word, done: Done) {
        let begins = said.drained.is_none();
        let says = match said.drained {
            None => {
                let unix_ms = self.node.machine.clock.unix_ms();
                Says::Begins { name: name.to_owned(), unix_ms }
            }
            Some(msg::Drained { next, checksum }) => Says::Ends(Position { next, checksum }),
        };
        let word = Word { spool, knows: said.knows, says };
        let category = match Category::new(&said.category) {
            Ok(category) => category,
            Err(e) => return done(Err(e)),
        };
        let fold = match self.fold(&category, begins) {
            // Nothing was sent to it.
            Err(e) if e.kind == Kind::NotFound && !begins => return done(Ok(Heard::default())),
            Err(e) => return done(Err(e)),
            Ok(fold) => fold,
        };
        match fold.read(|view, _| view.hear_at_once(&word)) {
            Ok(Ok(Some(heard))) => done(Ok(heard)),
            Ok(Err(e)) | Err(e) => done(Err(e)),
            Ok(Ok(None)) => propose(&fold, &category, name, &word, done),
        }
    }

    /// Of each category, how many spools are lost.
    pub fn lost(&self) -> Vec<(Category, u64)> {
        let folds: Vec<_> =
            self.folds.held().iter().map(|(name, fold)| (name.clone(), fold.clone())).collect();
        let count = |(category, fold): (Category, Arc<Fold<CategoryView>>)| {
            let lost = fold.read(|view, _| view.lost_count());
            Some((category, lost.ok()?))
        };
        folds.into_iter().filter_map(count).collect()
    }
}

/// The word as an entry of its category.
fn propose(
    fold: &Arc<Fold<CategoryView>>,
    category: &Category,
    name: &str,
    word: &Word,
    done: Done,
) {
    let request = holdfast_view::Request::of(Call::default(), word.encode(), Mode::Synced);
    let (category, name, spool) = (category.clone(), name.to_owned(), word.spool);
    let proposed = move |result: Result<(Index, Vec<u8>)>| {
        let heard = result.and_then(|(_, bytes)| Heard::decode(&bytes));
        if let Ok(heard) = &heard {
            tell(&category, &name, spool, heard);
        }
        done(heard);
    };
    fold.propose(request, Box::new(proposed));
}

/// Tells operators what a word says of spools. Names come from agents, and events go to terminals.
fn tell(category: &Category, name: &str, spool: SpoolId, heard: &Heard) {
    let name = holdfast_base::text::shown(name);
    for (lost, next) in &heard.lost {
        sometimes!("a spool was found to be lost");
        event!(
            ScribeLost,
            format_args!(
                "`{category}`: spool {lost} of `{name}` is gone, and spool {spool} in its place: what it had \
                 from message {next} on is lost"
            )
        );
    }
    if heard.counts && heard.was_lost {
        sometimes!("a spool that counted as lost was there");
        event!(
            ScribeNameShared,
            format_args!(
                "`{category}`: spool {spool} of `{name}` counted as lost, and is there: another spool has \
                 the same name"
            )
        );
    }
}

fn check(say: &msg::Say) -> Result<()> {
    if say.spool == SpoolId::NONE.0 {
        return Err(Error::invalid("they are of no spool: say which one"));
    }
    if say.words.len() > msg::ASK_CATEGORIES_MAX {
        return Err(Error::invalid("there are too many: say fewer at once"));
    }
    word::check_name(&say.name)
}

/// As of a batch: another category may take words.
fn told(heard: Result<Heard>) -> Result<msg::Heard> {
    match heard {
        Ok(Heard { counts, entry, .. }) => Ok(msg::Heard { counts, entry, refused: String::new() }),
        Err(e) if is_about_one(&e) => {
            Ok(msg::Heard { counts: false, entry: Index(0), refused: e.message })
        }
        Err(e) => Err(e),
    }
}

/// How many spools of a category are lost, and the last ones of them.
pub(super) fn lost_of(view: &CategoryView) -> (u64, Vec<msg::LostSpool>) {
    let lost = |(spool, name, Lost { entry, by, unix_ms }): (SpoolId, &str, Lost)| msg::LostSpool {
        spool: spool.0,
        name: name.to_owned(),
        next: view.position(spool).next,
        by: by.0,
        entry,
        unix_ms,
    };
    let mut all: Vec<_> = view.lost().map(lost).collect();
    all.sort_by_key(|one| (one.entry, one.spool));
    let count = all.len();
    (count as u64, all.split_off(count.saturating_sub(msg::LOST_TOLD_MAX)))
}
