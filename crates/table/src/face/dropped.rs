//! A table that is dropped: in this region at once, in the others as soon as they can be told. Each tablet is known
//! by what it was made as, which no other one ever is where there are several regions: so whoever was away drops
//! what it has of it when it comes back, and nothing that was made since.

use super::TableFace;
use crate::ids::RegionId;
use crate::name::TableName;
use crate::view::{Made, dropped};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Result};
use holdfast_env::net::Parts;
use holdfast_env::{HoldMutex, planted};
use holdfast_server::{Request, Told as Line, answer};
use holdfast_wire::OP_TABLE_GONE;
use holdfast_wire::table::{DropTable, Dropped, Gone};
use std::sync::Arc;

pub(super) fn gone_told(meta: &[u8]) -> Line {
    Some(("table drop", Gone::from_bytes(meta).ok()?.table))
}

impl TableFace {
    pub(super) fn serve_drop(self: Arc<Self>, request: Request<'_>) {
        let Some((drops, reply)) = request.decode::<DropTable>("drop a table") else { return };
        self.ask_drop(drops, move |told| {
            answer(reply, told.map(|told| (told.to_bytes(), Parts::None)));
        });
    }

    /// Drops a table, where the log is kept, and says which regions have yet to hear of it.
    pub fn ask_drop(
        self: &Arc<Self>,
        drops: DropTable,
        done: impl FnOnce(Result<Dropped>) + Send + 'static,
    ) {
        let face = self.clone();
        self.node.workers.run(move || {
            let doing = format_args!("drop table `{}`", drops.table.escape_debug());
            done(face.drop_everywhere(&drops.table).map_err(|e| e.context(doing)));
        });
    }

    fn drop_everywhere(&self, table: &str) -> Result<Dropped> {
        let name = TableName::new(table)?;
        self.check_opened(&name)?;
        let _unsplit = self.end_splits(&name);
        let tablets = self.tables.held().get(&name).cloned().unwrap_or_default();
        let mut all = Vec::new();
        for open in tablets.values() {
            all.extend(open.fold().read(|view, _| view.made_or_begun())?);
        }
        let Some(first) = all.first() else { return Err(self.none(table)) };
        // What a split has begun goes, too, though it may not show yet.
        let next = all.last().map(|last| Made { tablet: last.tablet + 1, ..last.clone() });
        let has_begun = |next: &Made| {
            next.form.members.len() == 1 && self.if_open(&name, next.tablet).is_some()
        };
        let next = next.filter(has_begun);
        let own = self.regions.own();
        let others: Vec<RegionId> = first.form.regions().filter(|region| *region != own).collect();
        let others = if first.form.members.len() > 1 { others } else { Vec::new() };
        all.extend(next);
        // In this region first: who hears nothing of it now is told by it whenever it says something.
        self.drop_here(&name, &all)?;
        let told = |region: &RegionId| {
            let gone = (OP_TABLE_GONE, self.gone(&name, &all).to_bytes());
            self.node.wait_for(|done| self.regions.ask(*region, gone, done)).is_ok()
        };
        let away = others.into_iter().filter(|region| !told(region)).map(|region| region.0);
        Ok(Dropped { away: away.collect() })
    }

    fn none(&self, table: &str) -> Error {
        match self.table(table) {
            Err(e) => e,
            Ok(_) => Error::retry("it was made a moment ago: say it again"),
        }
    }

    fn gone(&self, name: &TableName, all: &[Made]) -> Gone {
        let tablets = all.iter().map(Encode::to_bytes).collect();
        Gone { by: self.regions.own().0, table: name.to_string(), tablets }
    }

    /// Drops tablets that were made so, the first one last: with it the table is gone, and until then it is said to be
    /// on its way.
    fn drop_here(&self, name: &TableName, all: &[Made]) -> Result<()> {
        for made in all.iter().rev() {
            let Some(open) = self.if_open(name, made.tablet) else { continue };
            self.append_first(&open, dropped(made))?;
            open.begins_anew();
            // What the log and its snapshots have of it goes once two snapshots have nothing of it. Where one cannot
            // be taken it goes later.
            if open.fold().snapshot_now().is_ok() {
                self.append_first(&open, dropped(made))?;
                let _ = open.fold().snapshot_now();
            }
        }
        Ok(())
    }

    /// Whether a tablet that was made so is dropped here.
    pub(super) fn has_dropped(&self, name: &TableName, made: &Made) -> bool {
        let open = self.if_open(name, made.tablet);
        open.is_some_and(|open| open.fold().read_last(|view| view.has_dropped(made)))
    }

    /// A region that was away goes on with what is dropped: it is told so, once at a time.
    pub(super) fn tell_gone(self: &Arc<Self>, region: RegionId, name: &TableName, made: &Made) {
        let of = (region, name.clone(), made.tablet);
        if planted!("table.dropped-where-it-was-said") || !self.telling.held().insert(of.clone()) {
            return;
        }
        let gone = self.gone(name, std::slice::from_ref(made)).to_bytes();
        let face = self.clone();
        self.regions.ask(region, (OP_TABLE_GONE, gone), move |_| {
            // Where it failed, the next message of that region has it told again.
            face.telling.held().remove(&of);
        });
    }

    pub(super) fn serve_gone(self: Arc<Self>, request: Request<'_>) {
        let Some((gone, reply)) = request.decode::<Gone>("drop a table") else { return };
        let face = self.clone();
        self.node.workers.run(move || {
            let doing = format_args!("drop table `{}`", gone.table.escape_debug());
            let told = face.go(&gone).map_err(|e| e.context(doing));
            answer(reply, told.map(|()| (Vec::new(), Parts::None)));
        });
    }

    /// Another region has dropped these tablets.
    fn go(&self, gone: &Gone) -> Result<()> {
        let by = RegionId(gone.by);
        self.check_speaker(by)?;
        let name = TableName::new(&gone.table)?;
        self.check_opened(&name)?;
        let all = gone.tablets.iter().map(|made| Made::from_bytes(made));
        let all = all
            .collect::<Result<Vec<Made>, _>>()
            .map_err(|e| Error::invalid(format!("{e}: use matching builds")))?;
        let own = self.regions.own();
        let of_both = |made: &Made| {
            let has = |region| made.form.regions().any(|other| other == region);
            has(by) && has(own)
        };
        if !all.iter().all(of_both) {
            return Err(Error::invalid(format!(
                "{by} drops what it has no part in, or {own} has none in"
            )));
        }
        // One of that name that was made since stays.
        let other = |made: &Made| {
            let open = self.if_open(&name, made.tablet);
            let own = open.and_then(|open| open.fold().read_last(|view| view.made()));
            own.is_some_and(|own| own.checksum() != made.checksum())
        };
        let all: Vec<Made> =
            all.into_iter().filter(|made| !self.has_dropped(&name, made) && !other(made)).collect();
        self.drop_here(&name, &all)
    }
}
