//! The text protocol but for gets: commands to words and back, in memcached 1.6's own terms and
//! with its error lines.

use crate::engine::{Counted, Engine, Mode, Stored, Storing};
use crate::meta;
use crate::out::Out;
use crate::report;
use crate::session::{Done, Line};
use crate::settings::VERSION;
use crate::store::Removed;
use crate::values::{Incoming, Kind, Value};
use holdfast_cache_client::protocol::words::{Words, u32_of, word_end};
use holdfast_cache_client::protocol::{
    self, BAD_VALUE, Command, END_BYTES, KEY_BYTES_MAX, TOO_LARGE, Verb,
};
use std::sync::atomic::Ordering;

pub const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
const ERROR: &[u8] = b"ERROR\r\n";
const OK: &[u8] = b"OK\r\n";

fn reply(out: &mut Out, quiet: bool, line: &[u8]) {
    if !quiet {
        out.push(line);
    }
}

/// Serves one line. A value that is whole behind it is used there, and `at` moved past it.
pub fn command(engine: &mut Engine, line: &Line<'_>, at: &mut usize, out: &mut Out) -> Done {
    let command = match protocol::read(&line.words) {
        Ok(command) => command,
        Err(refused) => {
            reply(out, refused.is_quiet, refused.reply);
            return match refused.swallow {
                0 => Done::Line,
                bytes => Done::Swallow(bytes),
            };
        }
    };
    match command {
        Command::Store(store) => return storage(engine, &store, line, at, out),
        Command::Meta(meta) => return meta::command(engine, &meta, line, at, out),
        Command::Delete { key, is_quiet } => delete(engine, key, is_quiet, out),
        Command::Count { key, delta, is_incr, is_quiet } => {
            count(engine, key, (delta, is_incr), is_quiet, out);
        }
        Command::Touch { key, exptime, is_quiet } => touch(engine, key, exptime, is_quiet, out),
        Command::Flush { delay, is_quiet } => flush_all(engine, delay, is_quiet, out),
        Command::Verbosity { level, is_quiet } => {
            engine.shared.verbose.store(u64::from(level.min(2)), Ordering::Relaxed);
            reply(out, is_quiet, OK);
        }
        Command::Noop => out.push(b"MN\r\n"),
        Command::Version => {
            out.push(b"VERSION ");
            out.push(VERSION.as_bytes());
            out.push(b"\r\n");
        }
        Command::Stats => report::stats(engine, &line.words, out),
        Command::Quit | Command::Http => return Done::Close,
        Command::Server => return server(engine, &line.words, out),
    }
    Done::Line
}

/// Commands about the server itself, and what is none.
fn server(engine: &mut Engine, words: &Words<'_>, out: &mut Out) -> Done {
    let n = words.count();
    let is_quiet = words.last() == b"noreply";
    match words.get(0) {
        b"shutdown" => return shutdown(engine, words, out),
        b"cache_memlimit" if n == 2 || n == 3 => {
            let refused = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";
            reply(out, is_quiet, refused);
        }
        // Nothing to tune: segments are reclaimed without being told.
        b"lru_crawler" if n == 2 && matches!(words.get(1), b"enable" | b"disable") => out.push(OK),
        b"lru_crawler" if n == 3 && matches!(words.get(1), b"crawl" | b"sleep" | b"tocrawl") => {
            out.push(OK);
        }
        b"slabs" if n >= 3 && words.get(1) == b"automove" => reply(out, is_quiet, OK),
        b"refresh_certs" if n == 1 && engine.shared.settings.has_tls() => {
            match engine.shared.refresh_tls() {
                Ok(()) => out.push(OK),
                Err(e) => out.push(format!("ERROR {e}\r\n").as_bytes()),
            }
        }
        b"watch" => out.push(b"CLIENT_ERROR watch commands not allowed\r\n"),
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

fn storing<'a>(engine: &Engine, store: &protocol::Store<'a>) -> Storing<'a> {
    let mode = match store.verb {
        Verb::Set => Mode::Set,
        Verb::Add => Mode::Add,
        Verb::Replace => Mode::Replace,
        Verb::Append => Mode::Append,
        Verb::Prepend => Mode::Prepend,
        Verb::Cas(cas) => Mode::Cas { cas, stale: false },
    };
    Storing::new(store.key, mode, store.flags, engine.expiry(store.exptime))
}

fn storage(
    engine: &mut Engine,
    command: &protocol::Store<'_>,
    line: &Line<'_>,
    at: &mut usize,
    out: &mut Out,
) -> Done {
    let (key, len) = (command.key, command.len);
    if !engine.fits(key, len) {
        engine.counters().store_too_large.add(1);
        reply(out, command.is_quiet, TOO_LARGE);
        if command.verb == Verb::Set {
            // What would have been replaced must not be served any longer.
            engine.delete(key, None);
        }
        return Done::Swallow((len + END_BYTES) as u64);
    }
    let storing = storing(engine, command);
    match Value::behind(engine, Kind::Store, line, at, (&storing, len)) {
        Ok(value) => answer(engine, &storing, command.is_quiet, value, out),
        Err(waits) => return waits,
    }
    Done::Line
}

/// A storage command whose value came in parts; it was accepted before that came, and nothing that
/// it depends on has changed.
pub fn store(engine: &mut Engine, words: &Words<'_>, value: Value<'_>, out: &mut Out) {
    match protocol::read(words) {
        Ok(Command::Store(store)) => {
            let storing = storing(engine, &store);
            answer(engine, &storing, store.is_quiet, value, out);
        }
        Ok(Command::Meta(meta)) => meta::store(engine, &meta, value, out),
        _ => value.drop_pieces(engine),
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

fn delete(engine: &mut Engine, key: &[u8], quiet: bool, out: &mut Out) {
    let done = engine.delete(key, None) == Removed::Done;
    if done {
        engine.counters().delete_hits.add(1);
    } else {
        engine.counters().delete_misses.add(1);
    }
    reply(out, quiet, if done { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
}

fn count(
    engine: &mut Engine,
    key: &[u8],
    (delta, is_incr): (u64, bool),
    quiet: bool,
    out: &mut Out,
) {
    match engine.count(key, delta, is_incr, None, None, None) {
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

fn touch(engine: &mut Engine, key: &[u8], exptime: i64, quiet: bool, out: &mut Out) {
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

fn flush_all(engine: &mut Engine, delay: i64, quiet: bool, out: &mut Out) {
    engine.counters().cmd_flush.add(1);
    if !engine.shared.settings.flush {
        return reply(out, quiet, b"CLIENT_ERROR flush_all not allowed\r\n");
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
    if words.count() == 1 || words.count() == 2 && words.get(1) == b"graceful" {
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
        Some(len) if words.count() >= 5 && words.get(0) == b"set" => {
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
    if words.count() < 2 {
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
