//! Keys as in `sort -k`: which bytes of a line, and how they are compared. Results are those of
//! GNU sort under LC_ALL=C, whose code the corner cases were compared with. Pure.

use crate::number::{self, Number};
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
            b'g' | b'R' | b'V' => {
                let name = ["general numeric", "random", "version"]
                    [b"gRV".iter().position(|l| *l == letter).unwrap_or(0)];
                return Err(format!("`{}` ({name} order) is not supported", letter as char));
            }
            _ => return Err(format!("`{}` is no option of a key", letter as char)),
        };
        if self.kind != Kind::Bytes && self.kind != kind {
            return Err("a key has one of `n`, `h` and `M`".to_owned());
        }
        self.kind = kind;
        Ok(())
    }

    fn check(self) -> Result<(), String> {
        if self.kind != Kind::Bytes && self.is_filtered() {
            return Err("`d` and `i` do not go with `n`, `h` and `M`".to_owned());
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

    fn begin(&self, line: &[u8], separator: Option<u8>) -> usize {
        let mut at = 0;
        for _ in 0..self.start_field {
            if at >= line.len() {
                break;
            }
            at = match separator {
                Some(tab) => match memchr::memchr(tab, &line[at..]) {
                    Some(i) => at + i + 1,
                    None => line.len(),
                },
                None => skip_while(line, skip_while(line, at, is_blank), |b| !is_blank(b)),
            };
        }
        if self.style.skip_start_blanks {
            at = skip_while(line, at, is_blank);
        }
        at.saturating_add(self.start_char).min(line.len())
    }

    fn limit(&self, line: &[u8], separator: Option<u8>) -> usize {
        let Some((field, character)) = self.end else { return line.len() };
        let mut fields = if character == 0 { field.saturating_add(1) } else { field };
        let mut at = 0;
        while at < line.len() && fields > 0 {
            fields -= 1;
            match separator {
                Some(tab) => {
                    at = skip_while(line, at, |b| b != tab);
                    if at < line.len() && (fields > 0 || character != 0) {
                        at += 1;
                    }
                }
                None => at = skip_while(line, skip_while(line, at, is_blank), |b| !is_blank(b)),
            }
        }
        if character != 0 {
            if self.style.skip_end_blanks {
                at = skip_while(line, at, is_blank);
            }
            at = at.saturating_add(character).min(line.len());
        }
        at
    }

    /// The bytes of the key.
    #[inline]
    fn slice<'a>(&self, line: &'a [u8], separator: Option<u8>) -> &'a [u8] {
        let begin = self.begin(line, separator);
        &line[begin..self.limit(line, separator).max(begin)]
    }

    fn compare(&self, a: &[u8], b: &[u8], separator: Option<u8>) -> Ordering {
        let (a, b) = (self.slice(a, separator), self.slice(b, separator));
        let order = match self.style.kind {
            Kind::Numeric => Number::parse(a).compare(&Number::parse(b)),
            Kind::Human => number::compare_human(a, b),
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

/// All keys of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    keys: Vec<Key>,
    separator: Option<u8>,
    /// Lines with equal keys are compared as a whole.
    last_resort: bool,
    /// Of the last resort.
    reverse: bool,
}

/// What a line's order is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineOptions {
    /// `-k`, in order.
    pub keys: Vec<Key>,
    /// `-t`
    pub separator: Option<u8>,
    /// Letters of global options: any of `bdfhiMnr`.
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
        global.check().map_err(Error::invalid)?;
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
        let keys = Keys {
            keys,
            separator: self.separator,
            last_resort: !self.stable,
            reverse: global.reverse,
        };
        Ok((Some(keys), global.reverse))
    }
}

impl Keys {
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.compare_from(0, a, b)
    }

    /// Compares lines whose first `from` keys are known to be equal.
    pub fn compare_from(&self, from: usize, a: &[u8], b: &[u8]) -> Ordering {
        for key in &self.keys[from..] {
            match key.compare(a, b, self.separator) {
                Ordering::Equal => {}
                other => return other,
            }
        }
        match (self.last_resort, self.reverse) {
            (false, _) => Ordering::Equal,
            (true, false) => a.cmp(b),
            (true, true) => b.cmp(a),
        }
    }

    fn first(&self) -> &Key {
        &self.keys[0]
    }

    /// 80 bits that order as the first key does, as far as they reach; `skip` bytes in front of
    /// it are known to be equal. See [`Keys::first_is_decided`].
    #[inline]
    pub fn prefix(&self, line: &[u8], skip: usize) -> u128 {
        let key = self.first();
        let slice = key.slice(line, self.separator);
        let prefix = match key.style.kind {
            Kind::Numeric => Number::parse(slice).prefix(),
            Kind::Human => number::human_prefix(slice),
            Kind::Month => (number::month(slice) as u128) << 8,
            Kind::Bytes if key.style.is_filtered() || key.style.fold => {
                let mut nine = [0u8; 9];
                let mut count = 0;
                for byte in key.shown(slice).skip(skip).take(10) {
                    if count < 9 {
                        nine[count] = byte;
                    }
                    count += 1;
                }
                crate::order::counted_prefix(&nine, count)
            }
            Kind::Bytes => crate::order::bytes_prefix(slice.get(skip..).unwrap_or_default()),
        };
        if key.style.reverse { !prefix & crate::order::PREFIX_MASK } else { prefix }
    }

    /// Whether equal prefixes mean equal first keys; the alternative is to look deeper.
    pub fn first_is_decided(&self, prefix: u128) -> bool {
        let prefix = if self.first().style.reverse { !prefix } else { prefix };
        match self.first().style.kind {
            Kind::Bytes => prefix & 0xff <= 9,
            Kind::Month => true,
            Kind::Numeric | Kind::Human => false,
        }
    }

    /// Whether more of the first key can be asked for with `skip`.
    pub fn has_depth(&self) -> bool {
        self.first().style.kind == Kind::Bytes
    }

    /// Bytes in front that the first keys of `a` and `b`, and all between them, share.
    pub fn shared(&self, a: &[u8], b: &[u8]) -> usize {
        let key = self.first();
        if !self.has_depth() {
            return 0;
        }
        let (a, b) = (key.slice(a, self.separator), key.slice(b, self.separator));
        key.shown(a).zip(key.shown(b)).take_while(|(a, b)| a == b).count()
    }

    /// Whether equal first keys are equal altogether.
    pub fn first_is_all(&self) -> bool {
        self.keys.len() == 1 && !self.last_resort
    }
}

#[cfg(test)]
mod tests;
