//! Stories: what happens is written down, and a seed says only how long everything takes.

use crate::world::{End, REGIONS, TABLE, Visitor, World, address};
use crate::{MS, Plan, SECOND, run_story};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::HoldMutex;
use holdfast_env::net::{PeerDone, PeerReply, PeerRequest};
use holdfast_sim::task::spawn;
use holdfast_sim::{Listener, Over};
use holdfast_table::ids::{Epoch, LogId, Place, RegionId, StreamId};
use holdfast_table::message::Message;
use holdfast_table::tablet::Form;
use holdfast_table::view::Made;
use holdfast_wire::table::{self as msg, Expect, Row, TableMode, Written};
use holdfast_wire::{
    OP_TABLE_ADOPT, OP_TABLE_DROP, OP_TABLE_GONE, OP_TABLE_MAKE, OP_TABLE_PREPARE, OP_TABLE_SPLIT,
    OP_TABLE_TELL, OP_TABLE_WRITE,
};
use std::sync::{Arc, Mutex};

/// A mode, and how many tablets.
type Words = (TableMode, u16);

const WORDS: [Words; 2] = [(TableMode::Strong, 1), (TableMode::Timeline, 2)];

fn plan(seed: u64) -> Plan {
    Plan {
        seals: false,
        seed,
        mode: TableMode::Strong,
        tablets: 1,
        memory_bytes: 1 << 30,
        segment_bytes: 64 << 10,
    }
}

/// What two people came to, and after them whoever says the same words again.
type Came = Arc<Mutex<Vec<(Words, Result<()>)>>>;

async fn make_from_two_regions(world: Arc<World>, visitor: Visitor, came: Came) {
    world.cells.iter().for_each(|cell| cell.start());
    visitor.pause(SECOND, SECOND).await;
    for (region, words) in [(1, WORDS[0]), (2, WORDS[1])] {
        let person = Visitor::new(format!("person {region}"), visitor.below(u64::MAX), &world);
        let came = came.clone();
        spawn(&world.net, async move {
            person.pause(0, 100 * MS).await;
            let made = person.make_as(region, words.0, words.1).await;
            came.held().push((words, made.map(drop)));
        });
    }
    while came.held().len() < 2 {
        visitor.pause(SECOND / 10, SECOND / 10).await;
    }
    let shared = &world.shared;
    let of: Vec<(Words, bool)> = came.held().iter().map(|(w, made)| (*w, made.is_ok())).collect();
    if of.iter().filter(|(_, made)| *made).count() != 1 {
        shared.violate(format!("not one of two has made it: {:?}", came.held()));
    }
    for region in 0..REGIONS {
        let told = match visitor.describe(region).await {
            Ok(told) => (told.mode, told.tablets.len() as u16),
            Err(e) => return shared.violate(format!("region {region} has no table: {e}")),
        };
        for (words, made) in &of {
            let again = visitor.make_as(region, words.0, words.1).await;
            let as_before = match &again {
                Ok(_) => *made && told == *words,
                Err(e) => !*made && e.kind == Kind::Exists,
            };
            if !as_before {
                shared.violate(format!("region {region} has {told:?}, and {words:?}: {again:?}"));
            }
        }
    }
}

/// Two people make a table at once, in two regions and with other words. One of them makes it, everywhere, and the
/// other one hears of it.
#[test]
fn of_two_who_make_a_table_at_once_one_makes_it_everywhere() {
    for seed in 0..8 {
        let came = Came::default();
        let report = run_story(plan(seed), &[], false, move |world, visitor| {
            make_from_two_regions(world, visitor, came)
        });
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

/// A region in which somebody else makes the table, with other words: its logs have numbers, nothing is made when it is
/// asked, and something is when it is to be made.
struct OthersAreFirst;

impl Listener for OthersAreFirst {
    fn request(&self, _: Over<'_>, request: PeerRequest, reply: PeerDone) {
        let told = match request.opcode {
            OP_TABLE_PREPARE => msg::Prepare::from_bytes(&request.meta).map(|prepare| {
                let told = msg::Prepared { log: 7 << 32, ..msg::Prepared::default() };
                PeerReply {
                    meta: vec![told; prepare.tablets.into()].to_bytes(),
                    ..PeerReply::default()
                }
            }),
            OP_TABLE_ADOPT => return reply(Err(Error::exists("make a table: it was made before"))),
            _ => Ok(PeerReply::default()),
        };
        reply(told.map_err(Error::from));
    }
}

async fn make_behind_another(world: Arc<World>, visitor: Visitor) {
    world.net.listen(&address(0), Arc::new(OthersAreFirst));
    world.cells[1..].iter().for_each(|cell| cell.start());
    visitor.pause(SECOND, SECOND).await;
    for region in [1, 2] {
        let made = visitor.make(region).await;
        if !matches!(&made, Err(e) if e.kind == Kind::Exists) {
            world.shared.violate(format!("region {region} has made it: {made:?}"));
        }
    }
    for region in [1, 2] {
        let told = visitor.describe(region).await;
        if !matches!(&told, Err(e) if e.kind == Kind::NotFound) {
            world.shared.violate(format!("region {region} has a table of its own: {told:?}"));
        }
    }
}

/// Whoever has not made a table in the first region, since another one did meanwhile, makes it in no other region: each
/// of two made it where it came first, and nobody could ever use it or make it again.
#[test]
fn who_is_not_the_first_to_make_a_table_makes_none() {
    let report = run_story(plan(0), &[], false, make_behind_another);
    assert_eq!(report.violations, Vec::<String>::new());
}

async fn put(visitor: &Visitor, region: u8, sequence: u64, bytes: usize) -> Result<Written> {
    put_in(TABLE, visitor, region, sequence, bytes).await
}

async fn put_in(
    table: &str,
    visitor: &Visitor,
    region: u8,
    sequence: u64,
    bytes: usize,
) -> Result<Written> {
    let meta = msg::Write { table: table.into(), session: 1, below: sequence }.to_bytes();
    let value = Some(vec![sequence as u8; bytes]);
    let row = Row { sequence, expect: Expect::Any, key: b"one".to_vec(), value };
    let asked = visitor.ask(region, OP_TABLE_WRITE, meta, Some(vec![row].to_bytes()), 20_000);
    let written = Vec::<Written>::from_bytes(&asked.await?.body)?;
    Ok(written.into_iter().next().expect("a write has an answer"))
}

const VALUE_BYTES: usize = 32 << 10;

async fn write_while_one_is_away(world: Arc<World>, visitor: Visitor) {
    world.cells.iter().for_each(|cell| cell.start());
    visitor.pause(SECOND, SECOND).await;
    let shared = &world.shared;
    while visitor.make(0).await.is_err() {
        visitor.pause(SECOND, SECOND).await;
    }
    let mut sequence = 1;
    while put(&visitor, 0, sequence, 1).await.is_err() {
        visitor.pause(SECOND, SECOND).await;
    }
    world.cells[2].end(End::Kill);
    let refused = loop {
        sequence += 1;
        match put(&visitor, 0, sequence, VALUE_BYTES).await {
            Ok(_) if sequence > 40 => {
                return shared.violate("what a region has yet to get has no bound".to_owned());
            }
            Ok(_) => {}
            Err(e) if e.kind == Kind::Retry => visitor.pause(SECOND, SECOND).await,
            Err(e) => break e,
        }
    };
    let says = |what: &str| refused.message.contains(what);
    if refused.kind != Kind::Full || !says("another region has yet to get") {
        shared.violate(format!("{refused}"));
    }
    world.cells[2].start();
    for _ in 0..60 {
        visitor.pause(SECOND, SECOND).await;
        if put(&visitor, 0, sequence, VALUE_BYTES).await.is_ok() {
            return;
        }
    }
    shared.violate("a region is back, and nothing can be written".to_owned());
}

/// A region is away, and one record is written over and over: tables may have 256 KiB, which it never exceeds, but
/// all that the region has yet to get stays in memory. That was bounded by nothing.
#[test]
fn what_waits_for_a_region_that_is_away_is_bounded() {
    // A seed by which little is settled at once.
    let plan = Plan { memory_bytes: 256 << 10, segment_bytes: 4 << 20, ..plan(21) };
    let report = run_story(plan, &[], false, write_while_one_is_away);
    assert_eq!(report.violations, Vec::<String>::new());
}

/// Says what no region says: of tables that are there, half of them in this region alone, and of tables that are not.
async fn lie(visitor: &Visitor, to: u8, made: &Made) -> Result<()> {
    let number = || match visitor.below(4) {
        0 => u64::MAX - visitor.below(2),
        1 => visitor.below(4) << 32,
        _ => visitor.below(5),
    };
    let region = || RegionId(visitor.below(4) as u8);
    let table = match visitor.below(6) {
        0 | 1 => TABLE.to_owned(),
        2 => OWN.to_owned(),
        3 => "../../etc".to_owned(),
        4 => "x".repeat(200),
        _ => format!("lie-{}", visitor.below(3)),
    };
    // What it was made as can be guessed where it is in one region, and is known to those in which it is.
    let made = match table == OWN {
        true => Made { form: Form::new(TableMode::Timeline, 1), ..made.clone() },
        false => made.clone(),
    };
    let (opcode, meta, body) = match visitor.below(7) {
        // A table in which it has a part it may drop.
        6 => {
            let table = if table == TABLE { OWN.to_owned() } else { table };
            let gone = msg::Gone { by: 2, table, tablets: vec![made.to_bytes(); 2] };
            (OP_TABLE_GONE, gone.to_bytes(), None)
        }
        0 => {
            let after = (0..visitor.below(4)).map(|_| number()).collect();
            let tablets = visitor.below(4) as u16;
            let prepare = msg::Prepare { by: 2, region: to, table, tablets, after };
            (OP_TABLE_PREPARE, prepare.to_bytes(), None)
        }
        1 => {
            let tablets = visitor.below(4);
            let tablet = |at: u64| {
                let logs = (0..3).map(|of| (RegionId(of), LogId(number())));
                let mut form = Form::of(TableMode::Strong, StreamId(region().0), logs);
                if visitor.below(3) == 0 {
                    form.members.iter_mut().for_each(|member| member.counts = false);
                }
                let made =
                    Made { form, region: RegionId(to), tablet: at as u16, tablets: tablets as u16 };
                made.to_bytes()
            };
            let adopt = msg::Adopt { by: 2, table, tablets: (0..tablets).map(tablet).collect() };
            (OP_TABLE_ADOPT, adopt.to_bytes(), None)
        }
        2 => {
            // Bytes that begin well.
            let noise = (0..visitor.below(200)).map(|_| visitor.below(256) as u8);
            let body: Vec<u8> = 3u32.to_bytes().into_iter().chain(noise).collect();
            (OP_TABLE_TELL, msg::Tell { by: 2 }.to_bytes(), Some(body))
        }
        _ => {
            let stream = StreamId(region().0);
            let epoch = Epoch::new(1 + visitor.below(3), RegionId(2));
            let message = match visitor.below(5) {
                0 => Message::AskPromise { stream, epoch },
                1 => Message::ImageAsked { image: None, part: number() },
                2 => Message::NotShown { ticket: number() },
                3 => Message::Push {
                    stream,
                    under: epoch,
                    before: Place::default(),
                    entries: Vec::new(),
                    kept: number() % 1000,
                },
                _ => Message::MarkAsked { stream, ticket: number() },
            };
            let form = crc32c(&Made { region: RegionId::default(), ..made }.to_bytes());
            let tablet = visitor.below(3) as u16;
            let (log, message) = (number(), message.to_bytes());
            let told = vec![msg::Told { table, tablet, form, log, message }; 3];
            (OP_TABLE_TELL, msg::Tell { by: 2 }.to_bytes(), Some(told.to_bytes()))
        }
    };
    visitor.ask(to, opcode, meta, body, 20_000).await.map(drop)
}

/// Of region 0 alone.
const OWN: &str = "own";

async fn lies_are_told(world: Arc<World>, visitor: Visitor) {
    world.cells.iter().for_each(|cell| cell.start());
    visitor.pause(SECOND, SECOND).await;
    let shared = &world.shared;
    let own =
        msg::Make { table: OWN.into(), mode: TableMode::Timeline, tablets: 1, everywhere: false };
    let made = visitor.ask(0, OP_TABLE_MAKE, own.to_bytes(), None, 20_000).await;
    if let Err(e) = made.and(visitor.make(0).await) {
        return shared.violate(format!("nothing is made: {e}"));
    }
    let form = world.cells[0].tablets()[0].form().clone();
    let made = Made { form, region: RegionId(0), tablet: 0, tablets: 1 };
    // Whoever has stolen its token goes on without it.
    world.cells[2].end(End::Kill);
    let mut taken = 0;
    for sequence in 1..=400u64 {
        for to in [0, 1] {
            taken += u64::from(lie(&visitor, to, &made).await.is_ok());
        }
        if sequence % 100 == 0 {
            world.cells[0].end(End::Kill);
            world.cells[0].start();
            visitor.pause(SECOND, SECOND).await;
        }
        if sequence % 10 == 0 {
            let put = put_in(OWN, &visitor, 0, sequence, 10).await;
            if !matches!(put, Ok(Written::Version { version }) if version == sequence / 10) {
                shared.violate(format!("a table that is in no other region: {put:?}"));
            }
        }
    }
    if taken < 100 {
        shared.violate(format!("of 800 lies {taken} were heard"));
    }
}

/// A region whose token was stolen may say what it likes about the tables that it has a part in. It ends nobody, and
/// a table of another region alone is what it was, over starts too.
#[test]
fn a_region_that_lies_ends_nobody_and_reaches_no_other_table() {
    for seed in 0..4 {
        let report = run_story(plan(seed), &[], false, lies_are_told);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

async fn drop_table(visitor: &Visitor, region: u8) -> Result<msg::Dropped> {
    let drops = msg::DropTable { table: TABLE.into() }.to_bytes();
    let asked = visitor.ask(region, OP_TABLE_DROP, drops, None, 20_000);
    Ok(msg::Dropped::from_bytes(&asked.await?.meta)?)
}

/// Asks until the answer is not that it is to be asked again.
async fn until<T, F: Future<Output = Result<T>>>(
    visitor: &Visitor,
    mut ask: impl FnMut() -> F,
) -> Result<T> {
    for _ in 0..100 {
        match ask().await {
            Err(e) if e.kind == Kind::Retry => visitor.pause(SECOND / 2, SECOND).await,
            told => return told,
        }
    }
    Err(Error::retry("it is to be asked again without end"))
}

/// A table is dropped while one region is away, and the process that is asked to ends meanwhile, as drawn. Then it is
/// made anew with the same words.
async fn dropped_while_one_is_away(world: Arc<World>, visitor: Visitor) {
    let wrong = dropped_and_made_anew(&world, &visitor).await;
    wrong.into_iter().for_each(|wrong| world.shared.violate(wrong));
}

async fn dropped_and_made_anew(world: &Arc<World>, visitor: &Visitor) -> Option<String> {
    world.cells.iter().for_each(|cell| cell.start());
    visitor.pause(SECOND, SECOND).await;
    if let Err(e) = until(visitor, || visitor.make(0)).await {
        return Some(format!("it is not made: {e}"));
    }
    for sequence in 1..=5 {
        if let Err(e) = until(visitor, || put(visitor, 0, sequence, 10)).await {
            return Some(format!("nothing is written: {e}"));
        }
    }
    visitor.pause(SECOND, SECOND).await;
    world.cells[2].end(End::Kill);
    let by = visitor.below(2) as u8;
    if visitor.below(2) == 0 {
        let (cell, net) = (world.cells[usize::from(by)].clone(), world.net.clone());
        world.net.after_ns(visitor.below(300 * MS), move || {
            cell.end(End::Kill);
            net.after_ns(200 * MS, move || cell.start());
        });
    }
    let told = until(visitor, || drop_table(visitor, by)).await;
    let is_dropped = match &told {
        Ok(told) => told.away == [2],
        // Its answer went with the process.
        Err(e) => e.kind == Kind::NotFound && e.message.contains("it was dropped"),
    };
    if !is_dropped {
        return Some(format!("it is not dropped: {told:?}"));
    }
    visitor.pause(2 * SECOND, 2 * SECOND).await;
    for region in [0, 1] {
        let told = until(visitor, || put(visitor, region, 9, 10)).await;
        if !matches!(&told, Err(e) if e.kind == Kind::NotFound && e.message.contains("it was dropped"))
        {
            return Some(format!("region {region} writes to what is dropped: {told:?}"));
        }
    }
    world.cells[2].start();
    for attempt in 0.. {
        match visitor.describe(2).await {
            Err(e) if e.kind == Kind::NotFound => break,
            told if attempt > 40 => return Some(format!("region 2 goes on with it: {told:?}")),
            _ => visitor.pause(SECOND, SECOND).await,
        }
    }
    let maker = visitor.below(u64::from(REGIONS)) as u8;
    if let Err(e) = until(visitor, || visitor.make(maker)).await {
        return Some(format!("it is not made again: {e}"));
    }
    let put_again = || put(visitor, 0, 1, 10);
    let written = until(visitor, put_again).await;
    if !matches!(written, Ok(Written::Version { version: 1 })) {
        return Some(format!(
            "another table goes on with the records of the one before: {written:?}"
        ));
    }
    for cell in &world.cells {
        cell.end(End::Kill);
        cell.start();
    }
    visitor.pause(10 * SECOND, 10 * SECOND).await;
    for region in 0..REGIONS {
        let found = until(visitor, || crate::people::scan(visitor, region)).await;
        let versions =
            |found: &[(Vec<u8>, u64, u64)]| found.iter().map(|f| f.1).collect::<Vec<_>>();
        if !matches!(&found, Ok(found) if versions(found) == [1]) {
            return Some(format!("region {region} has something else: {found:?}"));
        }
    }
    None
}

/// A region that was away while a table was dropped drops it when it is back, and a table of the same name that is made
/// again has nothing of the one before.
#[test]
fn a_table_that_is_dropped_is_dropped_by_who_was_away_too() {
    for seed in 0..12 {
        let (mode, tablets) = WORDS[seed as usize % 2];
        let plan = Plan { mode, tablets, ..plan(seed) };
        let report = run_story(plan, &[], false, dropped_while_one_is_away);
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
    }
}

async fn split(visitor: &Visitor, region: u8, table: &str) -> Result<msg::TableInfo> {
    let split = msg::Split { table: table.into(), tablet: 0, at: 1 << 31 }.to_bytes();
    let asked = visitor.ask(region, OP_TABLE_SPLIT, split, None, 20_000);
    Ok(msg::TableInfo::from_bytes(&asked.await?.meta)?)
}

async fn split_in_each_region(world: Arc<World>, visitor: Visitor) {
    world.cells.iter().for_each(|cell| cell.start());
    visitor.pause(SECOND, SECOND).await;
    let shared = &world.shared;
    let own =
        msg::Make { table: OWN.into(), mode: TableMode::Timeline, tablets: 1, everywhere: false };
    let make_own = || visitor.ask(0, OP_TABLE_MAKE, own.to_bytes(), None, 20_000);
    let made = until(&visitor, || visitor.make(0)).await;
    if let Err(e) = made.map(drop).and(until(&visitor, make_own).await.map(drop)) {
        return shared.violate(format!("nothing is made: {e}"));
    }
    for region in 0..REGIONS {
        let told = until(&visitor, || split(&visitor, region, TABLE)).await;
        let is_refused = |e: &Error| {
            e.kind == Kind::Unsupported
                && e.message.contains("split tablet 0 of table")
                && e.message.contains("in several regions")
        };
        if !told.as_ref().is_err_and(is_refused) {
            shared.violate(format!("region {region} was to split it: {told:?}"));
        }
        let info = until(&visitor, || visitor.describe(region)).await;
        let is_whole =
            |info: &msg::TableInfo| info.tablets.len() == 1 && info.tablets[0].split.is_none();
        if !info.as_ref().is_ok_and(is_whole) {
            shared.violate(format!("region {region} has begun: {info:?}"));
        }
    }
    // One that is in this region alone is split as any other.
    let told = until(&visitor, || split(&visitor, 0, OWN)).await;
    if !told.as_ref().is_ok_and(|info| info.tablets.len() == 2) {
        shared.violate(format!("its own table: {told:?}"));
    }
    for sequence in 1..=3 {
        if let Err(e) = until(&visitor, || put(&visitor, 1, sequence, 10)).await {
            shared.violate(format!("a table that was not split takes nothing: {e}"));
        }
    }
}

/// Each region would have to copy the half, and a takeover could come in between.
#[test]
fn a_table_of_several_regions_is_not_split_and_says_so() {
    for (seed, (mode, _)) in WORDS.into_iter().enumerate() {
        let plan = Plan { mode, ..plan(seed as u64) };
        let report = run_story(plan, &[], false, split_in_each_region);
        assert_eq!(report.violations, Vec::<String>::new(), "{mode:?}");
    }
}
