//! What an agent says of its spool: in front of a category's batches that it begins, under its name, and at its
//! end that there is nothing more. So a topic knows which spools were erased with messages in them. Decides
//! nothing: which word counts is for the topic's view to say ([`crate::names`]).

use super::Shared;
use crate::batch::Position;
use crate::carry::is_of_the_request;
use crate::category::Category;
use crate::hops::Hop;
use crate::store::Outgoing;
use holdfast_base::ids::Index;
use holdfast_base::{Kind, Result};
use holdfast_client::Client;
use holdfast_env::HoldMutex;
use holdfast_wire::scribe as msg;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Words of one request.
const AT_ONCE_MAX: usize = 1000;
/// How often a word is said anew that knows too little: once for what came before, and twice more for spools
/// that begin at the same time.
const ATTEMPTS: usize = 4;
/// Before it is said again that the spool sends: one that counts as lost by mistake says by this that it is
/// there. It is no entry where nothing is changed by it.
const AGAIN: Duration = Duration::from_secs(60);

const _: () = assert!(AT_ONCE_MAX <= msg::ASK_CATEGORIES_MAX);

/// What this process has said.
pub(super) struct Words {
    name: String,
    /// Of each category, what its next word has to know, and when the last one was answered.
    heard: Mutex<BTreeMap<Category, (Index, u64)>>,
    /// The hop does not know what a word is: it is of an earlier build.
    is_deaf: AtomicBool,
}

/// That the spool begins in a category, or up to where it ends.
type Said = (Category, Option<Position>);

impl Words {
    pub fn new(name: String) -> Words {
        Words { name, heard: Mutex::default(), is_deaf: AtomicBool::new(false) }
    }

    /// There is another hop.
    pub fn try_again(&self) {
        self.is_deaf.store(false, Ordering::Relaxed);
    }

    fn is_due(&self, category: &Category, now_ns: u64) -> bool {
        let heard = self.heard.held();
        let last = heard.get(category);
        last.is_none_or(|(_, at_ns)| now_ns.saturating_sub(*at_ns) >= AGAIN.as_nanos() as u64)
    }
}

impl Shared {
    /// Says of the categories of these batches that the spool begins, unless that was said a moment ago.
    pub(super) fn say_begins(&self, client: &mut Client, outgoing: &[Outgoing]) -> Result<()> {
        let now_ns = self.clock.monotonic_ns();
        let categories: BTreeSet<&Category> = outgoing.iter().map(|one| &one.category).collect();
        let due = categories.into_iter().filter(|category| self.words.is_due(category, now_ns));
        self.say(client, due.map(|category| (category.clone(), None)).collect())
    }

    /// The last words: each topic has all that there is. Where nobody hears them, an erased spool will be said
    /// to have lost what it never had.
    pub(super) fn say_ends(&self, hop: &mut Option<Hop>) -> Result<()> {
        let ends: Vec<Said> = self.store.look(|core| {
            core.drained().map(|(category, position)| (category.clone(), Some(position))).collect()
        });
        if ends.is_empty() {
            return Ok(());
        }
        let client = self.hops.reach(hop, |client| self.ask(client))?;
        self.say(client, ends)
    }

    fn say(&self, client: &mut Client, mut words: Vec<Said>) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let mut again = Vec::new();
            for some in words.chunks(AT_ONCE_MAX) {
                self.say_some(client, some, &mut again)?;
            }
            words = again;
        }
        Ok(())
    }

    fn say_some(&self, client: &mut Client, some: &[Said], again: &mut Vec<Said>) -> Result<()> {
        if self.words.is_deaf.load(Ordering::Relaxed) {
            return Ok(());
        }
        let heard = match client.scribe_say(&self.message(some)) {
            Err(e) if e.kind == Kind::Denied => {
                // As of a question. Of one alone, its batches say what is missing.
                if some.len() > 1 {
                    let (some, others) = some.split_at(some.len() / 2);
                    self.say_some(client, some, again)?;
                    self.say_some(client, others, again)?;
                }
                return Ok(());
            }
            Err(e) if is_of_the_request(&e) => {
                self.words.is_deaf.store(true, Ordering::Relaxed);
                return Ok(());
            }
            heard => heard?,
        };
        let now_ns = self.clock.monotonic_ns();
        let mut known = self.words.heard.held();
        for (said, heard) in some.iter().zip(heard) {
            // Why a category takes nothing, its batches are told.
            if heard.refused.is_empty() {
                known.insert(said.0.clone(), (heard.entry, now_ns));
                again.extend((!heard.counts).then(|| said.clone()));
            }
        }
        Ok(())
    }

    fn message(&self, some: &[Said]) -> msg::Say {
        let known = self.words.heard.held();
        let word = |(category, ends): &Said| msg::Word {
            category: category.name().to_owned(),
            knows: known.get(category).map_or(Index(0), |(entry, _)| *entry),
            drained: ends.map(|Position { next, checksum }| msg::Drained { next, checksum }),
        };
        let spool = self.store.look(|core| core.id().0);
        msg::Say { spool, name: self.words.name.clone(), words: some.iter().map(word).collect() }
    }
}
