//! Sweeps a disk view's rows in the background: in each round a few batches, on the node's workers, so that
//! who applies and who rides have the disk and the cores to themselves for most of the time. What a batch
//! removes the view decides ([`holdfast_view::items::sweep`]); where it has come to lies in the
//! rows. Keeps no rows open once it was ended.

use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::rows::Rows;
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, event, sometimes};
use holdfast_node::Node;
use holdfast_view::items::{SWEEP_ROWS_MIN, SweepStep, sweep};
use std::sync::{Arc, Mutex};

/// Rows that one batch looks at.
static BATCH_ROWS: Knob = Knob::new("views.sweep-rows", 4096, &[2, 3, 10]);
/// Batches are made for so long in a round, of which there is one a second: a fifth of a core.
const SLICE_NS: u64 = 200_000_000;
/// And so many of them, whatever the clock says.
static SLICE_BATCHES: Knob = Knob::new("views.sweep-batches", 10_000, &[1, 3]);

/// A sweep that has removed so many versions has the engine give back their room at once.
static GIVEN_BACK: Knob = Knob::new("views.sweep-given-back", 100_000, &[1, 10]);

/// Sweeps one view.
pub struct Sweeper {
    /// As people call the view.
    view: String,
    node: Arc<Node>,
    state: Mutex<State>,
}

struct State {
    /// Nothing once it was ended. Held while a batch is made, so that nobody uses the rows behind that.
    rows: Option<Arc<dyn Rows>>,
    /// Batches are being made.
    is_running: bool,
    /// Nothing is left that this horizon has passed.
    below: Index,
}

impl Sweeper {
    /// Of the rows of a view.
    pub fn new(view: String, rows: Arc<dyn Rows>, node: &Arc<Node>) -> Arc<Sweeper> {
        let state = State { rows: Some(rows), is_running: false, below: Index(0) };
        Arc::new(Sweeper { view, node: node.clone(), state: Mutex::new(state) })
    }

    /// The topic's horizon is here: sweeps on, if it has not come so far.
    pub fn round(self: &Arc<Sweeper>, horizon: Index) {
        {
            // Whoever makes a batch comes to an end with it.
            let Ok(mut state) = self.state.try_lock() else { return };
            if state.is_running || state.rows.is_none() || horizon <= state.below {
                return;
            }
            state.is_running = true;
        }
        let own = self.clone();
        self.node.workers.run(move || own.slice());
    }

    /// Waits for the batch that is being made, and makes no other one.
    pub fn end(&self) {
        self.state.held().rows = None;
    }

    fn slice(&self) {
        let clock = &self.node.machine.clock;
        let begun_ns = clock.monotonic_ns();
        for batches in 1..=SLICE_BATCHES.get() {
            let is_over = match self.batch() {
                Ok(is_over) => is_over,
                // The view's own writes fail like this one, and say so.
                Err(Error { kind: Kind::Retry | Kind::Full, .. }) => true,
                Err(e) => {
                    self.node.report_failure(format_args!("sweep view `{}`", self.view), &e);
                    true
                }
            };
            if is_over || clock.monotonic_ns().saturating_sub(begun_ns) > SLICE_NS {
                break;
            }
            if batches == SLICE_BATCHES.get() {
                SLICE_BATCHES.cross();
            }
        }
        self.state.held().is_running = false;
    }

    /// Whether there is nothing more to do.
    fn batch(&self) -> Result<bool> {
        let step = {
            let mut state = self.state.held();
            let Some(rows) = state.rows.clone() else { return Ok(true) };
            let step = sweep(&*rows, BATCH_ROWS.size().max(SWEEP_ROWS_MIN))?;
            // None where it has not applied the entry with the horizon yet, or has swept before its start.
            let Some(step) = step else { return Ok(true) };
            if step.is_over {
                state.below = step.horizon;
                if step.removed >= GIVEN_BACK.get() {
                    GIVEN_BACK.cross();
                    rows.give_back()?;
                }
            }
            step
        };
        BATCH_ROWS.cross();
        let SweepStep { horizon, removed, is_over } = step;
        if is_over && removed > 0 {
            sometimes!("items were swept");
            let view = &self.view;
            event!(ItemsSwept, format_args!("`{view}`: {removed} versions below entry {horizon}"));
        }
        Ok(is_over)
    }
}
