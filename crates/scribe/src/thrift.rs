//! Thrift's binary protocol, as far as Scribe's service needs it: values from and to bytes. Pure. Never
//! allocates by what a length says, never reads past the bytes that there are, and skips what it does not
//! know to a bounded depth. `call` makes calls of it.

use std::fmt;

/// Containers inside of containers that are skipped: Scribe's own messages have three.
pub const DEPTH_MAX: u32 = 16;
/// A method's name.
pub const NAME_BYTES_MAX: usize = 128;

/// In front of a strict message's type.
const STRICT: u32 = 0x8001_0000;
const STRICT_MASK: u32 = 0xffff_0000;

pub const STOP: u8 = 0;
pub const BOOL: u8 = 2;
pub const BYTE: u8 = 3;
pub const DOUBLE: u8 = 4;
pub const I16: u8 = 6;
pub const I32: u8 = 8;
pub const I64: u8 = 10;
pub const STRING: u8 = 11;
pub const STRUCT: u8 = 12;
pub const MAP: u8 = 13;
pub const SET: u8 = 14;
pub const LIST: u8 = 15;

/// Why bytes are no message. The connection is of no use any more: where the next one begins is not known
/// to have been agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It ends inside of a value.
    Short,
    /// A length or count below 0, or larger than what is there.
    Length,
    /// A type that the protocol does not have.
    Type(u8),
    /// Another version than 1 behind the sign of a strict header.
    Version,
    /// Containers deeper than [`DEPTH_MAX`].
    Depth,
    /// A method's name of more than [`NAME_BYTES_MAX`].
    Name,
    /// Bytes behind the message.
    Trailing,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => f.write_str("it ends inside of a value"),
            Malformed::Length => f.write_str("it has a length that is larger than what is there"),
            Malformed::Type(code) => write!(f, "it has a value of type {code}, which is none"),
            Malformed::Version => f.write_str("its header has another version than 1"),
            Malformed::Depth => write!(f, "it nests deeper than {DEPTH_MAX}"),
            Malformed::Name => write!(f, "its method's name has more than {NAME_BYTES_MAX} bytes"),
            Malformed::Trailing => f.write_str("bytes are left over behind it"),
        }
    }
}

/// How a message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// With a version, as newer clients do.
    Strict,
    /// With the method's name, as Scribe's own clients do.
    Old,
}

/// What kind of message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    Call = 1,
    Reply = 2,
    Exception = 3,
    /// Nobody waits for an answer.
    Oneway = 4,
}

impl MessageType {
    fn of(code: u8) -> Result<MessageType, Malformed> {
        match code {
            1 => Ok(MessageType::Call),
            2 => Ok(MessageType::Reply),
            3 => Ok(MessageType::Exception),
            4 => Ok(MessageType::Oneway),
            code => Err(Malformed::Type(code)),
        }
    }
}

/// What is in front of a message's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    pub form: Form,
    pub kind: MessageType,
    pub name: &'a [u8],
    /// A reply has its call's.
    pub sequence: i32,
}

/// Reads values from the front of a frame.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(frame: &'a [u8]) -> Reader<'a> {
        Reader(frame)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn i16(&mut self) -> Result<i16, Malformed> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.i32()?).map_err(|_| Malformed::Length)?;
        let (head, rest) = self.0.split_at_checked(length).ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(head)
    }

    /// How many elements follow. The smallest takes a byte, so there are no more than that.
    pub fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::try_from(self.i32()?).map_err(|_| Malformed::Length)?;
        if count > self.0.len() { Err(Malformed::Length) } else { Ok(count) }
    }

    pub fn header(&mut self) -> Result<Header<'a>, Malformed> {
        let first = u32::from_be_bytes(self.clone().array()?);
        if first & 0x8000_0000 == 0 {
            let name = self.bytes()?;
            let kind = MessageType::of(self.byte()?)?;
            return Header::checked(Form::Old, kind, name, self.i32()?);
        }
        if first & STRICT_MASK != STRICT {
            return Err(Malformed::Version);
        }
        self.array::<4>()?;
        let kind = MessageType::of(first as u8)?;
        let name = self.bytes()?;
        Header::checked(Form::Strict, kind, name, self.i32()?)
    }

    /// The next field's type and number; nothing at the end of its struct.
    pub fn field(&mut self) -> Result<Option<(u8, i16)>, Malformed> {
        match self.byte()? {
            STOP => Ok(None),
            code => Ok(Some((code, self.i16()?))),
        }
    }

    /// Passes over a value of this type.
    pub fn skip(&mut self, code: u8) -> Result<(), Malformed> {
        self.skip_at(code, DEPTH_MAX)
    }

    fn skip_at(&mut self, code: u8, depth: u32) -> Result<(), Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed::Depth)?;
        match code {
            BOOL | BYTE => drop(self.byte()?),
            I16 => drop(self.i16()?),
            I32 => drop(self.i32()?),
            I64 | DOUBLE => drop(self.i64()?),
            STRING => drop(self.bytes()?),
            STRUCT => {
                while let Some((code, _)) = self.field()? {
                    self.skip_at(code, depth)?;
                }
            }
            MAP => {
                let (key, value) = (self.byte()?, self.byte()?);
                for _ in 0..self.count()? {
                    self.skip_at(key, depth)?;
                    self.skip_at(value, depth)?;
                }
            }
            SET | LIST => {
                let element = self.byte()?;
                for _ in 0..self.count()? {
                    self.skip_at(element, depth)?;
                }
            }
            code => return Err(Malformed::Type(code)),
        }
        Ok(())
    }

    pub fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Trailing) }
    }
}

impl<'a> Header<'a> {
    fn checked(
        form: Form,
        kind: MessageType,
        name: &'a [u8],
        sequence: i32,
    ) -> Result<Header<'a>, Malformed> {
        match name.len() {
            0..=NAME_BYTES_MAX => Ok(Header { form, kind, name, sequence }),
            _ => Err(Malformed::Name),
        }
    }
}

/// Writes one message into a frame, its length in front.
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn message(header: &Header<'_>) -> Writer {
        let mut out = Writer(vec![0; 4]);
        match header.form {
            Form::Strict => {
                out.0.extend_from_slice(&(STRICT | header.kind as u32).to_be_bytes());
                out.bytes(header.name);
            }
            Form::Old => {
                out.bytes(header.name);
                out.0.push(header.kind as u8);
            }
        }
        out.i32(header.sequence);
        out
    }

    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub fn i16(&mut self, number: i16) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn i32(&mut self, number: i32) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn i64(&mut self, number: i64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.i32(i32::try_from(bytes.len()).expect("what is written is smaller than a frame"));
        self.0.extend_from_slice(bytes);
    }

    pub fn field(&mut self, code: u8, number: i16) {
        self.byte(code);
        self.i16(number);
    }

    pub fn stop(&mut self) {
        self.byte(STOP);
    }

    /// The frame.
    pub fn finish(mut self) -> Vec<u8> {
        let length =
            u32::try_from(self.0.len() - 4).expect("what is written is smaller than a frame");
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}
