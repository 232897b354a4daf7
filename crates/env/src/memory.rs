//! How much memory the group of processes may have in which this one was started: what a container
//! or a service manager allows, which the machine's own figure does not tell. Control groups of
//! version 1 and 2.

use std::fs;
use std::path::Path;

/// Where each version shows its groups, and what a group's limit is called there. Where both are
/// in use, the second holds the groups of version 2.
const TREES: [(&str, &str, Option<&str>); 3] = [
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", Some("memory")),
    ("sys/fs/cgroup/unified", "memory.max", None),
    ("sys/fs/cgroup", "memory.max", None),
];

/// The least limit of the groups that this process is in; none where nothing is limited, or cannot
/// be told.
pub fn limit_bytes() -> Option<u64> {
    limit_under(Path::new("/"))
}

fn limit_under(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut least = None;
    for line in groups.lines() {
        // Number, controllers, path; no controllers are named in version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        for (tree, file, controller) in TREES {
            let fits = match controller {
                Some(controller) => controllers.split(',').any(|other| other == controller),
                None => controllers.is_empty(),
            };
            if !fits {
                continue;
            }
            // Every group above limits, too. In a container the path may be one of the machine's,
            // of which only the root is shown.
            for group in Path::new(path.trim_start_matches('/')).ancestors() {
                let limit = fs::read_to_string(root.join(tree).join(group).join(file));
                let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
                least = [least, limit].into_iter().flatten().min();
            }
        }
    }
    // Version 1 writes "none" as the largest number of pages.
    least.filter(|bytes| *bytes < i64::MAX as u64 / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what the kernel shows, made up")]
    fn the_least_limit_of_all_groups_above_is_found_in_both_versions() {
        let root = std::env::temp_dir().join(format!("holdfast-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(limit_under(&root), None);
        write("proc/self/cgroup", "4:cpu,memory:/a/b\n0::/user\n");
        assert_eq!(limit_under(&root), None);
        write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit_under(&root), None);
        write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3000000\n");
        assert_eq!(limit_under(&root), Some(3_000_000));
        write("proc/self/cgroup", "0::/user/one.scope\n");
        assert_eq!(limit_under(&root), None);
        write("sys/fs/cgroup/user/one.scope/memory.max", "max\n");
        write("sys/fs/cgroup/user/memory.max", "5000000\n");
        assert_eq!(limit_under(&root), Some(5_000_000));
        write("sys/fs/cgroup/unified/user/one.scope/memory.max", "4000000\n");
        assert_eq!(limit_under(&root), Some(4_000_000));
        // A path of the machine's, inside a container.
        write("proc/self/cgroup", "4:memory:/docker/0123\n");
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
        assert_eq!(limit_under(&root), Some(2_000_000));
        fs::remove_dir_all(root).unwrap();
    }
}
