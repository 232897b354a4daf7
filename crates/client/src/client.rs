//! The client: one connection to a node, a session for what changes something, and the calls
//! that name files. Streams are in `stream`; nothing here spawns a thread.

use crate::connection::{Connection, Options, RequestId, Response};
use crate::region::Mapping;
use crate::wire::chunk::Piece;
use crate::wire::{self, Call, file as msg};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{FileId, Sequence, SessionId};
use holdfast_base::limits::{INLINE_GET_BYTES_MAX, LIST_PAGE_MAX, PACKED_BYTES_MAX};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::{Error, Result};
use holdfast_env::net::Endpoint;
use std::collections::BTreeSet;

/// How a new file or directory should look; start from [`NewFile::default`].
#[derive(Clone, Debug)]
pub struct NewFile {
    pub kind: NodeKind,
    pub mode: u16,
    /// Nanoseconds since 1970-01-01 UTC.
    pub mtime_ns: i64,
    /// `None` inherits the directory's.
    pub class: Option<StorageClass>,
    pub replace: bool,
    pub parents: bool,
    pub metadata: Vec<u8>,
}

impl Default for NewFile {
    fn default() -> NewFile {
        NewFile {
            kind: NodeKind::File,
            mode: 0o644,
            mtime_ns: 0,
            class: None,
            replace: false,
            parents: false,
            metadata: Vec::new(),
        }
    }
}

impl NewFile {
    pub(crate) fn node(&self, path: &str) -> msg::NewNode {
        msg::NewNode {
            path: path.to_owned(),
            kind: self.kind,
            mode: self.mode,
            mtime_ns: self.mtime_ns,
            class: self.class,
            replace: self.replace,
            parents: self.parents,
            metadata: self.metadata.clone(),
        }
    }
}

/// An answer to wait for; see [`Client::wait`].
#[must_use = "a request that nobody waits for keeps its answer in memory"]
#[derive(Debug, PartialEq, Eq, Hash, Clone, Copy)]
pub struct Ticket {
    pub(crate) request: RequestId,
    sequence: Option<Sequence>,
}

/// One connection to a node.
pub struct Client {
    pub(crate) connection: Connection,
    options: Options,
    session: Option<SessionId>,
    next_sequence: u64,
    /// Sequences without an answer yet; the lowest bounds what the server must remember.
    unanswered: BTreeSet<u64>,
    /// The node's region, mapped once, for co-located clients.
    pub(crate) mapping: Option<Mapping>,
}

impl Client {
    /// Connects; the session opens with the first request that changes something.
    pub fn connect(endpoint: &Endpoint, options: &Options) -> Result<Client> {
        Ok(Client {
            connection: Connection::connect_with(endpoint, options.clone())?,
            options: options.clone(),
            session: None,
            next_sequence: 1,
            unanswered: BTreeSet::new(),
            mapping: None,
        })
    }

    /// Maps the node's `dram` region, so that reads of it are memory copies. Needs a Unix socket.
    pub fn map_region(&mut self) -> Result<()> {
        if !self.options.ring {
            self.mapping = Some(Mapping::request(&mut self.connection)?);
            return Ok(());
        }
        // A ring carries no descriptors: a socket of its own does, for this once.
        let options = Options { ring: false, ..self.options.clone() };
        let mut plain = Connection::connect_with(self.connection.endpoint(), options)?;
        self.mapping = Some(Mapping::request(&mut plain)?);
        Ok(())
    }

    pub fn ping(&mut self) -> Result<()> {
        self.connection.call(wire::OP_PING, |_| {}, &[])?;
        Ok(())
    }

    pub fn status(&mut self) -> Result<wire::admin::Status> {
        self.ask(wire::OP_STATUS, &())
    }

    // Requests that change nothing.

    pub fn stat(&mut self, path: &str) -> Result<msg::FileInfo> {
        let ticket = self.submit_stat(path, false)?;
        self.wait_stat(ticket)
    }

    /// As [`Client::stat`], of what a symbolic link points at.
    pub fn stat_followed(&mut self, path: &str) -> Result<msg::FileInfo> {
        let ticket = self.submit_stat(path, true)?;
        self.wait_stat(ticket)
    }

    /// As [`Client::stat`], for many outstanding at once.
    pub fn submit_stat(&mut self, path: &str, follow: bool) -> Result<Ticket> {
        // As `msg::Lookup`, which would want a copy of the path.
        let lookup = |out: &mut Vec<u8>| {
            path.encode(out);
            follow.encode(out);
        };
        let request = self.connection.submit(wire::OP_LOOKUP, lookup, &[])?;
        Ok(Ticket { request, sequence: None })
    }

    pub fn wait_stat(&mut self, ticket: Ticket) -> Result<msg::FileInfo> {
        decode(&self.wait(ticket)?)
    }

    /// The whole of a file that fits into memory, verified. One round trip up to 1 MiB.
    pub fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        let ticket = self.submit_get(path)?;
        let response = self.wait(ticket)?;
        let reply: msg::GetReply = decode(&response)?;
        match reply.content {
            msg::Content::Body { crc } => {
                verify(response.body(), crc, path)?;
                Ok(response.into_body())
            }
            msg::Content::Mapped { pieces, crc } => {
                let mut bytes = vec![0; reply.info.size as usize];
                self.copy_mapped(&pieces, &mut bytes, path)?;
                verify(&bytes, crc, path)?;
                Ok(bytes)
            }
            msg::Content::Chunks { .. } => {
                let mut reader = self.open(path)?;
                let mut bytes = vec![0; reader.info().size as usize];
                reader.read_exact_at(&mut bytes, 0)?;
                Ok(bytes)
            }
        }
    }

    pub fn submit_get(&mut self, path: &str) -> Result<Ticket> {
        let get = msg::Get {
            path: path.to_owned(),
            follow: true,
            offset: 0,
            bytes_max: INLINE_GET_BYTES_MAX as u32,
            locate: self.mapping.is_some(),
        };
        self.submit(wire::OP_GET, &get, &[])
    }

    /// One page of a directory, sorted by name, from the first name behind `after`.
    pub fn list(&mut self, path: &str, after: &str) -> Result<msg::Page> {
        let list = msg::List {
            path: path.to_owned(),
            after: after.to_owned(),
            entries_max: LIST_PAGE_MAX as u32,
        };
        self.ask(wire::OP_LIST, &list)
    }

    pub fn usage(&mut self, path: &str) -> Result<msg::Usage> {
        self.ask(wire::OP_USAGE, &path.to_owned())
    }

    pub fn unclosed(&mut self) -> Result<Vec<msg::Unclosed>> {
        self.ask(wire::OP_UNCLOSED, &())
    }

    // Requests that change something.

    /// Stores a whole file of up to 16 MiB in one round trip.
    pub fn put(&mut self, path: &str, bytes: &[u8], new: &NewFile) -> Result<FileId> {
        let ticket = self.submit_put(path, bytes, new)?;
        decode(&self.wait(ticket)?)
    }

    pub fn submit_put(&mut self, path: &str, bytes: &[u8], new: &NewFile) -> Result<Ticket> {
        if bytes.len() as u64 > PACKED_BYTES_MAX {
            return Err(Error::invalid(format!(
                "put `{path}`: {} bytes are more than the {PACKED_BYTES_MAX} that one request holds: use `create` and write a stream",
                bytes.len()
            )));
        }
        let (node, crc) = (new.node(path), crc32c(bytes));
        self.change(wire::OP_PUT, |call| msg::Put { call, node, crc }, &[bytes])
    }

    pub fn make_dir(&mut self, path: &str, new: &NewFile) -> Result<()> {
        let kind = if new.kind.is_container() { new.kind } else { NodeKind::Directory };
        self.act(msg::Action::Make { node: msg::NewNode { kind, ..new.node(path) } })
    }

    /// Carries out one change of names or attributes.
    pub fn act(&mut self, action: msg::Action) -> Result<()> {
        let ticket = self.change(wire::OP_CHANGE, |call| msg::Change { call, action }, &[])?;
        self.wait(ticket)?;
        Ok(())
    }

    pub fn rename(&mut self, from: &str, to: &str, replace: bool) -> Result<()> {
        self.act(msg::Action::Rename { from: from.to_owned(), to: to.to_owned(), replace })
    }

    pub fn delete(&mut self, path: &str, recursive: bool) -> Result<()> {
        self.act(msg::Action::Delete { path: path.to_owned(), recursive })
    }

    pub fn symlink(&mut self, path: &str, target: &str, mtime_ns: i64) -> Result<()> {
        let (path, target) = (path.to_owned(), target.to_owned());
        self.act(msg::Action::Symlink { path, target, mtime_ns })
    }

    // The machinery.

    /// Sends what was submitted and waits for one answer.
    pub fn wait(&mut self, ticket: Ticket) -> Result<Response> {
        let response = self.connection.wait(ticket.request);
        self.answered(ticket);
        response
    }

    /// As [`Client::wait`], with the body received into `target`; answers meta and the body's
    /// length.
    pub(crate) fn wait_into(&mut self, ticket: Ticket, target: &mut [u8]) -> Result<Response> {
        self.connection.wait_into(ticket.request, target)
    }

    /// Makes the connection anew; the session goes on, outstanding requests are lost.
    pub fn reconnect(&mut self) -> Result<()> {
        let endpoint = self.connection.endpoint().clone();
        self.connection = Connection::connect_with(&endpoint, self.options.clone())?;
        // Answers that were lost are asked for again under new numbers or not at all.
        self.unanswered.clear();
        if self.mapping.take().is_some() {
            self.map_region()?;
        }
        Ok(())
    }

    /// Copies bytes out of the mapped region.
    pub(crate) fn copy_mapped(&self, pieces: &[Piece], out: &mut [u8], path: &str) -> Result<()> {
        let Some(mapping) = &self.mapping else {
            return Err(Error::bug(format!(
                "get `{path}`: the node answered with a location, but nothing is mapped"
            )));
        };
        if mapping.copy(pieces, out)? {
            return Ok(());
        }
        // The frame was reused under the copy: the name now stands for something else.
        Err(Error::retry(format!("get `{path}`: it was replaced while it was read, try again")))
    }

    pub(crate) fn answered(&mut self, ticket: Ticket) {
        if let Some(sequence) = ticket.sequence {
            self.unanswered.remove(&sequence.0);
        }
    }

    pub(crate) fn submit(
        &mut self,
        opcode: u16,
        message: &impl Encode,
        body: &[&[u8]],
    ) -> Result<Ticket> {
        let request = self.connection.submit(opcode, |out| message.encode(out), body)?;
        Ok(Ticket { request, sequence: None })
    }

    pub(crate) fn ask<T: Decode>(&mut self, opcode: u16, message: &impl Encode) -> Result<T> {
        let ticket = self.submit(opcode, message, &[])?;
        decode(&self.wait(ticket)?)
    }

    /// Submits a numbered request.
    pub(crate) fn change<M: Encode>(
        &mut self,
        opcode: u16,
        message: impl FnOnce(Call) -> M,
        body: &[&[u8]],
    ) -> Result<Ticket> {
        let session = match self.session {
            Some(session) => session,
            None => {
                let session = self.ask(wire::OP_OPEN_SESSION, &())?;
                *self.session.insert(session)
            }
        };
        let sequence = Sequence(self.next_sequence);
        self.next_sequence += 1;
        self.unanswered.insert(sequence.0);
        let acknowledged_below = Sequence(*self.unanswered.first().expect("just inserted"));
        let message = message(Call { session, sequence, acknowledged_below });
        let request = self.connection.submit(opcode, |out| message.encode(out), body)?;
        Ok(Ticket { request, sequence: Some(sequence) })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Best effort: a session that nobody ends is ended by the node in time.
            let _ = self.connection.call(wire::OP_END_SESSION, |out| session.encode(out), &[]);
        }
    }
}

pub(crate) fn decode<T: Decode>(response: &Response) -> Result<T> {
    T::from_bytes(response.meta()).map_err(|e| {
        Error::unsupported(format!("read the node's answer: {e}: use matching builds"))
    })
}

pub(crate) fn verify(bytes: &[u8], crc: u32, what: &str) -> Result<()> {
    if crc32c(bytes) == crc {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "read `{what}`: the bytes that arrived fail their checksum; they were not used, try again and look at `holdfast doctor`"
    )))
}
