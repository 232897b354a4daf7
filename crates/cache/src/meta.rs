//! The meta protocol (mg ms md ma mn me), as memcached 1.6 speaks it: flags choose what is done
//! and what is answered, in their order. Leases are made of `N`, `R`, `I`: of all who find an item
//! missing, old or invalidated, one is told to refresh it (`W`), the others that one was (`Z`).

use crate::engine::{Counted, Engine, Found, Mode, Stored, Storing};
use crate::item::{Head, KEY_BYTES_MAX, MARK_BINARY, MARK_LARGE, MARK_STALE, MARK_WON};
use crate::out::Out;
use crate::parse::{Words, base64_decode, base64_encode, i32_of, i64_of, u32_of, u64_of};
use crate::session::{Done, Line, push_large};
use crate::store::Removed;
use crate::text::{NO_MEMORY, NOT_A_NUMBER, TOO_LARGE};
use crate::values::{END_BYTES, Kind, Value};

/// Words of one command, its end counted as memcached does.
const WORDS_MAX: usize = 20;
/// Longest opaque flag, its letter included.
const OPAQUE_BYTES_MAX: usize = 32;
/// Large values up to this are answered at once.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

const BAD_LINE: &str = "bad command line format";
const BAD_TOKEN: &str = "bad token in command line format";

/// What flags say.
#[derive(Default)]
struct Flags<'a> {
    words: &'a [&'a [u8]],
    /// Decoded, if it came in base64.
    key: Vec<u8>,
    binary: bool,
    no_update: bool,
    value: bool,
    quiet: bool,
    stale: bool,
    vivify: Option<u32>,
    expires: Option<u32>,
    recache: Option<u32>,
    client_flags: u32,
    cas: Option<u64>,
    new_cas: Option<u64>,
    mode: Option<u8>,
    initial: u64,
    delta: u64,
}

type Wrong = &'static str;

impl<'a> Flags<'a> {
    fn of(engine: &Engine, key: &[u8], words: &'a [&'a [u8]]) -> Result<Flags<'a>, Wrong> {
        let mut flags = Flags { words, key: key.to_vec(), delta: 1, ..Flags::default() };
        let mut seen = [false; 128];
        for word in words {
            let (letter, rest) = (word[0], &word[1..]);
            match seen.get_mut(letter as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err("duplicate flag"),
            }
            let expiry = || i64_of(rest).map(|e| engine.expiry(e)).ok_or(BAD_TOKEN);
            let number = || u64_of(rest).ok_or(BAD_TOKEN);
            match letter {
                b'b' => {
                    flags.key = base64_decode(key).ok_or("error decoding key")?;
                    flags.binary = true;
                }
                b'N' => flags.vivify = Some(expiry()?),
                b'T' => flags.expires = Some(expiry()?),
                b'R' => flags.recache = Some(expiry()?),
                b'v' => flags.value = true,
                b'u' => flags.no_update = true,
                b'q' => flags.quiet = true,
                b'F' => flags.client_flags = u32_of(rest).ok_or(BAD_LINE)?,
                b'C' => flags.cas = Some(number()?),
                b'E' => flags.new_cas = Some(number()?),
                b'M' if rest.len() != 1 => return Err("incorrect length for M token"),
                b'M' => flags.mode = Some(rest[0]),
                b'J' => flags.initial = u64_of(rest).ok_or("invalid numeric initial value")?,
                b'D' => flags.delta = u64_of(rest).ok_or("invalid numeric delta value")?,
                b'I' => flags.stale = true,
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' | b'S' => {}
                _ => return Err("invalid flag"),
            }
        }
        if words.iter().any(|w| w[0] == b'O' && w.len() > OPAQUE_BYTES_MAX) {
            return Err("opaque token too long");
        }
        Ok(flags)
    }

    /// What puts an item in the place of a missing one.
    fn adding(&self, expires: u32) -> Storing<'_> {
        Storing {
            new_cas: self.new_cas,
            binary: self.binary,
            ..Storing::new(&self.key, Mode::Add, 0, expires)
        }
    }

    /// Appends the flags that an answer repeats or fills in.
    fn answer(&self, out: &mut Out, fill: impl FnMut(u8, &mut Out)) {
        self.answer_as(self.binary, out, fill);
    }

    /// The same, with the key as it was stored.
    fn answer_as(&self, binary: bool, out: &mut Out, mut fill: impl FnMut(u8, &mut Out)) {
        for word in self.words {
            match word[0] {
                b'O' => {
                    out.push(b" ");
                    out.push(word);
                }
                b'k' => {
                    out.push(b" k");
                    push_key(&self.key, binary, out);
                    if binary {
                        out.push(b" b");
                    }
                }
                letter => fill(letter, out),
            }
        }
    }
}

fn push_key(key: &[u8], binary: bool, out: &mut Out) {
    if binary { out.push(&base64_encode(key)) } else { out.push(key) }
}

fn push_number(letter: u8, number: u64, out: &mut Out) {
    out.push(&[b' ', letter]);
    out.number(number);
}

fn wrong(out: &mut Out, what: &str) {
    out.push(b"CLIENT_ERROR ");
    out.push(what.as_bytes());
    out.push(b"\r\n");
}

/// Serves one line; see `text::command`.
pub fn command(engine: &mut Engine, line: &Line<'_>, at: &mut usize, out: &mut Out) -> Done {
    let words = &line.words;
    let verb = words.get(0)[1];
    match verb {
        b'n' => {
            out.push(b"MN\r\n");
            return Done::Line;
        }
        b's' => return begin_store(engine, line, at, out),
        b'g' | b'd' | b'a' if words.len() < 2 => out.push(b"ERROR\r\n"),
        b'e' if words.len() < 2 => wrong(out, BAD_LINE),
        b'g' | b'd' | b'a' | b'e' if words.get(1).len() > KEY_BYTES_MAX => wrong(out, BAD_LINE),
        b'e' => debug(engine, words, out),
        b'g' | b'd' | b'a' => {
            if words.len() + 1 > WORDS_MAX {
                let text = if verb == b'g' {
                    "options flags are too long"
                } else {
                    "options flags too long"
                };
                wrong(out, text);
                return Done::Line;
            }
            match Flags::of(engine, words.get(1), words.from(2)) {
                Ok(flags) => {
                    engine.counters().cmd_meta.add(1);
                    match verb {
                        b'g' => return get(engine, &flags, out),
                        b'd' => delete(engine, &flags, out),
                        _ => count(engine, &flags, out),
                    }
                }
                Err(what) if verb == b'g' || what == "opaque token too long" => wrong(out, what),
                Err(_) => wrong(out, "invalid or duplicate flag"),
            }
        }
        _ => out.push(b"ERROR\r\n"),
    }
    Done::Line
}

/// What a get found, and whether its asker is to refresh it.
fn look(engine: &mut Engine, flags: &Flags<'_>) -> Option<(Found, Head, bool)> {
    let key = &flags.key;
    let mut won = false;
    let mut found = engine.fetch(key, flags.value);
    if found.is_none()
        && let Some(expires) = flags.vivify
    {
        let storing = flags.adding(expires);
        // Of several that come at once, one adds it.
        won = matches!(engine.store_value(&storing, b""), Stored::Done(_));
        found = engine.fetch(key, flags.value);
    }
    let found = found?;
    let head = found.seen.head;
    let wants_change = flags.expires.is_some()
        || won
        || head.has(MARK_STALE)
        || flags.recache.is_some_and(|at| head.expires != 0 && head.expires < at);
    if !wants_change {
        return Some((found, head, false));
    }
    let hash = engine.store.hash(key);
    let changed = engine.store.change(key, hash, |seen| {
        let head = seen.head;
        let old = flags.recache.is_some_and(|at| head.expires != 0 && head.expires < at);
        let wins = !head.has(MARK_WON) && (won || old || head.has(MARK_STALE));
        let word = if wins { head.word | MARK_WON } else { head.word };
        let expires = flags.expires.unwrap_or(head.expires);
        (Some(Head { word, expires }), (head, wins))
    });
    let (before, wins) = changed?;
    if let (Some(large), Some(expires)) = (found.large, flags.expires) {
        for n in 0..large.pieces(&engine.store) {
            engine.store.touch_piece(&large.key(n), expires);
        }
    }
    let expires = flags.expires.unwrap_or(before.expires);
    Some((found, Head { expires, ..before }, wins))
}

fn get(engine: &mut Engine, flags: &Flags<'_>, out: &mut Out) -> Done {
    let touches = flags.expires.is_some();
    if touches {
        engine.counters().cmd_touch.add(1);
    }
    engine.counters().cmd_get.add(1);
    let Some((found, head, won)) = look(engine, flags) else {
        let counters = engine.counters();
        counters.get_misses.add(1);
        counters.touch_misses.add(u64::from(touches));
        if !flags.quiet {
            out.push(b"EN\r\n");
        }
        return Done::Line;
    };
    engine.counters().get_hits.add(1);
    engine.counters().touch_hits.add(u64::from(touches));
    let before = out.len();
    let bytes = found.large.map_or(head.value_len() as u64, |large| large.bytes);
    if flags.value {
        out.push(b"VA ");
        out.number(bytes);
    } else {
        out.push(b"HD");
    }
    let now = engine.store.now();
    let mut shows_cas = false;
    flags.answer_as(head.has(MARK_BINARY), out, |letter, out| match letter {
        b's' => push_number(b's', bytes, out),
        b't' => push_ttl(head.expires, now, out),
        b'c' => {
            shows_cas = true;
            push_number(b'c', found.cas, out);
        }
        b'f' => push_number(b'f', u64::from(found.flags), out),
        b'l' => push_number(b'l', engine.store.age(&found.seen), out),
        b'h' => push_number(b'h', u64::from(found.seen.slot.is_fetched()), out),
        _ => {}
    });
    if head.has(MARK_WON) {
        out.push(b" Z");
    }
    if head.has(MARK_STALE) {
        out.push(b" X");
    }
    if won {
        out.push(b" W");
    }
    out.push(b"\r\n");
    if !flags.no_update || shows_cas {
        engine.store.count_read(&mut engine.writer, &found.seen, shows_cas);
    }
    if !flags.value {
        return Done::Line;
    }
    match found.large {
        None => {
            out.push(&engine.scratch);
            out.push(b"\r\n");
        }
        Some(large) if large.bytes > WHOLE_BYTES_MAX => return Done::Sending(large),
        Some(large) => {
            if !push_large(engine, large, out) {
                out.truncate(before);
                if !flags.quiet {
                    out.push(b"EN\r\n");
                }
            }
        }
    }
    Done::Line
}

fn push_ttl(expires: u32, now: u32, out: &mut Out) {
    if expires == 0 {
        out.push(b" t-1");
    } else {
        push_number(b't', u64::from(expires.saturating_sub(now)), out);
    }
}

fn delete(engine: &mut Engine, flags: &Flags<'_>, out: &mut Out) {
    let removed =
        if flags.stale { invalidate(engine, flags) } else { engine.delete(&flags.key, flags.cas) };
    let line: &[u8] = match removed {
        Removed::Done if flags.quiet => return,
        Removed::Done => b"HD",
        Removed::Refused => b"EX",
        Removed::Missing => b"NF",
    };
    match removed {
        Removed::Done if !flags.stale => engine.counters().delete_hits.add(1),
        Removed::Done => {}
        _ => engine.counters().delete_misses.add(1),
    }
    out.push(line);
    flags.answer(out, |_, _| {});
    out.push(b"\r\n");
}

/// Marks an item stale, with a new cas, so that who held the old one cannot store over it unseen.
fn invalidate(engine: &mut Engine, flags: &Flags<'_>) -> Removed {
    loop {
        let Some(found) = engine.fetch(&flags.key, true) else { return Removed::Missing };
        if flags.cas.is_some_and(|cas| cas != found.cas) {
            return Removed::Refused;
        }
        let head = found.seen.head;
        let expires = flags.expires.unwrap_or(head.expires);
        let storing = Storing {
            // Above the old one: a cas that is older than the mark can be told from one after it.
            new_cas: Some(flags.new_cas.unwrap_or(found.cas + 1)),
            ..Storing::new(&flags.key, Mode::Set, found.flags, expires)
        };
        let value = match found.large {
            Some(large) => large.to_bytes().to_vec(),
            None => engine.scratch.clone(),
        };
        let marks = head.word & (MARK_BINARY | MARK_LARGE) | MARK_STALE;
        match engine.link_over(&storing, [&value, &[]], &found, marks) {
            Stored::Done(_) => return Removed::Done,
            Stored::NoMemory => return engine.delete(&flags.key, None),
            // Somebody was faster.
            _ => {}
        }
    }
}

fn count(engine: &mut Engine, flags: &Flags<'_>, out: &mut Out) {
    let up = match flags.mode {
        None | Some(b'I' | b'+' | b'i') => true,
        Some(b'D' | b'-' | b'd') => false,
        Some(_) => return wrong(out, "invalid mode for ma M token"),
    };
    let required = flags.cas.filter(|cas| *cas != 0);
    let counted = loop {
        let counted =
            engine.count(&flags.key, flags.delta, up, required, flags.expires, flags.new_cas);
        let (Counted::NotFound, Some(expires)) = (counted, flags.vivify) else { break counted };
        let mut digits = [0; 20];
        let at = crate::out::digits_of(flags.initial, &mut digits);
        let storing = flags.adding(expires);
        match engine.store_value(&storing, &digits[at..]) {
            Stored::Done(cas) => break Counted::Done { value: flags.initial, expires, cas },
            Stored::NoMemory => break Counted::NoMemory,
            // Somebody was faster, and there is something to count.
            _ => {}
        }
    };
    let (value, expires, cas) = match counted {
        Counted::Done { value, expires, cas } => (value, expires, cas),
        Counted::NotANumber => return out.push(NOT_A_NUMBER),
        Counted::NoMemory => return out.push(b"SERVER_ERROR out of memory\r\n"),
        Counted::NotFound | Counted::WrongCas => {
            out.push(if counted == Counted::NotFound { b"NF" } else { b"EX" });
            flags.answer(out, |_, _| {});
            return out.push(b"\r\n");
        }
    };
    if flags.quiet {
        return;
    }
    let mut digits = [0; 20];
    let at = crate::out::digits_of(value, &mut digits);
    if flags.value {
        out.push(b"VA ");
        out.number((digits.len() - at) as u64);
    } else {
        out.push(b"HD");
    }
    let now = engine.store.now();
    flags.answer(out, |letter, out| match letter {
        b'c' => push_number(b'c', cas, out),
        b't' => push_ttl(expires, now, out),
        _ => {}
    });
    if flags.value {
        out.push(b"\r\n");
        out.push(&digits[at..]);
    }
    out.push(b"\r\n");
}

/// For debugging: what is known of an item.
fn debug(engine: &mut Engine, words: &Words<'_>, out: &mut Out) {
    let mut key = words.get(1).to_vec();
    if words.get(2) == b"b" {
        match base64_decode(&key) {
            Some(decoded) => key = decoded,
            None => return wrong(out, BAD_LINE),
        }
    }
    engine.counters().cmd_meta.add(1);
    let Some(found) = engine.fetch(&key, false) else { return out.push(b"EN\r\n") };
    let (seen, now) = (found.seen, engine.store.now());
    out.push(b"ME ");
    push_key(&key, seen.head.has(MARK_BINARY), out);
    let exp = match seen.head.expires {
        0 => -1,
        // memcached's sign.
        expires => i64::from(now) - i64::from(expires),
    };
    let fetched = if seen.slot.is_fetched() { "yes" } else { "no" };
    let line = format!(
        " exp={exp} la={} cas={} fetch={fetched} cls=1 size={}\r\n",
        engine.store.age(&seen),
        found.cas,
        seen.head.bytes()
    );
    out.push(line.as_bytes());
}

/// A storage command as its line says.
struct MetaStoring<'a> {
    flags: Flags<'a>,
    len: usize,
}

impl MetaStoring<'_> {
    fn storing(&self) -> Result<Storing<'_>, Wrong> {
        let flags = &self.flags;
        let mut mode = match flags.mode {
            None | Some(b'S' | b's') => Mode::Set,
            Some(b'E' | b'e') => Mode::Add,
            Some(b'A' | b'a') => Mode::Append,
            Some(b'P' | b'p') => Mode::Prepend,
            Some(b'R' | b'r') => Mode::Replace,
            Some(_) => return Err("invalid mode for ms M token"),
        };
        if let (Some(cas), Mode::Set | Mode::Replace) = (flags.cas, mode) {
            mode = Mode::Cas { cas, stale: flags.stale };
        }
        Ok(Storing {
            key: &flags.key,
            flags: flags.client_flags,
            expires: flags.expires.unwrap_or(0),
            mode,
            new_cas: flags.new_cas,
            required_cas: flags.cas,
            binary: flags.binary,
            vivify: flags.vivify,
        })
    }
}

fn begin_store(engine: &mut Engine, line: &Line<'_>, at: &mut usize, out: &mut Out) -> Done {
    let words = &line.words;
    if words.len() < 2 {
        out.push(b"ERROR\r\n");
        return Done::Line;
    }
    let len = i32_of(words.get(2)).filter(|len| (0..=i32::MAX - END_BYTES as i32).contains(len));
    let (Some(len), true) = (len, words.get(1).len() <= KEY_BYTES_MAX) else {
        wrong(out, BAD_LINE);
        return Done::Line;
    };
    let len = len as usize;
    let swallow = Done::Swallow((len + END_BYTES) as u64);
    if words.len() + 1 > WORDS_MAX {
        wrong(out, "options flags too long");
        return Done::Line;
    }
    let command = match Flags::of(engine, words.get(1), words.from(3)) {
        Ok(flags) => MetaStoring { flags, len },
        Err(what) => {
            wrong(out, what);
            return swallow;
        }
    };
    let storing = match command.storing() {
        Ok(storing) => storing,
        Err(what) => {
            wrong(out, what);
            return swallow;
        }
    };
    if !engine.fits(storing.key, len) {
        engine.counters().store_too_large.add(1);
        out.push(TOO_LARGE);
        engine.delete(storing.key, None);
        return swallow;
    }
    match Value::behind(engine, Kind::Meta, line, at, (&storing, len)) {
        Ok(value) => answer_store(engine, &command, value, out),
        Err(waits) => return waits,
    }
    Done::Line
}

/// A storage command whose value came in parts.
pub fn store(engine: &mut Engine, words: &Words<'_>, value: Value<'_>, out: &mut Out) {
    // It was accepted before its value came.
    match Flags::of(engine, words.get(1), words.from(3)) {
        Ok(flags) => {
            let len = u32_of(words.get(2)).unwrap_or(0) as usize;
            answer_store(engine, &MetaStoring { flags, len }, value, out);
        }
        Err(what) => {
            value.drop_pieces(engine);
            wrong(out, what);
        }
    }
}

fn answer_store(engine: &mut Engine, command: &MetaStoring<'_>, value: Value<'_>, out: &mut Out) {
    let storing = match command.storing() {
        Ok(storing) if value.ends_right => storing,
        refused => {
            value.drop_pieces(engine);
            return wrong(out, refused.err().unwrap_or("bad data chunk"));
        }
    };
    engine.counters().cmd_meta.add(1);
    let flags = &command.flags;
    let (line, cas): (&[u8], u64) = match value.store(engine, &storing) {
        Stored::Done(_) if flags.quiet => return,
        Stored::Done(cas) => (b"HD", cas),
        Stored::No => (b"NS", 0),
        Stored::Exists => (b"EX", 0),
        Stored::NotFound if storing.mode == Mode::Replace => (b"NS", 0),
        Stored::NotFound => (b"NF", 0),
        Stored::TooLarge => return out.push(TOO_LARGE),
        Stored::NoMemory => return out.push(NO_MEMORY),
    };
    out.push(line);
    let mut shows_cas = false;
    flags.answer(out, |letter, out| match letter {
        b'c' => {
            shows_cas = true;
            push_number(b'c', cas, out);
        }
        b's' => push_number(b's', command.len as u64, out),
        _ => {}
    });
    out.push(b"\r\n");
    if shows_cas && let Some(found) = engine.fetch(&flags.key, false).filter(|f| f.cas == cas) {
        engine.store.count_cas(&found.seen);
    }
}
