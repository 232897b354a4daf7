//! Commands of a router's clients: where each ends, which key it is about, and how it is passed
//! on: written anew from what the parser read, so that a server cannot read anything else. Pure.

use crate::protocol::meta::{self, Meta};
use crate::protocol::words::{Words, find};
use crate::protocol::{
    self, BAD_KEY, BAD_VALUE, END_BYTES, KEY_BYTES_MAX, LINE_BYTES_MAX, LINE_TOO_LONG, TOO_LARGE,
    Verb,
};
use crate::wire::{Shape, number, word};
use holdfast_env::planted;

/// A line of gets.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;
const VERSION_LINE: &str =
    concat!("VERSION 1.6.18-holdfast-route-", env!("CARGO_PKG_VERSION"), "\r\n");

/// What the bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Half a command.
    Short,
    Command(Command<'a>, usize),
    /// An answer that needs no server; drop so many bytes, which may not all be here.
    Say(&'static [u8], usize),
    /// A value that is too long, in the place of one that must not be served any longer: the
    /// answer is [`TOO_LARGE`], and so many bytes are dropped.
    TooLarge(Keyed<'a>, usize),
    /// The last answer of this connection.
    Close(&'static [u8]),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, or `gat` and `gats` with their expiry; the keys, with spaces between them.
    Get {
        verb: Vec<u8>,
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
    /// The key is base64, as meta commands have it.
    pub is_binary: bool,
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

/// The line that deletes a key, and what its answer looks like.
pub fn delete_line(key: &[u8], is_binary: bool) -> (Vec<u8>, Shape) {
    match is_binary {
        true => ([b"md ", key, b" b\r\n"].concat(), Shape::Meta),
        false => ([b"delete ", key, b"\r\n"].concat(), Shape::Line),
    }
}

impl<'a> Keyed<'a> {
    fn text(kind: Kind, key: &'a [u8], line: Vec<u8>, is_mute: bool) -> Keyed<'a> {
        Keyed { kind, key, is_binary: false, line, value: &[], is_mute, is_quiet: false }
    }

    fn meta(of: &Meta<'_>, words: &Words<'a>) -> Keyed<'a> {
        let kind = match of.verb {
            meta::Verb::Get => Kind::MetaGet,
            meta::Verb::Set => Kind::MetaSet,
            meta::Verb::Delete => Kind::MetaDelete,
            meta::Verb::Count => Kind::MetaCount,
            meta::Verb::Debug => Kind::MetaDebug,
        };
        Keyed {
            kind,
            key: words.get(1),
            is_binary: of.flags.binary,
            line: words.from(0).join(&b' '),
            value: &[],
            is_mute: false,
            is_quiet: of.flags.quiet,
        }
    }

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

/// Where the line ends that `bytes` begin with; what to do if there is no end. As the cache finds it.
fn line_end(bytes: &[u8]) -> Result<usize, Parsed<'_>> {
    let start = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    if let Some(end) = find(start, b'\n') {
        return Ok(end);
    }
    if bytes.len() < LINE_BYTES_MAX {
        return Err(Parsed::Short);
    }
    // Only a get whose keys have begun may be longer.
    let words = Words::of(start);
    let plain = |verb: &[u8]| start.starts_with(verb) && start[verb.len()] > b' ';
    let is_get = plain(b"get ") || plain(b"gets ");
    if !(is_get || protocol::is_get(words.get(0)) && words.count() > 2) {
        return Err(Parsed::Close(LINE_TOO_LONG));
    }
    match find(&bytes[..bytes.len().min(GET_LINE_BYTES_MAX)], b'\n') {
        Some(end) => Ok(end),
        None if bytes.len() < GET_LINE_BYTES_MAX => Err(Parsed::Short),
        None => Err(Parsed::Close(LINE_TOO_LONG)),
    }
}

/// Reads the first command of `bytes`. Values longer than `value_bytes_max` are refused.
pub fn parse(bytes: &[u8], value_bytes_max: usize) -> Parsed<'_> {
    let end = match line_end(bytes) {
        Ok(end) => end,
        Err(parsed) => return parsed,
    };
    let used = end + 1;
    let line = protocol::line(bytes, end);
    let words = Words::of(line);
    if protocol::is_get(words.get(0)) {
        return gets(line, &words, used);
    }
    match protocol::read(&words) {
        Err(refused) => {
            let used = used.saturating_add(usize::try_from(refused.swallow).unwrap_or(usize::MAX));
            Parsed::Say(if refused.is_quiet { b"" } else { refused.reply }, used)
        }
        Ok(protocol::Command::Store(store)) => {
            text_set((bytes, used), words.get(1), &store, value_bytes_max)
        }
        Ok(protocol::Command::Meta(meta)) => {
            let of = Keyed::meta(&meta, &words);
            match meta.verb {
                meta::Verb::Set => with_value(bytes, used, (of, meta.len), value_bytes_max),
                _ => Parsed::Command(Command::Keyed(of), used),
            }
        }
        Ok(command) => plain(command, &words, used),
    }
}

/// A command that is a line and nothing else.
fn plain<'a>(command: protocol::Command<'_>, words: &Words<'a>, used: usize) -> Parsed<'a> {
    use protocol::Command as C;
    let key = words.get(1);
    let keyed = |of| Parsed::Command(Command::Keyed(of), used);
    match command {
        C::Delete { is_quiet, .. } => {
            let line = match planted!("cache.router-passes-lines-on") {
                true => words.from(0).join(&b' '),
                false => [b"delete ", key].concat(),
            };
            keyed(Keyed::text(Kind::Delete, key, line, is_quiet))
        }
        C::Count { delta, is_incr, is_quiet, .. } => {
            let verb: &[u8] = if is_incr { b"incr " } else { b"decr " };
            let line = [verb, key, format!(" {delta}").as_bytes()].concat();
            keyed(Keyed::text(Kind::Change, key, line, is_quiet))
        }
        C::Touch { exptime, is_quiet, .. } => {
            let line = [b"touch ", key, format!(" {exptime}").as_bytes()].concat();
            keyed(Keyed::text(Kind::Touch, key, line, is_quiet))
        }
        C::Flush { delay, is_quiet } => {
            let line = match delay {
                ..=0 => b"flush_all".to_vec(),
                delay => format!("flush_all {delay}").into_bytes(),
            };
            Parsed::Command(Command::Flush { line, is_mute: is_quiet }, used)
        }
        C::Verbosity { is_quiet, .. } => {
            Parsed::Command(Command::Verbosity { is_mute: is_quiet }, used)
        }
        C::Noop => Parsed::Say(b"MN\r\n", used),
        C::Version => Parsed::Say(VERSION_LINE.as_bytes(), used),
        C::Stats if words.count() == 1 => Parsed::Command(Command::Stats, used),
        C::Stats => Parsed::Say(b"CLIENT_ERROR ask the servers themselves for that\r\n", used),
        C::Quit | C::Http => Parsed::Close(b""),
        C::Server if words.get(0) == b"shutdown" => {
            Parsed::Say(b"ERROR: shutdown not enabled\r\n", used)
        }
        C::Server | C::Store(_) | C::Meta(_) => Parsed::Say(b"ERROR\r\n", used),
    }
}

fn gets<'a>(line: &'a [u8], words: &Words<'_>, used: usize) -> Parsed<'a> {
    let get = match protocol::get(line, words) {
        Ok(get) => get,
        Err(refused) => return Parsed::Say(refused.reply, used),
    };
    let keys = &line[get.keys_at..];
    if keys.split(|b| *b == b' ').any(|key| key.len() > KEY_BYTES_MAX) {
        return Parsed::Say(BAD_KEY, used);
    }
    let s = if get.with_cas { "s" } else { "" };
    let verb = match get.exptime {
        Some(exptime) => format!("gat{s} {exptime}"),
        None => format!("get{s}"),
    };
    Parsed::Command(Command::Get { verb: verb.into_bytes(), keys }, used)
}

fn text_set<'a>(
    (bytes, used): (&'a [u8], usize),
    key: &'a [u8],
    store: &protocol::Store<'_>,
    most: usize,
) -> Parsed<'a> {
    let kind = if store.verb == Verb::Set { Kind::Set } else { Kind::Change };
    let mut line = [store.verb.word().as_bytes(), b" ", key].concat();
    line.extend_from_slice(format!(" {} {} {}", store.flags, store.exptime, store.len).as_bytes());
    if let Verb::Cas(cas) = store.verb {
        line.extend_from_slice(format!(" {cas}").as_bytes());
    }
    let of = Keyed::text(kind, key, line, store.is_quiet);
    with_value(bytes, used, (of, store.len), most)
}

fn with_value<'a>(
    bytes: &'a [u8],
    used: usize,
    (of, len): (Keyed<'a>, usize),
    most: usize,
) -> Parsed<'a> {
    let end = used.saturating_add(len).saturating_add(END_BYTES);
    if len > most {
        return match of.kind {
            Kind::Set | Kind::MetaSet => {
                let kind = if of.is_binary { Kind::MetaDelete } else { Kind::Delete };
                let (mut line, _) = delete_line(of.key, of.is_binary);
                line.truncate(line.len() - END_BYTES);
                Parsed::TooLarge(Keyed { kind, line, is_quiet: false, ..of }, end)
            }
            _ => Parsed::Say(if of.is_mute { b"" } else { TOO_LARGE }, end),
        };
    }
    match bytes.get(used..end) {
        None => Parsed::Short,
        Some(value) if value.ends_with(b"\r\n") => {
            Parsed::Command(Command::Keyed(Keyed { value, ..of }), end)
        }
        Some(_) => Parsed::Say(if of.is_mute { b"" } else { BAD_VALUE }, end),
    }
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
        // What a server could read otherwise does not reach it.
        assert_eq!(passed_on("delete  a 0 noreply\0x\r\n", None), "delete a\r\n");
        assert_eq!(passed_on("incr a +1 \r\n", None), "incr a 1\r\n");
        assert!(one("delete a noreply\0x\r\n").is_mute);
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
            let expected = (expected.as_bytes(), rest.as_bytes(), text.len());
            assert_eq!((&verb[..], keys, used), expected);
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
            ("set a x 0 1\r\n", BAD_KEY),
            ("set a 0 0 -1\r\n", BAD_KEY),
            ("set a 0 0 99999999999999999999\r\n", BAD_KEY),
            ("delete\r\n", b"ERROR\r\n"),
            ("incr a noreply\r\n", b""),
            ("touch a x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n"),
            ("ms a 2 !\r\n", b"CLIENT_ERROR invalid flag\r\n"),
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
        assert!(matches!(parse(long.as_bytes(), 10), Parsed::Say(BAD_KEY, _)));
        assert_eq!(parse(b"add a 0 0 11\r\n", 10), Parsed::Say(TOO_LARGE, 14 + 11 + 2));
        for (text, line) in [
            ("set  a 0 0 11\r\n", &b"delete a"[..]),
            ("ms a 11 q\r\n", b"delete a"),
            ("ms YQ== 11 b q\r\n", b"md YQ== b"),
        ] {
            let Parsed::TooLarge(of, used) = parse(text.as_bytes(), 10) else { panic!("{text}") };
            assert_eq!((&of.line[..], used), (line, text.len() + 11 + 2));
        }
        assert!(matches!(parse(&[b'x'; LINE_BYTES_MAX], 10), Parsed::Close(_)));
        let endless = [b"get ".to_vec(), vec![b'k'; GET_LINE_BYTES_MAX]].concat();
        assert!(matches!(parse(&endless, 10), Parsed::Close(_)));
        assert_eq!(parse(&endless[..5000], 10), Parsed::Short);
    }
}
