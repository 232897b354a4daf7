//! Keys, values and requests of the cache's benchmark, made before anything is measured: all
//! requests have one length, and so have all answers.

use holdfast_base::{Error, Result};
use holdfast_env::{Rng, SeededRng};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Length of every key: `key-` and twelve digits.
pub const KEY_BYTES: usize = 16;
/// Requests that are written at once when a cache is filled.
const FILL_BATCH: u64 = 1000;
/// What all requests together may take.
const POOL_BYTES: usize = 24 << 20;

/// The key of item `n`.
pub fn key(n: u64) -> String {
    format!("key-{n:012}")
}

/// The key again and again: any mixture of two values shows.
fn value(n: u64, len: usize) -> Vec<u8> {
    key(n).into_bytes().into_iter().cycle().take(len).collect()
}

/// What all requests of a pool ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Several keys in one command.
    Get,
    /// One key and its value.
    Set,
}

/// Requests one behind the other.
pub struct Requests {
    bytes: Vec<u8>,
    /// Length of each request.
    pub request_bytes: usize,
    /// Length of each answer, if every key is stored.
    pub reply_bytes: usize,
    count: usize,
    kind: Kind,
    /// The keys of each.
    keys: Vec<u32>,
    keys_each: usize,
    /// Length of each value.
    pub value_bytes: usize,
    /// Keys are drawn from 0 to this.
    pub key_count: u64,
    /// Whether the target answers with what it stores.
    pub comparable: bool,
}

impl Requests {
    /// Draws requests of `keys_each` random keys until the pool is full. The same arguments draw
    /// the same ones.
    pub fn new(kind: Kind, keys_each: usize, key_count: u64, value_bytes: usize) -> Requests {
        let rng = SeededRng::new(42);
        let one = match kind {
            Kind::Get => 5 + keys_each * (KEY_BYTES + 1),
            Kind::Set => set(0, value_bytes).len(),
        };
        let count = (POOL_BYTES / one).clamp(1024, 1 << 20);
        let mut requests = Requests {
            bytes: Vec::with_capacity(count * one),
            request_bytes: one,
            reply_bytes: 0,
            count,
            kind,
            keys: Vec::with_capacity(count * keys_each),
            keys_each,
            value_bytes,
            key_count,
            comparable: true,
        };
        for _ in 0..count {
            let keys: Vec<u64> = (0..keys_each).map(|_| rng.next_u64() % key_count).collect();
            match kind {
                Kind::Get => {
                    requests.bytes.extend_from_slice(b"get");
                    for n in &keys {
                        requests.bytes.push(b' ');
                        requests.bytes.extend_from_slice(key(*n).as_bytes());
                    }
                    requests.bytes.extend_from_slice(b"\r\n");
                }
                Kind::Set => requests.bytes.extend_from_slice(&set(keys[0], value_bytes)),
            }
            requests.keys.extend(keys.iter().map(|n| *n as u32));
        }
        requests.reply_bytes = requests.reply(0, 1).len();
        requests
    }

    /// `depth` requests from number `at` on, which [`Requests::start`] or `next` gave.
    pub fn batch(&self, at: usize, depth: usize) -> &[u8] {
        &self.bytes[at * self.request_bytes..(at + depth) * self.request_bytes]
    }

    /// Where client number `client` of so many begins, so that they do not ask for the same keys at
    /// once.
    pub fn start(&self, client: usize, clients: usize, depth: usize) -> usize {
        let at = self.count / clients * client;
        if at + depth > self.count { 0 } else { at }
    }

    /// Where the batch behind the one at `at` begins; the first one behind the last.
    pub fn next(&self, at: usize, depth: usize) -> usize {
        if at + 2 * depth > self.count { 0 } else { at + depth }
    }

    /// What `depth` requests must be answered with.
    fn reply(&self, at: usize, depth: usize) -> Vec<u8> {
        let mut reply = Vec::new();
        for request in at..at + depth {
            match self.kind {
                Kind::Set => reply.extend_from_slice(b"STORED\r\n"),
                Kind::Get => {
                    let from = request * self.keys_each;
                    for n in &self.keys[from..from + self.keys_each] {
                        let n = u64::from(*n);
                        let line = format!("VALUE {} 0 {}\r\n", key(n), self.value_bytes);
                        reply.extend_from_slice(line.as_bytes());
                        reply.extend_from_slice(&value(n, self.value_bytes));
                        reply.extend_from_slice(b"\r\n");
                    }
                    reply.extend_from_slice(b"END\r\n");
                }
            }
        }
        reply
    }

    /// `Corrupt`, with the first byte that is wrong, unless `got` answers the batch at `at`.
    pub fn compare(&self, at: usize, depth: usize, got: &[u8]) -> Result<()> {
        let want = self.reply(at, depth);
        match want.iter().zip(got).position(|(a, b)| a != b) {
            None if want.len() == got.len() => Ok(()),
            place => Err(Error::corrupt(format!(
                "load a cache: byte {} of an answer is wrong",
                place.unwrap_or(want.len().min(got.len()))
            ))),
        }
    }
}

fn set(n: u64, value_bytes: usize) -> Vec<u8> {
    let mut bytes = format!("set {} 0 0 {value_bytes}\r\n", key(n)).into_bytes();
    bytes.extend_from_slice(&value(n, value_bytes));
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Stores keys 0 to `count` over one connection.
pub fn fill(target: SocketAddr, count: u64, value_bytes: usize) -> Result<()> {
    let mut stream = TcpStream::connect(target)?;
    let mut replies = Vec::new();
    for from in (0..count).step_by(FILL_BATCH as usize) {
        let to = (from + FILL_BATCH).min(count);
        let batch: Vec<u8> = (from..to).flat_map(|n| set(n, value_bytes)).collect();
        stream.write_all(&batch)?;
        replies.resize((to - from) as usize * b"STORED\r\n".len(), 0);
        stream.read_exact(&mut replies)?;
        if !replies.chunks(8).all(|reply| reply == b"STORED\r\n") {
            return Err(Error::full(format!(
                "fill a cache: `{}`: give it more memory",
                String::from_utf8_lossy(&replies[..replies.len().min(60)])
            )));
        }
    }
    Ok(())
}
