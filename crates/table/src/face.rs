//! The face: what a node does for tables. The node that keeps the log decides, and answers; others
//! follow the tablets, so that the records outlive it, and pass requests on.

use crate::ids::RegionId;
use crate::name::TableName;
use crate::region::{Policy, Settings};
use crate::regions::Regions;
use crate::stream::Stream;
use crate::tablet::{Form, Mode};
use crate::tablets::OpenTablet;
use crate::view::{Made, TabletView, reshaped, shapes};
use bound::Counted;
use changes::Watchers;
use cut::Cut;
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::rules::Access;
use holdfast_base::{Error, Kind, Result};
use holdfast_env::HoldMutex;
use holdfast_env::net::Parts;
pub use holdfast_log::Done;
use holdfast_log::{Log, Mode as Append};
use holdfast_node::{Matter, Node};
use holdfast_server::{Face, Request, Right, Route, Told, Within, answer, ask_host, pass_on};
use holdfast_view::{Context, Request as Proposal};
use holdfast_wire::table::{self as msg, ANSWER_BYTES_MAX};
use holdfast_wire::{self as wire, Call};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

mod bound;
mod branches;
pub mod changes;
mod cut;
mod dropped;
mod form;
mod groups;
mod near;
mod records;
mod regions;
mod scan;
mod split;

/// Tablets of a cluster, all tables together: each is a topic, with a file of 64 MiB and two threads.
pub const TABLETS_MAX: usize = 256;

/// What a region takes for a unit of time.
const TICK_NS: u64 = 100_000_000;
/// Between two looks for tables that are new where the log is.
const FOLLOW_NS: u64 = 2_000_000_000;

type Tablets = BTreeMap<u16, Arc<OpenTablet>>;

/// What a node has of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Without those that are deleted.
    pub records: u64,
    /// Of keys and values.
    pub bytes: u64,
}

/// Tables, served by one node.
pub struct TableFace {
    node: Arc<Node>,
    settings: Settings,
    /// This region, and the way to the others.
    regions: Arc<Regions>,
    /// Keys and values that all tables may have together here, where they are kept in memory.
    bytes_max: u64,
    /// Those that are open. Never held while anything waits: threads of the server look here.
    tables: Mutex<BTreeMap<TableName, Tablets>>,
    /// What tables consist of, each with what [`shapes`] said before it was looked at. As `tables`.
    cuts: Mutex<BTreeMap<TableName, (u64, Arc<Cut>)>>,
    /// What they all take in memory; nothing where that is to be counted.
    counted: Mutex<Option<Counted>>,
    /// Held while one is opened: one at a time.
    opening: Mutex<()>,
    /// Those that there were at the start are open.
    opened: AtomicBool,
    /// When the last round was.
    round_ns: Mutex<Option<u64>>,
    /// Who waits until something shows.
    watchers: Arc<Watchers>,
    /// Regions that are being told that a tablet of theirs is dropped.
    telling: Mutex<BTreeSet<(RegionId, TableName, u16)>>,
    splits: split::Splits,
}

fn allows(access: Access) -> impl Fn(&[u8], &Within) -> Result<()> + Send + Sync {
    move |meta, within: &Within| {
        let name = named(meta)?;
        let doing = |e: Error| e.context(format_args!("use table `{}`", name.escape_debug()));
        within.rules.check_topic(&TableName::new(&name)?.family(), access).map_err(doing)
    }
}

/// The table is the first field of every message.
fn named(meta: &[u8]) -> Result<String> {
    String::decode(&mut Reader::new(meta))
        .map_err(|e| Error::invalid(format!("use a table: {e}: use matching builds")))
}

/// What the audit trail says of such a request.
fn tells(what: &'static str) -> impl Fn(&[u8]) -> Told + Send + Sync {
    move |meta| Some((what, named(meta).ok()?))
}

impl Face for TableFace {
    fn routes(self: Arc<Self>) -> Vec<Route> {
        let route = |opcode: u16, serve: fn(Arc<TableFace>, Request<'_>)| {
            let face = self.clone();
            Route::new(opcode, Right::Data, move |request| match face.node.answers_for_log() {
                true => serve(face.clone(), request),
                false => pass_on(&face.node, request),
            })
        };
        let read = |opcode, serve| {
            route(opcode, serve)
                .allows(allows(Access::Read))
                .answer_bytes(|_| 2 * ANSWER_BYTES_MAX as u64)
        };
        vec![
            route(wire::OP_TABLE_MAKE, TableFace::serve_make)
                .allows(allows(Access::Write))
                .audited(Matter::Data, tells("table make")),
            route(wire::OP_TABLE_LIST, TableFace::serve_list)
                .allows(|_, within| within.rules.check_topic("*", Access::Read)),
            route(wire::OP_TABLE_DESCRIBE, TableFace::serve_describe).allows(allows(Access::Read)),
            route(wire::OP_TABLE_WRITE, TableFace::serve_write)
                .allows(allows(Access::Write))
                .audited(Matter::Data, tells("table write")),
            route(wire::OP_TABLE_GROUP, TableFace::serve_group)
                .allows(allows(Access::Write))
                .audited(Matter::Data, tells("table group")),
            read(wire::OP_TABLE_READ, TableFace::serve_read),
            read(wire::OP_TABLE_READ_GROUP, TableFace::serve_read_group),
            read(wire::OP_TABLE_SCAN, TableFace::serve_scan),
            read(wire::OP_TABLE_CHANGES, TableFace::serve_changes),
            route(wire::OP_TABLE_SEAL, TableFace::serve_seal)
                .allows(allows(Access::Write))
                .audited(Matter::Data, tells("table seal")),
            read(wire::OP_TABLE_BRANCHES, TableFace::serve_branches),
            route(wire::OP_TABLE_RESOLVE, TableFace::serve_resolve)
                .allows(allows(Access::Write))
                .audited(Matter::Data, tells("table resolve")),
            route(wire::OP_TABLE_DROP, TableFace::serve_drop)
                .allows(allows(Access::Write))
                .audited(Matter::Data, tells("table drop")),
            route(wire::OP_TABLE_SPLIT, TableFace::serve_split)
                .allows(allows(Access::Write))
                .audited(Matter::Data, tells("table split")),
            route(wire::OP_TABLE_GONE, TableFace::serve_gone)
                .allows(regions::allows)
                .audited(Matter::Data, dropped::gone_told),
            route(wire::OP_TABLE_PREPARE, TableFace::serve_prepare).allows(regions::allows),
            route(wire::OP_TABLE_ADOPT, TableFace::serve_adopt)
                .allows(regions::allows)
                .audited(Matter::Data, regions::adopt_told),
            route(wire::OP_TABLE_TELL, TableFace::serve_tell).allows(regions::allows),
        ]
    }
}

impl TableFace {
    /// Without a table yet: see [`TableFace::open_all`]. `bytes_max` bounds keys and values.
    pub fn new(node: Arc<Node>, bytes_max: u64, regions: Regions) -> Arc<TableFace> {
        let settings = Settings { policy: Policy::Takeover, ..Settings::default() };
        let face = Arc::new(TableFace {
            node,
            settings,
            regions: Arc::new(regions),
            bytes_max,
            tables: Mutex::default(),
            cuts: Mutex::default(),
            counted: Mutex::default(),
            opening: Mutex::default(),
            opened: AtomicBool::new(false),
            round_ns: Mutex::default(),
            watchers: Arc::default(),
            telling: Mutex::default(),
            splits: split::Splits::default(),
        });
        face.watchers.belong_to(&face);
        face
    }

    /// Opens the tables that there are, where the log is kept.
    pub fn open_all(&self) {
        let topics = self.node.hosted().map(|log| log.topics()).unwrap_or_default();
        for topic in topics {
            let Some((name, tablet)) = TableName::of_topic(&topic) else { continue };
            if let Err(e) = self.open(&name, tablet) {
                // One that is damaged leaves the others: `doctor` names it.
                self.node.view_failed(&topic, &e);
            }
        }
        self.opened.store(true, Ordering::Release);
    }

    /// To be called often: has time pass for the tablets where the log is kept, and elsewhere looks now
    /// and then for those that are new. May wait.
    pub fn round(self: &Arc<Self>) {
        let now_ns = self.node.machine.clock.monotonic_ns();
        let rest_ns = if self.node.answers_for_log() { TICK_NS } else { FOLLOW_NS };
        {
            let mut last_ns = self.round_ns.held();
            if last_ns.is_some_and(|last_ns| now_ns < last_ns + rest_ns) {
                return;
            }
            *last_ns = Some(now_ns);
        }
        match self.node.answers_for_log() {
            true => {
                self.count_anew();
                self.all().iter().for_each(OpenTablet::tick);
                self.go_on_with_splits();
                self.watchers.time_passes();
            }
            // One that has no memory for tables follows none.
            false if self.bytes_max > 0 => self.follow(),
            false => {}
        }
    }

    fn follow(&self) {
        let request = (wire::OP_TABLE_LIST, ().to_bytes(), Vec::new());
        let told = self.node.wait_for(|done| ask_host(&self.node, request, None, done));
        // The host is away, or another build: the next round asks again.
        let told = told.and_then(|told| Ok(Vec::<msg::TableInfo>::from_bytes(&told.meta)?));
        for info in told.unwrap_or_default() {
            let Ok(name) = TableName::new(&info.table) else { continue };
            for tablet in (0..).take(info.tablets.len()) {
                if let Err(e) = self.open(&name, tablet)
                    && e.kind != Kind::Retry
                {
                    self.node.view_failed(&name.topic(tablet), &e);
                }
            }
        }
    }

    /// What this node has of each table.
    pub fn held(&self) -> Vec<(String, Held)> {
        let tables = self.tables.held().clone();
        let held = |tablets: &Tablets| {
            let mut sum = Held::default();
            for tablet in tablets.values() {
                tablet.fold().read_last(|view| {
                    view.look(|tablet| {
                        sum.records += tablet.live();
                        sum.bytes += tablet.bytes();
                    })
                });
            }
            sum
        };
        tables.iter().map(|(name, tablets)| (name.to_string(), held(tablets))).collect()
    }

    fn all(&self) -> Vec<Arc<OpenTablet>> {
        self.tables.held().values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// A tablet, opened if it is not; its topic is made if there is none.
    fn open(&self, name: &TableName, tablet: u16) -> Result<Arc<OpenTablet>> {
        if let Some(open) = self.if_open(name, tablet) {
            return Ok(open);
        }
        let _one = self.opening.held();
        if let Some(open) = self.if_open(name, tablet) {
            return Ok(open);
        }
        let fold = self.node.open_view(Context::of(&name.topic(tablet)))?;
        let life = self.node.machine.rng.next_u64();
        let (regions, watchers) = (self.regions.clone(), self.watchers.clone());
        let open = OpenTablet::new((name.clone(), tablet), fold, regions, watchers, life);
        if self.node.hosted().is_some() {
            open.decide(self.settings)?;
        }
        self.tables.held().entry(name.clone()).or_default().insert(tablet, open.clone());
        reshaped();
        Ok(open)
    }

    /// The tablets of a table: it is there once its first one is made, which is made last.
    fn table(&self, name: &str) -> Result<Arc<Cut>> {
        let shapes = shapes();
        if let Some((then, cut)) = self.cuts.held().get(name)
            && *then == shapes
        {
            return Ok(cut.clone());
        }
        let cut = self.look_at_tablets(name).map(Arc::new);
        let mut cuts = self.cuts.held();
        match &cut {
            Ok(cut) => cuts.insert(cut.name.clone(), (shapes, cut.clone())),
            Err(_) => cuts.remove(name),
        };
        cut
    }

    fn look_at_tablets(&self, name: &str) -> Result<Cut> {
        let name = TableName::new(name)?;
        self.check_opened(&name)?;
        let none = || {
            Error::not_found(format!(
                "use table `{name}`: there is none: make it (`holdfast table create {name}`)"
            ))
        };
        let tablets = self.tables.held().get(&name).cloned().unwrap_or_default();
        let first = tablets.get(&0).ok_or_else(none)?;
        let was_dropped = |open: &OpenTablet| open.fold().read_last(|view| view.was_dropped());
        let made = first.fold().read(|view, _| view.made())?.ok_or_else(|| match was_dropped(first) {
            true => Error::not_found(format!(
                "use table `{name}`: it was dropped: make it anew (`holdfast table create {name}`)"
            )),
            false => none(),
        })?;
        // Others that are open are of an attempt to make it otherwise, or of a split that has not come so far.
        Cut::of(name.clone(), made.tablets, |number| {
            let open = tablets.get(&number).ok_or_else(|| {
                Error::corrupt(format!(
                    "use table `{name}`: its tablet {number} could not be opened: look at `holdfast doctor`"
                ))
            })?;
            let look =
                |view: &TabletView| (view.was_dropped(), view.look(|tablet| tablet.span().clone()));
            match open.fold().read_last(look) {
                (_, Some(span)) => Ok((open.clone(), span)),
                (true, None) => Err(Error::retry(format!(
                    "use table `{name}`: it is being dropped: say `holdfast table drop {name}` again"
                ))),
                (false, None) => Err(Error::corrupt(format!(
                    "use table `{name}`: its tablet {number} is not made: look at `holdfast doctor`"
                ))),
            }
        })
    }

    /// One of its tablets, by number, if it is open here.
    fn if_open(&self, name: &TableName, number: u16) -> Option<Arc<OpenTablet>> {
        self.tables.held().get(name)?.get(&number).cloned()
    }

    fn check_opened(&self, name: &TableName) -> Result<()> {
        match self.opened.load(Ordering::Acquire) {
            true => Ok(()),
            // What is missing may be opened next.
            false => Err(Error::retry(format!(
                "use table `{name}`: this node opens its tables: ask again"
            ))),
        }
    }

    fn serve_make(self: Arc<Self>, request: Request<'_>) {
        let Some((make, reply)) = request.decode::<msg::Make>("make a table") else { return };
        self.make_here(make, move |made| {
            answer(reply, made.map(|info| (info.to_bytes(), Parts::None)));
        });
    }

    /// Makes a table, where the log is kept.
    fn make_here(
        self: &Arc<Self>,
        make: msg::Make,
        done: impl FnOnce(Result<msg::TableInfo>) + Send + 'static,
    ) {
        let face = self.clone();
        self.node.workers.run(move || {
            let doing = format_args!("make table `{}`", make.table.escape_debug());
            done(face.make(&make).map_err(|e| e.context(doing)));
        });
    }

    fn make(&self, make: &msg::Make) -> Result<msg::TableInfo> {
        self.check_log()?;
        let name = TableName::new(&make.table)?;
        self.check_size(&name, make.tablets)?;
        if make.everywhere && self.regions.all().len() > 1 {
            return self.make_everywhere(make, &name);
        }
        let made = |tablet| Made {
            form: Form::new(make.mode, 1),
            region: Form::first_region(),
            tablet,
            tablets: make.tablets,
        };
        self.make_tablets(&name, &(0..make.tablets).map(made).collect::<Vec<_>>())
    }

    fn check_log(&self) -> Result<()> {
        match self.node.shared() {
            None => Ok(()),
            Some(log) => Err(Error::unsupported(format!(
                "brokers keep the log ({}), and tables want one that a node keeps: use another cluster",
                log.place()
            ))),
        }
    }

    fn check_size(&self, name: &TableName, tablets: u16) -> Result<()> {
        if tablets == 0 || tablets > msg::TABLETS_MAX {
            let most = msg::TABLETS_MAX;
            return Err(Error::invalid(format!(
                "it cannot have {tablets} tablets: ask for 1 to {most} of them"
            )));
        }
        let tables = self.tables.held();
        let others = tables.iter().filter(|(other, _)| *other != name);
        let used: usize = others.map(|(_, tablets)| tablets.len()).sum();
        match used + usize::from(tablets) <= TABLETS_MAX {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "the cluster's tables have {used} tablets, and {TABLETS_MAX} are the most: ask for fewer"
            ))),
        }
    }

    /// Makes a table's tablets, in order of their numbers, unless they are made so.
    fn make_tablets(&self, name: &TableName, wanted: &[Made]) -> Result<msg::TableInfo> {
        let is = |made: Option<Made>, wanted: &Made| match made {
            Some(made) if made != *wanted => Err(made_otherwise(&made)),
            made => Ok(made.is_some()),
        };
        // One of which a part is dropped goes first.
        if let Err(e) = self.table(name.as_str())
            && e.kind == Kind::Retry
        {
            return Err(e);
        }
        // What was made, or begun, with other words stays as it is: nothing is added to it.
        let begun = self.tables.held().get(name).cloned().unwrap_or_default();
        let mut is_there = false;
        for (tablet, open) in begun {
            let made = open.fold().read(|view, _| view.made())?;
            match (wanted.get(usize::from(tablet)), made) {
                (Some(wanted), made) => is_there |= is(made, wanted)? && tablet == 0,
                // Behind a table that is there whole they are what is left of an attempt at another one.
                (None, Some(made)) if !is_there => return Err(made_otherwise(&made)),
                (None, _) => {}
            }
        }
        // The first comes last: with it the table is there, whole.
        for wanted in wanted.iter().rev() {
            let open = self.open(name, wanted.tablet)?;
            let made = || open.fold().read(|view, _| view.made());
            if !is(made()?, wanted)? {
                self.append_first(&open, wanted.command())?;
                open.begins_anew();
            }
            if !is(made()?, wanted)? {
                return Err(Error::bug("its entry was applied, and made nothing"));
            }
            open.decide(self.settings)?;
        }
        self.info(name)
    }

    /// Appends an entry in front of a tablet's own; one that another one was in front of comes to nothing.
    fn append_first(&self, open: &OpenTablet, entry: Vec<u8>) -> Result<()> {
        let entry = Proposal::of(Call::default(), entry, Append::Synced);
        let proposed = self.node.wait_for(|done| open.fold().propose(entry, done));
        proposed.map(drop).or_else(|e| if e.kind == Kind::Exists { Ok(()) } else { Err(e) })
    }

    fn serve_list(self: Arc<Self>, request: Request<'_>) {
        let reply = request.reply;
        let names: Vec<TableName> = self.tables.held().keys().cloned().collect();
        let told = names.iter().filter_map(|name| match self.info(name) {
            Err(e) if e.kind == Kind::Retry => Some(Err(e)),
            // It is being made; or it is damaged, which leaves the others.
            told => told.ok().map(Ok),
        });
        let told: Result<Vec<msg::TableInfo>> = told.collect();
        answer(reply, told.map(|told| (told.to_bytes(), Parts::None)));
    }

    fn serve_describe(self: Arc<Self>, request: Request<'_>) {
        let Some((name, reply)) = request.decode::<String>("describe a table") else { return };
        let told = TableName::new(&name).and_then(|name| self.info(&name));
        answer(reply, told.map(|told| (told.to_bytes(), Parts::None)));
    }

    fn info(&self, name: &TableName) -> Result<msg::TableInfo> {
        let tablets = self.table(name.as_str())?;
        let made = tablets[0].fold().read_last(|view| view.made());
        let made = made.ok_or_else(|| Error::bug("a table without a form"))?;
        Ok(msg::TableInfo {
            table: name.to_string(),
            mode: made.form.mode,
            region: made.region.0,
            regions: made.form.members.len() as u8,
            others: self.others(&made, &tablets[0]),
            tablets: (0..)
                .zip(tablets.iter())
                .map(|(at, of)| self.tablet_info(of, tablets.span(at)))
                .collect(),
        })
    }

    fn others(&self, made: &Made, first: &OpenTablet) -> Vec<msg::RegionInfo> {
        let others = made.form.regions().filter(|region| *region != made.region);
        let other = |region: RegionId| msg::RegionInfo {
            region: region.0,
            heard_ms: first.heard_ticks(region).map(|ticks| u64::from(ticks) * TICK_NS / 1_000_000),
            is_called_lost: first.lost() == Some(region),
            trouble: self.regions.trouble(region),
        };
        others.map(other).collect()
    }

    fn serve_scan(self: Arc<Self>, request: Request<'_>) {
        let Some((scan, reply)) = request.decode::<msg::Scan>("scan a table") else { return };
        self.scan_here(scan, move |page| {
            answer(reply, page.map(|page| (Vec::new(), Parts::from(page.to_bytes()))));
        });
    }

    /// Scans, where the log is kept.
    fn scan_here(
        self: &Arc<Self>,
        scan: msg::Scan,
        done: impl FnOnce(Result<msg::Page>) + Send + 'static,
    ) {
        let face = self.clone();
        self.node.workers.run(move || {
            let page = scan::scan(|| face.table(&scan.table), &scan);
            let doing = format_args!("scan table `{}`", scan.table.escape_debug());
            done(page.map_err(|e| e.context(doing)));
        });
    }

    fn tablet_info(&self, tablet: &OpenTablet, (first, last): (u32, u32)) -> msg::TabletInfo {
        let status = tablet.fold().status();
        let looked = tablet.fold().read_last(|view| {
            view.look(|tablet| {
                let stream = |stream: &Stream| msg::StreamInfo {
                    home: stream.id().0,
                    leader: stream.promised().leader().0,
                    held: stream.tail().number,
                    shown: tablet.shown(stream.id()).place.number,
                };
                msg::TabletInfo {
                    records: tablet.live(),
                    tombstones: tablet.tombstones().len() as u64,
                    bytes: tablet.bytes(),
                    sessions: tablet.sessions().len() as u64,
                    branches: tablet.branches().said().len() as u64,
                    streams: tablet.streams().map(stream).collect(),
                    split: tablet.span().leaving.map(|half| self.split_info(half)),
                    ..msg::TabletInfo::default()
                }
            })
        });
        let stopped = status.stopped.map_or(String::new(), |e| e.message);
        let looked = looked.unwrap_or_default();
        msg::TabletInfo { applied: status.applied.0, first, last, stopped, ..looked }
    }
}

fn made_otherwise(made: &Made) -> Error {
    let mode = match made.form.mode {
        Mode::Timeline => "timeline",
        Mode::Strong => "strong",
    };
    Error::exists(format!(
        "it was made before, {mode} and of {} tablets: make it with the same words, or another one",
        made.tablets
    ))
}
