//! Blobs on a whole node, driven as S3 drives them: needles first, then the name. The index is
//! cut with everything else, and goes on from what was left of it. Every object that was acknowledged is there with its bytes
//! and its alternates, what is in doubt is as before or as asked, and nothing else is listed.

use crate::common::{Outcome, below, ensure, noise, powered};
use crate::node::{SimClock, config};
use holdfast_base::ids::{Index, NodeId};
use holdfast_base::{Error, Result};
use holdfast_blob::{
    Answer, BLOBS_TOPIC, BatchObject, Blobs, BlobsOptions, Condition, Failure, Housekeeping,
    ListQuery, NewAlternate, NewObject, Object, PROBE_MS, PartName, Prober, Refusal, Upload,
    Writer,
};
use holdfast_cluster::{ClusterView, StoreState};
use holdfast_env::net::NoPeers;
use holdfast_env::{Rng, Secret, SeededRng};
use holdfast_node::{Keeper, KeeperOptions, Machine, Node};
use holdfast_sim::SimDisk;
use holdfast_sim::powercut::{self, CutPlan, Layer, Life, Seen};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

/// Bytes of an object, and of its alternates by size.
type Content = (Vec<u8>, BTreeMap<u32, Vec<u8>>);
type Objects = BTreeMap<String, Content>;

#[derive(Clone, Default)]
pub struct Model {
    id: Option<NodeId>,
    objects: Objects,
    /// What some of the keys become, each for itself, if the commands in doubt were accepted.
    doubt: BTreeMap<String, Option<Content>>,
}

pub struct BlobsLayer;

const BUCKET: &str = "b";

/// Seals the access keys; any will do.
pub fn secret() -> Secret {
    Secret::draw(&SeededRng::new(7))
}

/// Runs a future whose answers come when the node is pumped.
pub fn finish<T>(node: &Node, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..1000 {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => return value,
            Poll::Pending => node.pump(),
        }
    }
    panic!("an answer never came");
}

pub fn plain<T>(answer: Answer<T>) -> Result<T> {
    answer.map_err(Error::from)
}

struct World<'a> {
    node: &'a Arc<Node>,
    blobs: Arc<Blobs>,
    clock: &'a SimClock,
    keeper: Keeper,
    rng: SeededRng,
}

impl Layer for BlobsLayer {
    type Model = Model;

    fn live(&self, disk: &SimDisk, model: &mut Model, life: Life, seen: &mut Seen) -> Outcome<()> {
        let clock = Arc::new(SimClock(AtomicU64::new(0)));
        let rng = Arc::new(SeededRng::new(life.rng().next_u64()));
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            engine: Arc::new(disk.clone()),
            clock: clock.clone(),
            rng,
            peers: Arc::new(NoPeers),
            meter: Arc::default(),
        };
        let node = powered!(disk, "open the node", Node::open(machine, &config(), None));
        let id = *model.id.get_or_insert(node.id);
        ensure(node.id == id, || format!("it was node {id} and is {} now", node.id))?;
        let opened = Blobs::open(&node, &BlobsOptions::new(&config().data, secret()));
        let blobs = powered!(disk, "open the blobs", opened);
        let made = finish(&node, blobs.create_bucket(BUCKET, "me", false));
        let made = match made {
            Err(Failure::Refused(Refusal::BucketExists)) => Ok(()),
            made => plain(made),
        };
        powered!(disk, "make the bucket", made);
        let options = KeeperOptions { grace_ms: 1000, ..KeeperOptions::default() };
        let keeper = Keeper::new(node.clone(), options);
        let mut world = World { node: &node, blobs, clock: &clock, keeper, rng: life.rng() };
        powered!(disk, "check the objects", world.check(disk, model, seen)?);
        for _ in 0..life.steps {
            powered!(disk, "work", world.step(model, seen));
        }
        powered!(disk, "check the objects", world.check(disk, model, seen)?);
        Ok(())
    }

    // All that is acknowledged is durable.
    fn power_was_cut(&self, _: &mut Model) {}
}

impl World<'_> {
    fn key(&self) -> String {
        format!("k{}", below(&self.rng, 6))
    }

    fn bytes(&self) -> Vec<u8> {
        let len = [0, 10, 700, 5000, 20_000][below(&self.rng, 5) as usize];
        noise(self.rng.next_u64(), len)
    }

    fn step(&mut self, model: &mut Model, seen: &mut Seen) -> Result<()> {
        match below(&self.rng, 14) {
            0..=3 => self.put(model),
            4..=5 => self.batch(model, seen),
            6..=7 => self.delete(model),
            8..=9 => self.upload(model, seen),
            10..=11 => self.snapshot(seen),
            _ => self.keep_house(seen),
        }
    }

    /// A photo's smaller pictures, for some objects.
    fn described(&self, content: &mut Content) -> NewObject {
        let sizes: &[u32] = if below(&self.rng, 3) == 0 { &[720, 75] } else { &[] };
        let alternate = |size: &u32| {
            let bytes = noise(self.rng.next_u64(), 900);
            let (content_type, etag) = (String::new(), String::new());
            NewAlternate { size: *size, width: 1, height: 1, content_type, etag, bytes }
        };
        let alternates: Vec<NewAlternate> = sizes.iter().map(alternate).collect();
        content.1 = alternates.iter().map(|one| (one.size, one.bytes.clone())).collect();
        NewObject { alternates, ..NewObject::default() }
    }

    /// Notes what is asked for before it is, and that it was done.
    fn ask(
        &self,
        model: &mut Model,
        wanted: BTreeMap<String, Option<Content>>,
        answer: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        model.doubt = wanted.clone();
        answer()?;
        model.doubt.clear();
        for (key, content) in wanted {
            match content {
                Some(content) => model.objects.insert(key, content),
                None => model.objects.remove(&key),
            };
        }
        Ok(())
    }

    fn put(&mut self, model: &mut Model) -> Result<()> {
        let (key, mut content) = (self.key(), (self.bytes(), BTreeMap::new()));
        let new = self.described(&mut content);
        let wanted = BTreeMap::from([(key.clone(), Some(content.clone()))]);
        self.ask(model, wanted, || {
            let mut writer = Writer::new(&self.blobs, BUCKET, &key, content.0.len() as u64);
            plain(finish(self.node, writer.write(&content.0)))?;
            plain(finish(self.node, writer.finish(new))).map(drop)
        })
    }

    fn batch(&mut self, model: &mut Model, seen: &mut Seen) -> Result<()> {
        let (mut wanted, mut objects) = (BTreeMap::new(), Vec::new());
        for _ in 0..3 {
            let (key, mut content) = (self.key(), (self.bytes(), BTreeMap::new()));
            let new = self.described(&mut content);
            // Of two with one key, which of them is last is not said.
            if wanted.insert(key.clone(), Some(content.clone())).is_none() {
                objects.push(BatchObject { key, data: content.0, new });
            } else {
                return Ok(());
            }
        }
        seen.sometimes(true, "batch");
        self.ask(model, wanted, || {
            let stored = plain(finish(self.node, self.blobs.put_batch(BUCKET, objects)))?;
            stored.into_iter().try_for_each(|one| plain(one).map(drop))
        })
    }

    fn delete(&mut self, model: &mut Model) -> Result<()> {
        let key = self.key();
        self.ask(model, BTreeMap::from([(key.clone(), None)]), || {
            plain(finish(self.node, self.blobs.delete(BUCKET, &key, Condition::default())))
                .map(drop)
        })
    }

    fn upload(&mut self, model: &mut Model, seen: &mut Seen) -> Result<()> {
        let key = self.key();
        let begun = self.blobs.begin_upload(BUCKET, &key, Upload::default());
        let id = plain(finish(self.node, begun))?;
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        for number in 1..=2 {
            let bytes = self.bytes();
            let mut writer = Writer::new(&self.blobs, BUCKET, &key, bytes.len() as u64);
            plain(finish(self.node, writer.write(&bytes)))?;
            let etag = format!("{number}");
            let part = writer.finish_part(id, number, etag.clone(), Vec::new());
            plain(finish(self.node, part))?;
            whole.extend(bytes);
            parts.push(PartName { number, etag });
        }
        if below(&self.rng, 4) == 0 {
            seen.sometimes(true, "upload that was given up");
            return plain(finish(self.node, self.blobs.abort_upload(BUCKET, &key, id)));
        }
        let mut content = (whole, BTreeMap::new());
        let alternates = self.described(&mut content).alternates;
        self.ask(model, BTreeMap::from([(key.clone(), Some(content))]), || {
            let (place, sums) = ((BUCKET, key.as_str(), id), (String::new(), Vec::new()));
            let done =
                self.blobs.complete_upload(place, parts, sums, Condition::default(), alternates);
            plain(finish(self.node, done)).map(drop)
        })
    }

    /// Compacts everything that is worth it, then lets old generations go.
    fn keep_house(&mut self, seen: &mut Seen) -> Result<()> {
        let chunks = Housekeeping::new(&self.blobs).compact_all()?;
        seen.sometimes(chunks > 0, "compaction");
        for _ in 0..3 {
            let now_ns = self.clock.0.fetch_add(2_000_000_000, Ordering::Relaxed);
            self.keeper.step(now_ns);
            self.node.pump();
        }
        Ok(())
    }

    /// A second snapshot covers the topic up to the first one: a later round of the keeper, which
    /// compares views, gives up what is in front of it.
    fn snapshot(&mut self, seen: &mut Seen) -> Result<()> {
        self.node.snapshot_views()?;
        for _ in 0..2 {
            let now_ns = self.clock.0.fetch_add(10_000_000_000, Ordering::Relaxed);
            self.keeper.step(now_ns);
            self.node.pump();
        }
        let trimmed = self.node.log.info(BLOBS_TOPIC)?.first > Index(1);
        seen.sometimes(trimmed, "trim of the names' topic");
        Ok(())
    }

    fn read(&self, object: &Object) -> Result<Vec<u8>> {
        let mut reader = self.blobs.reader(object, 0..object.size);
        let mut bytes = Vec::new();
        while let Some(piece) = finish(self.node, reader.next()) {
            bytes.extend_from_slice(plain(piece)?.as_slice());
        }
        Ok(bytes)
    }

    fn content(&self, object: &Object) -> Result<Content> {
        let mut alternates = BTreeMap::new();
        for one in &object.alternates {
            let whole = 0..one.extent.bytes as u64;
            let bytes = plain(finish(self.node, self.blobs.read(&one.extent, whole)))?;
            alternates.insert(one.size, bytes.as_slice().to_vec());
        }
        Ok((self.read(object)?, alternates))
    }

    fn check(&self, disk: &SimDisk, model: &mut Model, seen: &mut Seen) -> Outcome<Result<()>> {
        let query = ListQuery {
            prefix: String::new(),
            delimiter: String::new(),
            after: String::new(),
            max: 1000,
        };
        let listed = match self.blobs.list(BUCKET, &query) {
            Ok(listed) => listed.objects,
            Err(e) => return Ok(plain(Err(e))),
        };
        let mut found = Objects::new();
        for (key, object) in listed {
            match self.content(&object) {
                Ok(content) => drop(found.insert(key, content)),
                Err(e) if disk.crashed() => return Ok(Err(e)),
                Err(e) => return Err(format!("`{key}` is listed and cannot be read: {e}")),
            }
        }
        for (key, content) in std::mem::take(&mut model.doubt) {
            if found.get(&key) != content.as_ref() {
                continue;
            }
            seen.sometimes(true, "command in doubt went through");
            match content {
                Some(content) => model.objects.insert(key, content),
                None => model.objects.remove(&key),
            };
        }
        for (key, content) in &model.objects {
            let there = found.get(key);
            ensure(there == Some(content), || {
                let bytes = there.map(|(bytes, alternates)| (bytes.len(), alternates.len()));
                format!("`{key}` has {bytes:?}, not its {} bytes", content.0.len())
            })?;
        }
        let phantom = found.keys().find(|key| !model.objects.contains_key(*key));
        ensure(phantom.is_none(), || format!("{phantom:?} is listed and was never acknowledged"))?;
        let verified = match self.blobs.verify() {
            Ok(verified) => verified,
            Err(e) => return Ok(Err(e)),
        };
        if disk.crashed() {
            return Ok(Err(Error::retry("power")));
        }
        ensure(verified.damaged.is_empty(), || format!("damaged: {:?}", verified.damaged))?;
        Ok(Ok(()))
    }
}

pub fn plan(seed: u64, steps: u64, stride: u64) -> CutPlan {
    CutPlan { seed, steps, stride, outcomes: 3 }
}

#[test]
fn blobs_keep_their_promises_wherever_the_power_is_cut() {
    let mut seen = Seen::default();
    let mut outcomes = 0;
    outcomes += powercut::explore(&BlobsLayer, plan(0, 5, 2), &mut seen).unwrap();
    for seed in 100..106 {
        outcomes += powercut::explore(&BlobsLayer, plan(seed, 40, 31), &mut seen).unwrap();
    }
    println!("blobs: {outcomes} outcomes");
    seen.assert_all(&[
        "batch",
        "upload that was given up",
        "compaction",
        "trim of the names' topic",
        "command in doubt went through",
        "second cut",
    ]);
}

/// A store whose disk fails reads is found by reading back, is written to no more, and says so; one
/// failure, or some with a success between them, do not count.
#[test]
fn a_store_that_fails_reads_time_and_again_is_made_read_only() {
    let disk = SimDisk::new(7);
    let machine = Machine {
        disk: Arc::new(disk.clone()),
        engine: Arc::new(disk.clone()),
        clock: Arc::new(SimClock(AtomicU64::new(0))),
        rng: Arc::new(SeededRng::new(7)),
        peers: Arc::new(NoPeers),
        meter: Arc::default(),
    };
    let node = Node::open(machine, &config(), None).unwrap();
    let blobs = Blobs::open(&node, &BlobsOptions::new(&config().data, secret())).unwrap();
    plain(finish(&node, blobs.create_bucket(BUCKET, "me", false))).unwrap();
    let mut writer = Writer::new(&blobs, BUCKET, "k", 3000);
    plain(finish(&node, writer.write(&noise(1, 3000)))).unwrap();
    let object = plain(finish(&node, writer.finish(NewObject::default()))).unwrap();
    let chunk = object.extents[0].pointer.chunk;
    let store = node.stores.iter().next().unwrap().id;
    let path = PathBuf::from(format!("/data/chunks/{chunk}.g0.open"));
    let state = || {
        let state = |view: &ClusterView, _| view.store(store).map(|info| info.state);
        node.cluster.read(state).unwrap().unwrap()
    };
    let mut prober = Prober::new(&blobs);
    let mut now_ns = 0;
    let mut rounds = |fails: bool, rounds: usize| {
        disk.heal();
        if fails {
            disk.fail_reads(&path, 0..u64::MAX).unwrap();
        }
        for _ in 0..rounds {
            now_ns += PROBE_MS * 1_000_000;
            prober.step(now_ns);
            node.pump();
        }
    };
    rounds(false, 3);
    rounds(true, 2);
    rounds(false, 1);
    rounds(true, 2);
    assert_eq!(state(), StoreState::Live);
    rounds(true, 1);
    assert_eq!(state(), StoreState::ReadOnly);
    let findings = node.findings();
    let wanted = format!("node store {} writable", store.0);
    assert!(findings.iter().any(|found| found.contains(&wanted)), "{findings:?}");
    // What it holds is served once its disk does.
    disk.heal();
    let read = plain(finish(&node, blobs.read(&object.extents[0], 0..3000))).unwrap();
    assert_eq!(read.as_slice(), noise(1, 3000));
}
