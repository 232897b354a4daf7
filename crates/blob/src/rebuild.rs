//! The names made again from the needles alone, and the needles checked against the names. Both
//! read every byte of this node's chunks of blobs.

use crate::command::{Command, Condition, Refusal};
use crate::model::{Alternate, Bucket, Object, ObjectExtent};
use crate::names::decoded;
use crate::needle::Trailer;
use crate::service::{Blobs, Failure};
use crate::{rows, version_name};
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Cookie, Pointer, Slot};
use holdfast_cluster::BLOBS;
use std::collections::BTreeMap;

/// What a rebuild has done.
#[derive(Clone, Debug, Default)]
pub struct Rebuilt {
    pub needles: u64,
    pub objects: u64,
    /// Already named, or older than what is named.
    pub known: u64,
    /// One sentence each.
    pub refused: Vec<String>,
}

/// What a verification has found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    pub objects: u64,
    pub bytes: u64,
    /// One sentence each.
    pub damaged: Vec<String>,
}

impl Blobs {
    /// Calls `each` for every needle of a chunk that is on this node and can be read, and notes the
    /// slots of others with the reason.
    fn for_each_needle(
        &self,
        chunk: ChunkId,
        each: &mut dyn FnMut(Pointer, &[u8]) -> Result<()>,
        damaged: &mut Vec<(Slot, String)>,
    ) -> Result<()> {
        let known =
            self.node.read_chunk(chunk, |view, _| view.get(chunk).map(|c| c.replicas.clone()))?;
        let Some(store) = known.and_then(|replicas| self.node.stores.holding(&replicas).cloned())
        else {
            return Ok(());
        };
        for slot in (0..store.length(chunk)?).map(|slot| Slot(slot as u32)) {
            match store.read_slot(chunk, slot) {
                Ok(None) => {}
                Ok(Some(read)) => {
                    let pointer = Pointer { chunk, slot, cookie: read.needle.cookie };
                    each(pointer, read.bytes.as_slice())?;
                }
                Err(e) => damaged.push((slot, e.message)),
            }
        }
        Ok(())
    }

    /// Names again what the needles of this node say that the index does not know: versions in
    /// the order in which they were written, buckets as they are found. What was deleted and not
    /// compacted away comes back; changes of tags and the like are as they were first written.
    pub fn rebuild(&self) -> Result<Rebuilt> {
        let mut rebuilt = Rebuilt::default();
        let mut found: BTreeMap<(String, String, u64), Object> = BTreeMap::new();
        let mut alternates: BTreeMap<(String, String, u64), Vec<Alternate>> = BTreeMap::new();
        for chunk in self.node.face_chunks(BLOBS)? {
            let mut damaged = Vec::new();
            let mut each = |pointer, needle: &[u8]| {
                rebuilt.needles += 1;
                match Trailer::of(needle) {
                    Ok((Trailer::Whole { bucket, key, mut object }, data)) => {
                        let own = ObjectExtent { pointer, bytes: data as u32 };
                        match data {
                            0 => {
                                let bytes = if object.parts.is_empty() { 0 } else { needle.len() };
                                object.manifest = Some(ObjectExtent { bytes: bytes as u32, ..own });
                            }
                            _ => object.extents.push(own),
                        }
                        found.insert((bucket, key, object.version), object);
                    }
                    Ok((Trailer::Piece { .. }, _)) => {}
                    Ok((Trailer::Alternate { bucket, key, version, mut alternate }, data)) => {
                        alternate.extent = ObjectExtent { pointer, bytes: data as u32 };
                        alternates.entry((bucket, key, version)).or_default().push(alternate);
                    }
                    Err(e) => rebuilt.refused.push(format!("object `{pointer}`: {e}")),
                }
                Ok(())
            };
            self.for_each_needle(chunk.chunk, &mut each, &mut damaged)?;
            rebuilt.refused.extend(damaged.into_iter().map(|(_, why)| why));
        }
        for ((bucket, key, version), mut object) in found {
            let name = (bucket, key, version);
            object.alternates = alternates.remove(&name).unwrap_or_default();
            let (bucket, key, _) = name;
            self.name_again(bucket, key, object, &mut rebuilt)?;
        }
        Ok(rebuilt)
    }

    fn name_again(
        &self,
        bucket: String,
        key: String,
        object: Object,
        rebuilt: &mut Rebuilt,
    ) -> Result<()> {
        let current: Option<Object> = self.row(&rows::current(&bucket, &key), "an object")?;
        if current.is_some_and(|current| current.version >= object.version) {
            rebuilt.known += 1;
            return Ok(());
        }
        if self.row::<Bucket>(&rows::bucket(&bucket), "a bucket")?.is_none() {
            let versioning = !object.null as u8;
            let made = Bucket { created_ms: self.now_ms(), versioning, ..Bucket::default() };
            self.propose_and_wait(&Command::CreateBucket { name: bucket.clone(), bucket: made })?;
        }
        let what = format!("`{bucket}/{}` version {}", key.escape_debug(), version_name(&object));
        let condition = Condition::default();
        match self.propose_and_wait(&Command::Put { bucket, key, object, condition, hold: 0 }) {
            Ok(_) => rebuilt.objects += 1,
            // Its slots are another version's: it was named before.
            Err(Failure::Refused(Refusal::Taken(_))) => rebuilt.known += 1,
            Err(Failure::Refused(refusal)) => rebuilt.refused.push(format!("{what}: {refusal}")),
            Err(Failure::Failed(e)) => return Err(e),
        }
        Ok(())
    }

    /// Reads every needle that is named, on this node, and every name.
    pub fn verify(&self) -> Result<Verified> {
        let mut verified = Verified::default();
        for chunk in self.node.face_chunks(BLOBS)? {
            let mut damaged = Vec::new();
            let mut each = |pointer: Pointer, needle: &[u8]| {
                if let Err(e) = Trailer::of(needle) {
                    verified.damaged.push(format!("object `{pointer}`: {e}"));
                }
                Ok(())
            };
            self.for_each_needle(chunk.chunk, &mut each, &mut damaged)?;
            for (slot, why) in damaged {
                // What no name leads to was never acknowledged, or is deleted: nothing is lost.
                let pointer = Pointer { chunk: chunk.chunk, slot, cookie: Cookie(0) };
                if self.index.get(&rows::slot(pointer))?.is_some() {
                    verified.damaged.push(why);
                }
            }
        }
        for (bucket, _) in self.buckets()? {
            let prefix = rows::currents(&bucket);
            self.index.scan(&prefix, &rows::behind(&prefix), &mut |row, value| {
                let object: Object = decoded(value, "an object")?;
                verified.objects += 1;
                verified.bytes += object.size;
                for extent in object.needles() {
                    if self.index.get(&rows::slot(extent.pointer))?.is_none() {
                        let key = String::from_utf8_lossy(&row[prefix.len()..]);
                        let what = format!("`{bucket}/{key}`: `{}` is not live", extent.pointer);
                        verified.damaged.push(what);
                    }
                }
                Ok(true)
            })?;
        }
        Ok(verified)
    }
}
