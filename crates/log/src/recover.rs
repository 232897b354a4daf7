//! Opening a topic: follows the chain of commits through its segments, cuts a torn tail (keeping
//! what it cuts), and refuses the topic when something that was acknowledged as durable is
//! missing. Never cuts in front of proof that the bytes were once durable.

mod damage;

use crate::core::{SegmentMeta, Tail};
use crate::format::{
    self, COMMIT_HEADER_BYTES, CommitHeader, ReachMark, SECTOR, SegmentHeader, TRIM_MARK_BYTES,
};
use crate::reach::{self, Reach};
use crate::segment::{SCAN_BYTES, Segment, Window, first_of_name, remove_spare, segment_name};
use crate::topic::{directory_name, hash};
use damage::{Gap, pass_over};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{ReplaceSites, create_dir_durable, read_file, renew_len, replace_file};
use holdfast_env::{Disk, planted};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use damage::PassedOver;

pub const TRIM_MARK: &str = "trim";
/// The reach of one read of a survey: a commit or some.
const SURVEY_BYTES: usize = 64 << 10;
/// Of the trim mark.
pub const TRIM_SITES: ReplaceSites = ReplaceSites { data: "log.trim-data", name: "log.trim-name" };
const CUT_SITES: ReplaceSites = ReplaceSites { data: "log.cut-data", name: "log.cut-name" };

/// A torn tail that opening a topic has cut: bytes that were never acknowledged as durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTail {
    /// Whose tail it was.
    pub topic: String,
    /// The file that was cut.
    pub segment: PathBuf,
    /// Where the cut bytes began in the segment, and how many there were.
    pub offset: u64,
    /// See `offset`.
    pub bytes: u64,
    /// The file that keeps them.
    pub kept: PathBuf,
}

/// An opened topic.
pub struct Recovered {
    pub tail: Tail,
    pub files: Vec<Arc<Segment>>,
    pub cut: Option<CutTail>,
    pub passed_over: Vec<PassedOver>,
    /// How far the last segment may be written.
    pub reach: Reach,
}

/// Where the chain stands while the last segment is followed.
struct Walk {
    topic: String,
    topic_hash: u64,
    next: u64,
    chain: u32,
    /// The chain in front of the segment.
    chain_before: u32,
    /// Where each commit that no later one knew to be durable ends, as an index,
    /// and begins, as an offset.
    unproven: VecDeque<(u64, u64)>,
    metas: Vec<SegmentMeta>,
    closed: bool,
    /// Entries below are not needed: they were trimmed, or a snapshot covers them. Damage in front
    /// of it is passed over, and noted.
    floor: u64,
    gaps: Vec<Gap>,
}

impl Walk {
    fn new(topic: &str, topic_hash: u64, floor: u64) -> Walk {
        Walk {
            topic: topic.to_owned(),
            topic_hash,
            next: 1,
            chain: 0,
            chain_before: 0,
            unproven: VecDeque::new(),
            metas: Vec::new(),
            closed: true,
            floor,
            gaps: Vec::new(),
        }
    }
}

/// Opens the topic in `directory`; cut bytes go to `lost_and_found`. Where it is damaged,
/// `covered` says up to which entry a verified snapshot makes up for it.
pub fn open_topic(
    disk: &dyn Disk,
    topic: &str,
    directory: &Path,
    lost_and_found: &Path,
    covered: &dyn Fn(&str) -> Option<Index>,
) -> Result<Recovered> {
    match open_from(disk, topic, directory, lost_and_found, 0) {
        Err(e) if e.kind == Kind::Corrupt => {
            let Some(last) = covered(topic) else { return Err(e) };
            // As it is, where not even that is enough.
            let passed = open_from(disk, topic, directory, lost_and_found, last.0 + 1);
            passed.map_err(|_| e)
        }
        opened => opened,
    }
}

fn open_from(
    disk: &dyn Disk,
    topic: &str,
    directory: &Path,
    lost_and_found: &Path,
    floor: u64,
) -> Result<Recovered> {
    let doing = |e: Error| e.context(format_args!("open topic `{topic}`"));
    remove_spare(disk, directory).map_err(|e| doing(e.into()))?;
    // A process that was killed may have named a segment, or a trim mark, and not synced the name.
    disk.sync_dir(directory, "log.recovered-names").map_err(|e| doing(e.into()))?;
    let topic_hash = hash(topic);
    let trimmed = read_trim_mark(disk, directory, topic_hash).map_err(doing)?;
    let marked = reach::read(disk, directory, topic_hash);
    let mut files = Vec::new();
    for first in kept_segments(disk, directory, trimmed).map_err(|e| doing(e.into()))? {
        let path = directory.join(segment_name(first));
        files.push(Segment::open(disk, path, first).map_err(|e| doing(e.into()))?);
    }
    let mut walk = Walk::new(topic, topic_hash, floor.max(trimmed.unwrap_or(0)));
    let mut first = trimmed.unwrap_or(1);
    if files.first().map_or(first, |f| f.first) > first || (files.is_empty() && first > 1) {
        return Err(Error::corrupt(format!(
            "open topic `{topic}`: the segment that holds entry {first} is missing from `{}`: restore the file, or restore the topic from a copy",
            directory.display()
        )));
    }
    let mut end = SECTOR;
    if let Some((last, sealed)) = files.split_last() {
        for (segment, following) in sealed.iter().zip(&files[1..]) {
            pass(&mut walk, segment, following.first)?;
        }
        make_whole(last).map_err(|e| doing(e.into()))?;
        end = follow(&mut walk, last, marked.as_ref())?;
    }
    let mut passed_over = Vec::new();
    for gap in walk.gaps.iter().filter(|gap| gap.next > first) {
        passed_over.push(pass_over(disk, topic, directory, lost_and_found, gap)?);
    }
    first = passed_over.iter().map(|passed| passed.next.0).fold(first, u64::max);
    let (mut cut, mut reach) = (None, Reach::of(marked.as_ref()));
    let mut capacity = 0;
    if let Some(last) = files.last() {
        capacity = last.direct.len().map_err(|e| doing(e.into()))? / SECTOR * SECTOR;
        if first > walk.next {
            let what = format!("entries below {first} were trimmed, so they were durable");
            return Err(damaged(topic, &last.path, end, &what));
        }
        let written = marked.filter(|mark| mark.first == last.first && end <= mark.below);
        let written = written.map_or(capacity, |mark| mark.below.min(capacity));
        cut = cut_tail(disk, &walk, last, end..capacity, written, lost_and_found)?;
        // From here on all that was recovered counts as durable, so make it so.
        harden(&walk, last, end).map_err(|e| doing(e.into()))?;
        if walk.next == last.first {
            // It holds nothing, and a power cut may have left it shorter than it was made, so that
            // an append may not fit. The next one starts it anew: a new file takes its name.
            files.pop();
            walk.metas.pop();
            (walk.chain, capacity) = (walk.chain_before, 0);
        } else {
            // Of a segment that had none, so that the next start need not look at all of it again.
            reach.cover(disk, topic_hash, last, end).map_err(|e| doing(e.into()))?;
        }
    }
    let tail = Tail {
        topic: topic.to_owned(),
        topic_hash,
        first,
        next: walk.next,
        chain: walk.chain,
        capacity,
        segments: walk.metas,
        closed: walk.closed,
    };
    let files = files.into_iter().map(Arc::new).collect();
    Ok(Recovered { tail, files, cut, passed_over, reach })
}

/// A file that ends within a sector was cut by somebody: zeros take the place of what is gone. So a commit
/// of which only padding is gone is read, and one of which more is gone is found torn, and told.
fn make_whole(segment: &Segment) -> std::io::Result<()> {
    let bytes = segment.direct.len()?;
    if bytes.is_multiple_of(SECTOR) || planted!("log.part-of-a-sector-unread") {
        return Ok(());
    }
    segment.direct.set_len(bytes.next_multiple_of(SECTOR))
}

fn read_trim_mark(disk: &dyn Disk, directory: &Path, topic_hash: u64) -> Result<Option<u64>> {
    let path = directory.join(TRIM_MARK);
    if !disk.exists(&path)? {
        return Ok(None);
    }
    let bytes = read_file(disk, &path, TRIM_MARK_BYTES as u64 * 2)?;
    format::decode_trim_mark(&bytes, topic_hash).map(Some).map_err(|bad| {
        Error::corrupt(format!(
            "read trim mark `{}`: {bad}: restore the file from a copy",
            path.display()
        ))
    })
}

/// First indices of the segments that hold something from `trimmed` on. Those wholly below are
/// deleted: a crash may have interrupted, or undone, the deletion that the mark announced.
fn kept_segments(
    disk: &dyn Disk,
    directory: &Path,
    trimmed: Option<u64>,
) -> std::io::Result<Vec<u64>> {
    let names = disk.list(directory)?;
    let firsts: Vec<u64> = names.iter().filter_map(|e| first_of_name(&e.name)).collect();
    let before = trimmed.unwrap_or(0);
    let stale = firsts.windows(2).take_while(|pair| pair[1] <= before).count();
    for &first in &firsts[..stale] {
        disk.remove(&directory.join(segment_name(first)))?;
    }
    Ok(firsts[stale..].to_vec())
}

fn damaged(topic: &str, path: &Path, offset: u64, what: &str) -> Error {
    Error::corrupt(format!(
        "open topic `{topic}`: `{}` is damaged at offset {offset}: {what}: nothing was changed; restore the file from a copy; a topic that nothing else depends on starts anew when its directory is moved away",
        path.display()
    ))
}

/// A window no larger than the file.
fn scan_bytes(capacity: u64) -> usize {
    capacity.next_multiple_of(SECTOR).clamp(SECTOR, SCAN_BYTES as u64) as usize
}

/// The segment's header, which must be of the topic and of the entry that the name says.
fn header(walk: &Walk, segment: &Segment, sector: &[u8]) -> Result<(SegmentHeader, u32)> {
    let (header, crc) = SegmentHeader::decode(sector)
        .map_err(|bad| damaged(&walk.topic, &segment.path, 0, &bad.to_string()))?;
    let fits = header.topic_hash == walk.topic_hash
        && header.topic == walk.topic
        && header.first == segment.first;
    if !fits {
        let what = format!("its header says topic `{}`, entry {}", header.topic, header.first);
        return Err(damaged(&walk.topic, &segment.path, 0, &what));
    }
    Ok((header, crc))
}

/// A segment that another one follows was durable before that one got its name: only its header is
/// looked at. Its commits are checked when they are read ([`survey`]), so that opening a topic takes
/// as long whatever it holds.
fn pass(walk: &mut Walk, segment: &Segment, following: u64) -> Result<()> {
    let io = |e: std::io::Error| {
        Error::from(e).context(format_args!("read segment `{}`", segment.path.display()))
    };
    let capacity = segment.direct.len().map_err(io)?;
    let mut window = Window::new(&*segment.direct, SECTOR_BYTES);
    let sound = header(walk, segment, window.get(0, SECTOR_BYTES).map_err(io)?);
    if let Err(e) = sound {
        if following > walk.floor {
            return Err(e);
        }
        // All of it is covered.
        let path = segment.path.clone();
        let (from, to, first, next) = (0, capacity, segment.first, following);
        walk.gaps.push(Gap { segment: path, from, to, first, next });
    }
    walk.metas.push(SegmentMeta::unsurveyed(segment.first, capacity));
    Ok(())
}

/// Checks the last segment's header and follows its commits, payloads and all, while they are
/// valid; returns where they end.
fn follow(walk: &mut Walk, segment: &Segment, reach: Option<&ReachMark>) -> Result<u64> {
    let io = |e: std::io::Error| {
        Error::from(e).context(format_args!("read segment `{}`", segment.path.display()))
    };
    let capacity = segment.direct.len().map_err(io)?;
    let likely = reach.filter(|mark| mark.first == segment.first).map_or(capacity, |m| m.below);
    let mut window = Window::new(&*segment.direct, scan_bytes(likely.min(capacity)));
    // Behind a damaged header nothing continues a chain: what is needed is looked for.
    (walk.next, walk.chain, walk.chain_before) =
        match header(walk, segment, window.get(0, SECTOR_BYTES).map_err(io)?) {
            Ok((header, crc)) => (header.first, crc, header.chain),
            Err(e) if segment.first >= walk.floor => return Err(e),
            Err(_) => (segment.first, 0, 0),
        };
    walk.unproven.clear();
    let mut meta = SegmentMeta::new(segment.first);
    walk.closed = true;
    while meta.end + SECTOR <= capacity {
        let Some((commit, crc)) = next_commit(walk, &mut window, meta.end, capacity).map_err(io)?
        else {
            // The end, or damage. A valid commit farther behind is what goes on, if everything
            // in front of it is covered; a commit that fails alone is looked for behind its front.
            let (at, wanted) = (meta.end + SECTOR, (walk.next, walk.floor));
            let resumed = damage::resume(segment, walk.topic_hash, at, wanted).map_err(io)?;
            let Some(commit) = resumed else { break };
            let (path, from, to) = (segment.path.clone(), meta.end, commit.position);
            let (first, next) = (walk.next, commit.first);
            walk.gaps.push(Gap { segment: path, from, to, first, next });
            (walk.next, walk.chain) = (commit.first, commit.chain);
            walk.unproven.clear();
            meta = SegmentMeta::from(segment.first, commit.position);
            continue;
        };
        while walk.unproven.front().is_some_and(|(next, _)| *next <= commit.durable) {
            walk.unproven.pop_front();
        }
        walk.unproven.push_back((commit.next(), meta.end));
        meta.note(&commit);
        walk.closed = commit.count == 0;
        (walk.next, walk.chain) = (commit.next(), crc);
    }
    let end = meta.end;
    walk.metas.push(meta);
    Ok(end)
}

/// The commit at `at`, and its checksum, if it is whole and goes on where the walk stands.
fn next_commit(
    walk: &Walk,
    window: &mut Window<'_>,
    at: u64,
    capacity: u64,
) -> std::io::Result<Option<(CommitHeader, u32)>> {
    let head = window.get(at, COMMIT_HEADER_BYTES)?;
    let Ok((commit, crc)) = CommitHeader::decode(head, walk.topic_hash, at) else {
        return Ok(None);
    };
    if commit.first != walk.next || commit.chain != walk.chain || commit.end() > capacity {
        return Ok(None);
    }
    let payload = window.get(at + COMMIT_HEADER_BYTES as u64, commit.payload_bytes as usize)?;
    Ok(format::payload_is_valid(&commit, payload).then_some((commit, crc)))
}

/// Of entries that should be behind a segment's last commit, in a file that is gone: from the first
/// one up to that of the next file.
pub fn in_no_file(topic: &str, segment: &Segment, (next, following): (u64, u64), at: u64) -> Error {
    Error::corrupt(format!(
        "read topic `{topic}`: entries {next} to {} are in no file: `{}` ends at offset {at}, and the \
         next file is `{}`: restore what was between them from a copy",
        following - 1,
        segment.path.display(),
        segment_name(following)
    ))
}

/// Finds the commits of a segment that `following` comes after, by their headers. They must be one
/// chain up to there, or to where a file is missing; what is in them is checked by whoever reads it.
pub fn survey(topic: &str, segment: &Segment, following: u64) -> Result<SegmentMeta> {
    let io = |e: std::io::Error| {
        Error::from(e).context(format_args!("read segment `{}`", segment.path.display()))
    };
    let bad = |offset: u64, what: &str| {
        Error::corrupt(format!(
            "read topic `{topic}`: `{}` is damaged at offset {offset}: {what}: restore the file from a copy",
            segment.path.display()
        ))
    };
    let topic_hash = hash(topic);
    let mut window = Window::new(&*segment.cached, SURVEY_BYTES);
    let (header, crc) = SegmentHeader::decode(window.get(0, SECTOR_BYTES).map_err(io)?)
        .map_err(|e| bad(0, &e.to_string()))?;
    let mut meta = SegmentMeta::new(segment.first);
    let (mut next, mut chain) = (header.first, crc);
    while next < following {
        let at = meta.end;
        let head = window.get(at, COMMIT_HEADER_BYTES).map_err(io)?;
        if head.iter().all(|byte| *byte == 0) {
            // What is in it can be read, all the same.
            if next > header.first && !planted!("log.hole-hides-what-is-before") {
                break;
            }
            return Err(in_no_file(topic, segment, (next, following), at));
        }
        let (commit, crc) =
            CommitHeader::decode(head, topic_hash, at).map_err(|e| bad(at, &e.to_string()))?;
        if commit.first != next || commit.chain != chain || commit.next() > following {
            return Err(bad(at, "a commit does not continue the one before it"));
        }
        meta.note(&commit);
        (next, chain) = (commit.next(), crc);
    }
    Ok(meta)
}

/// Makes the end of the last segment durable: after a crash of the process alone it may be in the
/// page cache only. A sync does not do: where one has failed, the kernel takes the pages for
/// written, shows them, and never writes them. So what no later commit proves to be on the disk is
/// written again: the same bytes to the same sectors, which a torn write leaves as they are. So is
/// the segment's length.
fn harden(walk: &Walk, segment: &Segment, end: u64) -> std::io::Result<()> {
    let mut at = walk.unproven.front().map_or(end, |(_, position)| *position);
    let mut buf = AlignedBuf::zeroed((end - at).min(SCAN_BYTES as u64) as usize);
    while at < end {
        let piece = (end - at).min(buf.len() as u64) as usize;
        segment.direct.read_exact_at(&mut buf[..piece], at)?;
        segment.direct.write_at(&buf[..piece], at)?;
        at += piece as u64;
    }
    renew_len(&*segment.cached)?;
    segment.cached.sync("log.sync-recovered")
}

/// Looks at what is behind the last valid commit, up to where the segment may have been written; at
/// all of it, once anything is there. Zeros are a clean end. A commit that knew
/// the missing entries to be durable is proof of damage. Anything else was never acknowledged as
/// durable: it is copied aside and replaced by zeros, so that it can never be taken for a commit.
fn cut_tail(
    disk: &dyn Disk,
    walk: &Walk,
    segment: &Segment,
    Range { start: end, end: capacity }: Range<u64>,
    written: u64,
    lost_and_found: &Path,
) -> Result<Option<CutTail>> {
    let io = |e: std::io::Error| {
        Error::from(e).context(format_args!("scan segment `{}`", segment.path.display()))
    };
    let mut window =
        Window::new(&*segment.direct, scan_bytes((written - end).max(SURVEY_BYTES as u64)));
    let mut dirty_end = end;
    let mut at = end;
    while at < if dirty_end == end { written } else { capacity } {
        let sector = window.get(at, SECTOR_BYTES).map_err(io)?;
        if *sector != [0; SECTOR_BYTES][..] {
            dirty_end = at + SECTOR;
            if let Ok((later, _)) = CommitHeader::decode(sector, walk.topic_hash, at)
                && later.durable > walk.next
                && !planted!("log.proof-of-damage-passed-over")
            {
                let what = format!(
                    "entry {} was acknowledged (the commit at offset {at} says so) and cannot be read",
                    walk.next
                );
                return Err(damaged(&walk.topic, &segment.path, end, &what));
            }
        }
        at += SECTOR;
    }
    if dirty_end == end {
        return Ok(None);
    }
    let mut bytes = AlignedBuf::zeroed((dirty_end - end) as usize);
    segment.direct.read_exact_at(&mut bytes, end).map_err(io)?;
    create_dir_durable(disk, lost_and_found, 1, "log.cut-directory").map_err(io)?;
    // The checksum keeps apart what two recoveries cut at one place: the second may follow a crash
    // in the midst of the zeroing below, and must not replace the whole tail by what is left of it.
    let kept = lost_and_found.join(format!(
        "{}-{:020}-{end}-{:08x}.cut",
        directory_name(&walk.topic),
        segment.first,
        crc32c(&bytes)
    ));
    replace_file(disk, &kept, &bytes, CUT_SITES).map_err(io)?;
    bytes.fill(0);
    // Made durable by the sync of all that was recovered, before anything is appended.
    segment.direct.write_at(&bytes, end).map_err(io)?;
    Ok(Some(CutTail {
        topic: walk.topic.clone(),
        segment: segment.path.clone(),
        offset: end,
        bytes: dirty_end - end,
        kept,
    }))
}
