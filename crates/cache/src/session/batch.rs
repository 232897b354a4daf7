//! The keys of gets that are answered together, and how an answer is written: what the hottest loop
//! of the cache touches.

use crate::engine::{Engine, large_of};
use crate::large::Large;
use crate::out::{Out, digits_of};
use crate::store::{Lookup, Probe, Seen};
use holdfast_env::arena::SLACK_BYTES;
use holdfast_env::trial::Knob;

/// Keys whose lines are loaded at once.
pub(super) static BATCH: Knob = Knob::new("cache.get-batch", 128, &[1, 2, 5]);

/// One key of a get.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    pub(super) start: u32,
    pub(super) len: u8,
    /// The line ends behind it: `END` follows. With no length, it only ends.
    pub(super) end: bool,
    pub(super) with_cas: bool,
    pub(super) hash: u64,
}

/// The batch of a thread, empty between two calls of a session.
pub struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) probes: Vec<Probe>,
    pub(super) suffix: Suffix,
    /// Where in `out` the answers of the get that is being parsed begin, if part of them is there.
    pub(super) answers_at: Option<usize>,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            entries: Vec::with_capacity(BATCH.usual() as usize),
            probes: Vec::with_capacity(BATCH.usual() as usize),
            suffix: Suffix::default(),
            answers_at: None,
        }
    }
}

/// ` FLAGS LENGTH\r\n` of the item before: as a rule the next one's, too.
pub(super) struct Suffix {
    flags: u32,
    pub(super) len: usize,
    text: [u8; 32],
    text_len: usize,
}

impl Default for Suffix {
    fn default() -> Suffix {
        Suffix { flags: u32::MAX, len: usize::MAX, text: [0; 32], text_len: 0 }
    }
}

impl Suffix {
    #[inline(always)]
    fn of(&mut self, flags: u32, len: usize) -> (&[u8; 32], usize) {
        if flags != self.flags || len != self.len {
            self.make(flags, len);
        }
        (&self.text, self.text_len)
    }

    fn make(&mut self, flags: u32, len: usize) {
        (self.flags, self.len) = (flags, len);
        let mut at = 0;
        for number in [u64::from(flags), len as u64] {
            let mut digits = [0; 20];
            let from = digits_of(number, &mut digits);
            self.text[at] = b' ';
            let n = digits.len() - from;
            self.text[at + 1..at + 1 + n].copy_from_slice(&digits[from..]);
            at += 1 + n;
        }
        self.text[at..at + 2].copy_from_slice(b"\r\n");
        self.text_len = at + 2;
    }
}

pub(super) enum Emitted {
    Hit,
    Miss,
    Large(Large),
}

/// Looks a key up and writes its answer. `key` begins with the key and has slack behind it.
#[inline(always)]
pub(super) fn emit(
    engine: &mut Engine,
    mut probe: Probe,
    key: &[u8],
    entry: Entry,
    suffix: &mut Suffix,
    out: &mut Out,
) -> Emitted {
    let key_len = entry.len as usize;
    let store = &engine.store;
    loop {
        let seen = match store.look_up(&probe, &key[..key_len]) {
            Lookup::Found(seen) => seen,
            missing if store.confirm(&probe) => {
                engine.count_miss(missing);
                return Emitted::Miss;
            }
            _ => {
                probe = store.probe(entry.hash, 0);
                continue;
            }
        };
        let large = large_of(store, &seen);
        let written = if large.is_none() {
            emit_value(store, &seen, (key, key_len), entry.with_cas, suffix, out)
        } else {
            0
        };
        engine.store.count_read(&mut engine.writer, &seen, entry.with_cas);
        if store.confirm(&probe) {
            if let Some(large) = large {
                return Emitted::Large(large);
            }
            out.advance_by(written);
            return Emitted::Hit;
        }
        probe = store.probe(entry.hash, 0);
    }
}

/// Writes `VALUE key flags length [cas]\r\nvalue\r\n` behind the end; says how long it is.
#[inline(always)]
pub(super) fn emit_value(
    store: &crate::store::Store,
    seen: &Seen,
    (key, key_len): (&[u8], usize),
    with_cas: bool,
    suffix: &mut Suffix,
    out: &mut Out,
) -> usize {
    /// Beside key and value: `VALUE `, two numbers and a cas, spaces, line ends.
    const FRAME_BYTES: usize = 80;
    let value_len = seen.head.value_len();
    let flags = store.flags(seen.place, seen.head);
    let room = out.room(FRAME_BYTES + key_len + value_len);
    room[..8].copy_from_slice(b"VALUE \0\0");
    let mut at = 6;
    // Whole blocks: there is slack on both sides, and what runs over is overwritten.
    let mut copied = 0;
    while copied < key_len {
        room[at + copied..at + copied + 16].copy_from_slice(&key[copied..copied + 16]);
        copied += 16;
    }
    at += key_len;
    let (text, text_len) = suffix.of(flags, value_len);
    room[at..at + 32].copy_from_slice(text);
    at += text_len;
    if with_cas {
        at -= 2;
        let mut digits = [0; 20];
        let from = digits_of(store.cas(seen.place, seen.head), &mut digits);
        room[at] = b' ';
        let n = digits.len() - from;
        room[at + 1..at + 1 + n].copy_from_slice(&digits[from..]);
        at += 1 + n;
        room[at..at + 2].copy_from_slice(b"\r\n");
        at += 2;
    }
    store.copy_value(seen, &mut room[at..]);
    at += value_len;
    room[at..at + 2].copy_from_slice(b"\r\n");
    at + 2
}

pub(super) fn value_line(key: &[u8], flags: u32, bytes: u64, cas: Option<u64>, out: &mut Out) {
    out.push(b"VALUE ");
    out.push(key);
    for number in [Some(u64::from(flags)), Some(bytes), cas].into_iter().flatten() {
        out.push(b" ");
        out.number(number);
    }
    out.push(b"\r\n");
}

const _: () = assert!(SLACK_BYTES >= 32, "keys and suffixes are copied in blocks");
