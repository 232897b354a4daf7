//! Cases that move the bytes of large files: written, read front to back, read from anywhere.

use super::{Bench, Work};
use crate::report::Meter;
use holdfast_base::checksum::{crc32c, stamp};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, SessionId};
use holdfast_base::limits::SLICE_BYTES;
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, Connection, NewFile, RequestId, Response};
use holdfast_wire::{self as wire, chunk, file as msg};
use std::collections::VecDeque;
use std::time::Instant;

/// Of one pass over a file: beyond every cache of the machine.
pub const FILE_BYTES: u64 = 256 << 20;
/// Files that one multistream reads.
const PARTS: u64 = 16;
/// Every so many operations what was read is compared with what was written.
const COMPARED_EVERY: u64 = 16;

impl Bench {
    /// Bytes of one pass, in whole operations.
    fn pass_bytes(&self) -> u64 {
        let operations = FILE_BYTES / self.size as u64;
        self.options.operations.unwrap_or(operations).clamp(1, operations) * self.size as u64
    }

    fn write_file(&self, client: &mut Client, path: &str, bytes: u64) -> Result<()> {
        let mut writer = client.create(path, &self.new_file())?;
        for at in (0..bytes).step_by(SLICE_BYTES as usize) {
            writer.write(self.data.at(at, SLICE_BYTES.min(bytes - at) as usize))?;
        }
        writer.close()?;
        Ok(())
    }

    /// The client has verified the checksums; this verifies the client.
    fn compare(&self, operation: u64, at: u64, bytes: &[u8]) -> Result<()> {
        if !operation.is_multiple_of(COMPARED_EVERY) {
            return Ok(());
        }
        let n = bytes.len().min(64);
        if bytes[..n] == *self.data.at(at, n) {
            return Ok(());
        }
        Err(Error::bug(format!("read {n} bytes at {at}: they are not what was written")))
    }
}

/// Streams into files that are deleted again, a pass at a time; not buffered, each operation waits
/// for its acknowledgement.
pub fn write(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let path = &bench.options.path;
    let pass_bytes = bench.pass_bytes();
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        while meter.more() {
            meter.run();
            let mut writer = client.create(path, &bench.new_file())?;
            let mut at = 0;
            while at < pass_bytes && meter.more() {
                let bytes = bench.data.at(at, bench.size);
                meter.operation(bytes.len() as u64, || match bench.options.buffered {
                    true => writer.write(bytes),
                    false => writer.write(bytes).and_then(|()| writer.flush()),
                })?;
                at += bench.size as u64;
            }
            writer.close()?;
            meter.pause();
            client.delete(path, false)?;
        }
        Ok(())
    }))
}

/// One file front to back, again and again, its pages dropped from the system's cache before each
/// pass.
pub fn read_sequential(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let (path, pass_bytes) = (&bench.options.path, bench.pass_bytes());
    bench.write_file(&mut client, path, pass_bytes)?;
    let mut block = vec![0; bench.size];
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        while meter.more() {
            bench.drop_cached()?;
            meter.run();
            read_pass(bench, &mut client, path, meter, &mut block)?;
            meter.pause();
        }
        Ok(())
    }))
}

/// Reads one file front to back. Buffered reads run ahead; the others are a request each.
fn read_pass(
    bench: &Bench,
    client: &mut Client,
    path: &str,
    meter: &mut Meter<'_>,
    block: &mut [u8],
) -> Result<()> {
    let mut reader = client.open(path)?;
    let size = reader.info().size;
    let mut at = 0;
    while at < size && meter.more() {
        let wanted = (block.len() as u64).min(size - at) as usize;
        let start = meter.begin();
        if bench.options.buffered {
            let mut got = 0;
            while got < wanted {
                match reader.read(&mut block[got..wanted])? {
                    0 => return Err(Error::bug(format!("read `{path}`: it ended at {at}"))),
                    n => got += n,
                }
            }
        } else {
            reader.read_exact_at(&mut block[..wanted], at)?;
        }
        meter.end(start, wanted as u64);
        bench.compare(meter.sample.operations, at, &block[..wanted])?;
        at += wanted as u64;
    }
    Ok(())
}

/// Blocks of one open file, from anywhere, one at a time.
pub fn read_random(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let (path, pass_bytes) = (&bench.options.path, bench.pass_bytes());
    bench.write_file(&mut client, path, pass_bytes)?;
    let mut block = vec![0; bench.size];
    let places = pass_bytes / bench.size as u64;
    let mut turn = 0u64;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        let mut reader = client.open(path)?;
        meter.run();
        while meter.more() {
            // Scattered by Fibonacci hashing: the same places in every run.
            turn += 1;
            let at = (turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % places * block.len() as u64;
            let bytes = block.len() as u64;
            meter.operation(bytes, || reader.read_exact_at(&mut block, at))?;
            bench.compare(meter.sample.operations, at, &block)?;
        }
        meter.pause();
        Ok(())
    }))
}

/// A multifile's files, read one after another as one stream.
pub fn read_multi_stream(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    let path = &bench.options.path;
    client.make_dir(path, &NewFile { kind: NodeKind::MultiFile, ..bench.new_file() })?;
    for part in 0..PARTS {
        bench.write_file(&mut client, &format!("{path}/{part:04}"), bench.pass_bytes() / PARTS)?;
    }
    let mut block = vec![0; bench.size];
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        while meter.more() {
            meter.run();
            for part in client.list(path, "")?.entries {
                let part = format!("{path}/{}", part.name);
                read_pass(bench, &mut client, &part, meter, &mut block)?;
            }
            meter.pause();
        }
        Ok(())
    }))
}

fn decoded<T: Decode>(response: &Response) -> Result<T> {
    T::from_bytes(response.meta()).map_err(|e| Error::bug(format!("read an answer: {e}")))
}

fn call<T: Decode>(connection: &mut Connection, opcode: u16, message: &impl Encode) -> Result<T> {
    decoded(&connection.call(opcode, |out| message.encode(out), &[])?)
}

/// Reads of `-s` bytes, `-b` of them outstanding, each verified.
pub fn read_sequential_async(bench: &Bench) -> Result<Work<'_>> {
    let path = &bench.options.path;
    bench.write_file(&mut bench.client()?, path, bench.pass_bytes())?;
    let mut connection = bench.connection()?;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        let get =
            msg::Get { path: path.clone(), follow: true, offset: 0, bytes_max: 0, locate: false };
        let reply: msg::GetReply = call(&mut connection, wire::OP_GET, &get)?;
        let msg::Content::Chunks { extents, .. } = reply.content else {
            return Err(Error::invalid("read with many outstanding: use larger files, see -k"));
        };
        let mut out = vec![0; bench.size];
        let mut asked = VecDeque::new();
        let mut reads = runs(&extents, bench.size as u32).cycle();
        meter.run();
        while meter.more() {
            while asked.len() < bench.options.batch
                && let Some(read) = reads.next()
            {
                let id = connection.submit(wire::OP_CHUNK_READ, |out| read.encode(out), &[])?;
                asked.push_back((Instant::now(), id, read));
            }
            let Some((start, id, read)) = asked.pop_front() else { break };
            verified(&mut connection, id, &read, &mut out)?;
            meter.end(Some(start), read.bytes as u64);
        }
        meter.pause();
        for (_, id, read) in asked {
            verified(&mut connection, id, &read, &mut out)?;
        }
        Ok(())
    }))
}

/// The raw extents of a file as reads of `bytes` each.
fn runs(extents: &[msg::Extent], bytes: u32) -> impl Iterator<Item = chunk::Read> + Clone + '_ {
    extents.iter().flat_map(move |extent| {
        let (run, length) = match *extent {
            msg::Extent::Raw { chunk, generation, bytes } => ((chunk, generation), bytes),
            msg::Extent::Packed { .. } => (Default::default(), 0),
        };
        (0..length).step_by(bytes as usize).map(move |offset| chunk::Read {
            chunk: run.0,
            generation: run.1,
            offset,
            bytes: (bytes as u64).min(length - offset) as u32,
        })
    })
}

fn verified(
    connection: &mut Connection,
    id: RequestId,
    read: &chunk::Read,
    out: &mut [u8],
) -> Result<()> {
    let response = connection.wait_into(id, out)?;
    let reply: chunk::ReadReply = decoded(&response)?;
    let first = read.offset / holdfast_base::limits::BLOCK_BYTES;
    let pieces = chunk::pieces(read.offset, &out[..response.body_bytes()]);
    let whole = pieces.zip(first..).map(|(p, i)| crc32c(p) ^ stamp(read.chunk, read.generation, i));
    if response.body_bytes() == read.bytes as usize && whole.eq(reply.crcs.iter().copied()) {
        return Ok(());
    }
    Err(Error::corrupt("read a chunk: what arrived fails its checksums"))
}

/// One stream of appends.
struct Stream {
    chunk: ChunkId,
    at: u64,
    capacity: u64,
}

/// `-b` streams, each with one append of `-s` bytes outstanding: what a server of many clients
/// sees. On disk every append is synced before its acknowledgement.
pub fn write_async(bench: &Bench) -> Result<Work<'_>> {
    let mut client = bench.client()?;
    client.make_dir(&bench.options.path, &NewFile { parents: true, ..bench.new_file() })?;
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        let mut connection = bench.connection()?;
        let session: SessionId = call(&mut connection, wire::OP_OPEN_SESSION, &())?;
        let mut sequence = 0;
        let mut next = || {
            sequence += 1;
            let sequence = holdfast_base::ids::Sequence(sequence);
            wire::Call { session, sequence, acknowledged_below: sequence }
        };
        let (mut files, mut asked) = (Vec::new(), VecDeque::new());
        for i in 0..bench.options.batch {
            let path = format!("{}/{i}", bench.options.path);
            let begin = msg::Begin { call: next(), node: bench.node(&path) };
            let begun: msg::Begun = call(&mut connection, wire::OP_BEGIN, &begin)?;
            let allocate = msg::Allocate { call: next(), file: begun.file };
            let grant: msg::Grant = call(&mut connection, wire::OP_ALLOCATE, &allocate)?;
            files.push(begun.file);
            let stream = Stream { chunk: grant.chunk, at: 0, capacity: grant.capacity };
            asked.push_back((None, stream, grant.durability));
        }
        meter.run();
        // Half of the streams are waited for while the other half is on its way.
        let half = asked.len().div_ceil(2);
        while meter.more() {
            for _ in 0..half.min(asked.len()) {
                let Some((sent, mut stream, durability)) = asked.pop_front() else { break };
                if let Some((start, id)) = sent {
                    let _: u64 = decoded(&connection.wait(id)?)?;
                    meter.end(Some(start), bench.size as u64);
                }
                if stream.at + bench.size as u64 > stream.capacity {
                    continue;
                }
                let bytes = bench.data.at(stream.at, bench.size);
                let crcs = chunk::piece_crcs(stream.at, bytes);
                let append = chunk::Append { chunk: stream.chunk, at: stream.at, durability, crcs };
                let id =
                    connection.submit(wire::OP_CHUNK_APPEND, |out| append.encode(out), &[bytes])?;
                stream.at += bench.size as u64;
                asked.push_back((Some((Instant::now(), id)), stream, durability));
            }
            if asked.is_empty() {
                return Err(Error::invalid("append: every stream's chunk is full; give fewer -k"));
            }
            connection.flush()?;
        }
        for (sent, _, _) in asked {
            if let Some((start, id)) = sent {
                let _: u64 = decoded(&connection.wait(id)?)?;
                meter.end(Some(start), bench.size as u64);
            }
        }
        meter.pause();
        for file in files {
            client.act(msg::Action::Abandon { file })?;
        }
        Ok(())
    }))
}
