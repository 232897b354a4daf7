//! Files of the store as streams of a sort: `holdfast:///path`. A thread of its own drives each
//! client, a few blocks ahead or behind. A file gets its name when all of it is there.

use holdfast_base::{Error, Result};
use holdfast_client::{Client, NewFile};
use holdfast_env::tasks;
use holdfast_wire::file::MTIME_NOW;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const SCHEME: &str = "holdfast://";
/// Blocks between a sort and a client, and their bytes at most.
const BLOCKS: usize = 8;
const BLOCK_BYTES: usize = 1 << 20;

/// The path in the store, if `name` is of one.
pub fn path(name: &str) -> Option<&str> {
    name.strip_prefix(SCHEME)
}

fn failed(e: Error) -> io::Error {
    io::Error::other(e.message)
}

struct Reader {
    blocks: Receiver<Result<Vec<u8>>>,
    block: Vec<u8>,
    at: usize,
}

/// Reads a file of the store, front to back.
pub fn read(mut client: Client, path: &str) -> Result<Box<dyn Read + Send>> {
    client.stat_followed(path)?;
    let (out, blocks) = sync_channel(BLOCKS);
    let path = path.to_owned();
    let work = move || {
        let mut copy = || -> Result<()> {
            let mut reader = client.open(&path)?;
            loop {
                let bytes = reader.next_bytes()?;
                let n = bytes.len().min(BLOCK_BYTES);
                // Whoever reads no more has an error of its own.
                if n == 0 || out.send(Ok(bytes[..n].to_vec())).is_err() {
                    return Ok(());
                }
                reader.consume(n);
            }
        };
        if let Err(e) = copy() {
            let _ = out.send(Err(e));
        }
    };
    tasks::spawn("sort-get", work)?;
    Ok(Box::new(Reader { blocks, block: Vec::new(), at: 0 }))
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.block.len() {
            match self.blocks.recv() {
                Ok(block) => (self.block, self.at) = (block.map_err(failed)?, 0),
                Err(_) => return Ok(0),
            }
        }
        let n = out.len().min(self.block.len() - self.at);
        out[..n].copy_from_slice(&self.block[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

struct Writer {
    /// None after the end.
    blocks: Option<SyncSender<Part>>,
    done: Receiver<Result<()>>,
}

enum Part {
    Bytes(Vec<u8>),
    /// All was written.
    End,
}

/// Writes a file of the store, which has its name after a flush; it replaces one that is there.
pub fn write(mut client: Client, path: &str) -> Result<Box<dyn Write + Send>> {
    let (blocks, parts) = sync_channel(BLOCKS);
    let (tell, done) = sync_channel(1);
    let path = path.to_owned();
    let work = move || {
        let copy = || -> Result<()> {
            let new = NewFile { mtime_ns: MTIME_NOW, replace: true, ..NewFile::default() };
            let mut writer = client.create(&path, &new)?;
            for part in parts {
                match part {
                    Part::Bytes(bytes) => writer.write(&bytes)?,
                    Part::End => return writer.close().map(drop),
                }
            }
            // The sort failed.
            writer.abandon()
        };
        let _ = tell.send(copy());
    };
    tasks::spawn("sort-put", work)?;
    Ok(Box::new(Writer { blocks: Some(blocks), done }))
}

impl Writer {
    /// What the client says, which has stopped.
    fn result(&self) -> io::Result<()> {
        match self.done.recv() {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(io::Error::other("the client stopped without saying why")),
        }
    }
}

impl Drop for Writer {
    /// A sort that failed has not flushed: the half file is given up before the process ends.
    fn drop(&mut self) {
        if self.blocks.take().is_some() {
            let _ = self.done.recv();
        }
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(BLOCK_BYTES);
        let sent = self.blocks.as_ref().map(|out| out.send(Part::Bytes(bytes[..n].to_vec())));
        match sent {
            Some(Ok(())) => Ok(n),
            _ => self.result().and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The end: called once, when all is written.
    fn flush(&mut self) -> io::Result<()> {
        match self.blocks.take() {
            Some(out) => {
                let _ = out.send(Part::End);
                self.result()
            }
            None => Ok(()),
        }
    }
}
