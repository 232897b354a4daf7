//! What a client with a name may do, as people write it: `fs:/a:rw`, `log:orders/*:r`,
//! `admin:r`, `audit:r`, `region:2:rw`.
//! A rule names a part of what is stored, and whether it may be read, or changed as well. Nothing is
//! allowed that no rule names.

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::{Error, Result, path};
use std::fmt;
use std::sync::Arc;

/// Rules of one client.
pub const RULES_MAX: usize = 32;
/// Of all of a client's rules together, as they are written.
pub const RULES_BYTES_MAX: usize = 1024;

const FORMS: &str = "write `fs:/PATH:r` or `:rw`, `log:TOPIC:r` or `log:PREFIX*:rw`, `admin:r` or `admin:rw`, `audit:r`, `region:NUMBER:rw`";

/// What somebody wants to do to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Look at it.
    Read,
    /// Change it, which includes looking at it.
    Write,
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Access::Read => "r",
            Access::Write => "rw",
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    what: What,
    access: Access,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// The file or directory of this path and everything below it.
    Files(String),
    /// The topic of this name, or all whose names begin so.
    Topics { name: String, prefix: bool },
    /// What is told of the cluster; with [`Access::Write`] orders too, which can do everything.
    Admin,
    /// The audit trail, which is read and never changed.
    Audit,
    /// To be this region of the tables that are in several.
    Region(u8),
}

impl Rule {
    fn parse(text: &str) -> Result<Rule> {
        let wrong = |why: &str| {
            Error::invalid(format!("read the rule `{}`: {why}: {FORMS}", text.escape_debug()))
        };
        if text.chars().any(char::is_control) {
            return Err(wrong("a character of it cannot be shown"));
        }
        let (what, access) = text.rsplit_once(':').ok_or_else(|| wrong("it has no `:`"))?;
        let access = match access {
            "r" => Access::Read,
            "rw" => Access::Write,
            _ => return Err(wrong("it does not end in `:r` or `:rw`")),
        };
        let what = match what.split_once(':') {
            None if what == "admin" => What::Admin,
            None if what == "audit" && access == Access::Read => What::Audit,
            None if what == "audit" => return Err(wrong("nobody changes the audit trail")),
            Some(("fs", path)) => {
                path::check(path).map_err(|e| wrong(&e.message))?;
                // A slash too many would be all of `/`.
                if path.ends_with("//") {
                    return Err(wrong("its path ends in two `/`"));
                }
                What::Files(trimmed(path).to_owned())
            }
            Some(("log", topic)) => {
                let (name, prefix) = match topic.strip_suffix('*') {
                    Some(name) => (name, true),
                    None => (topic, false),
                };
                if name.contains('*') || (name.is_empty() && !prefix) {
                    return Err(wrong("it names no topic, or has a `*` before its end"));
                }
                What::Topics { name: name.to_owned(), prefix }
            }
            Some(("region", number)) => {
                let read: Option<u8> = number.parse().ok();
                match read.filter(|read| read.to_string() == number && access == Access::Write) {
                    Some(region) => What::Region(region),
                    None => return Err(wrong("a region is a number up to 255, and speaks (`rw`)")),
                }
            }
            _ => return Err(wrong("there is no such right")),
        };
        Ok(Rule { what, access })
    }

    fn covers_path(&self, path: &str) -> bool {
        let What::Files(root) = &self.what else { return false };
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        root == "/" || path.strip_prefix(root.as_str()).is_some_and(below)
    }

    fn covers_topic(&self, topic: &str) -> bool {
        match &self.what {
            What::Topics { name, prefix: true } => topic.starts_with(name.as_str()),
            What::Topics { name, prefix: false } => topic == name,
            _ => false,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = self.access.name();
        match &self.what {
            What::Files(path) => write!(f, "fs:{path}:{access}"),
            What::Topics { name, prefix } => {
                write!(f, "log:{name}{}:{access}", if *prefix { "*" } else { "" })
            }
            What::Admin => write!(f, "admin:{access}"),
            What::Audit => write!(f, "audit:{access}"),
            What::Region(number) => write!(f, "region:{number}:{access}"),
        }
    }
}

/// A path without the slash that it may end in.
fn trimmed(path: &str) -> &str {
    match path.strip_suffix('/') {
        Some("") | None => path,
        Some(path) => path,
    }
}

/// All rules of a client; without any nothing is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Arc<[Rule]>);

impl Rules {
    /// Reads rules as people write them; an error names the one that is none.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Rules> {
        let bytes: usize = texts.iter().map(|text| text.as_ref().len()).sum();
        if texts.len() > RULES_MAX || bytes > RULES_BYTES_MAX {
            return Err(Error::invalid(format!(
                "read {} rules of {bytes} bytes: a client has at most {RULES_MAX} of {RULES_BYTES_MAX} bytes together: name directories above, or topics by their beginnings",
                texts.len()
            )));
        }
        texts.iter().map(|text| Rule::parse(text.as_ref())).collect::<Result<_>>().map(Rules)
    }

    /// In the one spelling that reads back as the same.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(Rule::to_string).collect()
    }

    /// Whether they allow nothing at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this may be done to the file of this path, which has no links in it. `Denied` names
    /// the rule that it takes.
    pub fn check_path(&self, path: &str, access: Access) -> Result<()> {
        let path = trimmed(path);
        self.check(access, |rule| rule.covers_path(path), || format!("fs:{path}"))
    }

    /// Whether this may be done to the topic of this name.
    pub fn check_topic(&self, topic: &str, access: Access) -> Result<()> {
        self.check(access, |rule| rule.covers_topic(topic), || format!("log:{topic}"))
    }

    /// Whether the client may look at the cluster, or give orders.
    pub fn check_admin(&self, access: Access) -> Result<()> {
        self.check(access, |rule| rule.what == What::Admin, || "admin".to_owned())
    }

    /// Whether the client may read the audit trail: a right of its own, which no other includes, so
    /// that it can be given to who looks after nothing else.
    pub fn check_audit(&self) -> Result<()> {
        self.check(Access::Read, |rule| rule.what == What::Audit, || "audit".to_owned())
    }

    /// Whether the client speaks for this region, and makes tables that it is in.
    pub fn check_region(&self, region: u8) -> Result<()> {
        let is = |rule: &Rule| rule.what == What::Region(region);
        self.check(Access::Write, is, || format!("region:{region}"))
    }

    fn check(
        &self,
        access: Access,
        covers: impl Fn(&Rule) -> bool,
        what: impl Fn() -> String,
    ) -> Result<()> {
        if self.0.iter().any(|rule| rule.access >= access && covers(rule)) {
            return Ok(());
        }
        Err(Error::denied(format!(
            "it takes the right `{}:{}`: ask whoever looks after the cluster",
            what().escape_debug(),
            access.name()
        )))
    }
}

impl Encode for Rules {
    fn encode(&self, out: &mut Vec<u8>) {
        self.texts().encode(out);
    }
}

impl Decode for Rules {
    fn decode(reader: &mut Reader<'_>) -> Result<Rules, DecodeError> {
        let texts: Vec<String> = Decode::decode(reader)?;
        let rules = Rules::parse(&texts).map_err(|_| DecodeError::BadValue("rules"))?;
        // One byte form for each state.
        match rules.texts() == texts {
            true => Ok(rules),
            false => Err(DecodeError::BadValue("spelling of rules")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn a_path_is_covered_by_what_stands_above_it_and_by_nothing_that_only_begins_so() {
        let rules = Rules::parse(&["fs:/a:rw", "fs:/b/c/:r", "fs:/x:y:r"]).unwrap();
        assert_eq!(rules.texts(), ["fs:/a:rw", "fs:/b/c:r", "fs:/x:y:r"]);
        for (path, read, write) in [
            ("/a", true, true),
            ("/a/", true, true),
            ("/a/b", true, true),
            ("/ab", false, false),
            ("/", false, false),
            ("/b", false, false),
            ("/b/c", true, false),
            ("/b/c/d", true, false),
            ("/b/cd", false, false),
            ("/x:y/z", true, false),
            ("a", false, false),
            ("", false, false),
        ] {
            assert_eq!(rules.check_path(path, Access::Read).is_ok(), read, "{path}");
            assert_eq!(rules.check_path(path, Access::Write).is_ok(), write, "{path}");
        }
        let all = Rules::parse(&["fs:/:rw"]).unwrap();
        assert!(all.check_path("/", Access::Write).is_ok());
        assert!(all.check_path("/any/where", Access::Write).is_ok());
        let e = rules.check_path("/b/c/d", Access::Write).unwrap_err();
        assert!(e.kind == Kind::Denied && e.message.contains("`fs:/b/c/d:rw`"), "{e}");
    }

    #[test]
    fn topics_are_covered_by_name_or_beginning_and_no_kind_covers_another() {
        let rules = Rules::parse(&["log:orders/*:r", "log:audit:rw", "admin:r"]).unwrap();
        for (topic, read, write) in [
            ("orders/1", true, false),
            ("orders/", true, false),
            ("orders", false, false),
            ("audit", true, true),
            ("audit/1", false, false),
        ] {
            assert_eq!(rules.check_topic(topic, Access::Read).is_ok(), read, "{topic}");
            assert_eq!(rules.check_topic(topic, Access::Write).is_ok(), write, "{topic}");
        }
        assert!(
            rules.check_admin(Access::Read).is_ok() && rules.check_admin(Access::Write).is_err()
        );
        assert!(rules.check_path("/", Access::Read).is_err());
        let files = Rules::parse(&["fs:/:rw"]).unwrap();
        assert!(files.check_topic("/", Access::Read).is_err());
        assert!(files.check_admin(Access::Read).is_err());
        let all = Rules::parse(&["log:*:rw"]).unwrap();
        assert!(all.check_topic("anything", Access::Write).is_ok());
        assert!(Rules::default().check_path("/", Access::Read).is_err());
    }

    #[test]
    fn who_speaks_for_a_region_speaks_for_that_one_and_does_nothing_else() {
        let rules = Rules::parse(&["region:2:rw"]).unwrap();
        assert_eq!(rules.texts(), ["region:2:rw"]);
        assert!(rules.check_region(2).is_ok());
        let e = rules.check_region(1).unwrap_err();
        assert!(e.kind == Kind::Denied && e.message.contains("`region:1:rw`"), "{e}");
        assert!(rules.check_topic("table/users", Access::Read).is_err());
        let others = Rules::parse(&["log:*:rw", "admin:rw", "fs:/:rw"]).unwrap();
        assert!(others.check_region(2).is_err());
    }

    #[test]
    fn what_is_no_rule_is_refused_with_a_sentence() {
        for bad in [
            "",
            "r",
            "fs",
            "fs:/a",
            "fs:/a:w",
            "fs:/a:RW",
            "fs:a:r",
            "fs:/a/../b:r",
            "fs://:r",
            "fs:/a\n:r",
            "fs::r",
            "log::r",
            "log:a*b:r",
            "log:**:r",
            "admin::r",
            "admin",
            "admin:/:r",
            "files:/a:r",
            "region:2:r",
            "region:02:rw",
            "region:256:rw",
            "region::rw",
            "fs:/a:rw ",
            " fs:/a:r",
        ] {
            let e = Rules::parse(&[bad]).unwrap_err();
            assert!(e.kind == Kind::Invalid && e.message.contains("fs:/PATH"), "{bad}: {e}");
        }
        assert!(Rules::parse(&vec!["admin:r"; RULES_MAX]).is_ok());
        assert!(Rules::parse(&vec!["admin:r"; RULES_MAX + 1]).is_err());
        let long = |bytes: usize| format!("log:{}:r", "t".repeat(bytes - 6));
        assert!(Rules::parse(&[long(RULES_BYTES_MAX)]).is_ok());
        assert!(Rules::parse(&[long(RULES_BYTES_MAX + 1)]).is_err());
    }

    #[test]
    fn rules_come_back_from_their_bytes_in_one_spelling() {
        let rules = Rules::parse(&["fs:/a/:rw", "log:*:r", "admin:rw"]).unwrap();
        assert_eq!(Rules::from_bytes(&rules.to_bytes()), Ok(rules));
        assert!(Rules::from_bytes(&vec!["fs:/a/:rw".to_owned()].to_bytes()).is_err());
        assert!(Rules::from_bytes(&vec!["fs".to_owned()].to_bytes()).is_err());
    }
}
