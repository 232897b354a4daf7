//! Misses of a cold pool are filled from its warm one, which forgets what is changed.

use super::Router;
use super::task::{Next, Owned, Task};
use crate::fleet::{Fleet, Outcome, Transport};
use crate::route::command::{self, Kind};
use crate::wire::{self, Shape, push_number};

/// A longer expiry is a date in memcached's eyes.
const EXPIRY_S_MAX: u64 = 30 * 24 * 3600;

impl Router {
    /// A warm pool has said what it knows of a key.
    pub(super) fn warm_done(
        &mut self,
        reply: u32,
        pool: usize,
        key: Vec<u8>,
        outcome: Outcome<'_>,
    ) {
        self.tally.warm_gets += 1;
        if let Outcome::Answer(answer) = outcome
            && let Some((flags, expiry_s, data)) = warm_value(answer)
        {
            self.tally.warm_hits += 1;
            self.tally.hits += 1;
            let mut block = b"VALUE ".to_vec();
            block.extend_from_slice(&key);
            let mut tail = vec![b' '];
            push_number(&mut tail, flags);
            let mut line = [b"add ", &key[..], &tail, b" "].concat();
            push_number(&mut line, expiry_s);
            tail.push(b' ');
            push_number(&mut tail, data.len() as u64);
            block.extend_from_slice(&tail);
            block.extend_from_slice(b"\r\n");
            block.extend_from_slice(data);
            block.extend_from_slice(b"\r\n");
            self.append(reply, &block);
            line.push(b' ');
            push_number(&mut line, data.len() as u64);
            let value = [data, b"\r\n"].concat();
            let kind = Kind::Change;
            let of = Owned { kind, key, is_binary: false, line, value, is_quiet: false };
            self.next.push(Next::Fill { pool, of });
        }
        self.part_done(reply);
    }

    pub(super) fn ask_warm(
        &mut self,
        fleet: &mut Fleet,
        (reply, pool): (u32, usize),
        key: Vec<u8>,
        now_ns: u64,
    ) {
        let plan = self.plan.clone();
        let server = plan.pools[pool].warm.and_then(|warm| plan.pools[warm].server(&key));
        let Some(server) = server else { return self.part_done(reply) };
        if !self.leases.may_count(plan.pools[pool].lease, server, fleet, now_ns) {
            self.tally.left_out += 1;
            return self.part_done(reply);
        }
        self.request.clear();
        self.request.extend_from_slice(b"mg ");
        self.request.extend_from_slice(&key);
        // With its expiry: a copy must not live longer.
        self.request.extend_from_slice(b" f t v\r\n");
        self.ask(
            fleet,
            server,
            Transport::Tcp,
            Shape::Meta,
            0,
            Task::Warm { reply, pool, server, key },
        );
    }

    /// Adds what the warm pool had to the cold one, unless the key was changed meanwhile.
    pub(super) fn fill(&mut self, fleet: &mut Fleet, pool: usize, of: &Owned, now_ns: u64) {
        let plan = self.plan.clone();
        if self.recent.is_recent(&of.key, now_ns) {
            return;
        }
        let Some(server) = plan.pools[pool].server(&of.key) else { return };
        if !self.leases.may_count(plan.pools[pool].lease, server, fleet, now_ns) {
            return;
        }
        self.request.clear();
        of.as_keyed().request(None, &mut self.request);
        self.ask(fleet, server, Transport::Tcp, Shape::Line, 0, Task::Aside);
    }

    /// Deletes what a warm pool still has of a key that was changed.
    pub(super) fn forget(
        &mut self,
        fleet: &mut Fleet,
        reply: u32,
        pool: usize,
        (key, is_binary): (&[u8], bool),
    ) {
        let plan = self.plan.clone();
        let Some(pool) = plan.pools[pool].warm else { return self.part_done(reply) };
        let Some(server) = plan.pools[pool].server(key) else { return self.part_done(reply) };
        let (line, shape) = command::delete_line(key, is_binary);
        self.request = line;
        let task = Task::Forget { reply, pool, key: key.to_vec(), is_binary };
        self.ask(fleet, server, Transport::Tcp, shape, 0, task);
    }
}

/// Client flags, expiry and value of a meta get's answer.
fn warm_value(answer: &[u8]) -> Option<(u64, u64, &[u8])> {
    let end = answer.iter().position(|b| *b == b'\n')?;
    let line = answer[..end].strip_suffix(b"\r")?;
    let len =
        usize::try_from(wire::number(line.strip_prefix(b"VA ").and(Some(wire::word(line, 1)))?)?)
            .ok()?;
    let (mut flags, mut expiry_s) = (0, 0);
    for word in line.split(|b| *b == b' ').skip(2) {
        match word.split_first() {
            Some((b'f', digits)) => flags = wire::number(digits)?,
            // -1 is for good; what expires within this second is not worth a copy.
            Some((b't', b"-1")) => expiry_s = 0,
            Some((b't', digits)) => expiry_s = wire::number(digits)?.clamp(1, EXPIRY_S_MAX),
            _ => {}
        }
    }
    Some((flags, expiry_s, answer.get(end + 1..end + 1 + len)?))
}
