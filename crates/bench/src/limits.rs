//! The limits that our figures are held against, measured on this machine in the same run: raw
//! TCP, ping-pongs, memory copies, direct I/O, an fdatasync loop. Each does the least that any
//! program could do, with as many threads as the case it is compared with.

use crate::tls;
use holdfast_base::ids::StoreId;
use holdfast_base::limits::CHUNK_BYTES;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::region::{FRAME_BYTES, MappedRegion, Region};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long a limit is measured: long beside the scheduler's slices, short beside a case.
const LIMIT_TIME: Duration = Duration::from_millis(500);
/// Part of it that warms up first: lets windows grow and pages appear.
const WARM_PART: u32 = 10;
const PING_BYTES: usize = 64;
/// Of the files that disk limits read and write, and of the region that is copied from.
pub const WORK_BYTES: u64 = 256 << 20;

/// Either kind of stream socket.
trait Stream: Read + Write + Send {
    fn spin(&self, on: bool) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn spin(&self, on: bool) -> io::Result<()> {
        self.set_nodelay(true)?;
        self.set_nonblocking(on)
    }
}

impl Stream for UnixStream {
    fn spin(&self, on: bool) -> io::Result<()> {
        self.set_nonblocking(on)
    }
}

impl Stream for tls::Near {
    fn spin(&self, _: bool) -> io::Result<()> {
        self.sock.set_nodelay(true)
    }
}

impl Stream for tls::Far {
    fn spin(&self, _: bool) -> io::Result<()> {
        self.sock.set_nodelay(true)
    }
}

pub fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    Ok((near, listener.accept()?.0))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a thread of the limit panicked"))?
}

/// Bytes a second of one TCP stream over loopback, `block_bytes` a write and a read, sender and
/// receiver a thread each: what iperf3 measures.
pub fn raw_tcp(block_bytes: usize) -> io::Result<f64> {
    let (near, far) = tcp_pair()?;
    one_stream(near, far, block_bytes)
}

/// As [`raw_tcp`], of rustls' own stream over it, TLS 1.3.
pub fn raw_tls(authority: &Path, block_bytes: usize) -> io::Result<f64> {
    let (near, far) = tls::pair(authority, tcp_pair()?)?;
    one_stream(near, far, block_bytes)
}

fn one_stream(
    mut near: impl Read + Send,
    mut far: impl Write + Send,
    block_bytes: usize,
) -> io::Result<f64> {
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> io::Result<()> {
            let block = vec![0x5au8; block_bytes];
            loop {
                use io::ErrorKind::{BrokenPipe, ConnectionReset};
                match far.write_all(&block) {
                    // The receiver hangs up when the time is over.
                    Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset) => return Ok(()),
                    sent => sent?,
                }
            }
        });
        let mut block = vec![0u8; block_bytes.max(64 << 10)];
        let mut receive_for = |time: Duration| -> io::Result<f64> {
            let (start, mut bytes) = (Instant::now(), 0u64);
            while start.elapsed() < time {
                match near.read(&mut block)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => bytes += n as u64,
                }
            }
            Ok(bytes as f64 / start.elapsed().as_secs_f64())
        };
        receive_for(LIMIT_TIME / WARM_PART)?;
        let rate = receive_for(LIMIT_TIME)?;
        drop(near);
        joined(sender)?;
        Ok(rate)
    })
}

/// Reads a whole message; a spinning stream is asked again until it is there. False at the end.
fn receive(stream: &mut impl Stream, message: &mut [u8]) -> io::Result<bool> {
    let mut got = 0;
    while got < message.len() {
        match stream.read(&mut message[got..]) {
            Ok(0) => return Ok(false),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            // So rustls calls an end without a farewell.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Median microseconds of one round trip, and messages a second, of `batch` messages of 64 bytes
/// there and the same back.
fn rounds(near: impl Stream, far: impl Stream, batch: usize, spin: bool) -> io::Result<(f64, f64)> {
    near.spin(spin)?;
    far.spin(spin)?;
    thread::scope(|scope| {
        let (mut near, mut far) = (near, far);
        let echo = scope.spawn(move || -> io::Result<()> {
            let mut messages = vec![0u8; PING_BYTES * batch];
            while receive(&mut far, &mut messages)? {
                far.write_all(&messages)?;
            }
            Ok(())
        });
        let mut messages = vec![7u8; PING_BYTES * batch];
        let mut times = Vec::new();
        let (begin, mut start) = (Instant::now(), Instant::now());
        while begin.elapsed() < LIMIT_TIME {
            near.write_all(&messages)?;
            if !receive(&mut near, &mut messages)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let now = Instant::now();
            times.push((now - start).as_nanos() as u64);
            start = now;
        }
        drop(near);
        joined(echo)?;
        let times = &mut times[..];
        let warm = times.len() / WARM_PART as usize;
        let times = &mut times[warm..];
        let total: u64 = times.iter().sum();
        let rate = (times.len() * batch) as f64 / (total as f64 / 1e9);
        let middle = times.len() / 2;
        Ok((*times.select_nth_unstable(middle).1 as f64 / 1e3, rate))
    })
}

/// Median microseconds of 64 bytes there and back over loopback TCP, a thread each.
pub fn tcp_ping_pong(spin: bool) -> io::Result<f64> {
    let (near, far) = tcp_pair()?;
    Ok(rounds(near, far, 1, spin)?.0)
}

/// As [`tcp_ping_pong`], through rustls' own streams.
pub fn tls_ping_pong(authority: &Path) -> io::Result<f64> {
    let (near, far) = tls::pair(authority, tcp_pair()?)?;
    Ok(rounds(near, far, 1, false)?.0)
}

/// As [`tcp_ping_pong`], over a Unix socket.
pub fn unix_ping_pong(spin: bool) -> io::Result<f64> {
    let (near, far) = UnixStream::pair()?;
    Ok(rounds(near, far, 1, spin)?.0)
}

/// Messages of 64 bytes a second, echoed over one loopback TCP connection, `batch` at a time.
pub fn tcp_pipelined(batch: usize) -> io::Result<f64> {
    let (near, far) = tcp_pair()?;
    Ok(rounds(near, far, batch, false)?.1)
}

/// Bytes a second of copying `block_bytes` at a time out of a mapped memory region, front to
/// back, into one buffer: what no mapped read can beat.
pub struct Memcpy {
    // Keeps the memory; the mapping alone would do, but frames of nobody could be reused.
    _frames: holdfast_env::region::Frames,
    mapped: MappedRegion,
    start: u64,
}

impl Memcpy {
    /// Fills a region and maps it, as a local client does.
    pub fn new() -> holdfast_base::Result<Memcpy> {
        let region = Region::create("holdfast-bench-limit", StoreId(1), WORK_BYTES)?;
        let Some(frames) = region.allocate(WORK_BYTES / FRAME_BYTES) else {
            return Err(holdfast_base::Error::bug("take frames of a fresh region: there are none"));
        };
        if let Some(mut window) = frames.reserve(WORK_BYTES as usize) {
            window.fill(0x5a);
        }
        let mapped = MappedRegion::from_fd(&region.client_fd()?)?;
        Ok(Memcpy { start: frames.region_offset(), _frames: frames, mapped })
    }

    /// Bytes a second; blocks that do not fill the region's end are left out.
    pub fn measure(&self, block_bytes: usize) -> holdfast_base::Result<f64> {
        let mut block = vec![0u8; block_bytes];
        let mut pass = || -> holdfast_base::Result<u64> {
            let blocks = WORK_BYTES / block_bytes as u64;
            for i in 0..blocks {
                self.mapped.copy_out(self.start + i * block_bytes as u64, &mut block)?;
            }
            Ok(blocks * block_bytes as u64)
        };
        // One pass touches every page, so that the copies measure memory and not page faults.
        pass()?;
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < LIMIT_TIME {
            bytes += pass()?;
        }
        Ok(bytes as f64 / start.elapsed().as_secs_f64())
    }
}

fn direct(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(libc::O_DIRECT).open(path)
}

/// Runs `work` on each block of a file, `depth` threads taking turns; bytes a second.
fn each_block(
    file: &File,
    (file_bytes, block_bytes): (u64, usize),
    depth: usize,
    work: impl Fn(&File, &mut [u8], u64) -> io::Result<()> + Sync,
) -> io::Result<f64> {
    let start = Instant::now();
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..depth)
            .map(|thread| {
                scope.spawn(move || -> io::Result<()> {
                    let mut block = AlignedBuf::zeroed(block_bytes);
                    block.fill(0x5a);
                    let from = thread as u64 * block_bytes as u64;
                    for at in (from..file_bytes).step_by(block_bytes * depth) {
                        work(file, &mut block, at)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(joined)
    })?;
    file.sync_data()?;
    Ok(file_bytes as f64 / start.elapsed().as_secs_f64())
}

/// Bytes a second of writing a new file front to back with direct I/O, `depth` writes at once,
/// until it is synced.
pub fn direct_write(path: &Path, block_bytes: usize, depth: usize) -> io::Result<f64> {
    let block_bytes = block_bytes.next_multiple_of(4096);
    let _ = std::fs::remove_file(path);
    let file = direct(path)?;
    each_block(&file, (WORK_BYTES, block_bytes), depth, |file, block, at| {
        file.write_all_at(block, at)
    })
}

/// Bytes a second of reading a file that [`direct_write`] left, front to back, `depth` reads at
/// once, without the page cache.
pub fn direct_read(path: &Path, block_bytes: usize, depth: usize) -> io::Result<f64> {
    if !path.exists() {
        direct_write(path, CHUNK_BYTES as usize / 64, 1)?;
    }
    let file = direct(path)?;
    let block_bytes = block_bytes.next_multiple_of(4096);
    each_block(&file, (WORK_BYTES, block_bytes), depth, |file, block, at| {
        file.read_exact_at(block, at)
    })
}

/// Direct reads a second of `block_bytes` from scattered places of a file, `depth` at once.
pub fn scattered_read(path: &Path, block_bytes: usize, depth: usize) -> io::Result<f64> {
    if !path.exists() {
        direct_write(path, CHUNK_BYTES as usize / 64, 1)?;
    }
    let file = direct(path)?;
    let block_bytes = block_bytes.next_multiple_of(4096);
    let blocks = WORK_BYTES / block_bytes as u64;
    let (begin, done) = (Instant::now(), std::sync::atomic::AtomicU64::new(0));
    let read = |thread: u64| -> io::Result<()> {
        let mut block = AlignedBuf::zeroed(block_bytes);
        let mut at = thread * 7919;
        while begin.elapsed() < LIMIT_TIME {
            at = (at + 0x9e37_79b1) % blocks;
            file.read_exact_at(&mut block, at * block_bytes as u64)?;
            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth as u64).map(|i| scope.spawn(move || read(i))).collect();
        threads.into_iter().try_for_each(joined)
    })?;
    Ok(done.into_inner() as f64 / begin.elapsed().as_secs_f64())
}

/// Median microseconds of reading `block_bytes` from scattered places of a file.
pub fn direct_read_latency(path: &Path, block_bytes: usize) -> io::Result<f64> {
    if !path.exists() {
        direct_write(path, CHUNK_BYTES as usize / 64, 1)?;
    }
    let file = direct(path)?;
    let mut block = AlignedBuf::zeroed(block_bytes);
    let blocks = WORK_BYTES / block.len() as u64;
    let (begin, mut times, mut at) = (Instant::now(), Vec::new(), 0);
    while begin.elapsed() < LIMIT_TIME {
        // An odd step visits every block of a power of two.
        at = (at + 0x9e37_79b1) % blocks;
        let start = Instant::now();
        file.read_exact_at(&mut block, at * block_bytes.next_multiple_of(4096) as u64)?;
        times.push(start.elapsed().as_nanos() as u64);
    }
    let middle = times.len() / 2;
    Ok(*times.select_nth_unstable(middle).1 as f64 / 1e3)
}

/// Operations a second of appending `block_bytes` to a growing file and calling fdatasync.
pub fn fdatasync_loop(path: &Path, block_bytes: usize) -> io::Result<f64> {
    let _ = std::fs::remove_file(path);
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let block = vec![0x5au8; block_bytes];
    let (start, mut operations) = (Instant::now(), 0u64);
    while start.elapsed() < LIMIT_TIME {
        file.write_all_at(&block, operations * block_bytes as u64)?;
        file.sync_data()?;
        operations += 1;
    }
    let rate = operations as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(rate)
}
