//! Words: what a spool says of itself in a category, as an entry of its topic. One says that the spool begins
//! to send, and under which name; the other that it has nothing more. docs/formats/scribe.md has them byte by
//! byte. Pure.

use crate::batch::{Position, SpoolId};
use holdfast_base::codec::{DecodeError, Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};

/// A spool's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Of such an entry; batches and readers' places have smaller ones.
pub const VERSION: u8 = 3;
const _: () = assert!(VERSION > crate::reader::VERSION);

const BEGINS: u8 = 1;
const ENDS: u8 = 2;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub spool: SpoolId,
    /// The last entry of this name's, or of this spool's, that its agent had heard of: a word that was under
    /// way while another one came says nothing.
    pub knows: Index,
    pub says: Says,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// The spool begins to send.
    Begins {
        /// What outlives the spool's directory.
        name: String,
        /// When the node heard of it, by its clock: for people.
        unix_ms: u64,
    },
    /// Its agent ends, and the topic has everything up to here, which is all that there is.
    Ends(Position),
}

/// Refuses what is no name: it is shown in terminals and in metrics.
pub fn check_name(name: &str) -> Result<()> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    match fits && !name.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "name a spool `{}`: its name may have 1 to {NAME_BYTES_MAX} bytes, and no control characters: \
             choose another one (`--name`)",
            name.chars().take(80).collect::<String>().escape_debug()
        ))),
    }
}

/// Whether an entry is one.
pub fn is_one(entry: &[u8]) -> bool {
    entry.first() == Some(&VERSION)
}

impl Word {
    /// As an entry.
    pub fn encode(&self) -> Vec<u8> {
        let kind = match &self.says {
            Says::Begins { .. } => BEGINS,
            Says::Ends(_) => ENDS,
        };
        let mut out = vec![VERSION, kind];
        out.extend_from_slice(&self.spool.0.to_le_bytes());
        out.extend_from_slice(&self.knows.0.to_le_bytes());
        match &self.says {
            Says::Begins { name, unix_ms } => {
                out.extend_from_slice(&unix_ms.to_le_bytes());
                put_bytes(&mut out, name.as_bytes());
            }
            Says::Ends(Position { next, checksum }) => {
                out.extend_from_slice(&next.to_le_bytes());
                out.extend_from_slice(&checksum.to_le_bytes());
            }
        }
        out
    }

    /// Reads an entry.
    pub fn decode(entry: &[u8]) -> Result<Word> {
        let parse = || {
            let mut reader = Reader::new(entry);
            let [version, kind] = reader.array()?;
            if version != VERSION {
                return Err(DecodeError::BadValue("version"));
            }
            let spool = SpoolId(u64::from_le_bytes(reader.array()?));
            let knows = Index(u64::from_le_bytes(reader.array()?));
            let number = u64::from_le_bytes(reader.array()?);
            let says = match kind {
                BEGINS => Says::Begins { name: reader.str()?.to_owned(), unix_ms: number },
                ENDS => {
                    let checksum = u32::from_le_bytes(reader.array()?);
                    Says::Ends(Position { next: number, checksum })
                }
                _ => return Err(DecodeError::BadValue("kind")),
            };
            reader.finish()?;
            Ok(Word { spool, knows, says })
        };
        let word = parse().map_err(|e| Error::from(e).context("read a spool's word"))?;
        if word.spool == SpoolId::NONE {
            return Err(Error::invalid("read a spool's word: it is of no spool"));
        }
        if let Says::Begins { name, .. } = &word.says {
            check_name(name)?;
        }
        Ok(word)
    }
}

/// What a word came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Whether what was said holds now.
    pub counts: bool,
    /// What the spool's next word has to know.
    pub entry: Index,
    /// Whether the spool counted as lost until now.
    pub was_lost: bool,
    /// Spools of this name that count as lost by this word, and the number from which on.
    pub lost: Vec<(SpoolId, u64)>,
}

impl Heard {
    /// As the entry's result.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.counts), u8::from(self.was_lost)];
        out.extend_from_slice(&self.entry.0.to_le_bytes());
        for (spool, next) in &self.lost {
            out.extend_from_slice(&spool.0.to_le_bytes());
            out.extend_from_slice(&next.to_le_bytes());
        }
        out
    }

    /// The inverse.
    pub fn decode(result: &[u8]) -> Result<Heard> {
        let mut reader = Reader::new(result);
        let [counts, was_lost] = reader.array()?;
        let entry = Index(u64::from_le_bytes(reader.array()?));
        let mut lost = Vec::new();
        while reader.remaining() > 0 {
            let spool = SpoolId(u64::from_le_bytes(reader.array()?));
            lost.push((spool, u64::from_le_bytes(reader.array()?)));
        }
        Ok(Heard { counts: counts == 1, entry, was_lost: was_lost == 1, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> [Word; 2] {
        let (name, spool, knows) = ("h:/s".to_owned(), SpoolId(0x0102), Index(3));
        let ends = Says::Ends(Position { next: 7, checksum: 9 });
        [
            Word { spool, knows, says: Says::Begins { name, unix_ms: 5 } },
            Word { spool, knows, says: ends },
        ]
    }

    #[test]
    fn the_bytes_stay_as_they_are_documented() {
        let hex = words()
            .map(|word| word.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let head = "02010000000000000300000000000000";
        assert_eq!(hex[0], format!("0301{head}050000000000000004000000683a2f73"));
        assert_eq!(hex[1], format!("0302{head}070000000000000009000000"));
    }

    #[test]
    fn words_come_back_and_what_is_none_is_refused() {
        for word in words() {
            let entry = word.encode();
            assert_eq!(Word::decode(&entry), Ok(word));
            assert!(is_one(&entry));
            for at in 0..entry.len() {
                assert!(Word::decode(&entry[..at]).is_err(), "cut at {at}");
            }
            assert!(Word::decode(&[&entry[..], &[0]].concat()).is_err());
            let mut nobodys = entry.clone();
            nobodys[2..10].fill(0);
            assert!(Word::decode(&nobodys).is_err());
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "a\nb", "\u{1b}[31m", &long] {
            assert!(check_name(name).unwrap_err().message.contains("--name"), "{name:?}");
        }
        assert_eq!(check_name("häuser:/var/spool/x y"), Ok(()));
        let heard = Heard {
            counts: true,
            entry: Index(7),
            was_lost: true,
            lost: vec![(SpoolId(1), 2), (SpoolId(3), 4)],
        };
        assert_eq!(Heard::decode(&heard.encode()), Ok(heard));
    }
}
