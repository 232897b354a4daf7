//! What a region had decided when others sealed its stream without it. Once it is back, its stream is
//! theirs, and what it had beside that are *branches*: of each key the last value, kept by all regions until
//! somebody resolves it.

use crate::entry::{Body, ChangeKind, StreamEntry};
use crate::ids::{Key, Place, StreamId, Value};
use crate::record::{put_value, value_of};
use holdfast_base::Result;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::stream::{Source, Writer};
use holdfast_env::planted;
use std::collections::BTreeMap;

/// Which branch it is: of which key, and where its last version was decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BranchId {
    pub key: Key,
    pub stream: StreamId,
    pub place: Place,
}

/// What a key came to in a part of a stream that was cut off after it had been acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    pub id: BranchId,
    /// The version that the branch began behind; 0 where the key was absent.
    pub after: u64,
    /// The one that it came to.
    pub version: u64,
    /// None where it was deleted.
    pub value: Option<Value>,
}

impl Encode for BranchId {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.key);
        self.stream.encode(out);
        self.place.encode(out);
    }
}

impl Decode for BranchId {
    fn decode(reader: &mut Reader<'_>) -> Result<BranchId, DecodeError> {
        Ok(BranchId {
            key: reader.bytes()?.to_vec(),
            stream: StreamId::decode(reader)?,
            place: Place::decode(reader)?,
        })
    }
}

impl Encode for Branch {
    fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.after.encode(out);
        self.version.encode(out);
        put_value(out, self.value.as_ref());
    }
}

impl Decode for Branch {
    fn decode(reader: &mut Reader<'_>) -> Result<Branch, DecodeError> {
        Ok(Branch {
            id: BranchId::decode(reader)?,
            after: u64::decode(reader)?,
            version: u64::decode(reader)?,
            value: value_of(reader)?,
        })
    }
}

impl BranchId {
    /// How many bytes it has, encoded.
    pub(crate) fn encoded_bytes(&self) -> usize {
        4 + self.key.len() + 1 + 16
    }
}

impl Branch {
    /// How many bytes it has, encoded.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.id.encoded_bytes() + 8 + 8 + 1 + self.value.as_ref().map_or(0, |value| 4 + value.len())
    }

    /// Of its key and value.
    pub fn bytes(&self) -> u64 {
        (self.id.key.len() + self.value.as_ref().map_or(0, |value| value.len())) as u64
    }
}

/// What keys came to by entries of a stream that are cut off; and what is there of branches that were cut off
/// before, and said there in vain.
pub(super) fn cut_off<'a>(
    stream: StreamId,
    entries: impl Iterator<Item = &'a StreamEntry>,
) -> Vec<Branch> {
    if planted!("table.cut-off-without-branch") {
        return Vec::new();
    }
    let mut of_keys: BTreeMap<&Key, Branch> = BTreeMap::new();
    let mut before = Vec::new();
    for entry in entries {
        if let Body::Branch(branch) = &entry.body {
            before.push(branch.clone());
        }
        for change in entry.body.changes() {
            let value = match &change.kind {
                ChangeKind::Put(value) => Some(value.clone()),
                ChangeKind::Delete => None,
                // They change nothing that a client has written.
                ChangeKind::Move | ChangeKind::Forget => continue,
            };
            let id = BranchId { key: change.key.clone(), stream, place: entry.place };
            let after = of_keys.get(&change.key).map_or(change.after, |branch| branch.after);
            let branch = Branch { id, after, version: change.version, value };
            of_keys.insert(&change.key, branch);
        }
    }
    of_keys.into_values().chain(before).collect()
}

/// The branches of a tablet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branches {
    /// What all regions know once they show as much of the streams: each was said in the stream that it is of.
    said: BTreeMap<BranchId, Branch>,
    /// What this region's log alone has, and must yet say.
    unsaid: BTreeMap<BranchId, Branch>,
    bytes: u64,
}

impl Branches {
    /// Those that all regions know, in order of their keys.
    pub fn said(&self) -> &BTreeMap<BranchId, Branch> {
        &self.said
    }

    /// Those that this region has to tell the others.
    pub fn unsaid(&self) -> &BTreeMap<BranchId, Branch> {
        &self.unsaid
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.said.is_empty() && self.unsaid.is_empty()
    }

    /// Of keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A stream has said it: this region need not any more.
    pub(crate) fn say(&mut self, branch: Branch) {
        if let Some(before) = self.unsaid.remove(&branch.id) {
            self.bytes -= before.bytes();
        }
        self.bytes += branch.bytes();
        if let Some(before) = self.said.insert(branch.id.clone(), branch) {
            self.bytes -= before.bytes();
        }
    }

    /// This region has it, and nobody else yet.
    pub(crate) fn keep(&mut self, branch: Branch) {
        self.bytes += branch.bytes();
        if let Some(before) = self.unsaid.insert(branch.id.clone(), branch) {
            self.bytes -= before.bytes();
        }
    }

    /// Another region had it too, and has said it: this one need not any more.
    pub(crate) fn was_said(&mut self, id: &BranchId) {
        if planted!("table.resolved-is-said-again") {
            return;
        }
        if let Some(before) = self.unsaid.remove(id) {
            self.bytes -= before.bytes();
        }
    }

    /// Somebody has seen to it.
    pub(crate) fn resolve(&mut self, id: &BranchId) {
        for before in [self.said.remove(id), self.unsaid.remove(id)].into_iter().flatten() {
            self.bytes -= before.bytes();
        }
    }

    /// What others know is what an image says; what only this region has stays, unless the image has it.
    pub(crate) fn take(&mut self, sent: Branches) {
        let own = std::mem::replace(self, sent);
        for (id, branch) in own.unsaid {
            if !self.said.contains_key(&id) {
                self.keep(branch);
            }
        }
    }

    pub(crate) fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&(self.said.len() as u64));
        self.said.values().for_each(|branch| out.put(branch));
        out.put(&(self.unsaid.len() as u64));
        self.unsaid.values().for_each(|branch| out.put(branch));
    }

    pub(crate) fn restore(source: &mut Source<'_>) -> Result<Branches> {
        let mut branches = Branches::default();
        for _ in 0..source.get::<u64>()? {
            branches.say(source.get()?);
        }
        for _ in 0..source.get::<u64>()? {
            branches.keep(source.get()?);
        }
        Ok(branches)
    }
}
