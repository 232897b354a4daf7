//! File names of a store's directory: `c<shard>.<counter>.g<generation>` and what it is.

use crate::journal::SEGMENTS;
use holdfast_base::ids::{ChunkId, Generation};

pub const STORE: &str = "STORE";
pub const LOCK: &str = "LOCK";
pub const PROVEN: &str = "PROVEN";
pub const LOST: &str = "lost+found";
pub const QUARANTINE: &str = "quarantine";

/// What a file is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Takes appends, or did when the process ended.
    Open(ChunkId, Generation),
    /// Sealed.
    Sealed(ChunkId, Generation),
    /// Computed by compaction, not switched to.
    Next(ChunkId, Generation),
    /// A segment of the journal.
    Journal,
    /// Received in part from another store: a copy goes on with it.
    Partial(ChunkId, Generation),
    /// Unfinished work of a process that has ended; holds nothing that was acknowledged.
    Temporary,
    /// The store's own.
    Own,
    Unknown,
}

pub fn open(chunk: ChunkId, generation: Generation) -> String {
    format!("{chunk}.{generation}.open")
}

pub fn sealed(chunk: ChunkId, generation: Generation) -> String {
    format!("{chunk}.{generation}.chunk")
}

pub fn next(chunk: ChunkId, generation: Generation) -> String {
    format!("{chunk}.{generation}.next")
}

pub fn partial(chunk: ChunkId, generation: Generation) -> String {
    format!("{chunk}.{generation}.part")
}

pub fn temporary(chunk: ChunkId, generation: Generation) -> String {
    format!("{chunk}.{generation}.tmp")
}

pub fn spare(number: u64) -> String {
    format!("spare-{number}.tmp")
}

pub fn journal(segment: u8) -> String {
    format!("journal-{segment}")
}

/// In `quarantine`: a file that is removed after this time.
pub fn aside(name: &str, until_unix_s: u64) -> String {
    format!("{name}.until-{until_unix_s}")
}

/// When a file in `quarantine` may go; `None` for what only a person may remove.
pub fn aside_until(name: &str) -> Option<u64> {
    let (name, until) = name.rsplit_once(".until-")?;
    let is_chunk = matches!(parse(name), Name::Open(..) | Name::Sealed(..) | Name::Next(..));
    until.parse().ok().filter(|_| is_chunk)
}

pub fn parse(name: &str) -> Name {
    if [STORE, LOCK, PROVEN, LOST, QUARANTINE].contains(&name) {
        return Name::Own;
    }
    if (0..SEGMENTS as u8).any(|i| journal(i) == name) {
        return Name::Journal;
    }
    let parsed = (|| {
        let (rest, ending) = name.rsplit_once('.')?;
        if ending == "tmp" && (rest == STORE || rest == PROVEN || rest.starts_with("spare-")) {
            return Some(Name::Temporary);
        }
        let mut parts = rest.strip_prefix('c')?.split('.');
        let shard: u16 = parts.next()?.parse().ok()?;
        let counter: u64 = parts.next()?.parse().ok()?;
        let generation = Generation(parts.next()?.strip_prefix('g')?.parse().ok()?);
        if parts.next().is_some() || counter >> ChunkId::COUNTER_BITS != 0 {
            return None;
        }
        let chunk = ChunkId::new(shard, counter);
        let (found, wanted) = match ending {
            "open" => (Name::Open(chunk, generation), open(chunk, generation)),
            "chunk" => (Name::Sealed(chunk, generation), sealed(chunk, generation)),
            "next" => (Name::Next(chunk, generation), next(chunk, generation)),
            "part" => (Name::Partial(chunk, generation), partial(chunk, generation)),
            "tmp" => (Name::Temporary, temporary(chunk, generation)),
            _ => return None,
        };
        // `c00.1.g0.open` reads the same and is not a name that a store gives.
        (wanted == name).then_some(found)
    })();
    parsed.unwrap_or(Name::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_strangers_are_known() {
        let (chunk, generation) = (ChunkId::new(3, 77), Generation(2));
        assert_eq!(open(chunk, generation), "c3.77.g2.open");
        assert_eq!(parse("c3.77.g2.open"), Name::Open(chunk, generation));
        assert_eq!(parse(&sealed(chunk, generation)), Name::Sealed(chunk, generation));
        assert_eq!(parse(&next(chunk, generation)), Name::Next(chunk, generation));
        assert_eq!(parse(&partial(chunk, generation)), Name::Partial(chunk, generation));
        assert_eq!(parse(&temporary(chunk, generation)), Name::Temporary);
        assert_eq!(parse(&spare(9)), Name::Temporary);
        assert_eq!(parse("lost+found"), Name::Own);
        assert_eq!(aside_until(&aside("c3.77.g2.chunk", 99)), Some(99));
        assert_eq!(aside_until("c3.77.g2.chunk"), None);
        assert_eq!(aside_until("letter.until-99"), None);
        assert_eq!(parse(&journal(3)), Name::Journal);
        for name in [
            "",
            "x",
            "journal-4",
            "journal-03",
            "c03.77.g2.open",
            "c3.77.g2.open~",
            "c3.77.open",
            "c3.77.g2.g3.open",
        ] {
            assert_eq!(parse(name), Name::Unknown, "{name}");
        }
    }
}
