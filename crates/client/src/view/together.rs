//! Rides over the views of several nodes at once, a thread for each node: whose views are ridden says
//! [`select`], and of a ride over images, what is left when a node breaks off, [`Itinerary`]: it goes on at
//! the others. A ride of the present is over when one of its nodes is: its moment was that node's alone.

use super::itinerary::Itinerary;
use super::select::{Candidate, Chosen, select};
use super::{Rode, Slab};
use crate::client::Client;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::tasks;
use holdfast_wire::slab::{Range, Sums};
use holdfast_wire::view::{Board, Place, ViewKind, ViewStatus};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc;
use std::time::Duration;

/// Slabs that wait for whoever takes them, of all nodes together.
const WAITING_MAX: usize = 2;

/// A node that can be ridden, by a client that asks no other one (`ClientOptions::reconnects_max` of 0, and no
/// others), so that one that breaks off is heard of at once.
pub struct Server {
    /// For errors.
    pub name: String,
    /// Its own.
    pub client: Client,
    /// Its views are there for rides, and ridden before those of others.
    pub is_apart: bool,
}

/// What an image says of its items.
#[derive(Clone, Debug)]
pub struct ImageSums {
    /// Of its view: of all keys' hashes in there.
    pub range: Range,
    /// The entry that it was made of.
    pub index: Index,
    /// By sub-range of the hashes.
    pub sums: Sums,
}

/// What comes of a ride over several nodes.
#[derive(Debug)]
pub enum Heard {
    /// A view is ridden from now on.
    Began(Rode),
    /// Items of one of the views.
    Slab(Slab),
    /// A node is not asked any more; what is left of its part comes from others, if they have it.
    LeftOut(Error),
    /// So far nothing.
    Nothing,
}

/// What a node's thread says, by its leg.
enum Said {
    Began(u64, Rode),
    /// Of an image, with the place of its last item, if it has one.
    Came(u64, Slab, Option<Place>),
    /// With what its node's image of the entry says, if there is one.
    Ended(u64, Option<Box<ImageSums>>),
    /// Its node will not be asked any more.
    Broke(u64, Error),
    /// It has nothing more to do.
    Rests(Box<Server>),
}

/// A ride over several nodes.
pub struct Together {
    /// What is asked of each view, but for the view, its range and place.
    asked: Board,
    /// Of a ride over images.
    itinerary: Option<Itinerary>,
    /// Whom nobody rides now.
    rest: Vec<Server>,
    /// What the nodes' threads say; none between two rounds.
    said: Option<mpsc::Receiver<Said>>,
    /// The views of the legs of this round.
    views: BTreeMap<u64, Range>,
    /// The leg and the last place of the slab that was given last, until it counts as received.
    given: Option<(u64, Place)>,
    /// Nodes that were left out, until that is told.
    left_out: VecDeque<Error>,
    /// Of the rides that have come to their end.
    image_sums: Vec<ImageSums>,
    /// Why the first node broke off in this round.
    broke: Option<Error>,
    /// Why it ended, if it failed.
    failed: Option<Error>,
    over: bool,
}

impl Together {
    /// Rides a part of the keys as of the present, each view as of an entry of its own. `asked` has the topic and
    /// the range, and what is asked of all views.
    pub fn now(mut servers: Vec<Server>, asked: Board) -> Result<Together> {
        let mut disks = Vec::new();
        for (at, server) in servers.iter_mut().enumerate() {
            let views = all_disk_views(&mut server.client, &asked.view.topic)
                .map_err(|e| e.context(format_args!("ride at {}", server.name)))?;
            disks.extend(views.into_iter().map(|one| (at, one)));
        }
        let wanted = Range::new(asked.low, asked.high);
        let topic = asked.view.topic.clone();
        if disks.is_empty() {
            return Err(no_view_of(&mut servers, &topic));
        }
        let (disks, others): (Vec<_>, Vec<_>) =
            disks.into_iter().partition(|(_, one)| has_present(one));
        let chosen = select(&candidates(&servers, &disks), wanted)
            .map_err(|e| but_for(e, &servers, &others, wanted))
            .map_err(|e| e.context(format_args!("ride topic `{topic}`")))?;
        let mut ride = Together::new(servers, asked, None);
        let legs = (1..).zip(chosen).map(|(number, Chosen { candidate, range })| {
            let (at, status) = &disks[candidate];
            let view = status.view.clone();
            let (low, high) = (range.low(), range.high());
            (*at, number, Board { view, low, high, ..ride.asked.clone() })
        });
        let legs = legs.collect();
        ride.begin(legs)?;
        Ok(ride)
    }

    /// Rides what an itinerary has left of images of one mark, and goes on elsewhere when a node breaks off.
    pub fn of_mark(servers: Vec<Server>, asked: Board, itinerary: Itinerary) -> Result<Together> {
        let mut ride = Together::new(servers, asked, Some(itinerary));
        ride.over = ride.itinerary().is_over();
        if !ride.over {
            ride.begin_marked()?;
        }
        Ok(ride)
    }

    fn new(rest: Vec<Server>, asked: Board, itinerary: Option<Itinerary>) -> Together {
        Together {
            asked,
            itinerary,
            rest,
            said: None,
            views: BTreeMap::new(),
            given: None,
            left_out: VecDeque::new(),
            image_sums: Vec::new(),
            broke: None,
            failed: None,
            over: false,
        }
    }

    /// Of a ride over images what is left behind the slabs that count as received, for
    /// [`Itinerary::of_token`]; none of the present.
    pub fn token(&self) -> Option<String> {
        self.itinerary.as_ref().map(Itinerary::token)
    }

    /// As [`Together::token`], with the sums of what counts as received.
    pub fn token_with(&self, came: &Sums) -> Option<String> {
        self.itinerary.as_ref().map(|itinerary| itinerary.token_with(came))
    }

    /// What images say of the items that were ridden so far to their end.
    pub fn image_sums(&self) -> &[ImageSums] {
        &self.image_sums
    }

    /// The slab that was given last counts as received. The next call of [`Together::next`] says that, too.
    pub fn taken(&mut self) {
        if let (Some((leg, last)), Some(itinerary)) = (self.given.take(), &mut self.itinerary) {
            itinerary.received(leg, last);
        }
    }

    /// What comes next, waiting for it for so long; none at the end. An error ends it: behind it nothing
    /// comes, and [`Together::token`] says what is left.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Heard>> {
        self.taken();
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        match self.go_on(wait) {
            Err(e) => {
                // Its threads are told that nobody listens.
                self.said = None;
                self.failed = Some(e.clone());
                Err(e)
            }
            heard => heard,
        }
    }

    fn go_on(&mut self, wait: Duration) -> Result<Option<Heard>> {
        loop {
            if let Some(e) = self.left_out.pop_front() {
                return Ok(Some(Heard::LeftOut(e)));
            }
            if self.over {
                return Ok(None);
            }
            let Some(said) = &self.said else {
                self.begin_marked()?;
                continue;
            };
            let said = match said.recv_timeout(wait) {
                Err(mpsc::RecvTimeoutError::Timeout) => return Ok(Some(Heard::Nothing)),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    self.said = None;
                    self.over = self.itinerary.as_ref().is_none_or(Itinerary::is_over);
                    continue;
                }
                Ok(said) => said,
            };
            match (said, &mut self.itinerary) {
                (Said::Began(leg, rode), itinerary) => {
                    if let Some(itinerary) = itinerary {
                        itinerary.begun(leg, self.views[&leg], &rode.boarded)?;
                    }
                    return Ok(Some(Heard::Began(rode)));
                }
                (Said::Came(leg, slab, last), itinerary) => {
                    if itinerary.is_some() {
                        self.given = last.map(|last| (leg, last));
                    }
                    return Ok(Some(Heard::Slab(slab)));
                }
                (Said::Ended(leg, sums), itinerary) => {
                    self.image_sums.extend(sums.map(|sums| *sums));
                    if let Some(itinerary) = itinerary {
                        itinerary.ended(leg);
                    }
                }
                (Said::Broke(leg, e), Some(itinerary)) => {
                    itinerary.broke(leg);
                    self.broke.get_or_insert(e.clone());
                    return Ok(Some(Heard::LeftOut(e)));
                }
                (Said::Broke(_, e), None) => return Err(e),
                (Said::Rests(server), _) => self.rest.push(*server),
            }
        }
    }

    fn itinerary(&self) -> &Itinerary {
        self.itinerary.as_ref().expect("it is a ride over images")
    }

    /// Rides all that nobody rides yet, of whoever has images.
    fn begin_marked(&mut self) -> Result<()> {
        if let (true, Some(e)) = (self.rest.is_empty(), self.broke.take()) {
            return Err(e);
        }
        let disks = self.with_image()?;
        let candidates = candidates(&self.rest, &disks);
        let itinerary = self.itinerary.as_mut().expect("it is a ride over images");
        let legs = itinerary.divide(&candidates)?;
        let index = itinerary.index();
        self.views = legs.iter().map(|leg| (leg.number, candidates[leg.candidate].range)).collect();
        let legs = legs.into_iter().map(|leg| {
            let (at, status) = &disks[leg.candidate];
            let (view, at_index, behind) = (status.view.clone(), Some(index), leg.behind);
            let (low, high) = (leg.range.low(), leg.range.high());
            let board = Board { view, low, high, at: at_index, behind, ..self.asked.clone() };
            (*at, leg.number, board)
        });
        let legs = legs.collect();
        self.begin(legs)
    }

    /// A thread for each node that has a part: its place, and of each leg the number and what is asked.
    fn begin(&mut self, legs: Vec<(usize, u64, Board)>) -> Result<()> {
        let mut of_servers: Vec<Vec<(u64, Board)>> = self.rest.iter().map(|_| Vec::new()).collect();
        for (at, number, board) in legs {
            of_servers[at].push((number, board));
        }
        let (sender, receiver) = mpsc::sync_channel(WAITING_MAX);
        for (server, legs) in std::mem::take(&mut self.rest).into_iter().zip(of_servers) {
            if legs.is_empty() {
                self.rest.push(server);
                continue;
            }
            let sender = sender.clone();
            // Nobody waits for it: it ends with what it has been asked for, or when nobody listens.
            tasks::spawn("ride", move || stream(server, legs, &sender))?;
        }
        self.said = Some(receiver);
        Ok(())
    }

    /// Disk views that have an image of the mark, each with its node's place. Nodes that do not answer are
    /// left out.
    fn with_image(&mut self) -> Result<Vec<(usize, ViewStatus)>> {
        let (mut disks, mut servers, mut silent) = (Vec::new(), Vec::new(), None);
        for mut server in std::mem::take(&mut self.rest) {
            match all_disk_views(&mut server.client, &self.asked.view.topic) {
                Ok(views) => {
                    disks.extend(views.into_iter().map(|one| (servers.len(), one)));
                    servers.push(server);
                }
                Err(e) => {
                    let e = e.context(format_args!("ride at {}", server.name));
                    self.left_out.push_back(e.clone());
                    silent = Some(e);
                }
            }
        }
        self.rest = servers;
        if let (true, Some(e)) = (self.rest.is_empty(), silent) {
            return Err(e);
        }
        if disks.is_empty() {
            return Err(no_view_of(&mut self.rest, &self.asked.view.topic));
        }
        let index = self.itinerary().index();
        let images = disks.iter().flat_map(|(_, one): &(usize, ViewStatus)| &one.images);
        let images: BTreeSet<Index> = images.map(|image| image.index).collect();
        disks.retain(|(_, one)| one.images.iter().any(|image| image.index == index));
        if disks.is_empty() {
            let there: Vec<String> = images.iter().map(Index::to_string).collect();
            return Err(Error::not_found(format!(
                "ride topic `{}` as of entry {index}, of which only images can be ridden: no view of the nodes \
                 that answer has one of it, they have {}: `holdfast view status` says who has which, \
                 `holdfast view mark` asks for a new one",
                self.asked.view.topic,
                match there.is_empty() {
                    true => "none yet".to_owned(),
                    false => format!("those of {}", there.join(", ")),
                }
            )));
        }
        Ok(disks)
    }
}

/// A node's disk views that can be ridden as of the present.
pub fn disk_views(client: &mut Client, topic: &str) -> Result<Vec<ViewStatus>> {
    let mut views = all_disk_views(client, topic)?;
    views.retain(has_present);
    Ok(views)
}

/// A node's disk views, also those that have stopped: these have no present, but the images that they made. And
/// those that begin, which have neither yet.
pub fn all_disk_views(client: &mut Client, topic: &str) -> Result<Vec<ViewStatus>> {
    let mut views = client.views(topic)?;
    views.retain(|one| one.view.kind == ViewKind::Disk {});
    Ok(views)
}

fn has_present(one: &ViewStatus) -> bool {
    one.stopped.is_empty() && one.begins.is_empty()
}

/// Nobody who was named runs a disk view of a topic: perhaps as there is no such topic.
fn no_view_of(servers: &mut [Server], topic: &str) -> Error {
    let mut asked = servers.iter_mut().map(|server| server.client.view(topic).catalog());
    // Whoever does not answer is no witness.
    let none = asked.find_map(|told| told.err().filter(|e| e.kind == Kind::NotFound));
    let none = none.unwrap_or_else(|| {
        Error::not_found(
            "the nodes that were asked run no disk view of it: `holdfast view run disk` runs one, or name \
             those that do (`--server A,B`)",
        )
    });
    none.context(format_args!("ride topic `{topic}`"))
}

/// Why a part cannot be ridden: also because of views of it that begin, or have stopped.
fn but_for(e: Error, servers: &[Server], others: &[(usize, ViewStatus)], wanted: Range) -> Error {
    let is_of_it = |one: &ViewStatus| Range::part(one.view.part, one.view.of).overlaps(wanted);
    let (mut kind, mut message) = (e.kind, e.message);
    for (at, one) in others.iter().filter(|(_, one)| is_of_it(one)) {
        let ViewStatus { view, applied, begins, stopped, images, .. } = one;
        let whose = format!("part {}/{} of {}", view.part, view.of, servers[*at].name);
        if !begins.is_empty() {
            kind = Kind::Retry;
            message += &format!("; {whose} does not answer yet, so ask again: {begins}");
            continue;
        }
        let images: Vec<String> = images.iter().map(|image| image.index.to_string()).collect();
        let instead = match images.is_empty() {
            true => "and has no image".to_owned(),
            false => {
                format!("and is ridden as of its images alone, `--at {}`", images.join(" or "))
            }
        };
        message += &format!("; {whose} has stopped behind entry {applied}, {instead}: {stopped}");
    }
    Error { kind, message, ..e }
}

fn candidates(servers: &[Server], disks: &[(usize, ViewStatus)]) -> Vec<Candidate> {
    let candidate = |(at, one): &(usize, ViewStatus)| Candidate {
        range: Range::part(one.view.part, one.view.of),
        applied: one.applied,
        is_apart: servers[*at].is_apart,
    };
    disks.iter().map(candidate).collect()
}

/// Rides one leg after the other. After one that breaks off the node is not asked any more.
fn stream(mut server: Server, legs: Vec<(u64, Board)>, sender: &mpsc::SyncSender<Said>) {
    // Whoever does not listen any more has ended the ride.
    let say = |said: Said| sender.send(said).is_ok();
    let mut legs = legs.into_iter();
    for (leg, board) in &mut legs {
        let name = server.name.clone();
        let mut ridden = || {
            let mut ride = server.client.ride(&board)?;
            let mut listens = say(Said::Began(leg, ride.rode()));
            while listens && let Some(slab) = ride.next_slab()? {
                // What is damaged counts as not received, so that others are asked for it.
                let last = board.at.map(|_| slab.last()).transpose()?.flatten();
                listens = say(Said::Came(leg, slab, last));
            }
            let (range, index) =
                (Range::part(board.view.part, board.view.of), ride.boarded().index);
            let of_image = |sums: &Sums| Box::new(ImageSums { range, index, sums: sums.clone() });
            Ok::<_, Error>((listens, ride.image_sums().map(of_image)))
        };
        match ridden() {
            Ok((true, sums)) => drop(say(Said::Ended(leg, sums))),
            Ok((false, _)) => return,
            Err(e) => {
                if let (Kind::Corrupt, Some(index)) = (e.kind, board.at) {
                    // What it answers is nothing that helps this ride.
                    let _ = server.client.doubt(&board.view, index);
                }
                say(Said::Broke(leg, e.context(format_args!("ride at {name}"))));
                for (leg, _) in legs {
                    let broke = Error::retry(format!("ride at {name}: it broke off before"));
                    say(Said::Broke(leg, broke));
                }
                return;
            }
        }
    }
    say(Said::Rests(Box::new(server)));
}
