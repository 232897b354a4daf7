//! How long a category is kept, and its readers with names: where they are, and what they hold.

use super::ScribeFace;
use crate::category::Category;
use crate::hour::{Hour, Hours, Mark};
use crate::reader::{self, Moved};
use crate::view::CategoryView;
use holdfast_base::Result;
use holdfast_base::codec::{Decode, DecodeError, Encode};
use holdfast_base::ids::Index;
use holdfast_env::HoldMutex;
use holdfast_env::net::Parts;
use holdfast_log::{Done, Mode};
use holdfast_server::{Request, Told, answer};
use holdfast_wire::{self as wire, Call, scribe as msg};
use std::sync::Arc;

pub(super) fn kept_category(meta: &[u8]) -> Result<Vec<String>, DecodeError> {
    msg::Keep::from_bytes(meta).map(|keep| vec![keep.category])
}

pub(super) fn keep_told(meta: &[u8]) -> Told {
    let msg::Keep { category, retain_bytes, retain_ms, hold_bytes, hold_ms, hourly_files } =
        msg::Keep::from_bytes(meta).ok()?;
    let limits = [
        retain_bytes.map(|bytes| format!(" {bytes} bytes")),
        retain_ms.map(|ms| format!(" {ms} ms")),
        hold_bytes.map(|bytes| format!(" readers {bytes} bytes")),
        hold_ms.map(|ms| format!(" readers {ms} ms")),
        hourly_files.map(|is_on| format!(" hourly files {is_on}")),
    ];
    Some(("scribe keep", limits.into_iter().flatten().fold(category, |told, one| told + &one)))
}

pub(super) fn reader_of(meta: &[u8]) -> Result<Vec<String>, DecodeError> {
    msg::Reader::from_bytes(meta).map(|asked| vec![asked.category])
}

pub(super) fn reader_told(meta: &[u8]) -> Told {
    let msg::Reader { category, reader, next } = msg::Reader::from_bytes(meta).ok()?;
    next.map(|next| ("scribe reader", format!("{category} {reader} {next}")))
}

impl ScribeFace {
    /// The lowest entry that one of a category's readers needs, or an hour that is in no file yet, of those that
    /// there are: a place that was passed holds nothing, and so nobody who has fallen silent does for ever.
    pub(super) fn needed_by_readers(&self, category: &Category, first: Index) -> Option<Index> {
        let fold = self.folds.held().get(category)?.clone();
        let places = |view: &CategoryView| {
            view.readers().map(|(_, next)| next).chain(view.hours().needed()).collect()
        };
        let places: Vec<Index> = fold.read(|view, _| places(view)).ok()?;
        places.into_iter().filter(|next| *next >= first).min()
    }

    pub(super) fn serve_keep(self: Arc<Self>, request: Request<'_>) {
        let doing = "change how long a category is kept";
        let Some((keep, reply)) = request.decode::<msg::Keep>(doing) else { return };
        let face = self.clone();
        self.node.workers.run(move || {
            let kept = face.keep_for(&keep).map_err(|e| e.context(doing));
            answer(reply, kept.map(|kept| (kept.to_bytes(), Parts::None)));
        });
    }

    /// Changes how long a category is kept, and what is made of it, where the log is kept.
    pub fn keep_for(&self, keep: &msg::Keep) -> Result<msg::Kept> {
        let category = Category::new(&keep.category)?;
        let topic = category.topic();
        self.fold(&category, true)?;
        self.node.set_topic(&wire::log::Set {
            topic: topic.clone(),
            create: false,
            retain_bytes: keep.retain_bytes,
            retain_ms: keep.retain_ms,
        })?;
        self.node.hold_for_readers(&topic, keep.hold_bytes, keep.hold_ms)?;
        let is_on = self.hours(&category, Hours::is_on)?;
        match keep.hourly_files {
            Some(true) if !is_on => {
                let now = Hour::at_ms(self.node.machine.clock.unix_ms());
                self.mark_hours(&category, Mark::Begins(now))?;
            }
            Some(false) if is_on => self.mark_hours(&category, Mark::Ends)?,
            _ => {}
        }
        self.kept(&category)
    }

    pub(super) fn kept(&self, category: &Category) -> Result<msg::Kept> {
        let topic = &category.topic();
        let wire::log::Retention { bytes, age_ms } = self.node.retention(topic)?;
        let held = self.node.held_for_readers(topic);
        let (is_on, (written, waiting)) =
            self.hours(category, |hours| (hours.is_on(), hours.counts()))?;
        Ok(msg::Kept {
            retain_bytes: bytes,
            retain_ms: age_ms,
            hold_bytes: held.bytes,
            hold_ms: held.age_ms,
            hourly_files: is_on,
            hours: written,
            hours_waiting: waiting,
        })
    }

    pub(super) fn serve_reader(self: Arc<Self>, request: Request<'_>) {
        let doing = "keep a reader's position";
        let Some((asked, reply)) = request.decode::<msg::Reader>(doing) else { return };
        let face = self.clone();
        self.node.workers.run(move || {
            face.reader(
                asked,
                Box::new(move |next: Result<Option<Index>>| {
                    answer(reply, next.map(|next| (next.to_bytes(), Parts::None)));
                }),
            );
        });
    }

    /// Where a reader reads on, or that it does so from now on, where the log is kept.
    pub fn reader(&self, asked: msg::Reader, done: Done<Option<Index>>) {
        let msg::Reader { category, reader, next } = asked;
        let fold =
            reader::check_name(&reader).and_then(|()| self.fold(&Category::new(&category)?, false));
        match (fold, next) {
            (Err(e), _) => done(Err(e)),
            (Ok(fold), None) => done(fold.read(|view, _| view.reader(&reader))),
            (Ok(fold), Some(next)) => {
                let moved = Moved { reader, next }.encode();
                let request = holdfast_view::Request::of(Call::default(), moved, Mode::Synced);
                let proposed = move |result: Result<(Index, Vec<u8>)>| {
                    done(result.map(|_| Some(next)));
                };
                fold.propose(request, Box::new(proposed));
            }
        }
    }
}
