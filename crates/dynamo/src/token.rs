//! What is known of a transaction's token: docs/formats/dynamo.md. Pure.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Kind, Result, codec_struct};
use holdfast_s3::signature::sha256_hex;

/// Of the form.
const VERSION: u8 = 1;
/// For how long the same token is the same transaction, as in DynamoDB.
const GOOD_MS: u64 = 10 * 60 * 1000;

/// A transaction that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    version: u8,
    /// When it was, in milliseconds since 1970.
    at_ms: u64,
    /// SHA-256 of what it was to do, in hexadecimal digits.
    request: String,
}
codec_struct!(Token { version, at_ms, request });

impl Token {
    /// Of a transaction that is to do this.
    pub fn new(at_ms: u64, request: &str) -> Token {
        Token { version: VERSION, at_ms, request: sha256_hex(request.as_bytes()) }
    }

    /// The bytes that a store keeps.
    pub fn bytes(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Reads the bytes that a store kept.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a later version, `Corrupt` for what is none.
    pub fn read(bytes: &[u8]) -> Result<Token> {
        match bytes.first() {
            Some(&VERSION) => Token::from_bytes(bytes).map_err(|_| {
                Error::new(Kind::Corrupt, "read a transaction's token: its bytes are not one")
            }),
            Some(version) => Err(Error::new(
                Kind::Unsupported,
                format!(
                    "read a transaction's token: its form has version {version}, this build knows {VERSION}"
                ),
            )),
            None => {
                Err(Error::new(Kind::Corrupt, "read a transaction's token: there are no bytes"))
            }
        }
    }

    /// Whether it still stands for its transaction. One from the future does: clocks go back.
    pub fn is_good(&self, now_ms: u64) -> bool {
        now_ms < self.at_ms.saturating_add(GOOD_MS)
    }

    /// Whether its transaction was to do the same.
    pub fn is_of(&self, other: &Token) -> bool {
        self.request == other.request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokens_bytes_are_what_the_page_says_and_it_is_good_for_ten_minutes() {
        let token = Token::new(1000, "[]");
        let mut expected = vec![1, 0xe8, 3, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0];
        expected.extend(sha256_hex(b"[]").bytes());
        assert_eq!(token.bytes(), expected);
        assert_eq!(Token::read(&expected).unwrap(), token);
        assert!(token.is_good(0) && token.is_good(600_999) && !token.is_good(601_000));
        assert!(token.is_of(&Token::new(5, "[]")) && !token.is_of(&Token::new(1000, "[1]")));
        assert_eq!(Token::read(&expected[..20]).unwrap_err().kind, Kind::Corrupt);
        assert_eq!(Token::read(&[]).unwrap_err().kind, Kind::Corrupt);
        expected[0] = 2;
        assert_eq!(Token::read(&expected).unwrap_err().kind, Kind::Unsupported);
    }
}
