//! A carrier's core: batches of other agents' spools on their way to the next hop. It gathers what waits into
//! one request, and gives each its own part of the answer. It keeps nothing: the first hop keeps until the
//! topic has it, so whatever waits here may be forgotten at any moment (docs/decisions/0027). It changes no
//! byte of a batch, numbers nothing, and says nothing that its next hop has not said. Pure.

use crate::batch::{self, Position, SpoolId, renumbered};
use holdfast_base::codec::{Reader, put_bytes};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{planted, sometimes};
use holdfast_wire::scribe as msg;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What waits to be carried, of all agents together; past it the one of whom most waits makes way.
pub const WAITING_BYTES_MAX: usize = 64 << 20;
/// Requests of one connection that wait: more than an agent has under way, with a word of its spool's.
pub const REQUESTS_OF_ONE_MAX: usize = 4;
/// What a request takes beside its batches.
const REQUEST_BYTES: usize = 1 << 10;
const IN_A_RING: &str = "they are under way to the next hop from here and came in again: carriers that \
                         send to each other in a ring (`--to`) bring nothing anywhere";

const _: () = assert!(4 * msg::APPEND_BYTES_MAX <= WAITING_BYTES_MAX);

/// What an agent wants to be brought on, looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Batches, each behind its length, as they came; the categories that they are of.
    Append { categories: BTreeSet<String>, body: Vec<u8>, count: usize, which: Vec<Which> },
    /// Where a spool is.
    Ask(msg::Ask),
    /// What a spool says of itself.
    Say(msg::Say),
}

/// Names a batch, whoever brings it: its spool, its first message and its checksum.
pub type Which = (SpoolId, u64, u32);

impl Asked {
    /// Looks at batches as far as a carrier has to. Whether their bytes are right is for whoever keeps them
    /// to say; one that is wrong is refused to its own agent alone ([`Carrier::came`]).
    pub fn append(append: msg::Append, body: Vec<u8>) -> Result<Asked> {
        let wrong = |what: &str| Error::invalid(format!("carry batches: {what}"));
        if body.len() > msg::APPEND_BYTES_MAX {
            return Err(wrong("they are too large together: send fewer at once"));
        }
        let named: BTreeSet<String> = append.categories.into_iter().collect();
        let (mut categories, mut which) = (BTreeSet::new(), Vec::new());
        let mut reader = Reader::new(&body);
        while reader.remaining() > 0 {
            let bytes = reader.bytes().map_err(|_| wrong("the last one is cut: send it again"))?;
            let (head, _) = batch::decode(bytes)?;
            if head.spool == SpoolId::NONE {
                return Err(wrong(
                    "one has no number, and would count as often as it is carried: send it by an agent",
                ));
            }
            if !named.contains(head.category.name()) {
                return Err(wrong("one is of a category that the request does not name: name it"));
            }
            if !categories.contains(head.category.name()) {
                categories.insert(head.category.name().to_owned());
            }
            which.push((head.spool, head.first, head.checksum));
        }
        match which.len() {
            count @ 1..=msg::APPEND_BATCHES_MAX => {
                Ok(Asked::Append { categories, body, count, which })
            }
            0 => Err(wrong("there are none: send some")),
            _ => Err(wrong("there are too many: send fewer at once")),
        }
    }

    /// Looks at a question.
    pub fn ask(ask: msg::Ask) -> Result<Asked> {
        match ask.categories.len() {
            0..=msg::ASK_CATEGORIES_MAX => Ok(Asked::Ask(ask)),
            _ => Err(Error::invalid("ask about a spool: ask about fewer categories at once")),
        }
    }

    /// Looks at words.
    pub fn say(say: msg::Say) -> Result<Asked> {
        match say.words.len() {
            0..=msg::ASK_CATEGORIES_MAX => Ok(Asked::Say(say)),
            _ => Err(Error::invalid("carry a spool's words: say fewer at once")),
        }
    }

    /// Makes batches nobody's, as a carrier would that numbers what it brings on: its topic takes them as often as
    /// they come. For trials alone.
    fn lose_numbers(&mut self) {
        let Asked::Append { body, .. } = self else { return };
        let (mut others, mut reader) = (Vec::with_capacity(body.len()), Reader::new(body));
        while let Ok(bytes) = reader.bytes() {
            let nobodys = Position { next: 0, checksum: 0 };
            put_bytes(&mut others, &renumbered(bytes, SpoolId::NONE, nobodys));
        }
        *body = others;
    }

    fn body(&self) -> &[u8] {
        match self {
            Asked::Append { body, .. } => body,
            Asked::Ask(_) | Asked::Say(_) => &[],
        }
    }

    /// Whether nothing else can be asked with it at once.
    fn goes_by_itself(&self) -> bool {
        !matches!(self, Asked::Append { .. })
    }

    fn categories(&self) -> Box<dyn Iterator<Item = &String> + '_> {
        match self {
            Asked::Append { categories, .. } => Box::new(categories.iter()),
            Asked::Ask(ask) => Box::new(ask.categories.iter()),
            Asked::Say(say) => Box::new(say.words.iter().map(|word| &word.category)),
        }
    }

    /// How many answers it has.
    fn count(&self) -> usize {
        match self {
            Asked::Append { count, .. } => *count,
            Asked::Ask(ask) => ask.categories.len(),
            Asked::Say(say) => say.words.len(),
        }
    }

    /// What it takes while it waits.
    fn cost(&self) -> usize {
        let names: usize = self.categories().map(|name| 32 + name.len()).sum();
        let said = match self {
            Asked::Say(say) => say.name.len() + say.words.len() * size_of::<msg::Word>(),
            _ => 0,
        };
        REQUEST_BYTES + names + said + self.body().len() + size_of_val(self.which())
    }

    fn which(&self) -> &[Which] {
        match self {
            Asked::Append { which, .. } => which,
            Asked::Ask(_) | Asked::Say(_) => &[],
        }
    }
}

/// A request, and whoever waits for its answer.
#[derive(Debug)]
struct Part<T> {
    from: u64,
    ticket: T,
    asked: Asked,
}

/// What is asked of the next hop at once: batches of several requests, one question, or one spool's words.
#[derive(Debug)]
pub struct Round<T>(Vec<Part<T>>);

/// A round, as the next hop is asked.
pub enum Request<'a> {
    Append {
        categories: Vec<String>,
        /// One behind the other they are the request's body.
        bodies: Vec<&'a [u8]>,
        count: usize,
    },
    Ask(&'a msg::Ask),
    Say(&'a msg::Say),
}

impl<T> Round<T> {
    pub fn request(&self) -> Request<'_> {
        match &self.0[..] {
            [Part { asked: Asked::Ask(ask), .. }] => return Request::Ask(ask),
            [Part { asked: Asked::Say(say), .. }] => return Request::Say(say),
            _ => {}
        }
        let all = || self.0.iter().map(|part| &part.asked);
        let categories: BTreeSet<&String> = all().flat_map(Asked::categories).collect();
        Request::Append {
            categories: categories.into_iter().cloned().collect(),
            bodies: all().map(Asked::body).collect(),
            count: all().map(Asked::count).sum(),
        }
    }

    /// Whether one more request can be asked together with these.
    fn has_room(&self, asked: &Asked) -> bool {
        let all = || self.0.iter().map(|part| &part.asked);
        let bytes: usize = all().map(|one| one.body().len()).sum();
        let count: usize = all().map(Asked::count).sum();
        bytes + asked.body().len() <= msg::APPEND_BYTES_MAX
            && count + asked.count() <= msg::APPEND_BATCHES_MAX
    }
}

/// The answer to a batch or a question, or to a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Position(msg::Position),
    Heard(msg::Heard),
}

/// What a request came to: an answer for each of its batches, categories or words.
pub type Outcome = Result<Vec<Told>>;

/// The core. `T` is whoever waits for an answer; connections have numbers that are never used again.
#[derive(Debug)]
pub struct Carrier<T> {
    waits: BTreeMap<u64, VecDeque<Part<T>>>,
    /// Connections of which something waits, the one whose turn it is in front.
    turns: VecDeque<u64>,
    bytes: usize,
    /// Connections with a request that was refused: what they send goes by itself, since a request is
    /// refused as a whole.
    alone: BTreeSet<u64>,
    is_ending: bool,
    /// Batches whose positions were passed back.
    carried: u64,
    /// What the next hop was asked and has not answered: if it comes in again just then, it may be that the
    /// next hop brings it here.
    under_way: UnderWay,
}

#[derive(Debug, Default)]
struct UnderWay {
    batches: BTreeSet<Which>,
    question: Option<Asked>,
}

impl UnderWay {
    fn has(&self, asked: &Asked) -> bool {
        match asked {
            Asked::Append { which, .. } => which.iter().any(|one| self.batches.contains(one)),
            Asked::Ask(_) | Asked::Say(_) => self.question.as_ref() == Some(asked),
        }
    }
}

impl<T> Default for Carrier<T> {
    fn default() -> Carrier<T> {
        Carrier {
            waits: BTreeMap::new(),
            turns: VecDeque::new(),
            bytes: 0,
            alone: BTreeSet::new(),
            is_ending: false,
            carried: 0,
            under_way: UnderWay::default(),
        }
    }
}

impl<T> Carrier<T> {
    /// Takes a request; who is to be told something at once, as they, or others, make way.
    pub fn take(&mut self, from: u64, asked: Asked, ticket: T) -> Vec<(T, Outcome)> {
        let own = self.waits.get(&from).map_or(0, VecDeque::len);
        let part = Part { from, ticket, asked };
        let cost = part.asked.cost();
        if self.is_ending {
            return vec![later(part, "this carrier ends")];
        }
        if self.under_way.has(&part.asked) && !planted!("scribe.ring-unseen") {
            // Else each carrier of a ring waits for the next one, and the last for this one. An agent that
            // sends it twice hears the same, and sends it once more.
            sometimes!("what was under way came in again");
            return vec![later(part, IN_A_RING)];
        }
        if own >= REQUESTS_OF_ONE_MAX {
            return vec![later(part, "too many requests of this agent wait")];
        }
        let mut made_way = Vec::new();
        while self.bytes + cost > WAITING_BYTES_MAX {
            // Who has most makes way, also for who has nothing yet: so nobody is shut out by others' heaps.
            let Some(most) = self
                .who_has_most()
                .filter(|(of, has)| *of != from && *has > self.cost_of(from) + cost)
            else {
                made_way.push(later(part, "too much waits for the next hop"));
                return made_way;
            };
            let last = self.pull(most.0).expect("something of it waits");
            made_way.push(later(last, "others have less that waits for the next hop"));
            sometimes!("who had most at a carrier made way");
        }
        self.bytes += cost;
        self.waits.entry(from).or_default().push_back(part);
        if own == 0 {
            self.turns.push_back(from);
        }
        made_way
    }

    fn cost_of(&self, from: u64) -> usize {
        let parts = self.waits.get(&from).into_iter().flatten();
        parts.map(|part| part.asked.cost()).sum()
    }

    fn who_has_most(&self) -> Option<(u64, usize)> {
        let all = self.waits.keys().map(|from| (*from, self.cost_of(*from)));
        all.max_by_key(|(_, cost)| *cost)
    }

    /// Takes back the last request of a connection.
    fn pull(&mut self, from: u64) -> Option<Part<T>> {
        let parts = self.waits.get_mut(&from)?;
        let last = parts.pop_back()?;
        if parts.is_empty() {
            self.waits.remove(&from);
            self.turns.retain(|turn| *turn != from);
        }
        self.bytes -= last.asked.cost();
        Some(last)
    }

    /// What to ask the next hop now; each connection in its turn.
    pub fn next_round(&mut self) -> Option<Round<T>> {
        let mut round = Round(Vec::new());
        while let Some(from) = self.turns.front().copied() {
            let parts = self.waits.get_mut(&from).expect("whose turn it is has something");
            let first = &parts.front().expect("and not nothing").asked;
            let by_itself = self.alone.contains(&from) || first.goes_by_itself();
            if !round.0.is_empty() && (by_itself || !round.has_room(first)) {
                break;
            }
            let mut part = parts.pop_front().expect("it was looked at");
            self.turns.pop_front();
            match parts.is_empty() {
                true => drop(self.waits.remove(&from)),
                false => self.turns.push_back(from),
            }
            self.bytes -= part.asked.cost();
            if planted!("scribe.carrier-numbers-anew") {
                part.asked.lose_numbers();
            }
            round.0.push(part);
            if by_itself {
                break;
            }
        }
        for part in &round.0 {
            match &part.asked {
                Asked::Append { which, .. } => self.under_way.batches.extend(which),
                asked => self.under_way.question = Some(asked.clone()),
            }
        }
        (!round.0.is_empty()).then_some(round)
    }

    /// The next hop has answered, or nobody knows. Where a round was refused because of one of its requests,
    /// each of them is asked again by itself.
    pub fn came(&mut self, round: Round<T>, answer: Outcome) -> Vec<(T, Outcome)> {
        let Round(parts) = round;
        for part in &parts {
            match &part.asked {
                Asked::Append { which, .. } => {
                    let answered: BTreeSet<Which> = which.iter().copied().collect();
                    self.under_way.batches.retain(|one| !answered.contains(one));
                }
                Asked::Ask(_) | Asked::Say(_) => self.under_way.question = None,
            }
        }
        let answer = answer.and_then(|answers| {
            let wanted: usize = parts.iter().map(|part| part.asked.count()).sum();
            match answers.len() == wanted {
                true => Ok(answers),
                false => {
                    Err(Error::retry("carry batches: the next hop gave another number of answers"))
                }
            }
        });
        match answer {
            Ok(answers) => self.divide(parts, answers),
            Err(e) if is_of_the_request(&e) && parts.len() > 1 => {
                sometimes!("a round that was refused is asked again in parts");
                self.put_back(parts);
                Vec::new()
            }
            Err(e) => {
                if is_of_the_request(&e) {
                    self.alone.extend(parts.iter().map(|part| part.from));
                }
                let outcome = |part: Part<T>| match planted!("scribe.carrier-answers-early")
                    .then(|| ends(&part.asked))
                {
                    Some(answers) => (part.ticket, Ok(answers)),
                    None => (part.ticket, Err(e.clone())),
                };
                parts.into_iter().map(outcome).collect()
            }
        }
    }

    fn divide(&mut self, parts: Vec<Part<T>>, mut answers: Vec<Told>) -> Vec<(T, Outcome)> {
        let mut outcomes = Vec::with_capacity(parts.len());
        if planted!("scribe.carrier-mixes-up-spools") {
            answers.reverse();
        }
        let mut answers = answers.into_iter();
        for part in parts {
            self.alone.remove(&part.from);
            if matches!(part.asked, Asked::Append { .. }) {
                self.carried += part.asked.count() as u64;
            }
            let own: Vec<Told> = answers.by_ref().take(part.asked.count()).collect();
            let own = match (&part.asked, planted!("scribe.carrier-numbers-anew")) {
                (Asked::Append { which, body, .. }, true) => ends_of(which, body),
                _ => own,
            };
            outcomes.push((part.ticket, Ok(own)));
        }
        outcomes
    }

    /// In front of what waits, in the order that they had. They were counted a moment ago, so the bound is
    /// passed by no more than a round.
    fn put_back(&mut self, parts: Vec<Part<T>>) {
        for part in parts.into_iter().rev() {
            let from = part.from;
            self.alone.insert(from);
            self.bytes += part.asked.cost();
            self.waits.entry(from).or_default().push_front(part);
            self.turns.retain(|turn| *turn != from);
            self.turns.push_front(from);
        }
    }

    /// The next hop cannot be reached: everybody hears it now, and may go elsewhere.
    pub fn give_back(&mut self, why: &Error) -> Vec<(T, Outcome)> {
        self.bytes = 0;
        self.turns.clear();
        let all = std::mem::take(&mut self.waits).into_values().flatten();
        all.map(|part| (part.ticket, Err(why.clone()))).collect()
    }

    /// Nothing more is taken; who waits is told.
    pub fn end(&mut self) -> Vec<(T, Outcome)> {
        self.is_ending = true;
        self.give_back(&Error::retry("carry batches: this carrier ends: send them by another one"))
    }

    /// A connection is gone, and nobody waits for its answers.
    pub fn gone(&mut self, from: u64) {
        while self.pull(from).is_some() {}
        self.alone.remove(&from);
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Batches of which an agent was told where its spool is.
    pub fn carried(&self) -> u64 {
        self.carried
    }
}

/// Whether it is the request that is wrong, and not the hop or the moment.
pub fn is_of_the_request(e: &Error) -> bool {
    matches!(e.kind, Kind::Invalid | Kind::Denied | Kind::Corrupt | Kind::Unsupported | Kind::Bug)
}

fn later<T>(part: Part<T>, what: &str) -> (T, Outcome) {
    let why = format!("carry batches: {what}: send them by another carrier, or later");
    (part.ticket, Err(Error::retry(why)))
}

/// Where spools are once their topics have these batches, which a carrier never says by itself.
fn ends(asked: &Asked) -> Vec<Told> {
    match asked {
        Asked::Append { which, body, .. } => ends_of(which, body),
        Asked::Ask(_) | Asked::Say(_) => Vec::new(),
    }
}

/// The same of batches whose numbers may be others by now.
fn ends_of(which: &[Which], body: &[u8]) -> Vec<Told> {
    let mut reader = Reader::new(body);
    let heads = std::iter::from_fn(|| batch::decode(reader.bytes().ok()?).ok());
    let position = |((_, first, checksum), (head, _)): (&Which, (batch::Head, &[u8]))| {
        let (next, checksum) = (first + u64::from(head.count), *checksum);
        Told::Position(msg::Position { next, checksum, refused: String::new(), never: false })
    };
    which.iter().zip(heads).map(position).collect()
}

#[cfg(test)]
mod tests;
