//! What commands print: a line for people or an object for programs, to standard output.

use holdfast_base::Result;
use holdfast_base::text::{shown_lines, utc};
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whoever read standard output has had enough (`holdfast fs ls | head`).
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Whether standard output was closed by its reader: then what failed to be printed is no error.
pub fn reader_is_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// Standard output, which remembers that its reader is gone: only then is a broken pipe no error.
/// That of a socket is one.
pub struct Stdout(io::Stdout);

/// This process's standard output.
pub fn stdout() -> Stdout {
    Stdout(io::stdout())
}

fn noted<T>(written: io::Result<T>) -> io::Result<T> {
    if written.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        READER_GONE.store(true, Ordering::Relaxed);
    }
    written.map_err(|e| io::Error::new(e.kind(), format!("print to standard output: {e}")))
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        noted(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        noted(self.0.flush())
    }
}

/// Where a command's results go, in the one form or the other.
pub struct Output {
    json: bool,
    out: Stdout,
}

impl Output {
    /// Objects, one a line, if `json`; otherwise lines for people.
    pub fn new(json: bool) -> Output {
        Output { json, out: stdout() }
    }

    /// Whether objects are printed.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// One result: only the form that is wanted is made.
    pub fn line(
        &mut self,
        text: impl FnOnce() -> String,
        object: impl FnOnce() -> Value,
    ) -> Result<()> {
        self.line_of(text, || object().to_string())
    }

    /// As [`Output::line`], of an object that is text already.
    pub fn line_of(
        &mut self,
        text: impl FnOnce() -> String,
        object: impl FnOnce() -> String,
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
    utc(ns.div_euclid(1_000_000_000), ' ') + "Z"
}

/// Something that is no result and does not end the command: a sentence on standard error.
pub fn aside(sentence: impl Display) {
    eprintln!("holdfast: {}", shown_lines(&sentence.to_string()));
}
