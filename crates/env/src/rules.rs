//! Rules that a simulation breaks on purpose, to show that it would notice. A rule is broken by a
//! test's own word ([`without`]), for its thread and as long as it holds what it was given; no
//! setting, argument or message leads here, and the threads of a node never ask for it.

use std::cell::Cell;

/// What the code that asks [`holds`] does for safety's sake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Rule {
    /// A command under an older claim than the last one is refused.
    StaleEpochs = 1,
    /// A silent writer's chunk is sealed at the longest verified length.
    LongestLength = 2,
    /// A store that restarts takes no more appends to chunks that it held open.
    Fences = 4,
    /// A replica that the view does not know stays.
    UnknownReplicas = 8,
}

impl Rule {
    pub const ALL: [(&str, Rule); 4] = [
        ("stale-epochs", Rule::StaleEpochs),
        ("longest-length", Rule::LongestLength),
        ("fences", Rule::Fences),
        ("unknown-replicas", Rule::UnknownReplicas),
    ];
}

thread_local! {
    static BROKEN: Cell<u8> = const { Cell::new(0) };
}

/// Whether a rule is kept: always, but for a test that breaks it.
pub fn holds(rule: Rule) -> bool {
    BROKEN.get() & rule as u8 == 0
}

/// Breaks a rule in this thread for as long as the answer lives.
pub fn without(rule: Rule) -> Broken {
    let before = BROKEN.get();
    BROKEN.set(before | rule as u8);
    Broken { before }
}

/// Restores what held before.
pub struct Broken {
    before: u8,
}

impl Drop for Broken {
    fn drop(&mut self) {
        BROKEN.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_broken_here_alone_and_for_a_while() {
        {
            let _broken = without(Rule::Fences);
            assert!(!holds(Rule::Fences) && holds(Rule::StaleEpochs));
            let elsewhere = crate::tasks::spawn("rules", || assert!(holds(Rule::Fences)));
            elsewhere.unwrap().join();
        }
        assert!(Rule::ALL.into_iter().all(|(_, rule)| holds(rule)));
    }
}
