//! Numbers as `sort -g` reads them: what strtold reads, rounded to a long double as there, as 80
//! bits that order the same. Pure.

/// Bits below the sign: an exponent of 15 bits and a significand of 64 with its leading one.
const MAGNITUDE_BITS: u32 = 79;
const INFINITY: u128 = 0x7fff << 64 | 1 << 63;
/// Of the exponent field, for a significand in 1..2.
const BIAS: i64 = 16383;
/// Decimal exponents beyond which every number is infinite or zero.
const EXPONENT_MAX: i64 = 5000;
/// Of a quotient: a significand, and more to round by.
const QUOTIENT_BITS: i64 = 67;
/// Digits that are kept; those behind count as something or nothing.
const DIGITS_MAX: usize = 800;

/// What is no number is less than not-a-number, and both are less than all numbers. All
/// not-a-numbers are equal, whatever their sign (GNU sort 9.1 compares bytes of them that nobody set).
pub fn prefix(text: &[u8]) -> u128 {
    let blanks = text.iter().take_while(|b| matches!(b, b' ' | b'\t'..=b'\r')).count();
    let text = &text[blanks..];
    let (negative, text) = match text.first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word));
    let magnitude = match () {
        () if starts(b"nan") => return 1,
        () if starts(b"inf") => INFINITY,
        () if starts(b"0x") => hexadecimal(&text[2..]).unwrap_or(0),
        () => match decimal(text) {
            Some(magnitude) => magnitude,
            None => return 0,
        },
    };
    match (negative, magnitude) {
        (_, 0) | (false, _) => 1 << MAGNITUDE_BITS | magnitude,
        (true, _) => (1 << MAGNITUDE_BITS) - 1 - magnitude,
    }
}

/// Digits of `base` with at most one point among them: those that count, how many of them stand
/// behind the point, and what follows; none if there is no digit.
fn digits(text: &[u8], base: u32) -> Option<(Vec<u8>, i64, &[u8])> {
    let (mut found, mut behind, mut point, mut any, mut more) =
        (Vec::new(), 0, false, false, false);
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match (*byte as char).to_digit(base) {
            Some(digit) => {
                any = true;
                if found.len() < DIGITS_MAX {
                    behind += i64::from(point);
                    if digit > 0 || !found.is_empty() {
                        found.push(digit as u8);
                    }
                } else {
                    behind -= i64::from(!point);
                    more |= digit > 0;
                }
            }
            None if *byte == b'.' && !point => point = true,
            None => break,
        }
        at += 1;
    }
    if more {
        found.push(1);
        behind += 1;
    }
    any.then_some((found, behind, &text[at..]))
}

/// The exponent behind one of `letters`; 0 if there is none.
fn exponent(text: &[u8], letters: &[u8; 2]) -> i64 {
    let Some(rest) = text.split_first().filter(|(b, _)| letters.contains(b)).map(|(_, r)| r) else {
        return 0;
    };
    let (negative, rest) = match rest.first() {
        Some(b'-') => (true, &rest[1..]),
        Some(b'+') => (false, &rest[1..]),
        _ => (false, rest),
    };
    let digits = rest.iter().take_while(|b| b.is_ascii_digit());
    let value = digits.fold(0i64, |value, b| (value * 10 + i64::from(b - b'0')).min(1 << 40));
    if negative { -value } else { value }
}

fn decimal(text: &[u8]) -> Option<u128> {
    let (digits, behind, rest) = digits(text, 10)?;
    let exponent = exponent(rest, b"eE") - behind;
    if digits.is_empty() || exponent + (digits.len() as i64) < -EXPONENT_MAX {
        return Some(0);
    }
    if exponent + digits.len() as i64 > EXPONENT_MAX {
        return Some(INFINITY);
    }
    if let Some(rounded) = small(&digits, exponent) {
        return Some(rounded);
    }
    let mut upper = Big::default();
    digits.iter().for_each(|digit| upper.multiply(10, u32::from(*digit)));
    let mut lower = Big(vec![1]);
    let scaled = if exponent < 0 { &mut lower } else { &mut upper };
    (0..exponent.unsigned_abs()).for_each(|_| scaled.multiply(10, 0));
    Some(if exponent < 0 { upper.divided_by(&lower) } else { upper.rounded(0, false) })
}

/// The same for what 128 bits compute.
fn small(digits: &[u8], exponent: i64) -> Option<u128> {
    let scale = 10u64.checked_pow(u32::try_from(exponent.unsigned_abs()).ok()?)?;
    let number = digits
        .iter()
        .try_fold(0u64, |n, digit| n.checked_mul(10)?.checked_add(u64::from(*digit)))?;
    if exponent >= 0 {
        return Some(Big::from(u128::from(number) * u128::from(scale)).rounded(0, false));
    }
    // At least 64 bits of quotient and two to round by, as the divisor has 60 at most.
    let shift = i64::from(number.leading_zeros()) + 64;
    let shifted = u128::from(number) << shift;
    let (quotient, rest) = (shifted / u128::from(scale), shifted % u128::from(scale));
    (exponent >= -18).then(|| Big::from(quotient).rounded(-shift, rest > 0))
}

fn hexadecimal(text: &[u8]) -> Option<u128> {
    let (digits, behind, rest) = digits(text, 16)?;
    let power = exponent(rest, b"pP") - 4 * behind;
    let mut upper = Big::default();
    digits.iter().for_each(|digit| upper.multiply(16, u32::from(*digit)));
    Some(if digits.is_empty() { 0 } else { upper.rounded(power, false) })
}

/// A natural number, least significant word first, without zeros in front.
#[derive(Clone, Default)]
struct Big(Vec<u32>);

impl From<u128> for Big {
    fn from(number: u128) -> Big {
        let words = 4 - number.leading_zeros() as usize / 32;
        Big((0..words).map(|i| (number >> (32 * i)) as u32).collect())
    }
}

impl Big {
    fn multiply(&mut self, factor: u32, more: u32) {
        let mut carry = u64::from(more);
        for word in &mut self.0 {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn bits(&self) -> i64 {
        self.0.last().map_or(0, |top| self.0.len() as i64 * 32 - i64::from(top.leading_zeros()))
    }

    fn bit(&self, at: i64) -> bool {
        at >= 0 && self.0.get((at / 32) as usize).is_some_and(|word| word >> (at % 32) & 1 == 1)
    }

    fn is_less(&self, other: &Big) -> bool {
        let words = |big: &Big| big.0.len();
        let order = words(self).cmp(&words(other));
        order.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev())).is_lt()
    }

    /// Of a number that is not larger.
    fn subtract(&mut self, other: &Big) {
        let mut borrow = 0i64;
        for (i, word) in self.0.iter_mut().enumerate() {
            let left = i64::from(*word) - i64::from(other.0.get(i).copied().unwrap_or(0)) - borrow;
            *word = left as u32;
            borrow = i64::from(left < 0);
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    /// The quotient as a long double.
    fn divided_by(&self, divisor: &Big) -> u128 {
        let shift = (QUOTIENT_BITS + divisor.bits() - self.bits()).max(0);
        let (mut rest, mut quotient) = (Big::default(), Big::default());
        for at in (0..self.bits() + shift).rev() {
            rest.multiply(2, u32::from(self.bit(at - shift)));
            let one = !rest.is_less(divisor);
            if one {
                rest.subtract(divisor);
            }
            quotient.multiply(2, u32::from(one));
        }
        quotient.rounded(-shift, !rest.0.is_empty())
    }

    /// This times a power of two as exponent and significand, rounded to the nearest, to the even
    /// one of two; `rest` says that a little is missing.
    fn rounded(&self, power: i64, rest: bool) -> u128 {
        let top = self.bits() - 1;
        let exponent = top + power + BIAS;
        // Below the least exponent there are fewer bits.
        let kept = if exponent >= 1 { 64 } else { (63 + exponent).max(-1) };
        let lowest = top - (kept - 1);
        let mut bits = (lowest..=top).rev().fold(0u128, |n, at| n << 1 | u128::from(self.bit(at)));
        let below = rest || (0..lowest - 1).any(|at| self.bit(at));
        if self.bit(lowest - 1) && (below || bits & 1 == 1) {
            bits += 1;
        }
        match () {
            () if exponent < 1 => bits,
            () if bits >> 64 > 0 => ((exponent as u128 + 1) << 64 | 1 << 63).min(INFINITY),
            () => ((exponent.min(1 << 20) as u128) << 64 | bits).min(INFINITY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> u128 {
        prefix(text.as_bytes())
    }

    #[test]
    fn numbers_rise_as_their_values_do() {
        let rising = [
            "",
            "nan",
            "-inf",
            "-1e4931",
            "-1e10",
            "-12.5",
            "-1",
            "-1e-4930",
            "0",
            "1e-4940",
            "1e-300",
            "0.1",
            "0.10000000000000000001",
            "0x1p-1",
            "0.75",
            "1",
            "1.0000000000000000002",
            "1.5",
            "2",
            "1e1",
            "0xA.8",
            "11",
            "123456789012345678",
            "123456789012345679",
            "1e30",
            "1.1e30",
            "9e999",
            "1e4932",
            "inf",
        ];
        for pair in rising.windows(2) {
            assert!(of(pair[0]) < of(pair[1]), "{pair:?}");
        }
        for (a, b) in [
            ("0", "-0"),
            ("1", "+1"),
            ("1", "1e0"),
            ("100", "1e2"),
            ("1.5x", "15e-1"),
            ("abc", "-"),
            ("inf", "1e5000"),
            ("0", "1e-6000"),
            ("0x10", " 16"),
            ("1", "1e"),
            ("0x", "0"),
            ("1.00000000000000000001", "1"),
            ("0x.8p1", "1"),
            (".", ""),
        ] {
            assert_eq!(of(a), of(b), "{a} {b}");
        }
    }

    #[test]
    fn doubles_are_what_the_standard_library_reads() {
        for text in ["0.1", "3.14159265358979", "2.5e-10", "1e22", "7e-300", "123456.789e100"] {
            let double: f64 = text.parse().unwrap();
            let bits = of(text) & ((1 << MAGNITUDE_BITS) - 1);
            let (exponent, significand) = ((bits >> 64) as i64 - BIAS, bits as u64);
            assert_eq!(exponent, (double.to_bits() >> 52) as i64 - 1023, "{text}");
            // 53 of its 64 bits, rounded.
            let expected = 1 << 63 | double.to_bits() << 11;
            assert!(significand.abs_diff(expected) <= 1 << 10, "{text}");
        }
    }
}
