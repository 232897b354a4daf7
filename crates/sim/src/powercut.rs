//! Power cuts at every operation: runs a layer's real code on the simulated disk from a seed, cuts
//! the power, lets a seed decide what survives, and has the layer's checker look at what comes
//! back, also after a second cut during recovery. Knows no layer; those are in `tests/powercut`.

use crate::{SimDisk, SimDiskOptions};
use holdfast_env::{Rng, SeededRng};
use std::collections::BTreeSet;

/// Operations behind a sync site's call at which the power is cut to show that it matters.
const AFTER_SITE: u64 = 12;
/// The second cut falls on one of this many first operations of the second life.
const SECOND_CUT_WITHIN: u64 = 24;

/// Real code under test, and what it has promised.
pub trait Layer {
    /// What was acknowledged and what is in doubt.
    type Model: Clone + Default;

    /// Opens what the disk holds, compares it with the model (after which nothing is in doubt),
    /// and does `life.steps` steps of work. Errors while the power is off end the life; an `Err`
    /// is a broken promise.
    fn live(
        &self,
        disk: &SimDisk,
        model: &mut Self::Model,
        life: Life,
        seen: &mut Seen,
    ) -> Result<(), String>;

    /// What was only written is in doubt from here on.
    fn power_was_cut(&self, model: &mut Self::Model);
}

/// One run of the code between an opening and a cut.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub seed: u64,
    pub steps: u64,
}

impl Life {
    fn new(seed: u64, number: u64, steps: u64) -> Life {
        Life { seed: mix(seed, number), steps }
    }

    /// What this life draws its choices from.
    pub fn rng(self) -> SeededRng {
        SeededRng::new(self.seed)
    }
}

/// What has happened at least once; a test that never saw what it is about has failed.
#[derive(Debug, Default)]
pub struct Seen(BTreeSet<&'static str>);

impl Seen {
    pub fn sometimes(&mut self, happened: bool, what: &'static str) {
        if happened {
            self.0.insert(what);
        }
    }

    /// Panics unless all of these have happened.
    pub fn assert_all(&self, wanted: &[&'static str]) {
        let missing: Vec<_> = wanted.iter().filter(|what| !self.0.contains(*what)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

/// What to explore.
#[derive(Clone, Copy, Debug)]
pub struct CutPlan {
    pub seed: u64,
    /// Steps of the life that is cut.
    pub steps: u64,
    /// Every so many operations there is a cut; 1 for all.
    pub stride: u64,
    /// Outcomes tried for each cut: the first loses all that can be lost, the second ends the
    /// process only, the others are drawn.
    pub outcomes: u64,
}

/// A number from two.
pub fn mix(a: u64, b: u64) -> u64 {
    SeededRng::new(a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64()
}

fn new_disk(seed: u64, off: Option<&str>) -> SimDisk {
    let disk = SimDisk::with_options(
        seed,
        SimDiskOptions { volatile_dirs: true, ..SimDiskOptions::default() },
    );
    if let Some(site) = off {
        disk.disable_site(site);
    }
    disk
}

/// The first life, with the power cut at operation `at`.
fn first_life<L: Layer>(
    layer: &L,
    plan: CutPlan,
    off: Option<&str>,
    at: Option<u64>,
    seen: &mut Seen,
) -> Result<(SimDisk, L::Model), String> {
    let disk = new_disk(plan.seed, off);
    if let Some(at) = at {
        disk.crash_at(at);
    }
    let mut model = L::Model::default();
    layer.live(&disk, &mut model, Life::new(plan.seed, 0, plan.steps), seen)?;
    Ok((disk, model))
}

/// The trace of a first life that nothing disturbs.
pub fn undisturbed<L: Layer>(layer: &L, plan: CutPlan) -> Result<SimDisk, String> {
    first_life(layer, plan, None, None, &mut Seen::default()).map(|(disk, _)| disk)
}

/// The sync sites that a few lives pass: one undisturbed, one cut short, and their recoveries.
pub fn sites<L: Layer>(layer: &L, plan: CutPlan) -> Result<BTreeSet<&'static str>, String> {
    let whole = undisturbed(layer, plan)?;
    let mut sites: BTreeSet<_> = whole.sites().into_iter().collect();
    for part in 1..8 {
        let at = whole.operations() * part / 8;
        let (disk, mut model) = first_life(layer, plan, None, Some(at), &mut Seen::default())?;
        layer.power_was_cut(&mut model);
        let disk = disk.power_cut(mix(plan.seed, at));
        layer.live(&disk, &mut model, Life::new(plan.seed, 1, 4), &mut Seen::default())?;
        sites.extend(disk.sites());
    }
    Ok(sites)
}

/// Cuts the power at every `stride`th operation of the first life; answers how many outcomes held,
/// or the first that did not.
pub fn explore<L: Layer>(layer: &L, plan: CutPlan, seen: &mut Seen) -> Result<u64, String> {
    let (disk, _) = first_life(layer, plan, None, None, seen)?;
    let mut outcomes = 0;
    for at in (plan.seed % plan.stride..disk.operations()).step_by(plan.stride as usize) {
        cut_at(layer, plan, None, at, seen)?;
        outcomes += plan.outcomes;
    }
    Ok(outcomes)
}

/// One cut in the first life and what follows from it. A failure that [`explore`] reports is
/// repeated by this call.
pub fn cut_at<L: Layer>(
    layer: &L,
    plan: CutPlan,
    off: Option<&str>,
    at: u64,
    seen: &mut Seen,
) -> Result<(), String> {
    let told = |e: String| format!("{plan:?}, power cut at operation {at}: {e}");
    let (disk, model) = first_life(layer, plan, off, Some(at), seen).map_err(told)?;
    for outcome in 0..plan.outcomes {
        let seed = mix(mix(plan.seed, at), outcome);
        let mut model = model.clone();
        if outcome != 1 {
            layer.power_was_cut(&mut model);
        }
        let after = match outcome {
            0 => disk.power_cut_losing_all(),
            1 => disk.process_kill(),
            _ => disk.power_cut(seed),
        };
        aftermath(layer, after, model, seed, seen)
            .map_err(|e| told(format!("outcome {outcome}: {e}")))?;
    }
    Ok(())
}

/// A second life, often cut during its recovery; then the same must be found again and again.
fn aftermath<L: Layer>(
    layer: &L,
    mut disk: SimDisk,
    mut model: L::Model,
    seed: u64,
    seen: &mut Seen,
) -> Result<(), String> {
    let rng = SeededRng::new(seed);
    if rng.next_u64().is_multiple_of(2) {
        disk.crash_at(rng.next_u64() % SECOND_CUT_WITHIN);
    }
    layer
        .live(&disk, &mut model, Life::new(seed, 1, 4), seen)
        .map_err(|e| format!("second life: {e}"))?;
    if disk.crashed() {
        layer.power_was_cut(&mut model);
        disk = disk.power_cut(rng.next_u64());
        seen.sometimes(true, "second cut");
    }
    for again in 2..4 {
        layer
            .live(&disk, &mut model, Life::new(seed, again, 0), seen)
            .map_err(|e| format!("life {again}: {e}"))?;
    }
    layer.power_was_cut(&mut model);
    let disk = disk.power_cut_losing_all();
    layer
        .live(&disk, &mut model, Life::new(seed, 4, 0), seen)
        .map_err(|e| format!("after a cut behind recovery: {e}"))
}

/// Switches one sync site off and looks for a run that breaks a promise; answers which.
pub fn prove_site<L: Layer>(layer: &L, plans: &[CutPlan], site: &str) -> Option<String> {
    let seen = &mut Seen::default();
    for plan in plans {
        let disk = match first_life(layer, *plan, Some(site), None, seen) {
            Ok((disk, _)) => disk,
            Err(broken) => return Some(broken),
        };
        let trace = disk.trace();
        let calls = (0u64..).zip(&trace).filter(|(_, line)| line.ends_with(site));
        let mut cuts: BTreeSet<u64> = calls.flat_map(|(at, _)| at + 1..=at + AFTER_SITE).collect();
        if cuts.is_empty() {
            // It is called by recovery alone.
            cuts = (plan.seed % plan.stride..disk.operations())
                .step_by(plan.stride as usize)
                .collect();
        }
        for at in cuts {
            if let Err(broken) = cut_at(layer, *plan, Some(site), at, seen) {
                let with = cut_at(layer, *plan, None, at, seen);
                assert!(with.is_ok(), "not for the lack of a sync: {with:?}");
                return Some(broken);
            }
        }
    }
    None
}
