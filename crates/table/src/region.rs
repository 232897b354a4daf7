//! The decider of one region around the fold of its tablet: what to append, whom to tell, when a
//! client is answered. Plain functions that take messages, acknowledged appends and ticks, and give
//! effects; whatever it remembers outside of the tablet may be lost with the process.

mod ask;
mod follow;
mod group;
#[cfg(test)]
mod homes;
mod image;
mod lead;
#[cfg(test)]
mod model;
mod seal;
mod sound;
mod split;
#[cfg(test)]
mod splits;
mod takeover;

use crate::entry::{Body, Entry};
use crate::ids::{Epoch, LogId, Place, RegionId, StreamId};
use crate::message::{Answer, Message, Position, Request};
use crate::stream::Accepted;
use crate::tablet::{Applied, Mode, Showed, Tablet};
use ask::{Parked, Pending};
use holdfast_base::Result;
use holdfast_base::codec::Encode;
use holdfast_env::planted;
pub use image::usual_stream_bytes;
use image::{Giving, Taking};
use lead::Lead;
pub use seal::Sealing;
use std::collections::{BTreeMap, BTreeSet};
use takeover::{Claim, PromisedTo};

/// What happens when a region is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Its records stay as they are until it returns.
    Wait,
    /// Of a strong table: a survivor leads its stream.
    Takeover,
}

/// Times, in ticks, and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub policy: Policy,
    /// A region that is silent for so long is lost.
    pub silence_ticks: u32,
    /// A push or a claim that nothing was heard of for so long is sent again.
    pub resend_ticks: u32,
    /// A request that waits for so long is answered [`Answer::Retry`].
    pub wait_ticks: u32,
    /// A region whose stream another one leads is well for so long before it takes it back.
    pub return_ticks: u32,
    /// Entries of one stream that are on their way to one region; of bytes there is a limit, too.
    pub window: usize,
}

impl Default for Settings {
    /// For ticks of 100 ms.
    fn default() -> Settings {
        Settings {
            policy: Policy::Takeover,
            silence_ticks: 50,
            resend_ticks: 5,
            wait_ticks: 30,
            return_ticks: 30,
            window: 4096,
        }
    }
}

/// What the driver is to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Append to the region's topic; [`Region::appended`] once it is durable.
    Append(Vec<u8>),
    Send {
        to: RegionId,
        message: Message,
    },
    /// To the client that asked under this number.
    Answer {
        client: u64,
        answer: Answer,
    },
}

/// What another log has said of a stream.
#[derive(Clone, Copy, Debug)]
struct Ack {
    log: LogId,
    matched: Place,
    shown: u64,
}

/// Another region, as it was heard last.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    ticks_ago: u32,
    log: LogId,
}

#[derive(Clone)]
pub struct Region {
    me: RegionId,
    log: LogId,
    /// Which start of the region this is: tickets of an earlier one are nobody's.
    start: u64,
    settings: Settings,
    tablet: Tablet,
    out: Vec<Effect>,
    /// What has shown and was not looked at yet.
    showed: Vec<Showed>,
    tickets: u64,
    leads: BTreeMap<StreamId, Lead>,
    claims: BTreeMap<StreamId, Claim>,
    /// Ticks before the stream may be claimed again.
    cooling: BTreeMap<StreamId, u32>,
    /// How often another region took the stream from this one, since its leader was heard here.
    yielded: BTreeMap<StreamId, u32>,
    /// Which log has asked for the epoch that was promised last.
    promised_to: BTreeMap<StreamId, PromisedTo>,
    /// The last epoch of this region's that another one has promised, if it had promised nobody else's since this
    /// region led.
    told_by: BTreeMap<(StreamId, RegionId), Epoch>,
    acks: BTreeMap<(StreamId, RegionId), Ack>,
    heard: BTreeMap<RegionId, Heard>,
    /// The region that goes by an operator's word for lost: the tablet's, once it was silent for long enough since
    /// this start.
    lost: Option<RegionId>,
    /// An entry that says which region is lost, or not any more, is on its way into the topic.
    calling: bool,
    /// Up to where a stream's leader says that it is kept.
    told_kept: BTreeMap<StreamId, Place>,
    /// The last entry of a stream that is on its way into the topic, and how many appends are.
    on_the_way: BTreeMap<StreamId, (Place, usize)>,
    /// Requests of this region's clients, by ticket.
    pending: BTreeMap<u64, Pending>,
    /// Of the pending ones the writes, by session and sequence.
    writing: BTreeMap<(u64, u64), u64>,
    /// Of the pending ones the reads that wait for what their client has seen.
    reading_sessions: BTreeSet<u64>,
    /// Requests that wait until something shows here.
    parked: Vec<Parked>,
    parked_bytes: u64,
    /// What all regions show is on its way into the topic.
    settling: bool,
    /// The image that this region's log is sent.
    taking: Option<Taking>,
    /// Regions whose images came to nothing, since one did not.
    givers_tried: usize,
    /// For how long there is one in the topic that nobody goes on with.
    left_ticks: u32,
    /// Images that other regions' logs are sent, and how many were begun since the start.
    giving: BTreeMap<RegionId, Giving>,
    images: u64,
    up_ticks: u32,
    /// Who waits for an entry of a split to show.
    splitting: Vec<u64>,
}

/// Where in a ticket, or in an image's number, the region's start is.
const START_SHIFT: u32 = 32;

impl Region {
    /// A region that starts over what its topic has made of the tablet. `start` is unlike that of every
    /// start before, of any log of the region. `log` is the topic's: a new one if the log was erased, or ends before where
    /// it was known to be.
    pub fn start(tablet: Tablet, log: LogId, start: u64, settings: Settings) -> Region {
        assert!(start < 1 << 32, "start {start} exceeds 32 bits");
        let (form, me) = (tablet.form(), tablet.region());
        let heard = form.regions().filter(|r| *r != me).map(|r| (r, Heard::default())).collect();
        let mut region = Region {
            me,
            log,
            start,
            settings,
            tablet,
            out: Vec::new(),
            showed: Vec::new(),
            tickets: 0,
            leads: BTreeMap::new(),
            claims: BTreeMap::new(),
            cooling: BTreeMap::new(),
            yielded: BTreeMap::new(),
            promised_to: BTreeMap::new(),
            told_by: BTreeMap::new(),
            acks: BTreeMap::new(),
            heard,
            lost: None,
            calling: false,
            told_kept: BTreeMap::new(),
            on_the_way: BTreeMap::new(),
            pending: BTreeMap::new(),
            writing: BTreeMap::new(),
            reading_sessions: BTreeSet::new(),
            parked: Vec::new(),
            parked_bytes: 0,
            settling: false,
            taking: None,
            givers_tried: 0,
            left_ticks: 0,
            giving: BTreeMap::new(),
            images: 0,
            up_ticks: 0,
            splitting: Vec::new(),
        };
        region.tablet.has_begun();
        if planted!("table.lost-in-memory-only") {
            region.tablet.forget_lost();
        }
        match region.tablet.log() == log {
            true => {
                region.lead_what_is_opened();
                // Where this log alone is a majority, all that it holds is kept, and was told of.
                if !planted!("table.start-shows-less") {
                    region.settle();
                }
            }
            false => region.append(&Entry::Log(log)),
        }
        region
    }

    /// What the region held and showed, for who goes on with it or only follows.
    pub fn into_tablet(self) -> Tablet {
        self.tablet
    }

    /// What was decided since this was asked last.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.out)
    }

    /// What the region holds and shows.
    pub fn tablet(&self) -> &Tablet {
        &self.tablet
    }

    /// Whether it leads this stream.
    pub fn leads(&self, stream: StreamId) -> bool {
        self.leads.contains_key(&stream)
    }

    /// How many ticks ago another region was heard; nothing where it was not.
    pub fn heard_ticks(&self, region: RegionId) -> Option<u32> {
        let heard = self.heard.get(&region)?;
        (heard.log != LogId(0)).then_some(heard.ticks_ago)
    }

    /// The highest log that each other region was heard from; of those that were.
    pub fn heard_logs(&self) -> impl Iterator<Item = (RegionId, LogId)> + '_ {
        let heard = self.heard.iter().map(|(region, heard)| (*region, heard.log));
        heard.filter(|(_, log)| *log != LogId(0))
    }

    /// A client asks; it is answered under `client`, once.
    pub fn ask(&mut self, client: u64, request: Request) {
        if !self.is_ready() {
            let answer = Answer::Retry("the region starts");
            self.out.push(Effect::Answer { client, answer });
            return;
        }
        self.ask_for(client, request);
        self.settle();
    }

    /// A message of another region, from its log. One that no region sends that is right changes
    /// nothing: whatever it names.
    pub fn arrived(&mut self, from: RegionId, log: LogId, message: Message) {
        let is_sound = self.is_sound(from, &message);
        let Some(heard) = self.heard.get_mut(&from) else { return };
        heard.ticks_ago = 0;
        heard.log = heard.log.max(log);
        self.lost = self.lost.filter(|lost| *lost != from);
        if !self.is_ready() || !is_sound {
            return;
        }
        self.is_not_lost(from);
        self.take(from, log, message);
        self.settle();
    }

    /// An append is durable, at this index of the topic: all before it were told. Says what became of
    /// it, which depends on the topic's entries alone.
    pub fn appended(&mut self, index: u64, bytes: &[u8]) -> Result<Accepted> {
        let mut showed = std::mem::take(&mut self.showed);
        let applied = self.tablet.apply(index, bytes, &mut showed);
        self.showed = showed;
        let applied = applied?;
        let accepted = applied.accepted;
        self.applied(applied);
        self.settle();
        Ok(accepted)
    }

    /// An append failed: it may never come, or come later. What was decided behind it will not follow
    /// on what is held, so this region decides nothing more under the epochs that it leads: it claims
    /// others. Whoever waits asks again.
    pub fn append_failed(&mut self) {
        let led: Vec<StreamId> = self.leads.keys().copied().collect();
        for stream in led {
            self.stop_leading(stream);
        }
        self.on_the_way.clear();
        self.settling = false;
        self.calling = false;
        self.taking = None;
    }

    /// Time passes.
    pub fn tick(&mut self) {
        if !self.is_ready() {
            return;
        }
        self.up_ticks = self.up_ticks.saturating_add(1);
        self.tablet.changes_tick();
        for heard in self.heard.values_mut() {
            heard.ticks_ago = heard.ticks_ago.saturating_add(1);
        }
        self.heed_lost();
        let positions = self.tablet.streams().map(|s| self.position(s.id())).collect();
        self.broadcast(&Message::Positions(positions));
        self.tick_leads();
        self.tick_claims();
        self.tick_requests();
        self.tick_images();
        self.say_branches();
        self.settle_entries();
        self.settle();
    }

    fn applied(&mut self, applied: Applied) {
        let Applied { accepted, entry, .. } = applied;
        match entry {
            Entry::Log(_) => self.lead_what_is_opened(),
            Entry::Decided { stream, entry } => {
                let opens = entry.body == Body::Open;
                self.decided(stream, entry.place, opens, accepted);
            }
            Entry::Followed { stream, under, .. } => self.followed(stream, under, accepted),
            Entry::Promised { stream, epoch } => self.promised(stream, epoch, accepted),
            Entry::Checked { stream, epoch } => {
                self.checked(stream, epoch, accepted == Accepted::Yes);
            }
            Entry::Settled(_) => self.settling = false,
            Entry::Image(part) => self.image_applied(&part, accepted),
            Entry::Lost { .. } => {
                (self.calling, self.lost) = (false, None);
                self.heed_lost();
            }
        }
    }

    /// Looks at what shows, until nothing new does.
    fn settle(&mut self) {
        loop {
            let streams: Vec<StreamId> = self.tablet.streams().map(|s| s.id()).collect();
            for stream in streams {
                self.count(stream);
            }
            let showed = std::mem::take(&mut self.showed);
            if showed.is_empty() {
                break;
            }
            for showed in showed {
                self.has_shown(&showed);
            }
            self.read_sessions();
            self.unpark(false);
        }
        self.tablet.forget_entries();
    }

    /// What is known of who holds a stream may say that more of it is kept.
    fn count(&mut self, id: StreamId) {
        if self.mode() == Mode::Timeline {
            return;
        }
        let stream = self.tablet.stream(id);
        let matched = stream.matched();
        let counted = stream.majority_holds(|member| {
            if member.region == self.me {
                return (member.log == self.log).then_some(matched.number);
            }
            let ack = self.acks.get(&(id, member.region))?;
            let same = ack.log == member.log || planted!("table.erased-log-votes");
            (same && ack.matched.epoch == matched.epoch).then_some(ack.matched.number)
        });
        let told = self.told_kept.get(&id).filter(|told| told.epoch == matched.epoch);
        let number = counted.unwrap_or(0).max(told.map_or(0, |told| told.number));
        let before = stream.kept();
        if number > before && self.tablet.keep(id, matched.epoch, number, &mut self.showed) {
            self.is_kept(id, before);
        }
    }

    fn mode(&self) -> Mode {
        self.tablet.form().mode
    }

    fn is_ready(&self) -> bool {
        self.tablet.log() == self.log
    }

    fn append(&mut self, entry: &Entry) {
        self.out.push(Effect::Append(entry.to_bytes()));
    }

    fn send(&mut self, to: RegionId, message: Message) {
        debug_assert_ne!(to, self.me, "{message:?}");
        self.out.push(Effect::Send { to, message });
    }

    fn broadcast(&mut self, message: &Message) {
        let others: Vec<RegionId> = self.heard.keys().copied().collect();
        for to in others {
            self.send(to, message.clone());
        }
    }

    fn position(&self, id: StreamId) -> Position {
        let stream = self.tablet.stream(id);
        Position {
            stream: id,
            matched: stream.matched(),
            shown: self.tablet.shown(id).place.number,
            promised: stream.promised(),
        }
    }

    /// Who leads a stream, as far as is known here.
    fn leader(&self, stream: StreamId) -> RegionId {
        self.tablet.stream(stream).promised().leader()
    }

    /// The epoch below which nothing of the stream is accepted here.
    fn promised_epoch(&self, stream: StreamId) -> Epoch {
        self.tablet.stream(stream).promised()
    }
}
