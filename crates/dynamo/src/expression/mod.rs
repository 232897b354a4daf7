//! DynamoDB's expressions: what they are made of and how they are read; conditions, updates and
//! projections lie in modules of their own. What is wrong with one is noted by its kind and told in
//! DynamoDB's order of kinds. Nothing here reads a row. Pure.

pub mod condition;
mod lexer;
pub mod path;
pub mod projection;
mod reserved;
#[cfg(test)]
mod tests;
pub mod update;

use crate::fault::{Fault, Result};
use crate::value::{Item, NAME_BYTES_MAX, NESTING_MAX, Value, item_bytes};
use lexer::{Lexer, Token};
use path::{Path, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of one expression.
pub const EXPRESSION_BYTES_MAX: usize = 4096;
/// Operators and functions in one expression.
pub const OPERATORS_MAX: usize = 300;
/// Bytes of all names and values that expressions refer to.
pub const PLACEHOLDER_BYTES_MAX: usize = 2 << 20;
/// How deep parentheses and functions may lie in each other. DynamoDB refuses superfluous
/// parentheses, so that others need operators; this is what a thread's stack surely holds.
const DEPTH_MAX: usize = 64;

/// The names and values that a request's expressions refer to.
#[derive(Debug, Default)]
pub struct Placeholders {
    // Shared: an expression may name each a thousand times.
    names: BTreeMap<String, Arc<str>>,
    values: BTreeMap<String, Arc<Value>>,
    unused_names: BTreeSet<String>,
    unused_values: BTreeSet<String>,
}

impl Placeholders {
    /// Takes `ExpressionAttributeNames` and `ExpressionAttributeValues`. `wrong_value` says of a
    /// value what is wrong with it.
    pub fn new(
        names: Option<BTreeMap<String, String>>,
        values: Option<Item>,
        wrong_value: impl Fn(&str) -> Option<String>,
    ) -> Result<Placeholders> {
        check_keys("ExpressionAttributeNames", names.as_ref().map(BTreeMap::keys), '#')?;
        check_keys("ExpressionAttributeValues", values.as_ref().map(BTreeMap::keys), ':')?;
        let (names, values) = (names.unwrap_or_default(), values.unwrap_or_default());
        for key in values.keys() {
            if let Some(wrong) = wrong_value(key) {
                return Err(Fault::validation(format!(
                    "ExpressionAttributeValues contains invalid value: {wrong} for key {key}"
                )));
            }
        }
        if let Some((key, of)) = names.iter().find(|(_, of)| of.len() > NAME_BYTES_MAX) {
            return Err(Fault::validation(format!(
                "ExpressionAttributeNames contains invalid value: {} bytes of {NAME_BYTES_MAX}; key: \"{key}\"",
                of.len()
            )));
        }
        let bytes = names.values().map(String::len).sum::<usize>() + item_bytes(&values);
        if bytes > PLACEHOLDER_BYTES_MAX {
            return Err(Fault::validation(format!(
                "The names and values of expressions have {bytes} bytes, more than \
                 {PLACEHOLDER_BYTES_MAX}"
            )));
        }
        Ok(Placeholders {
            unused_names: names.keys().cloned().collect(),
            unused_values: values.keys().cloned().collect(),
            names: names.into_iter().map(|(name, of)| (name, of.into())).collect(),
            values: values.into_iter().map(|(name, of)| (name, Arc::new(of))).collect(),
        })
    }

    /// Whether all of them were used.
    pub fn finish(&self) -> Result<()> {
        let told = |kind: &str, unused: &BTreeSet<String>| match unused.is_empty() {
            true => Ok(()),
            false => Err(Fault::validation(format!(
                "Value provided in {kind} unused in expressions: keys: {{{}}}",
                unused.iter().cloned().collect::<Vec<_>>().join(", ")
            ))),
        };
        told("ExpressionAttributeNames", &self.unused_names)?;
        told("ExpressionAttributeValues", &self.unused_values)
    }
}

fn check_keys<'a>(
    kind: &str,
    keys: Option<impl ExactSizeIterator<Item = &'a String>>,
    mark: char,
) -> Result<()> {
    let Some(keys) = keys else { return Ok(()) };
    if keys.len() == 0 {
        return Err(Fault::validation(format!("{kind} must not be empty")));
    }
    let is_right = |key: &str| {
        let rest = key.strip_prefix(mark).unwrap_or_default();
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match keys.into_iter().find(|key| !is_right(key)) {
        Some(wrong) => Err(Fault::validation(format!(
            "{kind} contains invalid key: Syntax error; key: \"{wrong}\""
        ))),
        None => Ok(()),
    }
}

/// What may be wrong with an expression that can be read, in the order in which it is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    Parentheses,
    Reserved,
    UnknownFunction,
    MisusedFunction,
    /// Of a condition: the first condition's, whatever it is.
    Condition,
    Section,
    Name,
    Value,
    Overlap,
    Conflict,
    Operands,
    Distinct,
    Function,
}

/// Reads tokens, and notes what is wrong: of each kind the first.
struct Parser<'a> {
    lexer: Lexer<'a>,
    placeholders: &'a mut Placeholders,
    wrong: BTreeMap<Wrong, String>,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// `kind` is the parameter's name.
    fn read<T>(
        kind: &str,
        text: &'a str,
        placeholders: &'a mut Placeholders,
        order: &[Wrong],
        parse: impl FnOnce(&mut Parser<'a>) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let refused = |why: String| Fault::validation(format!("Invalid {kind}: {why}"));
        if text.is_empty() {
            return Err(refused("The expression can not be empty;".into()));
        }
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(refused(format!(
                "Expression size has exceeded the maximum allowed size; expression size: {}",
                text.len()
            )));
        }
        let lexer = Lexer::new(text).map_err(refused)?;
        if lexer.operators() > OPERATORS_MAX {
            return Err(refused(format!(
                "The expression contains too many operators; operator count: {}",
                lexer.operators()
            )));
        }
        let mut parser = Parser { lexer, placeholders, wrong: BTreeMap::new(), depth: 0 };
        let parsed = parse(&mut parser).map_err(refused)?;
        if !parser.lexer.is_at_end() {
            return Err(refused(parser.lexer.syntax_error()));
        }
        match order.iter().find_map(|wrong| parser.wrong.remove(wrong)) {
            Some(wrong) => Err(refused(wrong)),
            None => Ok(parsed),
        }
    }

    fn note(&mut self, wrong: Wrong, what: impl FnOnce() -> String) {
        self.wrong.entry(wrong).or_insert_with(what);
    }

    /// Reads one level deeper, if that is not too deep.
    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, String> {
        if self.depth == DEPTH_MAX {
            return Err("The expression is nested too deeply;".into());
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// A symbol that must come.
    fn symbol(&mut self, symbol: &str) -> std::result::Result<(), String> {
        match self.lexer.take_symbol(symbol) {
            true => Ok(()),
            false => Err(self.lexer.syntax_error()),
        }
    }

    /// A path of a document; names that stand for others are looked up.
    fn path(&mut self) -> std::result::Result<Path, String> {
        let mut steps = vec![Step::Name(self.name()?)];
        loop {
            if self.lexer.take_symbol(".") {
                steps.push(Step::Name(self.name()?));
            } else if self.lexer.take_symbol("[") {
                let Some(Token::Number(digits)) = self.lexer.next() else {
                    return Err(self.lexer.syntax_error_before());
                };
                // No list is longer than an item.
                steps.push(Step::Index(digits.parse().unwrap_or(usize::MAX)));
                self.symbol("]")?;
            } else {
                break;
            }
        }
        if steps.len() > NESTING_MAX {
            return Err("The document path has too many nesting elements;".into());
        }
        Ok(Path(steps))
    }

    fn name(&mut self) -> std::result::Result<Arc<str>, String> {
        match self.lexer.next() {
            Some(Token::Word(word)) => {
                if reserved::is_reserved(word) {
                    self.note(Wrong::Reserved, || {
                        format!("Attribute name is a reserved keyword; reserved keyword: {word}")
                    });
                }
                Ok(word.into())
            }
            Some(Token::Name(name)) => {
                self.placeholders.unused_names.remove(name);
                let found = self.placeholders.names.get(name).cloned();
                if found.is_none() {
                    self.note(Wrong::Name, || {
                        format!(
                            "An expression attribute name used in the document path is not \
                             defined; attribute name: {name}"
                        )
                    });
                }
                Ok(found.unwrap_or_else(|| "".into()))
            }
            _ => Err(self.lexer.syntax_error_before()),
        }
    }

    /// What a value's name stands for.
    fn value(&mut self, name: &str) -> Arc<Value> {
        self.placeholders.unused_values.remove(name);
        let found = self.placeholders.values.get(name).cloned();
        if found.is_none() {
            self.note(Wrong::Value, || {
                format!(
                    "An expression attribute value used in expression is not defined; attribute \
                     value: {name}"
                )
            });
        }
        found.unwrap_or_else(|| Arc::new(Value::Null))
    }

    fn note_operands(&mut self, name: &str, count: usize) {
        self.note(Wrong::Operands, || {
            format!(
                "Incorrect number of operands for operator or function; operator or function: \
                 {name}, number of operands: {count}"
            )
        });
    }

    fn note_type(&mut self, name: &str, kind: &str) {
        self.note(Wrong::Function, || {
            format!(
                "Incorrect operand type for operator or function; operator or function: {name}, \
                 operand type: {kind}"
            )
        });
    }

    fn note_no_path(&mut self, name: &str) {
        self.note(Wrong::Function, || {
            format!("Operator or function requires a document path; operator or function: {name}")
        });
    }
}
