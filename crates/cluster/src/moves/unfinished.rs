//! What is left to do of moves, read from the views of all shards. Whoever leads does it, however often: each
//! entry knows its turn. Nothing is remembered beside the views, so that the next leader goes on.

use super::course::{self, Course};
use super::{Arriving, Frozen, Left, Stamp};
use crate::borders::{Forwarded, Given};
use crate::chunks::Debt;
use crate::{AllShards, Command, Namespace};
use holdfast_base::ids::{Durability, Index};
use holdfast_base::{Kind, Result};
use holdfast_env::planted;

/// Names that one entry forgets.
const FORGET_MAX: u32 = 4096;
/// Names for which there is room where a directory goes, beside those that are known, when it is held still.
const REST_ROOM: u64 = 16;

/// The next entry of something that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// To whose topic it goes.
    pub shard: u16,
    pub command: Command,
    /// The shard from whose view it follows: what that shows must be synced before. None of what need not
    /// be synced itself, for it is found again from what is.
    pub behind: Option<u16>,
    /// A directory takes no changes, or is between two shards, until it is done.
    pub is_urgent: bool,
}

/// Which of all that moves an entry is of, with what it does: the same for all parts of a directory.
pub type Errand = (u16, &'static str, String);

impl Unfinished {
    pub fn errand(&self) -> Errand {
        let (doing, what) = match &self.command {
            Command::Take { dir, .. } => ("take parts of", dir.clone()),
            Command::Depart { dir, .. } => ("let go", dir.clone()),
            Command::Arrive { dir, .. } | Command::Own { dir, .. } => ("take", dir.clone()),
            Command::Discard { dir, .. } => ("discard parts of", dir.clone()),
            Command::Step { dir, .. } => ("take parts of", dir.clone()),
            Command::Copied { dir, .. } => ("note what is copied of", dir.clone()),
            Command::Still { dir, still: true, .. } => ("hold still", dir.clone()),
            Command::Still { dir, .. } => ("let change again", dir.clone()),
            Command::Go { dir, .. } => ("let go", dir.clone()),
            Command::LetGo { from, .. } => ("let bytes go of", format!("shard {from}")),
            Command::LetGone { home, .. } => ("note what is let go by", format!("shard {home}")),
            _ => ("forget", "names that have left".to_owned()),
        };
        (self.shard, doing, what)
    }

    /// What the shard that it goes to would answer, as it is seen here: what is refused is not to be
    /// written, again and again.
    pub fn check(&self, all: &AllShards<'_>) -> Result<()> {
        if let Command::Still { dir, still: true, .. } = &self.command {
            let name = dir.trim_start_matches('/');
            check_room_there(all, all.get(self.shard)?, name)?;
        }
        all.get(self.shard)?.check_step(&self.command)
    }

    /// How the entry is to be kept.
    pub fn durability(&self) -> Durability {
        match self.behind {
            Some(_) => Durability::Durable,
            None => Durability::Memory,
        }
    }
}

pub(super) fn after(shard: u16, command: Command, behind: u16) -> Unfinished {
    Unfinished { shard, command, behind: Some(behind), is_urgent: false }
}

pub(super) fn by_and_by(shard: u16, command: Command) -> Unfinished {
    Unfinished { shard, command, behind: None, is_urgent: false }
}

fn urgent(step: Unfinished) -> Unfinished {
    Unfinished { is_urgent: true, ..step }
}

/// What waits for a person: a sentence each, with what to do. Every node sees it in its views.
pub fn waiting(all: &AllShards<'_>) -> Vec<String> {
    unfinished(all).into_iter().filter_map(|step| refused(all, &step)).collect()
}

fn refused(all: &AllShards<'_>, step: &Unfinished) -> Option<String> {
    let e = step.check(all).err().filter(|e| e.kind != Kind::Retry)?;
    let (shard, doing, what) = step.errand();
    let name = what.trim_start_matches('/');
    let moves = |source: &Namespace| {
        let moves = source.borders().moves();
        let frozen = moves.frozen.contains_key(name);
        (frozen || moves.copies.copying.contains_key(name)).then_some((source.shard(), frozen))
    };
    let or_back = all.iter().find_map(moves).map_or(String::new(), |(source, frozen)| {
        let meanwhile = match frozen {
            true => "is read and takes no changes",
            false => "is read and written where it is",
        };
        format!(
            ", or take the move back (`holdfast shard move {what} --to {source}`); until then `{what}` \
             {meanwhile}"
        )
    });
    let once = match (&step.command, e.kind) {
        // Files are written for it.
        (Command::Still { .. }, Kind::Invalid) => "it goes on by itself once that is so".to_owned(),
        _ => format!(
            "it goes on by itself once shard {shard} can: delete there what nobody needs, or move another \
             directory away from it"
        ),
    };
    Some(format!("shard {shard} cannot {doing} `{what}`: {}: {once}{or_back}", e.message))
}

/// The next entry of everything that moves, of each at most one.
pub fn unfinished(all: &AllShards<'_>) -> Vec<Unfinished> {
    let mut left = Vec::new();
    let away = all.root().borders().forwarded();
    left.extend(away.filter_map(|(name, forwarded)| departed(all, name, forwarded)));
    for shard in all.iter() {
        let moves = shard.borders().moves();
        if shard.names().is_leaving() {
            let forget = by_and_by(shard.shard(), Command::Forget { budget: FORGET_MAX });
            let is_urgent = moves.copies.following.values().any(|following| following.waits);
            left.push(Unfinished { is_urgent, ..forget });
        }
        for (name, frozen) in moves.frozen() {
            let step = match moves.copies.copying.get(name) {
                Some(copying) => Course::of(all, shard, name, copying).and_then(|c| c.rest()),
                None => next(all, shard, name, frozen),
            };
            left.extend(step.map(|step| urgent(or_change_again(all, shard, name, frozen, step))));
        }
        let moving = moves.copying().filter(|(name, _)| !moves.frozen.contains_key(*name));
        left.extend(moving.filter_map(|(name, copying)| match copying.is_spoilt {
            true => Some(course::still(shard, name, copying, true)),
            false => Course::of(all, shard, name, copying)?.copy(),
        }));
        let tell = |(name, copying)| Course::of(all, shard, name, copying)?.tell();
        left.extend(moves.copying().filter_map(tell));
        left.extend(moves.arriving().filter_map(|(name, a)| worthless(all, shard, name, a)));
        left.extend(shard.chunks().owed().filter_map(|(home, paid, debts)| {
            let home = all.get(home).ok()?;
            let (from, to) = (shard.shard(), home.shard());
            let heard = home.chunks().heard_of(from);
            if heard > paid {
                return Some(after(from, Command::LetGone { home: to, through: heard }, to));
            }
            // Behind one whose name is not given up there yet the others wait for that, and nothing is written.
            let can = |debt: &Debt| {
                !home.chunks().is_not_held_yet(debt)
                    || planted!("cluster.let-go-is-written-in-vain")
            };
            let debts: Vec<Debt> = debts.into_iter().take_while(can).collect();
            let waits = debts.is_empty() || home.names().is_leaving();
            (!waits).then(|| after(to, Command::LetGo { from, first: paid, debts }, from))
        }));
    }
    left
}

/// Of a directory that has left and is not there yet.
fn departed(all: &AllShards<'_>, name: &str, forwarded: Forwarded) -> Option<Unfinished> {
    let Forwarded { to, number } = forwarded;
    let (root, target) = (all.root(), all.get(to).ok()?);
    let (source, shard, attributes) = match target.borders().given_as(name) {
        Some(Given { number: at, gone: None }) if *at == number => return None,
        Some(Given { number: at, gone: Some(attributes) }) if *at == number => {
            (target, 0, attributes.clone())
        }
        _ => (root, to, root.dir_attributes(name)?),
    };
    let dir = format!("/{name}");
    let left = source.borders().moves().left.get(name).copied();
    let command = match left {
        // From shard 0 an empty one may have gone since, by one entry.
        Some(Left { freeze, parts }) if source.shard() != 0 || freeze == number => {
            Command::Arrive { dir, stamp: Stamp { number, freeze }, parts, attributes }
        }
        _ => Command::Own { dir, number, attributes },
    };
    Some(urgent(after(shard, command, source.shard())))
}

/// A directory for which there is no room takes changes again instead.
fn or_change_again(
    all: &AllShards<'_>,
    source: &Namespace,
    name: &str,
    frozen: Frozen,
    step: Unfinished,
) -> Unfinished {
    let takes = matches!(step.command, Command::Take { .. } | Command::Step { .. });
    match takes && step.check(all).is_err_and(|e| e.kind == Kind::Full) {
        false => step,
        true => {
            let (dir, copy) = (format!("/{name}"), frozen.at);
            let again = Command::Still { dir, copy, still: false };
            by_and_by(source.shard(), again)
        }
    }
}

/// Refuses to hold a directory still for which there may be no room then: it takes changes until there is.
fn check_room_there(all: &AllShards<'_>, source: &Namespace, name: &str) -> Result<()> {
    let Some(copying) = source.borders().moves().copies.copying.get(name) else { return Ok(()) };
    let target = all.get(copying.to)?;
    let count = match copying.is_spoilt {
        true => {
            source.usage(&format!("/{name}")).map_or(0, |u| u.files + u.directories + u.symlinks)
        }
        false => {
            let heard = target.borders().moves().following(name).map_or(0, |f| f.heard);
            // Some more come until it is still.
            2 * copying.total().saturating_sub(heard) + REST_ROOM
        }
    };
    let checked = target.names().check_room_for(count);
    checked.map_err(|e| e.context(format_args!("shard {}", target.shard())))
}

/// Of a frozen directory: its next part, or that it goes.
fn next(
    all: &AllShards<'_>,
    source: &Namespace,
    name: &str,
    Frozen { to, at }: Frozen,
) -> Option<Unfinished> {
    let (target, dir) = (all.get(to).ok()?, format!("/{name}"));
    let stamp = source.borders().stamp_of(name, at);
    let taken = target.borders().moves().arriving.get(name);
    if taken.is_some_and(|taken| taken.stamp != stamp) || target.borders().keeps(name) {
        return None;
    }
    let (part, behind) =
        taken.map_or((0, Vec::new()), |taken| (taken.parts, target.names().last_taken(taken)));
    let nodes = source.names().next_part(source.chunks(), &dir, &behind)?;
    if nodes.is_empty() {
        let depart = Command::Depart { dir, freeze: at, parts: part };
        return Some(after(source.shard(), depart, to));
    }
    if part == 0 && target.names().is_leaving() {
        return None;
    }
    let take = Command::Take { dir, stamp, part, nodes };
    Some(match part {
        0 => after(to, take, source.shard()),
        // The departure waits until all are synced.
        _ => by_and_by(to, take),
    })
}

/// Of parts whose freeze was taken back, as the shard says that froze it.
fn worthless(
    all: &AllShards<'_>,
    target: &Namespace,
    name: &str,
    arriving: Arriving,
) -> Option<Unfinished> {
    let Arriving { stamp, .. } = arriving;
    let source = match target.shard() {
        0 => all.get(all.root().borders().keeper_of(name)).ok()?,
        _ => all.root(),
    };
    let moves = source.borders().moves();
    let undone = moves.undone.get(name).is_some_and(|last| *last >= stamp.freeze);
    let frozen = moves.frozen.get(name).is_some_and(|frozen| frozen.at > stamp.freeze);
    let copied = moves.copies.copying.get(name).is_some_and(|c| c.at > stamp.freeze);
    let later = frozen || copied;
    let discard = Command::Discard { dir: format!("/{name}"), stamp };
    (undone || later).then(|| after(target.shard(), discard, source.shard()))
}

/// Whether a freeze is the first entry of a move: of one from shard 0 that is its number.
pub fn began_at(step: &Unfinished) -> Option<Index> {
    match &step.command {
        Command::Own { number, .. } => Some(*number),
        Command::Arrive { stamp, .. } => Some(stamp.number),
        _ => None,
    }
}
