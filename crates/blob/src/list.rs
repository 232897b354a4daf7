//! Listings: keys, versions, uploads, parts, in S3's order and pages, read from the rows.

use crate::index::Look;
use crate::model::{Object, Part, Upload};
use crate::names::decoded;
use crate::service::{Answer, Blobs};
use crate::{rows, version_name};
use holdfast_base::Result;
use holdfast_base::codec::Decode;
use holdfast_base::ordered;
use holdfast_env::Rows;

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub prefix: String,
    /// Keys that have it behind the prefix are rolled up into one; empty for none.
    pub delimiter: String,
    /// Only keys, and prefixes, behind this one; empty for all.
    pub after: String,
    pub max: usize,
}

impl ListQuery {
    /// The part of a key that it is rolled up under.
    fn group<'k>(&self, key: &'k str) -> Option<&'k str> {
        if self.delimiter.is_empty() {
            return None;
        }
        let rest = key.strip_prefix(self.prefix.as_str())?;
        let at = rest.find(&self.delimiter)?;
        Some(&key[..self.prefix.len() + at + self.delimiter.len()])
    }

    /// The first key that may be listed: not below the prefix, and behind `after`.
    fn start(&self) -> Vec<u8> {
        let after = match self.group(&self.after) {
            // The whole group was listed.
            Some(group) if group == self.after => rows::behind(group.as_bytes()),
            _ if self.after.is_empty() => Vec::new(),
            _ => ordered::next(self.after.as_bytes()),
        };
        after.max(self.prefix.as_bytes().to_vec())
    }
}

#[derive(Debug, Default)]
pub struct Listing {
    pub objects: Vec<(String, Object)>,
    pub prefixes: Vec<String>,
    /// Where the next page goes on, if there is one.
    pub next: Option<String>,
}

/// Where a page of versions ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionMarker {
    pub key: String,
    /// Empty: all of the key's versions are behind us.
    pub version: String,
}

#[derive(Debug, Default)]
pub struct VersionListing {
    /// Key, version, and whether it is the current one.
    pub versions: Vec<(String, Object, bool)>,
    pub prefixes: Vec<String>,
    pub next: Option<VersionMarker>,
}

#[derive(Debug, Default)]
pub struct UploadListing {
    pub uploads: Vec<(String, u64, Upload)>,
    pub prefixes: Vec<String>,
    pub next: Option<(String, u64)>,
}

/// What one step of a walk over keys wants next.
enum Walk {
    On,
    /// Go on at this key.
    Skip(Vec<u8>),
    End,
}

/// Walks the current versions of a bucket's keys, from a key on and below a prefix.
fn walk(
    index: &dyn Rows,
    bucket: &str,
    prefix: &str,
    start: Vec<u8>,
    each: &mut dyn FnMut(&str, Object) -> Result<Walk>,
) -> Result<()> {
    let head = rows::currents(bucket);
    let until = rows::behind(&rows::current(bucket, prefix));
    let mut start = Some(start);
    while let Some(key) = start.take() {
        let from = [head.as_slice(), &key].concat();
        index.scan(&from, &until, &mut |row, value| {
            let Ok(key) = std::str::from_utf8(&row[head.len()..]) else { return Ok(true) };
            match each(key, decoded(value, "an object")?)? {
                Walk::On => Ok(true),
                Walk::Skip(next) => {
                    start = Some(next);
                    Ok(false)
                }
                Walk::End => Ok(false),
            }
        })?;
    }
    Ok(())
}

impl Blobs {
    pub fn list(&self, bucket: &str, query: &ListQuery) -> Answer<Listing> {
        self.bucket(bucket)?;
        let mut listing = Listing::default();
        let mut last = String::new();
        walk(&*self.index, bucket, &query.prefix, query.start(), &mut |key, object| {
            if object.marker {
                return Ok(Walk::On);
            }
            if listing.objects.len() + listing.prefixes.len() >= query.max {
                listing.next = Some(last.clone());
                return Ok(Walk::End);
            }
            match query.group(key) {
                Some(group) => {
                    last = group.to_owned();
                    listing.prefixes.push(last.clone());
                    Ok(Walk::Skip(rows::behind(group.as_bytes())))
                }
                None => {
                    last = key.to_owned();
                    listing.objects.push((last.clone(), object));
                    Ok(Walk::On)
                }
            }
        })?;
        Ok(listing)
    }

    /// As [`Blobs::list`], with every version of each key, newest first. `query.after` is not
    /// used: `after` is where the page before ended.
    pub fn list_versions(
        &self,
        bucket: &str,
        query: &ListQuery,
        after: &VersionMarker,
    ) -> Answer<VersionListing> {
        self.bucket(bucket)?;
        let mut listing = VersionListing::default();
        let start = match after.version.is_empty() {
            true => ListQuery { after: after.key.clone(), ..query.clone() }.start(),
            false => after.key.as_bytes().to_vec().max(query.prefix.as_bytes().to_vec()),
        };
        let mut last = VersionMarker::default();
        walk(&*self.index, bucket, &query.prefix, start, &mut |key, object| {
            let full = |l: &VersionListing| l.versions.len() + l.prefixes.len() >= query.max;
            if let Some(group) = query.group(key) {
                if full(&listing) {
                    listing.next = Some(last.clone());
                    return Ok(Walk::End);
                }
                last = VersionMarker { key: group.to_owned(), version: String::new() };
                listing.prefixes.push(group.to_owned());
                return Ok(Walk::Skip(rows::behind(group.as_bytes())));
            }
            // In the middle of a key: pass over what the page before has shown.
            let mut shown = key == after.key && !after.version.is_empty();
            let mut take = |object: Object, current: bool| {
                if shown {
                    shown = version_name(&object) != after.version;
                    return true;
                }
                if full(&listing) {
                    listing.next = Some(last.clone());
                    return false;
                }
                last = VersionMarker { key: key.to_owned(), version: version_name(&object) };
                listing.versions.push((key.to_owned(), object, current));
                true
            };
            let mut go_on = take(object, true);
            let older = rows::versions(bucket, key);
            self.index.scan(&older, &rows::behind(&older), &mut |_, value| {
                go_on = go_on && take(decoded(value, "a version")?, false);
                Ok(go_on)
            })?;
            Ok(if go_on { Walk::On } else { Walk::End })
        })?;
        Ok(listing)
    }

    /// Uploads under way, by key and number, behind `after`.
    pub fn list_uploads(
        &self,
        bucket: &str,
        query: &ListQuery,
        after: Option<u64>,
    ) -> Answer<UploadListing> {
        self.bucket(bucket)?;
        let mut listing = UploadListing::default();
        let mut last = (String::new(), 0);
        let prefix = rows::uploads(bucket);
        self.index.scan(&prefix, &rows::behind(&prefix), &mut |row, value| {
            let Some((key, id)) = rows::parse_upload(row, bucket) else { return Ok(true) };
            let passed = match key.as_str().cmp(query.after.as_str()) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => {
                    !query.after.is_empty() && after.is_none_or(|after| id <= after)
                }
                std::cmp::Ordering::Greater => false,
            };
            if passed || !key.starts_with(&query.prefix) {
                return Ok(true);
            }
            let group = query.group(&key).map(str::to_owned);
            if group.is_some() && group.as_ref() == listing.prefixes.last() {
                return Ok(true);
            }
            if listing.uploads.len() + listing.prefixes.len() >= query.max {
                listing.next = Some(last.clone());
                return Ok(false);
            }
            last = (key.clone(), id);
            match group {
                Some(group) => listing.prefixes.push(group),
                None => listing.uploads.push((key, id, decoded(value, "an upload")?)),
            }
            Ok(true)
        })?;
        Ok(listing)
    }

    /// Parts of an upload behind number `after`, and whether there are more than `max`.
    pub fn list_parts(&self, id: u64, after: u16, max: usize) -> Answer<(Vec<(u16, Part)>, bool)> {
        let mut parts = Vec::new();
        let (from, prefix) = (rows::part(id, after), rows::parts(id));
        let mut more = false;
        self.index.scan(&from, &rows::behind(&prefix), &mut |row, value| {
            let number = rows::parse_part(row).unwrap_or_default();
            if number <= after {
                return Ok(true);
            }
            more = parts.len() >= max;
            if !more {
                parts.push((number, decoded(value, "a part")?));
            }
            Ok(!more)
        })?;
        Ok((parts, more))
    }
}

/// Every row of a kind whose keys are names.
pub(crate) fn named<T: Decode>(index: &dyn Rows, kind: u8, what: &str) -> Result<Vec<(String, T)>> {
    let mut found = Vec::new();
    index.scan(&[kind], &[kind + 1], &mut |row, value| {
        let name = String::from_utf8_lossy(&row[1..]).into_owned();
        found.push((name, decoded(value, what)?));
        Ok(true)
    })?;
    Ok(found)
}

/// A version that is not current, by its name.
pub(crate) fn older_version(
    index: &(impl Look + ?Sized),
    bucket: &str,
    key: &str,
    name: &str,
) -> Result<Option<Object>> {
    if name != "null" {
        let Ok(number) = u64::from_str_radix(name, 16) else { return Ok(None) };
        let Some(bytes) = index.get(&rows::version(bucket, key, number))? else { return Ok(None) };
        let object: Object = decoded(&bytes, "a version")?;
        return Ok(Some(object).filter(|object| version_name(object) == name));
    }
    let prefix = rows::versions(bucket, key);
    let mut found = None;
    index.scan(&prefix, &rows::behind(&prefix), &mut |_, value| {
        let object: Object = decoded(value, "a version")?;
        found = Some(object).filter(|object| object.null);
        Ok(found.is_none())
    })?;
    Ok(found)
}
