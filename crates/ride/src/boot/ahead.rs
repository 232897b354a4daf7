//! Pieces of a sequence that are made on a thread of their own while those before are taken: a view that
//! begins reads and verifies the next slabs while it takes in the ones that it has. Neither side goes on
//! without the other, and no thread is left behind. Knows nothing of slabs.

use holdfast_base::Result;
use holdfast_env::{planted, tasks};
use std::sync::mpsc::{channel, sync_channel};

/// Pieces that are made and wait to be taken. Beside them one is being made, one waits for room, and one is
/// taken: so many and three more are in memory, each a slab (half a MiB as a rule, and up to twice that and
/// one value).
const PIECES_AHEAD: usize = 4;

/// Appends the next piece, and says false when there is none.
pub(super) type More<'a> = dyn FnMut(&mut Vec<u8>) -> Result<bool> + 'a;

/// Has `take` take what `make` makes, in its order, up to its end or its first error. Where `take` comes to
/// its own end before, nothing more is made. Both are over when this returns.
pub(super) fn ahead<T>(
    make: &mut (dyn FnMut(&mut Vec<u8>) -> Result<bool> + Send),
    take: impl FnOnce(&mut More<'_>) -> T,
) -> T {
    // Closed by whoever ends first: the other one hears of it with its next piece.
    let (made, pieces) = sync_channel::<Result<Vec<u8>>>(PIECES_AHEAD);
    // Memory that was filled before comes back: pages that are new cost more than what is copied there.
    let (emptied, empty) = channel::<Vec<u8>>();
    std::thread::scope(move |scope| {
        tasks::scoped(scope, "boot-ahead", move || {
            loop {
                let mut piece = empty.try_recv().unwrap_or_default();
                piece.clear();
                let said = match make(&mut piece) {
                    Ok(true) => Ok(piece),
                    Ok(false) => return,
                    Err(_) if planted!("ride.failed-reading-is-an-end") => return,
                    Err(e) => Err(e),
                };
                let is_over = said.is_err();
                if made.send(said).is_err() || is_over {
                    return;
                }
            }
        });
        let taken = take(&mut |out| match pieces.recv() {
            Ok(piece) => {
                let mut piece = piece?;
                match out.is_empty() {
                    true => std::mem::swap(out, &mut piece),
                    false => out.extend_from_slice(&piece),
                }
                // Nobody needs it where nothing more is made.
                let _ = emptied.send(piece);
                Ok(true)
            }
            // The end: an error would have come in front of it.
            Err(_) => Ok(false),
        });
        // In front of the scope's end, which waits for whoever makes.
        drop(pieces);
        taken
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Error;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Numbers as pieces of different lengths, some of them empty; an error in the place of one of them.
    fn numbers(count: u8, fails_at: Option<u8>) -> impl FnMut(&mut Vec<u8>) -> Result<bool> + Send {
        let mut next = 0;
        move |out| {
            if Some(next) == fails_at {
                return Err(Error::corrupt("read piece"));
            }
            if next < count {
                assert!(out.is_empty(), "what was in a piece before is not given again");
                out.resize(usize::from(next % 5), next);
                next += 1;
                return Ok(true);
            }
            Ok(false)
        }
    }

    fn wanted(count: u8) -> Vec<u8> {
        (0..count).flat_map(|n| vec![n; usize::from(n % 5)]).collect()
    }

    fn taken(more: &mut More<'_>) -> (Vec<u8>, Result<bool>) {
        // What is there already stays in front.
        let (mut all, mut piece) = (Vec::new(), Vec::new());
        loop {
            match more(&mut piece) {
                Ok(true) if all.len() % 2 == 0 => all.append(&mut piece),
                Ok(true) => {}
                ended => {
                    all.append(&mut piece);
                    return (all, ended);
                }
            }
        }
    }

    #[test]
    fn pieces_come_in_their_order_up_to_the_end() {
        for count in 0..40 {
            let came = ahead(&mut numbers(count, None), taken);
            assert_eq!(came, (wanted(count), Ok(false)), "{count}");
        }
    }

    /// A disk that fails under whoever reads ahead is heard of behind what was read before, and not as an
    /// end: a view would have begun with a part of its items.
    #[test]
    fn what_fails_is_heard_behind_what_was_made_before() {
        for at in 0..20 {
            let (came, ended) = ahead(&mut numbers(40, Some(at)), taken);
            assert_eq!(came, wanted(at), "{at}");
            assert_eq!(ended.unwrap_err().message, "read piece");
        }
    }

    #[test]
    fn whoever_takes_no_more_ends_who_makes_and_bounds_how_far_it_is() {
        for takes in 0..10 {
            let made = AtomicUsize::new(0);
            let mut without_end = |out: &mut Vec<u8>| {
                out.push(1);
                made.fetch_add(1, Ordering::Relaxed);
                Ok(true)
            };
            // It would wait for ever if its thread were left behind.
            let failed: Result<()> = ahead(&mut without_end, |more| {
                let mut out = Vec::new();
                (0..takes).for_each(|_| assert_eq!(more(&mut out), Ok(true)));
                Err(Error::full("no room"))
            });
            assert_eq!(failed.unwrap_err().message, "no room");
            let most = takes + PIECES_AHEAD + 2;
            assert!(made.into_inner() <= most, "after {takes} of them");
        }
    }
}
