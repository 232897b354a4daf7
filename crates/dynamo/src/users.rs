//! Who asks: signatures of version 4 over whole requests, by the keys that the caller looks up. What
//! is signed, and how a signature is made, is shared with S3. Pure: the time is handed in.

use crate::fault::{Fault, Result, Type};
use holdfast_base::text::utc;
use holdfast_env::planted;
use holdfast_s3::signature::{ALGORITHM, Scope, TERMINATOR, sha256_hex, signature};
use hyper::HeaderMap;

/// How far a client's clock may be off, in milliseconds.
const CLOCK_MS_MAX: u64 = 15 * 60 * 1000;

/// A key of a user, and what it may do here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Signs, and never leaves this process.
    pub secret: String,
    /// Whether it may look.
    pub reads: bool,
    /// Whether it may change something.
    pub writes: bool,
}

/// The users' keys.
pub trait Keys: Send + Sync {
    /// What is known of a key; none if nothing is.
    fn key(&self, name: &str) -> holdfast_base::Result<Option<Key>>;
}

/// What a request says of its signature.
#[derive(Debug, PartialEq, Eq)]
struct Signed<'a> {
    key: &'a str,
    scope: Scope<'a>,
    headers: &'a str,
    signature: &'a str,
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn incomplete(why: impl Into<String>) -> Fault {
    Fault::new(Type::IncompleteSignature, why)
}

fn invalid(why: impl Into<String>) -> Fault {
    Fault::new(Type::InvalidSignature, why)
}

fn read(authorization: &str) -> Result<Signed<'_>> {
    let rest = match authorization.trim().split_once(' ') {
        Some((algorithm, rest)) if algorithm == ALGORITHM => rest,
        Some((algorithm, _)) if algorithm.starts_with("AWS4-") => {
            return Err(incomplete(format!(
                "Unsupported AWS 'algorithm': '{algorithm}' (only {ALGORITHM} for now). "
            )));
        }
        _ => {
            return Err(Fault::new(
                Type::MissingAuthenticationToken,
                "Request is missing Authentication Token",
            ));
        }
    };
    let part = |name: &str| {
        let mut parts = rest.split(',').filter_map(|part| part.trim().split_once('='));
        let found = parts.find(|(found, value)| *found == name && !value.is_empty());
        found.map(|(_, value)| value).ok_or_else(|| {
            incomplete(format!("Authorization header requires '{name}' parameter. "))
        })
    };
    let (credential, headers) = (part("Credential")?, part("SignedHeaders")?);
    let parts: Vec<&str> = credential.split('/').collect();
    let [key, day, region, service, terminator] = parts[..] else {
        return Err(incomplete(format!(
            "Credential must have exactly 5 slash-delimited elements, e.g. \
             keyid/date/region/service/term, got '{credential}'"
        )));
    };
    if service != "dynamodb" {
        return Err(invalid("Credential should be scoped to correct service: 'dynamodb'. "));
    }
    if terminator != TERMINATOR {
        return Err(invalid(format!(
            "Credential should be scoped with a valid terminator: '{TERMINATOR}', not \
             '{terminator}'. "
        )));
    }
    let scope = Scope { day, region, service };
    Ok(Signed { key, scope, headers, signature: part("Signature")? })
}

/// As `x-amz-date` writes a time in milliseconds since 1970.
fn date_of(unix_ms: u64) -> String {
    utc((unix_ms / 1000) as i64, 'T').replace(['-', ':'], "") + "Z"
}

/// What the head of a request says of who asks, before its body comes: a key that is known, and a
/// signature of all that it must be of.
pub struct Head<'a> {
    signed: Signed<'a>,
    date: &'a str,
    key: Key,
}

impl<'a> Head<'a> {
    /// Reads it; refused where it does not say that much.
    pub fn read(headers: &'a HeaderMap, keys: &dyn Keys, now_ms: u64) -> Result<Head<'a>> {
        let signed = read(text(headers, "authorization").unwrap_or_default())?;
        let date = text(headers, "x-amz-date").ok_or_else(|| {
            incomplete("Authorization header requires existence of a 'X-Amz-Date' header. ")
        })?;
        if !date.starts_with(signed.scope.day) || date.len() != 16 {
            return Err(invalid(format!(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from \
                 HTTP: '{}', from '{date}'.",
                signed.scope.day
            )));
        }
        // Dates of one form are ordered as their texts are.
        let (from, to) =
            (date_of(now_ms.saturating_sub(CLOCK_MS_MAX)), date_of(now_ms + CLOCK_MS_MAX));
        if *date < *from || *date > *to {
            return Err(invalid(format!(
                "Signature expired: {date} is not within 15 min. of {}",
                date_of(now_ms)
            )));
        }
        let is_signed = |name: &str| signed.headers.split(';').any(|signed| signed == name);
        let means = |name: &str| name == "host" || name.starts_with("x-amz-");
        let unsigned = headers.keys().map(|name| name.as_str()).find(|n| means(n) && !is_signed(n));
        if let Some(name) = unsigned.filter(|_| !planted!("dynamo.unsigned-headers")) {
            return Err(invalid(format!(
                "'{name}' must be a 'SignedHeader' in the AWS Authorization."
            )));
        }
        // No key here is lent for a time.
        let unknown = || {
            Fault::new(
                Type::UnrecognizedClient,
                "The security token included in the request is invalid.",
            )
        };
        if headers.contains_key("x-amz-security-token") {
            return Err(unknown());
        }
        let key = keys.key(signed.key)?.ok_or_else(unknown)?;
        Ok(Head { signed, date, key })
    }

    /// Checks that `POST /` with these headers and this body is what was signed, and tells the key.
    pub fn check(self, headers: &HeaderMap, body: &[u8]) -> Result<Key> {
        let mut lines = String::new();
        for name in self.signed.headers.split(';') {
            let values = headers.get_all(name).iter();
            let values = values.map(|value| {
                let text = value.to_str().unwrap_or_default();
                text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
            });
            lines += &format!("{name}:{}\n", values.collect::<Vec<_>>().join(","));
        }
        let (date, key) = (self.date, self.key);
        let canonical =
            format!("POST\n/\n\n{lines}\n{}\n{}", self.signed.headers, sha256_hex(body));
        let expected = signature(&key.secret, date, &self.signed.scope, &canonical);
        match is_same(expected.as_bytes(), self.signed.signature.as_bytes()) {
            true => Ok(key),
            false => Err(invalid(
                "The request signature we calculated does not match the signature you provided. Check \
                 your AWS Secret Access Key and signing method. Consult the service documentation for \
                 details.",
            )),
        }
    }
}

/// In a time that does not tell where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    const NOW_MS: u64 = 1_440_938_160_000;
    const DATE: &str = "20150830T123600Z";

    struct One;

    impl Keys for One {
        fn key(&self, name: &str) -> holdfast_base::Result<Option<Key>> {
            let key = Key { secret: "secret".into(), reads: true, writes: false };
            Ok((name == "AKID").then_some(key))
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    /// Signed by botocore 1.43, so that not both sides are ours.
    const SIGNATURE: &str = "f78fb405dc2f470874c89f877df308e68324d75959cfc399091cfb02ff217e4d";
    const NAMES: &str = "content-type;host;x-amz-date;x-amz-target";

    fn signed(scope: &str, names: &str, signature: &str, date: &str, target: &str) -> HeaderMap {
        headers(&[
            ("content-type", "application/x-amz-json-1.0"),
            ("host", "localhost:8000"),
            ("x-amz-date", date),
            ("x-amz-target", target),
            (
                "authorization",
                &format!(
                    "AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={names}, \
                     Signature={signature}"
                ),
            ),
        ])
    }

    #[test]
    fn what_botocore_signs_is_right_and_nothing_else_is() {
        const SCOPE: &str = "AKID/20150830/us-east-1/dynamodb/aws4_request";
        const TARGET: &str = "DynamoDB_20120810.ListTables";
        let ask = |headers: &HeaderMap, body: &[u8], now_ms: u64| {
            let head = Head::read(headers, &One, now_ms);
            head.and_then(|head| head.check(headers, body)).map_err(|fault| fault.kind)
        };
        let right = signed(SCOPE, NAMES, SIGNATURE, DATE, TARGET);
        assert!(ask(&right, b"{}", NOW_MS).is_ok_and(|key| key.secret == "secret"));
        let invalid = Err(Type::InvalidSignature);
        assert_eq!(ask(&right, b"{} ", NOW_MS), invalid);
        assert_eq!(ask(&right, b"{}", NOW_MS + CLOCK_MS_MAX + 1000), invalid);
        assert_eq!(ask(&right, b"{}", NOW_MS - CLOCK_MS_MAX - 1000), invalid);
        let other = signed(SCOPE, NAMES, SIGNATURE, DATE, "DynamoDB_20120810.DeleteTable");
        assert_eq!(ask(&other, b"{}", NOW_MS), invalid);
        let unsigned = signed(SCOPE, "content-type;host;x-amz-date", SIGNATURE, DATE, TARGET);
        let told = Head::read(&unsigned, &One, NOW_MS).err().unwrap();
        assert!(told.message.contains("'x-amz-target' must be a 'SignedHeader'"), "{told:?}");
        for (scope, kind) in [
            ("OTHER/20150830/us-east-1/dynamodb/aws4_request", Type::UnrecognizedClient),
            ("AKID/20150831/us-east-1/dynamodb/aws4_request", Type::InvalidSignature),
            ("AKID/20150830/us-east-1/s3/aws4_request", Type::InvalidSignature),
            ("AKID/20150830/us-east-1/dynamodb/aws5", Type::InvalidSignature),
            ("AKID/20150830", Type::IncompleteSignature),
        ] {
            let headers = signed(scope, NAMES, SIGNATURE, DATE, TARGET);
            assert_eq!(ask(&headers, b"{}", NOW_MS), Err(kind), "{scope}");
        }
        let none = headers(&[("host", "localhost")]);
        assert_eq!(ask(&none, b"{}", NOW_MS), Err(Type::MissingAuthenticationToken));
        let mut token = right.clone();
        token.insert("x-amz-security-token", HeaderValue::from_static("t"));
        assert_eq!(ask(&token, b"{}", NOW_MS), invalid);
        let mut undated = right;
        undated.remove("x-amz-date");
        assert_eq!(ask(&undated, b"{}", NOW_MS), Err(Type::IncompleteSignature));
    }
}
