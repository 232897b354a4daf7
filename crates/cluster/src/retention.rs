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

/// A limit of a topic: 0 for none.
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

/// Limits, and what is noted to keep them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bound {
    limits: Limits,
    /// Oldest first.
    notes: VecDeque<Note>,
}

/// What was asked of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kept {
    /// Of what nobody needs.
    own: Bound,
    /// Of what readers need, who hold nothing where this has no limit.
    held: Bound,
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
        self.change(topic, |kept| kept.own.limits = limits);
    }

    /// Changes how much of a topic its readers hold at most, beyond its limits. Without limits, nothing.
    pub fn set_held(&mut self, topic: &str, limits: Limits) {
        self.change(topic, |kept| kept.held.limits = limits);
    }

    fn change(&mut self, topic: &str, change: impl FnOnce(&mut Kept)) {
        let kept = self.topics.entry(topic.to_owned()).or_default();
        change(kept);
        if kept.own.limits == Limits::default() && kept.held.limits == Limits::default() {
            self.topics.remove(topic);
        }
    }

    pub fn limits(&self, topic: &str) -> Limits {
        self.topics.get(topic).map_or(Limits::default(), |kept| kept.own.limits)
    }

    /// What readers of a topic hold at most; nothing where there is no limit.
    pub fn held(&self, topic: &str) -> Limits {
        self.topics.get(topic).map_or(Limits::default(), |kept| kept.held.limits)
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
        kept.own.note(ran_ms, next);
        kept.held.note(ran_ms, next);
    }

    /// Up to where a topic may be given up: whole segments, never the last one, and nothing that must
    /// stay. What `readers` need, from an entry on, stays within the limits of that.
    pub fn trim_before(
        &self,
        topic: &str,
        segments: &[Segment],
        must_stay: Option<Index>,
        readers: Option<Index>,
    ) -> Option<Index> {
        let kept = self.topics.get(topic)?;
        let up_to = |before: Index, stays: Option<Index>| match stays {
            Some(stays) => {
                segments.iter().map(|s| s.first).rfind(|first| *first <= before.min(stays))
            }
            None => Some(before),
        };
        let readers = readers.filter(|_| kept.held.limits != Limits::default());
        let own = kept.own.trim_before(self.ran_ms, segments)?;
        let held = kept.held.trim_before(self.ran_ms, segments);
        // What the second limits let go may be younger than what the first ones do.
        let held =
            held.filter(|_| !planted!("cluster.readers-hold-for-ever")).map(|held| held.min(own));
        let before = up_to(own, readers).max(held)?;
        let before =
            up_to(before, must_stay.filter(|_| !planted!("cluster.retained-past-a-hold")))?;
        (before > segments.first()?.first).then_some(before)
    }

    /// As a file that people can read; see [`Retention::parse`].
    pub fn text(&self) -> String {
        let mut text = format!("ran {}\n", self.ran_ms);
        for (topic, Kept { own, held }) in &self.topics {
            own.write(&mut text, topic, ["keep", "note"]);
            if held.limits != Limits::default() {
                held.write(&mut text, topic, ["hold", "hold-note"]);
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
                [word @ ("keep" | "hold"), topic, bytes, age_ms] => {
                    let limits =
                        Limits { bytes: bytes.parse().ok()?, age_ms: age_ms.parse().ok()? };
                    let kept = found.topics.entry(topic.to_owned()).or_default();
                    let bound = if word == "keep" { &mut kept.own } else { &mut kept.held };
                    *bound = Bound { limits, notes: VecDeque::new() };
                }
                [word @ ("note" | "hold-note"), topic, ran_ms, next] => {
                    let note =
                        Note { ran_ms: ran_ms.parse().ok()?, next: Index(next.parse().ok()?) };
                    let kept = found.topics.get_mut(topic)?;
                    let bound = if word == "note" { &mut kept.own } else { &mut kept.held };
                    bound.notes.push_back(note);
                }
                ["check", _] => {}
                _ => return None,
            }
        }
        (found.text().as_bytes() == bytes).then_some(found)
    }
}

impl Bound {
    /// The topic's next entry gets this index now.
    fn note(&mut self, ran_ms: u64, next: Index) {
        if self.limits.age_ms == 0 {
            return self.notes.clear();
        }
        if self.notes.back().is_some_and(|last| last.next > next) {
            // Another log than the one that the notes are about.
            self.notes.clear();
        }
        let step_ms = (self.limits.age_ms / STEPS).max(1);
        let is_due = self
            .notes
            .back()
            .is_none_or(|last| ran_ms - last.ran_ms >= step_ms && last.next < next);
        if is_due {
            self.notes.push_back(Note { ran_ms, next });
        }
        // Of those that are old enough the newest one says all.
        let old = ran_ms.saturating_sub(self.limits.age_ms);
        while self.notes.get(1).is_some_and(|second| second.ran_ms <= old)
            || self.notes.len() > NOTES_MAX
        {
            self.notes.pop_front();
        }
    }

    fn trim_before(&self, ran_ms: u64, segments: &[Segment]) -> Option<Index> {
        self.by_bytes(segments).max(self.by_age(ran_ms, segments))
    }

    /// The oldest segments go until the others fit.
    fn by_bytes(&self, segments: &[Segment]) -> Option<Index> {
        let bytes_max = self.limits.bytes;
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
    fn by_age(&self, ran_ms: u64, segments: &[Segment]) -> Option<Index> {
        let age_ms = self.limits.age_ms;
        let is_old = |note: &&Note| age_ms > 0 && ran_ms - note.ran_ms.min(ran_ms) >= age_ms;
        let old = self.notes.iter().rev().find(is_old)?.next;
        segments.iter().map(|segment| segment.first).rfind(|first| *first <= old)
    }

    /// Its limits behind the first word, and its notes behind the second.
    fn write(&self, text: &mut String, topic: &str, [limits, note]: [&str; 2]) {
        let Limits { bytes, age_ms } = self.limits;
        let _ = writeln!(text, "{limits} {topic} {bytes} {age_ms}");
        for Note { ran_ms, next } in &self.notes {
            let _ = writeln!(text, "{note} {topic} {ran_ms} {next}");
        }
    }
}

#[cfg(test)]
mod tests;
