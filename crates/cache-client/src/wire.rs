//! Memcached's text protocol as a client sees it: where an answer ends, what it holds, and the
//! eight bytes before each datagram. Pure; a server may send anything.

pub use crate::protocol::KEY_BYTES_MAX;
use holdfast_env::planted;

/// The frame at the front of each datagram: four numbers of two bytes, big-endian. The request's id,
/// which of the datagrams of its answer this is, how many those are, and 0.
pub const FRAME_BYTES: usize = 8;
/// The longest datagram of a request, with its frame: networks carry so much in one piece.
pub const DATAGRAM_BYTES: usize = 1400;
/// What one datagram carries behind its frame, of a request or of an answer.
pub const BODY_BYTES: usize = DATAGRAM_BYTES - FRAME_BYTES;
/// A longer line breaks the protocol. The longest that servers send answers a meta command, with a
/// key in base64 and the client's own mark (`O`).
pub const LINE_BYTES_MAX: usize = 2048;

/// What kind of answer a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `VALUE` blocks, then `END`.
    Values,
    /// One line.
    Line,
    /// One line, with a block behind it if it begins with `VA`.
    Meta,
    /// To a quiet meta command with an `mn` behind it: any number of answers as of `Meta`, or none,
    /// and then `MN`.
    Quiet,
}

/// The server broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Looks for the end of one answer. Asked again when more bytes are there, it goes on where it
/// stopped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    at: usize,
}

impl Scan {
    /// The answer's length, once it is all in `bytes`.
    pub fn end(&mut self, shape: Shape, bytes: &[u8]) -> Result<Option<usize>, Broken> {
        loop {
            let Some(line) = line_at(bytes, self.at)? else { return Ok(None) };
            let behind = self.at + line.len() + 2;
            let block = match shape {
                Shape::Line => return Ok(Some(behind)),
                Shape::Values if line.starts_with(b"VALUE ") => number(word(line, 3)),
                Shape::Values if line == b"END" || is_error(line) => return Ok(Some(behind)),
                Shape::Meta | Shape::Quiet if line.starts_with(b"VA ") => number(word(line, 1)),
                Shape::Meta => return Ok(Some(behind)),
                Shape::Quiet if line == b"MN" => return Ok(Some(behind)),
                Shape::Quiet => {
                    self.at = behind;
                    continue;
                }
                Shape::Values => return Err(Broken),
            };
            let block = block.and_then(|n| usize::try_from(n).ok()).ok_or(Broken)?;
            let end = behind.checked_add(block).and_then(|n| n.checked_add(2)).ok_or(Broken)?;
            match bytes.get(end - 2..end) {
                None => return Ok(None),
                Some(b"\r\n") if shape == Shape::Meta => return Ok(Some(end)),
                Some(b"\r\n") => self.at = end,
                Some(_) => return Err(Broken),
            }
        }
    }
}

/// The line that begins at `at`, without its end, if that is there.
pub fn line_at(bytes: &[u8], at: usize) -> Result<Option<&[u8]>, Broken> {
    let rest = &bytes[at.min(bytes.len())..];
    let most = &rest[..rest.len().min(LINE_BYTES_MAX)];
    match most.iter().position(|b| *b == b'\n') {
        Some(n) if n > 0 && most[n - 1] == b'\r' => Ok(Some(&most[..n - 1])),
        Some(_) => Err(Broken),
        None if most.len() == LINE_BYTES_MAX => Err(Broken),
        None => Ok(None),
    }
}

/// Whether an answer fits what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    Yes,
    /// It does, but no answer behind it can be trusted: a server that refuses a command before it
    /// reads the value may take the value for further commands, and answer those.
    Last,
    /// It is the answer to something else: so are all that come behind it.
    No,
}

/// Compares a whole answer with its request. Answers come in the order of requests: if a server reads
/// a command otherwise than we do, or sends an answer too few or too many, each later answer would
/// reach another client than the one that asked. Here it shows.
pub fn fit(shape: Shape, request: &[u8], answer: &[u8]) -> Fit {
    let line = line_at(answer, 0).ok().flatten().unwrap_or_default();
    let verb = word(request_line(request), 0);
    if is_error(line) {
        let has_value = request_line(request).len() + 2 < request.len();
        let is_doubted = shape != Shape::Quiet && !line.starts_with(b"SERVER_ERROR");
        return if has_value && is_doubted { Fit::Last } else { Fit::Yes };
    }
    let fits = match shape {
        Shape::Values => are_of(request_line(request), answer),
        Shape::Line => match verb {
            b"delete" => matches!(line, b"DELETED" | b"NOT_FOUND"),
            b"incr" | b"decr" => line == b"NOT_FOUND" || number(line.trim_ascii_end()).is_some(),
            b"touch" => matches!(line, b"TOUCHED" | b"NOT_FOUND"),
            b"flush_all" => line == b"OK",
            b"version" => line.starts_with(b"VERSION "),
            _ => matches!(line, b"STORED" | b"NOT_STORED" | b"EXISTS" | b"NOT_FOUND"),
        },
        Shape::Meta | Shape::Quiet => match word(line, 0) {
            b"VA" | b"EN" => matches!(verb, b"mg" | b"ma" | b"me"),
            // The first releases of memcached 1.6 said OK where later ones say HD.
            b"HD" | b"OK" | b"NF" => verb != b"me",
            b"NS" | b"EX" => matches!(verb, b"ms" | b"md" | b"ma"),
            b"ME" => verb == b"me",
            b"MN" => shape == Shape::Quiet,
            _ => false,
        },
    };
    if fits || planted!("cache.any-answer-fits") { Fit::Yes } else { Fit::No }
}

fn request_line(request: &[u8]) -> &[u8] {
    let end = request.iter().position(|b| *b == b'\n').unwrap_or(request.len());
    request[..end].strip_suffix(b"\r").unwrap_or(&request[..end])
}

/// Whether all values are of keys that were asked for. They come in order, as a rule: a router
/// passes them on as its servers answer.
fn are_of(line: &[u8], answer: &[u8]) -> bool {
    let asked = || line.split(|b| *b == b' ').skip(1);
    let mut next = asked();
    values(answer).all(|value| {
        next.any(|key| key == value.key) || {
            next = asked();
            next.any(|key| key == value.key)
        }
    })
}

/// The word with this number, counted from 0; empty if there are fewer.
pub fn word(line: &[u8], number: usize) -> &[u8] {
    line.split(|b| *b == b' ').filter(|word| !word.is_empty()).nth(number).unwrap_or_default()
}

pub fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

pub fn is_error(line: &[u8]) -> bool {
    line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR") || line == b"ERROR"
}

/// One item of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    pub key: &'a [u8],
    pub flags: u32,
    /// Nothing unless it was asked for.
    pub cas: Option<u64>,
    pub data: &'a [u8],
    /// All of it: `VALUE ...\r\n...\r\n`.
    pub block: &'a [u8],
}

/// The items of a whole answer. It ends early at what [`Scan`] would not have accepted.
pub struct Values<'a> {
    rest: &'a [u8],
}

pub fn values(answer: &[u8]) -> Values<'_> {
    Values { rest: answer }
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if !self.rest.starts_with(b"VALUE ") {
            return None;
        }
        let line = line_at(self.rest, 0).ok()??;
        let mut words = line.split(|b| *b == b' ').skip(1).filter(|word| !word.is_empty());
        let (key, flags) = (words.next()?, number(words.next()?)?);
        let len = usize::try_from(number(words.next()?)?).ok()?;
        let cas = words.next().and_then(number);
        let start = line.len() + 2;
        let end = start.checked_add(len)?.checked_add(2)?;
        let block = self.rest.get(..end)?;
        self.rest = &self.rest[end..];
        Some(Value { key, flags: flags as u32, cas, data: &block[start..end - 2], block })
    }
}

/// Whether memcached takes this for a key: 1 to 250 bytes without spaces or control characters.
pub fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(|b| *b > b' ' && *b != 0x7f)
}

pub fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return out.extend_from_slice(&digits[at..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] = b"VALUE a 7 3\r\nEND\r\nVALUE bb 0 0 18446744073709551615\r\n\r\nEND\r\n";

    #[test]
    fn an_answer_ends_where_it_ends_however_it_is_cut() {
        let mut slowly = Scan::default();
        for len in 0..ANSWER.len() {
            assert_eq!(slowly.end(Shape::Values, &ANSWER[..len]), Ok(None), "{len}");
            assert_eq!(Scan::default().end(Shape::Values, &ANSWER[..len]), Ok(None), "{len}");
        }
        let more = [ANSWER, b"STORED\r\n"].concat();
        assert_eq!(slowly.end(Shape::Values, &more), Ok(Some(ANSWER.len())));
        let found: Vec<Value<'_>> = values(&more).collect();
        assert_eq!((found[0].key, found[0].flags, found[0].data), (&b"a"[..], 7, &b"END"[..]));
        assert_eq!((found[1].key, found[1].cas), (&b"bb"[..], Some(u64::MAX)));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn each_shape_has_its_end() {
        let ends = |shape, bytes: &[u8]| Scan::default().end(shape, bytes);
        assert_eq!(ends(Shape::Line, b"STORED\r\nX"), Ok(Some(8)));
        assert_eq!(ends(Shape::Values, b"SERVER_ERROR out\r\n"), Ok(Some(18)));
        assert_eq!(ends(Shape::Meta, b"VA 2 f1\r\nok\r\nHD\r\n"), Ok(Some(13)));
        assert_eq!(ends(Shape::Meta, b"HD\r\n"), Ok(Some(4)));
        assert_eq!(ends(Shape::Quiet, b"MN\r\n"), Ok(Some(4)));
        assert_eq!(ends(Shape::Quiet, b"VA 2 f1\r\nMN\r\nNF\r\nMN\r\n"), Ok(Some(21)));
    }

    #[test]
    fn what_no_server_says_is_broken_and_costs_nothing() {
        let broken = |bytes: &[u8]| {
            assert_eq!(Scan::default().end(Shape::Values, bytes), Err(Broken), "{bytes:?}");
        };
        broken(b"VALUE a 0 x\r\n");
        broken(b"VALUE a 0 18446744073709551615\r\n");
        broken(b"VALUE a 0 99999999999999999999\r\n");
        broken(b"VALUE a 0 1\r\nabc\r\n");
        broken(b"VALUE a 0\r\n");
        broken(b"HELLO\r\n");
        broken(b"\n");
        broken(&[b'x'; LINE_BYTES_MAX]);
        assert_eq!(values(b"VALUE a 0 18446744073709551614\r\n").count(), 0);
    }

    #[test]
    fn numbers_and_keys_are_as_memcached_s() {
        let mut out = Vec::new();
        for n in [0, 7, 10, u64::MAX] {
            out.clear();
            push_number(&mut out, n);
            assert_eq!(
                (String::from_utf8_lossy(&out).into_owned(), number(&out)),
                (n.to_string(), Some(n))
            );
        }
        assert!(is_key(b"a") && is_key(&[b'k'; 250]) && is_key("\u{e9}".as_bytes()));
        assert!(!is_key(b"") && !is_key(&[b'k'; 251]) && !is_key(b"a b") && !is_key(b"a\r"));
    }
}
