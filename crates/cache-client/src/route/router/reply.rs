//! Answers to clients, from the command to the last of the outcomes that it waits for.

use super::Router;

/// What one answer to a client may take: a get of very many keys must not take all memory.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// What a command of a client will be answered with.
#[derive(Default)]
pub struct Reply {
    /// Requests that it waits for.
    pub parts: u32,
    pub bytes: Vec<u8>,
    pub is_get: bool,
    pub is_mute: bool,
    pub is_too_long: bool,
    /// What it says does not depend on outcomes.
    pub is_fixed: bool,
    /// The worker has taken it from `whole`.
    pub is_seen: bool,
    /// Whose it is: a connection and which of those that had its number.
    pub connection: (u32, u32),
}

impl Router {
    pub(super) fn open(&mut self, connection: (u32, u32), is_get: bool, is_mute: bool) -> u32 {
        let reply = Reply { connection, is_get, is_mute, ..Reply::default() };
        match self.free_replies.pop() {
            Some(number) => {
                self.replies[number as usize] = reply;
                number
            }
            None => {
                self.replies.push(reply);
                self.replies.len() as u32 - 1
            }
        }
    }

    /// An answer that no server is asked for.
    pub fn say(&mut self, connection: (u32, u32), bytes: &[u8]) -> u32 {
        let reply = self.open(connection, false, false);
        self.replies[reply as usize].bytes.extend_from_slice(bytes);
        self.whole.push(reply);
        reply
    }

    /// Takes the next reply that has become whole, and says whose it is.
    pub fn take_whole(&mut self) -> Option<(u32, (u32, u32))> {
        let reply = self.whole.pop()?;
        let of = &mut self.replies[reply as usize];
        of.is_seen = true;
        Some((reply, of.connection))
    }

    /// Whether a reply is whole, and was taken as such.
    pub fn is_ready(&self, reply: u32) -> bool {
        self.replies[reply as usize].is_seen
    }

    /// Takes a whole reply's bytes, and forgets it.
    pub fn close(&mut self, reply: u32) -> Vec<u8> {
        let of = std::mem::take(&mut self.replies[reply as usize]);
        self.free_replies.push(reply);
        if of.is_mute {
            return Vec::new();
        }
        if of.is_too_long {
            return b"SERVER_ERROR out of memory writing get response\r\n".to_vec();
        }
        let mut bytes = of.bytes;
        if of.is_get {
            bytes.extend_from_slice(b"END\r\n");
        }
        bytes
    }

    pub(super) fn part_done(&mut self, reply: u32) {
        let of = &mut self.replies[reply as usize];
        of.parts -= 1;
        if of.parts == 0 {
            self.whole.push(reply);
        }
    }

    pub(super) fn append(&mut self, reply: u32, bytes: &[u8]) {
        let of = &mut self.replies[reply as usize];
        if of.is_fixed {
            return;
        }
        of.is_too_long |= of.bytes.len() + bytes.len() > REPLY_BYTES_MAX;
        if of.is_too_long {
            of.bytes = Vec::new();
        } else {
            of.bytes.extend_from_slice(bytes);
        }
    }
}
