//! What a process holds for its clients, all connections and ports together: answers that nobody
//! has taken yet, bodies that have half arrived, and the memory of work under way for them. It is
//! taken before the work and given back when the bytes are gone. Pure arithmetic on a few atomics;
//! whoever is refused waits, or asks its client to come again.

use crate::trial::Knob;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Without a setting: a sixteenth of the machine's memory, within these.
const DEFAULT_SHARE: u64 = 16;
pub const BYTES_MIN: u64 = 64 << 20;
const DEFAULT_BYTES_MAX: u64 = 2 << 30;
/// A connection that holds something may hold as much as an eighth of what is free. So a single
/// client never has the whole, many together leave something, and what they leave is more the
/// fewer they are.
static SHARE: Knob = Knob::new("net.budget-share", 8, &[2, 3, 16]);
/// A connection that holds nothing may take half of what is free: the largest request goes on as
/// long as twice of it is free, a small one practically always.
const FIRST_SHARE: u64 = 2;
/// Other nodes' requests are let through up to a quarter beyond: their answers are what this
/// node's own clients, and theirs, wait for, so that clients must not be in their way.
const NODES_SHARE: u64 = 4;
/// Part of the limit within which there is some to spare: for what makes its asker faster and is not
/// needed to get on.
static SPARE_SHARE: Knob = Knob::new("net.budget-spare", 4, &[1, 1 << 40]);
/// Memory that was used and is free again, from which on it is worth to be given to the system.
const GIVE_BACK_BYTES: u64 = 32 << 20;

/// For whom something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Client,
    /// Another node of the cluster.
    Node,
}

#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    /// Most that was used since memory was last given back, and since the start.
    recent_peak: AtomicU64,
    peak: AtomicU64,
    /// How often somebody had to wait or come again.
    refused: AtomicU64,
}

/// Gives its bytes back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// At least [`BYTES_MIN`]: less could not hold two of the largest requests.
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget {
            limit: limit.max(BYTES_MIN),
            used: AtomicU64::new(0),
            recent_peak: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// As large as a machine with so much memory should have it.
    pub fn default_bytes(machine_bytes: u64) -> u64 {
        (machine_bytes / DEFAULT_SHARE).clamp(BYTES_MIN, DEFAULT_BYTES_MAX)
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What a single request may take when nobody else has anything.
    pub fn request_bytes_max(&self) -> u64 {
        self.limit / FIRST_SHARE
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Half is taken, and the largest requests may wait: whoever holds something must get on, or
    /// make way.
    pub fn is_short(&self) -> bool {
        self.used() >= self.limit / 2
    }

    /// Whether a connection that holds `held` bytes may have `more`, with `used` taken in all.
    fn admits(&self, used: u64, held: u64, more: u64, asker: Asker) -> bool {
        if asker == Asker::Node {
            return used.saturating_add(more) <= self.limit + self.limit / NODES_SHARE;
        }
        let free = self.limit.saturating_sub(used);
        match held {
            0 => more <= free / FIRST_SHARE,
            _ => held.saturating_add(more) <= free / SHARE.get(),
        }
    }

    /// Whether asking for it now would do.
    pub fn would_admit(&self, held: u64, more: u64, asker: Asker) -> bool {
        self.admits(self.used(), held, more, asker)
    }

    /// Takes `more` for a connection that holds `held` already. What was taken is given back with
    /// [`Budget::change`].
    pub fn take_more(&self, held: u64, more: u64, asker: Asker) -> bool {
        let taken = self.used.try_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
            self.admits(used, held, more, asker).then_some(used + more)
        });
        match taken {
            Ok(before) => self.rose_to(before + more),
            Err(_) => {
                SHARE.cross();
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        taken.is_ok()
    }

    /// A share for one request of its own; `None` while others have it.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let taken = self.take_more(0, bytes, Asker::Client);
        taken.then(|| Share { budget: self.clone(), bytes })
    }

    /// A share for somebody who holds `held` already and gets on without it, too: while there is some to
    /// spare. Who is refused does not wait for it.
    pub fn take_spare(self: &Arc<Self>, held: u64, bytes: u64) -> Option<Share> {
        let spare = self.used() < self.limit / SPARE_SHARE.get()
            && self.would_admit(held, bytes, Asker::Client);
        if !spare {
            SPARE_SHARE.cross();
        }
        let taken = spare && self.take_more(held, bytes, Asker::Client);
        taken.then(|| Share { budget: self.clone(), bytes })
    }

    /// Takes bytes without asking, of what is bounded elsewhere: others have so much less.
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Share {
        self.change(0, bytes);
        Share { budget: self.clone(), bytes }
    }

    /// A connection that the budget knew with `before` bytes holds `now`: for what could not be
    /// known before, such as the size of an answer.
    pub fn change(&self, before: u64, now: u64) {
        if now > before {
            let more = now - before;
            self.rose_to(self.used.fetch_add(more, Ordering::AcqRel) + more);
        } else if before > now {
            let used = self.used.fetch_sub(before - now, Ordering::AcqRel);
            debug_assert!(used >= before - now, "more was given back than was taken");
        }
    }

    fn rose_to(&self, used: u64) {
        if used > self.recent_peak.load(Ordering::Relaxed) {
            self.recent_peak.fetch_max(used, Ordering::Relaxed);
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    /// Whether much was held and is free now: the time to give memory back to the system
    /// ([`crate::local::give_memory_back`]). Says so once for each time.
    pub fn fell(&self) -> bool {
        let (used, peak) = (self.used(), self.recent_peak.load(Ordering::Relaxed));
        let fell = peak >= GIVE_BACK_BYTES && used <= peak / 2;
        if fell {
            self.recent_peak.store(used, Ordering::Relaxed);
        }
        fell
    }
}

impl Share {
    /// Takes so many bytes more, of something that is bounded beside; false while others have them.
    pub fn grow(&mut self, more: u64) -> bool {
        let taken = self.budget.take_more(0, more, Asker::Client);
        self.bytes += if taken { more } else { 0 };
        taken
    }

    /// Gives back all but so many bytes.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "a share grew from {} to {bytes} bytes", self.bytes);
        self.budget.change(self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.change(self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;
    use crate::{Rng, SeededRng};

    #[test]
    fn a_share_grows_while_there_is_room_and_gives_back_all_of_it() {
        let budget = Budget::new(0);
        let mut share = budget.hold(0);
        assert!(share.grow(5) && share.grow(7));
        assert_eq!(budget.used(), 12);
        assert!(!share.grow(budget.limit()), "others have to live, too");
        assert_eq!(budget.used(), 12);
        drop(share);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_client_alone_has_a_share_and_a_newcomer_always_finds_something() {
        let budget = Budget::new(1 << 30);
        let mut held = vec![0u64];
        // Each greedy connection takes as much as it gets, a mebibyte at a time.
        for i in 0..300 {
            held.push(0);
            while budget.take_more(held[i], 1 << 20, Asker::Client) {
                held[i] += 1 << 20;
            }
            assert!(budget.take_more(0, 4096, Asker::Client), "the good one after {i} greedy ones");
            budget.change(4096, 0);
        }
        assert!(held[0] < budget.limit() / 8, "{} of {}", held[0], budget.limit());
        assert_eq!(budget.used(), held.iter().sum::<u64>());
        assert!(budget.used() <= budget.limit() && budget.is_short());
        held.into_iter().for_each(|held| budget.change(held, 0));
        assert_eq!(budget.used(), 0);
        assert!(budget.fell() && !budget.fell(), "once");
    }

    #[test]
    fn the_largest_request_fits_into_the_smallest_budget() {
        let budget = Budget::new(0);
        let largest = holdfast_base::limits::FRAME_BODY_BYTES_MAX as u64
            + holdfast_base::limits::FRAME_META_BYTES_MAX as u64;
        assert!(budget.take_more(0, largest, Asker::Client));
        assert!(!budget.take_more(largest, largest, Asker::Client));
        assert_eq!(budget.refused(), 1);
    }

    #[test]
    fn what_is_held_without_asking_is_missed_by_who_asks() {
        let budget = Budget::new(BYTES_MIN);
        let mut held = budget.hold(BYTES_MIN - 100);
        assert!(budget.is_short() && budget.take(51).is_none() && budget.take(50).is_some());
        held.shrink(1000);
        assert_eq!((budget.used(), budget.is_short()), (1000, false));
        drop(held);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_spare_is_given_while_a_quarter_is_not_taken_and_nobody_counts_as_waiting() {
        let budget = Budget::new(BYTES_MIN);
        let share = budget.take_spare(1 << 20, 1 << 20).unwrap();
        assert_eq!(budget.used(), 1 << 20);
        assert!(budget.take_spare(BYTES_MIN / 8, 1 << 20).is_none(), "an eighth at most");
        let others = budget.hold(BYTES_MIN / 4 - (1 << 20));
        assert!(budget.take_spare(0, 1).is_none());
        drop((share, others));
        assert_eq!((budget.used(), budget.refused()), (0, 0));
    }

    #[test]
    fn nodes_get_through_beside_clients_that_have_everything_and_have_an_end_too() {
        let budget = Budget::new(1 << 30);
        budget.change(0, 1 << 30);
        assert!(!budget.take_more(0, 1, Asker::Client));
        assert!(budget.take_more(7, 1 << 28, Asker::Node));
        assert!(!budget.take_more(0, 1, Asker::Node));
    }

    /// Whoever asks, in whatever order, with whatever share: never more than the limit for
    /// clients, and nothing is left when all have gone.
    #[test]
    fn random_takers_never_pass_the_limit_and_leave_nothing() {
        for seed in 0..200 {
            let _trial = Trial::drawn(seed).enter();
            let rng = SeededRng::new(seed);
            let budget = Budget::new(BYTES_MIN);
            let (mut held, mut shares) = ([0u64; 8], Vec::new());
            for _ in 0..300 {
                let i = rng.next_u64() as usize % held.len();
                let bytes = 1 << (rng.next_u64() % 25);
                match rng.next_u64() % 4 {
                    0 => held[i] += budget.take_more(held[i], bytes, Asker::Client) as u64 * bytes,
                    1 => {
                        let now = held[i] / 2;
                        budget.change(held[i], now);
                        held[i] = now;
                    }
                    2 => shares.extend(budget.take(bytes)),
                    _ => drop(shares.pop()),
                }
                let all =
                    held.iter().sum::<u64>() + shares.iter().map(|s: &Share| s.bytes).sum::<u64>();
                assert_eq!(budget.used(), all, "seed {seed}");
                assert!(all <= budget.limit(), "seed {seed}");
            }
            held.into_iter().for_each(|held| budget.change(held, 0));
            drop(shares);
            assert_eq!(budget.used(), 0, "seed {seed}");
        }
    }
}
