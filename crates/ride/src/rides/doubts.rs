//! Which images are read because somebody doubts them, and how often. Anybody who may ride may doubt, as often as they
//! like, and each look costs a pass over a whole image: so one look a minute is taken of each. Reads nothing itself.

use holdfast_base::Error;
use holdfast_base::ids::Index;
use holdfast_env::planted;
use std::collections::BTreeMap;

/// How long an image that was looked at is not read again, whoever doubts it.
pub(super) const DOUBT_REST_NS: u64 = 60_000_000_000;

/// What somebody who doubts an image is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doubted {
    /// It is read from now on.
    Look,
    /// It is being read.
    IsLookedAt,
    /// So many nanoseconds ago it was read, with this result, and it is not read again yet.
    Rests(u64, Result<(), Error>),
}

/// An image was read to its end.
struct Look {
    ended_ns: u64,
    found: Result<(), Error>,
}

/// The images of a view that somebody has doubted.
#[derive(Default)]
pub(super) struct Doubts {
    /// The last look at each; nothing while it is read.
    looks: BTreeMap<Index, Option<Look>>,
}

impl Doubts {
    /// Somebody doubts an image.
    pub fn doubt(&mut self, index: Index, now_ns: u64) -> Doubted {
        match self.looks.get(&index) {
            Some(None) => return Doubted::IsLookedAt,
            Some(Some(Look { ended_ns, found })) => {
                // Behind the end of a look, however long that took: a large image is not read all the time.
                let ago_ns = now_ns.saturating_sub(*ended_ns);
                if ago_ns < DOUBT_REST_NS && !planted!("ride.doubts-without-end") {
                    return Doubted::Rests(ago_ns, found.clone());
                }
            }
            None => {}
        }
        self.looks.insert(index, None);
        Doubted::Look
    }

    /// It was read.
    pub fn looked(&mut self, index: Index, now_ns: u64, found: Result<(), Error>) {
        self.looks.insert(index, Some(Look { ended_ns: now_ns, found }));
    }

    /// It is not there any more.
    pub fn forget(&mut self, index: Index) {
        self.looks.remove(&index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_read_once_a_minute_however_often_it_is_doubted() {
        let mut doubts = Doubts::default();
        let (one, other, begun) = (Index(7), Index(9), 5);
        assert_eq!(doubts.doubt(one, begun), Doubted::Look);
        // However long the look takes, there is one.
        assert_eq!(doubts.doubt(one, begun + 2 * DOUBT_REST_NS), Doubted::IsLookedAt);
        assert_eq!(doubts.doubt(other, begun), Doubted::Look, "each has its own minute");
        let (looked, last) = (begun + 3 * DOUBT_REST_NS, DOUBT_REST_NS - 1);
        doubts.looked(one, looked, Ok(()));
        assert_eq!(doubts.doubt(one, looked), Doubted::Rests(0, Ok(())));
        assert_eq!(doubts.doubt(one, looked + last), Doubted::Rests(last, Ok(())));
        assert_eq!(doubts.doubt(one, looked + DOUBT_REST_NS), Doubted::Look);
        // A disk that cannot be read is not read all the time either, and who asks is told so.
        let unreadable = Error::retry("read a slab: the disk does not answer");
        doubts.looked(one, looked, Err(unreadable.clone()));
        assert_eq!(doubts.doubt(one, looked + 1), Doubted::Rests(1, Err(unreadable)));
        doubts.forget(one);
        assert_eq!(doubts.doubt(one, looked), Doubted::Look, "another image of that mark");
    }
}
