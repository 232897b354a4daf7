//! What one client has written below its own directory: every state that may be the current one
//! (an operation whose answer never came leaves two), and every content that a name ever had.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

/// A file's content, made again from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub seed: u64,
    pub bytes: u32,
}

impl Version {
    /// Endless; Knuth's linear congruence is random enough, and no schedule waits for it.
    fn words(&self) -> impl Iterator<Item = [u8; 8]> {
        let next = |x: &u64| Some(x.wrapping_mul(STEP).wrapping_add(1_442_695_040_888_963_407));
        std::iter::successors(next(&self.seed), next).map(u64::to_le_bytes)
    }

    pub fn content(&self) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.bytes as usize + 8);
        content.extend(self.words().take(self.bytes.div_ceil(8) as usize).flatten());
        content.truncate(self.bytes as usize);
        content
    }

    fn is(&self, found: &[u8]) -> bool {
        let mut parts = found.chunks(8).zip(self.words());
        found.len() == self.bytes as usize && parts.all(|(part, word)| *part == word[..part.len()])
    }
}

const STEP: u64 = 6_364_136_223_846_793_005;

/// A directory's files.
pub type Files = BTreeMap<String, Version>;

/// What an operation makes of a directory.
#[derive(Clone, Debug)]
pub enum Change {
    Put(String, Version),
    Delete(String),
    Rename(String, String),
}

impl Change {
    fn apply(&self, files: &mut Files) {
        match self {
            Change::Put(path, version) => {
                files.insert(path.clone(), *version);
            }
            Change::Delete(path) => {
                files.remove(path);
            }
            Change::Rename(from, to) => {
                if let Some(version) = files.remove(from) {
                    files.insert(to.clone(), version);
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    /// Never empty.
    pub states: Vec<Files>,
    ever: BTreeMap<String, BTreeSet<Version>>,
}

/// More doubts than this at once are no doubts but a broken test.
const STATES_MAX: usize = 256;

impl Default for Model {
    fn default() -> Model {
        Model { states: vec![Files::new()], ever: BTreeMap::new() }
    }
}

impl Model {
    /// An operation is about to be asked for: what it makes may be seen from here on.
    pub fn begin(&mut self, change: &Change) {
        match change {
            Change::Put(path, version) => {
                self.ever.entry(path.clone()).or_default().insert(*version);
            }
            Change::Rename(from, to) => {
                let versions: Vec<Version> =
                    self.states.iter().filter_map(|files| files.get(from).copied()).collect();
                self.ever.entry(to.clone()).or_default().extend(versions);
            }
            Change::Delete(_) => {}
        }
    }

    /// It was acknowledged.
    pub fn done(&mut self, change: &Change) {
        self.states.iter_mut().for_each(|files| change.apply(files));
        self.tidy();
    }

    /// Nobody knows.
    pub fn doubt(&mut self, change: &Change) {
        let mut changed = self.states.clone();
        changed.iter_mut().for_each(|files| change.apply(files));
        self.states.extend(changed);
        self.tidy();
    }

    fn tidy(&mut self) {
        self.states.sort();
        self.states.dedup();
        assert!(self.states.len() <= STATES_MAX, "too many doubts");
    }

    /// Whether a name may have this content, by what was acknowledged.
    pub fn allows(&self, path: &str, found: Option<&[u8]>) -> bool {
        self.states.iter().any(|files| is(files.get(path), found))
    }

    /// A name was seen to have this content, now: that settles doubts.
    pub fn saw(&mut self, path: &str, found: Option<&[u8]>) {
        self.states.retain(|files| is(files.get(path), found));
    }

    /// Whether a name ever had this content, or may have.
    pub fn ever_allows(&self, path: &str, found: Option<&[u8]>) -> bool {
        let Some(found) = found else { return true };
        let ever = self.ever.get(path);
        ever.is_some_and(|versions| versions.iter().any(|v| is(Some(v), Some(found))))
    }

    /// Every name that any state, or an earlier time, has.
    pub fn paths(&self) -> BTreeSet<String> {
        self.ever.keys().cloned().collect()
    }

    /// Names that there may be files of.
    pub fn there(&self) -> BTreeSet<String> {
        self.states.iter().flat_map(|files| files.keys().cloned()).collect()
    }

    /// Names that some state has.
    pub fn any_path(&self, draw: u64) -> Option<String> {
        let files = self.states.first()?;
        let nth = (draw % files.len().max(1) as u64) as usize;
        files.keys().nth(nth).cloned()
    }

    pub fn describe(&self, path: &str) -> String {
        let of = |files: &Files| match files.get(path) {
            Some(version) => format!("{} bytes of {:#x}", version.bytes, version.seed),
            None => "nothing".to_owned(),
        };
        self.states
            .iter()
            .map(of)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
            .join(" or ")
    }
}

fn is(version: Option<&Version>, found: Option<&[u8]>) -> bool {
    match (version, found) {
        (None, None) => true,
        (Some(version), Some(found)) => version.is(found),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_leaves_two_states_until_one_is_seen() {
        let mut model = Model::default();
        let version = |seed| Version { seed, bytes: 10 };
        let (a, b) = (Change::Put("f".into(), version(1)), Change::Put("f".into(), version(2)));
        model.begin(&a);
        model.done(&a);
        model.begin(&b);
        model.doubt(&b);
        let (first, second) = (version(1).content(), version(2).content());
        assert!(model.allows("f", Some(&first)) && model.allows("f", Some(&second)));
        assert!(!model.allows("f", None) && !model.allows("f", Some(b"other")));
        model.saw("f", Some(&second));
        assert!(!model.allows("f", Some(&first)) && model.ever_allows("f", Some(&first)));
        let rename = Change::Rename("f".into(), "g".into());
        model.begin(&rename);
        model.done(&rename);
        assert!(model.allows("f", None) && model.allows("g", Some(&second)));
    }
}
