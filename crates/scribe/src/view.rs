//! The view of a category's topic: how far each spool has come, and which entries count. It takes a spool's
//! next batch only, and drops every other. Total and deterministic; it reads no message.

use crate::batch::{self, Head, Position, SpoolId};
use crate::category::Category;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use holdfast_view::{Applied, Context, View};
use std::collections::BTreeMap;

/// Spools that ever sent to a category: one is a directory of an agent's, made once.
pub const SPOOLS_MAX: usize = 1 << 16;

/// What a category has taken, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub batches: u64,
    pub messages: u64,
    /// Of the messages, four more for each, before they were compressed.
    pub raw_bytes: u64,
    /// Batches that came again, too early, or from a copied spool.
    pub dropped: u64,
}

/// One category.
#[derive(Debug, PartialEq, Eq)]
pub struct CategoryView {
    topic: String,
    spools: BTreeMap<SpoolId, Position>,
    taken: Runs,
    totals: Totals,
}

impl CategoryView {
    /// How far a spool has come.
    pub fn position(&self, spool: SpoolId) -> Position {
        self.spools.get(&spool).copied().unwrap_or(Position::START)
    }

    /// Whether an entry's batch counts.
    pub fn has_taken(&self, index: Index) -> bool {
        self.taken.has(index.0)
    }

    /// The first entry at or behind `from` whose batch counts.
    pub fn next_taken(&self, from: Index) -> Option<Index> {
        self.taken.next(from.0).map(Index)
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub fn spools(&self) -> usize {
        self.spools.len()
    }

    /// Whether a batch is its spool's next one; anything of nobody's is.
    fn takes(&self, head: &Head) -> Result<bool> {
        if head.category.topic() != self.topic {
            return Err(refused(head, "it belongs to another topic"));
        }
        if head.spool == SpoolId::NONE {
            return Ok(true);
        }
        let position = self.position(head.spool);
        let is_next = match planted!("scribe.early-batches-taken") {
            true => head.first >= position.next,
            false => head.begins() == position,
        };
        if is_next && !self.spools.contains_key(&head.spool) && self.spools.len() >= SPOOLS_MAX {
            return Err(refused(
                head,
                "its category has had too many spools: use another category",
            ));
        }
        Ok(is_next)
    }

    fn take(&mut self, index: Index, head: &Head) -> Result<Position> {
        if !self.takes(head)? {
            self.totals.dropped += 1;
            return Ok(self.position(head.spool));
        }
        if head.spool != SpoolId::NONE {
            self.spools.insert(head.spool, head.ends());
        }
        self.taken.add(index.0);
        self.totals.batches += 1;
        self.totals.messages += u64::from(head.count);
        self.totals.raw_bytes += u64::from(head.raw_bytes);
        Ok(head.ends())
    }
}

fn refused(head: &Head, what: &str) -> Error {
    Error::invalid(format!("take a batch of `{}` from spool {}: {what}", head.category, head.spool))
}

/// What the view answers of a batch: where its spool is now. Of one without a number, nothing useful.
pub fn encode_position(position: Position) -> Vec<u8> {
    let mut out = position.next.to_le_bytes().to_vec();
    out.extend_from_slice(&position.checksum.to_le_bytes());
    out
}

/// The inverse.
pub fn decode_position(bytes: &[u8]) -> Result<Position> {
    let mut reader = holdfast_base::codec::Reader::new(bytes);
    let next = u64::from_le_bytes(reader.array()?);
    let checksum = u32::from_le_bytes(reader.array()?);
    Ok(Position { next, checksum })
}

impl View for CategoryView {
    const NAME: &'static str = "scribe";
    const VERSION: u32 = 1;

    fn begin(context: &Context) -> CategoryView {
        CategoryView {
            topic: context.topic.clone(),
            spools: BTreeMap::new(),
            taken: Runs::default(),
            totals: Totals::default(),
        }
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        if let Some(version) = batch::unknown_version(command) {
            return Applied::UnknownVersion(format!("version {version} of a batch of messages"));
        }
        match batch::decode(command).and_then(|(head, _)| self.take(index, &head)) {
            Ok(position) => Applied::Ok(encode_position(position)),
            Err(e) => Applied::Refused(e),
        }
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&(self.spools.len() as u64));
        for (spool, position) in &self.spools {
            out.put(&spool.0);
            out.put(&position.next);
            out.put(&position.checksum);
        }
        out.put(&(self.taken.0.len() as u64));
        for (first, last) in &self.taken.0 {
            out.put(first);
            out.put(last);
        }
        let Totals { batches, messages, raw_bytes, dropped } = self.totals;
        [batches, messages, raw_bytes, dropped].iter().for_each(|total| out.put(total));
    }

    fn describe(command: &[u8]) -> String {
        match batch::decode(command) {
            Ok((head, _)) => format!("{} messages of spool {}", head.count, head.spool),
            Err(_) => format!("a batch of {} bytes", command.len()),
        }
    }

    fn restore(context: &Context, source: &mut Source<'_>) -> Result<CategoryView> {
        let mut view = CategoryView::begin(context);
        for _ in 0..source.get::<u64>()? {
            let spool = SpoolId(source.get()?);
            view.spools.insert(spool, Position { next: source.get()?, checksum: source.get()? });
        }
        for _ in 0..source.get::<u64>()? {
            view.taken.0.insert(source.get()?, source.get()?);
        }
        let [batches, messages, raw_bytes, dropped] =
            [source.get()?, source.get()?, source.get()?, source.get()?];
        view.totals = Totals { batches, messages, raw_bytes, dropped };
        Ok(view)
    }
}

/// The category's own view of a topic, by name.
pub fn context(category: &Category) -> Context {
    Context::of(&category.topic())
}

/// Indices as runs, each from its first to its last: whatever is dropped ends one, which is rare.
#[derive(Debug, Default, PartialEq, Eq)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    /// Indices come in their order.
    fn add(&mut self, index: u64) {
        match self.0.last_entry() {
            Some(mut last) if *last.get() + 1 == index => *last.get_mut() = index,
            last => {
                assert!(last.is_none_or(|last| *last.get() < index), "entries come in order");
                self.0.insert(index, index);
            }
        }
    }

    fn has(&self, index: u64) -> bool {
        self.0.range(..=index).next_back().is_some_and(|(_, last)| index <= *last)
    }

    fn next(&self, from: u64) -> Option<u64> {
        if self.has(from) {
            return Some(from);
        }
        self.0.range(from..).next().map(|(first, _)| *first)
    }
}
