//! A region that is lost: what is at home there goes on without it, and what it had alone comes back as branches,
//! each of which somebody resolves. See docs/tables.md.

use super::{TableClient, decoded};
use crate::client::rest;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{Clock, RealClock};
use holdfast_wire as wire;
use holdfast_wire::table::{self as msg, Branch, BranchName, Expect, Level, Sealed};
use std::time::Duration;

/// Between two looks whether a lost region's homes are led.
const LOOK: Duration = Duration::from_millis(300);
/// How long to wait for a lost region's homes, as a rule: for its silence, and longer than promises take around the
/// earth.
pub const SEALED_WITHIN: Duration = Duration::from_secs(30);

/// What a record is once its branch is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As it is.
    Record,
    /// What the branch has, as the next version.
    Branch,
}

/// What an order to go on without a region waits for.
enum Waits {
    /// The region's silence, for so long.
    Silence(u64),
    /// What the node said.
    Asked(String),
    /// Promises of these.
    Promises(Vec<u8>),
}

impl Waits {
    /// What is told once.
    fn kind(&self) -> u8 {
        match self {
            Waits::Silence(_) => 0,
            Waits::Asked(_) => 1,
            Waits::Promises(_) => 2,
        }
    }

    fn missing(of: &[u8]) -> String {
        let others: Vec<String> = of.iter().map(|of| format!("region {of}")).collect();
        match others.is_empty() {
            true => "another region has claimed a home, and does not lead it yet (`table describe` names it): where it waits \
                     for this one, say the same there"
                .to_owned(),
            false => format!("{} did not promise yet", others.join(", ")),
        }
    }

    fn sentence(&self, lost: u8) -> String {
        match self {
            Waits::Silence(ms) => format!(
                "region {lost} may be there: waiting until it has been silent for {} s more",
                ms.div_ceil(1000)
            ),
            Waits::Asked(why) => format!("waiting: {why}"),
            Waits::Promises(of) => {
                format!(
                    "it is written down that region {lost} is lost: waiting: {}",
                    Waits::missing(of)
                )
            }
        }
    }

    fn why_not(self) -> String {
        match self {
            Waits::Silence(ms) => format!(
                "it may be there: it was heard, or this node started, a moment ago, and nothing was changed: say it \
                 again in {} s, if it is silent until then",
                ms.div_ceil(1000)
            ),
            Waits::Asked(why) => why,
            Waits::Promises(of) => format!(
                "{}: it is written down and goes on once all others can be reached; say it again to see",
                Waits::missing(&of)
            ),
        }
    }
}

impl TableClient<'_> {
    /// Says that a region is lost, and waits for so long until what is at home there is led by one that is there; of
    /// a timeline table. `tell` is told what it waits for whenever that is something else. Once it waits for other
    /// regions the order is in the log, and is carried out whoever waits.
    ///
    /// # Errors
    /// `Retry` where that does not come, or the region was heard a moment ago: to be said again. `Invalid` where it
    /// is no other region of the table, or the table is strong.
    pub fn seal(&mut self, lost: u8, within: Duration, mut tell: impl FnMut(&str)) -> Result<()> {
        let begun = RealClock::new();
        let (mut told, mut missing) = (None, Vec::new());
        loop {
            let seal = msg::Seal { table: self.table.clone(), lost };
            let answer = self.send(wire::OP_TABLE_SEAL, &seal, &[]);
            let waits = match answer.and_then(|answer| decoded::<Sealed>(answer.meta())) {
                Ok(sealed) if sealed.are_led => return Ok(()),
                Ok(sealed) if sealed.heard_for_ms > 0 => Waits::Silence(sealed.heard_for_ms),
                Ok(sealed) => {
                    // Between two attempts nobody is asked.
                    if !sealed.waits_for.is_empty() {
                        missing = sealed.waits_for;
                    }
                    Waits::Promises(missing.clone())
                }
                Err(e) if e.kind == Kind::Retry => Waits::Asked(e.message),
                Err(e) => return Err(e),
            };
            let waited = Duration::from_nanos(begun.monotonic_ns());
            if waited + LOOK > within {
                let doing = format_args!("seal what is at home in region {lost}");
                return Err(Error::retry(waits.why_not()).context(doing));
            }
            let kind = waits.kind();
            if told.replace(kind) != Some(kind) {
                tell(&waits.sentence(lost));
            }
            rest(LOOK);
        }
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

    /// Sees to a branch: it is one no more, in no region. One step, decided where the record is at home: of two who
    /// see to it one does. `Exists` where the record was written meanwhile, and the branch is to be kept; `NotFound`
    /// where somebody else has seen to the branch.
    pub fn resolve(&mut self, branch: &Branch, keep: Keep) -> Result<()> {
        let keep = match keep {
            Keep::Record => None,
            Keep::Branch => {
                let record = self.get(&branch.name.key, Level::Latest)?;
                let version = record.map(|record| record.version);
                Some(version.map_or(Expect::Absent, |version| Expect::Version { version }))
            }
        };
        let sequence = self.next;
        self.next += 1;
        let (table, branch) = (self.table.clone(), branch.name.clone());
        let (session, below) = (self.session, sequence);
        let resolve = msg::Resolve { table, branch, session, sequence, below, keep };
        self.send(wire::OP_TABLE_RESOLVE, &resolve, &[]).map(drop)
    }
}

/// As people type it.
fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).escape_debug().to_string()
}
