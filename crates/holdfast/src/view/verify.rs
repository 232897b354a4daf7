//! `holdfast view verify`: whether the views of a topic hold the same items. One set of disk views that
//! has all keys is the measure: what any other view holds at its own index is summed up, and held
//! against what the measure held at that same index, sub-range by sub-range of the keys' hashes. So
//! nothing has to stand still: disk views know every index from the horizon on.

use super::Node;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::view::{Candidate, select};
use holdfast_command::output::Output;
use holdfast_ride::describe;
use holdfast_view::items::log_topic;
use holdfast_wire::slab::{Differing, Range, Sums, shown};
use holdfast_wire::view::{Sum, Summed, ViewKind, ViewStatus};
use serde_json::json;

/// How often two views are compared anew because the horizon has moved meanwhile.
const TRIES: u32 = 5;
/// Hashes of one request to a disk view, which is a pass over its rows: a sixteenth of them.
const PIECE: u64 = 1 << 28;

/// One view of one node.
struct Place {
    node: usize,
    status: ViewStatus,
    range: Range,
    /// What came of it.
    found: Found,
}

#[derive(Default)]
struct Found {
    keys: u64,
    at: Index,
    /// Part of it is the measure.
    is_measure: bool,
    was_compared: bool,
    /// Sub-ranges in which it differs from the measure: of the newest items, or of earlier ones alone.
    newest: Vec<u8>,
    earlier: Vec<u8>,
    /// Why it is not compared.
    left_out: Option<String>,
    /// That was found when it was to be.
    could_not_be: bool,
}

impl Place {
    fn is_disk(&self) -> bool {
        self.status.view.kind == ViewKind::Disk {}
    }
}

impl Found {
    fn leave_out(&mut self, why: String) {
        (self.left_out, self.could_not_be) = (Some(why), true);
    }

    fn differs(&self) -> bool {
        !self.newest.is_empty() || !self.earlier.is_empty()
    }
}

/// Compares and prints a line for each view. Fails where one differs, or could not be compared.
pub fn run(
    nodes: &mut dyn Iterator<Item = Result<Node>>,
    topic: &str,
    out: &mut Output,
) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("verify topic `{topic}`"));
    // None stands for all of them elsewhere, and views of two topics hold other items.
    log_topic(topic)?;
    let mut nodes = nodes.collect::<Result<Vec<Node>>>().map_err(doing)?;
    let mut places = places(&mut nodes, topic).map_err(doing)?;
    if let ([], Some(node)) = (&places[..], nodes.first_mut()) {
        // Whether there is such a topic at all.
        node.client.view(topic).catalog().map_err(doing)?;
    }
    let measure = measure(&places, Range::ALL).map_err(|_| no_measure(topic, &places))?;
    let reached = places.iter().map(|place| place.status.applied).max().unwrap_or_default();
    for (place, range) in &measure {
        places[*place].found.is_measure = true;
        for at in 0..places.len() {
            let both = places[at].range.intersection(*range);
            if at != *place && places[at].found.left_out.is_none() && !both.is_empty() {
                compare(&mut nodes, &mut places, (at, *place), both, reached);
            }
        }
    }
    for Place { found, .. } in &mut places {
        for sub_ranges in [&mut found.newest, &mut found.earlier] {
            sub_ranges.sort_unstable();
            sub_ranges.dedup();
        }
    }
    let was_looked_at = |place: &Place| place.found.was_compared || place.found.could_not_be;
    if !places.iter().any(was_looked_at) {
        return Err(Error::not_found(format!(
            "verify topic `{topic}`: there is nothing but {} to compare: run another view, or name more \
             nodes (`--server A,B`){}",
            named(&places, &nodes, |found| found.is_measure),
            left_out(&places)
        )));
    }
    places.iter().try_for_each(|place| print(place, &nodes, out))?;
    conclude(&places, &nodes, topic)
}

fn places(nodes: &mut [Node], topic: &str) -> Result<Vec<Place>> {
    let mut places = Vec::new();
    for (node, asked) in nodes.iter_mut().enumerate() {
        for status in asked.client.views(topic)? {
            let left_out = match &status.view.kind {
                _ if !status.stopped.is_empty() => {
                    Some(format!("it has stopped: {}", status.stopped))
                }
                _ if !status.begins.is_empty() => Some(format!("it begins: {}", status.begins)),
                ViewKind::Index { .. } => Some("an index has no items to compare".to_owned()),
                _ => None,
            };
            let range = Range::part(status.view.part, status.view.of);
            let found = Found { left_out, ..Found::default() };
            places.push(Place { node, status, range, found });
        }
    }
    Ok(places)
}

/// Disk views that have all keys of a range together, of each what is taken of it.
fn measure(places: &[Place], wanted: Range) -> Result<Vec<(usize, Range)>> {
    let disks: Vec<usize> = (0..places.len())
        .filter(|at| places[*at].is_disk() && places[*at].found.left_out.is_none())
        .collect();
    let candidate = |at: &usize| Candidate {
        range: places[*at].range,
        applied: places[*at].status.applied,
        is_apart: false,
    };
    let candidates: Vec<Candidate> = disks.iter().map(candidate).collect();
    let chosen = select(&candidates, wanted)?;
    Ok(chosen.into_iter().map(|chosen| (disks[chosen.candidate], chosen.range)).collect())
}

fn no_measure(topic: &str, places: &[Place]) -> Error {
    Error::not_found(format!(
        "verify topic `{topic}`: others are compared with disk views, and those of the nodes that were \
         asked do not have all keys: name more nodes (`--server A,B`), or run one (`holdfast view \
         run disk {topic}`){}",
        left_out(places)
    ))
}

/// Who is left out, as it begins or has stopped, in an error's sentence: perhaps just these are missing.
fn left_out(places: &[Place]) -> String {
    let one = |place: &Place| {
        let why = place.found.left_out.as_ref()?;
        Some(format!("; `{}` is left out: {why}", describe(&place.status.view)))
    };
    places.iter().filter_map(one).collect()
}

/// What disk views of these nodes hold of a range as of an entry, piece by piece: for who has received that.
/// `Retry` where the horizon has passed the entry meanwhile.
pub fn held(nodes: &mut [Node], topic: &str, range: Range, index: Index) -> Result<Vec<Summed>> {
    let places = places(nodes, topic)?;
    let measure = measure(&places, range)?.into_iter();
    let held = measure.map(|(place, part)| {
        sum(nodes, &places[place], part, (index, Some(index)))?.ok_or_else(|| {
            Error::retry(format!(
                "sum up topic `{topic}` as of entry {index}: the horizon has passed it meanwhile: ask again"
            ))
        })
    });
    held.collect()
}

/// Holds a view against one of the measure, in a range that both have. What cannot be read is left out, and
/// no other one for it.
fn compare(
    nodes: &mut [Node],
    places: &mut [Place],
    (at, with): (usize, usize),
    range: Range,
    reached: Index,
) {
    for _ in 0..TRIES {
        let own = match sum(nodes, &places[at], range, (reached, None)) {
            Ok(Some(own)) => own,
            Ok(None) => continue,
            Err(e) => return places[at].found.leave_out(e.to_string()),
        };
        let other = match &places[with].found.left_out {
            Some(why) => Err(why.clone()),
            None => sum(nodes, &places[with], range, (own.at, Some(own.at))).map_err(|e| {
                let why = e.to_string();
                places[with].found.leave_out(why.clone());
                why
            }),
        };
        let other = match other {
            Ok(Some(other)) => other,
            Ok(None) => continue,
            Err(why) => {
                let Place { node, status, .. } = &places[with];
                let (view, node) = (describe(&status.view), nodes[*node].name.clone());
                let why = format!(
                    "view `{view}` of {node}, which it is compared with, is not read ({why})"
                );
                return places[at].found.leave_out(why);
            }
        };
        let has_versions = places[at].is_disk();
        if has_versions && own.horizon != other.horizon {
            continue;
        }
        let found = &mut places[at].found;
        let Differing { newest, earlier } = own.sums.differing(&other.sums);
        found.newest.extend(newest);
        if has_versions {
            found.earlier.extend(earlier);
        }
        found.keys += own.keys;
        found.at = found.at.max(own.at);
        found.was_compared = true;
        return;
    }
    places[at].found.leave_out(format!(
        "the horizon has moved {TRIES} times while it was compared: ask again when it rests"
    ));
}

/// What a view holds of a range: all of it at one index, of a disk view piece by piece. Nothing where the
/// horizon has moved meanwhile.
fn sum(
    nodes: &mut [Node],
    place: &Place,
    range: Range,
    when: (Index, Option<Index>),
) -> Result<Option<Summed>> {
    let client = &mut nodes[place.node].client;
    let mut ask = |low, high, reached, at| {
        let view = place.status.view.clone();
        client.view(&place.status.view.topic).sum(&Sum { view, low, high, reached, at })
    };
    let piece = if place.is_disk() { PIECE } else { Range::ALL.high() };
    sum_in_pieces(range, piece, when, &mut ask)
}

/// Sums up a piece: from which hash on, below which, once the view has reached which entry, as of which.
type SumPiece<'a> = dyn FnMut(u64, u64, Index, Option<Index>) -> Result<Summed> + 'a;

/// As [`sum`]. Pieces of two horizons are no state that a view ever had: some are with versions that others
/// are without.
fn sum_in_pieces(
    range: Range,
    piece: u64,
    (reached, mut at): (Index, Option<Index>),
    ask: &mut SumPiece<'_>,
) -> Result<Option<Summed>> {
    let mut total: Option<Summed> = None;
    let mut low = range.low();
    while low < range.high() {
        let high = range.high().min((low / piece + 1) * piece);
        let summed = match ask(low, high, reached, at) {
            Ok(summed) => summed,
            // The horizon has passed that index: its versions are gone.
            Err(e) if e.kind == Kind::Invalid && at.is_some() => return Ok(None),
            Err(e) => return Err(e),
        };
        at = Some(summed.at);
        match &mut total {
            Some(total) if total.horizon != summed.horizon => return Ok(None),
            Some(total) => {
                total.keys += summed.keys;
                total.sums.add_sums(&summed.sums);
            }
            None => total = Some(summed),
        }
        low = high;
    }
    let nothing = || Summed { at: reached, horizon: Index(0), keys: 0, sums: Sums::default() };
    Ok(Some(total.unwrap_or_else(nothing)))
}

fn print(place: &Place, nodes: &[Node], out: &mut Output) -> Result<()> {
    let Found { keys, at, is_measure, was_compared, newest, earlier, left_out, .. } = &place.found;
    let (view, node) = (describe(&place.status.view), &nodes[place.node].name);
    let mut differs = Vec::new();
    if !newest.is_empty() {
        differs.push(format!("values of keys with hashes {}", shown(newest)));
    }
    if !earlier.is_empty() {
        differs.push(format!("earlier versions of keys with hashes {}", shown(earlier)));
    }
    out.line(
        || match (left_out, is_measure, was_compared) {
            _ if place.found.differs() => {
                format!(
                    "{view}  {node}  {keys} keys at entry {at}: DIFFERS in {}",
                    differs.join("; ")
                )
            }
            (Some(why), ..) => format!("{view}  {node}  left out: {why}"),
            (None, true, false) => format!("{view}  {node}  others are compared with it"),
            _ => format!("{view}  {node}  {keys} keys at entry {at}: agrees"),
        },
        || {
            json!({
                "view": view,
                "node": node,
                "keys": was_compared.then_some(keys),
                "at": was_compared.then_some(at.0),
                "is_measure": is_measure,
                "agrees": was_compared.then_some(!place.found.differs()),
                "newest_differ": newest,
                "earlier_differ": earlier,
                "left_out": left_out,
            })
        },
    )
}

/// Views of which this is so, as people say them.
fn named(places: &[Place], nodes: &[Node], which: impl Fn(&Found) -> bool) -> String {
    let name =
        |place: &Place| format!("`{}` of {}", describe(&place.status.view), nodes[place.node].name);
    let all = places.iter().filter(|place| which(&place.found)).map(name);
    all.collect::<Vec<_>>().join(", ")
}

fn conclude(places: &[Place], nodes: &[Node], topic: &str) -> Result<()> {
    let compared = places.iter().filter(|place| place.found.was_compared).count();
    let differing = places.iter().filter(|place| place.found.differs()).count();
    // Of an index there is nothing to be compared.
    let is_missing = |place: &&Place| {
        let is_index = matches!(place.status.view.kind, ViewKind::Index { .. });
        place.found.left_out.is_some() && !is_index
    };
    let missing = places.iter().filter(is_missing).count();
    if differing == 0 && missing > 0 {
        return Err(Error::retry(format!(
            "verify topic `{topic}`: those that were compared agree, and {missing} could not be: see above \
             why, and ask again"
        )));
    }
    if differing == 0 {
        return Ok(());
    }
    // Who differs from everybody is more likely wrong than everybody.
    let hint = match differing == compared && compared > 1 {
        true => " (all others differ from it, so rather it is wrong)",
        false => "",
    };
    Err(Error::corrupt(format!(
        "verify topic `{topic}`: {} differ from {}{hint}: stop the view that is wrong, remove what it \
         leaves, and run it again: it folds the log anew",
        named(places, nodes, Found::differs),
        named(places, nodes, |found| found.is_measure),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summed(at: u64, horizon: u64, keys: u64) -> Summed {
        Summed { at: Index(at), horizon: Index(horizon), keys, sums: Sums::default() }
    }

    /// A disk view is summed up in sixteen requests. Where the horizon moved between two of them, some
    /// sums had versions that others were without, and the view was said to differ; where it moved past
    /// the index that the first one named, the comparison failed in place of being begun anew.
    #[test]
    fn what_is_summed_up_while_the_horizon_moves_is_summed_up_anew() {
        let all = (Index(3), None);
        let mut asked = Vec::new();
        let rests = sum_in_pieces(Range::ALL, PIECE, all, &mut |low, high, reached, at| {
            asked.push((low, high, reached, at));
            Ok(summed(9, 2, 1))
        });
        assert_eq!(rests.unwrap().map(|sum| (sum.at, sum.keys)), Some((Index(9), 16)));
        assert_eq!(asked[0], (0, PIECE, Index(3), None));
        assert_eq!(
            asked[15],
            (15 * PIECE, 16 * PIECE, Index(3), Some(Index(9))),
            "as of one entry"
        );
        for moves_at in 1..16 {
            let moves = |to: u64| {
                move |low: u64, _, _, at: Option<Index>| match low < moves_at * PIECE {
                    true => Ok(summed(9, 2, 1)),
                    false if to <= 9 => Ok(summed(9, to, 1)),
                    false => {
                        assert_eq!(at, Some(Index(9)));
                        Err(Error::invalid("versions before it are gone"))
                    }
                }
            };
            for to in [7, 12] {
                let sum = sum_in_pieces(Range::ALL, PIECE, all, &mut moves(to)).unwrap();
                assert!(sum.is_none(), "the horizon moves to {to} in front of piece {moves_at}");
            }
        }
        let wrong = |_, _, _, _| Err(Error::invalid("there is no such view"));
        assert!(sum_in_pieces(Range::ALL, PIECE, all, &mut { wrong }).is_err());
        let at = (Index(9), Some(Index(9)));
        let passed = |_, _, _, _| Err(Error::invalid("versions before 12 are gone"));
        assert!(sum_in_pieces(Range::ALL, PIECE, at, &mut { passed }).unwrap().is_none());
    }
}
