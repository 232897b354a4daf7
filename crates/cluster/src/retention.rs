//! How long entries of plain topics are kept: what was asked for by topic, what the log's host notes
//! to know how old entries are, and up to where a topic may be trimmed by that. Pure: the host's
//! keeper gives it the time that passes, and does the trimming.
//!
//! Age is counted in the host's own running time, which these notes carry across restarts. No
//! calendar is asked, so one that is wrong or jumps trims nothing; and what nobody saw pass (the host
//! was down, or slept) does not count: entries are then kept for longer, never for less.

use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_env::planted;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

/// Of an age, how finely it is noted: entries are kept for up to this part of it longer.
const STEPS: u64 = 32;
/// Notes of a topic.
const NOTES_MAX: usize = 2 * STEPS as usize;
/// What one round counts at most: a process that was stopped for an hour, or a clock that jumps by
/// one, makes nothing an hour older.
pub const ROUND_MS_MAX: u64 = 60_000;

/// What was asked of a topic: 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Of its segments, together.
    pub bytes: u64,
    /// Of its entries.
    pub age_ms: u64,
}

/// When a topic reached which index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    ran_ms: u64,
    /// Entries below were there.
    next: Index,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kept {
    limits: Limits,
    /// Oldest first.
    notes: VecDeque<Note>,
}

/// A segment of a topic, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub first: Index,
    pub bytes: u64,
}

/// What the host knows of all topics with limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// How long the host has run, over all of its starts.
    ran_ms: u64,
    topics: BTreeMap<String, Kept>,
}

impl Retention {
    /// Changes what is asked of a topic. Without limits it is forgotten.
    pub fn set(&mut self, topic: &str, limits: Limits) {
        if limits == Limits::default() {
            self.topics.remove(topic);
            return;
        }
        let kept = self.topics.entry(topic.to_owned()).or_default();
        kept.limits = limits;
    }

    pub fn limits(&self, topic: &str) -> Limits {
        self.topics.get(topic).map_or(Limits::default(), |kept| kept.limits)
    }

    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.keys().map(String::as_str)
    }

    /// So much time has passed since the last round.
    pub fn pass(&mut self, ms: u64) {
        self.ran_ms += ms.min(ROUND_MS_MAX);
    }

    /// A topic's next entry gets this index now.
    pub fn note(&mut self, topic: &str, next: Index) {
        let ran_ms = self.ran_ms;
        let Some(kept) = self.topics.get_mut(topic) else { return };
        if kept.limits.age_ms == 0 {
            return kept.notes.clear();
        }
        if kept.notes.back().is_some_and(|last| last.next > next) {
            // Another log than the one that the notes are about.
            kept.notes.clear();
        }
        let step_ms = (kept.limits.age_ms / STEPS).max(1);
        let is_due = kept
            .notes
            .back()
            .is_none_or(|last| ran_ms - last.ran_ms >= step_ms && last.next < next);
        if is_due {
            kept.notes.push_back(Note { ran_ms, next });
        }
        // Of those that are old enough the newest one says all.
        let old = ran_ms.saturating_sub(kept.limits.age_ms);
        while kept.notes.get(1).is_some_and(|second| second.ran_ms <= old)
            || kept.notes.len() > NOTES_MAX
        {
            kept.notes.pop_front();
        }
    }

    /// Up to where a topic may be given up: whole segments, never the last one, and nothing that must
    /// stay.
    pub fn trim_before(
        &self,
        topic: &str,
        segments: &[Segment],
        must_stay: Option<Index>,
    ) -> Option<Index> {
        let kept = self.topics.get(topic)?;
        let before =
            by_bytes(kept.limits.bytes, segments).max(by_age(kept, self.ran_ms, segments))?;
        let before = match must_stay.filter(|_| !planted!("cluster.retained-past-a-hold")) {
            Some(stays) => {
                segments.iter().map(|s| s.first).rfind(|first| *first <= before.min(stays))?
            }
            None => before,
        };
        (before > segments.first()?.first).then_some(before)
    }

    /// As a file that people can read; see [`Retention::parse`].
    pub fn text(&self) -> String {
        let mut text = format!("ran {}\n", self.ran_ms);
        for (topic, Kept { limits, notes }) in &self.topics {
            let _ = writeln!(text, "keep {topic} {} {}", limits.bytes, limits.age_ms);
            for Note { ran_ms, next } in notes {
                let _ = writeln!(text, "note {topic} {ran_ms} {next}");
            }
        }
        let check = crc32c(text.as_bytes());
        let _ = writeln!(text, "check {check:08x}");
        text
    }

    /// Nothing of what is not byte for byte as it is written.
    pub fn parse(bytes: &[u8]) -> Option<Retention> {
        let mut found = Retention::default();
        for line in std::str::from_utf8(bytes).ok()?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["ran", ran_ms] => found.ran_ms = ran_ms.parse().ok()?,
                ["keep", topic, bytes, age_ms] => {
                    let limits =
                        Limits { bytes: bytes.parse().ok()?, age_ms: age_ms.parse().ok()? };
                    found.topics.insert(topic.to_owned(), Kept { limits, notes: VecDeque::new() });
                }
                ["note", topic, ran_ms, next] => {
                    let note =
                        Note { ran_ms: ran_ms.parse().ok()?, next: Index(next.parse().ok()?) };
                    found.topics.get_mut(topic)?.notes.push_back(note);
                }
                ["check", _] => {}
                _ => return None,
            }
        }
        (found.text().as_bytes() == bytes).then_some(found)
    }
}

/// The oldest segments go until the others fit.
fn by_bytes(bytes_max: u64, segments: &[Segment]) -> Option<Index> {
    let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut before = None;
    for pair in segments.windows(2) {
        if bytes_max == 0 || bytes <= bytes_max {
            break;
        }
        bytes -= pair[0].bytes;
        before = Some(pair[1].first);
    }
    before
}

/// Segments go whose last entry was there an age ago.
fn by_age(kept: &Kept, ran_ms: u64, segments: &[Segment]) -> Option<Index> {
    let age_ms = kept.limits.age_ms;
    let is_old = |note: &&Note| age_ms > 0 && ran_ms - note.ran_ms.min(ran_ms) >= age_ms;
    let old = kept.notes.iter().rev().find(is_old)?.next;
    segments.iter().map(|segment| segment.first).rfind(|first| *first <= old)
}

#[cfg(test)]
mod tests;
