//! What is left to do of moves, read from the views of all shards. Whoever leads does it, however often: each
//! entry knows its turn. Nothing is remembered beside the views, so that the next leader goes on.

use super::{Arriving, Frozen, Left, Stamp};
use crate::borders::{Forwarded, Given};
use crate::{AllShards, Command, Namespace};
use holdfast_base::ids::{Durability, Index};
use holdfast_base::{Kind, Result};

/// Names that one entry forgets.
const FORGET_MAX: u32 = 4096;

/// The next entry of something that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// To whose topic it goes.
    pub shard: u16,
    pub command: Command,
    /// The shard from whose view it follows: what that shows must be synced before. None of what need not
    /// be synced itself, for it is found again from what is.
    pub behind: Option<u16>,
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
            Command::LetGo { from, .. } => ("let bytes go of", format!("shard {from}")),
            Command::LetGone { home, .. } => ("note what is let go by", format!("shard {home}")),
            _ => ("forget", "names that have left".to_owned()),
        };
        (self.shard, doing, what)
    }

    /// What the shard that it goes to would answer, as it is seen here: what is refused is not to be
    /// written, again and again.
    pub fn check(&self, all: &AllShards<'_>) -> Result<()> {
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

fn after(shard: u16, command: Command, behind: u16) -> Unfinished {
    Unfinished { shard, command, behind: Some(behind) }
}

fn by_and_by(shard: u16, command: Command) -> Unfinished {
    Unfinished { shard, command, behind: None }
}

/// What waits for a person: a sentence each, with what to do. Every node sees it in its views.
pub fn waiting(all: &AllShards<'_>) -> Vec<String> {
    let refused = |step: Unfinished| {
        let e = step.check(all).err().filter(|e| e.kind != Kind::Retry)?;
        let (shard, doing, what) = step.errand();
        let name = what.trim_start_matches('/');
        let source = all.iter().find(|view| view.borders().moves().frozen.contains_key(name));
        let or_back = source.map_or(String::new(), |source| {
            format!(
                ", or take the move back (`holdfast shard move {what} --to {}`); until then `{what}` \
                 is read and takes no changes",
                source.shard()
            )
        });
        Some(format!(
            "shard {shard} cannot {doing} `{what}`: {}: it goes on by itself once shard {shard} can: \
             delete there what nobody needs, or move another directory away from it{or_back}",
            e.message
        ))
    };
    unfinished(all).into_iter().filter_map(refused).collect()
}

/// The next entry of everything that moves, of each at most one.
pub fn unfinished(all: &AllShards<'_>) -> Vec<Unfinished> {
    let mut left = Vec::new();
    let away = all.root().borders().forwarded();
    left.extend(away.filter_map(|(name, forwarded)| departed(all, name, forwarded)));
    for shard in all.iter() {
        if shard.names().is_leaving() {
            left.push(by_and_by(shard.shard(), Command::Forget { budget: FORGET_MAX }));
        }
        let moves = shard.borders().moves();
        left.extend(moves.frozen().filter_map(|(name, frozen)| next(all, shard, name, frozen)));
        left.extend(moves.arriving().filter_map(|(name, a)| worthless(all, shard, name, a)));
        left.extend(shard.chunks().owed().filter_map(|(home, paid, debts)| {
            let home = all.get(home).ok()?;
            let (from, to) = (shard.shard(), home.shard());
            let heard = home.chunks().heard_of(from);
            if heard > paid {
                return Some(after(from, Command::LetGone { home: to, through: heard }, to));
            }
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
    Some(after(shard, command, source.shard()))
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
    let later = moves.frozen.get(name).is_some_and(|frozen| frozen.at > stamp.freeze);
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
