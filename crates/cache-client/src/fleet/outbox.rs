//! Datagrams to one server, one behind the other, in runs that one call can send.

use holdfast_env::sockets::{DATAGRAM_BYTES_MAX, TRAIN_MAX};

/// Datagrams of one length; the last may be shorter.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: usize,
    each: usize,
    count: usize,
    is_closed: bool,
}

#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    runs: Vec<Run>,
}

impl Outbox {
    pub fn push(&mut self, frame: &[u8], body: &[u8]) {
        let (start, len) = (self.bytes.len(), frame.len() + body.len());
        self.bytes.extend_from_slice(frame);
        self.bytes.extend_from_slice(body);
        if let Some(run) = self.runs.last_mut()
            && !run.is_closed
            && len <= run.each
            && run.count < TRAIN_MAX
            && start - run.start + len <= DATAGRAM_BYTES_MAX
        {
            run.count += 1;
            run.is_closed = len < run.each;
            return;
        }
        self.runs.push(Run { start, each: len, count: 1, is_closed: false });
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Each run's bytes and the length of its datagrams.
    pub fn runs(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.runs.iter().enumerate().map(|(i, run)| {
            let end = self.runs.get(i + 1).map_or(self.bytes.len(), |next| next.start);
            (&self.bytes[run.start..end], run.each)
        })
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_of_one_length_travel_together() {
        let mut outbox = Outbox::default();
        for len in [3, 3, 2, 3, 4, 1, 1] {
            outbox.push(b"f", &vec![len; usize::from(len)]);
        }
        let runs: Vec<(usize, usize)> = outbox.runs().map(|(b, each)| (b.len(), each)).collect();
        assert_eq!(runs, [(11, 4), (4, 4), (7, 5), (2, 2)]);
        outbox.clear();
        (0..2 * TRAIN_MAX).for_each(|_| outbox.push(b"f", b"x"));
        assert_eq!(outbox.runs().count(), 2);
    }
}
