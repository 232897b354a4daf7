//! Operations that are asked for together, and their answers: one allocation for all keys, one
//! for all values, kept from one use to the next.

use crate::wire::{self, is_key, push_number};
use holdfast_base::{Error, Result};

/// End of a chain of operations.
pub(crate) const NONE: u32 = u32::MAX;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Set,
    /// Only if the key has none.
    Add,
    /// Only if the key has one.
    Replace,
    Append,
    Prepend,
    /// Only if it is still the one that was read with this number.
    Cas(u64),
}

/// What an operation came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    Hit {
        data: &'a [u8],
        flags: u32,
        /// 0 unless it was asked for.
        cas: u64,
    },
    Miss,
    /// No answer in time, over UDP: as good as a miss, but the item may well be there.
    Lost,
    /// Stored, deleted or touched.
    Done,
    /// The key has a value, or has none, against the condition.
    NotStored,
    /// Another has changed the value since it was read.
    Exists,
    /// There is nothing to change.
    NotFound,
    Number(u64),
    /// The server's own words.
    Refused(&'a [u8]),
    /// The server is dead. If `maybe`, it may have carried the operation out before.
    Dead {
        maybe: bool,
    },
}

impl<'a> Answer<'a> {
    /// The value, if there is one.
    pub fn data(&self) -> Option<&'a [u8]> {
        match self {
            Answer::Hit { data, .. } => Some(data),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Kept {
    Pending,
    Hit { from: usize, to: usize, flags: u32, cas: u64 },
    Refused { from: usize, to: usize },
    Other(Answer<'static>),
}

#[derive(Clone, Copy)]
pub(crate) struct Operation {
    key: (u32, u32),
    /// The whole request; for gets the key alone.
    request: (u32, u32),
    pub is_get: bool,
    pub with_cas: bool,
    /// The next get of the same server.
    pub next: u32,
    kept: Kept,
}

/// Operations for [`Client::run`](crate::Client::run), each with a number by which its answer is
/// found. Cleared, it can be filled again.
#[derive(Default)]
pub struct Batch {
    bytes: Vec<u8>,
    operations: Vec<Operation>,
    answers: Vec<u8>,
    /// Operations without an answer.
    pub(crate) pending: usize,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.operations.clear();
        self.answers.clear();
        self.pending = 0;
    }

    pub fn len(&self) -> usize {
        self.operations.len()
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub fn get(&mut self, key: &[u8]) -> Result<usize> {
        self.read(key, false)
    }

    /// As `get`, with the number that [`Store::Cas`] wants.
    pub fn gets(&mut self, key: &[u8]) -> Result<usize> {
        self.read(key, true)
    }

    fn read(&mut self, key: &[u8], with_cas: bool) -> Result<usize> {
        check(key)?;
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        let range = (start, self.bytes.len() as u32);
        let kept = Kept::Pending;
        let of = Operation { key: range, request: range, is_get: true, with_cas, next: NONE, kept };
        self.operations.push(of);
        Ok(self.operations.len() - 1)
    }

    /// Stores a value for `expiry_s` seconds, 0 for good (memcached's rules: more than 30 days is
    /// a date, less than nothing is at once).
    pub fn store(
        &mut self,
        how: Store,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expiry_s: i64,
    ) -> Result<usize> {
        let (verb, cas): (&[u8], _) = match how {
            Store::Set => (b"set ", None),
            Store::Add => (b"add ", None),
            Store::Replace => (b"replace ", None),
            Store::Append => (b"append ", None),
            Store::Prepend => (b"prepend ", None),
            Store::Cas(number) => (b"cas ", Some(number)),
        };
        self.write(verb, key, |bytes| {
            bytes.push(b' ');
            push_number(bytes, u64::from(flags));
            push_expiry(bytes, expiry_s);
            bytes.push(b' ');
            push_number(bytes, value.len() as u64);
            if let Some(cas) = cas {
                bytes.push(b' ');
                push_number(bytes, cas);
            }
            bytes.extend_from_slice(b"\r\n");
            bytes.extend_from_slice(value);
        })
    }

    pub fn delete(&mut self, key: &[u8]) -> Result<usize> {
        self.write(b"delete ", key, |_| ())
    }

    pub fn touch(&mut self, key: &[u8], expiry_s: i64) -> Result<usize> {
        self.write(b"touch ", key, |bytes| push_expiry(bytes, expiry_s))
    }

    /// Adds to a number stored as digits; it wraps at 2^64.
    pub fn increment(&mut self, key: &[u8], by: u64) -> Result<usize> {
        self.count(b"incr ", key, by)
    }

    /// Subtracts, but never below 0.
    pub fn decrement(&mut self, key: &[u8], by: u64) -> Result<usize> {
        self.count(b"decr ", key, by)
    }

    fn count(&mut self, verb: &[u8], key: &[u8], by: u64) -> Result<usize> {
        self.write(verb, key, |bytes| {
            bytes.push(b' ');
            push_number(bytes, by);
        })
    }

    fn write(&mut self, verb: &[u8], key: &[u8], rest: impl FnOnce(&mut Vec<u8>)) -> Result<usize> {
        check(key)?;
        let start = self.bytes.len();
        self.bytes.extend_from_slice(verb);
        let key_at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        rest(&mut self.bytes);
        self.bytes.extend_from_slice(b"\r\n");
        let key = (key_at, key_at + key.len() as u32);
        let Ok(end) = u32::try_from(self.bytes.len()) else {
            self.bytes.truncate(start);
            return Err(Error::invalid("fill a batch: more than 4 GiB: run it, then fill another"));
        };
        let request = (start as u32, end);
        let kept = Kept::Pending;
        let of = Operation { key, request, is_get: false, with_cas: false, next: NONE, kept };
        self.operations.push(of);
        Ok(self.operations.len() - 1)
    }

    /// The answer of the operation with this number, once the batch was run.
    pub fn answer(&self, number: usize) -> Answer<'_> {
        match self.operations[number].kept {
            Kept::Pending => Answer::Lost,
            Kept::Hit { from, to, flags, cas } => {
                Answer::Hit { data: &self.answers[from..to], flags, cas }
            }
            Kept::Refused { from, to } => Answer::Refused(&self.answers[from..to]),
            Kept::Other(answer) => answer,
        }
    }

    /// All answers, in the order of the operations.
    pub fn answers(&self) -> impl Iterator<Item = Answer<'_>> {
        (0..self.len()).map(|number| self.answer(number))
    }

    pub fn key(&self, number: usize) -> &[u8] {
        let (from, to) = self.operations[number].key;
        &self.bytes[from as usize..to as usize]
    }

    pub(crate) fn operation(&self, number: u32) -> &Operation {
        &self.operations[number as usize]
    }

    pub(crate) fn chain(&mut self, number: u32, next: u32) {
        self.operations[number as usize].next = next;
    }

    pub(crate) fn request(&self, number: u32) -> &[u8] {
        let (from, to) = self.operations[number as usize].request;
        &self.bytes[from as usize..to as usize]
    }

    /// Forgets earlier answers.
    pub(crate) fn begin(&mut self) {
        self.answers.clear();
        self.pending = self.operations.len();
        for operation in &mut self.operations {
            (operation.kept, operation.next) = (Kept::Pending, NONE);
        }
    }

    pub(crate) fn settle(&mut self, number: u32, answer: Answer<'static>) {
        self.keep(number, Kept::Other(answer));
    }

    fn keep(&mut self, number: u32, kept: Kept) {
        let operation = &mut self.operations[number as usize];
        if matches!(operation.kept, Kept::Pending) {
            operation.kept = kept;
            self.pending -= 1;
        }
    }

    /// Takes the answer to a get of a chain's keys, `count` from `first` on.
    pub(crate) fn values(&mut self, first: u32, count: u32, answer: &[u8]) {
        let mut at = first;
        for value in wire::values(answer) {
            // Answers have the order of the keys, as a rule.
            let found = self.find(at, value.key).or_else(|| self.find(first, value.key));
            let Some(number) = found else { continue };
            let from = self.answers.len();
            self.answers.extend_from_slice(value.data);
            let (to, cas) = (self.answers.len(), value.cas.unwrap_or(0));
            self.keep(number, Kept::Hit { from, to, flags: value.flags, cas });
            at = self.operations[number as usize].next;
        }
        // What was sent instead of items.
        let refused = (!answer.starts_with(b"VALUE ") && !answer.starts_with(b"END"))
            .then(|| self.refused(answer));
        at = first;
        for _ in 0..count {
            if at == NONE {
                break;
            }
            self.keep(at, refused.unwrap_or(Kept::Other(Answer::Miss)));
            at = self.operations[at as usize].next;
        }
    }

    /// A pending get of `key` in the chain from `at` on.
    fn find(&self, mut at: u32, key: &[u8]) -> Option<u32> {
        while at != NONE {
            let operation = &self.operations[at as usize];
            if matches!(operation.kept, Kept::Pending) && self.key(at as usize) == key {
                return Some(at);
            }
            at = operation.next;
        }
        None
    }

    fn refused(&mut self, answer: &[u8]) -> Kept {
        let from = self.answers.len();
        self.answers.extend_from_slice(answer.trim_ascii_end());
        Kept::Refused { from, to: self.answers.len() }
    }

    /// Takes the line that answers anything but a get.
    pub(crate) fn line(&mut self, number: u32, line: &[u8]) {
        let kept = match line.trim_ascii_end() {
            b"STORED" | b"DELETED" | b"TOUCHED" | b"OK" => Kept::Other(Answer::Done),
            b"NOT_STORED" => Kept::Other(Answer::NotStored),
            b"EXISTS" => Kept::Other(Answer::Exists),
            b"NOT_FOUND" => Kept::Other(Answer::NotFound),
            digits => match wire::number(digits) {
                Some(number) => Kept::Other(Answer::Number(number)),
                None => self.refused(line),
            },
        };
        self.keep(number, kept);
    }
}

fn push_expiry(bytes: &mut Vec<u8>, expiry_s: i64) {
    bytes.extend_from_slice(if expiry_s < 0 { b" -" } else { b" " });
    push_number(bytes, expiry_s.unsigned_abs());
}

pub(crate) fn check(key: &[u8]) -> Result<()> {
    if is_key(key) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "use key `{}`: it must have 1 to {} bytes, and no spaces or control characters",
        String::from_utf8_lossy(&key[..key.len().min(60)]),
        wire::KEY_BYTES_MAX
    )))
}
