//! What is said to servers by their numbers, and not to whichever has a key: what they are to drop, and the leases
//! of those that have. For who invalidates.

use super::{Ask, Client, failure};
use crate::batch::{self, Answer};
use crate::fleet::Outcome;
use crate::lookaside::command;
use crate::lookaside::lookup::{Fill, Filled, Token};
use crate::wire::Shape;
use holdfast_base::Result;

/// What a server is to drop; see [`Client::drop_at`].
#[derive(Clone, Copy, Debug)]
pub enum Drops<'a> {
    Keys(&'a [Vec<u8>]),
    All,
}

/// Keys that one request drops.
const DROPS: usize = 500;

impl Client {
    /// Tells servers, by their numbers, what they are to drop, all at once; which of them have done it.
    /// Meant for who has invalidations to send to every server that may hold a key, alive or not.
    pub fn drop_at(&mut self, orders: &[(u32, Drops<'_>)], stale_s: u32) -> Result<Vec<bool>> {
        let mut request = Vec::new();
        for (_, order) in orders {
            if let Drops::Keys(keys) = order {
                keys.iter().try_for_each(|key| batch::check(key))?;
            }
        }
        self.refresh()?;
        let mut parts = Vec::new();
        for (number, (server, order)) in orders.iter().enumerate() {
            let requests: Vec<(Shape, &[Vec<u8>])> = match order {
                Drops::All => vec![(Shape::Line, &[])],
                Drops::Keys(keys) => keys.chunks(DROPS).map(|some| (Shape::Quiet, some)).collect(),
            };
            for (shape, keys) in requests {
                request.clear();
                if shape == Shape::Line {
                    request.extend_from_slice(b"flush_all\r\n");
                } else {
                    keys.iter().for_each(|key| command::invalidate(key, stale_s, &mut request));
                    request.extend_from_slice(command::END);
                }
                let (server, ticket, bytes) = (*server, parts.len() as u64, &request[..]);
                self.ask(&Ask { server, shape, ticket, bytes, unless_ended: None });
                parts.push((number, shape, keys.len()));
            }
        }
        let mut done = vec![true; orders.len()];
        self.settle(parts.len(), |ticket, outcome| {
            let (number, shape, keys) = parts[ticket as usize];
            done[number] &= match outcome {
                Outcome::Answer(line) if shape == Shape::Line => line == b"OK\r\n",
                Outcome::Answer(answer) => command::are_invalidated(answer, keys),
                _ => false,
            };
        })?;
        Ok(done)
    }

    /// Makes the values of keys old; see [`lookaside::command::invalidate`] for `stale_s`. Fails if one was
    /// not; the others may have been.
    pub fn invalidate<K: AsRef<[u8]>>(&mut self, keys: &[K], stale_s: u32) -> Result<()> {
        keys.iter().try_for_each(|key| batch::check(key.as_ref()))?;
        self.refresh()?;
        let mut request = Vec::new();
        for (number, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            request.clear();
            command::invalidate(key, stale_s, &mut request);
            let server = self.server_of(key);
            let (shape, ticket, bytes) = (Shape::Meta, number as u64, &request[..]);
            self.ask(&Ask { server, shape, ticket, bytes, unless_ended: None });
        }
        let mut failed = None;
        self.settle(keys.len(), |number, outcome| {
            let answer = match outcome {
                Outcome::Answer(line) if command::is_invalidated(line) => return,
                Outcome::Answer(line) => Answer::Refused(line.trim_ascii_end()),
                Outcome::Lost => Answer::Lost,
                Outcome::Dead { maybe } => Answer::Dead { maybe },
            };
            let key = String::from_utf8_lossy(keys[number as usize].as_ref());
            failed.get_or_insert_with(|| failure(&format!("invalidate `{key}`"), answer));
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// The number of a key's item on each of these servers, which makes one without a value, for so many seconds,
    /// where there is none; nothing of those that do not answer.
    pub fn tokens(
        &mut self,
        servers: &[u32],
        key: &[u8],
        lives_s: u32,
    ) -> Result<Vec<Option<Token>>> {
        let mut request = Vec::new();
        command::ask(key, lives_s, 0, &mut request);
        let mut tokens = vec![None; servers.len()];
        self.ask_each(servers, key, request, |at, ended, answer| {
            let item = command::items(answer).find(|(of, _)| *of == key);
            tokens[at] = item.map(|(_, item)| Token { cas: item.cas, ended });
        })?;
        Ok(tokens)
    }

    /// Whether each of these servers has a value of a key; nothing of those that do not answer.
    pub(crate) fn have(&mut self, servers: &[u32], key: &[u8]) -> Result<Vec<Option<bool>>> {
        let mut request = Vec::new();
        command::look(key, &mut request);
        let mut have = vec![None; servers.len()];
        self.ask_each(servers, key, request, |at, _, answer| {
            have[at] = Some(command::has(answer, key));
        })?;
        Ok(have)
    }

    /// Puts one question to each of these servers, and gives away what they answer, with how many connections to
    /// them had ended before.
    fn ask_each(
        &mut self,
        servers: &[u32],
        key: &[u8],
        mut request: Vec<u8>,
        mut answered: impl FnMut(usize, u64, &[u8]),
    ) -> Result<()> {
        batch::check(key)?;
        self.refresh()?;
        request.extend_from_slice(command::END);
        let mut ended = Vec::with_capacity(servers.len());
        for (at, server) in servers.iter().enumerate() {
            ended.push(self.ended(*server));
            let (server, ticket, bytes) = (*server, at as u64, &request[..]);
            self.ask(&Ask { server, shape: Shape::Quiet, ticket, bytes, unless_ended: None });
        }
        self.settle(servers.len(), |ticket, outcome| {
            if let Outcome::Answer(answer) = outcome {
                answered(ticket as usize, ended[ticket as usize], answer);
            }
        })
    }

    /// Stores a value on servers whose items still have the numbers that they gave, over the connections that they
    /// gave them over; which of them have done it.
    pub fn store_for(
        &mut self,
        tokens: &[(u32, Token)],
        key: &[u8],
        value: &[u8],
        lives_s: u32,
    ) -> Result<Vec<bool>> {
        batch::check(key)?;
        self.refresh()?;
        let mut request = Vec::new();
        for (at, (server, token)) in tokens.iter().enumerate() {
            request.clear();
            let (server, cas, ended) = (*server, Some(token.cas), token.ended);
            let fill = Fill { number: at, server, value: Some(value), cas, ended };
            command::fill(&fill, key, lives_s, &mut request);
            let (ticket, bytes) = (at as u64, &request[..]);
            let unless_ended = Some(ended);
            self.ask(&Ask { server, shape: Shape::Meta, ticket, bytes, unless_ended });
        }
        let mut stored = vec![false; tokens.len()];
        self.settle(tokens.len(), |ticket, outcome| {
            stored[ticket as usize] = match outcome {
                Outcome::Answer(answer) => command::filled(answer) == Filled::Stored,
                _ => false,
            };
        })?;
        Ok(stored)
    }
}
