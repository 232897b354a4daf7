//! What an address says of TLS to its database, in the words of that database's own clients. Whoever asks for
//! TLS gets it, from a server whose certificate is checked, or no connection: nothing here believes anybody.

use holdfast_base::{Error, Result};
use std::path::PathBuf;

/// What the parameters behind the `?` of an address are called.
pub struct Words {
    pub mode: &'static str,
    pub authorities: &'static str,
}

/// What is looked at in a server's certificate, beside its dates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Who signed it.
    Authority,
    /// Also which host it is for.
    Host,
}

/// TLS as an address asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub checks: Checks,
    /// A file of PEM: whose signature makes a certificate right.
    pub authorities: PathBuf,
}

/// What the two parameters ask for, if they are there; nothing for a connection without TLS. The file alone is
/// enough, and a mode that leaves the checks open has them all.
pub fn asked(
    words: &Words,
    mode: Option<&str>,
    authorities: Option<&str>,
) -> Result<Option<Asked>> {
    let Words { mode: name, authorities: file } = words;
    let wrong = |why: String| {
        Err(Error::invalid(format!("read what the database's address says of TLS: {why}")))
    };
    let lower = mode.map(str::to_ascii_lowercase);
    let checks = match (lower.as_deref(), authorities) {
        (None, None) | (Some("disable" | "disabled"), _) => return Ok(None),
        (Some("verify-ca" | "verify_ca"), _) => Checks::Authority,
        (
            None
            | Some("require" | "required" | "verify-full" | "verify-identity" | "verify_identity"),
            _,
        ) => Checks::Host,
        (Some(_), _) => {
            return wrong(format!(
                "`{name}` is none of `disable`, `verify-ca` and `verify-full`: with others, a connection may go \
                 without TLS, or to anybody"
            ));
        }
    };
    match authorities.filter(|file| !file.is_empty()) {
        Some(file) => Ok(Some(Asked { checks, authorities: file.into() })),
        None => wrong(format!(
            "`{file}=FILE` is missing: the certificates of whom the server is believed by"
        )),
    }
}

/// Why a certificate is refused, with what to do about it where that is known.
pub fn refused(why: &str, words: &Words) -> String {
    let is_others = ["UnknownIssuer", "BadSignature"].iter().any(|known| why.contains(known));
    let file = words.authorities;
    match is_others {
        true => format!(
            "{why}: none of the authorities of `{file}` has signed it: name the file of the one that has"
        ),
        false => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Words = Words { mode: "ssl-mode", authorities: "ssl-ca" };

    #[test]
    fn whoever_asks_for_tls_gets_it_checked_or_is_refused() {
        let of = |mode, file| asked(&WORDS, mode, file).unwrap().map(|asked| asked.checks);
        let file = Some("/etc/ca.pem");
        assert_eq!(
            (of(None, None), of(Some("disable"), file), of(Some("DISABLED"), None)),
            (None, None, None)
        );
        for mode in
            [None, Some("require"), Some("REQUIRED"), Some("verify-full"), Some("VERIFY_IDENTITY")]
        {
            assert_eq!(of(mode, file), Some(Checks::Host), "{mode:?}");
        }
        assert_eq!(of(Some("verify-ca"), file), Some(Checks::Authority));
        for (mode, file, names) in [
            (Some("required"), None, "`ssl-ca=FILE`"),
            (Some("verify-full"), Some(""), "`ssl-ca=FILE`"),
            (Some("prefer"), file, "`ssl-mode`"),
            (Some("allow"), None, "`ssl-mode`"),
            (Some(""), file, "`ssl-mode`"),
        ] {
            let message = asked(&WORDS, mode, file).unwrap_err().message;
            assert!(message.contains(names), "{message}");
        }
    }

    #[test]
    fn whoever_is_signed_by_others_is_said_to_be() {
        for why in ["UnknownIssuer", "the peer's certificate is refused: BadSignature"] {
            let said = refused(why, &WORDS);
            assert!(said.contains(why) && said.contains("authorities of `ssl-ca`"), "{said}");
        }
        assert_eq!(refused("certificate expired", &WORDS), "certificate expired");
    }
}
