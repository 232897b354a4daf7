//! Groups: writes of several records that are decided as one, by one entry. Whoever leads the stream in which the
//! first one is at home decides, and repetitions find that one's line, as those of a single write do.
//!
//! A home decides about its own records alone, so all of them have to be at home there: a record leaves a home by an
//! entry of it, which whoever leads it knows. Of others it knows what shows, and says which one is elsewhere. No
//! group moves a home: what was written together can be written together again, and what it inserts stays at the
//! tablet's home.

use super::Region;
use super::lead::State;
use crate::entry::{Body, Change, ChangeKind, Refusal};
use crate::ids::{RegionId, StreamId};
use crate::message::{Asker, Expect, GroupDo, GroupWrite, Op, Request};
use holdfast_env::{planted, sometimes};

impl Region {
    pub(super) fn decide_group(&mut self, home: StreamId, asker: Asker, request: Request) {
        let Op::Group { asked, writes } = &request.op else { return };
        if self.hides_too_much(home, asker) {
            return;
        }
        let states: Vec<State> = writes.iter().map(|write| self.state(&write.key)).collect();
        let form_home = self.tablet.form().home;
        let is_here =
            |state: &State| state.record.as_ref().map_or(form_home, |record| record.home) == home;
        for state in &states {
            // It is on its way here, or follows on what has not come yet.
            if let Some((stream, place, grounded)) = state.coming
                && (stream != home || !grounded)
            {
                return self.park(asker, request, 1, Some((stream, place)));
            }
        }
        let asked = *asked;
        let apart = states.iter().position(|state| !is_here(state));
        if let Some(at) = apart.filter(|_| !planted!("table.group-of-two-homes")) {
            sometimes!("a group of two homes was refused");
            return self.refuse(home, (asked, asker), Refusal::Apart { at: at as u16 });
        }
        let mut changes = Vec::new();
        for (at, (write, state)) in writes.iter().zip(&states).enumerate() {
            match self.next_in_group(write, state, home, asker.region) {
                Ok(change) => changes.extend(change),
                Err(found) => {
                    sometimes!("a group was refused");
                    let refusal = Refusal::OfGroup { at: at as u16, found };
                    return self.refuse(home, (asked, asker), refusal);
                }
            }
        }
        sometimes!("a group was decided");
        self.decide(home, Body::Group(changes), Some(asked), Some(asker));
    }

    /// A record's next version, none where it is only looked at; or the version that was found instead.
    fn next_in_group(
        &self,
        write: &GroupWrite,
        state: &State,
        home: StreamId,
        origin: RegionId,
    ) -> Result<Option<Change>, Option<u64>> {
        let alive = state.record.as_ref().filter(|record| record.value.is_some());
        let found = alive.map(|record| record.version);
        let fits = match write.expect {
            Expect::Any => true,
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        let kind = match &write.what {
            GroupDo::Put(value) => ChangeKind::Put(value.clone()),
            GroupDo::Delete => ChangeKind::Delete,
            GroupDo::Check if fits => return Ok(None),
            GroupDo::Check => return Err(found),
        };
        if !fits || (kind == ChangeKind::Delete && found.is_none()) {
            return Err(found);
        }
        let before = state.record.as_ref().map(|record| record.version);
        Ok(Some(Change {
            key: write.key.clone(),
            version: before.unwrap_or_else(|| self.floor()) + 1,
            after: before.unwrap_or(0),
            home,
            origin,
            kind,
        }))
    }
}
