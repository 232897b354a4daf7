//! Conditions of a policy's statements: what must hold of a request beside who asks for what. An
//! operator, a key or a value that is not known here is refused when the policy is set. Pure.

use serde_json::Value;
use std::cmp::Ordering::{self, Equal, Greater, Less};
use std::net::IpAddr;

/// A key's value in a request, if it has one.
pub type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Networks that are wider are everybody's: bits of their prefixes, at least.
const OWN_V4_BITS: u32 = 8;
const OWN_V6_BITS: u32 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equals,
    EqualsIgnoreCase,
    Like,
    Number(&'static [Ordering]),
    Bool,
    Ip,
    /// Whether the key has no value.
    Null,
}

/// One operator, applied to one key; any of the values will do.
#[derive(Debug, PartialEq, Eq)]
pub struct Condition {
    test: Test,
    /// None of the values may do.
    negated: bool,
    /// A request without the key passes.
    if_exists: bool,
    key: String,
    values: Vec<String>,
}

/// Keys that stand for themselves; and the beginnings of those that name something.
const KEYS: [&str; 9] = [
    "aws:referer",
    "aws:securetransport",
    "aws:sourceip",
    "aws:useragent",
    "aws:username",
    "s3:delimiter",
    "s3:max-keys",
    "s3:prefix",
    "s3:versionid",
];
/// A tag's name follows, of the object that is there.
pub const EXISTING_TAG: &str = "s3:existingobjecttag/";
/// A tag's name follows, of those that the request sets.
pub const REQUEST_TAG: &str = "s3:requestobjecttag/";
/// A header's name follows `s3:`.
pub const HEADER: &str = "s3:x-amz-";

fn operator(name: &str) -> Option<(Test, bool)> {
    Some(match name {
        "StringEquals" => (Test::Equals, false),
        "StringNotEquals" => (Test::Equals, true),
        "StringEqualsIgnoreCase" => (Test::EqualsIgnoreCase, false),
        "StringNotEqualsIgnoreCase" => (Test::EqualsIgnoreCase, true),
        "StringLike" => (Test::Like, false),
        "StringNotLike" => (Test::Like, true),
        "NumericEquals" => (Test::Number(&[Equal]), false),
        "NumericNotEquals" => (Test::Number(&[Equal]), true),
        "NumericLessThan" => (Test::Number(&[Less]), false),
        "NumericLessThanEquals" => (Test::Number(&[Less, Equal]), false),
        "NumericGreaterThan" => (Test::Number(&[Greater]), false),
        "NumericGreaterThanEquals" => (Test::Number(&[Greater, Equal]), false),
        "Bool" => (Test::Bool, false),
        "IpAddress" => (Test::Ip, false),
        "NotIpAddress" => (Test::Ip, true),
        "Null" => (Test::Null, false),
        _ => return None,
    })
}

/// A key in lower case, but for the name of a tag.
fn key(name: &str) -> Option<String> {
    let key = match name.split_once('/') {
        Some((kind, tag)) => format!("{}/{tag}", kind.to_ascii_lowercase()),
        None => name.to_ascii_lowercase(),
    };
    let names = [EXISTING_TAG, REQUEST_TAG, HEADER]
        .iter()
        .any(|start| key.strip_prefix(start).is_some_and(|rest| !rest.is_empty()));
    (names || KEYS.contains(&key.as_str())).then_some(key)
}

/// The conditions of one statement: all must hold.
pub fn parse(value: &Value) -> Result<Vec<Condition>, String> {
    let operators = value.as_object().ok_or("`Condition` is not an object")?;
    let mut conditions = Vec::new();
    for (name, keys) in operators {
        let plain = name.strip_suffix("IfExists").filter(|plain| *plain != "Null");
        let found = operator(plain.unwrap_or(name));
        let (test, negated) = found.ok_or_else(|| format!("`{name}` is not supported"))?;
        let keys = keys.as_object().ok_or_else(|| format!("`{name}` is not an object"))?;
        for (key_name, values) in keys {
            let key = key(key_name).ok_or_else(|| format!("`{key_name}` is not supported"))?;
            let values = values.as_array().map_or(std::slice::from_ref(values), Vec::as_slice);
            let values: Option<Vec<String>> = values.iter().map(text).collect();
            let values = values.filter(|v| !v.is_empty() && v.iter().all(|v| test.takes(v)));
            let values = values.ok_or_else(|| format!("`{name}` does not compare such values"))?;
            conditions.push(Condition { test, negated, if_exists: plain.is_some(), key, values });
        }
    }
    Ok(conditions)
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.contains("${") => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    }
}

impl Test {
    /// Whether a policy may name such a value.
    fn takes(self, value: &str) -> bool {
        match self {
            Test::Equals | Test::EqualsIgnoreCase | Test::Like => true,
            Test::Number(_) => value.parse::<f64>().is_ok(),
            Test::Bool | Test::Null => ["true", "false"].contains(&value),
            Test::Ip => network(value).is_some(),
        }
    }

    fn passes(self, value: &str, found: &str) -> bool {
        match self {
            Test::Equals => value == found,
            Test::EqualsIgnoreCase => value.to_lowercase() == found.to_lowercase(),
            Test::Like => super::matches(value, found),
            Test::Number(orders) => {
                let order = found.parse::<f64>().ok().zip(value.parse().ok());
                order
                    .and_then(|(found, value)| found.partial_cmp(&value))
                    .is_some_and(|order| orders.contains(&order))
            }
            Test::Bool => value.eq_ignore_ascii_case(found),
            Test::Ip => network(value)
                .zip(found.parse().ok())
                .is_some_and(|((network, bits), address)| within(address, network, bits)),
            Test::Null => false,
        }
    }
}

/// `ADDRESS` or `ADDRESS/BITS`.
fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let address: IpAddr = address.parse().ok()?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(max), |bits| bits.parse().ok())?;
    (bits <= max).then_some((address, bits))
}

fn within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (address.to_canonical(), network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => {
            (a.to_bits() ^ n.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(n)) => {
            (a.to_bits() ^ n.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl Condition {
    /// Whether the request, as `lookup` knows it, meets the condition.
    pub fn holds(&self, lookup: &Lookup<'_>) -> bool {
        let found = lookup(&self.key);
        if self.test == Test::Null {
            return self.values.iter().any(|value| (value == "true") == found.is_none());
        }
        match found {
            None => self.if_exists || self.negated,
            Some(found) => {
                self.values.iter().any(|value| self.test.passes(value, &found)) != self.negated
            }
        }
    }

    /// Whether only some can fulfil it: addresses of networks that are not wide, users by name.
    pub fn is_narrow(&self) -> bool {
        let own = |value: &String| match (self.test, self.key.as_str()) {
            (Test::Ip, "aws:sourceip") => network(value).is_some_and(|(address, bits)| {
                bits >= if address.is_ipv4() { OWN_V4_BITS } else { OWN_V6_BITS }
            }),
            (Test::Equals, "aws:username") => true,
            _ => false,
        };
        !self.negated && !self.if_exists && self.values.iter().all(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn holds(condition: Value, found: Option<&str>) -> bool {
        let conditions = parse(&condition).unwrap();
        conditions.iter().all(|c| c.holds(&|_| found.map(str::to_owned)))
    }

    #[test]
    fn operators_compare_what_a_request_says() {
        for (operator, value, found, expected) in [
            ("StringEquals", "a", "a", true),
            ("StringEquals", "a*", "ab", false),
            ("StringNotEquals", "a", "a", false),
            ("StringNotEquals", "a", "b", true),
            ("StringEqualsIgnoreCase", "A", "a", true),
            ("StringLike", "a*", "ab", true),
            ("StringNotLike", "a*", "ab", false),
            ("NumericLessThanEquals", "10", "10", true),
            ("NumericLessThan", "10", "10", false),
            ("NumericGreaterThan", "9", "10", true),
            ("NumericNotEquals", "9", "10", true),
            ("NumericEquals", "10", "ten", false),
            ("Bool", "false", "false", true),
            ("IpAddress", "10.1.0.0/16", "10.1.2.3", true),
            ("IpAddress", "10.1.0.0/16", "10.2.2.3", false),
            ("IpAddress", "10.1.2.3", "::ffff:10.1.2.3", true),
            ("IpAddress", "0.0.0.0/0", "10.1.2.3", true),
            ("NotIpAddress", "2001:db8::/32", "2001:db8::1", false),
        ] {
            let condition = json!({operator: {"s3:x-amz-any": value}});
            assert_eq!(holds(condition, Some(found)), expected, "{operator} {value} {found}");
        }
    }

    #[test]
    fn one_of_the_values_will_do_and_all_keys_must() {
        let either = json!({"StringEquals": {"s3:prefix": ["a", "b"]}});
        assert!(holds(either, Some("b")));
        let neither = json!({"StringNotEquals": {"s3:prefix": ["a", "b"]}});
        assert!(!holds(neither, Some("b")));
        let both = json!({"StringLike": {"s3:prefix": "a*", "s3:delimiter": "/"}});
        assert!(!holds(both, Some("a/")));
    }

    #[test]
    fn what_a_request_does_not_say_fails_but_for_denials_and_if_exists() {
        assert!(!holds(json!({"StringEquals": {"aws:Referer": "a"}}), None));
        assert!(holds(json!({"StringNotEquals": {"aws:Referer": "a"}}), None));
        assert!(holds(json!({"StringLikeIfExists": {"aws:Referer": "a"}}), None));
        assert!(!holds(json!({"StringLikeIfExists": {"aws:Referer": "a"}}), Some("b")));
        assert!(holds(json!({"Null": {"aws:Referer": true}}), None));
        assert!(!holds(json!({"Null": {"aws:Referer": "true"}}), Some("a")));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (condition, why) in [
            (json!({"DateLessThan": {"aws:CurrentTime": "2030"}}), "DateLessThan"),
            (json!({"NullIfExists": {"aws:Referer": "true"}}), "NullIfExists"),
            (json!({"StringEquals": {"aws:Weather": "x"}}), "aws:Weather"),
            (json!({"StringEquals": {"s3:ExistingObjectTag/": "x"}}), "s3:ExistingObjectTag/"),
            (json!({"IpAddress": {"aws:SourceIp": "10.0.0.0/33"}}), "such values"),
            (json!({"StringEquals": {"s3:prefix": "${aws:username}"}}), "such values"),
            (json!({"Bool": {"aws:SecureTransport": "perhaps"}}), "such values"),
            (json!({"StringEquals": {"s3:prefix": []}}), "such values"),
        ] {
            let refusal = parse(&condition).unwrap_err();
            assert!(refusal.contains(why), "{condition}: {refusal}");
        }
    }

    #[test]
    fn a_tags_name_keeps_its_case_and_other_keys_do_not() {
        let parsed = parse(&json!({"StringEquals": {"s3:ExistingObjectTag/Who": "x"}})).unwrap();
        assert_eq!(parsed[0].key, "s3:existingobjecttag/Who");
    }
}
