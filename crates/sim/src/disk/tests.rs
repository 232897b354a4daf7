use super::*;
use holdfast_env::buf::AlignedBuf;
use holdfast_env::disk::{ReplaceSites, read_file, replace_file};

const SEEDS: Range<u64> = 0..200;

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn contents(disk: &SimDisk, name: &str) -> Option<Vec<u8>> {
    match read_file(disk, path(name), 1 << 30) {
        Ok(bytes) => Some(bytes),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => panic!("{name}: {e}"),
    }
}

/// A disk with the durable file `/f` of four sectors of ones.
fn four_sectors() -> (SimDisk, Arc<dyn File>) {
    let disk = SimDisk::new(1);
    let file = disk.create(path("/f"), Access::Cached).unwrap();
    file.write_at(&[1; 4 * SECTOR_BYTES], 0).unwrap();
    file.sync("t.data").unwrap();
    disk.sync_dir(path("/"), "t.name").unwrap();
    (disk, file)
}

/// The first byte of each sector after a cut, for every seed.
fn outcomes(disk: &SimDisk) -> BTreeSet<Vec<u8>> {
    SEEDS
        .map(|seed| {
            let bytes = contents(&disk.power_cut(seed), "/f").unwrap();
            bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect()
        })
        .collect()
}

#[test]
fn synced_bytes_survive_every_cut() {
    let (disk, _) = four_sectors();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![1; 4]]));
}

#[test]
fn any_subset_of_unsynced_sectors_survives() {
    let (disk, file) = four_sectors();
    file.write_at(&[2; 2 * SECTOR_BYTES], SECTOR_BYTES as u64).unwrap();
    let expected: BTreeSet<Vec<u8>> =
        [[1, 1], [1, 2], [2, 1], [2, 2]].iter().map(|[b, c]| vec![1, *b, *c, 1]).collect();
    assert_eq!(outcomes(&disk), expected);
}

#[test]
fn every_version_since_the_last_sync_may_be_the_one_on_disk() {
    let (disk, file) = four_sectors();
    file.write_at(&[2], 0).unwrap();
    file.write_at(&[3], 0).unwrap();
    let first: BTreeSet<u8> = outcomes(&disk).into_iter().map(|sectors| sectors[0]).collect();
    assert_eq!(first, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_durable_write_covers_its_own_sectors_only() {
    let (disk, file) = four_sectors();
    file.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    file.write_at_durable(&[3; SECTOR_BYTES], 4 * SECTOR_BYTES as u64, "t.data").unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([vec![1, 1, 1, 1, 3], vec![2, 1, 1, 1, 3]]));
}

#[test]
fn an_unsynced_length_is_kept_or_lost() {
    let (disk, file) = four_sectors();
    file.write_at(&[2; 10], 4 * SECTOR_BYTES as u64).unwrap();
    let lengths: BTreeSet<usize> =
        SEEDS.map(|seed| contents(&disk.power_cut(seed), "/f").unwrap().len()).collect();
    assert_eq!(lengths, BTreeSet::from([4 * SECTOR_BYTES, 4 * SECTOR_BYTES + 10]));
}

#[test]
fn a_durable_write_makes_every_length_below_it_impossible() {
    let (disk, file) = four_sectors();
    file.write_at(&[2; 10], 4 * SECTOR_BYTES as u64).unwrap();
    file.write_at_durable(&[3; 10], 5 * SECTOR_BYTES as u64, "t.data").unwrap();
    for seed in SEEDS {
        let bytes = contents(&disk.power_cut(seed), "/f").unwrap();
        assert_eq!(bytes[5 * SECTOR_BYTES..], [3; 10], "seed {seed}");
    }
}

#[test]
fn nothing_lies_beyond_a_length_that_survived() {
    let (disk, file) = four_sectors();
    file.write_at(&[2; 10], 4 * SECTOR_BYTES as u64).unwrap();
    file.write_at(&[2; 20], 4 * SECTOR_BYTES as u64).unwrap();
    let mut short = 0;
    for seed in SEEDS {
        let after = disk.power_cut(seed);
        let file = after.open(path("/f"), Access::Cached).unwrap();
        if file.len().unwrap() == 4 * SECTOR_BYTES as u64 + 10 {
            short += 1;
            file.set_len(5 * SECTOR_BYTES as u64).unwrap();
            assert_eq!(contents(&after, "/f").unwrap()[4 * SECTOR_BYTES + 10..][..10], [0; 10]);
        }
    }
    assert!(short > 0);
}

#[test]
fn cut_off_bytes_read_as_zeros_and_stay_away_once_synced() {
    let cut_and_extend = || {
        let (disk, file) = four_sectors();
        file.set_len(SECTOR_BYTES as u64 + 1).unwrap();
        file.set_len(3 * SECTOR_BYTES as u64).unwrap();
        (disk, file)
    };
    let (disk, _) = cut_and_extend();
    let mut expected = vec![1; SECTOR_BYTES + 1];
    expected.resize(3 * SECTOR_BYTES, 0);
    assert_eq!(contents(&disk, "/f").unwrap(), expected);
    let kept = outcomes(&disk);
    assert!(kept.contains(&vec![1; 4]), "an unsynced cut may be lost: {kept:?}");

    // A durable write elsewhere carries the inode along: the cut is durable, too.
    let (disk, file) = cut_and_extend();
    file.write_at_durable(&[5; 8], 0, "t.data").unwrap();
    expected[..8].fill(5);
    for seed in SEEDS {
        assert_eq!(contents(&disk.power_cut(seed), "/f").unwrap(), expected, "seed {seed}");
    }
}

#[test]
fn fresh_sectors_tear_and_synced_ones_only_in_flight() {
    let torn = |disk: &SimDisk, sector: usize| {
        SEEDS.clone().any(|seed| {
            let bytes = contents(&disk.power_cut(seed), "/f").unwrap();
            let sector = &bytes[sector * SECTOR_BYTES..][..SECTOR_BYTES];
            sector.iter().any(|b| *b != sector[0])
        })
    };
    let (disk, file) = four_sectors();
    file.set_len(5 * SECTOR_BYTES as u64).unwrap();
    file.sync("t.data").unwrap();
    file.write_at(&[2; 2 * SECTOR_BYTES], 3 * SECTOR_BYTES as u64).unwrap();
    assert!(!torn(&disk, 3), "a sector that was synced is replaced whole");
    assert!(torn(&disk, 4), "a sector that was never synced tears");

    let (disk, file) = four_sectors();
    disk.crash_at(disk.operations());
    assert!(file.write_at_durable(&[2; SECTOR_BYTES], 0, "t.data").is_err());
    assert!(torn(&disk, 0), "a write in flight tears");
}

#[test]
fn names_are_durable_after_the_directory_is_synced() {
    let disk = SimDisk::new(1);
    disk.create_dir_all(path("/d/e")).unwrap();
    for name in ["/d/a", "/d/b"] {
        let file = disk.create(path(name), Access::Cached).unwrap();
        file.write_at_durable(b"x", 0, "t.data").unwrap();
    }
    let names = |disk: &SimDisk| -> Vec<String> {
        disk.list(path("/d")).unwrap().into_iter().map(|entry| entry.name).collect()
    };
    let seen: BTreeSet<Vec<String>> = SEEDS.map(|seed| names(&disk.power_cut(seed))).collect();
    assert_eq!(seen.len(), 4, "each name on its own: {seen:?}");

    let disk = disk.power_cut_losing_all();
    disk.create(path("/d/c"), Access::Cached).unwrap();
    disk.sync_dir(path("/d"), "t.name").unwrap();
    disk.remove(path("/d/c")).unwrap();
    let seen: BTreeSet<Vec<String>> = SEEDS.map(|seed| names(&disk.power_cut(seed))).collect();
    let (with, without) = (vec!["c".to_owned(), "e".to_owned()], vec!["e".to_owned()]);
    assert_eq!(seen, BTreeSet::from([with, without]), "a removal is kept or lost");
}

#[test]
fn a_rename_is_atomic_and_a_replaced_file_is_old_or_new() {
    let sites = ReplaceSites { data: "t.data", name: "t.name" };
    let disk = SimDisk::new(1);
    replace_file(&disk, path("/f"), &[1; 10_000], sites).unwrap();
    disk.disable_site("t.name");
    replace_file(&disk, path("/f"), &[2; 9_000], sites).unwrap();
    let seen: BTreeSet<Vec<u8>> =
        SEEDS.map(|seed| contents(&disk.power_cut(seed), "/f").unwrap()).collect();
    assert_eq!(seen, BTreeSet::from([vec![1; 10_000], vec![2; 9_000]]));
}

#[test]
fn a_file_never_has_two_names() {
    let (disk, _) = four_sectors();
    disk.rename(path("/f"), path("/g")).unwrap();
    disk.rename(path("/g"), path("/h")).unwrap();
    for seed in SEEDS {
        assert_eq!(disk.power_cut(seed).list(path("/")).unwrap().len(), 1, "seed {seed}");
    }
}

#[test]
fn directories_can_be_volatile() {
    for volatile_dirs in [false, true] {
        let disk =
            SimDisk::with_options(1, SimDiskOptions { volatile_dirs, ..SimDiskOptions::default() });
        disk.create_dir_all(path("/a/b")).unwrap();
        disk.sync_dir(path("/a"), "t.name").unwrap();
        let kept = disk.power_cut_losing_all().exists(path("/a/b")).unwrap();
        assert_eq!(kept, !volatile_dirs, "lost with `/a`, which nobody synced");
    }
    let disk = SimDisk::with_options(
        1,
        SimDiskOptions { volatile_dirs: true, ..SimDiskOptions::default() },
    );
    disk.create_dir_all(path("/a")).unwrap();
    disk.sync_dir(path("/"), "t.name").unwrap();
    assert!(disk.power_cut_losing_all().exists(path("/a")).unwrap());
}

#[test]
fn handles_of_before_the_cut_fail() {
    let (disk, file) = four_sectors();
    let after = disk.power_cut(1);
    assert!(file.read_at(&mut [0; 1], 0).is_err());
    assert!(file.write_at(&[9], 0).is_err());
    assert!(file.sync("t.data").is_err());
    assert!(disk.open(path("/f"), Access::Cached).is_err());
    assert_eq!(contents(&after, "/f").unwrap()[0], 1);
}

#[test]
fn a_flipped_bit_is_one_bit_and_outlives_the_power() {
    let (disk, _) = four_sectors();
    disk.flip_bit(path("/f"), 5000, 3).unwrap();
    let mut expected = vec![1; 4 * SECTOR_BYTES];
    expected[5000] ^= 8;
    assert_eq!(contents(&disk, "/f").unwrap(), expected);
    assert_eq!(contents(&disk.power_cut(1), "/f").unwrap(), expected);
    assert!(disk.flip_bit(path("/f"), 1 << 20, 0).is_err());
}

#[test]
fn a_full_disk_refuses_new_sectors_and_takes_reserved_ones() {
    let capacity_bytes = 8 * SECTOR_BYTES as u64;
    let disk =
        SimDisk::with_options(1, SimDiskOptions { capacity_bytes, ..SimDiskOptions::default() });
    let file = disk.create(path("/f"), Access::Cached).unwrap();
    let full = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    };
    file.set_len(1 << 20).unwrap();
    full(file.allocate(9 * SECTOR_BYTES as u64));
    file.allocate(6 * SECTOR_BYTES as u64).unwrap();
    file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    assert_eq!(disk.space(path("/")).unwrap().free_bytes, 2 * SECTOR_BYTES as u64);
    // A hole beyond what was reserved takes space.
    full(file.write_at(&[1; 3 * SECTOR_BYTES], 6 * SECTOR_BYTES as u64));
    file.write_at(&[1; 2 * SECTOR_BYTES], 6 * SECTOR_BYTES as u64).unwrap();
    full(file.write_at_durable(&[1], 8 * SECTOR_BYTES as u64, "t.data"));
    file.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    assert_eq!(disk.space(path("/")).unwrap().free_bytes, 0);
    file.set_len(SECTOR_BYTES as u64).unwrap();
    assert_eq!(disk.space(path("/")).unwrap().free_bytes, 7 * SECTOR_BYTES as u64);
    // What was cut off takes space again once it is written, and survives the power as counted.
    file.write_at(&[2; 4 * SECTOR_BYTES], 2 * SECTOR_BYTES as u64).unwrap();
    file.sync("t.data").unwrap();
    disk.sync_dir(path("/"), "t.name").unwrap();
    assert_eq!(disk.space(path("/")).unwrap().free_bytes, 3 * SECTOR_BYTES as u64);
    disk.set_capacity(0);
    full(file.write_at(&[2], SECTOR_BYTES as u64));
    disk.set_capacity(capacity_bytes);
    let after = disk.power_cut_losing_all();
    assert_eq!(after.space(path("/")).unwrap().free_bytes, 3 * SECTOR_BYTES as u64);
    after.remove(path("/f")).unwrap();
    assert_eq!(after.space(path("/")).unwrap().free_bytes, capacity_bytes);
}

#[test]
fn the_nth_sync_fails_and_its_bytes_never_get_another_chance() {
    let (disk, file) = four_sectors();
    file.write_at(&[2; 4 * SECTOR_BYTES], 0).unwrap();
    disk.fail_sync(2);
    disk.sync_dir(path("/"), "t.name").unwrap();
    assert_eq!(file.sync("t.data").unwrap_err().raw_os_error(), Some(EIO));
    file.sync("t.data").unwrap();
    assert_eq!(contents(&disk, "/f").unwrap()[0], 2, "the cache still shows it");
    let kept = outcomes(&disk);
    assert_eq!(kept.len(), 1, "decided when the sync failed: {kept:?}");

    // The name was durable, the bytes never: is the length?
    let forgets = |volatile_lengths: bool, seed: u64| {
        let options = SimDiskOptions { volatile_lengths, ..SimDiskOptions::default() };
        let disk = SimDisk::with_options(seed, options);
        let file = disk.create(path("/f"), Access::Cached).unwrap();
        disk.sync_dir(path("/"), "t.name").unwrap();
        disk.fail_syncs_at("t.data");
        file.write_at_durable(&[3; 8], 0, "t.data").unwrap_err();
        disk.heal();
        file.sync("t.data").unwrap();
        contents(&disk.power_cut(0), "/f").unwrap().is_empty()
    };
    assert!((0..20).any(|seed| forgets(true, seed)));
    assert!(!(0..20).any(|seed| forgets(false, seed)));
}

#[test]
fn a_site_that_fails_leaves_others_alone() {
    let (disk, file) = four_sectors();
    disk.fail_syncs_at("t.name");
    assert!(disk.sync_dir(path("/"), "t.name").is_err());
    file.sync("t.data").unwrap();
    disk.heal();
    disk.sync_dir(path("/"), "t.name").unwrap();
}

#[test]
fn reads_fail_where_told_and_after_a_rename() {
    let (disk, file) = four_sectors();
    disk.fail_reads(path("/f"), 4096..4097).unwrap();
    disk.rename(path("/f"), path("/g")).unwrap();
    disk.sync_dir(path("/"), "t.name").unwrap();
    assert_eq!(file.read_at(&mut [0; 4096], 0).unwrap(), 4096);
    assert!(file.read_at(&mut [0; 4097], 0).is_err());
    let after = disk.power_cut(1);
    let file = after.open(path("/g"), Access::Cached).unwrap();
    assert!(file.read_at(&mut [0; 1], 4096).is_err());
    after.heal();
    assert_eq!(file.read_at(&mut [0; 1], 4096).unwrap(), 1);
}

#[test]
fn the_power_can_fail_at_every_operation_of_a_run() {
    let sites = ReplaceSites { data: "t.data", name: "t.name" };
    let run = |disk: &SimDisk| {
        replace_file(disk, path("/f"), &[1; 5000], sites)
            .and_then(|()| replace_file(disk, path("/f"), &[2; 5000], sites))
    };
    let whole = SimDisk::new(1);
    run(&whole).unwrap();
    assert_eq!(whole.operations(), 10);
    for operation in 0..whole.operations() {
        let disk = SimDisk::new(1);
        disk.crash_at(operation);
        assert!(run(&disk).is_err() && disk.crashed());
        assert_eq!(disk.operations(), operation + 1);
        assert_eq!(disk.trace()[..], whole.trace()[..operation as usize + 1]);
        for seed in SEEDS {
            let found = contents(&disk.power_cut(seed), "/f");
            let allowed: &[Option<Vec<u8>>] = match operation {
                0..3 => &[None],
                3..5 => &[None, Some(vec![1; 5000])],
                5..8 => &[Some(vec![1; 5000])],
                _ => &[Some(vec![1; 5000]), Some(vec![2; 5000])],
            };
            assert!(allowed.contains(&found), "operation {operation}, seed {seed}");
        }
    }
}

#[test]
fn a_site_switched_off_loses_data() {
    let sites = ReplaceSites { data: "t.data", name: "t.name" };
    let whole = SimDisk::new(1);
    replace_file(&whole, path("/f"), &[1; 100], sites).unwrap();
    assert_eq!(whole.sites(), ["t.data", "t.name"]);
    assert_eq!(contents(&whole.power_cut_losing_all(), "/f"), Some(vec![1; 100]));
    for site in whole.sites() {
        let disk = SimDisk::new(1);
        disk.disable_site(site);
        replace_file(&disk, path("/f"), &[1; 100], sites).unwrap();
        let after = disk.power_cut_losing_all();
        assert_ne!(contents(&after, "/f"), Some(vec![1; 100]), "without `{site}`");
        replace_file(&after, path("/f"), &[1; 100], sites).unwrap();
        let again = after.power_cut_losing_all();
        assert_ne!(contents(&again, "/f"), Some(vec![1; 100]), "`{site}` stays off");
    }
    let disk = SimDisk::new(1);
    disk.disable_site("t.data");
    let file = disk.create(path("/f"), Access::Cached).unwrap();
    disk.sync_dir(path("/"), "t.name").unwrap();
    file.write_at_durable(&[1; 100], 0, "t.data").unwrap();
    assert_eq!(contents(&disk.power_cut_losing_all(), "/f"), Some(vec![]));
}

#[test]
fn the_same_seed_gives_the_same_trace_and_outcome() {
    let run = |byte: u8| {
        let (disk, file) = four_sectors();
        file.write_at(&[byte; 3 * SECTOR_BYTES], 0).unwrap();
        disk.fail_sync(1);
        let _ = file.sync("t.data");
        (disk.digest(), disk.trace(), contents(&disk.power_cut(7), "/f"))
    };
    assert_eq!(run(2), run(2));
    assert_ne!(run(2).0, run(3).0, "the digest covers what was written");
    assert_eq!(run(2).1.last().unwrap(), "sync /f t.data");
}

#[test]
fn direct_access_wants_whole_aligned_sectors() {
    let disk = SimDisk::new(1);
    let file = disk.create(path("/f"), Access::Direct).unwrap();
    let mut buf = AlignedBuf::zeroed(8192);
    file.write_at(&buf, 4096).unwrap();
    assert!(file.write_at(&buf, 1).is_err());
    assert!(file.write_at(&buf[..100], 0).is_err());
    assert!(file.read_at(&mut buf[512..4608], 0).is_err());
    assert_eq!(file.read_at(&mut buf, 8192).unwrap(), 4096);
}

#[test]
fn one_lock_a_path_at_a_time() {
    let disk = SimDisk::new(1);
    let held = disk.lock(path("/LOCK")).unwrap();
    assert_eq!(disk.lock(path("/LOCK")).err().unwrap().kind(), io::ErrorKind::WouldBlock);
    let after = disk.power_cut(1);
    after.lock(path("/LOCK")).unwrap();
    drop(held);
}

#[test]
fn missing_and_taken_names_are_errors() {
    let (disk, _) = four_sectors();
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    let create = |name: &str| disk.create(path(name), Access::Cached).map(|_| ());
    assert_eq!(kind(create("/f")), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(create("/no/f")), io::ErrorKind::NotFound);
    assert_eq!(kind(create("/f/g")), io::ErrorKind::NotADirectory);
    assert_eq!(kind(disk.remove(path("/x"))), io::ErrorKind::NotFound);
    assert_eq!(kind(disk.rename(path("/x"), path("/y"))), io::ErrorKind::NotFound);
    assert_eq!(kind(disk.create_dir_all(path("/f/d"))), io::ErrorKind::NotADirectory);
    assert_eq!(kind(disk.list(path("/x")).map(|_| ())), io::ErrorKind::NotFound);
    let file = disk.open(path("/f"), Access::Cached).unwrap();
    assert_eq!(kind(file.write_at(&[1; 2], u64::MAX)), io::ErrorKind::FileTooLarge);
}

#[test]
fn threads_share_one_disk() {
    let disk = SimDisk::new(1);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let disk = &disk;
            scope.spawn(move || {
                let file = disk.create(path(&format!("/{thread}")), Access::Cached).unwrap();
                for n in 0..50 {
                    file.write_at_durable(&[thread; 100], n * 100, "t.data").unwrap();
                }
            });
        }
    });
    disk.sync_dir(path("/"), "t.name").unwrap();
    let after = disk.power_cut_losing_all();
    for thread in 0..4u8 {
        assert_eq!(contents(&after, &format!("/{thread}")), Some(vec![thread; 5000]));
    }
}

#[test]
fn a_killed_process_leaves_what_it_wrote_and_makes_none_of_it_durable() {
    let disk = SimDisk::new(1);
    let file = disk.create(path("/a"), Access::Cached).unwrap();
    file.write_at(b"written", 0).unwrap();
    let after = disk.process_kill();
    assert!(file.write_at(b"x", 0).is_err(), "the process is gone");
    assert_eq!(contents(&after, "/a").unwrap(), b"written");
    assert_eq!(contents(&after.power_cut_losing_all(), "/a"), None);
}
