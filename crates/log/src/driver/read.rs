//! Reading a topic's entries back. Every entry's checksum is verified by every read; what fails
//! is an error that names file and offset, never bytes.

use super::topic::Topic;
use crate::Scope;
use crate::format::{COMMIT_HEADER_BYTES, CommitHeader, for_each_entry};
use crate::recover::{in_no_file, survey};
use crate::segment::{SCAN_BYTES, Segment, Window};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Reason, Result};
use holdfast_env::planted;

const WINDOW_BYTES_MIN: usize = 64 << 10;

/// What a read has gathered and how much more it wants.
struct Gather {
    out: Vec<(Index, Vec<u8>)>,
    /// The next index to take.
    next: u64,
    /// Take nothing from here on.
    limit: u64,
    entries_left: usize,
    bytes_left: usize,
}

impl Gather {
    fn is_done(&self) -> bool {
        self.next >= self.limit || self.entries_left == 0 || self.bytes_left == 0
    }

    /// Takes an entry if it is wanted; false when nothing more is.
    fn take(&mut self, index: u64, bytes: &[u8]) -> bool {
        if index < self.next {
            return true;
        }
        let fits = self.out.is_empty() || bytes.len() <= self.bytes_left;
        if self.is_done() || !fits {
            self.bytes_left = 0;
            return false;
        }
        self.out.push((Index(index), bytes.to_vec()));
        self.next = index + 1;
        self.entries_left -= 1;
        self.bytes_left = self.bytes_left.saturating_sub(bytes.len());
        true
    }
}

pub fn read(
    topic: &Topic,
    from: Index,
    entries_max: usize,
    bytes_max: usize,
    scope: Scope,
) -> Result<Vec<(Index, Vec<u8>)>> {
    let mut gather = {
        let state = topic.lock();
        let first = state.core.first();
        let next = from.0.max(1);
        if next < first {
            return Err(Error::invalid(format!(
                "read topic `{}` from entry {next}: entries below {first} were trimmed: the first one there is is {first}: start there",
                topic.name
            ))
            .because(Reason::Trimmed));
        }
        let limit = match scope {
            Scope::Durable if planted!("log.unsynced-entries-read") => state.core.next(),
            Scope::Durable => state.core.durable(),
            Scope::Written => state.core.next(),
        };
        Gather {
            out: Vec::new(),
            next,
            limit,
            entries_left: entries_max.max(1),
            bytes_left: bytes_max.max(1),
        }
    };
    fill(topic, &mut gather, bytes_max.clamp(WINDOW_BYTES_MIN, SCAN_BYTES))?;
    Ok(gather.out)
}

/// Reads every durable entry as a reader would, and gives what cannot be read: an error for each
/// file at most.
pub fn verify(topic: &Topic) -> Vec<Error> {
    let (mut firsts, first, end) = {
        let state = topic.lock();
        let firsts: Vec<u64> = state.core.segments().iter().map(|segment| segment.first).collect();
        (firsts, state.core.first(), state.core.durable())
    };
    firsts.push(end);
    let mut bad = Vec::new();
    for range in firsts.windows(2) {
        let mut next = range[0].max(first);
        while next < range[1] {
            let (entries_left, bytes_left) = (usize::MAX, SCAN_BYTES);
            let out = Vec::new();
            let mut page = Gather { out, next, limit: range[1], entries_left, bytes_left };
            if let Err(e) = fill(topic, &mut page, SCAN_BYTES) {
                bad.push(e);
                break;
            }
            next = page.next;
        }
    }
    bad
}

fn fill(topic: &Topic, gather: &mut Gather, window_bytes: usize) -> Result<()> {
    while !gather.is_done() {
        let found = {
            let state = topic.lock();
            state.core.locate(gather.next).and_then(|place| {
                let file = state.files.get(&place.first)?.clone();
                Some((file, place, state.core.following(place.first)))
            })
        };
        let Some((segment, place, following)) = found else {
            return Err(Error::invalid(format!(
                "read topic `{}` from entry {next}: entries from there on were trimmed meanwhile: start from \
                 a snapshot",
                topic.name,
                next = gather.next
            ))
            .because(Reason::Trimmed));
        };
        let (Some(position), end) = (place.position, place.end) else {
            // Only segments that another one follows are opened without a look at their commits.
            let following = following.unwrap_or(gather.limit);
            let meta = survey(&topic.name, &segment, following)?;
            topic.lock().core.surveyed(meta);
            continue;
        };
        let range = (position, end, following.unwrap_or(0));
        if let Some(last) = read_segment(topic, &segment, range, window_bytes, gather)? {
            let missing = (last, following.unwrap_or(gather.limit));
            return match gather.out.is_empty() {
                true => Err(in_no_file(&topic.name, &segment, missing, end)),
                // Who asks for what follows is told.
                false => Ok(()),
            };
        }
    }
    Ok(())
}

/// Reads commits of one segment from `position` up to `end`, or until nothing more is wanted. Says
/// which entry should follow its last one, where the next file, which begins with entry `following`,
/// does not have it.
fn read_segment(
    topic: &Topic,
    segment: &Segment,
    (mut position, end, following): (u64, u64, u64),
    window_bytes: usize,
    gather: &mut Gather,
) -> Result<Option<u64>> {
    let io = |e: std::io::Error| {
        Error::from(e).context(format_args!("read segment `{}`", segment.path.display()))
    };
    let bad = |offset: u64, what: String| {
        Error::corrupt(format!(
            "read topic `{}`: `{}` is damaged at offset {offset}: {what}: restore the file from a copy",
            topic.name,
            segment.path.display()
        ))
    };
    let topic_hash = crate::topic::hash(&topic.name);
    // Who follows the topic reads its last commit, again and again: no megabyte for that.
    let window_bytes = window_bytes.min((end - position) as usize).max(COMMIT_HEADER_BYTES);
    let mut window = Window::new(&*segment.cached, window_bytes);
    let (started_at, mut last) = (gather.next, 0);
    while position < end && !gather.is_done() {
        let head = window.get(position, COMMIT_HEADER_BYTES).map_err(io)?;
        let (header, _) = CommitHeader::decode(head, topic_hash, position)
            .map_err(|e| bad(position, e.to_string()))?;
        if header.end() > end {
            return Err(bad(position, "a commit reaches past the last one".into()));
        }
        if header.next() > gather.next {
            let at = position + COMMIT_HEADER_BYTES as u64;
            let payload = window.get(at, header.payload_bytes as usize).map_err(io)?;
            for_each_entry(&header, payload, |index, bytes| gather.take(index, bytes))
                .map_err(|index| bad(position, format!("entry {index} fails its checksum")))?;
        }
        (position, last) = (header.end(), header.next());
    }
    let is_behind = position >= end && last <= gather.next && gather.next < following;
    if gather.next == started_at && !gather.is_done() && !is_behind {
        return Err(bad(position, format!("entry {started_at} is not where it should be")));
    }
    Ok(Some(last).filter(|_| is_behind && !gather.is_done()))
}
