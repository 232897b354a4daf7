//! What S3 says of any request, whatever its operation, and the protocol's library does not: an id
//! for each answer, what the service itself can be asked, how long a presigned URL may be good.

use crate::tags::percent_decode;
use holdfast_env::planted;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE};
use hyper::{HeaderMap, Method, Response, StatusCode, Uri};
use s3s::dto::Range;
use s3s::{Body, S3Result, s3_error};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a presigned URL may be good: a week.
const EXPIRES_SECONDS_MAX: i64 = 7 * 24 * 3600;

/// Refuses what the library would answer otherwise.
pub fn check(method: &Method, uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    if uri.path().contains('%') && percent_decode(uri.path()).is_none() {
        return Err(s3_error!(InvalidURI, "Couldn't parse the specified URI."));
    }
    if uri.path() == "/" && (*method == Method::PUT || *method == Method::DELETE) {
        let mut e = s3_error!(MethodNotAllowed, "the service itself is listed, nothing else");
        e.set_headers(HeaderMap::from_iter([(ALLOW, HeaderValue::from_static("GET"))]));
        return Err(e);
    }
    check_signed(uri, headers)?;
    let mut query = uri.query().unwrap_or_default().split('&');
    let Some(expires) = query.find_map(|pair| pair.strip_prefix("X-Amz-Expires=")) else {
        return Ok(());
    };
    let wrong = match expires.parse() {
        Ok(0..=EXPIRES_SECONDS_MAX) => return Ok(()),
        Ok(i64::MIN..0) => "non-negative",
        Ok(_) => "less than a week (in seconds)",
        Err(_) => "a number of seconds",
    };
    Err(s3_error!(AuthorizationQueryParametersError, "X-Amz-Expires must be {wrong}"))
}

/// What a signature covers whether it lists it or not: both are lines of what is signed.
const ALWAYS_SIGNED: [&str; 2] = ["x-amz-content-sha256", "x-amz-date"];

/// Every `x-amz-` header of a signed request must be signed, too. The library checks the signature
/// of what is signed and acts on what is not: with a presigned URL that lets somebody put one
/// object, `x-amz-copy-source` fetched any other that its maker may read.
fn check_signed(uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    let lists = signed_headers(uri, headers);
    let lists_all = |name: &str| {
        lists.iter().all(|list| list.split(';').any(|signed| signed.eq_ignore_ascii_case(name)))
    };
    let is_signed = |name: &str| ALWAYS_SIGNED.contains(&name) || lists_all(name);
    let mut names = headers.keys().filter(|name| name.as_str().starts_with("x-amz-"));
    match names.find(|name| !is_signed(name.as_str()) && !planted!("s3.unsigned-headers")) {
        Some(name) => Err(s3_error!(
            AccessDenied,
            "There were headers present that were not signed: `{name}`"
        )),
        None => Ok(()),
    }
}

/// The lists of headers that signatures of version 4 cover: of the header, of a presigned URL.
fn signed_headers<'a>(uri: &Uri, headers: &'a HeaderMap) -> Vec<Cow<'a, str>> {
    let of_header = |value: &'a HeaderValue| {
        let value = value.to_str().ok()?.strip_prefix("AWS4")?;
        let (_, list) = value.split_once("SignedHeaders=")?;
        list.split([',', ' ']).next().map(Cow::Borrowed)
    };
    let of_query = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let is_list = percent_decode(name)?.eq_ignore_ascii_case("x-amz-signedheaders");
        is_list.then(|| percent_decode(value).map(Cow::Owned)).flatten()
    };
    let query = uri.query().unwrap_or_default().split('&').filter_map(of_query);
    headers.get_all(AUTHORIZATION).iter().filter_map(of_header).chain(query).collect()
}

/// Takes away a `Range` that is not one range of bytes, several of them or nonsense: S3 sends the whole object then, and
/// the library refuses it. One that is signed stays, since the signature would not be right without it.
pub fn drop_odd_range(uri: &Uri, headers: &mut HeaderMap) {
    let mut all = headers.get_all(RANGE).iter();
    // The library takes a number that is not there for 0.
    let is_right = |range: &str| Range::parse(range).is_ok() && !range.ends_with("=-");
    let is_one = match (all.next(), all.next()) {
        (None, _) => return,
        (Some(range), None) => range.to_str().is_ok_and(is_right),
        (Some(_), Some(_)) => false,
    };
    let is_range = |name: &str| name.eq_ignore_ascii_case("range");
    let is_signed = signed_headers(uri, headers).iter().any(|list| list.split(';').any(is_range));
    if !is_one && !is_signed && !planted!("s3.odd-ranges-refused") {
        headers.remove(RANGE);
    }
}

/// Whether the body is read whole before anything is done with it, as a document; objects and their
/// parts are stored as they come.
pub fn takes_document(method: &Method, uri: &Uri) -> bool {
    /// What else can be put of an object.
    const PARTS_OF_OBJECTS: [&str; 5] = ["acl", "legal-hold", "restore", "retention", "tagging"];
    let path = uri.path().trim_start_matches('/');
    let has_key = path.split_once('/').is_some_and(|(_, key)| !key.is_empty());
    let query = uri.query().unwrap_or_default();
    let mut names = query.split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    match *method {
        Method::PUT => !has_key || names.any(|name| PARTS_OF_OBJECTS.contains(&name)),
        _ => *method == Method::POST,
    }
}

/// What is said of a part of an object has the status of a part, also where the part itself is not sent.
pub fn of_a_part(response: &mut Response<Body>) {
    if response.status() == StatusCode::OK && response.headers().contains_key(CONTENT_RANGE) {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
}

/// Writes as references what XML cannot carry as it is, as S3 does: control characters of keys, and
/// the carriage returns that every reader makes line feeds of.
pub fn refer(response: &mut Response<Body>) {
    let is_xml = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/xml");
    let Some(document) = response.body().bytes().filter(|_| is_xml && !planted!("s3.raw-xml"))
    else {
        return;
    };
    let carries =
        |c: char| matches!(c, '\t' | '\n' | ' '..) && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let Ok(text) = std::str::from_utf8(&document) else { return };
    if text.chars().all(carries) {
        return;
    }
    let mut written = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if carries(c) {
            written.push(c);
        } else {
            written += &format!("&#x{:X};", u32::from(c));
        }
    }
    *response.body_mut() = Body::from(written);
}

/// What S3 says where the protocol's library says a code alone: clients print what is there.
pub fn explain(response: &mut Response<Body>) {
    const CODE: &str = "</Code>";
    if response.status().as_u16() < 300 {
        return;
    }
    let Some(document) = response.body().bytes() else { return };
    let Ok(text) = std::str::from_utf8(&document) else { return };
    let Some((head, rest)) = text.split_once(CODE) else { return };
    let Some((_, code)) = head.rsplit_once("<Code>") else { return };
    if rest.contains("<Message>") {
        return;
    }
    let message = match code {
        "InvalidBucketName" => "The specified bucket is not valid.",
        "InvalidRange" => "The requested range is not satisfiable",
        "KeyTooLongError" => "Your key is too long",
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published schema"
        }
        _ => "The request was refused for the reason that its code names",
    };
    let written = format!("{head}{CODE}<Message>{message}</Message>{rest}");
    *response.body_mut() = Body::from(written);
}

/// Ids of requests: no two of one start are the same, and of two starts hardly.
pub struct Ids {
    next: AtomicU64,
}

impl Ids {
    /// `first` is drawn at random, so that two starts do not give the same ids.
    pub fn new(first: u64) -> Ids {
        Ids { next: AtomicU64::new(first) }
    }

    /// Gives an answer its id: in a header and, if it is an error, in the document.
    pub fn mark(&self, response: &mut Response<Body>) -> String {
        // Odd, so that all numbers come before one comes again.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        const END: &[u8] = b"</Error>";
        let id = format!("{:016X}", self.next.fetch_add(STEP, Ordering::Relaxed));
        if response.status().as_u16() >= 300
            && let Some(body) = response.body().bytes()
            && let Some(document) = body.strip_suffix(END)
        {
            let element = format!("<RequestId>{id}</RequestId>");
            *response.body_mut() = Body::from([document, element.as_bytes(), END].concat());
        }
        if let Ok(id) = HeaderValue::try_from(id.as_str()) {
            response.headers_mut().insert("x-amz-request-id", id);
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    #[test]
    fn a_presigned_url_is_good_for_a_week_at_most() {
        let ask = |query: &str| {
            let uri: Uri = format!("/bucket/key?a=b&X-Amz-Expires={query}").parse().unwrap();
            check(&Method::GET, &uri, &HeaderMap::new())
                .map_err(|e| e.message().unwrap_or_default().to_owned())
        };
        assert_eq!(ask("604800"), Ok(()));
        assert_eq!(ask("0"), Ok(()));
        for (wrong, why) in [("604801", "week"), ("-1", "non-negative"), ("x", "number")] {
            assert!(ask(wrong).unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_signed_requests_amz_headers_are_all_signed() {
        const COPY: &str = "x-amz-copy-source";
        let ask = |query: &str, headers: &[(&'static str, &str)]| {
            let uri: Uri = format!("/bucket/key?{query}").parse().unwrap();
            let pair = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            check(&Method::PUT, &uri, &headers.iter().map(pair).collect()).is_ok()
        };
        let header = |list: &str| {
            format!(
                "AWS4-HMAC-SHA256 Credential=a/20261123/r/s3/aws4_request, SignedHeaders={list}, Signature=0"
            )
        };
        for list in ["host", "", "host;x-amz-copy-sourc", "host;x-amz-copy-source2"] {
            let query = format!("X-Amz-SignedHeaders={}", list.replace(';', "%3B"));
            assert!(!ask(&query, &[(COPY, "b/k")]), "{list}");
            assert!(!ask("", &[("authorization", &header(list)), (COPY, "b/k")]), "{list}");
            assert!(ask(&query, &[("content-type", "x"), ("x-holdfast-read", "latest")]));
        }
        let signed = "host;x-amz-copy-source;x-amz-date";
        assert!(ask("X-Amz-SignedHeaders=host%3Bx-amz-copy-source", &[(COPY, "b/k")]));
        assert!(ask("", &[("authorization", &header(signed)), (COPY, "b/k")]));
        assert!(ask("", &[("authorization", &header(signed).replace(", ", ",")), (COPY, "b/k")]));
        // The digest of the body and the time are signed as they are, listed or not.
        for always in [("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("x-amz-date", "d")] {
            assert!(ask("", &[("authorization", &header("host")), always]));
        }
        // However it is written, and where two lists are, in both.
        assert!(!ask("X-Amz%2DSignedHeaders=host", &[(COPY, "b/k")]));
        let both = [("authorization", &*header(signed)), (COPY, "b/k")];
        assert!(!ask("X-Amz-SignedHeaders=host", &both));
        // Nobody's request, and one of version 2, which covers all of them.
        assert!(ask("", &[(COPY, "b/k")]));
        assert!(ask("", &[("authorization", "AWS a:b"), (COPY, "b/k")]));
    }

    #[test]
    fn a_range_that_is_not_one_is_dropped_unless_it_is_signed() {
        let left = |query: &str, ranges: &[&'static str], list: &str| {
            let mut headers: HeaderMap =
                ranges.iter().map(|range| (RANGE, HeaderValue::from_static(range))).collect();
            if !list.is_empty() {
                let said =
                    format!("AWS4-HMAC-SHA256 Credential=a, SignedHeaders={list}, Signature=0");
                headers.insert(AUTHORIZATION, HeaderValue::try_from(said).unwrap());
            }
            let uri: Uri = format!("/bucket/key?{query}").parse().unwrap();
            let before = headers.clone();
            drop_odd_range(&uri, &mut headers);
            assert!(headers == before || !headers.contains_key(RANGE));
            headers.contains_key(RANGE)
        };
        for range in ["bytes=0-0", "bytes=5-", "bytes=-5", "bytes=0-99999999"] {
            assert!(left("", &[range], ""), "{range}");
        }
        let odd = [
            "bytes=0-1,4-5",
            "bytes=5-2",
            "bytes=",
            "lines=1-2",
            "0-5",
            "bytes=-",
            "bytes=a-b",
            "",
        ];
        for range in odd {
            assert!(!left("", &[range], "") && !left("", &[range], "host;x-amz-date"), "{range}");
            assert!(!left("X-Amz-SignedHeaders=host", &[range], ""), "{range}");
            assert!(left("", &[range], "host;range;x-amz-date"), "{range}");
            assert!(left("X-Amz-SignedHeaders=host%3Brange", &[range], ""), "{range}");
        }
        assert!(!left("", &["bytes=0-1", "bytes=0-1"], ""));
    }

    #[test]
    fn objects_and_their_parts_are_no_documents() {
        let takes = |method: Method, uri: &str| takes_document(&method, &uri.parse().unwrap());
        for uri in ["/b/k", "/b/a/b?partNumber=1&uploadId=7", "/b/k?versionId=acl"] {
            assert!(!takes(Method::PUT, uri) && !takes(Method::GET, uri), "{uri}");
        }
        for uri in ["/b", "/b/", "/b?policy", "/b/k?tagging", "/b/k?versionId=1&retention="] {
            assert!(takes(Method::PUT, uri), "{uri}");
        }
        assert!(takes(Method::POST, "/b?delete") && takes(Method::POST, "/b/k?uploadId=7"));
    }

    #[test]
    fn an_error_says_more_than_its_code() {
        let explained = |status: u16, text: &str| {
            let mut answer = Response::new(Body::from(text.to_owned()));
            *answer.status_mut() = StatusCode::from_u16(status).unwrap();
            explain(&mut answer);
            String::from_utf8(answer.body().bytes().unwrap().to_vec()).unwrap()
        };
        let bare = "<Error><Code>InvalidRange</Code></Error>";
        let full = "<Error><Code>InvalidRange</Code><Message>The requested range is not \
                    satisfiable</Message></Error>";
        assert_eq!(explained(416, bare), full);
        assert_eq!(explained(416, full), full);
        assert_eq!(explained(200, bare), bare);
        assert!(explained(400, "<Error><Code>Odd</Code></Error>").contains("<Message>The request"));
    }

    #[test]
    fn what_xml_cannot_carry_is_written_as_a_reference() {
        let written = |text: &str, kind: &'static str| {
            let mut answer = Response::new(Body::from(text.to_owned()));
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            refer(&mut answer);
            String::from_utf8(answer.body().bytes().unwrap().to_vec()).unwrap()
        };
        let key = "<Key>a\u{1}\r\n\t\u{ffff}\u{fc}\u{1f600}</Key>";
        let expected = "<Key>a&#x1;&#xD;\n\t&#xFFFF;\u{fc}\u{1f600}</Key>";
        assert_eq!(written(key, "application/xml"), expected);
        assert_eq!(written(key, "text/plain"), key);
    }

    #[test]
    fn errors_and_answers_have_an_id_of_their_own() {
        let ids = Ids::new(7);
        let mut answer = Response::new(Body::from("fine".to_owned()));
        ids.mark(&mut answer);
        assert_eq!(answer.headers()["x-amz-request-id"], "0000000000000007");
        assert_eq!(answer.body().bytes().unwrap(), "fine");
        let mut error = Response::new(Body::from("<Error><Code>C</Code></Error>".to_owned()));
        *error.status_mut() = StatusCode::NOT_FOUND;
        ids.mark(&mut error);
        let id = error.headers()["x-amz-request-id"].to_str().unwrap();
        let said = format!("<Error><Code>C</Code><RequestId>{id}</RequestId></Error>");
        assert_ne!(id, "0000000000000007");
        assert_eq!(error.body().bytes().unwrap(), said);
    }
}
