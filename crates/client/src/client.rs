//! The client: one connection to a node, a session for what changes something, and the calls
//! that name files. Streams are in `stream`, the log in `log`; nothing here spawns a thread.

mod requests;

pub use requests::Ticket;
pub(crate) use requests::{rest, waits};

use crate::connection::{ClientOptions, Connection, Response};
use crate::patience::Patience;
use crate::region::Mapping;
use crate::session::Session;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::FileId;
use holdfast_base::limits::{INLINE_GET_BYTES_MAX, LIST_PAGE_MAX, PACKED_BYTES_MAX};
use holdfast_base::node::{NodeKind, StorageClass};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::Endpoint;
use holdfast_wire::{self as wire, file as msg};

/// How often a get starts again because its file was replaced meanwhile.
pub(crate) const GET_ATTEMPTS_MAX: u32 = 5;
/// How often the bytes of one put are sent: each time a seal had cut off what was stored of it.
pub(crate) const PUT_ATTEMPTS_MAX: u32 = 3;

/// How a new file or directory should look; start from [`NewFile::default`].
#[derive(Clone, Debug)]
pub struct NewFile {
    /// What it is; [`Client::make_dir`] makes a directory unless this is another container.
    pub kind: NodeKind,
    /// Unix permissions, kept and not enforced.
    pub mode: u16,
    /// Nanoseconds since 1970-01-01 UTC.
    pub mtime_ns: i64,
    /// `None` inherits the directory's.
    pub class: Option<StorageClass>,
    /// Takes the place of a file that is there; otherwise that is an error.
    pub replace: bool,
    /// Makes missing directories above it.
    pub parents: bool,
    /// Bytes that the caller keeps with the name; nobody else reads them.
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

/// One connection to a node.
pub struct Client {
    pub(crate) connection: Connection,
    pub(crate) options: ClientOptions,
    session: Session,
    /// Connecting anew failed: requests that were lost fail at once, until it works again.
    gave_up: bool,
    /// The node's region, mapped once, for co-located clients.
    pub(crate) mapping: Option<Mapping>,
    /// Counts mappings: places in an earlier one mean nothing in this one.
    pub(crate) mappings: u32,
}

impl Client {
    /// Connects; the session opens with the first request that changes something.
    pub fn connect(endpoint: &Endpoint, options: &ClientOptions) -> Result<Client> {
        Ok(Client {
            connection: Connection::connect_with(endpoint, options.clone())?,
            options: options.clone(),
            session: Session::default(),
            gave_up: false,
            mapping: None,
            mappings: 0,
        })
    }

    /// Maps the node's `dram` region, so that reads of it are memory copies. Needs a Unix socket.
    pub fn map_region(&mut self) -> Result<()> {
        if self.options.ring {
            // A ring carries no descriptors: a socket of its own does, for this once.
            let options = ClientOptions { ring: false, ..self.options.clone() };
            let mut plain = Connection::connect_with(self.connection.endpoint(), options)?;
            self.mapping = Some(Mapping::request(&mut plain)?);
        } else {
            self.mapping = Some(Mapping::request(&mut self.connection)?);
        }
        self.mappings += 1;
        Ok(())
    }

    /// One round trip that does nothing: whether the node answers.
    pub fn ping(&mut self) -> Result<()> {
        self.connected()?;
        self.connection.call(wire::OP_PING, |_| {}, &[])?;
        Ok(())
    }

    /// The node that this client talks to, with its stores.
    pub fn status(&mut self) -> Result<wire::admin::Status> {
        self.ask(wire::OP_STATUS, &())
    }

    /// What the node holds in memory for its clients, and what it may.
    pub fn held(&mut self) -> Result<wire::admin::Held> {
        self.ask(wire::OP_HELD, &())
    }

    /// Which clients of the node had to wait within the last minute.
    pub fn slowed(&mut self) -> Result<Vec<wire::admin::Slowed>> {
        self.ask(wire::OP_SLOWED, &())
    }

    /// The address of the node that keeps the log which this node follows; empty where it keeps the log
    /// itself.
    pub fn log_host(&mut self) -> Result<String> {
        self.ask(wire::OP_LOG_HOST, &())
    }

    /// Whether the answer that came last may be old: its node had not heard from the log for a
    /// while, because it is cut off, or deposed, or the log's host is away.
    pub fn is_stale(&self) -> bool {
        self.connection.is_stale()
    }

    /// The cluster, as the node sees it.
    pub fn cluster(&mut self) -> Result<wire::admin::Cluster> {
        self.ask(wire::OP_CLUSTER, &())
    }

    /// Asks the node where its cluster's other nodes are: there this client goes on when it dies.
    pub fn learn_nodes(&mut self) -> Result<()> {
        let addresses: Vec<String> = self.ask(wire::OP_NODES, &())?;
        // A node without an address of its own says so in a word.
        let others = addresses.iter().filter_map(|address| Endpoint::parse(address).ok());
        self.connection.add_others(others);
        Ok(())
    }

    /// What a person wants of the cluster.
    pub fn order(&mut self, order: &wire::admin::Order) -> Result<()> {
        let ticket = self.submit(wire::OP_ORDER, order, &[])?;
        self.wait(ticket).map(|_| ())
    }

    /// The shards of the names, as the node that is asked has them.
    pub fn shards(&mut self) -> Result<Vec<wire::admin::Shard>> {
        self.ask(wire::OP_SHARDS, &())
    }

    /// Makes a token; its text is answered this once.
    pub fn create_token(&mut self, new: &wire::admin::NewToken) -> Result<String> {
        let ticket = self.submit(wire::OP_TOKEN_CREATE, new, &[])?;
        decode(&self.wait(ticket)?)
    }

    /// Clients with rights of their own, as the node that is asked knows them.
    pub fn tokens(&mut self) -> Result<Vec<wire::admin::TokenInfo>> {
        self.ask(wire::OP_TOKENS, &())
    }

    // Requests that change nothing.

    /// What is known of a name; of a symbolic link, of the link itself.
    pub fn stat(&mut self, path: &str) -> Result<msg::FileInfo> {
        self.patiently(|client| {
            let ticket = client.submit_stat(path, false)?;
            client.wait_stat(ticket)
        })
    }

    /// As [`Client::stat`], of what a symbolic link points at.
    pub fn stat_followed(&mut self, path: &str) -> Result<msg::FileInfo> {
        self.patiently(|client| {
            let ticket = client.submit_stat(path, true)?;
            client.wait_stat(ticket)
        })
    }

    /// As [`Client::stat`], for many outstanding at once.
    pub fn submit_stat(&mut self, path: &str, follow: bool) -> Result<Ticket> {
        // As `msg::Lookup`, which would want a copy of the path.
        let lookup = |out: &mut Vec<u8>| {
            path.encode(out);
            follow.encode(out);
        };
        self.submit_written(wire::OP_LOOKUP, self.options.deadline_ms, lookup, &[])
    }

    /// The answer to a [`Client::submit_stat`].
    pub fn wait_stat(&mut self, ticket: Ticket) -> Result<msg::FileInfo> {
        decode(&self.wait(ticket)?)
    }

    /// The whole of a file that fits into memory, verified. One round trip up to 1 MiB.
    pub fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        let (mut attempt, mut patience) = (0, Patience::default());
        loop {
            attempt += 1;
            let ticket = self.submit_get(path)?;
            match self.wait_get(path, ticket) {
                // It was replaced between look-up and read: the new one is as good an answer. Or
                // those who have it do not answer now.
                Err(e)
                    if e.kind == Kind::Retry
                        && self.connection.failure().is_none()
                        && (attempt < GET_ATTEMPTS_MAX || waits(&mut patience, &self.options)) => {}
                // Or while it was on its way, see `Cursor::receive`.
                Err(e) if e.kind == Kind::Corrupt && attempt == 1 => {}
                other => return other,
            }
        }
    }

    /// Asks for a whole file without waiting, for many outstanding at once.
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
        self.patiently(|client| client.ask(wire::OP_LIST, &list))
    }

    /// Bytes, files and directories below a path, all together.
    pub fn usage(&mut self, path: &str) -> Result<msg::Usage> {
        let path = path.to_owned();
        self.patiently(|client| client.ask(wire::OP_USAGE, &path))
    }

    /// Files that were begun and never closed.
    pub fn unclosed(&mut self) -> Result<Vec<msg::Unclosed>> {
        self.ask(wire::OP_UNCLOSED, &())
    }

    // Requests that change something.

    /// Stores a whole file of up to 16 MiB in one round trip.
    pub fn put(&mut self, path: &str, bytes: &[u8], new: &NewFile) -> Result<FileId> {
        let ticket = self.submit_put(path, bytes, new)?;
        self.wait_put(ticket)
    }

    /// The answer to a [`Client::submit_put`]: the new file's id.
    pub fn wait_put(&mut self, ticket: Ticket) -> Result<FileId> {
        decode(&self.wait(ticket)?)
    }

    /// As [`Client::put`], without waiting; the bytes are copied, to be sent again if need be.
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

    /// Makes a directory, or another container if `new` says so.
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

    /// Moves a name with all that is below it, in one step; with `replace` over a file that is
    /// there.
    pub fn rename(&mut self, from: &str, to: &str, replace: bool) -> Result<()> {
        self.act(msg::Action::Rename { from: from.to_owned(), to: to.to_owned(), replace })
    }

    /// Removes a name; a directory with entries only if `recursive`.
    pub fn delete(&mut self, path: &str, recursive: bool) -> Result<()> {
        self.act(msg::Action::Delete { path: path.to_owned(), recursive })
    }

    /// Makes a name that stands for `target`, which need not be there.
    pub fn symlink(&mut self, path: &str, target: &str, mtime_ns: i64) -> Result<()> {
        let (path, target) = (path.to_owned(), target.to_owned());
        self.act(msg::Action::Symlink { path, target, mtime_ns })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(session) = self.session.close() {
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
