//! What goes wrong among regions, as a seed draws it.

use crate::world::{Cell, End, REGIONS, TABLE, Visitor, World, address};
use crate::{MS, SECOND};
use holdfast_base::codec::Encode;
use holdfast_env::{HoldMutex, sometimes};
use holdfast_sim::task::spawn;
use holdfast_table::ids::{LogId, Place, RegionId, StreamId};
use holdfast_table::name::TableName;
use holdfast_table::tablet::Tablet;
use holdfast_wire::OP_TABLE_SEAL;
use holdfast_wire::table::{Seal, TableMode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A log of a timeline table that was lost.
#[derive(Clone, Debug)]
pub struct Erasure {
    pub at_ns: u64,
    /// Of each key the highest version that another region held then: what is behind it may be gone.
    held: BTreeMap<Vec<u8>, u64>,
}

impl Erasure {
    pub fn held(&self, key: &[u8]) -> u64 {
        self.held.get(key).copied().unwrap_or(0)
    }
}

pub type Erasures = Arc<Mutex<Vec<Erasure>>>;

/// Has things go wrong until then.
pub async fn happen(visitor: Visitor, erasures: Erasures, until_ns: u64) {
    // Most come early enough to meet those who make the table.
    visitor.pause(50 * MS, SECOND).await;
    while visitor.now_ns() < until_ns {
        match visitor.world.shared.plan.seals && visitor.below(2) == 0 {
            true => be_away(&visitor),
            false => draw(&visitor, &erasures),
        }
        match visitor.below(3) {
            0 => visitor.pause(20 * MS, 600 * MS).await,
            _ => visitor.pause(SECOND / 2, 5 * SECOND).await,
        }
    }
}

fn draw(visitor: &Visitor, erasures: &Erasures) {
    let world = &visitor.world;
    let at = visitor.below(u64::from(REGIONS)) as u8;
    let other = (at + 1 + visitor.below(u64::from(REGIONS) - 1) as u8) % REGIONS;
    let cell = &world.cells[usize::from(at)];
    let long_ns = SECOND / 5 + visitor.below(10 * SECOND);
    let how = if visitor.below(2) == 0 { End::Kill } else { End::PowerCut };
    match visitor.below(16) {
        // Back at once: what was said to the start before is still on its way.
        0..4 => end(cell, how, visitor.below(150 * MS)),
        4 => end(cell, how, long_ns),
        5 => cell.disk().crash_behind_sync(),
        6 | 7 => cut(world, &[(at, other)], long_ns),
        8 => cut(world, &around(at), long_ns),
        9 => {
            world.net.hang_up(&address(at), &address(other));
            world.net.hang_up(&address(other), &address(at));
        }
        10 | 11 => {
            cell.fill_disk();
            let cell = cell.clone();
            world.net.after_ns(long_ns, move || cell.make_room());
        }
        12 => world.cells.iter().for_each(|cell| end(cell, how, visitor.below(2 * SECOND))),
        _ => match !world.shared.plan.seals && may_erase(world, at, erasures) {
            true => erase(world, cell, erasures, visitor.below(4 * SECOND)),
            false => end(cell, how, visitor.below(SECOND)),
        },
    }
}

/// A region is away for longer than anybody waits, or only the ways to it are, and operators elsewhere call it lost.
fn be_away(visitor: &Visitor) {
    let world = &visitor.world;
    let at = visitor.below(u64::from(REGIONS)) as u8;
    let for_ns = 10 * SECOND + visitor.below(5 * SECOND);
    match visitor.below(2) {
        0 => end(&world.cells[usize::from(at)], End::Kill, for_ns),
        _ => cut(world, &around(at), for_ns),
    }
    let until_ns = visitor.now_ns() + for_ns;
    for by in (0..REGIONS).filter(|by| *by != at && visitor.below(2) == 0) {
        let name = format!("operator of region {by} without {at}");
        let operator = Visitor::new(name, visitor.below(u64::MAX), world);
        spawn(&world.net, async move {
            while operator.now_ns() < until_ns {
                operator.pause(SECOND / 2, 2 * SECOND).await;
                let seal = Seal { table: TABLE.into(), lost: at }.to_bytes();
                // Refused while it was heard, and told to ask again until it is done.
                let _ = operator.ask(by, OP_TABLE_SEAL, seal, None, 4000).await;
            }
        });
    }
}

fn end(cell: &Arc<Cell>, how: End, for_ns: u64) {
    cell.end(how);
    let starting = cell.clone();
    cell.shared.net.after_ns(for_ns, move || starting.start());
}

/// The ways between a region and all others, there and back.
fn around(at: u8) -> Vec<(u8, u8)> {
    let others = (0..REGIONS).filter(|other| *other != at);
    others.flat_map(|other| [(at, other), (other, at)]).collect()
}

fn cut(world: &World, ways: &[(u8, u8)], for_ns: u64) {
    for (from, to) in ways.iter().map(|(from, to)| (address(*from), address(*to))) {
        world.net.note(&format!("{from} to {to} is cut"));
        world.net.cut(&from, &to);
        let net = world.net.clone();
        world.net.after_ns(for_ns, move || net.heal(&from, &to));
    }
}

/// Whether every log counts in every stream, and everybody holds what says so: one log may be lost, not two.
fn may_erase(world: &World, at: u8, erasures: &Erasures) -> bool {
    let plan = world.shared.plan;
    let all: Vec<Vec<Tablet>> = world.cells.iter().map(|cell| cell.tablets()).collect();
    if all.iter().any(|tablets| tablets.len() < usize::from(plan.tablets)) {
        return false;
    }
    (0..usize::from(plan.tablets)).all(|tablet| {
        let copies: Vec<&Tablet> = all.iter().map(|tablets| &tablets[tablet]).collect();
        let logs: Vec<LogId> = copies.iter().map(|copy| copy.log()).collect();
        let numbered = || (0..REGIONS).map(RegionId).zip(&logs);
        let counts = |copy: &&Tablet, id: StreamId| {
            let (stream, first) = (copy.stream(id), copies[0].stream(id));
            let since = first.members_since();
            numbered().all(|(region, log)| stream.counts(region, *log))
                && stream.members_since() == since
                && stream.tail().number >= since
                && stream.epoch_at(since) == first.epoch_at(since)
        };
        let tails_equal = |id: StreamId| {
            let tail = copies[0].stream(id).tail();
            copies.iter().all(|copy| copy.stream(id).tail() == tail)
        };
        match plan.mode {
            TableMode::Strong => {
                (0..REGIONS).map(StreamId).all(|id| copies.iter().all(|c| counts(c, id)))
            }
            // Two logs that are lost before the first has everything again may leave nothing to go on from.
            TableMode::Timeline => (0..REGIONS).map(StreamId).all(|id| {
                let own = copies[usize::from(id.0)].stream(id);
                own.leading() == Some(own.promised())
                    && (erasures.held().is_empty() || tails_equal(id))
            }),
        }
    }) && world.cells[usize::from(at)].is_up()
}

fn erase(world: &World, cell: &Arc<Cell>, erasures: &Erasures, for_ns: u64) {
    sometimes!("a log was erased");
    let others = world.cells.iter().filter(|other| other.region != cell.region);
    let mut held = BTreeMap::<Vec<u8>, u64>::new();
    for (number, tablet) in others.flat_map(|other| other.tablets().into_iter().enumerate()) {
        let topic = TableName::new(TABLE).unwrap().topic(number as u16);
        let known = world.shared.entries.held();
        for stream in tablet.streams() {
            for number in 1..=stream.tail().number {
                let place = Place::new(stream.epoch_at(number).unwrap_or_default(), number);
                let entry = known.get(&(topic.clone(), stream.id(), place));
                for change in entry.iter().flat_map(|entry| entry.body.changes()) {
                    let highest = held.entry(change.key.clone()).or_default();
                    *highest = change.version.max(*highest);
                }
            }
        }
    }
    erasures.held().push(Erasure { at_ns: world.net.now_ns(), held });
    end(cell, End::Erase, for_ns);
}

/// Nothing is wrong any more: who is away comes back.
pub fn heal(world: &World) {
    world.net.heal_all();
    for cell in &world.cells {
        cell.make_room();
        cell.start();
    }
}
