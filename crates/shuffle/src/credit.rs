//! How much a sender may have under way: both sides' count of one window. Pure.
//!
//! What a receiver holds of a connection is bounded by its window however fast senders are, so its
//! memory is one number, and many senders at once cannot flood its port.

use holdfast_base::{Error, Result};

/// The sender's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    window: u64,
    under_way: u64,
}

impl Credit {
    /// Of a window that the receiver granted.
    pub fn new(window: u64) -> Credit {
        Credit { window, under_way: 0 }
    }

    /// Whether a block of so many bytes may be sent now.
    pub fn allows(&self, bytes: u64) -> bool {
        self.under_way + bytes <= self.window
    }

    /// What the receiver has not said to be written.
    pub fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Counts a block that is sent, which the window must allow.
    pub fn sent(&mut self, bytes: u64) {
        assert!(self.allows(bytes), "{bytes} bytes are sent without credit: {self:?}");
        self.under_way += bytes;
    }

    /// Counts what the receiver grants again; more than is under way is its mistake.
    pub fn granted(&mut self, bytes: u64) -> Result<()> {
        self.under_way = self.under_way.checked_sub(bytes).ok_or_else(|| {
            Error::bug(format!(
                "send records: the receiver granted {bytes} bytes where {} were under way",
                self.under_way
            ))
        })?;
        Ok(())
    }
}

/// The receiver's side: refuses what goes past the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    left: u64,
}

impl Allowance {
    /// Of the window that this connection has.
    pub fn new(window: u64) -> Allowance {
        Allowance { left: window }
    }

    /// Takes a block that arrives. One that was not granted is refused: whoever sends it takes
    /// memory that is somebody else's.
    pub fn take(&mut self, bytes: u64) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            Error::invalid(format!(
                "receive a block of {bytes} bytes: only {} are granted: use matching builds",
                self.left
            ))
        })?;
        Ok(())
    }

    /// Gives back what was written.
    pub fn release(&mut self, bytes: u64) {
        self.left += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;
    use std::collections::VecDeque;

    /// A wire between both sides, on which blocks and grants stay as long as they like: what is
    /// under way never passes the window, no right block is refused, and all of them arrive.
    #[test]
    fn both_sides_agree_whatever_the_wire_holds_back() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let window = 1 + random.next() % 1000;
            let (mut credit, mut allowance) = (Credit::new(window), Allowance::new(window));
            let (mut blocks, mut grants) = (VecDeque::new(), VecDeque::new());
            let mut left: Vec<u64> = (0..50).map(|_| 1 + random.next() % window).collect();
            let (wanted, mut got) = (left.iter().sum::<u64>(), 0);
            while got < wanted || credit.under_way() > 0 {
                match random.next() % 3 {
                    0 if left.last().is_some_and(|bytes| credit.allows(*bytes)) => {
                        let bytes = left.pop().unwrap();
                        credit.sent(bytes);
                        blocks.push_back(bytes);
                    }
                    1 if !blocks.is_empty() => {
                        let bytes = blocks.pop_front().unwrap();
                        allowance.take(bytes).unwrap();
                        allowance.release(bytes);
                        got += bytes;
                        grants.push_back(bytes);
                    }
                    2 if !grants.is_empty() => credit.granted(grants.pop_front().unwrap()).unwrap(),
                    _ => {}
                }
                let on_the_wire: u64 = blocks.iter().chain(&grants).sum();
                assert_eq!(credit.under_way(), on_the_wire);
                assert!(on_the_wire <= window, "seed {seed}");
            }
            assert!(left.is_empty() && got == wanted, "seed {seed}");
        }
    }

    #[test]
    fn what_was_not_granted_is_refused() {
        let mut allowance = Allowance::new(10);
        allowance.take(6).unwrap();
        assert!(allowance.take(5).unwrap_err().message.contains("only 4 are granted"));
        assert!(Credit::new(10).granted(1).is_err());
    }
}
