//! The secret of a data directory: 32 bytes of chance in a file that its owner alone may read. A
//! cluster's nodes share it. From it come the keys of all that is proved or sealed; it is itself
//! never sent, never logged, never shown.
//!
//! Whoever keeps data has one; whoever connects over TCP proves that they know it ([`crate::net`]'s
//! handshake). Formats: docs/formats/secret.md.

use crate::Rng;
use crate::{local, planted};
use holdfast_base::text::{from_hex, to_hex};
use holdfast_base::{Error, Result};
use ring::{aead, hmac};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The file in a data directory.
pub const FILE: &str = "secret";
const BYTES: usize = 32;
/// What a sealed text begins with. No secret key that was ever drawn holds a `:`.
const SEALED: &str = "sealed1:";
/// A file longer than this holds something else.
const FILE_BYTES_MAX: u64 = 4096;

#[derive(Clone)]
pub struct Secret(Arc<[u8; BYTES]>);

/// Never the secret.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub fn draw(rng: &dyn Rng) -> Secret {
        Secret(Arc::new(draw(rng)))
    }

    /// Reads what [`Secret::text`] wrote.
    pub fn parse(text: &str) -> Option<Secret> {
        let bytes = from_hex(text.trim())?;
        Some(Secret(Arc::new(bytes.try_into().ok()?)))
    }

    pub fn text(&self) -> String {
        format!("{}\n", to_hex(&*self.0))
    }

    pub fn load(path: &Path) -> Result<Secret> {
        let text = local::read_small(path, FILE_BYTES_MAX).map_err(|e| {
            Error::from(e).context(format_args!("read the secret in `{}`", path.display()))
        })?;
        let parsed = std::str::from_utf8(&text).ok().and_then(Secret::parse);
        parsed.ok_or_else(|| {
            Error::invalid(format!(
                "read the secret in `{}`: it is not 64 hexadecimal digits: name the file `{FILE}` of a node's data directory",
                path.display()
            ))
        })
    }

    /// A key for one purpose; from none of them another, or the secret, can be found.
    pub(crate) fn key(&self, purpose: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.derived(purpose).as_ref())
    }

    fn derived(&self, purpose: &str) -> hmac::Tag {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &*self.0), purpose.as_bytes())
    }

    /// What a request to the HTTP port has behind `Authorization: Bearer`. It is sent in clear, so
    /// it opens that port and nothing else.
    pub fn bearer(&self) -> String {
        to_hex(self.derived("holdfast http 1").as_ref())
    }

    /// Whether a header's value is `Bearer` and the token, in a time that tells nothing.
    pub fn is_bearer(&self, header: &[u8]) -> bool {
        let Some(given) = header.strip_prefix(b"Bearer ") else { return false };
        let key = self.key("holdfast compare 1");
        let own = hmac::sign(&key, self.bearer().as_bytes());
        hmac::verify(&key, given.trim_ascii(), own.as_ref()).is_ok()
    }

    /// The token of this name and id, which whoever has the secret can make again.
    pub fn token(&self, name: &str, id: u64) -> Token {
        // The name last: no other name and id come to the same text.
        let key = self.derived(&format!("holdfast token 1 {id:016x} {name}"));
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(key.as_ref());
        Token { name: name.to_owned(), id, key: Secret(Arc::new(bytes)) }
    }

    fn sealer(&self) -> aead::LessSafeKey {
        let key = self.derived("holdfast seal 1");
        let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key.as_ref());
        aead::LessSafeKey::new(key.expect("the key has the algorithm's 32 bytes"))
    }

    /// Text that only who has the secret can read, and nobody can move to another `name`.
    pub fn seal(&self, rng: &dyn Rng, name: &str, clear: &str) -> String {
        if planted!("env.sealed-in-clear") {
            return format!("{SEALED}{clear}");
        }
        let nonce: [u8; aead::NONCE_LEN] = draw(rng);
        let mut bytes = clear.as_bytes().to_vec();
        let sealed = self.sealer().seal_in_place_append_tag(
            aead::Nonce::assume_unique_for_key(nonce),
            aead::Aad::from(name.as_bytes()),
            &mut bytes,
        );
        sealed.expect("a short text is sealed");
        format!("{SEALED}{}{}", to_hex(&nonce), to_hex(&bytes))
    }

    pub fn is_sealed(text: &str) -> bool {
        text.starts_with(SEALED)
    }

    /// The inverse of [`Secret::seal`]; what is not sealed is an error.
    pub fn unseal(&self, name: &str, sealed: &str) -> Result<String> {
        let wrong = || {
            Error::denied(format!(
                "unseal the secret key of `{name}`: it was sealed with another secret than this node's `{FILE}` file: put the file back that the cluster began with, or make the key anew"
            ))
        };
        let bytes = sealed.strip_prefix(SEALED).and_then(from_hex).ok_or_else(wrong)?;
        let (nonce, rest) = bytes.split_first_chunk::<{ aead::NONCE_LEN }>().ok_or_else(wrong)?;
        let mut rest = rest.to_vec();
        let (nonce, name) = (aead::Nonce::assume_unique_for_key(*nonce), aead::Aad::from(name));
        let clear = self.sealer().open_in_place(nonce, name, &mut rest).map_err(|_| wrong())?;
        String::from_utf8(clear.to_vec()).map_err(|_| wrong())
    }
}

/// What a token begins with, so that people and scanners of leaked keys know one when they see it.
const TOKEN: &str = "hft1.";

/// What makes somebody the client of a name: the name, the token's id, and a key that follows from
/// both and the cluster's secret. So a cluster keeps no key, and a log or snapshot that is stolen
/// tells none.
#[derive(Clone)]
pub struct Token {
    /// Of the client.
    pub name: String,
    /// Which of the tokens that were ever made for this name.
    pub id: u64,
    key: Secret,
}

/// Never the key.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Token {
    /// Reads what [`Token::text`] wrote.
    pub fn parse(text: &str) -> Option<Token> {
        // A name may hold dots.
        let mut parts = text.trim().strip_prefix(TOKEN)?.rsplitn(3, '.');
        let (key, id, name) = (parts.next()?, parts.next()?, parts.next()?);
        let id = from_hex(id)?.try_into().ok()?;
        let key = Secret::parse(key)?;
        Some(Token { name: name.to_owned(), id: u64::from_be_bytes(id), key })
    }

    /// The one line that is shown to people.
    pub fn text(&self) -> String {
        let id = to_hex(&self.id.to_be_bytes());
        format!("{TOKEN}{}.{id}.{}", self.name, to_hex(&*self.key.0))
    }

    /// The token in a file of one line.
    pub fn load(path: &Path) -> Result<Token> {
        let text = local::read_private(path, FILE_BYTES_MAX).map_err(|e| {
            Error::from(e).context(format_args!("read the token in `{}`", path.display()))
        })?;
        let parsed = std::str::from_utf8(&text).ok().and_then(Token::parse);
        parsed.ok_or_else(|| {
            Error::invalid(format!(
                "read the token in `{}`: it is none, or not all of it: put the one line there that `holdfast token create` printed",
                path.display()
            ))
        })
    }

    /// What the token's holder and the cluster know, and nobody else.
    pub(crate) fn key(&self) -> &Secret {
        &self.key
    }
}

/// The secrets that a client has: which of them is right, the server's answer tells.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Arc<[Secret]>);

impl Secrets {
    pub fn new(secrets: Vec<Secret>) -> Secrets {
        Secrets(secrets.into())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Secret> {
        self.0.iter()
    }
}

impl From<Secret> for Secrets {
    fn from(secret: Secret) -> Secrets {
        Secrets::new(vec![secret])
    }
}

/// Bytes of chance.
pub(crate) fn draw<const N: usize>(rng: &dyn Rng) -> [u8; N] {
    let mut bytes = [0; N];
    for piece in bytes.chunks_mut(8) {
        piece.copy_from_slice(&rng.next_u64().to_le_bytes()[..piece.len()]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRng;
    use holdfast_base::Kind;

    fn secret() -> Secret {
        Secret::draw(&SeededRng::new(1))
    }

    #[test]
    fn a_secrets_text_comes_back_and_debug_does_not_show_it() {
        let secret = secret();
        assert_eq!(*Secret::parse(&secret.text()).unwrap().0, *secret.0);
        assert_eq!(format!("{secret:?}"), "Secret");
        let text = secret.text();
        for bad in ["", "zz", &text[..62], &format!("{}00", text.trim())] {
            assert!(Secret::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_token_comes_back_from_its_text_and_differs_for_each_name_id_and_cluster() {
        for name in ["a", "a.b", "node-3.example", "_"] {
            let token = secret().token(name, 0x1234);
            let again = Token::parse(&format!("{}\n", token.text())).unwrap();
            assert_eq!((again.name.as_str(), again.id), (name, 0x1234));
            assert_eq!(*again.key.0, *token.key.0);
            assert!(!format!("{token:?}").contains(&to_hex(&*token.key.0)));
            let others = [
                secret().token(name, 0x1235),
                secret().token("other", 0x1234),
                Secret::draw(&SeededRng::new(2)).token(name, 0x1234),
            ];
            assert!(others.iter().all(|other| *other.key.0 != *token.key.0));
        }
        let text = secret().token("a.b", 7).text();
        for cut in 0..text.len() {
            assert!(Token::parse(&text[..cut]).is_none(), "{cut}");
        }
        for bad in [text.replace("hft1", "hft2"), format!("{text}0"), text.replace("a.b.", "")] {
            assert!(Token::parse(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn what_is_sealed_is_read_with_the_same_secret_under_the_same_name_alone() {
        let (secret, rng) = (secret(), SeededRng::new(2));
        let sealed = secret.seal(&rng, "AKEY", "very secret");
        assert!(Secret::is_sealed(&sealed) && !sealed.contains("very secret"), "{sealed}");
        assert_eq!(secret.unseal("AKEY", &sealed).unwrap(), "very secret");
        assert_ne!(sealed, secret.seal(&rng, "AKEY", "very secret"), "never the same twice");
        assert_eq!(secret.unseal("OTHER", &sealed).unwrap_err().kind, Kind::Denied);
        let other = Secret::draw(&SeededRng::new(3));
        assert_eq!(other.unseal("AKEY", &sealed).unwrap_err().kind, Kind::Denied);
        for at in SEALED.len()..sealed.len() {
            let mut bad = sealed.clone().into_bytes();
            bad[at] = if bad[at] == b'0' { b'1' } else { b'0' };
            let bad = String::from_utf8(bad).unwrap();
            assert!(secret.unseal("AKEY", &bad).is_err(), "{at}");
        }
    }

    /// RFC 8439's ChaCha20-Poly1305 and RFC 2104's HMAC as the page of formats says them.
    #[test]
    fn the_keys_are_those_of_the_document() {
        let secret = Secret::parse(&"07".repeat(32)).unwrap();
        let page = include_str!("../../../docs/formats/secret.md");
        assert!(page.contains(&secret.bearer()), "{}", secret.bearer());
        let sealed = secret.seal(&SeededRng::new(1), "AKEY", "opensesame");
        assert!(page.contains(&sealed), "{sealed}");
    }

    #[test]
    fn a_bearer_is_the_token_and_nothing_near_it() {
        let secret = secret();
        let header = format!("Bearer {}", secret.bearer());
        assert!(secret.is_bearer(header.as_bytes()));
        for bad in ["", "Bearer ", &header[..40], &header[7..], &format!("{header}0")] {
            assert!(!secret.is_bearer(bad.as_bytes()), "{bad}");
        }
    }
}
