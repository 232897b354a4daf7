//! What a rider wants of a view, and what all riders together need to have encoded.

use super::{Group, Range, What};

/// What one rider wants of the items of a view: those that fit everything said here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub range: Range,
    pub collections: Collections,
    /// Not the values.
    pub keys_only: bool,
    /// Older versions and deletions, too; otherwise the newest item of each key alone.
    pub versions: bool,
    /// Of the log's entries that made the items.
    pub indices: std::ops::Range<u64>,
}

impl Wanted {
    /// Everything.
    pub fn all() -> Wanted {
        Wanted {
            range: Range::ALL,
            collections: Collections::All,
            keys_only: false,
            versions: true,
            indices: 0..u64::MAX,
        }
    }

    /// Whether the columns of this collection and group are sent.
    pub(super) fn column(&self, collection: u16, group: Group, what: What) -> bool {
        self.collections.contains(collection)
            && (self.versions || group == Group::Newest)
            && (!self.keys_only || what == What::Keys)
    }
}

/// Which collections a rider wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collections {
    All,
    /// In ascending order.
    Listed(Vec<u16>),
}

impl Collections {
    pub fn contains(&self, collection: u16) -> bool {
        match self {
            Collections::All => true,
            Collections::Listed(listed) => listed.binary_search(&collection).is_ok(),
        }
    }
}

/// How much of a group's items somebody needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    Nothing,
    Keys,
    All,
}

/// What is needed of one collection. Who needs older versions needs the newest ones as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    older: Depth,
    newest: Depth,
}

impl Need {
    const NOTHING: Need = Need { older: Depth::Nothing, newest: Depth::Nothing };
    const ALL: Need = Need { older: Depth::All, newest: Depth::All };

    fn and(self, other: Need) -> Need {
        let (older, newest) = (self.older.max(other.older), self.newest.max(other.newest));
        Need { older, newest }
    }

    fn covers(self, other: Need) -> bool {
        self.and(other) == self
    }

    #[inline]
    pub(super) fn column(self, group: Group, what: What) -> bool {
        let depth = match group {
            Group::Older => self.older,
            Group::Newest => self.newest,
        };
        depth >= if what == What::Keys { Depth::Keys } else { Depth::All }
    }
}

/// The columns that at least one rider wants; what nobody wants is not encoded. Ranges and indices
/// play no part: they cut columns that were encoded whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Of the collections that are not listed.
    others: Need,
    /// By collection, ascending.
    listed: Vec<(u16, Need)>,
}

impl Needs {
    pub fn nothing() -> Needs {
        Needs { others: Need::NOTHING, listed: Vec::new() }
    }

    pub fn all() -> Needs {
        Needs { others: Need::ALL, listed: Vec::new() }
    }

    /// What one rider needs.
    pub fn of(wanted: &Wanted) -> Needs {
        let newest = if wanted.keys_only { Depth::Keys } else { Depth::All };
        let older = if wanted.versions { newest } else { Depth::Nothing };
        let need = Need { older, newest };
        match &wanted.collections {
            Collections::All => Needs { others: need, listed: Vec::new() },
            Collections::Listed(listed) => {
                let listed = listed.iter().map(|collection| (*collection, need)).collect();
                Needs { others: Need::NOTHING, listed }
            }
        }
    }

    /// What whoever needs this and whoever needs the other need together.
    pub fn and(&self, other: &Needs) -> Needs {
        let others = self.others.and(other.others);
        let both = |collection| (collection, self.need(collection).and(other.need(collection)));
        let mut listed: Vec<_> = self.named(other).map(both).collect();
        listed.sort_unstable_by_key(|(collection, _)| *collection);
        listed.dedup_by_key(|(collection, _)| *collection);
        listed.retain(|(_, need)| *need != others);
        Needs { others, listed }
    }

    /// Whether nobody who needs the other lacks anything here.
    pub fn covers(&self, other: &Needs) -> bool {
        self.others.covers(other.others)
            && self.named(other).all(|named| self.need(named).covers(other.need(named)))
    }

    /// Whether every column is needed.
    pub fn is_all(&self) -> bool {
        self.covers(&Needs::all())
    }

    fn named<'a>(&'a self, other: &'a Needs) -> impl Iterator<Item = u16> + 'a {
        self.listed.iter().chain(&other.listed).map(|(collection, _)| *collection)
    }

    pub(super) fn need(&self, collection: u16) -> Need {
        let at = self.listed.binary_search_by_key(&collection, |(listed, _)| *listed);
        at.map_or(self.others, |at| self.listed[at].1)
    }
}
