//! Clients with rights of their own: what each may do, and which of its tokens counts. Part of the
//! cluster view; keeps no key: a token's key follows from the cluster's secret.

use super::identities::check_name;
use super::snapshot::{decode_map, encode_map};
use holdfast_base::codec::{DecodeError, Reader};
use holdfast_base::rules::Rules;
use holdfast_base::{Error, Result, codec_struct};
use std::collections::BTreeMap;

/// Clients that have rights.
pub const TOKENS_MAX: usize = 512;

/// What a client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Drawn when it was made: another token of the same name is another one's.
    pub id: u64,
    /// When it ends, in seconds since 1970.
    pub until_s: i64,
    /// What it allows.
    pub rules: Rules,
}
codec_struct!(Token { id, until_s, rules });

/// By name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens(BTreeMap<String, Token>);

impl Tokens {
    pub fn get(&self, name: &str) -> Option<&Token> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Token)> {
        self.0.iter().map(|(name, token)| (name.as_str(), token))
    }

    /// `now_s` is the proposer's: a name whose token has ended by then may be given again, and such
    /// tokens make room.
    pub fn put(&mut self, name: &str, token: Token, now_s: i64) -> Result<()> {
        let doing = "make a token";
        check_name(doing, name)?;
        let ended = |token: &Token| token.until_s < now_s;
        match self.0.get(name) {
            // The same once more.
            Some(known) if *known == token => return Ok(()),
            Some(known) if !ended(known) => {
                return Err(Error::exists(format!(
                    "{doing}: `{name}` has one: revoke it first (`holdfast token revoke {name}`), or choose another name"
                )));
            }
            _ => {}
        }
        if !self.0.contains_key(name) && self.0.len() >= TOKENS_MAX {
            if !self.0.values().any(ended) {
                return Err(Error::full(format!(
                    "{doing}: there are {TOKENS_MAX}: revoke those that nobody uses (`holdfast token ls`)"
                )));
            }
            self.0.retain(|_, token| !ended(token));
        }
        self.0.insert(name.to_owned(), token);
        Ok(())
    }

    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.0.remove(name).map(|_| ()).ok_or_else(|| {
            Error::not_found(format!(
                "revoke the token `{}`: there is none of that name: see `holdfast token ls`",
                name.escape_debug()
            ))
        })
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_map(&self.0, out);
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<Tokens, DecodeError> {
        Ok(Tokens(decode_map(reader)?))
    }

    /// What a snapshot says of itself.
    pub fn check(&self) -> Result<()> {
        if self.0.len() > TOKENS_MAX {
            return Err(Error::corrupt("there are more tokens than may be"));
        }
        self.0.keys().try_for_each(|name| check_name("read a token's name", name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::Kind;

    fn token(id: u64, until_s: i64) -> Token {
        Token { id, until_s, rules: Rules::parse(&["fs:/a:r"]).unwrap() }
    }

    #[test]
    fn a_name_has_one_token_until_it_ends_or_is_revoked() {
        let mut real = Tokens::default();
        real.put("a", token(1, 100), 50).unwrap();
        real.put("a", token(1, 100), 60).unwrap();
        assert_eq!(real.put("a", token(2, 200), 100).unwrap_err().kind, Kind::Exists);
        assert_eq!(real.get("a"), Some(&token(1, 100)));
        real.put("a", token(2, 200), 101).unwrap();
        assert_eq!(real.get("a").unwrap().id, 2);
        real.remove("a").unwrap();
        assert_eq!(real.remove("a").unwrap_err().kind, Kind::NotFound);
        real.put("a", token(3, 100), 50).unwrap();
        assert!(real.put("", token(4, 100), 50).is_err());
    }

    #[test]
    fn as_many_tokens_as_may_be_and_those_that_ended_make_room() {
        let mut real = Tokens::default();
        for i in 0..TOKENS_MAX {
            real.put(&format!("t{i}"), token(i as u64, 100 + i as i64), 0).unwrap();
        }
        assert!(real.check().is_ok());
        assert_eq!(real.put("more", token(1, 100), 100).unwrap_err().kind, Kind::Full);
        assert_eq!(real.iter().count(), TOKENS_MAX);
        real.put("more", token(1, 200), 101).unwrap();
        assert!(real.get("t0").is_none() && real.get("t1").is_some() && real.check().is_ok());
        let mut bytes = Vec::new();
        real.encode(&mut bytes);
        assert!(Tokens::decode(&mut Reader::new(&bytes)).unwrap() == real);
    }
}
