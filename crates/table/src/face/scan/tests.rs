use super::*;
use crate::entry::Asked;
use crate::name::hash_of;
use crate::tablet::split::plain::Table;
use holdfast_base::random::Random;
use holdfast_env::trial::Trial;
use std::cell::{Cell, RefCell};

const SEEDS: u64 = 400;
const KEYS: u32 = 12;

/// Where a tablet is split: at the borders of all hashes, of a record's, or anywhere.
fn draw_border(random: &mut Random) -> u32 {
    let hash = hash_of(&key(random.below(u64::from(KEYS)) as u32));
    match random.below(6) {
        0 => 0,
        1 => 1,
        2 => u32::MAX,
        3 => hash,
        // Together with the one above it is a tablet of one hash.
        4 => hash.wrapping_add(1),
        _ => random.next() as u32,
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:02}").into_bytes()
}

/// What happens beside a scan: halves begin to leave, and are another tablet's.
#[derive(Default)]
struct Beside {
    leaving: Option<usize>,
    left: u32,
}

impl Beside {
    fn happens(&mut self, table: &mut Table, random: &mut Random) {
        match self.leaving.take() {
            Some(parent) if random.below(2) == 0 => table.end(parent),
            Some(parent) => self.leaving = Some(parent),
            None if self.left > 0 && random.below(3) == 0 => {
                let at = draw_border(random);
                self.leaving = table.begin(at);
                self.left -= u32::from(self.leaving.is_some());
            }
            None => {}
        }
    }
}

/// Scans page by page while the tablets are split under it, at any moment; what is wrong with what it finds, and how
/// often it had to begin a page anew.
fn scanned(seed: u64) -> (Option<String>, u32) {
    let mut random = Random::new(seed);
    let mut table = Table::new();
    for number in 0..KEYS {
        let asked = Asked { session: 1, sequence: u64::from(number) + 1, below: 1 };
        table.put(asked, &key(number), &number.to_le_bytes());
    }
    let mut wanted: Vec<Vec<u8>> = table.model.keys().cloned().collect();
    let (backwards, rows_max) = (random.below(2) == 0, 1 + random.below(5) as u32);
    let mut scan =
        msg::Scan { table: "t".into(), from: Vec::new(), until: None, backwards, rows_max };
    let (world, again) =
        (RefCell::new((table, random, Beside { leaving: None, left: 6 })), Cell::new(0));
    let mut found = Vec::new();
    loop {
        let page = loop {
            let cut = world.borrow().0.cut();
            let mut spans: Vec<_> =
                cut.iter().map(|(first, last, of)| (*of, (*first, *last))).collect();
            spans.sort_unstable();
            let read = |cursor: &Cursor| {
                let (table, random, beside) = &mut *world.borrow_mut();
                beside.happens(table, random);
                Ok(cursor.read(&table.tablets[cursor.number], backwards))
            };
            match merge(spans.into_iter().map(|(_, span)| span), &scan, read).unwrap() {
                Some(page) => break page,
                None => again.set(again.get() + 1),
            }
        };
        found.extend(page.found.into_iter().map(|found| found.key));
        match (page.next, backwards) {
            (None, _) => break,
            (next, true) => scan.until = next,
            (Some(next), false) => scan.from = next,
        }
    }
    if backwards {
        wanted.reverse();
    }
    let wrong = (found != wanted).then(|| {
        let text = |keys: &[Vec<u8>]| String::from_utf8(keys.join(&b", "[..])).unwrap();
        format!("found {}, and there are {}", text(&found), text(&wanted))
    });
    (wrong, again.get())
}

/// No record is missing, and none is there twice, whenever and wherever tablets are split under a scan: down to tablets
/// of one hash, and of halves that were given away a moment ago.
#[test]
fn a_scan_finds_each_record_once_whatever_is_split_under_it() {
    let _entered = Trial::new().with(&AHEAD_ROWS, 1).enter();
    let mut again = 0;
    for seed in 0..SEEDS {
        let (wrong, times) = scanned(seed);
        assert_eq!(wrong, None, "seed {seed}");
        again += times;
    }
    assert!(again > 100, "{again} pages began anew");
}

/// A check that never fails checks nothing.
#[test]
fn a_scan_of_tablets_as_they_were_is_noticed() {
    let _entered = Trial::new().with(&AHEAD_ROWS, 1).planting("table.scan-of-what-left").enter();
    let noticed = (0..SEEDS).find_map(|seed| scanned(seed).0);
    println!("{}", noticed.expect("nobody notices it"));
}
