//! File systems that tests fill.

use std::path::Path;
use std::process::Command;

/// A small file system of its own; gone with the test.
pub struct Mount<'a>(&'a Path);

impl Mount<'_> {
    /// `size` is a number of bytes, and what else tmpfs is to be told behind a comma.
    pub fn new<'a>(at: &'a Path, size: &str) -> Option<Mount<'a>> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={size}");
        let done =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(at).output();
        match done {
            Ok(done) if done.status.success() => Some(Mount(at)),
            other => {
                eprintln!("SKIPPED: no small file system may be mounted here: {other:?}");
                None
            }
        }
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
