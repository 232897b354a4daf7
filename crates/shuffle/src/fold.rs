//! Numbers of equal keys, made one: before they are sent, in a table of keys ([`Table`]), and behind
//! the sort, where equal keys are neighbours ([`Neighbours`]). Pure.
//!
//! A number has the bytes that Python's `marshal` gives it, as all values of a job: a function may
//! read what was folded here, and be given to what folds what a function made.

use crate::keyed::Keyed;
use holdfast_base::{Error, Result};

/// Digits of `marshal`'s long form have so many bits.
const DIGIT_BITS: u32 = 15;

/// A value that can be folded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number. Those of columns have 64 bits; a sum of some may need more, which is no matter of the order in
    /// which they come.
    Whole(i128),
    /// Any other, also one that is not a number.
    Float(f64),
}

impl Number {
    /// Of its bytes; none if they are something else, or a whole number of more than 128 bits.
    pub fn parse(bytes: &[u8]) -> Option<Number> {
        // The uppermost bit says that others may refer to the value, which a value alone has no use for.
        let (kind, rest) = bytes.split_first()?;
        match kind & 0x7f {
            b'i' => Some(Number::Whole(i32::from_le_bytes(rest.try_into().ok()?).into())),
            b'g' => Some(Number::Float(f64::from_le_bytes(rest.try_into().ok()?))),
            b'T' if rest.is_empty() => Some(Number::Whole(1)),
            b'F' if rest.is_empty() => Some(Number::Whole(0)),
            b'l' => Number::parse_long(rest),
            _ => None,
        }
    }

    fn parse_long(bytes: &[u8]) -> Option<Number> {
        let (count, digits) = bytes.split_first_chunk::<4>()?;
        let count = i32::from_le_bytes(*count);
        let (digits, rest) = digits.as_chunks::<2>();
        if !rest.is_empty() || digits.len() != count.unsigned_abs() as usize {
            return None;
        }
        let mut size = 0u128;
        for digit in digits.iter().rev() {
            if size >> (u128::BITS - DIGIT_BITS) > 0 {
                return None;
            }
            size = size << DIGIT_BITS | u128::from(u16::from_le_bytes(*digit));
        }
        match count < 0 {
            true => 0i128.checked_sub_unsigned(size).map(Number::Whole),
            false => i128::try_from(size).ok().map(Number::Whole),
        }
    }

    /// Adds its bytes.
    pub fn put(self, out: &mut Vec<u8>) {
        let whole = match self {
            Number::Float(number) => {
                out.push(b'g');
                return out.extend_from_slice(&number.to_le_bytes());
            }
            Number::Whole(whole) => whole,
        };
        if let Ok(small) = i32::try_from(whole) {
            out.push(b'i');
            return out.extend_from_slice(&small.to_le_bytes());
        }
        let mut size = whole.unsigned_abs();
        let count = (u128::BITS - size.leading_zeros()).div_ceil(DIGIT_BITS) as i32;
        out.push(b'l');
        out.extend_from_slice(&(if whole < 0 { -count } else { count }).to_le_bytes());
        for _ in 0..count {
            out.extend_from_slice(&((size & ((1 << DIGIT_BITS) - 1)) as u16).to_le_bytes());
            size >>= DIGIT_BITS;
        }
    }

    fn float(self) -> f64 {
        match self {
            Number::Whole(whole) => whole as f64,
            Number::Float(number) => number,
        }
    }
}

/// How two numbers are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Added.
    Sum,
    /// The lesser one.
    Min,
    /// The greater one.
    Max,
}

impl Fold {
    /// By its name, as jobs give it.
    pub fn named(name: &str) -> Result<Fold> {
        match name {
            "sum" => Ok(Fold::Sum),
            "min" => Ok(Fold::Min),
            "max" => Ok(Fold::Max),
            _ => Err(Error::invalid(format!(
                "fold values by `{name}`: give `sum`, `min`, `max`, or a function"
            ))),
        }
    }

    /// Both in one; none where a sum of whole numbers needs more than 128 bits. What is not a number
    /// is neither the least nor the greatest, but where there is nothing else.
    pub fn of(self, a: Number, b: Number) -> Option<Number> {
        match (self, a, b) {
            (Fold::Sum, Number::Whole(a), Number::Whole(b)) => a.checked_add(b).map(Number::Whole),
            (Fold::Sum, ..) => Some(Number::Float(a.float() + b.float())),
            (Fold::Min, Number::Whole(a), Number::Whole(b)) => Some(Number::Whole(a.min(b))),
            (Fold::Max, Number::Whole(a), Number::Whole(b)) => Some(Number::Whole(a.max(b))),
            (Fold::Min, ..) if b.float() < a.float() || a.float().is_nan() => Some(b),
            (Fold::Max, ..) if b.float() > a.float() || a.float().is_nan() => Some(b),
            _ => Some(a),
        }
    }

    /// As [`Fold::of`], with a sentence for what does not fit.
    fn fold(self, key: &[u8], a: Number, b: Number) -> Result<Number> {
        self.of(a, b).ok_or_else(|| {
            Error::invalid(format!(
                "sum the values of key `{}`: the sum needs more than 128 bits: give floats, or a function that adds",
                shown(key)
            ))
        })
    }
}

/// A key for sentences: without its kind, and not too long.
pub fn shown(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key.get(1..).unwrap_or_default());
    text.chars().take(60).flat_map(char::escape_default).collect()
}

/// Numbers by key, as many as there is memory for.
pub struct Table {
    fold: Fold,
    numbers: Keyed<Number>,
    most_bytes: usize,
}

impl Table {
    /// In about `most_bytes`.
    pub fn new(fold: Fold, most_bytes: usize) -> Table {
        Table { fold, numbers: Keyed::new(Number::Whole(0)), most_bytes }
    }

    /// Folds a number into its key's.
    #[inline]
    pub fn add(&mut self, key: &[u8], number: Number) -> Result<()> {
        if let Some(here) = self.numbers.insert(key, number) {
            *here = self.fold.fold(key, *here, number)?;
        }
        Ok(())
    }

    /// Whether it is to be drained before more keys come.
    pub fn is_full(&self) -> bool {
        self.numbers.held_bytes() >= self.most_bytes
    }

    /// Hands on all keys, each once, in no order; empty then.
    pub fn drain(&mut self, take: impl FnMut(&[u8], Number) -> Result<()>) -> Result<()> {
        self.numbers.each(take)?;
        self.numbers.clear();
        Ok(())
    }
}

/// Folds what comes in the order of its keys.
pub struct Neighbours {
    fold: Fold,
    last: Option<(Vec<u8>, Number)>,
}

impl Neighbours {
    /// Before the first.
    pub fn new(fold: Fold) -> Neighbours {
        Neighbours { fold, last: None }
    }

    /// Takes the next number; answers the key before it, once that has all of its own.
    pub fn push(&mut self, key: Vec<u8>, number: Number) -> Result<Option<(Vec<u8>, Number)>> {
        match &mut self.last {
            Some((last, here)) if *last == key => {
                *here = self.fold.fold(&key, *here, number)?;
                Ok(None)
            }
            last => {
                let before = last.replace((key, number));
                assert!(
                    before.as_ref().is_none_or(|(before, _)| last
                        .as_ref()
                        .is_some_and(|(key, _)| before < key)),
                    "keys come in their order"
                );
                Ok(before)
            }
        }
    }

    /// The last key.
    pub fn finish(&mut self) -> Option<(Vec<u8>, Number)> {
        self.last.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::random::Random;
    use std::collections::BTreeMap;

    fn bytes(number: Number) -> Vec<u8> {
        let mut out = Vec::new();
        number.put(&mut out);
        out
    }

    fn drain(table: &mut Table, to: &mut Vec<(Vec<u8>, Number)>) {
        let take = |key: &[u8], number| {
            to.push((key.to_vec(), number));
            Ok(())
        };
        table.drain(take).unwrap();
    }

    /// What `marshal.dumps` of Python 3.9 to 3.14 answers, with and without the bit for references.
    #[test]
    fn numbers_have_the_bytes_that_python_gives_them() {
        let golden: [(i128, &[u8]); 10] = [
            (0, b"i\0\0\0\0"),
            (-1, b"i\xff\xff\xff\xff"),
            (1 << 31, b"l\x03\0\0\0\0\0\0\0\x02\0"),
            (-(1 << 31) - 1, b"l\xfd\xff\xff\xff\x01\0\0\0\x02\0"),
            (i64::MAX.into(), b"l\x05\0\0\0\xff\x7f\xff\x7f\xff\x7f\xff\x7f\x07\0"),
            (i64::MIN.into(), b"l\xfb\xff\xff\xff\0\0\0\0\0\0\0\0\x08\0"),
            (1 << 63, b"l\x05\0\0\0\0\0\0\0\0\0\0\0\x08\0"),
            (1 << 120, b"l\x09\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0"),
            (
                i128::MAX,
                b"l\x09\0\0\0\xff\x7f\xff\x7f\xff\x7f\xff\x7f\xff\x7f\xff\x7f\xff\x7f\xff\x7f\x7f\0",
            ),
            (i128::MIN, b"l\xf7\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x80\0"),
        ];
        for (whole, told) in golden {
            assert_eq!(bytes(Number::Whole(whole)), told, "{whole}");
            let referred = [&[told[0] | 0x80], &told[1..]].concat();
            for found in [told, &referred] {
                assert_eq!(Number::parse(found), Some(Number::Whole(whole)));
            }
        }
        assert_eq!(bytes(Number::Float(1.5)), b"g\0\0\0\0\0\0\xf8\x3f");
        assert_eq!(Number::parse(b"T"), Some(Number::Whole(1)));
        // 2^127, 2^128 and 2^135, text, nothing, and what is cut.
        let zeros = [0; 16];
        for other in [
            &[&b"l\x09\0\0\0"[..], &zeros, b"\x80\0"].concat(),
            &[&b"l\x09\0\0\0"[..], &zeros, b"\0\x01"].concat(),
            &[&b"l\x0a\0\0\0"[..], &zeros, b"\0\0\x01\0"].concat(),
            &b"z\x01a"[..],
            b"",
            b"i\0\0",
            b"l\x01",
        ] {
            assert_eq!(Number::parse(other), None, "{other:?}");
        }
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let whole = (random.next() as i128) << 64 | random.next() as i128;
            let whole = whole >> (random.next() % 128);
            assert_eq!(Number::parse(&bytes(Number::Whole(whole))), Some(Number::Whole(whole)));
        }
    }

    /// Any numbers of a few keys, through tables that are drained when they are full and then sorted, are
    /// those that a plain map has, for each way to fold.
    #[test]
    fn a_table_and_neighbours_fold_as_a_map_does() {
        for fold in [Fold::Sum, Fold::Min, Fold::Max] {
            for seed in 0..50 {
                let mut random = Random::new(seed);
                let mut model: BTreeMap<Vec<u8>, i128> = BTreeMap::new();
                let (mut table, mut sent) = (Table::new(fold, 200), Vec::new());
                for _ in 0..300 {
                    let key = format!("s{}", random.next() % 9).into_bytes();
                    // Two of them need more than 64 bits together.
                    let number = i128::from(random.next() as i64);
                    let here = model.get(&key).map_or(number, |here| match fold {
                        Fold::Sum => here + number,
                        Fold::Min => number.min(*here),
                        Fold::Max => number.max(*here),
                    });
                    model.insert(key.clone(), here);
                    table.add(&key, Number::Whole(number)).unwrap();
                    if table.is_full() {
                        drain(&mut table, &mut sent);
                    }
                }
                drain(&mut table, &mut sent);
                assert!(sent.len() > 9, "it was full, and keys came again");
                sent.sort_by(|a, b| a.0.cmp(&b.0));
                let (mut neighbours, mut found) = (Neighbours::new(fold), Vec::new());
                for (key, number) in sent {
                    found.extend(neighbours.push(key, number).unwrap());
                }
                found.extend(neighbours.finish());
                let told = model.into_iter().map(|(key, number)| (key, Number::Whole(number)));
                assert_eq!(found, told.collect::<Vec<_>>(), "{fold:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_left_out_and_what_does_not_fit_is_said() {
        let (nan, one) = (Number::Float(f64::NAN), Number::Whole(1));
        for fold in [Fold::Min, Fold::Max] {
            assert_eq!(fold.of(nan, one), Some(one));
            assert_eq!(fold.of(one, nan), Some(one));
        }
        assert_eq!(Fold::Sum.of(one, Number::Float(0.5)), Some(Number::Float(1.5)));
        assert_eq!(Fold::Max.of(Number::Float(0.5), one), Some(one));
        let mut table = Table::new(Fold::Sum, 1000);
        table.add(b"skey\n", Number::Whole(i128::MAX)).unwrap();
        let refused = table.add(b"skey\n", one).unwrap_err();
        assert!(refused.message.contains("key `key\\n`: the sum needs more than 128 bits"));
        assert!(Fold::named("mean").unwrap_err().message.contains("a function"));
    }
}
