//! Trims plain topics and Scribe's categories by their age and size, where the log is kept: the host's file
//! of what was asked and noted (`RETAIN`), and the rounds that act by it. What may go is decided in
//! `holdfast_cluster::retention`; other topics that views fold, and the audit trail, are never its business.

use super::Node;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_cluster::retention::{Limits, ROUND_MS_MAX, Retention, Segment};
use holdfast_cluster::topics::{AUDIT_TOPIC, folded_by, is_kept_by_limits};
use holdfast_env::disk::{ReplaceSites, read_file, replace_file};
use holdfast_env::{Disk, HoldMutex, event, planted, sometimes};
use holdfast_log::{EmbeddedLog, Log};
use holdfast_wire::log as msg;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const FILE: &str = "RETAIN";
const SITES: ReplaceSites = ReplaceSites { data: "node.retain-data", name: "node.retain-name" };
/// A thousand topics with all of their notes are below this.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Time between two rounds.
const ROUND_NS: u64 = 5_000_000_000;
/// And between two writes of the notes: what a process that is killed forgets to have waited for.
const WRITE_NS: u64 = 60_000_000_000;

const _: () = assert!(ROUND_NS / 1_000_000 < ROUND_MS_MAX);

/// The lowest index of a topic that somebody needs; nothing where nobody does. Asked while what is
/// known of limits is locked: it calls nothing of the node.
pub type Hold = Box<dyn Fn(&str) -> Option<Index> + Send + Sync>;

/// The lowest entry that a topic's readers need, of those that it has from an entry on; nothing where none does.
/// Asked while nothing of the node is locked.
pub type Readers = Arc<dyn Fn(&str, Index) -> Option<Index> + Send + Sync>;

/// What is known of topics with limits, where the log is kept.
#[derive(Default)]
pub(super) struct Retained {
    retention: Retention,
    /// When the last round was, and the last write.
    round_ns: Option<u64>,
    written_ns: u64,
    /// Who needs entries of topics.
    holds: Vec<Hold>,
    /// Who knows topics' readers.
    readers: Option<Readers>,
    /// What was found wrong with the file, until it is written anew.
    finding: Option<String>,
}

impl Retained {
    /// There is nothing where another node keeps the log. What cannot be read keeps all that there is:
    /// said as a finding.
    pub fn load(disk: &dyn Disk, data: &Path, findings: &mut Vec<String>) -> Result<Retained> {
        let path = data.join(FILE);
        if !disk.exists(&path)? {
            return Ok(Retained::default());
        }
        let bytes = read_file(disk, &path, FILE_BYTES_MAX);
        let parsed = bytes.as_deref().ok().and_then(Retention::parse);
        let finding = parsed.is_none().then(|| {
            let wrong = bytes.err().map_or("is damaged".to_owned(), |e| format!("cannot be read ({e})"));
            format!(
                "`{}` {wrong}, which says how long topics are kept: all are kept for ever now; set it \
                 again (`holdfast log set`)",
                path.display()
            )
        });
        findings.extend(finding.clone());
        Ok(Retained { retention: parsed.unwrap_or_default(), finding, ..Retained::default() })
    }

    fn must_stay(&self, topic: &str) -> Option<Index> {
        self.holds.iter().filter_map(|hold| hold(topic)).min()
    }
}

impl Node {
    /// Whoever needs entries of topics says from which index on: nothing from there on is given up by
    /// age or size.
    pub fn hold_topics(&self, hold: Hold) {
        self.retained.held().holds.push(hold);
    }

    /// Who knows topics' readers says from which entry on they need them: that stays within limits of its own
    /// ([`Node::hold_for_readers`]).
    pub fn readers_of_topics(&self, readers: Readers) {
        self.retained.held().readers = Some(readers);
    }

    /// The lowest index of a topic that must stay.
    pub fn must_stay(&self, topic: &str) -> Option<Index> {
        self.retained.held().must_stay(topic)
    }

    /// How long a topic is kept, where the log is kept.
    pub fn retention(&self, topic: &str) -> Result<msg::Retention> {
        self.log.info(topic)?;
        let Limits { bytes, age_ms } = self.retained.held().retention.limits(topic);
        Ok(msg::Retention { bytes, age_ms })
    }

    /// Makes a topic, or changes how long it is kept; durable on return. Waits for the disk.
    pub fn set_topic(&self, set: &msg::Set) -> Result<msg::Retention> {
        let topic = &set.topic;
        self.check_limits_are_here(topic, [set.retain_bytes, set.retain_ms])?;
        match self.log.info(topic) {
            Ok(_) if set.create => {
                return Err(Error::exists(format!(
                    "create topic `{topic}`: there is one: change it with `holdfast log set`"
                )));
            }
            Err(_) if set.create => self.log.create(topic)?,
            info => drop(info?),
        }
        let mut retained = self.retained.held();
        let before = retained.retention.limits(topic);
        let limits = changed(before, set.retain_bytes, set.retain_ms);
        if limits != before || retained.finding.is_some() {
            self.change_limits(&mut retained, topic, |changed| changed.set(topic, limits))?;
        }
        Ok(msg::Retention { bytes: limits.bytes, age_ms: limits.age_ms })
    }

    /// How much of a topic its readers hold at most, where the log is kept; nothing where there is no limit.
    pub fn held_for_readers(&self, topic: &str) -> Limits {
        self.retained.held().retention.held(topic)
    }

    /// Changes that, beyond the limits of the topic itself; nothing leaves a limit as it is. Durable on return.
    pub fn hold_for_readers(
        &self,
        topic: &str,
        bytes: Option<u64>,
        age_ms: Option<u64>,
    ) -> Result<Limits> {
        self.check_limits_are_here(topic, [bytes, age_ms])?;
        self.log.info(topic)?;
        let mut retained = self.retained.held();
        let before = retained.retention.held(topic);
        let limits = changed(before, bytes, age_ms);
        if limits != before {
            self.change_limits(&mut retained, topic, |changed| changed.set_held(topic, limits))?;
        }
        Ok(limits)
    }

    /// Refuses limits where brokers keep the log: they have their own.
    fn check_limits_are_here(&self, topic: &str, limits: [Option<u64>; 2]) -> Result<()> {
        let is_limited = limits.into_iter().flatten().any(|limit| limit > 0);
        match self.shared().filter(|_| is_limited) {
            None => Ok(()),
            Some(log) => Err(Error::unsupported(format!(
                "limit how long topic `{topic}` is kept: brokers keep the log ({}), where topics have no \
                 limits: trim it with `holdfast log trim`",
                log.place()
            ))),
        }
    }

    fn change_limits(
        &self,
        retained: &mut Retained,
        topic: &str,
        change: impl FnOnce(&mut Retention),
    ) -> Result<()> {
        let mut changed = retained.retention.clone();
        change(&mut changed);
        self.write_retention(&changed, &mut retained.finding)
            .map_err(|e| e.context(format_args!("keep the limits of topic `{topic}`")))?;
        retained.retention = changed;
        Ok(())
    }

    /// Writes all of it anew; what was wrong with the file is so no more.
    fn write_retention(&self, retention: &Retention, finding: &mut Option<String>) -> Result<()> {
        self.check_place()?;
        let path = self.data.join(FILE);
        replace_file(&*self.machine.disk, &path, retention.text().as_bytes(), SITES).map_err(
            |e| {
                Error::from(e).context(format_args!(
                    "write `{}`, a file of the node's own: look at what is there, and move it away",
                    path.display()
                ))
            },
        )?;
        if let Some(finding) = finding.take() {
            self.withdraw_finding(&finding);
        }
        Ok(())
    }

    /// Of each topic whose readers hold something, the first entry that one of them needs.
    fn ask_readers(&self, log: &EmbeddedLog) -> BTreeMap<String, Index> {
        let (readers, topics) = {
            let retained = self.retained.held();
            let Some(readers) = retained.readers.clone() else { return BTreeMap::new() };
            let holds = |topic: &&str| retained.retention.held(topic) != Limits::default();
            let topics = retained.retention.topics().filter(holds).map(str::to_owned);
            (readers, topics.collect::<Vec<String>>())
        };
        let needs = |topic: String| {
            let first = log.info(&topic).ok()?.first;
            let needed = readers(&topic, first)?;
            Some((topic, needed))
        };
        topics.into_iter().filter_map(needs).collect()
    }

    /// One round, by the keeper: counts the time, notes how far topics are, and trims.
    pub(super) fn retain(&self, now_ns: u64) -> Result<()> {
        let Some(log) = self.hosted() else { return Ok(()) };
        let last_ns = self.retained.held().round_ns;
        let since_ns = last_ns.map_or(0, |last| now_ns.saturating_sub(last));
        if last_ns.is_some() && since_ns < ROUND_NS {
            return Ok(());
        }
        let readers = self.ask_readers(log);
        let mut retained = self.retained.held();
        retained.round_ns = Some(now_ns);
        retained.retention.pass(since_ns / 1_000_000);
        let topics: Vec<String> = retained.retention.topics().map(str::to_owned).collect();
        if topics.is_empty() {
            return Ok(());
        }
        let (mut trims, mut due) = (Vec::new(), Vec::new());
        for topic in topics {
            let is_anothers = !is_kept_by_limits(&topic)
                && (folded_by(&topic).is_some() || topic == AUDIT_TOPIC || self.folds(&topic));
            // One that cannot be read says so elsewhere.
            let Ok(info) = log.info(&topic) else { continue };
            if is_anothers {
                continue;
            }
            retained.retention.note(&topic, info.durable);
            let (must_stay, segments) = (retained.must_stay(&topic), segments(log, &topic)?);
            let readers = readers.get(&topic).copied();
            let mut before = retained.retention.trim_before(&topic, &segments, must_stay, readers);
            if is_kept_by_limits(&topic) {
                let covers = self.covered_by_snapshots(&topic, &segments, before);
                due.extend(covers.is_due.then(|| topic.clone()));
                let must_stay = must_stay.into_iter().chain(covers.must_stay).min();
                before = retained.retention.trim_before(&topic, &segments, must_stay, readers);
            }
            trims.extend(before.map(|before| (topic, info.first, before)));
        }
        if now_ns.saturating_sub(retained.written_ns) >= WRITE_NS {
            retained.written_ns = now_ns;
            let Retained { retention, finding, .. } = &mut *retained;
            self.write_retention(retention, finding)?;
        }
        drop(retained);
        for topic in due {
            // What comes of it the next round sees; why it fails, the view says.
            let _ = self.views.view(&topic).and_then(|view| view.snapshot());
        }
        for (topic, first, before) in trims {
            log.trim(&topic, before)?;
            sometimes!("a topic was trimmed by its limits");
            event!(
                LogRetained,
                format_args!("`{topic}`: gave up entries {first} to {}", before.0 - 1)
            );
        }
        Ok(())
    }
}

/// What a view's snapshots allow.
struct Covers {
    must_stay: Option<Index>,
    /// A snapshot now would let more go, now or later.
    is_due: bool,
}

impl Node {
    /// Of a topic that a view of this node folds. One in each segment is enough for the segments in front of
    /// the one before to go, also of a topic to which nothing is appended any more; and where more is wanted,
    /// as of one that has its limits since a moment ago, one is taken with each round until two cover it.
    fn covered_by_snapshots(
        &self,
        topic: &str,
        segments: &[Segment],
        wanted: Option<Index>,
    ) -> Covers {
        if planted!("node.category-trimmed-past-its-view") {
            return Covers { must_stay: None, is_due: false };
        }
        let Ok(view) = self.views.view(topic) else {
            // It could not be opened: it needs all that there is.
            return Covers { must_stay: Some(Index(0)), is_due: false };
        };
        let status = view.status();
        let covered = view.covered().unwrap_or_default();
        let last = status.snapshot.unwrap_or_default();
        let begins = segments.last().map_or(Index(0), |segment| segment.first);
        let is_old = last < begins || wanted.is_some_and(|wanted| covered < wanted);
        let is_due = is_old && status.applied > last && status.applied >= begins;
        Covers { must_stay: Some(covered), is_due }
    }
}

fn changed(before: Limits, bytes: Option<u64>, age_ms: Option<u64>) -> Limits {
    Limits { bytes: bytes.unwrap_or(before.bytes), age_ms: age_ms.unwrap_or(before.age_ms) }
}

fn segments(log: &EmbeddedLog, topic: &str) -> Result<Vec<Segment>> {
    let segments = log.segments(topic)?.into_iter();
    Ok(segments.map(|(first, bytes)| Segment { first, bytes }).collect())
}
