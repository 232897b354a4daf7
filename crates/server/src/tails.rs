//! Who waits for an entry of a topic: all who do at one place wait as one. Asks nobody by itself.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, planted};
use holdfast_log::Done;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A topic and the index that somebody waits for.
pub type Place = (String, Index);

/// Reads that wait for an entry. The log, or its host, is asked once for each place that somebody waits at,
/// however many readers there are, and however often they come back after their deadlines.
pub struct Tails<W> {
    /// Who waits at a place that the log was asked about. Never held while the log is called.
    waiting: Arc<Mutex<BTreeMap<Place, Vec<W>>>>,
}

impl<W> Clone for Tails<W> {
    fn clone(&self) -> Tails<W> {
        Tails { waiting: self.waiting.clone() }
    }
}

impl<W> Default for Tails<W> {
    fn default() -> Tails<W> {
        Tails { waiting: Arc::default() }
    }
}

impl<W: Send + 'static> Tails<W> {
    /// Has somebody wait at a place: `ask` is called where nobody does yet, and `answer` for all who wait
    /// there once what it was given is. Who `is_over` by now waits no more, and is answered that: the server
    /// may be about to say so itself, and takes no second answer.
    pub fn wait(
        &self,
        place: Place,
        waits: W,
        is_over: impl Fn(&W) -> bool,
        answer: impl Fn(W, &Result<()>) + Send + 'static,
        ask: impl FnOnce(&Place, Done<()>),
    ) {
        let mut waiting = self.waiting.held();
        if let Some(others) = waiting.get_mut(&place) {
            let over: Vec<W> = others.extract_if(.., |one| is_over(one)).collect();
            others.push(waits);
            drop(waiting);
            let late = Err(Error::retry("read the log: the deadline has passed"));
            if planted!("server.late-readers-unanswered") {
                return;
            }
            return over.into_iter().for_each(|one| answer(one, &late));
        }
        waiting.insert(place.clone(), vec![waits]);
        drop(waiting);
        let (all, asked) = (self.waiting.clone(), place.clone());
        let wake = move |woken: Result<()>| {
            let waiting = all.held().remove(&asked);
            waiting.into_iter().flatten().for_each(|waits| answer(waits, &woken));
        };
        ask(&place, Box::new(wake));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two who followed a view's topic through one node that does not keep the log asked its host as one
    /// reader: each question ended the other one's wait, which was asked anew at once, without end.
    #[test]
    fn readers_at_one_place_ask_once_and_are_all_answered() {
        let tails = Tails::<u32>::default();
        let (asked, answered) =
            (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let wait = |from: u64, who: u32, over: u32| {
            let (asked, answered) = (asked.clone(), answered.clone());
            let answer = move |who, woken: &Result<()>| answered.held().push((who, woken.is_ok()));
            let ask = |_: &Place, wake: Done<()>| asked.held().push(wake);
            tails.wait(("t".to_owned(), Index(from)), who, |one| *one == over, answer, ask);
        };
        wait(7, 1, 0);
        wait(7, 2, 0);
        wait(9, 3, 0);
        assert_eq!((asked.held().len(), answered.held().len()), (2, 0), "once a place");
        // One whose deadline has passed comes back. The earlier one was dropped, and where the server had not
        // said yet that its deadline has passed, its client was asked to report a bug.
        wait(7, 4, 1);
        assert_eq!(asked.held().len(), 2);
        assert_eq!(*answered.held(), [(1, false)]);
        let first = asked.held().remove(0);
        first(Ok(()));
        assert_eq!(answered.held()[1..], [(2, true), (4, true)]);
        // From there on the place is asked about anew.
        wait(7, 5, 0);
        asked.held().drain(..).for_each(|wake| wake(Err(Error::retry("away"))));
        assert_eq!(answered.held()[3..], [(3, false), (5, false)]);
    }
}
