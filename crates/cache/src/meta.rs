//! The meta protocol (mg ms md ma mn me), as memcached 1.6 speaks it: flags choose what is done
//! and what is answered, in their order. Leases are made of `N`, `R`, `I`: of all who find an item
//! missing, old or invalidated, one is told to refresh it (`W`), the others that one was (`Z`).

use crate::engine::{Counted, Engine, Found, Mode, Stored, Storing};
use crate::item::{Head, MARK_BINARY, MARK_LARGE, MARK_STALE, MARK_WON};
use crate::out::Out;
use crate::session::{Done, Line, push_large};
use crate::store::Removed;
use crate::text::{NO_MEMORY, NOT_A_NUMBER};
use crate::values::{Kind, Value};
use holdfast_cache_client::protocol::meta::{Flags, Meta, SetMode, Verb};
use holdfast_cache_client::protocol::words::base64_encode;
use holdfast_cache_client::protocol::{BAD_VALUE, END_BYTES, Refused, TOO_LARGE};
use holdfast_env::planted;

/// Large values up to this are answered at once.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// What puts an item in the place of a missing one.
fn adding<'a>(flags: &'a Flags<'_>, expires: u32) -> Storing<'a> {
    Storing {
        new_cas: flags.new_cas,
        binary: flags.binary,
        ..Storing::new(&flags.key, Mode::Add, 0, expires)
    }
}

/// Appends the flags that an answer repeats or fills in.
fn answer(flags: &Flags<'_>, out: &mut Out, fill: impl FnMut(u8, &mut Out)) {
    answer_as(flags, flags.binary, out, fill);
}

/// The same, with the key as it was stored.
fn answer_as(flags: &Flags<'_>, binary: bool, out: &mut Out, mut fill: impl FnMut(u8, &mut Out)) {
    for word in flags.words {
        match word[0] {
            b'O' => {
                out.push(b" ");
                out.push(word);
            }
            b'k' => {
                out.push(b" k");
                push_key(&flags.key, binary, out);
                if binary {
                    out.push(b" b");
                }
            }
            letter => fill(letter, out),
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

/// Serves one line; see `text::command`.
pub fn command(
    engine: &mut Engine,
    meta: &Meta<'_>,
    line: &Line<'_>,
    at: &mut usize,
    out: &mut Out,
) -> Done {
    let flags = &meta.flags;
    match meta.verb {
        Verb::Set => return begin_store(engine, meta, line, at, out),
        Verb::Debug => {
            engine.counters().cmd_meta.add(1);
            debug(engine, flags, out);
        }
        Verb::Get => {
            engine.counters().cmd_meta.add(1);
            return get(engine, flags, out);
        }
        Verb::Delete => {
            engine.counters().cmd_meta.add(1);
            delete(engine, flags, out);
        }
        Verb::Count => {
            engine.counters().cmd_meta.add(1);
            count(engine, flags, out);
        }
    }
    Done::Line
}

/// What a get found, and whether its asker is to refresh it.
fn look(engine: &mut Engine, flags: &Flags<'_>) -> Option<(Found, Head, bool)> {
    let key = &flags.key;
    let expires = flags.expires.map(|at| engine.expiry(at));
    let recache = flags.recache.map(|at| engine.expiry(at));
    let mut made = None;
    let mut found = engine.fetch(key, flags.value);
    if found.is_none()
        && let Some(at) = flags.vivify
    {
        let expires = engine.expiry(at);
        // Of several that come at once, one makes it.
        made = engine.promise(&adding(flags, expires));
        found = engine.fetch(key, flags.value);
    }
    let found = found?;
    let won = made == Some(found.cas);
    let mut head = found.seen.head;
    if won {
        // The mark is for the others.
        head.word &= !MARK_WON;
    }
    let wants_change = expires.is_some()
        || head.has(MARK_STALE)
        || recache.is_some_and(|at| head.expires != 0 && head.expires < at);
    if !wants_change {
        return Some((found, head, won));
    }
    let hash = engine.store.hash(key);
    let changed = engine.store.change(key, hash, |seen| {
        let head = seen.head;
        let old = recache.is_some_and(|at| head.expires != 0 && head.expires < at);
        let wins = !head.has(MARK_WON) && (old || head.has(MARK_STALE));
        let word = if wins { head.word | MARK_WON } else { head.word };
        let expires = expires.unwrap_or(head.expires);
        (Some(Head { word, expires }), (head, wins))
    });
    let (mut before, wins) = changed?;
    if won {
        before.word &= !MARK_WON;
    }
    if let (Some(large), Some(expires)) = (found.large, expires) {
        for n in 0..large.pieces(&engine.store) {
            engine.store.touch_piece(&large.key(n), expires);
        }
    }
    let expires = expires.unwrap_or(before.expires);
    Some((found, Head { expires, ..before }, won || wins))
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
        missed(flags, out);
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
    answer_as(flags, head.has(MARK_BINARY), out, |letter, out| match letter {
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
                missed(flags, out);
            }
        }
    }
    Done::Line
}

/// A miss, with the opaque and the key that tell its asker what it is the answer to.
fn missed(flags: &Flags<'_>, out: &mut Out) {
    if flags.quiet {
        return;
    }
    out.push(b"EN");
    if !planted!("cache.miss-without-opaque") {
        answer(flags, out, |_, _| {});
    }
    out.push(b"\r\n");
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
    answer(flags, out, |_, _| {});
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
        let expires = flags.expires.map_or(head.expires, |at| engine.expiry(at));
        let storing = Storing {
            // Above the old one: a cas that is older than the mark can be told from one after it. And
            // nobody else's, now or later: it is a token to fill this key with.
            new_cas: Some(flags.new_cas.unwrap_or_else(|| engine.store.unused_cas())),
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
    let up = match flags.counts_up() {
        Ok(up) => up,
        Err(refused) => return out.push(refused.reply),
    };
    let expires = flags.expires.map(|at| engine.expiry(at));
    let required = flags.cas.filter(|cas| *cas != 0);
    let counted = loop {
        let counted = engine.count(&flags.key, flags.delta, up, required, expires, flags.new_cas);
        let (Counted::NotFound, Some(at)) = (counted, flags.vivify) else { break counted };
        let expires = engine.expiry(at);
        let mut digits = [0; 20];
        let at = crate::out::digits_of(flags.initial, &mut digits);
        let storing = adding(flags, expires);
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
            answer(flags, out, |_, _| {});
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
    answer(flags, out, |letter, out| match letter {
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
fn debug(engine: &mut Engine, flags: &Flags<'_>, out: &mut Out) {
    let Some(found) = engine.fetch(&flags.key, false) else { return out.push(b"EN\r\n") };
    let (seen, now) = (found.seen, engine.store.now());
    out.push(b"ME ");
    push_key(&flags.key, seen.head.has(MARK_BINARY), out);
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

fn storing<'a>(engine: &Engine, flags: &'a Flags<'_>) -> Result<Storing<'a>, Refused> {
    let mut mode = match flags.set_mode()? {
        SetMode::Set => Mode::Set,
        SetMode::Add => Mode::Add,
        SetMode::Append => Mode::Append,
        SetMode::Prepend => Mode::Prepend,
        SetMode::Replace => Mode::Replace,
    };
    if let (Some(cas), Mode::Set | Mode::Replace) = (flags.cas, mode) {
        mode = Mode::Cas { cas, stale: flags.stale };
    }
    Ok(Storing {
        key: &flags.key,
        flags: flags.client_flags,
        expires: flags.expires.map_or(0, |at| engine.expiry(at)),
        mode,
        new_cas: flags.new_cas,
        required_cas: flags.cas,
        binary: flags.binary,
        vivify: flags.vivify.map(|at| engine.expiry(at)),
    })
}

fn begin_store(
    engine: &mut Engine,
    meta: &Meta<'_>,
    line: &Line<'_>,
    at: &mut usize,
    out: &mut Out,
) -> Done {
    let len = meta.len;
    let storing = match storing(engine, &meta.flags) {
        Ok(storing) => storing,
        Err(refused) => {
            out.push(refused.reply);
            return Done::Swallow((len + END_BYTES) as u64);
        }
    };
    if !engine.fits(storing.key, len) {
        engine.counters().store_too_large.add(1);
        out.push(TOO_LARGE);
        engine.delete(storing.key, None);
        return Done::Swallow((len + END_BYTES) as u64);
    }
    match Value::behind(engine, Kind::Store, line, at, (&storing, len)) {
        Ok(value) => store(engine, meta, value, out),
        Err(waits) => return waits,
    }
    Done::Line
}

/// Answers a storage command that was accepted, with its value.
pub fn store(engine: &mut Engine, meta: &Meta<'_>, value: Value<'_>, out: &mut Out) {
    let flags = &meta.flags;
    let storing = match storing(engine, flags) {
        Ok(storing) if value.ends_right => storing,
        refused => {
            value.drop_pieces(engine);
            return out.push(refused.err().map_or(BAD_VALUE, |refused| refused.reply));
        }
    };
    engine.counters().cmd_meta.add(1);
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
    answer(flags, out, |letter, out| match letter {
        b'c' => {
            shows_cas = true;
            push_number(b'c', cas, out);
        }
        b's' => push_number(b's', meta.len as u64, out),
        _ => {}
    });
    out.push(b"\r\n");
    if shows_cas && let Some(found) = engine.fetch(&flags.key, false).filter(|f| f.cas == cas) {
        engine.store.count_cas(&found.seen);
    }
}
