//! Bucket policies: who may do what to a bucket and its objects. A subset of the language:
//! statements of effect, principal, action and resource; a policy with anything else is refused
//! when it is set, never half obeyed. Pure.

use serde_json::Value;

/// What a policy says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Deny,
    Nothing,
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// `None` for a request that is not signed.
    pub user: Option<&'a str>,
    /// `s3:GetObject` and the like.
    pub action: &'a str,
    pub bucket: &'a str,
    /// Empty for the bucket itself.
    pub key: &'a str,
}

#[derive(Debug, PartialEq, Eq)]
struct Statement {
    allow: bool,
    /// `*` is everybody.
    principals: Vec<String>,
    actions: Vec<String>,
    resources: Vec<String>,
}

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

    /// Whether somebody who does not sign may do something.
    pub fn is_public(&self) -> bool {
        self.statements.iter().any(|s| s.allow && s.principals.iter().any(|p| p == "*"))
    }
}

fn statement(value: &Value, bucket: &str) -> Result<Statement, String> {
    let fields = value.as_object().ok_or("a statement is not an object")?;
    const KNOWN: [&str; 5] = ["Sid", "Effect", "Principal", "Action", "Resource"];
    if let Some(other) = fields.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(format!("`{other}` of a statement is not supported"));
    }
    let allow = match fields.get("Effect").and_then(Value::as_str) {
        Some("Allow") => true,
        Some("Deny") => false,
        _ => return Err("`Effect` is not `Allow` or `Deny`".into()),
    };
    let principals = match fields.get("Principal") {
        Some(Value::String(all)) if all == "*" => vec!["*".to_owned()],
        Some(Value::Object(map)) if map.len() == 1 && map.contains_key("AWS") => {
            strings(map.get("AWS"), "Principal")?
        }
        _ => return Err("`Principal` is not `*` or `{\"AWS\": ...}`".into()),
    };
    let resources = strings(fields.get("Resource"), "Resource")?;
    for resource in &resources {
        let named = resource.strip_prefix(RESOURCE_PREFIX).unwrap_or_default();
        if named.split('/').next() != Some(bucket) {
            return Err(format!("`Resource` `{resource}` is not of this bucket"));
        }
    }
    let actions = strings(fields.get("Action"), "Action")?;
    if let Some(action) = actions.iter().find(|a| *a != "*" && !a.starts_with("s3:")) {
        return Err(format!("`Action` `{action}` is not one of S3"));
    }
    Ok(Statement { allow, principals, actions, resources })
}

fn strings(value: Option<&Value>, what: &str) -> Result<Vec<String>, String> {
    let wrong = || format!("`{what}` is not a text or a list of texts");
    let list = match value {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(list)) => {
            let texts = list.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(wrong));
            texts.collect::<Result<_, _>>()?
        }
        _ => return Err(wrong()),
    };
    if list.is_empty() { Err(wrong()) } else { Ok(list) }
}

impl Statement {
    fn applies(&self, ask: &Ask<'_>) -> bool {
        let who = self.principals.iter().any(|principal| {
            // `arn:aws:iam::ACCOUNT:user/NAME`, or the name alone.
            let name = principal.rsplit_once(USER_PREFIX).map_or(principal.as_str(), |(_, n)| n);
            principal == "*" || ask.user == Some(name)
        });
        let wanted = match ask.key {
            "" => format!("{RESOURCE_PREFIX}{}", ask.bucket),
            key => format!("{RESOURCE_PREFIX}{}/{key}", ask.bucket),
        };
        who && self.actions.iter().any(|pattern| matches(pattern, ask.action))
            && self.resources.iter().any(|pattern| matches(pattern, &wanted))
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
        policy.judge(&Ask { user, action, bucket: "pub", key })
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
    fn what_cannot_be_obeyed_whole_is_refused() {
        let statement = |more: &str| {
            format!(
                r#"{{"Statement":{{"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::pub"{more}}}}}"#
            )
        };
        assert!(Policy::parse(&statement(""), "pub").is_ok());
        for (text, why) in [
            (statement(r#","Condition":{}"#), "Condition"),
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
