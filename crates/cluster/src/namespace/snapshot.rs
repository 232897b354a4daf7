//! The namespace as bytes: docs/formats/namespace.md. The same state has one form, whatever its
//! history: everything is in order of id, and what can be found again is left out. From bytes,
//! everything is checked before it is believed: damage, and what no build writes, is refused with
//! the reason and never panics.

use super::Namespace;
use crate::borders::Borders;
use crate::chunks::Chunks;
use crate::moves::{Copies, Moves};
use crate::names::Names;
use holdfast_base::stream::{Source, Writer, collect, read_all};
use holdfast_base::{Error, Result};
use std::ops::RangeInclusive;

const MAGIC: [u8; 4] = *b"HFNV";
const VERSION: u8 = 6;
/// Written as long as no directory is being copied.
const VERSION_WITHOUT_COPIES: u8 = 5;
/// Written as long as no directory moved with its content.
const VERSION_WITHOUT_MOVES: u8 = 4;
/// Written as long as no shard was added, and none was given a directory: as it was before there were any.
const VERSION_WITHOUT_BORDERS: u8 = 3;
/// Its chunks know of no attempt at a rewrite.
pub(crate) const VERSION_BEFORE_ATTEMPTS: u8 = 2;
/// Its chunks want as many copies as they have replicas, and remember none that was dropped.
pub(crate) const VERSION_BEFORE_COPIES: u8 = 1;

/// The version of a snapshot that begins here, whose checksum [`check_end`] looks at.
pub(crate) fn check_start(
    source: &mut Source<'_>,
    magic: [u8; 4],
    versions: RangeInclusive<u8>,
) -> Result<u8> {
    source.begin_crc();
    if source.get_with(|reader| reader.array::<4>())? != magic {
        return Err(Error::corrupt("these bytes are no snapshot of this view"));
    }
    let version = source.get()?;
    if !versions.contains(&version) {
        return Err(Error::unsupported(format!(
            "the snapshot has version {version}, this build reads versions up to {}: use a newer \
             build",
            versions.end()
        )));
    }
    Ok(version)
}

/// Everything in front was read: it is what was written, and nothing is left over.
pub(crate) fn check_end(source: &mut Source<'_>) -> Result<()> {
    let crc = source.crc();
    if source.get::<u32>()? != crc {
        return Err(Error::corrupt("the snapshot fails its checksum: use an older one"));
    }
    source.finish()
}

pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::corrupt(what())) }
}

impl Namespace {
    /// Appends the state's one byte form.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        collect(out, |out| self.write(out));
    }

    /// Writes the state's one byte form, value after value.
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.begin_crc();
        out.put_with(|out| out.extend_from_slice(&MAGIC));
        let plain = self.borders.is_plain();
        let moves = self.borders.moves();
        let moved = !moves.is_none() || self.names.is_leaving() || self.chunks.is_any_elsewhere();
        let copied = !moves.copies.is_none();
        out.put(match (plain, moved) {
            (_, true) if copied => &VERSION,
            (_, true) => &VERSION_WITHOUT_COPIES,
            (false, false) => &VERSION_WITHOUT_MOVES,
            (true, false) => &VERSION_WITHOUT_BORDERS,
        });
        self.chunks.write(out);
        self.names.write(&self.chunks, out);
        self.names.write_detached(out);
        self.chunks.write_freed(out);
        if moved || !plain {
            self.borders.write(out);
        }
        if moved {
            moves.write(out);
            self.names.write_leaving(out);
            self.chunks.write_elsewhere(out);
        }
        if copied {
            moves.copies.write(out);
        }
        let crc = out.crc();
        out.put(&crc);
    }

    /// The inverse of [`Namespace::snapshot`].
    pub fn restore(bytes: &[u8]) -> Result<Namespace> {
        read_all(bytes, Namespace::read)
    }

    /// The inverse of [`Namespace::write`].
    pub(crate) fn read(source: &mut Source<'_>) -> Result<Namespace> {
        check_start(source, MAGIC, VERSION_BEFORE_COPIES..=VERSION)
            .and_then(|version| Namespace::read_body(version, source))
            .map_err(|e| e.context("restore the namespace"))
    }

    fn read_body(version: u8, source: &mut Source<'_>) -> Result<Namespace> {
        let mut chunks = Chunks::read(version, source)?;
        let shard = chunks.shard();
        let mut names = Names::hollow(shard);
        names.read(&mut chunks, source)?;
        let detached = source.get()?;
        chunks.read_freed(source)?;
        let mut borders = match version {
            VERSION_WITHOUT_MOVES.. => Borders::read(shard, source)?,
            _ => Borders::new(shard),
        };
        ensure(version != VERSION_WITHOUT_MOVES || !borders.is_plain(), || {
            "borders that say nothing are not written".to_owned()
        })?;
        let mut leaving = Vec::new();
        if version >= VERSION_WITHOUT_COPIES {
            *borders.moves_mut() = Moves::read(source)?;
            leaving = source.get()?;
            chunks.read_elsewhere(source)?;
            if version == VERSION {
                borders.moves_mut().copies = Copies::read(source)?;
                ensure(!borders.moves().copies.is_none(), || "no copy is told of".to_owned())?;
                borders.check_copies()?;
            }
            let moves = !borders.moves().is_none() || !leaving.is_empty();
            ensure(moves || chunks.is_any_elsewhere(), || "no move is told of".to_owned())?;
        }
        check_end(source)?;
        names.restore_detached(detached)?;
        names.restore_moving(leaving, &borders.moves().arriving)?;
        names.restore_tree()?;
        chunks.check_freed()?;
        names.take_chunks(&chunks)?;
        names.check_borders(&borders)?;
        Ok(Namespace { names, chunks, borders })
    }
}
