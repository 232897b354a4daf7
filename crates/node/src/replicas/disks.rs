//! What recovery may take of each of this node's disks: eq. 1 of Dayu, as for its link, with reads
//! and writes together, for a disk has one arm. A core: it is told what disks have carried. Knows
//! no copy; looked at 25 times a second.

use super::bucket::TokenBucket;
use super::share::Means;
use holdfast_base::ids::StoreId;
use holdfast_cluster::repair::Terms;
use holdfast_wire::peer::{Directions, DiskLoad};
use std::collections::BTreeMap;

/// The disks of this node's stores.
#[derive(Debug, Default)]
pub struct Disks {
    /// What each of them carries, bytes a second; 0 where that limits nothing.
    pub bytes_per_second: u64,
    by_store: BTreeMap<StoreId, OneDisk>,
}

#[derive(Debug, Default)]
struct OneDisk {
    /// Read and written by recovery since the start, and how long that took.
    moved: Directions,
    busy_ns: u64,
    /// Of the device; then as above.
    means: Means<4>,
    /// Bytes a second that recovery may read and write until the next look.
    allowed: u64,
    bucket: TokenBucket,
}

/// Which way recovery's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Out,
    Into,
}

impl Disks {
    /// Looks at every disk: `device_bytes` are what it has carried since some moment, if that is
    /// known; if not, there is no foreground.
    pub fn look(
        &mut self,
        now_ns: u64,
        terms: Terms,
        disks: impl IntoIterator<Item = (StoreId, Option<u64>)>,
    ) {
        let terms = terms.without_rate();
        for (store, device_bytes) in disks {
            let disk = self.by_store.entry(store).or_default();
            let Directions { out, into } = disk.moved;
            let totals = [device_bytes.unwrap_or(0), out, into, disk.busy_ns];
            disk.means.sample(now_ns, totals);
            let foreground = foreground(disk.means.now());
            disk.allowed = match self.bytes_per_second {
                0 => 0,
                most => terms.allow(most, foreground),
            };
        }
    }

    /// How long to wait before recovery reads or writes `bytes`, in milliseconds.
    pub fn wait(&mut self, store: StoreId, bytes: u64, now_ns: u64) -> u64 {
        let Some(disk) = self.by_store.get_mut(&store) else { return 0 };
        disk.bucket.take(bytes, disk.allowed, now_ns)
    }

    /// How long the next block would wait, in milliseconds.
    pub fn due_ms(&mut self, store: StoreId, now_ns: u64) -> u64 {
        let Some(disk) = self.by_store.get_mut(&store) else { return 0 };
        disk.bucket.due_ms(disk.allowed, now_ns)
    }

    pub fn count(&mut self, store: StoreId, way: Way, bytes: u64) {
        // What was never looked at is no disk of this node.
        let Some(disk) = self.by_store.get_mut(&store) else { return };
        match way {
            Way::Out => disk.moved.out += bytes,
            Way::Into => disk.moved.into += bytes,
        }
    }

    /// Recovery was at it for so long.
    pub fn worked(&mut self, store: StoreId, took_ns: u64) {
        if let Some(disk) = self.by_store.get_mut(&store) {
            disk.busy_ns += took_ns;
        }
    }

    /// By recovery, of and to all of them, since the start.
    pub fn moved(&self) -> Directions {
        let mut all = Directions::default();
        for disk in self.by_store.values() {
            all.out += disk.moved.out;
            all.into += disk.moved.into;
        }
        all
    }

    /// The last second.
    pub fn report(&self) -> Vec<DiskLoad> {
        let load = |(store, disk): (&StoreId, &OneDisk)| {
            let [all, out, into, busy_ns] = disk.means.last_second();
            DiskLoad {
                store: *store,
                bytes_per_second: self.bytes_per_second,
                foreground: foreground([all, out, into, busy_ns]),
                recovery: Directions { out, into },
                busy_per_mille: (busy_ns / 1_000_000) as u32,
            }
        };
        self.by_store.iter().map(load).collect()
    }
}

/// What is read from the page cache never reaches the device; what is read to verify a copy does,
/// and counts here: recovery waits for it as for others.
fn foreground([device, out, into, _]: [u64; 4]) -> u64 {
    device.saturating_sub(out + into)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const MS: u64 = 1_000_000;

    #[test]
    fn recovery_leaves_a_disk_to_its_foreground_and_reads_and_writes_share_the_rest() {
        let (busy, idle) = (StoreId(1), StoreId(2));
        let mut disks = Disks { bytes_per_second: 100 * MB, ..Disks::default() };
        let mut device = [0; 2];
        for tick in 0..50 {
            for (at, store) in [busy, idle].into_iter().enumerate() {
                disks.count(store, Way::Out, MB / 4);
                disks.count(store, Way::Into, MB / 4);
                disks.worked(store, 20 * MS);
                device[at] += MB / 2;
            }
            // Readers take 45 MB/s of the first.
            device[0] += 45 * MB / 25;
            let counts = [(busy, Some(device[0])), (idle, Some(device[1]))];
            disks.look(tick * 40 * MS, Terms::default(), counts);
        }
        // Of both, up to the last look.
        assert_eq!(disks.moved(), Directions { out: 49 * MB / 2, into: 49 * MB / 2 });
        let [of_busy, of_idle] = disks.report()[..] else { panic!("{:?}", disks.report()) };
        assert_eq!((of_busy.foreground, of_idle.foreground), (45 * MB, 0));
        assert_eq!(of_idle.recovery, Directions { out: 25 * MB / 4, into: 25 * MB / 4 });
        assert_eq!(of_idle.busy_per_mille, 500, "half of each 40 ms");
        // A second of blocks, to and from: what is allowed beside the foreground, 30 and 75 MB.
        for (store, most) in [(busy, 30), (idle, 75)] {
            let (mut now_ms, mut blocks) = (10_000, 0);
            while now_ms < 11_000 {
                now_ms += disks.wait(store, MB, now_ms * MS);
                blocks += 1;
            }
            assert!((most..=most + 4).contains(&blocks), "{blocks} MB of {most}");
        }
    }

    #[test]
    fn a_disk_that_nobody_limits_or_counts_waits_for_nothing() {
        let store = StoreId(1);
        let mut disks = Disks::default();
        disks.look(0, Terms::default(), [(store, None)]);
        assert_eq!(disks.wait(store, 1 << 40, 0), 0);
        disks.bytes_per_second = 8 * MB;
        for tick in 0..30 {
            disks.count(store, Way::Into, MB);
            disks.look(tick * 40 * MS, Terms::default(), [(store, None)]);
        }
        assert_eq!(disks.report()[0].foreground, 0);
        assert_eq!(disks.by_store[&store].allowed, 6 * MB);
    }
}
