//! What goes by itself: items of tables that are gone, items whose time is over, and old tokens of transactions; and
//! what comes by itself, rows of new indexes.

use super::{
    NAMES, TOKENS, Tables, end_of, expected, index_key, indexes_of, item_key, name_key, pages,
};
use crate::decimal::Decimal;
use crate::form;
use crate::index;
use crate::rows::{GroupDo, Place, Rows};
use crate::table::Table;
use crate::token::Token;
use crate::value::{Item, Value};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_wire::table as msg;

/// A time that is further back is no time, as in DynamoDB: five years.
const PAST_S_MAX: u64 = 5 * 365 * 24 * 3600;

/// Pages of a table that is gone which one sweep removes.
const PAGES: usize = 16;

/// A table, as its name's row had it.
pub(super) struct Of {
    pub table: Table,
    pub number: u64,
    pub name: String,
    /// Of the name's row.
    pub version: u64,
}

impl Of {
    /// The row of a group by which it is refused once the table is described otherwise, or is another one.
    pub fn check(&self) -> msg::GroupRow {
        let expect = msg::Expect::Version { version: self.version };
        msg::GroupRow { expect, key: name_key(&self.name), what: msg::GroupDo::Check }
    }
}

impl Tables {
    /// Removes items of tables that are gone and items whose time is over, and makes rows of new indexes, some of
    /// each. `now_s` is in seconds since 1970.
    pub async fn sweep(&self, now_s: u64) -> Result<()> {
        let mut from = Some(vec![NAMES]);
        while let Some(at) = from {
            let (names, next) = self.names(at).await?;
            for (name, row, version) in names {
                for number in &row.gone {
                    self.looked.held().remove(number);
                    self.remove_items(&name, *number).await?;
                }
                if let Some(live) = &row.live {
                    let of = Of {
                        table: Table::from_bytes(&live.description)?,
                        number: live.number,
                        name,
                        version,
                    };
                    if let Some(attribute) = &of.table.ttl {
                        self.expire(&of, attribute, now_s).await?;
                    }
                    match self.backfill(&of, &row).await {
                        // There is no room for rows; what goes behind it makes some.
                        Err(e)
                            if e.kind == Kind::Full
                                && !planted!("dynamo.index-without-room-stops-sweeps") => {}
                        done => done?,
                    }
                }
            }
            from = next;
        }
        self.forget_tokens(now_s).await
    }

    /// Removes tokens that are good no more, behind those of the last time.
    async fn forget_tokens(&self, now_s: u64) -> Result<()> {
        let mut from = Some(std::mem::take(&mut *self.looked_tokens.held()));
        for _ in 0..PAGES {
            let at = from.filter(|at| !at.is_empty()).unwrap_or_else(|| vec![TOKENS]);
            let msg::Page { found, next } = self.page(pages(at, vec![TOKENS + 1])).await?;
            let mut old = Vec::new();
            for found in found {
                if !Token::read(&found.record.value)?.is_good(1000 * now_s) {
                    let version = found.record.version;
                    old.push((found.key, msg::Expect::Version { version }));
                }
            }
            self.delete(old).await?;
            from = next;
            if from.is_none() {
                return Ok(());
            }
        }
        *self.looked_tokens.held() = from.unwrap_or_default();
        Ok(())
    }

    async fn remove_items(&self, name: &str, number: u64) -> Result<()> {
        for _ in 0..PAGES {
            let mut found = self.page(pages(item_key(number, &[]), end_of(number))).await?.found;
            if found.is_empty() {
                let (from, until) = indexes_of(number);
                found = self.page(pages(from, until)).await?.found;
            }
            if found.is_empty() {
                let (mut row, version) = self.name(name, msg::Level::Latest).await?;
                row.gone.retain(|gone| *gone != number);
                // Whoever has changed it meanwhile has left it, and the next sweep comes.
                return self.set_name(name, &row, version).await.map(drop);
            }
            let keys = found.into_iter().map(|found| (found.key, msg::Expect::Any));
            self.delete(keys.collect()).await?;
        }
        Ok(())
    }

    /// Looks at a page of a table's items, behind those of the last time.
    async fn expire(&self, of: &Of, attribute: &str, now_s: u64) -> Result<()> {
        let from = self.looked.held().remove(&of.number);
        let from = from.unwrap_or_else(|| item_key(of.number, &[]));
        let msg::Page { found, next } = self.page(pages(from, end_of(of.number))).await?;
        let is_one = self.is_one().await?;
        let mut over = Vec::new();
        for found in found {
            let item = form::from_bytes(&found.record.value)?;
            if is_over(item.get(attribute), now_s)? {
                // An item that was written since has another time, perhaps.
                let expect = msg::Expect::Version { version: found.record.version };
                match is_one {
                    true => self.delete_item(of, (found.key, expect), &item).await?,
                    // There are no indexes.
                    false => over.push((found.key, expect)),
                }
            }
        }
        if let Some(next) = next {
            self.looked.held().insert(of.number, next);
        }
        self.delete(over).await
    }

    /// An item goes with its rows in the table's indexes.
    async fn delete_item(
        &self,
        of: &Of,
        (key, expect): (Vec<u8>, msg::Expect),
        item: &Item,
    ) -> Result<()> {
        let mut rows = vec![(key, expect, GroupDo::Delete)];
        for write in index::writes(&of.table, Some(item), None) {
            if let Place::Index(_, index, key) = write.place {
                rows.push((index_key(of.number, index, &key), expected(write.expect), write.what));
            }
        }
        let mut rows = self.resolved(rows).await?;
        rows.push(of.check());
        // Of one that was written meanwhile nothing goes.
        self.put_group(rows).await.map(drop)
    }

    pub(super) async fn delete(&self, keys: Vec<(Vec<u8>, msg::Expect)>) -> Result<()> {
        for some in keys.chunks(msg::WRITES_MAX) {
            let row = |(sequence, (key, expect)): (u64, &(Vec<u8>, msg::Expect))| msg::Row {
                sequence,
                expect: *expect,
                key: key.clone(),
                value: None,
            };
            self.put((1..).zip(some).map(row).collect()).await?;
        }
        Ok(())
    }
}

/// Whether an attribute is a time that has passed; what is no number is no time.
fn is_over(value: Option<&Value>, now_s: u64) -> Result<bool> {
    let number = |seconds: u64| {
        Decimal::parse(&seconds.to_string()).map_err(|_| Error::bug("a time is no number"))
    };
    let Some(Value::N(time)) = value else { return Ok(false) };
    Ok(*time < number(now_s)? && *time >= number(now_s.saturating_sub(PAST_S_MAX))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_over_once_it_has_passed_and_not_for_ever() {
        let now_s = 1_800_000_000;
        let over = |text: &str| {
            let number = Value::N(Decimal::parse(text).unwrap());
            is_over(Some(&number), now_s).unwrap()
        };
        assert!(over("1799999999") && over("1799999999.5") && over("1650000000"));
        assert!(!over("1800000000") && !over("1800000001") && !over("1E20"));
        assert!(!over("0") && !over("1600000000") && !over("-5"), "five years are the most");
        assert!(!is_over(None, now_s).unwrap());
        let text = Value::S("1799999999".into());
        assert!(!is_over(Some(&text), now_s).unwrap());
    }
}
