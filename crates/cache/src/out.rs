//! What will be sent: one buffer that answers are written to and that goes out in one call. There
//! is always slack behind it, so that copies may run over.

use holdfast_env::arena::SLACK_BYTES;

/// What a thread keeps for its answers.
const KEPT_BYTES: usize = 1 << 20;

pub struct Out {
    /// Initialised to its end, of which `len` bytes count.
    bytes: Vec<u8>,
    len: usize,
}

impl Default for Out {
    fn default() -> Out {
        Out::new()
    }
}

impl Out {
    pub fn new() -> Out {
        Out { bytes: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Forgets everything, and memory beyond what is kept.
    pub fn clear(&mut self) {
        self.len = 0;
        if self.bytes.len() > 2 * KEPT_BYTES {
            self.bytes.truncate(KEPT_BYTES);
            self.bytes.shrink_to_fit();
        }
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The place behind the end, for at least `n` bytes and the slack.
    #[inline(always)]
    pub fn room(&mut self, n: usize) -> &mut [u8] {
        if self.bytes.len() - self.len < n + SLACK_BYTES {
            self.grow(n);
        }
        &mut self.bytes[self.len..]
    }

    #[cold]
    fn grow(&mut self, n: usize) {
        let wanted = (self.len + n + SLACK_BYTES).max(self.bytes.len() * 2).max(64 << 10);
        self.bytes.resize(wanted, 0);
    }

    /// `n` bytes of the room now count.
    #[inline(always)]
    pub fn advance_by(&mut self, n: usize) {
        assert!(self.len + n + SLACK_BYTES <= self.bytes.len(), "advanced past the room");
        self.len += n;
    }

    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) {
        let n = bytes.len();
        self.room(n)[..n].copy_from_slice(bytes);
        self.len += n;
    }

    pub fn number(&mut self, n: u64) {
        let mut digits = [0; 20];
        let at = digits_of(n, &mut digits);
        self.push(&digits[at..]);
    }

    /// Opens a gap of `n` bytes at `at`, which must lie within.
    pub fn insert(&mut self, at: usize, bytes: &[u8]) {
        let n = bytes.len();
        self.room(n);
        self.bytes.copy_within(at..self.len, at + n);
        self.bytes[at..at + n].copy_from_slice(bytes);
        self.len += n;
    }
}

/// Writes a number's digits to the end of `digits`; says where they start.
#[inline(always)]
pub fn digits_of(mut n: u64, digits: &mut [u8; 20]) -> usize {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_numbers_line_up() {
        let mut out = Out::new();
        out.push(b"a ");
        out.number(0);
        out.number(u64::MAX);
        assert_eq!(out.as_slice(), b"a 018446744073709551615");
        out.truncate(2);
        out.insert(1, b"bc");
        assert_eq!(out.as_slice(), b"abc ");
        let room = out.room(5);
        room[..5].copy_from_slice(b"12345");
        out.advance_by(5);
        assert_eq!(out.as_slice(), b"abc 12345");
        out.clear();
        assert!(out.is_empty());
    }
}
