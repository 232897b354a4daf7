//! Tables in several regions: how one is made in all of them, and what their tablets say to this one.

use super::TableFace;
use crate::ids::{LogId, RegionId, StreamId};
use crate::message::Message;
use crate::name::TableName;
use crate::tablet::{Form, Tablet};
use crate::view::{Made, TabletView, prepared};
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::Parts;
use holdfast_env::planted;
use holdfast_server::{Request, Told as Line, Within, answer};
use holdfast_wire::table::{Adopt, Make, Prepare, Prepared, TableInfo, Tell, Told};
use holdfast_wire::{OP_TABLE_ADOPT, OP_TABLE_PREPARE};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A log's number has so many bits of chance below those that grow with each log of a region that others knew
/// of: so no two logs of it ever have one number, whoever was asked.
const CHANCE_BITS: u32 = 32;

/// The region that speaks is the first field of every message.
pub(super) fn allows(meta: &[u8], within: &Within) -> Result<()> {
    let by = u8::decode(&mut Reader::new(meta))
        .map_err(|e| Error::invalid(format!("hear a region: {e}: use matching builds")))?;
    within.rules.check_region(by).map_err(|e| e.context(format_args!("hear region {by}")))
}

pub(super) fn adopt_told(meta: &[u8]) -> Line {
    Some(("table make", Adopt::from_bytes(meta).ok()?.table))
}

impl TableFace {
    pub(super) fn serve_tell(self: Arc<Self>, request: Request<'_>) {
        let Some((Tell { by }, body, reply)) = request.decode_with_body::<Tell>("hear a region")
        else {
            return;
        };
        let told = Vec::<Told>::from_bytes(body.as_slice());
        let heard = told
            .map_err(|e| Error::invalid(format!("hear a region: {e}: use matching builds")))
            .and_then(|told| self.hear(RegionId(by), told));
        answer(reply, heard.map(|()| (Vec::new(), Parts::None)));
    }

    fn hear(self: &Arc<Self>, by: RegionId, told: Vec<Told>) -> Result<()> {
        self.check_speaker(by)?;
        for told in told {
            let message = Message::from_bytes(&told.message)
                .map_err(|e| Error::invalid(format!("hear {by}: {e}: use matching builds")))?;
            let Ok(name) = TableName::new(&told.table) else { continue };
            // One that is not open yet will be told again.
            let Some(tablet) = self.if_open(&name, told.tablet) else { continue };
            match tablet.dropped_as(&told) {
                Some(made) => self.tell_gone(by, &name, &made),
                None => tablet.arrived(by, &told, message),
            }
        }
        Ok(())
    }

    /// A region that has this one's number, or none that this one knows of, was set up otherwise.
    pub(super) fn check_speaker(&self, by: RegionId) -> Result<()> {
        let own = self.regions.own();
        match by != own && self.regions.all().contains(&by) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "hear {by}: this is {own}, and it knows of {}: look at `region` and `regions` in the settings of both",
                join(&self.regions.all())
            ))),
        }
    }

    pub(super) fn serve_prepare(self: Arc<Self>, request: Request<'_>) {
        let Some((prepare, reply)) = request.decode::<Prepare>("prepare a table") else { return };
        let face = self.clone();
        self.node.workers.run(move || {
            let doing = format_args!("prepare table `{}`", prepare.table.escape_debug());
            let checked = face.check_speaker(RegionId(prepare.by));
            let told = checked.and_then(|()| face.prepare(&prepare));
            let told = told.map(|told| (told.to_bytes(), Parts::None));
            answer(reply, told.map_err(|e| e.context(doing)));
        });
    }

    pub(super) fn serve_adopt(self: Arc<Self>, request: Request<'_>) {
        let Some((adopt, reply)) = request.decode::<Adopt>("make a table") else { return };
        let face = self.clone();
        self.node.workers.run(move || {
            let doing = format_args!("make table `{}`", adopt.table.escape_debug());
            let checked = face.check_speaker(RegionId(adopt.by));
            let told = checked.and_then(|()| face.adopt(&adopt));
            let told = told.map(|told| (told.to_bytes(), Parts::None));
            answer(reply, told.map_err(|e| e.context(doing)));
        });
    }

    /// What this region has of a table's tablets; makes their topics, and gives their logs numbers, if that is
    /// asked for.
    fn prepare(&self, prepare: &Prepare) -> Result<Vec<Prepared>> {
        self.check_log()?;
        let own = self.regions.own();
        if RegionId(prepare.region) != own {
            return Err(Error::invalid(format!(
                "region {} is asked, and this is {own}: look at `region` and `regions` in the settings of both",
                prepare.region
            )));
        }
        let name = TableName::new(&prepare.table)?;
        self.check_size(&name, prepare.tablets)?;
        let numbers = !prepare.after.is_empty();
        if numbers && prepare.after.len() != usize::from(prepare.tablets) {
            return Err(Error::invalid("its logs are as many as its tablets: use matching builds"));
        }
        let mut told = Vec::new();
        for tablet in 0..prepare.tablets {
            if numbers {
                self.number_log(&name, tablet, prepare.after[usize::from(tablet)])?;
            }
            told.push(self.found(&name, tablet)?);
        }
        Ok(told)
    }

    fn number_log(&self, name: &TableName, tablet: u16, after: u64) -> Result<()> {
        let open = self.open(name, tablet)?;
        if open.fold().read(|view, _| view.log())?.is_some() {
            return Ok(());
        }
        let grown = (after >> CHANCE_BITS) + 1;
        let chance = self.node.machine.rng.next_u64() >> (64 - CHANCE_BITS);
        let entry = prepared(LogId(grown << CHANCE_BITS | chance));
        self.append_first(&open, entry)
    }

    fn found(&self, name: &TableName, tablet: u16) -> Result<Prepared> {
        let Some(open) = self.if_open(name, tablet) else { return Ok(Prepared::default()) };
        open.fold().read(|view, _| Prepared {
            log: view.log().unwrap_or_default().0,
            known: known_logs(view),
            made: view.made().map_or(Vec::new(), |made| made.to_bytes()),
        })
    }

    fn adopt(&self, adopt: &Adopt) -> Result<TableInfo> {
        self.check_log()?;
        let name = TableName::new(&adopt.table)?;
        let made = adopt.tablets.iter().map(|made| Made::from_bytes(made));
        let made = made
            .collect::<Result<Vec<Made>, _>>()
            .map_err(|e| Error::invalid(format!("{e}: use matching builds")))?;
        self.check_size(&name, made.len() as u16)?;
        let own = self.regions.own();
        for (at, made) in made.iter().enumerate() {
            let regions: Vec<RegionId> = made.form.regions().collect();
            let fits = made.region == own
                && usize::from(made.tablet) == at
                && usize::from(made.tablets) == adopt.tablets.len()
                && regions == self.regions.all()
                && regions.contains(&RegionId(made.form.home.0));
            if !fits {
                return Err(Error::invalid(format!(
                    "it is for {} of {}, and this is {own} of {}: look at `region` and `regions` in the settings of both",
                    made.region,
                    join(&regions),
                    join(&self.regions.all())
                )));
            }
        }
        self.make_tablets(&name, &made)
    }

    /// Makes a table in all regions, or goes on with it: where it is made everywhere, nothing changes.
    pub(super) fn make_everywhere(&self, make: &Make, name: &TableName) -> Result<TableInfo> {
        let mut found = self.look_everywhere(make)?;
        let is_made: Vec<Option<(RegionId, Made)>> =
            (0..make.tablets).map(|tablet| made_in(&found, tablet)).collect::<Result<_>>()?;
        for (region, made) in is_made.iter().flatten() {
            if self.has_dropped(name, made) {
                return Err(Error::retry(format!(
                    "{region} has yet to drop the table of this name that was dropped: say it again in a moment"
                )));
            }
            let others = made.form.regions().ne(self.regions.all());
            if others || made.form.mode != make.mode || made.tablets != make.tablets {
                return Err(super::made_otherwise(made).context(format_args!("look in {region}")));
            }
        }
        let whole = is_made.iter().all(Option::is_some);
        if !whole && let Some(e) = found.values().find_map(|told| told.as_ref().err()) {
            return Err(e.clone().context("all regions have to be there when a table is made"));
        }
        self.number_logs(make, &mut found)?;
        let forms: Vec<Made> = (0..make.tablets)
            .map(|tablet| match &is_made[usize::from(tablet)] {
                Some((_, made)) => made.clone(),
                None => self.new_form(make, tablet, &found),
            })
            .collect();
        let mut failed = None;
        for (region, told) in &found {
            let adopted = match told {
                Ok(_) => self.adopt_in(*region, name, &forms),
                Err(e) => Err(e.clone()),
            };
            failed = failed.or(adopted.err());
            // Who makes the table with other words at the same time begins with the same region: whoever has not
            // made it there may not make it elsewhere.
            if failed.is_some() && !whole && !planted!("table.made-where-another-is-first") {
                break;
            }
        }
        match failed {
            None => self.info(name),
            Some(e) => Err(e.context("make it in each region: say the same again once it can be reached; the others have it")),
        }
    }

    /// What each region has, by number; an error where it does not say.
    fn look_everywhere(&self, make: &Make) -> Result<BTreeMap<RegionId, Result<Vec<Prepared>>>> {
        let mut found = BTreeMap::new();
        for region in self.regions.all() {
            let told = self.prepare_in(region, make, Vec::new());
            if region == self.regions.own() || told.as_ref().is_err_and(|e| e.kind != Kind::Retry) {
                found.insert(region, Ok(told?));
                continue;
            }
            found.insert(region, told);
        }
        Ok(found)
    }

    /// Has every region that can be reached number the logs that have none, above all that any other region
    /// has known of it.
    fn number_logs(
        &self,
        make: &Make,
        found: &mut BTreeMap<RegionId, Result<Vec<Prepared>>>,
    ) -> Result<()> {
        let reached: Vec<RegionId> =
            found.iter().filter(|(_, told)| told.is_ok()).map(|(region, _)| *region).collect();
        for region in reached {
            let mut after = vec![0; usize::from(make.tablets)];
            let mut numbered = true;
            for (other, told) in found.iter().filter_map(|(r, told)| Some((r, told.as_ref().ok()?)))
            {
                for (highest, tablet) in after.iter_mut().zip(told) {
                    let known = tablet.known.iter().filter(|(r, _)| *r == region.0);
                    *highest = known.map(|(_, log)| *log).max().unwrap_or(0).max(*highest);
                    numbered &= *other != region || tablet.log != 0;
                }
            }
            if !numbered {
                found.insert(region, Ok(self.prepare_in(region, make, after)?));
            }
        }
        Ok(())
    }

    fn new_form(
        &self,
        make: &Make,
        tablet: u16,
        found: &BTreeMap<RegionId, Result<Vec<Prepared>>>,
    ) -> Made {
        let log = |told: &Result<Vec<Prepared>>| {
            let tablets = told.as_ref().map_or(&[][..], |all| all);
            LogId(tablets.get(usize::from(tablet)).map_or(0, |found| found.log))
        };
        let logs: Vec<(RegionId, LogId)> =
            found.iter().map(|(region, told)| (*region, log(told))).collect();
        // Absent keys are spread over the regions, whoever makes the table.
        let home = StreamId::of(logs[usize::from(tablet) % logs.len()].0);
        let form = Form::of(make.mode, home, logs);
        Made { form, region: self.regions.own(), tablet, tablets: make.tablets }
    }

    fn prepare_in(&self, region: RegionId, make: &Make, after: Vec<u64>) -> Result<Vec<Prepared>> {
        let prepare = Prepare {
            by: self.regions.own().0,
            region: region.0,
            table: make.table.clone(),
            tablets: make.tablets,
            after,
        };
        if region == self.regions.own() {
            return self.prepare(&prepare);
        }
        let request = (OP_TABLE_PREPARE, prepare.to_bytes());
        let told = self.node.wait_for(|done| self.regions.ask(region, request, done))?;
        let told = Vec::<Prepared>::from_bytes(&told.meta)?;
        match told.len() == usize::from(make.tablets) {
            true => Ok(told),
            false => Err(Error::invalid(format!("{region} told of {} tablets", told.len()))),
        }
    }

    fn adopt_in(&self, region: RegionId, name: &TableName, forms: &[Made]) -> Result<()> {
        let made = |made: &Made| Made { region, ..made.clone() }.to_bytes();
        let adopt = Adopt {
            by: self.regions.own().0,
            table: name.to_string(),
            tablets: forms.iter().map(made).collect(),
        };
        if region == self.regions.own() {
            return self.adopt(&adopt).map(drop);
        }
        let request = (OP_TABLE_ADOPT, adopt.to_bytes());
        self.node.wait_for(|done| self.regions.ask(region, request, done)).map(drop)
    }
}

/// What a tablet was made as, and in which region, if any has it.
fn made_in(
    found: &BTreeMap<RegionId, Result<Vec<Prepared>>>,
    tablet: u16,
) -> Result<Option<(RegionId, Made)>> {
    for (region, told) in found.iter().filter_map(|(r, told)| Some((r, told.as_ref().ok()?))) {
        let made = told.get(usize::from(tablet)).map(|found| &found.made[..]);
        if let Some(bytes) = made.filter(|made| !made.is_empty()) {
            let made = Made::from_bytes(bytes)
                .map_err(|e| Error::invalid(format!("{region}: {e}: use matching builds")))?;
            return Ok(Some((*region, made)));
        }
    }
    Ok(None)
}

/// The logs of each region that a tablet counts, or will, in any of its streams; and those that were heard:
/// those of a timeline table are never counted anew, and who has heard one hears none before it any more.
fn known_logs(view: &TabletView) -> Vec<(u8, u64)> {
    let counted = |tablet: &Tablet| {
        let members = tablet.streams().flat_map(|stream| stream.members());
        members.map(|member| (member.region, member.log)).collect::<Vec<_>>()
    };
    let mut logs = view.look(counted).unwrap_or_default();
    if !planted!("table.heard-log-forgotten") {
        logs.extend(
            view.with_region(|region| region.heard_logs().collect::<Vec<_>>()).unwrap_or_default(),
        );
    }
    let mut known = BTreeMap::<u8, u64>::new();
    for (region, log) in logs {
        let highest = known.entry(region.0).or_default();
        *highest = log.0.max(*highest);
    }
    known.into_iter().collect()
}

fn join(regions: &[RegionId]) -> String {
    let numbers: Vec<String> = regions.iter().map(|region| region.0.to_string()).collect();
    format!("regions {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Settings;
    use crate::tablet::Mode;
    use holdfast_base::ids::Index;
    use holdfast_view::{Context, View};

    /// The log of a region that lost one before is in no stream of a timeline table: who has heard it alone
    /// knows of it, and hears none of a lower number any more.
    #[test]
    fn a_log_that_was_heard_is_known() {
        let (own, other) = (RegionId(0), RegionId(1));
        let form = Form::of(Mode::Timeline, StreamId(0), [(own, LogId(5)), (other, LogId(5))]);
        let made = Made { form, region: own, tablet: 0, tablets: 1 };
        let mut view = TabletView::begin(&Context::of("table/t/0"));
        for (index, entry) in (1..).zip([prepared(LogId(5)), made.command()]) {
            view.apply(Index(index), &entry);
        }
        assert!(view.decide(Settings::default(), Some(Index(3))));
        assert_eq!(known_logs(&view), [(0, 5), (1, 5)]);
        let message = Message::NotShown { ticket: 0 };
        view.with_region(|region| region.arrived(other, LogId(9), message));
        assert_eq!(known_logs(&view), [(0, 5), (1, 9)]);
    }
}
