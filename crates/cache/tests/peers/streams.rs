//! Streams of commands: right ones, nearly right ones, and whatever bytes.

use holdfast_env::{Rng, SeededRng};

/// How far streams may go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Every command is well-formed.
    Plain,
    /// Some are changed at random bytes, cut short, too long, or no commands at all.
    Wild,
}

pub struct Streams {
    rng: SeededRng,
    style: Style,
    /// In every key and value: whose it is.
    tag: String,
    /// Keys of one get; several servers answer in any order.
    keys_max: usize,
}

impl Streams {
    pub fn new(seed: u64, style: Style, tag: &str, keys_max: usize) -> Streams {
        Streams { rng: SeededRng::new(seed), style, tag: tag.to_owned(), keys_max }
    }

    fn draw(&self, n: usize) -> usize {
        (self.rng.next_u64() % n as u64) as usize
    }

    fn one<'a>(&self, of: &[&'a str]) -> &'a str {
        of[self.draw(of.len())]
    }

    fn key(&self) -> String {
        format!("{}k{}", self.tag, self.draw(6))
    }

    fn value(&self) -> String {
        match self.draw(8) {
            0 => String::new(),
            1 | 2 => self.draw(1000).to_string(),
            3 => format!("{}{}", self.tag, "v".repeat(self.draw(70_000))),
            4 => format!("{}\r\nget {}\r\nEND\r\n", self.tag, self.key()),
            _ => format!("{}{}", self.tag, "x".repeat(self.draw(100))),
        }
    }

    fn exptime(&self) -> &'static str {
        self.one(&["0", "0", "0", "1000", "-1", "2592000"])
    }

    fn noreply(&self) -> &'static str {
        self.one(&["", "", "", " noreply"])
    }

    /// Flags of a meta command: some of these, each once.
    fn flags(&self, of: &[&'static str]) -> String {
        let mut flags = String::new();
        for flag in of {
            if self.draw(4) == 0 {
                flags += &format!(" {flag}");
            }
        }
        flags
    }

    fn store(&self) -> Vec<u8> {
        let verb = self.one(&["set", "set", "set", "add", "replace", "append", "prepend", "cas"]);
        let (key, value) = (self.key(), self.value());
        let cas = if verb == "cas" { format!(" {}", self.draw(80)) } else { String::new() };
        let (flags, exptime) = (self.draw(3), self.exptime());
        let line = format!("{verb} {key} {flags} {exptime} {}{cas}{}", value.len(), self.noreply());
        format!("{line}\r\n{value}\r\n").into_bytes()
    }

    fn meta(&self) -> Vec<u8> {
        let (key, opaque) = (self.key(), format!("O{}{}", self.tag, self.draw(100)));
        let base64 = self.one(&["YWI=", "Y2Q=", "ZWY="]);
        let opaque = if self.draw(3) == 0 { format!(" {opaque}") } else { String::new() };
        let (key, b) = match self.draw(6) {
            // Of all clients: never stored.
            0 => (base64.to_owned(), " b"),
            _ => (key, ""),
        };
        let line = match self.draw(6) {
            0 | 1 => {
                let flags = self.flags(&["v", "f", "k", "s", "q", "u", "t", "c", "T1000"]);
                format!("mg {key}{b}{opaque}{flags}")
            }
            2 => format!("md {key}{b}{opaque}{}", self.flags(&["q", "k", "C7"])),
            3 => {
                let mode = self.one(&["", " MI", " MD", " M+", " M-"]);
                let flags = self.flags(&["v", "k", "D5", "t", "T1000"]);
                format!("ma {key}{b}{opaque}{mode}{flags}")
            }
            4 => "mn".to_owned(),
            _ if b.is_empty() => {
                let value = self.value();
                let mode = self.one(&["", "", " ME", " MR", " MA", " MP", " MS"]);
                // memcached 1.6.18 takes an `s` here, and says nothing.
                let size = if self.style == Style::Wild { "s" } else { "k" };
                let flags = self.flags(&[size, "q", "F9", "T1000", "c", "I"]);
                let line = format!("ms {key} {}{opaque}{mode}{flags}", value.len());
                return format!("{line}\r\n{value}\r\n").into_bytes();
            }
            _ => format!("mg {key}{b} k{opaque}"),
        };
        format!("{line}\r\n").into_bytes()
    }

    fn right(&self) -> Vec<u8> {
        let key = self.key();
        let line = match self.draw(12) {
            0..=3 => return self.store(),
            4 | 5 => return self.meta(),
            6 | 7 => {
                let keys: Vec<String> =
                    (0..=self.draw(self.keys_max)).map(|_| self.key()).collect();
                format!("{} {}", self.one(&["get", "gets", "get"]), keys.join(" "))
            }
            8 => format!("{} {} {key}", self.one(&["gat", "gats"]), self.exptime()),
            9 => format!("delete {key}{}{}", self.one(&["", "", " 0"]), self.noreply()),
            10 => {
                format!("{} {key} {}{}", self.one(&["incr", "decr"]), self.draw(50), self.noreply())
            }
            _ => format!("touch {key} {}{}", self.exptime(), self.noreply()),
        };
        format!("{line}\r\n").into_bytes()
    }

    /// What only bad or curious clients send.
    fn wrong(&self) -> Vec<u8> {
        let key = self.key();
        let line = match self.draw(22) {
            0 => format!("delete {key} noreply\0x"),
            1 => format!("incr {key} noreply"),
            2 => format!("touch {key} noreply"),
            3 => format!("set {key} 0 0 noreply"),
            4 => format!("cas {key} 0 0 1 noreply"),
            5 => format!("delete {key} {}{}", self.draw(3), self.noreply()),
            6 => format!(
                "set {key} 0 0 2{}\r\nab",
                self.one(&["  ", " x", " noreply\0", "\0 noreply"])
            ),
            7 => format!("set {key} 0 0 {}{}\r\n{}", ITEM, self.noreply(), "z".repeat(ITEM)),
            8 => format!("ms {key} {ITEM} q\r\n{}", "z".repeat(ITEM)),
            9 => format!("get {} {key}", "k".repeat(251)),
            10 => format!("delete {}{}", "k".repeat(251), self.noreply()),
            11 => format!("set {} 0 0 1{}", "k".repeat(251), self.noreply()),
            12 => format!("  {} {key}", self.one(&["get", "delete", "mg", "gets"])),
            13 => format!("get {key}\0{key}"),
            14 => format!("{} \0 {key}", self.one(&["get", "gets", "delete", "mg"])),
            15 => format!("set {key} 0 0 3{}\r\nabcdef", self.noreply()),
            16 => {
                format!("ms {key} 2 {}\r\nab", self.one(&["!", "v v", "T", "MX", "M", "F-1", "b"]))
            }
            17 => format!(
                "mg {key} {}",
                self.one(&["!", "v v", "N-", "q q", "Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"])
            ),
            18 => format!("{} {key}", self.one(&["mx", "m", "nonsense", "GET", "me", "bget"])),
            19 => format!("get {key}\rx"),
            20 => format!("gat {} {key}", self.one(&["x", "", "99999999999", "-1 -1"])),
            _ => (0..self.draw(40)).map(|_| char::from(self.draw(128) as u8)).collect(),
        };
        format!("{line}\r\n").into_bytes()
    }

    fn changed(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        // Of the line: a value that is cut makes commands of what follows, which is drawn anyway.
        let line = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len() - 1) + 1;
        for _ in 0..=self.draw(3) {
            let at = self.draw(line.min(bytes.len()));
            match self.draw(5) {
                0 => bytes[at] = self.rng.next_u64() as u8,
                1 => bytes.insert(at, b"\0\0 \r\n09-+qv"[self.draw(11)]),
                2 => bytes[at] = b"\0 \r\n9-"[self.draw(6)],
                3 if bytes.len() > 1 => {
                    bytes.remove(at);
                }
                _ => {}
            }
        }
        bytes
    }

    /// Some commands, one behind the other.
    pub fn next(&self) -> Vec<u8> {
        let mut stream = Vec::new();
        for _ in 0..=self.draw(30) {
            let command = match (self.style, self.draw(10)) {
                (Style::Wild, 0 | 1) => self.wrong(),
                (Style::Wild, 2 | 3) => self.changed(self.right()),
                _ => self.right(),
            };
            stream.extend_from_slice(&command);
        }
        if self.style == Style::Wild && self.draw(20) == 0 {
            stream.extend_from_slice("delete ".repeat(400).as_bytes());
        }
        stream
    }

    /// Cut at any bytes.
    pub fn parts<'a>(&self, stream: &'a [u8]) -> Vec<&'a [u8]> {
        let (mut parts, mut rest) = (Vec::new(), stream);
        while !rest.is_empty() && parts.len() < self.draw(8) {
            let (part, behind) = rest.split_at(self.draw(rest.len()) + 1);
            parts.push(part);
            rest = behind;
        }
        parts.push(rest);
        parts
    }
}

/// Longer than what may be stored.
const ITEM: usize = super::ITEM_BYTES_MAX + 7;

/// Answers without what two servers may say differently: cas values, and what they count from.
pub fn comparable(answers: &[u8]) -> String {
    let text = String::from_utf8_lossy(answers);
    let lines = text.split_inclusive("\r\n").map(|line| {
        let mut words: Vec<String> = line.trim_end().split(' ').map(str::to_owned).collect();
        match words[0].as_str() {
            "VALUE" if words.len() == 5 => words[4] = "CAS".to_owned(),
            "ME" => words.truncate(2),
            "HD" | "VA" => {
                for word in &mut words[1..] {
                    let digits = word[1.min(word.len())..].trim_start_matches('-');
                    let is_number =
                        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                    if is_number && (word.starts_with('c') || word.starts_with('t')) {
                        word.truncate(1);
                    }
                }
            }
            _ => return line.to_owned(),
        }
        words.join(" ") + "\n"
    });
    lines.collect()
}

/// Where two answers begin to differ, with what stands before and behind.
pub fn difference(one: &str, other: &str) -> Option<String> {
    let at = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    if at == one.len() && at == other.len() {
        return None;
    }
    let near = |text: &str| {
        let bytes = &text.as_bytes()[at.saturating_sub(80)..text.len().min(at + 80)];
        bytes.escape_ascii().to_string()
    };
    Some(format!("at {at}:\n  {}\n  {}", near(one), near(other)))
}
