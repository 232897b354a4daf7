//! Scribe's categories, from the client's side: batches to a topic, and out of it; readers of messages. What is
//! in a batch that is brought is for who makes it to know.

use crate::client::{Client, Ticket, decode};
use holdfast_base::codec::put_bytes;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_wire::scribe::batch::{self, Messages};
use holdfast_wire::{self as wire, scribe as msg};
use std::time::Duration;

/// The longest wait that one request asks for.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Batches that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScribePage {
    /// Each with the index of its entry.
    pub batches: Vec<(Index, Vec<u8>)>,
    /// Where to read on.
    pub next: Index,
}

impl Client {
    /// Brings batches of these categories to their topics; answers where the spool of each is then. May be
    /// done any number of times.
    pub fn scribe_append(
        &mut self,
        categories: Vec<String>,
        batches: &[&[u8]],
    ) -> Result<Vec<msg::Position>> {
        let mut body = Vec::with_capacity(batches.iter().map(|batch| 4 + batch.len()).sum());
        batches.iter().for_each(|batch| put_bytes(&mut body, batch));
        self.scribe_carry(categories, &[&body], batches.len())
    }

    /// As [`Client::scribe_append`], without waiting: several may be under way, and are taken in their order.
    /// [`Client::scribe_positions`] waits.
    pub fn scribe_submit(&mut self, categories: Vec<String>, batches: &[&[u8]]) -> Result<Ticket> {
        let mut body = Vec::with_capacity(batches.iter().map(|batch| 4 + batch.len()).sum());
        batches.iter().for_each(|batch| put_bytes(&mut body, batch));
        let ticket = self.submit(wire::OP_SCRIBE_APPEND, &msg::Append { categories }, &[&body])?;
        self.push();
        Ok(ticket)
    }

    /// Where spools are, once `count` batches that were submitted came to their topics.
    pub fn scribe_positions(&mut self, ticket: Ticket, count: usize) -> Result<Vec<msg::Position>> {
        let answer: msg::Positions = decode(&self.wait(ticket)?)?;
        counted(answer.positions, count)
    }

    /// As [`Client::scribe_append`], of `count` batches that lie in several bodies already, each batch behind
    /// its length (u32).
    pub fn scribe_carry(
        &mut self,
        categories: Vec<String>,
        bodies: &[&[u8]],
        count: usize,
    ) -> Result<Vec<msg::Position>> {
        let append = msg::Append { categories };
        let ticket = self.submit(wire::OP_SCRIBE_APPEND, &append, bodies)?;
        self.scribe_positions(ticket, count)
    }

    /// Where a spool is in each of these categories.
    pub fn scribe_ask(
        &mut self,
        spool: u64,
        categories: Vec<String>,
    ) -> Result<Vec<msg::Position>> {
        let count = categories.len();
        let answer: msg::Positions =
            self.ask(wire::OP_SCRIBE_ASK, &msg::Ask { spool, categories })?;
        counted(answer.positions, count)
    }

    /// Says words of a spool's; what became of each. May be done any number of times.
    pub fn scribe_say(&mut self, say: &msg::Say) -> Result<Vec<msg::Heard>> {
        let answer: msg::AllHeard = self.ask(wire::OP_SCRIBE_SAY, say)?;
        counted(answer.heard, say.words.len())
    }

    /// Batches of a category from an entry on, waiting so long for the first, and 20 s at most. There may be
    /// none then.
    pub fn scribe_read(
        &mut self,
        category: &str,
        from: Index,
        wait: Duration,
    ) -> Result<ScribePage> {
        let (category, most) = (category.to_owned(), self.wait_max(WAIT_MAX.min(wait)));
        let wait = !wait.is_zero();
        let read = msg::Read { category, from, bytes_max: msg::READ_BYTES_MAX as u32, wait };
        let deadline_ms = if wait { most.as_millis() as u32 } else { self.options.deadline_ms };
        let ticket = self.submit_by(wire::OP_SCRIBE_READ, deadline_ms, &read, &[])?;
        let response = match self.wait(ticket) {
            // Its deadline has passed.
            Err(e) if wait && e.kind == Kind::Retry && self.connection.failure().is_none() => {
                return Ok(ScribePage { batches: Vec::new(), next: from });
            }
            response => response?,
        };
        let batches: msg::Batches = decode(&response)?;
        let (mut rest, mut read) = (response.body(), Vec::with_capacity(batches.batches.len()));
        for msg::Indexed { index, bytes } in batches.batches {
            let (batch, behind) = rest.split_at_checked(bytes as usize).ok_or_else(|| {
                Error::corrupt(
                    "read a category: the answer has fewer bytes than it says: ask again",
                )
            })?;
            read.push((index, batch.to_vec()));
            rest = behind;
        }
        Ok(ScribePage { batches: read, next: batches.next })
    }

    /// Changes how long messages of a category are kept, and makes it if there is none; how long they are
    /// kept now.
    pub fn scribe_keep(&mut self, keep: &msg::Keep) -> Result<msg::Kept> {
        self.ask(wire::OP_SCRIBE_KEEP, keep)
    }

    /// Where a reader with this name reads on in a category, unless it never said.
    pub fn scribe_reader(&mut self, category: &str, reader: &str) -> Result<Option<Index>> {
        let (category, reader) = (category.to_owned(), reader.to_owned());
        self.ask(wire::OP_SCRIBE_READER, &msg::Reader { category, reader, next: None })
    }

    /// From here on a reader with this name reads on, whoever it is then; durable on return. 0 forgets it.
    pub fn scribe_move_reader(&mut self, category: &str, reader: &str, next: Index) -> Result<()> {
        let (category, reader, next) = (category.to_owned(), reader.to_owned(), Some(next));
        let moved = msg::Reader { category, reader, next };
        self.ask::<Option<Index>>(wire::OP_SCRIBE_READER, &moved).map(drop)
    }

    /// The categories that there are.
    pub fn scribe_status(&mut self) -> Result<Vec<msg::CategoryStatus>> {
        self.ask(wire::OP_SCRIBE_STATUS, &())
    }
}

/// Reads messages of a category. Holds no connection: it is given one with each call.
#[derive(Clone, Debug)]
pub struct CategoryReader {
    category: String,
    name: Option<String>,
    next: Index,
    /// It has read what is not said yet.
    has_read: bool,
}

impl CategoryReader {
    /// From an entry on; else one with a name goes on where the last one of this name was, and begins with the
    /// oldest message if there was none. One without begins with the next message, or with the oldest.
    pub fn begin(
        client: &mut Client,
        category: &str,
        from: Option<Index>,
        name: Option<&str>,
        at_next: bool,
    ) -> Result<CategoryReader> {
        let begins = match (from, name) {
            (None, Some(name)) => client.scribe_reader(category, name)?,
            _ => from,
        };
        let next = match begins {
            Some(next) => next,
            // One with a name that is new may take its time: what comes before it says anything is its own, too.
            None if at_next && name.is_none() => {
                client.scribe_read(category, msg::FROM_NEXT, Duration::ZERO)?.next
            }
            None => Index(0),
        };
        let (category, name) = (category.to_owned(), name.map(str::to_owned));
        Ok(CategoryReader { category, name, next, has_read: false })
    }

    /// Where it goes on: to be kept with what is made of messages by who wants each once.
    pub fn next(&self) -> Index {
        self.next
    }

    /// Messages of the next entries, of a page of 4 MiB at most, waiting so long for the first. Nothing at the
    /// end; an empty list where only repeats were passed.
    pub fn read(
        &mut self,
        client: &mut Client,
        wait: Duration,
    ) -> Result<Option<Vec<(Index, Messages)>>> {
        let page = client.scribe_read(&self.category, self.next, wait)?;
        let at_end = page.batches.is_empty() && page.next == self.next;
        let messages = |(index, bytes): &(Index, Vec<u8>)| {
            // It has travelled.
            let (_, messages) = batch::verify(bytes).map_err(|e| {
                e.context(format_args!("read entry {index} of `{}`", self.category))
            })?;
            Ok((*index, messages))
        };
        let read = page.batches.iter().map(messages).collect::<Result<Vec<_>>>()?;
        self.next = page.next;
        // An entry that says where a reader is is none that it is shown, so that it moves for what it was shown
        // alone.
        self.has_read |= !read.is_empty();
        Ok((!at_end).then_some(read))
    }

    /// One with a name goes on behind what it has read, whoever it is then; durable on return. To be said
    /// behind what was made of it: who ends in front of this reads the page again.
    pub fn taken(&mut self, client: &mut Client) -> Result<()> {
        if let Some(name) = self.name.as_deref().filter(|_| self.has_read) {
            client.scribe_move_reader(&self.category, name, self.next)?;
        }
        self.has_read = false;
        Ok(())
    }
}

fn counted<T>(answers: Vec<T>, count: usize) -> Result<Vec<T>> {
    match answers.len() == count {
        true => Ok(answers),
        false => Err(Error::bug(format!(
            "ask about categories: {} answers came to {count} questions",
            answers.len()
        ))),
    }
}
