//! Transactions: items that are written together, all or none, and items that are read as of one moment. Like every
//! write, one is decided on what was read, and written only if that is still there; else it is decided anew.

use super::items::{TOO_LARGE, check_item, check_paths, check_update, condition_of};
use super::{ATTEMPTS_MAX, Api, Consumed, Open, Units, check_size, read_units};
use crate::answer::{ANSWER_BYTES, Answer, Items, room};
use crate::expression::condition::Condition;
use crate::expression::path::{Path, project};
use crate::expression::projection;
use crate::expression::update::{self, Update};
use crate::fault::{Fault, Reason, Result, Type};
use crate::form;
use crate::index;
use crate::json::{self, Read};
use crate::request::Request;
use crate::rows::{Expect, GroupDo, GroupWrite, GroupWritten, Place, Versioned};
use crate::table::Table;
use crate::token::Token;
use crate::value::{Item, item_bytes};
use holdfast_base::{Error, Kind};
use holdfast_env::planted;
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// Items of one transaction.
const ITEMS_MAX: usize = 100;
const TOKEN_CHARS_MAX: usize = 36;
const TWICE: &str = "Transaction request cannot include multiple operations on one item";

/// Tables, and keys of theirs.
type Keys = Vec<(String, Vec<u8>)>;

/// Tables by their names.
type Opened<'a> = BTreeMap<&'a str, Open>;

/// What becomes of an item.
enum Change {
    Put,
    Update(Update),
    Delete,
    Check,
}

/// One item of a transaction that writes.
struct Action<'a> {
    table: &'a str,
    /// The item, or its key.
    item: Item,
    change: Change,
    condition: Option<Condition>,
    returns_on_failure: bool,
}

/// As it stands in the request, its shape looked at.
struct Given<'a> {
    kind: &'static str,
    table: &'a str,
    item: Read<Item>,
    returns_on_failure: bool,
    request: Request<'a>,
}

/// One item of a transaction that reads.
struct Get<'a> {
    table: &'a str,
    key: Item,
    wanted: Option<Vec<Path>>,
}

const KINDS: [(&str, &str); 4] =
    [("ConditionCheck", "Key"), ("Put", "Item"), ("Delete", "Key"), ("Update", "Key")];

/// The list of a transaction's items.
fn items_of<'a>(request: &mut Request<'a>, kind: &str) -> Result<Vec<&'a Map<String, Json>>> {
    let Some(given) = request.get("TransactItems") else {
        request.tell(None, "TransactItems", "Member must not be null");
        return Ok(Vec::new());
    };
    let list = json::to_list(given)?;
    if list.is_empty() {
        let must = "Member must have length greater than or equal to 1";
        request.tell(Some("[]"), "transactItems", must);
    } else if list.len() > ITEMS_MAX {
        let must = "Member must have length less than or equal to 100";
        request.tell(Some("[...]"), "transactItems", must);
    }
    list.iter().map(|one| json::to_struct(one, kind)).collect()
}

/// The table of a part of a request, and an item of it.
fn place_of<'a>(
    request: &mut Request<'a>,
    inner: &Request<'a>,
    at: &str,
    part: &str,
) -> Result<(&'a str, Read<Item>)> {
    let lower = |name: &str| format!("{at}.{}{}", name[..1].to_ascii_lowercase(), &name[1..]);
    let table = inner.text("TableName")?;
    match table {
        Some(name) => request.check_table(&lower("TableName"), name),
        None => request.tell(None, &lower("TableName"), "Member must not be null"),
    }
    let item = inner.item(part)?;
    if item.is_none() {
        request.tell(None, &lower(part), "Member must not be null");
    }
    let none = Read { value: Item::new(), wrong: None };
    Ok((table.unwrap_or_default(), item.unwrap_or(none)))
}

/// One item's request; none where it is not exactly one.
fn given_of<'a>(
    request: &mut Request<'a>,
    at: usize,
    one: &'a Map<String, Json>,
) -> Result<Option<Given<'a>>> {
    let mut found = KINDS.iter().filter_map(|(kind, part)| {
        Some((*kind, *part, one.get(*kind).filter(|inner| !inner.is_null())?))
    });
    let (Some((kind, part, inner)), None) = (found.next(), found.next()) else { return Ok(None) };
    let mut inner = Request::new(json::to_struct(inner, kind)?)?;
    let at =
        format!("transactItems.{}.member.{}{}", at + 1, kind[..1].to_ascii_lowercase(), &kind[1..]);
    let (table, item) = place_of(request, &inner, &at, part)?;
    let needed = match kind {
        "ConditionCheck" => Some("ConditionExpression"),
        "Update" => Some("UpdateExpression"),
        _ => None,
    };
    if let Some(name) = needed.filter(|name| inner.get(name).is_none()) {
        let name = format!("{at}.{}{}", name[..1].to_ascii_lowercase(), &name[1..]);
        request.tell(None, &name, "Member must not be null");
    }
    let on_failure = "ReturnValuesOnConditionCheckFailure";
    let returns_on_failure = inner.word(on_failure, &["NONE", "ALL_OLD"])? == "ALL_OLD";
    Ok(Some(Given { kind, table, item, returns_on_failure, request: inner }))
}

impl<'a> Given<'a> {
    /// Its expressions are read.
    fn read(self) -> Result<Action<'a>> {
        self.request.check()?;
        let expressions: &[&str] = match self.kind {
            "Update" => &["UpdateExpression", "ConditionExpression"],
            _ => &["ConditionExpression"],
        };
        let mut placeholders = self.request.placeholders(expressions)?;
        let item = self.item.checked()?;
        let change = match self.kind {
            "Put" => {
                check_item(&item, TOO_LARGE)?;
                Change::Put
            }
            "Update" => {
                let text = self.request.text("UpdateExpression")?.unwrap_or_default();
                Change::Update(update::parse(text, &mut placeholders)?)
            }
            "Delete" => Change::Delete,
            _ => Change::Check,
        };
        let condition = condition_of(&self.request, &mut placeholders)?;
        placeholders.finish()?;
        let (table, returns_on_failure) = (self.table, self.returns_on_failure);
        Ok(Action { table, item, change, condition, returns_on_failure })
    }
}

impl Action<'_> {
    /// Its key's bytes, if all that it says fits the table.
    fn key(&self, table: &Table) -> Result<Vec<u8>> {
        let key = match &self.change {
            Change::Put => table.key_of_item(&self.item)?,
            _ => table.key_of(&self.item)?,
        };
        if let Change::Update(update) = &self.change {
            check_update(table, update)?;
        }
        check_paths(table, |visit| {
            if let Change::Update(update) = &self.change {
                update.visit(visit);
            }
            self.condition.iter().for_each(|condition| condition.visit(visit));
        })?;
        Ok(key)
    }

    /// What the item becomes, none for no item.
    fn apply(
        &self,
        table: &Table,
        old: Option<&Item>,
    ) -> std::result::Result<Option<Item>, Reason> {
        let empty = Item::new();
        let holds = |condition: &Condition| condition.holds(old.unwrap_or(&empty));
        if !self.condition.as_ref().is_none_or(holds) {
            return Err(Reason {
                code: "ConditionalCheckFailed",
                message: Some("The conditional request failed".into()),
                item: old.filter(|_| self.returns_on_failure).cloned(),
            });
        }
        match &self.change {
            Change::Put => {
                index::check(table, &self.item).map_err(misfit)?;
                Ok(Some(self.item.clone()))
            }
            Change::Delete => Ok(None),
            Change::Check => Ok(old.cloned()),
            Change::Update(update) => {
                let mut item = old.unwrap_or(&self.item).clone();
                let applied = update.apply(&mut item);
                applied
                    .and_then(|()| check_item(&item, update::TOO_LARGE))
                    .and_then(|()| index::check(table, &item))
                    .map_err(misfit)?;
                Ok(Some(item))
            }
        }
    }

    /// The row's write, as the item was found and is to be.
    fn write(&self, key: Vec<u8>, found: Option<&Versioned>, new: Option<&Item>) -> GroupWrite {
        let expect = match found {
            _ if planted!("dynamo.transaction-not-expected") => Expect::Any,
            Some(found) => Expect::Version(found.version),
            None => Expect::Absent,
        };
        let what = match (&self.change, new) {
            (Change::Put | Change::Update(_), Some(new)) => GroupDo::Put(form::to_bytes(new)),
            (Change::Delete, _) if found.is_some() => GroupDo::Delete,
            _ => GroupDo::Check,
        };
        GroupWrite { place: Place::Row(self.table.to_owned(), key), expect, what }
    }
}

/// What an item's own request is refused with, as a reason of its transaction.
fn misfit(fault: Fault) -> Reason {
    Reason { code: "ValidationError", message: Some(fault.message), item: None }
}

/// Cancelled, if any of these has a reason.
fn cancel(reasons: impl Iterator<Item = Option<Reason>>) -> Result<()> {
    let reasons: Vec<Reason> = reasons.map(|reason| reason.unwrap_or(Reason::NONE)).collect();
    match reasons.iter().all(|reason| *reason == Reason::NONE) {
        true => Ok(()),
        false => Err(Fault::cancelled(reasons)),
    }
}

/// What the store cannot do with these items together is the request's fault.
pub(super) fn of_store(error: Error) -> Fault {
    match error.kind {
        Kind::Invalid => Fault::validation(error.message),
        _ => error.into(),
    }
}

/// What each table's part of the request has consumed.
fn units_told(consumed: Consumed, units: Vec<(&str, Units)>) -> Option<Json> {
    if !consumed.is_wanted() {
        return None;
    }
    let mut tables: Vec<(&str, Units)> = Vec::new();
    for (name, more) in units {
        match tables.iter_mut().find(|(table, _)| *table == name) {
            Some((_, sum)) => sum.add(more),
            None => tables.push((name, more)),
        }
    }
    Some(tables.iter().map(|(name, sum)| consumed.tell(name, sum)).collect())
}

impl Api {
    /// Each table of a transaction, once.
    async fn tables_of<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<Opened<'a>> {
        let mut tables = BTreeMap::new();
        for name in names {
            if !tables.contains_key(name) {
                tables.insert(name, self.table(name).await?);
            }
        }
        Ok(tables)
    }

    pub(super) async fn transact_write(&self, mut request: Request<'_>) -> Result<Json> {
        let consumed = Consumed::of(&mut request)?;
        request.word("ReturnItemCollectionMetrics", &["NONE", "SIZE"])?;
        let token = token_of(&mut request)?;
        let mut given = Vec::new();
        for (at, one) in items_of(&mut request, "TransactWriteItem")?.into_iter().enumerate() {
            given.push(given_of(&mut request, at, one)?);
        }
        request.check()?;
        let given: Option<Vec<Given<'_>>> = given.into_iter().collect();
        let given = given.ok_or_else(|| {
            Fault::validation("TransactItems can only contain one of Check, Put, Update or Delete")
        })?;
        let actions = given.into_iter().map(Given::read).collect::<Result<Vec<_>>>()?;
        let tables = self.tables_of(actions.iter().map(|action| action.table)).await?;
        let keys = keys_of(&actions, &tables)?;
        let wanted = request.get("TransactItems").map(Json::to_string).unwrap_or_default();
        let token = token.map(|token| (token, Token::new(self.clock.unix_ms(), &wanted)));
        let units = self.write_together(&actions, (tables, keys), token, consumed).await?;
        Ok(match units_told(consumed, units) {
            Some(told) => json!({"ConsumedCapacity": told}),
            None => json!({}),
        })
    }

    /// Decides, and writes; what each item's table consumed.
    async fn write_together<'a>(
        &self,
        actions: &[Action<'a>],
        (mut tables, keys): (Opened<'a>, Keys),
        token: Option<(&str, Token)>,
        consumed: Consumed,
    ) -> Result<Vec<(&'a str, Units)>> {
        let is_one = self.rows.is_one().await?;
        let mut met = None;
        for _ in 0..ATTEMPTS_MAX {
            let known = match &token {
                Some((name, _)) => self.rows.token(name).await?,
                None => None,
            };
            if let (Some((_, token)), Some(row)) = (&token, &known) {
                let known = Token::read(&row.bytes)?;
                if known.is_good(self.clock.unix_ms()) {
                    return is_repeated(&known, token, actions);
                }
            }
            let found = self.rows.read_group(&keys).await.map_err(of_store)?;
            let mut reasons = Vec::new();
            let (mut writes, mut of_indexes) = (Vec::new(), Vec::new());
            let mut units = Vec::new();
            for ((action, (_, key)), found) in actions.iter().zip(&keys).zip(&found) {
                let old = found.as_ref().map(|row| form::from_bytes(&row.bytes)).transpose()?;
                let table = &tables[action.table];
                let new = action.apply(table, old.as_ref());
                if let Ok(new) = &new {
                    let (old, new) = (old.as_ref(), new.as_ref());
                    if consumed.is_wanted() {
                        units.push((action.table, Units::of_write(table, old, new).twice()));
                    }
                    writes.push(action.write(key.clone(), found.as_ref(), new));
                    of_indexes.extend(index::writes(table, old, new));
                }
                reasons.push(new.err());
            }
            cancel(reasons.into_iter())?;
            if let Some((name, token)) = &token {
                writes.push(GroupWrite {
                    place: Place::Token((*name).to_owned()),
                    expect: known.map_or(Expect::Absent, |known| Expect::Version(known.version)),
                    what: GroupDo::Put(token.bytes()),
                });
            }
            let described = writes.len();
            if is_one {
                writes.extend(tables.values().map(Open::check));
            }
            let of_tables = described..writes.len();
            writes.extend(of_indexes);
            check_size(&writes, "The transaction is too large: its items")?;
            match self.rows.write_group(writes).await.map_err(of_store)? {
                GroupWritten::Done => return Ok(units),
                GroupWritten::Mismatch(at) if of_tables.contains(&at) => {
                    for open in tables.values_mut() {
                        *open = self.again(open).await?;
                    }
                }
                GroupWritten::Mismatch(at) => met = Some(at),
            }
        }
        let conflict = |at| {
            let message = Some("Transaction is ongoing for the item".into());
            let reason = Reason { code: "TransactionConflict", message, item: None };
            (Some(at) == met).then_some(reason)
        };
        cancel((0..actions.len()).map(conflict))?;
        Err(Fault::new(
            Type::ThroughputExceeded,
            "The transaction's token is written to by too many at once: send the request again in a moment",
        ))
    }

    pub(super) async fn transact_get(&self, mut request: Request<'_>) -> Result<Answer> {
        let consumed = Consumed::of(&mut request)?;
        let mut given = Vec::new();
        for (at, one) in items_of(&mut request, "TransactGetItem")?.into_iter().enumerate() {
            let at = format!("transactItems.{}.member.get", at + 1);
            match one.get("Get").filter(|get| !get.is_null()) {
                None => request.tell(None, &at, "Member must not be null"),
                Some(get) => {
                    let inner = Request::new(json::to_struct(get, "Get")?)?;
                    let (table, key) = place_of(&mut request, &inner, &at, "Key")?;
                    given.push((table, key, inner));
                }
            }
        }
        request.check()?;
        let mut gets = Vec::new();
        for (table, key, inner) in given {
            let mut placeholders = inner.placeholders(&["ProjectionExpression"])?;
            let key = key.checked()?;
            let text = inner.text("ProjectionExpression")?;
            let wanted = text.map(|text| projection::parse(text, &mut placeholders)).transpose()?;
            placeholders.finish()?;
            gets.push(Get { table, key, wanted });
        }
        let tables = self.tables_of(gets.iter().map(|get| get.table)).await?;
        let key = |get: &Get<'_>| {
            let key = tables[get.table].key_of(&get.key)?;
            let visit = |visit: &mut dyn FnMut(&Path)| get.wanted.iter().flatten().for_each(visit);
            check_paths(&tables[get.table], visit)?;
            Ok(key)
        };
        let keys = together(gets.iter().map(|get| (get.table, key(get))))?;
        let found = self.rows.read_group(&keys).await.map_err(of_store)?;
        let (mut responses, mut units) = (Items::new(&self.budget), Vec::new());
        for (get, found) in gets.iter().zip(found) {
            let item = found.map(|row| form::from_bytes(&row.bytes)).transpose()?;
            let bytes = item.as_ref().map_or(0, item_bytes);
            units.push((get.table, Units::of_table(2.0 * read_units(bytes, true))));
            let part = item.as_ref().zip(get.wanted.as_ref());
            let part = part.map(|(item, paths)| project(paths, item));
            room(responses.push_within("Item", part.as_ref().or(item.as_ref())))?;
            if responses.is_full() {
                return Err(Fault::validation(format!(
                    "The items are more than {} bytes as JSON, and are read as one: read fewer at once",
                    ANSWER_BYTES.get()
                )));
            }
        }
        let mut answer = Answer::new(&self.budget);
        answer.put_items("Responses", responses);
        if let Some(told) = units_told(consumed, units) {
            answer.put("ConsumedCapacity", &told);
        }
        Ok(answer)
    }
}

fn token_of<'a>(request: &mut Request<'a>) -> Result<Option<&'a str>> {
    let token = request.text("ClientRequestToken")?;
    if let Some(text) = token {
        let at = "ClientRequestToken";
        if text.is_empty() {
            let must = "Member must have length greater than or equal to 1";
            request.tell(Some(text), at, must);
        } else if text.chars().count() > TOKEN_CHARS_MAX {
            let must = "Member must have length less than or equal to 36";
            request.tell(Some(text), at, must);
        }
    }
    Ok(token)
}

/// A transaction was made under this token: this is that one, and nothing is done again; or it is another one.
fn is_repeated<'a>(
    known: &Token,
    token: &Token,
    actions: &[Action<'a>],
) -> Result<Vec<(&'a str, Units)>> {
    match known.is_of(token) {
        // As DynamoDB counts it: each item was read.
        true => Ok(actions.iter().map(|action| (action.table, Units::of_table(2.0))).collect()),
        false => Err(Fault::new(
            Type::IdempotentParameterMismatch,
            "The request has the token of another transaction: give each its own",
        )),
    }
}

fn keys_of(actions: &[Action<'_>], tables: &Opened<'_>) -> Result<Keys> {
    together(actions.iter().map(|action| (action.table, action.key(&tables[action.table]))))
}

/// Tables and keys, none twice; each that is wrong is a reason.
fn together<'a>(keys: impl Iterator<Item = (&'a str, Result<Vec<u8>>)>) -> Result<Keys> {
    let (mut seen, mut all, mut reasons) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (table, key) in keys {
        match key {
            Ok(key) if !seen.insert((table, key.clone())) => return Err(Fault::validation(TWICE)),
            Ok(key) => {
                all.push((table.to_owned(), key));
                reasons.push(None);
            }
            Err(fault) => reasons.push(Some(misfit(fault))),
        }
    }
    cancel(reasons.into_iter())?;
    Ok(all)
}
