//! A ride over images of one mark, which goes on elsewhere when a node breaks off: what is left of its
//! part is ridden at the others. [`Itinerary`] knows what was received; here are the streams, one a node.

use super::{Heard, RideOptions, WAITING_MAX, board, disk_views};
use crate::view::Node;
use holdfast_base::{Error, Result};
use holdfast_client::view::{Candidate, Itinerary, Leg, Rode, Slab};
use holdfast_command::output::aside;
use holdfast_env::tasks;
use holdfast_wire::slab::Range;
use holdfast_wire::view::{Board, ViewStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;

/// What a stream says, by its leg.
enum Said {
    Began(u64, Rode),
    Came(u64, Slab),
    Ended(u64),
    /// Its node will not be asked any more.
    Broke(u64, Error),
    /// It has nothing more to do.
    Rests(Box<Node>),
}

/// Rides until everything was received. What fails says the token with which to go on.
pub fn ride(
    mut nodes: Vec<Node>,
    options: &RideOptions,
    collections: Option<Vec<u16>>,
    mut itinerary: Itinerary,
    each: &mut dyn FnMut(Heard) -> Result<()>,
) -> Result<()> {
    let (untouched, mut last) = (itinerary.token(), None);
    while !itinerary.is_over() {
        let rode = match (nodes.is_empty(), last.take()) {
            (true, Some(broke)) => Err(broke),
            _ => ride_once(nodes, options, &collections, &mut itinerary, &mut last, each),
        };
        nodes = rode.map_err(|e| goes_on(e, &untouched, &itinerary.token()))?;
    }
    Ok(())
}

/// An error that ends a ride, and how to go on behind what was received.
fn goes_on(e: Error, untouched: &str, token: &str) -> Error {
    if token == untouched {
        return e;
    }
    let message = format!(
        "{}; what was received until then is whole: go on behind it, with the same options, by `--from \
         {token}`",
        e.message
    );
    Error { message, ..e }
}

/// Rides all that is left, until it was received or has broken off. Answers the nodes that can be asked
/// again; in `last` why the first of the others broke off.
fn ride_once(
    mut nodes: Vec<Node>,
    options: &RideOptions,
    collections: &Option<Vec<u16>>,
    itinerary: &mut Itinerary,
    last: &mut Option<Error>,
    each: &mut dyn FnMut(Heard) -> Result<()>,
) -> Result<Vec<Node>> {
    let disks = with_image(&mut nodes, options, itinerary)?;
    let range = |status: &ViewStatus| Range::part(status.view.part, status.view.of);
    let candidate = |(_, one): &(usize, ViewStatus)| Candidate {
        range: range(one),
        applied: one.applied,
        is_apart: false,
    };
    let candidates: Vec<Candidate> = disks.iter().map(candidate).collect();
    let legs = itinerary.divide(&candidates)?;
    let views: BTreeMap<u64, Range> =
        legs.iter().map(|leg| (leg.number, candidates[leg.candidate].range)).collect();
    let mut of_nodes: Vec<Vec<(u64, Board)>> = nodes.iter().map(|_| Vec::new()).collect();
    for leg in legs {
        let (node, status) = &disks[leg.candidate];
        let Leg { number, range, behind, .. } = leg;
        let asked = board(options, status.view.clone(), range, collections.clone());
        let asked = Board { at: Some(itinerary.index()), behind, ..asked };
        of_nodes[*node].push((number, asked));
    }
    let (sender, receiver) = mpsc::sync_channel::<Said>(WAITING_MAX);
    let mut threads = Vec::new();
    for (node, legs) in nodes.into_iter().zip(of_nodes) {
        let sender = sender.clone();
        threads.push(tasks::spawn("ride", move || stream(node, legs, &sender))?);
    }
    drop(sender);
    let mut rest = Vec::new();
    // Ends when all streams have; those that are told that nobody listens end, too.
    let heard = receiver.into_iter().try_for_each(|said| {
        match said {
            Said::Began(leg, rode) => {
                itinerary.begun(leg, views[&leg], &rode.boarded)?;
                each(Heard::Began(rode))?;
            }
            Said::Came(leg, slab) => {
                let last = slab.last()?;
                each(Heard::Slab(slab))?;
                // What is printed counts as received, and nothing else.
                if let Some(last) = last {
                    itinerary.received(leg, last);
                }
            }
            Said::Ended(leg) => itinerary.ended(leg),
            Said::Broke(leg, e) => {
                aside(format_args!("a ride breaks off and goes on elsewhere, if it can: {e}"));
                itinerary.broke(leg);
                last.get_or_insert(e);
            }
            Said::Rests(node) => rest.push(*node),
        }
        Ok(())
    });
    threads.into_iter().for_each(tasks::Task::join);
    heard.map(|()| rest)
}

/// Rides one leg after the other. After one that breaks off the node is not asked any more.
fn stream(mut node: Node, legs: Vec<(u64, Board)>, sender: &mpsc::SyncSender<Said>) {
    // Whoever does not listen any more has ended the ride.
    let say = |said: Said| sender.send(said).is_ok();
    let mut legs = legs.into_iter();
    for (leg, board) in &mut legs {
        let name = node.name.clone();
        let mut ridden = || {
            let mut ride = node.client.ride(&board)?;
            let mut listens = say(Said::Began(leg, ride.rode()));
            while listens && let Some(slab) = ride.next_slab()? {
                listens = say(Said::Came(leg, slab));
            }
            Ok::<bool, Error>(listens)
        };
        match ridden() {
            Ok(true) => drop(say(Said::Ended(leg))),
            Ok(false) => return,
            Err(e) => {
                say(Said::Broke(leg, e.context(format_args!("ride at {name}"))));
                for (leg, _) in legs {
                    say(Said::Broke(
                        leg,
                        Error::retry(format!("ride at {name}: it broke off before")),
                    ));
                }
                return;
            }
        }
    }
    say(Said::Rests(Box::new(node)));
}

/// Disk views that have an image of the mark, each with its node's place. Nodes that do not answer are
/// left out.
fn with_image(
    nodes: &mut Vec<Node>,
    options: &RideOptions,
    itinerary: &Itinerary,
) -> Result<Vec<(usize, ViewStatus)>> {
    let (mut disks, mut silent) = (Vec::new(), None);
    let mut at = 0;
    while at < nodes.len() {
        match disk_views(&mut nodes[at].client, &options.topic) {
            Ok(views) => {
                disks.extend(views.into_iter().map(|one| (at, one)));
                at += 1;
            }
            Err(e) => {
                let node = nodes.remove(at);
                aside(format_args!("a node is left out: {}: {e}", node.name));
                silent = Some(e);
            }
        }
    }
    if let (true, Some(e)) = (nodes.is_empty(), silent) {
        return Err(e);
    }
    let index = itinerary.index();
    let images = disks.iter().flat_map(|(_, one): &(usize, ViewStatus)| &one.images);
    let images: BTreeSet<u64> = images.map(|image| image.index.0).collect();
    disks.retain(|(_, one)| one.images.iter().any(|image| image.index == index));
    if disks.is_empty() {
        let there = match images.is_empty() {
            true => "there are none yet".to_owned(),
            false => {
                let images: Vec<String> = images.iter().map(u64::to_string).collect();
                format!("there are images of entries {}", images.join(", "))
            }
        };
        return Err(Error::not_found(format!(
            "ride topic `{}` as of entry {index}: no view of the nodes that answer has an image of it, \
             {there}: `holdfast view status` says who has which, `holdfast view mark` asks for a new one",
            options.topic
        )));
    }
    Ok(disks)
}
