//! The codec of everything structured: wire messages, log entries, headers, snapshots.
//! Little-endian fixed-width integers, lengths before bytes, no padding, no self-description:
//! docs/formats.md describes each message byte by byte. Decoding never panics and never
//! allocates more than the input could hold.

use std::fmt;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The input ended before the value did.
    Short,
    /// A value that its type does not allow; names the field's type.
    BadValue(&'static str),
    /// Bytes were left over.
    Trailing,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => f.write_str("the message ends too early"),
            DecodeError::BadValue(what) => write!(f, "the message holds an impossible {what}"),
            DecodeError::Trailing => f.write_str("the message has bytes left over"),
        }
    }
}

impl From<DecodeError> for crate::Error {
    fn from(e: DecodeError) -> crate::Error {
        crate::Error::corrupt(e.to_string())
    }
}

/// Reads from the front of a byte slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Bytes behind a 32-bit length, borrowed.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = u32::decode(self)? as usize;
        self.take(len)
    }

    /// UTF-8 behind a 32-bit length, borrowed.
    #[inline]
    pub fn str(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError::BadValue("text"))
    }

    #[inline]
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

/// A value with one byte representation.
pub trait Encode {
    fn encode(&self, out: &mut Vec<u8>);

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }
}

/// The inverse of [`Encode`].
pub trait Decode: Sized {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;

    /// Decodes a value that fills `bytes` exactly.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        reader.finish()?;
        Ok(value)
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Encode for $int {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl Decode for $int {
            #[inline]
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(<$int>::from_le_bytes(reader.array()?))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl Decode for bool {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::BadValue("flag")),
        }
    }
}

/// Appends `bytes` behind their 32-bit length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("no message part reaches 4 GiB");
    len.encode(out);
    out.extend_from_slice(bytes);
}

impl Encode for str {
    // In every message with a name: compilers change their mind about it as more of them come.
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.as_bytes());
    }
}

impl Encode for String {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_str().encode(out);
    }
}

impl Decode for String {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(reader.str()?.to_owned())
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::decode(reader)? { Some(T::decode(reader)?) } else { None })
    }
}

/// Nothing: requests and answers without content.
impl Encode for () {
    fn encode(&self, _: &mut Vec<u8>) {}
}

impl Decode for () {
    fn decode(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<T: Encode> Encode for [T] {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u32).encode(out);
        self.iter().for_each(|item| item.encode(out));
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u32::decode(reader)? as usize;
        // A hostile count must not reserve memory that the input could never fill.
        let mut items = Vec::with_capacity(count.min(reader.remaining()));
        for _ in 0..count {
            items.push(T::decode(reader)?);
        }
        Ok(items)
    }
}

macro_rules! newtypes {
    ($($name:ident),*) => {$(
        impl Encode for crate::ids::$name {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }
        impl Decode for crate::ids::$name {
            #[inline]
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(crate::ids::$name(Decode::decode(reader)?))
            }
        }
    )*};
}
newtypes!(NodeId, StoreId, Generation, Slot, Cookie, Index, FileId, SessionId, Sequence, ChunkId);

/// `codec_struct!(Name { a, b, c })`: the fields, in this order, nothing else.
#[macro_export]
macro_rules! codec_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                $( $crate::codec::Encode::encode(&self.$field, out); )*
                let _ = out;
            }
        }
        impl $crate::codec::Decode for $name {
            fn decode(
                reader: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                $( let $field = $crate::codec::Decode::decode(reader)?; )*
                let _ = reader;
                Ok($name { $($field),* })
            }
        }
    };
}

/// `codec_enum!(Name: "name" { 1 => A { x, y }, 2 => B {} })`: a tag byte, then the fields.
#[macro_export]
macro_rules! codec_enum {
    ($name:ident : $what:literal { $($tag:literal => $variant:ident { $($field:ident),* $(,)? }),* $(,)? }) => {
        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $( $name::$variant { $($field),* } => {
                        out.push($tag);
                        $( $crate::codec::Encode::encode($field, out); )*
                    } )*
                }
            }
        }
        impl $crate::codec::Decode for $name {
            fn decode(
                reader: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                match <u8 as $crate::codec::Decode>::decode(reader)? {
                    $( $tag => {
                        $( let $field = $crate::codec::Decode::decode(reader)?; )*
                        Ok($name::$variant { $($field),* })
                    } )*
                    _ => Err($crate::codec::DecodeError::BadValue($what)),
                }
            }
        }
    };
}

macro_rules! coded_enums {
    ($($name:ident : $what:literal),*) => {$(
        impl Encode for crate::ids::$name {
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
        }
        impl Decode for crate::ids::$name {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                crate::ids::$name::from_code(u8::decode(reader)?).ok_or(DecodeError::BadValue($what))
            }
        }
    )*};
}
coded_enums!(Tier: "tier", Durability: "durability class");

use crate::ids::{Pointer, Term};
codec_struct!(Pointer { chunk, slot, cookie });
codec_struct!(Term { queued, leader });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ChunkId, Cookie, Slot};

    #[derive(Debug, PartialEq)]
    enum Sample {
        Named { text: String, list: Vec<u16> },
        Empty {},
    }
    codec_enum!(Sample: "sample" { 1 => Named { text, list }, 7 => Empty {} });

    #[test]
    fn values_come_back() {
        let named = Sample::Named { text: "é".into(), list: vec![1, 0xffff] };
        assert_eq!(named.to_bytes(), [1, 2, 0, 0, 0, 0xc3, 0xa9, 2, 0, 0, 0, 1, 0, 0xff, 0xff]);
        assert_eq!(Sample::from_bytes(&named.to_bytes()), Ok(named));
        assert_eq!(Sample::from_bytes(&[7]), Ok(Sample::Empty {}));
        let pointer = Pointer { chunk: ChunkId::new(2, 3), slot: Slot(4), cookie: Cookie(5) };
        assert_eq!(pointer.to_bytes().len(), 16);
        assert_eq!(Pointer::from_bytes(&pointer.to_bytes()), Ok(pointer));
    }

    #[test]
    fn bad_input_is_refused() {
        assert_eq!(Sample::from_bytes(&[]), Err(DecodeError::Short));
        assert_eq!(Sample::from_bytes(&[2]), Err(DecodeError::BadValue("sample")));
        assert_eq!(Sample::from_bytes(&[7, 0]), Err(DecodeError::Trailing));
        // A count of 4 G items in a 5-byte message: refused, and no memory reserved for it.
        assert_eq!(Vec::<u64>::from_bytes(&[255, 255, 255, 255, 1]), Err(DecodeError::Short));
        assert_eq!(String::from_bytes(&[1, 0, 0, 0, 0xff]), Err(DecodeError::BadValue("text")));
        assert_eq!(Option::<u8>::from_bytes(&[2, 0]), Err(DecodeError::BadValue("flag")));
    }
}
