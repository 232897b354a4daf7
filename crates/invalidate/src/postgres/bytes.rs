//! Reads PostgreSQL's messages: numbers with their largest byte first, texts that a zero byte ends. Pure.

use holdfast_base::{Error, Result};

/// What is left of a message.
#[derive(Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

fn cut() -> Error {
    Error::corrupt("read a message of the database: it ends too soon")
}

impl<'a> Bytes<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or_else(cut)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count).ok_or_else(cut)?;
        self.0 = rest;
        Ok(first)
    }

    /// Up to a zero byte, and behind that.
    pub fn text(&mut self) -> Result<&'a str> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or_else(cut)?;
        let text = std::str::from_utf8(&self.0[..end])
            .map_err(|_| Error::corrupt("read a message of the database: a text is no UTF-8"))?;
        self.0 = &self.0[end + 1..];
        Ok(text)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
