//! Global indexes that come and go while their table is used. Whoever writes an item writes its rows in an index that is
//! being made; here the rows of items that were there before are made, in the order of the items' keys, each together
//! with a look at its item's version and at the table's description. How far that is lies with the rows, and changes
//! with them: whoever is killed, the next one goes on there. Rows of an index that goes are deleted: nobody writes any,
//! since writers look at the description, too.

use super::sweep::Of;
use super::{Live, Name, Tables, end_of, index_key, item_key, pages};
use crate::form;
use crate::index::{Index, Status};
use crate::rows::{GROUP_BYTES_MAX, GROUP_WRITE_BYTES};
use holdfast_base::codec::Encode;
use holdfast_base::{Result, ordered};
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_wire::table as msg;
use std::collections::VecDeque;

/// Pages of a table's items, or of an index's rows, that one sweep looks at.
pub static BACKFILL_PAGES: Knob = Knob::new("dynamo.backfill-pages", 16, &[1, 2]);
/// Items of one page.
pub static BACKFILL_ITEMS: Knob = Knob::new("dynamo.backfill-items", 1000, &[1, 3, 10]);
/// Items whose rows are made together: each is looked at, and has a row. The description and the place are beside them.
const TOGETHER: usize = (msg::GROUP_WRITES_MAX - 2) / 2;

/// Room for the description's key, and the place's key and value.
const OTHERS_BYTES: usize = 2 * GROUP_WRITE_BYTES + 3 * msg::KEY_BYTES_MAX;

/// An item, and its row in the index: their keys, the item's version, the row's bytes.
struct Made {
    item: Vec<u8>,
    version: u64,
    row: Vec<u8>,
    bytes: Vec<u8>,
}

impl Made {
    fn bytes(&self) -> usize {
        self.item.len() + self.row.len() + self.bytes.len() + 2 * GROUP_WRITE_BYTES
    }
}

/// How far an index is: the row that says so, which has the key of an item to go on from.
struct Place {
    key: Vec<u8>,
    expect: msg::Expect,
}

/// What came of some rows.
enum Step {
    Done,
    /// Somebody wrote an item meanwhile.
    Again,
    /// The table is described otherwise, or somebody else makes the rows.
    Over,
}

impl Tables {
    /// Goes on with what is to come or to go of a table's indexes.
    pub(super) async fn backfill(&self, of: &Of, row: &Name) -> Result<()> {
        for index in &of.table.indexes {
            match index.status() {
                Status::Active => {}
                Status::Creating => return self.make(of, row, index).await,
                Status::Deleting => return self.unmake(of, row, index).await,
            }
        }
        Ok(())
    }

    async fn make(&self, of: &Of, row: &Name, index: &Index) -> Result<()> {
        let key = index_key(of.number, index.number, &[]);
        let known = self.get(key.clone(), msg::Level::Latest).await?;
        let mut place = Place { expect: msg::Expect::Absent, key };
        let mut from = item_key(of.number, &[]);
        if let Some(record) = known {
            place.expect = msg::Expect::Version { version: record.version };
            if !planted!("dynamo.index-made-from-the-start") {
                from = record.value;
            }
        }
        // Fewer where somebody writes the same items.
        let mut together = TOGETHER;
        for _ in 0..BACKFILL_PAGES.get() {
            let rows_max = u32::try_from(BACKFILL_ITEMS.get()).unwrap_or(u32::MAX);
            let scan = msg::Scan { rows_max, ..pages(from.clone(), end_of(of.number)) };
            let msg::Page { found, next } = self.page(scan).await?;
            let Some(last) = found.last() else {
                return self.made(of, row, index, place).await;
            };
            let behind = next.unwrap_or_else(|| ordered::next(&last.key));
            let mut found = VecDeque::from(found);
            while !found.is_empty() {
                let made = made_of(of, index, &mut found, together)?;
                let to = found.front().map_or_else(|| behind.clone(), |next| next.key.clone());
                match self.put_made(of, &mut place, made, &to).await? {
                    Step::Done => (from, together) = (to, (2 * together).min(TOGETHER)),
                    Step::Again => {
                        together = (together / 2).max(1);
                        break;
                    }
                    // The next sweep looks at it anew.
                    Step::Over => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Puts rows of some items, which are those up to a key.
    async fn put_made(
        &self,
        of: &Of,
        place: &mut Place,
        made: Vec<Made>,
        to: &[u8],
    ) -> Result<Step> {
        let mut rows = vec![of.check()];
        let (expect, key) = (place.expect, place.key.clone());
        rows.push(msg::GroupRow { expect, key, what: msg::GroupDo::Put(to.to_vec()) });
        for Made { item, version, row, bytes } in made {
            let expect = msg::Expect::Version { version };
            if !planted!("dynamo.index-made-of-old-items") {
                rows.push(msg::GroupRow { expect, key: item, what: msg::GroupDo::Check });
            }
            let (expect, what) = (msg::Expect::Any, msg::GroupDo::Put(bytes));
            rows.push(msg::GroupRow { expect, key: row, what });
        }
        Ok(match self.put_group(rows).await? {
            msg::GroupWritten::Versions { versions } => {
                let version = versions.get(1).copied().unwrap_or_default();
                place.expect = msg::Expect::Version { version };
                Step::Done
            }
            msg::GroupWritten::Found { at, .. } | msg::GroupWritten::Absent { at } if at > 1 => {
                Step::Again
            }
            _ => Step::Over,
        })
    }

    /// All rows are there.
    async fn made(&self, of: &Of, row: &Name, index: &Index, place: Place) -> Result<()> {
        let mut table = of.table.clone();
        for global in table.indexes.iter_mut().filter(|other| other.number == index.number) {
            if let Some(global) = &mut global.global {
                global.status = Status::Active;
            }
        }
        let mut rows = vec![described(of, row, table.to_bytes())];
        if place.expect != msg::Expect::Absent {
            let Place { key, expect } = place;
            rows.push(msg::GroupRow { expect, key, what: msg::GroupDo::Delete });
        }
        // Whoever has changed it meanwhile has left it, and the next sweep comes.
        self.put_group(rows).await.map(drop)
    }

    async fn unmake(&self, of: &Of, row: &Name, index: &Index) -> Result<()> {
        let from = index_key(of.number, index.number, &[]);
        let until = ordered::after_prefix(&from).unwrap_or_default();
        for _ in 0..BACKFILL_PAGES.get() {
            let found = self.page(pages(from.clone(), until.clone())).await?.found;
            if found.is_empty() {
                let mut table = of.table.clone();
                table.indexes.retain(|other| other.number != index.number);
                return self.put_group(vec![described(of, row, table.to_bytes())]).await.map(drop);
            }
            let version = |version| msg::Expect::Version { version };
            let keys = found.into_iter().map(|row| (row.key, version(row.record.version)));
            self.delete(keys.collect()).await?;
        }
        Ok(())
    }
}

/// The row by which a table gets another description.
fn described(of: &Of, row: &Name, description: Vec<u8>) -> msg::GroupRow {
    let live = row.live.as_ref();
    let live = live.map(|live| Live { version: live.version + 1, description, ..live.clone() });
    let row = Name { live, gone: row.gone.clone() };
    msg::GroupRow { what: msg::GroupDo::Put(row.to_bytes()), ..of.check() }
}

/// Rows of the first items that are found, so many that they fit into a group; these are taken.
fn made_of(
    of: &Of,
    index: &Index,
    found: &mut VecDeque<msg::Found>,
    together: usize,
) -> Result<Vec<Made>> {
    let mut made: Vec<Made> = Vec::new();
    let mut bytes = OTHERS_BYTES;
    while let Some(next) = found.front().filter(|_| made.len() < together) {
        let item = form::from_bytes(&next.record.value)?;
        if let Some(key) = index.key(&of.table, &item) {
            let one = Made {
                item: next.key.clone(),
                version: next.record.version,
                row: index_key(of.number, index.number, &key),
                bytes: form::to_bytes(&index.part(&of.table, &item)),
            };
            bytes += one.bytes();
            if bytes > GROUP_BYTES_MAX && !made.is_empty() {
                break;
            }
            made.push(one);
        }
        found.pop_front();
    }
    Ok(made)
}
