//! One client's side of the protocol: what it has begun and not yet finished. Takes bytes, gives
//! answers; knows no socket and no clock.
//!
//! Gets are gathered from everything that a read brought: keys are hashed and their index lines
//! loaded while the next ones are parsed, then their items, and only then is anything copied.

use crate::engine::{Engine, large_of};
use crate::large::Large;
use crate::out::{Out, digits_of};
use crate::parse::{Words, find, word_end};
use crate::store::{Lookup, Probe, Seen};
use crate::values::Incoming;
use crate::{meta, text};
use holdfast_env::arena::SLACK_BYTES;

/// Keys whose lines and items are loaded at once.
const BATCH: usize = 128;
/// Longest line that is not a get (memcached's).
pub const LINE_BYTES_MAX: usize = 2048;
/// Answers past which a session lets them be sent before it goes on.
pub const OUT_BYTES_FULL: usize = 256 << 10;
/// The same within one batch of gets.
const OUT_BYTES_MAX: usize = 1 << 20;
/// Of an item, its key and value apart.
const HEAD_BYTES: usize = 8;
/// Of a value: the processor goes on with what lies in order.
const PREFETCH_BYTES_MAX: usize = 256;
/// Large values up to this are answered at once; longer ones piece by piece as they are taken.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

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

/// What a command came to.
pub enum Done {
    Line,
    /// The command's value follows, and begins so far behind the line.
    Value(Box<Incoming>),
    Swallow(u64),
    Sending(Large),
    Close,
}

/// One key of a get.
#[derive(Clone, Copy, Default)]
struct Entry {
    start: u32,
    len: u8,
    /// The line ends behind it: `END` follows. With no length, it only ends.
    end: bool,
    with_cas: bool,
    hash: u64,
}

/// The batch of a thread, empty between two calls of a session.
pub struct Batch {
    entries: Vec<Entry>,
    probes: Vec<Probe>,
    suffix: Suffix,
    /// Where in `out` the answers of the get that is being parsed begin, if part of them is there.
    answers_at: Option<usize>,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            entries: Vec::with_capacity(BATCH),
            probes: Vec::with_capacity(BATCH),
            suffix: Suffix::default(),
            answers_at: None,
        }
    }
}

/// ` FLAGS LENGTH\r\n` of the item before: as a rule the next one's, too.
struct Suffix {
    flags: u32,
    len: usize,
    text: [u8; 32],
    text_len: usize,
}

impl Default for Suffix {
    fn default() -> Suffix {
        Suffix { flags: u32::MAX, len: usize::MAX, text: [0; 32], text_len: 0 }
    }
}

impl Suffix {
    #[inline(always)]
    fn of(&mut self, flags: u32, len: usize) -> (&[u8; 32], usize) {
        if flags != self.flags || len != self.len {
            self.make(flags, len);
        }
        (&self.text, self.text_len)
    }

    fn make(&mut self, flags: u32, len: usize) {
        (self.flags, self.len) = (flags, len);
        let mut at = 0;
        for number in [u64::from(flags), len as u64] {
            let mut digits = [0; 20];
            let from = digits_of(number, &mut digits);
            self.text[at] = b' ';
            let n = digits.len() - from;
            self.text[at + 1..at + 1 + n].copy_from_slice(&digits[from..]);
            at += 1 + n;
        }
        self.text[at..at + 2].copy_from_slice(b"\r\n");
        self.text_len = at + 2;
    }
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
        input: &[u8],
        len: usize,
        out: &mut Out,
    ) -> (usize, Wants) {
        let mut at = 0;
        batch.answers_at = None;
        let wants = loop {
            if out.len() >= OUT_BYTES_FULL {
                break Wants::Drain;
            }
            match &mut self.state {
                State::Command => {
                    if let Some(wants) = self.command(engine, batch, (input, len), &mut at, out) {
                        break wants;
                    }
                }
                State::Keys(get) => {
                    let get = *get;
                    match self.keys(engine, batch, (input, len), &mut at, get, out) {
                        Keys::Ended => self.state = State::Command,
                        Keys::Short => break Wants::More,
                        Keys::Drain => break Wants::Drain,
                        Keys::Changed => {}
                        Keys::Overlong => {
                            break Wants::Close;
                        }
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
        let Some(end) = find(rest, b'\n') else {
            // Spaces may precede a get of any length; nothing else may be as long.
            let too_long = rest.len() > LINE_BYTES_MAX;
            return Some(if too_long { Wants::Close } else { Wants::More });
        };
        // What follows may change what was asked for before.
        if let Some(resume) = self.flush(engine, batch, input, out) {
            *at = resume;
            return Some(Wants::Drain);
        }
        let line = match &rest[..end] {
            [line @ .., b'\r'] if end > 1 => line,
            line => line,
        };
        let behind = &rest[end + 1..];
        let words = Words::of(line);
        if !must_log_in && matches!(words.get(0), b"get" | b"gets" | b"gat" | b"gats" | b"bget") {
            // With spaces in front, or a gat: the keys are behind the second or third word.
            return self.begin_get(engine, &words, at, rest, end, out);
        }
        *at += end + 1;
        let done = if must_log_in {
            text::authenticate(engine, &words, line, out)
        } else if words.get(0).len() == 2 && words.get(0)[0] == b'm' {
            meta::command(engine, &words, line, behind, at, out)
        } else {
            text::command(engine, &words, line, behind, at, out)
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

    fn begin_keys(
        &mut self,
        batch: &mut Batch,
        at: &mut usize,
        skip: usize,
        get: Get,
    ) -> Option<Wants> {
        batch.answers_at = None;
        *at += skip;
        self.state = State::Keys(get);
        None
    }

    /// A get that is not as plain as most.
    fn begin_get(
        &mut self,
        engine: &mut Engine,
        words: &Words<'_>,
        at: &mut usize,
        rest: &[u8],
        end: usize,
        out: &mut Out,
    ) -> Option<Wants> {
        let touches = words.get(0).starts_with(b"gat");
        let with_cas = words.get(0).ends_with(b"s");
        if words.len() < 2 {
            *at += end + 1;
            out.push(b"ERROR\r\n");
            return None;
        }
        let mut touch = None;
        if touches {
            let Some(exptime) = crate::parse::i32_of(words.get(1)) else {
                *at += end + 1;
                out.push(b"CLIENT_ERROR invalid exptime argument\r\n");
                return None;
            };
            touch = Some(engine.expiry(exptime));
        }
        // The keys begin behind so many words.
        let mut skip = 0;
        for _ in 0..if touches { 2 } else { 1 } {
            skip += rest[skip..].iter().take_while(|b| **b == b' ').count();
            skip = word_end(rest, skip).unwrap_or(end);
        }
        *at += skip;
        self.state = State::Keys(Get { with_cas, touch });
        None
    }

    /// Keys of a get, from `at` on.
    fn keys(
        &mut self,
        engine: &mut Engine,
        batch: &mut Batch,
        (input, len): (&[u8], usize),
        at: &mut usize,
        get: Get,
        out: &mut Out,
    ) -> Keys {
        let bytes = &input[..len];
        loop {
            while bytes.get(*at) == Some(&b' ') {
                *at += 1;
            }
            let Some(end) = word_end(bytes, *at) else {
                // Half a key is kept for the next time, unless it is no key.
                let overlong = bytes.len() - *at > LINE_BYTES_MAX;
                return if overlong { Keys::Overlong } else { Keys::Short };
            };
            let start = *at;
            let is_last = bytes[end] == b'\n';
            let mut key = &bytes[start..end];
            if is_last && let [head @ .., b'\r'] = key {
                key = head;
            }
            if key.len() > crate::item::KEY_BYTES_MAX {
                return self.refuse_keys(engine, batch, input, at, out);
            }
            if get.touch.is_some() && out.len() >= OUT_BYTES_FULL {
                return Keys::Drain;
            }
            if get.touch.is_some() {
                if let Some(keys) = self.get_and_touch(engine, key, get, out) {
                    *at = end;
                    return keys;
                }
                if is_last {
                    out.push(b"END\r\n");
                    *at = end + 1;
                    return Keys::Ended;
                }
                *at = end;
                continue;
            }
            if batch.entries.len() == BATCH {
                let resume = self.flush(engine, batch, input, out);
                *at = resume.unwrap_or(start);
                if resume.is_some() || out.len() >= OUT_BYTES_FULL {
                    return Keys::Drain;
                }
            }
            let mut entry = Entry {
                start: start as u32,
                len: key.len() as u8,
                end: is_last,
                with_cas: get.with_cas,
                hash: 0,
            };
            if !key.is_empty() {
                entry.hash = engine.store.hash(key);
                engine.store.prefetch(entry.hash);
            }
            batch.entries.push(entry);
            *at = if is_last { end + 1 } else { end };
            if is_last {
                return Keys::Ended;
            }
        }
    }

    /// A key is too long: no key of this get is answered, if that can still be helped.
    fn refuse_keys(
        &mut self,
        engine: &mut Engine,
        batch: &mut Batch,
        input: &[u8],
        at: &mut usize,
        out: &mut Out,
    ) -> Keys {
        let own = batch.entries.iter().rposition(|entry| entry.end).map_or(0, |i| i + 1);
        batch.entries.truncate(own);
        if let Some(resume) = self.flush(engine, batch, input, out) {
            *at = resume;
            return Keys::Drain;
        }
        if let Some(answers) = batch.answers_at.take().filter(|_| own == 0) {
            out.truncate(answers);
        }
        out.push(b"CLIENT_ERROR bad command line format\r\n");
        self.state = State::SkipLine;
        Keys::Changed
    }

    fn get_and_touch(
        &mut self,
        engine: &mut Engine,
        key: &[u8],
        get: Get,
        out: &mut Out,
    ) -> Option<Keys> {
        if key.is_empty() {
            return None;
        }
        engine.counters().cmd_touch.add(1);
        if let Some(expires) = get.touch
            && engine.touch(key, expires)
            && let Some(found) = engine.fetch(key, true)
        {
            engine.counters().touch_hits.add(1);
            engine.counters().get_hits.add(1);
            engine.store.count_read(&mut engine.writer, &found.seen, get.with_cas);
            let bytes = found.large.map_or(engine.scratch.len() as u64, |large| large.bytes);
            let before = out.len();
            value_line(key, found.flags, bytes, get.with_cas.then_some(found.cas), out);
            match found.large {
                None => out.push(&engine.scratch),
                Some(large) => match self.large_value(engine, large, Some(get), out) {
                    LargeSent::Whole => return None,
                    LargeSent::Begun => return Some(Keys::Changed),
                    LargeSent::Gone => {
                        out.truncate(before);
                        return None;
                    }
                },
            }
            out.push(b"\r\n");
        } else {
            engine.counters().touch_misses.add(1);
            engine.counters().get_misses.add(1);
        }
        None
    }

    /// Answers the batch. If the answers become too many, says from where on to parse again.
    fn flush(
        &mut self,
        engine: &mut Engine,
        batch: &mut Batch,
        input: &[u8],
        out: &mut Out,
    ) -> Option<usize> {
        if batch.entries.is_empty() {
            return None;
        }
        batch.probes.clear();
        // Items tend to be as long as the one before.
        let value_bytes = batch.suffix.len.min(PREFETCH_BYTES_MAX);
        batch.probes.extend(batch.entries.iter().map(|entry| {
            engine.store.probe(entry.hash, HEAD_BYTES + entry.len as usize + value_bytes)
        }));
        let (mut hits, mut misses) = (0, 0);
        let mut resume = None;
        // The last get in the batch, if its end has not come yet, starts here.
        let open = batch.entries.iter().rposition(|e| e.end).map_or(0, |i| i + 1);
        for i in 0..batch.entries.len() {
            if i == open && (open > 0 || batch.answers_at.is_none()) {
                batch.answers_at = Some(out.len());
            }
            let entry = batch.entries[i];
            let stop = if out.len() >= OUT_BYTES_MAX {
                Some(Get { with_cas: entry.with_cas, touch: None })
            } else {
                None
            };
            if let Some(get) = stop {
                self.state = State::Keys(get);
                resume = Some(entry.start as usize);
                batch.answers_at = None;
                break;
            }
            if entry.len > 0 {
                let key = &input[entry.start as usize..];
                let found = emit(engine, batch.probes[i], key, entry, &mut batch.suffix, out);
                match found {
                    Emitted::Hit => hits += 1,
                    Emitted::Miss => misses += 1,
                    Emitted::Large(large) => {
                        let get = Get { with_cas: entry.with_cas, touch: None };
                        if self.emit_large(engine, large, key, entry, get, out) {
                            hits += 1;
                        } else {
                            misses += 1;
                        }
                        if let State::Sending(_) = &self.state {
                            // The rest of the line, its end included, comes after the value.
                            resume = Some(entry.start as usize + entry.len as usize);
                            break;
                        }
                    }
                }
            }
            if entry.end {
                out.push(b"END\r\n");
            }
        }
        batch.entries.clear();
        let counters = engine.counters();
        counters.cmd_get.add(hits + misses);
        counters.get_hits.add(hits);
        counters.get_misses.add(misses);
        resume
    }

    /// A large value of a get; false if it is gone.
    fn emit_large(
        &mut self,
        engine: &mut Engine,
        large: Large,
        key: &[u8],
        entry: Entry,
        get: Get,
        out: &mut Out,
    ) -> bool {
        let key = &key[..entry.len as usize];
        let Some(found) = engine.fetch(key, false).filter(|f| f.large == Some(large)) else {
            return false;
        };
        engine.store.count_read(&mut engine.writer, &found.seen, get.with_cas);
        let before = out.len();
        value_line(key, found.flags, large.bytes, get.with_cas.then_some(found.cas), out);
        match self.large_value(engine, large, Some(get), out) {
            LargeSent::Whole | LargeSent::Begun => true,
            LargeSent::Gone => {
                out.truncate(before);
                engine.delete(key, Some(found.cas));
                false
            }
        }
    }

    /// A large value behind its header line: all of it, or its beginning.
    fn large_value(
        &mut self,
        engine: &mut Engine,
        large: Large,
        then: Option<Get>,
        out: &mut Out,
    ) -> LargeSent {
        if large.bytes > WHOLE_BYTES_MAX {
            self.state = State::Sending(Box::new(Sending { large, next: 0, then }));
            return LargeSent::Begun;
        }
        if push_large(engine, large, out) { LargeSent::Whole } else { LargeSent::Gone }
    }

    /// More of a large value; false if it is gone, which only the end of the connection can say.
    fn send_on(&mut self, engine: &mut Engine, out: &mut Out) -> bool {
        let State::Sending(sending) = &mut self.state else { return true };
        let pieces = sending.large.pieces(&engine.store);
        while sending.next < pieces && out.len() < OUT_BYTES_FULL {
            let key = sending.large.key(sending.next);
            engine.scratch.clear();
            if !engine.store.read_piece(&mut engine.writer, &key, &mut engine.scratch) {
                return false;
            }
            out.push(&engine.scratch);
            sending.next += 1;
        }
        if sending.next == pieces {
            out.push(b"\r\n");
            self.state = sending.then.map_or(State::Command, State::Keys);
        }
        true
    }
}

/// How parsing of keys ended.
enum Keys {
    Ended,
    Short,
    Drain,
    /// The session's state was changed.
    Changed,
    Overlong,
}

enum LargeSent {
    Whole,
    Begun,
    Gone,
}

enum Emitted {
    Hit,
    Miss,
    Large(Large),
}

/// Looks a key up and writes its answer. `key` begins with the key and has slack behind it.
#[inline(always)]
fn emit(
    engine: &mut Engine,
    mut probe: Probe,
    key: &[u8],
    entry: Entry,
    suffix: &mut Suffix,
    out: &mut Out,
) -> Emitted {
    let key_len = entry.len as usize;
    let store = &engine.store;
    loop {
        let seen = match store.look_up(&probe, &key[..key_len]) {
            Lookup::Found(seen) => seen,
            missing if store.confirm(&probe) => {
                engine.count_miss(missing);
                return Emitted::Miss;
            }
            _ => {
                probe = store.probe(entry.hash, 0);
                continue;
            }
        };
        let large = large_of(store, &seen);
        let written = if large.is_none() {
            emit_value(store, &seen, (key, key_len), entry.with_cas, suffix, out)
        } else {
            0
        };
        engine.store.count_read(&mut engine.writer, &seen, entry.with_cas);
        if store.confirm(&probe) {
            out.advance_by(written);
            return large.map_or(Emitted::Hit, Emitted::Large);
        }
        probe = store.probe(entry.hash, 0);
    }
}

/// Writes `VALUE key flags length [cas]\r\nvalue\r\n` behind the end; says how long it is.
#[inline(always)]
fn emit_value(
    store: &crate::store::Store,
    seen: &Seen,
    (key, key_len): (&[u8], usize),
    with_cas: bool,
    suffix: &mut Suffix,
    out: &mut Out,
) -> usize {
    /// Beside key and value: `VALUE `, two numbers and a cas, spaces, line ends.
    const FRAME_BYTES: usize = 80;
    let value_len = seen.head.value_len();
    let flags = store.flags(seen.place, seen.head);
    let room = out.room(FRAME_BYTES + key_len + value_len);
    room[..8].copy_from_slice(b"VALUE \0\0");
    let mut at = 6;
    // Whole blocks: there is slack on both sides, and what runs over is overwritten.
    let mut copied = 0;
    while copied < key_len {
        room[at + copied..at + copied + 16].copy_from_slice(&key[copied..copied + 16]);
        copied += 16;
    }
    at += key_len;
    let (text, text_len) = suffix.of(flags, value_len);
    room[at..at + 32].copy_from_slice(text);
    at += text_len;
    if with_cas {
        at -= 2;
        let mut digits = [0; 20];
        let from = digits_of(store.cas(seen.place, seen.head), &mut digits);
        room[at] = b' ';
        let n = digits.len() - from;
        room[at + 1..at + 1 + n].copy_from_slice(&digits[from..]);
        at += 1 + n;
        room[at..at + 2].copy_from_slice(b"\r\n");
        at += 2;
    }
    store.copy_value(seen, &mut room[at..]);
    at += value_len;
    room[at..at + 2].copy_from_slice(b"\r\n");
    at + 2
}

fn value_line(key: &[u8], flags: u32, bytes: u64, cas: Option<u64>, out: &mut Out) {
    out.push(b"VALUE ");
    out.push(key);
    for number in [Some(u64::from(flags)), Some(bytes), cas].into_iter().flatten() {
        out.push(b" ");
        out.number(number);
    }
    out.push(b"\r\n");
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

const _: () = assert!(SLACK_BYTES >= 32, "keys and suffixes are copied in blocks");

#[cfg(test)]
mod tests;
