//! Requests that were received and wait for their client's turn: whose deadline passes first, and what
//! those hear whose deadline has passed. Plain arithmetic on the bytes, for all connections with
//! seats; which wait at all is [`Seat`](crate::clients::Seat)'s to say.

use super::connection::deadline_passed;
use super::out::{Address, Out};
use super::parse::{self, Next};

const MS_NS: u64 = 1_000_000;

/// When the first of them has waited long enough that are in `stash` since `since_ns`.
pub(super) fn next_deadline_ns(stash: &[u8], since_ns: u64) -> Option<u64> {
    let (mut at, mut first) = (0, None::<u32>);
    while let Ok(Next::Request { header, body, .. }) = parse::next(stash, at) {
        at = body.end;
        let deadline = Some(header.deadline_or_status).filter(|ms| *ms > 0);
        first = first.into_iter().chain(deadline).min();
    }
    first.map(|ms| since_ns + ms as u64 * MS_NS)
}

/// Answers those that have waited for too long, and takes them out; says how many.
pub(super) fn expire(stash: &mut Vec<u8>, since_ns: u64, now_ns: u64, out: &mut Out) -> u64 {
    let (mut at, mut passed, mut left) = (0, 0, Vec::new());
    while let Ok(Next::Request { header, body, .. }) = parse::next(stash, at) {
        let deadline_ns = since_ns + header.deadline_or_status as u64 * MS_NS;
        if header.deadline_or_status > 0 && deadline_ns <= now_ns {
            out.push_error(Address::of(&header), &deadline_passed());
            passed += 1;
        } else {
            left.extend_from_slice(&stash[at..body.end]);
        }
        at = body.end;
    }
    if passed > 0 {
        left.extend_from_slice(&stash[at..]);
        *stash = left;
    }
    passed
}
