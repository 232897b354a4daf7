//! Connections of one `Client`: as many as are in use at once, up to its limit, so that threads and
//! open files do not wait for each other. One that comes back is used again.

use crate::background::wait_for;
use crate::process::Process;
use holdfast_base::{Error, Result};
use holdfast_client::aio::AsyncClient;
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::HoldMutex;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a node may be silent of which others have what it has.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Where to connect, and how.
pub struct Pool {
    nodes: Vec<Endpoint>,
    options: ClientOptions,
    connections_max: usize,
    /// Reads of the node's `dram` are copied out of its memory, which each connection maps.
    mapped: bool,
    state: Mutex<State>,
    came_back: Condvar,
    /// For what is asked for side by side.
    shared: Mutex<Option<(Process, AsyncClient)>>,
}

struct State {
    idle: Vec<Client>,
    /// In use.
    lent: usize,
    closed: bool,
    /// Whose connections these are.
    process: Process,
}

/// A connection that is in use; comes back when it is dropped.
pub struct Lent {
    pool: Arc<Pool>,
    client: Option<Client>,
}

impl Pool {
    /// Connects once, so that a wrong address or secret is found now.
    pub fn connect(
        nodes: Vec<Endpoint>,
        options: ClientOptions,
        connections_max: usize,
        mapped: bool,
    ) -> Result<Arc<Pool>> {
        let pool = Pool {
            nodes,
            options,
            connections_max,
            mapped,
            state: Mutex::new(State {
                idle: Vec::new(),
                lent: 0,
                closed: false,
                process: Process::current(),
            }),
            came_back: Condvar::new(),
            shared: Mutex::default(),
        };
        let client = pool.connect_one()?;
        pool.state().idle.push(client);
        Ok(Arc::new(pool))
    }

    /// How a client of this pool is connected.
    pub fn options(&self) -> ClientOptions {
        let others = self.nodes[1..].to_vec();
        ClientOptions { others, ..self.options.clone() }
    }

    /// As those, of clients that ask no other node, and are done with one that breaks off.
    pub fn options_once(&self) -> ClientOptions {
        ClientOptions { others: Vec::new(), reconnects_max: 0, ..self.options.clone() }
    }

    /// A pool like this one, of other nodes. One that is silent for some seconds is left for the next: it is asked
    /// to answer more often than that.
    pub fn of_nodes(&self, nodes: Vec<Endpoint>) -> Result<Arc<Pool>> {
        let options = ClientOptions { read_timeout: Some(SILENCE_MAX), ..self.options.clone() };
        Pool::connect(nodes, options, self.connections_max, false)
    }

    /// The nodes that were named.
    pub fn nodes(&self) -> &[Endpoint] {
        &self.nodes
    }

    /// The first node that was named.
    pub fn node(&self) -> &Endpoint {
        &self.nodes[0]
    }

    /// Whether bytes in the node's memory are copied out of it.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    fn connect_one(&self) -> Result<Client> {
        let mut client = self.connect_first()?;
        if self.mapped {
            client.map_region()?;
        }
        Ok(client)
    }

    /// To the first node that answers; the others are where to go on when it does not any more.
    fn connect_first(&self) -> Result<Client> {
        let mut nodes = self.nodes.clone();
        for _ in 1..nodes.len() {
            let options = ClientOptions { others: nodes[1..].to_vec(), ..self.options.clone() };
            if let Ok(client) = Client::connect(&nodes[0], &options) {
                return Ok(client);
            }
            nodes.rotate_left(1);
        }
        let options = ClientOptions { others: nodes[1..].to_vec(), ..self.options.clone() };
        Client::connect(&nodes[0], &options)
    }

    /// In a child of the process that connected, without its connections.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.held();
        if !state.process.is_current() {
            std::mem::take(&mut state.idle).into_iter().for_each(std::mem::forget);
            (state.lent, state.process) = (0, Process::current());
        }
        state
    }

    /// A connection, for calls that are over at once: waits for one while all are in use.
    pub fn lend(self: &Arc<Pool>) -> Result<Lent> {
        let mut state = self.state();
        loop {
            if state.closed {
                return Err(Error::invalid("use a client: it was closed"));
            }
            let idle = state.idle.pop();
            if idle.is_some() || state.lent < self.connections_max {
                state.lent += 1;
                drop(state);
                let mut lent = Lent { pool: self.clone(), client: idle };
                if lent.client.is_none() {
                    lent.client = Some(self.connect_one()?);
                }
                return Ok(lent);
            }
            state = self.came_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The asynchronous connection, which all threads share.
    pub fn shared(&self) -> Result<AsyncClient> {
        if self.state().closed {
            return Err(Error::invalid("use a client: it was closed"));
        }
        let mut shared = self.shared.held();
        match &*shared {
            Some((process, client)) if process.is_current() => return Ok(client.clone()),
            Some(_) => std::mem::forget(shared.take()),
            None => {}
        }
        let (node, options) = (self.node().clone(), self.options());
        let client = wait_for(async move { AsyncClient::connect(&node, &options).await })?;
        *shared = Some((Process::current(), client.clone()));
        Ok(client)
    }

    /// A connection for an open file, which keeps it for as long as it likes: it counts for none of
    /// the limit, or files that are open would stop all calls for ever.
    pub fn connection(self: &Arc<Pool>) -> Result<Client> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::invalid("use a client: it was closed"));
        }
        match state.idle.pop() {
            Some(client) => Ok(client),
            None => {
                drop(state);
                self.connect_one()
            }
        }
    }

    /// Does what waits for others, by a connection that does not count: as many as all that there are may wait,
    /// and hold up no call.
    pub fn waiting<T>(self: &Arc<Pool>, wait: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let mut client = self.connection()?;
        let came = wait(&mut client);
        self.give_back(client);
        came
    }

    /// Reads what may be there: by a lent connection, or, where it waits for others, as [`Pool::waiting`].
    pub fn reading<T>(
        self: &Arc<Pool>,
        wait: Duration,
        read: impl FnOnce(&mut Client) -> Result<T>,
    ) -> Result<T> {
        match wait.is_zero() {
            true => read(&mut *self.lend()?),
            false => self.waiting(read),
        }
    }

    /// Takes a connection back that a file had.
    pub fn give_back(&self, client: Client) {
        let mut state = self.state();
        if !state.closed && state.idle.len() < self.connections_max {
            state.idle.push(client);
        }
    }

    /// Ends all connections that are not in use, and lends none any more.
    pub fn close(&self) {
        let idle = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        self.came_back.notify_all();
        drop(idle);
        self.shared.held().take();
    }
}

impl Drop for Pool {
    /// What a child has of its parent's stays as it is.
    fn drop(&mut self) {
        drop(self.state());
        let shared = self.shared.held().take();
        if shared.as_ref().is_some_and(|(process, _)| !process.is_current()) {
            std::mem::forget(shared);
        }
    }
}

impl Deref for Lent {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let client = self.client.take();
        let mut state = self.pool.state();
        // In a child it was not lent.
        state.lent = state.lent.saturating_sub(1);
        drop(state);
        // One that was in use while somebody panicked may have half a request on its way.
        if let Some(client) = client
            && !std::thread::panicking()
        {
            self.pool.give_back(client);
        }
        self.pool.came_back.notify_one();
    }
}
