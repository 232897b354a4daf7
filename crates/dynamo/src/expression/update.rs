//! Updates of items: read, checked, applied. What is set is computed of the item as it was. Pure.

use super::lexer::Token;
use super::path::{Path, Step};
use super::{Parser, Placeholders, Wrong};
use crate::decimal::Decimal;
use crate::fault::{Fault, Result};
use crate::value::{ITEM_BYTES_MAX, Item, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What one path is set to.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// What lies in the item.
    Path(Path),
    /// What the request gives.
    Value(Arc<Value>),
    /// `+`
    Plus(Box<Source>, Box<Source>),
    /// `-`
    Minus(Box<Source>, Box<Source>),
    /// What lies at the path, or else the other.
    IfNotExists(Path, Box<Source>),
    /// One list behind the other.
    ListAppend(Box<Source>, Box<Source>),
}

/// What is done at a path.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// It gets a value.
    Set(Source),
    /// It goes.
    Remove,
    /// A number grows, a set gets members.
    Add(Arc<Value>),
    /// A set loses members.
    Delete(Arc<Value>),
}

/// What an `UpdateExpression` does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// In the order of the expression; no two paths clash.
    pub actions: Vec<(Path, Action)>,
}

const ORDER: [Wrong; 9] = [
    Wrong::Reserved,
    Wrong::UnknownFunction,
    Wrong::Section,
    Wrong::Name,
    Wrong::Value,
    Wrong::Overlap,
    Wrong::Conflict,
    Wrong::Operands,
    Wrong::Function,
];

const SECTIONS: [&str; 4] = ["SET", "REMOVE", "ADD", "DELETE"];
const TYPE: &str = "An operand in the update expression has an incorrect data type";

/// Reads an `UpdateExpression`.
pub fn parse(text: &str, placeholders: &mut Placeholders) -> Result<Update> {
    Parser::read("UpdateExpression", text, placeholders, &ORDER, |parser| {
        let mut update = Update::default();
        let mut seen = BTreeSet::new();
        while !parser.lexer.is_at_end() {
            let found = SECTIONS.iter().find(|name| parser.lexer.take_word(name));
            let Some(section) = found else { return Err(parser.lexer.syntax_error()) };
            if !seen.insert(section) {
                parser.note(Wrong::Section, || {
                    format!(
                        "The \"{section}\" section can only be used once in an update expression;"
                    )
                });
            }
            loop {
                update.actions.push(parser.action(section)?);
                if !parser.lexer.take_symbol(",") {
                    break;
                }
            }
        }
        let paths: Vec<Path> = update.actions.iter().map(|(path, _)| path.clone()).collect();
        parser.note_clashes(&paths);
        Ok(update)
    })
}

/// What is said of an item that an update made too large.
pub const TOO_LARGE: &str = "Item size to update has exceeded the maximum allowed size";

/// Refuses early what no item can hold: an expression may name one value many times.
fn small(value: &Value) -> Result<&Value> {
    match value.bytes() > ITEM_BYTES_MAX {
        true => Err(Fault::validation(TOO_LARGE)),
        false => Ok(value),
    }
}

type Read<T> = std::result::Result<T, String>;

impl Parser<'_> {
    fn action(&mut self, section: &str) -> Read<(Path, Action)> {
        let path = self.path()?;
        let action = match section {
            "SET" => {
                self.symbol("=")?;
                Action::Set(self.source()?)
            }
            "REMOVE" => Action::Remove,
            _ => {
                let Some(Token::Value(name)) = self.lexer.next() else {
                    return Err(self.lexer.syntax_error_before());
                };
                let value = self.value(name);
                self.check_member(section, &value);
                match section {
                    "ADD" => Action::Add(value),
                    _ => Action::Delete(value),
                }
            }
        };
        Ok((path, action))
    }

    fn check_member(&mut self, section: &str, value: &Value) {
        let kind = match value {
            Value::Ss(_) | Value::Ns(_) | Value::Bs(_) => return,
            Value::N(_) if section == "ADD" => return,
            Value::S(_) => "STRING",
            Value::N(_) => "NUMBER",
            Value::B(_) => "BINARY",
            Value::Null => "NULL",
            Value::Bool(_) => "BOOLEAN",
            Value::L(_) => "LIST",
            Value::M(_) => "MAP",
        };
        // A value that is not there is told of before.
        self.note(Wrong::Operands, || {
            format!(
                "Incorrect operand type for operator or function; operator: {section}, operand \
                 type: {kind}"
            )
        });
    }

    fn source(&mut self) -> Read<Source> {
        let one = self.term()?;
        let is_plus = match self.lexer.peek() {
            Some(Token::Symbol("+")) => true,
            Some(Token::Symbol("-")) => false,
            _ => return Ok(one),
        };
        self.lexer.next();
        let other = self.term()?;
        self.check_kinds(if is_plus { "+" } else { "-" }, [&one, &other], "N");
        let (one, other) = (Box::new(one), Box::new(other));
        Ok(if is_plus { Source::Plus(one, other) } else { Source::Minus(one, other) })
    }

    fn check_kinds(&mut self, name: &str, sources: [&Source; 2], wanted: &str) {
        for source in sources {
            if let Source::Value(value) = source
                && value.kind() != wanted
            {
                self.note_type(name, value.kind());
            }
        }
    }

    fn term(&mut self) -> Read<Source> {
        match (self.lexer.peek(), self.lexer.peek_second()) {
            (Some(Token::Symbol("(")), _) => {
                self.lexer.next();
                let inner = self.deeper(Self::source)?;
                self.symbol(")")?;
                Ok(inner)
            }
            (Some(Token::Value(name)), _) => {
                self.lexer.next();
                Ok(Source::Value(self.value(name)))
            }
            (Some(Token::Word(name)), Some(Token::Symbol("("))) => {
                self.deeper(|parser| parser.update_function(name))
            }
            _ => Ok(Source::Path(self.path()?)),
        }
    }

    fn update_function(&mut self, name: &str) -> Read<Source> {
        self.lexer.next();
        self.symbol("(")?;
        let mut args = vec![self.term()?];
        while self.lexer.take_symbol(",") {
            args.push(self.term()?);
        }
        self.symbol(")")?;
        if !["if_not_exists", "list_append"].contains(&name) {
            self.note(Wrong::UnknownFunction, || {
                format!("Invalid function name; function: {name}")
            });
        }
        let count = args.len();
        let Ok([one, other]) = <[Source; 2]>::try_from(args) else {
            // Counted with what else is wrong of functions.
            self.note(Wrong::Function, || {
                format!(
                    "Incorrect number of operands for operator or function; operator or function: \
                     {name}, number of operands: {count}"
                )
            });
            return Ok(Source::Value(Arc::new(Value::Null)));
        };
        match (name, one) {
            ("if_not_exists", Source::Path(path)) => Ok(Source::IfNotExists(path, Box::new(other))),
            ("if_not_exists", _) => {
                self.note_no_path(name);
                Ok(other)
            }
            (_, one) => {
                self.check_kinds(name, [&one, &other], "L");
                Ok(Source::ListAppend(Box::new(one), Box::new(other)))
            }
        }
    }
}

impl Source {
    fn evaluate(&self, item: &Item) -> Result<Value> {
        match self {
            Source::Path(path) => path.find(item).cloned().ok_or_else(|| {
                Fault::validation(
                    "The provided expression refers to an attribute that does not exist in the item",
                )
            }),
            Source::Value(value) => Ok(small(value)?.clone()),
            Source::Plus(one, other) => {
                let (one, other) = (one.number(item)?, other.number(item)?);
                one.plus(other).map(Value::N).map_err(|e| Fault::validation(e.message("")))
            }
            Source::Minus(one, other) => {
                let (one, other) = (one.number(item)?, other.number(item)?);
                one.minus(other).map(Value::N).map_err(|e| Fault::validation(e.message("")))
            }
            Source::IfNotExists(path, other) => match path.find(item) {
                Some(value) => Ok(value.clone()),
                None => other.evaluate(item),
            },
            Source::ListAppend(one, other) => {
                match (one.evaluate(item)?, other.evaluate(item)?) {
                    (Value::L(mut one), Value::L(other)) => {
                        one.extend(other);
                        let list = Value::L(one);
                        small(&list)?;
                        Ok(list)
                    }
                    _ => Err(Fault::validation(TYPE)),
                }
            }
        }
    }

    fn number(&self, item: &Item) -> Result<Decimal> {
        match self.evaluate(item)? {
            Value::N(number) => Ok(number),
            _ => Err(Fault::validation(TYPE)),
        }
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Path)) {
        match self {
            Source::Path(path) => visit(path),
            Source::Value(_) => {}
            Source::Plus(one, other)
            | Source::Minus(one, other)
            | Source::ListAppend(one, other) => {
                one.visit(visit);
                other.visit(visit);
            }
            Source::IfNotExists(path, other) => {
                visit(path);
                other.visit(visit);
            }
        }
    }
}

impl Update {
    /// The paths that it changes.
    pub fn paths(&self) -> Vec<Path> {
        self.actions.iter().map(|(path, _)| path.clone()).collect()
    }

    /// Shows each path in it, also those that it only reads.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Path)) {
        for (path, action) in &self.actions {
            visit(path);
            if let Action::Set(source) = action {
                source.visit(visit);
            }
        }
    }

    /// Changes the item; what is removed from lists leaves them last, so that an index means the
    /// element that it meant before.
    pub fn apply(&self, item: &mut Item) -> Result<()> {
        let (mut set, mut bytes) = (Vec::new(), 0);
        for (path, action) in &self.actions {
            let value = match action {
                Action::Set(source) => Some(source.evaluate(item)?),
                Action::Add(value) => Some(sum(path.find(item), value)?),
                Action::Delete(value) => difference(path.find(item), value)?,
                Action::Remove => None,
            };
            // They will all be there at once.
            bytes += value.as_ref().map_or(0, Value::bytes);
            if bytes > ITEM_BYTES_MAX {
                return Err(Fault::validation(TOO_LARGE));
            }
            set.push((path, value));
        }
        // Behind a list's end the lower index comes first.
        set.sort_by_key(|(path, _)| *path);
        let (set, removed): (Vec<_>, Vec<_>) = set.into_iter().partition(|(_, v)| v.is_some());
        for (path, value) in set {
            put(item, path, value)?;
        }
        for (path, _) in removed.into_iter().rev() {
            put(item, path, None)?;
        }
        Ok(())
    }
}

fn sum(old: Option<&Value>, more: &Value) -> Result<Value> {
    fn union<T: Ord + Clone>(old: &BTreeSet<T>, more: &BTreeSet<T>) -> BTreeSet<T> {
        old.union(more).cloned().collect()
    }
    Ok(match (old, more) {
        (None, more) => more.clone(),
        (Some(Value::N(old)), Value::N(more)) => {
            Value::N(old.plus(*more).map_err(|e| Fault::validation(e.message("")))?)
        }
        (Some(Value::Ss(old)), Value::Ss(more)) => Value::Ss(union(old, more)),
        (Some(Value::Ns(old)), Value::Ns(more)) => Value::Ns(union(old, more)),
        (Some(Value::Bs(old)), Value::Bs(more)) => Value::Bs(union(old, more)),
        _ => return Err(Fault::validation(TYPE)),
    })
}

/// Nothing where no member stays.
fn difference(old: Option<&Value>, less: &Value) -> Result<Option<Value>> {
    fn without<T: Ord + Clone>(old: &BTreeSet<T>, less: &BTreeSet<T>) -> Option<BTreeSet<T>> {
        let rest: BTreeSet<T> = old.difference(less).cloned().collect();
        (!rest.is_empty()).then_some(rest)
    }
    Ok(match (old, less) {
        (None, _) => None,
        (Some(Value::Ss(old)), Value::Ss(less)) => without(old, less).map(Value::Ss),
        (Some(Value::Ns(old)), Value::Ns(less)) => without(old, less).map(Value::Ns),
        (Some(Value::Bs(old)), Value::Bs(less)) => without(old, less).map(Value::Bs),
        _ => return Err(Fault::validation(TYPE)),
    })
}

/// Puts or takes what lies at a path, whose parent must be there.
fn put(item: &mut Item, path: &Path, value: Option<Value>) -> Result<()> {
    let invalid = || {
        Fault::validation(
            "The document path provided in the update expression is invalid for update",
        )
    };
    let Some((last, parents)) = path.0.split_last() else { return Err(invalid()) };
    let Some((Step::Name(head), inner)) = parents.split_first() else {
        if let Step::Name(name) = last {
            put_named(item, name, value);
        }
        return Ok(());
    };
    let mut parent = item.get_mut(&**head).ok_or_else(invalid)?;
    for step in inner {
        let below = match (step, parent) {
            (Step::Name(name), Value::M(map)) => map.get_mut(&**name),
            (Step::Index(index), Value::L(list)) => list.get_mut(*index),
            _ => None,
        };
        parent = below.ok_or_else(invalid)?;
    }
    match (last, parent) {
        (Step::Name(name), Value::M(map)) => put_named(map, name, value),
        (Step::Index(index), Value::L(list)) => match value {
            Some(value) if *index < list.len() => list[*index] = value,
            Some(value) => list.push(value),
            None if *index < list.len() => drop(list.remove(*index)),
            None => {}
        },
        _ => return Err(invalid()),
    }
    Ok(())
}

fn put_named(map: &mut Item, name: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(map.insert(name.to_owned(), value)),
        None => drop(map.remove(name)),
    }
}
