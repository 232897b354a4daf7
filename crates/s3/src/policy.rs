//! Bucket policies: who may do what to a bucket and its objects, and on what conditions. Without
//! variables; a policy with anything that is not known is refused when it is set, never half obeyed.
//! Pure.

mod condition;

pub use condition::{EXISTING_TAG, HEADER, REQUEST_TAG};

use condition::{Condition, Lookup};
use serde_json::{Map, Value};

/// What a policy says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some statement allows it, and none denies it.
    Allow,
    /// Some statement denies it, whatever others allow.
    Deny,
    /// No statement is about it.
    Nothing,
}

/// Who asks for what.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// `None` for a request that is not signed.
    pub user: Option<&'a str>,
    /// `s3:GetObject` and the like.
    pub action: &'a str,
    pub bucket: &'a str,
    /// Empty for the bucket itself.
    pub key: &'a str,
    /// What conditions ask about.
    pub lookup: &'a Lookup<'a>,
}

/// Patterns of an element, or of its `Not` form.
#[derive(Debug, PartialEq, Eq)]
struct Patterns {
    list: Vec<String>,
    negated: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Statement {
    allow: bool,
    /// `*` is everybody.
    principals: Patterns,
    actions: Patterns,
    resources: Patterns,
    conditions: Vec<Condition>,
}

/// A bucket's policy, read and understood whole.
#[derive(Debug, PartialEq, Eq)]
pub struct Policy {
    statements: Vec<Statement>,
}

const RESOURCE_PREFIX: &str = "arn:aws:s3:::";
const USER_PREFIX: &str = ":user/";

impl Policy {
    /// Reads a policy of `bucket`; what is wrong with it, if it cannot be obeyed whole.
    pub fn parse(text: &str, bucket: &str) -> Result<Policy, String> {
        let policy: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let fields = policy.as_object().ok_or("it is not an object")?;
        if let Some(other) =
            fields.keys().find(|k| !["Version", "Id", "Statement"].contains(&k.as_str()))
        {
            return Err(format!("`{other}` is not supported"));
        }
        let statements = match fields.get("Statement") {
            Some(Value::Array(list)) => list.iter().collect(),
            Some(one @ Value::Object(_)) => vec![one],
            _ => return Err("it has no `Statement`".into()),
        };
        let statements = statements.into_iter().map(|s| statement(s, bucket));
        Ok(Policy { statements: statements.collect::<Result<_, _>>()? })
    }

    /// A denial wins over any permission.
    pub fn judge(&self, ask: &Ask<'_>) -> Verdict {
        let mut verdict = Verdict::Nothing;
        for statement in self.statements.iter().filter(|s| s.applies(ask)) {
            match statement.allow {
                false => return Verdict::Deny,
                true => verdict = Verdict::Allow,
            }
        }
        verdict
    }

    /// Whether anybody at all may do something.
    pub fn is_public(&self) -> bool {
        let anybody = |s: &Statement| s.principals.list.iter().any(|p| p == "*");
        let narrow = |s: &Statement| s.conditions.iter().any(Condition::is_narrow);
        self.statements.iter().any(|s| s.allow && anybody(s) && !narrow(s))
    }
}

fn statement(value: &Value, bucket: &str) -> Result<Statement, String> {
    let fields = value.as_object().ok_or("a statement is not an object")?;
    const KNOWN: [&str; 9] = [
        "Sid",
        "Effect",
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    ];
    if let Some(other) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(format!("`{other}` of a statement is not supported"));
    }
    let allow = match fields.get("Effect").and_then(Value::as_str) {
        Some("Allow") => true,
        Some("Deny") => false,
        _ => return Err("`Effect` is not `Allow` or `Deny`".into()),
    };
    let principals = patterns(fields, "Principal", "NotPrincipal", |value, name| match value {
        Value::String(all) if all == "*" => Ok(vec!["*".to_owned()]),
        Value::Object(map) if map.len() == 1 && map.contains_key("AWS") => {
            strings(&map["AWS"], name)
        }
        _ => Err(format!("`{name}` is not `*` or `{{\"AWS\": ...}}`")),
    })?;
    if allow && principals.negated {
        return Err("`NotPrincipal` goes with `Deny` alone".into());
    }
    let resources = patterns(fields, "Resource", "NotResource", strings)?;
    for resource in &resources.list {
        let named = resource.strip_prefix(RESOURCE_PREFIX).unwrap_or_default();
        let of_bucket = named.split('/').next().is_some_and(|pattern| matches(pattern, bucket));
        if !of_bucket || resource.contains("${") {
            return Err(format!("`Resource` `{resource}` is not of this bucket"));
        }
    }
    let actions = patterns(fields, "Action", "NotAction", strings)?;
    if let Some(action) = actions.list.iter().find(|a| *a != "*" && !a.starts_with("s3:")) {
        return Err(format!("`Action` `{action}` is not one of S3"));
    }
    let conditions = fields.get("Condition").map(condition::parse).transpose()?;
    let conditions = conditions.unwrap_or_default();
    Ok(Statement { allow, principals, actions, resources, conditions })
}

/// An element that is given once, as itself or in its `Not` form.
fn patterns(
    fields: &Map<String, Value>,
    name: &str,
    not: &str,
    parse: impl Fn(&Value, &str) -> Result<Vec<String>, String>,
) -> Result<Patterns, String> {
    match (fields.get(name), fields.get(not)) {
        (Some(value), None) => Ok(Patterns { list: parse(value, name)?, negated: false }),
        (None, Some(value)) => Ok(Patterns { list: parse(value, not)?, negated: true }),
        _ => Err(format!("a statement has either `{name}` or `{not}`")),
    }
}

fn strings(value: &Value, what: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("`{what}` is not a text or a list of texts");
    let list = match value {
        Value::String(one) => vec![one.clone()],
        Value::Array(list) => {
            let texts = list.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(wrong));
            texts.collect::<Result<_, _>>()?
        }
        _ => return Err(wrong()),
    };
    if list.is_empty() { Err(wrong()) } else { Ok(list) }
}

impl Statement {
    fn applies(&self, ask: &Ask<'_>) -> bool {
        let who = self.principals.any(|principal| {
            // `arn:aws:iam::ACCOUNT:user/NAME`, or the name alone.
            let name = principal.rsplit_once(USER_PREFIX).map_or(principal, |(_, name)| name);
            principal == "*" || ask.user == Some(name)
        });
        let wanted = match ask.key {
            "" => format!("{RESOURCE_PREFIX}{}", ask.bucket),
            key => format!("{RESOURCE_PREFIX}{}/{key}", ask.bucket),
        };
        who && self.actions.any(|pattern| matches(pattern, ask.action))
            && self.resources.any(|pattern| matches(pattern, &wanted))
            && self.conditions.iter().all(|condition| condition.holds(ask.lookup))
    }
}

impl Patterns {
    fn any(&self, matches: impl Fn(&str) -> bool) -> bool {
        self.list.iter().any(|pattern| matches(pattern)) != self.negated
    }
}

/// `*` stands for any text, `?` for one byte. Linear but for the last `*`.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str, user: Option<&str>, action: &str, key: &str) -> Verdict {
        let policy = Policy::parse(text, "pub").unwrap();
        let lookup = |key: &str| Some("127.0.0.1".to_owned()).filter(|_| key == "aws:sourceip");
        policy.judge(&Ask { user, action, bucket: "pub", key, lookup: &lookup })
    }

    #[test]
    fn anybody_reads_what_is_allowed_and_nothing_else() {
        let text = r#"{"Version":"2012-10-17","Statement":[
            {"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::pub/*"},
            {"Effect":"Deny","Principal":{"AWS":"*"},"Action":"s3:*","Resource":["arn:aws:s3:::pub/private/*"]},
            {"Effect":"Allow","Principal":{"AWS":["arn:aws:iam::1:user/ann"]},"Action":["s3:Put*"],"Resource":"arn:aws:s3:::pub/a?"}]}"#;
        assert_eq!(judge(text, None, "s3:GetObject", "x/y"), Verdict::Allow);
        assert_eq!(judge(text, None, "s3:PutObject", "x/y"), Verdict::Nothing);
        assert_eq!(judge(text, None, "s3:GetObject", ""), Verdict::Nothing, "not the bucket");
        assert_eq!(judge(text, Some("bob"), "s3:GetObject", "private/x"), Verdict::Deny);
        assert_eq!(judge(text, Some("ann"), "s3:PutObject", "ab"), Verdict::Allow);
        assert_eq!(judge(text, Some("ann"), "s3:PutObject", "abc"), Verdict::Nothing);
        assert_eq!(judge(text, Some("bob"), "s3:PutObject", "ab"), Verdict::Nothing);
        assert!(Policy::parse(text, "pub").unwrap().is_public());
    }

    #[test]
    fn the_not_forms_mean_everything_else() {
        let text = r#"{"Statement":[
            {"Effect":"Allow","Principal":"*","NotAction":"s3:Put*","NotResource":"arn:aws:s3:::pub/private/*"},
            {"Effect":"Deny","NotPrincipal":{"AWS":"ann"},"Action":"s3:DeleteObject","Resource":"arn:aws:s3:::pub/*"}]}"#;
        assert_eq!(judge(text, Some("bob"), "s3:GetObject", "x"), Verdict::Allow);
        assert_eq!(judge(text, Some("bob"), "s3:GetObject", "private/x"), Verdict::Nothing);
        assert_eq!(judge(text, Some("bob"), "s3:PutObject", "x"), Verdict::Nothing);
        assert_eq!(judge(text, Some("bob"), "s3:DeleteObject", "x"), Verdict::Deny);
        assert_eq!(judge(text, Some("ann"), "s3:DeleteObject", "x"), Verdict::Allow);
    }

    #[test]
    fn a_condition_narrows_a_statement() {
        let text = |network: &str| {
            format!(
                r#"{{"Statement":{{"Effect":"Allow","Principal":"*","Action":"*","Resource":"arn:aws:s3:::p*",
                "Condition":{{"IpAddress":{{"aws:SourceIp":"{network}"}}}}}}}}"#
            )
        };
        assert_eq!(judge(&text("127.0.0.0/8"), None, "s3:GetObject", "x"), Verdict::Allow);
        assert_eq!(judge(&text("10.0.0.0/8"), None, "s3:GetObject", "x"), Verdict::Nothing);
        assert!(!Policy::parse(&text("10.0.0.0/8"), "pub").unwrap().is_public());
        assert!(Policy::parse(&text("0.0.0.0/1"), "pub").unwrap().is_public(), "half of the world");
    }

    #[test]
    fn what_cannot_be_obeyed_whole_is_refused() {
        let statement = |more: &str| {
            format!(
                r#"{{"Statement":{{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::pub"{more}}}}}"#
            )
        };
        assert!(Policy::parse(&statement(""), "pub").is_ok());
        for (text, why) in [
            (statement(r#","Condition":{"ArnLike":{}}"#), "ArnLike"),
            (statement(r#","NotAction":"s3:*""#), "either `Action`"),
            (statement("").replace("Principal", "NotPrincipal"), "with `Deny`"),
            (statement("").replace(":::pub", ":::pub/${aws:username}"), "not of this bucket"),
            (statement("").replace("pub", "other"), "not of this bucket"),
            (statement("").replace("s3:*", "ec2:*"), "not one of S3"),
            (statement("").replace("Allow", "Maybe"), "Effect"),
            ("[]".into(), "not an object"),
            ("{".into(), "EOF"),
        ] {
            let refusal = Policy::parse(&text, "pub").unwrap_err();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("a*b*c", "aXbYbZc", true),
            ("?", "", false),
            ("s3:Get*", "s3:GetObject", true),
            ("s3:get*", "s3:GetObject", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
