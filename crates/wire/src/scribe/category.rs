//! Names of categories: what is allowed, and the topic of the log that each has. Pure.

use holdfast_base::{Error, Result};

/// A category's name.
pub const CATEGORY_BYTES_MAX: usize = 64;

/// In front of the name in the topic's.
const FAMILY: &str = "scribe/";

/// A topic's name has no more: a capital takes two letters of it.
pub const TOPIC_BYTES_MAX: usize = FAMILY.len() + 2 * CATEGORY_BYTES_MAX;

/// A category whose name is allowed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Category(String);

impl Category {
    /// Letters, digits, `.`, `_` and `-`, no `.` in front.
    pub fn new(name: &str) -> Result<Category> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let fits = (1..=CATEGORY_BYTES_MAX).contains(&name.len())
            && name.bytes().all(allowed)
            && !name.starts_with('.');
        if fits {
            return Ok(Category(name.to_owned()));
        }
        let shown: String = name.chars().take(CATEGORY_BYTES_MAX).collect();
        Err(Error::invalid(format!(
            "use category `{}`: its name may have 1 to {CATEGORY_BYTES_MAX} letters, digits, `.`, `_` and \
             `-`, without a `.` in front: rename it",
            shown.escape_debug()
        )))
    }

    /// As a stranger has sent it.
    pub fn of_bytes(name: &[u8]) -> Result<Category> {
        match std::str::from_utf8(name) {
            Ok(name) => Category::new(name),
            Err(_) => Category::new(&String::from_utf8_lossy(name)),
        }
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// The topic that holds it. Topics have no capitals: one is written as `-` and its letter, and a `-`
    /// as two.
    pub fn topic(&self) -> String {
        let mut topic = String::from(FAMILY);
        for letter in self.0.chars() {
            if letter == '-' || letter.is_ascii_uppercase() {
                topic.push('-');
            }
            topic.push(letter.to_ascii_lowercase());
        }
        topic
    }

    /// The category that a topic holds, if it holds one.
    pub fn of_topic(topic: &str) -> Option<Category> {
        let mut name = String::new();
        let mut letters = topic.strip_prefix(FAMILY)?.chars();
        while let Some(letter) = letters.next() {
            name.push(match letter {
                '-' => letters.next()?.to_ascii_uppercase(),
                letter => letter,
            });
        }
        Category::new(&name).ok().filter(|category| category.topic() == topic)
    }
}

impl std::fmt::Display for Category {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_topic_of_its_own() {
        let names = ["web", "Web", "WEB", "-web", "w-eb", "w--eb", "ad_clicks.v2", "-W", "a-"];
        let mut topics = Vec::new();
        for name in names {
            let category = Category::new(name).unwrap();
            assert!(category.topic().len() <= TOPIC_BYTES_MAX);
            assert_eq!(Category::of_topic(&category.topic()), Some(category.clone()), "{name}");
            topics.push(category.topic());
        }
        topics.sort();
        topics.dedup();
        assert_eq!(topics.len(), names.len(), "{topics:?}");
        for topic in
            ["scribe", "scribe/", "scribe/a-", "scribe/-.", "scribe/a/b", "view/a", "scribe/-1"]
        {
            assert_eq!(Category::of_topic(topic), None, "{topic}");
        }
    }

    #[test]
    fn what_could_lead_elsewhere_is_no_category() {
        let long = "x".repeat(CATEGORY_BYTES_MAX + 1);
        for name in ["", "../a", "a/b", ".a", "a b", "a\0b", "é", "a+", &long] {
            assert!(Category::new(name).is_err(), "{name:?}");
        }
        assert!(Category::of_bytes(b"a\xff").is_err());
    }
}
