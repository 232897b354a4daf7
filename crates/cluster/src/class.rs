//! A file's class in 16 bits: the tiers that may hold it, in order of preference, and what an
//! acknowledgement promises. Directories carry one and hand it on to what is made in them.

use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::{Durability, Tier};
use holdfast_base::{Error, Result};
use std::fmt;

/// Tiers that one class can name.
pub const CLASS_TIERS_MAX: usize = 4;
const TIER_BITS: usize = 3;
const DURABILITY_SHIFT: usize = CLASS_TIERS_MAX * TIER_BITS;

/// Bits 0-11: four fields of three bits, tier code + 1, 0 for none, none before some.
/// Bits 12-15: the durability's code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClassSet(u16);

impl ClassSet {
    /// The root's class: on `disk`, synced before the acknowledgement.
    pub const DEFAULT: ClassSet =
        ClassSet((Tier::Disk as u16 + 1) | (Durability::Durable as u16) << DURABILITY_SHIFT);

    /// Refuses an empty list, more than four tiers, and a tier named twice.
    pub fn new(tiers: &[Tier], durability: Durability) -> Result<ClassSet> {
        if tiers.is_empty() || tiers.len() > CLASS_TIERS_MAX {
            return Err(Error::invalid(format!(
                "a class names 1 to {CLASS_TIERS_MAX} tiers, not {}",
                tiers.len()
            )));
        }
        let mut bits = (durability as u16) << DURABILITY_SHIFT;
        for (i, tier) in tiers.iter().enumerate() {
            if tiers[..i].contains(tier) {
                return Err(Error::invalid(format!("a class names tier `{}` twice", tier.name())));
            }
            bits |= (*tier as u16 + 1) << (i * TIER_BITS);
        }
        Ok(ClassSet(bits))
    }

    pub fn to_bits(self) -> u16 {
        self.0
    }

    /// The inverse of [`ClassSet::to_bits`]; `None` for what `new` would not make.
    pub fn from_bits(bits: u16) -> Option<ClassSet> {
        let mut tiers = [Tier::Disk; CLASS_TIERS_MAX];
        let mut len = 0;
        for i in 0..CLASS_TIERS_MAX {
            let code = bits >> (i * TIER_BITS) & 7;
            if code != 0 {
                if len != i {
                    return None;
                }
                tiers[len] = Tier::from_code(code as u8 - 1)?;
                len += 1;
            }
        }
        let durability = Durability::from_code((bits >> DURABILITY_SHIFT) as u8)?;
        ClassSet::new(&tiers[..len], durability).ok()
    }

    /// For bits that a `ClassSet` wrote.
    pub(crate) fn from_stored(bits: u16) -> ClassSet {
        ClassSet(bits)
    }

    /// The tiers, best first.
    pub fn tiers(self) -> impl Iterator<Item = Tier> {
        (0..CLASS_TIERS_MAX)
            .map(move |i| self.0 >> (i * TIER_BITS) & 7)
            .take_while(|code| *code != 0)
            .filter_map(|code| Tier::from_code(code as u8 - 1))
    }

    pub fn durability(self) -> Durability {
        Durability::from_code((self.0 >> DURABILITY_SHIFT) as u8).unwrap_or(Durability::Durable)
    }
}

impl Default for ClassSet {
    fn default() -> ClassSet {
        ClassSet::DEFAULT
    }
}

impl fmt::Display for ClassSet {
    /// `dram,disk:durable`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, tier) in self.tiers().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "," }, tier.name())?;
        }
        write!(f, ":{}", self.durability().name())
    }
}

impl fmt::Debug for ClassSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Encode for ClassSet {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for ClassSet {
    fn decode(reader: &mut Reader<'_>) -> Result<ClassSet, DecodeError> {
        ClassSet::from_bits(u16::decode(reader)?).ok_or(DecodeError::BadValue("class"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_new_makes_is_decoded() {
        let mut good = 0;
        for bits in 0..=u16::MAX {
            if let Some(class) = ClassSet::from_bits(bits) {
                good += 1;
                let tiers: Vec<_> = class.tiers().collect();
                let made = ClassSet::new(&tiers, class.durability()).unwrap();
                assert_eq!(made.to_bits(), bits);
            }
        }
        // dram, disk, dram+disk, disk+dram; memory or durable.
        assert_eq!(good, 8);
        assert_eq!(ClassSet::DEFAULT.to_string(), "disk:durable");
        assert!(ClassSet::new(&[], Durability::Memory).is_err());
        assert!(ClassSet::new(&[Tier::Dram, Tier::Dram], Durability::Memory).is_err());
    }
}
