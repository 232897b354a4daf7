//! A region that is lost, and what it had alone: its streams are sealed, and its branches listed and resolved.

use super::form::expected;
use super::{TICK_NS, TableFace};
use crate::entry::{Asked, Refusal};
use crate::ids::{Epoch, Place, RegionId, StreamId};
use crate::message::{Answer, Op, Request as Asking};
use crate::region::Sealing;
use crate::sessions::Outcome;
use crate::tablet::Tablet;
use crate::tablet::branch::{Branch, BranchId};
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Result};
use holdfast_env::net::Parts;
use holdfast_server::{Request, answer};
use holdfast_wire::table::{self as msg, ANSWER_BYTES_MAX, SCAN_ROWS_MAX};
use std::ops::Bound;
use std::sync::Arc;

impl TableFace {
    pub(super) fn serve_seal(self: Arc<Self>, request: Request<'_>) {
        let Some((seal, reply)) = request.decode::<msg::Seal>("seal a region's homes") else {
            return;
        };
        let name = seal.table.clone();
        let doing = format_args!(
            "seal what is at home in region {} of table `{}`",
            seal.lost,
            name.escape_debug()
        );
        let told = self.seal(&seal).map_err(|e| e.context(doing));
        answer(reply, told.map(|told| (told.to_bytes(), Parts::None)));
    }

    /// In each tablet the streams of a lost region go on without it.
    fn seal(&self, seal: &msg::Seal) -> Result<msg::Sealed> {
        let mut sealed = msg::Sealed { are_led: true, waits_for: Vec::new(), heard_for_ms: 0 };
        // All of them are told before anybody hears that one of them has yet to do something.
        let tablets = self.table(&seal.table)?;
        let told: Vec<Result<Sealing>> =
            tablets.iter().map(|tablet| tablet.seal(RegionId(seal.lost))).collect();
        for told in told {
            match told? {
                Sealing::Done => {}
                Sealing::Waits(waits) => {
                    sealed.are_led = false;
                    sealed.waits_for.extend(waits.into_iter().map(|region| region.0));
                }
                Sealing::Heard { ticks } => {
                    sealed.are_led = false;
                    let ms = u64::from(ticks) * TICK_NS / 1_000_000;
                    sealed.heard_for_ms = ms.max(sealed.heard_for_ms);
                }
            }
        }
        sealed.waits_for.sort_unstable();
        sealed.waits_for.dedup();
        Ok(sealed)
    }

    pub(super) fn serve_branches(self: Arc<Self>, request: Request<'_>) {
        let Some((asked, reply)) = request.decode::<msg::Branches>("list branches") else { return };
        // It copies as much as a scan does, and like one not on a thread that serves connections.
        let face = self.clone();
        self.node.workers.run(move || {
            let doing = format_args!("list the branches of table `{}`", asked.table.escape_debug());
            let told = face.branches(&asked).map_err(|e| e.context(doing));
            answer(reply, told.map(|told| (Vec::new(), Parts::from(told.to_bytes()))));
        });
    }

    fn branches(&self, asked: &msg::Branches) -> Result<Vec<msg::Branch>> {
        let tablets = self.table(&asked.table)?;
        let Some(tablet) = tablets.get(usize::from(asked.tablet)) else { return Ok(Vec::new()) };
        let after = asked.after.as_ref().map(id_of);
        tablet
            .fold()
            .read(|view, _| view.look(|tablet| page(tablet, after.as_ref())).unwrap_or_default())
    }

    pub(super) fn serve_resolve(self: Arc<Self>, request: Request<'_>) {
        let Some((resolve, reply)) = request.decode::<msg::Resolve>("resolve a branch") else {
            return;
        };
        let name = resolve.table.clone();
        let done = move |told: Result<()>| {
            let doing = format_args!("resolve a branch of table `{}`", name.escape_debug());
            answer(reply, told.map_err(|e| e.context(doing)).map(|()| (Vec::new(), Parts::None)));
        };
        if resolve.sequence == 0 {
            return done(Err(Error::invalid("it has number 0: number a session's writes from 1")));
        }
        let tablets = match self.table(&resolve.table) {
            Ok(tablets) => tablets,
            Err(e) => return done(Err(e)),
        };
        let BranchId { key, stream, place } = id_of(&resolve.branch);
        let told = move |told: Result<Answer>, _: u16| {
            done(told.and_then(|told| match told {
                Answer::Done { outcome: Outcome::Resolved, .. } => Ok(()),
                Answer::Done { outcome: Outcome::Refused(Refusal::NoBranch), .. } => {
                    Err(Error::not_found("there is none of that name: somebody has seen to it"))
                }
                Answer::Done { .. } => Err(Error::exists(
                    "the record was written meanwhile, and the branch is as it was: look at both, and say it again",
                )),
                other => Err(Error::bug(format!("it was answered {other:?}"))),
            }));
        };
        let msg::Resolve { session, sequence, below, keep, .. } = resolve;
        let (asked, said) = (Asked { session, sequence, below }, Place::default());
        let op = Op::Resolve { asked, stream, place, said, keep: keep.map(expected) };
        self.ask_of(&tablets, Asking { key, op }, told);
    }
}

fn page(tablet: &Tablet, after: Option<&BranchId>) -> Vec<msg::Branch> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let (mut all, mut bytes) = (Vec::new(), 0);
    for (_, branch) in tablet.branches().said().range((from, Bound::Unbounded)) {
        bytes += branch.bytes();
        if all.len() == SCAN_ROWS_MAX || (bytes > ANSWER_BYTES_MAX as u64 && !all.is_empty()) {
            break;
        }
        all.push(told(branch));
    }
    all
}

fn told(branch: &Branch) -> msg::Branch {
    let place = branch.id.place;
    msg::Branch {
        name: msg::BranchName {
            key: branch.id.key.clone(),
            stream: branch.id.stream.0,
            epoch: place.epoch.0,
            number: place.number,
        },
        after: branch.after,
        version: branch.version,
        value: branch.value.as_ref().map(|value| value.to_vec()),
    }
}

fn id_of(name: &msg::BranchName) -> BranchId {
    BranchId {
        key: name.key.clone(),
        stream: StreamId(name.stream),
        place: Place::new(Epoch(name.epoch), name.number),
    }
}
