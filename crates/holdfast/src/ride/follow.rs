//! `holdfast ride --follow`: behind what was ridden, every change as the log has it, from the next entry
//! on, until the command is interrupted, or `--below` is reached. [`Follow`] knows what comes next; here are
//! the nodes, of which the next one is asked where one breaks off.

use super::{RideOptions, print_received};
use crate::view::Node;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::Client;
use holdfast_client::view::Follow;
use holdfast_command::output::{Output, aside};
use holdfast_env::tasks::Stop;
use holdfast_wire::slab::Received;
use std::time::Duration;

/// How long one node is asked for more before another one is, where several were named: one that is cut
/// off from the log hears of nothing.
const TAIL_WAIT: Duration = Duration::from_secs(20);
/// How long a node may be silent before another one is asked. It is asked to answer every half of that, also
/// where nothing came, so one that is well is never silent for so long; one that is frozen keeps its
/// connections, and nothing else tells. Whoever is asked next is asked for the same entry, so nothing is lost.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Before nodes are asked again of which none answers.
const REST: Duration = Duration::from_millis(500);

/// The nodes that were named, connected to anew; each is given up when it has been silent for so long, or as
/// the options of all commands have it.
pub type Nodes<'a> = &'a dyn Fn(Option<Duration>) -> Box<dyn Iterator<Item = Result<Node>> + 'a>;

/// Why nobody reads on at a node.
enum Ended {
    /// Another one may answer.
    Broke(Error),
    Failed(Error),
}

/// Prints changes until the end, the command is interrupted, or it cannot go on: where a node breaks off, at
/// the next one.
pub fn run(
    mut follow: Follow,
    options: &RideOptions,
    nodes: Nodes<'_>,
    out: &mut Output,
) -> Result<()> {
    // Until a round has shown how many there are.
    let (mut several, mut is_told) = (true, false);
    while !follow.is_over() {
        let (mut asked, mut some_answer, mut silent) = (0, false, None);
        for node in nodes(Some(SILENCE_MAX)) {
            if node.as_ref().is_ok_and(|node| options.not.contains(&node.name)) {
                continue;
            }
            asked += 1;
            let heard = match node {
                Ok(mut node) => hear(&mut follow, &mut node.client, several, &mut some_answer, out),
                Err(e) if e.kind == Kind::Retry => Err(Ended::Broke(e)),
                Err(e) => Err(Ended::Failed(e)),
            };
            match heard {
                Ok(()) => {}
                Err(Ended::Broke(e)) => silent = Some(e),
                Err(Ended::Failed(e)) => return Err(e),
            }
        }
        several = asked > 1;
        match silent.filter(|_| !some_answer) {
            None => is_told = false,
            Some(e) => {
                if !std::mem::replace(&mut is_told, true) {
                    aside(format_args!("nobody answers for now, and all are asked again: {e}"));
                }
                Stop::new().sleep_until_stop(REST);
            }
        }
    }
    Ok(())
}

/// Prints what a node tells, until it is the end, or it has nothing more for a while and there are others.
fn hear(
    follow: &mut Follow,
    client: &mut Client,
    several: bool,
    answers: &mut bool,
    out: &mut Output,
) -> std::result::Result<(), Ended> {
    while !follow.is_over() {
        let entries = follow.wait(client, TAIL_WAIT).map_err(|e| match e.kind {
            Kind::Retry => Ended::Broke(e),
            _ => Ended::Failed(e),
        })?;
        *answers = true;
        if entries.is_empty() && several {
            return Ok(());
        }
        for (index, entry) in entries {
            let mut print = |at: &Follow, item: Received<'_>| {
                print_received(at.collection(item.collection), &item, out)
            };
            follow.take(index, &entry, &mut print).map_err(Ended::Failed)?;
        }
    }
    Ok(())
}
