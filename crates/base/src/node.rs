//! What a name can stand for, and where its bytes should live.

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::ids::{Durability, Tier};
use std::fmt;
use std::str::FromStr;

/// The kind of a node of the namespace. The number is stored and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum NodeKind {
    Directory = 1,
    File = 2,
    Symlink = 3,
    /// A bag of files that is read as one stream.
    MultiFile = 4,
    /// A directory of key-values.
    Table = 5,
    /// A file in a table: the last put wins.
    KeyValue = 6,
}

impl NodeKind {
    pub fn from_code(code: u8) -> Option<NodeKind> {
        use NodeKind::*;
        [Directory, File, Symlink, MultiFile, Table, KeyValue]
            .into_iter()
            .find(|k| *k as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            NodeKind::Directory => "directory",
            NodeKind::File => "file",
            NodeKind::Symlink => "symlink",
            NodeKind::MultiFile => "multifile",
            NodeKind::Table => "table",
            NodeKind::KeyValue => "key-value",
        }
    }

    /// Has names below it.
    pub fn is_container(self) -> bool {
        matches!(self, NodeKind::Directory | NodeKind::MultiFile | NodeKind::Table)
    }

    /// Whether a node of kind `child` may be made in, or moved into, one of this kind.
    pub fn may_hold(self, child: NodeKind) -> bool {
        match self {
            NodeKind::Directory => child != NodeKind::KeyValue,
            NodeKind::MultiFile => child == NodeKind::File,
            NodeKind::Table => child == NodeKind::KeyValue,
            NodeKind::File | NodeKind::Symlink | NodeKind::KeyValue => false,
        }
    }

    /// Has bytes.
    pub fn is_data(self) -> bool {
        matches!(self, NodeKind::File | NodeKind::KeyValue)
    }
}

impl Encode for NodeKind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
}

impl Decode for NodeKind {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        NodeKind::from_code(u8::decode(reader)?).ok_or(DecodeError::BadValue("node kind"))
    }
}

/// An ordered list of one to four tiers, the next taken when one is full, and what an
/// acknowledgement promises. Inherited from the directory.
///
/// Packed into 16 bits: bits 12-15 hold the durability's code, each 3 bits from the lowest a
/// tier's code plus 1, 0 ends the list.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StorageClass(u16);

pub const CLASS_TIERS_MAX: usize = 4;
const DURABLE: u16 = (Durability::Durable as u16) << (3 * CLASS_TIERS_MAX);

impl StorageClass {
    /// The root directory's: on disk, synced before the acknowledgement.
    pub const DEFAULT: StorageClass = StorageClass(DURABLE | (Tier::Disk as u16 + 1));

    /// `None` for no tier, more than four, or one twice; and for `durable` with `dram` in the
    /// list, since memory cannot keep that promise.
    pub fn new(tiers: &[Tier], durability: Durability) -> Option<StorageClass> {
        if tiers.is_empty() || tiers.len() > CLASS_TIERS_MAX {
            return None;
        }
        let mut bits = 0u16;
        for (i, tier) in tiers.iter().enumerate() {
            if tiers[..i].contains(tier) {
                return None;
            }
            bits |= (*tier as u16 + 1) << (3 * i);
        }
        if durability == Durability::Durable {
            if tiers.contains(&Tier::Dram) {
                return None;
            }
            bits |= DURABLE;
        }
        Some(StorageClass(bits))
    }

    pub fn from_code(code: u16) -> Option<StorageClass> {
        // In every answer about a file: no memory is asked for.
        let (mut tiers, mut count) = ([Tier::Disk; CLASS_TIERS_MAX], 0);
        for tier in &mut tiers {
            match (code >> (3 * count)) & 7 {
                0 => break,
                found => *tier = Tier::from_code(found as u8 - 1)?,
            }
            count += 1;
        }
        let durability = if code & DURABLE != 0 { Durability::Durable } else { Durability::Memory };
        StorageClass::new(&tiers[..count], durability).filter(|class| class.0 == code)
    }

    pub fn code(self) -> u16 {
        self.0
    }

    pub fn tiers(self) -> impl Iterator<Item = Tier> {
        (0..CLASS_TIERS_MAX)
            .map_while(move |i| ((self.0 >> (3 * i)) & 7).checked_sub(1))
            .filter_map(|code| Tier::from_code(code as u8))
    }

    pub fn durability(self) -> Durability {
        if self.0 & DURABLE != 0 { Durability::Durable } else { Durability::Memory }
    }
}

impl fmt::Display for StorageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, tier) in self.tiers().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            f.write_str(tier.name())?;
        }
        write!(f, ":{}", self.durability().name())
    }
}

impl fmt::Debug for StorageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads `disk`, `dram`, `dram,disk`, `disk:memory`: without a class, `durable` where every tier
/// can keep that promise.
impl FromStr for StorageClass {
    type Err = String;

    fn from_str(text: &str) -> Result<StorageClass, String> {
        let wrong = || {
            format!(
                "storage class `{text}` is not one of `disk`, `disk:memory`, `dram`, `dram,disk`"
            )
        };
        let (names, durability) = match text.split_once(':') {
            Some((names, "durable")) => (names, Some(Durability::Durable)),
            Some((names, "memory")) => (names, Some(Durability::Memory)),
            Some(_) => return Err(wrong()),
            None => (text, None),
        };
        let tiers = names
            .split(',')
            .map(|name| match name {
                "dram" => Ok(Tier::Dram),
                "disk" => Ok(Tier::Disk),
                _ => Err(wrong()),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let durability = durability.unwrap_or(if tiers.contains(&Tier::Dram) {
            Durability::Memory
        } else {
            Durability::Durable
        });
        StorageClass::new(&tiers, durability).ok_or_else(wrong)
    }
}

impl Encode for StorageClass {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for StorageClass {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        StorageClass::from_code(u16::decode(reader)?).ok_or(DecodeError::BadValue("storage class"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_and_printed() {
        for (text, printed) in [
            ("disk", "disk:durable"),
            ("disk:memory", "disk:memory"),
            ("dram", "dram:memory"),
            ("dram,disk", "dram,disk:memory"),
        ] {
            let class: StorageClass = text.parse().unwrap();
            assert_eq!(class.to_string(), printed);
            assert_eq!(StorageClass::from_code(class.code()), Some(class));
        }
        assert_eq!("disk".parse(), Ok(StorageClass::DEFAULT));
        for bad in
            ["", "tape", "disk,disk", "dram:durable", "dram,disk:durable", "disk:", "disk:safe"]
        {
            assert!(bad.parse::<StorageClass>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_other_code_is_refused() {
        let valid: Vec<u16> =
            (0..=u16::MAX).filter(|c| StorageClass::from_code(*c).is_some()).collect();
        assert_eq!(valid.len(), 5, "disk twice, dram, and both orders of the two: {valid:?}");
    }
}
