//! Where one is in what has shown in a table, as a topic keeps it. Pure.

use holdfast_base::{Error, Result};
use holdfast_wire::table::{ChangesAt, ShownAt, TABLETS_MAX};
use std::fmt;

/// Home streams of a tablet.
const STREAMS_MAX: usize = u8::MAX as usize;

/// A place behind what has shown in each tablet of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableAt {
    pub table: String,
    /// In order; none of a table that is not there.
    pub tablets: Vec<ChangesAt>,
}

impl TableAt {
    /// `TABLE:` and of each tablet, with commas, `FORM.LIFE.NEXT`, and of each stream `.STREAM.EPOCH.NUMBER.DIGEST`, in
    /// hexadecimal.
    pub(crate) fn parse(text: &str) -> Result<TableAt> {
        let wrong = || {
            let shown = text.escape_debug();
            Error::invalid(format!("read position `table-{shown}`: it is none of a table"))
        };
        let (table, tablets) = text.split_once(':').ok_or_else(wrong)?;
        let tablets: Vec<&str> = tablets.split(',').filter(|one| !one.is_empty()).collect();
        if tablets.len() > usize::from(TABLETS_MAX) {
            return Err(wrong());
        }
        let tablets = tablets.into_iter().map(|one| tablet(one).ok_or_else(wrong));
        Ok(TableAt { table: table.to_owned(), tablets: tablets.collect::<Result<_>>()? })
    }

    /// Whether all that lies before `other` lies before it. Places of another life are none of this one's. Before what a
    /// tablet shows that was cut off another one since lies nothing but what that one has shown.
    pub(crate) fn covers(&self, other: &TableAt) -> bool {
        let covers = |(at, other): (&ChangesAt, &ChangesAt)| {
            (at.form, at.life) == (other.form, other.life) && at.next >= other.next
        };
        self.table == other.table
            && self.tablets.is_empty() == other.tablets.is_empty()
            && self.tablets.len() >= other.tablets.len()
            && self.tablets.iter().zip(&other.tablets).all(covers)
    }
}

fn tablet(text: &str) -> Option<ChangesAt> {
    let number = |part: &str| {
        let is_hex = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(part, 16).ok().filter(|_| is_hex)
    };
    let numbers = text.split('.').map(number).collect::<Option<Vec<u64>>>()?;
    let (first, seen) = numbers.split_first_chunk::<3>()?;
    let (seen, rest) = seen.as_chunks::<4>();
    if !rest.is_empty() || seen.len() > STREAMS_MAX {
        return None;
    }
    let seen = seen.iter().map(|[stream, epoch, number, digest]| {
        let stream = u8::try_from(*stream).ok()?;
        Some(ShownAt { stream, epoch: *epoch, number: *number, digest: *digest })
    });
    let [form, life, next] = *first;
    Some(ChangesAt {
        form: u32::try_from(form).ok()?,
        life,
        next,
        seen: seen.collect::<Option<_>>()?,
    })
}

impl fmt::Display for TableAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.table)?;
        for (number, at) in self.tablets.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{:x}.{:x}.{:x}", at.form, at.life, at.next)?;
            for ShownAt { stream, epoch, number, digest } in &at.seen {
                write!(f, ".{stream:x}.{epoch:x}.{number:x}.{digest:x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::Position;

    #[test]
    fn positions_of_a_table_are_read_as_they_print_and_compared_within_a_life() {
        let text = "table-users.v-2:deadbeef.ff.3.0.100.1f.abc.2.202.0.0,deadbeee.fe.0";
        let position = Position::parse(text).unwrap();
        assert_eq!(position.to_string(), text);
        let Position::Table(at) = &position else { panic!("{position:?}") };
        assert_eq!((at.table.as_str(), at.tablets.len(), at.tablets[0].next), ("users.v-2", 2, 3));
        assert_eq!(
            at.tablets[0].seen[0],
            ShownAt { stream: 0, epoch: 256, number: 31, digest: 0xabc }
        );
        let covers = |other: &str| position.covers(&Position::parse(other).unwrap());
        assert!(covers(text) && covers(&text.replace(".ff.3.", ".ff.2.")));
        let split = Position::parse(&format!("{text},deadbeef.fc.1")).unwrap();
        assert!(split.covers(&position) && !position.covers(&split), "{split}");
        for other in [".ff.4.", ".fd.3."] {
            assert!(!covers(&text.replace(".ff.3.", other)), "{other}");
        }
        assert!(
            !covers(&text.replace("users", "other")) && !covers("table-users.v-2:") && !covers("")
        );
        let none = Position::parse("table-users:").unwrap();
        assert_eq!((none.to_string().as_str(), none.kind()), ("table-users:", position.kind()));
        for wrong in [
            "table-",
            "table-u",
            "table-u:1.2",
            "table-u:1.2.3.4",
            "table-u:1.2.x",
            "table-u:1.2.+3",
        ] {
            assert!(Position::parse(wrong).is_err(), "{wrong}");
        }
        let many = format!("table-u:{}", "1.2.3,".repeat(65));
        assert!(Position::parse(&many).is_err(), "more tablets than a table has");
    }
}
