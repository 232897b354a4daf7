//! Every order of a few inputs, searched breadth first: the core itself is driven, so there is no
//! second model of it that could be right where the core is wrong. Each state is looked at as in
//! drawn schedules, and from each everybody who goes on asking must get through.

use crate::view::View;
use crate::world::World;
use holdfast_base::ids::Index;
use holdfast_ride::carousel::{Limits, RiderId, Ticket};
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::panic::AssertUnwindSafe;

/// What may still happen, beside requests, answers and comings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Budget {
    leaves: usize,
    resumes: usize,
    writes: usize,
    /// Moments that the core wanted to be woken at.
    wakes: usize,
    failures: usize,
    images: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    world: World,
    budget: Budget,
    /// Tickets of riders that are still to come, in this order.
    coming: Vec<Ticket>,
    came: u64,
    /// Where a rider that left would go on.
    tokens: BTreeSet<(u64, usize, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Answer(usize),
    Fail(usize),
    Join,
    Pull(u64, usize),
    Leave(u64),
    Resume,
    Write,
    Wake,
    Image,
}

impl State {
    fn steps(&self) -> Vec<Step> {
        let (world, budget) = (&self.world, &self.budget);
        let tasks = 0..world.tasks.len();
        let mut steps = tasks.clone().map(Step::Answer).collect::<Vec<_>>();
        let streams = world.streams();
        let pulls = streams.iter().filter(|(rider, head)| world.riders[rider].asked[head] == 0);
        steps.extend(pulls.map(|(rider, head)| Step::Pull(rider.0, *head)));
        if !self.coming.is_empty() {
            steps.push(Step::Join);
        }
        if budget.failures > 0 {
            steps.extend(tasks.map(Step::Fail));
        }
        if budget.leaves > 0 {
            let riders = streams.iter().map(|(rider, _)| *rider).collect::<BTreeSet<RiderId>>();
            steps.extend(riders.into_iter().map(|rider| Step::Leave(rider.0)));
        }
        if budget.resumes > 0 && !self.tokens.is_empty() {
            steps.push(Step::Resume);
        }
        if budget.writes > 0 {
            steps.push(Step::Write);
        }
        if budget.wakes > 0 && world.core.next_wake().is_some() {
            steps.push(Step::Wake);
        }
        if budget.images > 0 {
            steps.push(Step::Image);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        let heads = self.world.view.heads;
        match step {
            Step::Answer(task) => self.world.answer(task, false),
            Step::Fail(task) => {
                self.budget.failures -= 1;
                self.world.answer(task, true);
            }
            Step::Join => {
                self.came += 1;
                let ticket = self.coming.remove(0);
                self.world.join(self.came, 0..heads, ticket);
            }
            Step::Pull(rider, head) => self.world.pull(rider, head),
            Step::Leave(rider) => {
                self.budget.leaves -= 1;
                let token = |head| {
                    let (index, row) = self.world.token(RiderId(rider), head)?;
                    Some((index, head, row))
                };
                self.tokens.extend((0..heads).filter_map(token));
                self.world.leave(rider);
            }
            Step::Resume => {
                self.budget.resumes -= 1;
                self.came += 1;
                let (index, head, row) = self.tokens.pop_first().expect("there is one");
                let ticket = Ticket::At { index: Index(index), from: Some(row) };
                self.world.join(self.came, head..heads, ticket);
            }
            Step::Write => {
                self.budget.writes -= 1;
                self.world.index += 1;
            }
            Step::Wake => {
                self.budget.wakes -= 1;
                let wake = self.world.core.next_wake().expect("there is one");
                self.world.pass((wake - self.world.now).max(1));
            }
            Step::Image => {
                self.budget.images -= 1;
                self.world.image_due();
            }
        }
        // Any of them may answer next, so their order is no part of the state.
        self.world.tasks.sort_unstable();
    }
}

struct Report {
    states: usize,
    steps: usize,
    /// Rides that ended well in some state.
    well: usize,
    moves: usize,
}

/// More are a mistake in the budgets: each is a whole driver, and is driven to its end.
const STATES_MAX: usize = 100_000;

/// Searches all of it.
fn search(first: State) -> Report {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let key = |state: &State| (hasher.hash_one(state), hasher.hash_one((1u8, state)));
    let mut known = HashSet::from([key(&first)]);
    let mut came: Vec<Option<(usize, Step)>> = vec![None];
    let mut layer = vec![(0, first)];
    let mut report = Report { states: 0, steps: 0, well: 0, moves: 0 };
    while !layer.is_empty() {
        let mut next = Vec::new();
        for (at, state) in layer {
            report.states += 1;
            report.moves += state.world.moves;
            let ended = state.world.riders.values();
            report.well += ended.filter(|rider| rider.ended == Some(Ok(()))).count();
            let finish = || state.world.clone().finish();
            guarded(&came, at, None, finish);
            for step in state.steps() {
                report.steps += 1;
                let mut after = state.clone();
                guarded(&came, at, Some(step), || after.take(step));
                if known.insert(key(&after)) {
                    next.push((came.len(), after));
                    came.push(Some((at, step)));
                }
            }
        }
        assert!(came.len() < STATES_MAX, "more states than a test should search: {}", came.len());
        layer = next;
    }
    report
}

/// Says by which steps it came to what is wrong.
fn guarded(came: &[Option<(usize, Step)>], at: usize, step: Option<Step>, take: impl FnOnce()) {
    let result = std::panic::catch_unwind(AssertUnwindSafe(take));
    if let Err(panic) = result {
        let (mut way, mut at) = (Vec::from_iter(step), at);
        while let Some((before, step)) = came[at] {
            way.push(step);
            at = before;
        }
        way.reverse();
        eprintln!("wrong after {way:?}");
        std::panic::resume_unwind(panic);
    }
}

const NOW: Ticket = Ticket::Shared { at_least: Index(0) };
const FRESH: Ticket = Ticket::Shared { at_least: Index(2) };

fn limits(window_bytes: u64) -> Limits {
    Limits { window_bytes, private_max: 1, ..Limits::usual() }
}

/// Heads of so many slabs; the first one has a key in the middle at which riders can join, and one
/// slab inside a key, where they cannot.
fn view(heads: usize, slabs: usize) -> View {
    let fits = |view: &View| {
        let right = |head| view.slabs(1, head).len() == slabs;
        let first = view.slabs(1, 0);
        let joinable = first.iter().filter(|content| content.slab.joinable).count();
        (0..heads).all(right) && joinable == slabs - 1 && view.slabs(2, 0).len() == slabs
    };
    let views = (0..).map(|seed| View { seed, heads, slabs: slabs as u64 });
    views.into_iter().find(fits).expect("there is one among all seeds")
}

fn state(view: View, limits: Limits, coming: &[Ticket], budget: Budget) -> State {
    State {
        world: World::new(view, limits),
        budget,
        coming: coming.to_vec(),
        came: 0,
        tokens: BTreeSet::new(),
    }
}

fn told(name: &str, report: &Report) {
    let Report { states, steps, well, moves } = report;
    println!("{name}: {states} states, {steps} steps, {well} rides ended well, {moves} moves");
    assert!(*states > 1000 && *well > 0, "{name} is searched");
}

#[test]
fn two_join_and_one_leaves_and_goes_on_in_any_order() {
    let budget = Budget { leaves: 1, resumes: 1, writes: 1, ..Budget::default() };
    let first = state(view(1, 3), limits(1 << 20), &[NOW, FRESH], budget);
    told("join, leave, resume", &search(first));
}

#[test]
fn of_two_in_a_small_window_who_holds_up_the_other_is_moved() {
    let budget = Budget { wakes: 2, leaves: 1, ..Budget::default() };
    let first = state(view(1, 3), limits(1), &[NOW, NOW], budget);
    let report = search(first);
    told("join, move, leave", &report);
    assert!(report.moves > 0);
}

#[test]
fn three_share_a_small_window() {
    let budget = Budget { wakes: 1, ..Budget::default() };
    let first = state(view(1, 3), limits(1), &[NOW, NOW, NOW], budget);
    let report = search(first);
    told("three in a small window", &report);
    assert!(report.moves > 0);
}

#[test]
fn three_stand_at_three_places_of_one_window() {
    let budget = Budget { wakes: 1, ..Budget::default() };
    let view = view(1, 3);
    let two_slabs = view.slabs(1, 0).iter().take(2).map(|content| content.slab.bytes).sum();
    let first = state(view, limits(two_slabs), &[NOW, NOW, NOW], budget);
    let report = search(first);
    told("three", &report);
    assert!(report.moves > 0);
}

#[test]
fn two_ride_on_two_heads() {
    let budget = Budget { failures: 1, ..Budget::default() };
    let first = state(view(2, 2), limits(1), &[NOW, NOW], budget);
    told("two heads", &search(first));
}

#[test]
fn a_scan_fails_under_two() {
    let budget = Budget { failures: 1, leaves: 1, wakes: 1, ..Budget::default() };
    let first = state(view(1, 3), limits(1), &[NOW, NOW], budget);
    told("failure", &search(first));
}

#[test]
fn an_image_is_made_beside_two_riders_or_is_not() {
    let budget = Budget { images: 1, failures: 1, ..Budget::default() };
    let first = state(view(1, 2), limits(1), &[NOW, NOW], budget);
    told("image that fails", &search(first));
}

#[test]
fn two_take_what_they_missed_from_the_image() {
    let budget = Budget { images: 1, ..Budget::default() };
    let first = state(view(1, 3), limits(1), &[NOW, NOW], budget);
    told("image", &search(first));
}

#[test]
fn an_image_is_made_beside_a_rider_that_is_moved_and_goes_on() {
    let budget = Budget { images: 1, wakes: 1, leaves: 1, resumes: 1, ..Budget::default() };
    let first = state(view(1, 3), limits(1), &[NOW], budget);
    told("image, move, resume", &search(first));
}
