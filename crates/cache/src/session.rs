//! One client's side of the protocol: what it has begun and not yet finished. Takes bytes, gives
//! answers; knows no socket and no clock.
//!
//! Gets are gathered from everything that a read brought: keys are hashed and their index lines
//! loaded while the next ones are parsed, then their items, and only then is anything copied.

mod batch;
mod gets;

pub use batch::Batch;

use crate::engine::Engine;
use crate::large::Large;
use crate::out::Out;
use crate::text;
use crate::values::Incoming;
use gets::Keys;
use holdfast_cache_client::protocol::words::{Words, find};
use holdfast_cache_client::protocol::{self, LINE_BYTES_MAX, LINE_TOO_LONG};
use holdfast_env::trial::Knob;

/// Answers past which a session lets them be sent before it goes on.
pub static OUT_BYTES_FULL: Knob = Knob::new("cache.out-bytes-full", 256 << 10, &[1, 50, 3000]);

#[derive(Default)]
pub struct Session {
    state: State,
    /// Wrong or missing names are refused; see `text::authenticate`.
    pub authenticated: bool,
}

#[derive(Default)]
enum State {
    #[default]
    Command,
    /// Within the line of a get.
    Keys(Get),
    /// Within a value.
    Value(Box<Incoming>),
    /// Bytes to drop.
    Swallow(u64),
    /// The rest of a line to drop.
    SkipLine,
    Sending(Box<Sending>),
}

/// What a get asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get {
    pub with_cas: bool,
    /// Of gat: the new expiry.
    pub touch: Option<u32>,
}

/// A large value on its way to a client.
struct Sending {
    large: Large,
    next: u32,
    /// The get to go on with; nothing after a meta command.
    then: Option<Get>,
}

/// What a session wants now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// More bytes.
    More,
    /// That the answers are sent; it has not used all bytes.
    Drain,
    /// The end, once the answers are sent.
    Close,
}

/// A command as it was received.
pub struct Line<'a> {
    pub words: Words<'a>,
    /// Without its end.
    pub bytes: &'a [u8],
    /// What was received behind it.
    pub behind: &'a [u8],
}

/// What a command came to.
pub enum Done {
    Line,
    /// The command's value follows, and begins so far behind the line.
    Value(Box<Incoming>),
    Swallow(u64),
    Sending(Large),
    Close,
}

/// Whether answers are sent before more are made.
fn is_full(engine: &Engine, out: &Out) -> bool {
    let full = match engine.shared.settings.ablation.unbatched_sends {
        true => 1,
        false => OUT_BYTES_FULL.size(),
    };
    let is_full = out.len() >= full;
    if is_full {
        OUT_BYTES_FULL.cross();
    }
    is_full
}

impl Session {
    /// One that need not log in.
    pub fn trusted() -> Session {
        Session { state: State::Command, authenticated: true }
    }

    /// The client has gone.
    pub fn abandon(&mut self, engine: &mut Engine) {
        if let State::Value(incoming) = std::mem::take(&mut self.state) {
            incoming.abandon(engine);
        }
    }

    /// Serves what `input[..len]` holds; behind it are at least the arena's slack of bytes. Says
    /// how many bytes were used up: the rest must be there again next time, with more behind it.
    pub fn consume(
        &mut self,
        engine: &mut Engine,
        batch: &mut Batch,
        (input, len): (&[u8], usize),
        out: &mut Out,
    ) -> (usize, Wants) {
        let mut at = 0;
        batch.answers_at = None;
        let wants = loop {
            if is_full(engine, out) {
                break Wants::Drain;
            }
            match &mut self.state {
                State::Command => {
                    self.plain_gets(engine, batch, (input, len), &mut at);
                    if let Some(wants) = self.command(engine, batch, (input, len), &mut at, out) {
                        break wants;
                    }
                }
                State::Keys(get) => {
                    let get = *get;
                    match self.keys(engine, batch, (input, len), &mut at, get, out) {
                        Keys::Ended => {
                            self.state = State::Command;
                            if engine.shared.settings.ablation.unbatched_sends {
                                break Wants::Drain;
                            }
                        }
                        Keys::Short => break Wants::More,
                        Keys::Drain => break Wants::Drain,
                        Keys::Changed => {}
                    }
                }
                State::Value(incoming) => {
                    at += incoming.take(engine, &input[at..len]);
                    if !incoming.is_complete() {
                        break Wants::More;
                    }
                    if let State::Value(incoming) = std::mem::take(&mut self.state) {
                        self.authenticated |= incoming.finish(engine, out);
                    }
                }
                State::Swallow(left) => {
                    let n = (*left).min((len - at) as u64);
                    *left -= n;
                    at += n as usize;
                    if *left > 0 {
                        break Wants::More;
                    }
                    self.state = State::Command;
                }
                State::SkipLine => match find(&input[at..len], b'\n') {
                    Some(end) => {
                        at += end + 1;
                        self.state = State::Command;
                    }
                    None => {
                        at = len;
                        break Wants::More;
                    }
                },
                State::Sending(_) => {
                    if !self.send_on(engine, out) {
                        break Wants::Close;
                    }
                }
            }
        };
        // Gets are left over only if bytes ran out, which is a good time to answer them.
        if let Some(resume) = self.flush(engine, batch, input, out) {
            return (resume, Wants::Drain);
        }
        (at, wants)
    }

    /// One command's line. Says what is wanted if it cannot go on.
    fn command(
        &mut self,
        engine: &mut Engine,
        batch: &mut Batch,
        (input, len): (&[u8], usize),
        at: &mut usize,
        out: &mut Out,
    ) -> Option<Wants> {
        let rest = &input[*at..len];
        let must_log_in = engine.shared.settings.users.is_some() && !self.authenticated;
        let plain = |skip: usize| !must_log_in && rest.get(skip).is_some_and(|b| *b > b' ');
        if rest.starts_with(b"get ") && plain(4) {
            return self.begin_keys(batch, at, 4, Get::default());
        }
        if rest.starts_with(b"gets ") && plain(5) {
            return self.begin_keys(batch, at, 5, Get { with_cas: true, touch: None });
        }
        if rest.starts_with(b"set ")
            && !must_log_in
            && batch.entries.is_empty()
            && let Some(used) = text::plain_set(engine, rest, out)
        {
            *at += used;
            return None;
        }
        let (end, is_whole) = match find(&rest[..rest.len().min(LINE_BYTES_MAX)], b'\n') {
            Some(end) => (end, true),
            None if rest.len() < LINE_BYTES_MAX => return Some(Wants::More),
            None => (LINE_BYTES_MAX, false),
        };
        // What follows may change what was asked for before.
        if let Some(resume) = self.flush(engine, batch, input, out) {
            *at = resume;
            return Some(Wants::Drain);
        }
        let text = protocol::line(rest, end);
        let words = Words::of(text);
        if !must_log_in && protocol::is_get(words.get(0)) && (is_whole || words.count() > 2) {
            // With spaces in front, or a gat: the keys are behind the second or third word, and may
            // go on for ever.
            return self.begin_get(engine, &words, at, (text, end), out);
        }
        if !is_whole {
            out.push(LINE_TOO_LONG);
            return Some(Wants::Close);
        }
        *at += end + 1;
        let line = Line { words, bytes: text, behind: &rest[end + 1..] };
        let done = if must_log_in {
            text::authenticate(engine, &line, out)
        } else {
            text::command(engine, &line, at, out)
        };
        match done {
            Done::Line => {}
            Done::Value(incoming) => self.state = State::Value(incoming),
            Done::Swallow(bytes) => self.state = State::Swallow(bytes),
            Done::Sending(large) => {
                self.state = State::Sending(Box::new(Sending { large, next: 0, then: None }));
            }
            Done::Close => return Some(Wants::Close),
        }
        None
    }
}

/// A whole large value and its line end; false, with nothing written, if pieces are gone.
pub fn push_large(engine: &mut Engine, large: Large, out: &mut Out) -> bool {
    let before = out.len();
    for n in 0..large.pieces(&engine.store) {
        engine.scratch.clear();
        let key = large.key(n);
        if !engine.store.read_piece(&mut engine.writer, &key, &mut engine.scratch) {
            out.truncate(before);
            return false;
        }
        out.push(&engine.scratch);
    }
    out.push(b"\r\n");
    true
}

#[cfg(test)]
mod tests;
