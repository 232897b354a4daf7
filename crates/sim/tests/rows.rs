//! Rows of every engine against a plain model, by one test; and what power cuts leave of simulated
//! ones.
#![allow(clippy::disallowed_methods, reason = "a real engine needs a real directory")]

use holdfast_env::rows::{
    Batch, Cursor, Engine, MemoryRows, Moment, ROW_BYTES_MAX, RealEngine, Rows,
};
use holdfast_env::{Rng, SeededRng};
use holdfast_sim::SimDisk;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const SITE: &str = "test.rows";

struct Draw(SeededRng);

impl Draw {
    fn below(&self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    /// Short, of few letters: rows are met again, begin with each other, and lie at the ends. Now and then as long as
    /// one may be, or nearly.
    fn row(&self) -> Vec<u8> {
        let mut row = self.short();
        if self.below(20) == 0 {
            row.resize(ROW_BYTES_MAX - self.below(2) as usize, b'a');
        }
        row
    }

    fn short(&self) -> Vec<u8> {
        (0..1 + self.below(3)).map(|_| [0, b'a', b'b', 254][self.below(4) as usize]).collect()
    }

    /// What is asked for may be longer, too.
    fn asked(&self) -> Vec<u8> {
        let mut row = self.row();
        if self.below(10) == 0 {
            row.resize(ROW_BYTES_MAX + self.below(3) as usize, b'a');
            row.extend(self.short());
        }
        row
    }

    /// The same row may be changed more than once.
    fn batch(&self, model: &mut Model) -> Batch {
        let mut batch = Batch::default();
        for _ in 0..self.below(6) {
            let (row, value) =
                (self.asked(), vec![self.below(256) as u8; self.below(700) as usize]);
            if row.len() > ROW_BYTES_MAX || self.below(3) == 0 {
                model.remove(&row);
                batch.remove(row);
            } else {
                model.insert(row.clone(), value.clone());
                batch.put(row, value);
            }
        }
        batch
    }
}

fn all(rows: &dyn Rows) -> Model {
    let mut found = Model::new();
    let mut each = |row: &[u8], value: &[u8]| {
        assert!(found.last_key_value().is_none_or(|(last, _)| last.as_slice() < row), "in order");
        found.insert(row.to_vec(), value.to_vec());
        Ok(true)
    };
    rows.scan(&[], &[255], &mut each).unwrap();
    found
}

/// A scan of a part, ended early or not, which others write under.
fn scan(rows: &dyn Rows, draw: &Draw, model: &mut Model, told: &str) {
    let (from, until, most) = (draw.asked(), draw.asked(), 1 + draw.below(5) as usize);
    let part = model.iter().filter(|(row, _)| (&from..&until).contains(row)).take(most);
    let wanted: Vec<_> = part.map(|(row, value)| (row.clone(), value.clone())).collect();
    let mut found = Vec::new();
    let mut each = |row: &[u8], value: &[u8]| {
        found.push((row.to_vec(), value.to_vec()));
        rows.write(draw.batch(model))?;
        Ok(found.len() < most)
    };
    rows.scan(&from, &until, &mut each).unwrap();
    assert_eq!(found, wanted, "{told}: from {from:?} until {until:?}");
}

/// A moment that is kept, what it shows, and a cursor in it with the rows that it has in front of it.
struct Kept {
    moment: Arc<dyn Moment>,
    model: Model,
    cursor: Box<dyn Cursor>,
    left: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Kept {
    fn new(rows: &dyn Rows, draw: &Draw, model: &Model) -> Kept {
        let (from, until) = (draw.asked(), draw.asked());
        let moment = rows.moment().unwrap();
        let cursor = moment.cursor(&from, &until).unwrap();
        let part = model.iter().filter(|(row, _)| (&from..&until).contains(row));
        let left = part.map(|(row, value)| (row.clone(), value.clone())).collect();
        Kept { moment, model: model.clone(), cursor, left }
    }

    /// It shows what it showed, however far it has come and whatever was written since.
    fn look(&mut self, draw: &Draw, told: &str) {
        let (from, until) = (draw.asked(), draw.asked());
        assert_eq!(self.moment.get(&from).unwrap().as_ref(), self.model.get(&from), "{told}");
        let mut part = self.model.iter().filter(|(row, _)| (&from..&until).contains(row));
        let last = part.next_back().map(|(row, value)| (row.clone(), value.clone()));
        assert_eq!(self.moment.last(&from, &until).unwrap(), last, "{told}: the last one");
        let most = 1 + draw.below(3) as usize;
        let mut found = Vec::new();
        let mut each = |row: &[u8], value: &[u8]| {
            found.push((row.to_vec(), value.to_vec()));
            Ok(found.len() < most)
        };
        let goes_on = self.cursor.advance(&mut each).unwrap();
        let wanted: Vec<_> = self.left.drain(..most.min(self.left.len())).collect();
        assert_eq!((found.len() == most, found), (goes_on, wanted), "{told}: the next ones");
    }
}

/// Any batches, reads and scans, persisted or not; `open` gives the rows anew.
fn do_what_a_plain_model_does(
    seed: u64,
    steps: u64,
    open: &dyn Fn(Option<Arc<dyn Rows>>) -> Arc<dyn Rows>,
) {
    let draw = Draw(SeededRng::new(seed));
    let mut model = Model::new();
    let mut rows = open(None);
    let mut kept: Option<Kept> = None;
    for step in 0..steps {
        let told = format!("seed {seed}, step {step}");
        match draw.below(12) {
            0..4 => rows.write(draw.batch(&mut model)).unwrap(),
            4 => {
                let row = draw.asked();
                assert_eq!(rows.get(&row).unwrap().as_ref(), model.get(&row), "{told}: {row:?}");
            }
            5 => scan(&*rows, &draw, &mut model, &told),
            6 => assert_eq!(all(&*rows), model, "{told}"),
            7 => kept = Some(Kept::new(&*rows, &draw, &model)),
            8..11 => kept.iter_mut().for_each(|kept| kept.look(&draw, &told)),
            _ => {
                // Rows are not opened again under who looks at them.
                kept = None;
                rows.persist(SITE).unwrap();
                match draw.below(3) {
                    0 => rows = open(Some(rows)),
                    1 => rows.open_again().unwrap(),
                    _ => {}
                }
            }
        }
    }
    assert_eq!(all(&*rows), model, "seed {seed}");
}

#[test]
fn rows_of_every_engine_do_what_a_plain_model_does() {
    let place = std::env::temp_dir().join(format!("holdfast-engines-{}", std::process::id()));
    for seed in 0..60 {
        let memory =
            |before: Option<Arc<dyn Rows>>| before.unwrap_or(Arc::new(MemoryRows::default()));
        do_what_a_plain_model_does(seed, 120, &memory);
        let disk = SimDisk::new(seed);
        let in_place = |engine: &dyn Engine, place: &Path, before| {
            drop(before);
            engine.open_rows(place, "the rows", 1 << 20).unwrap()
        };
        do_what_a_plain_model_does(seed, 120, &|before| {
            in_place(&disk, Path::new("/rows"), before)
        });
        if seed < 4 {
            let place = place.join(seed.to_string());
            let open = |before| in_place(&RealEngine, &place, before);
            do_what_a_plain_model_does(seed, 120, &open);
        }
    }
    std::fs::remove_dir_all(&place).unwrap();
}

/// Batches up to the last one persisted are there, and of those behind it the first few: by a power
/// cut at any operation, that of opening included, and by the end of a process.
#[test]
fn a_power_cut_takes_the_last_batches_and_none_that_was_persisted() {
    let place = PathBuf::from("/data/rows");
    let (mut lost, mut kept, mut failed) = (0, 0, 0);
    for seed in 0..600 {
        let draw = Draw(SeededRng::new(seed));
        let mut disk = SimDisk::new(seed);
        // What there may be after the next cut: the state after each batch that is in doubt.
        let mut history = vec![Model::new()];
        let mut killed = false;
        for life in 0..4 {
            let told = format!("seed {seed}, life {life}");
            disk.crash_at(draw.below(30));
            if let Ok(rows) = disk.open_rows(&place, "the rows", 0) {
                let found = all(&*rows);
                let at = history.iter().rposition(|state| *state == found);
                let at = at.unwrap_or_else(|| panic!("{told}: no state of before is there"));
                // What a process has left to the system is lost with the power after all.
                let durable = if killed { 0 } else { at };
                lost += (at + 1 < history.len()) as u64;
                kept += (at > 0) as u64;
                history.truncate(at + 1);
                history.drain(..durable);
                for _ in 0..draw.below(40) {
                    let mut model = history[history.len() - 1].clone();
                    let written = rows.write(draw.batch(&mut model));
                    // Of what failed, everything may come back.
                    history.push(model);
                    if written.is_err() {
                        failed += 1;
                        break;
                    }
                    if draw.below(6) == 0 && rows.persist(SITE).is_ok() {
                        history.drain(..history.len() - 1);
                    }
                }
            }
            killed = draw.below(4) == 0;
            disk = match draw.below(3) {
                _ if killed => disk.process_kill(),
                0 => disk.power_cut_losing_all(),
                _ => disk.power_cut(draw.0.next_u64()),
            };
        }
    }
    assert!(lost > 50 && kept > 50 && failed > 50, "{lost} {kept} {failed}");
}
