//! Conditions, of writes, filters and keys: read, checked, evaluated. Pure.

use super::lexer::Token;
use super::path::Path;
use super::{Parser, Placeholders, Wrong};
use crate::decimal::Decimal;
use crate::fault::Result;
use crate::value::{Item, Value};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// Something that has a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// What lies in the item.
    Path(Path),
    /// What the request gives.
    Value(Arc<Value>),
    /// How large something is.
    Size(Box<Operand>),
}

/// What an item may fulfil.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// Both.
    And(Box<Condition>, Box<Condition>),
    /// One or both.
    Or(Box<Condition>, Box<Condition>),
    /// The opposite.
    Not(Box<Condition>),
    /// A comparison.
    Compare(Comparison, Operand, Operand),
    /// From the second to the third, both included.
    Between(Operand, Operand, Operand),
    /// One of those.
    In(Operand, Vec<Operand>),
    /// `attribute_exists`
    Exists(Operand),
    /// `attribute_not_exists`
    NotExists(Operand),
    /// `attribute_type`
    Type(Operand, Operand),
    /// `begins_with`
    BeginsWith(Operand, Operand),
    /// `contains`
    Contains(Operand, Operand),
}

const ORDER: [Wrong; 5] = [
    Wrong::Parentheses,
    Wrong::UnknownFunction,
    Wrong::MisusedFunction,
    Wrong::Reserved,
    Wrong::Condition,
];
/// Of one condition.
const ORDER_WITHIN: [Wrong; 5] =
    [Wrong::Name, Wrong::Value, Wrong::Operands, Wrong::Distinct, Wrong::Function];

/// Reads the condition of the parameter `kind`.
pub fn parse(kind: &str, text: &str, placeholders: &mut Placeholders) -> Result<Condition> {
    Parser::read(kind, text, placeholders, &ORDER, |parser| {
        let node = parser.or()?;
        parser.condition(node)
    })
}

/// What was read: a function may turn out to be either.
enum Node {
    Operand(Operand),
    Condition(Condition),
    /// In parentheses.
    Enclosed(Box<Node>),
}

type Read<T> = std::result::Result<T, String>;

impl Parser<'_> {
    fn or(&mut self) -> Read<Node> {
        let mut node = self.and()?;
        while self.lexer.take_word("or") {
            let one = Box::new(self.condition(node)?);
            let other = self.and()?;
            node = Node::Condition(Condition::Or(one, Box::new(self.condition(other)?)));
        }
        Ok(node)
    }

    fn and(&mut self) -> Read<Node> {
        let mut node = self.not()?;
        while self.lexer.take_word("and") {
            let one = Box::new(self.condition(node)?);
            let other = self.not()?;
            node = Node::Condition(Condition::And(one, Box::new(self.condition(other)?)));
        }
        Ok(node)
    }

    fn not(&mut self) -> Read<Node> {
        if !self.lexer.take_word("not") {
            return self.comparison();
        }
        let node = self.deeper(Self::not)?;
        Ok(Node::Condition(Condition::Not(Box::new(self.condition(node)?))))
    }

    fn comparison(&mut self) -> Read<Node> {
        let left = self.primary()?;
        let comparison = match self.lexer.peek() {
            Some(Token::Symbol("=")) => Some(Comparison::Equal),
            Some(Token::Symbol("<>")) => Some(Comparison::NotEqual),
            Some(Token::Symbol("<")) => Some(Comparison::Less),
            Some(Token::Symbol("<=")) => Some(Comparison::LessOrEqual),
            Some(Token::Symbol(">")) => Some(Comparison::Greater),
            Some(Token::Symbol(">=")) => Some(Comparison::GreaterOrEqual),
            _ => None,
        };
        let condition = if let Some(comparison) = comparison {
            let Some(Token::Symbol(symbol)) = self.lexer.next() else { unreachable!("peeked") };
            let right = self.operand()?;
            let left = self.as_operand(left)?;
            self.check_distinct(symbol, &left, &right);
            Condition::Compare(comparison, left, right)
        } else if self.lexer.take_word("between") {
            let low = self.operand()?;
            if !self.lexer.take_word("and") {
                return Err(self.lexer.syntax_error());
            }
            let high = self.operand()?;
            self.check_between(&low, &high);
            Condition::Between(self.as_operand(left)?, low, high)
        } else if self.lexer.take_word("in") {
            self.symbol("(")?;
            let mut list = vec![self.operand()?];
            while self.lexer.take_symbol(",") {
                list.push(self.operand()?);
            }
            self.symbol(")")?;
            if list.len() > 100 {
                self.note_operands("IN", list.len());
            }
            Condition::In(self.as_operand(left)?, list)
        } else {
            return Ok(left);
        };
        self.pin();
        Ok(Node::Condition(condition))
    }

    /// The first condition with which something is wrong is the one that is told of.
    fn pin(&mut self) {
        let told = ORDER_WITHIN.iter().find_map(|wrong| self.wrong.get(wrong)).cloned();
        if let Some(told) = told {
            self.note(Wrong::Condition, || told);
        }
    }

    fn primary(&mut self) -> Read<Node> {
        if self.lexer.take_symbol("(") {
            let inner = self.deeper(Self::or)?;
            self.symbol(")")?;
            if matches!(inner, Node::Enclosed(_)) {
                self.note(Wrong::Parentheses, || {
                    "The expression has redundant parentheses;".into()
                });
            }
            return Ok(Node::Enclosed(Box::new(inner)));
        }
        match (self.lexer.peek(), self.lexer.peek_second()) {
            (Some(Token::Value(name)), _) => {
                self.lexer.next();
                Ok(Node::Operand(Operand::Value(self.value(name))))
            }
            (Some(Token::Word(word)), second) => {
                let is_keyword = ["and", "or", "not", "between", "in"]
                    .iter()
                    .any(|keyword| word.eq_ignore_ascii_case(keyword));
                match second {
                    _ if is_keyword => Err(self.lexer.syntax_error()),
                    Some(Token::Symbol("(")) => self.deeper(|parser| parser.function(word)),
                    _ => Ok(Node::Operand(Operand::Path(self.path()?))),
                }
            }
            (Some(Token::Name(_)), _) => Ok(Node::Operand(Operand::Path(self.path()?))),
            _ => Err(self.lexer.syntax_error()),
        }
    }

    fn operand(&mut self) -> Read<Operand> {
        let node = self.primary()?;
        self.as_operand(node)
    }

    /// What stands where a value must.
    fn as_operand(&mut self, node: Node) -> Read<Operand> {
        match node {
            Node::Operand(operand) => Ok(operand),
            Node::Enclosed(inner) => self.as_operand(*inner),
            Node::Condition(condition) => match condition.function() {
                Some(name) => {
                    self.note_misused(name);
                    Ok(Operand::Value(Arc::new(Value::Null)))
                }
                None => Err(self.lexer.syntax_error()),
            },
        }
    }

    /// What stands where a condition must.
    fn condition(&mut self, node: Node) -> Read<Condition> {
        match node {
            Node::Condition(condition) => Ok(condition),
            Node::Enclosed(inner) => self.condition(*inner),
            Node::Operand(Operand::Size(of)) => {
                self.note_misused("size");
                Ok(Condition::Exists(*of))
            }
            Node::Operand(_) => Err(self.lexer.syntax_error()),
        }
    }

    fn note_misused(&mut self, name: &str) {
        self.note(Wrong::MisusedFunction, || {
            format!(
                "The function is not allowed to be used this way in an expression; function: {name}"
            )
        });
    }

    fn function(&mut self, name: &str) -> Read<Node> {
        self.lexer.next();
        self.symbol("(")?;
        let mut args = vec![self.operand()?];
        while self.lexer.take_symbol(",") {
            args.push(self.operand()?);
        }
        self.symbol(")")?;
        let count = match name {
            "attribute_exists" | "attribute_not_exists" | "size" => 1,
            "attribute_type" | "begins_with" | "contains" => 2,
            _ => {
                self.note(Wrong::UnknownFunction, || {
                    format!("Invalid function name; function: {name}")
                });
                args.len()
            }
        };
        if args.len() != count {
            self.note_operands(name, args.len());
        } else if let [one, two] = &args[..] {
            self.check_distinct(name, one, two);
        }
        if !self.wrong.contains_key(&Wrong::Operands) {
            self.check_arguments(name, &args);
        }
        let mut args = args.into_iter();
        let mut next = || args.next().unwrap_or(Operand::Value(Arc::new(Value::Null)));
        let condition = match name {
            "size" => return Ok(Node::Operand(Operand::Size(Box::new(next())))),
            "attribute_not_exists" => Condition::NotExists(next()),
            "attribute_type" => Condition::Type(next(), next()),
            "begins_with" => Condition::BeginsWith(next(), next()),
            "contains" => Condition::Contains(next(), next()),
            _ => Condition::Exists(next()),
        };
        self.pin();
        Ok(Node::Condition(condition))
    }

    fn check_arguments(&mut self, name: &str, args: &[Operand]) {
        match (name, args) {
            ("attribute_exists" | "attribute_not_exists", [Operand::Path(_)]) => {}
            ("attribute_exists" | "attribute_not_exists", _) => self.note_no_path(name),
            ("begins_with", _) => {
                let wrong = args.iter().filter_map(Operand::kind).find(|k| !["S", "B"].contains(k));
                if let Some(kind) = wrong {
                    self.note_type(name, kind);
                }
            }
            ("size", [of]) => {
                if let Some(kind @ ("N" | "BOOL" | "NULL")) = of.kind() {
                    self.note_type(name, kind);
                }
            }
            ("attribute_type", [_, kind]) => {
                const KINDS: [&str; 10] =
                    ["S", "N", "B", "NULL", "SS", "BOOL", "L", "BS", "NS", "M"];
                let named = match kind {
                    Operand::Value(value) => match &**value {
                        Value::S(kind) => Some(kind.as_str()),
                        _ => None,
                    },
                    _ => None,
                };
                match (named, kind) {
                    (Some(kind), _) if KINDS.contains(&kind) => {}
                    (Some(kind), _) => self.note(Wrong::Function, || {
                        format!(
                            "Invalid attribute type name found; type: {kind}, valid types: \
                             {{B,NULL,SS,BOOL,L,BS,N,NS,S,M}}"
                        )
                    }),
                    (None, other) => {
                        let kind = other.kind().unwrap_or("{NS,SS,L,BS,N,M,B,BOOL,NULL,S}");
                        self.note_type(name, kind);
                    }
                }
            }
            _ => {}
        }
    }

    fn check_distinct(&mut self, name: &str, one: &Operand, two: &Operand) {
        if let (Operand::Path(path), Operand::Path(other)) = (one, two)
            && path == other
        {
            self.note(Wrong::Distinct, || {
                format!(
                    "The first operand must be distinct from the remaining operands for this \
                     operator or function; operator: {name}, first operand: {path}"
                )
            });
        }
    }

    fn check_between(&mut self, low: &Operand, high: &Operand) {
        let (Operand::Value(low), Operand::Value(high)) = (low, high) else { return };
        let rule = match order(low, high) {
            _ if low.kind() != high.kind() => "same data type for lower and upper bounds",
            Some(Ordering::Greater) => "upper bound to be greater than or equal to lower bound",
            _ => return,
        };
        let told = |value: &Value| format!("AttributeValue: {{{}:{}}}", value.kind(), plain(value));
        let (low, high) = (told(low), told(high));
        self.note(Wrong::Function, || {
            format!(
                "The BETWEEN operator requires {rule}; lower bound operand: {low}, upper bound \
                 operand: {high}"
            )
        });
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::S(text) => text.clone(),
        Value::N(number) => number.to_string(),
        Value::B(bytes) => base64_simd::STANDARD.encode_to_string(bytes),
        other => {
            let mut out = String::new();
            crate::json::put_content(&mut out, other);
            out
        }
    }
}

impl Operand {
    /// The type, where it is known without an item.
    fn kind(&self) -> Option<&'static str> {
        match self {
            Operand::Path(_) => None,
            Operand::Value(value) => Some(value.kind()),
            Operand::Size(_) => Some("N"),
        }
    }

    fn evaluate<'a>(&'a self, item: &'a Item) -> Option<Cow<'a, Value>> {
        match self {
            Operand::Path(path) => path.find(item).map(Cow::Borrowed),
            Operand::Value(value) => Some(Cow::Borrowed(value)),
            Operand::Size(of) => {
                let size = of.evaluate(item)?.size()?;
                Some(Cow::Owned(Value::N(Decimal::from(size as u64))))
            }
        }
    }

    fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Path)) {
        match self {
            Operand::Path(path) => visit(path),
            Operand::Value(_) => {}
            Operand::Size(of) => of.visit(visit),
        }
    }
}

/// The order of two values of one type that has one.
fn order(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::S(one), Value::S(other)) => Some(one.as_bytes().cmp(other.as_bytes())),
        (Value::N(one), Value::N(other)) => Some(one.cmp(other)),
        (Value::B(one), Value::B(other)) => Some(one.cmp(other)),
        _ => None,
    }
}

impl Comparison {
    /// The same with its sides changed.
    pub fn turned(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            other => other,
        }
    }

    fn holds(self, one: Option<&Value>, other: Option<&Value>) -> bool {
        let (Some(one), Some(other)) = (one, other) else {
            // What is not there is equal to what is not there either, and to nothing else.
            let is_equal = one.is_none() && other.is_none();
            return match self {
                Comparison::Equal => is_equal,
                Comparison::NotEqual => !is_equal,
                _ => false,
            };
        };
        match self {
            Comparison::Equal => one == other,
            Comparison::NotEqual => one != other,
            Comparison::Less => order(one, other).is_some_and(Ordering::is_lt),
            Comparison::LessOrEqual => order(one, other).is_some_and(Ordering::is_le),
            Comparison::Greater => order(one, other).is_some_and(Ordering::is_gt),
            Comparison::GreaterOrEqual => order(one, other).is_some_and(Ordering::is_ge),
        }
    }
}

fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::S(whole), Value::S(part)) => whole.contains(part.as_str()),
        (Value::B(whole), Value::B(part)) => {
            // In linear time, whatever they hold.
            memchr::memmem::find(whole, part).is_some()
        }
        (Value::Ss(set), Value::S(member)) => set.contains(member),
        (Value::Ns(set), Value::N(member)) => set.contains(member),
        (Value::Bs(set), Value::B(member)) => set.contains(member),
        (Value::L(list), member) => list.contains(member),
        _ => false,
    }
}

fn compare(comparison: Comparison, (one, other): (&Operand, &Operand), item: &Item) -> bool {
    comparison.holds(one.evaluate(item).as_deref(), other.evaluate(item).as_deref())
}

impl Condition {
    /// The name of the function that it is.
    fn function(&self) -> Option<&'static str> {
        match self {
            Condition::Exists(_) => Some("attribute_exists"),
            Condition::NotExists(_) => Some("attribute_not_exists"),
            Condition::Type(..) => Some("attribute_type"),
            Condition::BeginsWith(..) => Some("begins_with"),
            Condition::Contains(..) => Some("contains"),
            _ => None,
        }
    }

    /// Whether an item, an empty one if there is none, fulfils it.
    pub fn holds(&self, item: &Item) -> bool {
        match self {
            Condition::And(one, other) => one.holds(item) && other.holds(item),
            Condition::Or(one, other) => one.holds(item) || other.holds(item),
            Condition::Not(of) => !of.holds(item),
            Condition::Compare(comparison, one, other) => compare(*comparison, (one, other), item),
            Condition::Between(of, low, high) => {
                compare(Comparison::GreaterOrEqual, (of, low), item)
                    && compare(Comparison::LessOrEqual, (of, high), item)
            }
            Condition::In(of, list) => {
                list.iter().any(|one| compare(Comparison::Equal, (of, one), item))
            }
            Condition::Exists(of) => of.evaluate(item).is_some(),
            Condition::NotExists(of) => of.evaluate(item).is_none(),
            Condition::Type(of, kind) => {
                match (of.evaluate(item), kind.evaluate(item).as_deref()) {
                    (Some(of), Some(Value::S(kind))) => of.kind() == kind,
                    _ => false,
                }
            }
            Condition::BeginsWith(of, with) => {
                match (of.evaluate(item).as_deref(), with.evaluate(item).as_deref()) {
                    (Some(Value::S(of)), Some(Value::S(with))) => of.starts_with(with),
                    (Some(Value::B(of)), Some(Value::B(with))) => of.starts_with(with),
                    _ => false,
                }
            }
            Condition::Contains(of, part) => match (of.evaluate(item), part.evaluate(item)) {
                (Some(of), Some(part)) => contains(&of, &part),
                _ => false,
            },
        }
    }

    /// Shows each path in it.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Path)) {
        match self {
            Condition::And(one, other) | Condition::Or(one, other) => {
                one.visit(visit);
                other.visit(visit);
            }
            Condition::Not(of) => of.visit(visit),
            Condition::Compare(_, one, other)
            | Condition::Type(one, other)
            | Condition::BeginsWith(one, other)
            | Condition::Contains(one, other) => {
                one.visit(visit);
                other.visit(visit);
            }
            Condition::Between(one, two, three) => {
                [one, two, three].into_iter().for_each(|operand| operand.visit(visit));
            }
            Condition::In(of, list) => {
                of.visit(visit);
                list.iter().for_each(|operand| operand.visit(visit));
            }
            Condition::Exists(of) | Condition::NotExists(of) => of.visit(visit),
        }
    }
}
