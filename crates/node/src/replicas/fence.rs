//! The seal of a chunk whose writer has fallen silent. A core: takes what fenced replicas answered
//! and decides at which length to propose the seal, or that too few have answered.
//!
//! **Invariant:** an acknowledged append is on every replica, and a fenced replica grows no more.
//! So what was acknowledged is at most the longest verified length of two fenced replicas, or of
//! all that are not lost, whichever one of them is damaged; of three or more it is at most what two
//! of them reach. The latter is taken where it can be: an append that reached one replica alone was
//! not acknowledged, and what was must not be left to that one.

use holdfast_base::ids::{ChunkId, StoreId};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::planted;

/// Replicas that must have answered, unless fewer are left.
const FENCES_MIN: usize = 2;
/// With fewer that are known to reach the length, others count whose lengths are not known.
const COPIES_MIN: usize = 2;

/// What to propose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub length: u64,
    /// Those that reach it.
    pub replicas: Vec<StoreId>,
    /// Those that did not answer, where fewer than two reach it: they have what was acknowledged
    /// unless their disks are damaged, and count until they say that they are short.
    pub unheard: Vec<StoreId>,
    /// Another replica that was fenced has less: who says that it has more should show it.
    pub contested: bool,
}

/// One round of fences.
#[derive(Debug)]
pub struct FenceRound {
    chunk: ChunkId,
    /// Replicas whose node is not lost.
    not_lost: usize,
    waiting: usize,
    /// Lengths of those that answered; `None` of those that do not hold it.
    lengths: Vec<(StoreId, Option<u64>)>,
    unheard: Vec<StoreId>,
    last_error: Option<Error>,
}

impl FenceRound {
    /// `not_lost` replicas are asked, all of them.
    pub fn new(chunk: ChunkId, not_lost: usize) -> FenceRound {
        FenceRound {
            chunk,
            not_lost,
            waiting: not_lost,
            lengths: Vec::new(),
            unheard: Vec::new(),
            last_error: None,
        }
    }

    /// A replica's answer; the last one decides.
    pub fn answered(&mut self, store: StoreId, answer: Result<u64>) -> Option<Result<Decision>> {
        self.waiting = self.waiting.saturating_sub(1);
        self.note(store, answer);
        (self.waiting == 0).then(|| self.decide())
    }

    /// A replica did not show what it said that it had: it is as one that did not answer. Decides
    /// anew.
    pub fn refuted(&mut self, store: StoreId, why: Error) -> Result<Decision> {
        self.lengths.retain(|(known, _)| *known != store);
        self.not_lost -= 1;
        self.last_error = Some(why);
        self.decide()
    }

    /// A replica has less by now than it said: it was sealed meanwhile. Decides anew.
    pub fn corrected(&mut self, store: StoreId, length: u64) -> Result<Decision> {
        for known in self.lengths.iter_mut().filter(|known| known.0 == store) {
            known.1 = Some(length);
        }
        self.decide()
    }

    fn note(&mut self, store: StoreId, answer: Result<u64>) {
        match answer {
            Ok(length) => self.lengths.push((store, Some(length))),
            // Never made there, or damaged.
            Err(e) if e.kind == Kind::NotFound => self.lengths.push((store, None)),
            Err(e) => {
                self.unheard.push(store);
                self.last_error = Some(e);
            }
        }
    }

    fn decide(&mut self) -> Result<Decision> {
        let least = if planted!("cluster.one-fence-decides") { 1 } else { FENCES_MIN };
        let needed = least.min(self.not_lost).max(1);
        let fenced = self.lengths.iter().filter(|(_, length)| length.is_some()).count();
        // That it is not there may be damage: it counts only when nobody is left to ask.
        let all_answered = self.not_lost > 0 && self.lengths.len() == self.not_lost;
        if fenced < needed && !all_answered {
            let why = match &self.last_error {
                Some(e) => format!("the last failure: {e}"),
                None => "every replica is lost".to_owned(),
            };
            return Err(Error::retry(format!(
                "seal chunk `{}` for its silent writer: {fenced} of {needed} replicas were fenced; {why}",
                self.chunk,
            )));
        }
        let mut lengths: Vec<u64> = self.lengths.iter().filter_map(|(_, length)| *length).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let length = match lengths[..] {
            [.., shortest] if planted!("node.sealed-at-the-shortest") => shortest,
            [_, second, _, ..] if !planted!("node.sealed-at-the-longest") => second,
            [longest, ..] => longest,
            [] => 0,
        };
        let reach = self.lengths.iter().filter(|(_, found)| *found >= Some(length));
        let mut replicas: Vec<StoreId> = reach.map(|(store, _)| *store).collect();
        replicas.sort();
        let contested = fenced > replicas.len();
        // One that is longer for an append that nobody heard of must not be all that is left.
        let enough = replicas.len() >= COPIES_MIN || planted!("cluster.unheard-replica-left-out");
        let mut unheard = if enough { Vec::new() } else { self.unheard.clone() };
        unheard.sort();
        Ok(Decision { length, replicas, unheard, contested })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: ChunkId = ChunkId(7);

    fn round(not_lost: usize, answers: &[Result<u64>]) -> Result<Decision> {
        let mut round = FenceRound::new(CHUNK, not_lost);
        let mut decided = None;
        for (i, answer) in answers.iter().enumerate() {
            assert!(decided.is_none(), "decided too early");
            decided = round.answered(StoreId(i as u64 + 1), answer.clone());
        }
        decided.unwrap()
    }

    fn decision(length: u64, replicas: &[u64]) -> Result<Decision> {
        let replicas = replicas.iter().map(|id| StoreId(*id)).collect();
        Ok(Decision { length, replicas, unheard: Vec::new(), contested: false })
    }

    fn contested(length: u64, replicas: &[u64]) -> Result<Decision> {
        Ok(Decision { contested: true, ..decision(length, replicas)? })
    }

    fn silent() -> Result<u64> {
        Err(Error::retry("no answer"))
    }

    #[test]
    fn what_two_fenced_replicas_reach_decides_and_shorter_ones_are_left_out() {
        assert_eq!(round(3, &[Ok(5), Ok(9), Ok(9)]), contested(9, &[2, 3]));
        assert_eq!(round(3, &[Ok(5), Ok(9), Ok(7)]), contested(7, &[2, 3]));
        assert_eq!(round(3, &[Ok(5), Ok(5), silent()]), decision(5, &[1, 2]), "two are enough");
        assert_eq!(round(3, &[silent(), silent(), Ok(5)]).unwrap_err().kind, Kind::Retry);
        // All that are not lost: one.
        assert_eq!(round(1, &[Ok(5)]), decision(5, &[1]));
        assert_eq!(round(1, &[silent()]).unwrap_err().kind, Kind::Retry);
    }

    /// A writer that had slept appended to its own replica while the others were fenced: the chunk
    /// was sealed with that replica alone, for an append that nobody had acknowledged, and what had
    /// been acknowledged was on one disk that counted until there was a copy.
    #[test]
    fn an_append_that_one_of_three_replicas_has_is_given_up_for_three_copies() {
        assert_eq!(round(3, &[Ok(4), Ok(3), Ok(3)]), decision(3, &[1, 2, 3]));
        // One of three may be damaged, and never both of the others.
        assert_eq!(round(3, &[Ok(4), Ok(4), Ok(0)]), contested(4, &[1, 2]));
        // Of two that answer, one may be: the longer one has what was acknowledged.
        assert_eq!(round(2, &[Ok(4), Ok(3)]), contested(4, &[1]));
    }

    /// A writer was cut off in an append that two of its replicas had and nobody acknowledged. One
    /// of the two did not answer the fence: the chunk was sealed with the other one alone, whose
    /// disk went before there was a second copy. What had been acknowledged was on both others.
    #[test]
    fn who_did_not_answer_still_counts_where_only_one_reaches_the_length() {
        let unheard = |stores: &[u64]| stores.iter().map(|id| StoreId(*id)).collect();
        let decided = round(3, &[Ok(3), Ok(4), silent()]);
        assert_eq!(decided, Ok(Decision { unheard: unheard(&[3]), ..contested(4, &[2]).unwrap() }));
        // The one that claims more shows nothing: too few are left to decide.
        let mut round = FenceRound::new(CHUNK, 3);
        assert!(round.answered(StoreId(1), Ok(3)).is_none());
        assert!(round.answered(StoreId(2), silent()).is_none());
        assert!(round.answered(StoreId(3), Ok(99)).is_some());
        assert_eq!(round.refuted(StoreId(3), Error::corrupt("no")).unwrap_err().kind, Kind::Retry);
    }

    #[test]
    fn who_does_not_show_what_it_claims_is_asked_no_more() {
        let mut round = FenceRound::new(CHUNK, 2);
        assert!(round.answered(StoreId(1), Ok(5)).is_none());
        assert_eq!(round.answered(StoreId(2), Ok(99)), Some(contested(99, &[2])));
        assert_eq!(round.refuted(StoreId(2), Error::corrupt("no")), decision(5, &[1]));
    }

    #[test]
    fn who_was_sealed_meanwhile_has_what_the_seal_left() {
        let mut round = FenceRound::new(CHUNK, 2);
        assert!(round.answered(StoreId(1), Ok(5)).is_none());
        assert_eq!(round.answered(StoreId(2), Ok(9)), Some(contested(9, &[2])));
        assert_eq!(round.corrected(StoreId(2), 5), decision(5, &[1, 2]));
    }

    #[test]
    fn a_replica_that_is_not_there_counts_only_when_all_have_answered() {
        let missing = || Err(Error::not_found("not here"));
        assert_eq!(round(2, &[missing(), Ok(4)]), decision(4, &[2]));
        assert_eq!(round(2, &[missing(), missing()]), decision(0, &[]));
        // Two that miss it may both be damaged, and the third one has it.
        assert_eq!(round(3, &[missing(), missing(), silent()]).unwrap_err().kind, Kind::Retry);
        assert_eq!(round(3, &[missing(), missing(), Ok(4)]), decision(4, &[3]));
    }
}
