//! Queries and scans: pages of items of a range of keys.

use super::items::check_paths;
use super::{Api, Consumed, read_units};
use crate::expression::condition::{self, Condition};
use crate::expression::path::{Path, project};
use crate::expression::{Placeholders, projection};
use crate::fault::{Fault, Result};
use crate::form;
use crate::json::{self, Read};
use crate::key::segment_start;
use crate::range::{Keys, Range};
use crate::request::Request;
use crate::rows::Span;
use crate::table::Table;
use crate::value::{Item, item_bytes};
use holdfast_base::ordered;
use serde_json::{Value as Json, json};

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

    fn check_paths(&self, table: &Table) -> Result<()> {
        check_paths(table, |visit| {
            self.wanted.iter().flatten().for_each(&mut *visit);
            self.filter.iter().for_each(|filter| filter.visit(visit));
        })
    }
}

fn no_index(request: &Request<'_>) -> Result<()> {
    match request.text("IndexName")? {
        Some(index) => {
            Err(Fault::validation(format!("The table does not have the specified index: {index}")))
        }
        None => Ok(()),
    }
}

impl Api {
    pub(super) async fn query(&self, mut request: Request<'_>) -> Result<Json> {
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
        let table = self.table(asked.table).await?;
        no_index(&request)?;
        if let Some(start) = &start
            && (start.len() != table.keys().count()
                || table.keys().any(|key| !start.contains_key(&key.name)))
        {
            return Err(Fault::validation(START));
        }
        let mut range = keys.range(&table)?;
        asked.check_paths(&table)?;
        check_filter(&table, asked.filter.as_ref())?;
        if let Some(start) = start {
            keys.check_start(&table, &start, &range)?;
            let key = table.key_of(&start)?;
            match forward {
                true => range.from = ordered::next(&key),
                false => range.to = Some(key),
            }
        }
        self.page(&asked, &table, range, forward).await
    }

    pub(super) async fn scan(&self, mut request: Request<'_>) -> Result<Json> {
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
        let table = self.table(asked.table).await?;
        no_index(&request)?;
        let mut range = segment_range(segment);
        if let Some(start) = start {
            let key = table
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
        asked.check_paths(&table)?;
        self.page(&asked, &table, range, true).await
    }

    /// Items of a range until the limit, or the page's bytes, are reached.
    async fn page(
        &self,
        asked: &Asked<'_>,
        table: &Table,
        range: Range,
        forward: bool,
    ) -> Result<Json> {
        let limit = asked.limit.unwrap_or(usize::MAX);
        let (mut scanned, mut count, mut bytes) = (0, 0, 0);
        let mut items = Vec::new();
        let mut last = None;
        let Range { from, to } = range;
        let rows_max = ROWS_MAX.min(limit);
        let mut span = Span { from, to, backwards: !forward, rows_max, bytes_max: PAGE_BYTES };
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
                let item = form::from_bytes(&row)?;
                scanned += 1;
                bytes += item_bytes(&item);
                let is_full = scanned >= limit || bytes >= PAGE_BYTES;
                if is_full {
                    last = Some(table.key_in(&item));
                }
                if asked.filter.as_ref().is_none_or(|filter| filter.holds(&item)) {
                    count += 1;
                    if asked.select != "COUNT" {
                        let part = asked.wanted.as_ref().map(|paths| project(paths, &item));
                        items.push(json::from_item(part.as_ref().unwrap_or(&item)));
                    }
                }
                if is_full {
                    break 'page;
                }
            }
        }
        let mut answer = json!({"Count": count, "ScannedCount": scanned});
        if asked.select != "COUNT" {
            answer["Items"] = Json::Array(items);
        }
        if let Some(last) = last {
            answer["LastEvaluatedKey"] = json::from_item(&last);
        }
        asked.consumed.add(&mut answer, asked.table, read_units(bytes, asked.consistent));
        Ok(answer)
    }
}

fn check_filter(table: &Table, filter: Option<&Condition>) -> Result<()> {
    let mut wrong = None;
    if let Some(filter) = filter {
        filter.visit(&mut |path| {
            if let Some(key) = table.keys().find(|key| key.name == path.head()) {
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
