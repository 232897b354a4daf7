//! What goes wrong, when: drawn from the seed. Every fault ends by itself; none takes the last
//! good copy of anything (media fail on one node of a schedule only, and its disk is erased only
//! while every chunk has copies elsewhere).

use super::cell::{Cell, End, MS, SECOND};
use super::{World, progress};
use crate::Weather;
use holdfast_base::ids::NodeId;
use holdfast_base::limits::SECTOR_BYTES;
use holdfast_base::{Error, Result};
use holdfast_cluster::ClusterCommand;
use holdfast_env::disk::read_file;
use holdfast_env::{Disk, Rng};
use std::path::Path;
use std::sync::Arc;

/// Kinds of faults; a schedule may do without some, to see what the others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Kill,
    PowerCut,
    PowerCutAll,
    Erase,
    Cut,
    Weather,
    Pause,
    FullDisk,
    FailSync,
    FailRead,
    FlipBit,
    ClockJump,
    Depose,
    Sleep,
    TornTail,
    Drain,
    KillAll,
    SlowDisk,
    LoseFile,
    Slow,
}

/// Each as often as it stands here.
pub const ALL: &[Fault] = &[
    Fault::Kill,
    Fault::Kill,
    Fault::PowerCut,
    Fault::PowerCut,
    Fault::PowerCut,
    Fault::PowerCutAll,
    Fault::Erase,
    Fault::Cut,
    Fault::Cut,
    Fault::Cut,
    Fault::Weather,
    Fault::Pause,
    Fault::Pause,
    Fault::FullDisk,
    Fault::FailSync,
    Fault::FailRead,
    Fault::FlipBit,
    Fault::FlipBit,
    Fault::ClockJump,
    Fault::Depose,
    Fault::Depose,
    Fault::Depose,
    Fault::Sleep,
    Fault::TornTail,
    Fault::TornTail,
    Fault::TornTail,
    Fault::Drain,
    Fault::KillAll,
    Fault::SlowDisk,
    Fault::SlowDisk,
    Fault::LoseFile,
];

/// What gives repair work, and what makes it slow.
pub const OF_REPAIR: &[Fault] = &[
    Fault::Erase,
    Fault::Erase,
    Fault::Kill,
    Fault::Slow,
    Fault::Slow,
    Fault::Slow,
    Fault::Drain,
    Fault::Pause,
    Fault::Cut,
    Fault::Depose,
];

/// At most what a node is slow for, and what it then sends and receives of copies a second.
const SLOW_NS_MAX: u64 = 25 * SECOND;
const SLOW_BYTES_PER_SECOND: [u64; 3] = [2000, 10_000, 50_000];
/// What a cluster on a laptop sleeps.
const NIGHT_NS: u64 = 9 * 3600 * SECOND;
/// Operations of the disk within which an announced power cut falls.
const CUT_WITHIN: u64 = 60;

impl World {
    fn draw(&self, (least, most): (u64, u64)) -> u64 {
        least + self.rng.next_u64() % (most - least)
    }

    /// Schedules the next fault, until `end_ns`.
    pub(super) fn fault_soon(self: &Arc<World>, end_ns: u64) {
        let world = self.clone();
        self.net.after_ns(self.draw(self.schedule.between_ns), move || {
            if world.net.now_ns() >= end_ns {
                return;
            }
            let fault = world.faults[(world.rng.next_u64() % world.faults.len() as u64) as usize];
            world.strike(fault);
            world.fault_soon(end_ns);
        });
    }

    fn any_cell(&self) -> &Arc<Cell> {
        &self.cells[(self.rng.next_u64() % self.cells.len() as u64) as usize]
    }

    fn strike(self: &Arc<World>, fault: Fault) {
        let cell = self.any_cell().clone();
        self.net.note(&format!("fault {fault:?} {}", cell.address));
        self.shared.count_fault(fault);
        match fault {
            Fault::Kill => self.end_for_a_while(&cell, End::Kill),
            Fault::PowerCut => self.cut_power_soon(&cell),
            Fault::PowerCutAll => {
                // The same moment, or about.
                self.cells.iter().for_each(|cell| self.end_for_a_while(cell, End::PowerCut));
            }
            Fault::Erase => self.erase(),
            Fault::Cut => self.cut_ways(),
            Fault::Weather => self.bad_weather(),
            Fault::Pause => cell.pause(self.draw((SECOND / 2, 8 * SECOND))),
            // Disks of one size that are written alike are full at about the same time.
            Fault::FullDisk if self.rng.next_u64().is_multiple_of(3) => {
                self.cells.iter().for_each(|cell| self.fill_disk(cell));
            }
            Fault::FullDisk => self.fill_disk(&cell),
            Fault::FailSync => self.fail_sync(&cell),
            Fault::FailRead => self.damage(false),
            Fault::FlipBit => self.damage(true),
            Fault::ClockJump => {
                let hours = 1 + (self.rng.next_u64() % 30) as i64;
                cell.jump_calendar((hours - 15) * 3_600_000);
            }
            Fault::Depose => self.depose(),
            Fault::Sleep => {
                let ns = self.draw((60 * SECOND, NIGHT_NS));
                self.note_sleep();
                self.cells.iter().for_each(|cell| cell.sleep(ns));
            }
            Fault::TornTail => self.damage_open(),
            Fault::Drain => self.drain(&cell),
            Fault::Slow => self.slow_down(&cell),
            Fault::KillAll => {
                self.cells.iter().for_each(|cell| self.end_for_a_while(cell, End::Kill));
            }
            Fault::SlowDisk => cell.slow_disk(self.draw((2 * SECOND, 15 * SECOND))),
            Fault::LoseFile => self.lose_file(),
        }
    }

    /// Ends a node now, and starts it later.
    fn end_for_a_while(self: &Arc<World>, cell: &Arc<Cell>, how: End) {
        cell.end(how);
        self.start_later(cell);
    }

    fn start_later(self: &Arc<World>, cell: &Arc<Cell>) {
        // Most are back soon, some only when they count as lost.
        let most = if self.rng.next_u64().is_multiple_of(4) { 30 * SECOND } else { 6 * SECOND };
        let cell = cell.clone();
        self.net.after_ns(self.draw((SECOND / 5, most)), move || cell.start());
    }

    /// The power fails within the next operations of the disk, whatever they are, or behind the next
    /// that is durable.
    fn cut_power_soon(self: &Arc<World>, cell: &Arc<Cell>) {
        let disk = cell.disk();
        match self.rng.next_u64() % 3 {
            0 => disk.crash_behind_sync(),
            _ => disk.crash_at(disk.operations() + self.rng.next_u64() % CUT_WITHIN),
        }
        let cell = cell.clone();
        let world = self.clone();
        // If nothing was written meanwhile, it fails anyhow.
        let ns = self.draw((SECOND, 3 * SECOND));
        self.net.after_ns(ns, move || world.end_for_a_while(&cell, End::PowerCut));
    }

    fn erase(self: &Arc<World>) {
        let cell = &self.cells[self.unlucky];
        if self.can_lose(cell) {
            self.shared.sometimes(true, "a disk was erased");
            self.end_for_a_while(cell, End::Erase);
        }
    }

    /// No broker answers anybody, or not this one node.
    fn cut_from_brokers(self: &Arc<World>) {
        let all = self.rng.next_u64().is_multiple_of(2);
        let one = self.any_cell().number;
        let log = self.address_of_log();
        let cut = self.cells.iter().filter(|cell| all || cell.number == one);
        let ways = cut.flat_map(|cell| {
            let at = cell.address.clone();
            [(at.clone(), log.clone()), (log.clone(), at)]
        });
        self.shared.sometimes(all, "no broker answered");
        self.cut_for(ways.collect(), self.draw((SECOND, 15 * SECOND)));
    }

    fn cut_ways(self: &Arc<World>) {
        if self.shared.brokers.is_some() && self.rng.next_u64().is_multiple_of(3) {
            return self.cut_from_brokers();
        }
        let (a, b) = (self.any_cell().clone(), self.any_cell().clone());
        let ways = match self.rng.next_u64() % 3 {
            // One from all the others.
            0 => {
                let others = self.cells.iter().filter(|other| other.number != a.number);
                let both = |other: &Arc<Cell>| {
                    [
                        (a.address.clone(), other.address.clone()),
                        (other.address.clone(), a.address.clone()),
                    ]
                };
                others.flat_map(both).collect::<Vec<_>>()
            }
            1 => vec![(a.address.clone(), b.address.clone())],
            _ => {
                vec![(a.address.clone(), b.address.clone()), (b.address.clone(), a.address.clone())]
            }
        };
        self.cut_for(ways, self.draw((SECOND, 15 * SECOND)));
    }

    /// The leader gives no sign of life for so long that another one takes over: the thread that
    /// does it hangs, or answers do not reach it, or nothing does.
    fn depose(self: &Arc<World>) {
        let leads = |cell: &&Arc<Cell>| cell.node().is_some_and(|node| node.leads());
        let Some(cell) = self.cells.iter().find(leads) else { return };
        let ns = self.draw((5 * SECOND, 12 * SECOND));
        // The log's host cannot be kept from the log.
        let hosts = cell.address == self.address_of_log();
        let how = if hosts { 0 } else { self.rng.next_u64() % 3 };
        if how == 0 {
            return cell.stall(ns);
        }
        let mut ways = vec![(self.address_of_log(), cell.address.clone())];
        if how == 2 {
            self.shared.sometimes(true, "a leader was cut off while it worked");
            for other in self.cells.iter().filter(|other| other.number != cell.number) {
                ways.push((other.address.clone(), cell.address.clone()));
                ways.push((cell.address.clone(), other.address.clone()));
            }
        }
        self.cut_for(ways, ns);
    }

    /// A node's copies take long for a while: its disk, or its link.
    fn slow_down(self: &Arc<World>, cell: &Arc<Cell>) {
        let rate = SLOW_BYTES_PER_SECOND[(self.rng.next_u64() % 3) as usize];
        self.net.narrow(&cell.address, rate);
        let (net, address) = (self.net.clone(), cell.address.clone());
        let ns = self.draw((3 * SECOND, SLOW_NS_MAX));
        self.net.after_ns(ns, move || net.narrow(&address, 0));
    }

    fn cut_for(&self, ways: Vec<(String, String)>, ns: u64) {
        ways.iter().for_each(|(from, to)| self.net.cut(from, to));
        let net = self.net.clone();
        self.net.after_ns(ns, move || ways.iter().for_each(|(from, to)| net.heal(from, to)));
    }

    /// A person has a node's chunks moved away, and thinks better of it.
    fn drain(self: &Arc<World>, cell: &Arc<Cell>) {
        let (Some(id), world) = (cell.node().map(|node| node.id), self.clone()) else { return };
        world.tell_draining(id, true);
        self.net.after_ns(self.draw((5 * SECOND, 30 * SECOND)), move || {
            world.tell_draining(id, false);
        });
    }

    /// Through any node that runs; until one takes it, for the end of a drain.
    pub(super) fn tell_draining(self: &Arc<World>, node: NodeId, on: bool) {
        let command = ClusterCommand::Drain { node, on };
        let world = self.clone();
        let done = move |told: Result<()>| match told {
            Ok(()) => world.shared.sometimes(on, "a node was drained"),
            Err(_) if on => {}
            Err(_) => {
                let again = world.clone();
                world.net.after_ns(SECOND, move || again.tell_draining(node, false));
            }
        };
        match self.cells.iter().find_map(|cell| cell.node()) {
            Some(through) => through.propose_cluster(&command, Box::new(done)),
            None => done(Err(Error::retry("nobody is there"))),
        }
    }

    fn bad_weather(self: &Arc<World>) {
        let breaks_per_mille = self.rng.next_u64() % 12;
        let delay_ns = (MS / 20, self.draw((MS, 200 * MS)));
        self.net.set_weather(Weather { delay_ns, breaks_per_mille, ..Weather::default() });
        let net = self.net.clone();
        let ns = self.draw((SECOND, 10 * SECOND));
        self.net.after_ns(ns, move || net.set_weather(Weather::default()));
    }

    fn fill_disk(self: &Arc<World>, cell: &Arc<Cell>) {
        let disk = cell.disk();
        let used = match holdfast_env::Disk::space(&disk, std::path::Path::new("/data")) {
            Ok(space) => space.total_bytes - space.free_bytes,
            Err(_) => return,
        };
        disk.set_capacity(used + self.rng.next_u64() % (256 << 10));
        let cell = cell.clone();
        // Whatever disk it has by then.
        self.net.after_ns(self.draw((SECOND, 10 * SECOND)), move || {
            cell.disk().set_capacity(super::DISK_BYTES);
        });
    }

    /// The last commit of an open chunk on the unlucky node is damaged, and the node restarts: what
    /// it finds is a torn tail, and the chunk shorter than was acknowledged.
    fn damage_open(self: &Arc<World>) {
        let cell = self.cells[self.unlucky].clone();
        if !self.can_lose(&cell) {
            return;
        }
        let disk = cell.disk();
        let directory = Path::new("/data/chunks");
        let open = disk.list(directory).unwrap_or_default().into_iter();
        let open: Vec<_> = open.filter(|entry| entry.name.ends_with(".open")).collect();
        for entry in open {
            let path = directory.join(entry.name);
            let Ok(bytes) = read_file(&disk, &path, u64::MAX) else { continue };
            let last = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            if last > 2 * SECTOR_BYTES
                && disk.flip_bit(&path, last as u64 - self.rng.next_u64() % 64, 3).is_ok()
            {
                self.net.note(&format!("a torn tail: {} {}", cell.address, path.display()));
                self.shared.sometimes(true, "an open chunk lost its tail");
            }
        }
        self.end_for_a_while(&cell, End::Kill);
    }

    /// One sync fails: what it was for is read-only until a person has started the node again.
    fn fail_sync(self: &Arc<World>, cell: &Arc<Cell>) {
        cell.disk().fail_sync(1 + self.rng.next_u64() % 20);
        self.note_failed_sync(cell);
        let (world, cell) = (self.clone(), cell.clone());
        self.net.after_ns(self.draw((3 * SECOND, 10 * SECOND)), move || {
            world.end_for_a_while(&cell, End::Kill);
        });
    }

    /// A sealed chunk's file on the unlucky node is gone when it starts again.
    fn lose_file(self: &Arc<World>) {
        let cell = self.cells[self.unlucky].clone();
        let Some(path) = self.sealed_file(&cell).filter(|_| self.can_lose(&cell)) else { return };
        cell.end(End::Kill);
        let disk = cell.disk();
        let gone = disk.remove(&path).and_then(|()| {
            disk.sync_dir(path.parent().unwrap_or(Path::new("/")), "world.lose-file")
        });
        if gone.is_ok() {
            self.net.note(&format!("a file is lost: {} {}", cell.address, path.display()));
            self.shared.sometimes(true, "a chunk's file was gone at a start");
        }
        self.start_later(&cell);
    }

    /// A sealed chunk's file on the unlucky node is damaged, or cannot be read in one place.
    fn damage(self: &Arc<World>, flip: bool) {
        let cell = &self.cells[self.unlucky];
        if !self.can_lose(cell) {
            return;
        }
        let disk = cell.disk();
        let Some(path) = self.sealed_file(cell) else { return };
        let file = holdfast_env::Disk::open(&disk, &path, holdfast_env::disk::Access::Cached);
        let Some(bytes) = file.and_then(|file| file.len()).ok().filter(|bytes| *bytes > 0) else {
            return;
        };
        let at = self.rng.next_u64() % bytes;
        let (did, what) = match flip {
            true => (disk.flip_bit(&path, at, (self.rng.next_u64() % 8) as u32), "a bit flipped"),
            false => (disk.fail_reads(&path, at..at + 4096), "a sector became unreadable"),
        };
        if did.is_ok() {
            self.net.note(&format!("{what}: {} {} at {at}", cell.address, path.display()));
            self.shared.sometimes(true, what);
        }
    }

    /// Ends all faults, and starts what does not run or is not whole.
    pub(super) fn heal(self: &Arc<World>) {
        self.net.note("everything heals");
        self.net.heal_all();
        self.net.set_weather(Weather::default());
        if self.schedule.draws_repair {
            self.slow_recovery(progress::FAST_BYTES_PER_SECOND);
        }
        for cell in &self.cells {
            self.net.narrow(&cell.address, 0);
            cell.disk().heal();
            cell.disk().set_capacity(super::DISK_BYTES);
            cell.pause(0);
            cell.stall(0);
            let limps = cell.node().is_none_or(|node| {
                node.stores.iter().any(|own| own.store.usage().read_only) || node.hosted().is_some()
            });
            if limps {
                cell.end(End::Kill);
                cell.start();
            }
        }
    }
}
