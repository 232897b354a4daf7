//! Bytes looked at 32 at a time: where lines end, and where the fields of a line do. Pure.

use super::stream::mask;

/// Bytes looked at together, a bit each in what comes out.
pub const WINDOW: usize = 32;

/// Hands the end of each record that ends with `delimiter` to `each`, as (start, end) in `bytes`;
/// answers where the rest starts.
#[inline]
pub fn records<E>(
    bytes: &[u8],
    delimiter: u8,
    mut each: impl FnMut(usize, usize) -> Result<(), E>,
) -> Result<usize, E> {
    let mut start = 0;
    let (windows, rest) = bytes.as_chunks::<WINDOW>();
    for (i, window) in windows.iter().enumerate() {
        let mut ends = mask(window, &[delimiter]);
        while ends != 0 {
            let end = i * WINDOW + ends.trailing_zeros() as usize + 1;
            each(start, end)?;
            start = end;
            ends &= ends - 1;
        }
    }
    let before = bytes.len() - rest.len();
    for (i, byte) in rest.iter().enumerate() {
        if *byte == delimiter {
            each(start, before + i + 1)?;
            start = before + i + 1;
        }
    }
    Ok(start)
}

/// The first place of `byte`; near ones are found without a call.
#[inline]
pub fn find(byte: u8, bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(window) = bytes[at..].first_chunk::<WINDOW>()
        && at < 4 * WINDOW
    {
        let hits = mask(window, &[byte]);
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize);
        }
        at += WINDOW;
    }
    memchr::memchr(byte, &bytes[at..]).map(|i| at + i)
}

/// Goes through the fields of a line as `sort -k` counts them.
pub struct Walk<'a> {
    line: &'a [u8],
    tab: Option<u8>,
    pub at: usize,
    /// Where the window starts, and which of its bytes separate; those behind the line do.
    window: usize,
    separators: u32,
}

impl<'a> Walk<'a> {
    #[inline]
    pub fn new(line: &'a [u8], tab: Option<u8>) -> Walk<'a> {
        let mut walk = Walk { line, tab, at: 0, window: 0, separators: 0 };
        walk.load(0);
        walk
    }

    /// Back to the line's start.
    pub fn restart(&mut self) {
        self.at = 0;
        self.load(0);
    }

    #[inline]
    fn load(&mut self, at: usize) {
        self.window = at;
        let rest = &self.line[at..];
        if let Some(window) = rest.first_chunk() {
            self.separators = self.mask(window);
            return;
        }
        let behind = !0u32 << rest.len();
        self.separators = behind
            | match self.line.last_chunk() {
                // The last of the line, of which the front is shifted out.
                Some(window) => self.mask(window) >> (WINDOW - rest.len()),
                None => {
                    let mut window = [0; WINDOW];
                    window[..rest.len()].copy_from_slice(rest);
                    self.mask(&window)
                }
            };
    }

    #[inline(always)]
    fn mask(&self, window: &[u8; WINDOW]) -> u32 {
        match self.tab {
            Some(tab) => mask(window, &[tab]),
            // Blank as in the C locale; a newline is one too, for lines that end with NUL.
            None => mask(window, b" \t\n"),
        }
    }

    /// Goes on to the next byte that separates, or does not; at most to the line's end.
    #[inline]
    fn seek(&mut self, separator: bool) {
        while self.at < self.line.len() {
            if self.at - self.window >= WINDOW {
                self.load(self.at);
            }
            let bits = if separator { self.separators } else { !self.separators };
            let bits = bits >> (self.at - self.window);
            if bits != 0 {
                self.at = (self.at + bits.trailing_zeros() as usize).min(self.line.len());
                return;
            }
            self.at = self.window + WINDOW;
        }
        self.at = self.line.len();
    }

    /// Goes to the end of the field: blanks in front belong to it, a tab does not.
    #[inline]
    pub fn field(&mut self) {
        if self.tab.is_none() {
            self.seek(false);
        }
        self.seek(true);
    }

    /// Goes over the separator behind a field, where fields have one.
    #[inline]
    pub fn separator(&mut self) {
        self.at += usize::from(self.tab.is_some() && self.at < self.line.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::{Rng, SeededRng};

    fn text(rng: &SeededRng, len: usize) -> Vec<u8> {
        let alphabet = b"ab \t:\n";
        let run = 1 + rng.next_u64() % 40;
        (0..len as u64)
            .map(|i| match i % run {
                0 => alphabet[(rng.next_u64() % 6) as usize],
                _ => b'x',
            })
            .collect()
    }

    #[test]
    fn records_end_where_the_delimiter_is() {
        let rng = SeededRng::new(3);
        for len in (0..70).chain([1000]) {
            let text = text(&rng, len);
            let mut found = Vec::new();
            let rest = records(&text, b'\n', |start, end| {
                found.push(&text[start..end]);
                Ok::<(), ()>(())
            });
            let mut expected: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
            let cut = expected.pop_if(|last| last.last() != Some(&b'\n')).map_or(0, <[u8]>::len);
            assert_eq!(found, expected);
            assert_eq!(rest, Ok(len - cut));
            assert_eq!(find(b':', &text), text.iter().position(|b| *b == b':'));
        }
        assert_eq!(
            records(b"1\n2\n", b'\n', |_, end| if end > 2 { Err(end) } else { Ok(()) }),
            Err(4)
        );
    }

    #[test]
    fn fields_are_those_found_byte_by_byte() {
        let rng = SeededRng::new(4);
        for len in (0..120).chain([500]) {
            let text = text(&rng, len);
            for tab in [None, Some(b':')] {
                let mut walk = Walk::new(&text, tab);
                let mut at = 0;
                while at < len {
                    walk.field();
                    if tab.is_none() {
                        while at < len && matches!(text[at], b' ' | b'\t' | b'\n') {
                            at += 1;
                        }
                    }
                    let ends = |b: u8| tab.map_or(matches!(b, b' ' | b'\t' | b'\n'), |t| t == b);
                    while at < len && !ends(text[at]) {
                        at += 1;
                    }
                    assert_eq!(walk.at, at, "{text:?}");
                    walk.separator();
                    at += usize::from(tab.is_some() && at < len);
                    assert_eq!(walk.at, at, "{text:?}");
                }
            }
        }
    }
}
