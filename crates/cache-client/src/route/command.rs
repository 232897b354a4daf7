//! Commands of a router's clients: where each ends, which key it is about, and how it is passed
//! on. Pure.

use crate::wire::{LINE_BYTES_MAX, Shape, is_key, number, word};

/// A line of gets.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;
const BAD_LINE: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const VERSION_LINE: &str =
    concat!("VERSION 1.6.18-holdfast-route-", env!("CARGO_PKG_VERSION"), "\r\n");
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

/// What the bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Half a command.
    Short,
    Command(Command<'a>, usize),
    /// An answer that needs no server; drop so many bytes, which may not all be here.
    Say(&'static [u8], usize),
    /// The last answer of this connection.
    Close(&'static [u8]),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, or `gat` and `gats` with their expiry; the keys, with spaces between them.
    Get {
        verb: &'a [u8],
        keys: &'a [u8],
    },
    Keyed(Keyed<'a>),
    /// The line without `noreply`.
    Flush {
        line: Vec<u8>,
        is_mute: bool,
    },
    Stats,
    Verbosity {
        is_mute: bool,
    },
}

/// A command about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed<'a> {
    pub kind: Kind,
    pub key: &'a [u8],
    /// As it is passed on, without its value: no `noreply`, no line end.
    pub line: Vec<u8>,
    /// With its line end.
    pub value: &'a [u8],
    /// The client wants no answer.
    pub is_mute: bool,
    /// A meta command with `q`: the server decides whether there is an answer.
    pub is_quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Set,
    /// A store with a condition, or one that builds on what there is.
    Change,
    Delete,
    Touch,
    MetaGet,
    MetaSet,
    MetaDelete,
    MetaCount,
    MetaDebug,
}

impl Kind {
    /// Carrying it out twice is as good as once.
    pub fn repeats(self) -> bool {
        !matches!(self, Kind::Change | Kind::MetaCount)
    }

    pub fn is_write(self) -> bool {
        !matches!(self, Kind::Touch | Kind::MetaGet | Kind::MetaDebug)
    }

    pub fn is_delete(self) -> bool {
        matches!(self, Kind::Delete | Kind::MetaDelete)
    }

    fn is_meta(self) -> bool {
        use Kind::*;
        matches!(self, MetaGet | MetaSet | MetaDelete | MetaCount | MetaDebug)
    }
}

impl Keyed<'_> {
    pub fn shape(&self) -> Shape {
        match (self.kind.is_meta(), self.is_quiet) {
            (true, true) => Shape::Quiet,
            (true, false) => Shape::Meta,
            (false, _) => Shape::Line,
        }
    }

    /// What a server is sent; to a gutter pool with an expiry of at most `expiry_s`.
    pub fn request(&self, expiry_s: Option<u32>, out: &mut Vec<u8>) {
        match expiry_s {
            Some(most) => out.extend_from_slice(&self.expiring(most)),
            None => out.extend_from_slice(&self.line),
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.value);
        if self.is_quiet {
            out.extend_from_slice(b"mn\r\n");
        }
    }

    fn expiring(&self, most: u32) -> Vec<u8> {
        let words = || self.line.split(|b| *b == b' ');
        match self.kind {
            Kind::Set | Kind::Change if !self.value.is_empty() => {
                let expiry = word(&self.line, 3);
                let fits = number(expiry).is_some_and(|s| s > 0 && s <= u64::from(most))
                    || expiry.starts_with(b"-");
                let most = most.to_string().into_bytes();
                let changed =
                    words().enumerate().map(|(i, w)| if i == 3 && !fits { &most[..] } else { w });
                changed.collect::<Vec<_>>().join(&b' ')
            }
            Kind::MetaSet => {
                let ours = format!("T{most}").into_bytes();
                let is_expiry = |w: &[u8]| w.first() == Some(&b'T');
                let mut kept: Vec<&[u8]> = words()
                    .enumerate()
                    .filter(|(i, w)| *i < 3 || !is_expiry(w))
                    .map(|(_, w)| w)
                    .collect();
                kept.push(&ours);
                kept.join(&b' ')
            }
            _ => self.line.clone(),
        }
    }
}

/// Reads the first command of `bytes`. Values longer than `value_bytes_max` are refused.
pub fn parse(bytes: &[u8], value_bytes_max: usize) -> Parsed<'_> {
    let is_get = bytes.starts_with(b"get") || bytes.starts_with(b"gat");
    let most = if is_get { GET_LINE_BYTES_MAX } else { LINE_BYTES_MAX };
    let Some(end) = bytes[..bytes.len().min(most)].iter().position(|b| *b == b'\n') else {
        return match bytes.len() < most {
            true => Parsed::Short,
            false => Parsed::Close(b"CLIENT_ERROR line too long\r\n"),
        };
    };
    let used = end + 1;
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    match word(line, 0) {
        verb @ (b"get" | b"gets") => gets(line, verb.len(), used),
        verb @ (b"gat" | b"gats") => {
            let expiry = word(line, 1);
            if number(expiry.strip_prefix(b"-").unwrap_or(expiry)).is_none() {
                return Parsed::Say(b"CLIENT_ERROR invalid exptime argument\r\n", used);
            }
            gets(line, verb.len() + 1 + expiry.len(), used)
        }
        b"set" => store(bytes, line, used, Kind::Set, value_bytes_max),
        b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            store(bytes, line, used, Kind::Change, value_bytes_max)
        }
        b"delete" => keyed(line, used, Kind::Delete, 2),
        b"incr" | b"decr" => keyed(line, used, Kind::Change, 3),
        b"touch" => keyed(line, used, Kind::Touch, 3),
        b"ms" => meta_set(bytes, line, used, value_bytes_max),
        b"mg" => meta(line, used, Kind::MetaGet),
        b"md" => meta(line, used, Kind::MetaDelete),
        b"ma" => meta(line, used, Kind::MetaCount),
        b"me" => meta(line, used, Kind::MetaDebug),
        b"mn" => Parsed::Say(b"MN\r\n", used),
        b"flush_all" => {
            let (line, is_mute) = without_noreply(line);
            Parsed::Command(Command::Flush { line, is_mute }, used)
        }
        b"stats" if word(line, 1).is_empty() => Parsed::Command(Command::Stats, used),
        b"stats" => Parsed::Say(b"CLIENT_ERROR ask the servers themselves for that\r\n", used),
        b"verbosity" => {
            Parsed::Command(Command::Verbosity { is_mute: line.ends_with(b" noreply") }, used)
        }
        b"version" => Parsed::Say(VERSION_LINE.as_bytes(), used),
        b"quit" => Parsed::Close(b""),
        b"shutdown" => Parsed::Say(b"ERROR: shutdown not enabled\r\n", used),
        _ => Parsed::Say(b"ERROR\r\n", used),
    }
}

fn gets(line: &[u8], verb: usize, used: usize) -> Parsed<'_> {
    let start = line.iter().position(|b| *b != b' ').unwrap_or(0);
    if line[start..].len() <= verb {
        return Parsed::Say(b"ERROR\r\n", used);
    }
    let (verb, keys) = line[start..].split_at(verb);
    let mut all = keys.split(|b| *b == b' ').filter(|key| !key.is_empty()).peekable();
    if all.peek().is_none() {
        return Parsed::Say(b"ERROR\r\n", used);
    }
    if !all.all(is_key) {
        return Parsed::Say(BAD_LINE, used);
    }
    Parsed::Command(Command::Get { verb, keys }, used)
}

/// The line with single spaces, and whether it ended with `noreply`.
fn without_noreply(line: &[u8]) -> (Vec<u8>, bool) {
    let mut words: Vec<&[u8]> =
        line.split(|b| *b == b' ').filter(|word| !word.is_empty()).collect();
    let is_mute = words.last() == Some(&&b"noreply"[..]);
    if is_mute {
        words.pop();
    }
    (words.join(&b' '), is_mute)
}

fn keyed(line: &[u8], used: usize, kind: Kind, words: usize) -> Parsed<'_> {
    let key = word(line, 1);
    let (passed, is_mute) = without_noreply(line);
    if word(&passed, words - 1).is_empty() {
        return Parsed::Say(b"ERROR\r\n", used);
    }
    if !is_key(key) {
        return Parsed::Say(BAD_LINE, used);
    }
    let of = Keyed { kind, key, line: passed, value: &[], is_mute, is_quiet: false };
    Parsed::Command(Command::Keyed(of), used)
}

fn store<'a>(bytes: &'a [u8], line: &'a [u8], used: usize, kind: Kind, most: usize) -> Parsed<'a> {
    let (passed, is_mute) = without_noreply(line);
    let key = word(line, 1);
    let len = number(word(line, 4)).and_then(|n| usize::try_from(n).ok());
    let wanted = if word(line, 0) == b"cas" { 5 } else { 4 };
    if word(&passed, wanted).is_empty() || !word(&passed, wanted + 1).is_empty() {
        return Parsed::Say(b"ERROR\r\n", used);
    }
    let Some(len) = len.filter(|_| is_key(key) && number(word(line, 2)).is_some()) else {
        return Parsed::Say(BAD_LINE, used);
    };
    with_value(bytes, used, len, most, |value| Keyed {
        kind,
        key,
        line: passed,
        value,
        is_mute,
        is_quiet: false,
    })
}

fn with_value<'a>(
    bytes: &'a [u8],
    used: usize,
    len: usize,
    most: usize,
    make: impl FnOnce(&'a [u8]) -> Keyed<'a>,
) -> Parsed<'a> {
    if len > most {
        return Parsed::Say(TOO_LARGE, used.saturating_add(len).saturating_add(2));
    }
    match bytes.get(used..used + len + 2) {
        None => Parsed::Short,
        Some(value) if value.ends_with(b"\r\n") => {
            Parsed::Command(Command::Keyed(make(value)), used + len + 2)
        }
        Some(_) => Parsed::Say(b"CLIENT_ERROR bad data chunk\r\n", used + len + 2),
    }
}

/// Flags of a meta command, from the word with this number on: whether `q` is one.
fn is_quiet(line: &[u8], from: usize) -> bool {
    let mut words = line.split(|b| *b == b' ').filter(|word| !word.is_empty()).skip(from);
    words.any(|word| word == b"q")
}

fn meta(line: &[u8], used: usize, kind: Kind) -> Parsed<'_> {
    let key = word(line, 1);
    if !is_key(key) {
        return Parsed::Say(BAD_LINE, used);
    }
    let is_quiet = is_quiet(line, 2);
    let of = Keyed { kind, key, line: line.to_vec(), value: &[], is_mute: false, is_quiet };
    Parsed::Command(Command::Keyed(of), used)
}

fn meta_set<'a>(bytes: &'a [u8], line: &'a [u8], used: usize, most: usize) -> Parsed<'a> {
    let key = word(line, 1);
    let len = number(word(line, 2)).and_then(|n| usize::try_from(n).ok());
    let Some(len) = len.filter(|_| is_key(key)) else {
        return Parsed::Say(b"CLIENT_ERROR bad data chunk\r\n", used);
    };
    with_value(bytes, used, len, most, |value| {
        let (line, _) = without_noreply(line);
        let is_quiet = is_quiet(&line, 3);
        Keyed { kind: Kind::MetaSet, key, line, value, is_mute: false, is_quiet }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Keyed<'_> {
        match parse(text.as_bytes(), 1000) {
            Parsed::Command(Command::Keyed(of), used) => {
                assert_eq!(used, text.len());
                of
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn passed_on(text: &str, expiry: Option<u32>) -> String {
        let mut out = Vec::new();
        one(text).request(expiry, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn commands_are_passed_on_without_noreply_and_expire_sooner_in_the_gutter() {
        let set = "set a 5 100 2 noreply\r\nxy\r\n";
        assert!(one(set).is_mute && one(set).kind == Kind::Set);
        assert_eq!(passed_on(set, None), "set a 5 100 2\r\nxy\r\n");
        assert_eq!(passed_on(set, Some(10)), "set a 5 10 2\r\nxy\r\n");
        assert_eq!(passed_on("set a 5 0 1\r\nx\r\n", Some(10)), "set a 5 10 1\r\nx\r\n");
        assert_eq!(passed_on("set a 5 3 1\r\nx\r\n", Some(10)), "set a 5 3 1\r\nx\r\n");
        assert_eq!(passed_on("cas a 5 0 1 77\r\nx\r\n", Some(10)), "cas a 5 10 1 77\r\nx\r\n");
        assert_eq!(passed_on("incr a 1 noreply\r\n", Some(10)), "incr a 1\r\n");
        assert_eq!(
            passed_on("ms a 2 T0 c q\r\nxy\r\n", Some(10)),
            "ms a 2 c q T10\r\nxy\r\nmn\r\n"
        );
        assert_eq!(passed_on("mg a v q\r\n", None), "mg a v q\r\nmn\r\n");
        assert_eq!(one("mg a v q\r\n").shape(), Shape::Quiet);
        assert_eq!(one("md a\r\n").shape(), Shape::Meta);
    }

    #[test]
    fn gets_are_cut_into_verb_and_keys() {
        for (text, expected, rest) in [
            ("get a b\r\n", "get", " a b"),
            ("gats 10 a\n", "gats 10", " a"),
            ("gets  k\r\n", "gets", "  k"),
        ] {
            let Parsed::Command(Command::Get { verb, keys }, used) = parse(text.as_bytes(), 10)
            else {
                panic!("{text:?}")
            };
            assert_eq!((verb, keys, used), (expected.as_bytes(), rest.as_bytes(), text.len()));
        }
    }

    #[test]
    fn half_a_command_is_waited_for() {
        let text = b"set a 0 0 3\r\nxyz\r\n";
        for len in 0..text.len() {
            assert_eq!(parse(&text[..len], 1000), Parsed::Short, "{len}");
        }
    }

    #[test]
    fn what_is_wrong_is_answered_as_memcached_does() {
        for (text, answer) in [
            ("\r\n", &b"ERROR\r\n"[..]),
            ("get\r\n", b"ERROR\r\n"),
            ("get  \r\n", b"ERROR\r\n"),
            ("nonsense a\r\n", b"ERROR\r\n"),
            ("set a 0 0\r\n", b"ERROR\r\n"),
            ("set a 0 0 1 2 3\r\n", b"ERROR\r\n"),
            ("set a x 0 1\r\n", BAD_LINE),
            ("set a 0 0 -1\r\n", BAD_LINE),
            ("set a 0 0 99999999999999999999\r\n", BAD_LINE),
            ("delete\r\n", b"ERROR\r\n"),
            ("gat x a\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
            ("set a 0 0 1\r\nxyz", b"CLIENT_ERROR bad data chunk\r\n"),
            ("mn\r\n", b"MN\r\n"),
        ] {
            match parse(text.as_bytes(), 1000) {
                Parsed::Say(said, _) => assert_eq!(said, answer, "{text:?}"),
                other => panic!("{text:?}: {other:?}"),
            }
        }
        let long = format!("get {}\r\n", "k".repeat(251));
        assert!(matches!(parse(long.as_bytes(), 10), Parsed::Say(BAD_LINE, _)));
        assert_eq!(parse(b"set a 0 0 11\r\n", 10), Parsed::Say(TOO_LARGE, 14 + 11 + 2));
        assert!(matches!(parse(&[b'x'; LINE_BYTES_MAX], 10), Parsed::Close(_)));
        let endless = [b"get ".to_vec(), vec![b'k'; GET_LINE_BYTES_MAX]].concat();
        assert!(matches!(parse(&endless, 10), Parsed::Close(_)));
        assert_eq!(parse(&endless[..5000], 10), Parsed::Short);
    }
}
