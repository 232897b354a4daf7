//! Proves to PostgreSQL that one knows a password, and has the server prove it, too: SCRAM-SHA-256 (RFC 5802,
//! RFC 7677), and the older MD5. Passwords are taken byte by byte, so one with letters that Unicode can write in
//! two ways is given as it was set. Pure; who asks draws the nonce.

use base64_simd::STANDARD;
use holdfast_base::{Error, Result};
use md5::{Digest, Md5};
use ring::{digest, hmac, pbkdf2};
use std::num::NonZeroU32;

/// The way that is spoken.
pub const SCRAM: &str = "SCRAM-SHA-256";
/// A server that asks for more rounds wants to keep its client busy; PostgreSQL's default is 4096.
const ROUNDS_MAX: u32 = 10_000_000;
/// There is no binding to a channel.
const UNBOUND: &str = "n,,";

/// A proof by SCRAM that has begun.
pub struct Scram {
    password: String,
    nonce: String,
    /// What the server has to sign, and with what; known once it has asked.
    signs: Option<(hmac::Key, String)>,
}

fn wrong(why: &str) -> Error {
    Error::invalid(format!("prove the password to the database (SCRAM): {why}"))
}

impl Scram {
    /// `random`: drawn for this proof alone.
    pub fn begin(password: &str, random: &[u8; 18]) -> Scram {
        let nonce = STANDARD.encode_to_string(random);
        Scram { password: password.to_owned(), nonce, signs: None }
    }

    fn bare(&self) -> String {
        // The server takes the name that the connection was opened with.
        format!("n=,r={}", self.nonce)
    }

    pub fn first(&self) -> String {
        format!("{UNBOUND}{}", self.bare())
    }

    /// The answer to the server's first message.
    pub fn answer(&mut self, asked: &[u8]) -> Result<String> {
        let asked = std::str::from_utf8(asked).map_err(|_| wrong("the server sends no text"))?;
        let field = |name: &str| {
            asked.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let (Some(nonce), Some(salt), Some(rounds)) = (field("r"), field("s"), field("i")) else {
            return Err(wrong("the server's question lacks a part"));
        };
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(wrong("the server's nonce is not made for this proof"));
        }
        let salt = STANDARD.decode_to_vec(salt).map_err(|_| wrong("its salt is no base64"))?;
        let rounds = rounds.parse().ok().filter(|rounds| *rounds <= ROUNDS_MAX);
        let rounds =
            rounds.and_then(NonZeroU32::new).ok_or_else(|| wrong("its rounds are none"))?;
        let mut salted = [0; digest::SHA256_OUTPUT_LEN];
        let way = pbkdf2::PBKDF2_HMAC_SHA256;
        pbkdf2::derive(way, rounds, &salt, self.password.as_bytes(), &mut salted);
        let salted = hmac::Key::new(hmac::HMAC_SHA256, &salted);
        let client = hmac::sign(&salted, b"Client Key");
        let stored = digest::digest(&digest::SHA256, client.as_ref());
        let unproved = format!("c={},r={nonce}", STANDARD.encode_to_string(UNBOUND));
        let said = format!("{},{asked},{unproved}", self.bare());
        let signed =
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, stored.as_ref()), said.as_bytes());
        let proof: Vec<u8> =
            client.as_ref().iter().zip(signed.as_ref()).map(|(a, b)| a ^ b).collect();
        let server = hmac::sign(&salted, b"Server Key");
        self.signs = Some((hmac::Key::new(hmac::HMAC_SHA256, server.as_ref()), said));
        Ok(format!("{unproved},p={}", STANDARD.encode_to_string(proof)))
    }

    /// Refuses a server that does not know the password either.
    pub fn verify(&self, said: &[u8]) -> Result<()> {
        let signature = said.strip_prefix(b"v=").and_then(|text| {
            let text = text.split(|byte| *byte == b',').next()?;
            STANDARD.decode_to_vec(text).ok()
        });
        let (Some((key, text)), Some(signature)) = (&self.signs, signature) else {
            return Err(wrong("the server does not prove that it knows it"));
        };
        hmac::verify(key, text.as_bytes(), &signature)
            .map_err(|_| wrong("the server does not know it: this may be another server"))
    }
}

/// What a server is told that asks by MD5.
pub fn md5(user: &str, password: &str, salt: [u8; 4]) -> String {
    let hex = |parts: &[&[u8]]| {
        let mut digest = Md5::new();
        parts.iter().for_each(|part| digest.update(part));
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let inner = hex(&[password.as_bytes(), user.as_bytes()]);
    format!("md5{}", hex(&[inner.as_bytes(), &salt]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected is what Python's hashlib and hmac make of the formulas of RFC 5802.
    #[test]
    fn a_proof_is_what_another_s_arithmetic_says_and_a_server_must_prove_itself() {
        let mut scram = Scram::begin("pencil", &[7; 18]);
        let first = scram.first();
        assert_eq!(first, "n,,n=,r=BwcHBwcHBwcHBwcHBwcHBwcH");
        let asked = "r=BwcHBwcHBwcHBwcHBwcHBwcH%hvYDpWUa2,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        let answer = scram.answer(asked.as_bytes()).unwrap();
        assert_eq!(
            answer,
            "c=biws,r=BwcHBwcHBwcHBwcHBwcHBwcH%hvYDpWUa2,p=DzVdBrigIbfTlBmGE7M5hhJlRGxgWx28mgalbHnc+9w="
        );
        scram.verify(b"v=Oa63uYEJ9AFbpQf2G2VaG3BxWXSP84ZwnwbBYJUY71c=").unwrap();
        assert!(scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").is_err());
        for broken in ["", "v=", "e=other-error", "v=%%"] {
            assert!(scram.verify(broken.as_bytes()).is_err(), "{broken}");
        }
        let mut again = Scram::begin("pencil", &[8; 18]);
        assert!(again.answer(asked.as_bytes()).is_err(), "a nonce of another proof");
        assert!(again.verify(b"v=").is_err(), "before anything was asked");
        for broken in ["", "r=", "r=x,s=y,i=1", "\u{0}", "i=1,s=,r="] {
            assert!(scram.answer(broken.as_bytes()).is_err(), "{broken}");
        }
        let (nonce, salt) = ("r=BwcHBwcHBwcHBwcHBwcHBwcHx", "W22ZaJ0SNY7soEsUEjb6gQ==");
        for (salt, rounds) in [("%%", "1"), (salt, "0"), (salt, "-1"), (salt, "4000000000")] {
            let asked = format!("{nonce},s={salt},i={rounds}");
            assert!(scram.answer(asked.as_bytes()).is_err(), "{asked}");
        }
    }

    #[test]
    fn md5_is_the_one_that_postgresql_stores() {
        assert_eq!(md5("me", "secret", [1, 2, 3, 4]), "md58322d584bf59f0253d58346307bb6ba3");
    }
}
