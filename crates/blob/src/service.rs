//! The face of one node: what protocols call. Checks what can be checked early, stores bytes before
//! it names them, and proposes; the fold decides.

use crate::command::{Command, Condition, Outcome, PartName, Refusal};
use crate::index::{INDEX, Served, before, damaged};
use crate::model::{AccessKey, Bucket, Head, Lock, Object, ObjectExtent, Pair, Upload};
use crate::names::{Names, decoded};
use crate::propose::BARRIER;
use crate::writer::NewAlternate;
use crate::{BLOBS_TOPIC, list, needle, rows, seal};
use holdfast_base::codec::Decode;
use holdfast_base::ids::{Index, Pointer};
use holdfast_base::node::StorageClass;
use holdfast_base::{Error, Reason, Result};
use holdfast_cluster::BLOBS;
use holdfast_env::{Rows, Secret, runtime};
use holdfast_node::Node;
use holdfast_view::{Context, Fold, InRows};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Failed(e)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            Failure::Failed(e) => e,
        }
    }
}

pub type Answer<T> = std::result::Result<T, Failure>;

/// How the face is opened.
#[derive(Clone, Debug)]
pub struct BlobsOptions {
    /// The directory of the index.
    pub place: PathBuf,
    /// Blocks of the index kept in memory.
    pub cache_bytes: u64,
    /// Where objects go, and what an acknowledgement promises.
    pub class: StorageClass,
    /// Seals secret keys.
    pub secret: Secret,
}

impl BlobsOptions {
    pub fn new(data: &Path, secret: Secret) -> BlobsOptions {
        BlobsOptions {
            secret,
            place: data.join("blobs"),
            cache_bytes: 64 << 20,
            class: StorageClass::DEFAULT,
        }
    }
}

pub struct Blobs {
    pub(crate) node: Arc<Node>,
    /// As readers may have it.
    pub(crate) index: Arc<dyn Rows>,
    served: Arc<Served>,
    pub(crate) fold: Arc<Fold<InRows<Names>>>,
    class: StorageClass,
    secret: Secret,
    /// Held by whoever rewrites a chunk: housekeeping, or a person who did not want to wait for it.
    pub(crate) compacting: Mutex<()>,
}

impl Blobs {
    /// Opens the index and catches up with the log. An index that is damaged holds nothing that the
    /// log does not: it is set aside, and folded anew.
    pub fn open(node: &Arc<Node>, options: &BlobsOptions) -> Result<Arc<Blobs>> {
        let disk = &*node.machine.disk;
        damaged::set_aside_if_marked(disk, &options.place, &mut |what| node.report_finding(what))?;
        match Blobs::open_once(node, options) {
            // The log's damage would be there again.
            Err(e) if e.is(Reason::Rows) => {
                damaged::set_aside(disk, &options.place, &e, &mut |what| {
                    node.report_finding(what)
                })?;
                Blobs::open_once(node, options)
            }
            opened => opened,
        }
    }

    fn open_once(node: &Arc<Node>, options: &BlobsOptions) -> Result<Arc<Blobs>> {
        let place = &options.place;
        let rows = node.machine.engine.open_rows(place, INDEX, options.cache_bytes)?;
        // Its view is one of the node's.
        let (reported, marked) = (Arc::downgrade(node), place.clone());
        let damage = move |e: &Error| {
            if let Some(node) = reported.upgrade()
                && damaged::mark(&*node.machine.disk, &marked, e)
            {
                let place = marked.display();
                node.report_finding(format!(
                    "{e}: the next start folds `{place}` anew from the log"
                ));
            }
        };
        let context = Context::of(BLOBS_TOPIC).in_rows(rows.clone());
        before::take_over(node, &context)?;
        let fold = node.open_view::<InRows<Names>>(context)?;
        let served = Arc::new(Served::new(rows, Box::new(damage)));
        stop_with(&served, &fold);
        let blobs = Arc::new(Blobs {
            node: node.clone(),
            index: served.clone(),
            served,
            fold,
            class: options.class,
            secret: options.secret.clone(),
            compacting: Mutex::default(),
        });
        let caught_up = blobs.propose_and_wait(&BARRIER).map_err(|e| {
            Error::from(e).context(format_args!("keep the names of blobs in `{}`", place.display()))
        });
        caught_up.and_then(|_| blobs.seal_keys()).inspect_err(|_| blobs.fold.end())?;
        Ok(blobs)
    }

    /// Seals what the rows hold in clear: keys of an earlier build whose entries were trimmed, so
    /// that the log could not be sealed in front of them.
    fn seal_keys(&self) -> Result<()> {
        for (name, key) in self.access_keys()? {
            if let Some(sealed) = seal::sealed(&self.secret, &*self.node.machine.rng, &name, key) {
                let command = Command::SetAccessKey { name, key: Some(sealed) };
                self.propose_and_wait(&command)?;
            }
        }
        Ok(())
    }

    /// Goes on with a view that stopped on a full disk. It says what is in the way.
    pub(crate) fn resume(&self) -> Result<()> {
        // By itself, too, once the log is the right one again.
        let goes_on = || self.served.has_stopped() && self.fold.status().stopped.is_none();
        if self.fold.resume()? || goes_on() {
            self.served.look(|| self.fold.status().stopped);
            stop_with(&self.served, &self.fold);
        }
        Ok(())
    }

    /// Ends the threads of the view; then the rows are written out.
    pub fn end(&self) -> Result<()> {
        self.fold.end();
        self.index.persist("blobs.rows")
    }

    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub fn now_ms(&self) -> i64 {
        self.node.machine.clock.unix_ms() as i64
    }

    /// A number for a version: the time, then chance, so that later ones are larger as far as
    /// clocks agree.
    pub fn draw_version(&self) -> u64 {
        const CHANCE_BITS: u32 = 20;
        let chance = self.node.machine.rng.next_u64() & ((1 << CHANCE_BITS) - 1);
        (self.now_ms() as u64) << CHANCE_BITS | chance
    }

    pub fn draw_id(&self) -> u64 {
        self.node.machine.rng.next_u64().max(1)
    }

    /// Makes needles durable, in one append, and answers where they are. Nothing names them yet.
    pub(crate) async fn store(&self, needles: Vec<Vec<u8>>) -> Answer<Vec<Pointer>> {
        let bodies = needles.into_iter().map(|needle| {
            let crcs = needle::block_crcs(&needle);
            (Box::new(needle) as holdfast_chunk::Body, crcs)
        });
        let bodies = bodies.collect();
        let stored = runtime::answer(|done: holdfast_chunk::Done<Vec<Pointer>>| {
            self.node.pack_for(BLOBS, self.class, bodies, done);
        });
        match stored.await {
            Some(pointers) => Ok(pointers?),
            None => Err(Error::retry("store a blob: the node is ending").into()),
        }
    }

    pub(crate) async fn store_one(&self, needle: Vec<u8>) -> Answer<Pointer> {
        let stored = self.store(vec![needle]).await?;
        let place = stored.first().copied();
        place.ok_or_else(|| Error::bug("a needle has no place").into())
    }

    pub(crate) fn row<T: Decode>(&self, row: &[u8], what: &str) -> Result<Option<T>> {
        match self.index.get(row)? {
            Some(bytes) => Ok(Some(decoded(&bytes, what)?)),
            None => Ok(None),
        }
    }

    pub fn bucket(&self, name: &str) -> Answer<Bucket> {
        self.row(&rows::bucket(name), "a bucket")?.ok_or(Refusal::NoSuchBucket.into())
    }

    pub fn buckets(&self) -> Result<Vec<(String, Bucket)>> {
        list::named(&*self.index, rows::BUCKET, "a bucket")
    }

    pub async fn create_bucket(&self, name: &str, owner: &str, lockable: bool) -> Answer<()> {
        let versioning = lockable as u8;
        let bucket = Bucket {
            created_ms: self.now_ms(),
            owner: owner.to_owned(),
            versioning,
            lockable,
            documents: Vec::new(),
        };
        self.propose(&Command::CreateBucket { name: name.to_owned(), bucket }).await.map(|_| ())
    }

    pub async fn delete_bucket(&self, name: &str) -> Answer<()> {
        self.propose(&Command::DeleteBucket { name: name.to_owned() }).await.map(|_| ())
    }

    pub async fn set_document(
        &self,
        bucket: &str,
        document: &str,
        text: Option<String>,
    ) -> Answer<()> {
        let (name, document) = (bucket.to_owned(), document.to_owned());
        self.propose(&Command::SetDocument { name, document, text }).await.map(|_| ())
    }

    /// A version of a key, `None` for the current one. A delete marker is an answer, too.
    pub fn object(&self, bucket: &str, key: &str, version: Option<&str>) -> Answer<Object> {
        let current: Option<Object> = self.row(&rows::current(bucket, key), "an object")?;
        let Some(version) = version else {
            return match current {
                Some(object) => Ok(object),
                None => Err(self.absent(bucket, Refusal::NoSuchKey)),
            };
        };
        if let Some(object) = current.filter(|o| crate::version_name(o) == version) {
            return Ok(object);
        }
        let older = list::older_version(&*self.index, bucket, key, version)?;
        older.ok_or_else(|| self.absent(bucket, Refusal::NoSuchVersion))
    }

    /// What is missing: the bucket, or else what was asked for in it.
    fn absent(&self, bucket: &str, refusal: Refusal) -> Failure {
        match self.bucket(bucket) {
            Ok(_) => refusal.into(),
            Err(e) => e,
        }
    }

    pub async fn delete(&self, bucket: &str, key: &str, condition: Condition) -> Answer<Outcome> {
        let (version, now_ms) = (self.draw_version(), self.now_ms());
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.propose(&Command::Delete { bucket, key, version, now_ms, condition }).await
    }

    pub async fn delete_version(
        &self,
        bucket: &str,
        key: &str,
        version: &str,
        bypass: bool,
    ) -> Answer<Outcome> {
        let (bucket, key, version) = (bucket.to_owned(), key.to_owned(), version.to_owned());
        let now_ms = self.now_ms();
        self.propose(&Command::DeleteVersion { bucket, key, version, now_ms, bypass }).await
    }

    pub async fn set_head(
        &self,
        bucket: &str,
        key: &str,
        object: &Object,
        head: Head,
    ) -> Answer<()> {
        let version = crate::version_name(object);
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.propose(&Command::SetHead { bucket, key, version, head }).await.map(|_| ())
    }

    pub async fn set_lock(
        &self,
        bucket: &str,
        key: &str,
        object: &Object,
        (lock, hold): (Option<Lock>, bool),
        bypass: bool,
    ) -> Answer<()> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let (version, now_ms) = (crate::version_name(object), self.now_ms());
        let command = Command::SetLock { bucket, key, version, lock, hold, now_ms, bypass };
        self.propose(&command).await.map(|_| ())
    }

    pub async fn begin_upload(&self, bucket: &str, key: &str, upload: Upload) -> Answer<u64> {
        let id = self.draw_id();
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.propose(&Command::BeginUpload { bucket, key, id, upload }).await.map(|_| id)
    }

    pub fn upload(&self, bucket: &str, key: &str, id: u64) -> Answer<Upload> {
        let found = self.row(&rows::upload(bucket, key, id), "an upload")?;
        found.ok_or_else(|| self.absent(bucket, Refusal::NoSuchUpload))
    }

    pub async fn abort_upload(&self, bucket: &str, key: &str, id: u64) -> Answer<()> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.propose(&Command::AbortUpload { bucket, key, id }).await.map(|_| ())
    }

    /// Names the object that parts make. Its description is stored first, with its alternates, so
    /// that it can be found again from the chunks alone.
    pub async fn complete_upload(
        &self,
        (bucket, key, id): (&str, &str, u64),
        parts: Vec<PartName>,
        (etag, checksums): (String, Vec<Pair>),
        condition: Condition,
        alternates: Vec<NewAlternate>,
    ) -> Answer<Object> {
        let mut made = Vec::new();
        let (mut manifest, mut version) = (None, self.draw_version());
        // If there is none it may have been completed before: the fold knows.
        if let Some(object) = self.described((bucket, key, id), &parts, (&etag, &checksums))? {
            version = object.version;
            let (name, mut needle) = ((bucket, key), Vec::new());
            let (bucket, key) = (bucket.to_owned(), key.to_owned());
            crate::Trailer::Whole { bucket, key, object }.append_to(&mut needle);
            let bytes = needle.len() as u32;
            let mut needles = vec![needle];
            for alternate in alternates {
                let (needle, alternate) = alternate.into_needle(name, version);
                needles.push(needle);
                made.push(alternate);
            }
            let mut places = self.store(needles).await?.into_iter();
            manifest = places.next().map(|pointer| ObjectExtent { pointer, bytes });
            for (alternate, pointer) in made.iter_mut().zip(places) {
                alternate.extent.pointer = pointer;
            }
        }
        let command = Command::CompleteUpload {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            id,
            parts,
            version,
            now_ms: self.now_ms(),
            etag,
            checksums,
            manifest,
            alternates: made,
            condition,
        };
        named(self.propose(&command).await)
    }

    /// The object as the parts that are here now make it; `None` if there is no such upload.
    pub fn described(
        &self,
        (bucket, key, id): (&str, &str, u64),
        parts: &[PartName],
        (etag, checksums): (&str, &[Pair]),
    ) -> Answer<Option<Object>> {
        let Ok(upload) = self.upload(bucket, key, id) else { return Ok(None) };
        let mut object = Object {
            version: self.draw_version(),
            modified_ms: self.now_ms(),
            etag: etag.to_owned(),
            head: Head { checksums: checksums.to_vec(), ..upload.head },
            ..Object::default()
        };
        for name in parts {
            let row = rows::part(id, name.number);
            let part: Option<crate::Part> = self.row(&row, "a part")?;
            let part = part.filter(|part| part.etag == name.etag);
            let part = part.ok_or(Refusal::InvalidPart(name.number))?;
            object.size += part.size;
            object.parts.push(part.size);
            object.extents.extend(part.extents);
        }
        if object.extents.len() > crate::EXTENTS_MAX {
            let what = format!("an object has at most {} extents", crate::EXTENTS_MAX);
            return Err(Refusal::Invalid(what).into());
        }
        Ok(Some(object))
    }

    /// An access key with its secret key, as a signature needs it.
    pub fn access_key(&self, name: &str) -> Result<Option<AccessKey>> {
        let found: Option<AccessKey> = self.row(&rows::access_key(name), "an access key")?;
        let unsealed = |key: AccessKey| match Secret::is_sealed(&key.secret) {
            true => Ok(AccessKey { secret: self.secret.unseal(name, &key.secret)?, ..key }),
            false => Ok(key),
        };
        found.map(unsealed).transpose()
    }

    /// All of them, their secret keys as the rows have them: sealed.
    pub fn access_keys(&self) -> Result<Vec<(String, AccessKey)>> {
        list::named(&*self.index, rows::ACCESS_KEY, "an access key")
    }

    pub async fn set_access_key(&self, name: &str, key: Option<AccessKey>) -> Answer<()> {
        let rng = &*self.node.machine.rng;
        let key = key.map(|key| match seal::sealed(&self.secret, rng, name, key.clone()) {
            Some(sealed) => sealed,
            None => key,
        });
        let command = Command::SetAccessKey { name: name.to_owned(), key };
        self.propose(&command).await.map(|_| ())
    }
}

/// Readers have the rows for as long as the view goes on.
fn stop_with(served: &Arc<Served>, fold: &Arc<Fold<InRows<Names>>>) {
    let (index, view) = (served.clone(), Arc::downgrade(fold));
    let stopped = move |_: Result<()>| {
        // One that was closed has not stopped.
        if let Some(view) = view.upgrade() {
            index.look(|| view.status().stopped);
        }
    };
    // That entry never comes: this is told of the view's end.
    fold.wake_at(Index(u64::MAX), Box::new(stopped));
}

pub(crate) fn named(outcome: Answer<Outcome>) -> Answer<Object> {
    match outcome? {
        Outcome::Named(object) => Ok(*object),
        _ => Err(Error::bug("name an object: the view answered something else").into()),
    }
}
