//! What a client has seen of a table: places in its home streams, of which the server shows it nothing older.
//! Pure.

use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::text::{from_hex, to_hex};
use holdfast_base::{Error, Result};
use holdfast_wire::table::{SEEN_MAX, Seen};
use std::collections::BTreeMap;

/// What its text begins with.
const TEXT: &str = "hfs1.";

/// At most [`SEEN_MAX`] places; of a tablet of which some had to go, none: its records are read at home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    /// By tablet, stream and epoch: a place of a later epoch does not say what became of an earlier one.
    numbers: BTreeMap<(u16, u8, u64), u64>,
    /// A bit for each tablet.
    pub(crate) forgot: u64,
}

impl Sight {
    pub(crate) fn see(&mut self, seen: Seen) {
        // A table has no more tablets than there are bits.
        if seen.tablet >= 64 || self.forgot >> seen.tablet & 1 == 1 || seen.number == 0 {
            return;
        }
        let number = self.numbers.entry((seen.tablet, seen.stream, seen.epoch)).or_default();
        *number = seen.number.max(*number);
        if self.numbers.len() > SEEN_MAX {
            self.forget();
        }
    }

    /// Lets the tablet go that has most places.
    fn forget(&mut self) {
        let mut counts = BTreeMap::<u16, usize>::new();
        self.numbers.keys().for_each(|(tablet, ..)| *counts.entry(*tablet).or_default() += 1);
        let Some((most, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
        self.numbers.retain(|(tablet, ..), _| *tablet != most);
        self.forgot |= 1 << most;
    }

    pub(crate) fn join(&mut self, other: &Sight) {
        self.forgot |= other.forgot;
        let forgot = self.forgot;
        self.numbers.retain(|(tablet, ..), _| forgot >> tablet & 1 == 0);
        other.places().into_iter().for_each(|place| self.see(place));
    }

    pub(crate) fn places(&self) -> Vec<Seen> {
        let place = |((tablet, stream, epoch), number): (&(u16, u8, u64), &u64)| Seen {
            tablet: *tablet,
            stream: *stream,
            epoch: *epoch,
            number: *number,
        };
        self.numbers.iter().map(place).collect()
    }

    /// As one line, for that table.
    pub(crate) fn text(&self, table: &str) -> String {
        let mut bytes = table.to_bytes();
        self.forgot.encode(&mut bytes);
        self.places().encode(&mut bytes);
        format!("{TEXT}{}", to_hex(&bytes))
    }

    pub(crate) fn parse(text: &str, table: &str) -> Result<Sight> {
        let wrong = |why: &str| {
            Error::invalid(format!(
                "go on with a session of table `{}`: {why}: give what a client said before, or begin another one",
                table.escape_debug()
            ))
        };
        let digits = text.trim().strip_prefix(TEXT).ok_or_else(|| wrong("the text is none"))?;
        let bytes = from_hex(digits).ok_or_else(|| wrong("the text is not whole"))?;
        let mut reader = Reader::new(&bytes);
        let decoded = String::decode(&mut reader).and_then(|of| {
            let (forgot, places) = (u64::decode(&mut reader)?, Vec::<Seen>::decode(&mut reader)?);
            reader.finish().map(|()| (of, forgot, places))
        });
        let (of, forgot, places) = decoded.map_err(|_| wrong("the text is not whole"))?;
        if of != table {
            return Err(wrong(&format!("it is of table `{}`", of.escape_debug())));
        }
        let mut sight = Sight { numbers: BTreeMap::new(), forgot };
        places.into_iter().for_each(|place| sight.see(place));
        Ok(sight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tablet: u16, stream: u8, epoch: u64, number: u64) -> Seen {
        Seen { tablet, stream, epoch, number }
    }

    #[test]
    fn the_furthest_place_of_each_epoch_is_kept() {
        let mut sight = Sight::default();
        for seen in
            [place(1, 0, 256, 5), place(1, 0, 256, 3), place(1, 0, 513, 4), place(0, 2, 258, 1)]
        {
            sight.see(seen);
        }
        let kept = [place(0, 2, 258, 1), place(1, 0, 256, 5), place(1, 0, 513, 4)];
        assert_eq!(sight.places(), kept);
        let text = sight.text("t");
        assert_eq!(Sight::parse(&format!("{text}\n"), "t").unwrap(), sight);
        for cut in 0..text.len() {
            assert!(Sight::parse(&text[..cut], "t").is_err(), "{cut}");
        }
        let other = Sight::parse(&text, "u").unwrap_err();
        assert!(other.message.contains("of table `t`"), "{other}");
        assert!(Sight::parse(&format!("{text}é"), "t").is_err());
    }

    /// However much is seen, of a tablet either all places are kept or none: some of them would show older
    /// records than were seen.
    #[test]
    fn what_is_let_go_is_let_go_whole_and_for_good() {
        let mut sight = Sight::default();
        for round in 0..3 {
            for number in 0..40u64 {
                let (tablet, stream) = ((number % 30) as u16, (number % 7) as u8);
                sight.see(place(tablet, stream, 256 + round, number + 1));
                assert!(sight.numbers.len() <= SEEN_MAX);
                let gone = |tablet: u16| sight.forgot >> tablet & 1 == 1;
                assert!(sight.numbers.keys().all(|(tablet, ..)| !gone(*tablet)));
            }
        }
        assert_ne!(sight.forgot, 0);
        let mut fresh = Sight::default();
        fresh.see(place(sight.forgot.trailing_zeros() as u16, 0, 256, 9));
        fresh.join(&sight);
        assert_eq!(fresh, sight, "what one of two has let go, both have");
    }
}
