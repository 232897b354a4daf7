//! An agent in front of a hop that is a plain model: one that answers late, and one of a build before.

use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result, random};
use holdfast_client::{ClientOptions, Endpoint};
use holdfast_env::net::{
    Batch as Requests, ConnectionId, Reply, Response, Server, ServerConfig, Service,
};
use holdfast_env::{Budget, HoldMutex, RealClock, SeededRng};
use holdfast_log::Drive;
use holdfast_scribe::agent::{Agent, Settings};
use holdfast_scribe::batch::{self, Messages as Read, Position, SpoolId};
use holdfast_scribe::category::Category;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::intake::Keeps;
use holdfast_scribe::store::{Bounds, Store};
use holdfast_scribe::stores::Stores;
use holdfast_scribe::view::{self, CategoryView, decode_position};
use holdfast_sim::SimDisk;
use holdfast_view::{Applied, View};
use holdfast_wire::{self as wire, scribe as msg};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BOUNDS: Bounds =
    Bounds { bound_bytes: 128 * MIB, segment_bytes: 8 * MIB, drive: Drive::Pump };
/// Longer than it takes.
const MOST: Duration = Duration::from_secs(60);

fn category() -> Category {
    Category::new("web").unwrap()
}

/// A hop with the topic of one category.
struct Hop {
    topic: Mutex<(CategoryView, Vec<Vec<u8>>)>,
    /// The first append, which waits for another one.
    waits: Mutex<Option<(Reply, Vec<u8>)>>,
    /// Whether it waits for that at all.
    is_late: bool,
    /// Words that were said to it, which it does not know.
    words: Mutex<u64>,
}

impl Hop {
    fn serve(is_late: bool) -> (Arc<Hop>, Server) {
        let topic = Mutex::new((CategoryView::begin(&view::context(&category())), Vec::new()));
        let hop = Hop { topic, waits: Mutex::default(), is_late, words: Mutex::default() };
        let hop = Arc::new(hop);
        let tcp = vec!["127.0.0.1:0".parse().unwrap()];
        let config = ServerConfig { tcp, ..ServerConfig::default() };
        let server = Server::start(config, hop.clone(), Arc::new(RealClock::new())).unwrap();
        (hop, server)
    }

    fn append(&self, body: &[u8]) -> Vec<u8> {
        let (mut reader, mut positions) = (Reader::new(body), Vec::new());
        while reader.remaining() > 0 {
            let bytes = reader.bytes().unwrap();
            batch::verify(bytes).unwrap();
            let (view, log) = &mut *self.topic.held();
            log.push(bytes.to_vec());
            let Applied::Ok(position) = view.apply(Index(log.len() as u64), bytes) else {
                panic!()
            };
            positions.push(said(decode_position(&position).unwrap()));
        }
        msg::Positions { positions }.to_bytes()
    }

    /// Answers, the first one once there is another that is not the same, sent again.
    fn take(&self, reply: Reply, body: Vec<u8>) {
        let mut waits = self.waits.held();
        let answered = match waits.take() {
            Some((_, first)) if first == body => None,
            Some(first) => Some(first),
            None if self.is_late && self.topic.held().1.is_empty() => None,
            None => return reply.send(Response::ok(self.append(&body), ())),
        };
        match answered {
            None => *waits = Some((reply, body)),
            Some((early, first)) => {
                early.send(Response::ok(self.append(&first), ()));
                reply.send(Response::ok(self.append(&body), ()));
            }
        }
    }

    fn texts(&self) -> Vec<Vec<u8>> {
        let (view, log) = &*self.topic.held();
        assert_eq!(view.totals().dropped, 0, "nothing came too early, or twice");
        let all = log.iter().flat_map(|bytes| {
            let messages = Read::of(bytes).unwrap();
            messages.iter().map(<[u8]>::to_vec).collect::<Vec<_>>()
        });
        all.collect()
    }
}

fn said(position: Position) -> msg::Position {
    let Position { next, checksum } = position;
    msg::Position { next, checksum, refused: String::new(), never: false }
}

impl Service for Hop {
    fn handle(&self, requests: &mut Requests<'_>) {
        for i in 0..requests.len() {
            match requests.header(i).opcode {
                wire::OP_SCRIBE_APPEND => {
                    let reply = requests.defer(i);
                    let body = requests.take_body(i).into_vec();
                    self.take(reply, body);
                }
                wire::OP_SCRIBE_ASK => {
                    let ask = msg::Ask::from_bytes(requests.meta(i)).unwrap();
                    let position = self.topic.held().0.position(SpoolId(ask.spool));
                    let positions = ask.categories.iter().map(|_| said(position)).collect();
                    let reply = requests.defer(i);
                    reply.send(Response::ok(msg::Positions { positions }.to_bytes(), ()));
                }
                wire::OP_SCRIBE_SAY => {
                    *self.words.held() += 1;
                    let unknown = Error::unsupported(
                        "carry out operation: there is none: use matching builds",
                    );
                    requests.reply_error(i, &unknown);
                }
                other => panic!("{other:#06x}"),
            }
        }
    }

    fn disconnected(&self, _: ConnectionId) {}
}

/// A spool with these messages, of which nothing was sent, as an agent that was ended leaves it.
fn filled(texts: &[Vec<u8>]) -> SimDisk {
    let disk = SimDisk::new(1);
    let rng = SeededRng::new(1);
    let store = Store::open(Arc::new(disk.clone()), Path::new("/spool"), BOUNDS, &rng).unwrap();
    for text in texts {
        let mut round = Round::default();
        round.add(&Messages { messages: vec![(category(), text.clone())] });
        assert!(store.keep(&round.pack()).iter().all(|not_kept| not_kept.is_empty()));
    }
    disk
}

fn agent(disk: SimDisk, hop: &Server) -> Result<Agent> {
    let settings = Settings {
        spool: "/spool".into(),
        name: "here".to_owned(),
        bounds: BOUNDS,
        listen: "127.0.0.1:0".parse().unwrap(),
        stores: Stores::parse("").unwrap(),
        to: vec![Endpoint::parse(&hop.tcp_addresses()[0].to_string())?],
        client: ClientOptions { reconnects_max: 0, ..ClientOptions::default() },
        carries: None,
        connections_max: 4,
        budget: Budget::new(64 * MIB),
    };
    Agent::start(settings, Arc::new(disk), Arc::new(SeededRng::new(2)), Arc::new(RealClock::new()))
}

/// One request was under way at a time, so the way and both disks waited for each other: a spool that had filled
/// went out at a fraction of what any of them can.
#[test]
fn a_spool_goes_out_by_several_requests_at_once_and_each_message_in_its_order() {
    let texts: Vec<Vec<u8>> = (0..40).map(|n| random::bytes(n, 500 << 10)).collect();
    let disk = filled(&texts);
    let (hop, server) = Hop::serve(true);
    assert_eq!(agent(disk, &server).unwrap().end(MOST), 0);
    assert!(hop.texts() == texts, "in the order of their spool, each once");
}

/// A hop that knows nothing of what a spool says of itself takes its messages all the same, and is not asked again.
#[test]
fn a_hop_of_a_build_before_takes_messages_of_spools_without_words() {
    let texts: Vec<Vec<u8>> = (0..40).map(|n| random::bytes(n, 500 << 10)).collect();
    let disk = filled(&texts);
    let (hop, server) = Hop::serve(false);
    assert_eq!(agent(disk, &server).unwrap().end(MOST), 0);
    assert!(hop.texts() == texts, "in the order of their spool, each once");
    assert_eq!(*hop.words.held(), 1);
}
