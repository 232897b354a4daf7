//! The command as a person uses it, and a node that is killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_holdfast-counter");

struct Running {
    child: Child,
    data: PathBuf,
}

impl Running {
    fn start(data: PathBuf) -> Running {
        let mut command = Command::new(BINARY);
        let mut child = command.arg("up").arg(&data).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Running { child, data }
    }

    fn ask(&self, verb: &str, words: &[&str]) -> Output {
        Command::new(BINARY).arg(verb).arg(&self.data).args(words).output().unwrap()
    }

    fn says(&self, verb: &str, words: &[&str]) -> String {
        let output = self.ask(verb, words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_was_added_is_there_after_a_kill() {
    let data = std::env::temp_dir().join(format!("hf-counter-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&data);
    let mut node = Running::start(data.clone());
    assert_eq!(node.says("add", &["visits", "40"]), "40\n");
    assert_eq!(node.says("add", &["visits", "2"]), "42\n");
    node.child.kill().unwrap();
    node.child.wait().unwrap();
    let node = Running::start(data.clone());
    assert_eq!(node.says("read", &["visits"]), "42\n");
    assert_eq!(node.says("read", &["others"]), "0\n");
    for (words, why) in [(["", "1"], "1 to 255 bytes"), (["visits", "many"], "whole number")] {
        let refused = node.ask("add", &words);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
    drop(node);
    std::fs::remove_dir_all(&data).unwrap();
}
