//! `holdfast blob import`: brings over another S3 service or a directory. What is there already,
//! with the same size and hash, is passed over; so an import that was broken off goes on. Every
//! object is compared after it was written: by its hash, or by its size where the source has none.

use crate::blob::{self, Import};
use crate::output::Output;
use holdfast_base::{Error, Result};
use holdfast_s3::{Client, Credentials, Request, element, elements};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Default)]
struct Totals {
    copied: u64,
    bytes: u64,
    passed: u64,
}

pub fn run(to: &mut Client, import: &Import, out: &mut Output) -> Result<()> {
    let mut totals = Totals::default();
    if import.from.starts_with("http://") {
        let mut from = blob::client(&Credentials {
            access_key: import.source_access_key.clone(),
            secret_key: import.source_secret_key.clone(),
            endpoint: import.from.clone(),
        })?;
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
    let Totals { copied, bytes, passed } = totals;
    out.line(
        || format!("{copied} objects copied ({bytes} bytes), {passed} were there already"),
        || json!({"copied": copied, "bytes": bytes, "passed": passed}),
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
            copy(from, to, bucket, &found)?;
            totals.copied += 1;
            totals.bytes += found.size;
        }
        if next.is_none() {
            return Ok(());
        }
        token = next;
    }
}

fn copy(from: &mut Client, to: &mut Client, bucket: &str, found: &blob::Listed) -> Result<()> {
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
