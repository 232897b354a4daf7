//! Gets: their keys gathered from whatever a read brought, looked up together, and answered, large
//! values piece by piece.

use super::batch::{BATCH, Batch, Emitted, Entry, emit, value_line};
use super::{Get, OUT_BYTES_FULL, Sending, Session, State, Wants, push_large};
use crate::engine::Engine;
use crate::large::Large;
use crate::out::Out;
use holdfast_cache_client::protocol::words::{Words, word_end};
use holdfast_cache_client::protocol::{self, BAD_KEY, KEY_BYTES_MAX};
use holdfast_env::planted;
use holdfast_env::trial::Knob;

/// Of an item, its key and value apart.
const HEAD_BYTES: usize = 8;
/// Items that are loaded while one is copied: about what a core can wait for at once, so that
/// loading goes on behind the copying and neither waits for the other.
static AHEAD: Knob = Knob::new("cache.get-ahead", 12, &[1, 2]);
/// The same within one batch of gets.
static OUT_BYTES_MAX: Knob = Knob::new("cache.out-bytes-max", 1 << 20, &[100, 4000]);
/// Of a value: the processor goes on with what lies in order.
const PREFETCH_BYTES_MAX: usize = 256;
/// Large values up to this are answered at once; longer ones piece by piece as they are taken.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// How parsing of keys ended.
pub(super) enum Keys {
    Ended,
    Short,
    Drain,
    /// The session's state was changed.
    Changed,
}

pub(super) enum LargeSent {
    Whole,
    Begun,
    Gone,
}

impl Session {
    /// Gets of one key, one behind the other, as clients send them in a pipeline: what `command`
    /// and `keys` make of them, in one loop. Ends before whatever is not as plain.
    pub(super) fn plain_gets(
        &self,
        engine: &Engine,
        batch: &mut Batch,
        (input, len): (&[u8], usize),
        at: &mut usize,
    ) {
        /// `get ` and a key of one byte.
        const LINE_BYTES_MIN: usize = 5;
        let settings = &engine.shared.settings;
        if settings.users.is_some() && !self.authenticated || settings.ablation.unbatched_sends {
            return;
        }
        let most = BATCH.size();
        while batch.entries.len() < most {
            let rest = &input[*at..len];
            if !rest.starts_with(b"get ") {
                return;
            }
            let Some(end) = word_end(rest, 4) else { return };
            if end <= LINE_BYTES_MIN
                || rest[end] != b'\n'
                || rest[end - 1] != b'\r'
                || rest[4] <= b' '
            {
                return;
            }
            let key = &rest[4..end - 1];
            if key.len() > KEY_BYTES_MAX {
                return;
            }
            let hash = engine.store.hash(key);
            engine.store.prefetch(hash);
            let start = (*at + 4) as u32;
            let entry = Entry { start, len: key.len() as u8, end: true, with_cas: false, hash };
            batch.entries.push(entry);
            batch.answers_at = None;
            *at += end + 1;
        }
    }

    pub(super) fn begin_keys(
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

    /// A get that is not as plain as most, whose line (or its beginning) is `text`, up to `end`.
    pub(super) fn begin_get(
        &mut self,
        engine: &mut Engine,
        words: &Words<'_>,
        at: &mut usize,
        (text, end): (&[u8], usize),
        out: &mut Out,
    ) -> Option<Wants> {
        match protocol::get(text, words) {
            Ok(get) => {
                *at += get.keys_at;
                let touch = get.exptime.map(|exptime| engine.expiry(exptime));
                self.state = State::Keys(Get { with_cas: get.with_cas, touch });
            }
            Err(refused) => {
                *at += end;
                out.push(refused.reply);
                self.state = State::SkipLine;
            }
        }
        None
    }

    /// Keys of a get, from `at` on.
    pub(super) fn keys(
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
                // Half a key is kept for the next time, unless it and its line end are no key.
                if bytes.len() - *at > KEY_BYTES_MAX + 1 {
                    return self.refuse_keys(engine, batch, input, at, out);
                }
                return Keys::Short;
            };
            let start = *at;
            let is_last = bytes[end] == b'\n';
            let mut key = &bytes[start..end];
            if is_last && let [head @ .., b'\r'] = key {
                key = head;
            }
            if key.len() > KEY_BYTES_MAX {
                return self.refuse_keys(engine, batch, input, at, out);
            }
            if get.touch.is_some() && out.len() >= OUT_BYTES_FULL.size() {
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
            if batch.entries.len() >= BATCH.size() {
                BATCH.cross();
                let resume = self.flush(engine, batch, input, out);
                *at = resume.unwrap_or(start);
                if resume.is_some() || out.len() >= OUT_BYTES_FULL.size() {
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
        out.push(BAD_KEY);
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
        if let (Some(expires), true) = (get.touch, planted!("cache.touch-before-get")) {
            engine.touch(key, expires);
        }
        let found = engine.fetch(key, true);
        if let (Some(expires), Some(found)) = (get.touch, found) {
            engine.counters().touch_hits.add(1);
            engine.counters().get_hits.add(1);
            engine.store.count_read(&mut engine.writer, &found.seen, get.with_cas);
            let bytes = found.large.map_or(engine.scratch.len() as u64, |large| large.bytes);
            let before = out.len();
            value_line(key, found.flags, bytes, get.with_cas.then_some(found.cas), out);
            let mut keys = None;
            match found.large {
                None => {
                    out.push(&engine.scratch);
                    out.push(b"\r\n");
                }
                Some(large) => match self.large_value(engine, large, Some(get), out) {
                    LargeSent::Whole => {}
                    LargeSent::Begun => keys = Some(Keys::Changed),
                    LargeSent::Gone => out.truncate(before),
                },
            }
            // After it was read: a time that has passed is the end of it.
            engine.touch(key, expires);
            return keys;
        } else {
            engine.counters().touch_misses.add(1);
            engine.counters().get_misses.add(1);
        }
        None
    }

    /// Answers the batch. If the answers become too many, says from where on to parse again.
    pub(super) fn flush(
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
        let (ahead, most) = (AHEAD.size(), OUT_BYTES_MAX.size());
        let probe = |engine: &Engine, entry: &Entry| {
            engine.store.probe(entry.hash, HEAD_BYTES + entry.len as usize + value_bytes)
        };
        batch.probes.extend(batch.entries.iter().take(ahead).map(|entry| probe(engine, entry)));
        let (mut hits, mut misses) = (0, 0);
        let mut resume = None;
        // The last get in the batch, if its end has not come yet, starts here.
        let open = batch.entries.iter().rposition(|e| e.end).map_or(0, |i| i + 1);
        for i in 0..batch.entries.len() {
            if let Some(entry) = batch.entries.get(i + ahead) {
                AHEAD.cross();
                batch.probes.push(probe(engine, entry));
            }
            if i == open && (open > 0 || batch.answers_at.is_none()) {
                batch.answers_at = Some(out.len());
            }
            let entry = batch.entries[i];
            let stop = if out.len() >= most {
                OUT_BYTES_MAX.cross();
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
        if engine.shared.settings.ablation.shared_statistics {
            engine.shared.count_slowly(hits + misses);
        }
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
    pub(super) fn send_on(&mut self, engine: &mut Engine, out: &mut Out) -> bool {
        let State::Sending(sending) = &mut self.state else { return true };
        let pieces = sending.large.pieces(&engine.store);
        while sending.next < pieces && out.len() < OUT_BYTES_FULL.size() {
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
