//! Rides over the views of one node: everything that they hold of a part of the keys, and behind it, for
//! who follows, every change as the log has it. Which views are ridden is decided by [`select`]; which
//! entries count, and of which keys, by the fold that views have.

use crate::errors::waiting;
use crate::pool::Pool;
use crate::process::Process;
use holdfast_base::ids::Index;
use holdfast_base::stream::read_all;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_client::view::{self, Candidate, select};
use holdfast_env::HoldMutex;
use holdfast_view::items::{ChangesView, log_topic};
use holdfast_view::{Arrival, Context, GoesOn};
use holdfast_wire::slab::{Content, Fields, PARTITIONS_MAX, Range};
use holdfast_wire::view::{Board, Boarded, Collection, ViewKind, ViewStatus};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use self_cell::{MutBorrow, self_cell};
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What somebody wants to ride.
pub struct Asked {
    pub topic: String,
    pub part: u32,
    pub of: u32,
    pub collections: Option<Vec<u16>>,
    pub keys_only: bool,
    pub versions: bool,
    pub since: Index,
    pub below: Option<Index>,
    pub fields: Option<Vec<String>>,
    pub reached: Index,
    pub at: Option<Index>,
    pub follow: bool,
}

self_cell!(
    struct OnBoard {
        owner: MutBorrow<Client>,
        #[covariant]
        dependent: ClientRide,
    }
);

type ClientRide<'a> = view::Ride<'a>;

/// An item as Python gets it: the collection's number, key, index, and value; none was deleted.
type Item = (u16, Vec<u8>, u64, Option<Vec<u8>>);
type Told<'py> = (Py<PyString>, Bound<'py, PyBytes>, u64, Option<Bound<'py, PyBytes>>);

/// A part of what was ridden, as of one entry.
struct Rode {
    range: Range,
    boarded: Boarded,
    /// What a fold needs besides items, to go on.
    front: Vec<u8>,
}

/// Where a ride is.
enum State {
    Rides {
        on_board: OnBoard,
        range: Range,
        left: VecDeque<Board>,
        rode: Vec<Rode>,
    },
    Follows(Box<Follows>),
    /// It broke off, and is not gone on with.
    Failed(Error),
    Over,
}

struct Follows {
    /// The topic's name in the log.
    topic: String,
    fold: GoesOn<ChangesView>,
    /// Up to which entry each range was ridden.
    ridden: Vec<(Range, Index)>,
    fields: Option<Fields>,
}

/// A ride, by a connection of its own.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Ride {
    pool: Arc<Pool>,
    process: Process,
    asked: Asked,
    /// As of which entry the first view was boarded.
    index: Index,
    state: Mutex<State>,
    /// Collections by their numbers.
    names: Mutex<HashMap<u16, Py<PyString>>>,
}

impl Asked {
    fn check(&self) -> Result<()> {
        if self.part >= self.of || self.of > PARTITIONS_MAX {
            return Err(Error::invalid(format!(
                "ride part {} of {}: parts count from 0, and there are up to {PARTITIONS_MAX}",
                self.part, self.of
            )));
        }
        if self.follow && self.below.is_some() {
            return Err(Error::invalid(
                "ride and follow: `below` is an end, and to follow has none",
            ));
        }
        Ok(())
    }

    /// What to ride of the node's views.
    fn boards(&self, client: &mut Client) -> Result<VecDeque<Board>> {
        let mut views = client.views(&self.topic)?;
        views.retain(|one| {
            let runs = one.stopped.is_empty() && one.begins.is_empty();
            let has = |at: Index| one.images.iter().any(|image| image.index == at);
            runs && one.view.kind == ViewKind::Disk {} && self.at.is_none_or(has)
        });
        let candidate = |one: &ViewStatus| Candidate {
            range: Range::part(one.view.part, one.view.of),
            applied: one.applied,
            is_apart: false,
        };
        let candidates: Vec<Candidate> = views.iter().map(candidate).collect();
        let chosen = select(&candidates, Range::part(self.part, self.of));
        let chosen = chosen.map_err(|e| match self.at {
            Some(at) => e.context(format_args!(
                "ride topic `{}` as of entry {at}, of which only images can be ridden",
                self.topic
            )),
            None => e.context(format_args!("ride topic `{}`", self.topic)),
        })?;
        let board = |one: view::Chosen| Board {
            collections: self.collections.clone(),
            keys_only: self.keys_only,
            versions: self.versions,
            since: self.since,
            below: self.below,
            fields: self.fields.clone(),
            reached: self.reached,
            at: self.at,
            ..Board::of(views[one.candidate].view.clone(), one.range)
        };
        Ok(chosen.into_iter().map(board).collect())
    }
}

impl Ride {
    /// Boards the first view.
    pub fn begin(pool: &Arc<Pool>, asked: Asked) -> Result<Ride> {
        asked.check()?;
        let mut client = pool.connection()?;
        let mut left = match asked.boards(&mut client) {
            Ok(left) => left,
            Err(e) => {
                pool.give_back(client);
                return Err(e);
            }
        };
        let first =
            left.pop_front().ok_or_else(|| Error::bug("ride a topic: nothing was chosen"))?;
        let (range, on_board) = board(pool, client, &first)?;
        let index = on_board.borrow_dependent().boarded().index;
        Ok(Ride {
            pool: pool.clone(),
            process: Process::current(),
            asked,
            index,
            state: Mutex::new(State::Rides { on_board, range, left, rode: Vec::new() }),
            names: Mutex::default(),
        })
    }

    /// The next items; none at the end. Nothing where none came for so long.
    fn come(&self, wait: Duration) -> Result<Option<Vec<Item>>> {
        self.process.check("a ride")?;
        let mut state = self.state.held();
        loop {
            match &mut *state {
                State::Over => return Ok(None),
                State::Failed(e) => return Err(e.clone()),
                State::Follows(follows) => return self.follow(follows, wait).map(Some),
                State::Rides { on_board, .. } => {
                    let came = on_board.with_dependent_mut(|_, ride| ride.next_slab());
                    let came = came.and_then(|slab| match slab {
                        Some(slab) => items(&slab).map(Some),
                        None => self.goes_on(&mut state).map(|()| None),
                    });
                    match came {
                        Ok(Some(items)) => return Ok(Some(items)),
                        Ok(None) => {}
                        Err(e) => {
                            let e = e.context(format_args!("ride topic `{}`", self.asked.topic));
                            self.end(&mut state);
                            *state = State::Failed(e.clone());
                            return Err(e);
                        }
                    }
                }
            }
        }
    }

    /// Behind a view that was received whole: the next one, or the log, or the end.
    fn goes_on(&self, state: &mut State) -> Result<()> {
        let State::Rides { on_board, range, mut left, mut rode } = mem::replace(state, State::Over)
        else {
            panic!("it rides")
        };
        let ride = on_board.borrow_dependent();
        rode.push(Rode { range, boarded: *ride.boarded(), front: ride.front().to_vec() });
        let client = on_board.into_owner().into_inner();
        if let Some(next) = left.pop_front() {
            let (range, on_board) = board(&self.pool, client, &next)?;
            *state = State::Rides { on_board, range, left, rode };
            return Ok(());
        }
        self.pool.give_back(client);
        if self.asked.follow {
            *state = State::Follows(Box::new(Follows::new(&self.asked, &rode)?));
        }
        Ok(())
    }

    fn follow(&self, follows: &mut Follows, wait: Duration) -> Result<Vec<Item>> {
        let mut client = self.pool.lend()?;
        let entries = client.log().tail(&follows.topic, follows.fold.next(), wait);
        let entries =
            entries.map_err(|e| e.context(format_args!("follow topic `{}`", self.asked.topic)))?;
        let mut items = Vec::new();
        for entry in entries {
            let taken = follows.take(entry.index, &entry.bytes, &self.asked, &mut items);
            match taken {
                Ok(()) => {}
                Err(e) if items.is_empty() => return Err(e),
                // What came in front of it first; it is asked for again.
                Err(_) => break,
            }
        }
        Ok(items)
    }

    /// Gives the connection back, if it has one.
    fn end(&self, state: &mut State) {
        if let State::Rides { on_board, .. } = mem::replace(state, State::Over) {
            self.pool.give_back(on_board.into_owner().into_inner());
        }
    }

    /// The names of collections that are not known yet.
    fn learn(&self, py: Python<'_>, items: &[Item]) -> PyResult<()> {
        let is_new = |names: &HashMap<u16, Py<PyString>>| {
            items.iter().any(|(number, ..)| !names.contains_key(number))
        };
        if !is_new(&self.names.held()) {
            return Ok(());
        }
        let catalog = waiting(py, || self.pool.lend()?.view(&self.asked.topic).catalog())?;
        let names = catalog.collections.iter().map(|one: &Collection| PyString::new(py, &one.name));
        *self.names.held() = (1..).zip(names.map(Bound::unbind)).collect();
        if is_new(&self.names.held()) {
            let bug = Error::bug("ride a topic: an item is of a collection that it does not have");
            return Err(crate::errors::raised(py, bug));
        }
        Ok(())
    }
}

fn board(pool: &Arc<Pool>, client: Client, board: &Board) -> Result<(Range, OnBoard)> {
    let range = Range::new(board.low, board.high);
    let client = MutBorrow::new(client);
    match OnBoard::try_new_or_recover(client, |client| client.borrow_mut().ride(board)) {
        Ok(on_board) => Ok((range, on_board)),
        Err((client, e)) => {
            pool.give_back(client.into_inner());
            Err(e.context(format_args!("ride topic `{}`", board.view.topic)))
        }
    }
}

fn items(slab: &view::Slab) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    slab.each(|item| {
        let value = match item.content {
            Content::Value(value) => Some(value.to_vec()),
            Content::Deleted => None,
            Content::NotSent => Some(Vec::new()),
        };
        items.push((item.collection, item.key.to_vec(), item.index, value));
        Ok(())
    })?;
    Ok(items)
}

impl Follows {
    /// Parts are as of different entries where views were level with different ones: the log is read
    /// behind the first of these.
    fn new(asked: &Asked, rode: &[Rode]) -> Result<Follows> {
        let topic = log_topic(&asked.topic)?;
        let first = rode.iter().min_by_key(|rode| rode.boarded.index);
        let Rode { boarded, front, .. } = first.expect("one was ridden");
        let Boarded { index: applied, entry_crc, digest, .. } = *boarded;
        let fold = read_all(front, |source| {
            let arrival = Arrival { applied, entry_crc, digest, source };
            GoesOn::new(&Context::of(&topic), arrival)
        })?;
        let ridden = rode.iter().map(|rode| (rode.range, rode.boarded.index)).collect();
        let fields = asked.fields.as_deref().map(Fields::new).transpose()?;
        Ok(Follows { topic, fold, ridden, fields })
    }

    fn take(
        &mut self,
        index: Index,
        entry: &[u8],
        asked: &Asked,
        items: &mut Vec<Item>,
    ) -> Result<()> {
        self.fold.take(index, entry)?;
        let view = self.fold.view();
        for change in view.of(index) {
            let hash = view.catalog().hash(change.collection, change.key);
            let is_new = |(range, ridden): &(Range, Index)| range.contains(hash) && index > *ridden;
            let listed = asked.collections.as_ref();
            let is_wanted = listed.is_none_or(|listed| listed.contains(&change.collection));
            if !is_wanted || !self.ridden.iter().any(is_new) {
                continue;
            }
            let value = match (change.value, &self.fields) {
                (Some(_), _) if asked.keys_only => Some(Vec::new()),
                (Some(value), Some(fields)) => match view.catalog().collection(change.collection) {
                    Some(of) if of.json => Some(fields.of_value(value)),
                    _ => {
                        return Err(Error::invalid(
                            "follow fields of values: those of a collection that is new are bytes, and have \
                             none: name collections of JSON",
                        ));
                    }
                },
                (value, _) => value.map(<[u8]>::to_vec),
            };
            items.push((change.collection, change.key.to_vec(), index.0, value));
        }
        Ok(())
    }
}

#[pymethods]
impl Ride {
    /// As of which entry the first view was boarded.
    #[getter]
    fn index(&self) -> u64 {
        self.index.0
    }

    /// Whether what comes now is followed, and has no end.
    #[getter]
    fn follows(&self, py: Python<'_>) -> bool {
        py.detach(|| matches!(*self.state.held(), State::Follows(_)))
    }

    /// The next items, as many as came at once; None at the end. An empty list where none came for so
    /// long, of a ride that follows.
    #[pyo3(signature = (wait_s=0.0))]
    fn next<'py>(&self, py: Python<'py>, wait_s: f64) -> PyResult<Option<Vec<Told<'py>>>> {
        let wait = Duration::try_from_secs_f64(wait_s).unwrap_or_default();
        let Some(items) = waiting(py, || self.come(wait))? else { return Ok(None) };
        self.learn(py, &items)?;
        let names = self.names.held();
        let told = |(number, key, index, value): Item| {
            let value = value.map(|value| PyBytes::new(py, &value));
            (names[&number].clone_ref(py), PyBytes::new(py, &key), index, value)
        };
        Ok(Some(items.into_iter().map(told).collect()))
    }

    /// Ends it, and gives the connection back. Closed twice is closed.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            if self.process.is_current() {
                self.end(&mut self.state.held());
            }
        });
    }
}

impl Drop for Ride {
    fn drop(&mut self) {
        let state = mem::replace(&mut *self.state.held(), State::Over);
        if !self.process.is_current() {
            mem::forget(state);
        }
    }
}
