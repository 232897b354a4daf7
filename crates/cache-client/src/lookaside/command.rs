//! The meta commands of [`super::Lookaside`], and of who invalidates what it keeps: their bytes, and what
//! their answers say. Pure; a server may answer anything.

use super::lookup::{FILLED_EMPTY, Fill, Filled, Item};
use crate::wire::{line_at, number, push_number, word};

/// Asks for a key, and makes an item without a value for it if there is none (`N`): several of these and
/// [`END`] are one request.
pub fn ask(key: &[u8], lease_s: u32, refresh_s: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    out.extend_from_slice(key);
    out.extend_from_slice(b" q k v f c N");
    push_number(out, lease_s.into());
    if refresh_s > 0 {
        out.extend_from_slice(b" R");
        push_number(out, refresh_s.into());
    }
    out.extend_from_slice(b"\r\n");
}

/// Asks for a key, and makes nothing; ended as the former are.
pub fn look(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    out.extend_from_slice(key);
    out.extend_from_slice(b" q k v f c\r\n");
}

/// Whether an answer to [`look`] says that there is a value, and that it is not stale.
pub fn has(answer: &[u8], key: &[u8]) -> bool {
    let item = items(answer).find(|(of, _)| *of == key);
    item.is_some_and(|(_, item)| !item.data.is_empty() && !item.is_stale)
}

/// Ends a request of quiet commands: its answer says that all before it were carried out.
pub const END: &[u8] = b"mn\r\n";

/// Stores a value, or deletes the item that holds its place.
pub fn fill(fill: &Fill<'_>, key: &[u8], expiry_s: u32, out: &mut Vec<u8>) {
    let put = |letter: &[u8], number: u64, out: &mut Vec<u8>| {
        out.extend_from_slice(letter);
        push_number(out, number);
    };
    out.extend_from_slice(if fill.value.is_some() { b"ms " } else { b"md " });
    out.extend_from_slice(key);
    if let Some(value) = fill.value {
        put(b" ", value.len() as u64, out);
        put(b" T", expiry_s.into(), out);
        if value.is_empty() {
            put(b" F", FILLED_EMPTY.into(), out);
        }
    }
    if let Some(cas) = fill.cas {
        put(b" C", cas, out);
    }
    out.extend_from_slice(b"\r\n");
    if let Some(value) = fill.value {
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// What the answer to [`fill`] says.
pub fn filled(answer: &[u8]) -> Filled {
    match answer.get(..2) {
        // The first releases of memcached 1.6 said OK where later ones say HD.
        Some(b"HD" | b"OK") => Filled::Stored,
        Some(b"EX" | b"NF" | b"NS") => Filled::Refused,
        _ => Filled::Failed,
    }
}

/// Makes a key's value old: deletes it, or, with a time, leaves it for those who take old values while one of
/// them loads the new one. Plain gets do not see the mark: with a time, all readers must be lookasides.
pub fn invalidate(key: &[u8], stale_s: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"md ");
    out.extend_from_slice(key);
    if stale_s > 0 {
        out.extend_from_slice(b" I T");
        push_number(out, stale_s.into());
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether the answer to [`invalidate`] says that it was carried out.
pub fn is_invalidated(answer: &[u8]) -> bool {
    matches!(answer.get(..2), Some(b"HD" | b"OK" | b"NF"))
}

/// The same of several and [`END`].
pub fn are_invalidated(answer: &[u8], keys: usize) -> bool {
    let mut lines = answer.split(|b| *b == b'\n');
    let done = lines.by_ref().take(keys).filter(|line| is_invalidated(line)).count();
    done == keys && lines.next() == Some(b"MN\r") && lines.next() == Some(b"")
}

/// The items of a whole answer to several of [`ask`], with their keys, in order; what is no item is left out.
pub fn items(answer: &[u8]) -> Items<'_> {
    Items { rest: answer }
}

pub struct Items<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Items<'a> {
    type Item = (&'a [u8], Item<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = line_at(self.rest, 0).ok()??;
            let behind = line.len() + 2;
            if word(line, 0) != b"VA" {
                // A refusal, or the end.
                self.rest = &self.rest[behind..];
                continue;
            }
            let len = usize::try_from(number(word(line, 1))?).ok()?;
            let end = behind.checked_add(len)?.checked_add(2)?;
            let data = self.rest.get(behind..end)?;
            self.rest = &self.rest[end..];
            if let Some(item) = item(line, &data[..len]) {
                return Some(item);
            }
        }
    }
}

fn item<'a>(line: &'a [u8], data: &'a [u8]) -> Option<(&'a [u8], Item<'a>)> {
    let (mut key, mut cas, mut flags) = (None, None, None);
    let mut item =
        Item { data, flags: 0, cas: 0, is_won: false, is_promised: false, is_stale: false };
    for word in line.split(|b| *b == b' ').skip(2) {
        let (letter, rest) = word.split_first()?;
        match letter {
            b'k' => key = Some(rest),
            b'c' => cas = number(rest),
            b'f' => flags = number(rest).and_then(|flags| u32::try_from(flags).ok()),
            b'W' => item.is_won = true,
            b'Z' => item.is_promised = true,
            b'X' => item.is_stale = true,
            _ => {}
        }
    }
    (item.cas, item.flags) = (cas?, flags?);
    Some((key?, item))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_and_what_is_none_is_left_out() {
        let answer = b"VA 3 kab f0 c7\r\nx\r\n\r\nSERVER_ERROR out of memory\r\n\
            VA 0 kc f1 c8 W Z X\r\n\r\nVA 1 kd f0\r\nx\r\nMN\r\n";
        let found: Vec<_> = items(answer).collect();
        assert_eq!(found.len(), 2, "an item without its number cannot be filled: {found:?}");
        assert_eq!((found[0].0, found[0].1.data, found[0].1.cas), (&b"ab"[..], &b"x\r\n"[..], 7));
        let (key, item) = found[1];
        assert_eq!((key, item.flags, item.cas), (&b"c"[..], 1, 8));
        assert!(item.is_won && item.is_promised && item.is_stale);
        assert!(!found[0].1.is_won && !found[0].1.is_stale);
        for cut in 0..answer.len() {
            assert!(items(&answer[..cut]).count() <= 2);
        }
        assert!(are_invalidated(b"HD\r\nNF\r\nMN\r\n", 2) && are_invalidated(b"MN\r\n", 0));
        assert!(!are_invalidated(b"HD\r\nMN\r\n", 2), "one was not answered");
        assert!(!are_invalidated(b"HD\r\nSERVER_ERROR no\r\nMN\r\n", 2));
        assert_eq!(items(b"VA 18446744073709551615 ka f0 c1\r\nx\r\n").count(), 0);
    }

    #[test]
    fn commands_are_memcached_s() {
        let mut out = Vec::new();
        ask(b"k", 10, 0, &mut out);
        ask(b"l", 10, 5, &mut out);
        let value = Some(&b"new"[..]);
        let with = Fill { number: 0, server: 0, value, cas: Some(9), ended: 0 };
        fill(&with, b"k", 60, &mut out);
        fill(&Fill { value: Some(b""), ..with }, b"k", 0, &mut out);
        fill(&Fill { value: None, ..with }, b"k", 60, &mut out);
        invalidate(b"k", 0, &mut out);
        invalidate(b"k", 30, &mut out);
        look(b"k", &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "mg k q k v f c N10\r\nmg l q k v f c N10 R5\r\nms k 3 T60 C9\r\nnew\r\n\
             ms k 0 T0 F1 C9\r\n\r\nmd k C9\r\nmd k\r\nmd k I T30\r\nmg k q k v f c\r\n"
        );
    }
}
