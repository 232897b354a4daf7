//! Named readers: how far each has come, which is an entry of the category's topic, so that whoever folds the
//! category knows it. Pure.

use crate::category::Category;
use holdfast_base::codec::{DecodeError, Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};

/// Readers of a category: each is a name and a number in every snapshot.
pub const READERS_MAX: usize = 1024;
/// Of such an entry; a batch has a smaller one.
pub const VERSION: u8 = 2;

/// A reader has taken what is in front of `next`; 0 forgets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its name has the letters of a category's.
    pub reader: String,
    pub next: Index,
}

/// Refuses what is no name.
pub fn check_name(name: &str) -> Result<()> {
    // The same letters, and for the same reasons.
    Category::new(name).map(drop).map_err(|e| {
        let what = e.message.replacen("use category", "use reader", 1);
        Error { message: what, ..e }
    })
}

/// Whether an entry is one.
pub fn is_one(entry: &[u8]) -> bool {
    entry.first() == Some(&VERSION)
}

impl Moved {
    /// As an entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_bytes(&mut out, self.reader.as_bytes());
        out.extend_from_slice(&self.next.0.to_le_bytes());
        out
    }

    /// Reads an entry.
    pub fn decode(entry: &[u8]) -> Result<Moved> {
        let parse = || {
            let mut reader = Reader::new(entry);
            if reader.array::<1>()? != [VERSION] {
                return Err(DecodeError::BadValue("version"));
            }
            let name = reader.str()?.to_owned();
            let next = Index(u64::from_le_bytes(reader.array()?));
            reader.finish()?;
            Ok(Moved { reader: name, next })
        };
        let moved = parse().map_err(|e| Error::from(e).context("read a reader's position"))?;
        check_name(&moved.reader)?;
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_back_and_what_is_none_is_refused() {
        let moved = Moved { reader: "Loader-1".into(), next: Index(7) };
        let entry = moved.encode();
        assert_eq!(Moved::decode(&entry), Ok(moved));
        assert!(is_one(&entry) && !is_one(&[]) && !is_one(&[1]));
        for at in 0..entry.len() {
            assert!(Moved::decode(&entry[..at]).is_err(), "cut at {at}");
        }
        assert!(Moved::decode(&[&entry[..], &[0]].concat()).is_err());
        let wrong = check_name("../a").unwrap_err();
        assert!(wrong.message.starts_with("use reader `../a`"), "{wrong}");
    }
}
