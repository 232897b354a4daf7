//! Topic names: what is allowed, the directory a name maps to, and the number that every commit
//! carries so that a file moved between topics is noticed. Pure.

use holdfast_base::checksum::fnv1a;
use holdfast_base::{Error, Result};

/// Longest name of a topic.
pub const TOPIC_BYTES_MAX: usize = 200;

/// Refuses what is not a topic's name: `/`-separated parts of `a-z 0-9 . _ -` that do not begin
/// with a dot.
pub fn check_topic(topic: &str) -> Result<()> {
    let wrong = if topic.is_empty() {
        "is empty: name it"
    } else if topic.len() > TOPIC_BYTES_MAX {
        "is longer than 200 bytes: shorten it"
    } else if topic
        .bytes()
        .any(|b| !matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/'))
    {
        "may hold only `a-z`, `0-9`, `.`, `_`, `-` and `/`: rename it"
    } else if topic.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
        "has a part that is empty or begins with `.`: rename it"
    } else {
        return Ok(());
    };
    let shown: String = topic.chars().take(TOPIC_BYTES_MAX).collect();
    Err(Error::invalid(format!("topic `{}` {wrong}", shown.escape_debug())))
}

/// The topic's directory: one flat name. `+` is no letter of a topic, so names stay distinct.
pub fn directory_name(topic: &str) -> String {
    topic.replace('/', "+")
}

/// The inverse of [`directory_name`]; `None` for what no topic maps to.
pub fn topic_of_directory(name: &str) -> Option<String> {
    if name.contains('/') {
        return None;
    }
    let topic = name.replace('+', "/");
    check_topic(&topic).is_ok().then_some(topic)
}

/// FNV-1a, 64 bits, of the name.
pub fn hash(topic: &str) -> u64 {
    fnv1a(topic.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_to_flat_directories_and_back() {
        for topic in ["cluster", "ns/0", "a.b_c-d/e/f", "lost/found"] {
            check_topic(topic).unwrap();
            let directory = directory_name(topic);
            assert!(!directory.contains('/'));
            assert_eq!(topic_of_directory(&directory).as_deref(), Some(topic));
        }
        assert_eq!(topic_of_directory("Upper"), None);
    }

    #[test]
    fn names_that_could_leave_the_directory_are_refused() {
        let long = "x".repeat(201);
        for topic in
            ["", "/", "a//b", "a/", "..", "a/../b", ".hidden", "A", "a b", "a+b", "é", &long]
        {
            assert!(check_topic(topic).is_err(), "{topic:?}");
        }
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
