//! What a `KeyConditionExpression` says: one partition key, and a range of sort keys. Pure.

use crate::expression::condition::{Comparison, Condition, Operand};
use crate::expression::path::Path;
use crate::fault::{Fault, Result};
use crate::index::Index;
use crate::key::{of_partition, put_ended_sort, put_open_sort, put_sort};
use crate::table::{KeyAttribute, Table};
use crate::value::Value;
use holdfast_base::ordered::{self, after_prefix};
use std::collections::BTreeMap;

/// What is said of one attribute of the key.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Compare(Comparison, Value),
    Between(Value, Value),
    BeginsWith(Value),
}

/// How a sort key's bytes are appended.
type Put = fn(&mut Vec<u8>, &Value) -> Option<()>;

/// A range of keys' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The least key.
    pub from: Vec<u8>,
    /// The first behind them; none for the table's end.
    pub to: Option<Vec<u8>>,
}

/// A query's keys.
#[derive(Debug)]
pub struct Keys {
    wanted: BTreeMap<String, Wanted>,
}

fn wrong(why: impl Into<String>) -> Fault {
    Fault::validation(why)
}

impl Keys {
    /// Of a condition, whatever table it is for.
    pub fn of(condition: &Condition) -> Result<Keys> {
        let mut keys = Keys { wanted: BTreeMap::new() };
        keys.take(condition)?;
        match keys.wanted.len() {
            1 | 2 => Ok(keys),
            _ => Err(wrong("Conditions can be of length 1 or 2 only")),
        }
    }

    fn take(&mut self, condition: &Condition) -> Result<()> {
        let operator = |name: &str| {
            Err(wrong(format!("Invalid operator used in KeyConditionExpression: {name}")))
        };
        match condition {
            Condition::And(one, other) => {
                self.take(one)?;
                self.take(other)
            }
            Condition::Or(..) => operator("OR"),
            Condition::Not(..) => operator("NOT"),
            Condition::In(..) => operator("IN"),
            Condition::Exists(..) => operator("attribute_exists"),
            Condition::NotExists(..) => operator("attribute_not_exists"),
            Condition::Type(..) => operator("attribute_type"),
            Condition::Contains(..) => operator("contains"),
            Condition::Compare(Comparison::NotEqual, ..) => operator("<>"),
            Condition::Compare(comparison, one, other) => match (one, other) {
                (Operand::Value(value), path) => {
                    let turned = Wanted::Compare(comparison.turned(), Value::clone(value));
                    self.put(path, turned)
                }
                (path, value) => {
                    let wanted = Wanted::Compare(*comparison, value_of(path, value)?);
                    self.put(path, wanted)
                }
            },
            Condition::Between(path, low, high) => {
                check_first(path, "BETWEEN")?;
                let wanted = Wanted::Between(value_of(path, low)?, value_of(path, high)?);
                self.put(path, wanted)
            }
            Condition::BeginsWith(path, with) => {
                check_first(path, "begins_with")?;
                let wanted = Wanted::BeginsWith(value_of(path, with)?);
                self.put(path, wanted)
            }
        }
    }

    fn put(&mut self, path: &Operand, wanted: Wanted) -> Result<()> {
        let path: &Path = match path {
            Operand::Path(path) => path,
            Operand::Size(_) => return Err(nested()),
            Operand::Value(_) => {
                return Err(wrong(
                    "Invalid condition in KeyConditionExpression: No key attribute specified",
                ));
            }
        };
        if path.is_nested() {
            return Err(wrong(
                "KeyConditionExpressions cannot have conditions on nested attributes",
            ));
        }
        match self.wanted.insert(path.head().to_owned(), wanted) {
            Some(_) => {
                Err(wrong("KeyConditionExpressions must only contain one condition per key"))
            }
            None => Ok(()),
        }
    }

    /// The range of a table's keys, or of those of an index.
    pub fn range(&self, table: &Table, index: Option<&Index>) -> Result<Range> {
        let (hash, by) = match index {
            Some(index) => (&index.partition, index.sort.as_ref()),
            None => (&table.partition, table.sort.as_ref()),
        };
        let partition = self.equal_to(hash, by.is_none())?;
        let sort = match by {
            Some(sort) => match self.wanted.get(&sort.name) {
                Some(wanted) => Some(wanted),
                None if self.wanted.len() > 1 => return Err(missed(&sort.name)),
                None => None,
            },
            None => None,
        };
        let prefix = of_partition(partition).ok_or_else(mistyped)?;
        let everything = Range { to: after_prefix(&prefix), from: prefix.clone() };
        let (Some(wanted), Some(attribute)) = (sort, by) else { return Ok(everything) };
        // In an index the table's key comes behind: one value begins several keys.
        let (put, put_begin): (Put, Put) = match index {
            Some(_) => (put_ended_sort, put_open_sort),
            None => (put_sort, put_sort),
        };
        let bytes_by = |put: Put, value: &Value| {
            let mut bytes = prefix.clone();
            let is_right = value.kind() == attribute.kind;
            is_right.then(|| put(&mut bytes, value)).flatten().ok_or_else(mistyped)?;
            Ok::<Vec<u8>, Fault>(bytes)
        };
        let bytes = |value: &Value| bytes_by(put, value);
        let behind = |value: &Value| {
            let bytes = bytes(value)?;
            Ok::<Vec<u8>, Fault>(match index {
                Some(_) => after_prefix(&bytes).unwrap_or(bytes),
                None => ordered::next(&bytes),
            })
        };
        Ok(match wanted {
            Wanted::Compare(comparison, value) => match comparison {
                Comparison::Equal | Comparison::NotEqual => {
                    Range { from: bytes(value)?, to: Some(behind(value)?) }
                }
                Comparison::Less => Range { to: Some(bytes(value)?), ..everything },
                Comparison::LessOrEqual => Range { to: Some(behind(value)?), ..everything },
                Comparison::Greater => Range { from: behind(value)?, ..everything },
                Comparison::GreaterOrEqual => Range { from: bytes(value)?, ..everything },
            },
            Wanted::Between(low, high) => Range { from: bytes(low)?, to: Some(behind(high)?) },
            Wanted::BeginsWith(value) => {
                let from = bytes_by(put_begin, value)?;
                Range { to: after_prefix(&from), from }
            }
        })
    }

    fn equal_to(&self, key: &KeyAttribute, is_alone: bool) -> Result<&Value> {
        let unsupported = || wrong("Query key condition not supported");
        if is_alone && self.wanted.len() > 1 {
            return Err(unsupported());
        }
        match self.wanted.get(&key.name) {
            None => Err(missed(&key.name)),
            Some(Wanted::Compare(comparison, value)) => {
                if value.kind() != key.kind {
                    return Err(mistyped());
                }
                match comparison {
                    Comparison::Equal => Ok(value),
                    _ => Err(unsupported()),
                }
            }
            Some(_) => Err(unsupported()),
        }
    }

    /// Whether a query may go on behind a key: it must lie in what is asked for. `sort` is the attribute that keys are
    /// ordered by.
    pub fn check_start(
        &self,
        sort: Option<&KeyAttribute>,
        key: &[u8],
        range: &Range,
    ) -> Result<()> {
        let is_inside = *key >= *range.from && range.to.as_ref().is_none_or(|to| *key < **to);
        let sort = sort.filter(|sort| self.wanted.contains_key(&sort.name));
        match (is_inside, sort) {
            (true, _) => Ok(()),
            (false, None) => Err(wrong(
                "The provided starting key is outside query boundaries based on provided \
                 conditions",
            )),
            (false, Some(_)) => {
                Err(wrong("The provided starting key does not match the range key predicate"))
            }
        }
    }
}

fn nested() -> Fault {
    wrong("KeyConditionExpressions cannot contain nested operations")
}

fn missed(name: &str) -> Fault {
    wrong(format!("Query condition missed key schema element: {name}"))
}

fn mistyped() -> Fault {
    wrong(
        "One or more parameter values were invalid: Condition parameter type does not match \
         schema type",
    )
}

fn check_first(operand: &Operand, name: &str) -> Result<()> {
    match operand {
        Operand::Path(_) => Ok(()),
        _ => Err(wrong(format!(
            "Invalid condition in KeyConditionExpression: {name} operator must have the key \
             attribute as its first operand"
        ))),
    }
}

fn value_of(path: &Operand, value: &Operand) -> Result<Value> {
    match (path, value) {
        (_, Operand::Value(value)) => Ok(Value::clone(value)),
        (_, Operand::Size(_)) | (Operand::Size(_), _) => Err(nested()),
        _ => Err(wrong(
            "Invalid condition in KeyConditionExpression: Multiple attribute names used in one \
             condition",
        )),
    }
}
