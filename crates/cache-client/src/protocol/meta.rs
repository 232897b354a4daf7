//! Lines of the meta commands: their flags, each with what may follow it.

use super::words::{Words, base64_decode, i64_of, u32_of, u64_of};
use super::{BAD_LINE, END_BYTES, ERROR, KEY_BYTES_MAX, Refused, length};
use std::borrow::Cow;

/// Words of one command, its end counted as memcached does.
const WORDS_MAX: usize = 20;
/// Longest opaque flag, its letter included.
const OPAQUE_BYTES_MAX: usize = 32;

const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
const BAD_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";
const LONG_OPAQUE: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
const LONG_FLAGS: &[u8] = b"CLIENT_ERROR options flags too long\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Set,
    Delete,
    Count,
    Debug,
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    Set,
    Add,
    Append,
    Prepend,
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    pub verb: Verb,
    /// As it was written, perhaps in base64.
    pub word: &'a [u8],
    pub flags: Flags<'a>,
    /// Of a set's value, which follows.
    pub len: usize,
}

/// What flags say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags<'a> {
    pub words: &'a [&'a [u8]],
    /// Decoded, if it came in base64.
    pub key: Cow<'a, [u8]>,
    pub binary: bool,
    pub no_update: bool,
    pub value: bool,
    pub quiet: bool,
    pub stale: bool,
    /// Seconds from now, or a date, as memcached counts.
    pub vivify: Option<i64>,
    pub expires: Option<i64>,
    pub recache: Option<i64>,
    pub client_flags: u32,
    pub cas: Option<u64>,
    pub new_cas: Option<u64>,
    pub initial: u64,
    pub delta: u64,
    mode: Option<u8>,
}

impl<'a> Flags<'a> {
    fn of(key: &'a [u8], words: &'a [&'a [u8]]) -> Result<Flags<'a>, &'static [u8]> {
        let mut flags = Flags { words, key: Cow::Borrowed(key), delta: 1, ..Flags::default() };
        let mut seen = [false; 128];
        for word in words {
            let (letter, rest) = (word[0], &word[1..]);
            match seen.get_mut(letter as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(b"CLIENT_ERROR duplicate flag\r\n"),
            }
            let expiry = || i64_of(rest).ok_or(BAD_TOKEN);
            let number = || u64_of(rest).ok_or(BAD_TOKEN);
            match letter {
                b'b' => {
                    let decoded = base64_decode(key);
                    let wrong: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
                    flags.key = Cow::Owned(decoded.ok_or(wrong)?);
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
                b'M' if rest.len() != 1 => {
                    return Err(b"CLIENT_ERROR incorrect length for M token\r\n");
                }
                b'M' => flags.mode = Some(rest[0]),
                b'J' => {
                    let wrong: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
                    flags.initial = u64_of(rest).ok_or(wrong)?;
                }
                b'D' => {
                    let wrong: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
                    flags.delta = u64_of(rest).ok_or(wrong)?;
                }
                b'I' => flags.stale = true,
                b'O' | b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' | b'S' => {}
                _ => return Err(b"CLIENT_ERROR invalid flag\r\n"),
            }
        }
        if words.iter().any(|w| w[0] == b'O' && w.len() > OPAQUE_BYTES_MAX) {
            return Err(LONG_OPAQUE);
        }
        Ok(flags)
    }

    /// Of `ms`.
    pub fn set_mode(&self) -> Result<SetMode, Refused> {
        Ok(match self.mode {
            None | Some(b'S' | b's') => SetMode::Set,
            Some(b'E' | b'e') => SetMode::Add,
            Some(b'A' | b'a') => SetMode::Append,
            Some(b'P' | b'p') => SetMode::Prepend,
            Some(b'R' | b'r') => SetMode::Replace,
            Some(_) => {
                return Err(refused(b"CLIENT_ERROR invalid mode for ms M token\r\n"));
            }
        })
    }

    /// Of `ma`: whether it counts up.
    pub fn counts_up(&self) -> Result<bool, Refused> {
        match self.mode {
            None | Some(b'I' | b'+' | b'i') => Ok(true),
            Some(b'D' | b'-' | b'd') => Ok(false),
            Some(_) => Err(refused(b"CLIENT_ERROR invalid mode for ma M token\r\n")),
        }
    }
}

/// Quiet or not, what is wrong is said.
fn refused(reply: &'static [u8]) -> Refused {
    Refused::new(reply, false)
}

pub(super) fn read<'a>(words: &'a Words<'a>) -> Result<Meta<'a>, Refused> {
    let verb = match words.get(0) {
        b"mg" => Verb::Get,
        b"ms" => Verb::Set,
        b"md" => Verb::Delete,
        b"ma" => Verb::Count,
        b"me" => Verb::Debug,
        _ => return Err(refused(ERROR)),
    };
    let word = words.get(1);
    if words.count() < 2 {
        return Err(refused(if verb == Verb::Debug { BAD_LINE } else { ERROR }));
    }
    if verb == Verb::Set {
        return set(words);
    }
    if word.len() > KEY_BYTES_MAX {
        return Err(refused(BAD_LINE));
    }
    if verb == Verb::Debug {
        let mut flags = Flags { key: Cow::Borrowed(word), ..Flags::default() };
        if words.get(2) == b"b" {
            flags.binary = true;
            flags.key = Cow::Owned(base64_decode(word).ok_or(refused(BAD_LINE))?);
        }
        return Ok(Meta { verb, word, flags, len: 0 });
    }
    if words.count() + 1 > WORDS_MAX {
        let of_get: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
        return Err(refused(if verb == Verb::Get { of_get } else { LONG_FLAGS }));
    }
    let flags = Flags::of(word, words.from(2)).map_err(|wrong| match verb {
        Verb::Get => refused(wrong),
        _ if wrong == LONG_OPAQUE => refused(wrong),
        _ => refused(BAD_FLAG),
    })?;
    if verb == Verb::Count {
        flags.counts_up()?;
    }
    Ok(Meta { verb, word, flags, len: 0 })
}

fn set<'a>(words: &'a Words<'a>) -> Result<Meta<'a>, Refused> {
    let word = words.get(1);
    let len = length(words.get(2)).filter(|_| word.len() <= KEY_BYTES_MAX);
    let len = len.ok_or(refused(BAD_LINE))?;
    if words.count() + 1 > WORDS_MAX {
        return Err(refused(LONG_FLAGS));
    }
    // The value comes all the same.
    let swallow = (len + END_BYTES) as u64;
    let flags =
        Flags::of(word, words.from(3)).map_err(|reply| Refused { swallow, ..refused(reply) })?;
    flags.set_mode().map_err(|wrong| Refused { swallow, ..wrong })?;
    Ok(Meta { verb: Verb::Set, word, flags, len })
}
