//! The receiving side: a listener for one job's senders, a thread a connection, one file. Its memory
//! is a block a connection and what it may keep; what it cannot write at once waits with the senders, by
//! their credit.

use crate::credit::Allowance;
use crate::ledger::{Attempt, Ledger};
use crate::limits::{BLOCK_BYTES_MAX, GREET, SILENT, WINDOW_BYTES};
use crate::message::{self, Message};
use crate::sorter::Workspace;
use crate::spool::Spool;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Result};
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::Disk;
use holdfast_env::net::{Guard, OP_HELLO, OP_PROVE};
use holdfast_env::tasks::{self, Task};
use holdfast_env::{HoldMutex, RealRng, Rng, Secret, planted, sockets};
use holdfast_sort::hash::Sum;
use std::collections::HashMap;
use std::io::Read;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// What is received, and by whom.
pub struct Config {
    /// The address to listen at; the port is the kernel's choice.
    pub address: IpAddr,
    /// What senders prove.
    pub token: Secret,
    /// Partitions whose blocks come here.
    pub partitions: Vec<u32>,
    /// Connections at once; each takes the memory of a block.
    pub connections_max: usize,
    /// Memory for what arrives, beside that: what finds no room there goes to the file.
    pub kept_bytes: u64,
}

/// Receives the blocks of some partitions until it is dropped.
pub struct Receiver {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<Task>,
    /// Of the partition that was sorted last; taken by whoever sorts the next one.
    workspace: Mutex<Workspace>,
}

struct Shared {
    config: Config,
    ledger: Mutex<Ledger>,
    spool: Arc<Spool>,
    stopped: AtomicBool,
    /// A handle of each connection, by which it is ended from outside.
    connections: Mutex<HashMap<u64, TcpStream>>,
    received: AtomicU64,
}

impl Receiver {
    /// Listens, and keeps what comes in memory and in a nameless file in `directory`.
    pub fn start(disk: &dyn Disk, directory: &Path, config: Config) -> Result<Receiver> {
        let name = format!("holdfast-shuffle-{:016x}", RealRng.next_u64());
        let spool = Arc::new(Spool::create(disk, directory, &name, config.kept_bytes)?);
        let doing = |e: std::io::Error| {
            Error::from(e).context(format_args!("receive records at {}", config.address))
        };
        let at = SocketAddr::new(config.address, 0);
        let listener = sockets::listen_tcp(at, BACKLOG, false).map_err(doing)?;
        listener.set_nonblocking(false).map_err(doing)?;
        let address = listener.local_addr().map_err(doing)?;
        let shared = Arc::new(Shared {
            ledger: Mutex::new(Ledger::new(config.partitions.iter().copied())),
            config,
            spool,
            stopped: AtomicBool::new(false),
            connections: Mutex::default(),
            received: AtomicU64::new(0),
        });
        let accepting = {
            let shared = shared.clone();
            tasks::spawn("shuffle-accept", move || accept(&listener, &shared))?
        };
        Ok(Receiver { shared, address, accepting: Some(accepting), workspace: Mutex::default() })
    }

    /// Where senders connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Splits that are here whole, in order.
    pub fn splits(&self) -> Vec<u64> {
        self.shared.ledger.held().splits()
    }

    /// The sum of a partition's records, as their senders made it.
    pub fn sum(&self, partition: u32) -> Sum {
        self.shared.ledger.held().sum(partition)
    }

    /// Gives up the blocks of a partition that is finished, which cannot be sorted again.
    pub fn forget(&self, partition: u32) {
        self.shared.ledger.held().forget(partition);
    }

    /// Bytes of blocks that were received, and bytes written to the file and read from it.
    pub fn moved(&self) -> (u64, u64, u64) {
        let (written, read) = self.shared.spool.moved();
        (self.shared.received.load(Ordering::Relaxed), written, read)
    }

    pub(crate) fn workspace(&self) -> &Mutex<Workspace> {
        &self.workspace
    }

    /// A partition's blocks and where they are.
    pub(crate) fn partition(&self, partition: u32) -> Result<Partition> {
        let ledger = self.shared.ledger.held();
        let spool = self.shared.spool.clone();
        Ok(Partition { chains: ledger.chains(partition)?, sum: ledger.sum(partition), spool })
    }
}

/// What arrived of a partition.
pub(crate) struct Partition {
    pub chains: Vec<Vec<crate::ledger::Extent>>,
    pub sum: Sum,
    pub spool: Arc<Spool>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        for stream in self.shared.connections.held().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the listener, which looks at the flag.
        let _ = TcpStream::connect_timeout(&self.address, GREET);
        if let Some(task) = self.accepting.take() {
            task.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut number = 0;
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        let Ok(handle) = stream.try_clone() else { continue };
        {
            let mut connections = shared.connections.held();
            if connections.len() >= shared.config.connections_max {
                continue;
            }
            connections.insert(number, handle);
        }
        let (own, mine) = (shared.clone(), number);
        let spawned = tasks::spawn("shuffle-receive", move || {
            serve(&own, stream);
            own.connections.held().remove(&mine);
        });
        if spawned.is_err() {
            shared.connections.held().remove(&number);
        }
        number += 1;
    }
}

/// One connection, until it ends. The sender is told why; nobody else has to know.
fn serve(shared: &Shared, mut stream: TcpStream) {
    let mut open = None;
    let mut served = || -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(GREET))?;
        stream.set_write_timeout(Some(SILENT))?;
        if !greeted(shared, &mut stream)? {
            return Ok(());
        }
        stream.set_read_timeout(None)?;
        receive(shared, &mut stream, &mut open)
    };
    let _ = served();
    if let Some(attempt) = open {
        shared.ledger.held().abandon(attempt);
    }
    let _ = stream.shutdown(Shutdown::Both);
}

/// Whether the sender has proved the job's token.
fn greeted(shared: &Shared, stream: &mut TcpStream) -> Result<bool> {
    let mut guard = Guard::new(shared.config.token.clone(), true);
    while let Some(Message { header, meta }) = message::read(stream)? {
        let answer = match (header.opcode, header.body_bytes) {
            (OP_HELLO, 0) => guard.hello(&RealRng, &meta),
            (OP_PROVE, 0) => match guard.prove(&meta) {
                Ok(_) => {
                    message::answer(stream, &header, Ok(Vec::new()))?;
                    return Ok(true);
                }
                Err(e) => Err(e),
            },
            _ => Err(Error::denied("receive records: only senders of the same job are heard")),
        };
        let refused = answer.is_err();
        message::answer(stream, &header, answer)?;
        if refused {
            break;
        }
    }
    Ok(false)
}

fn receive(shared: &Shared, stream: &mut TcpStream, open: &mut Option<Attempt>) -> Result<()> {
    let mut allowance = Allowance::new(WINDOW_BYTES);
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES_MAX);
    while let Some(Message { header, meta }) = message::read(stream)? {
        let bytes = header.body_bytes as usize;
        let answer = match (header.opcode, *open) {
            (message::OP_BEGIN, None) if bytes == 0 => begin(shared, &meta, open),
            (message::OP_BLOCK, Some(attempt)) if bytes > 0 => {
                let taken = allowance.take(bytes as u64);
                taken.and_then(|()| {
                    stream.read_exact(&mut block[..bytes])?;
                    let written = keep(shared, attempt, &meta, &mut block, bytes);
                    allowance.release(bytes as u64);
                    written.map(|()| (bytes as u64).to_bytes())
                })
            }
            (message::OP_FINISH, Some(attempt)) if bytes == 0 => {
                message::finish(&meta).and_then(|(blocks, sums)| {
                    *open = None;
                    shared.ledger.held().finish(attempt, blocks, sums)?;
                    Ok(Vec::new())
                })
            }
            _ => {
                Err(Error::unsupported("receive records: this was not asked: use matching builds"))
            }
        };
        let refused = answer.is_err();
        message::answer(stream, &header, answer)?;
        if refused {
            break;
        }
    }
    Ok(())
}

fn begin(shared: &Shared, meta: &[u8], open: &mut Option<Attempt>) -> Result<Vec<u8>> {
    let attempt = Attempt::from_bytes(meta)?;
    let wanted = shared.ledger.held().begin(attempt)?;
    *open = wanted.then_some(attempt);
    Ok(message::Window { bytes: WINDOW_BYTES, wanted }.to_bytes())
}

/// Takes a block that has arrived, and counts it.
fn keep(
    shared: &Shared,
    attempt: Attempt,
    meta: &[u8],
    block: &mut AlignedBuf,
    bytes: usize,
) -> Result<()> {
    let message::Block { partition, crc } = message::Block::from_bytes(meta)?;
    shared.ledger.held().check(partition)?;
    let found = crc32c(&block[..bytes]);
    if found != crc && !planted!("shuffle.arrival-unchecked") {
        return Err(Error::corrupt(format!(
            "receive a block of partition {partition}: it was damaged on its way"
        )));
    }
    let extent = shared.spool.take(block, bytes, crc)?;
    shared.received.fetch_add(bytes as u64, Ordering::Relaxed);
    shared.ledger.held().add(attempt, partition, extent);
    Ok(())
}
