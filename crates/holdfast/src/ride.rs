//! `holdfast ride`: everything that the views of some nodes hold of a part of a topic's keys. Nodes are ridden
//! at once, and a ride over images goes on elsewhere when one breaks off: [`Together`]. One that follows goes
//! on with the log.

mod check;
mod follow;

use crate::view::{Node, Part, part, print_item};
use check::Check;
use clap::Args;
use follow::Nodes;
use holdfast_base::ids::Index;
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Kind, Result};
use holdfast_client::Client;
use holdfast_client::view::{Follow, Heard, Itinerary, Rode, Server, Slab, Together, what};
use holdfast_command::output::{Output, aside};
use holdfast_env::tasks::Stop;
use holdfast_env::{Clock, RealClock};
use holdfast_view::items::log_topic;
use holdfast_wire::slab::{Content, Hashed, Range, Received};
use holdfast_wire::view::{Board, Collection, ViewKind, ViewName};
use serde_json::json;
use std::time::Duration;

/// So long one call waits for what comes next.
const WAIT: Duration = Duration::from_secs(20);

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
    /// Rather from this node, of those that `--server` names: it is set apart for rides, so that others stay
    /// free for what else is asked of them
    #[arg(long, value_name = "SERVER", conflicts_with = "not")]
    apart: Vec<String>,
    /// Sum up what comes, and hold it against what images of the same entry say that they have, or else the
    /// nodes' views; with `--from`, also what came before, where that was summed up, too
    #[arg(long, conflicts_with_all = ["collections", "keys_only", "since", "below", "fields"])]
    check: bool,
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

    /// What is asked of all views, of these collections.
    fn board(&self, collections: Option<Vec<u16>>) -> Board {
        let view = ViewName { topic: self.topic.clone(), kind: ViewKind::Disk {}, part: 0, of: 1 };
        Board {
            collections,
            keys_only: self.keys_only,
            versions: self.versions,
            since: Index(self.since),
            below: self.below.map(Index),
            fields: self.fields.clone(),
            reached: Index(self.reached),
            dedicated: self.dedicated,
            ..Board::of(view, self.range())
        }
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
    /// Where it is to be held against something.
    check: Option<Check>,
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
    let asked = options.board(collections);
    let of = what(topic, options.collections.as_deref(), &asked);
    let itinerary = match (&options.from, options.at) {
        (Some(token), _) => Some(Itinerary::of_token(token, of)?),
        (None, at) => at.map(|at| Itinerary::new(Index(at), options.range(), of)),
    };
    let check = match (&options.from, &itinerary) {
        _ if !options.check => None,
        (Some(_), Some(itinerary)) => Some(Check::behind(itinerary)?),
        _ => Some(Check::default()),
    };
    let mut came = Came { options, known, clock: RealClock::new(), items: 0, bytes: 0, check };
    let whole = itinerary.as_ref().map(Itinerary::whole);
    let mut together = match itinerary {
        Some(itinerary) => Together::of_mark(nodes, asked.clone(), itinerary)
            .map_err(|e| if options.from.is_some() { of_old_token(e) } else { e })?,
        None => Together::now(nodes, asked.clone())?,
    };
    let (untouched, mut rode) = (together.token(), Vec::new());
    if let Err(e) = came.ride(&mut together, &mut rode, out) {
        return Err(goes_on(e, &untouched, &together.token(), &came.token(&together)));
    }
    if let Some(whole) = whole {
        // All of it is as of one entry, also what was received before by who goes on with a token.
        rode.truncate(1);
        rode.iter_mut().for_each(|rode| rode.range = whole);
    }
    came.print(topic, out)?;
    if let Some(check) = &mut came.check {
        together.image_sums().iter().for_each(|sums| check.said(sums));
        check.run(each_node, topic, options.versions, &rode, out)?;
    }
    match options.follow {
        true => follow::run(Follow::new(&asked, &rode)?, options, each_node, out),
        false => Ok(()),
    }
}

/// Nobody has an image of the token's entry, and none is made of an entry that is over.
fn of_old_token(e: Error) -> Error {
    match e.kind {
        Kind::NotFound => Error::not_found(format!(
            "{e}; unless a node that is away has one, what is left of the token's ride is not to be had any more: \
             ride another entry from its beginning (`--at`)"
        )),
        _ => e,
    }
}

/// An error that ends a ride, and how to go on behind what was received, if that is anything.
fn goes_on(
    e: Error,
    untouched: &Option<String>,
    left: &Option<String>,
    token: &Option<String>,
) -> Error {
    let Some(token) = token.as_ref().filter(|_| left != untouched) else { return e };
    let message = format!(
        "{}; what was received until then is whole: go on behind it, with the same options, by `--from \
         {token}`",
        e.message
    );
    Error { message, ..e }
}

/// The nodes that answer, of those that are not to be left out. It may do without the others.
fn answering(
    nodes: &mut dyn Iterator<Item = Result<Node>>,
    options: &RideOptions,
) -> Result<Vec<Server>> {
    let (mut there, mut silent) = (Vec::new(), None);
    let mut others: Vec<&String> = options.not.iter().chain(&options.apart).collect();
    for node in nodes {
        match node {
            Ok(Node { name, client }) => {
                others.retain(|other| **other != name);
                let is_apart = options.apart.contains(&name);
                if !options.not.contains(&name) {
                    there.push(Server { name, client, is_apart });
                }
            }
            Err(e) => {
                aside(format_args!("a node is left out: {e}"));
                silent = Some(e);
            }
        }
    }
    // One that is silent may be it.
    if let (Some(name), None) = (others.first(), &silent) {
        return Err(Error::invalid(format!(
            "ride a topic: `--not` and `--apart` are of nodes that `--server` names, as it names them, \
             and `{name}` is none of them"
        )));
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

impl Came<'_> {
    /// Until everything was received: what is printed counts as that, and nothing else.
    fn ride(
        &mut self,
        together: &mut Together,
        rode: &mut Vec<Rode>,
        out: &mut Output,
    ) -> Result<()> {
        while let Some(heard) = together.next(WAIT)? {
            match heard {
                Heard::Began(began) => rode.push(began),
                Heard::Slab(slab) => {
                    self.take(&slab, out)?;
                    together.taken();
                }
                Heard::LeftOut(e) => {
                    aside(format_args!("a ride breaks off and goes on elsewhere, if it can: {e}"));
                }
                Heard::Nothing => {}
            }
        }
        Ok(())
    }

    /// For `--from`: what is left, and with `--check` the sums of what counts as received.
    fn token(&self, together: &Together) -> Option<String> {
        match &self.check {
            Some(check) => together.token_with(&check.came()),
            None => together.token(),
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
        // Not before all of it is printed: then it counts as received.
        if let Some(check) = &mut self.check {
            check.add(slab)?;
        }
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
