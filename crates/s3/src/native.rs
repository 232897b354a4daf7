//! Haystack's own way: an object by its pointer, `GET /n/CHUNK,SLOT,COOKIE`. One read of a disk and
//! no look-up of a name. Who knows the cookie may read: that is what it is for.

use crate::outgoing::bytes_of;
use holdfast_base::ids::{ChunkId, Cookie, Pointer, Slot};
use holdfast_base::{Error, Kind};
use holdfast_blob::{Blobs, Object, Trailer};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use s3s::Body;

/// What such paths begin with. No bucket is called that: its name is too short.
pub const PREFIX: &str = "/n/";

/// Says in an answer where an object's only needle is.
pub fn point(object: &Object, headers: &mut HeaderMap) {
    if let [only] = object.extents.as_slice()
        && let Ok(pointer) = HeaderValue::from_str(&only.pointer.to_string())
    {
        headers.insert(HeaderName::from_static("x-holdfast-pointer"), pointer);
    }
}

/// The inverse of a pointer's text: `c0.12,7,0badcafe`.
fn parse(text: &str) -> Option<Pointer> {
    let mut parts = text.split(',');
    let (shard, counter) = parts.next()?.strip_prefix('c')?.split_once('.')?;
    let counter: u64 = counter.parse().ok().filter(|c| c >> ChunkId::COUNTER_BITS == 0)?;
    let chunk = ChunkId::new(shard.parse().ok()?, counter);
    let slot = Slot(parts.next()?.parse().ok()?);
    let cookie = parts.next().filter(|cookie| cookie.len() == 8)?;
    let cookie = Cookie(u32::from_str_radix(cookie, 16).ok()?);
    parts.next().is_none().then_some(Pointer { chunk, slot, cookie })
}

/// Answers `GET` and `HEAD`, of the whole object.
pub fn answer(blobs: &Blobs, method: &Method, path: &str) -> Response<Body> {
    if *method != Method::GET && *method != Method::HEAD {
        return refuse(
            StatusCode::METHOD_NOT_ALLOWED,
            "an object is read by its pointer, nothing else",
        );
    }
    // Some clients encode the commas.
    let decoded = path.strip_prefix(PREFIX).and_then(crate::tags::percent_decode);
    let Some(pointer) = decoded.and_then(|text| parse(&text)) else {
        return refuse(StatusCode::BAD_REQUEST, "a pointer is CHUNK,SLOT,COOKIE");
    };
    let (trailer, data) = match blobs.read_pointer(pointer) {
        Ok(read) => read,
        Err(e) => return refuse(status(&e), &e.message),
    };
    let (content_type, etag) = match trailer {
        Trailer::Whole { object, .. } if object.extents.is_empty() => {
            (object.head.content_type, object.etag)
        }
        Trailer::Alternate { alternate, .. } => (alternate.content_type, alternate.etag),
        _ => return refuse(StatusCode::NOT_FOUND, "the needle is a part of an object"),
    };
    let content_type = match content_type.as_str() {
        "" => "binary/octet-stream",
        kind => kind,
    };
    let mut response = Response::new(Body::from(bytes_of(data)));
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (ETAG, &format!("\"{etag}\"")),
        // What a pointer leads to never changes.
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    response
}

fn status(e: &Error) -> StatusCode {
    match e.kind {
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Kind::Retry => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn refuse(status: StatusCode, why: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{why}\n")));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointers_text_comes_back_and_nothing_else_is_one() {
        let pointer = Pointer { chunk: ChunkId::new(3, 12), slot: Slot(7), cookie: Cookie(0xbad) };
        assert_eq!(parse(&pointer.to_string()), Some(pointer));
        for bad in [
            "",
            "c3.12,7",
            "c3.12,7,bad",
            "3.12,7,00000bad",
            "c3.12,7,00000bad,",
            "c3.x,7,00000bad",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
