//! Stores by category: what becomes of the messages that an agent is given, as a file of TOML says under the
//! names that Scribe's users know. Without one, all go to the topics of their categories. Pure; who keeps
//! spools and files is told what each is to have.

mod read;
pub mod translate;

pub use read::EXAMPLE;

use crate::category::Category;
use crate::gather::Messages;
use holdfast_base::checksum::crc32c;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Store {
    /// Its category's topic, by way of the spool.
    Topic,
    /// Taken, counted and dropped.
    Null,
    /// Files of this machine: which ones of those that there are.
    File(usize),
    /// All of these.
    Multi(Vec<Store>),
    /// One of so many categories `CATEGORY_000`, and what becomes of their messages.
    Bucket { buckets: u32, by: By, store: Box<Store> },
}

/// What decides about a message's bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The CRC32C of what is in front of the delimiter, of the whole message where there is none.
    Key(Option<u8>),
    Random,
}

/// Files of one store: `FILE_PATH/CATEGORY/BASE-2026-11-22_00000`, a new number for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStore {
    pub path: PathBuf,
    /// The category's name where there is none.
    pub base: Option<String>,
    /// A larger file is followed by the next one.
    pub bytes_max: u64,
    pub rotates: Rotates,
    /// Whether each message is followed by a line's end.
    pub adds_newlines: bool,
}

/// When a file is followed by the next one, whatever its size; in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotates {
    Never,
    Hourly,
    Daily,
}

/// Which stores categories have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stores {
    exact: BTreeMap<Category, Store>,
    /// The longest first.
    prefixes: Vec<(String, Store)>,
    default: Store,
    files: Vec<FileStore>,
}

impl Default for Stores {
    /// Everything goes to its topic.
    fn default() -> Stores {
        let (exact, prefixes, files) = (BTreeMap::new(), Vec::new(), Vec::new());
        Stores { exact, prefixes, default: Store::Topic, files }
    }
}

/// Files of one category, of one store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Of [`Stores::files`].
    pub store: usize,
    pub category: Category,
}

/// Lines to be written, of each place in their order.
pub type Lines<'a> = BTreeMap<&'a Place, Vec<&'a [u8]>>;

/// Where the messages of a call go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// To their topics.
    pub messages: Messages,
    /// To files, in their order.
    pub lines: Vec<(Place, Vec<u8>)>,
    /// Nowhere; counted by category.
    pub ignored: BTreeMap<Category, i64>,
}

impl Sorted {
    /// What it takes while it waits.
    pub fn cost(&self) -> usize {
        let line = |(_, line): &(Place, Vec<u8>)| crate::batch::message_cost(line);
        self.messages.cost() + self.lines.iter().map(line).sum::<usize>()
    }

    /// Whether nobody has to keep anything.
    pub fn is_nothing(&self) -> bool {
        self.messages.messages.is_empty() && self.lines.is_empty()
    }

    /// Behind these, others.
    pub fn append(&mut self, other: Sorted) {
        self.messages.messages.extend(other.messages.messages);
        self.lines.extend(other.lines);
        for (category, count) in other.ignored {
            *self.ignored.entry(category).or_default() += count;
        }
    }
}

impl Stores {
    /// Whether all messages go to their topics.
    pub fn are_topics(&self) -> bool {
        let mut all = self.exact.values().chain(self.prefixes.iter().map(|(_, store)| store));
        self.default == Store::Topic && all.all(|store| *store == Store::Topic)
    }

    pub fn files(&self) -> &[FileStore] {
        &self.files
    }

    fn of(&self, category: &Category) -> &Store {
        if let Some(store) = self.exact.get(category) {
            return store;
        }
        let fits = |(prefix, _): &&(String, Store)| category.name().starts_with(prefix.as_str());
        self.prefixes.iter().find(fits).map_or(&self.default, |(_, store)| store)
    }

    /// Where a message goes; refused where a bucket of its category has no name that is allowed.
    pub fn sort(
        &self,
        category: &Category,
        message: &[u8],
        draw: &dyn Fn() -> u64,
    ) -> Result<Sorted, &'static str> {
        let mut sorted = Sorted::default();
        put(self.of(category), category, message, draw, &mut sorted)?;
        Ok(sorted)
    }
}

fn put(
    store: &Store,
    category: &Category,
    message: &[u8],
    draw: &dyn Fn() -> u64,
    to: &mut Sorted,
) -> Result<(), &'static str> {
    match store {
        Store::Topic => to.messages.messages.push((category.clone(), message.to_vec())),
        Store::Null => *to.ignored.entry(category.clone()).or_default() += 1,
        Store::File(store) => {
            to.lines.push((Place { store: *store, category: category.clone() }, message.to_vec()));
        }
        Store::Multi(stores) => {
            for store in stores {
                put(store, category, message, draw, to)?;
            }
        }
        Store::Bucket { buckets, by, store } => {
            let bucket = by.bucket(message, *buckets, draw);
            let name = Category::new(&format!("{category}_{bucket:03}"));
            let own = name.map_err(|_| "its bucket's name is too long")?;
            put(store, &own, message, draw, to)?;
        }
    }
    Ok(())
}

impl By {
    fn bucket(self, message: &[u8], buckets: u32, draw: &dyn Fn() -> u64) -> u64 {
        let number = match self {
            By::Random => draw(),
            By::Key(delimiter) => {
                let end = delimiter.and_then(|byte| message.iter().position(|one| *one == byte));
                u64::from(crc32c(&message[..end.unwrap_or(message.len())]))
            }
        };
        number % u64::from(buckets)
    }
}

#[cfg(test)]
mod tests;
