//! Keys as in `sort -k`: which bytes of a line, and how they are compared. Results are those of
//! GNU sort under LC_ALL=C, whose code the corner cases were compared with. Pure.

use crate::general;
use crate::kernel::scan::Walk;
use crate::number::{self, HUMAN_DIGITS, NUMERIC_DIGITS, Number};
use crate::order::{COUNTED_BYTES, Depth, Tie};
use crate::version;
use holdfast_base::{Error, Result};
use std::cmp::Ordering;

/// How the bytes of a key are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Bytes,
    /// `n`: an optional minus, digits, a point, digits.
    Numeric,
    /// `h`: a number with a suffix K, M, G and so on, suffix first.
    Human,
    /// `M`: anything else, then JAN to DEC.
    Month,
    /// `g`: what is no number, then not-a-number, then numbers with exponents and infinities.
    General,
    /// `V`: digits among other bytes count as numbers.
    Version,
}

/// The options that a key takes, or all keys that have none of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub kind: Kind,
    /// `b` at the start and at the end of a key.
    pub skip_start_blanks: bool,
    pub skip_end_blanks: bool,
    /// `f`
    pub fold: bool,
    /// `d`: blanks, letters and digits alone.
    pub dictionary: bool,
    /// `i`: printable characters alone.
    pub printable: bool,
    /// `r`
    pub reverse: bool,
    /// Two letters were given that say how to compare: wrong where the style is used.
    clashes: bool,
}

impl Style {
    fn is_default_but_reverse(self) -> bool {
        Style { reverse: false, ..self } == Style::default()
    }

    fn is_filtered(self) -> bool {
        self.dictionary || self.printable
    }

    /// Takes one option letter; `at_end` says which blanks `b` means, both if neither.
    fn take(&mut self, letter: u8, start: bool, end: bool) -> Result<(), String> {
        let kind = match letter {
            b'n' => Kind::Numeric,
            b'h' => Kind::Human,
            b'g' => Kind::General,
            b'V' => Kind::Version,
            b'M' => Kind::Month,
            b'b' => {
                self.skip_start_blanks |= start;
                self.skip_end_blanks |= end;
                return Ok(());
            }
            b'f' => {
                self.fold = true;
                return Ok(());
            }
            b'd' => {
                self.dictionary = true;
                return Ok(());
            }
            b'i' => {
                self.printable = true;
                return Ok(());
            }
            b'r' => {
                self.reverse = true;
                return Ok(());
            }
            b'R' => return Err("`R` (random order) is not supported".to_owned()),
            _ => return Err(format!("`{}` is no option of a key", letter as char)),
        };
        self.clashes |= self.kind != Kind::Bytes && self.kind != kind;
        self.kind = kind;
        Ok(())
    }

    fn check(self) -> Result<(), String> {
        if self.clashes {
            return Err("a key has one of `n`, `g`, `h`, `M` and `V`".to_owned());
        }
        if !matches!(self.kind, Kind::Bytes | Kind::Version) && self.is_filtered() {
            return Err("`d` and `i` do not go with `n`, `g`, `h` and `M`".to_owned());
        }
        Ok(())
    }
}

/// One key: from a field's character to another's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// From 0.
    start_field: usize,
    start_char: usize,
    /// Field from 0 and character, 0 for the field's end; none for the line's end.
    end: Option<(usize, usize)>,
    style: Style,
}

/// Blank as in the C locale; a newline is one too, for lines that end with NUL.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n')
}

fn skip_while(line: &[u8], mut at: usize, wanted: impl Fn(u8) -> bool) -> usize {
    while at < line.len() && wanted(line[at]) {
        at += 1;
    }
    at
}

impl Key {
    /// Reads `F[.C][OPTIONS][,F[.C][OPTIONS]]`.
    pub fn parse(text: &str) -> Result<Key> {
        Key::parse_inner(text).map_err(|e| Error::invalid(format!("read key `{text}`: {e}")))
    }

    fn parse_inner(text: &str) -> Result<Key, String> {
        let mut key = Key::default();
        let (start, end) = match text.split_once(',') {
            Some((start, end)) => (start, Some(end)),
            None => (text, None),
        };
        let (field, character, options) = position(start)?;
        key.start_field = field.checked_sub(1).ok_or("fields count from 1")?;
        key.start_char = match character {
            Some(c) => c.checked_sub(1).ok_or("characters of a start count from 1")?,
            None => 0,
        };
        options.bytes().try_for_each(|letter| key.style.take(letter, true, false))?;
        if let Some(end) = end {
            let (field, character, options) = position(end)?;
            let field = field.checked_sub(1).ok_or("fields count from 1")?;
            key.end = Some((field, character.unwrap_or(0)));
            options.bytes().try_for_each(|letter| key.style.take(letter, false, true))?;
        }
        key.style.check()?;
        Ok(key)
    }

    /// The bytes of the key: where they begin and end.
    #[inline]
    fn range(&self, line: &[u8], separator: Option<u8>) -> (usize, usize) {
        if self.start_field == 0 && self.start_char == 0 && self.end.is_none() {
            let begin =
                if self.style.skip_start_blanks { skip_while(line, 0, is_blank) } else { 0 };
            return (begin, line.len());
        }
        let mut walk = Walk::new(line, separator);
        for _ in 0..self.start_field {
            if walk.at >= line.len() {
                break;
            }
            walk.field();
            walk.separator();
        }
        let mut begin = walk.at;
        if self.style.skip_start_blanks {
            begin = skip_while(line, begin, is_blank);
        }
        begin = begin.saturating_add(self.start_char).min(line.len());
        (begin, self.limit(line, walk).max(begin))
    }

    /// Where the key ends; `walk` stands at its first field if that is not behind its last.
    fn limit(&self, line: &[u8], mut walk: Walk<'_>) -> usize {
        let Some((field, character)) = self.end else { return line.len() };
        let fields = if character == 0 { field.saturating_add(1) } else { field };
        let mut left = match fields.checked_sub(self.start_field) {
            Some(left) if left > 0 => left,
            _ => {
                walk.restart();
                fields
            }
        };
        while walk.at < line.len() && left > 0 {
            left -= 1;
            walk.field();
            if left > 0 || character != 0 {
                walk.separator();
            }
        }
        if character == 0 {
            return walk.at;
        }
        let at = match self.style.skip_end_blanks {
            true => skip_while(line, walk.at, is_blank),
            false => walk.at,
        };
        at.saturating_add(character).min(line.len())
    }

    #[inline]
    fn slice<'a>(&self, line: &'a [u8], separator: Option<u8>) -> &'a [u8] {
        let (begin, end) = self.range(line, separator);
        &line[begin..end]
    }

    /// 80 bits that order as the key does, as far as they reach; `skip` bytes in front of it are
    /// known to be equal. See [`Keys::tie`].
    #[inline]
    fn prefix(&self, line: &[u8], separator: Option<u8>, skip: usize) -> u128 {
        let (begin, end) = self.range(line, separator);
        let key = &line[begin..end];
        let prefix = match self.style.kind {
            Kind::Numeric => Number::parse(key).prefix(NUMERIC_DIGITS),
            Kind::Human => number::human_prefix(key, self.style.fold),
            Kind::General => general::prefix(key),
            Kind::Version => 0,
            Kind::Month => (number::month(key) as u128) << 8,
            Kind::Bytes if self.style.is_filtered() || self.style.fold => {
                let mut nine = [0u8; 9];
                let mut count = 0;
                for byte in self.shown(key).skip(skip).take(10) {
                    if count < 9 {
                        nine[count] = byte;
                    }
                    count += 1;
                }
                crate::order::counted_prefix(&nine, count)
            }
            Kind::Bytes => crate::order::bytes_prefix(line, begin.saturating_add(skip), end),
        };
        if self.style.reverse { !prefix & crate::order::PREFIX_MASK } else { prefix }
    }

    fn compare(&self, a: &[u8], b: &[u8], separator: Option<u8>) -> Ordering {
        let (a, b) = (self.slice(a, separator), self.slice(b, separator));
        let order = match self.style.kind {
            Kind::Numeric => Number::parse(a).compare(&Number::parse(b)),
            Kind::Human => number::compare_human(a, b, self.style.fold),
            Kind::General => general::prefix(a).cmp(&general::prefix(b)),
            Kind::Version if self.style.is_filtered() || self.style.fold => {
                let (a, b): (Vec<u8>, Vec<u8>) = (self.shown(a).collect(), self.shown(b).collect());
                version::compare(&a, &b)
            }
            Kind::Version => version::compare(a, b),
            Kind::Month => number::month(a).cmp(&number::month(b)),
            Kind::Bytes if self.style.is_filtered() || self.style.fold => {
                self.shown(a).cmp(self.shown(b))
            }
            Kind::Bytes => a.cmp(b),
        };
        if self.style.reverse { order.reverse() } else { order }
    }

    /// The bytes that count, as they count.
    fn shown<'a>(&self, key: &'a [u8]) -> impl Iterator<Item = u8> + 'a {
        let style = self.style;
        key.iter()
            .copied()
            .filter(move |b| {
                if style.dictionary {
                    b.is_ascii_alphanumeric() || is_blank(*b)
                } else {
                    !style.printable || matches!(b, b' '..=b'~')
                }
            })
            .map(move |b| if style.fold { b.to_ascii_uppercase() } else { b })
    }
}

/// A field, a character if there is one, and the letters behind.
fn position(text: &str) -> Result<(usize, Option<usize>, &str), String> {
    fn count(text: &str) -> Result<(usize, &str), String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = text.split_at(digits);
        if number.is_empty() {
            return Err(format!("`{text}` does not start with a number"));
        }
        // More than a line can have is as good as the largest number.
        Ok((number.parse().unwrap_or(usize::MAX), rest))
    }
    let (field, rest) = count(text)?;
    match rest.strip_prefix('.') {
        Some(rest) => count(rest).map(|(character, rest)| (field, Some(character), rest)),
        None => Ok((field, None, rest)),
    }
}

/// All keys of an order; the last may be the whole line, the last resort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    keys: Vec<Key>,
    separator: Option<u8>,
}

/// What a line's order is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineOptions {
    /// `-k`, in order.
    pub keys: Vec<Key>,
    /// `-t`
    pub separator: Option<u8>,
    /// Letters of global options: any of `bdfghiMnrV`.
    pub letters: String,
    /// `-s`, or `-u`, which keeps the first of equal ones.
    pub stable: bool,
}

impl LineOptions {
    /// The keys, or none where lines are compared as a whole, and whether in reverse.
    pub(crate) fn resolve(&self) -> Result<(Option<Keys>, bool)> {
        let mut global = Style::default();
        for letter in self.letters.bytes() {
            global.take(letter, true, true).map_err(Error::invalid)?;
        }
        // Whether they go together matters only to keys that have no letters of their own.
        let mut keys = self.keys.clone();
        for key in &mut keys {
            if key.style.is_default_but_reverse() && !key.style.reverse {
                key.style = global;
            }
        }
        if keys.is_empty() && !global.is_default_but_reverse() {
            keys.push(Key { style: global, ..Key::default() });
        }
        for key in &keys {
            key.style.check().map_err(Error::invalid)?;
        }
        if keys.is_empty() {
            return Ok((None, global.reverse));
        }
        if !self.stable {
            let style = Style { reverse: global.reverse, ..Style::default() };
            keys.push(Key { style, ..Key::default() });
        }
        Ok((Some(Keys { keys, separator: self.separator }), global.reverse))
    }
}

impl Keys {
    /// Compares lines whose keys before number `from` are known to be equal.
    pub fn compare(&self, from: usize, a: &[u8], b: &[u8]) -> Ordering {
        for key in &self.keys[from..] {
            match key.compare(a, b, self.separator) {
                Ordering::Equal => {}
                other => return other,
            }
        }
        Ordering::Equal
    }

    #[inline]
    pub fn prefix(&self, line: &[u8], depth: Depth) -> u128 {
        self.keys[depth.key].prefix(line, self.separator, depth.skip)
    }

    /// What lines are to each other whose prefixes at `depth` are this one.
    pub fn tie(&self, prefix: u128, depth: Depth) -> Tie {
        let style = &self.keys[depth.key].style;
        let prefix = if style.reverse { !prefix } else { prefix };
        let decided = match style.kind {
            Kind::Bytes if prefix & 0xff > COUNTED_BYTES as u128 => {
                return Tie::Deeper(Depth { skip: depth.skip + COUNTED_BYTES, ..depth });
            }
            Kind::Bytes | Kind::Month | Kind::General => true,
            Kind::Numeric => number::is_exact(prefix, NUMERIC_DIGITS),
            Kind::Human => number::is_exact(prefix, HUMAN_DIGITS),
            Kind::Version => false,
        };
        match decided {
            false => Tie::Compare,
            true if depth.key + 1 == self.keys.len() => Tie::Equal,
            true => Tie::Deeper(Depth { key: depth.key + 1, skip: 0 }),
        }
    }

    /// How far the keys of `a` and `b`, and so those of all lines between them, are equal.
    pub fn shared(&self, a: &[u8], b: &[u8]) -> Depth {
        for (number, key) in self.keys.iter().enumerate() {
            let bytes = key.style.kind == Kind::Bytes;
            if number + 1 < self.keys.len() && key.compare(a, b, self.separator).is_eq() {
                continue;
            }
            let skip = if bytes { self.shared_bytes(number, a, b) } else { 0 };
            return Depth { key: number, skip };
        }
        Depth::default()
    }

    /// Bytes in front that keys number `key` of both lines share; 0 of what is not compared as
    /// bytes.
    pub fn shared_bytes(&self, key: usize, a: &[u8], b: &[u8]) -> usize {
        let key = &self.keys[key];
        if key.style.kind != Kind::Bytes {
            return 0;
        }
        let (a, b) = (key.slice(a, self.separator), key.slice(b, self.separator));
        if key.style.is_filtered() || key.style.fold {
            return key.shown(a).zip(key.shown(b)).take_while(|(a, b)| a == b).count();
        }
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }
}

#[cfg(test)]
mod tests;
