//! `holdfast ride`: everything that the views of some nodes hold of a part of a topic's keys. Which
//! views are ridden is decided by [`select`]; those of different nodes are ridden at once. A ride over
//! images goes on elsewhere when a node breaks off, and one that follows goes on with the log.

mod follow;
mod marked;

use crate::view::{Node, Part, part, print_item};
use clap::Args;
use follow::Nodes;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_client::view::{Candidate, Chosen, Follow, Itinerary, Rode, Slab, select};
use holdfast_command::output::{Output, aside};
use holdfast_env::tasks::{self, Stop};
use holdfast_env::{Clock, RealClock};
use holdfast_view::items::log_topic;
use holdfast_wire::slab::{Content, Hashed, Range, Received};
use holdfast_wire::view::{Board, Collection, ViewKind, ViewName, ViewStatus};
use serde_json::json;
use std::sync::mpsc;
use std::time::Duration;

/// Slabs that wait for whoever prints, of all nodes together.
const WAITING_MAX: usize = 2;

/// `holdfast ride`.
#[derive(Args, Debug)]
pub struct RideOptions {
    /// A topic of items
    topic: String,
    /// Which part of the keys, counting from 0: `0/2` is the first half
    #[arg(default_value = "0/1", value_name = "PART/OF", value_parser = part)]
    #[arg(conflicts_with = "from")]
    part: Part,
    /// As rides were asked for before, `0 2`: refused, and told how
    #[arg(hide = true, value_parser = part)]
    of: Option<Part>,
    /// With a pass over the rows of its own, which nobody shares
    #[arg(long)]
    dedicated: bool,
    /// Of these alone, with commas; `--collections ''` for none: what a pass costs
    #[arg(long, value_name = "NAMES")]
    collections: Option<String>,
    /// Without values
    #[arg(long)]
    keys_only: bool,
    /// Every version down to the horizon, with deletions
    #[arg(long)]
    versions: bool,
    /// Only what this entry or a later one has made; with `--versions` all changes from there on,
    /// deletions among them
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "INDEX")]
    since: u64,
    /// Only what entries before this one have made; with `--follow`, its end
    #[arg(long, value_name = "INDEX")]
    below: Option<u64>,
    /// Of values, which are JSON, objects of these fields alone, with commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "keys_only")]
    fields: Option<Vec<String>>,
    /// Not before the view has applied this entry
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "INDEX")]
    reached: u64,
    /// As of this entry, from the images that there are of it
    #[arg(long, value_name = "INDEX", conflicts_with = "dedicated")]
    at: Option<u64>,
    /// What is left of a ride of `--at` that broke off, by the token that it printed: give it the other
    /// options that it had
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["at", "dedicated"])]
    from: Option<String>,
    /// Not from this node, of those that `--server` names
    #[arg(long, value_name = "SERVER")]
    not: Vec<String>,
    /// Take so many bytes a second and no more
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    slow: Option<u64>,
    /// Print the items
    #[arg(long)]
    print: bool,
    /// Print the items, and behind them every change from the next entry on, until interrupted, or up to
    /// `--below`
    #[arg(long)]
    follow: bool,
}

impl RideOptions {
    /// Of keys' hashes.
    fn range(&self) -> Range {
        Range::part(self.part.part, self.part.of)
    }

    /// A checksum of what is ridden, and how: who goes on with a token asks for the same.
    fn what(&self) -> u32 {
        let RideOptions { topic, collections, keys_only, versions, since, below, fields, .. } =
            self;
        let what = (topic, collections, keys_only, versions, since, below, fields);
        crc32c(format!("{what:?}").as_bytes())
    }
}

/// What came of a ride.
struct Came<'a> {
    options: &'a RideOptions,
    /// The topic's collections, in the order of their numbers, where items are printed.
    known: Vec<Collection>,
    clock: RealClock,
    items: u64,
    bytes: u64,
}

/// What is ridden of one node.
struct Legs {
    node: Node,
    boards: Vec<Board>,
}

/// What comes of a node's rides.
enum Heard {
    Began(Rode),
    Slab(Slab),
}

/// Rides over the nodes' views until all of the part was received: those of one node one after another,
/// and nodes at once.
pub fn run(each_node: Nodes<'_>, options: &RideOptions, out: &mut Output) -> Result<()> {
    let RideOptions { topic, .. } = options;
    if options.of.is_some() {
        return Err(Error::invalid("ride a topic: two parts were named: name one, as `0/2`"));
    }
    // None stands for all of them elsewhere.
    log_topic(topic)?;
    if options.slow == Some(0) {
        return Err(Error::invalid("ride slowly: no byte a second never ends: say how many"));
    }
    let mut nodes = answering(&mut each_node(None), options)?;
    let collections = collections(&mut nodes[0].client, options)?;
    let known = match options.print || options.follow {
        true => nodes[0].client.view(topic).catalog()?.collections,
        false => Vec::new(),
    };
    let mut came = Came { options, known, clock: RealClock::new(), items: 0, bytes: 0 };
    let itinerary = match (&options.from, options.at) {
        (Some(token), _) => Some(Itinerary::of_token(token, options.what())?),
        (None, at) => at.map(|at| Itinerary::new(Index(at), options.range(), options.what())),
    };
    let mut rode = Vec::new();
    if let Some(itinerary) = itinerary {
        let whole = itinerary.whole();
        let each = &mut |heard| came.hear(heard, &mut rode, out);
        marked::ride(nodes, options, collections.clone(), itinerary, each)?;
        // All of it is as of one entry, also what was received before by who goes on with a token.
        rode.truncate(1);
        rode.iter_mut().for_each(|rode| rode.range = whole);
    } else {
        let mut legs = legs(nodes, options, collections.clone())?;
        let each = &mut |heard| came.hear(heard, &mut rode, out);
        match legs.len() {
            1 => legs.remove(0).ride(each)?,
            _ => ride_at_once(legs, each)?,
        }
    }
    came.print(topic, out)?;
    match options.follow {
        true => {
            // Whichever views were ridden.
            let view = ViewName { topic: topic.clone(), kind: ViewKind::Disk {}, part: 0, of: 1 };
            let asked = board(options, view, options.range(), collections);
            follow::run(Follow::new(&asked, &rode)?, options, each_node, out)
        }
        false => Ok(()),
    }
}

/// The nodes that answer, of those that are not to be left out. It may do without the others.
fn answering(
    nodes: &mut dyn Iterator<Item = Result<Node>>,
    options: &RideOptions,
) -> Result<Vec<Node>> {
    let (mut there, mut silent) = (Vec::new(), None);
    for node in nodes {
        match node {
            Ok(node) if options.not.contains(&node.name) => {}
            Ok(node) => there.push(node),
            Err(e) => {
                aside(format_args!("a node is left out: {e}"));
                silent = Some(e);
            }
        }
    }
    match (there.is_empty(), silent) {
        (false, _) => Ok(there),
        (true, Some(e)) => Err(e),
        (true, None) => Err(Error::invalid(
            "ride a topic: every node that was named is left out by `--not`: name another one",
        )),
    }
}

fn collections(client: &mut Client, options: &RideOptions) -> Result<Option<Vec<u16>>> {
    let Some(names) = &options.collections else { return Ok(None) };
    let mut view = client.view(&options.topic);
    let names = names.split(',').filter(|name| !name.is_empty());
    names.map(|name| view.collection(name)).collect::<Result<Vec<u16>>>().map(Some)
}

/// What to ride of whom.
fn legs(
    mut nodes: Vec<Node>,
    options: &RideOptions,
    collections: Option<Vec<u16>>,
) -> Result<Vec<Legs>> {
    let RideOptions { topic, .. } = options;
    let mut disks: Vec<(usize, ViewStatus)> = Vec::new();
    for (at, node) in nodes.iter_mut().enumerate() {
        disks.extend(disk_views(&mut node.client, topic)?.into_iter().map(|one| (at, one)));
    }
    let candidate = |(_, one): &(usize, ViewStatus)| Candidate {
        range: Range::part(one.view.part, one.view.of),
        applied: one.applied,
        is_apart: false,
    };
    let candidates: Vec<Candidate> = disks.iter().map(candidate).collect();
    let mut boards: Vec<Vec<Board>> = nodes.iter().map(|_| Vec::new()).collect();
    let chosen = select(&candidates, options.range());
    let chosen = chosen.map_err(|e| e.context(format_args!("ride topic `{topic}`")))?;
    for Chosen { candidate, range } in chosen {
        let (node, status) = &disks[candidate];
        boards[*node].push(board(options, status.view.clone(), range, collections.clone()));
    }
    let legs = nodes.into_iter().zip(boards).map(|(node, boards)| Legs { node, boards });
    Ok(legs.filter(|legs| !legs.boards.is_empty()).collect())
}

/// A node's disk views that can be ridden.
fn disk_views(client: &mut Client, topic: &str) -> Result<Vec<ViewStatus>> {
    let mut views = client.views(topic)?;
    views.retain(|one| {
        let runs = one.stopped.is_empty() && one.begins.is_empty();
        runs && one.view.kind == ViewKind::Disk {}
    });
    Ok(views)
}

/// What is asked of a view for a range, as of the present.
fn board(
    options: &RideOptions,
    view: ViewName,
    range: Range,
    collections: Option<Vec<u16>>,
) -> Board {
    Board {
        collections,
        keys_only: options.keys_only,
        versions: options.versions,
        since: Index(options.since),
        below: options.below.map(Index),
        fields: options.fields.clone(),
        reached: Index(options.reached),
        dedicated: options.dedicated,
        ..Board::of(view, range)
    }
}

impl Legs {
    fn ride(mut self, each: &mut dyn FnMut(Heard) -> Result<()>) -> Result<()> {
        for board in &self.boards {
            let doing = |e: Error| e.context(format_args!("ride at {}", self.node.name));
            let mut ride = self.node.client.ride(board).map_err(doing)?;
            each(Heard::Began(ride.rode()))?;
            while let Some(slab) = ride.next_slab().map_err(doing)? {
                each(Heard::Slab(slab))?;
            }
        }
        Ok(())
    }
}

fn ride_at_once(legs: Vec<Legs>, each: &mut dyn FnMut(Heard) -> Result<()>) -> Result<()> {
    let (sender, receiver) = mpsc::sync_channel::<Result<Heard>>(WAITING_MAX);
    let mut threads = Vec::new();
    for legs in legs {
        let sender = sender.clone();
        let gone = || Error::retry("ride a topic: another stream has failed");
        threads.push(tasks::spawn("ride", move || {
            let ridden = legs.ride(&mut |heard| sender.send(Ok(heard)).map_err(|_| gone()));
            if let Err(e) = ridden {
                // Nobody listens any more where the first error has ended it.
                let _ = sender.send(Err(e));
            }
        })?);
    }
    drop(sender);
    // Ends when all streams have; whoever sends behind an error is told that nobody listens.
    let ridden = receiver.into_iter().try_for_each(|heard| each(heard?));
    threads.into_iter().for_each(tasks::Task::join);
    ridden
}

impl Came<'_> {
    fn hear(&mut self, heard: Heard, rode: &mut Vec<Rode>, out: &mut Output) -> Result<()> {
        match heard {
            Heard::Slab(slab) => self.take(&slab, out),
            Heard::Began(began) => {
                rode.push(began);
                Ok(())
            }
        }
    }

    fn take(&mut self, slab: &Slab, out: &mut Output) -> Result<()> {
        self.bytes += slab.bytes() as u64;
        slab.each(|item| {
            self.items += 1;
            if !self.options.print && !self.options.follow {
                return Ok(());
            }
            print_received(self.known.get((item.collection as usize).wrapping_sub(1)), &item, out)
        })?;
        if let Some(rate) = self.options.slow {
            let due_ns = (self.bytes as f64 / rate as f64 * 1e9) as u64;
            let early = due_ns.saturating_sub(self.clock.monotonic_ns());
            Stop::new().sleep_until_stop(Duration::from_nanos(early));
        }
        Ok(())
    }

    fn print(&self, topic: &str, out: &mut Output) -> Result<()> {
        let seconds = self.clock.monotonic_ns() as f64 / 1e9;
        let rate = self.bytes as f64 / seconds;
        out.line(
            || {
                format!(
                    "{} items, {}, in {seconds:.3} s: {}/s",
                    self.items,
                    format_bytes(self.bytes),
                    format_bytes(rate as u64)
                )
            },
            || {
                json!({
                    "topic": topic,
                    "items": self.items,
                    "bytes": self.bytes,
                    "seconds": seconds,
                    "bytes_per_second": rate,
                })
            },
        )
    }
}

fn print_received(of: Option<&Collection>, item: &Received<'_>, out: &mut Output) -> Result<()> {
    let value = match item.content {
        Content::Value(value) => Some(value),
        Content::Deleted => None,
        Content::NotSent => Some(&b""[..]),
    };
    match of {
        Some(of) => print_item(of, item.key, item.index, value, out),
        None => {
            // It was made since.
            let name = item.collection.to_string();
            let of = Collection { name, hashed: Hashed::All, json: false };
            print_item(&of, item.key, item.index, value, out)
        }
    }
}
