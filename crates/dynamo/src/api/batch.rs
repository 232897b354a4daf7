//! Many items in one request: each is read or written by itself.

use super::items::{TOO_LARGE, check_item, check_paths};
use super::{Api, Consumed, Open, Units, read_units};
use crate::answer::{Answer, Items, is_full, no_memory};
use crate::expression::path::{Path, project};
use crate::expression::projection;
use crate::fault::{Fault, Result, Type};
use crate::form;
use crate::json;
use crate::request::Request;
use crate::table::{NAME_PATTERN, Table};
use crate::value::{Item, item_bytes};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;

/// Items of one request.
const READS_MAX: usize = 100;
const WRITES_MAX: usize = 25;
/// Bytes of items in one answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;
const DUPLICATES: &str = "Provided list of item keys contains duplicates";
const MISFIT: &str = "The provided key element does not match the schema";

/// Keys of one table.
struct Reads<'a> {
    table: &'a str,
    given: &'a Map<String, Json>,
    keys: Vec<(&'a Json, Item)>,
    consistent: bool,
    wanted: Option<Vec<Path>>,
}

/// A write of one row.
struct Write<'a> {
    table: &'a str,
    given: &'a Json,
    key: Vec<u8>,
    item: Option<Item>,
    open: Open,
}

fn names_told(request: &mut Request<'_>, names: &Map<String, Json>) {
    if names.is_empty() {
        let must = "Member must have length greater than or equal to 1";
        request.tell(Some("{}"), "requestItems", must);
    }
    let is_wrong =
        |name: &&String| !(3..=255).contains(&name.len()) || !crate::table::is_name(name);
    if let Some(name) = names.keys().find(is_wrong) {
        let must = format!(
            "Map keys must satisfy constraint: [Member must have length less than or equal to 255, \
             Member must have length greater than or equal to 3, Member must satisfy regular \
             expression pattern: {NAME_PATTERN}]"
        );
        request.tell(Some(name), "requestItems", &must);
    }
}

fn tables_of<'a>(request: &mut Request<'a>, kind: &str) -> Result<Option<&'a Map<String, Json>>> {
    let Some(given) = request.get("RequestItems") else {
        request.tell(None, "RequestItems", "Member must not be null");
        return Ok(None);
    };
    let tables = json::to_map(given, kind)?;
    names_told(request, tables);
    Ok(Some(tables))
}

/// Whether the same request may be sent again.
fn is_for_later(fault: &Fault) -> bool {
    [Type::ServiceUnavailable, Type::ThroughputExceeded].contains(&fault.kind)
}

impl Api {
    pub(super) async fn batch_get(&self, mut request: Request<'_>) -> Result<Answer> {
        let consumed = Consumed::of(&mut request)?;
        let all = reads_of(&mut request)?;
        let (mut found_bytes, mut text_bytes) = (0, 0);
        let (mut responses, mut unprocessed) = (Vec::new(), Map::new());
        let mut units = Vec::new();
        let mut tables = Vec::new();
        for reads in &all {
            let table = self.table(reads.table).await?;
            check_paths(&table, |visit| reads.wanted.iter().flatten().for_each(visit))?;
            let keys = reads.keys.iter().map(|(_, key)| table.key_of(key));
            tables.push(keys.collect::<Result<Vec<_>>>()?);
        }
        for (reads, keys) in all.iter().zip(tables) {
            let (mut shown, mut left, mut sum) = (Items::new(&self.budget), Vec::new(), 0.0);
            for ((given, _), key) in reads.keys.iter().zip(keys) {
                if found_bytes >= ANSWER_BYTES_MAX || is_full(text_bytes + shown.bytes()) {
                    left.push((*given).clone());
                    continue;
                }
                let item = match self.read(reads.table, &key, reads.consistent).await {
                    // Something is told, the rest may be asked for again.
                    Err(fault) if is_for_later(&fault) && found_bytes > 0 => {
                        left.push((*given).clone());
                        continue;
                    }
                    item => item?,
                };
                let bytes = item.as_ref().map_or(0, item_bytes);
                if let Some(item) = item {
                    let part = reads.wanted.as_ref().map(|paths| project(paths, &item));
                    match shown.push(part.as_ref().unwrap_or(&item)) {
                        true => {}
                        false if found_bytes > 0 => {
                            left.push((*given).clone());
                            continue;
                        }
                        false => return Err(no_memory()),
                    }
                }
                sum += read_units(bytes, reads.consistent);
                found_bytes += bytes;
            }
            text_bytes += shown.bytes();
            responses.push((reads.table, shown));
            if !left.is_empty() {
                let mut rest = reads.given.clone();
                rest.insert("Keys".into(), json!(left));
                unprocessed.insert(reads.table.to_owned(), Json::Object(rest));
            }
            units.push(consumed.tell(reads.table, &Units::of_table(sum)));
        }
        let mut answer = Answer::new(&self.budget);
        answer.put_items_by_name("Responses", responses);
        answer.put("UnprocessedKeys", &Json::Object(unprocessed));
        if consumed.is_wanted() {
            answer.put("ConsumedCapacity", &json!(units));
        }
        Ok(answer)
    }

    pub(super) async fn batch_write(&self, mut request: Request<'_>) -> Result<Json> {
        let consumed = Consumed::of(&mut request)?;
        request.word("ReturnItemCollectionMetrics", &["NONE", "SIZE"])?;
        let kind = "java.util.List<com.amazonaws.dynamodb.v20120810.WriteRequest>";
        let tables = tables_of(&mut request, kind)?;
        let mut parts = Vec::new();
        for (name, list) in tables.into_iter().flatten() {
            let list = json::to_list(list)?;
            if !(1..=WRITES_MAX).contains(&list.len()) {
                let must = "Map value must satisfy constraint: [Member must have length less than \
                            or equal to 25, Member must have length greater than or equal to 1]";
                request.tell(Some(name), "requestItems", must);
            }
            for given in list {
                parts.push((name, given, part_of(given)?));
            }
        }
        request.check()?;
        if parts.len() > WRITES_MAX {
            return Err(Fault::validation("Too many items requested for the BatchWriteItem call"));
        }
        let writes = self.writes_of(parts).await?;
        let mut answer = json!({"UnprocessedItems": {}});
        let mut units: Vec<(&str, Units)> = Vec::new();
        let mut is_any_done = false;
        for write in writes {
            let decide = |table: &Table, old: Option<&Item>| {
                let new = write.item.as_ref();
                let told = consumed.is_wanted().then(|| Units::of_write(table, old, new));
                Ok((new.cloned(), told.unwrap_or_default()))
            };
            let done = match &write.item {
                Some(item) if !consumed.is_wanted() => {
                    let put = self.put(write.open, &write.key, item).await;
                    put.map(|()| Units::default())
                }
                _ => self.change(write.open, &write.key, decide).await,
            };
            let more = match done {
                Ok(more) => more,
                Err(fault) if is_any_done && is_for_later(&fault) => {
                    let left = &mut answer["UnprocessedItems"][write.table];
                    match left {
                        Json::Array(list) => list.push(write.given.clone()),
                        none => *none = json!([write.given]),
                    }
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            is_any_done = true;
            match units.iter_mut().find(|(name, _)| *name == write.table) {
                Some((_, sum)) => sum.add(more),
                None => units.push((write.table, more)),
            }
        }
        if consumed.is_wanted() {
            let told = units.iter().map(|(name, sum)| consumed.tell(name, sum));
            answer["ConsumedCapacity"] = told.collect();
        }
        Ok(answer)
    }

    /// What is to be written, all of it looked at before anything is.
    async fn writes_of<'a>(
        &self,
        parts: Vec<(&'a String, &'a Json, Part)>,
    ) -> Result<Vec<Write<'a>>> {
        let mut checked = Vec::new();
        for (name, given, part) in parts {
            let item = part.read.checked()?;
            if part.is_put {
                check_item(&item, TOO_LARGE)?;
            }
            checked.push((name, given, part.is_put, item));
        }
        let mut seen = BTreeSet::new();
        let mut writes = Vec::new();
        let mut table = None;
        for (name, given, is_put, item) in checked {
            // Those of one table lie side by side.
            if table.as_ref().is_none_or(|(known, _)| *known != name) {
                table = Some((name, self.table(name).await?));
            }
            let Some((_, table)) = &table else { unreachable!("looked up") };
            let key = match is_put {
                true => table.key_of_item(&item).map_err(|fault| {
                    let misfits = ["Missing the key", "Type mismatch for key"];
                    match misfits.iter().any(|misfit| fault.message.contains(misfit)) {
                        true => Fault::validation(MISFIT),
                        false => fault,
                    }
                })?,
                false => table.key_of(&item)?,
            };
            if !seen.insert((name, key.clone())) {
                return Err(Fault::validation(DUPLICATES));
            }
            let (item, open) = (is_put.then_some(item), table.clone());
            writes.push(Write { table: name, given, key, item, open });
        }
        Ok(writes)
    }
}

/// One request of a batch of writes.
struct Part {
    is_put: bool,
    /// The item, or the key of the one that goes.
    read: json::Read<Item>,
}

fn part_of(given: &Json) -> Result<Part> {
    let one = json::to_struct(given, "WriteRequest")?;
    let of = |request: &str, part: &str| -> Result<Option<json::Read<Item>>> {
        let Some(inner) = one.get(request).filter(|inner| !inner.is_null()) else {
            return Ok(None);
        };
        let inner = json::to_struct(inner, request)?;
        match inner.get(part).filter(|part| !part.is_null()) {
            Some(part) => json::to_item(part).map(Some),
            None => {
                let wrong = format!(
                    "1 validation error detected: Value null at 'requestItems.member.{request}.\
                     {part}' failed to satisfy constraint: Member must not be null"
                );
                Ok(Some(json::Read { value: Item::new(), wrong: Some(wrong) }))
            }
        }
    };
    match (of("PutRequest", "Item")?, of("DeleteRequest", "Key")?) {
        (Some(read), None) => Ok(Part { is_put: true, read }),
        (None, Some(read)) => Ok(Part { is_put: false, read }),
        _ => {
            let wrong = "Supplied AttributeValue has more than one datatypes set, must contain \
                         exactly one of the supported datatypes";
            Ok(Part {
                is_put: false,
                read: json::Read { value: Item::new(), wrong: Some(wrong.into()) },
            })
        }
    }
}

fn reads_of<'a>(request: &mut Request<'a>) -> Result<Vec<Reads<'a>>> {
    let tables = tables_of(request, "KeysAndAttributes")?;
    let mut lists = Vec::new();
    for (name, given) in tables.into_iter().flatten() {
        let given = json::to_struct(given, "KeysAndAttributes")?;
        let place = format!("requestItems.{name}.member.keys");
        let mut keys = Vec::new();
        match given.get("Keys").filter(|keys| !keys.is_null()) {
            None => request.tell(None, &place, "Member must not be null"),
            Some(list) => {
                let list = json::to_list(list)?;
                if list.is_empty() {
                    let must = "Member must have length greater than or equal to 1";
                    request.tell(Some("[]"), &place, must);
                } else if list.len() > READS_MAX {
                    let must = "Member must have length less than or equal to 100";
                    request.tell(Some("[...]"), &place, must);
                }
                for key in list {
                    keys.push((key, json::to_item(key)?));
                }
            }
        }
        lists.push((name.as_str(), given, keys));
    }
    request.check()?;
    let mut all = Vec::new();
    let mut count = 0;
    for (table, given, keys) in lists {
        let inner = Request::new(given)?;
        let mut placeholders = inner.placeholders(&["ProjectionExpression"])?;
        let text = inner.text("ProjectionExpression")?;
        let wanted = text.map(|text| projection::parse(text, &mut placeholders)).transpose()?;
        placeholders.finish()?;
        let consistent = inner.truth("ConsistentRead")?.unwrap_or(false);
        let mut seen = BTreeSet::new();
        let mut checked = Vec::new();
        for (given, read) in keys {
            let key = read.checked()?;
            if !seen.insert(form::to_bytes(&key)) {
                return Err(Fault::validation(DUPLICATES));
            }
            checked.push((given, key));
        }
        count += checked.len();
        if count > READS_MAX {
            return Err(Fault::validation("Too many items requested for the BatchGetItem call"));
        }
        all.push(Reads { table, given, keys: checked, consistent, wanted });
    }
    Ok(all)
}
