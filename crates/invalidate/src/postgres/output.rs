//! What PostgreSQL's plugin `pgoutput` writes, version 1 of its protocol: transactions one behind the other,
//! each whole, and what a walsender says beside them. The server's manual, "Logical Replication Message
//! Formats", is followed field by field. Pure.

use super::bytes::Bytes;
use crate::position::Lsn;
use holdfast_base::{Error, Result};

/// What a walsender sends inside a copy.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent<'a> {
    /// A message of the plugin.
    Data(&'a [u8]),
    /// All that was committed before `end` has been sent.
    Alive { end: Lsn, wants_answer: bool },
}

/// The value of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datum<'a> {
    Null,
    /// Stored apart, not changed, and so not written.
    Unchanged,
    Text(&'a [u8]),
}

pub type Row<'a> = Vec<Datum<'a>>;

/// A row as it was, if something of it was written.
#[derive(Debug, PartialEq, Eq)]
pub enum Old<'a> {
    Nothing,
    /// The columns of its replica identity; nulls stand for others.
    Identity(Row<'a>),
    Whole(Row<'a>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// Part of the replica identity.
    pub is_identity: bool,
    /// The type's number in the catalog.
    pub kind: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// In microseconds since 2000.
    Begin {
        time_us: i64,
        xid: u32,
    },
    Commit {
        end: Lsn,
    },
    /// Comes before rows of a table do, and again once it is another.
    Relation {
        number: u32,
        schema: &'a str,
        table: &'a str,
        columns: Vec<Column>,
    },
    Insert {
        relation: u32,
        new: Row<'a>,
    },
    Update {
        relation: u32,
        old: Old<'a>,
        new: Row<'a>,
    },
    Delete {
        relation: u32,
        old: Old<'a>,
    },
    Truncate {
        relations: Vec<u32>,
    },
    /// Where a transaction came from, types, messages of applications.
    Other,
}

fn odd(what: &str, byte: u8) -> Error {
    Error::corrupt(format!("read the row log: {what} {byte:#04x} is not known"))
}

impl<'a> Sent<'a> {
    pub fn read(body: &'a [u8]) -> Result<Sent<'a>> {
        let mut bytes = Bytes(body);
        match bytes.u8()? {
            b'w' => {
                bytes.take(24)?;
                Ok(Sent::Data(bytes.0))
            }
            b'k' => {
                let end = Lsn(bytes.u64()?);
                bytes.u64()?;
                Ok(Sent::Alive { end, wants_answer: bytes.u8()? != 0 })
            }
            other => Err(odd("a message inside a copy", other)),
        }
    }
}

impl<'a> Message<'a> {
    pub fn read(body: &'a [u8]) -> Result<Message<'a>> {
        let mut bytes = Bytes(body);
        let message = match bytes.u8()? {
            b'B' => {
                bytes.u64()?;
                Message::Begin { time_us: bytes.u64()? as i64, xid: bytes.u32()? }
            }
            b'C' => {
                bytes.take(9)?;
                let end = Lsn(bytes.u64()?);
                bytes.u64()?;
                Message::Commit { end }
            }
            b'R' => relation(&mut bytes)?,
            b'I' => {
                let relation = bytes.u32()?;
                Message::Insert { relation, new: new(bytes.u8()?, &mut bytes)? }
            }
            b'U' => {
                let (relation, kind) = (bytes.u32()?, bytes.u8()?);
                let old = old(kind, &mut bytes)?;
                let kind = if old == Old::Nothing { kind } else { bytes.u8()? };
                Message::Update { relation, old, new: new(kind, &mut bytes)? }
            }
            b'D' => {
                let (relation, kind) = (bytes.u32()?, bytes.u8()?);
                match old(kind, &mut bytes)? {
                    Old::Nothing => return Err(odd("a deleted row", kind)),
                    old => Message::Delete { relation, old },
                }
            }
            b'T' => {
                let count = bytes.u32()?;
                bytes.u8()?;
                let relations = (0..count).map(|_| bytes.u32()).collect::<Result<_>>()?;
                Message::Truncate { relations }
            }
            b'O' | b'Y' | b'M' => return Ok(Message::Other),
            other => return Err(odd("a message", other)),
        };
        if bytes.is_empty() {
            return Ok(message);
        }
        Err(Error::corrupt("read the row log: a message has more than belongs to it"))
    }
}

fn relation<'a>(bytes: &mut Bytes<'a>) -> Result<Message<'a>> {
    let number = bytes.u32()?;
    let (schema, table) = (bytes.text()?, bytes.text()?);
    // What the identity is: each column says whether it belongs to it.
    bytes.u8()?;
    let count = bytes.u16()?;
    let column = |_| {
        let is_identity = bytes.u8()? & 1 != 0;
        let (name, kind) = (bytes.text()?.to_owned(), bytes.u32()?);
        bytes.u32()?;
        Ok(Column { name, is_identity, kind })
    };
    let columns = (0..count).map(column).collect::<Result<_>>()?;
    Ok(Message::Relation { number, schema, table, columns })
}

fn row<'a>(bytes: &mut Bytes<'a>) -> Result<Row<'a>> {
    let count = bytes.u16()?;
    let datum = |_| match bytes.u8()? {
        b'n' => Ok(Datum::Null),
        b'u' => Ok(Datum::Unchanged),
        b't' => {
            let length = bytes.u32()?;
            bytes.take(length as usize).map(Datum::Text)
        }
        other => Err(odd("a column's form", other)),
    };
    (0..count).map(datum).collect()
}

fn old<'a>(kind: u8, bytes: &mut Bytes<'a>) -> Result<Old<'a>> {
    Ok(match kind {
        b'K' => Old::Identity(row(bytes)?),
        b'O' => Old::Whole(row(bytes)?),
        _ => Old::Nothing,
    })
}

fn new<'a>(kind: u8, bytes: &mut Bytes<'a>) -> Result<Row<'a>> {
    match kind {
        b'N' => row(bytes),
        other => Err(odd("a row's image", other)),
    }
}
