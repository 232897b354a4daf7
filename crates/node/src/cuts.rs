//! Ways that are cut on purpose: a development cluster can keep two of its nodes from reaching
//! each other (`holdfast dev cut`). Nothing else ever fills the list.

use holdfast_base::Error;
use holdfast_env::HoldMutex;
use holdfast_env::net::{PeerDone, PeerRequest, Peers};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Addresses that are neither asked nor answered.
#[derive(Debug, Default)]
pub struct Cuts {
    /// Held for a look.
    addresses: Mutex<BTreeSet<String>>,
}

impl Cuts {
    pub fn set(&self, address: &str, cut: bool) {
        let mut addresses = self.addresses.held();
        if cut {
            addresses.insert(address.to_owned());
        } else {
            addresses.remove(address);
        }
    }

    pub fn holds(&self, address: &str) -> bool {
        self.addresses.held().contains(address)
    }
}

/// Peers behind the cuts.
pub(super) struct Cut {
    pub peers: Arc<dyn Peers>,
    pub cuts: Arc<Cuts>,
}

impl Cut {
    fn refuse(&self, address: &str, done: PeerDone) {
        let why = format!("ask `{address}`: the way there is cut, see `holdfast dev cut`");
        // A call never answers before it returns.
        self.peers.after(1, Box::new(move || done(Err(Error::retry(why)))));
    }
}

impl Peers for Cut {
    fn call(&self, address: &str, request: PeerRequest, done: PeerDone) {
        match self.cuts.holds(address) {
            true => self.refuse(address, done),
            false => self.peers.call(address, request, done),
        }
    }

    fn call_yielding(&self, address: &str, request: PeerRequest, done: PeerDone) {
        match self.cuts.holds(address) {
            true => self.refuse(address, done),
            false => self.peers.call_yielding(address, request, done),
        }
    }

    fn after(&self, ms: u64, then: Box<dyn FnOnce() + Send>) {
        self.peers.after(ms, then);
    }

    fn step(&self) -> holdfast_base::Result<bool> {
        self.peers.step()
    }
}
