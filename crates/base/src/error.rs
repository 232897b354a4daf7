//! The error that crosses a crate's border: a small kind that says what to do, and one sentence.
//! Inside, crates keep richer enums and turn them into this one where the caller is a stranger.

use crate::codec::{Decode, Encode, Reader};
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do about an error. The number is the status code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Nothing was decided, or nothing is known: the same request may be sent again.
    Retry = 1,
    /// The request can never succeed as it is: fix it.
    Invalid = 2,
    /// The thing named does not exist.
    NotFound = 3,
    /// The name is taken.
    Exists = 4,
    /// Somebody with a newer claim took over: start again from a fresh view.
    Fenced = 5,
    /// Stored or received bytes fail their checksum. Never served; look at `doctor`.
    Corrupt = 6,
    /// Out of space: free some, then try again.
    Full = 7,
    /// The store or directory accepts reads only.
    ReadOnly = 8,
    /// The peer speaks another version, or this build lacks the operation.
    Unsupported = 9,
    /// Holdfast broke a promise to itself. Please report it.
    Bug = 10,
    /// Whoever asks has not proved that they may: give the secret, then ask again.
    Denied = 11,
}

impl Kind {
    /// One word for programs and lists.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Retry => "retry",
            Kind::Invalid => "invalid",
            Kind::NotFound => "not-found",
            Kind::Exists => "exists",
            Kind::Fenced => "fenced",
            Kind::Corrupt => "corrupt",
            Kind::Full => "full",
            Kind::ReadOnly => "read-only",
            Kind::Unsupported => "unsupported",
            Kind::Bug => "bug",
            Kind::Denied => "denied",
        }
    }

    pub fn from_code(code: u16) -> Option<Kind> {
        use Kind::*;
        [
            Retry,
            Invalid,
            NotFound,
            Exists,
            Fenced,
            Corrupt,
            Full,
            ReadOnly,
            Unsupported,
            Bug,
            Denied,
        ]
        .into_iter()
        .find(|kind| *kind as u16 == code)
    }
}

/// Of errors of one kind those that a program tells from others: what happened, where that decides what it does
/// next. The number stands beside the kind on the wire, and in what sessions remember; messages may be worded anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Reason {
    /// A seal cut off the bytes that a name was to get (`Retry`): it is the answer to that request for ever, and the
    /// same bytes sent with a new one are stored elsewhere.
    WriteAgain = 1,
    /// Entries that were asked for were trimmed (`Invalid`).
    Trimmed = 2,
    /// The log was trimmed behind the reader's back (`Corrupt`): a new start begins with a snapshot.
    Overtaken = 3,
    /// The log is not the one that was read here (`Corrupt`): who follows it goes on once it is again.
    OtherLog = 4,
    /// Rows that a fold keeps are damaged (`Corrupt`), not its log: they can be made anew.
    Rows = 5,
    /// More than one request may carry (`Invalid`).
    TooLarge = 6,
    /// Nobody knows who asks (`Denied`), unlike somebody who may not.
    Unproved = 7,
    /// A chunk's replica was sealed at another length (`Fenced`).
    SealedOtherwise = 8,
    /// The client's session has ended, or never began (`Fenced`): open another one.
    SessionClosed = 9,
}

impl Reason {
    const ALL: [Reason; 9] = [
        Reason::WriteAgain,
        Reason::Trimmed,
        Reason::Overtaken,
        Reason::OtherLog,
        Reason::Rows,
        Reason::TooLarge,
        Reason::Unproved,
        Reason::SealedOtherwise,
        Reason::SessionClosed,
    ];

    /// `None`, too, of one that a later build knows: it is an error of its kind then.
    fn from_code(code: u16) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| *reason as u16 == code)
    }
}

/// A kind and one sentence: what was being done, what was wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    pub kind: Kind,
    /// Where a program has to know more than the kind.
    pub reason: Option<Reason>,
    pub message: String,
}

/// A message is a sentence; one that quotes too much is cut where it is sent, not a reason to fail.
const SENT_BYTES_MAX: usize = 64 << 10;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, reason: None, message: message.into() }
    }

    pub fn because(self, reason: Reason) -> Error {
        Error { reason: Some(reason), ..self }
    }

    pub fn is(&self, reason: Reason) -> bool {
        self.reason == Some(reason)
    }

    /// What stands behind the status, its kind, in an answer: the message, and the reason if there is one. Earlier
    /// builds read the message alone.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut end = self.message.len().min(SENT_BYTES_MAX);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        self.message[..end].encode(out);
        if let Some(reason) = self.reason {
            (reason as u16).encode(out);
        }
    }

    /// The error of an answer with that status.
    pub fn decode(status: u32, meta: &[u8]) -> Error {
        let mut reader = Reader::new(meta);
        let message = reader.str().unwrap_or("the server gave no reason").to_owned();
        let reason = u16::decode(&mut reader).ok().and_then(Reason::from_code);
        let kind = u16::try_from(status).ok().and_then(Kind::from_code);
        // A kind of a later build is one that this build cannot act on.
        Error { kind: kind.unwrap_or(Kind::Unsupported), reason, message }
    }

    /// Kind and reason in one number, as it is kept: the kind's own where there is no reason.
    pub fn code(&self) -> u16 {
        self.kind as u16 | self.reason.map_or(0, |reason| (reason as u16) << 8)
    }

    /// The error that has a code; `None` if it is none.
    pub fn from_code(code: u16, message: &str) -> Option<Error> {
        let [kind, reason] = code.to_le_bytes();
        let (kind, reason) = (Kind::from_code(kind.into())?, Reason::from_code(reason.into()));
        Some(Error { kind, reason, message: message.to_owned() })
    }

    /// Puts what was being done in front: `read chunk 7: checksum mismatch ...`.
    /// What a layer below has said already is not said twice.
    pub fn context(mut self, doing: impl fmt::Display) -> Error {
        let doing = format!("{doing}: ");
        if !self.message.starts_with(&doing) {
            self.message.insert_str(0, &doing);
        }
        self
    }
}

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        impl Error {
            $(pub fn $name(message: impl Into<String>) -> Error {
                Error::new(Kind::$kind, message)
            })*
        }
    };
}

constructors! {
    retry => Retry,
    invalid => Invalid,
    not_found => NotFound,
    exists => Exists,
    fenced => Fenced,
    corrupt => Corrupt,
    full => Full,
    read_only => ReadOnly,
    unsupported => Unsupported,
    bug => Bug,
    denied => Denied,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        use std::io::ErrorKind as K;
        let kind = match e.kind() {
            // The last of them: of a process that may not make longer files (`ulimit -f`).
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => Kind::Full,
            K::ReadOnlyFilesystem | K::PermissionDenied => Kind::ReadOnly,
            K::NotFound => Kind::NotFound,
            K::AlreadyExists => Kind::Exists,
            K::InvalidInput => Kind::Invalid,
            K::InvalidData | K::UnexpectedEof => Kind::Corrupt,
            _ => Kind::Retry,
        };
        Error::new(kind, e.to_string())
    }
}

/// What a panic that was caught has said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for code in 0..32 {
            if let Some(kind) = Kind::from_code(code) {
                assert_eq!(kind as u16, code);
            }
        }
        assert_eq!(Kind::from_code(0), None);
        assert_eq!(Kind::from_code(10), Some(Kind::Bug));
        assert_eq!(Kind::from_code(11), Some(Kind::Denied));
        assert_eq!(Kind::from_code(12), None);
    }

    #[test]
    fn an_error_is_what_was_sent_and_kept_with_its_reason() {
        let plain = Error::retry("ask again");
        let reasons = Reason::ALL.map(|reason| Error::new(Kind::Invalid, "no ä").because(reason));
        for (number, error) in reasons.iter().enumerate() {
            assert_eq!(error.reason.unwrap() as usize, number + 1, "one is not in `ALL`");
        }
        for error in reasons.iter().chain([&plain]) {
            let mut meta = Vec::new();
            error.encode(&mut meta);
            assert_eq!(Error::decode(error.kind as u32, &meta), *error);
            // An earlier build reads the message, and asks for no more.
            assert_eq!(Reader::new(&meta).str().unwrap(), error.message);
            assert_eq!(Error::from_code(error.code(), &error.message).as_ref(), Some(error));
        }
        assert_eq!(plain.code(), Kind::Retry as u16);
        assert_eq!(Error::from_code(0, ""), None);
        assert_eq!(Error::from_code(12, ""), None);
        // Of later builds: a kind that nobody can act on, and a reason that is none here.
        let mut meta = Vec::new();
        plain.encode(&mut meta);
        meta.extend_from_slice(&900u16.to_le_bytes());
        assert_eq!(Error::decode(1, &meta), plain);
        assert_eq!(Error::decode(700, &meta).kind, Kind::Unsupported);
        assert_eq!(Error::from_code(200 << 8 | 1, "ask again"), Some(plain));
        // What is no message at all.
        for len in 0..4 {
            assert_eq!(Error::decode(2, &[9; 4][..len]).kind, Kind::Invalid);
        }
    }

    #[test]
    fn a_message_that_quotes_too_much_is_cut_between_two_characters() {
        let error = Error::bug(format!("a{}", "ä".repeat(SENT_BYTES_MAX))).because(Reason::Rows);
        let mut meta = Vec::new();
        error.encode(&mut meta);
        let sent = Error::decode(Kind::Bug as u32, &meta);
        assert_eq!((sent.message.len(), sent.reason), (SENT_BYTES_MAX - 1, Some(Reason::Rows)));
    }

    #[test]
    fn context_goes_in_front() {
        let e = Error::full("no space").context("append to chunk 7");
        assert_eq!(e.to_string(), "append to chunk 7: no space");
        let e = e.context("append to chunk 7");
        assert_eq!(e.to_string(), "append to chunk 7: no space", "said once");
        assert_eq!(e.kind, Kind::Full);
    }
}
