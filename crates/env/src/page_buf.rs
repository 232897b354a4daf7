//! A byte buffer of fixed capacity that the kernel can send by its pages, without a copy. Filled
//! from the front like a vector. Used by clients for what they keep until it is acknowledged.

use crate::net::Pages;
use crate::region::memfd::{self, Mapping};
use holdfast_base::{Error, Result};
use std::ops::Deref;
use std::os::fd::OwnedFd;

pub struct PageBuf {
    mapping: Mapping,
    file: OwnedFd,
    capacity: usize,
    len: usize,
}

impl PageBuf {
    /// Empty, its memory taken from the machine at once.
    pub fn with_capacity(bytes: usize) -> Result<PageBuf> {
        let make = || {
            let file = memfd::create("holdfast-pages", bytes as u64)?;
            let mapping = Mapping::read_write(&file, bytes)?;
            mapping.populate(0, bytes)?;
            Ok((file, mapping))
        };
        let (file, mapping) = make().map_err(|e: std::io::Error| {
            Error::from(e).context(format_args!("take {bytes} bytes of memory to send from"))
        })?;
        Ok(PageBuf { mapping, file, capacity: bytes, len: 0 })
    }

    /// Bytes that still fit.
    pub fn room(&self) -> usize {
        self.capacity - self.len
    }

    /// Panics when `bytes` do not fit.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "{} bytes, room for {}", bytes.len(), self.room());
        // SAFETY: the file is known to this buffer alone, and `&mut self` excludes references to
        // its memory. The kernel may still be reading it; that is its peer's business.
        let target = unsafe { self.mapping.slice_mut(self.len as u64, bytes.len()) };
        target.copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for PageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: written only through `&mut self`, in this process alone.
        unsafe { self.mapping.slice(0, self.len) }
    }
}

impl Pages for PageBuf {
    fn pages(&self) -> (&OwnedFd, u64, usize) {
        (&self.file, 0, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_from_the_front_and_again() {
        let mut buf = PageBuf::with_capacity(5000).unwrap();
        buf.extend_from_slice(b"one");
        buf.extend_from_slice(&[2; 4997]);
        assert_eq!((buf.room(), &buf[..4], buf[4999]), (0, &b"one\x02"[..], 2));
        buf.truncate(1);
        buf.extend_from_slice(b"f");
        assert_eq!(&buf[..], b"of");
    }

    #[test]
    #[should_panic(expected = "room for 0")]
    fn takes_no_more_than_its_capacity() {
        let mut buf = PageBuf::with_capacity(2).unwrap();
        buf.extend_from_slice(b"ab");
        buf.extend_from_slice(b"c");
    }
}
