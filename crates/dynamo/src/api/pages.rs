//! Queries and scans: pages of items of a range of keys.

use super::items::check_paths;
use super::{Api, Consumed, Open, Units, read_units};
use crate::answer::{Answer, Items, no_memory};
use crate::expression::condition::{self, Condition};
use crate::expression::path::{Path, project};
use crate::expression::{Placeholders, projection};
use crate::fault::{Fault, Result};
use crate::form;
use crate::index::{Index, Projection, Status};
use crate::json::Read;
use crate::key::segment_start;
use crate::range::{Keys, Range};
use crate::request::Request;
use crate::rows::Span;
use crate::table::KeyAttribute;
use crate::value::{Item, Value, item_bytes};
use holdfast_base::ordered;
use holdfast_env::planted;
use serde_json::json;
use std::collections::BTreeSet;

/// Bytes of items that one page looks at.
const PAGE_BYTES: usize = 1 << 20;
/// Rows that the store is asked for at once.
const ROWS_MAX: usize = 1000;
const SEGMENTS_MAX: i64 = 1_000_000;
const START: &str = "The provided starting key is invalid";

/// What queries and scans share.
struct Asked<'a> {
    table: &'a str,
    select: &'static str,
    limit: Option<usize>,
    start: Option<Read<Item>>,
    consistent: bool,
    consumed: Consumed,
    filter: Option<Condition>,
    wanted: Option<Vec<Path>>,
}

const SELECTS: [&str; 5] =
    ["", "SPECIFIC_ATTRIBUTES", "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"];

impl<'a> Asked<'a> {
    /// Without expressions, which come when the request's constraints are checked.
    fn read(request: &mut Request<'a>) -> Result<Asked<'a>> {
        let limit = request.number("Limit", 1, i64::from(i32::MAX))?;
        let asked = Asked {
            table: request.table()?,
            select: request.word("Select", &SELECTS)?,
            limit: limit.map(|limit| usize::try_from(limit).unwrap_or(1)),
            start: request.item("ExclusiveStartKey")?,
            consistent: request.truth("ConsistentRead")?.unwrap_or(false),
            consumed: Consumed::of(request)?,
            filter: None,
            wanted: None,
        };
        Ok(asked)
    }

    /// The last expressions: each placeholder must have been used then.
    fn parse(&mut self, request: &Request<'_>, mut placeholders: Placeholders) -> Result<()> {
        let filter = request.text("FilterExpression")?;
        let parse = |text| condition::parse("FilterExpression", text, &mut placeholders);
        self.filter = filter.map(parse).transpose()?;
        let wanted = request.text("ProjectionExpression")?;
        let parse = |text| projection::parse(text, &mut placeholders);
        self.wanted = wanted.map(parse).transpose()?;
        placeholders.finish()
    }

    fn start(&self) -> Result<Option<Item>> {
        let Some(read) = self.start.clone() else { return Ok(None) };
        let told = ["contains duplicates", "number set", "numeric value", "digits", "magnitude"];
        let wrong =
            read.wrong.as_ref().map(|wrong| match told.iter().any(|part| wrong.contains(part)) {
                true => wrong.clone(),
                false => format!("{START}: {wrong}"),
            });
        Read { wrong, ..read }.checked().map(Some)
    }

    fn check_select(&self, request: &Request<'_>) -> Result<()> {
        let has_projection = self.wanted.is_some();
        let why = match self.select {
            "SPECIFIC_ATTRIBUTES" if !has_projection => {
                "Must specify the AttributesToGet or ProjectionExpression when choosing to get \
                 SPECIFIC_ATTRIBUTES"
            }
            "COUNT" if has_projection => {
                "Cannot specify the ProjectionExpression when choosing to get only the Count"
            }
            "ALL_ATTRIBUTES" if has_projection => {
                "Cannot specify the ProjectionExpression when choosing to get ALL_ATTRIBUTES"
            }
            "ALL_PROJECTED_ATTRIBUTES" if request.get("IndexName").is_none() => {
                "ALL_PROJECTED_ATTRIBUTES can be used only when Querying using an IndexName"
            }
            _ => return Ok(()),
        };
        Err(Fault::validation(why))
    }

    fn check_paths(&self, over: &Over) -> Result<()> {
        check_paths(&over.table, |visit| {
            self.wanted.iter().flatten().for_each(&mut *visit);
            self.filter.iter().for_each(|filter| filter.visit(visit));
        })
    }
}

/// What is read: a table, or one of its indexes.
struct Over {
    table: Open,
    index: Option<Index>,
}

impl Over {
    fn of(table: Open, asked: &Asked<'_>, request: &Request<'_>) -> Result<Over> {
        let Some(name) = request.text("IndexName")? else { return Ok(Over { table, index: None }) };
        let index = table.index(name).filter(|index| index.status() != Status::Deleting);
        let Some(index) = index.cloned() else {
            let why = format!("The table does not have the specified index: {name}");
            return Err(Fault::validation(why));
        };
        if index.status() == Status::Creating && !planted!("dynamo.index-shown-early") {
            let why = format!("Cannot read from backfilling global secondary index: {name}");
            return Err(Fault::validation(why));
        }
        if index.global.is_some() && asked.consistent {
            let why = "Consistent reads are not supported on global secondary indexes";
            return Err(Fault::validation(why));
        }
        Ok(Over { table, index: Some(index) })
    }

    fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }

    /// The attributes by which rows lie: side by side by the first, ordered by the other.
    fn by(&self) -> (&KeyAttribute, Option<&KeyAttribute>) {
        match self.index() {
            Some(index) => (&index.partition, index.sort.as_ref()),
            None => (&self.table.partition, self.table.sort.as_ref()),
        }
    }

    /// All attributes of a key that one may go on behind.
    fn keys(&self) -> BTreeSet<&str> {
        let keys = self.table.keys().chain(self.index().into_iter().flat_map(Index::keys));
        keys.map(|key| key.name.as_str()).collect()
    }

    /// The bytes of a key to go on behind.
    fn key_of(&self, start: &Item) -> Result<Vec<u8>> {
        let Some(index) = self.index() else { return self.table.key_of(start) };
        let is_right =
            |key: &KeyAttribute| start.get(&key.name).is_some_and(|v| v.kind() == key.kind);
        let fits = self.table.keys().chain(index.keys()).all(is_right);
        let key =
            index.key(&self.table, start).filter(|_| fits && start.len() == self.keys().len());
        key.ok_or_else(|| Fault::validation("The provided key element does not match the schema"))
    }

    /// The key of an item, to go on behind it.
    fn key_in(&self, item: &Item) -> Item {
        let keys = self.keys();
        let is_key = |(name, _): &(&String, &Value)| keys.contains(name.as_str());
        item.iter().filter(is_key).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Whether more is asked for than the index holds: then items are looked up.
    fn lacks(&self, asked: &Asked<'_>) -> bool {
        let Some(index) = self.index() else { return false };
        let mut lacks = asked.select == "ALL_ATTRIBUTES" && index.projection != Projection::All;
        let mut visit = |path: &Path| lacks |= !index.has(&self.table, path.head());
        asked.wanted.iter().flatten().for_each(&mut visit);
        asked.filter.iter().for_each(|filter| filter.visit(&mut visit));
        lacks
    }

    /// Refuses to look items up for a global index, as DynamoDB does.
    fn check_lacks(&self, asked: &Asked<'_>) -> Result<()> {
        let Some(index) = self.index().filter(|index| index.global.is_some()) else {
            return Ok(());
        };
        let (mut wanted, mut filtered) = (Vec::new(), Vec::new());
        let missing = |missing: &mut Vec<String>, path: &Path| {
            if !index.has(&self.table, path.head()) && !missing.iter().any(|m| m == path.head()) {
                missing.push(path.head().to_owned());
            }
        };
        asked.wanted.iter().flatten().for_each(|path| missing(&mut wanted, path));
        let filter = asked.filter.iter();
        filter.for_each(|filter| filter.visit(&mut |path| missing(&mut filtered, path)));
        let name = &index.name;
        let why = if asked.select == "ALL_ATTRIBUTES" && index.projection != Projection::All {
            format!(
                "Select type ALL_ATTRIBUTES is not supported for global secondary index {name} because its projection \
                 type is not ALL"
            )
        } else if !wanted.is_empty() {
            format!("Global secondary index {name} does not project [{}]", wanted.join(", "))
        } else if !filtered.is_empty() {
            format!(
                "Secondary index {name} does not project one or more filter attributes: [{}]",
                filtered.join(", ")
            )
        } else {
            return Ok(());
        };
        Err(Fault::validation(format!("One or more parameter values were invalid: {why}")))
    }
}

impl Api {
    pub(super) async fn query(&self, mut request: Request<'_>) -> Result<Answer> {
        let mut asked = Asked::read(&mut request)?;
        let forward = request.truth("ScanIndexForward")?.unwrap_or(true);
        request.check()?;
        let expressions = ["FilterExpression", "KeyConditionExpression", "ProjectionExpression"];
        let mut placeholders = request.placeholders(&expressions)?;
        let start = asked.start()?;
        let Some(text) = request.text("KeyConditionExpression")? else {
            return Err(Fault::validation(
                "Either the KeyConditions or KeyConditionExpression parameter must be specified \
                 in the request.",
            ));
        };
        let keys = condition::parse("KeyConditionExpression", text, &mut placeholders)?;
        asked.parse(&request, placeholders)?;
        let keys = Keys::of(&keys)?;
        asked.check_select(&request)?;
        let over = Over::of(self.table(asked.table).await?, &asked, &request)?;
        let names = over.keys();
        if let Some(start) = &start
            && (start.len() != names.len() || names.iter().any(|name| !start.contains_key(*name)))
        {
            return Err(Fault::validation(START));
        }
        let mut range = keys.range(&over.table, over.index())?;
        asked.check_paths(&over)?;
        check_filter(&over, asked.filter.as_ref())?;
        over.check_lacks(&asked)?;
        if let Some(start) = start {
            let key = over
                .key_of(&start)
                .map_err(|fault| Fault::validation(format!("{START}: {}", fault.message)))?;
            keys.check_start(over.by().1, &key, &range)?;
            match forward {
                true => range.from = ordered::next(&key),
                false => range.to = Some(key),
            }
        }
        self.page(&asked, &over, range, forward).await
    }

    pub(super) async fn scan(&self, mut request: Request<'_>) -> Result<Answer> {
        let mut asked = Asked::read(&mut request)?;
        let segment = request.number("Segment", 0, SEGMENTS_MAX - 1)?;
        let segments = request.number("TotalSegments", 1, SEGMENTS_MAX)?;
        request.check()?;
        let expressions = ["FilterExpression", "ProjectionExpression"];
        let placeholders = request.placeholders(&expressions)?;
        let start = asked.start()?;
        let segment = segment_of(segment, segments)?;
        asked.parse(&request, placeholders)?;
        asked.check_select(&request)?;
        let over = Over::of(self.table(asked.table).await?, &asked, &request)?;
        let mut range = segment_range(segment);
        if let Some(start) = start {
            let key = over
                .key_of(&start)
                .map_err(|fault| Fault::validation(format!("{START}: {}", fault.message)))?;
            if key < range.from || range.to.as_ref().is_some_and(|to| key >= *to) {
                let (segment, segments) = segment;
                return Err(Fault::validation(format!(
                    "{START}: Invalid ExclusiveStartKey. Please use ExclusiveStartKey with correct \
                     Segment. TotalSegments: {segments} Segment: {segment}"
                )));
            }
            range.from = ordered::next(&key);
        }
        asked.check_paths(&over)?;
        over.check_lacks(&asked)?;
        self.page(&asked, &over, range, true).await
    }

    /// Items of a range until the limit, or the page's bytes, are reached; or there is no memory for more.
    async fn page(
        &self,
        asked: &Asked<'_>,
        over: &Over,
        range: Range,
        forward: bool,
    ) -> Result<Answer> {
        let limit = asked.limit.unwrap_or(usize::MAX);
        let (mut scanned, mut count, mut bytes) = (0, 0usize, 0);
        let (mut row_bytes, mut looked_up) = (0, 0.0);
        let mut items = Items::new(&self.budget);
        let (mut before, mut last) = (None, None);
        let Range { from, to } = range;
        let rows_max = ROWS_MAX.min(limit);
        let index = over.index().map(|index| index.number);
        let lacks = over.lacks(asked);
        let (backwards, bytes_max) = (!forward, PAGE_BYTES);
        let mut span = Span { index, from, to, backwards, rows_max, bytes_max };
        'page: while span.to.as_ref().is_none_or(|to| span.from < *to) {
            span.rows_max = ROWS_MAX.min(limit - scanned);
            span.bytes_max = PAGE_BYTES - bytes;
            let rows = self.rows.scan(asked.table, &span, asked.consistent).await?;
            let Some((end, _)) = rows.last() else { break };
            match forward {
                true => span.from = ordered::next(end),
                false => span.to = Some(end.clone()),
            }
            for (_, row) in rows {
                let mut item = form::from_bytes(&row)?;
                row_bytes += item_bytes(&item);
                if lacks {
                    let key = over.table.key_of(&over.table.key_in(&item))?;
                    // One that went meanwhile is not there.
                    let Some(whole) = self.read(asked.table, &key, asked.consistent).await? else {
                        continue;
                    };
                    item = whole;
                    looked_up += read_units(item_bytes(&item), asked.consistent);
                }
                let holds = asked.filter.as_ref().is_none_or(|filter| filter.holds(&item));
                if holds && asked.select != "COUNT" {
                    let part = asked.wanted.as_ref().map(|paths| project(paths, &item));
                    if !items.push(part.as_ref().unwrap_or(&item)) {
                        last = Some(over.key_in(before.as_ref().ok_or_else(no_memory)?));
                        break 'page;
                    }
                }
                scanned += 1;
                count += usize::from(holds);
                bytes += item_bytes(&item);
                if scanned >= limit || bytes >= PAGE_BYTES || items.is_full() {
                    last = Some(over.key_in(&item));
                    break 'page;
                }
                before = Some(item);
            }
        }
        let mut answer = Answer::new(&self.budget);
        answer.put("Count", &json!(count));
        answer.put("ScannedCount", &json!(scanned));
        if asked.select != "COUNT" {
            answer.put_items("Items", items);
        }
        if let Some(last) = last {
            answer.put_item("LastEvaluatedKey", &last);
        }
        let units = read_units(row_bytes, asked.consistent);
        asked.consumed.add(&mut answer, asked.table, || match over.index() {
            Some(index) => Units::of_table(looked_up).of_index(index, units),
            None => Units::of_table(units),
        });
        Ok(answer)
    }
}

fn check_filter(over: &Over, filter: Option<&Condition>) -> Result<()> {
    let mut wrong = None;
    let (partition, sort) = over.by();
    let keys = || [partition].into_iter().chain(sort);
    if let Some(filter) = filter {
        filter.visit(&mut |path| {
            if let Some(key) = keys().find(|key| key.name == path.head()) {
                wrong.get_or_insert_with(|| key.name.clone());
            }
        });
    }
    match wrong {
        Some(name) => Err(Fault::validation(format!(
            "Filter Expression can only contain non-primary key attributes: Primary key attribute: \
             {name}"
        ))),
        None => Ok(()),
    }
}

/// Which segment of how many.
fn segment_of(segment: Option<i64>, segments: Option<i64>) -> Result<(u32, u32)> {
    let why = match (segment, segments) {
        (None, None) => return Ok((0, 1)),
        (Some(segment), Some(segments)) if segment < segments => {
            return Ok((segment as u32, segments as u32));
        }
        (Some(segment), Some(segments)) => format!(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: \
             Segment: {segment} is not less than TotalSegments: {segments}"
        ),
        (Some(_), None) => "The TotalSegments parameter is required but was not present in the \
                            request when Segment parameter is present"
            .into(),
        (None, Some(_)) => "The Segment parameter is required but was not present in the request \
                            when parameter TotalSegments is present"
            .into(),
    };
    Err(Fault::validation(why))
}

fn segment_range((segment, segments): (u32, u32)) -> Range {
    // The bytes of a hash begin a key; 2^32 is behind all of them.
    let at = |segment: u32| u32::try_from(segment_start(segment, segments)).ok();
    Range {
        from: at(segment).filter(|at| *at > 0).map_or(Vec::new(), |at| at.to_be_bytes().to_vec()),
        to: at(segment + 1).map(|at| at.to_be_bytes().to_vec()),
    }
}
