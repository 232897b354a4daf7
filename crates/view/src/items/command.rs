//! What the entries of a topic of items say. docs/formats/items.md.

use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_wire::view::Collection;

/// The first byte of every command; a later build may have others.
const VERSION: u8 = 1;
const COLLECTION: u8 = 1;
const CHANGE: u8 = 2;
const HORIZON: u8 = 3;
const MARK: u8 = 4;

/// One key's new value, or its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The collection's number.
    pub collection: u16,
    /// Of 1 to [`holdfast_wire::slab::KEY_BYTES_MAX`] bytes.
    pub key: &'a [u8],
    /// None deletes it.
    pub value: Option<&'a [u8]>,
}

/// A command, borrowed from its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Makes a collection. Its number is the next one.
    Collection(Collection),
    /// Changes keys, all or none; of two changes of one key the later one counts.
    Change(Changes<'a>),
    /// Versions that are older than those of this index may go, and are not shown any more.
    Horizon(Index),
    /// Asks for an image of every view, as it is behind this entry.
    Mark,
}

/// Changes, as they lie in their entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes<'a> {
    count: u32,
    bytes: &'a [u8],
}

/// What bytes are, as a command.
pub(super) enum Decoded<'a> {
    Command(Command<'a>),
    /// Of a later build.
    Unknown(String),
    Malformed(DecodeError),
}

impl<'a> Command<'a> {
    /// Makes a collection.
    pub fn collection(collection: &Collection) -> Vec<u8> {
        let mut out = vec![VERSION, COLLECTION];
        collection.encode(&mut out);
        out
    }

    /// Changes keys.
    pub fn change<'c>(changes: impl ExactSizeIterator<Item = Change<'c>>) -> Vec<u8> {
        let mut out = vec![VERSION, CHANGE];
        (changes.len() as u32).encode(&mut out);
        for Change { collection, key, value } in changes {
            collection.encode(&mut out);
            put_bytes(&mut out, key);
            value.is_some().encode(&mut out);
            value.into_iter().for_each(|value| put_bytes(&mut out, value));
        }
        out
    }

    /// Changes keys as a client has encoded them, behind the command's first bytes. Whether it has
    /// encoded them well, [`Command::changes`] says.
    pub fn of_changes(changes: &[u8]) -> Vec<u8> {
        [&[VERSION, CHANGE][..], changes].concat()
    }

    /// The changes of a command that makes some.
    pub fn changes(command: &[u8]) -> Result<impl Iterator<Item = Change<'_>>> {
        match decode(command) {
            Decoded::Command(Command::Change(changes)) => Ok(changes.iter()),
            _ => Err(Error::invalid("change items: these are no changes: use matching builds")),
        }
    }

    /// Moves the horizon.
    pub fn horizon(index: Index) -> Vec<u8> {
        let mut out = vec![VERSION, HORIZON];
        index.encode(&mut out);
        out
    }

    /// Asks for images.
    pub fn mark() -> Vec<u8> {
        vec![VERSION, MARK]
    }

    /// Whether it is a mark.
    pub(super) fn is_mark(command: &[u8]) -> bool {
        matches!(decode(command), Decoded::Command(Command::Mark))
    }

    /// What it does, for people.
    pub(super) fn describe(bytes: &[u8]) -> String {
        match decode(bytes) {
            Decoded::Command(Command::Collection(new)) => format!("collection `{}`", new.name),
            Decoded::Command(Command::Change(changes)) => format!("{} changes", changes.count),
            Decoded::Command(Command::Horizon(index)) => format!("horizon {index}"),
            Decoded::Command(Command::Mark) => "mark".to_owned(),
            Decoded::Unknown(what) => what,
            Decoded::Malformed(_) => format!("a command of {} bytes", bytes.len()),
        }
    }
}

pub(super) fn decode(bytes: &[u8]) -> Decoded<'_> {
    let mut reader = Reader::new(bytes);
    let mut command = || {
        let (version, tag) = (u8::decode(&mut reader)?, u8::decode(&mut reader)?);
        if version > VERSION || tag > MARK {
            return Ok(Err(format!("command {tag} of version {version} of items")));
        }
        let command = match (version, tag) {
            (VERSION, COLLECTION) => Command::Collection(Collection::decode(&mut reader)?),
            (VERSION, CHANGE) => {
                let count = u32::decode(&mut reader)?;
                let bytes = reader.take(reader.remaining())?;
                let changes = Changes { count, bytes };
                changes.check()?;
                Command::Change(changes)
            }
            (VERSION, HORIZON) => Command::Horizon(Index::decode(&mut reader)?),
            (VERSION, MARK) => Command::Mark,
            _ => return Err(DecodeError::BadValue("command")),
        };
        Ok(Ok(command))
    };
    match command() {
        Ok(Ok(command)) => match reader.finish() {
            Ok(()) => Decoded::Command(command),
            Err(e) => Decoded::Malformed(e),
        },
        Ok(Err(unknown)) => Decoded::Unknown(unknown),
        Err(e) => Decoded::Malformed(e),
    }
}

impl<'a> Changes<'a> {
    /// One after another, in the order in which they were asked for.
    pub fn iter(self) -> impl Iterator<Item = Change<'a>> {
        let mut reader = Reader::new(self.bytes);
        (0..self.count).map(move |_| next(&mut reader).expect("it was decoded before"))
    }

    fn check(self) -> std::result::Result<(), DecodeError> {
        let mut reader = Reader::new(self.bytes);
        for _ in 0..self.count {
            next(&mut reader)?;
        }
        reader.finish()
    }
}

fn next<'a>(reader: &mut Reader<'a>) -> std::result::Result<Change<'a>, DecodeError> {
    let collection = u16::decode(reader)?;
    let key = reader.bytes()?;
    let value = bool::decode(reader)?.then(|| reader.bytes()).transpose()?;
    Ok(Change { collection, key, value })
}
