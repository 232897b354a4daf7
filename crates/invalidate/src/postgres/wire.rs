//! Messages of PostgreSQL's protocol 3, as far as a reader of its row log needs them: both directions, and where
//! one ends in what was received. The server's manual, "Frontend/Backend Protocol", says what they mean. Pure.

use super::bytes::Bytes;
use holdfast_base::{Error, Result};

/// The largest message that is taken: the server builds none of a gigabyte.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// Memory that is kept when all was taken: a row of hundreds of megabytes comes once.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// A message's tag and length.
const HEAD_BYTES: usize = 5;
/// Asks for TLS: a length, and a number that is no protocol's.
pub const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
/// Protocol 3.0.
const PROTOCOL: u32 = 3 << 16;

/// What was received, in pieces that begin and end anywhere.
#[derive(Default)]
pub struct Received {
    bytes: Vec<u8>,
    /// Before this, all was taken.
    taken: usize,
}

impl Received {
    /// Where what comes next is put: at the end.
    pub fn space(&mut self) -> &mut Vec<u8> {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        &mut self.bytes
    }

    /// The next message, if all of it is there: its tag and its body.
    pub fn message(&mut self) -> Result<Option<(u8, &[u8])>> {
        let rest = &self.bytes[self.taken..];
        let Some((head, _)) = rest.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let [tag, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(Error::corrupt(format!(
                "read a message of the database: a length of {length} bytes is none"
            )));
        }
        let Some(body) = rest.get(HEAD_BYTES..1 + length) else { return Ok(None) };
        self.taken += 1 + length;
        Ok(Some((tag, body)))
    }
}

/// What a server wants to know of who connects.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    Nothing,
    Clear,
    Md5 {
        salt: [u8; 4],
    },
    /// Ways of SASL that it takes.
    Sasl(Vec<&'a str>),
    SaslGoesOn(&'a [u8]),
    SaslEnds(&'a [u8]),
    Other(u32),
}

/// What a server refused, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Five characters, `SQLSTATE`.
    pub state: String,
    pub message: String,
}

/// A message of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Said<'a> {
    Asks(Asked<'a>),
    Refuses(Refusal),
    /// One row; nothing for a null.
    Row(Vec<Option<&'a [u8]>>),
    Ready,
    /// From now on, both sides copy.
    CopyBegins,
    Copy(&'a [u8]),
    CopyEnds,
    /// What says nothing here: settings, notices, descriptions of columns, ends of statements.
    Other,
}

impl<'a> Said<'a> {
    pub fn read(tag: u8, body: &'a [u8]) -> Result<Said<'a>> {
        let mut bytes = Bytes(body);
        Ok(match tag {
            b'R' => Said::Asks(asked(&mut bytes)?),
            b'E' => Said::Refuses(refusal(&mut bytes)?),
            b'D' => {
                let count = bytes.u16()?;
                let cell = |_| match bytes.u32()? {
                    u32::MAX => Ok(None),
                    length => bytes.take(length as usize).map(Some),
                };
                Said::Row((0..count).map(cell).collect::<Result<_>>()?)
            }
            b'Z' => Said::Ready,
            b'W' => Said::CopyBegins,
            b'd' => Said::Copy(body),
            b'c' => Said::CopyEnds,
            _ => Said::Other,
        })
    }
}

fn asked<'a>(bytes: &mut Bytes<'a>) -> Result<Asked<'a>> {
    Ok(match bytes.u32()? {
        0 => Asked::Nothing,
        3 => Asked::Clear,
        5 => {
            let salt = bytes.take(4)?;
            Asked::Md5 { salt: salt.try_into().expect("four bytes") }
        }
        10 => {
            let mut ways = Vec::new();
            loop {
                match bytes.text()? {
                    "" => break Asked::Sasl(ways),
                    way => ways.push(way),
                }
            }
        }
        11 => Asked::SaslGoesOn(bytes.0),
        12 => Asked::SaslEnds(bytes.0),
        other => Asked::Other(other),
    })
}

fn refusal(bytes: &mut Bytes<'_>) -> Result<Refusal> {
    let mut refusal = Refusal::default();
    loop {
        match bytes.u8()? {
            0 => return Ok(refusal),
            b'C' => refusal.state = bytes.text()?.to_owned(),
            b'M' => refusal.message = bytes.text()?.to_owned(),
            _ => drop(bytes.text()?),
        }
    }
}

/// A message with a tag, made by what writes its body.
fn message(tag: u8, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = vec![tag, 0, 0, 0, 0];
    body(&mut bytes);
    let length = (bytes.len() - 1) as u32;
    bytes[1..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    assert!(!text.contains('\0'), "checked where it was read");
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
}

/// Opens a connection; settings by name.
pub fn startup(settings: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&PROTOCOL.to_be_bytes());
    for (name, value) in settings {
        put_text(&mut bytes, name);
        put_text(&mut bytes, value);
    }
    bytes.push(0);
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

pub fn password(text: &str) -> Vec<u8> {
    message(b'p', |bytes| put_text(bytes, text))
}

/// The first answer of SASL.
pub fn sasl_begins(way: &str, text: &str) -> Vec<u8> {
    message(b'p', |bytes| {
        put_text(bytes, way);
        bytes.extend_from_slice(&(text.len() as u32).to_be_bytes());
        bytes.extend_from_slice(text.as_bytes());
    })
}

/// Its next one.
pub fn sasl_goes_on(text: &str) -> Vec<u8> {
    message(b'p', |bytes| bytes.extend_from_slice(text.as_bytes()))
}

pub fn query(text: &str) -> Vec<u8> {
    message(b'Q', |bytes| put_text(bytes, text))
}

/// How far a reader of the log has come: what it has received, and what it needs no more. The time is in
/// microseconds since 2000.
pub fn standing(received: u64, kept: u64, time_us: u64) -> Vec<u8> {
    message(b'd', |bytes| {
        bytes.push(b'r');
        // Written, flushed, applied: the second one is what the server may forget.
        for number in [received.max(kept), kept, kept, time_us] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.push(0);
    })
}

/// A name in a statement.
pub fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A text in a statement, with `standard_conforming_strings`.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::{Rng, SeededRng};

    /// Two messages, cut anywhere: nothing is taken before it is all there, and nothing twice.
    #[test]
    fn messages_come_in_pieces() {
        let bytes = [query("SELECT 1"), message(b'Z', |body| body.push(b'I'))].concat();
        for cut in 0..=bytes.len() {
            let (mut received, mut got) = (Received::default(), Vec::new());
            for part in [&bytes[..cut], &bytes[cut..]] {
                received.space().extend_from_slice(part);
                while let Some((tag, body)) = received.message().unwrap() {
                    got.push((tag, body.to_vec()));
                }
            }
            assert_eq!(got, [(b'Q', b"SELECT 1\0".to_vec()), (b'Z', b"I".to_vec())], "{cut}");
        }
        let mut received = Received::default();
        received
            .space()
            .extend_from_slice(&message(b'd', |body| body.extend_from_slice(&vec![7; 20 << 20])));
        assert_eq!(received.message().unwrap().map(|(_, body)| body.len()), Some(20 << 20));
        assert!(received.space().capacity() <= KEPT_BYTES_MAX, "a long row's memory is given back");
        for length in [0u32, 3, MESSAGE_BYTES_MAX as u32 + 1, u32::MAX] {
            let mut received = Received::default();
            received.space().extend_from_slice(&[&b"d"[..], &length.to_be_bytes()].concat());
            assert!(received.message().is_err(), "{length}");
        }
        let mut received = Received::default();
        received.space().extend_from_slice(&[&b"d"[..], &0x3fff_ffffu32.to_be_bytes()].concat());
        assert!(received.message().unwrap().is_none() && received.space().capacity() < 100);
    }

    #[test]
    fn what_a_server_says_is_read_and_noise_panics_nobody() {
        let row = b"\0\x02\0\0\0\x01x\xff\xff\xff\xff";
        assert_eq!(Said::read(b'D', row).unwrap(), Said::Row(vec![Some(b"x"), None]));
        let error = b"SERROR\0C55006\0Mis active\0Hask\0\0";
        let refusal = Refusal { state: "55006".to_owned(), message: "is active".to_owned() };
        assert_eq!(Said::read(b'E', error).unwrap(), Said::Refuses(refusal));
        let ways = b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
        let asked = Asked::Sasl(vec!["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"]);
        assert_eq!(Said::read(b'R', ways).unwrap(), Said::Asks(asked));
        for (tag, body) in [(b'D', &row[..]), (b'E', error), (b'R', ways)] {
            for cut in 0..body.len() {
                assert!(Said::read(tag, &body[..cut]).is_err(), "{} {cut}", tag as char);
            }
        }
        let rng = SeededRng::new(1);
        for _ in 0..20_000 {
            let bytes: Vec<u8> =
                (0..rng.next_u64() % 40).map(|_| rng.next_u64() as u8 % 16).collect();
            let _ = Said::read(b"REDZWdcX"[rng.next_u64() as usize % 8], &bytes);
        }
    }

    #[test]
    fn what_a_client_says_is_as_the_manual_has_it() {
        assert_eq!(startup(&[("user", "me")]), b"\0\0\0\x11\0\x03\0\0user\0me\0\0");
        assert_eq!(sasl_begins("W", "xy"), b"p\0\0\0\x0cW\0\0\0\0\x02xy");
        let status = standing(3, 2, 1);
        assert_eq!(&status[..6], b"d\0\0\0\x26r");
        assert_eq!(status.len(), 39);
        assert_eq!((status[13], status[21], status[29], status[37], status[38]), (3, 2, 2, 1, 0));
        assert_eq!((name("a\"b").as_str(), literal("it's").as_str()), ("\"a\"\"b\"", "'it''s'"));
    }
}
