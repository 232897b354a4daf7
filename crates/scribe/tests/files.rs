//! Stores of type `file` under power cuts, hours and full disks: what was written is there, in its order, and
//! no file is written to that an earlier process began.

use holdfast_base::random::Random;
use holdfast_env::Disk;
use holdfast_scribe::category::Category;
use holdfast_scribe::files::{Files, PLACES_MAX};
use holdfast_scribe::stores::{Lines, Place, Stores};
use holdfast_sim::{Clocks, SimDisk, SimDiskOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const HOUR_MS: u64 = 3_600_000;

fn open(disk: &SimDisk, clock: &Arc<Clocks>, keys: &str) -> Files {
    let toml = format!(
        "[[store]]\ncategory = 'default'\ntype = 'file'\nfile_path = '/logs'\nadd_newlines = true\n{keys}"
    );
    let stores = Stores::parse(&toml).unwrap();
    Files::new(Arc::new(disk.clone()), clock.clone(), stores.files().to_vec())
}

fn place(category: &str) -> Place {
    Place { store: 0, category: Category::new(category).unwrap() }
}

/// Whether these lines are written, all of them and synced.
fn write(files: &Files, category: &str, lines: &[String]) -> bool {
    let place = place(category);
    let lines = lines.iter().map(|line| line.as_bytes()).collect();
    files.write(&Lines::from([(&place, lines)])).is_empty()
}

/// Files of a category, by their names.
fn files(disk: &SimDisk, category: &str) -> BTreeMap<String, String> {
    let directory = Path::new("/logs").join(category);
    let read = |name: &str| {
        let file = disk.open_to_read(&directory.join(name), holdfast_env::disk::Access::Cached);
        let file = file.unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let names = disk.list(&directory).unwrap_or_default();
    names.into_iter().map(|entry| (entry.name.clone(), read(&entry.name))).collect()
}

/// Lines of a run of lives, each cut off by the power; what is missing of those that got OK.
fn missing(seed: u64, without: Option<&str>) -> usize {
    let mut random = Random::new(seed);
    let clock = Arc::new(Clocks::default());
    let options = SimDiskOptions { volatile_dirs: true, ..SimDiskOptions::default() };
    let mut disk = SimDisk::with_options(seed, options);
    let (mut told, mut number) = (Vec::new(), 0);
    for _ in 0..3 {
        if let Some(site) = without {
            disk.disable_site(site);
        }
        let writer = open(&disk, &clock, "max_size = '300'\nrotate_period = 'hourly'");
        disk.crash_at(disk.operations() + 5 + random.below(60));
        for _ in 0..30 {
            clock.unix_ms.fetch_add(random.below(HOUR_MS / 4), Ordering::Relaxed);
            let lines: Vec<String> = (0..1 + random.below(4))
                .map(|_| {
                    number += 1;
                    format!("line {number} {}", "x".repeat(random.below(40) as usize))
                })
                .collect();
            if write(&writer, "web", &lines) {
                told.extend(lines);
            }
        }
        disk = disk.power_cut(random.next());
    }
    // The last line of a file may be half of one.
    let files = files(&disk, "web");
    let read: Vec<&str> = files.values().flat_map(|text| text.lines()).collect();
    let mut rest = read.iter();
    // Others may be between: those of which nobody heard.
    told.iter().filter(|line| !rest.any(|one| one == line)).count()
}

#[test]
fn lines_that_got_ok_are_there_in_their_order_whenever_the_power_goes() {
    for seed in 0..150 {
        assert_eq!(missing(seed, None), 0, "seed {seed}");
    }
    for site in ["scribe lines", "scribe directory", "scribe file's name"] {
        let lost = (0..40).filter(|seed| missing(*seed, Some(site)) > 0).count();
        assert!(lost > 0, "without `{site}` nothing is lost");
    }
}

#[test]
fn files_follow_each_other_by_the_hour_and_by_their_size() {
    let clock = Arc::new(Clocks::default());
    let disk = SimDisk::new(1);
    let hourly = open(&disk, &clock, "max_size = '20'\nrotate_period = 'hourly'");
    let say = |files: &Files, line: &str| assert!(write(files, "web", &[line.to_owned()]));
    say(&hourly, "one");
    say(&hourly, "two");
    clock.unix_ms.store(HOUR_MS, Ordering::Relaxed);
    say(&hourly, "three");
    say(&hourly, "much longer than a file may be");
    say(&hourly, "four");
    clock.unix_ms.store(25 * HOUR_MS, Ordering::Relaxed);
    say(&hourly, "five");
    // A process that begins again leaves alone what is there.
    let again = open(&disk, &clock, "rotate_period = 'daily'\nbase_filename = 'web'");
    say(&again, "six");
    say(&again, "seven");
    let wanted = [
        ("web-1970-01-01_00000", "one\ntwo\n"),
        ("web-1970-01-01_00001", "three\n"),
        ("web-1970-01-01_00002", "much longer than a file may be\n"),
        ("web-1970-01-01_00003", "four\n"),
        ("web-1970-01-02_00000", "five\n"),
        ("web-1970-01-02_00001", "six\nseven\n"),
    ];
    let files: Vec<_> = files(&disk, "web").into_iter().collect();
    let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    assert_eq!(files, wanted);
}

/// A write that failed half way left half a line, and the next line was appended to it.
#[test]
fn behind_a_full_disk_a_new_file_begins() {
    let options = SimDiskOptions { capacity_bytes: 64 << 10, ..SimDiskOptions::default() };
    let disk = SimDisk::with_options(1, options);
    let clock = Arc::new(Clocks::default());
    let writer = open(&disk, &clock, "");
    let mut told = Vec::new();
    let line = |number: usize| format!("{number} {}", "y".repeat(5000));
    while write(&writer, "web", &[line(told.len())]) {
        told.push(line(told.len()));
    }
    assert!(told.len() > 3 && !write(&writer, "web", &["more".repeat(3000)]));
    disk.set_capacity(1 << 20);
    assert!(write(&writer, "web", &["behind".to_owned()]));
    told.push("behind".to_owned());
    let text: Vec<String> = files(&disk, "web").into_values().collect();
    assert!(text.len() > 1 && text.last().unwrap() == "behind\n");
    let mut rest = text.iter().flat_map(|text| text.lines());
    assert!(told.iter().all(|line| rest.any(|one| one == line)));
}

/// While a disk was full, each attempt of a client left one more file behind, of nothing or of half a line:
/// a client tries some hundred times a second.
#[test]
fn attempts_on_a_full_disk_leave_no_files_behind() {
    let options = SimDiskOptions { capacity_bytes: 64 << 10, ..SimDiskOptions::default() };
    let disk = SimDisk::with_options(1, options);
    let writer = open(&disk, &Arc::new(Clocks::default()), "");
    let line = "y".repeat(6000);
    while write(&writer, "web", std::slice::from_ref(&line)) {}
    for _ in 0..100 {
        assert!(!write(&writer, "web", &[line.repeat(9)]));
    }
    assert!(files(&disk, "web").len() <= 2, "{:?}", files(&disk, "web").keys());
    disk.set_capacity(1 << 20);
    assert!(write(&writer, "web", &["behind".to_owned()]));
    assert!(files(&disk, "web").into_values().any(|text| text == "behind\n"));
}

/// A file that a cleaner had taken away was written to all the same, and what got OK was nowhere.
#[test]
fn a_file_that_was_taken_away_is_followed_by_another() {
    let disk = SimDisk::new(1);
    let writer = open(&disk, &Arc::new(Clocks::default()), "");
    assert!(write(&writer, "web", &["one".to_owned()]));
    for line in ["two", "three"] {
        for name in files(&disk, "web").keys() {
            disk.remove(&Path::new("/logs/web").join(name)).unwrap();
        }
        assert!(write(&writer, "web", &[line.to_owned()]));
        let text: Vec<String> = files(&disk, "web").into_values().collect();
        assert_eq!(text, [format!("{line}\n")]);
    }
}

/// Categories are made up by whoever sends, and each is a file that is open.
#[test]
fn there_are_so_many_files_and_no_more() {
    let disk = SimDisk::new(1);
    let writer = open(&disk, &Arc::new(Clocks::default()), "");
    for number in 0..PLACES_MAX {
        assert!(writer.knows_or_may(&place(&format!("c{number}"))));
        assert!(write(&writer, &format!("c{number}"), &["one".to_owned()]));
    }
    assert!(!writer.knows_or_may(&place("more")) && !write(&writer, "more", &["one".to_owned()]));
    assert!(writer.knows_or_may(&place("c7")) && write(&writer, "c7", &["two".to_owned()]));
}
