//! `holdfast sort --ray`: becomes `python3 -m holdfast.sort`, with the same options. Never returns
//! unless that cannot be.

use holdfast_base::Error;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Another interpreter than `python3`, as that of a virtual environment.
const PYTHON: &str = "HOLDFAST_PYTHON";

/// What is given behind `sort`; `--json` may stand in front of it.
fn passed_on(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut passed, mut json, mut behind) = (Vec::new(), false, false);
    for argument in all {
        json |= argument == "--json";
        match behind {
            true if argument != "--json" => passed.push(argument),
            true => {}
            false => behind = argument == "sort",
        }
    }
    if json {
        passed.push("--json".into());
    }
    passed
}

/// Of this process's arguments. Answers why it could not.
pub fn run(arguments: impl Iterator<Item = OsString>) -> Error {
    let python = std::env::var_os(PYTHON).unwrap_or_else(|| "python3".into());
    let shown = python.display().to_string();
    let tried = Command::new(&python).args(["-c", "import holdfast.sort, ray"]).output();
    match tried {
        Ok(tried) if tried.status.success() => {
            let passed = passed_on(arguments.skip(1));
            Command::new(&python).args(["-m", "holdfast.sort"]).args(passed).exec().into()
        }
        Ok(tried) => {
            let said = String::from_utf8_lossy(&tried.stderr);
            Error::unsupported(format!(
                "sort over a Ray cluster: `{shown}` cannot import what does it ({}): pip install 'ray>=2.40,<3' and the wheel that `make wheel` builds, or name another interpreter in {PYTHON}",
                said.lines().last().unwrap_or("it said nothing")
            ))
        }
        Err(e) => Error::unsupported(format!(
            "sort over a Ray cluster: start `{shown}`: {e}: install Python 3.9 or later, or name an interpreter in {PYTHON}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_sort_is_passed_on() {
        let all = ["--json", "--server", "x", "sort", "--ray", "local", "-o", "sort", "in"];
        let passed = passed_on(all.iter().map(OsString::from));
        assert_eq!(passed, ["--ray", "local", "-o", "sort", "in", "--json"]);
    }
}
