//! Paths of the namespace: absolute, `/`-separated UTF-8, no `.`, `..`, empty or NUL parts.

use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, PATH_DEPTH_MAX};
use crate::{Error, Result};

/// Refuses what is not a path, with the reason. A trailing slash is allowed, `/` is the root.
pub fn check(path: &str) -> Result<()> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Error::invalid(format!(
            "path of {} bytes (`{}...`) is longer than {PATH_BYTES_MAX}: shorten it",
            path.len(),
            path.chars().take(40).collect::<String>().escape_debug()
        )));
    }
    let Some(rest) = path.strip_prefix('/') else {
        return Err(Error::invalid(format!(
            "path `{}` is not absolute: start it with `/`",
            path.escape_debug()
        )));
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        return Ok(());
    }
    let mut depth = 0;
    for name in rest.split('/') {
        check_name(name).map_err(|e| e.context(format_args!("path `{}`", path.escape_debug())))?;
        depth += 1;
    }
    if depth > PATH_DEPTH_MAX {
        return Err(Error::invalid(format!(
            "path of {depth} components is deeper than {PATH_DEPTH_MAX}: move it up"
        )));
    }
    Ok(())
}

/// Refuses what cannot be one component of a path.
pub fn check_name(name: &str) -> Result<()> {
    let wrong = if name.is_empty() {
        "is empty: remove the doubled `/`"
    } else if name == "." || name == ".." {
        "is relative: write the path out"
    } else if name.contains('\0') {
        "holds a NUL byte: remove it"
    } else if name.contains('/') {
        "holds a `/`: a name is one component"
    } else if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "name of {} bytes is longer than {NAME_BYTES_MAX}: shorten it",
            name.len()
        )));
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("name `{}` {wrong}", name.escape_debug())))
}

/// The components of a checked path, from the root down.
pub fn components(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

/// Parent and last component of a checked path; `None` for the root.
pub fn split(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let (parent, name) = path.rsplit_once('/')?;
    if name.is_empty() {
        return None;
    }
    Some((if parent.is_empty() { "/" } else { parent }, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_paths_pass() {
        for path in ["/", "/a", "/a/", "/a/b.c/d e", "/é/...", &format!("/{}", "n".repeat(255))] {
            assert_eq!(check(path), Ok(()), "{path}");
        }
        assert_eq!(split("/a/b"), Some(("/a", "b")));
        assert_eq!(split("/a/"), Some(("/", "a")));
        assert_eq!(split("/"), None);
        assert_eq!(components("/a/b/").collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn bad_paths_say_why() {
        let long = format!("/{}", "n/".repeat(2048));
        let deep = "/a".repeat(257);
        for (path, why) in [
            ("", "not absolute"),
            ("a/b", "not absolute"),
            ("/a//b", "doubled"),
            ("/a/../b", "relative"),
            ("/./b", "relative"),
            ("/a\0b", "NUL"),
            (&format!("/{}", "n".repeat(256)), "longer than 255"),
            (&long, "longer than 4095"),
            (&deep, "deeper than 256"),
        ] {
            let message = check(path).unwrap_err().message;
            assert!(message.contains(why), "{path:?}: {message}");
        }
    }
}
