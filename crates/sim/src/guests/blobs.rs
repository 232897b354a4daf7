//! Blobs as a guest: objects that are put, put in parts, deleted and read through any node, as S3's
//! operations do it, while nodes fail. What was acknowledged is there, whole, and the same through
//! every node; what is in doubt is as before or as asked.

use super::names::{Desk, Known, draw_version, until_told};
use crate::SimNet;
use crate::task::spawn;
use crate::world::guest::{Guest, Lodging, Visitor, Work};
use crate::world::scene::Version;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Kind, Result, codec_struct};
use holdfast_blob::{
    Answer, Blobs, BlobsOptions, Condition, Failure, Housekeeping, NewObject, PartName, Refusal,
    Upload, Writer,
};
use holdfast_env::net::Parts;
use holdfast_env::{HoldMutex, Secret, SeededRng};
use holdfast_node::Node;
use holdfast_server::{Face, Request, Right, Route, answer};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

const OP_PUT: u16 = 0x7f11;
const OP_DELETE: u16 = 0x7f12;
const OP_GET: u16 = 0x7f13;

const BUCKET: &str = "b";
const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
struct Put {
    key: String,
    /// Through an upload of this many parts; 0 for a plain put.
    parts: u64,
}
codec_struct!(Put { key, parts });

#[derive(Clone, Debug)]
struct Get {
    key: String,
    /// Everything that anybody was told of before has to show.
    latest: bool,
}
codec_struct!(Get { key, latest });

#[derive(Default)]
struct Objects {
    keys: Mutex<BTreeMap<String, Known>>,
}

/// A guest of a schedule.
pub fn blobs() -> Arc<dyn Guest> {
    Arc::new(Objects::default())
}

/// Blobs of one node, asked as S3 asks them.
struct Gateway {
    blobs: Arc<Blobs>,
    net: SimNet,
}

impl Face for Gateway {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let route = |opcode: u16, serve: fn(&Gateway, Request<'_>)| {
            let gateway = self.clone();
            Route::new(opcode, Right::Data, move |request| serve(&gateway, request))
        };
        vec![
            route(OP_PUT, Gateway::put),
            route(OP_DELETE, Gateway::delete),
            route(OP_GET, Gateway::get),
        ]
    }
}

impl Gateway {
    fn put(&self, request: Request<'_>) {
        let asked = request.decode_with_body::<Put>("put an object");
        let Some((put, body, reply)) = asked else { return };
        let (blobs, bytes) = (self.blobs.clone(), body.into_vec());
        spawn(&self.net, async move {
            let mut done = put_object(&blobs, &put, &bytes).await;
            if let Err(Failure::Refused(Refusal::NoSuchBucket)) = done {
                done = match blobs.create_bucket(BUCKET, "me", false).await {
                    Ok(()) | Err(Failure::Refused(Refusal::BucketExists)) => {
                        put_object(&blobs, &put, &bytes).await
                    }
                    Err(e) => Err(e),
                };
            }
            answer(reply, done.map(|()| (Vec::new(), Parts::None)).map_err(Error::from));
        });
    }

    fn delete(&self, request: Request<'_>) {
        let Some((key, reply)) = request.decode::<String>("delete an object") else { return };
        let blobs = self.blobs.clone();
        spawn(&self.net, async move {
            let done = blobs.delete(BUCKET, &key, Condition::default()).await;
            answer(reply, done.map(|_| (Vec::new(), Parts::None)).map_err(Error::from));
        });
    }

    fn get(&self, request: Request<'_>) {
        let Some((get, reply)) = request.decode::<Get>("get an object") else { return };
        let blobs = self.blobs.clone();
        spawn(&self.net, async move {
            let found = match get_object(&blobs, &get).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(Failure::Refused(Refusal::NoSuchKey | Refusal::NoSuchBucket)) => Ok(None),
                Err(e) => Err(Error::from(e)),
            };
            // In the meta: small ones have room there.
            answer(reply, found.map(|found| (found.to_bytes(), Parts::None)));
        });
    }
}

async fn put_object(blobs: &Arc<Blobs>, put: &Put, bytes: &[u8]) -> Answer<()> {
    let key = &put.key;
    if put.parts == 0 {
        let mut writer = Writer::new(blobs, BUCKET, key, bytes.len() as u64);
        writer.write(bytes).await?;
        return writer.finish(NewObject::default()).await.map(drop);
    }
    let id = blobs.begin_upload(BUCKET, key, Upload::default()).await?;
    let mut names = Vec::new();
    for (i, piece) in bytes.chunks(bytes.len().div_ceil(put.parts as usize).max(1)).enumerate() {
        let mut writer = Writer::new(blobs, BUCKET, key, piece.len() as u64);
        writer.write(piece).await?;
        let (number, etag) = (i as u16 + 1, format!("{i}"));
        writer.finish_part(id, number, etag.clone(), Vec::new()).await?;
        names.push(PartName { number, etag });
    }
    let (place, sums) = ((BUCKET, key.as_str(), id), (String::new(), Vec::new()));
    blobs.complete_upload(place, names, sums, Condition::default(), Vec::new()).await.map(drop)
}

async fn get_object(blobs: &Arc<Blobs>, get: &Get) -> Answer<Vec<u8>> {
    if get.latest {
        blobs.catch_up().await?;
    }
    let object = blobs.object(BUCKET, &get.key, None)?;
    let mut reader = blobs.reader(&object, 0..object.size);
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await {
        bytes.extend_from_slice(piece?.as_slice());
    }
    Ok(bytes)
}

impl Guest for Objects {
    fn open(&self, node: &Arc<Node>, net: &SimNet) -> Result<Lodging> {
        let secret = Secret::draw(&SeededRng::new(7));
        let blobs = Blobs::open(node, &BlobsOptions::new(Path::new("/data"), secret))?;
        // Away while it steps: what it waits for lets others go on.
        let house = Mutex::new(Some(Housekeeping::new(&blobs)));
        let clock = node.machine.clock.clone();
        let round = move || {
            let taken = house.held().take();
            if let Some(mut keeping) = taken {
                keeping.step(clock.monotonic_ns());
                *house.held() = Some(keeping);
            }
        };
        let face = Arc::new(Gateway { blobs, net: net.clone() });
        Ok(Lodging { face, round: Box::new(round) })
    }

    fn clients(&self) -> usize {
        CLIENTS
    }

    fn work(self: Arc<Self>, visitor: Visitor, end_ns: u64) -> Work {
        Box::pin(async move {
            let mut desk = Desk::new(&visitor, "");
            while visitor.now_ns() < end_ns {
                let (gateway, key) = desk.turn(&visitor).await;
                let sure = match visitor.below(10) {
                    0..=4 => self.put(&visitor, gateway, &key).await,
                    5 => self.delete(&visitor, gateway, &key).await,
                    _ => {
                        self.read(&visitor, gateway, &key, visitor.below(2) == 0).await;
                        true
                    }
                };
                desk.over(&visitor, &key, sure);
            }
        })
    }

    fn check(self: Arc<Self>, visitor: Visitor) -> Work {
        Box::pin(async move {
            let keys: Vec<String> = self.keys.held().keys().cloned().collect();
            visitor.sometimes(!keys.is_empty(), "an object was put");
            for key in keys {
                for gateway in 1..=visitor.gateways() {
                    let ask = || self.read(&visitor, gateway, &key, true);
                    let found = until_told(&visitor, (gateway, &key), ask).await;
                    let Some(found) = found else { return };
                    // Nothing is on its way any more: all see the same.
                    let mut keys = self.keys.held();
                    let known = keys.entry(key.clone()).or_default();
                    known.now.retain(|version| content(version) == found);
                }
            }
        })
    }
}

fn content(version: &Option<Version>) -> Option<Vec<u8>> {
    version.as_ref().map(Version::content)
}

impl Objects {
    /// Whether its end is known.
    async fn put(&self, visitor: &Visitor, gateway: usize, key: &str) -> bool {
        let version = draw_version(visitor);
        let parts = if visitor.below(4) == 0 { 1 + visitor.below(3) } else { 0 };
        visitor.sometimes(parts > 1, "an object was put in parts");
        self.keys.held().entry(key.to_owned()).or_default().ever.insert(version);
        let meta = Put { key: key.to_owned(), parts }.to_bytes();
        let done = visitor.ask(gateway, OP_PUT, meta, Some(&version.content())).await;
        self.settle(visitor, key, Some(version), done.map(drop))
    }

    async fn delete(&self, visitor: &Visitor, gateway: usize, key: &str) -> bool {
        let done = visitor.ask(gateway, OP_DELETE, key.to_bytes(), None).await;
        match done {
            // There was never a bucket.
            Err(e) if e.kind == Kind::NotFound => true,
            done => self.settle(visitor, key, None, done.map(drop)),
        }
    }

    fn settle(
        &self,
        visitor: &Visitor,
        key: &str,
        version: Option<Version>,
        done: Result<()>,
    ) -> bool {
        let mut keys = self.keys.held();
        keys.entry(key.to_owned()).or_default().settle(visitor, key, version, done)
    }

    /// What a key holds, if anybody says; what it cannot hold is a broken promise.
    async fn read(
        &self,
        visitor: &Visitor,
        gateway: usize,
        key: &str,
        latest: bool,
    ) -> Option<Option<Vec<u8>>> {
        let meta = Get { key: key.to_owned(), latest }.to_bytes();
        let found = match visitor.ask(gateway, OP_GET, meta, None).await {
            Ok(reply) => Option::<Vec<u8>>::from_bytes(&reply.meta).expect("what was answered"),
            Err(e) => {
                visitor.note(&format!("is not told by n{gateway} what `{key}` is: {e}"));
                return None;
            }
        };
        let keys = self.keys.held();
        let fine = match keys.get(key) {
            None => found.is_none(),
            Some(known) if latest && !known.now.is_empty() => {
                known.now.iter().any(|version| content(version) == found)
            }
            Some(known) => found.is_none() || known.ever.iter().any(|v| Some(v.content()) == found),
        };
        if !fine {
            let (bytes, now) = (found.as_ref().map(Vec::len), keys.get(key).map(|k| k.now.clone()));
            visitor.violate(&format!("`{key}` is {bytes:?} bytes at n{gateway}, not {now:?}"));
        }
        Some(found)
    }
}
