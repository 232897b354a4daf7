//! Lifecycle rules: what expires, carried out in bounded rounds. Only expiry: there is one class of
//! storage, so that rules that move objects are refused.

use crate::buckets::{milliseconds, timestamp};
use crate::listing::percent_encode;
use crate::settings::LIFECYCLE;
use holdfast_blob::{Blobs, Bucket, Condition, ListQuery, Object, VersionMarker, version_name};
use holdfast_env::runtime;
use s3s::dto::*;
use s3s::{S3Result, s3_error};
use std::sync::Arc;

const RULES_MAX: usize = 1000;
const ID_CHARS_MAX: usize = 255;
const DAY_MS: i64 = 24 * 3_600_000;
/// Versions that one round looks at.
const PAGE: usize = 1000;
/// Time between the ends of two passes over everything.
const PASS_MS: u64 = 3_600_000;

/// Refuses rules that cannot be obeyed; gives each an id.
pub fn check(rules: &mut LifecycleRules) -> S3Result<()> {
    if rules.is_empty() || rules.len() > RULES_MAX {
        return Err(s3_error!(MalformedXML, "give 1 to {RULES_MAX} rules"));
    }
    for at in 0..rules.len() {
        let (before, rest) = rules.split_at_mut(at);
        let rule = &mut rest[0];
        let id = rule.id.get_or_insert_with(|| format!("rule-{}", at + 1));
        if before.iter().any(|other| other.id.as_ref() == Some(id)) {
            return Err(s3_error!(InvalidArgument, "two rules are called `{id}`"));
        }
        if id.chars().count() > ID_CHARS_MAX {
            return Err(s3_error!(InvalidArgument, "an id has at most {ID_CHARS_MAX} characters"));
        }
        let moves = rule.transitions.as_ref().is_some_and(|t| !t.is_empty())
            || rule.noncurrent_version_transitions.as_ref().is_some_and(|t| !t.is_empty());
        if moves {
            return Err(s3_error!(
                NotImplemented,
                "Transition is not implemented: there is one class of storage"
            ));
        }
        let status = rule.status.as_str();
        if status != ExpirationStatus::ENABLED && status != ExpirationStatus::DISABLED {
            return Err(s3_error!(MalformedXML, "a rule's status is `Enabled` or `Disabled`"));
        }
        let days = [
            rule.expiration.as_ref().and_then(|e| e.days),
            rule.noncurrent_version_expiration.as_ref().and_then(|e| e.noncurrent_days),
            rule.abort_incomplete_multipart_upload.as_ref().and_then(|a| a.days_after_initiation),
        ];
        if days.into_iter().flatten().any(|days| days <= 0) {
            return Err(s3_error!(InvalidArgument, "days are at least 1"));
        }
        if let Some(expiration) = &rule.expiration {
            check_expiration(expiration)?;
        }
        let acts = rule.expiration.is_some()
            || rule.noncurrent_version_expiration.is_some()
            || rule.abort_incomplete_multipart_upload.is_some();
        if !acts {
            return Err(s3_error!(MalformedXML, "a rule says what expires"));
        }
    }
    Ok(())
}

fn check_expiration(expiration: &LifecycleExpiration) -> S3Result<()> {
    let LifecycleExpiration { date, days, expired_object_delete_marker: marker, .. } = expiration;
    if [date.is_some(), days.is_some(), marker.is_some()].iter().filter(|given| **given).count()
        != 1
    {
        return Err(s3_error!(
            MalformedXML,
            "an expiration says a number of days, a date, or that of delete markers"
        ));
    }
    if date.as_ref().is_some_and(|date| milliseconds(date) % DAY_MS != 0) {
        return Err(s3_error!(InvalidArgument, "a date is a midnight of UTC"));
    }
    Ok(())
}

/// The end of a number of days: the first midnight of UTC by which they are over.
fn after_days(since_ms: i64, days: i32) -> i64 {
    let end = since_ms + days as i64 * DAY_MS;
    end + (-end).rem_euclid(DAY_MS)
}

fn is_enabled(rule: &&LifecycleRule) -> bool {
    rule.status.as_str() == ExpirationStatus::ENABLED
}

/// When a current version expires by a rule.
fn expires_ms(rule: &LifecycleRule, object: &Object) -> Option<i64> {
    let expiration = rule.expiration.as_ref()?;
    let days = expiration.days.map(|days| after_days(object.modified_ms, days));
    days.or_else(|| expiration.date.as_ref().map(milliseconds))
}

/// `x-amz-expiration`: when a current version expires by its bucket's rules, and by which.
pub fn expiration(bucket: &Bucket, key: &str, object: &Object) -> Option<String> {
    let rules: LifecycleRules = serde_json::from_str(bucket.document(LIFECYCLE)?).ok()?;
    let covering = rules.iter().filter(is_enabled).filter(|rule| covers(rule, key, object));
    let (at_ms, rule) = covering
        .filter_map(|rule| Some((expires_ms(rule, object)?, rule)))
        .min_by_key(|(at_ms, _)| *at_ms)?;
    let mut date = Vec::new();
    timestamp(at_ms).format(TimestampFormat::HttpDate, &mut date).ok()?;
    let date = String::from_utf8(date).ok()?;
    let id = percent_encode(rule.id.as_deref()?, b"-_.~");
    Some(format!("expiry-date=\"{date}\", rule-id=\"{id}\""))
}

/// Whether a rule is for this version of a key.
fn covers(rule: &LifecycleRule, key: &str, object: &Object) -> bool {
    let tagged = |tag: &Tag| {
        object
            .head
            .tags
            .iter()
            .any(|t| Some(&t.name) == tag.key.as_ref() && Some(&t.value) == tag.value.as_ref())
    };
    let size = object.size as i64;
    let sized = |above: Option<i64>, below: Option<i64>| {
        above.is_none_or(|above| size > above) && below.is_none_or(|below| size < below)
    };
    if !rule.prefix.as_deref().is_none_or(|prefix| key.starts_with(prefix)) {
        return false;
    }
    let Some(filter) = &rule.filter else { return true };
    let and = filter.and.as_ref().is_none_or(|and| {
        and.prefix.as_deref().is_none_or(|prefix| key.starts_with(prefix))
            && and.tags.iter().flatten().all(tagged)
            && sized(and.object_size_greater_than, and.object_size_less_than)
    });
    and && filter.prefix.as_deref().is_none_or(|prefix| key.starts_with(prefix))
        && filter.tag.as_ref().is_none_or(tagged)
        && sized(filter.object_size_greater_than, filter.object_size_less_than)
}

/// What is to become of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Keep,
    /// The current version is deleted, as a client would.
    Delete,
    /// The version goes for good.
    Remove,
}

/// `newer`: older versions of the key that are newer than this one; `superseded_ms`: when this one
/// stopped to be the current one; `alone`: the key has no other version.
struct Place {
    current: bool,
    newer: usize,
    superseded_ms: i64,
    alone: bool,
}

fn fate(rules: &[LifecycleRule], key: &str, object: &Object, place: &Place, now_ms: i64) -> Fate {
    for rule in rules.iter().filter(is_enabled).filter(|rule| covers(rule, key, object)) {
        if !place.current {
            let Some(expiration) = &rule.noncurrent_version_expiration else { continue };
            let enough =
                expiration.newer_noncurrent_versions.is_none_or(|n| place.newer >= n as usize);
            if enough
                && expiration
                    .noncurrent_days
                    .is_none_or(|days| now_ms >= after_days(place.superseded_ms, days))
            {
                return Fate::Remove;
            }
            continue;
        }
        let Some(expiration) = &rule.expiration else { continue };
        if object.marker {
            if expiration.expired_object_delete_marker.unwrap_or(false) && place.alone {
                return Fate::Remove;
            }
            continue;
        }
        if expires_ms(rule, object).is_some_and(|at_ms| now_ms >= at_ms) {
            return Fate::Delete;
        }
    }
    Fate::Keep
}

/// Carries rules out, bucket by bucket; nothing in it is needed after a restart.
pub struct Lifecycle {
    blobs: Arc<Blobs>,
    /// Where the pass is: a bucket's name, and where its page ended.
    at: Option<(String, VersionMarker)>,
    next_ms: u64,
}

impl Lifecycle {
    /// Begins a pass with the first step that the leader takes.
    pub fn new(blobs: &Arc<Blobs>) -> Lifecycle {
        Lifecycle { blobs: blobs.clone(), at: None, next_ms: 0 }
    }

    /// One round: one page of one bucket. `now_ns` orders the rounds; what has expired is judged by
    /// the calendar.
    pub fn step(&mut self, now_ns: u64) {
        let now_ms = now_ns / 1_000_000;
        if !self.blobs.node().leads() || (self.at.is_none() && now_ms < self.next_ms) {
            return;
        }
        if let Err(e) = self.page(now_ms) {
            self.blobs.node().report_failure("expire blobs", &e);
            (self.at, self.next_ms) = (None, now_ms + PASS_MS);
        }
    }

    fn page(&mut self, now_ms: u64) -> holdfast_base::Result<()> {
        let (name, marker) = self.at.take().unwrap_or_default();
        let with_rules = |(name, bucket): (String, Bucket)| {
            let rules: LifecycleRules = serde_json::from_str(bucket.document(LIFECYCLE)?).ok()?;
            Some((name, rules))
        };
        let buckets = self.blobs.buckets()?.into_iter().filter(|(n, _)| *n >= name);
        let Some((bucket, rules)) = buckets.filter_map(with_rules).next() else {
            self.next_ms = now_ms + PASS_MS;
            return Ok(());
        };
        let marker = if bucket == name { marker } else { VersionMarker::default() };
        if marker == VersionMarker::default() {
            self.abort_uploads(&bucket, &rules)?;
        }
        let next = self.expire(&bucket, &rules, &marker)?;
        self.at = Some(match next {
            Some(next) => (bucket, next),
            None => (format!("{bucket}\0"), VersionMarker::default()),
        });
        Ok(())
    }

    fn expire(
        &self,
        bucket: &str,
        rules: &[LifecycleRule],
        after: &VersionMarker,
    ) -> holdfast_base::Result<Option<VersionMarker>> {
        let query = ListQuery { max: PAGE, ..ListQuery::default() };
        let listing = self.blobs.list_versions(bucket, &query, after)?;
        let now_ms = self.blobs.now_ms();
        let versions = &listing.versions;
        let (mut newer, mut superseded_ms) = (0, now_ms);
        for (at, (key, object, current)) in versions.iter().enumerate() {
            if *current {
                (newer, superseded_ms) = (0, now_ms);
            }
            let alone = *current && versions.get(at + 1).is_none_or(|(next, ..)| next != key);
            let place = Place { current: *current, newer, superseded_ms, alone };
            let done = match fate(rules, key, object, &place, now_ms) {
                Fate::Keep => Ok(()),
                Fate::Delete => {
                    // Only if it is still the one that has expired.
                    let if_match = Some(object.etag.clone());
                    let condition = Condition { if_match, if_absent: false };
                    runtime::block_on(self.blobs.delete(bucket, key, condition))?.map(drop)
                }
                Fate::Remove => {
                    let version = version_name(object);
                    let removed = self.blobs.delete_version(bucket, key, &version, false);
                    runtime::block_on(removed)?.map(drop)
                }
            };
            if let Err(holdfast_blob::Failure::Failed(e)) = done {
                return Err(e);
            }
            newer += !*current as usize;
            superseded_ms = object.modified_ms;
        }
        Ok(listing.next)
    }

    fn abort_uploads(&self, bucket: &str, rules: &[LifecycleRule]) -> holdfast_base::Result<()> {
        let query = ListQuery { max: PAGE, ..ListQuery::default() };
        let now_ms = self.blobs.now_ms();
        for (key, id, upload) in self.blobs.list_uploads(bucket, &query, None)?.uploads {
            let pretended = Object { head: upload.head, ..Object::default() };
            let over = rules.iter().filter(is_enabled).any(|rule| {
                let days = rule.abort_incomplete_multipart_upload.as_ref();
                let days = days.and_then(|abort| abort.days_after_initiation);
                covers(rule, &key, &pretended)
                    && days.is_some_and(|days| now_ms >= after_days(upload.begun_ms, days))
            });
            if over {
                runtime::block_on(self.blobs.abort_upload(bucket, &key, id))??;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(expiration: LifecycleExpiration) -> LifecycleRule {
        LifecycleRule {
            abort_incomplete_multipart_upload: None,
            expiration: Some(expiration),
            filter: Some(LifecycleRuleFilter {
                prefix: Some("logs/".into()),
                ..Default::default()
            }),
            id: None,
            noncurrent_version_expiration: Some(NoncurrentVersionExpiration {
                newer_noncurrent_versions: Some(1),
                noncurrent_days: Some(2),
            }),
            noncurrent_version_transitions: None,
            prefix: None,
            status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
            transitions: None,
        }
    }

    fn days(days: i32) -> LifecycleExpiration {
        LifecycleExpiration { days: Some(days), ..Default::default() }
    }

    const CURRENT: Place = Place { current: true, newer: 0, superseded_ms: 0, alone: true };

    #[test]
    fn a_current_version_expires_on_its_day_and_not_before() {
        let rules = [rule(days(3))];
        // Noon of the day before: what is left of the last day is waited for.
        let object = Object { modified_ms: DAY_MS / 2, ..Object::default() };
        let fate = |key: &str, now_ms| fate(&rules, key, &object, &CURRENT, now_ms);
        assert_eq!(fate("logs/a", 4 * DAY_MS - 1), Fate::Keep);
        assert_eq!(fate("logs/a", 4 * DAY_MS), Fate::Delete);
        assert_eq!(fate("other/a", 40 * DAY_MS), Fate::Keep, "another prefix");
    }

    #[test]
    fn the_first_rule_to_act_is_shown() {
        let named =
            |id: &str, expiration| LifecycleRule { id: Some(id.into()), ..rule(expiration) };
        let rules = vec![named("late", days(9)), named("a b", days(2)), named("later", days(3))];
        let text = serde_json::to_string(&rules).unwrap();
        let document = holdfast_blob::Document { name: LIFECYCLE.into(), text };
        let bucket = Bucket { documents: vec![document], ..Bucket::default() };
        let object = Object { modified_ms: DAY_MS / 2, ..Object::default() };
        assert_eq!(
            expiration(&bucket, "logs/a", &object).as_deref(),
            Some("expiry-date=\"Sun, 04 Jan 1970 00:00:00 GMT\", rule-id=\"a%20b\"")
        );
        assert_eq!(expiration(&bucket, "other", &object), None);
    }

    #[test]
    fn older_versions_go_by_the_day_they_were_superseded_but_the_newest_stay() {
        let rules = [rule(days(100))];
        let object = Object::default();
        let fate = |newer, now_ms| {
            let place = Place { current: false, newer, superseded_ms: DAY_MS, alone: false };
            fate(&rules, "logs/a", &object, &place, now_ms)
        };
        assert_eq!(fate(0, 10 * DAY_MS), Fate::Keep, "one newer version is kept");
        assert_eq!(fate(1, 3 * DAY_MS - 1), Fate::Keep);
        assert_eq!(fate(1, 3 * DAY_MS), Fate::Remove);
    }

    #[test]
    fn a_marker_goes_when_nothing_is_below_it() {
        let expiration =
            LifecycleExpiration { expired_object_delete_marker: Some(true), ..Default::default() };
        let rules = [rule(expiration)];
        let marker = Object { marker: true, ..Object::default() };
        assert_eq!(fate(&rules, "logs/a", &marker, &CURRENT, 0), Fate::Remove);
        let covered = Place { alone: false, ..CURRENT };
        assert_eq!(fate(&rules, "logs/a", &marker, &covered, 0), Fate::Keep);
    }
}
