//! How requests reach a process of the simulated world: who asks, as connections prove it, and what
//! is watched of their messages. Tries to pass one node off for another, too.

use super::cell::{Cell, Process};
use crate::{Listener, Over};
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
use std::sync::{Arc, Mutex, Weak};

/// In front of every message between nodes: cluster u64, node u32, incarnation u64.
const SENDER_BYTES: usize = 20;

#[derive(Default)]
pub(super) struct Doors {
    open: Mutex<BTreeMap<Key, Arc<Door>>>,
    /// Of those that have ended, the ones over which a request may still be handled: until then they
    /// count.
    ending: Mutex<Vec<(Key, Weak<Door>)>>,
    /// By machine, the last connection that is known to have ended.
    ended: Mutex<BTreeMap<String, u64>>,
}

impl Doors {
    /// Connections of the client of this name: that are open, and with those that are about to end.
    fn of_client(&self, name: &str) -> (u64, u64) {
        let is_of = |key: &Key| {
            key.machine.is_some() && key.shown.as_ref().is_some_and(|(of, _)| of == name)
        };
        let open = self.open.held().keys().filter(|key| is_of(key)).count() as u64;
        let mut ending = self.ending.held();
        ending.retain(|(_, door)| door.strong_count() > 0);
        (open, open + ending.iter().filter(|(key, _)| is_of(key)).count() as u64)
    }
}

/// What tells connections apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Of clients with names each machine has one of its own, as in production; of the rest nothing
    /// depends on how many there are.
    machine: Option<String>,
    /// Name and serial number.
    shown: Option<(String, String)>,
    /// Somebody tries to pass for another node.
    forges: bool,
}

/// The certificate of a node, renewed so many times.
pub(super) fn of_node(name: String, renewals: u64) -> Named {
    let serial = match renewals {
        0 => format!("{:08x}", crc32c(name.as_bytes())),
        n => format!("{:08x}{n:04x}", crc32c(name.as_bytes())),
    };
    Named { role: Role::Node, name, serial, until_s: i64::MAX }
}

/// Whose connections are counted.
fn is_client(named: &Named) -> bool {
    named.role != Role::Node
}

fn key((over, forges): Asker<'_>) -> Key {
    Key {
        machine: over.shown.filter(|named| is_client(named)).map(|_| over.machine.to_owned()),
        shown: over.shown.map(|named| (named.name.clone(), named.serial.clone())),
        forges,
    }
}

/// Who asks, and whether that is a node that tries to pass for another.
type Asker<'a> = (Over<'a>, bool);

/// Where one asker's requests arrive.
pub(super) struct Door {
    inline: Inline,
    /// Which one of its machine's it is.
    connection: u64,
    /// The other end of `inline`. Never held while anything is called.
    peer: Mutex<PeerConnection>,
}

impl Process {
    /// The connection of who showed this; made when it is needed.
    fn door(&self, cell: &Cell, from: Asker<'_>) -> Result<Arc<Door>> {
        let (over, _) = from;
        let known = self.doors.open.held().get(&key(from)).cloned();
        if let Some(door) = known {
            return Ok(door);
        }
        let who = match over.shown {
            Some(named) => Who::Named(named.clone()),
            None if cell.shared.certificates => Who::Client,
            None => Who::Node,
        };
        let id = ConnectionId(cell.connections.fetch_add(1, Ordering::Relaxed) + 1);
        let connected = Inline::connect(self.native.clone(), cell.clock.clone(), id, who);
        self.watch_places(cell, over, connected.as_ref().err());
        let peer = Mutex::new(PeerConnection::new(&cell.address));
        let door = Arc::new(Door { inline: connected?, connection: over.connection, peer });
        self.doors.open.held().insert(key(from), door.clone());
        Ok(door)
    }

    /// A client has as many connections as it may, or is about to have one more: exactly as many
    /// count as there are.
    fn watch_places(&self, cell: &Cell, over: Over<'_>, refusal: Option<&Error>) {
        let Some(named) = over.shown.filter(|named| is_client(named)) else { return };
        if self.places == 0 {
            return;
        }
        let ((open, taken), places) = (self.doors.of_client(&named.name), self.places);
        if refusal.map_or(open >= places, |_| taken < places) {
            let at = &cell.address;
            cell.shared.violate(format!(
                "client `{}` has {taken} of {places} connections to {at}, and one more came to {refusal:?}",
                named.name
            ));
        }
        cell.shared.sometimes(refusal.is_some(), "a client had all of its connections");
        let again = refusal.is_none() && taken + 1 == places && over.connection > 0;
        cell.shared.sometimes(again, "a client took a place that a connection had given back");
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
        let received = door.inline.receive(&bytes);
        self.end_late(&door, from);
        let Err(e) = received else { return };
        if e.kind != Kind::Denied {
            self.node.report_finding(format!("a connection was refused: {e}"));
        }
        self.flush_door(&door, cell.net.now_ns());
        self.end_door(&door, &e);
    }

    /// A message came late, of a connection that is known to have ended: it ends once more.
    fn end_late(&self, door: &Arc<Door>, (over, _): Asker<'_>) {
        let ended = self.doors.ended.held().get(over.machine).copied();
        if ended.is_some_and(|ended| door.connection <= ended)
            && over.shown.is_some_and(|named| is_client(named))
        {
            self.end_door(door, &Error::retry("the connection has ended"));
        }
    }

    /// Nothing comes of this connection any more; the next request makes another one.
    fn end_door(&self, door: &Arc<Door>, why: &Error) {
        let mut doors = self.doors.open.held();
        let is_it = |(_, other): &(&Key, &Arc<Door>)| Arc::ptr_eq(other, door);
        let ended = doors.iter().find(is_it).map(|(key, _)| key.clone());
        if let Some(key) = ended {
            doors.remove(&key);
            self.doors.ending.held().push((key, Arc::downgrade(door)));
        }
        drop(doors);
        let mut finished = Finished::new();
        door.peer.held().fail(why, &mut finished);
        finished.into_iter().for_each(|(done, result)| done(result));
    }

    /// Sends the answers that are there.
    pub(super) fn flush(&self, now_ns: u64) {
        let doors: Vec<Arc<Door>> = self.doors.open.held().values().cloned().collect();
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

impl Process {
    /// The connection of this number of a client's machine has ended, and all before it.
    fn ended(&self, machine: &str, connection: u64) {
        let has_ended = |(key, door): &(&Key, &Arc<Door>)| {
            key.machine.as_deref() == Some(machine) && door.connection <= connection
        };
        self.doors.ended.held().insert(machine.to_owned(), connection);
        let doors = self.doors.open.held();
        let ended: Vec<Arc<Door>> =
            doors.iter().filter(has_ended).map(|(_, door)| door.clone()).collect();
        drop(doors);
        let why = Error::retry("the connection has ended");
        ended.iter().for_each(|door| self.end_door(door, &why));
    }
}

/// What other nodes and clients reach.
pub(super) struct Server {
    pub cell: Arc<Cell>,
    pub of: Arc<Process>,
}

impl Listener for Server {
    fn ended(&self, machine: &str, connection: u64) {
        self.of.ended(machine, connection);
    }

    fn request(&self, over: Over<'_>, request: PeerRequest, reply: PeerDone) {
        let (of, cell, shown) = (self.of.clone(), self.cell.clone(), over.shown);
        let life = of.life.clone();
        if let Some(named) = shown.filter(|named| named.role == Role::Node) {
            self.refuses_stolen(named, &request);
        }
        let reply = self.refuses_older(&request, reply);
        let reply = self.refuses_revoked(shown, &request, reply);
        let (machine, connection, shown) =
            (over.machine.to_owned(), over.connection, shown.cloned());
        self.cell.run(&life, move || {
            let over = Over { machine: &machine, connection, shown: shown.as_ref() };
            of.request(&cell, (over, false), request, reply);
        });
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
        self.cell.run(&life, move || {
            let over = Over { machine: "", connection: 0, shown: Some(&named) };
            of.request(&cell, (over, true), forged, said);
        });
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
