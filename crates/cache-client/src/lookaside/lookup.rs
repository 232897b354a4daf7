//! The rules of a cache beside a database, for the keys of one question: who loads, who waits, and what may
//! be filled. Takes answers, loaded values and the time; says what to ask, load, fill and give back. It holds
//! no socket, clock or server: [`super::Lookaside`] drives it, and tests put its steps in every order.
//!
//! A miss gives one asker a token, which is the number (cas) of an item without a value that the question
//! itself makes. An invalidation removes that item or gives it another number, and a server takes a fill only
//! for the item with the fill's number: so a row that was read before an invalidation is not stored behind it.

use holdfast_env::planted;

/// Before a key that another loads is asked for again; doubles each time.
const REST_LEAST_NS: u64 = 1_000_000;
const REST_MOST_NS: u64 = 32_000_000;
const _: () = assert!(REST_LEAST_NS <= REST_MOST_NS);

/// How keys are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Takes what a plain get finds, and asks for what it does not: where invalidations delete, a value that
    /// is there is good.
    pub gets_first: bool,
    /// How long a key that another loads is waited for, in nanoseconds, before it is loaded here, too.
    pub patience_ns: u64,
    /// Takes an invalidated value as long as another loads the new one.
    pub takes_stale: bool,
}

/// What a server said of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub data: &'a [u8],
    pub flags: u32,
    pub cas: u64,
    /// This asker is to load it (`W`).
    pub is_won: bool,
    /// Some asker was told to load it, and has not filled yet (`Z`).
    pub is_promised: bool,
    /// Invalidated (`X`).
    pub is_stale: bool,
}

impl Item<'_> {
    /// Whether it holds a value, or nothing but a promise. Values without bytes are filled with
    /// [`FILLED_EMPTY`].
    fn has_value(&self) -> bool {
        let is_vivified = self.is_won || self.is_promised || self.is_stale;
        !self.data.is_empty() || self.flags != 0 || !is_vivified
    }
}

/// The client flags of a value without bytes, which tell it from a promise.
pub const FILLED_EMPTY: u32 = 1;

/// The right to fill a key: good for one item of one server, over the connection that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub cas: u64,
    /// Connections to the server that had ended before it was asked.
    pub ended: u64,
}

/// A value to store, or a token to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill<'a> {
    pub number: usize,
    /// Which gave the token: no other server's item is it good for.
    pub server: u32,
    /// Nothing gives the token back: the database has no such row.
    pub value: Option<&'a [u8]>,
    /// The number that the item must have.
    pub cas: Option<u64>,
    pub ended: u64,
}

/// What became of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    Stored,
    /// The token was no longer good: the key was invalidated, or its item or its server went.
    Refused,
    /// The server did not answer, or takes no such value.
    Failed,
}

/// What happened so far, in keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookasideCounts {
    pub hits: u64,
    /// Invalidated values that were taken.
    pub stale: u64,
    /// Loaded with a token.
    pub won: u64,
    /// Loaded without: the server was away or did not count, or whoever had the token took too long.
    pub unguarded: u64,
    /// Of those, the keys of servers that did not count, having no lease.
    pub left_out: u64,
    /// Asked for in the gutter, since their server was dead.
    pub gutter: u64,
    pub filled: u64,
    pub refused: u64,
    pub fills_failed: u64,
    /// Questions that were put again, while another loaded.
    pub waits: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Get,
    Getting,
    Ask { at_ns: u64 },
    Asked,
    Load(Option<Token>),
    Fill(Token),
    Filling,
    Done,
}

#[derive(Clone, Debug)]
struct Slot {
    state: State,
    /// Which is asked, or was last.
    server: u32,
    /// Its server died while it was asked, and the gutter has the next question.
    has_moved: bool,
    since_ns: u64,
    rest_ns: u64,
    /// Whether the item of the token has a value, old or not, that others may go on to use.
    has_old: bool,
    value: Option<Vec<u8>>,
}

/// Keys that are looked up together, by their numbers.
#[derive(Clone, Debug)]
pub struct Lookup {
    rules: Rules,
    slots: Vec<Slot>,
    pub counts: LookasideCounts,
}

impl Lookup {
    pub fn new(keys: usize, rules: Rules, now_ns: u64) -> Lookup {
        let state = if rules.gets_first { State::Get } else { State::Ask { at_ns: now_ns } };
        let slot = Slot {
            state,
            server: 0,
            has_moved: false,
            since_ns: now_ns,
            rest_ns: REST_LEAST_NS,
            has_old: false,
            value: None,
        };
        Lookup { rules, slots: vec![slot; keys], counts: LookasideCounts::default() }
    }

    fn take(
        &mut self,
        mut is_next: impl FnMut(State) -> bool,
        then: impl Fn(State) -> State,
    ) -> Vec<usize> {
        let slots = self.slots.iter_mut().enumerate();
        let due = slots.filter(|(_, slot)| is_next(slot.state)).map(|(number, slot)| {
            slot.state = then(slot.state);
            number
        });
        due.collect()
    }

    /// A key's server does not count: it is not asked, and nothing is stored there.
    pub fn leave_out(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        assert!(matches!(slot.state, State::Get | State::Ask { .. }), "before it is asked for");
        (self.counts.left_out, self.counts.unguarded) =
            (self.counts.left_out + 1, self.counts.unguarded + 1);
        slot.state = State::Load(None);
    }

    /// A key's server is dead: the gutter is asked for it, and what a plain get says of it is not waited for.
    pub fn ask_only(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        if slot.state == State::Get {
            slot.state = State::Ask { at_ns: slot.since_ns };
        }
    }

    /// Keys to get before anything is asked.
    pub fn to_get(&mut self) -> Vec<usize> {
        self.take(|state| state == State::Get, |_| State::Getting)
    }

    /// What a plain get came to: the value, if it found one, and its client flags.
    pub fn got(&mut self, number: usize, found: Option<(&[u8], u32)>, now_ns: u64) {
        let slot = &mut self.slots[number];
        assert_eq!(slot.state, State::Getting, "an answer to a get");
        // One without bytes may be a promise.
        let is_value = |(data, flags): &(&[u8], u32)| {
            !data.is_empty() || *flags != 0 || planted!("lookaside.promises-are-values")
        };
        match found.filter(is_value) {
            Some((data, _)) => {
                self.counts.hits += 1;
                slot.value = Some(data.to_vec());
                slot.state = State::Done;
            }
            None => slot.state = State::Ask { at_ns: now_ns },
        }
    }

    /// Keys to ask their servers for, now.
    pub fn to_ask(&mut self, now_ns: u64) -> Vec<usize> {
        self.take(|s| matches!(s, State::Ask { at_ns } if at_ns <= now_ns), |_| State::Asked)
    }

    /// Which server a key is asked for; in the gutter, if its own is dead.
    pub fn asked_at(&mut self, number: usize, server: u32, is_gutter: bool) {
        let slot = &mut self.slots[number];
        assert_eq!(slot.state, State::Asked, "a question");
        self.counts.gutter += u64::from(is_gutter);
        if !(slot.has_moved && planted!("lookaside.fills-elsewhere")) {
            slot.server = server;
        }
    }

    /// A key's own server died before it answered: whoever has its keys meanwhile is asked at once. One key moves
    /// once, since a server that comes and goes would be asked for ever.
    pub fn died(&mut self, number: usize, ended: u64, now_ns: u64) {
        let slot = &mut self.slots[number];
        if slot.has_moved {
            return self.answered(number, None, ended, now_ns);
        }
        assert_eq!(slot.state, State::Asked, "the end of a question");
        (slot.state, slot.has_moved) = (State::Ask { at_ns: now_ns }, true);
    }

    /// When the next key is to be asked for, if nothing else is to be done.
    pub fn next_ask_ns(&self) -> Option<u64> {
        let at = |slot: &Slot| match slot.state {
            State::Ask { at_ns } => Some(at_ns),
            _ => None,
        };
        self.slots.iter().filter_map(at).min()
    }

    /// A server's answer; nothing if it gave none. `ended`: connections to it that had ended before it
    /// was asked.
    pub fn answered(&mut self, number: usize, item: Option<Item<'_>>, ended: u64, now_ns: u64) {
        let slot = &mut self.slots[number];
        assert_eq!(slot.state, State::Asked, "an answer to a question");
        let counts = &mut self.counts;
        let Some(item) = item else {
            counts.unguarded += 1;
            slot.state = State::Load(None);
            return;
        };
        if item.is_won {
            counts.won += 1;
            slot.has_old = item.has_value();
            slot.state = State::Load(Some(Token { cas: item.cas, ended }));
        } else if item.has_value() && (!item.is_stale || self.rules.takes_stale) {
            if item.is_stale {
                counts.stale += 1;
            } else {
                counts.hits += 1;
            }
            slot.value = Some(item.data.to_vec());
            slot.state = State::Done;
        } else if now_ns.saturating_sub(slot.since_ns) >= self.rules.patience_ns {
            counts.unguarded += 1;
            slot.state = State::Load(None);
        } else {
            counts.waits += 1;
            slot.state = State::Ask { at_ns: now_ns + slot.rest_ns };
            slot.rest_ns = (slot.rest_ns * 2).min(REST_MOST_NS);
        }
    }

    /// Keys to load from the database.
    pub fn to_load(&self) -> Vec<usize> {
        let loads = |number: &usize| matches!(self.slots[*number].state, State::Load(_));
        (0..self.slots.len()).filter(loads).collect()
    }

    /// What the database has; nothing if it has no such row.
    pub fn loaded(&mut self, number: usize, value: Option<Vec<u8>>) {
        let slot = &mut self.slots[number];
        let State::Load(token) = slot.state else { panic!("a value that nobody loads") };
        slot.state = token.map_or(State::Done, State::Fill);
        slot.value = value;
    }

    /// The database could not be asked: promises are taken back, and the lookup ends.
    pub fn load_failed(&mut self) {
        for slot in &mut self.slots {
            slot.state = match slot.state {
                State::Load(Some(token)) if !slot.has_old => State::Fill(token),
                _ => State::Done,
            };
            slot.value = None;
        }
    }

    /// What to send to the servers that gave the tokens.
    pub fn fills(&mut self) -> Vec<Fill<'_>> {
        let slots = self.slots.iter_mut().enumerate();
        let due = slots.filter_map(|(number, slot)| {
            let State::Fill(token) = slot.state else { return None };
            slot.state = State::Filling;
            let cas = (!planted!("lookaside.fills-without-tokens")).then_some(token.cas);
            let (server, value) = (slot.server, slot.value.as_deref());
            Some(Fill { number, server, value, cas, ended: token.ended })
        });
        due.collect()
    }

    pub fn filled(&mut self, number: usize, filled: Filled) {
        let slot = &mut self.slots[number];
        assert_eq!(slot.state, State::Filling, "an answer to a fill");
        slot.state = State::Done;
        if slot.value.is_some() {
            match filled {
                Filled::Stored => self.counts.filled += 1,
                Filled::Refused => self.counts.refused += 1,
                Filled::Failed => self.counts.fills_failed += 1,
            }
        }
    }

    pub fn is_done(&self) -> bool {
        self.slots.iter().all(|slot| slot.state == State::Done)
    }

    /// The values, in the keys' order; nothing where the database has no row.
    pub fn into_values(self) -> Vec<Option<Vec<u8>>> {
        assert!(self.is_done(), "a lookup that has ended");
        self.slots.into_iter().map(|slot| slot.value).collect()
    }
}

#[cfg(test)]
mod tests;
