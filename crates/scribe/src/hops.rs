//! The way to the next hop: a connection to the one of several that is best now. Owns nothing but who is
//! where; which is best is [`crate::ways`]'.

use crate::ways::Ways;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_env::{Clock, HoldMutex};
use std::sync::{Arc, Mutex};

/// Nodes of one cluster, or carriers on the way to it.
pub struct Hops {
    ways: Mutex<Ways<Endpoint>>,
    client: ClientOptions,
    clock: Arc<dyn Clock>,
}

/// A connection to one of them.
pub struct Hop {
    at: usize,
    client: Client,
}

impl Hops {
    /// In the order that a spool's identity makes of them.
    pub fn new(
        to: Vec<Endpoint>,
        spool: u64,
        client: ClientOptions,
        clock: Arc<dyn Clock>,
    ) -> Hops {
        Hops { ways: Mutex::new(Ways::new(to, spool)), client, clock }
    }

    /// A client of the best hop, which has gone through `begin`: the one that there is, or a new one. Where a
    /// better one does not answer, the one that there is goes on.
    pub fn reach<'a>(
        &self,
        hop: &'a mut Option<Hop>,
        begin: impl FnOnce(&mut Client) -> Result<()>,
    ) -> Result<&'a mut Client> {
        let now_ns = self.clock.monotonic_ns();
        let best = self.ways.held().best(now_ns).ok_or_else(|| {
            Error::invalid("bring messages to the next hop: none was named: name some (`--to`)")
        })?;
        if hop.as_ref().is_none_or(|hop| hop.at != best) {
            match self.connect(best, begin) {
                Ok(client) => *hop = Some(Hop { at: best, client }),
                Err(e) => {
                    self.ways.held().failed(best, now_ns);
                    if hop.is_none() {
                        return Err(e);
                    }
                }
            }
        }
        Ok(&mut hop.as_mut().expect("there is one").client)
    }

    fn connect(&self, at: usize, begin: impl FnOnce(&mut Client) -> Result<()>) -> Result<Client> {
        let to = self.ways.held().to(at).clone();
        let doing = |e: Error| e.context(format_args!("bring messages to `{to}`"));
        let mut client = Client::connect(&to, &self.client).map_err(doing)?;
        begin(&mut client).map_err(doing)?;
        Ok(client)
    }

    /// Something was brought there.
    pub fn worked(&self, hop: &Option<Hop>) {
        if let Some(hop) = hop {
            self.ways.held().worked(hop.at);
        }
    }

    /// Nothing was: the next one has the next attempt.
    pub fn failed(&self, hop: &mut Option<Hop>) {
        if let Some(hop) = hop.take() {
            self.ways.held().failed(hop.at, self.clock.monotonic_ns());
        }
    }
}
