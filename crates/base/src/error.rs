//! The error that crosses a crate's border: a small kind that says what to do, and one sentence.
//! Inside, crates keep richer enums and turn them into this one where the caller is a stranger.

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

/// A kind and one sentence: what was being done, what was wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    pub kind: Kind,
    pub message: String,
}

/// How the refusal ends of a name whose bytes a seal cut off: it is the answer to that request for
/// ever, and the same bytes sent with a new one are stored elsewhere.
pub const WRITE_AGAIN: &str = "write the bytes again";

impl Error {
    /// Whether the request was refused for good, and succeeds as a new one with the same bytes.
    pub fn wants_bytes_again(&self) -> bool {
        self.kind == Kind::Retry && self.message.ends_with(WRITE_AGAIN)
    }

    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
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
    fn context_goes_in_front() {
        let e = Error::full("no space").context("append to chunk 7");
        assert_eq!(e.to_string(), "append to chunk 7: no space");
        let e = e.context("append to chunk 7");
        assert_eq!(e.to_string(), "append to chunk 7: no space", "said once");
        assert_eq!(e.kind, Kind::Full);
    }
}
