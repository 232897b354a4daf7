//! Forms of browsers (POST Object), read up to their file before the protocol's library takes them
//! over: it keeps the file's name to itself, does not ask whether a policy is of this bucket, and
//! reads the whole file into memory before it asks who sends it. Never keeps a file's bytes.

use crate::access::{Access, Asked, Caller, Peer};
use crate::incoming::broken;
use crate::trail::Note;
use bytes::Bytes;
use holdfast_blob::Pair;
use holdfast_env::budget::{Budget, Share};
use http_body::Frame;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use hyper::{HeaderMap, Method, Request, Uri};
use s3s::{Body, S3Result, s3_error};
use serde_json::Value;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What stands before the file; S3's own limit.
const FIELDS_BYTES_MAX: usize = 20 << 10;
/// Of a whole form: its file is in memory until it is stored.
pub const FORM_BYTES_MAX: u64 = 256 << 20;
/// Pieces in which the file is handed on: the library's search for the file's end keeps 64 KiB.
const PIECE_BYTES: usize = 32 << 10;

type Field = (String, String);

/// Goes with a form's request: what the library does not hand on.
#[derive(Clone, Debug, Default)]
pub struct Form {
    /// Of the new object.
    pub tags: Vec<Pair>,
    /// The request's headers, and fields that stand for others.
    headers: HeaderMap,
}

impl Form {
    /// Whether the caller may put what the form brings.
    pub fn check(
        &self,
        access: &Access,
        caller: &Caller,
        (bucket, key): (&str, &str),
        uri: &Uri,
    ) -> S3Result<()> {
        let (headers, tags) = (&self.headers, self.tags.as_slice());
        let operation = "PostObject";
        access
            .check_one(caller, &Asked { operation, bucket, key, version: None, headers, uri, tags })
    }
}

/// What a form's parts are divided by, if the request is a form.
pub fn boundary(method: &Method, headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok().filter(|_| *method == Method::POST)?;
    let (kind, parameters) = kind.split_once(';')?;
    let form = kind.trim().eq_ignore_ascii_case("multipart/form-data");
    let mut parameters = parameters.split(';').filter_map(|p| p.trim().split_once('='));
    let (_, found) = parameters.find(|(name, _)| name.eq_ignore_ascii_case("boundary"))?;
    Some(found.trim_matches('"').to_owned()).filter(|boundary| form && !boundary.is_empty())
}

/// A form as the library takes it, and the memory that its file may use while it is served. `place`
/// is its URI with the bucket in the path.
pub async fn receive<B>(
    access: &Access,
    budget: &Arc<Budget>,
    (place, boundary): (&Uri, &str),
    req: Request<B>,
) -> S3Result<(Request<Body>, Share)>
where
    B: http_body::Body<Data = Bytes, Error = std::io::Error> + Send + Sync + Unpin + 'static,
{
    let (mut parts, mut body) = req.into_parts();
    let bucket = place.path().trim_matches('/').to_owned();
    if bucket.contains('/') {
        return Err(s3_error!(
            MethodNotAllowed,
            "a form is for a bucket, and names the key itself"
        ));
    }
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    let Some(length) = length else {
        return Err(s3_error!(MissingContentLength, "a form says how long it is"));
    };
    if length > FORM_BYTES_MAX {
        return Err(s3_error!(EntityTooLarge, "a form brings at most {FORM_BYTES_MAX} bytes"));
    }
    let mut read = Vec::new();
    let mut top = loop {
        match Top::parse(&read, boundary)? {
            Some(top) if top.file_at <= FIELDS_BYTES_MAX => break top,
            None if read.len() <= FIELDS_BYTES_MAX => {}
            _ => {
                return Err(s3_error!(
                    MaxPostPreDataLengthExceededError,
                    "the fields before the file take at most {FIELDS_BYTES_MAX} bytes"
                ));
            }
        }
        match std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(frame) => {
                read.extend(frame.map_err(|e| broken(&e))?.into_data().unwrap_or_default())
            }
            None => return Err(malformed()),
        }
    };
    for (_, value) in &mut top.fields {
        *value = value.replace("${filename}", &top.file_name);
    }
    let key = top.check(&bucket)?;
    if let Some(note) = parts.extensions.get::<Note>() {
        note.key(&key);
    }
    let tags = crate::tags::of_form(top.field("tagging"))?;
    let form = Form { tags, headers: top.headers(&parts.headers) };
    if top.field("policy").is_none() {
        // Before the file is read; who signed is found out by the library, also before.
        let peer = parts.extensions.get::<Peer>().copied();
        form.check(access, &Caller { peer, ..Caller::default() }, (&bucket, &key), place)?;
    }
    let share = crate::incoming::share_of(budget, length)?;
    parts.extensions.insert(form);
    let head = top.write(boundary, &read);
    let body = Body::http_body(Resumed { head: Bytes::from(head), rest: body });
    Ok((Request::from_parts(parts, body), share))
}

fn malformed() -> s3s::S3Error {
    s3_error!(MalformedPOSTRequest, "the body is not a form of fields and a file")
}

/// What stands before the file's bytes.
struct Top {
    fields: Vec<Field>,
    file_name: String,
    file_at: usize,
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// A parameter of a part's `Content-Disposition`.
fn parameter<'h>(header: &'h str, name: &str) -> Option<&'h str> {
    let start = format!("{name}=\"");
    let (at, _) =
        header.match_indices(&start).find(|(at, _)| header[..*at].ends_with([' ', ';']))?;
    header[at + start.len()..].split('"').next()
}

/// A part's name, and the file's.
fn names(headers: &[u8]) -> Option<(&str, &str)> {
    let mut lines = std::str::from_utf8(headers).ok()?.split("\r\n");
    let header = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    // Some say where the file was: its name is behind the last slash.
    let path = parameter(header, "filename").unwrap_or_default();
    Some((parameter(header, "name")?, path.rsplit(['/', '\\']).next().unwrap_or_default()))
}

impl Top {
    /// With the fields that other requests say in headers.
    fn headers(&self, headers: &HeaderMap) -> HeaderMap {
        let mut headers = headers.clone();
        for (name, value) in &self.fields {
            let name = if name == "acl" { "x-amz-acl" } else { name.as_str() };
            if name.starts_with("x-amz-")
                && let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse())
            {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// `None` while there is more to come.
    fn parse(bytes: &[u8], boundary: &str) -> S3Result<Option<Top>> {
        let (line, close) = (format!("--{boundary}\r\n"), format!("\r\n--{boundary}"));
        let mut fields = Vec::new();
        let mut at = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
        loop {
            let rest = &bytes[at..];
            if !rest.starts_with(line.as_bytes()) {
                if line.as_bytes().starts_with(rest) {
                    return Ok(None);
                }
                if rest.starts_with(format!("--{boundary}--").as_bytes()) {
                    return Err(s3_error!(
                        IncorrectNumberOfFilesInPostRequest,
                        "the form has no file"
                    ));
                }
                return Err(malformed());
            }
            at += line.len();
            let Some(headers) = find(&bytes[at..], b"\r\n\r\n") else { return Ok(None) };
            let (name, file_name) = names(&bytes[at..at + headers]).ok_or_else(malformed)?;
            at += headers + 4;
            if name.eq_ignore_ascii_case("file") {
                return Ok(Some(Top { fields, file_name: file_name.to_owned(), file_at: at }));
            }
            let Some(value) = find(&bytes[at..], close.as_bytes()) else { return Ok(None) };
            let text = std::str::from_utf8(&bytes[at..at + value]).map_err(|_| malformed())?;
            fields.push((name.to_owned(), text.to_owned()));
            at += value + 2;
        }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter().rev();
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// What the library lets pass; the key that the form is for.
    fn check(&self, bucket: &str) -> S3Result<String> {
        let needs = |name: &str| {
            let found = self.field(name).filter(|value| !value.is_empty());
            found.ok_or_else(|| s3_error!(InvalidArgument, "a form has a field named `{name}`"))
        };
        let key = needs("key")?.to_owned();
        crate::settings::check_acl(self.field("acl"))?;
        let Some(policy) = self.field("policy") else { return Ok(key) };
        if self.field("x-amz-signature").is_none() {
            needs("signature")?;
        }
        let policy = crate::hash::decode_base64(policy).unwrap_or_default();
        // What is wrong with the document itself the library says.
        let policy: Value = serde_json::from_slice(&policy).unwrap_or_default();
        let conditions = policy.get("conditions").and_then(Value::as_array);
        let one_field = |c: &Value| c.as_object().is_none_or(|pairs| pairs.len() == 1);
        if !conditions.into_iter().flatten().all(one_field) {
            return Err(s3_error!(InvalidPolicyDocument, "a condition is of one field"));
        }
        let mut names_bucket = false;
        for (op, name, wanted) in conditions.into_iter().flatten().filter_map(condition) {
            let value = if name == "bucket" { Some(bucket) } else { self.field(&name) };
            names_bucket |= name == "bucket";
            let met = match op.as_str() {
                "eq" => value == Some(&wanted),
                "starts-with" => value.unwrap_or_default().starts_with(&wanted),
                _ => true,
            };
            if !met {
                return Err(s3_error!(
                    AccessDenied,
                    "Invalid according to Policy: Policy Condition failed: [\"{op}\", \"${name}\", \"{wanted}\"]"
                ));
            }
        }
        if conditions.is_some() && !names_bucket {
            return Err(s3_error!(
                AccessDenied,
                "Invalid according to Policy: Extra input fields: bucket"
            ));
        }
        Ok(key)
    }

    /// The fields again, and what was read of the file.
    fn write(&self, boundary: &str, read: &[u8]) -> Vec<u8> {
        const PART: &str = "Content-Disposition: form-data; name";
        let mut out = String::new();
        for (name, value) in &self.fields {
            out.push_str(&format!("--{boundary}\r\n{PART}=\"{name}\"\r\n\r\n{value}\r\n"));
        }
        out.push_str(&format!("--{boundary}\r\n{PART}=\"file\"\r\n\r\n"));
        [out.as_bytes(), &read[self.file_at..]].concat()
    }
}

/// What a condition of a policy asks of a field: how, which one, for what.
fn condition(condition: &Value) -> Option<(String, String, String)> {
    let (op, name, wanted) = match condition {
        Value::Object(pairs) => {
            let (name, wanted) = pairs.iter().next()?;
            ("eq", name.as_str(), wanted)
        }
        Value::Array(list) => {
            (list.first()?.as_str()?, list.get(1)?.as_str()?.strip_prefix('$')?, list.get(2)?)
        }
        _ => return None,
    };
    Some((op.to_ascii_lowercase(), name.to_ascii_lowercase(), wanted.as_str()?.to_owned()))
}

/// A body whose beginning was read, in pieces of a size that the library takes.
struct Resumed<B> {
    head: Bytes,
    rest: B,
}

impl<B> http_body::Body for Resumed<B>
where
    B: http_body::Body<Data = Bytes, Error = std::io::Error> + Unpin,
{
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.head.is_empty() {
            match Pin::new(&mut self.rest).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => self.head = frame.into_data().unwrap_or_default(),
                other => return other,
            }
        }
        let piece = self.head.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.head.split_to(piece)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "--edge\r\nContent-Disposition: form-data; name=\"key\"; filename=\"key\"\r\n\
        \r\nup/${filename}\r\n--edge\r\ncontent-disposition: form-data; name=\"Acl\"\r\n\r\nprivate\r\n\
        --edge\r\nContent-Type: a/b\r\nContent-Disposition: form-data; name=\"file\"; \
        filename=\"C:\\x\\cat.jpg\"\r\n\r\nbytes";

    #[test]
    fn a_form_is_read_as_soon_as_its_file_begins_and_not_before() {
        let whole = FORM.len() - "bytes".len();
        for end in 0..whole {
            assert!(Top::parse(&FORM.as_bytes()[..end], "edge").unwrap().is_none(), "{end}");
        }
        let top = Top::parse(&FORM.as_bytes()[..whole], "edge").unwrap().unwrap();
        assert_eq!((top.file_at, top.file_name.as_str()), (whole, "cat.jpg"));
        assert_eq!((top.field("KEY"), top.field("acl")), (Some("up/${filename}"), Some("private")));
        let again = top.write("edge", FORM.as_bytes());
        let twice = Top::parse(&again, "edge").unwrap().unwrap();
        assert_eq!(twice.fields, top.fields);
        assert!(again.ends_with(b"\r\n\r\nbytes"));
        for wrong in ["x", "--edgy\r\n", "--edge\r\nA: b\r\n\r\n", "--edge--\r\n"] {
            assert!(Top::parse(wrong.as_bytes(), "edge").is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_policy_is_of_its_bucket_and_names_what_the_form_says() {
        let judge = |conditions: &str, fields: &[(&str, &str)]| {
            let policy = format!("{{\"conditions\": {conditions}}}");
            let policy = crate::hash::encode_base64(policy.as_bytes());
            let own = [("policy", policy.as_str()), ("signature", "s"), ("key", "a/b")];
            let fields = own.iter().chain(fields).map(|(n, v)| (n.to_string(), v.to_string()));
            let top = Top { fields: fields.collect(), file_name: String::new(), file_at: 0 };
            top.check("photos").map_err(|e| e.code().as_str().to_owned())
        };
        let denied = Err("AccessDenied".to_owned());
        let ours = r#"[{"bucket": "photos"}, ["Starts-With", "$Key", "a/"]]"#;
        assert_eq!(judge(ours, &[]), Ok("a/b".into()));
        assert_eq!(judge(r#"[{"bucket": "other"}]"#, &[]), denied);
        assert_eq!(judge(r#"[["starts-with", "$key", "a/"]]"#, &[]), denied, "of any bucket");
        assert_eq!(judge(r#"[{"bucket": "photos"}, ["eq", "$key", "a"]]"#, &[]), denied);
        assert_eq!(judge(r#"[{"bucket": "photos"}, ["eq", "$x-amz-meta-a", ""]]"#, &[]), denied);
        let acl = judge(ours, &[("acl", "public-read")]);
        assert_eq!(acl, Err("AccessControlListNotSupported".into()));
    }
}
