//! The simulated disk against the machine's: while the power stays on, nobody can tell them apart.

use holdfast_env::disk::{Access, Disk, Entry, read_file};
use holdfast_env::{RealDisk, Rng, SeededRng};
use holdfast_sim::SimDisk;
use std::io;
use std::path::{Path, PathBuf};

/// What a caller sees of one operation: its result, or the kind of its error.
type Seen = Result<String, io::ErrorKind>;

fn step(disk: &dyn Disk, dir: &Path, rng: &dyn Rng) -> Seen {
    let any = |below: u64| rng.next_u64() % below;
    // Any of the first three may be a directory at times.
    let name = |n: u64| dir.join(["a", "b", "c", "a/x", "b/x", "b/x/y"][n as usize]);
    let (path, other) = (name(any(6)), name(any(6)));
    let (operation, offset, len) = (any(10), any(20_000), any(9_000));
    let byte = any(256) as u8;
    let open = || disk.open(&path, Access::Cached);
    let done = |result: io::Result<()>| result.map(|()| "done".to_owned());
    let seen = match operation {
        0 => disk.create(&path, Access::Cached).map(|_| "made".to_owned()),
        1 => open().and_then(|file| done(file.write_at(&vec![byte; len as usize], offset))),
        2 => open().and_then(|file| {
            done(file.write_at_durable(&vec![byte; len as usize], offset, "t.data"))
        }),
        3 => open().and_then(|file| done(file.set_len(offset))),
        4 => open().and_then(|file| done(file.allocate(offset))),
        5 => open().and_then(|file| done(file.sync("t.data"))),
        6 => done(disk.rename(&path, &other)),
        7 if any(3) == 0 => done(disk.create_dir_all(&path)),
        8 if any(3) == 0 => done(disk.remove(&path)),
        8 => done(disk.sync_dir(dir, "t.name")),
        _ => open().and_then(|file| {
            let mut buf = vec![0; len as usize];
            let got = file.read_at(&mut buf, offset)?;
            Ok(format!("{:?}", &buf[..got]))
        }),
    };
    seen.map_err(|e| e.kind())
}

fn everything(disk: &dyn Disk, dir: &Path) -> Vec<(Entry, Vec<u8>)> {
    let entries = disk.list(dir).unwrap().into_iter();
    entries
        .flat_map(|entry| {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                let below = everything(disk, &path);
                return [(entry, Vec::new())].into_iter().chain(below).collect();
            }
            vec![(entry, read_file(disk, &path, 1 << 20).unwrap())]
        })
        .collect()
}

#[test]
fn the_simulated_disk_behaves_like_the_machines() {
    let scratch: PathBuf =
        std::env::temp_dir().join(format!("holdfast-sim-{}", std::process::id()));
    for seed in 0..20 {
        let (real_dir, sim_dir) = (scratch.join(seed.to_string()), Path::new("/d"));
        RealDisk.create_dir_all(&real_dir).unwrap();
        let sim = SimDisk::new(seed);
        sim.create_dir_all(sim_dir).unwrap();
        let (real_rng, sim_rng) = (SeededRng::new(seed), SeededRng::new(seed));
        for n in 0..150 {
            let real = step(&RealDisk, &real_dir, &real_rng);
            let simulated = step(&sim, sim_dir, &sim_rng);
            assert_eq!(simulated, real, "seed {seed}, step {n}: {:?}", sim.trace().last());
        }
        assert_eq!(everything(&sim, sim_dir), everything(&RealDisk, &real_dir), "seed {seed}");
    }
    std::fs::remove_dir_all(scratch).unwrap();
}
