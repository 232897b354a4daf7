//! Leadership: three controllers, the production counts (with a smaller limit), every append
//! delayed as long as it likes, every reader as far behind as it likes. Commands under a claim that
//! another one has followed must be refused, whoever sends them and whatever its sender believes; and so
//! must a claim for a term that was over when a later one was claimed, or believers claim in turns.

use super::checker::{Model, check};
use holdfast_base::ids::{Index, NodeId, Term};
use holdfast_cluster::cluster::Leadership;
use std::collections::BTreeSet;

/// Beats that make a controller dead: the smallest number has every case of a larger one, and a
/// space that can be searched.
const BEATS_DEAD: u8 = 1;
/// The last one only beats.
const NODES: usize = 3;
const ACTORS: usize = 2;
/// What each node appends at most.
const BEATS: [u8; NODES] = [2, 2, 1];
const CLAIMS: [u8; ACTORS] = [1, 2];
const COMMANDS: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Chosen,
    /// `apply` takes commands of whatever claim.
    StaleEpochAccepted,
    /// Claims count for whatever term they are.
    TermsIgnored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Beat(usize),
    /// Whose, for which term.
    Claim(usize, Term),
    /// Whose, under the claim at this index.
    Command(usize, usize),
}

/// How far a node is from acting as leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    #[default]
    Follows,
    /// Its view says that it leads.
    Leads,
    /// It has read a beat that it sent since.
    Heard,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    read: usize,
    phase: Phase,
    /// Its claim, once it has read it back; another one's claim behind it ends it.
    claim: Option<usize>,
    /// It has a claim that it has not read back.
    claiming: bool,
    /// An append on its way; for a beat, whether it was sent leading.
    beat: Option<bool>,
    other: Option<Entry>,
    beats: u8,
    claims: u8,
    commands: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// With what `apply` made of it; for beats, whether they were sent leading.
    log: Vec<(Entry, bool)>,
    nodes: [Node; NODES],
}

#[derive(Clone, Debug)]
enum Action {
    SendBeat(usize),
    SendClaim(usize),
    SendCommand(usize),
    BeatArrives(usize),
    OtherArrives(usize),
    Read(usize),
}

struct Leading {
    rules: Rules,
}

fn id(node: usize) -> NodeId {
    NodeId(node as u32)
}

/// What whoever has read these entries sees lead.
fn leads(log: &[(Entry, bool)]) -> Option<Term> {
    let mut leadership = Leadership::default();
    leadership.reseat(Index(0), (0..NODES).map(id));
    for (i, (entry, _)) in log.iter().enumerate() {
        if let Entry::Beat(node) = entry {
            leadership.beat(Index(i as u64 + 1), id(*node), BEATS_DEAD);
        }
    }
    leadership.term()
}

fn leader(log: &[(Entry, bool)]) -> Option<usize> {
    leads(log).map(|term| term.leader.0 as usize)
}

fn epoch(log: &[(Entry, bool)]) -> Option<usize> {
    log.iter().rposition(|entry| matches!(entry, (Entry::Claim(..), true)))
}

/// The highest term that was claimed.
fn claimed(log: &[(Entry, bool)]) -> Option<Term> {
    let term = |entry: &(Entry, bool)| match entry {
        (Entry::Claim(_, term), true) => Some(*term),
        _ => None,
    };
    log.iter().filter_map(term).max()
}

impl Leading {
    fn append(&self, state: &mut State, entry: Entry, sent_leading: bool) {
        let accepted = match entry {
            Entry::Beat(_) => sent_leading,
            Entry::Claim(_, term) => {
                self.rules == Rules::TermsIgnored || Some(term) >= claimed(&state.log)
            }
            Entry::Command(_, claim) => {
                self.rules == Rules::StaleEpochAccepted || Some(claim) == epoch(&state.log)
            }
        };
        state.log.push((entry, accepted));
    }
}

fn read(state: &mut State, n: usize) {
    let at = state.nodes[n].read;
    let (entry, accepted) = state.log[at];
    let leads = leader(&state.log[..=at]) == Some(n);
    let node = &mut state.nodes[n];
    node.read += 1;
    node.phase = match (leads, node.phase) {
        (false, _) => Phase::Follows,
        (true, Phase::Follows) => Phase::Leads,
        (true, Phase::Leads) if entry == Entry::Beat(n) && accepted => Phase::Heard,
        (true, phase) => phase,
    };
    match entry {
        Entry::Claim(whose, _) if accepted => {
            node.claim = (whose == n).then_some(at);
            node.claiming &= whose != n;
        }
        Entry::Claim(whose, _) if whose == n => {
            // It reads a beat back once more before it claims again.
            node.claiming = false;
            node.phase = node.phase.min(Phase::Leads);
        }
        Entry::Claim(..) => {}
        Entry::Beat(_) | Entry::Command(..) => {}
    }
}

impl Model for Leading {
    type State = State;
    type Action = Action;

    fn initial(&self) -> State {
        let mut nodes = [Node::default(); NODES];
        nodes[0].phase = Phase::Leads;
        State { log: Vec::new(), nodes }
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        for (n, node) in state.nodes.iter().enumerate() {
            if node.beat.is_some() {
                out.push(Action::BeatArrives(n));
            } else if node.beats < BEATS[n] {
                out.push(Action::SendBeat(n));
            }
            if n >= ACTORS {
                continue;
            }
            if node.other.is_some() {
                out.push(Action::OtherArrives(n));
            } else {
                let claims = node.claim.is_none() && !node.claiming;
                if node.phase == Phase::Heard && claims && node.claims < CLAIMS[n] {
                    out.push(Action::SendClaim(n));
                }
                // It commands for as long as it believes: that may be long after it was deposed.
                let leads = node.phase == Phase::Heard && node.claim.is_some();
                if leads && node.commands < COMMANDS {
                    out.push(Action::SendCommand(n));
                }
            }
            if node.read < state.log.len() {
                out.push(Action::Read(n));
            }
        }
    }

    fn next(&self, state: &State, action: &Action) -> Option<State> {
        let mut next = state.clone();
        match *action {
            Action::SendBeat(n) => {
                next.nodes[n].beat = Some(next.nodes[n].phase >= Phase::Leads);
                next.nodes[n].beats += 1;
            }
            Action::SendClaim(n) => {
                let term = leads(&next.log[..next.nodes[n].read])?;
                next.nodes[n].other = Some(Entry::Claim(n, term));
                next.nodes[n].claiming = true;
                next.nodes[n].claims += 1;
            }
            Action::SendCommand(n) => {
                next.nodes[n].other = Some(Entry::Command(n, next.nodes[n].claim?));
                next.nodes[n].commands += 1;
            }
            Action::BeatArrives(n) => {
                let sent_leading = next.nodes[n].beat.take()?;
                self.append(&mut next, Entry::Beat(n), sent_leading);
            }
            Action::OtherArrives(n) => {
                let entry = next.nodes[n].other.take()?;
                self.append(&mut next, entry, false);
            }
            Action::Read(n) => read(&mut next, n),
        }
        Some(next)
    }

    /// Only the newest entry can be newly wrong.
    fn wrong(&self, state: &State) -> Option<String> {
        let ((entry, accepted), before) = state.log.split_last()?;
        if let Entry::Claim(node, term) = entry {
            let newest = claimed(before);
            return (*accepted && newest > Some(*term)).then(|| {
                format!("node {node}'s claim for the term {term} counts behind {newest:?}")
            });
        }
        let Entry::Command(node, claim) = entry else { return None };
        let commanded = before.iter().filter_map(|entry| match entry {
            (Entry::Command(_, claim), true) => Some(*claim),
            _ => None,
        });
        // The leader is fenced by nobody's late claim.
        if !accepted && let Some((Entry::Claim(_, term), true)) = before.get(*claim) {
            let leads = leads(before) == Some(*term);
            return leads.then(|| format!("node {node}, which leads, was refused under {claim}"));
        }
        let newest = commanded.max().max(epoch(before));
        (*accepted && newest > Some(*claim)).then(|| {
            format!("node {node}'s command under claim {claim} was accepted behind {newest:?}")
        })
    }

    fn shows(&self, state: &State, out: &mut BTreeSet<&'static str>) {
        if let Some((Entry::Command(n, _), accepted)) = state.log.last() {
            let before = &state.log[..state.log.len() - 1];
            match accepted {
                true => out.insert("a command was accepted"),
                false => out.insert("a stale command was refused"),
            };
            if !accepted && leader(before) == Some(*n) {
                out.insert("who leads again commanded under its claim for a term before");
            }
        }
        if let Some((Entry::Claim(..), false)) = state.log.last() {
            out.insert("a claim for a term that was over was refused");
        }
        let both = |n: &Node| n.phase == Phase::Heard && n.claim.is_some();
        if state.nodes.iter().filter(|node| both(node)).count() == 2 {
            out.insert("two believed that they lead");
        }
    }
}

#[test]
fn commands_of_two_leaders_are_never_accepted_out_of_the_order_of_their_claims() {
    let report = check("leadership", &Leading { rules: Rules::Chosen });
    assert!(report.wrong.is_none(), "{:?}", report.wrong);
    let points = [
        "a claim for a term that was over was refused",
        "a command was accepted",
        "a stale command was refused",
        "two believed that they lead",
        "who leads again commanded under its claim for a term before",
    ];
    assert!(report.seen.iter().eq(points.iter()), "{:?}", report.seen);
}

#[test]
fn an_epoch_that_is_not_checked_is_found() {
    let report = check("leadership, stale accepted", &Leading { rules: Rules::StaleEpochAccepted });
    assert!(report.wrong.is_some());
}

#[test]
fn claims_that_count_for_whatever_term_are_found() {
    let report = check("leadership, terms ignored", &Leading { rules: Rules::TermsIgnored });
    assert!(report.wrong.is_some());
}
