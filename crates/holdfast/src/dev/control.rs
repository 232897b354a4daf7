//! How `dev kill` and its like reach the process that runs the nodes: one line of JSON each way
//! over a Unix socket in the cluster's directory.

use holdfast_base::{Error, Result};
use holdfast_command::supervisor::{Answer, Order, Supervisor};
use holdfast_env::tasks;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SOCKET: &str = "dev.sock";
/// An order or an answer; status of the largest cluster fits.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The socket's name goes when this does.
pub struct Listening(PathBuf);

impl Drop for Listening {
    #[expect(clippy::disallowed_methods, reason = "a socket's name, no data")]
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Takes orders on a thread of its own, one after another.
#[expect(clippy::disallowed_methods, reason = "a socket's name, no data")]
pub fn serve(data: &Path, supervisor: Arc<Supervisor>) -> Result<Listening> {
    let path = data.join(SOCKET);
    let _ = std::fs::remove_file(&path);
    let doing = format!("listen on `{}`", path.display());
    let listener = UnixListener::bind(&path).map_err(|e| Error::from(e).context(doing))?;
    // Ends with the process: what it does between two orders is wait for the next.
    tasks::spawn("dev-control", move || {
        for stream in listener.incoming().flatten() {
            // Whoever asked and left does not matter to the next one.
            let _ = answer(stream, &supervisor);
        }
    })?;
    Ok(Listening(path))
}

fn answer(stream: UnixStream, supervisor: &Supervisor) -> Result<()> {
    let mut line = String::new();
    BufReader::new(&stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(order) => supervisor.carry_out(&order),
        Err(e) => Err(Error::invalid(format!("read an order: {e}: use matching builds"))),
    };
    let answer = answer.unwrap_or_else(|e| Answer::Refused { sentence: e.message });
    let mut text = serde_json::to_string(&answer).map_err(|e| Error::bug(e.to_string()))?;
    text.push('\n');
    (&stream).write_all(text.as_bytes())?;
    Ok(())
}

/// Sends an order to the process that runs the cluster in `data`.
pub fn ask(data: &Path, order: &Order) -> Result<Answer> {
    let path = data.join(SOCKET);
    let stream = UnixStream::connect(&path).map_err(|e| {
        Error::from(e).context(format_args!(
            "ask the cluster in `{}` (does `holdfast dev --nodes N --data {}` run?)",
            data.display(),
            data.display()
        ))
    })?;
    let text = serde_json::to_string(order).map_err(|e| Error::bug(e.to_string()))?;
    (&stream).write_all(format!("{text}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(&stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
    serde_json::from_str(&line)
        .map_err(|e| Error::retry(format!("ask the cluster in `{}`: {e}", data.display())))
}
