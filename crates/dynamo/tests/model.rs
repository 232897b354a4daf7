//! Conditions against a plain model: random ones are written as text, with as many parentheses as
//! DynamoDB allows, and evaluated on JSON by a few lines that know no parser; and queries against
//! all items, looked at one by one.

#[path = "support/memory.rs"]
mod support;

use holdfast_base::random::Random;
use holdfast_dynamo::expression::{Placeholders, condition};
use holdfast_dynamo::json;
use serde_json::{Map, Value as Json, json};
use std::cmp::Ordering;
use std::sync::Arc;
use support::{Memory, api, call};

/// A condition as a person would draw it.
enum Plain {
    Compare(&'static str, String, Json),
    Between(String, Json, Json),
    In(String, Vec<Json>),
    Exists(String),
    Size(&'static str, String, i64),
    And(Box<Plain>, Box<Plain>),
    Or(Box<Plain>, Box<Plain>),
    Not(Box<Plain>),
}

const COMPARISONS: [&str; 6] = ["=", "<>", "<", "<=", ">", ">="];
const PATHS: [&str; 7] = ["a", "b", "c", "m.a", "m.b", "l[0]", "l[1].a"];

struct Maker(Random);

impl Maker {
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn number(&mut self) -> i64 {
        self.below(5) as i64 - 2
    }

    fn value(&mut self) -> Json {
        // One number in several forms.
        match self.below(5) {
            0 => {
                let text = ["", "a", "ab", "b"][self.below(4)];
                json!({"S": text})
            }
            1 => json!({"N": format!("{}.0", self.number())}),
            2 => json!({"N": format!("{}0e-1", self.number())}),
            3 => json!({"BOOL": self.below(2) == 0}),
            _ => json!({"N": self.number().to_string()}),
        }
    }

    fn item(&mut self) -> Json {
        let mut item = json!({});
        for name in ["a", "b", "c"] {
            if self.below(4) > 0 {
                item[name] = self.value();
            }
        }
        if self.below(3) > 0 {
            item["m"] = json!({"M": {"a": self.value()}});
        }
        if self.below(3) > 0 {
            item["l"] = json!({"L": [self.value(), {"M": {"a": self.value()}}]});
        }
        item
    }

    fn plain(&mut self, depth: usize) -> Plain {
        let path = PATHS[self.below(PATHS.len())].to_owned();
        let comparison = COMPARISONS[self.below(6)];
        match self.below(if depth == 0 { 6 } else { 12 }) {
            0 | 1 => Plain::Compare(comparison, path, self.value()),
            2 => {
                let mut bounds = [self.number(), self.number()];
                bounds.sort();
                let [low, high] = bounds.map(|bound| json!({"N": bound.to_string()}));
                Plain::Between(path, low, high)
            }
            3 => Plain::In(path, (0..=self.below(3)).map(|_| self.value()).collect()),
            4 => Plain::Exists(path),
            5 => Plain::Size(comparison, path, self.number()),
            6 | 7 => Plain::And(Box::new(self.plain(depth - 1)), Box::new(self.plain(depth - 1))),
            8 | 9 => Plain::Or(Box::new(self.plain(depth - 1)), Box::new(self.plain(depth - 1))),
            _ => Plain::Not(Box::new(self.plain(depth - 1))),
        }
    }

    /// In parentheses where it needs them, and at times where it does not.
    fn inner(&mut self, plain: &Plain, above: usize, values: &mut Map<String, Json>) -> String {
        let text = self.text(plain, values);
        let needs = plain.rank() < above;
        if needs || self.below(4) == 0 { format!("({text})") } else { text }
    }

    fn text(&mut self, plain: &Plain, values: &mut Map<String, Json>) -> String {
        let mut given = |value: &Json| {
            let name = format!(":v{}", values.len());
            values.insert(name.clone(), value.clone());
            name
        };
        match plain {
            Plain::Compare(comparison, path, value) => {
                format!("{path}{comparison}{}", given(value))
            }
            Plain::Between(path, low, high) => {
                format!("{path} BETWEEN {} AND {}", given(low), given(high))
            }
            Plain::In(path, list) => {
                let list: Vec<String> = list.iter().map(given).collect();
                format!("{path} in ({})", list.join(" , "))
            }
            Plain::Exists(path) => format!("attribute_exists ( {path} )"),
            Plain::Size(comparison, path, size) => {
                format!("size({path}) {comparison} {}", given(&json!({"N": size.to_string()})))
            }
            Plain::And(one, other) => {
                let one = self.inner(one, 2, values);
                format!("{one} AND {}", self.inner(other, 3, values))
            }
            Plain::Or(one, other) => {
                let one = self.inner(one, 1, values);
                format!("{one} OR {}", self.inner(other, 2, values))
            }
            Plain::Not(of) => format!("NOT {}", self.inner(of, 3, values)),
        }
    }
}

fn find<'a>(item: &'a Json, path: &str) -> Option<&'a Json> {
    match path {
        "m.a" | "m.b" => item["m"]["M"].get(&path[2..]),
        "l[0]" => item["l"]["L"].get(0),
        "l[1].a" => item["l"]["L"].get(1)?["M"].get("a"),
        name => item.get(name),
    }
}

/// What a value is, and its number or text.
fn read(value: &Json) -> (&str, f64, &str) {
    let (kind, inner) = value.as_object().unwrap().iter().next().unwrap();
    let text = inner.as_str().unwrap_or_default();
    match kind.as_str() {
        "N" => ("N", text.parse().unwrap(), ""),
        "BOOL" => ("BOOL", f64::from(u8::from(inner.as_bool().unwrap())), ""),
        _ => ("S", 0.0, text),
    }
}

fn compare(comparison: &str, one: Option<&Json>, other: &Json) -> bool {
    let Some((kind, number, text)) = one.map(read) else { return comparison == "<>" };
    let (other_kind, other_number, other_text) = read(other);
    if kind != other_kind {
        return comparison == "<>";
    }
    let order = number.total_cmp(&other_number).then(text.cmp(other_text));
    match comparison {
        "=" => order == Ordering::Equal,
        "<>" => order != Ordering::Equal,
        _ if kind == "BOOL" => false,
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    }
}

impl Plain {
    fn rank(&self) -> usize {
        match self {
            Plain::Or(..) => 1,
            Plain::And(..) => 2,
            Plain::Not(..) => 3,
            _ => 4,
        }
    }

    fn holds(&self, item: &Json) -> bool {
        match self {
            Plain::Compare(comparison, path, value) => compare(comparison, find(item, path), value),
            Plain::Between(path, low, high) => {
                let found = find(item, path);
                compare(">=", found, low) && compare("<=", found, high)
            }
            Plain::In(path, list) => list.iter().any(|one| compare("=", find(item, path), one)),
            Plain::Exists(path) => find(item, path).is_some(),
            Plain::Size(comparison, path, size) => {
                let text = find(item, path).and_then(|value| value["S"].as_str());
                let found = text.map(|text| json!({"N": text.len().to_string()}));
                compare(comparison, found.as_ref(), &json!({"N": size.to_string()}))
            }
            Plain::And(one, other) => one.holds(item) && other.holds(item),
            Plain::Or(one, other) => one.holds(item) || other.holds(item),
            Plain::Not(of) => !of.holds(item),
        }
    }
}

#[test]
fn conditions_mean_what_the_model_says() {
    let mut maker = Maker(Random::new(5));
    let mut held = 0;
    for round in 0..4000 {
        let plain = maker.plain(4);
        let mut values = Map::new();
        let text = maker.text(&plain, &mut values);
        let values = Json::Object(values);
        let given = (values != json!({})).then(|| json::to_item(&values).unwrap().value);
        let mut placeholders = Placeholders::new(None, given, |_| None).unwrap();
        let read = condition::parse("C", &text, &mut placeholders);
        let read = read.unwrap_or_else(|fault| panic!("{round}: {text}: {}", fault.message));
        placeholders.finish().unwrap();
        for _ in 0..5 {
            let item = maker.item();
            let expected = plain.holds(&item);
            held += usize::from(expected);
            let found = read.holds(&json::to_item(&item).unwrap().value);
            assert_eq!(found, expected, "{round}: {text} of {values} on {item}");
        }
    }
    assert!((5000..15_000).contains(&held), "{held} of 20000 hold: the model is one-sided");
}

#[test]
fn queries_give_what_a_look_at_each_item_gives() {
    let api = api(Arc::new(Memory { rows_max: 2, ..Memory::default() }));
    let mut maker = Maker(Random::new(6));
    let done = |operation: &str, body: Json| call(&api, operation, body).unwrap();
    for kind in ["S", "N", "B"] {
        let define = |name: &str, kind: &str| json!({"AttributeName": name, "AttributeType": kind});
        done(
            "CreateTable",
            json!({
                "TableName": format!("of-{kind}"), "BillingMode": "PAY_PER_REQUEST",
                "KeySchema": [
                    {"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "s", "KeyType": "RANGE"}
                ],
                "AttributeDefinitions": [define("p", "S"), define("s", kind)]
            }),
        );
    }
    // Each in its order; binaries as base64, and strings that begin each other.
    let sorts = |kind: &str| -> Vec<Json> {
        let texts: &[&str] = match kind {
            "S" => &["\u{0}", "\u{0}\u{0}", "\u{0}a", "a", "a\u{0}", "aa", "b", "é", "\u{10ffff}"],
            "N" => &["-1e125", "-10", "-9.9", "-1e-130", "0", "1e-130", "1", "9.9", "10", "1e125"],
            _ => &["AA==", "AAA=", "AP8=", "AQ==", "YQ==", "/w==", "/wA=", "//8="],
        };
        texts.iter().map(|text| json!({kind: text})).collect()
    };
    for kind in ["S", "N", "B"] {
        let table = format!("of-{kind}");
        let all = sorts(kind);
        for (partition, sort) in
            ["x", "x\u{0}"].iter().flat_map(|p| all.iter().map(move |s| (p, s)))
        {
            let item = json!({"p": {"S": partition}, "s": sort});
            done("PutItem", json!({"TableName": table, "Item": item}));
        }
        for _ in 0..150 {
            let (at, other) = (maker.below(all.len()), maker.below(all.len()));
            let (low, high) = (at.min(other), at.max(other));
            let (text, expected): (String, Vec<usize>) = match maker.below(6) {
                0 => ("s = :a".into(), vec![low]),
                1 => ("s < :a".into(), (0..low).collect()),
                2 => (":a >= s".into(), (0..=low).collect()),
                3 => ("s > :a".into(), (low + 1..all.len()).collect()),
                4 => ("s >= :a".into(), (low..all.len()).collect()),
                _ => ("s BETWEEN :a AND :b".into(), (low..=high).collect()),
            };
            let mut values = json!({":p": {"S": "x"}, ":a": all[low]});
            if text.contains(":b") {
                values[":b"] = all[high].clone();
            }
            let forward = maker.below(2) == 0;
            let found = done(
                "Query",
                json!({
                    "TableName": table, "KeyConditionExpression": format!("{text} AND p = :p"),
                    "ExpressionAttributeValues": values, "ScanIndexForward": forward
                }),
            );
            let items = found["Items"].as_array().unwrap().iter();
            let numbers = |value: &Json| json::to_value(value).unwrap().value;
            let mut found: Vec<_> = items.map(|item| numbers(&item["s"])).collect();
            if !forward {
                found.reverse();
            }
            let expected: Vec<_> = expected.iter().map(|at| numbers(&all[*at])).collect();
            assert_eq!(found, expected, "{kind}: {text} {low} {high}");
        }
    }
}
