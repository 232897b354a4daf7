//! Passes over a view's items, as they are sent to others: what can be seen, whatever the rows still
//! hold.

use super::catalog::Catalog;
use super::disk::parse;
use super::rows::{self, Item};
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_env::planted;
use holdfast_env::rows::{Cursor, Moment};
use holdfast_wire::slab::{self, Range};

/// A pass over the items of a moment, in their order: every version that can still be seen.
pub struct Pass {
    cursor: Box<dyn Cursor>,
    horizon: Index,
    /// The version before, which goes unless what follows it says that it can be seen.
    held: Option<Held>,
    ended: bool,
}

struct Held {
    hash: u32,
    collection: u16,
    key: Vec<u8>,
    index: Index,
    value: Option<Vec<u8>>,
}

impl Held {
    fn of(item: &Item<'_>) -> Held {
        let (key, value) = (item.key.to_vec(), item.value.map(<[u8]>::to_vec));
        Held { hash: item.hash, collection: item.collection, key, index: item.index, value }
    }

    fn is_of(&self, item: &Item<'_>) -> bool {
        (self.hash, self.collection, &*self.key) == (item.hash, item.collection, &*item.key)
    }

    fn item(&self) -> slab::Item<'_> {
        let Held { hash, collection, key, index, value } = self;
        let (hash, collection, index) = (*hash, *collection, index.0);
        slab::Item { hash, collection, key, index, value: value.as_deref() }
    }
}

/// Takes an item; false ends a call.
pub type EachItem<'a> = dyn FnMut(&slab::Item<'_>) -> Result<bool> + 'a;

impl Pass {
    /// Over items with hashes from a range, from one on that an earlier pass over the same moment has
    /// given, or from the first.
    pub fn new(
        moment: &dyn Moment,
        catalog: &Catalog,
        range: Range,
        from: Option<&[u8]>,
    ) -> Result<Pass> {
        let (first, until) = rows::bounds(range);
        let cursor = moment.cursor(from.unwrap_or(&first), &until)?;
        Ok(Pass { cursor, horizon: catalog.horizon(), held: None, ended: false })
    }

    /// Where an item lies: a pass from there gives it first.
    pub fn place(item: &slab::Item<'_>) -> Vec<u8> {
        let versions = rows::versions(item.hash, item.collection, item.key);
        rows::version(&versions, Index(item.index))
    }

    /// As [`Pass::place`], of one that was received.
    pub fn place_of(item: &slab::Received<'_>) -> Vec<u8> {
        let versions = rows::versions(item.hash, item.collection, item.key);
        rows::version(&versions, Index(item.index))
    }

    /// Calls `each` for items until it says false, and may be once more; the next call goes on behind
    /// that one. False when there are no more.
    ///
    /// At the horizon a key's newest version is seen, if it is no deletion, and none before it: such
    /// versions may be in the rows still, or be gone from them, which must make no difference.
    pub fn advance(&mut self, each: &mut EachItem<'_>) -> Result<bool> {
        let Pass { cursor, horizon, held, ended } = self;
        let shown = |held: Held, next: Option<&Item<'_>>, each: &mut EachItem<'_>| {
            let is_over = next.is_some_and(|next| held.is_of(next) && next.index <= *horizon);
            match is_over || held.value.is_none() {
                true => Ok(true),
                false => each(&held.item()),
            }
        };
        if *ended {
            return Ok(false);
        }
        let goes_on = cursor.advance(&mut |row, value| {
            let item = parse(row, value)?;
            let goes_on = match held.take() {
                Some(before) => shown(before, Some(&item), each)?,
                None => true,
            };
            if item.index <= *horizon && !planted!("items.below-the-horizon-shown") {
                *held = Some(Held::of(&item));
                return Ok(goes_on);
            }
            let Item { hash, collection, key, index, value } = item;
            let item = slab::Item { hash, collection, key: &key, index: index.0, value };
            Ok(each(&item)? && goes_on)
        })?;
        if !goes_on {
            *ended = true;
            if let Some(held) = held.take() {
                shown(held, None, each)?;
            }
        }
        Ok(goes_on)
    }
}
