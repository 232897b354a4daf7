//! The face: operations of the native protocol, and what carries them out on one node. Runs on
//! threads of the server and never waits.

use crate::{Add, Counters, TOPIC};
use holdfast_base::Result;
use holdfast_base::codec::Encode;
use holdfast_base::codec_struct;
use holdfast_base::ids::SessionId;
use holdfast_env::net::Parts;
use holdfast_log::Mode;
use holdfast_node::Node;
use holdfast_server::{Face, Request, Right, Route, answer};
use holdfast_view::{Context, Fold};
use holdfast_wire::Call;
use std::sync::Arc;

/// Opens a session, under which additions are numbered: a repeated one gets the first answer.
pub const OP_OPEN: u16 = 0x7f01;
/// Meta: [`Addition`]; answers the new sum.
pub const OP_ADD: u16 = 0x7f02;
/// Meta: a counter's name; answers its sum as this node knows it.
pub const OP_READ: u16 = 0x7f03;

/// An addition as a client numbers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    pub call: Call,
    pub add: Add,
}
codec_struct!(Addition { call, add });

/// Counters, served by one node.
pub struct CounterFace {
    pub counters: Arc<Fold<Counters>>,
}

impl CounterFace {
    /// Opens the view, which from now on is one of the node's: its health, snapshots, comparison
    /// with other nodes and trims are taken care of.
    pub fn open(node: &Node) -> Result<Arc<CounterFace>> {
        Ok(Arc::new(CounterFace { counters: node.open_view(Context::of(TOPIC))? }))
    }

    fn open_session(&self, request: Request<'_>) {
        let reply = request.reply;
        let opened = move |session: Result<SessionId>| {
            answer(reply, session.map(|session| (session.to_bytes(), Parts::None)));
        };
        // Synced: a session that a power cut takes back would share its id with a later one.
        self.counters.open_session(Mode::Synced, Box::new(opened));
    }

    fn add(&self, request: Request<'_>) {
        let doing = "add to a counter";
        let Some((addition, reply)) = request.decode::<Addition>(doing) else { return };
        let Addition { call, add } = addition;
        let request = holdfast_view::Request::of(call, add.to_bytes(), Mode::Synced);
        let added = move |added: Result<(_, Vec<u8>)>| {
            answer(reply, added.map(|(_, sum)| (sum, Parts::None)));
        };
        self.counters.propose(request, Box::new(added));
    }

    fn read(&self, request: Request<'_>) {
        let Some((name, reply)) = request.decode::<String>("read a counter") else { return };
        let sum = self.counters.read(|counters, _| counters.sum(&name));
        answer(reply, sum.map(|sum| (sum.to_bytes(), Parts::None)));
    }
}

impl Face for CounterFace {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let route = |opcode: u16, serve: fn(&CounterFace, Request<'_>)| {
            let face = self.clone();
            Route::new(opcode, Right::Data, move |request| serve(&face, request))
        };
        vec![
            route(OP_OPEN, CounterFace::open_session),
            route(OP_ADD, CounterFace::add),
            route(OP_READ, CounterFace::read),
        ]
    }
}
