//! Files as asynchronous streams. A reader asks ahead and hands out verified slices in order, or
//! reads from anywhere with any number of reads under way. A writer cuts what it is given into
//! slices and has several on their way; what is not acknowledged is kept, and goes to a new chunk
//! when one fails.

use super::AsyncClient;
use crate::client::{NewFile, decode};
use crate::connection::aio::Request;
use crate::stream::cursor::{Cursor, Span, check};
use crate::stream::{
    Current, DURABLE_SLICES_IN_FLIGHT, Moves, SLICES_IN_FLIGHT, slices_read_ahead,
};
use holdfast_base::codec::Encode;
use holdfast_base::ids::{Durability, FileId};
use holdfast_base::limits::{PACKED_BYTES_MAX, SLICE_BYTES};
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::runtime;
use holdfast_wire::{self as wire, chunk, file as msg};
use std::collections::VecDeque;
use std::mem;

/// A file open for reading.
pub struct AsyncReader {
    client: AsyncClient,
    cursor: Cursor,
    slices: usize,
    /// Where the next request begins.
    asked_to: u64,
    asked: VecDeque<(Span, Request)>,
}

impl AsyncClient {
    /// Opens a file for reading. Of a multifile, list it and open its files.
    pub async fn open(&self, path: &str) -> Result<AsyncReader> {
        AsyncReader::new(self, self.patiently(|| self.described(path)).await?)
    }

    /// Starts a file. It appears at its close; without one, nobody ever sees it.
    pub fn create(&self, path: &str, new: &NewFile) -> Result<AsyncWriter> {
        holdfast_base::path::check(path)?;
        Ok(AsyncWriter {
            client: self.clone(),
            path: path.to_owned(),
            new: new.clone(),
            buffer: Vec::new(),
            slices: None,
            file: None,
            current: None,
            extents: Vec::new(),
            in_flight: VecDeque::new(),
            moves: Moves::default(),
            failed: None,
        })
    }
}

impl AsyncReader {
    pub(super) fn new(client: &AsyncClient, cursor: Cursor) -> Result<AsyncReader> {
        if cursor.info.kind == NodeKind::MultiFile {
            return Err(Error::invalid(format!(
                "open `{}`: it is a multifile; list it and open its files",
                cursor.path
            )));
        }
        let client = client.clone();
        let slices = slices_read_ahead(cursor.info.class);
        Ok(AsyncReader { client, cursor, slices, asked_to: 0, asked: VecDeque::new() })
    }

    /// The file as it was when it was opened.
    pub fn info(&self) -> &msg::FileInfo {
        &self.cursor.info
    }

    /// How many transfers are on their way at once; two unless said otherwise.
    pub fn set_in_flight(&mut self, slices: usize) {
        self.slices = slices.max(1);
    }

    /// The next run of the file, verified; none at the end. Dropped while it waits for the node,
    /// it loses nothing: the next call goes on with the same run.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(whole) = &self.cursor.whole {
            let first = mem::replace(&mut self.asked_to, self.cursor.info.size) == 0;
            return Ok((first && !whole.is_empty()).then(|| whole.clone()));
        }
        self.ask_ahead().await?;
        let Some((_, request)) = self.asked.front() else { return Ok(None) };
        request.ready().await;
        let Some((span, request)) = self.asked.pop_front() else { return Ok(None) };
        Ok(Some(verified(&self.client, &self.cursor, span, request).await?))
    }

    /// Everything from here to the end.
    pub async fn read_to_end(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(run) = self.next().await? {
            bytes.extend_from_slice(&run);
        }
        Ok(bytes)
    }

    /// `bytes` bytes from `offset` on; any number of such reads may be under way.
    pub async fn read_at(&self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let (path, size) = (&self.cursor.path, self.cursor.info.size);
        let end = offset.saturating_add(bytes as u64);
        if end > size {
            return Err(Error::invalid(format!(
                "read `{path}` at {offset}: {bytes} bytes reach past its end at {size}"
            )));
        }
        if let Some(whole) = &self.cursor.whole {
            return Ok(whole[offset as usize..end as usize].to_vec());
        }
        let mut cursor = None;
        if bytes > 0 && self.cursor.missing(end - 1).is_some() {
            // Extents that this reader has not come to yet.
            let mut more = self.cursor.clone();
            complete(&self.client, &mut more, end - 1).await?;
            cursor = Some(more);
        }
        let cursor = cursor.as_ref().unwrap_or(&self.cursor);
        // Asked for together, so that a long read is one round trip, too.
        let mut asked = Vec::new();
        let mut at = offset;
        while at < end {
            let span = cursor.span_of(at, (end - at) as usize)?;
            asked.push((span, ask(&self.client, &span).await?));
            at += span.bytes as u64;
        }
        let mut out = Vec::with_capacity(bytes);
        for (span, request) in asked {
            out.extend_from_slice(&verified(&self.client, cursor, span, request).await?);
        }
        Ok(out)
    }

    async fn ask_ahead(&mut self) -> Result<()> {
        while self.asked.len() < self.slices && self.asked_to < self.cursor.info.size {
            complete(&self.client, &mut self.cursor, self.asked_to).await?;
            let span = self.cursor.span_of(self.asked_to, SLICE_BYTES as usize)?;
            let request = ask(&self.client, &span).await?;
            self.asked_to += span.bytes as u64;
            self.asked.push_back((span, request));
        }
        Ok(())
    }
}

/// Fetches the extents up to `position`.
async fn complete(client: &AsyncClient, cursor: &mut Cursor, position: u64) -> Result<()> {
    while let Some(of) = cursor.missing(position) {
        let extents: Vec<msg::Extent> = client.ask(wire::OP_EXTENTS, &of).await?;
        let more = !extents.is_empty();
        cursor.add_extents(extents, more);
    }
    Ok(())
}

async fn ask(client: &AsyncClient, span: &Span) -> Result<Request> {
    let (opcode, message) = span.request();
    client.submit(opcode, &message).await
}

/// What fails its checksum is asked for once more, see `Cursor::receive`.
async fn verified(
    client: &AsyncClient,
    cursor: &Cursor,
    span: Span,
    request: Request,
) -> Result<Vec<u8>> {
    match verified_once(cursor, span, request).await {
        Err(e) if e.kind == Kind::Corrupt => {
            verified_once(cursor, span, ask(client, &span).await?).await
        }
        other => other,
    }
}

async fn verified_once(cursor: &Cursor, span: Span, request: Request) -> Result<Vec<u8>> {
    let response = request.answer().await?;
    let reply: chunk::ReadReply = decode(&response)?;
    let bytes = response.into_body();
    if bytes.len() != span.bytes {
        return Err(Error::corrupt(format!(
            "read `{}`: asked for {} bytes, {} came",
            cursor.path,
            span.bytes,
            bytes.len()
        )));
    }
    check(&span, &reply.crcs, &bytes, &cursor.path)?;
    Ok(bytes)
}

/// A file that nobody sees before [`AsyncWriter::close`]. A call whose future was dropped before
/// it returned leaves the stream of no more use: nobody knows how far it came.
pub struct AsyncWriter {
    client: AsyncClient,
    path: String,
    new: NewFile,
    /// Bytes that no request carries yet; at most a slice.
    buffer: Vec<u8>,
    slices: Option<usize>,
    /// The file's id, once it needs a chunk.
    file: Option<FileId>,
    current: Option<Current>,
    extents: Vec<msg::Extent>,
    in_flight: VecDeque<InFlight>,
    moves: Moves,
    /// Set by the first error, and while a call is under way.
    failed: Option<Error>,
}

/// A slice on its way.
struct InFlight {
    request: Request,
    at: u64,
    bytes: Vec<u8>,
}

const _: () = assert!(SLICE_BYTES <= PACKED_BYTES_MAX, "what is buffered fits into a put");

impl AsyncWriter {
    /// How many appends are on their way at once; unless said otherwise two, and more where each
    /// waits for a sync.
    pub fn set_in_flight(&mut self, slices: usize) {
        self.slices = Some(slices.max(1));
    }

    /// Takes all of `bytes`. Returns before they are acknowledged; see [`AsyncWriter::flush`].
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.begin()?;
        let written = self.take(bytes).await;
        self.end(written).await
    }

    /// Returns when every byte so far is acknowledged: it can be recovered, though only the close
    /// names it.
    pub async fn flush(&mut self) -> Result<()> {
        self.begin()?;
        let flushed = self.settle_all().await;
        self.end(flushed).await
    }

    /// Names the file. Everything is acknowledged when this returns.
    pub async fn close(mut self) -> Result<FileId> {
        self.begin()?;
        let (node, Some(file)) = (self.new.node(&self.path), self.file) else {
            return self.client.put(&self.path, &self.buffer, &self.new).await;
        };
        let closed = self.close_as(file, node).await;
        self.end(closed).await
    }

    async fn close_as(&mut self, file: FileId, node: msg::NewNode) -> Result<FileId> {
        self.settle_all().await?;
        self.finish_chunk();
        let extents = mem::take(&mut self.extents);
        let close = |call| msg::Close { call, file, node, extents };
        decode(&self.client.change(wire::OP_CLOSE, close, &[]).await?)
    }

    /// Forgets the file and frees what it took.
    pub async fn abandon(mut self) -> Result<()> {
        match self.file.take() {
            Some(file) => self.client.act(msg::Action::Abandon { file }).await,
            None => Ok(()),
        }
    }

    fn begin(&mut self) -> Result<()> {
        if let Some(e) = &self.failed {
            return Err(e.clone().context(format_args!("write `{}` after an error", self.path)));
        }
        self.failed = Some(Error::invalid("an earlier call was not waited for: start again"));
        Ok(())
    }

    async fn end<T>(&mut self, result: Result<T>) -> Result<T> {
        self.failed = result.as_ref().err().cloned();
        let full = self.failed.as_ref().is_some_and(|e| e.kind == Kind::Full);
        // What found no room would keep what it took from those that need some.
        if full && let Some(file) = self.file.take() {
            // Best effort: the refusal is what is told, and the node gives it up in time.
            let _ = self.client.act(msg::Action::Abandon { file }).await;
        }
        result
    }

    async fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = SLICE_BYTES as usize - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == SLICE_BYTES as usize {
                self.send_buffer().await?;
            }
        }
        Ok(())
    }

    async fn send_buffer(&mut self) -> Result<()> {
        let slice = mem::take(&mut self.buffer);
        self.send(VecDeque::from([slice])).await
    }

    /// Sends slices as appends, in order; waits while too many are in flight. One that does not
    /// fit into the chunk is cut; those of a chunk that failed go first, into the next one.
    async fn send(&mut self, mut unsent: VecDeque<Vec<u8>>) -> Result<()> {
        while let Some(mut bytes) = unsent.pop_front() {
            if bytes.is_empty() {
                continue;
            }
            let room = self.room().await?;
            if room == 0 || self.in_flight.len() >= self.slices_max() {
                unsent.push_front(bytes);
                let mut again = self.settle_one().await?;
                again.append(&mut unsent);
                unsent = again;
                if room == 0 && self.in_flight.is_empty() {
                    self.finish_chunk();
                }
                continue;
            }
            if room < bytes.len() as u64 {
                unsent.push_front(bytes.split_off(room as usize));
            }
            self.append(bytes).await?;
        }
        Ok(())
    }

    /// Sends one append, which fits into the current chunk.
    async fn append(&mut self, bytes: Vec<u8>) -> Result<()> {
        let Some(current) = self.current.as_mut() else {
            return Err(Error::bug("append: the stream has no chunk"));
        };
        let (at, grant) = (current.sent, &current.grant);
        let append = chunk::Append {
            chunk: grant.chunk,
            at,
            durability: grant.durability,
            crcs: chunk::piece_crcs(at, &bytes),
        };
        current.sent += bytes.len() as u64;
        // Never sent twice to the same chunk: nobody knows whether the first one arrived.
        let meta = append.to_bytes();
        let connection = &self.client.connection;
        let request = connection.submit(wire::OP_CHUNK_APPEND, &meta, &bytes, false).await?;
        self.in_flight.push_back(InFlight { request, at, bytes });
        Ok(())
    }

    /// Bytes that the current chunk still takes; makes one if there is none.
    async fn room(&mut self) -> Result<u64> {
        if self.current.is_none() {
            let file = match self.file {
                Some(file) => file,
                None => {
                    let node = self.new.node(&self.path);
                    let begin = |call| msg::Begin { call, node };
                    let begun = self.client.change(wire::OP_BEGIN, begin, &[]).await?;
                    let begun: msg::Begun = decode(&begun)?;
                    *self.file.insert(begun.file)
                }
            };
            let allocate = |call| msg::Allocate { call, file };
            let grant = decode(&self.client.change(wire::OP_ALLOCATE, allocate, &[]).await?)?;
            self.current = Some(Current { grant, sent: 0, acknowledged: 0 });
        }
        Ok(self.current.as_ref().map_or(0, |c| c.grant.capacity - c.sent))
    }

    fn slices_max(&self) -> usize {
        let durability = self.current.as_ref().map(|current| current.grant.durability);
        self.slices.unwrap_or(match durability {
            Some(Durability::Durable) => DURABLE_SLICES_IN_FLIGHT,
            _ => SLICES_IN_FLIGHT,
        })
    }

    /// Sends what is buffered, and returns when everything is acknowledged.
    async fn settle_all(&mut self) -> Result<()> {
        self.send_buffer().await?;
        while !self.in_flight.is_empty() {
            let again = self.settle_one().await?;
            self.send(again).await?;
        }
        Ok(())
    }

    /// Waits for the oldest append. If it failed, its chunk is sealed at what was acknowledged,
    /// and all that was in flight is returned, to be sent again.
    async fn settle_one(&mut self) -> Result<VecDeque<Vec<u8>>> {
        let Some(InFlight { request, at, bytes }) = self.in_flight.pop_front() else {
            return Ok(VecDeque::new());
        };
        let e = match request.answer().await.and_then(|response| decode::<u64>(&response)) {
            Ok(_) => {
                if let Some(current) = self.current.as_mut() {
                    // The answer says the chunk's length; what this stream may count on is what
                    // it sent up to here.
                    current.acknowledged = at + bytes.len() as u64;
                }
                return Ok(VecDeque::new());
            }
            Err(e) => e,
        };
        let (Some(file), Some(current)) = (self.file, &self.current) else { return Err(e) };
        let first = self.client.connection.reconnect_pause();
        let Some(pause) = self.moves.pause(&e, current, first) else { return Err(e) };
        let (chunk, acknowledged) = (current.grant.chunk, current.acknowledged);
        let rest = self.in_flight.drain(..).map(|slice| slice.bytes);
        let again = std::iter::once(bytes).chain(rest).collect();
        self.client.act(msg::Action::Seal { file, chunk, acknowledged }).await?;
        self.finish_chunk();
        runtime::sleep(pause).await;
        Ok(again)
    }

    fn finish_chunk(&mut self) {
        self.extents.extend(self.current.take().and_then(Current::extent));
    }
}
