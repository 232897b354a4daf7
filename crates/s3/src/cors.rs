//! Cross-origin requests: a bucket's rules, applied to preflight requests and to answers.

use crate::settings::CORS;
use holdfast_blob::Blobs;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode, Uri};
use s3s::dto::{CORSRule, CORSRules};
use s3s::{Body, HttpResponse, S3Error, S3ErrorCode, S3Result};

/// The bucket that a path names, in path style.
fn bucket(uri: &Uri) -> Option<&str> {
    uri.path().strip_prefix('/')?.split('/').next().filter(|bucket| !bucket.is_empty())
}

/// One `*` at most stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern.eq_ignore_ascii_case(text),
        Some((start, end)) => {
            text.len() >= start.len() + end.len()
                && text.to_ascii_lowercase().starts_with(&start.to_ascii_lowercase())
                && text.to_ascii_lowercase().ends_with(&end.to_ascii_lowercase())
        }
    }
}

fn rule_for<'r>(
    rules: &'r [CORSRule],
    origin: &str,
    method: &str,
    headers: &[&str],
) -> Option<&'r CORSRule> {
    rules.iter().find(|rule| {
        let allowed = rule.allowed_headers.as_deref().unwrap_or_default();
        rule.allowed_origins.iter().any(|pattern| matches(pattern, origin))
            && rule.allowed_methods.iter().any(|allowed| allowed == method)
            && headers.iter().all(|header| allowed.iter().any(|pattern| matches(pattern, header)))
    })
}

fn answer(rule: &CORSRule, origin: &HeaderValue, method: &str, asked: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    if rule.allowed_origins.iter().any(|origin| origin == "*") {
        set("access-control-allow-origin", "*");
    } else {
        set("access-control-allow-origin", origin.to_str().unwrap_or_default());
        set("access-control-allow-credentials", "true");
    }
    set("vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
    set("access-control-allow-methods", method);
    if !asked.is_empty() {
        set("access-control-allow-headers", asked);
    }
    if let Some(exposed) = rule.expose_headers.as_ref().filter(|list| !list.is_empty()) {
        set("access-control-expose-headers", &exposed.join(", "));
    }
    if let Some(seconds) = rule.max_age_seconds {
        set("access-control-max-age", &seconds.to_string());
    }
    headers
}

const ORIGIN: &str = "origin";
const METHOD: &str = "access-control-request-method";
const HEADERS: &str = "access-control-request-headers";

/// The headers of an answer to a request from another origin; `None` if no rule allows it. What a
/// request announces is judged before what it is.
pub fn headers(blobs: &Blobs, method: &str, uri: &Uri, headers: &HeaderMap) -> Option<HeaderMap> {
    let origin = headers.get(ORIGIN)?;
    let bucket = blobs.bucket(bucket(uri)?).ok()?;
    let rules: CORSRules = serde_json::from_str(bucket.document(CORS)?).ok()?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let method = text(METHOD).unwrap_or(method);
    let asked = text(HEADERS).unwrap_or_default();
    let list: Vec<&str> = asked.split(',').map(str::trim).filter(|h| !h.is_empty()).collect();
    let rule = rule_for(&rules, origin.to_str().ok()?, method, &list)?;
    Some(answer(rule, origin, method, asked))
}

/// Answers a browser that asks what it may do.
pub fn preflight(blobs: &Blobs, uri: &Uri, asked: &HeaderMap) -> S3Result<HttpResponse> {
    let wrong = |message: &'static str| {
        let mut error = S3Error::with_message(S3ErrorCode::Custom("BadRequest".into()), message);
        error.set_status_code(StatusCode::BAD_REQUEST);
        error
    };
    if !asked.contains_key(ORIGIN) {
        return Err(wrong("the request says no `Origin`"));
    }
    if !asked.contains_key(METHOD) {
        return Err(wrong("the request says no `Access-Control-Request-Method`"));
    }
    let Some(allowed) = headers(blobs, "", uri, asked) else {
        let code = S3ErrorCode::Custom("AccessForbidden".into());
        let message = "no rule of the bucket allows this origin, method and headers";
        let mut error = S3Error::with_message(code, message);
        error.set_status_code(StatusCode::FORBIDDEN);
        return Err(error);
    };
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = allowed;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_by_origin_method_and_headers() {
        let rules = [CORSRule {
            allowed_headers: Some(vec!["x-*".into()]),
            allowed_methods: vec!["GET".into()],
            allowed_origins: vec!["https://*.example.org".into()],
            expose_headers: None,
            id: None,
            max_age_seconds: None,
        }];
        let found =
            |origin, method, headers: &[&str]| rule_for(&rules, origin, method, headers).is_some();
        assert!(found("https://www.example.org", "GET", &["X-Custom"]));
        assert!(!found("https://www.example.com", "GET", &[]));
        assert!(!found("https://www.example.org", "PUT", &[]));
        assert!(!found("https://www.example.org", "GET", &["authorization"]));
    }
}
