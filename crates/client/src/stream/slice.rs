//! The bytes of one slice, kept until they are acknowledged. In memory that is sent by its pages
//! where there is such memory, in a vector otherwise and where more than a slice is kept.

use holdfast_base::limits::SLICE_BYTES;
use holdfast_env::page_buf::PageBuf;
use std::ops::Deref;

pub(super) enum Slice {
    Own(Vec<u8>),
    Pages(PageBuf),
}

impl Default for Slice {
    /// Takes no memory.
    fn default() -> Slice {
        Slice::Own(Vec::new())
    }
}

impl Slice {
    /// For a stream of many slices.
    pub fn pages() -> Slice {
        PageBuf::with_capacity(SLICE_BYTES as usize).map_or_else(|_| Slice::default(), Slice::Pages)
    }

    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        if let Slice::Pages(pages) = self
            && pages.room() < bytes.len()
        {
            *self = Slice::Own(pages.to_vec());
        }
        match self {
            Slice::Own(own) => own.extend_from_slice(bytes),
            Slice::Pages(pages) => pages.extend_from_slice(bytes),
        }
    }

    /// Keeps the first `at` bytes and returns the others.
    pub fn split_off(&mut self, at: usize) -> Slice {
        match self {
            Slice::Own(own) => Slice::Own(own.split_off(at)),
            Slice::Pages(pages) => {
                let rest = Slice::Own(pages[at..].to_vec());
                pages.truncate(at);
                rest
            }
        }
    }

    pub fn clear(&mut self) {
        match self {
            Slice::Own(own) => own.clear(),
            Slice::Pages(pages) => pages.truncate(0),
        }
    }
}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Slice::Own(own) => own,
            Slice::Pages(pages) => pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_outgrows_its_pages_is_kept_all_the_same() {
        let bytes: Vec<u8> = (0..SLICE_BYTES as u32 + 10).map(|i| (i / 7) as u8).collect();
        for mut slice in [Slice::pages(), Slice::default()] {
            slice.extend_from_slice(&bytes[..1000]);
            slice.extend_from_slice(&bytes[1000..]);
            assert!(slice[..] == bytes[..]);
            let rest = slice.split_off(999);
            assert!(slice[..] == bytes[..999] && rest[..] == bytes[999..]);
        }
        let mut slice = Slice::pages();
        slice.extend_from_slice(&bytes[..1000]);
        let rest = slice.split_off(10);
        assert!(slice[..] == bytes[..10] && rest[..] == bytes[10..1000]);
        slice.clear();
        slice.extend_from_slice(b"again");
        assert_eq!(&slice[..], b"again");
    }
}
