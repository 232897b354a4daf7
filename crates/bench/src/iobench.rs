//! `holdfast bench iobench`: Crail's iobench. Streams, look-ups and small gets of files, each
//! beside what the transport or the device can do.

mod handshakes;
mod names;
mod streams;
mod table;

use crate::limits::{self, Memcpy};
use crate::report::{Figure, Meter, Peer, Report};
use crate::server::{Server, Settings};
use crate::tls;
use clap::{Args, Parser};
use holdfast_base::ids::{Durability, Tier};
use holdfast_base::node::StorageClass;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Connection, NewFile};
use holdfast_command::output::Output;
use holdfast_command::secrets;
use holdfast_env::{RealRng, Rng, SeededRng};
use holdfast_wire::file::NewNode;
use std::path::PathBuf;

/// What `bench iobench` is asked for, with the letters of Crail's own.
#[derive(Args, Debug, Clone)]
pub struct Iobench {
    /// write, writeAsync, readSequential, readRandom, readSequentialAsync, readMultiStream,
    /// createFile, createFileAsync, createMultiFile, getKey, getFile, getFileAsync, enumerateDir,
    /// memory, handshake and handshakeResumed (with `--transport tls`), or `table` for every row of
    /// docs/benchmarks.md
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    pub kind: String,
    /// File or directory to work on
    #[arg(short = 'f', long = "file", default_value = "/iobench", value_name = "PATH")]
    pub path: String,
    /// Bytes an operation
    #[arg(short = 's', long = "size", default_value = "4K", value_name = "BYTES")]
    pub size: String,
    /// Operations [default: as many as take about a second]
    #[arg(short = 'k', long = "operations", value_name = "N")]
    pub operations: Option<u64>,
    /// Operations outstanding at once (the Async types)
    #[arg(short = 'b', long = "batch", default_value_t = 64, value_name = "N")]
    pub batch: usize,
    /// Storage class: 0 is dram, 1 is disk
    #[arg(short = 'c', long = "class", default_value_t = 0, value_name = "CLASS")]
    pub class: u8,
    /// Operations that warm up
    #[arg(short = 'w', long = "warmup", default_value_t = 32, value_name = "N")]
    pub warmup: u64,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
    /// Buffered streams
    #[arg(short = 'm', long = "buffered", default_value_t = true, action = clap::ArgAction::Set)]
    pub buffered: bool,
    /// tcp, tls (over TCP), or local (Unix socket and mapped memory)
    #[arg(long, default_value = "tcp", value_name = "TRANSPORT")]
    pub transport: String,
    /// The server polls instead of sleeping
    #[arg(long)]
    pub spin: bool,
    /// Threads of the server that serve connections
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub reactors: usize,
    /// Directory for the server's data [default: a fresh one below the current directory]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// A row of the table as a command line.
#[derive(Parser)]
struct Row {
    #[command(flatten)]
    iobench: Iobench,
}

impl Row {
    fn read(row: &str) -> Result<Iobench> {
        let words = ["iobench"].into_iter().chain(row.split(' '));
        let row = Row::try_parse_from(words)
            .map_err(|e| Error::bug(format!("read row `{row}` of the table: {e}")))?;
        Ok(row.iobench)
    }
}

/// Runs one repetition.
type Work<'a> = Box<dyn FnMut(&mut Meter<'_>) -> Result<()> + 'a>;
/// The memory tier of the node under test; its pages are taken at the start, so that cases measure
/// memory and not page faults.
const DRAM_BYTES: u64 = 2 << 30;
/// The same where files are written, deleted and written again: what was deleted is free only
/// after housekeeping came by, once a second.
const DRAM_WRITE_BYTES: u64 = 8 << 30;
/// What a stream keeps in flight: so many threads has the limit of the disk.
const STREAM_DEPTH: usize = 2;

/// Measures one type, or every row of the table, each on a node of its own.
pub fn run(options: &Iobench, out: &mut Output) -> Result<()> {
    if options.kind != "table" {
        return measure(options, out);
    }
    for row in table::ROWS {
        let row = Row::read(row)?;
        let with = Iobench { repetitions: options.repetitions, data: options.data.clone(), ..row };
        measure(&with, out)?;
    }
    Ok(())
}

fn measure(options: &Iobench, out: &mut Output) -> Result<()> {
    let kind = Kind::parse(&options.kind)?;
    let bench = Bench::start(options)?;
    let mut limit = bench.limit(kind)?;
    let mut work = bench.work(kind)?;
    // A million files are made once.
    let repetitions = if kind == Kind::Memory { 1 } else { options.repetitions.max(1) };
    let (mut limits, mut samples) = (Vec::new(), Vec::new());
    let quick = bench.size < 4096 && kind.is_stream() || kind.is_pipelined();
    for _ in 0..repetitions {
        limits.push((limit.measure)()?);
        let mut meter = Meter::new(&bench.server, options.operations, quick);
        work(&mut meter)?;
        samples.push(meter.sample);
    }
    drop(work);
    let mut report = Report {
        case: bench.case(),
        figure: kind.figure(),
        limit_name: std::mem::take(&mut limit.name),
        limits,
        peer: bench.peer(kind)?,
        samples,
    };
    report.tell(out)
}

/// iobench's types, and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    WriteAsync,
    ReadSequential,
    ReadRandom,
    ReadSequentialAsync,
    ReadMultiStream,
    CreateFile,
    CreateFileAsync,
    CreateMultiFile,
    GetKey,
    GetFile,
    GetFileAsync,
    EnumerateDir,
    Memory,
    Handshake,
    HandshakeResumed,
}

const KINDS: &[(&str, Kind)] = &[
    ("write", Kind::Write),
    ("writeAsync", Kind::WriteAsync),
    ("readSequential", Kind::ReadSequential),
    ("readRandom", Kind::ReadRandom),
    ("readSequentialAsync", Kind::ReadSequentialAsync),
    ("readMultiStream", Kind::ReadMultiStream),
    ("createFile", Kind::CreateFile),
    ("createFileAsync", Kind::CreateFileAsync),
    ("createMultiFile", Kind::CreateMultiFile),
    ("getKey", Kind::GetKey),
    ("getFile", Kind::GetFile),
    ("getFileAsync", Kind::GetFileAsync),
    ("enumerateDir", Kind::EnumerateDir),
    ("memory", Kind::Memory),
    ("handshake", Kind::Handshake),
    ("handshakeResumed", Kind::HandshakeResumed),
];

impl Kind {
    fn parse(name: &str) -> Result<Kind> {
        let found = KINDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
            Error::invalid(format!("measure `{name}`: use table or one of {}", names.join(", ")))
        })
    }

    fn is_stream(self) -> bool {
        use Kind::*;
        matches!(self, Write | ReadSequential | ReadMultiStream)
    }

    /// Many outstanding, each cheaper than a look at the clock.
    fn is_pipelined(self) -> bool {
        matches!(self, Kind::GetFileAsync | Kind::Memory)
    }

    fn figure(self) -> Figure {
        use Kind::*;
        match self {
            Write | ReadSequential | ReadSequentialAsync | ReadMultiStream => {
                Figure::BytesPerSecond
            }
            WriteAsync | CreateFile | CreateFileAsync | CreateMultiFile | GetFileAsync
            | EnumerateDir => Figure::OperationsPerSecond,
            ReadRandom | GetKey | GetFile => Figure::MicrosecondsP50,
            Memory => Figure::BytesPerOperation,
            Handshake | HandshakeResumed => Figure::OperationsPerServerSecond,
        }
    }
}

/// What a case works with.
struct Bench {
    options: Iobench,
    size: usize,
    local: bool,
    tls: bool,
    class: StorageClass,
    dram: bool,
    server: Server,
    data: Data,
}

struct Limit<'a> {
    name: String,
    measure: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl Bench {
    fn start(options: &Iobench) -> Result<Bench> {
        let doing = |e: String| Error::invalid(format!("`-s {}`: {e}", options.size));
        let size = parse_bytes(&options.size).map_err(doing)? as usize;
        if size > Data::PERIOD || options.batch == 0 {
            return Err(Error::invalid("measure: use `-s` up to 8M and `-b` of at least 1"));
        }
        let (local, tls) = match options.transport.as_str() {
            "tcp" => (false, false),
            "tls" => (false, true),
            "local" => (true, false),
            other => {
                return Err(Error::invalid(format!(
                    "`--transport {other}`: use tcp, tls or local"
                )));
            }
        };
        let (tier, durability) = match options.class {
            0 => (Tier::Dram, Durability::Memory),
            1 => (Tier::Disk, Durability::Durable),
            other => return Err(Error::invalid(format!("`-c {other}`: 0 is dram, 1 is disk"))),
        };
        let class = StorageClass::new(&[tier], durability)
            .ok_or_else(|| Error::bug("measure: the class is not one"))?;
        let dram = tier == Tier::Dram;
        let parent = match &options.data {
            Some(parent) => parent.clone(),
            None => std::env::current_dir()?,
        };
        let settings = Settings {
            dram_bytes: match (dram, options.kind.starts_with("write")) {
                (false, _) => 0,
                (true, false) => DRAM_BYTES,
                (true, true) => DRAM_WRITE_BYTES,
            },
            reactors: options.reactors,
            spin: options.spin,
            tls,
            ..Settings::default()
        };
        let server = Server::start(&parent, &settings)?;
        let data = Data::random();
        Ok(Bench { options: options.clone(), size, local, tls, class, dram, server, data })
    }

    /// Makes the next reads from disk cold: the node reads sealed chunks through the page cache.
    fn drop_cached(&self) -> Result<()> {
        if !self.dram {
            for entry in std::fs::read_dir(self.server.directory().join("chunks"))? {
                let path = entry?.path();
                if path.is_file() {
                    holdfast_env::local::drop_cached(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Names the case by what makes it: `readSequential/512 KiB/dram/tcp`.
    fn case(&self) -> String {
        let Iobench { kind, batch, spin, buffered, .. } = &self.options;
        if kind.starts_with("handshake") {
            return format!("{kind}/tls");
        }
        let mut case = format!("{kind}/{}/", format_bytes(self.size as u64).replace(' ', ""));
        case += if self.dram { "dram/" } else { "disk/" };
        case += &self.options.transport;
        if kind.ends_with("Async") || kind == "memory" {
            case += &format!("/{batch} outstanding");
        }
        for (on, name) in [(*spin, "/spin"), (!buffered, "/direct")] {
            case += if on { name } else { "" };
        }
        case
    }

    fn client(&self) -> Result<Client> {
        self.server.connect(self.local, self.dram, self.options.spin)
    }

    fn connection(&self) -> Result<Connection> {
        let options = ClientOptions { spin: self.options.spin, ..secrets::options() };
        Connection::connect_with(&self.server.endpoint(self.local)?, options)
    }

    fn new_file(&self) -> NewFile {
        NewFile { class: Some(self.class), replace: true, ..NewFile::default() }
    }

    fn node(&self, path: &str) -> NewNode {
        let NewFile { kind, mode, mtime_ns, class, replace, parents, metadata } = self.new_file();
        NewNode { path: path.to_owned(), kind, mode, mtime_ns, class, replace, parents, metadata }
    }

    fn work(&self, kind: Kind) -> Result<Work<'_>> {
        match kind {
            Kind::Write => streams::write(self),
            Kind::WriteAsync => streams::write_async(self),
            Kind::ReadSequential => streams::read_sequential(self),
            Kind::ReadRandom => streams::read_random(self),
            Kind::ReadSequentialAsync => streams::read_sequential_async(self),
            Kind::ReadMultiStream => streams::read_multi_stream(self),
            Kind::CreateFile => names::create_file(self, 1),
            Kind::CreateFileAsync => names::create_file(self, self.options.batch),
            Kind::CreateMultiFile => names::create_multi_file(self),
            Kind::GetKey => names::get_key(self),
            Kind::GetFile => names::get_file(self),
            Kind::GetFileAsync => names::get_file_async(self),
            Kind::EnumerateDir => names::enumerate_dir(self),
            Kind::Memory => names::memory(self),
            Kind::Handshake => handshakes::work(self, false),
            Kind::HandshakeResumed => handshakes::work(self, true),
        }
    }

    /// What the case is held against.
    fn limit(&self, kind: Kind) -> Result<Limit<'_>> {
        // Buffered streams move slices, however small the operations are.
        let block = self.size.max(64 << 10);
        let block = if kind.is_stream() && self.size < 64 << 10 { 512 << 10 } else { block };
        let file = self.server.directory().join("limit");
        let authority = self.server.directory().join("limit-tls");
        let limit = |name: &str, measure: Box<dyn FnMut() -> Result<f64>>| Limit {
            name: name.to_owned(),
            measure,
        };
        let (size, batch, spin, local) =
            (self.size, self.options.batch, self.options.spin, self.local);
        Ok(match (kind, self.dram) {
            (Kind::Handshake | Kind::HandshakeResumed, _) => {
                let (resumes, bytes) = (kind == Kind::HandshakeResumed, handshakes::ping().len());
                let name = "handshakes of rustls in memory, the server's end";
                limit(name, Box::new(move || Ok(tls::handshakes(&authority, bytes, resumes)?)))
            }
            (Kind::Write, false) => limit(
                &format!("direct writes, {block} bytes"),
                Box::new(move || Ok(limits::direct_write(&file, block, STREAM_DEPTH)?)),
            ),
            (kind, false) if kind.figure() == Figure::BytesPerSecond => limit(
                &format!("direct reads, {block} bytes"),
                Box::new(move || Ok(limits::direct_read(&file, block, STREAM_DEPTH)?)),
            ),
            (Kind::ReadRandom, false) => limit(
                &format!("direct reads, {size} bytes"),
                Box::new(move || Ok(limits::direct_read_latency(&file, size)?)),
            ),
            (kind, true) if kind.figure() == Figure::BytesPerSecond && local => {
                let memory = Memcpy::new()?;
                let name = format!("memcpy of a region, {block} bytes");
                limit(&name, Box::new(move || memory.measure(block)))
            }
            (kind, true) if kind.figure() == Figure::BytesPerSecond && self.tls => limit(
                &format!("one stream of rustls, {block} bytes"),
                Box::new(move || Ok(limits::raw_tls(&authority, block)?)),
            ),
            (kind, true) if kind.figure() == Figure::BytesPerSecond => limit(
                &format!("one TCP stream, {block} bytes"),
                Box::new(move || Ok(limits::raw_tcp(block)?)),
            ),
            (Kind::Memory, _) => limit("120 bytes a file", Box::new(|| Ok(120.0))),
            (Kind::WriteAsync | Kind::CreateFile | Kind::CreateFileAsync, false)
            | (Kind::CreateMultiFile, _) => limit(
                &format!("fdatasync loop, {} bytes", size.max(4096)),
                Box::new(move || Ok(limits::fdatasync_loop(&file, size.max(4096))?)),
            ),
            (Kind::CreateFile, true) => limit(
                "TCP ping-pong, 64 bytes",
                Box::new(|| Ok(1e6 / limits::tcp_ping_pong(false)?)),
            ),
            (
                Kind::GetFileAsync | Kind::CreateFileAsync | Kind::WriteAsync | Kind::EnumerateDir,
                _,
            ) => limit(
                &format!("echo of 64 bytes, {batch} at a time"),
                Box::new(move || Ok(limits::tcp_pipelined(batch)?)),
            ),
            _ if self.tls => limit(
                "ping-pong of rustls, 64 bytes",
                Box::new(move || Ok(limits::tls_ping_pong(&authority)?)),
            ),
            _ => round_trip(size, local, spin),
        })
    }

    /// Crail's figures on a machine of this kind, see docs/benchmarks.md; of handshakes those of a
    /// server that has sockets, too, and nothing else.
    fn peer(&self, kind: Kind) -> Result<Option<Peer>> {
        const GBIT: f64 = 1e9 / 8.0;
        if matches!(kind, Kind::Handshake | Kind::HandshakeResumed) {
            let authority = self.server.directory().join("limit-tls");
            let (bytes, resumes) = (handshakes::ping().len(), kind == Kind::HandshakeResumed);
            let value = tls::handshakes_over_tcp(&authority, bytes, resumes)?;
            let (name, version) = ("rustls over sockets", "in the same run");
            return Ok(Some(Peer { name, version, value }));
        }
        if !self.dram || self.local || self.tls {
            return Ok(None);
        }
        let value = match (kind, self.size) {
            (Kind::Write, 1024) => 3.9 * GBIT,
            (Kind::Write, 65_536) => 4.5 * GBIT,
            (Kind::Write, 524_288) => 4.9 * GBIT,
            (Kind::ReadSequential, 1024) => 7.7 * GBIT,
            (Kind::ReadSequential, 65_536) => 7.6 * GBIT,
            (Kind::ReadSequential, 524_288) => 10.6 * GBIT,
            (Kind::ReadRandom, 4096) => 68.0,
            (Kind::GetKey, 4) => 84.0,
            (Kind::GetKey, 4096) => 76.0,
            (Kind::GetKey, 65_536) => 106.0,
            (Kind::GetKey, 262_144) => 181.0,
            (Kind::GetFile, _) => 25.0,
            _ => return Ok(None),
        };
        Ok(Some(Peer { name: "Apache Crail", version: "built from source of 2022-07", value }))
    }
}

/// One round trip on the transport, and the time that more than a message's bytes take.
fn round_trip(size: usize, local: bool, spin: bool) -> Limit<'static> {
    const TRANSFER_BYTES_MIN: usize = 16 << 10;
    let transfer = size >= TRANSFER_BYTES_MIN && !local;
    let transport = if local { "Unix" } else { "TCP" };
    let how = if spin { ", spinning" } else { "" };
    let and = if transfer { format!(" and {size} bytes") } else { String::new() };
    Limit {
        name: format!("{transport} ping-pong{how}, 64 bytes{and}"),
        measure: Box::new(move || {
            let round = if local { limits::unix_ping_pong } else { limits::tcp_ping_pong };
            let mut us = round(spin)?;
            if transfer {
                us += size as f64 / limits::raw_tcp(64 << 10)? * 1e6;
            }
            Ok(us)
        }),
    }
}

/// Random bytes: whoever compresses or dedupes gains nothing.
struct Data {
    bytes: Vec<u8>,
}

impl Data {
    /// After so many bytes the data repeat.
    const PERIOD: usize = 8 << 20;

    fn random() -> Data {
        let rng = SeededRng::new(RealRng.next_u64());
        let mut bytes = Vec::with_capacity(2 * Data::PERIOD);
        for _ in 0..Data::PERIOD / 8 {
            bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        bytes.extend_from_within(..);
        Data { bytes }
    }

    /// The bytes that belong at `at` of a file.
    fn at(&self, at: u64, bytes: usize) -> &[u8] {
        let start = at as usize % Data::PERIOD;
        &self.bytes[start..start + bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_a_command_line() {
        for row in table::ROWS {
            let row = Row::read(row).unwrap();
            assert!(Kind::parse(&row.kind).is_ok() && parse_bytes(&row.size).is_ok());
        }
    }

    #[test]
    fn data_repeat_after_their_period() {
        let data = Data::random();
        assert_eq!(data.at(5, 100), data.at(5 + Data::PERIOD as u64, 100));
        assert_ne!(data.at(0, 100), data.at(100, 100));
    }
}
