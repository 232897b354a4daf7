//! Operations on one item.

use super::{Api, Consumed, Units, read_units};
use crate::answer::{Answer, room};
use crate::expression::condition::{self, Condition};
use crate::expression::path::{Path, project};
use crate::expression::update::{self, Update};
use crate::expression::{Placeholders, projection};
use crate::fault::{Fault, Result, Type};
use crate::index::Index;
use crate::json::Read;
use crate::request::Request;
use crate::table::{KeyAttribute, Table};
use crate::value::{ITEM_BYTES_MAX, Item, NESTING_MAX, Value, item_bytes};

/// What a write may return of the item.
const RETURNS: [&str; 5] = ["NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"];
const ALL_OLD_OR_NONE: &str = "ReturnValues can only be ALL_OLD or NONE";

/// What the three operations that write one item share.
struct Write<'a> {
    table: &'a str,
    item: Read<Item>,
    returns: &'static str,
    returns_on_failure: bool,
    consumed: Consumed,
}

impl<'a> Write<'a> {
    /// `part` is the parameter that is the item or its key.
    fn read(request: &mut Request<'a>, part: &str) -> Result<Write<'a>> {
        let on_failure = "ReturnValuesOnConditionCheckFailure";
        let write = Write {
            table: request.table()?,
            item: request.needed_item(part)?,
            returns: request.word("ReturnValues", &RETURNS)?,
            returns_on_failure: request.word(on_failure, &["NONE", "ALL_OLD"])? == "ALL_OLD",
            consumed: Consumed::of(request)?,
        };
        // Nobody measures collections.
        request.word("ReturnItemCollectionMetrics", &["NONE", "SIZE"])?;
        request.check()?;
        Ok(write)
    }

    fn check_old_only(&self) -> Result<()> {
        match ["NONE", "ALL_OLD"].contains(&self.returns) {
            true => Ok(()),
            false => Err(Fault::validation(ALL_OLD_OR_NONE)),
        }
    }

    fn check_condition(&self, condition: Option<&Condition>, old: Option<&Item>) -> Result<()> {
        let empty = Item::new();
        if condition.is_none_or(|condition| condition.holds(old.unwrap_or(&empty))) {
            return Ok(());
        }
        let kind = Type::ConditionalCheckFailed;
        let item = old.filter(|_| self.returns_on_failure).cloned();
        Err(Fault { item, ..Fault::new(kind, "The conditional request failed") })
    }

    fn answer(
        &self,
        mut answer: Answer,
        attributes: Option<Item>,
        table: &Table,
        (old, new): (Option<&Item>, Option<&Item>),
    ) -> Answer {
        if let Some(attributes) = attributes {
            answer.put_item("Attributes", &attributes);
        }
        self.consumed.add(&mut answer, self.table, || Units::of_write(table, old, new));
        answer
    }

    fn old(&self, old: Option<&Item>) -> Option<Item> {
        old.filter(|_| self.returns == "ALL_OLD").cloned()
    }
}

/// The condition of a request.
pub(super) fn condition_of(
    request: &Request<'_>,
    placeholders: &mut Placeholders,
) -> Result<Option<Condition>> {
    let text = request.text("ConditionExpression")?;
    text.map(|text| condition::parse("ConditionExpression", text, placeholders)).transpose()
}

/// Refuses paths that lead into attributes of the table's key, or of an index's.
pub(super) fn check_paths(table: &Table, visit: impl FnOnce(&mut dyn FnMut(&Path))) -> Result<()> {
    let mut wrong = None;
    visit(&mut |path| {
        let is_key = |key: &KeyAttribute| key.name == path.head();
        if !path.is_nested() {
            return;
        }
        if table.keys().any(is_key) {
            wrong.get_or_insert_with(|| format!("Key: {}", path.head()));
        } else if table.indexes.iter().flat_map(Index::keys).any(is_key) {
            wrong.get_or_insert_with(|| format!("IndexKey: {}", path.head()));
        }
    });
    match wrong {
        Some(which) => Err(Fault::validation(format!(
            "Key attributes must be scalars; list random access '[]' and map lookup '.' are not \
             allowed: {which}"
        ))),
        None => Ok(()),
    }
}

/// Whether an item may be kept.
pub(super) fn check_item(item: &Item, too_large: &str) -> Result<()> {
    if item_bytes(item) > ITEM_BYTES_MAX {
        return Err(Fault::validation(too_large));
    }
    if item.values().any(|value| Value::depth(value) > NESTING_MAX) {
        return Err(Fault::validation(
            "Nesting Levels have exceeded supported limits: Attributes in the item have nested \
             levels beyond supported limit",
        ));
    }
    Ok(())
}

pub(super) const TOO_LARGE: &str = "Item size has exceeded the maximum allowed size";

impl Api {
    pub(super) async fn get_item(&self, mut request: Request<'_>) -> Result<Answer> {
        let name = request.table()?;
        let key = request.needed_item("Key")?;
        let consistent = request.truth("ConsistentRead")?.unwrap_or(false);
        let consumed = Consumed::of(&mut request)?;
        let text = request.text("ProjectionExpression")?;
        request.check()?;
        let mut placeholders = request.placeholders(&["ProjectionExpression"])?;
        let key = key.checked()?;
        let wanted = text.map(|text| projection::parse(text, &mut placeholders)).transpose()?;
        placeholders.finish()?;
        let table = self.table(name).await?;
        let bytes = table.key_of(&key)?;
        check_paths(&table, |visit| wanted.iter().flatten().for_each(visit))?;
        let item = self.read(name, &bytes, consistent).await?;
        let bytes = item.as_ref().map_or(0, item_bytes);
        let mut answer = Answer::new(&self.budget);
        if let Some(item) = item {
            let part = wanted.as_ref().map(|paths| project(paths, &item));
            room(answer.offer_item("Item", part.as_ref().unwrap_or(&item)))?;
        }
        consumed.add(&mut answer, name, || Units::of_table(read_units(bytes, consistent)));
        Ok(answer)
    }

    pub(super) async fn put_item(&self, mut request: Request<'_>) -> Result<Answer> {
        let write = Write::read(&mut request, "Item")?;
        let mut placeholders = request.placeholders(&["ConditionExpression"])?;
        let item = write.item.clone().checked()?;
        write.check_old_only()?;
        check_item(&item, TOO_LARGE)?;
        let condition = condition_of(&request, &mut placeholders)?;
        placeholders.finish()?;
        let table = self.table(write.table).await?;
        check_paths(&table, |visit| condition.iter().for_each(|c| c.visit(visit)))?;
        let key = table.key_of_item(&item)?;
        let is_alone = condition.is_none() && write.returns == "NONE";
        if is_alone && !write.consumed.is_wanted() {
            // Nothing hangs on what is there, unless there are indexes.
            return self.put(table, &key, &item).await.map(|()| Answer::new(&self.budget));
        }
        let decide = |table: &Table, old: Option<&Item>| {
            write.check_condition(condition.as_ref(), old)?;
            let answer = Answer::new(&self.budget);
            let answer = write.answer(answer, write.old(old), table, (old, Some(&item)));
            Ok((Some(item.clone()), answer))
        };
        self.change(table, &key, decide).await
    }

    pub(super) async fn delete_item(&self, mut request: Request<'_>) -> Result<Answer> {
        let write = Write::read(&mut request, "Key")?;
        let mut placeholders = request.placeholders(&["ConditionExpression"])?;
        let key = write.item.clone().checked()?;
        write.check_old_only()?;
        let condition = condition_of(&request, &mut placeholders)?;
        placeholders.finish()?;
        let table = self.table(write.table).await?;
        check_paths(&table, |visit| condition.iter().for_each(|c| c.visit(visit)))?;
        let key = table.key_of(&key)?;
        let decide = |table: &Table, old: Option<&Item>| {
            write.check_condition(condition.as_ref(), old)?;
            let answer = Answer::new(&self.budget);
            Ok((None, write.answer(answer, write.old(old), table, (old, None))))
        };
        self.change(table, &key, decide).await
    }

    pub(super) async fn update_item(&self, mut request: Request<'_>) -> Result<Answer> {
        let write = Write::read(&mut request, "Key")?;
        let expressions = ["UpdateExpression", "ConditionExpression"];
        let mut placeholders = request.placeholders(&expressions)?;
        let key = write.item.clone().checked()?;
        let text = request.text("UpdateExpression")?;
        let update = text.map(|text| update::parse(text, &mut placeholders)).transpose()?;
        let update = update.unwrap_or_default();
        let condition = condition_of(&request, &mut placeholders)?;
        placeholders.finish()?;
        let table = self.table(write.table).await?;
        let bytes = table.key_of(&key)?;
        check_update(&table, &update)?;
        check_paths(&table, |visit| {
            update.visit(visit);
            condition.iter().for_each(|c| c.visit(visit));
        })?;
        let paths = update.paths();
        let decide = |table: &Table, old: Option<&Item>| {
            write.check_condition(condition.as_ref(), old)?;
            let mut item = old.unwrap_or(&key).clone();
            update.apply(&mut item)?;
            check_item(&item, update::TOO_LARGE)?;
            let attributes = match write.returns {
                "ALL_OLD" => old.cloned(),
                "UPDATED_OLD" => old.map(|old| project(&paths, old)),
                "ALL_NEW" => Some(item.clone()),
                "UPDATED_NEW" => Some(project(&paths, &item)),
                _ => None,
            };
            let answer = Answer::new(&self.budget);
            let answer = write.answer(answer, attributes, table, (old, Some(&item)));
            Ok((Some(item), answer))
        };
        self.change(table, &bytes, decide).await
    }
}

pub(super) fn check_update(table: &Table, update: &Update) -> Result<()> {
    let changes = |name: &str| update.actions.iter().any(|(path, _)| path.head() == name);
    match table.keys().find(|key| changes(&key.name)) {
        Some(key) => Err(Fault::validation(format!(
            "One or more parameter values were invalid: Cannot update attribute {}. This attribute \
             is part of the key",
            key.name
        ))),
        None => Ok(()),
    }
}
