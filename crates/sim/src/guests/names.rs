//! What guests share whose clients put, delete and read under names: what a name may hold, and the
//! few names that one client works at.

use crate::world::guest::Visitor;
use crate::world::scene::Version;
use holdfast_base::{Kind, Result};
use std::collections::BTreeSet;
use std::future::Future;

/// Names that one client uses at a time.
const NAMES: usize = 4;
/// How often a client asks, before it says that nobody answers.
pub const ATTEMPTS: usize = 40;

/// What a name may hold.
#[derive(Default)]
pub struct Known {
    /// As far as is known now; empty while nothing was asked for.
    pub now: BTreeSet<Option<Version>>,
    pub ever: BTreeSet<Version>,
}

impl Known {
    /// A change to `version` has ended. Whether its end is known; if not, the name may be as before
    /// or as asked.
    pub fn settle(
        &mut self,
        visitor: &Visitor,
        name: &str,
        version: Option<Version>,
        done: Result<()>,
    ) -> bool {
        if self.now.is_empty() {
            self.now.insert(None);
        }
        match done {
            Ok(()) => {
                visitor.note(&format!("made `{name}` {version:?}"));
                self.now = BTreeSet::from([version]);
                true
            }
            Err(e) => {
                visitor.note(&format!("does not know about `{name}`: {e}"));
                if e.kind == Kind::Bug || e.kind == Kind::Corrupt {
                    visitor.violate(&format!("`{name}`: {e}"));
                }
                self.now.insert(version);
                false
            }
        }
    }
}

/// Content to put, of one of a few sizes.
pub fn draw_version(visitor: &Visitor) -> Version {
    let bytes = [0, 10, 700, 5000, 20_000][visitor.below(5) as usize];
    Version { seed: visitor.below(u64::MAX), bytes }
}

/// Where one client is at: its gateway, and the names that are its own.
pub struct Desk {
    prefix: &'static str,
    gateway: usize,
    names: Vec<String>,
    next: u64,
}

impl Desk {
    /// Of a client whose names begin with `prefix`.
    pub fn new(visitor: &Visitor, prefix: &'static str) -> Desk {
        Desk { prefix, gateway: visitor.any_gateway(), names: Vec::new(), next: 0 }
    }

    /// After a while: the gateway to ask next, and the name to ask about.
    pub async fn turn(&mut self, visitor: &Visitor) -> (usize, String) {
        visitor.think().await;
        if visitor.below(8) == 0 {
            self.gateway = visitor.any_gateway();
        }
        while self.names.len() < NAMES {
            self.names.push(format!("{}{}-{}", self.prefix, visitor.name(), self.next));
            self.next += 1;
        }
        let at = visitor.below(NAMES as u64) as usize;
        (self.gateway, self.names[at].clone())
    }

    /// The operation is over. A name in doubt is left alone: what was asked for may be done any time
    /// later.
    pub fn over(&mut self, visitor: &Visitor, name: &str, sure: bool) {
        visitor.count_operation();
        if !sure && let Some(at) = self.names.iter().position(|own| own == name) {
            self.names.swap_remove(at);
            self.gateway = visitor.any_gateway();
        }
    }
}

/// Asks until somebody says what a name is; that nobody does is a broken promise.
pub async fn until_told<T, F: Future<Output = Option<T>>>(
    visitor: &Visitor,
    (gateway, name): (usize, &str),
    ask: impl Fn() -> F,
) -> Option<T> {
    for _ in 0..ATTEMPTS {
        let told = ask().await;
        if told.is_some() {
            return told;
        }
        visitor.pause().await;
    }
    visitor.violate(&format!("nobody says at n{gateway} what `{name}` is"));
    None
}
