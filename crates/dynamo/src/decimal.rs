//! DynamoDB's numbers: 38 significant decimal digits, magnitudes from 1E-130 to 9.99..E125, exact.
//! Nothing is ever rounded: what does not fit is refused. Pure.

use std::cmp::Ordering;
use std::fmt;

/// Significant digits that a number may have.
pub const DIGITS_MAX: u32 = 38;
/// The exponents that the first significant digit may have.
const MAGNITUDE_MAX: i64 = 125;
const MAGNITUDE_MIN: i64 = -130;

/// An exact decimal number.
///
/// One number has one form, so that equal ones are equal as values: the coefficient ends in no
/// zero, and zero is positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Decimal {
    is_negative: bool,
    /// Below 10^38.
    coefficient: u128,
    /// The number is the coefficient times ten to this.
    exponent: i16,
}

/// Why there is no such number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotANumber {
    /// It is not written as one.
    Syntax,
    /// Too far from zero.
    Overflow,
    /// Too near to zero.
    Underflow,
    /// More digits than are kept.
    Digits,
}

impl NotANumber {
    /// What DynamoDB says of it.
    pub fn message(self, text: &str) -> String {
        match self {
            NotANumber::Syntax if text.is_empty() => {
                "The parameter cannot be converted to a numeric value".into()
            }
            NotANumber::Syntax => {
                format!("The parameter cannot be converted to a numeric value: {text}")
            }
            NotANumber::Overflow => "Number overflow. Attempting to store a number with magnitude \
                                     larger than supported range"
                .into(),
            NotANumber::Underflow => "Number underflow. Attempting to store a number with \
                                      magnitude smaller than supported range"
                .into(),
            NotANumber::Digits => {
                "Attempting to store more than 38 significant digits in a Number".into()
            }
        }
    }
}

impl Decimal {
    /// Zero.
    pub const ZERO: Decimal = Decimal { is_negative: false, coefficient: 0, exponent: 0 };

    /// Reads `-12.5e-3` and the like, in time linear in the text.
    pub fn parse(text: &str) -> Result<Decimal, NotANumber> {
        let (is_negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let (mantissa, power) = match rest.find(['e', 'E']) {
            Some(at) => (&rest[..at], power(&rest[at + 1..])?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = || whole.bytes().chain(fraction.bytes());
        if digits().next().is_none() || !digits().all(|digit| digit.is_ascii_digit()) {
            return Err(NotANumber::Syntax);
        }
        let leading = digits().take_while(|digit| *digit == b'0').count();
        let count = whole.len() + fraction.len();
        if leading == count {
            return Ok(Decimal::ZERO);
        }
        let trailing = digits().rev().take_while(|digit| *digit == b'0').count();
        let significant = count - leading - trailing;
        // Of the first significant digit.
        let magnitude = power.saturating_add(whole.len() as i64 - leading as i64 - 1);
        check(magnitude, significant)?;
        let kept = digits().skip(leading).take(significant);
        let coefficient = kept.fold(0u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
        let exponent = magnitude - (significant as i64 - 1);
        Ok(Decimal { is_negative, coefficient, exponent: exponent as i16 })
    }

    /// A number of parts that are in the one form of numbers, or nothing.
    pub fn from_parts(is_negative: bool, coefficient: u128, exponent: i16) -> Option<Decimal> {
        let number = Decimal { is_negative, coefficient, exponent };
        let made = Decimal::made(is_negative, coefficient, i64::from(exponent)).ok()?;
        (made == number).then_some(number)
    }

    /// Sign, coefficient and exponent: what [`Decimal::from_parts`] takes.
    pub fn parts(self) -> (bool, u128, i16) {
        (self.is_negative, self.coefficient, self.exponent)
    }

    fn made(is_negative: bool, coefficient: u128, exponent: i64) -> Result<Decimal, NotANumber> {
        if coefficient == 0 {
            return Ok(Decimal::ZERO);
        }
        let (mut coefficient, mut exponent) = (coefficient, exponent);
        while coefficient.is_multiple_of(10) {
            coefficient /= 10;
            exponent += 1;
        }
        let digits = coefficient.ilog10() + 1;
        check(exponent + i64::from(digits) - 1, digits as usize)?;
        Ok(Decimal { is_negative, coefficient, exponent: exponent as i16 })
    }

    /// The exact sum, or what is wrong with it.
    pub fn plus(self, other: Decimal) -> Result<Decimal, NotANumber> {
        if self.coefficient == 0 {
            return Ok(other);
        }
        if other.coefficient == 0 {
            return Ok(self);
        }
        let (high, low) = match self.exponent >= other.exponent {
            true => (self, other),
            false => (other, self),
        };
        // What does not fit here has 39 digits at least, of which the other number, with 38, takes
        // none away: 10^38 itself fits, and all up to three times of it.
        let shift = (high.exponent - low.exponent) as u32;
        let scaled = 10u128.checked_pow(shift).and_then(|by| high.coefficient.checked_mul(by));
        let scaled = scaled.ok_or(NotANumber::Digits)?;
        let exponent = i64::from(low.exponent);
        if high.is_negative == low.is_negative {
            let sum = scaled.checked_add(low.coefficient).ok_or(NotANumber::Digits)?;
            return Decimal::made(high.is_negative, sum, exponent);
        }
        match scaled.cmp(&low.coefficient) {
            Ordering::Less => Decimal::made(low.is_negative, low.coefficient - scaled, exponent),
            _ => Decimal::made(high.is_negative, scaled - low.coefficient, exponent),
        }
    }

    /// The exact difference, or what is wrong with it.
    pub fn minus(self, other: Decimal) -> Result<Decimal, NotANumber> {
        self.plus(other.negated())
    }

    fn negated(self) -> Decimal {
        Decimal { is_negative: !self.is_negative && self.coefficient != 0, ..self }
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.coefficient == 0
    }

    /// Significant digits; zero has one.
    pub fn digits(self) -> u32 {
        self.coefficient.checked_ilog10().unwrap_or(0) + 1
    }

    /// Whether it is below zero.
    pub fn is_negative(self) -> bool {
        self.is_negative
    }

    /// The power of ten of its first digit.
    pub fn magnitude(self) -> i32 {
        i32::from(self.exponent) + self.digits() as i32 - 1
    }

    fn cmp_sizes(self, other: Decimal) -> Ordering {
        let by_magnitude = self.magnitude().cmp(&other.magnitude());
        by_magnitude.then_with(|| {
            // As many digits for both: the shorter one ends in zeros.
            let longest = self.digits().max(other.digits());
            let full = |number: Decimal| number.coefficient * 10u128.pow(longest - number.digits());
            full(self).cmp(&full(other))
        })
    }
}

fn check(magnitude: i64, digits: usize) -> Result<(), NotANumber> {
    match magnitude {
        MAGNITUDE_MIN..=MAGNITUDE_MAX if digits <= DIGITS_MAX as usize => Ok(()),
        MAGNITUDE_MIN..=MAGNITUDE_MAX => Err(NotANumber::Digits),
        i64::MIN..MAGNITUDE_MIN => Err(NotANumber::Underflow),
        _ => Err(NotANumber::Overflow),
    }
}

/// An exponent as it is written; what is out of all proportion is made a large one.
fn power(text: &str) -> Result<i64, NotANumber> {
    const LARGE: i64 = 1 << 40;
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(NotANumber::Syntax);
    }
    let add = |sum: i64, digit: u8| (sum * 10 + i64::from(digit - b'0')).min(LARGE);
    Ok(sign * digits.bytes().fold(0, add))
}

impl Ord for Decimal {
    fn cmp(&self, other: &Decimal) -> Ordering {
        let sign = |number: &Decimal| match (number.is_zero(), number.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        sign(self).cmp(&sign(other)).then_with(|| match (self.is_zero(), self.is_negative) {
            (true, _) => Ordering::Equal,
            (false, true) => other.cmp_sizes(*self),
            (false, false) => self.cmp_sizes(*other),
        })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Decimal) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As DynamoDB writes numbers: all digits, no exponent.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.coefficient.to_string();
        if self.is_negative {
            f.write_str("-")?;
        }
        let point = i64::from(self.exponent) + digits.len() as i64;
        match (self.exponent >= 0, point > 0) {
            (true, _) => write!(f, "{digits}{}", "0".repeat(self.exponent as usize)),
            (false, true) => {
                let (whole, fraction) = digits.split_at(point as usize);
                write!(f, "{whole}.{fraction}")
            }
            (false, false) => write!(f, "0.{}{digits}", "0".repeat(-point as usize)),
        }
    }
}

impl From<u64> for Decimal {
    fn from(number: u64) -> Decimal {
        // 20 digits at most.
        Decimal::made(false, u128::from(number), 0).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn numbers_are_read_and_written_in_one_form() {
        for (text, written) in [
            ("0", "0"),
            ("-0.00e7", "0"),
            ("007.50", "7.5"),
            ("+1", "1"),
            ("1e3", "1000"),
            ("-1.5E-3", "-0.0015"),
            (".5", "0.5"),
            ("5.", "5"),
            ("100", "100"),
            ("99999999999999999999999999999999999999", "99999999999999999999999999999999999999"),
        ] {
            assert_eq!(number(text).to_string(), written, "{text}");
            assert_eq!(number(written), number(text));
        }
        assert_eq!(number("1e-130").to_string(), format!("0.{}1", "0".repeat(129)));
        let widest = format!("{}e88", "9".repeat(38));
        assert_eq!(number(&widest).to_string(), "9".repeat(38) + &"0".repeat(88));
    }

    #[test]
    fn what_is_no_number_is_told_why() {
        for text in
            ["", "-", ".", "e5", "1e", "1e+", "1.2.3", " 1", "1 ", "0x1", "NaN", "1e1.5", "é"]
        {
            assert_eq!(Decimal::parse(text), Err(NotANumber::Syntax), "{text}");
        }
        assert_eq!(Decimal::parse("1e126"), Err(NotANumber::Overflow));
        assert_eq!(Decimal::parse("9e-131"), Err(NotANumber::Underflow));
        assert_eq!(Decimal::parse("1e99999999999999999999999"), Err(NotANumber::Overflow));
        assert_eq!(Decimal::parse(&("1".repeat(38) + "1")), Err(NotANumber::Digits));
        assert!(Decimal::parse(&("1".repeat(38) + "0")).is_ok());
        assert_eq!(Decimal::parse("0e99999999999"), Ok(Decimal::ZERO));
    }

    #[test]
    fn sums_are_exact_or_refused() {
        let sum = |a: &str, b: &str| number(a).plus(number(b)).map(|sum| sum.to_string());
        assert_eq!(sum("0.1", "0.2"), Ok("0.3".into()));
        assert_eq!(sum("5", "-5"), Ok("0".into()));
        assert_eq!(sum("1e38", "-1"), Ok("9".repeat(38)));
        assert_eq!(sum("1e38", "1"), Err(NotANumber::Digits));
        assert_eq!(sum("1e125", "1e-130"), Err(NotANumber::Digits));
        assert_eq!(sum(&"9".repeat(38), "1"), Ok("1".to_owned() + &"0".repeat(38)));
        assert_eq!(sum("9e125", "1e125"), Err(NotANumber::Overflow));
        assert_eq!(number("3").minus(number("4.5")).unwrap().to_string(), "-1.5");
        assert_eq!(Decimal::ZERO.minus(Decimal::ZERO), Ok(Decimal::ZERO));
        let smallest = number("1.1e-130").minus(number("1e-130"));
        assert_eq!(smallest, Err(NotANumber::Underflow));
    }
}
