//! The way to other regions: what tablets say to each of them, in order, as far as the way carries it. What
//! is lost on it the regions say again: so a queue is bounded by what it drops, whichever tablet's that is.

use crate::ids::RegionId;
use holdfast_base::codec::Encode;
use holdfast_base::random::mix;
use holdfast_base::{Error, Result};
use holdfast_env::net::{PeerReply, PeerRequest, Peers};
use holdfast_env::trial::Knob;
use holdfast_env::{HoldMutex, event, planted, sometimes};
use holdfast_wire::OP_TABLE_TELL;
use holdfast_wire::table::{TELL_BYTES_MAX, Tell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

/// Regions of one table.
pub const REGIONS_MAX: usize = 15;
/// What waits to be said to one region: more than what regions say to each other in a tick.
static QUEUE_BYTES: Knob = Knob::new("table.region-queue", 32 << 20, &[2000, 20_000]);
/// Of so many messages that find the queue full one takes the place of another.
const TAKES_PLACE: u64 = 8;
/// Requests to one region that are not answered yet: each of up to [`TELL_BYTES_MAX`].
static UNDER_WAY: Knob = Knob::new("table.region-requests", 8, &[1]);
/// How long a region's answer may take: longer than a round trip around the earth.
const ANSWER_MS: u32 = 5000;

/// How another region is reached: by the address of any of its nodes, as a client whom it knows.
pub struct Link {
    pub servers: Vec<String>,
    pub peers: Arc<dyn Peers>,
}

/// All regions that this one knows of.
#[derive(Default)]
pub struct Regions {
    own: RegionId,
    others: BTreeMap<RegionId, Arc<Way>>,
}

struct Way {
    region: RegionId,
    own: RegionId,
    link: Link,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    under_way: usize,
    /// How many messages were dropped.
    dropped: u64,
    /// Which server is asked.
    server: usize,
    /// Why the last request failed; none once one was answered.
    trouble: Option<Error>,
}

impl Regions {
    /// `Invalid` where their numbers are not those from 0 on.
    pub fn new(own: RegionId, links: BTreeMap<RegionId, Link>) -> Result<Regions> {
        let count = links.len() + 1;
        let numbers: Vec<usize> =
            links.keys().chain([&own]).map(|region| usize::from(region.0)).collect();
        if links.contains_key(&own) {
            return Err(Error::invalid(format!(
                "use the regions: {own} is this one: leave it out of the others"
            )));
        }
        if count > REGIONS_MAX || (count > 1 && numbers.iter().any(|number| *number >= count)) {
            return Err(Error::invalid(format!(
                "use the regions: there are {count}, and their numbers are not 0 to {}, of at most {REGIONS_MAX}: number them so",
                count - 1
            )));
        }
        let way =
            |(region, link)| (region, Arc::new(Way { region, own, link, queue: Mutex::default() }));
        Ok(Regions { own, others: links.into_iter().map(way).collect() })
    }

    /// This region.
    pub fn own(&self) -> RegionId {
        self.own
    }

    /// All of them, in order.
    pub fn all(&self) -> Vec<RegionId> {
        let mut all: Vec<RegionId> = self.others.keys().copied().chain([self.own]).collect();
        all.sort_unstable();
        all
    }

    /// Says something to another region, behind what was said to it before.
    pub fn tell(&self, to: RegionId, told: Vec<u8>) {
        // One that is not known any more hears nothing: `describe` says so.
        if let Some(way) = self.others.get(&to) {
            way.tell(told);
        }
    }

    /// Asks another region for an operation.
    pub fn ask(
        &self,
        region: RegionId,
        (opcode, meta): (u16, Vec<u8>),
        done: impl FnOnce(Result<PeerReply>) + Send + 'static,
    ) {
        let Some(way) = self.others.get(&region) else {
            return done(Err(Error::invalid(format!(
                "ask {region}: this node does not know it: name it in `regions`"
            ))));
        };
        let request = PeerRequest { opcode, meta, body: None, deadline_ms: ANSWER_MS };
        let server = way.queue.held().server;
        let address = way.address(server);
        let (way, told) = (way.clone(), move |answered: Result<PeerReply>| {
            done(answered.map_err(|e| e.context(format_args!("ask {region}"))));
        });
        way.clone().link.peers.call(
            &address,
            request,
            Box::new(move |answered| {
                way.noted(server, answered.as_ref().err());
                told(answered);
            }),
        );
    }

    /// Why a region cannot be reached, if it was tried in vain.
    pub fn trouble(&self, region: RegionId) -> String {
        match self.others.get(&region) {
            Some(way) => {
                way.queue.held().trouble.as_ref().map_or(String::new(), |e| e.message.clone())
            }
            None => "this node does not know it: name it in `regions`".to_owned(),
        }
    }
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} among {:?}", self.own, self.all())
    }
}

impl Queue {
    /// Whether a message that finds the queue full is to wait all the same, in the place of any other one. One in
    /// so many is: tablets speak in turn and always in the same one, so that where the way is full for long some
    /// would never be heard, were it always the last that goes.
    fn makes_way(&mut self) -> bool {
        self.dropped += 1;
        let drawn = mix(self.dropped);
        if !drawn.is_multiple_of(TAKES_PLACE) {
            return false;
        }
        // Out of order is as good: the regions ask again for what does not follow.
        let at = (drawn / TAKES_PLACE) as usize % self.waiting.len().max(1);
        self.bytes -= self.waiting.swap_remove_back(at).map_or(0, |gone| gone.len());
        true
    }
}

impl Way {
    fn address(&self, server: usize) -> String {
        self.link.servers[server].clone()
    }

    fn tell(self: &Arc<Self>, told: Vec<u8>) {
        let mut queue = self.queue.held();
        // One that is large would never find room beside others: whoever finds some may exceed it.
        if queue.bytes >= QUEUE_BYTES.size() {
            QUEUE_BYTES.cross();
            sometimes!("a region was told more than its way carries");
            let fits = queue.bytes + told.len() <= 2 * QUEUE_BYTES.size();
            if !(fits && queue.makes_way()) {
                return;
            }
        }
        queue.bytes += told.len();
        queue.waiting.push_back(told);
        self.send(&mut queue);
    }

    /// Sends what waits, in order: so under the lock.
    fn send(self: &Arc<Self>, queue: &mut Queue) {
        while queue.under_way < UNDER_WAY.size() && !queue.waiting.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            for told in &queue.waiting {
                if count > 0 && bytes + told.len() > TELL_BYTES_MAX {
                    break;
                }
                (count, bytes) = (count + 1, bytes + told.len());
            }
            queue.bytes -= bytes;
            let mut body = (count as u32).to_bytes();
            queue.waiting.drain(..count).for_each(|told| body.extend_from_slice(&told));
            queue.under_way += 1;
            let meta = Tell { by: self.own.0 }.to_bytes();
            let request = PeerRequest {
                opcode: OP_TABLE_TELL,
                meta,
                body: Some(Arc::new(body)),
                deadline_ms: ANSWER_MS,
            };
            let (way, server) = (self.clone(), queue.server);
            let done = move |answered: Result<PeerReply>| {
                way.noted(server, answered.as_ref().err());
                let mut queue = way.queue.held();
                if answered.is_ok() || !planted!("table.failed-request-under-way") {
                    queue.under_way -= 1;
                }
                way.send(&mut queue);
            };
            let address = self.address(server);
            self.link.peers.call(&address, request, Box::new(done));
        }
    }

    /// A request to this server was answered, or failed: then another of the region's nodes is asked next. Several
    /// were under way to it, and each of them fails: only the first one says something new.
    fn noted(&self, server: usize, failure: Option<&Error>) {
        let mut queue = self.queue.held();
        match failure {
            Some(e) => {
                if queue.server == server || planted!("table.each-failure-asks-another") {
                    queue.server = (queue.server + 1) % self.link.servers.len();
                }
                if queue.trouble.is_none() {
                    event!(RegionUnreached, e.message, region = self.region.0);
                }
                queue.trouble = Some(e.clone());
            }
            None => {
                if queue.trouble.take().is_some() {
                    event!(RegionReached, "it answers again", region = self.region.0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::net::PeerDone;

    /// A region of two nodes, the first of which answers nothing any more: what is said to it waits until the test
    /// has it fail.
    #[derive(Default)]
    struct Half {
        asked: Mutex<BTreeMap<String, usize>>,
        waiting: Mutex<Vec<PeerDone>>,
    }

    impl Peers for Half {
        fn call(&self, address: &str, _: PeerRequest, done: PeerDone) {
            *self.asked.held().entry(address.to_owned()).or_default() += 1;
            self.waiting.held().push(Box::new({
                let gone = address == "gone:1";
                move |_| match gone {
                    true => done(Err(Error::retry("it does not answer"))),
                    false => done(Ok(PeerReply::default())),
                }
            }));
        }

        fn after(&self, _: u64, _: Box<dyn FnOnce() + Send>) {}
    }

    /// Eight requests are under way when a node ends, and all of them fail: were each to turn to the next one of two
    /// nodes, the last would have turned back to the one that is gone.
    #[test]
    fn a_node_that_is_gone_is_left_once_and_not_come_back_to() {
        let peers = Arc::new(Half::default());
        let link = Link { servers: vec!["gone:1".into(), "there:1".into()], peers: peers.clone() };
        let regions = Regions::new(RegionId(0), BTreeMap::from([(RegionId(1), link)])).unwrap();
        let answer = || {
            let waiting = std::mem::take(&mut *peers.waiting.held());
            waiting.into_iter().for_each(|done| done(Ok(PeerReply::default())));
        };
        (0..UNDER_WAY.size()).for_each(|_| regions.tell(RegionId(1), vec![0; 100]));
        assert_eq!(peers.asked.held().get("gone:1"), Some(&UNDER_WAY.size()));
        answer();
        for _ in 0..8 {
            regions.tell(RegionId(1), vec![0; 100]);
            answer();
        }
        assert_eq!(peers.asked.held().get("gone:1"), Some(&UNDER_WAY.size()), "it was asked again");
        assert!(regions.trouble(RegionId(1)).is_empty());
    }
}
