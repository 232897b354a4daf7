//! Breadth-first search of a model's states, each visited once. Deterministic: the same model
//! gives the same counts, and the shortest way to what is wrong.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::hash::Hash;

pub trait Model {
    type State: Clone + Eq + Hash;
    type Action: Clone + Debug;

    fn initial(&self) -> Self::State;
    /// Everything that may happen next.
    fn actions(&self, state: &Self::State, out: &mut Vec<Self::Action>);
    /// `None` where nothing changes.
    fn next(&self, state: &Self::State, action: &Self::Action) -> Option<Self::State>;
    /// What is wrong with a state, if anything.
    fn wrong(&self, state: &Self::State) -> Option<String>;
    /// Names of what this state shows, for [`Report::seen`].
    fn shows(&self, _state: &Self::State, _out: &mut BTreeSet<&'static str>) {}
}

#[derive(Debug)]
pub struct Report {
    pub states: usize,
    pub transitions: usize,
    /// Steps of the longest shortest way.
    pub depth: usize,
    pub wrong: Option<Wrong>,
    /// Everything that some state showed: a search that never came to the point proves nothing.
    pub seen: BTreeSet<&'static str>,
}

/// The first wrong state, by one of the shortest ways.
#[derive(Debug)]
pub struct Wrong {
    pub what: String,
    pub steps: Vec<String>,
}

/// States that a search may have: more than this is a mistake in the model's bounds.
const STATES_MAX: usize = 3_000_000;

/// Searches all of `model`, until something is wrong.
pub fn check<M: Model>(name: &str, model: &M) -> Report {
    let report = search(model);
    println!(
        "{name}: {} states, {} transitions, {} steps deep{}",
        report.states,
        report.transitions,
        report.depth,
        match &report.wrong {
            None => String::new(),
            Some(wrong) => format!("; {} after {:?}", wrong.what, wrong.steps),
        }
    );
    report
}

/// How a state was reached first.
struct From<A> {
    state: usize,
    action: A,
    depth: usize,
}

fn search<M: Model>(model: &M) -> Report {
    let first = model.initial();
    let mut known = HashMap::from([(first.clone(), 0)]);
    let mut states = vec![first];
    let mut came: Vec<Option<From<M::Action>>> = vec![None];
    let mut report =
        Report { states: 0, transitions: 0, depth: 0, wrong: None, seen: BTreeSet::new() };
    let mut actions = Vec::new();
    let mut at = 0;
    while at < states.len() {
        assert!(states.len() < STATES_MAX, "the model has more than {STATES_MAX} states");
        let state = states[at].clone();
        let depth = came[at].as_ref().map_or(0, |from| from.depth);
        report.depth = depth;
        model.shows(&state, &mut report.seen);
        if let Some(what) = model.wrong(&state) {
            report.wrong = Some(Wrong { what, steps: way(&came, at) });
            break;
        }
        actions.clear();
        model.actions(&state, &mut actions);
        for action in &actions {
            let Some(next) = model.next(&state, action) else { continue };
            report.transitions += 1;
            if let Entry::Vacant(fresh) = known.entry(next.clone()) {
                fresh.insert(states.len());
                states.push(next);
                came.push(Some(From { state: at, action: action.clone(), depth: depth + 1 }));
            }
        }
        at += 1;
    }
    report.states = states.len();
    report
}

fn way<A: Debug>(came: &[Option<From<A>>], mut at: usize) -> Vec<String> {
    let mut steps = Vec::new();
    while let Some(from) = &came[at] {
        steps.push(format!("{:?}", from.action));
        at = from.state;
    }
    steps.reverse();
    steps
}
