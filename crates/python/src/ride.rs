//! Rides over views: everything that they hold of a part of the keys, and behind it, for who follows, every
//! change as the log has it. Those of the present over this client's node are ridden here, one view after the
//! other; those over several nodes, and over images, by [`Together`]. Which entries count, and of which keys,
//! says [`Follow`].

use crate::errors::waiting;
use crate::pool::Pool;
use crate::process::Process;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Kind, Result};
use holdfast_client::view::{
    self, Candidate, Follow, Heard, Itinerary, Rode, Server, Slab, Together, disk_views, select,
    what,
};
use holdfast_client::{Client, Endpoint};
use holdfast_env::HoldMutex;
use holdfast_wire::slab::{Content, PARTITIONS_MAX, Range, Received};
use holdfast_wire::view::{Board, Collection, ViewKind, ViewName, ViewStatus};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use self_cell::{MutBorrow, self_cell};
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// So long who begins a ride over several nodes waits in one call.
const BEGIN_WAIT: Duration = Duration::from_secs(1);

/// What somebody wants to ride.
pub struct Asked {
    /// The part, and what is asked of all views.
    pub board: Board,
    /// The collections' names, with commas: what a token is of.
    pub names: Option<String>,
    pub follow: bool,
    /// Other nodes than this client's own.
    pub servers: Option<Vec<String>>,
    /// Of those, these not.
    pub leave_out: Vec<String>,
    /// And these rather than others: they are set apart for rides.
    pub apart: Vec<String>,
    /// What an earlier ride has left.
    pub token: Option<String>,
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

/// Where a ride is.
enum State {
    /// The client's node, one view after the other.
    Rides {
        on_board: OnBoard,
        left: VecDeque<Board>,
        rode: Vec<Rode>,
    },
    Together {
        together: Box<Together>,
        rode: Vec<Rode>,
    },
    /// By the nodes of that pool, once somebody has connected to them.
    Follows {
        follow: Box<Follow>,
        pool: Option<Arc<Pool>>,
    },
    /// It broke off, and is not gone on with.
    Failed(Error),
    Over,
}

/// A ride, by connections of its own.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub struct Ride {
    pool: Arc<Pool>,
    process: Process,
    asked: Asked,
    /// As of which entry the first view was boarded.
    index: Index,
    /// Of a ride over images, all of what was asked for at first.
    whole: Option<Range>,
    state: Mutex<State>,
    follows: AtomicBool,
    /// What is left of a ride over images, when the last call ended.
    token: Mutex<Option<String>>,
    /// Why nodes are not asked any more.
    left_out: Mutex<Vec<String>>,
    /// Collections by their numbers.
    names: Mutex<HashMap<u16, Py<PyString>>>,
    /// What came while the names of its collections could not be learnt.
    unsaid: Mutex<Vec<Item>>,
}

impl Asked {
    /// Of a part of a topic; the rest is as it is unless it is asked for.
    pub fn board(topic: &str, part: u32, of: u32) -> Result<Board> {
        if part >= of || of > PARTITIONS_MAX {
            return Err(Error::invalid(format!(
                "ride part {part} of {of}: parts count from 0, and there are up to {PARTITIONS_MAX}"
            )));
        }
        let view = ViewName { topic: topic.to_owned(), kind: ViewKind::Disk {}, part: 0, of: 1 };
        Ok(Board::of(view, Range::part(part, of)))
    }

    fn topic(&self) -> &str {
        &self.board.view.topic
    }

    fn check(&self) -> Result<()> {
        if let Some(both) = self.apart.iter().find(|server| self.leave_out.contains(server)) {
            return Err(Error::invalid(format!(
                "ride a topic: `{both}` is set apart for rides, and left out: name it in `apart` or in `leave_out`"
            )));
        }
        if self.token.is_some() && (self.board.at.is_some() || self.board.dedicated) {
            return Err(Error::invalid(
                "ride on by a token: it says as of which entry, and of images no ride is dedicated: leave out `at` \
                 and `dedicated`",
            ));
        }
        if self.board.at.is_some() && self.board.dedicated {
            return Err(Error::invalid(
                "ride images: each rider reads one for itself: leave out `dedicated`",
            ));
        }
        Ok(())
    }

    /// What to ride of the node's views.
    fn boards(&self, client: &mut Client) -> Result<VecDeque<Board>> {
        let views = disk_views(client, self.topic())?;
        let candidate = |one: &ViewStatus| Candidate {
            range: Range::part(one.view.part, one.view.of),
            applied: one.applied,
            is_apart: false,
        };
        let candidates: Vec<Candidate> = views.iter().map(candidate).collect();
        let chosen = select(&candidates, Range::new(self.board.low, self.board.high))
            .map_err(|e| e.context(format_args!("ride topic `{}`", self.topic())))?;
        let board = |one: view::Chosen| {
            let (low, high) = (one.range.low(), one.range.high());
            Board { view: views[one.candidate].view.clone(), low, high, ..self.board.clone() }
        };
        Ok(chosen.into_iter().map(board).collect())
    }

    /// The nodes to ride at once, by their addresses.
    fn nodes(&self, pool: &Pool) -> Result<Vec<(String, Endpoint)>> {
        let named = match &self.servers {
            Some(servers) => servers.clone(),
            None => pool.nodes().iter().map(Endpoint::to_string).collect(),
        };
        let wanted = named.into_iter().filter(|server| !self.leave_out.contains(server));
        let nodes = wanted.map(|server| Ok((server.clone(), Endpoint::parse(&server)?)));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        if nodes.is_empty() {
            return Err(Error::invalid(
                "ride a topic: every node that was named is left out: name another one",
            ));
        }
        Ok(nodes)
    }
}

/// A client of each node that answers. It may do without the others, if there are any.
fn answering(asked: &Asked, pool: &Pool, left_out: &mut Vec<String>) -> Result<Vec<Server>> {
    let nodes = asked.nodes(pool)?;
    let (options, mut servers, mut silent) = (pool.options_once(), Vec::new(), None);
    for (name, node) in nodes {
        match Client::connect(&node, &options) {
            Ok(client) => {
                let is_apart = asked.apart.contains(&name);
                servers.push(Server { name, client, is_apart });
            }
            Err(e) if e.kind == Kind::Retry => {
                left_out.push(e.message.clone());
                silent = Some(e);
            }
            Err(e) => return Err(e),
        }
    }
    match silent {
        Some(e) if servers.is_empty() => Err(e),
        _ => Ok(servers),
    }
}

impl Ride {
    /// Boards the first view.
    pub fn begin(py: Python<'_>, pool: &Arc<Pool>, asked: Asked) -> PyResult<Ride> {
        let (ride, collections) = waiting(py, || {
            asked.check()?;
            let is_marked = asked.board.at.is_some() || asked.token.is_some();
            let is_of_several =
                asked.servers.is_some() || !asked.leave_out.is_empty() || !asked.apart.is_empty();
            match is_marked || is_of_several {
                true => Ride::begin_together(pool, asked),
                false => Ride::begin_here(pool, asked).map(|ride| (ride, Vec::new())),
            }
        })?;
        ride.know(py, &collections);
        Ok(ride)
    }

    fn new(pool: &Arc<Pool>, asked: Asked, index: Index, state: State) -> Ride {
        Ride {
            pool: pool.clone(),
            process: Process::current(),
            asked,
            index,
            whole: None,
            state: Mutex::new(state),
            follows: AtomicBool::new(false),
            token: Mutex::default(),
            left_out: Mutex::default(),
            names: Mutex::default(),
            unsaid: Mutex::default(),
        }
    }

    fn begin_here(pool: &Arc<Pool>, asked: Asked) -> Result<Ride> {
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
        let on_board = board(pool, client, &first)?;
        let index = on_board.borrow_dependent().boarded().index;
        Ok(Ride::new(pool, asked, index, State::Rides { on_board, left, rode: Vec::new() }))
    }

    /// Also the names of collections: later this client's own node may not answer.
    fn begin_together(pool: &Arc<Pool>, asked: Asked) -> Result<(Ride, Vec<Collection>)> {
        let mut left_out = Vec::new();
        let mut servers = answering(&asked, pool, &mut left_out)?;
        let collections = servers[0].client.view(asked.topic()).catalog()?.collections;
        let of = what(asked.topic(), asked.names.as_deref(), &asked.board);
        let range = Range::new(asked.board.low, asked.board.high);
        let itinerary = match (&asked.token, asked.board.at) {
            (Some(token), _) => Some(Itinerary::of_token(token, of)?),
            (None, at) => at.map(|at| Itinerary::new(at, range, of)),
        };
        let (whole, mark) =
            (itinerary.as_ref().map(|i| i.whole()), itinerary.as_ref().map(|i| i.index()));
        let mut together = match itinerary {
            Some(itinerary) => Together::of_mark(servers, asked.board.clone(), itinerary)?,
            None => Together::now(servers, asked.board.clone())?,
        };
        let mut rode = Vec::new();
        // What is wrong with the first view is said now.
        while let Some(heard) = together.next(BEGIN_WAIT)? {
            match heard {
                Heard::Began(began) => {
                    rode.push(began);
                    break;
                }
                Heard::LeftOut(e) => left_out.push(e.message),
                Heard::Slab(_) | Heard::Nothing => {}
            }
        }
        let index = mark.or(rode.first().map(|rode| rode.boarded.index)).unwrap_or_default();
        let token = together.token();
        let state = State::Together { together: Box::new(together), rode };
        let mut ride = Ride::new(pool, asked, index, state);
        ride.whole = whole;
        *ride.token.held() = token;
        *ride.left_out.held() = left_out;
        Ok((ride, collections))
    }

    /// The next items; none at the end. Nothing where none came for so long.
    fn come(&self, wait: Duration) -> Result<Option<Vec<Item>>> {
        self.process.check("a ride")?;
        let mut state = self.state.held();
        loop {
            let came = match &mut *state {
                State::Over => return Ok(None),
                State::Failed(e) => return Err(e.clone()),
                State::Follows { follow, pool } => match self.follow(follow, pool, wait) {
                    // The node does not answer for now, and nothing is lost.
                    Err(e) if e.kind == Kind::Retry => return Err(e),
                    came => came,
                },
                State::Rides { on_board, .. } => on_board
                    .with_dependent_mut(|_, ride| ride.next_slab())
                    .and_then(|slab| Ok((slab.as_ref().map(items).transpose()?, None))),
                State::Together { together, rode } => self.heard(together, rode, wait),
            };
            let came =
                came.map_err(|e| e.context(format_args!("ride topic `{}`", self.asked.topic())));
            match came {
                Ok((Some(items), None)) => return Ok(Some(items)),
                Ok((None, None)) => self.goes_on(&mut state)?,
                Ok((Some(items), Some(e))) if !items.is_empty() => {
                    // What came in front of it first.
                    *state = State::Failed(e);
                    return Ok(Some(items));
                }
                Ok((_, Some(e))) | Err(e) => {
                    self.end(&mut state);
                    *state = State::Failed(e.clone());
                    return Err(e);
                }
            }
        }
    }

    /// The next items over several nodes; none at the end.
    fn heard(&self, together: &mut Together, rode: &mut Vec<Rode>, wait: Duration) -> Result<Came> {
        loop {
            let heard = together.next(wait);
            *self.token.held() = together.token();
            match heard? {
                None => return Ok((None, None)),
                Some(Heard::Nothing) => return Ok((Some(Vec::new()), None)),
                Some(Heard::Began(began)) => rode.push(began),
                Some(Heard::LeftOut(e)) => self.left_out.held().push(e.message),
                Some(Heard::Slab(slab)) => return Ok((Some(items(&slab)?), None)),
            }
        }
    }

    /// Behind views that were received whole: the next one, or the log, or the end.
    fn goes_on(&self, state: &mut State) -> Result<()> {
        let rode = match mem::replace(state, State::Over) {
            State::Rides { on_board, mut left, mut rode } => {
                rode.push(on_board.borrow_dependent().rode());
                let client = on_board.into_owner().into_inner();
                if let Some(next) = left.pop_front() {
                    match board(&self.pool, client, &next) {
                        Ok(on_board) => *state = State::Rides { on_board, left, rode },
                        Err(e) => {
                            *state = State::Failed(e.clone());
                            return Err(e);
                        }
                    }
                    return Ok(());
                }
                self.pool.give_back(client);
                rode
            }
            State::Together { mut rode, .. } => {
                if let Some(whole) = self.whole {
                    // All of it is as of one entry, also what was received before a token.
                    rode.truncate(1);
                    rode.iter_mut().for_each(|rode| rode.range = whole);
                }
                rode
            }
            // What follows and is over.
            _ => return Ok(()),
        };
        if self.asked.follow {
            let follow = Follow::new(&self.asked.board, &rode)
                .inspect_err(|e| *state = State::Failed(e.clone()))?;
            let pool = self.asked.servers.is_none().then(|| self.pool.clone());
            self.follows.store(true, Ordering::Relaxed);
            *state = State::Follows { follow: Box::new(follow), pool };
        }
        Ok(())
    }

    /// The changes of the next entries, and what went wrong behind them; none at the end.
    fn follow(
        &self,
        follow: &mut Follow,
        pool: &mut Option<Arc<Pool>>,
        wait: Duration,
    ) -> Result<Came> {
        if follow.is_over() {
            return Ok((None, None));
        }
        let pool = match pool {
            Some(pool) => pool,
            None => {
                let nodes = self.asked.nodes(&self.pool)?;
                let nodes = nodes.into_iter().map(|(_, node)| node).collect();
                pool.insert(self.pool.of_nodes(nodes)?)
            }
        };
        let entries = pool.waiting(|client| follow.wait(client, wait))?;
        let mut items = Vec::new();
        for (index, entry) in entries {
            let taken = follow.take(index, &entry, &mut |_, item| {
                items.push(item_of(&item));
                Ok(())
            });
            if let Err(e) = taken {
                return Ok((Some(items), Some(e)));
            }
        }
        Ok((Some(items), None))
    }

    /// Gives the connection back, if it has one of the pool's.
    fn end(&self, state: &mut State) {
        if let State::Rides { on_board, .. } = mem::replace(state, State::Over) {
            self.pool.give_back(on_board.into_owner().into_inner());
        }
    }

    /// What is said next, by the names of collections.
    fn said(&self, py: Python<'_>, wait: Duration) -> PyResult<Option<Vec<Item>>> {
        let unsaid = mem::take(&mut *self.unsaid.held());
        let items = match unsaid.is_empty() {
            true => waiting(py, || self.come(wait))?,
            false => Some(unsaid),
        };
        let Some(items) = items else { return Ok(None) };
        match self.learn(py, &items) {
            Ok(()) => Ok(Some(items)),
            Err(e) => {
                *self.unsaid.held() = items;
                Err(e)
            }
        }
    }

    fn know(&self, py: Python<'_>, collections: &[Collection]) {
        let names = collections.iter().map(|one| PyString::new(py, &one.name));
        *self.names.held() = (1..).zip(names.map(Bound::unbind)).collect();
    }

    /// The names of collections that are not known yet.
    fn learn(&self, py: Python<'_>, items: &[Item]) -> PyResult<()> {
        let is_new = |names: &HashMap<u16, Py<PyString>>| {
            items.iter().any(|(number, ..)| !names.contains_key(number))
        };
        if !is_new(&self.names.held()) {
            return Ok(());
        }
        let catalog = waiting(py, || self.pool.lend()?.view(self.asked.topic()).catalog())?;
        self.know(py, &catalog.collections);
        if is_new(&self.names.held()) {
            let bug = Error::bug("ride a topic: an item is of a collection that it does not have");
            return Err(crate::errors::raised(py, bug));
        }
        Ok(())
    }
}

/// Items, none at the end; and what went wrong behind them.
type Came = (Option<Vec<Item>>, Option<Error>);

fn board(pool: &Arc<Pool>, client: Client, board: &Board) -> Result<OnBoard> {
    let client = MutBorrow::new(client);
    match OnBoard::try_new_or_recover(client, |client| client.borrow_mut().ride(board)) {
        Ok(on_board) => Ok(on_board),
        Err((client, e)) => {
            pool.give_back(client.into_inner());
            Err(e.context(format_args!("ride topic `{}`", board.view.topic)))
        }
    }
}

fn item_of(item: &Received<'_>) -> Item {
    let value = match item.content {
        Content::Value(value) => Some(value.to_vec()),
        Content::Deleted => None,
        Content::NotSent => Some(Vec::new()),
    };
    (item.collection, item.key.to_vec(), item.index, value)
}

fn items(slab: &Slab) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    slab.each(|item| {
        items.push(item_of(&item));
        Ok(())
    })?;
    Ok(items)
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
    fn follows(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    /// The next items, as many as came at once; None at the end. An empty list where none came for so
    /// long, of a ride that follows.
    #[pyo3(signature = (wait_s=0.0))]
    fn next<'py>(&self, py: Python<'py>, wait_s: f64) -> PyResult<Option<Vec<Told<'py>>>> {
        let wait = Duration::try_from_secs_f64(wait_s).unwrap_or_default();
        let Some(items) = self.said(py, wait)? else { return Ok(None) };
        let names = self.names.held();
        let told = |(number, key, index, value): Item| {
            let value = value.map(|value| PyBytes::new(py, &value));
            (names[&number].clone_ref(py), PyBytes::new(py, &key), index, value)
        };
        Ok(Some(items.into_iter().map(told).collect()))
    }

    /// Counts what `next` gave last as received, which the next call of it does, too.
    fn taken(&self, py: Python<'_>) {
        py.detach(|| {
            if let State::Together { together, .. } = &mut *self.state.held() {
                together.taken();
                *self.token.held() = together.token();
            }
        });
    }

    /// Of a ride over images what is left of it behind what counts as received; None of the present.
    #[getter]
    fn token(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.token.held().clone())
    }

    /// Why nodes are not asked any more.
    #[getter]
    fn left_out(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.left_out.held().clone())
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
