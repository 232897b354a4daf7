//! Commands of memcached's protocols as they are read: one parser for the cache, which carries
//! them out, and for the router, which passes them on. Where two parsers differ in one command
//! (whether it wants an answer, whether a value follows), all later answers of the connection go to
//! the wrong requests. Pure; in memcached 1.6's own terms and with its error lines.

pub mod meta;
pub mod words;

use meta::Meta;
use words::{Words, i32_of, i64_of, u32_of, u64_of, word_end};

/// Longest line that is not a get (memcached's).
pub const LINE_BYTES_MAX: usize = 2048;
pub const KEY_BYTES_MAX: usize = 250;
/// A value's `\r\n`.
pub const END_BYTES: usize = 2;

const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const ERROR: &[u8] = b"ERROR\r\n";
pub const BAD_KEY: &[u8] = BAD_LINE;
pub const BAD_VALUE: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub const LINE_TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
pub const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

/// One line, but for those of gets: see [`get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Store(Store<'a>),
    Delete {
        key: &'a [u8],
        is_quiet: bool,
    },
    Count {
        key: &'a [u8],
        delta: u64,
        is_incr: bool,
        is_quiet: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i64,
        is_quiet: bool,
    },
    /// `delay` seconds from now; at once if that is 0 or less.
    Flush {
        delay: i64,
        is_quiet: bool,
    },
    Verbosity {
        level: u32,
        is_quiet: bool,
    },
    Meta(Meta<'a>),
    /// `mn`
    Noop,
    Version,
    Stats,
    Quit,
    /// Somebody takes the port for a web server's.
    Http,
    /// About the server itself: `shutdown`, `watch`, `slabs` ... and what there is not.
    Server,
}

/// A storage command, whose value follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    pub verb: Verb,
    pub key: &'a [u8],
    pub flags: u32,
    pub exptime: i64,
    pub len: usize,
    pub is_quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas(u64),
}

impl Verb {
    fn of(word: &[u8]) -> Option<Verb> {
        Some(match word {
            b"set" => Verb::Set,
            b"add" => Verb::Add,
            b"replace" => Verb::Replace,
            b"append" => Verb::Append,
            b"prepend" => Verb::Prepend,
            b"cas" => Verb::Cas(0),
            _ => return None,
        })
    }

    pub fn word(self) -> &'static str {
        match self {
            Verb::Set => "set",
            Verb::Add => "add",
            Verb::Replace => "replace",
            Verb::Append => "append",
            Verb::Prepend => "prepend",
            Verb::Cas(_) => "cas",
        }
    }
}

/// What is answered instead of carrying a command out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub reply: &'static [u8],
    pub is_quiet: bool,
    /// Bytes of a value that follows all the same.
    pub swallow: u64,
}

impl Refused {
    fn new(reply: &'static [u8], is_quiet: bool) -> Refused {
        Refused { reply, is_quiet, swallow: 0 }
    }
}

/// Whether a command of so many words ends with `noreply`.
fn is_quiet(words: &Words<'_>) -> bool {
    words.last() == b"noreply"
}

/// The line without its end: `line\r\n` up to the line feed, which `input` has at `end`.
pub fn line(input: &[u8], end: usize) -> &[u8] {
    match &input[..end] {
        [line @ .., b'\r'] if end > 1 => line,
        line => line,
    }
}

/// Reads a command's words, its line end gone.
pub fn read<'a>(words: &'a Words<'a>) -> Result<Command<'a>, Refused> {
    let n = words.count();
    let quiet = is_quiet(words);
    let verb = words.get(0);
    Ok(match verb {
        _ if Verb::of(verb).is_some() => Command::Store(store(words)?),
        b"delete" if (2..=4).contains(&n) => delete(words)?,
        b"incr" | b"decr" if n == 3 || n == 4 => {
            let key = key_of(words, quiet)?;
            let delta = u64_of(words.get(2)).ok_or(Refused::new(BAD_DELTA, quiet))?;
            Command::Count { key, delta, is_incr: verb == b"incr", is_quiet: quiet }
        }
        b"touch" if n == 3 || n == 4 => {
            let key = key_of(words, quiet)?;
            let exptime = i64_of(words.get(2)).ok_or(Refused::new(BAD_EXPTIME, quiet))?;
            Command::Touch { key, exptime, is_quiet: quiet }
        }
        b"flush_all" if (1..=3).contains(&n) => {
            let has_delay = n != if quiet { 2 } else { 1 };
            let delay = if has_delay { i64_of(words.get(1)) } else { Some(0) };
            let delay = delay.ok_or(Refused::new(BAD_EXPTIME, quiet))?;
            Command::Flush { delay, is_quiet: quiet }
        }
        b"verbosity" if n == 2 || n == 3 => {
            let level = u32_of(words.get(1)).ok_or(Refused::new(BAD_LINE, quiet))?;
            Command::Verbosity { level, is_quiet: quiet }
        }
        b"mn" => Command::Noop,
        [b'm', _] => Command::Meta(meta::read(words)?),
        b"version" => Command::Version,
        b"stats" => Command::Stats,
        b"quit" => Command::Quit,
        _ if words.last().starts_with(b"HTTP/") => Command::Http,
        _ => Command::Server,
    })
}

/// Whether a word begins one of [`get`]'s lines.
pub fn is_get(word: &[u8]) -> bool {
    matches!(word, b"get" | b"gets" | b"gat" | b"gats" | b"bget")
}

/// What a get asks for, and where its keys begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    pub with_cas: bool,
    /// Of `gat` and `gats`: the new expiry.
    pub exptime: Option<i64>,
    pub keys_at: usize,
}

/// Reads the beginning of a get's line. Its keys are all that lies between spaces behind it; a line
/// of keys may be of any length, so they need not all be here.
pub fn get(line: &[u8], words: &Words<'_>) -> Result<Get, Refused> {
    let verb = words.get(0);
    let touches = verb.starts_with(b"gat");
    if words.count() < 2 {
        return Err(Refused::new(ERROR, false));
    }
    let exptime = match touches {
        true => Some(i64_of(words.get(1)).ok_or(Refused::new(BAD_EXPTIME, false))?),
        false => None,
    };
    let mut keys_at = 0;
    for _ in 0..if touches { 2 } else { 1 } {
        keys_at += line[keys_at..].iter().take_while(|b| **b == b' ').count();
        keys_at = word_end(line, keys_at).unwrap_or(line.len());
    }
    Ok(Get { with_cas: verb.ends_with(b"s"), exptime, keys_at })
}

fn key_of<'a>(words: &Words<'a>, is_quiet: bool) -> Result<&'a [u8], Refused> {
    let key = words.get(1);
    if key.len() > KEY_BYTES_MAX { Err(Refused::new(BAD_LINE, is_quiet)) } else { Ok(key) }
}

fn store<'a>(words: &Words<'a>) -> Result<Store<'a>, Refused> {
    let verb = Verb::of(words.get(0)).ok_or(Refused::new(ERROR, false))?;
    let want = if verb == Verb::Cas(0) { 6 } else { 5 };
    if words.count() != want && words.count() != want + 1 {
        return Err(Refused::new(ERROR, false));
    }
    let is_quiet = is_quiet(words);
    let bad = Refused::new(BAD_LINE, is_quiet);
    let flags = u32_of(words.get(2)).ok_or(bad)?;
    let exptime = i64_of(words.get(3)).ok_or(bad)?;
    let len = length(words.get(4)).ok_or(bad)?;
    let key = key_of(words, is_quiet)?;
    let verb = match verb {
        Verb::Cas(_) => Verb::Cas(u64_of(words.get(5)).ok_or(bad)?),
        verb => verb,
    };
    Ok(Store { verb, key, flags, exptime, len, is_quiet })
}

/// A value's length.
fn length(word: &[u8]) -> Option<usize> {
    let len = i32_of(word).filter(|len| (0..=i32::MAX - END_BYTES as i32).contains(len))?;
    Some(len as usize)
}

fn delete<'a>(words: &Words<'a>) -> Result<Command<'a>, Refused> {
    let n = words.count();
    let is_quiet = n > 2 && is_quiet(words);
    let holds = words.get(2) == b"0";
    if n > 2 && !(n == 3 && (holds || is_quiet) || n == 4 && holds && is_quiet) {
        return Err(Refused::new(BAD_DELETE, is_quiet));
    }
    Ok(Command::Delete { key: key_of(words, is_quiet)?, is_quiet })
}
