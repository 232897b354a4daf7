//! A walk over S3: keys drawn from all of Unicode through every operation that names keys, and
//! conditions on operations that know none.

use super::common::Scratch;
use super::photos::{client, put, send};
use super::s3::{credentials, start};
use holdfast_env::{Rng, SeededRng};
use holdfast_s3::{Client, Request, element, elements, percent_decode};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Characters of every kind that a key may have: controls, what XML cannot carry, what it marks,
/// what URLs mark, and the far planes.
const CHARACTERS: &[char] = &[
    '\u{1}',
    '\u{8}',
    '\t',
    '\n',
    '\u{b}',
    '\r',
    '\u{1f}',
    ' ',
    '!',
    '"',
    '#',
    '%',
    '&',
    '\'',
    '*',
    '+',
    '<',
    '=',
    '>',
    '?',
    'a',
    '~',
    '\u{7f}',
    '\u{80}',
    '\u{85}',
    '\u{a0}',
    '\u{fc}',
    '\u{2028}',
    '\u{d7ff}',
    '\u{e000}',
    '\u{fffd}',
    '\u{fffe}',
    '\u{ffff}',
    '\u{1f600}',
    '\u{10ffff}',
];

fn keys() -> Vec<String> {
    let rng = SeededRng::new(1);
    let draw = |n: usize| (rng.next_u64() % n as u64) as usize;
    let mut keys: Vec<String> = CHARACTERS.iter().map(|c| format!("k{c}k")).collect();
    for _ in 0..30 {
        let any = |_| match draw(3) {
            0 => CHARACTERS[draw(CHARACTERS.len())],
            _ => char::from_u32(1 + draw(0x10ffff) as u32).unwrap_or('x'),
        };
        keys.push(format!("r{}", (0..1 + draw(20)).map(any).collect::<String>()));
    }
    keys
}

fn encoded(key: &str) -> String {
    key.bytes().map(|b| format!("%{b:02X}")).collect()
}

/// As a document has it.
fn escaped(key: &str) -> String {
    let carries =
        |c: char| matches!(c, '\t' | '\n' | ' '..) && !matches!(c, '\u{fffe}' | '\u{ffff}');
    key.chars()
        .map(|c| match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            '\'' => "&apos;".to_owned(),
            c if carries(c) => c.to_string(),
            c => format!("&#x{:X};", u32::from(c)),
        })
        .collect()
}

fn listed(client: &mut Client, url: bool) -> String {
    let mut request = Request::new("GET", "/walk").with("list-type", "2");
    if url {
        request = request.with("encoding-type", "url");
    }
    send(client, request).text()
}

/// `DeleteObjects` of a key with a control character deleted it, and answered what no reader of XML
/// takes: whoever asked could not know what had become of any of his keys.
#[test]
fn keys_of_all_of_unicode_go_through_every_operation() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let mut client = client(&node.data);
    put(&mut client, "/walk", b"");
    let keys = keys();
    for key in &keys {
        let path = format!("/walk/{key}");
        put(&mut client, &path, key.as_bytes());
        assert_eq!(send(&mut client, Request::new("GET", &path)).body, key.as_bytes(), "{key:?}");
        assert_eq!(client.send(&Request::new("HEAD", &path)).unwrap().status, 200);
        let mut copy = Request::new("PUT", format!("/walk/copy-{key}"));
        copy.headers.push(("x-amz-copy-source", format!("/walk/{}", encoded(key))));
        send(&mut client, copy);
        let begun = send(&mut client, Request::new("POST", &path).with("uploads", "")).text();
        assert!(begun.contains(&format!("<Key>{}</Key>", escaped(key))), "{key:?}: {begun}");
        let upload = element(&begun, "UploadId").unwrap();
        let ended = Request::new("DELETE", &path).with("uploadId", upload);
        assert_eq!(client.send(&ended).unwrap().status, 204);
    }
    let (plain, url) = (listed(&mut client, false), listed(&mut client, true));
    let shown: Vec<String> = elements(&url, "Key")
        .iter()
        .map(|key| percent_decode(key).expect("percent-encoded"))
        .collect();
    for key in keys.iter().flat_map(|key| [key.clone(), format!("copy-{key}")]) {
        assert!(shown.contains(&key), "{key:?} is not listed");
        assert!(plain.contains(&format!("<Key>{}</Key>", escaped(&key))), "{key:?}");
    }
    for key in &keys {
        // References to what XML has no place for are refused, before anything is deleted.
        let body = format!("<Delete><Object><Key>{}</Key></Object></Delete>", escaped(key));
        let request = Request::new("POST", "/walk").with("delete", "");
        let done = client.send(&Request { body: body.as_bytes(), ..request }).unwrap();
        let there = client.send(&Request::new("HEAD", format!("/walk/{key}"))).unwrap().status;
        match done.status {
            200 => {
                let said = done.text();
                assert!(said.contains(&format!("<Deleted><Key>{}</Key>", escaped(key))), "{said}");
                assert_eq!(there, 404, "{key:?}");
            }
            status => assert_eq!((status, there), (400, 200), "{key:?}: {}", done.text()),
        }
        let copy = Request::new("DELETE", format!("/walk/copy-{key}"));
        assert_eq!(client.send(&copy).unwrap().status, 204);
    }
    // As it is, where XML forbids it.
    put(&mut client, "/walk/c\u{1}d", b"x");
    let body = "<Delete><Object><Key>c\u{1}d</Key></Object></Delete>";
    let request = Request::new("POST", "/walk").with("delete", "");
    let done = send(&mut client, Request { body: body.as_bytes(), ..request }).text();
    assert!(done.contains("<Deleted><Key>c&#x1;d</Key></Deleted>"), "{done}");
    drop(client);
    node.stop();
}

/// A delete with a condition that was not understood was a delete.
#[test]
fn a_delete_does_as_its_condition_says_or_says_that_it_does_not_know_it() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let mut client = client(&node.data);
    put(&mut client, "/walk", b"");
    let enabled = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let request = Request::new("PUT", "/walk").with("versioning", "");
    send(&mut client, Request { body: enabled.as_bytes(), ..request });
    put(&mut client, "/walk/a", b"x");
    let head = client.send(&Request::new("HEAD", "/walk/a")).unwrap();
    let version = head.header("x-amz-version-id").unwrap().to_owned();
    let etag = head.header("etag").unwrap().to_owned();
    let past = "Mon, 01 Jan 2001 00:00:00 GMT";
    for (name, value, status) in [
        ("if-match", "\"nonsense\"", 412),
        ("if-none-match", "*", 501),
        ("if-modified-since", past, 501),
        ("if-unmodified-since", past, 501),
        ("x-amz-if-match-size", "7", 501),
        ("x-amz-if-match-last-modified-time", past, 501),
        ("x-amz-mfa", "1 2", 501),
        ("x-amz-expected-bucket-owner", "somebody", 403),
    ] {
        for version in [None, Some(&version)] {
            let mut request = Request::new("DELETE", "/walk/a");
            if let Some(version) = version {
                request = request.with("versionId", version.clone());
            }
            request.headers.push((name, value.to_owned()));
            let done = client.send(&request).unwrap();
            assert_eq!(done.status, status, "{name}: {}", done.text());
            assert!(status != 501 || done.text().contains(name), "{}", done.text());
        }
    }
    for condition in ["<Size>7</Size>", "<ETag>nonsense</ETag>"] {
        for version in [String::new(), format!("<VersionId>{version}</VersionId>")] {
            let body =
                format!("<Delete><Object><Key>a</Key>{version}{condition}</Object></Delete>");
            let request = Request::new("POST", "/walk").with("delete", "");
            let done = client.send(&Request { body: body.as_bytes(), ..request }).unwrap();
            assert!(!done.text().contains("<Deleted>"), "{condition}: {}", done.text());
        }
    }
    assert_eq!(send(&mut client, Request::new("GET", "/walk/a")).body, b"x", "it is still there");
    let mut request = Request::new("DELETE", "/walk/a").with("versionId", version);
    request.headers.push(("if-match", etag));
    assert_eq!(client.send(&request).unwrap().status, 204);
    assert_eq!(client.send(&Request::new("HEAD", "/walk/a")).unwrap().status, 404);
    drop(client);
    node.stop();
}

/// Two hundred strangers announced nineteen megabytes of keys to delete, sent them, and never the
/// last byte: all of it was kept for them, to be refused once it was whole.
#[test]
fn a_stranger_s_keys_to_delete_are_not_waited_for() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let mut client = client(&node.data);
    put(&mut client, "/walk", b"");
    let (endpoint, ..) = credentials(&node.data);
    let mut stranger = TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
    let head = "POST /walk?delete HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n";
    stranger.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stranger.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 403");
    drop(client);
    node.stop();
}
