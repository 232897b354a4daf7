//! Reads requests: their parameters by name and shape, and DynamoDB's list of what is wrong with
//! them, ten at most. Pure.

use crate::expression::Placeholders;
use crate::fault::{Fault, Result};
use crate::json::{self, Read};
use crate::table::{NAME_PATTERN, is_name};
use crate::value::Item;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// Of one request, so many wrong parameters are told.
const TOLD_MAX: usize = 10;

/// A request's parameters.
pub struct Request<'a> {
    body: &'a Map<String, Json>,
    told: Vec<String>,
}

/// Older parameters, and what takes their place.
const REFUSED: &[(&str, &str)] = &[
    ("Expected", "use ConditionExpression"),
    ("ConditionalOperator", "use ConditionExpression or FilterExpression"),
    ("AttributeUpdates", "use UpdateExpression"),
    ("KeyConditions", "use KeyConditionExpression"),
    ("QueryFilter", "use FilterExpression"),
    ("ScanFilter", "use FilterExpression"),
    ("AttributesToGet", "use ProjectionExpression"),
    ("ReplicaUpdates", "there are no replicas by this way"),
];

const EXPRESSIONS: [&str; 5] = [
    "ConditionExpression",
    "UpdateExpression",
    "KeyConditionExpression",
    "FilterExpression",
    "ProjectionExpression",
];

impl<'a> Request<'a> {
    /// Of a body that is a structure; what is not there yet is refused by its name.
    pub fn new(body: &'a Map<String, Json>) -> Result<Request<'a>> {
        let refused = REFUSED.iter().find(|(name, _)| !body.get(*name).is_none_or(Json::is_null));
        if let Some((name, instead)) = refused {
            return Err(Fault::validation(format!(
                "The parameter '{name}' is not supported: {instead}"
            )));
        }
        let request = Request { body, told: Vec::new() };
        // Shapes are told before values, of whatever parameter.
        for expression in EXPRESSIONS {
            request.text(expression)?;
        }
        if let Some(names) = request.get("ExpressionAttributeNames") {
            json::to_map(names, "java.lang.String")?.values().try_for_each(|of| match of {
                Json::Null => Ok(()),
                of => json::to_text(of).map(drop),
            })?;
        }
        Ok(request)
    }

    /// A parameter that is there.
    pub fn get(&self, name: &str) -> Option<&'a Json> {
        self.body.get(name).filter(|value| !value.is_null())
    }

    /// A string.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.get(name).map(json::to_text).transpose()
    }

    /// A truth value.
    pub fn truth(&self, name: &str) -> Result<Option<bool>> {
        self.get(name).map(json::to_bool).transpose()
    }

    /// An item or a key.
    pub fn item(&self, name: &str) -> Result<Option<Read<Item>>> {
        self.get(name).map(json::to_item).transpose()
    }

    /// An item or a key that must be there.
    pub fn needed_item(&mut self, name: &str) -> Result<Read<Item>> {
        let item = self.item(name)?;
        if item.is_none() {
            self.tell(None, name, "Member must not be null");
        }
        Ok(item.unwrap_or(Read { value: Item::new(), wrong: None }))
    }

    /// A whole number, no less than `min` and no more than `max`.
    pub fn number(&mut self, name: &str, min: i64, max: i64) -> Result<Option<i64>> {
        let Some(number) = self.get(name).map(json::to_integer).transpose()? else {
            return Ok(None);
        };
        let value = number.to_string();
        if number < min {
            let must = format!("Member must have value greater than or equal to {min}");
            self.tell(Some(&value), name, &must);
        } else if number > max {
            let must = format!("Member must have value less than or equal to {max}");
            self.tell(Some(&value), name, &must);
        }
        Ok(Some(number))
    }

    /// One of some words; the first of them where none is there. An empty one is only that.
    pub fn word(&mut self, name: &str, words: &[&'static str]) -> Result<&'static str> {
        let Some(text) = self.text(name)? else { return Ok(words[0]) };
        let found = words.iter().find(|word| **word == text && !text.is_empty());
        if found.is_none() {
            let must = format!("Member must satisfy enum value set: [{}]", words.join(", "));
            self.tell(Some(text), name, &must);
        }
        Ok(found.copied().unwrap_or(words[0]))
    }

    /// The name of a table.
    pub fn table(&mut self) -> Result<&'a str> {
        let Some(name) = self.text("TableName")? else {
            self.tell(None, "TableName", "Member must not be null");
            return Ok("");
        };
        self.check_table("tableName", name);
        Ok(name)
    }

    /// Notes what is wrong with a table's name.
    pub fn check_table(&mut self, at: &str, name: &str) {
        if !is_name(name) {
            let must = format!("Member must satisfy regular expression pattern: {NAME_PATTERN}");
            self.tell(Some(name), at, &must);
        }
        if name.len() < 3 {
            self.tell(Some(name), at, "Member must have length greater than or equal to 3");
        }
        if name.len() > 255 {
            self.tell(Some(name), at, "Member must have length less than or equal to 255");
        }
    }

    /// Notes that a parameter breaks a rule.
    pub fn tell(&mut self, value: Option<&str>, at: &str, must: &str) {
        if self.told.len() < TOLD_MAX {
            let value = value.map_or("null".to_owned(), |value| format!("'{value}'"));
            let mut at = at.to_owned();
            if let Some(first) = at.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            self.told.push(format!("Value {value} at '{at}' failed to satisfy constraint: {must}"));
        }
    }

    /// Refuses the request if anything is wrong so far.
    pub fn check(&self) -> Result<()> {
        match self.told.len() {
            0 => Ok(()),
            count => Err(Fault::validation(format!(
                "{count} validation error{} detected: {}",
                if count == 1 { "" } else { "s" },
                self.told.join("; ")
            ))),
        }
    }

    /// The names and values of the expressions that are parameters of these names; a projection
    /// takes no values.
    pub fn placeholders(&self, expressions: &[&str]) -> Result<Placeholders> {
        let given = |name: &&&str| self.get(name).is_some();
        let names = match self.get("ExpressionAttributeNames") {
            Some(names) => {
                let map = json::to_map(names, "java.lang.String")?;
                let text = |(name, of): (&String, &Json)| {
                    Ok((name.clone(), json::to_text(of)?.to_owned()))
                };
                Some(map.iter().map(text).collect::<Result<BTreeMap<_, _>>>()?)
            }
            None => None,
        };
        // Where a projection is all there is, values are no parameter.
        let takes_values = expressions.iter().any(|name| *name != "ProjectionExpression");
        let values = self.get("ExpressionAttributeValues").filter(|_| takes_values);
        let shapes = values.map(json::to_item).transpose()?;
        if names.is_some() && !expressions.iter().any(|name| given(&name)) {
            return Err(Fault::validation(
                "ExpressionAttributeNames can only be specified when using expressions",
            ));
        }
        let takers: Vec<&str> =
            expressions.iter().copied().filter(|name| *name != "ProjectionExpression").collect();
        if shapes.is_some() && !takers.iter().any(|name| given(&name)) {
            return Err(Fault::validation(format!(
                "ExpressionAttributeValues can only be specified when using expressions: {} {} \
                 null",
                takers.join(" and "),
                if takers.len() > 1 { "are" } else { "is" }
            )));
        }
        let wrong = |name: &str| {
            let value = values.and_then(|values| values.get(name))?;
            json::to_value(value).ok()?.wrong
        };
        Placeholders::new(names, shapes.map(|read| read.value), wrong)
    }
}
