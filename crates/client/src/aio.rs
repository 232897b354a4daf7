//! The asynchronous client: every call is a future, any number of them outstanding over one
//! connection that tasks share. The same protocol, numbers and repetitions as the blocking client;
//! what is asked for happens once, over broken connections and restarts. Needs a tokio runtime
//! with I/O and time; nothing here blocks it.

mod log;
mod stream;

pub use holdfast_env::runtime::{Spawned, block_on, spawn};
pub use log::AsyncLogReader;
pub use stream::{AsyncReader, AsyncWriter};

use crate::client::{GET_ATTEMPTS_MAX, NewFile, PUT_ATTEMPTS_MAX, decode};
use crate::connection::aio::{AsyncConnection, Request};
use crate::connection::{ClientOptions, RequestId, Response};
use crate::patience::{Patience, is_for_now};
use crate::session::Session;
use crate::stream::cursor::Cursor;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{FileId, SessionId};
use holdfast_base::limits::{INLINE_GET_BYTES_MAX, LIST_PAGE_MAX, PACKED_BYTES_MAX};
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::Endpoint;
use holdfast_env::{HoldMutex, runtime};
use holdfast_wire::{self as wire, Call, file as msg};
use std::sync::{Arc, Mutex, MutexGuard};

/// A connection to a node, shared by all its clones. It ends with the last of them.
#[derive(Clone)]
pub struct AsyncClient {
    connection: AsyncConnection,
    session: Arc<Mutex<Session>>,
    /// Held while a session is opened, so that one is opened and not one a task.
    opening: Arc<runtime::Mutex<()>>,
}

/// A number that was given to a request; the session learns when it is over, be it by an answer
/// or because nobody waits any more.
struct Numbered<'a> {
    client: &'a AsyncClient,
    request: RequestId,
}

impl Drop for Numbered<'_> {
    fn drop(&mut self) {
        self.client.session().answered(self.request);
    }
}

impl AsyncClient {
    /// Connects. `ClientOptions::spin` and `ClientOptions::ring` are for blocking clients and
    /// change nothing.
    pub async fn connect(endpoint: &Endpoint, options: &ClientOptions) -> Result<AsyncClient> {
        Ok(AsyncClient {
            connection: AsyncConnection::connect(endpoint, options).await?,
            session: Arc::default(),
            opening: Arc::default(),
        })
    }

    /// Ends the session, if there is one. One that is not ended is ended by the node in an hour.
    pub async fn close(self) -> Result<()> {
        let session = self.session().close();
        match session {
            Some(session) => {
                let ended = self.submit(wire::OP_END_SESSION, &session).await?.answer().await;
                ended.map(drop)
            }
            None => Ok(()),
        }
    }

    /// As [`Client::stat`](crate::Client::stat).
    pub async fn stat(&self, path: &str) -> Result<msg::FileInfo> {
        let lookup = msg::Lookup { path: path.to_owned(), follow: false };
        self.patiently(|| self.ask(wire::OP_LOOKUP, &lookup)).await
    }

    /// As [`AsyncClient::stat`], of what a symbolic link points at.
    pub async fn stat_followed(&self, path: &str) -> Result<msg::FileInfo> {
        let lookup = msg::Lookup { path: path.to_owned(), follow: true };
        self.patiently(|| self.ask(wire::OP_LOOKUP, &lookup)).await
    }

    /// The whole of a file that fits into memory, verified. One round trip up to 1 MiB.
    pub async fn get(&self, path: &str) -> Result<Vec<u8>> {
        let (mut attempt, mut patience) = (0, Patience::default());
        loop {
            attempt += 1;
            let got = match self.described(path).await {
                Ok(Cursor { whole: Some(whole), .. }) => Ok(whole),
                Ok(cursor) => AsyncReader::new(self, cursor)?.read_to_end().await,
                Err(e) => Err(e),
            };
            match got {
                // It was replaced between look-up and read: the new one is as good an answer. Or
                // those who have it do not answer now.
                Err(e) if e.kind == Kind::Retry => {
                    if attempt >= GET_ATTEMPTS_MAX && !self.waits(&mut patience).await {
                        return Err(e);
                    }
                }
                // Or while it was on its way, see `Cursor::receive`.
                Err(e) if e.kind == Kind::Corrupt && attempt == 1 => {}
                other => return other,
            }
        }
    }

    /// One page of a directory, sorted by name, from the first name behind `after`.
    pub async fn list(&self, path: &str, after: &str) -> Result<msg::Page> {
        let list = msg::List {
            path: path.to_owned(),
            after: after.to_owned(),
            entries_max: LIST_PAGE_MAX as u32,
        };
        self.patiently(|| self.ask(wire::OP_LIST, &list)).await
    }

    /// As [`Client::usage`](crate::Client::usage).
    pub async fn usage(&self, path: &str) -> Result<msg::Usage> {
        let path = path.to_owned();
        self.patiently(|| self.ask(wire::OP_USAGE, &path)).await
    }

    /// Stores a whole file of up to 16 MiB in one round trip.
    pub async fn put(&self, path: &str, bytes: &[u8], new: &NewFile) -> Result<FileId> {
        if bytes.len() as u64 > PACKED_BYTES_MAX {
            return Err(Error::invalid(format!(
                "put `{path}`: {} bytes are more than the {PACKED_BYTES_MAX} that one request holds: use `create` and write a stream",
                bytes.len()
            )));
        }
        let (node, crc) = (new.node(path), crc32c(bytes));
        decode(&self.change(wire::OP_PUT, |call| msg::Put { call, node, crc }, bytes).await?)
    }

    /// As [`Client::make_dir`](crate::Client::make_dir).
    pub async fn make_dir(&self, path: &str, new: &NewFile) -> Result<()> {
        let kind = if new.kind.is_container() { new.kind } else { NodeKind::Directory };
        self.act(msg::Action::Make { node: msg::NewNode { kind, ..new.node(path) } }).await
    }

    /// As [`Client::rename`](crate::Client::rename).
    pub async fn rename(&self, from: &str, to: &str, replace: bool) -> Result<()> {
        self.act(msg::Action::Rename { from: from.to_owned(), to: to.to_owned(), replace }).await
    }

    /// As [`Client::delete`](crate::Client::delete).
    pub async fn delete(&self, path: &str, recursive: bool) -> Result<()> {
        self.act(msg::Action::Delete { path: path.to_owned(), recursive }).await
    }

    /// Carries out one change of names or attributes.
    pub async fn act(&self, action: msg::Action) -> Result<()> {
        self.change(wire::OP_CHANGE, |call| msg::Change { call, action }, &[]).await?;
        Ok(())
    }

    /// A file's description, and its bytes if it is small.
    async fn described(&self, path: &str) -> Result<Cursor> {
        let get = msg::Get {
            path: path.to_owned(),
            follow: true,
            offset: 0,
            bytes_max: INLINE_GET_BYTES_MAX as u32,
            locate: false,
        };
        let response = self.submit(wire::OP_GET, &get).await?.answer().await?;
        let reply = decode(&response)?;
        Cursor::described(path, reply, || response.into_body())
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.held()
    }

    /// Sends a request that changes nothing.
    async fn submit(&self, opcode: u16, message: &impl Encode) -> Result<Request> {
        self.connection.submit(opcode, &message.to_bytes(), &[], true).await
    }

    /// Asks something that changes nothing, again while its node refuses it for now, as of a directory on its
    /// way from shard to shard, for as long as the options are patient.
    async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut patience = Patience::default();
        loop {
            match ask().await {
                Err(e) if is_for_now(&e) => {
                    if !self.waits(&mut patience).await {
                        return Err(e);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Sleeps before the next attempt; false once the options allow no more.
    async fn waits(&self, patience: &mut Patience) -> bool {
        match self.connection.rest_before(patience) {
            Some(pause) => {
                runtime::sleep(pause).await;
                true
            }
            None => false,
        }
    }

    async fn ask<T: Decode>(&self, opcode: u16, message: &impl Encode) -> Result<T> {
        decode(&self.submit(opcode, message).await?.answer().await?)
    }

    /// Sends a numbered request and waits for its answer. The [`Call`] is the first field of every
    /// such message.
    async fn change<M: Encode>(
        &self,
        opcode: u16,
        message: impl FnOnce(Call) -> M,
        body: &[u8],
    ) -> Result<Response> {
        let call = self.next_call().await?;
        let meta = message(call).to_bytes();
        let sent = self.connection.submit(opcode, &meta, body, true).await;
        self.session().submitted(sent.as_ref().ok().map(Request::id), &call);
        let request = sent?;
        let numbered = Numbered { client: self, request: request.id() };
        let (mut patience, mut written) = (Patience::default(), 1);
        loop {
            request.ready().await;
            if request.is_refused_for_now() && self.waits(&mut patience).await {
                // Under its number: if it was carried out after all, that is its answer.
                match request.again(|_| {}) {
                    true => continue,
                    false => return request.answer().await,
                }
            }
            if request.wants_bytes_again() && written < PUT_ATTEMPTS_MAX {
                written += 1;
                self.session().refused(numbered.request);
            } else if request.is_fenced() && self.session().may_renew(numbered.request) {
                self.session().ended(numbered.request);
            } else {
                return request.answer().await;
            }
            let call = self.next_call().await?;
            self.session().renewed(numbered.request, &call);
            let again = request.again(|meta| {
                let call = call.to_bytes();
                meta[..call.len()].copy_from_slice(&call);
            });
            if !again {
                return request.answer().await;
            }
        }
    }

    /// The next number of the session, which is opened if there is none.
    async fn next_call(&self) -> Result<Call> {
        if let Some(call) = self.session().next() {
            return Ok(call);
        }
        let _opening = self.opening.lock().await;
        // Somebody else may have opened it meanwhile.
        if let Some(call) = self.session().next() {
            return Ok(call);
        }
        let session: SessionId = self.patiently(|| self.ask(wire::OP_OPEN_SESSION, &())).await?;
        let mut own = self.session();
        own.opened(session);
        own.next().ok_or_else(|| Error::bug("number a request: there is no session"))
    }
}
