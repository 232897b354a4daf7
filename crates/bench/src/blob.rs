//! `holdfast bench blob`: S3 puts and gets from many connections, each request freshly signed and
//! each body checked; gets by pointer, batches, a restart, memory and disk space beside them; and
//! the raw device's random read as the limit.

mod load;
mod target;

use super::report::{Figure, Peer, Report, Sample, median, rounded};
use super::tls::sealing_seconds;
use clap::Args;
use holdfast_base::units::parse_bytes;
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_s3::{Client, Request};
use load::{Kind, Load};
use serde_json::json;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;
use target::Target;

/// What `bench blob` is asked for.
#[derive(Args, Debug, Clone)]
pub struct BlobBench {
    /// put, memory (puts that are not synced), get, native, list, mixed, batch, restart, space,
    /// photo, lately (gets as people look at photos), or `table` for all these; tls (the node's
    /// processor time of gets over TLS, beside plain ones and bare rustls)
    #[arg(short = 't', long = "type", default_value = "table", value_name = "TYPE")]
    pub kind: String,
    /// Sizes of objects, with commas
    #[arg(long, default_value = "4K,64K", value_name = "BYTES")]
    pub sizes: String,
    /// Objects of one request in `batch`, with commas
    #[arg(long, default_value = "1,4,16", value_name = "N")]
    pub batches: String,
    /// Connections, one request at a time on each
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub clients: usize,
    /// Objects of each size; each is put once and then got in a scattered order
    #[arg(short = 'n', long, default_value_t = 20_000, value_name = "N")]
    pub objects: u64,
    /// Repetitions of what can be repeated; medians are printed
    #[arg(short = 'e', long, default_value_t = 3, value_name = "N")]
    pub repetitions: usize,
    /// Measure this service instead, http://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    #[arg(long, env = "AWS_ACCESS_KEY_ID", default_value = "", value_name = "KEY")]
    pub access_key: String,
    #[arg(
        long,
        env = "AWS_SECRET_ACCESS_KEY",
        hide_env_values = true,
        default_value = "",
        value_name = "SECRET"
    )]
    pub secret_key: String,
    /// Directory below which the measured node keeps its data [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Bucket of everything that is measured, photos apart.
pub const BUCKET: &str = "bench";
/// Bucket that keeps each photo in several sizes.
pub const PHOTOS: &str = "photos";
/// Haystack's four, in pixels; and the photo that is scaled to them.
const PHOTO_SIZES: [u32; 4] = [2048, 720, 180, 75];
const PHOTO_SHAPE: (u32, u32) = (4000, 3000);
const KINDS: [&str; 13] = [
    "table", "put", "memory", "get", "native", "list", "mixed", "batch", "restart", "space",
    "photo", "lately", "tls",
];
/// Nothing is served from memory that an uncounted request brought there.
const COLD: &str = "s3_hot = \"0\"\n";
/// Objects of an archive that fills a service.
const FILL: u64 = 64;
/// Gets after a restart.
const RESTART_GETS: u64 = 1000;

/// Measures each size of object on a service of its own, and prints a line a case. `Invalid` for an
/// unknown type.
pub fn run(options: &BlobBench, out: &mut Output) -> Result<()> {
    if !KINDS.contains(&options.kind.as_str()) {
        let known = KINDS.join(", ");
        return Err(Error::invalid(format!("measure `{}`: use one of {known}", options.kind)));
    }
    if options.kind == "photo" || (options.kind == "table" && options.endpoint.is_none()) {
        Bench::start(options, 0, COLD)?.photos(out)?;
    }
    for size in options.sizes.split(',').filter(|_| options.kind != "photo") {
        let bytes = parse_bytes(size).map_err(Error::invalid)? as usize;
        let mut bench = Bench::start(options, bytes, COLD)?;
        // What else is measured needs what puts leave; where they are not measured, many at once.
        let puts = match options.kind.as_str() {
            "restart" | "space" => bench.load(Kind::Fill(FILL), options.objects.div_ceil(FILL))?,
            _ => bench.load(Kind::Put, options.objects)?,
        };
        if bench.wants("put") {
            bench.report("put", Kind::Put, vec![puts], None, out)?;
        }
        for (name, kind) in [("get", Kind::Get), ("native", Kind::Native), ("list", Kind::List)] {
            if bench.wants(name) {
                bench.repeat(name, kind, out)?;
            }
        }
        if options.kind == "tls" {
            bench.tls(out)?;
        }
        if bench.wants("restart") && bench.target.is_own() {
            bench.restart(out)?;
        }
        if bench.wants("mixed") {
            bench.repeat("mixed", Kind::Mixed, out)?;
        }
        if bench.wants("batch") {
            bench.batches(out)?;
        }
        if bench.wants("space") && bench.target.is_own() {
            if options.kind == "table" {
                // What the batches put would count as well.
                drop(bench);
                bench = Bench::start(options, bytes, COLD)?;
                bench.load(Kind::Fill(FILL), options.objects.div_ceil(FILL))?;
            }
            bench.space(out)?;
        }
        if bench.wants("memory") && bench.target.is_own() {
            drop(bench);
            let settings = format!("{COLD}s3_class = \"disk:memory\"\n");
            bench = Bench::start(options, bytes, &settings)?;
            let puts = bench.load(Kind::Put, options.objects)?;
            bench.report("put, not synced,", Kind::Put, vec![puts], None, out)?;
        }
        if bench.wants("lately") && bench.target.is_own() {
            drop(bench);
            bench = Bench::start(options, bytes, "")?;
            bench.load(Kind::Put, options.objects)?;
            bench.lately(out)?;
        }
    }
    Ok(())
}

/// A service under load, with objects of one size.
struct Bench<'a> {
    options: &'a BlobBench,
    target: Target,
    bytes: usize,
    pointers: Vec<OnceLock<String>>,
    expected: Vec<u32>,
}

impl<'a> Bench<'a> {
    fn start(options: &'a BlobBench, bytes: usize, settings: &str) -> Result<Bench<'a>> {
        let target = Target::start(options, settings)?;
        let made =
            Client::of(&target.credentials)?.send(&Request::new("PUT", format!("/{BUCKET}")))?;
        if made.status != 409 {
            made.ok("make the bucket to measure in")?;
        }
        let pointers = (0..options.objects).map(|_| OnceLock::new()).collect();
        let expected = load::checksums(options.objects, bytes);
        Ok(Bench { options, target, bytes, pointers, expected })
    }

    fn wants(&self, name: &str) -> bool {
        self.options.kind == "table" || self.options.kind == name
    }

    fn load(&self, kind: Kind, operations: u64) -> Result<Sample> {
        self.load_photo(kind, operations, &[])
    }

    fn load_photo(&self, kind: Kind, operations: u64, photo: &[u8]) -> Result<Sample> {
        let Bench { options, target, bytes, pointers, expected } = self;
        Load { target, options, kind, bytes: *bytes, operations, pointers, expected, photo }.run()
    }

    fn repeat(&self, name: &str, kind: Kind, out: &mut Output) -> Result<()> {
        let operations = match kind {
            Kind::List => (self.options.objects / 20).max(1),
            _ => self.options.objects,
        };
        let mut samples = Vec::new();
        let mut reads = None;
        for _ in 0..self.options.repetitions {
            self.target.drop_cached()?;
            let before = self.target.reads();
            samples.push(self.load(kind, operations)?);
            let after = self.target.reads();
            reads = Some((after.0 - before.0, after.1 - before.1));
        }
        self.report(name, kind, samples, reads.filter(|_| self.target.is_own()), out)
    }

    fn limit(&self, kind: Kind) -> Result<(&'static str, Vec<f64>)> {
        let Some(path) = self.target.scratch() else { return Ok(("none", vec![0.0])) };
        let clients = self.options.clients;
        let limits = match kind {
            Kind::Get | Kind::Native => {
                let rate = || super::limits::scattered_read(&path, self.bytes, clients);
                let rates = (0..3).map(|_| rate()).collect::<std::io::Result<Vec<f64>>>()?;
                ("the device's scattered reads, as many at once", rates)
            }
            Kind::Put | Kind::Batch(_) => {
                ("fdatasync of one file", vec![super::limits::fdatasync_loop(&path, self.bytes)?])
            }
            _ => ("none", vec![0.0]),
        };
        let _ = std::fs::remove_file(path);
        Ok(limits)
    }

    fn report(
        &self,
        name: &str,
        kind: Kind,
        samples: Vec<Sample>,
        reads: Option<(u64, u64)>,
        out: &mut Output,
    ) -> Result<()> {
        let (limit_name, limits) = self.limit(kind)?;
        let operations = samples.last().map_or(1, |sample| sample.operations.max(1)) as f64;
        let cpu = samples.iter().map(|s| s.server_cpu * 1e3 / s.operations as f64);
        let cpu = median(cpu.collect::<Vec<f64>>());
        let size = holdfast_base::units::format_bytes(self.bytes as u64).replace(' ', "");
        let mut report = Report {
            case: format!("s3 {name} {size}, {} clients", self.options.clients),
            figure: Figure::OperationsPerSecond,
            limit_name: limit_name.to_owned(),
            limits,
            peer: None::<Peer>,
            samples,
        };
        let mut line = report.line();
        line["server_cpu_ms_per_operation"] = rounded(cpu);
        let mut text = format!("{}  server CPU {cpu:.3} ms each", report.text());
        if let Some((calls, bytes)) = reads {
            let (calls, bytes) = (calls as f64 / operations, bytes as f64 / operations);
            line["read_calls_per_operation"] = rounded(calls);
            line["disk_bytes_per_operation"] = rounded(bytes);
            text += &format!(", {calls:.2} reads and {bytes:.0} bytes from the disk each");
        }
        out.line(|| text, || line)
    }

    /// The node's processor time of a get over TLS, of that of a plain one and of what bare rustls
    /// takes to seal as many bytes; in turns.
    fn tls(&mut self, out: &mut Output) -> Result<()> {
        let Some(authority) = self.target.authority.clone() else {
            return Err(Error::invalid("measure `tls`: of a node of the benchmark's own alone"));
        };
        // A CA of its own: that of the node is read by its clients meanwhile.
        let authority = authority.with_file_name("limit");
        let us = |sample: Sample| sample.server_cpu * 1e6 / sample.operations.max(1) as f64;
        let (mut plain, mut sealed, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.repetitions {
            self.target.speak_tls(false);
            plain.push(us(self.load(Kind::Get, self.options.objects)?));
            self.target.speak_tls(true);
            sealed.push(us(self.load(Kind::Get, self.options.objects)?));
            bare.push(sealing_seconds(&authority, self.bytes)? * 1e6 * self.bytes as f64);
        }
        self.target.speak_tls(false);
        let [plain, sealed, bare] = [plain, sealed, bare].map(median);
        let ratio = sealed / (plain + bare);
        let size = holdfast_base::units::format_bytes(self.bytes as u64).replace(' ', "");
        let line = json!({
            "case": format!("s3 get {size} over TLS"), "better": "lower",
            "server_cpu_us": rounded(sealed), "plain_server_cpu_us": rounded(plain),
            "bare_rustls_us": rounded(bare), "ratio_to_limit": rounded(ratio),
        });
        out.line(
            || {
                format!(
                    "s3 get {size} over TLS: server CPU {sealed:.1} us, {ratio:.2} of a plain one, \
                     {plain:.1} us, and bare records of rustls, {bare:.1} us"
                )
            },
            || line.clone(),
        )
    }

    /// How many gets the cache of lately written objects serves.
    fn lately(&self, out: &mut Output) -> Result<()> {
        let sample = self.load(Kind::Lately, 2 * self.options.objects)?;
        let mut client = Client::of(&self.target.credentials)?;
        let ask = Request::new("POST", "/").with("holdfast", "cache");
        let counts = client.send(&ask)?.ok("ask for the cache's counts")?;
        let counts: serde_json::Value = serde_json::from_slice(&counts.body)
            .map_err(|e| Error::invalid(format!("ask for the cache's counts: {e}")))?;
        let number = |name: &str| counts[name].as_f64().unwrap_or_default();
        let share = number("hits") / (number("hits") + number("misses")).max(1.0);
        let rate = sample.operations as f64 / sample.time.as_secs_f64();
        let line = json!({
            "case": format!("gets as people look at photos, {} bytes each", self.bytes),
            "ops_per_second": rounded(rate), "hit_ratio": rounded(share), "cache": counts,
        });
        out.line(
            || {
                format!(
                    "gets as people look at photos, {} bytes each: {:.1}% from the cache ({} in it), \
                     {rate:.0} requests a second",
                    self.bytes,
                    100.0 * share,
                    holdfast_base::units::format_bytes(number("bytes") as u64)
                )
            },
            || line.clone(),
        )
    }

    /// Photos a second that are scaled to four sizes, and the bytes of those.
    fn photos(&self, out: &mut Output) -> Result<()> {
        let mut client = Client::of(&self.target.credentials)?;
        client.send(&Request::new("PUT", format!("/{PHOTOS}")))?.ok("make the photo bucket")?;
        let sizes = PHOTO_SIZES.map(|size| size.to_string()).join(",");
        let set = json!({"bucket": PHOTOS, "sizes": sizes}).to_string();
        let mut request = Request::new("POST", "/").with("holdfast", "photos");
        request.body = set.as_bytes();
        client.send(&request)?.ok("set the photo bucket's sizes")?;
        let photo = load::photo(PHOTO_SHAPE.0, PHOTO_SHAPE.1)?;
        let count = (self.options.objects / 200).max(1);
        let sample = self.load_photo(Kind::Photo, count, &photo)?;
        let mut bytes = Vec::new();
        for size in PHOTO_SIZES {
            let one = Request::new("GET", format!("/{PHOTOS}/00000000.jpg"));
            let one = client.send(&one.with("size", size.to_string()))?.ok("get a size")?;
            bytes.push(one.body.len());
        }
        let seconds = sample.time.as_secs_f64();
        let (rate, cpu) = (count as f64 / seconds, sample.server_cpu / count as f64);
        let (width, height) = PHOTO_SHAPE;
        let line = json!({
            "case": format!("photo {width}x{height} to sizes {sizes}"), "photos": count,
            "photos_per_second": rounded(rate), "server_cpu_seconds_per_photo": rounded(cpu),
            "photo_bytes": photo.len(), "size_bytes": bytes,
        });
        out.line(
            || {
                format!(
                    "photos of {width}x{height} ({} bytes) to sizes {sizes} ({bytes:?} bytes): \
                     {rate:.1} a second, server CPU {cpu:.3} s each",
                    photo.len()
                )
            },
            || line.clone(),
        )
    }

    /// Objects a second in archives of so many, beside those of one.
    fn batches(&self, out: &mut Output) -> Result<()> {
        let mut first = None;
        for of in self.options.batches.split(',') {
            let of = of.trim().parse::<u64>().ok().filter(|of| (1..=1000).contains(of));
            let of = of.ok_or_else(|| {
                Error::invalid(format!(
                    "measure batches of `{}`: use 1 to 1000",
                    self.options.batches
                ))
            })?;
            let requests = (self.options.objects / of).max(1);
            let samples = (0..self.options.repetitions)
                .map(|_| self.load(Kind::Batch(of), requests))
                .collect::<Result<Vec<Sample>>>()?;
            let rate = |s: &Sample| s.operations as f64 / s.time.as_secs_f64();
            let rate = median(samples.iter().map(rate).collect::<Vec<f64>>());
            let to_first = rate / *first.get_or_insert(rate);
            let name = format!("put in batches of {of} ({to_first:.2} of the first),");
            self.report(&name, Kind::Batch(of), samples, None, out)?;
        }
        Ok(())
    }

    /// Seconds from the start of a killed node to its first thousand gets, all over the chunks; and
    /// the memory that it then has.
    fn restart(&mut self, out: &mut Output) -> Result<()> {
        let start = Instant::now();
        self.target.restart()?;
        let ready = start.elapsed().as_secs_f64();
        let gets = RESTART_GETS.min(self.options.objects);
        self.load(Kind::Get, gets)?;
        let seconds = start.elapsed().as_secs_f64();
        let memory = self.target.memory_bytes();
        let objects = self.options.objects;
        let line = json!({
            "case": format!("restart after kill -9, {objects} objects of {} bytes", self.bytes),
            "seconds_to_ready": rounded(ready), "seconds_to_gets": rounded(seconds), "gets": gets,
            "memory_bytes": memory, "memory_bytes_per_object": rounded(memory as f64 / objects as f64),
        });
        out.line(
            || {
                format!(
                    "restart after kill -9, {objects} objects: ready in {ready:.2} s, {gets} scattered \
                     gets done at {seconds:.2} s, {} of memory",
                    holdfast_base::units::format_bytes(memory)
                )
            },
            || line.clone(),
        )
    }

    /// Disk space of what is left after every third object is deleted and the rest compacted.
    fn space(&mut self, out: &mut Output) -> Result<()> {
        let deleted = self.options.objects / 3;
        self.load(Kind::Delete, deleted)?;
        // A chunk that is open is left alone; a new start seals it.
        self.target.restart()?;
        let mut client = Client::of(&self.target.credentials)?;
        let ask = |client: &mut holdfast_s3::Client| -> Result<()> {
            let compact = Request::new("POST", "/").with("holdfast", "compact");
            client.send(&compact)?.ok("compact").map(drop)
        };
        ask(&mut client)?;
        let left = self.options.objects - deleted;
        let payload = left * self.bytes as u64;
        // Old generations stay for their readers' grace.
        let start = Instant::now();
        let mut used = self.target.disk_bytes("chunks");
        while start.elapsed().as_secs() < 30 {
            std::thread::sleep(std::time::Duration::from_millis(500));
            used = used.min(self.target.disk_bytes("chunks"));
        }
        let above = 100.0 * (used as f64 / payload as f64 - 1.0);
        let per_object = |directory| self.target.disk_bytes(directory) as f64 / left as f64;
        let (index, log) = (per_object("blobs"), per_object("log"));
        let line = json!({
            "case": format!("space after compaction, {left} objects of {} bytes", self.bytes),
            "payload_bytes": payload, "disk_bytes": used, "percent_above_payload": rounded(above),
            "index_bytes_per_object": rounded(index), "log_bytes_per_object": rounded(log),
        });
        out.line(
            || {
                format!(
                    "space after compaction: {left} objects of {} bytes take {}, {above:.1}% above their bytes; \
                     index {index:.0} and log {log:.0} bytes an object",
                    self.bytes,
                    holdfast_base::units::format_bytes(used)
                )
            },
            || line.clone(),
        )
    }
}
