//! A memory cgroup around all sorts, page cache included: version 1, or version 2 where that is
//! what the machine has.

use holdfast_base::{Error, Result};
use std::path::{Path, PathBuf};

const ONE: &str = "/sys/fs/cgroup/memory";
const TWO: &str = "/sys/fs/cgroup";

/// A group that this process and what it starts are in; gone with it.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a group that may use so many bytes and moves this process into it. Needs a cgroup file
    /// system that it may write.
    pub fn enter(bytes: u64) -> Result<Cgroup> {
        let name = format!("holdfast-bench-{}", std::process::id());
        let enter = |root: &str, limit: &str| -> std::io::Result<Cgroup> {
            let group = Path::new(root).join(&name);
            std::fs::create_dir(&group)?;
            let written = std::fs::write(group.join(limit), bytes.to_string())
                .and_then(|()| std::fs::write(group.join("cgroup.procs"), "0"));
            let _ = written.as_ref().map_err(|_| std::fs::remove_dir(&group));
            written.map(|()| Cgroup(group))
        };
        let entered = enter(ONE, "memory.limit_in_bytes").or_else(|_| {
            // Where it is not handed down yet. Whether it worked shows in what follows.
            let _ = std::fs::write(Path::new(TWO).join("cgroup.subtree_control"), "+memory");
            enter(TWO, "memory.max")
        });
        entered.map_err(|e| Error::from(e).context("make a memory cgroup"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Back to the group above; an empty group can be removed.
        if let Some(above) = self.0.parent() {
            let _ = std::fs::write(above.join("cgroup.procs"), "0");
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}
