//! How requests reach a process of the simulated world: who asks, as connections prove it, and what
//! is watched of their messages. Tries to pass one node off for another, too.

use super::cell::{Cell, Process};
use crate::Listener;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{
    ConnectionId, Finished, Inline, Named, PeerConnection, PeerDone, PeerReply, PeerRequest, Role,
    Who,
};
use holdfast_env::{HoldMutex, sometimes};
use holdfast_node::PEER_OPERATIONS;
use holdfast_wire::peer::Sender;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// In front of every message between nodes: cluster u64, node u32, incarnation u64.
const SENDER_BYTES: usize = 20;

/// By what was shown, and whether somebody tries to pass for another node.
pub(super) type Doors = Mutex<BTreeMap<(Option<(String, String)>, bool), Arc<Door>>>;

/// The certificate of a node, renewed so many times.
pub(super) fn of_node(name: String, renewals: u64) -> Named {
    let serial = match renewals {
        0 => format!("{:08x}", crc32c(name.as_bytes())),
        n => format!("{:08x}{n:04x}", crc32c(name.as_bytes())),
    };
    Named { role: Role::Node, name, serial, until_s: i64::MAX }
}

fn key((shown, forges): Asker<'_>) -> (Option<(String, String)>, bool) {
    (shown.map(|named| (named.name.clone(), named.serial.clone())), forges)
}

/// Who asks: what they showed, and whether that is a node that tries to pass for another.
type Asker<'a> = (Option<&'a Arc<Named>>, bool);

/// Where one asker's requests arrive.
pub(super) struct Door {
    inline: Inline,
    /// The other end of `inline`. Never held while anything is called.
    peer: Mutex<PeerConnection>,
}

impl Process {
    /// The connection of who showed this; made when it is needed.
    fn door(&self, cell: &Cell, from: Asker<'_>) -> Result<Arc<Door>> {
        let mut doors = self.doors.held();
        if let Some(door) = doors.get(&key(from)) {
            return Ok(door.clone());
        }
        let who = match from.0 {
            Some(named) => Who::Named(named.clone()),
            None if cell.shared.certificates => Who::Client,
            None => Who::Node,
        };
        let id = ConnectionId(cell.connections.fetch_add(1, Ordering::Relaxed) + 1);
        let inline = Inline::connect(self.native.clone(), cell.clock.clone(), id, who)?;
        let peer = Mutex::new(PeerConnection::new(&cell.address));
        let door = Arc::new(Door { inline, peer });
        doors.insert(key(from), door.clone());
        Ok(door)
    }

    /// Takes a request, as a server's connection does; one that ends is made anew for the next.
    fn request(&self, cell: &Cell, from: Asker<'_>, request: PeerRequest, done: PeerDone) {
        let door = match self.door(cell, from) {
            Ok(door) => door,
            Err(e) => return done(Err(e)),
        };
        let mut finished = Finished::new();
        let bytes = {
            let mut peer = door.peer.held();
            peer.submit(cell.net.now_ns(), request, done, &mut finished);
            peer.take_output()
        };
        finished.into_iter().for_each(|(done, result)| done(result));
        let Err(e) = door.inline.receive(&bytes) else { return };
        if e.kind != Kind::Denied {
            self.node.report_finding(format!("a connection was refused: {e}"));
        }
        self.flush_door(&door, cell.net.now_ns());
        self.end_door(&door, &e);
    }

    /// Nothing comes of this connection any more; the next request makes another one.
    fn end_door(&self, door: &Arc<Door>, why: &Error) {
        self.doors.held().retain(|_, other| !Arc::ptr_eq(other, door));
        let mut finished = Finished::new();
        door.peer.held().fail(why, &mut finished);
        finished.into_iter().for_each(|(done, result)| done(result));
    }

    /// Sends the answers that are there.
    pub(super) fn flush(&self, now_ns: u64) {
        let doors: Vec<Arc<Door>> = self.doors.held().values().cloned().collect();
        doors.iter().for_each(|door| self.flush_door(door, now_ns));
    }

    fn flush_door(&self, door: &Arc<Door>, now_ns: u64) {
        loop {
            let bytes = door.inline.take();
            if bytes.is_empty() {
                return;
            }
            let mut finished = Finished::new();
            let mut peer = door.peer.held();
            let received = peer.received(now_ns, &bytes, &mut finished);
            drop(peer);
            finished.into_iter().for_each(|(done, result)| done(result));
            if let Err(e) = received {
                if e.kind != Kind::Denied {
                    self.node.report_finding(format!("an answer cannot be read: {e}"));
                }
                return self.end_door(door, &e);
            }
        }
    }
}

/// What other nodes and clients reach.
pub(super) struct Server {
    pub cell: Arc<Cell>,
    pub of: Arc<Process>,
}

impl Listener for Server {
    fn request(&self, shown: Option<&Arc<Named>>, request: PeerRequest, reply: PeerDone) {
        let (of, cell) = (self.of.clone(), self.cell.clone());
        let life = of.life.clone();
        if let Some(named) = shown.filter(|named| named.role == Role::Node) {
            self.refuses_stolen(named, &request);
        }
        let reply = self.refuses_older(&request, reply);
        let reply = self.refuses_revoked(shown, &request, reply);
        let shown = shown.cloned();
        self.cell.run(&life, move || of.request(&cell, (shown.as_ref(), false), request, reply));
    }
}

impl Server {
    /// Before one message in sixteen its sender tries to pass for another node: with the same
    /// message, the other one's number and its last start. Nothing may come of it.
    fn refuses_stolen(&self, named: &Arc<Named>, request: &PeerRequest) {
        let sender = request.meta.get(..SENDER_BYTES).and_then(|m| Sender::from_bytes(m).ok());
        let Some(sender) = sender.filter(|_| PEER_OPERATIONS.contains(&request.opcode)) else {
            return;
        };
        let chance = crc32c(&request.meta) ^ self.cell.net.now_ns() as u32;
        if !chance.is_multiple_of(16) {
            return;
        }
        let other = self.of.node.cluster.read(|view, _| {
            let mut nodes = view.nodes().filter(|(id, _)| view.name_of(*id).is_some());
            nodes.find(|(id, _)| *id != sender.node).map(|(id, info)| (id, info.incarnation))
        });
        let Ok(Some((node, incarnation))) = other else { return };
        let forged = Sender { node, incarnation, ..sender };
        let meta = [&forged.to_bytes(), &request.meta[SENDER_BYTES..]].concat();
        let forged = PeerRequest { meta, ..request.clone() };
        let (shared, opcode) = (self.cell.shared.clone(), request.opcode);
        let (named, told) = (named.clone(), named.name.clone());
        let said = Box::new(move |answer: Result<PeerReply>| match answer {
            Ok(_) => shared.violate(format!(
                "operation {opcode:#06x} was carried out for node {node}, asked by `{told}`"
            )),
            Err(e) => shared
                .sometimes(e.kind == Kind::Denied, "a message with a stolen number was refused"),
        });
        let (of, cell, life) = (self.of.clone(), self.cell.clone(), self.of.life.clone());
        self.cell.run(&life, move || of.request(&cell, (Some(&named), true), forged, said));
    }

    /// Watches the answer to a message over a connection that began with a certificate which this node
    /// knows to be revoked.
    fn refuses_revoked(
        &self,
        shown: Option<&Arc<Named>>,
        request: &PeerRequest,
        reply: PeerDone,
    ) -> PeerDone {
        let Some(named) = shown.filter(|named| named.role == Role::Node) else { return reply };
        let revoked = self.of.node.cluster.read(|view, _| view.is_revoked(&named.serial));
        if !revoked.unwrap_or(false) {
            return reply;
        }
        let (shared, opcode, named) = (self.cell.shared.clone(), request.opcode, named.clone());
        Box::new(move |answer| {
            match &answer {
                Ok(_) => shared.violate(format!(
                    "operation {opcode:#06x} was carried out for `{}`, whose certificate {} had been revoked",
                    named.name, named.serial
                )),
                Err(e) => shared.sometimes(
                    e.kind == Kind::Denied,
                    "a message with a revoked certificate was refused",
                ),
            }
            reply(answer);
        })
    }

    /// Watches the answer to a message of a process that was followed by another one, as far as
    /// this node knows already.
    fn refuses_older(&self, request: &PeerRequest, reply: PeerDone) -> PeerDone {
        let sender = PEER_OPERATIONS
            .contains(&request.opcode)
            .then(|| Sender::from_bytes(request.meta.get(..SENDER_BYTES)?).ok())
            .flatten();
        let Some(sender) = sender else { return reply };
        let current = self
            .of
            .node
            .cluster
            .read(|view, _| view.node(sender.node).map_or(Index(0), |info| info.incarnation));
        if sender.incarnation == Index(0) || current.is_ok_and(|now| sender.incarnation >= now) {
            return reply;
        }
        sometimes!("a message of an older start arrived");
        let (shared, opcode) = (self.cell.shared.clone(), request.opcode);
        Box::new(move |answer| {
            if answer.is_ok() {
                shared.violate(format!(
                    "operation {opcode:#06x} of node {} was carried out, started at {}",
                    sender.node, sender.incarnation
                ));
            }
            reply(answer);
        })
    }
}
