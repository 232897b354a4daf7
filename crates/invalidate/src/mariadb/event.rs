//! Events of MariaDB's row log, as far as keys need them: what a table is like, what its rows were and are, which
//! statement was carried out. Nothing that an event says of lengths and counts is believed before its bytes are there:
//! what does not fit is an error, and takes no memory beyond the event's own size. Pure.

use crate::map::Cell;
use holdfast_base::{Error, Result};

/// Columns of a table; MariaDB has no wider ones.
pub const COLUMNS_MAX: usize = 4096;

/// Kinds of events.
pub mod kind {
    pub const QUERY: u8 = 2;
    pub const ROTATE: u8 = 4;
    pub const FORMAT: u8 = 15;
    pub const XID: u8 = 16;
    pub const EXECUTE_LOAD_QUERY: u8 = 18;
    pub const TABLE_MAP: u8 = 19;
    pub const WRITE_ROWS_V1: u8 = 23;
    pub const UPDATE_ROWS_V1: u8 = 24;
    pub const DELETE_ROWS_V1: u8 = 25;
    pub const INCIDENT: u8 = 26;
    pub const HEARTBEAT: u8 = 27;
    pub const WRITE_ROWS: u8 = 30;
    pub const UPDATE_ROWS: u8 = 31;
    pub const DELETE_ROWS: u8 = 32;
    pub const XA_PREPARE: u8 = 38;
    /// Those that only MariaDB has begin here.
    pub const ANNOTATE_ROWS: u8 = 160;
    pub const GTID: u8 = 162;
    pub const QUERY_COMPRESSED: u8 = 165;
    pub const DELETE_ROWS_COMPRESSED: u8 = 171;

    /// Whether an event in a transaction changes nothing by itself: the log's own affairs, and what statements need
    /// beside their text (numbers, variables, blocks of a file).
    pub fn is_idle(kind: u8) -> bool {
        // Stop, load's blocks and their end, random numbers, variables, formats, remarks, checkpoints, lists.
        matches!(kind, 3 | 5 | 9 | 11 | 13..=15 | 17 | 28 | 29 | ANNOTATE_ROWS | 161 | 163)
            || matches!(kind, ROTATE | XID | HEARTBEAT | XA_PREPARE)
    }
}

/// One event, without the sum that may end it.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub kind: u8,
    /// In seconds since 1970.
    pub changed_s: u64,
    /// That it was made on.
    pub server: u32,
    /// Where it ends in its file.
    pub end: u64,
    pub data: &'a [u8],
}

fn broken(why: &str) -> Error {
    Error::corrupt(format!("read the row log: {why}"))
}

/// What is left of an event. Numbers have their smallest byte first.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let cut = || broken("an event ends too soon");
        let (first, rest) = self.0.split_at_checked(count).ok_or_else(cut)?;
        self.0 = rest;
        Ok(first)
    }

    /// A number of so many bytes, at most eight.
    fn number(&mut self, bytes: usize) -> Result<u64> {
        let bytes = self.take(bytes)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.number(1)? as u8)
    }

    /// A number that says by its first byte how long it is.
    fn length(&mut self) -> Result<usize> {
        let number = match self.byte()? {
            first @ 0..=250 => u64::from(first),
            252 => self.number(2)?,
            253 => self.number(3)?,
            254 => self.number(8)?,
            _ => return Err(broken("a length begins with a byte that begins none")),
        };
        usize::try_from(number).map_err(|_| broken("a length is too large"))
    }

    /// A name behind its length, and a zero byte.
    fn name(&mut self) -> Result<&'a [u8]> {
        let length = self.byte()?;
        let name = self.take(length.into())?;
        self.take(1)?;
        Ok(name)
    }
}

/// The name of the file in which the log goes on, and what the event may have behind it.
pub fn rotate(data: &[u8]) -> Result<&[u8]> {
    let mut bytes = Bytes(data);
    bytes.take(8)?;
    Ok(bytes.0)
}

/// A transaction's beginning: number, domain, and whether it is one event without an end of its own.
pub fn gtid(data: &[u8]) -> Result<(u64, u32, bool)> {
    let mut bytes = Bytes(data);
    let (sequence, domain) = (bytes.number(8)?, bytes.number(4)? as u32);
    const IS_ALONE: u8 = 1;
    Ok((sequence, domain, bytes.byte()? & IS_ALONE != 0))
}

/// A statement's text.
pub fn query(data: &[u8]) -> Result<String> {
    let mut bytes = Bytes(data);
    bytes.take(8)?;
    let schema = usize::from(bytes.byte()?);
    bytes.take(2)?;
    let settings = bytes.number(2)? as usize;
    bytes.take(settings)?;
    bytes.take(schema + 1)?;
    Ok(String::from_utf8_lossy(bytes.0).into_owned())
}

/// How a column's values lie in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// So many bytes, which are no part of a key.
    Fixed(usize),
    /// A whole number of so many bytes.
    Integer(usize),
    /// Bytes behind a length of so many bytes.
    Text(usize),
    /// The same, which are no part of a key.
    Blob(usize),
}

/// Types by their numbers, of which a description says whether they have signs.
const SIGNED: [u8; 10] = [0, 1, 2, 3, 4, 5, 8, 9, 13, 246];

/// A length of at most so many bytes is written in one, a longer one in two.
fn prefix(bytes_max: usize) -> usize {
    if bytes_max < 256 { 1 } else { 2 }
}

impl Layout {
    /// By a type's number, and what is said of it.
    fn read(kind: u8, about: &mut Bytes<'_>) -> Result<Layout> {
        let fraction = |about: &mut Bytes<'_>, bytes: usize| match about.byte()? {
            digits @ 0..=6 => Ok(Layout::Fixed(bytes + usize::from(digits).div_ceil(2))),
            _ => Err(broken("a time has more than six digits behind its seconds")),
        };
        let blob = |prefix: u8| match prefix {
            1..=4 => Ok(Layout::Blob(prefix.into())),
            _ => Err(broken("a long value's length has no length")),
        };
        Ok(match kind {
            1 | 2 => Layout::Integer(kind.into()),
            9 => Layout::Integer(3),
            3 => Layout::Integer(4),
            8 => Layout::Integer(8),
            // Null; year; date, time; timestamp; datetime, of old.
            6 => Layout::Fixed(0),
            13 => Layout::Fixed(1),
            10 | 11 | 14 => Layout::Fixed(3),
            7 => Layout::Fixed(4),
            12 => Layout::Fixed(8),
            // Float and double.
            4 | 5 => {
                about.take(1)?;
                Layout::Fixed(if kind == 4 { 4 } else { 8 })
            }
            17 => fraction(about, 4)?,
            18 => fraction(about, 5)?,
            19 => fraction(about, 3)?,
            246 => decimal(about.byte()?, about.byte()?)?,
            16 => {
                let (bits, bytes) = (about.byte()?, about.byte()?);
                Layout::Fixed(usize::from(bytes) + usize::from(bits).div_ceil(8))
            }
            15 | 253 => Layout::Text(prefix(about.number(2)? as usize)),
            254 => string(about.byte()?, about.byte()?)?,
            // Sets and enumerations.
            247 | 248 => {
                about.take(1)?;
                Layout::Fixed(about.byte()?.into())
            }
            // Blobs, what lies in space, and what is compressed in its column.
            140 | 245 | 249..=252 | 255 => blob(about.byte()?)?,
            141 => Layout::Blob(prefix(about.number(2)? as usize)),
            other => return Err(broken(&format!("a column's type {other} is not known"))),
        })
    }
}

/// `char`, `binary`, and what is written as they are: enumerations and sets.
fn string(high: u8, low: u8) -> Result<Layout> {
    // Two bits of a length over 255 are in the type, upside down.
    let more = usize::from((high & 0x30) ^ 0x30) << 4;
    match (high, high | 0x30) {
        (0, _) => Ok(Layout::Text(prefix(usize::from(low) << 8))),
        (_, 247 | 248) => Ok(Layout::Fixed(low.into())),
        (_, 254) => Ok(Layout::Text(prefix(usize::from(low) | more))),
        _ => Err(broken("a text's type is not known")),
    }
}

/// Nine digits take four bytes, fewer take fewer.
fn decimal(digits: u8, behind: u8) -> Result<Layout> {
    let before = digits
        .checked_sub(behind)
        .ok_or_else(|| broken("a decimal has no place for its digits"))?;
    const BYTES: [usize; 9] = [0, 1, 1, 2, 2, 3, 3, 4, 4];
    let bytes = |digits: u8| usize::from(digits / 9) * 4 + BYTES[usize::from(digits % 9)];
    Ok(Layout::Fixed(bytes(before) + bytes(behind)))
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    layout: Layout,
    is_unsigned: bool,
    /// Nothing where the log does not say.
    name: Vec<u8>,
}

/// A table, as the log describes it before its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// `SCHEMA.TABLE`.
    pub name: String,
    columns: Vec<Column>,
}

/// What may follow in a description: a mark, a length, and as many bytes.
const SIGNS: u8 = 1;
const NAMES: u8 = 4;

impl Table {
    /// Its number, which rows name, and its name.
    pub fn title(data: &[u8]) -> Result<(u64, String)> {
        let mut bytes = Bytes(data);
        Table::head(&mut bytes)
    }

    fn head(bytes: &mut Bytes<'_>) -> Result<(u64, String)> {
        let number = bytes.number(6)?;
        bytes.take(2)?;
        let (schema, table) = (bytes.name()?, bytes.name()?);
        let text = String::from_utf8_lossy;
        Ok((number, format!("{}.{}", text(schema), text(table))))
    }

    pub fn read(data: &[u8]) -> Result<Table> {
        let mut bytes = Bytes(data);
        let (_, name) = Table::head(&mut bytes)?;
        let count = bytes.length()?;
        if count > COLUMNS_MAX {
            return Err(broken(&format!("`{name}` has {count} columns, over {COLUMNS_MAX}")));
        }
        let kinds = bytes.take(count)?;
        let about = bytes.length()?;
        let mut about = Bytes(bytes.take(about)?);
        // Which of them may be null.
        bytes.take(count.div_ceil(8))?;
        let column = |kind: &u8| {
            let layout = Layout::read(*kind, &mut about)?;
            Ok(Column { layout, is_unsigned: false, name: Vec::new() })
        };
        let mut columns: Vec<Column> = kinds.iter().map(column).collect::<Result<_>>()?;
        while !bytes.0.is_empty() {
            let (mark, length) = (bytes.byte()?, bytes.length()?);
            let mut value = Bytes(bytes.take(length)?);
            if mark == SIGNS {
                let signed = kinds.iter().zip(&mut columns).filter(|(k, _)| SIGNED.contains(*k));
                for (at, (_, column)) in signed.enumerate() {
                    let byte = value.0.get(at / 8).ok_or_else(|| broken("signs are missing"))?;
                    column.is_unsigned = byte & 0x80 >> (at % 8) != 0;
                }
            }
            if mark == NAMES {
                for column in &mut columns {
                    let length = value.length()?;
                    column.name = value.take(length)?.to_vec();
                }
            }
        }
        Ok(Table { name, columns })
    }
}

/// A value of a row.
#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    Null,
    Integer(u64, usize),
    Text(&'a [u8]),
    /// No part of a key.
    Other,
}

impl Layout {
    fn value<'a>(self, bytes: &mut Bytes<'a>) -> Result<Value<'a>> {
        Ok(match self {
            Layout::Fixed(length) => {
                bytes.take(length)?;
                Value::Other
            }
            Layout::Integer(length) => Value::Integer(bytes.number(length)?, length),
            Layout::Text(prefix) => {
                let length = bytes.number(prefix)? as usize;
                Value::Text(bytes.take(length)?)
            }
            Layout::Blob(prefix) => {
                let length = bytes.number(prefix)? as usize;
                bytes.take(length)?;
                Value::Other
            }
        })
    }
}

/// A row as it was, or as it is: those of its columns that were written.
pub struct Image<'a> {
    table: &'a Table,
    values: Vec<Option<Value<'a>>>,
}

impl Image<'_> {
    /// A column's text; nothing if the row has no such column, or one that is no part of a key.
    pub fn cell(&self, name: &str) -> Option<Cell> {
        let at = self.table.columns.iter().position(|of| of.name == name.as_bytes())?;
        let is_unsigned = self.table.columns[at].is_unsigned;
        match self.values[at]? {
            Value::Null => Some(Cell::Null),
            Value::Text(text) => Some(Cell::Text(text.to_vec())),
            Value::Integer(number, _) if is_unsigned => {
                Some(Cell::Text(number.to_string().into_bytes()))
            }
            Value::Integer(number, bytes) => {
                // Its sign is the first of its own bits.
                let shift = 64 - 8 * bytes as u32;
                let signed = (number << shift) as i64 >> shift;
                Some(Cell::Text(signed.to_string().into_bytes()))
            }
            Value::Other => None,
        }
    }
}

/// Whether an event of this kind says how rows changed.
pub fn is_rows(kind: u8) -> bool {
    (kind::WRITE_ROWS_V1..=kind::DELETE_ROWS_V1).contains(&kind)
        || (kind::WRITE_ROWS..=kind::DELETE_ROWS).contains(&kind)
}

/// The number of the table whose rows an event has.
pub fn table_of(data: &[u8]) -> Result<u64> {
    Bytes(data).number(6)
}

/// Images of rows, one behind the other: as they were, as they are, or both by turns.
pub struct Images<'a> {
    table: &'a Table,
    /// Of each image of a row, which columns were written.
    used: Vec<&'a [u8]>,
    /// Which of them is next.
    turn: usize,
    rest: Bytes<'a>,
}

fn is_set(bits: &[u8], at: usize) -> bool {
    bits[at / 8] >> (at % 8) & 1 != 0
}

impl<'a> Images<'a> {
    /// Of an event of this kind, whose table is known.
    pub fn of(kind: u8, data: &'a [u8], table: &'a Table) -> Result<Images<'a>> {
        let mut rest = Bytes(data);
        rest.take(8)?;
        if kind >= kind::WRITE_ROWS {
            // Its own two bytes count.
            let more = rest.number(2)? as usize;
            rest.take(more.saturating_sub(2))?;
        }
        let (width, columns) = (rest.length()?, table.columns.len());
        if width != columns {
            let name = &table.name;
            return Err(broken(&format!("rows of `{name}` have {width} columns of {columns}")));
        }
        let is_update = matches!(kind, kind::UPDATE_ROWS_V1 | kind::UPDATE_ROWS);
        let images = if is_update { 2 } else { 1 };
        let used = (0..images).map(|_| rest.take(width.div_ceil(8))).collect::<Result<Vec<_>>>()?;
        // A row without a column takes no bytes: there would be rows without end.
        if !used.iter().any(|bits| (0..width).any(|at| is_set(bits, at))) {
            return Err(broken(&format!("rows of `{}` have no columns", table.name)));
        }
        Ok(Images { table, used, turn: 0, rest })
    }

    fn image(&mut self) -> Result<Image<'a>> {
        let (table, used) = (self.table, self.used[self.turn]);
        self.turn = (self.turn + 1) % self.used.len();
        let count = (0..table.columns.len()).filter(|at| is_set(used, *at)).count();
        let nulls = self.rest.take(count.div_ceil(8))?;
        let (mut values, mut number) = (Vec::with_capacity(table.columns.len()), 0);
        for (at, column) in table.columns.iter().enumerate() {
            values.push(match is_set(used, at) {
                false => None,
                true => {
                    number += 1;
                    Some(match is_set(nulls, number - 1) {
                        true => Value::Null,
                        false => column.layout.value(&mut self.rest)?,
                    })
                }
            });
        }
        Ok(Image { table, values })
    }
}

impl<'a> Iterator for Images<'a> {
    type Item = Result<Image<'a>>;

    fn next(&mut self) -> Option<Result<Image<'a>>> {
        // A row that was ends with the one that is.
        (self.turn != 0 || !self.rest.0.is_empty()).then(|| self.image())
    }
}
