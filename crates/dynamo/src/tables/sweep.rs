//! What goes by itself: items of tables that are gone, and items whose time is over.

use super::{NAMES, Tables, end_of, item_key, pages};
use crate::decimal::Decimal;
use crate::form;
use crate::table::Table;
use crate::value::Value;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_wire::table as msg;

/// A time that is further back is no time, as in DynamoDB: five years.
const PAST_S_MAX: u64 = 5 * 365 * 24 * 3600;

/// Pages of a table that is gone which one sweep removes.
const PAGES: usize = 16;

impl Tables {
    /// Removes items of tables that are gone and items whose time is over, some of each. `now_s` is in
    /// seconds since 1970.
    pub async fn sweep(&self, now_s: u64) -> Result<()> {
        let mut from = Some(vec![NAMES]);
        while let Some(at) = from {
            let (names, next) = self.names(at).await?;
            for (name, row) in names {
                for number in &row.gone {
                    self.looked.held().remove(number);
                    self.remove_items(&name, *number).await?;
                }
                if let Some(live) = row.live
                    && let Some(attribute) = Table::from_bytes(&live.description)?.ttl
                {
                    self.expire(live.number, &attribute, now_s).await?;
                }
            }
            from = next;
        }
        Ok(())
    }

    async fn remove_items(&self, name: &str, number: u64) -> Result<()> {
        for _ in 0..PAGES {
            let found = self.page(pages(item_key(number, &[]), end_of(number))).await?.found;
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
    async fn expire(&self, number: u64, attribute: &str, now_s: u64) -> Result<()> {
        let from = self.looked.held().remove(&number);
        let from = from.unwrap_or_else(|| item_key(number, &[]));
        let msg::Page { found, next } = self.page(pages(from, end_of(number))).await?;
        let mut over = Vec::new();
        for found in found {
            let item = form::from_bytes(&found.record.value)?;
            if is_over(item.get(attribute), now_s)? {
                // An item that was written since has another time, perhaps.
                let version = found.record.version;
                over.push((found.key, msg::Expect::Version { version }));
            }
        }
        if let Some(next) = next {
            self.looked.held().insert(number, next);
        }
        self.delete(over).await
    }

    async fn delete(&self, keys: Vec<(Vec<u8>, msg::Expect)>) -> Result<()> {
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
