//! The house's own checks, run by `make test`: `cargo xtask tidy`, `callgrind` and `mutants`.
//! Standard library only, so that it builds in a second. Never shipped.
#![forbid(unsafe_code)]

mod callgrind;
#[expect(clippy::disallowed_methods, reason = "a tool for people: it waits for tests")]
mod mutants;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy | picture | callgrind [--bless] [CASE...] | mutants [--quick] [--share N] [BUG...]";

/// Cargo as it runs from a shell. What `cargo run` tells the process that it starts are changes to build scripts that
/// look at them (ring's does), for which nearly everything would be built again.
fn cargo(root: &Path) -> Command {
    const TOLD: [&str; 4] = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_"];
    let mut command = Command::new("cargo");
    command.current_dir(root);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| TOLD.iter().any(|told| name.starts_with(told))) {
            command.env_remove(name);
        }
    }
    command
}

fn main() -> ExitCode {
    // Asked for when it runs: a target directory that several clones share may hold a binary that
    // was built in another one, and its checks would then read that tree.
    let here = std::env::var("CARGO_MANIFEST_DIR");
    let here = here.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&here).parent().expect("xtask lies in the workspace");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(root),
        ["picture"] => tidy::renew_picture(root),
        ["callgrind", ref rest @ ..] => callgrind::run(root, rest),
        ["mutants", ref rest @ ..] => mutants::run(root, rest),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
