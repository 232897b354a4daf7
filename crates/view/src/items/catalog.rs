//! What is known of a topic's items as a whole: its collections, up to where older versions are gone,
//! and of which entry images were asked for last. Every view of the topic has one, and asks it first: so all accept the same entries.

use super::command::{Changes, Command, Decoded, decode};
use crate::{Applied, Context, View};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_wire::slab::{self, Hashed, KEY_BYTES_MAX};
use holdfast_wire::view::Collection;

/// Whether a collection may be called so.
pub fn is_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fine)
}

/// In front of the names of topics of items in the log.
const FAMILY: &str = "view/";

/// The name in the log of a topic of items.
pub fn log_topic(topic: &str) -> Result<String> {
    // As the log has its names.
    let is_plain = !topic.starts_with('.') && !topic.bytes().any(|b| b.is_ascii_uppercase());
    if !is_name(topic) || !is_plain {
        return Err(Error::invalid(format!(
            "name a topic of items `{}`: it has to be of 1 to {NAME_BYTES_MAX} of `a-z`, digits, `.`, `_` and \
             `-`, and does not begin with `.`",
            topic.escape_debug()
        )));
    }
    Ok(format!("{FAMILY}{topic}"))
}

/// Collections of one topic.
pub const COLLECTIONS_MAX: usize = 1000;
/// Bytes of the name of a collection, and of a topic of items, which names files, too.
pub const NAME_BYTES_MAX: usize = 100;

/// A topic's collections, numbered from 1 in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalog {
    collections: Vec<Collection>,
    horizon: Index,
    mark: Index,
}
codec_struct!(Catalog { collections, horizon, mark });

/// What an entry that is accepted does to a view.
pub(super) enum Does<'a> {
    /// Keys change.
    Change(Changes<'a>),
    /// The catalog itself has changed.
    Catalog,
}

impl Catalog {
    /// By its number.
    pub fn collection(&self, number: u16) -> Option<&Collection> {
        self.collections.get((number as usize).checked_sub(1)?)
    }

    /// With their numbers.
    pub fn all(&self) -> impl Iterator<Item = (u16, &Collection)> {
        (1..).zip(&self.collections)
    }

    /// At indices below it nothing can be read.
    pub fn horizon(&self) -> Index {
        self.horizon
    }

    /// The horizon of the catalog that these bytes end with, as what an image says of its fold does.
    pub fn horizon_behind(bytes: &[u8]) -> Result<Index> {
        let at = bytes.len().checked_sub(16).map(|at| &bytes[at..at + 8]);
        let horizon = at.ok_or_else(|| Error::corrupt("read a catalog: it is too short"))?;
        Ok(Index::from_bytes(horizon)?)
    }

    /// The last mark; 0 before the first.
    pub fn mark(&self) -> Index {
        self.mark
    }

    /// What an entry does, or why it does nothing.
    pub(super) fn apply<'a>(
        &mut self,
        index: Index,
        command: &'a [u8],
    ) -> std::result::Result<Does<'a>, Applied> {
        let refused = |why: String| Err(Applied::Refused(Error::invalid(why)));
        match decode(command) {
            Decoded::Unknown(what) => Err(Applied::UnknownVersion(what)),
            Decoded::Malformed(e) => refused(format!("change items: {e}: use matching builds")),
            Decoded::Command(Command::Collection(new)) => {
                if let Err(e) = self.make(new) {
                    return Err(Applied::Refused(e));
                }
                Ok(Does::Catalog)
            }
            Decoded::Command(Command::Horizon(wanted)) => {
                // What is not decided yet cannot be behind anybody.
                self.horizon = self.horizon.max(wanted.min(index));
                Ok(Does::Catalog)
            }
            Decoded::Command(Command::Mark) => {
                self.mark = index;
                Ok(Does::Catalog)
            }
            Decoded::Command(Command::Change(changes)) => {
                for change in changes.iter() {
                    if let Err(e) = self.check(change.collection, change.key) {
                        return Err(Applied::Refused(e));
                    }
                }
                Ok(Does::Change(changes))
            }
        }
    }

    fn make(&mut self, new: Collection) -> Result<()> {
        let refused = |why: String| {
            Err(Error::invalid(format!("make collection `{}`: {why}", new.name.escape_debug())))
        };
        if !is_name(&new.name) {
            return refused(format!(
                "its name has to be of 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`"
            ));
        }
        match self.collections.iter().find(|one| one.name == new.name) {
            // Made twice is made.
            Some(one) if *one == new => Ok(()),
            Some(one) => refused(format!(
                "it is there, with `--hash {}` and values that are {}, which stays as it is: say the same, or make \
                 another one",
                one.hashed,
                if one.json { "JSON (`--values-json`)" } else { "bytes (without `--values-json`)" }
            )),
            None if self.collections.len() == COLLECTIONS_MAX => {
                refused(format!("the view has {COLLECTIONS_MAX} collections, and takes no more"))
            }
            None => {
                self.collections.push(new);
                Ok(())
            }
        }
    }

    /// Where a key of a collection that is there belongs.
    pub fn hash(&self, collection: u16, key: &[u8]) -> u32 {
        slab::hash(self.collection(collection).map_or(Hashed::All, |one| one.hashed), key)
    }

    /// The hash of all keys that begin so, if they have one.
    pub fn hash_of_prefix(&self, number: u16, prefix: &[u8]) -> Result<u32> {
        self.check_for("seek keys by their beginning", number, prefix)?;
        let rule = self.collection(number).map_or(Hashed::All, |one| one.hashed);
        let needs = match rule {
            Hashed::All => "the whole key: get it, or ride the collection".to_owned(),
            Hashed::Bytes(bytes) if prefix.len() < usize::from(bytes) => {
                format!("its first {bytes} bytes: seek by those")
            }
            Hashed::Until(end) if !prefix.contains(&end) => {
                format!(
                    "what is in front of `{}`: seek by that, with it",
                    (end as char).escape_debug()
                )
            }
            _ => return Ok(slab::hash(rule, prefix)),
        };
        Err(Error::invalid(format!(
            "seek keys by their beginning: where they lie follows from {needs}"
        )))
    }

    /// Whether there can be such a key to change.
    pub fn check(&self, collection: u16, key: &[u8]) -> Result<()> {
        self.check_for("change items", collection, key)
    }

    /// Whether there can be such a key, for somebody who is doing this.
    pub fn check_for(&self, doing: &str, collection: u16, key: &[u8]) -> Result<()> {
        if self.collection(collection).is_none() {
            return Err(Error::not_found(format!(
                "{doing}: the view has no collection {collection}: make it first"
            )));
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "{doing}: a key has {} bytes: it has to have 1 to {KEY_BYTES_MAX}",
                key.len()
            )));
        }
        Ok(())
    }
}

/// What becomes of an entry that is accepted: its index. A change that is sent again is answered with
/// that of its first entry, from which on readers see it.
pub(super) fn accepted(index: Index) -> Applied {
    Applied::Ok(index.to_bytes())
}

/// A view that knows the catalog and no item: what a node needs to take changes.
#[derive(Debug, Default)]
pub struct CatalogView {
    catalog: Catalog,
}

impl CatalogView {
    /// As the entries so far have left it.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }
}

impl View for CatalogView {
    const NAME: &'static str = "items";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> CatalogView {
        CatalogView::default()
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        match self.catalog.apply(index, command) {
            Ok(_) => accepted(index),
            Err(applied) => applied,
        }
    }

    fn describe(command: &[u8]) -> String {
        Command::describe(command)
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&self.catalog);
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<CatalogView> {
        Ok(CatalogView { catalog: source.get()? })
    }
}
