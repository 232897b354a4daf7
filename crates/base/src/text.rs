//! Text as people see it: names and messages of others may hold what a terminal obeys; times are
//! dates. Pure; called by whoever prints.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal may obey this instead of showing it: control characters, and those that turn
/// the direction of what follows, so that a name reads as another one.
fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, is_left: impl Fn(char) -> bool) -> Cow<'_, str> {
    let escapes = |c: char| is_obeyed(c) && !is_left(c);
    if !text.contains(escapes) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match escapes(c) {
            // Writing to a string cannot fail.
            true => drop(write!(shown, "{}", c.escape_default())),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// A name on one line, nothing of which a terminal obeys: `\u{1b}` and `\n` for what would be.
pub fn shown(name: &str) -> Cow<'_, str> {
    escaped(name, |_| false)
}

/// As [`shown`], of a text of several lines, whose ends and tabs stay.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// Two hexadecimal digits a byte, small ones.
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The bytes that [`to_hex`] wrote, in capital letters, too; `None` of anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// `2026-03-01 12:34:56` of seconds since 1970, with `between` for the space.
pub fn utc(seconds: i64, between: char) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Civil date from days (Howard Hinnant's algorithm).
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}{between}{h:02}:{m:02}:{s:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_all_bytes_and_nothing_else_is() {
        let all: Vec<u8> = (0..=255).collect();
        let plain: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(to_hex(&all), plain);
        assert_eq!(from_hex(&plain).as_deref(), Some(&all[..]));
        assert_eq!(from_hex("AbcDEF").as_deref(), Some(&[0xab, 0xcd, 0xef][..]));
        assert_eq!(from_hex("").as_deref(), Some(&[][..]));
        // A number's sign, which the standard library's parser takes, is no digit.
        for wrong in ["a", "abc", "+f", "-0", " 0", "0x", "g0", "ää", "0\u{660}"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_are_calendar_dates() {
        assert_eq!(utc(0, ' '), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400, 'T'), "2000-02-29T00:00:00");
        assert_eq!(utc(-1, ' '), "1969-12-31 23:59:59");
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_left_and_all_else_is() {
        assert_eq!(shown("plain, ünïcode, 漢字"), "plain, ünïcode, 漢字");
        assert_eq!(shown("a\u{1b}[2Jb\r\nc"), "a\\u{1b}[2Jb\\r\\nc");
        assert_eq!(shown("\u{9b}31m\u{7f}\u{202e}gpj.exe"), "\\u{9b}31m\\u{7f}\\u{202e}gpj.exe");
        assert_eq!(shown_lines("one\n\ttwo\u{7}"), "one\n\ttwo\\u{7}");
        for c in (0..=char::MAX as u32).filter_map(char::from_u32) {
            let text = c.to_string();
            assert!(!shown(&text).contains(is_obeyed), "{c:?}");
        }
    }
}
