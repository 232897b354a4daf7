//! A value on its way in, when one read did not bring all of it. A large one goes into the store
//! piece by piece, so that what a connection holds stays small.

use crate::engine::{Engine, Mode, Storing};
use crate::large::Large;
use crate::out::Out;
use crate::session::{Done, Line};
use crate::text;
use holdfast_cache_client::protocol::END_BYTES;
use holdfast_cache_client::protocol::words::Words;

/// Whose command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Store,
    /// The name and password of a connection that must log in.
    LogIn,
}

pub struct Incoming {
    kind: Kind,
    /// The command; read again when its value is complete.
    line: Vec<u8>,
    /// Of the value, without its line end.
    len: usize,
    /// Received and neither stored nor answered: part of the value and its line end.
    buffer: Vec<u8>,
    received: usize,
    pieces: Option<Pieces>,
}

struct Pieces {
    large: Large,
    next: u32,
    expires: u32,
    out_of_memory: bool,
}

impl Incoming {
    /// Waits for `len` bytes and a line end.
    pub fn new(kind: Kind, line: &[u8], len: usize) -> Incoming {
        Incoming { kind, line: line.to_vec(), len, buffer: Vec::new(), received: 0, pieces: None }
    }

    /// The same for a storage command, whose value is stored in pieces if it is long.
    pub fn storing(
        engine: &Engine,
        kind: Kind,
        line: &[u8],
        storing: &Storing<'_>,
        len: usize,
    ) -> Incoming {
        let mut incoming = Incoming::new(kind, line, len);
        let joins = matches!(storing.mode, Mode::Append | Mode::Prepend);
        if len > engine.store.large_bytes() && !joins {
            let large = Large { id: engine.shared.next_large(), bytes: len as u64 };
            let expires = storing.expires;
            incoming.pieces = Some(Pieces { large, next: 0, expires, out_of_memory: false });
        }
        incoming
    }

    pub fn is_complete(&self) -> bool {
        self.received == self.len + END_BYTES
    }

    /// Takes what belongs to it; says how much that was.
    pub fn take(&mut self, engine: &mut Engine, input: &[u8]) -> usize {
        let n = input.len().min(self.len + END_BYTES - self.received);
        let Some(pieces) = &mut self.pieces else {
            if self.buffer.capacity() - self.buffer.len() < n {
                // What has come, and then as much again: never much more than the client has sent.
                let left = self.len + END_BYTES - self.received;
                self.buffer.reserve_exact(left.min(n.max(self.received)));
            }
            self.buffer.extend_from_slice(&input[..n]);
            self.received += n;
            return n;
        };
        let (piece_bytes, mut rest) = (engine.store.piece_bytes(), &input[..n]);
        while !rest.is_empty() {
            let stored = (pieces.next as usize * piece_bytes).min(self.len);
            let want = piece_bytes.min(self.len - stored);
            // Behind the last piece comes the line end, which stays in the buffer.
            let want = if want == 0 { END_BYTES } else { want };
            let take = rest.len().min(want - self.buffer.len());
            self.buffer.extend_from_slice(&rest[..take]);
            rest = &rest[take..];
            if stored < self.len && self.buffer.len() == want {
                let key = pieces.large.key(pieces.next);
                pieces.out_of_memory = pieces.out_of_memory
                    || !engine.store.put_piece(
                        &mut engine.writer,
                        &key,
                        &self.buffer,
                        pieces.expires,
                    );
                pieces.next += 1;
                self.buffer.clear();
            }
        }
        self.received += n;
        n
    }

    /// The connection ended before the value did.
    pub fn abandon(self, engine: &mut Engine) {
        if let Some(pieces) = self.pieces {
            engine.remove_pieces(pieces.large);
        }
    }

    /// Answers a complete value. True if it was a name and password that are right.
    pub fn finish(self, engine: &mut Engine, out: &mut Out) -> bool {
        let words = Words::of(&self.line);
        let bytes = match &self.pieces {
            None => Bytes::Here(&self.buffer[..self.len]),
            Some(pieces) if pieces.out_of_memory => Bytes::NoMemory(pieces.large),
            Some(pieces) => Bytes::Pieces(pieces.large),
        };
        let value = Value { bytes, ends_right: self.buffer.ends_with(b"\r\n") };
        match self.kind {
            Kind::Store => text::store(engine, &words, value, out),
            Kind::LogIn => {
                return text::log_in(engine, &self.buffer[..self.len], value.ends_right, out);
            }
        }
        false
    }
}

/// A complete value.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    bytes: Bytes<'a>,
    /// Its line end is where it must be.
    pub ends_right: bool,
}

#[derive(Clone, Copy)]
enum Bytes<'a> {
    Here(&'a [u8]),
    /// Already stored under their own keys.
    Pieces(Large),
    /// Some of them are not.
    NoMemory(Large),
}

impl<'a> Value<'a> {
    /// One that is all here, and ends right.
    pub fn here(bytes: &'a [u8]) -> Value<'a> {
        Value { bytes: Bytes::Here(bytes), ends_right: true }
    }

    /// What follows the line of a storage command, with `at` moved past it; if it is not all here,
    /// what waits for it.
    pub fn behind(
        engine: &Engine,
        kind: Kind,
        line: &Line<'a>,
        at: &mut usize,
        (storing, len): (&Storing<'_>, usize),
    ) -> Result<Value<'a>, Done> {
        let behind = line.behind;
        if behind.len() < len + END_BYTES {
            let incoming = Incoming::storing(engine, kind, line.bytes, storing, len);
            return Err(Done::Value(Box::new(incoming)));
        }
        *at += len + END_BYTES;
        let ends_right = behind[len..].starts_with(b"\r\n");
        Ok(Value { bytes: Bytes::Here(&behind[..len]), ends_right })
    }

    /// Stores it, or takes back what was stored of it.
    pub fn store(self, engine: &mut Engine, storing: &Storing<'_>) -> crate::engine::Stored {
        match self.bytes {
            Bytes::Here(bytes) => engine.store_value(storing, bytes),
            Bytes::Pieces(large) => {
                engine.counters().cmd_set.add(1);
                engine.link_large(storing, large)
            }
            Bytes::NoMemory(large) => {
                engine.remove_pieces(large);
                engine.no_memory(storing)
            }
        }
    }

    pub fn drop_pieces(self, engine: &mut Engine) {
        if let Bytes::Pieces(large) | Bytes::NoMemory(large) = self.bytes {
            engine.remove_pieces(large);
        }
    }
}
