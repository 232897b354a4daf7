//! Sessions that nobody has used for long: each costs every node its memory, and there is room for
//! so many. A pure core; who has the fold, and may speak for it, ends what it names.

use holdfast_base::ids::SessionId;
use holdfast_view::SESSIONS_MAX;
use std::collections::BTreeMap;

/// Between two looks.
const LOOK_NS: u64 = 10_000_000_000;
/// How long a session may be unused where there are many.
const CROWDED_IDLE_NS: u64 = 60_000_000_000;

/// What is known of the use of one view's sessions: this process's own memory, so after a start each
/// has its whole time again.
pub struct IdleSessions {
    idle_ns: u64,
    /// Each session's mark when it was last looked at, and since when it has had it.
    seen: BTreeMap<SessionId, (u64, u64)>,
    next_ns: u64,
}

impl IdleSessions {
    /// Sessions are idle after so long.
    pub fn new(idle_ms: u64) -> IdleSessions {
        IdleSessions { idle_ns: idle_ms * 1_000_000, seen: BTreeMap::new(), next_ns: 0 }
    }

    /// Those to be ended now, of the ones that are open, each with a mark that changes with its use
    /// (`Fold::sessions`); they are asked for now and then alone.
    pub fn look(
        &mut self,
        now_ns: u64,
        open: impl FnOnce() -> Vec<(SessionId, u64)>,
    ) -> Vec<SessionId> {
        if now_ns < self.next_ns {
            return Vec::new();
        }
        self.next_ns = now_ns + (self.idle_ns / 16).min(LOOK_NS);
        let open = open();
        let idle_ns = match open.len() > SESSIONS_MAX / 2 {
            // Before there is no room for others.
            true => self.idle_ns.min(CROWDED_IDLE_NS),
            false => self.idle_ns,
        };
        let mut ends = Vec::new();
        let mut seen = BTreeMap::new();
        for (session, mark) in open {
            let since = match self.seen.get(&session) {
                Some((before, since)) if *before == mark => *since,
                _ => now_ns,
            };
            match now_ns - since < idle_ns {
                true => drop(seen.insert(session, (mark, since))),
                false => ends.push(session),
            }
        }
        self.seen = seen;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn sessions_are_idle_once_nobody_has_used_them_for_long_and_sooner_where_there_are_many() {
        let mut idle = IdleSessions::new(100_000);
        let open = |marks: &[(u64, u64)]| -> Vec<(SessionId, u64)> {
            marks.iter().map(|(id, mark)| (SessionId(*id), *mark)).collect()
        };
        assert!(idle.look(0, || open(&[(1, 7), (2, 7)])).is_empty());
        assert!(idle.look(S, || panic!("not so soon again")).is_empty());
        assert!(idle.look(60 * S, || open(&[(1, 7), (2, 8), (3, 1)])).is_empty());
        assert_eq!(idle.look(100 * S, || open(&[(1, 7), (2, 8), (3, 1)])), [SessionId(1)]);
        // One that could not be ended has its whole time again.
        assert!(idle.look(159 * S, || open(&[(1, 7), (2, 8), (3, 1)])).is_empty());
        let ended = idle.look(166 * S, || open(&[(1, 7), (2, 8), (3, 1)]));
        assert_eq!(ended, [SessionId(2), SessionId(3)]);
        let many = || (0..SESSIONS_MAX as u64 / 2 + 1).map(|id| (SessionId(id), 0)).collect();
        assert!(idle.look(200 * S, many).is_empty());
        assert_eq!(idle.look(261 * S, many).len(), SESSIONS_MAX / 2 + 1);
    }
}
