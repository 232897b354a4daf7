//! `-t lookaside`: keys a second through [`Lookaside`], of which one in a hundred is missing and loaded, beside
//! plain multigets of the same client, which miss as many and load nothing; and a thousand readers of one
//! key that was just made old, of whom one should load it.

use super::CacheBench;
use super::server::Target;
use crate::report::{Figure, Report, Sample};
use holdfast_base::{Error, Result};
use holdfast_cache_client::{
    CacheClientOptions, Client, Invalidated, Lookaside, LookasideCounts, LookasideOptions,
};
use holdfast_command::output::{Output, aside};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Keys of one question.
const KEYS_EACH: usize = 1000;
/// Of which every so many is missing.
const MISSING_EVERY: usize = 100;
const READERS: usize = 1000;
/// What we hold ourselves to.
const REACH: f64 = 0.95;

fn key(number: u64) -> Vec<u8> {
    format!("row:{number}").into_bytes()
}

/// Questions in turn over all keys that are stored.
struct Questions {
    keys: u64,
    next: u64,
    value: Vec<u8>,
}

impl Questions {
    fn next(&mut self) -> Vec<Vec<u8>> {
        let first = self.next;
        self.next = (first + KEYS_EACH as u64) % self.keys;
        (first..).take(KEYS_EACH).map(|number| key(number % self.keys)).collect()
    }

    /// Stores all of them.
    fn fill(&self, client: &mut Client) -> Result<()> {
        let numbers: Vec<u64> = (0..self.keys).collect();
        numbers.chunks(KEYS_EACH).try_for_each(|numbers| {
            let items: Vec<_> = numbers.iter().map(|n| (key(*n), &self.value)).collect();
            client.set_many(&items, 0)
        })
    }

    /// As many questions as take the time; only the reads count.
    fn ask(
        &mut self,
        (target, seconds): (&Target, f64),
        other: &mut Client,
        mut read: impl FnMut(&[Vec<u8>]) -> Result<usize>,
    ) -> Result<Sample> {
        let (mut time, mut keys) = (Duration::ZERO, 0);
        let cpu = (target.cpu_seconds(), crate::process::own_cpu_seconds());
        while time.as_secs_f64() < seconds {
            let question = self.next();
            let missing: Vec<_> = question.iter().step_by(MISSING_EVERY).collect();
            other.invalidate(&missing, 0)?;
            let began = Instant::now();
            let found = read(&question)?;
            time += began.elapsed();
            keys += KEYS_EACH as u64;
            if found < KEYS_EACH - missing.len() {
                return Err(Error::bug(format!("read {KEYS_EACH} keys: {found} are there")));
            }
            let items: Vec<_> = missing.iter().map(|key| (key, &self.value)).collect();
            other.set_many(&items, 0)?;
        }
        let cpu = (target.cpu_seconds() - cpu.0, crate::process::own_cpu_seconds() - cpu.1);
        Ok(Sample::of_run(keys, 0, time, cpu, Vec::new()))
    }
}

/// Our cache and, where it is installed, the peer: hits in two ways, and the crowd.
pub fn run(options: &CacheBench, out: &mut Output) -> Result<()> {
    let peer = if options.no_peer { None } else { Target::peer(options)? };
    if peer.is_none() && !options.no_peer {
        aside(format_args!("`{}` is not there: measured without it", options.peer));
    }
    let ours = Target::ours(options, options.threads, &[])?;
    let targets = [Some(("our cache", ours)), peer.map(|peer| (options.peer.as_str(), peer))];
    for (name, target) in targets.iter().flatten() {
        hits(options, name, target, out)?;
        crowd(name, target, out)?;
    }
    Ok(())
}

fn hits(options: &CacheBench, name: &str, target: &Target, out: &mut Output) -> Result<()> {
    let servers = [target.tcp.to_string()];
    let client = || Client::new(&servers, CacheClientOptions::default());
    let (mut plain, mut other) = (client()?, client()?);
    let value = vec![b'v'; options.value];
    let mut questions = Questions { keys: options.keys.max(KEYS_EACH as u64), next: 0, value };
    questions.fill(&mut other)?;
    let marked = Invalidated::Marked { takes_stale: false };
    for (how, invalidated) in [("deleted", Invalidated::Deleted), ("marked", marked)] {
        let settings = LookasideOptions { invalidated, ..LookasideOptions::default() };
        let mut lookaside = Lookaside::new(&servers, CacheClientOptions::default(), settings)?;
        let (mut samples, mut limits) = (Vec::new(), Vec::new());
        let at = (target, options.seconds);
        for _ in 0..options.repetitions {
            let limit = questions
                .ask(at, &mut other, |keys| Ok(plain.get_many(keys)?.iter().flatten().count()))?;
            limits.push(limit.operations as f64 / limit.time.as_secs_f64());
            let row = questions.value.clone();
            samples.push(questions.ask(at, &mut other, |keys| {
                let load = |numbers: &[usize]| Ok(vec![Some(row.clone()); numbers.len()]);
                Ok(lookaside.get_many(keys, load)?.iter().flatten().count())
            })?);
        }
        let counts = lookaside.counts();
        let hits = counts.hits as f64 / (counts.hits + counts.won).max(1) as f64;
        let mut report = Report {
            case: format!("{name}: {:.0}% hits, keys are {how} (reach {REACH})", 100.0 * hits),
            figure: Figure::OperationsPerSecond,
            limit_name: "plain multigets".to_owned(),
            limits,
            peer: None,
            samples,
        };
        report.tell(out)?;
    }
    Ok(())
}

/// All ask at once for a key that has just been deleted.
fn crowd(name: &str, target: &Target, out: &mut Output) -> Result<()> {
    let servers = [target.tcp.to_string()];
    let mut other = Client::new(&servers, CacheClientOptions::default())?;
    other.set(b"made-old", b"old", 0)?;
    // Held until all are ready.
    let (loads, gate) = (AtomicU64::new(0), RwLock::new(()));
    let settings = LookasideOptions { patience_ms: 60_000, ..LookasideOptions::default() };
    let reader = |ready: mpsc::Sender<()>| -> Result<LookasideCounts> {
        let made = Lookaside::new(&servers, CacheClientOptions::default(), settings.clone());
        let known = made.and_then(|mut made| {
            made.get(b"made-old", || Err(Error::bug("it is there")))?;
            Ok(made)
        });
        drop(ready);
        drop(gate.read().unwrap_or_else(PoisonError::into_inner));
        let mut reader = known?;
        let load = || {
            loads.fetch_add(1, Ordering::Relaxed);
            Ok(Some(b"new".to_vec()))
        };
        match reader.get(b"made-old", load)?.as_deref() {
            Some(b"new") => Ok(reader.counts()),
            other => Err(Error::bug(format!("read a key that is old: {other:?}"))),
        }
    };
    let (waits, time) = thread::scope(|scope| {
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let (ready, all_are) = mpsc::channel();
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let ready = ready.clone();
                let thread = thread::Builder::new().stack_size(256 << 10);
                thread.spawn_scoped(scope, move || reader(ready))
            })
            .collect::<std::io::Result<_>>()?;
        drop(ready);
        // Whoever fails lets go of it as well.
        let _ = all_are.recv();
        let invalidated = other.invalidate(&[b"made-old"], 0);
        let began = Instant::now();
        drop(closed);
        let mut waits = 0;
        for reader in readers {
            let ended = reader.join().map_err(|_| Error::bug("a reader has panicked"))?;
            waits += ended?.waits;
        }
        invalidated?;
        Ok::<_, Error>((waits, began.elapsed()))
    })?;
    let (loads, seconds) = (loads.into_inner(), time.as_secs_f64());
    let line = json!({
        "case": "crowd", "server": name, "readers": READERS, "loads": loads, "waits": waits,
        "seconds": seconds,
    });
    let text = format!(
        "{name}: {READERS} readers of a key that was deleted: {loads} loads (reach 1), {waits} waits, {seconds:.3} s"
    );
    out.line(|| text, || line)
}
