//! The text protocol but for gets: commands to words and back, in memcached 1.6's own terms and
//! with its error lines.

use crate::engine::{Counted, Engine, Mode, Stored, Storing};
use crate::item::KEY_BYTES_MAX;
use crate::out::Out;
use crate::parse::{Words, i32_of, i64_of, u32_of, u64_of, word_end};
use crate::report;
use crate::session::{Done, Line};
use crate::settings::VERSION;
use crate::store::Removed;
use crate::values::{END_BYTES, Incoming, Kind, Value};
use std::sync::atomic::Ordering;

const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_VALUE: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
const ERROR: &[u8] = b"ERROR\r\n";
const OK: &[u8] = b"OK\r\n";

/// A storage command that cannot be served.
struct Refused {
    reply: &'static [u8],
    /// What follows and has to be dropped.
    swallow: u64,
}

/// Whether a command of so many words ends with `noreply`.
fn is_quiet(words: &Words<'_>) -> bool {
    words.last() == b"noreply"
}

fn reply(out: &mut Out, quiet: bool, line: &[u8]) {
    if !quiet {
        out.push(line);
    }
}

/// Serves one line. A value that is whole behind it is used there, and `at` moved past it.
pub fn command(engine: &mut Engine, line: &Line<'_>, at: &mut usize, out: &mut Out) -> Done {
    let words = &line.words;
    let n = words.len();
    match words.get(0) {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            return storage(engine, line, at, out);
        }
        b"delete" if (2..=4).contains(&n) => delete(engine, words, out),
        b"incr" | b"decr" if n == 3 || n == 4 => count(engine, words, out),
        b"touch" if n == 3 || n == 4 => touch(engine, words, out),
        b"flush_all" if (1..=3).contains(&n) => flush_all(engine, words, out),
        b"verbosity" if n == 2 || n == 3 => match u32_of(words.get(1)) {
            Some(level) => {
                engine.shared.verbose.store(u64::from(level.min(2)), Ordering::Relaxed);
                reply(out, is_quiet(words), OK);
            }
            None => reply(out, is_quiet(words), BAD_LINE),
        },
        b"version" => {
            out.push(b"VERSION ");
            out.push(VERSION.as_bytes());
            out.push(b"\r\n");
        }
        b"stats" => report::stats(engine, words, out),
        b"quit" => return Done::Close,
        b"shutdown" => return shutdown(engine, words, out),
        b"cache_memlimit" if n == 2 || n == 3 => {
            reply(
                out,
                is_quiet(words),
                b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n",
            );
        }
        // Nothing to tune: segments are reclaimed without being told.
        b"lru_crawler" if n == 2 && matches!(words.get(1), b"enable" | b"disable") => out.push(OK),
        b"lru_crawler" if n == 3 && matches!(words.get(1), b"crawl" | b"sleep" | b"tocrawl") => {
            out.push(OK);
        }
        b"slabs" if n >= 3 && words.get(1) == b"automove" => reply(out, is_quiet(words), OK),
        b"refresh_certs" if n == 1 && engine.shared.settings.tls.is_some() => {
            match engine.shared.refresh_tls() {
                Ok(()) => out.push(OK),
                Err(e) => out.push(format!("ERROR {e}\r\n").as_bytes()),
            }
        }
        b"watch" => out.push(b"CLIENT_ERROR watch commands not allowed\r\n"),
        _ if words.last().starts_with(b"HTTP/") => return Done::Close,
        _ => out.push(ERROR),
    }
    Done::Line
}

/// A number without sign or spaces at `at`, and where it ends.
fn digits(line: &[u8], at: usize) -> Option<(u32, usize)> {
    /// That many cannot overflow.
    const DIGITS_MAX: usize = 9;
    let (mut n, mut end) = (0u32, at);
    while let Some(digit) = line.get(end).map(|b| b.wrapping_sub(b'0')).filter(|d| *d <= 9) {
        n = n.wrapping_mul(10).wrapping_add(u32::from(digit));
        end += 1;
    }
    (end > at && end - at <= DIGITS_MAX).then_some((n, end))
}

/// `set KEY FLAGS EXPTIME LENGTH` written plainly, its value behind it: what most clients send,
/// read in one pass, while what the next one needs is loaded. Says how long it was; nothing, and
/// nothing done, for what is not as plain: [`command`] reads that.
pub fn plain_set(engine: &mut Engine, rest: &[u8], out: &mut Out) -> Option<usize> {
    const COMMAND: &[u8] = b"set ";
    let key_end = word_end(rest, COMMAND.len())?;
    let key = &rest[COMMAND.len()..key_end];
    if key.is_empty() || key.len() > KEY_BYTES_MAX || rest[key_end] != b' ' || key.contains(&0) {
        return None;
    }
    let hash = engine.store.hash(key);
    engine.store.prefetch_item(hash, key.len());
    let (flags, at) = digits(rest, key_end + 1)?;
    let (exptime, at) = digits(rest, at + usize::from(rest.get(at) == Some(&b' ')))?;
    let (len, at) = digits(rest, at + usize::from(rest.get(at) == Some(&b' ')))?;
    let len = len as usize;
    let value = rest[at..].strip_prefix(b"\r\n")?;
    let end = value.get(len..len + END_BYTES)?;
    if end != b"\r\n" || len > engine.store.large_bytes() || !engine.fits(key, len) {
        return None;
    }
    let used = at + 2 * END_BYTES + len;
    let next = &rest[used..];
    if next.starts_with(COMMAND)
        && let Some(end) = word_end(next, COMMAND.len())
    {
        engine.store.prefetch(engine.store.hash(&next[COMMAND.len()..end]));
    }
    let storing = Storing::new(key, Mode::Set, flags, engine.expiry(i64::from(exptime)));
    answer(engine, &storing, false, Value::here(&value[..len]), out);
    Some(used)
}

/// The command, the length of its value, and whether it wants no answer.
fn storing_of<'a>(
    engine: &Engine,
    words: &Words<'a>,
) -> Result<(Storing<'a>, usize, bool), (Refused, bool)> {
    let is_cas = words.get(0) == b"cas";
    let want = if is_cas { 6 } else { 5 };
    let refused = |reply, quiet| Err((Refused { reply, swallow: 0 }, quiet));
    if words.len() != want && words.len() != want + 1 {
        return refused(ERROR, false);
    }
    let quiet = is_quiet(words);
    let key = words.get(1);
    let (flags, exptime, len) = (u32_of(words.get(2)), i64_of(words.get(3)), i32_of(words.get(4)));
    let (Some(flags), Some(exptime), Some(len)) = (flags, exptime, len) else {
        return refused(BAD_LINE, quiet);
    };
    if key.len() > KEY_BYTES_MAX || len < 0 || len > i32::MAX - END_BYTES as i32 {
        return refused(BAD_LINE, quiet);
    }
    let mode = match words.get(0) {
        b"set" => Mode::Set,
        b"add" => Mode::Add,
        b"replace" => Mode::Replace,
        b"append" => Mode::Append,
        b"prepend" => Mode::Prepend,
        _ => match u64_of(words.get(5)) {
            Some(cas) => Mode::Cas { cas, stale: false },
            None => return refused(BAD_LINE, quiet),
        },
    };
    let storing = Storing::new(key, mode, flags, engine.expiry(exptime));
    let len = len as usize;
    if !engine.fits(key, len) {
        engine.counters().store_too_large.add(1);
        let swallow = (len + END_BYTES) as u64;
        return Err((Refused { reply: TOO_LARGE, swallow }, quiet));
    }
    Ok((storing, len, quiet))
}

fn storage(engine: &mut Engine, line: &Line<'_>, at: &mut usize, out: &mut Out) -> Done {
    let words = &line.words;
    let (storing, len, quiet) = match storing_of(engine, words) {
        Ok(storing) => storing,
        Err((refused, quiet)) => {
            reply(out, quiet, refused.reply);
            if refused.swallow > 0 && words.get(0) == b"set" {
                // What would have been replaced must not be served any longer.
                engine.delete(words.get(1), None);
            }
            return if refused.swallow > 0 { Done::Swallow(refused.swallow) } else { Done::Line };
        }
    };
    match Value::behind(engine, Kind::Text, line, at, (&storing, len)) {
        Ok(value) => answer(engine, &storing, quiet, value, out),
        Err(waits) => return waits,
    }
    Done::Line
}

/// A storage command whose value came in parts.
pub fn store(engine: &mut Engine, words: &Words<'_>, value: Value<'_>, out: &mut Out) {
    match storing_of(engine, words) {
        Ok((storing, _, quiet)) => answer(engine, &storing, quiet, value, out),
        // It was accepted before its value came, and nothing it depends on has changed.
        Err((refused, quiet)) => {
            value.drop_pieces(engine);
            reply(out, quiet, refused.reply);
        }
    }
}

fn answer(
    engine: &mut Engine,
    storing: &Storing<'_>,
    quiet: bool,
    value: Value<'_>,
    out: &mut Out,
) {
    if !value.ends_right {
        value.drop_pieces(engine);
        return reply(out, quiet, BAD_VALUE);
    }
    let line: &[u8] = match value.store(engine, storing) {
        Stored::Done(_) => b"STORED\r\n",
        Stored::No => b"NOT_STORED\r\n",
        Stored::Exists => b"EXISTS\r\n",
        Stored::NotFound if storing.mode == Mode::Replace => b"NOT_STORED\r\n",
        Stored::NotFound => b"NOT_FOUND\r\n",
        Stored::TooLarge => TOO_LARGE,
        Stored::NoMemory => NO_MEMORY,
    };
    reply(out, quiet, line);
}

fn delete(engine: &mut Engine, words: &Words<'_>, out: &mut Out) {
    let (n, quiet) = (words.len(), words.len() > 2 && is_quiet(words));
    let holds = words.get(2) == b"0";
    if n > 2 && !(n == 3 && (holds || quiet) || n == 4 && holds && quiet) {
        let usage = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
        return reply(out, quiet, usage);
    }
    let Some(key) = key_of(words, quiet, out) else { return };
    let done = engine.delete(key, None) == Removed::Done;
    if done {
        engine.counters().delete_hits.add(1);
    } else {
        engine.counters().delete_misses.add(1);
    }
    reply(out, quiet, if done { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
}

/// The key of a command; nothing, and that said, for one too long.
fn key_of<'a>(words: &Words<'a>, quiet: bool, out: &mut Out) -> Option<&'a [u8]> {
    let key = words.get(1);
    if key.len() > KEY_BYTES_MAX {
        reply(out, quiet, BAD_LINE);
        return None;
    }
    Some(key)
}

fn count(engine: &mut Engine, words: &Words<'_>, out: &mut Out) {
    let quiet = is_quiet(words);
    let Some(key) = key_of(words, quiet, out) else { return };
    let Some(delta) = u64_of(words.get(2)) else {
        return reply(out, quiet, b"CLIENT_ERROR invalid numeric delta argument\r\n");
    };
    match engine.count(key, delta, words.get(0) == b"incr", None, None, None) {
        Counted::Done { value, .. } if !quiet => {
            out.number(value);
            out.push(b"\r\n");
        }
        Counted::Done { .. } => {}
        Counted::NotFound | Counted::WrongCas => reply(out, quiet, b"NOT_FOUND\r\n"),
        Counted::NotANumber => reply(out, quiet, NOT_A_NUMBER),
        Counted::NoMemory => reply(out, quiet, b"SERVER_ERROR out of memory\r\n"),
    }
}

fn touch(engine: &mut Engine, words: &Words<'_>, out: &mut Out) {
    let quiet = is_quiet(words);
    let Some(key) = key_of(words, quiet, out) else { return };
    let Some(exptime) = i64_of(words.get(2)) else { return reply(out, quiet, BAD_EXPTIME) };
    engine.counters().cmd_touch.add(1);
    let expires = engine.expiry(exptime);
    let touched = engine.touch(key, expires);
    if touched {
        engine.counters().touch_hits.add(1);
    } else {
        engine.counters().touch_misses.add(1);
    }
    reply(out, quiet, if touched { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
}

fn flush_all(engine: &mut Engine, words: &Words<'_>, out: &mut Out) {
    let quiet = is_quiet(words);
    engine.counters().cmd_flush.add(1);
    if !engine.shared.settings.flush {
        return reply(out, quiet, b"CLIENT_ERROR flush_all not allowed\r\n");
    }
    let mut delay = 0;
    if words.len() != if quiet { 2 } else { 1 } {
        let Some(given) = i64_of(words.get(1)) else { return reply(out, quiet, BAD_EXPTIME) };
        delay = given;
    }
    if delay > 0 {
        let at = u64::from(engine.expiry(delay));
        engine.shared.flush_at.store(at, Ordering::Relaxed);
    } else {
        engine.store.flush();
    }
    reply(out, quiet, OK);
}

fn shutdown(engine: &mut Engine, words: &Words<'_>, out: &mut Out) -> Done {
    if !engine.shared.settings.shutdown_command {
        out.push(b"ERROR: shutdown not enabled\r\n");
        return Done::Line;
    }
    if words.len() == 1 || words.len() == 2 && words.get(1) == b"graceful" {
        engine.shared.shutdown_wanted.store(true, Ordering::Relaxed);
        engine.shared.stop_signal.wake();
        return Done::Close;
    }
    out.push(b"CLIENT_ERROR invalid shutdown mode\r\n");
    Done::Line
}

/// What a connection may say before it has logged in: a set whose value is `user password`.
pub fn authenticate(engine: &mut Engine, line: &Line<'_>, out: &mut Out) -> Done {
    /// Longest name and password.
    const BYTES_MAX: u32 = 1024;
    let words = &line.words;
    let len = u32_of(words.get(4)).filter(|len| *len <= BYTES_MAX);
    match len {
        Some(len) if words.len() >= 5 && words.get(0) == b"set" => {
            Done::Value(Box::new(Incoming::new(Kind::LogIn, line.bytes, len as usize)))
        }
        _ => {
            engine.counters().auth_errors.add(1);
            out.push(b"CLIENT_ERROR unauthenticated\r\n");
            Done::Line
        }
    }
}

/// Whether name and password are right.
pub fn log_in(engine: &mut Engine, value: &[u8], ends_right: bool, out: &mut Out) -> bool {
    if !ends_right {
        out.push(b"CLIENT_ERROR bad command line termination\r\n");
        return false;
    }
    let words = Words::of(value);
    if words.len() < 2 {
        out.push(b"CLIENT_ERROR bad authentication token format\r\n");
        return false;
    }
    engine.counters().auth_cmds.add(1);
    let given = [words.get(0), b":", words.get(1)].concat();
    let users = engine.shared.settings.users.as_deref().unwrap_or_default();
    // Every line is compared whole, so that the time it takes tells nothing.
    let mut is_right = false;
    for user in users {
        is_right |= same(user.as_bytes(), &given);
    }
    if is_right {
        out.push(b"STORED\r\n");
    } else {
        engine.counters().auth_errors.add(1);
        out.push(b"CLIENT_ERROR authentication failure\r\n");
    }
    is_right
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
