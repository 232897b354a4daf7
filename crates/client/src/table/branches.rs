//! A region that is lost: what is at home there goes on without it, and what it had alone comes back as branches,
//! each of which somebody resolves. See docs/tables.md.

use super::{TableClient, TableWrite, decoded};
use crate::client::rest;
use holdfast_base::{Error, Kind, Result};
use holdfast_wire as wire;
use holdfast_wire::table::{self as msg, Branch, BranchName, Expect, Level, Sealed, Written};
use std::time::Duration;

/// Between two looks whether a lost region's homes are led.
const LOOK: Duration = Duration::from_millis(300);
/// So often: longer than promises take around the earth.
const LOOKS: u32 = 50;

/// What a record is once its branch is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As it is.
    Record,
    /// What the branch has, as the next version.
    Branch,
}

impl TableClient<'_> {
    /// Says that a region is lost, and waits until what is at home there is led by one that is there; of a
    /// timeline table. `Retry` where that does not come: to be said again.
    pub fn seal(&mut self, lost: u8) -> Result<()> {
        let mut waits_for = Vec::new();
        for look in 0..LOOKS {
            if look > 0 {
                rest(LOOK);
            }
            let seal = msg::Seal { table: self.table.clone(), lost };
            let sealed: Sealed = decoded(self.send(wire::OP_TABLE_SEAL, &seal, &[])?.meta())?;
            if sealed.are_led {
                return Ok(());
            }
            waits_for = sealed.waits_for;
        }
        let others: Vec<String> = waits_for.iter().map(|of| format!("region {of}")).collect();
        let missing = match others.is_empty() {
            true => "another region is to lead it, and does not yet".to_owned(),
            false => format!("{} did not promise yet", others.join(", ")),
        };
        Err(Error::retry(format!(
            "seal what is at home in region {lost}: {missing}: say it again once all others can be reached"
        )))
    }

    /// The next branches of a tablet behind one of them, in order of their keys; none at the end.
    pub fn branches(&mut self, tablet: u16, after: Option<BranchName>) -> Result<Vec<Branch>> {
        let asked = msg::Branches { table: self.table.clone(), tablet, after };
        decoded(self.send(wire::OP_TABLE_BRANCHES, &asked, &[])?.body())
    }

    /// All branches behind one of them, in order of tablets and keys; `see` says whether those of the tablet
    /// go on.
    pub fn each_branch(
        &mut self,
        after: Option<&BranchName>,
        mut see: impl FnMut(Branch) -> Result<bool>,
    ) -> Result<()> {
        let tablets = self.client.table_describe(&self.table)?.tablets.len() as u16;
        for tablet in 0..tablets {
            let mut after = after.cloned();
            let mut goes_on = true;
            while goes_on {
                let page = self.branches(tablet, after)?;
                after = page.last().map(|branch| branch.name.clone());
                goes_on = after.is_some();
                for branch in page {
                    goes_on = goes_on && see(branch)?;
                }
            }
        }
        Ok(())
    }

    /// The branch of a key, of several the one of this [`BranchName::place`]. `NotFound` if there is none,
    /// `Invalid` where there are several and none is named.
    pub fn branch(&mut self, key: &[u8], place: Option<&str>) -> Result<Branch> {
        let before = BranchName { key: key.to_vec(), stream: 0, epoch: 0, number: 0 };
        let mut found = Vec::new();
        self.each_branch(Some(&before), |branch| {
            let same = branch.name.key == key;
            if same && place.is_none_or(|place| place == branch.name.place()) {
                found.push(branch);
            }
            Ok(same)
        })?;
        let (shown_table, shown_key) = (self.table.escape_debug(), shown(key));
        let names: Vec<String> = found.iter().map(|branch| branch.name.place()).collect();
        match found.pop() {
            None => Err(Error::not_found(format!(
                "record `{shown_key}` of table `{shown_table}` has no such branch: look at `holdfast table \
                 branches {shown_table}`"
            ))),
            Some(branch) if found.is_empty() => Ok(branch),
            Some(_) => Err(Error::invalid(format!(
                "record `{shown_key}` has {} branches: name one (`--branch`; `place` in Python): {}",
                names.len(),
                names.join(", ")
            ))),
        }
    }

    /// Sees to a branch: it is one no more, in no region. `Exists` where somebody else wrote the record or saw
    /// to the branch meanwhile.
    pub fn resolve(&mut self, branch: &Branch, keep: Keep) -> Result<()> {
        let key = &branch.name.key;
        if keep == Keep::Branch {
            self.keep_branch(branch)?;
        }
        let resolve = msg::Resolve { table: self.table.clone(), branch: branch.name.clone() };
        match self.send(wire::OP_TABLE_RESOLVE, &resolve, &[]) {
            // Its value was written for nothing, or in the place of what they kept: nobody is told otherwise.
            Err(e) if keep == Keep::Branch && e.kind == Kind::NotFound => {
                Err(Error::exists(format!(
                    "record `{}` has what the branch had as its next version, but somebody else saw to the \
                     branch meanwhile, and may have kept the record: look at it",
                    shown(key)
                )))
            }
            resolved => resolved.map(drop),
        }
    }

    /// Makes what the branch has the record's next version.
    fn keep_branch(&mut self, branch: &Branch) -> Result<()> {
        let key = &branch.name.key;
        let version = self.get(key, Level::Latest)?.map(|record| record.version);
        let expect = version.map_or(Expect::Absent, |version| Expect::Version { version });
        let value = branch.value.clone();
        // What is deleted on both sides is so already.
        let is_to_write = version.is_some() || value.is_some();
        let write = is_to_write.then(|| TableWrite { key: key.clone(), value, expect });
        let written = self.write(write.as_slice())?;
        if written.iter().all(|written| matches!(written, Written::Version { .. })) {
            return Ok(());
        }
        Err(Error::exists(format!(
            "record `{}` was written meanwhile, and the branch is as it was: look at both, and say it again",
            shown(key)
        )))
    }
}

/// As people type it.
fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).escape_debug().to_string()
}
