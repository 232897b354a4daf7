//! Sums of what a view holds, by which views are compared: `holdfast view verify` asks for them.

use super::{Answer, ViewFace, check_latest, coded, range};
use crate::views::{KeptView, RunView, describe};
use holdfast_base::{Error, Result};
use holdfast_server::{Request, answer};
use holdfast_view::items::{Reader, Totals};
use holdfast_wire::slab::Range;
use holdfast_wire::view as msg;
use std::sync::Arc;

impl ViewFace {
    pub(super) fn sum(self: Arc<Self>, request: Request<'_>) {
        let Some((sum, reply)) = request.decode::<msg::Sum>("sum up a view") else { return };
        let found = range(sum.low, sum.high)
            .map_err(|e| e.context("sum up a view"))
            .and_then(|range| Ok((range, self.views.view(&sum.view)?)));
        match found {
            Ok((range, view)) => {
                let reached = sum.reached.max(sum.at.unwrap_or_default());
                let read = move |view: &RunView| totals(view, range, &sum);
                self.once_reached(view, reached, reply, read);
            }
            Err(e) => answer(reply, Err(e)),
        }
    }
}

fn totals(view: &RunView, range: Range, sum: &msg::Sum) -> Answer {
    let range = view.range.intersection(range);
    let summed = |at, horizon, Totals { keys, sums }| msg::Summed { at, horizon, keys, sums };
    let of_rows = |reader: Reader| -> Result<msg::Summed> {
        let at = sum.at.unwrap_or(reader.applied());
        let horizon = reader.catalog().horizon();
        Ok(summed(at, horizon, reader.totals(range, Some(at))?))
    };
    coded(match &view.kept {
        KeptView::Disk { rows, .. } => rows.moment().and_then(Reader::new).and_then(of_rows),
        // Nothing is applied while it is summed up.
        KeptView::Memory { fold } => fold
            .read(|view, applied| {
                check_latest(sum.at, applied)?;
                Ok(summed(applied, view.catalog().horizon(), view.totals(range)))
            })
            .and_then(|summed| summed),
        KeptView::Index { .. } => Err(Error::invalid(format!(
            "sum up view `{}`: an index has no items to sum up",
            describe(&view.name)
        ))),
    })
}
