//! What commands print: a line for people or an object for programs, to standard output.

use holdfast_base::Result;
use holdfast_base::text::shown_lines;
use serde_json::Value;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whoever read standard output has had enough (`holdfast fs ls | head`).
static READER_GONE: AtomicBool = AtomicBool::new(false);

pub fn reader_is_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// Standard output, which remembers that its reader is gone: only then is a broken pipe no error.
/// That of a socket is one.
pub struct Stdout(io::Stdout);

pub fn stdout() -> Stdout {
    Stdout(io::stdout())
}

fn noted<T>(written: io::Result<T>) -> io::Result<T> {
    if written.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        READER_GONE.store(true, Ordering::Relaxed);
    }
    written
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        noted(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        noted(self.0.flush())
    }
}

pub struct Output {
    json: bool,
    out: Stdout,
}

impl Output {
    pub fn new(json: bool) -> Output {
        Output { json, out: stdout() }
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    /// One result: only the form that is wanted is made.
    pub fn line(
        &mut self,
        text: impl FnOnce() -> String,
        object: impl FnOnce() -> Value,
    ) -> Result<()> {
        if self.json {
            writeln!(self.out, "{}", object())?;
        } else {
            // Names are other people's: a terminal shows them, and obeys none.
            writeln!(self.out, "{}", shown_lines(&text()))?;
        }
        Ok(())
    }

    /// A result that only programs ask for.
    pub fn object(&mut self, object: impl FnOnce() -> Value) -> Result<()> {
        if self.json {
            writeln!(self.out, "{}", object())?;
        }
        Ok(())
    }
}

/// `2026-03-01 12:34:56Z` of nanoseconds since 1970.
pub fn time(ns: i64) -> String {
    let seconds = ns.div_euclid(1_000_000_000);
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
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_are_calendar_dates() {
        assert_eq!(time(0), "1970-01-01 00:00:00Z");
        assert_eq!(time(951_782_400_000_000_000), "2000-02-29 00:00:00Z");
        assert_eq!(time(-1), "1969-12-31 23:59:59Z");
    }
}
