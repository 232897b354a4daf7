//! What an agent has under way: a few requests at once, so that its disk, the way and the node's disk are at work at
//! the same time. They go in the order of the spool, their topics take them in that order, and their answers are
//! heard in it. Decides nothing about numbers: what overtakes another is dropped, and sent again.

use super::Shared;
use crate::carry::REQUESTS_OF_ONE_MAX;
use crate::category::Category;
use crate::store::Outgoing;
use holdfast_base::ids::Index;
use holdfast_base::{Kind, Result};
use holdfast_client::{Client, Ticket};
use holdfast_env::planted;
use holdfast_wire::scribe as msg;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Batches of one request.
const REQUEST_BYTES: usize = 4 << 20;
/// Requests under way: one that is read here, one on its way, one at its topic.
const REQUESTS_MAX: usize = 3;

const _: () = assert!(REQUEST_BYTES <= msg::APPEND_BYTES_MAX);
// A carrier takes them all, and a word beside.
const _: () = assert!(REQUESTS_MAX < REQUESTS_OF_ONE_MAX);

/// Batches that were asked to be taken, and what is not known of them yet.
struct Asked {
    ticket: Ticket,
    outgoing: Vec<Outgoing>,
    /// Of each of their categories, before which message its topic was known to have everything.
    known: BTreeMap<Category, u64>,
}

/// One way through the spool.
struct Pass<'a> {
    /// The next entry to send, if there is one.
    from: Option<Index>,
    /// Categories that take nothing.
    without: &'a mut BTreeSet<Category>,
    under_way: VecDeque<Asked>,
    /// Batches that topics are known to have by it.
    delivered: usize,
}

impl Shared {
    /// Sends what there is, from the front; how many batches were delivered.
    pub(super) fn pass(
        &self,
        client: &mut Client,
        without: &mut BTreeSet<Category>,
    ) -> Result<usize> {
        let from = self.store.look(|core| core.first_to_send(without));
        let mut pass = Pass { from, without, under_way: VecDeque::new(), delivered: 0 };
        loop {
            self.ask_more(client, &mut pass)?;
            let Some(asked) = pass.under_way.pop_front() else { return Ok(pass.delivered) };
            match client.scribe_positions(asked.ticket, asked.outgoing.len()) {
                Err(e) if e.kind == Kind::Denied => {
                    self.ask_apart(client, &asked.outgoing, &mut pass)?;
                }
                positions => self.heard(&asked, &positions?, &mut pass)?,
            }
        }
    }

    fn ask_more(&self, client: &mut Client, pass: &mut Pass<'_>) -> Result<()> {
        let most = if planted!("scribe.one-request-at-a-time") { 1 } else { REQUESTS_MAX };
        while pass.under_way.len() < most
            && !self.stop.is_requested()
            && let Some(at) = pass.from
        {
            let (outgoing, next) = self.store.to_send(at, REQUEST_BYTES, pass.without)?;
            pass.from = next;
            if outgoing.is_empty() {
                continue;
            }
            self.say_begins(client, &outgoing)?;
            let categories: BTreeSet<&Category> =
                outgoing.iter().map(|one| &one.category).collect();
            let known = self.store.look(|core| {
                let known = |of: &&Category| ((*of).clone(), core.delivered(of).next);
                categories.iter().map(known).collect()
            });
            let names = categories.iter().map(|category| category.name().to_owned()).collect();
            let batches: Vec<&[u8]> = outgoing.iter().map(|one| &one.bytes[..]).collect();
            let ticket = client.scribe_submit(names, &batches)?;
            pass.under_way.push_back(Asked { ticket, outgoing, known });
        }
        Ok(())
    }

    fn heard(&self, asked: &Asked, positions: &[msg::Position], pass: &mut Pass<'_>) -> Result<()> {
        for (one, position) in asked.outgoing.iter().zip(positions) {
            let known = asked.known.get(&one.category).copied();
            pass.delivered += self.learn(&one.category, position, known, pass.without)?;
        }
        Ok(())
    }

    /// A request was denied, as a whole, for some of its categories. Its parts go one after the other, when what is
    /// under way behind it was heard, and the pass ends: of the others some batches came too early by then.
    fn ask_apart(
        &self,
        client: &mut Client,
        outgoing: &[Outgoing],
        pass: &mut Pass<'_>,
    ) -> Result<()> {
        pass.from = None;
        while let Some(asked) = pass.under_way.pop_front() {
            match client.scribe_positions(asked.ticket, asked.outgoing.len()) {
                Err(e) if e.kind == Kind::Denied => {}
                positions => self.heard(&asked, &positions?, pass)?,
            }
        }
        let all: Vec<&Outgoing> = outgoing.iter().collect();
        pass.delivered += self.send(client, &all, pass.without)?;
        Ok(())
    }
}
