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
use std::path::Path;

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

/// What is known of topics with limits, where the log is kept.
#[derive(Default)]
pub(super) struct Retained {
    retention: Retention,
    /// When the last round was, and the last write.
    round_ns: Option<u64>,
    written_ns: u64,
    /// Who needs entries of topics.
    holds: Vec<Hold>,
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
        let limits = set.retain_bytes.unwrap_or(0).max(set.retain_ms.unwrap_or(0));
        if let Some(log) = self.shared().filter(|_| limits > 0) {
            return Err(Error::unsupported(format!(
                "limit how long topic `{topic}` is kept: brokers keep the log ({}), where topics have no \
                 limits: trim it with `holdfast log trim`",
                log.place()
            )));
        }
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
        let limits = Limits {
            bytes: set.retain_bytes.unwrap_or(before.bytes),
            age_ms: set.retain_ms.unwrap_or(before.age_ms),
        };
        if limits != before || retained.finding.is_some() {
            let mut changed = retained.retention.clone();
            changed.set(topic, limits);
            self.write_retention(&changed, &mut retained.finding)
                .map_err(|e| e.context(format_args!("keep the limits of topic `{topic}`")))?;
            retained.retention = changed;
        }
        Ok(msg::Retention { bytes: limits.bytes, age_ms: limits.age_ms })
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

    /// One round, by the keeper: counts the time, notes how far topics are, and trims.
    pub(super) fn retain(&self, now_ns: u64) -> Result<()> {
        let Some(log) = self.hosted() else { return Ok(()) };
        let mut retained = self.retained.held();
        let since_ns = retained.round_ns.map_or(0, |last| now_ns.saturating_sub(last));
        if retained.round_ns.is_some() && since_ns < ROUND_NS {
            return Ok(());
        }
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
            let mut before = retained.retention.trim_before(&topic, &segments, must_stay);
            if is_kept_by_limits(&topic) {
                let covers = self.covered_by_snapshots(&topic, &segments, before);
                due.extend(covers.is_due.then(|| topic.clone()));
                let must_stay = must_stay.into_iter().chain(covers.must_stay).min();
                before = retained.retention.trim_before(&topic, &segments, must_stay);
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

fn segments(log: &EmbeddedLog, topic: &str) -> Result<Vec<Segment>> {
    let segments = log.segments(topic)?.into_iter();
    Ok(segments.map(|(first, bytes)| Segment { first, bytes }).collect())
}
