//! `holdfast blob import`: brings over another S3 service or a directory. What is there already,
//! with the same size and hash, is passed over; so an import that was broken off goes on. Every
//! object is compared after it was written: by its hash, or by its size where the source has none.
//! What does not come over (older versions, policies, locks ...) is said by name and counted.

use crate::blob::{self, Import};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_s3::{Client, Credentials, Request, element, elements};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Default)]
struct Totals {
    copied: u64,
    bytes: u64,
    passed: u64,
    /// What was not brought over, and how much of it.
    left_out: BTreeMap<String, u64>,
}

impl Totals {
    fn leave_out(&mut self, bucket: &str, what: &str, count: u64) {
        if count > 0 {
            *self.left_out.entry(format!("{what} of `{bucket}`")).or_default() += count;
        }
    }
}

/// `authorities` is a file of those that are trusted beside the system's.
pub fn run(
    to: &mut Client,
    import: &Import,
    authorities: Option<&Path>,
    out: &mut Output,
) -> Result<()> {
    let mut totals = Totals::default();
    if import.from.contains("://") {
        let credentials = Credentials {
            access_key: import.source_access_key.clone(),
            secret_key: import.source_secret_key.clone(),
            endpoint: import.from.clone(),
        };
        let mut from = Client::trusting(&credentials, &import.source_region, authorities)?;
        let buckets = match &import.bucket {
            Some(bucket) => vec![bucket.clone()],
            None => {
                let answer =
                    from.send(&Request::new("GET", "/"))?.ok("list the source's buckets")?;
                let text = answer.text();
                elements(&text, "Bucket").iter().filter_map(|b| element(b, "Name")).collect()
            }
        };
        for bucket in buckets {
            service(&mut from, to, &bucket, &mut totals)?;
        }
    } else {
        let bucket = import.bucket.as_deref().ok_or_else(|| {
            Error::invalid("import a directory: name the bucket for its files with `--bucket`")
        })?;
        make(to, bucket)?;
        let there = listed(to, bucket)?;
        directory(to, bucket, Path::new(&import.from), "", &there, &mut totals)?;
    }
    let Totals { copied, bytes, passed, left_out } = totals;
    let text = || {
        let mut text =
            format!("{copied} objects copied ({bytes} bytes), {passed} were there already");
        for (what, count) in &left_out {
            text += &format!("\nleft out: {count} {what}");
        }
        text
    };
    out.line(
        text,
        || json!({"copied": copied, "bytes": bytes, "passed": passed, "left_out": left_out}),
    )
}

fn make(to: &mut Client, bucket: &str) -> Result<()> {
    let made = to.send(&Request::new("PUT", format!("/{bucket}")))?;
    match made.status {
        409 => Ok(()),
        _ => made.ok(format_args!("make bucket `{bucket}`")).map(drop),
    }
}

/// Size and hash of everything in a bucket.
fn listed(client: &mut Client, bucket: &str) -> Result<BTreeMap<String, (u64, String)>> {
    let (mut found, mut token) = (BTreeMap::new(), None);
    loop {
        let (keys, _, next) = blob::page(client, (bucket, "", ""), token)?;
        found.extend(keys.into_iter().map(|k| (k.key, (k.size, k.etag))));
        if next.is_none() {
            return Ok(found);
        }
        token = next;
    }
}

/// Headers that go over with an object.
fn carried(name: &str) -> bool {
    const NAMES: [&str; 6] = [
        "content-type",
        "content-encoding",
        "content-disposition",
        "content-language",
        "cache-control",
        "expires",
    ];
    NAMES.contains(&name) || name.starts_with("x-amz-meta-")
}

/// An ETag that is the MD5 of the bytes.
fn is_hash(etag: &str) -> bool {
    etag.len() == 32 && etag.bytes().all(|b| b.is_ascii_hexdigit())
}

fn service(from: &mut Client, to: &mut Client, bucket: &str, totals: &mut Totals) -> Result<()> {
    make(to, bucket)?;
    let there = listed(to, bucket)?;
    let mut token = None;
    loop {
        let (keys, _, next) = blob::page(from, (bucket, "", ""), token)?;
        for found in keys {
            let same = there.get(&found.key).is_some_and(|(size, etag)| {
                *size == found.size && (*etag == found.etag || !is_hash(&found.etag))
            });
            if same {
                totals.passed += 1;
                continue;
            }
            copy(from, to, bucket, &found, totals)?;
            totals.copied += 1;
            totals.bytes += found.size;
        }
        if next.is_none() {
            return settings(from, to, bucket, totals);
        }
        token = next;
    }
}

/// What a bucket is told beside its objects: versioning goes over, the rest is left out by name.
fn settings(from: &mut Client, to: &mut Client, bucket: &str, totals: &mut Totals) -> Result<()> {
    let place = format!("/{bucket}");
    let versioning = from.send(&Request::new("GET", place.clone()).with("versioning", ""))?;
    let state = element(&versioning.text(), "Status").filter(|_| versioning.status == 200);
    if let Some(state) = state {
        let body =
            format!("<VersioningConfiguration><Status>{state}</Status></VersioningConfiguration>");
        let request = Request::new("PUT", place.clone()).with("versioning", "");
        to.send(&Request { body: body.as_bytes(), ..request })?
            .ok(format_args!("set versioning of `{bucket}` to `{state}`"))?;
        let older = older(from, &place)?;
        totals.leave_out(bucket, "older versions and delete markers", older);
    }
    for (setting, what) in [
        ("policy", "policy"),
        ("lifecycle", "lifecycle rules"),
        ("cors", "CORS rules"),
        ("tagging", "tags"),
        ("publicAccessBlock", "public access block"),
        ("object-lock", "object lock configuration"),
        ("encryption", "encryption"),
        ("notification", "notifications"),
        ("replication", "replication"),
        ("website", "website"),
        ("logging", "logging"),
    ] {
        let found = from.send(&Request::new("GET", place.clone()).with(setting, ""))?;
        // Some say 200 with an empty document.
        let is_set = found.status == 200 && !is_empty(&found.text());
        totals.leave_out(bucket, what, u64::from(is_set));
    }
    Ok(())
}

/// Whether a document says nothing: no element but its own.
fn is_empty(document: &str) -> bool {
    let elements = document.matches('<').count() - document.matches("<?").count();
    document.trim().is_empty() || !document.trim_start().starts_with('{') && elements <= 2
}

/// Versions that no key shows any more, and delete markers.
fn older(from: &mut Client, place: &str) -> Result<u64> {
    let (mut count, mut after) = (0, None::<(String, String)>);
    loop {
        let mut request = Request::new("GET", place.to_owned()).with("versions", "");
        if let Some((key, version)) = &after {
            request = request.with("key-marker", key.clone());
            request = request.with("version-id-marker", version.clone());
        }
        let text = from.send(&request)?.ok("list the source's versions")?.text();
        let versions = elements(&text, "Version");
        let is_older = |v: &&&str| element(v, "IsLatest").as_deref() != Some("true");
        count += versions.iter().filter(is_older).count() as u64;
        count += elements(&text, "DeleteMarker").len() as u64;
        let next = element(&text, "NextKeyMarker").filter(|key| !key.is_empty());
        let Some(next) = next else { return Ok(count) };
        after = Some((next, element(&text, "NextVersionIdMarker").unwrap_or_default()));
    }
}

/// An object's tags, as a request's header has them.
fn tags(from: &mut Client, path: &str) -> Result<String> {
    let request = Request::new("GET", path.to_owned()).with("tagging", "");
    let text = from.send(&request)?.ok(format_args!("read the tags of `{path}`"))?.text();
    let encoded = |text: Option<String>| -> String {
        let bytes = text.unwrap_or_default().into_bytes();
        bytes
            .iter()
            .map(|b| match b {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => char::from(*b).to_string(),
                other => format!("%{other:02X}"),
            })
            .collect()
    };
    let tag =
        |tag: &&str| format!("{}={}", encoded(element(tag, "Key")), encoded(element(tag, "Value")));
    Ok(elements(&text, "Tag").iter().map(tag).collect::<Vec<_>>().join("&"))
}

fn copy(
    from: &mut Client,
    to: &mut Client,
    bucket: &str,
    found: &blob::Listed,
    totals: &mut Totals,
) -> Result<()> {
    let path = format!("/{bucket}/{}", found.key);
    let doing = || format!("import `{path}`");
    // On disk, not in memory: an object may have gigabytes.
    let mut body = unnamed_file().map_err(|e| Error::from(e).context(doing()))?;
    let got = from.download(&Request::new("GET", path.clone()), &mut body)?.ok(doing())?;
    let bytes = std::io::Seek::stream_position(&mut body)?;
    std::io::Seek::rewind(&mut body)?;
    let mut request = Request::new("PUT", path.clone());
    let headers: Vec<(String, String)> =
        got.headers.iter().filter(|(name, _)| carried(name)).cloned().collect();
    request.headers = headers.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
    if got.header("x-amz-tagging-count").is_some_and(|count| count != "0") {
        request.headers.push(("x-amz-tagging", tags(from, &path)?));
    }
    let is_locked = got.headers.iter().any(|(name, _)| name.starts_with("x-amz-object-lock-"));
    totals.leave_out(bucket, "locks and legal holds", u64::from(is_locked));
    let put = to.upload(&request, bytes, &mut body)?.ok(doing())?;
    let etag = put.header("etag").unwrap_or_default().trim_matches('"');
    if bytes != found.size || (is_hash(&found.etag) && etag != found.etag) {
        return Err(Error::corrupt(format!(
            "{}: {bytes} bytes with hash `{etag}` arrived, {} with `{}` were announced: it may have changed meanwhile; import again",
            doing(),
            found.size,
            found.etag
        )));
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a temporary file of this command's own")]
fn unnamed_file() -> std::io::Result<std::fs::File> {
    let path = std::env::temp_dir().join(format!("holdfast-import-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[expect(clippy::disallowed_methods, reason = "a directory that the user named")]
fn directory(
    to: &mut Client,
    bucket: &str,
    at: &Path,
    prefix: &str,
    there: &BTreeMap<String, (u64, String)>,
    totals: &mut Totals,
) -> Result<()> {
    let doing =
        |e: std::io::Error| Error::from(e).context(format_args!("import `{}`", at.display()));
    let mut entries: Vec<_> =
        std::fs::read_dir(at).map_err(doing)?.collect::<std::io::Result<_>>().map_err(doing)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| {
            Error::invalid(format!("import `{}`: its name is not UTF-8", entry.path().display()))
        })?;
        let kind = entry.file_type().map_err(doing)?;
        if kind.is_dir() {
            directory(to, bucket, &entry.path(), &format!("{prefix}{name}/"), there, totals)?;
            continue;
        }
        if !kind.is_file() {
            continue;
        }
        let key = format!("{prefix}{name}");
        let mut file = std::fs::File::open(entry.path()).map_err(doing)?;
        let bytes = file.metadata().map_err(doing)?.len();
        if there.get(&key).is_some_and(|(size, _)| *size == bytes) {
            totals.passed += 1;
            continue;
        }
        let request = Request::new("PUT", format!("/{bucket}/{key}"));
        to.upload(&request, bytes, &mut file)?.ok(format_args!("import `{key}`"))?;
        totals.copied += 1;
        totals.bytes += bytes;
    }
    Ok(())
}
