//! What a process tells on standard error: read while it runs, so that a full pipe never holds it
//! up, and judged at its end. An event of level error that its test has not announced fails the
//! test: a person would have had to look.

use serde_json::Value;
use std::io::Read;
use std::process::ChildStderr;
use std::thread::JoinHandle;

pub struct Told {
    reader: Option<JoinHandle<String>>,
    announced: Vec<&'static str>,
}

impl Told {
    /// `binary()` asks for events as objects.
    pub fn by(mut stderr: ChildStderr) -> Told {
        let read = move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        };
        Told { reader: Some(std::thread::spawn(read)), announced: Vec::new() }
    }

    /// This test has its process tell such an error.
    pub fn announce(&mut self, event: &'static str) {
        self.announced.push(event);
    }

    /// All of it, once the process and those that it has started are gone.
    pub fn whole(&mut self) -> String {
        self.reader.take().map_or_else(String::new, |reader| reader.join().unwrap())
    }

    /// The sentence of an event that its process must have told, once it is gone.
    #[track_caller]
    pub fn sentence_of(&mut self, event: &str) -> String {
        let whole = self.whole();
        let events = whole.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let told = events.into_iter().find(|told| told["event"] == event);
        let told = told.unwrap_or_else(|| panic!("`{event}` is missing in: {whole}"));
        told["message"].as_str().unwrap().to_owned()
    }

    /// Fails on an error that was not announced; gives what is no event.
    #[track_caller]
    pub fn judge(&mut self) -> String {
        let whole = self.whole();
        unexpected(&whole, &self.announced).unwrap_or_else(|told| panic!("told an error: {told}"))
    }
}

/// The lines that are no events; or the first event of level error that is not in `announced`.
fn unexpected(told: &str, announced: &[&str]) -> Result<String, String> {
    let mut others = String::new();
    for line in told.lines() {
        let event =
            serde_json::from_str(line).ok().filter(|event: &Value| event["event"].is_string());
        match event {
            Some(event) if event["level"] == "error" => {
                let is_announced = announced.iter().any(|name| event["event"] == *name);
                is_announced.then_some(()).ok_or(line)?;
            }
            Some(_) => {}
            None => others.extend([line, "\n"]),
        }
    }
    Ok(others)
}

#[test]
fn errors_that_were_not_announced_are_found() {
    let line = |level, event| format!("{{\"level\":\"{level}\",\"event\":\"{event}\"}}\n");
    let told =
        line("info", "a") + "a panic\n" + &line("error", "store.failed") + &line("warn", "b");
    assert_eq!(unexpected(&told, &["store.failed"]).as_deref(), Ok("a panic\n"));
    assert!(unexpected(&told, &["view.stopped"]).unwrap_err().contains("store.failed"));
}
