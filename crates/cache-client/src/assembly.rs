//! An answer that arrives in several datagrams, in any order, some of them twice.

use crate::wire::{Scan, Shape};

/// Frame of a datagram of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub id: u16,
    pub number: u16,
    pub count: u16,
}

impl Frame {
    /// The frame and what it is in front of; nothing if that cannot be an answer's.
    pub fn split(datagram: &[u8]) -> Option<(Frame, &[u8])> {
        let (frame, body) = datagram.split_first_chunk::<{ crate::wire::FRAME_BYTES }>()?;
        let word = |i: usize| u16::from_be_bytes([frame[i], frame[i + 1]]);
        let frame = Frame { id: word(0), number: word(2), count: word(4) };
        (frame.number < frame.count && !body.is_empty()).then_some((frame, body))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    More,
    /// All is there.
    Whole,
    /// Was there already.
    Twice,
    /// Does not belong to what came before, or the answer would be too long.
    Wrong,
}

#[derive(Default)]
pub struct Assembly {
    count: u16,
    /// One more than the highest number that came.
    top: u16,
    /// Number, start and end of each part in `bytes`, as they came.
    parts: Vec<(u16, u32, u32)>,
    bytes: Vec<u8>,
    /// Of an answer whose datagrams each say 0 of 1 (memcached 1.6 numbers each item's anew).
    scan: Scan,
}

impl Assembly {
    pub fn clear(&mut self) {
        (self.count, self.top) = (0, 0);
        self.parts.clear();
        self.bytes.clear();
        self.scan = Scan::default();
    }

    pub fn add(&mut self, frame: Frame, body: &[u8], bytes_max: usize) -> Added {
        if self.parts.is_empty() {
            self.count = frame.count;
        }
        if frame.count != self.count || self.bytes.len() + body.len() > bytes_max {
            return Added::Wrong;
        }
        // In order, as a rule: then there is nothing to look for.
        let is_next = frame.number >= self.top;
        let is_loose = self.count == 1;
        if !is_loose && !is_next && self.parts.iter().any(|part| part.0 == frame.number) {
            return Added::Twice;
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(body);
        self.top = self.top.max(frame.number + 1);
        self.parts.push((frame.number, start, self.bytes.len() as u32));
        if is_loose {
            return match self.scan.end(Shape::Values, &self.bytes) {
                Ok(None) => Added::More,
                Ok(Some(_)) => Added::Whole,
                Err(_) => Added::Wrong,
            };
        }
        if self.parts.len() < usize::from(self.count) { Added::More } else { Added::Whole }
    }

    /// The last datagram is here, others are not: they are lost, or were overtaken.
    pub fn has_hole(&self) -> bool {
        self.count > 1 && self.top == self.count && self.parts.len() < usize::from(self.count)
    }

    /// The answer, once it is whole.
    pub fn answer(&mut self) -> &[u8] {
        if !self.parts.is_sorted() {
            self.parts.sort_unstable();
            let parts =
                self.parts.iter().map(|(_, from, to)| &self.bytes[*from as usize..*to as usize]);
            self.bytes = parts.collect::<Vec<_>>().concat();
        }
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(assembly: &mut Assembly, number: u16, count: u16, body: &[u8]) -> Added {
        assembly.add(Frame { id: 1, number, count }, body, 1000)
    }

    #[test]
    fn parts_in_any_order_and_twice_are_one_answer() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut assembly = Assembly::default();
            let parts: [&[u8]; 3] = [b"VALUE a 0 5\r\nxx", b"yyy\r\n", b"END\r\n"];
            for (i, number) in order.into_iter().enumerate() {
                let last = i == 2;
                assert_eq!(assembly.has_hole(), order[..i].contains(&2), "{order:?} {i}");
                let added = add(&mut assembly, number, 3, parts[usize::from(number)]);
                assert_eq!(added, if last { Added::Whole } else { Added::More });
                if !last {
                    for number in &order[..=i] {
                        assert_eq!(add(&mut assembly, *number, 3, b"other"), Added::Twice);
                    }
                }
            }
            assert_eq!(assembly.answer(), parts.concat());
        }
    }

    #[test]
    fn datagrams_that_all_say_0_of_1_are_one_answer_too() {
        let mut assembly = Assembly::default();
        assert_eq!(add(&mut assembly, 0, 1, b"VALUE a 0 1\r\nx\r\n"), Added::More);
        assert_eq!(add(&mut assembly, 0, 1, b"VALUE b 0 1\r\ny\r\n"), Added::More);
        assert_eq!(add(&mut assembly, 0, 1, b"END\r\n"), Added::Whole);
        assert_eq!(assembly.answer(), b"VALUE a 0 1\r\nx\r\nVALUE b 0 1\r\ny\r\nEND\r\n");
    }

    #[test]
    fn what_does_not_fit_together_is_wrong() {
        assert_eq!(Frame::split(&[0, 1, 0, 0, 0, 1, 0]), None);
        assert_eq!(Frame::split(&[0, 1, 0, 0, 0, 1, 0, 0]), None, "nothing behind it");
        assert_eq!(Frame::split(&[0, 1, 0, 2, 0, 2, 0, 0, 9]), None, "2 of 2");
        assert_eq!(Frame::split(&[0, 1, 0, 0, 0, 0, 0, 0, 9]), None, "0 of 0");
        let mut assembly = Assembly::default();
        assert_eq!(add(&mut assembly, 0, 3, b"x"), Added::More);
        assert_eq!(add(&mut assembly, 1, 4, b"x"), Added::Wrong);
        assert_eq!(add(&mut assembly, 1, 3, &[0; 1000]), Added::Wrong);
    }
}
