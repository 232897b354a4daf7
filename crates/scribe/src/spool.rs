//! A spool's core: numbers what is kept, knows what its topic has, and what may be given up. Pure: the
//! driver keeps entries in a log of one topic, carries batches to nodes, and tells what came of both.
//!
//! The log has three kinds of entries: *groups* of batches; *marks*, which say how far each category is
//! numbered; and *turns*, which take a category's numbers back to what its topic has, since its topic never
//! takes what came behind. A directory's first entry is a mark with the spool's identity, there is one more
//! now and then, and before entries are given up there is one behind them: so numbers never begin anew.

use crate::batch::{self, ENCODED_BYTES_MAX, Head, Packed, Position, SpoolId};
use crate::category::Category;
use holdfast_base::codec::{Reader, put_bytes};
use holdfast_base::ids::Index;
use holdfast_base::limits::ENTRY_BYTES_MAX;
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Categories of a spool, so that a mark is an entry.
pub const CATEGORIES_MAX: usize = 4096;
/// What a category takes of a mark.
const MARKED_BYTES_MAX: usize = 4 + crate::category::CATEGORY_BYTES_MAX + 8 + 4;

const _: () = assert!(16 + CATEGORIES_MAX * MARKED_BYTES_MAX <= ENTRY_BYTES_MAX);
const _: () = assert!(ENCODED_BYTES_MAX + 64 <= ENTRY_BYTES_MAX);

const VERSION: u8 = 1;
const GROUP: u8 = 1;
const MARK: u8 = 2;
const TURN: u8 = 3;

/// One entry of a spool's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept<'a> {
    /// Batches that were kept together.
    Group(Vec<&'a [u8]>),
    Mark(SpoolId, Vec<(Category, Position)>),
    /// What is numbered behind this position was set aside, and its numbers are given again.
    Turn(Category, Position),
}

/// Reads an entry.
pub fn decode_entry(entry: &[u8]) -> Result<Kept<'_>> {
    let parse = || {
        let mut reader = Reader::new(entry);
        let kept = match reader.array::<2>()? {
            [VERSION, GROUP] => {
                let mut batches = Vec::new();
                while reader.remaining() > 0 {
                    batches.push(reader.bytes()?);
                }
                Kept::Group(batches)
            }
            [VERSION, MARK] => {
                let spool = SpoolId(u64::from_le_bytes(reader.array()?));
                let mut categories = Vec::new();
                while reader.remaining() > 0 {
                    let category = Category::new(reader.str()?)?;
                    let next = u64::from_le_bytes(reader.array()?);
                    let checksum = u32::from_le_bytes(reader.array()?);
                    categories.push((category, Position { next, checksum }));
                }
                Kept::Mark(spool, categories)
            }
            [VERSION, TURN] => {
                let category = Category::new(reader.str()?)?;
                let next = u64::from_le_bytes(reader.array()?);
                let checksum = u32::from_le_bytes(reader.array()?);
                reader.finish()?;
                Kept::Turn(category, Position { next, checksum })
            }
            [VERSION, kind] => return Err(Error::corrupt(format!("there is no kind {kind}"))),
            [version, _] => {
                return Err(Error::unsupported(format!(
                    "it has version {version}: use a newer build"
                )));
            }
        };
        Ok(kept)
    };
    parse().map_err(|e| e.context("read an entry of the spool"))
}

/// A mark as an entry.
fn encode_mark(spool: SpoolId, categories: &BTreeMap<Category, Stream>) -> Vec<u8> {
    let mut out = vec![VERSION, MARK];
    out.extend_from_slice(&spool.0.to_le_bytes());
    for (category, stream) in categories {
        put_position(&mut out, category, stream.numbered);
    }
    out
}

fn put_position(out: &mut Vec<u8>, category: &Category, position: Position) {
    put_bytes(out, category.name().as_bytes());
    out.extend_from_slice(&position.next.to_le_bytes());
    out.extend_from_slice(&position.checksum.to_le_bytes());
}

/// What a topic has, against what the spool knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many batches more than before.
    Has(usize),
    /// Less than it had: who answered is behind, or has lost it.
    Behind,
    /// Messages that another has numbered under this identity. Nothing is given up, and nothing more of
    /// this category is sent.
    Copied,
}

/// One category of a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stream {
    /// Where the next batch begins.
    numbered: Position,
    /// What the topic is known to have.
    delivered: Position,
    /// Where each batch behind that ends, and its entry.
    pending: VecDeque<(Position, Index)>,
    is_copied: bool,
}

impl Stream {
    fn at(position: Position) -> Stream {
        Stream {
            numbered: position,
            delivered: position,
            pending: VecDeque::new(),
            is_copied: false,
        }
    }
}

/// An entry that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    index: Index,
    /// Batches that the topic is not known to have.
    left: usize,
    bytes: u64,
}

/// A group that is numbered and not kept yet.
#[derive(Debug)]
pub struct Numbered {
    pub entry: Vec<u8>,
    ends: Vec<(Category, Position)>,
}

impl Numbered {
    /// Where each of its categories is once it is kept.
    pub fn ends(&self) -> &[(Category, Position)] {
        &self.ends
    }
}

/// The core.
#[derive(Debug)]
pub struct Spool {
    id: SpoolId,
    streams: BTreeMap<Category, Stream>,
    /// From the first one that holds what is not delivered.
    entries: VecDeque<Entry>,
    marked: Option<Index>,
    /// The entry behind the last one.
    end: Index,
    /// Of entries that the topic has, since files were last given up.
    given_up_bytes: u64,
    /// Of entries since the last mark.
    unmarked_bytes: u64,
}

impl Spool {
    /// Of a directory that has nothing yet, with an identity that was drawn. Its first entry is a mark.
    pub fn new(id: SpoolId) -> Spool {
        assert!(id != SpoolId::NONE, "a spool has an identity");
        let (streams, entries) = (BTreeMap::new(), VecDeque::new());
        Spool {
            id,
            streams,
            entries,
            marked: None,
            end: Index(1),
            given_up_bytes: 0,
            unmarked_bytes: 0,
        }
    }

    /// Before entries that are there are taken in by [`Spool::recover`].
    pub fn opening() -> Spool {
        Spool { id: SpoolId::NONE, ..Spool::new(SpoolId(1)) }
    }

    pub fn id(&self) -> SpoolId {
        self.id
    }

    /// Takes in the next entry of those that are there.
    pub fn recover(&mut self, index: Index, entry: &[u8]) -> Result<()> {
        let doing = |e: Error| e.context(format_args!("entry {index}"));
        match decode_entry(entry).map_err(doing)? {
            Kept::Mark(id, categories) => {
                self.is_of(id).map_err(doing)?;
                for (category, position) in categories {
                    let stream = self
                        .streams
                        .entry(category.clone())
                        .or_insert_with(|| Stream::at(position));
                    if stream.numbered != position {
                        return Err(doing(gap(&category)));
                    }
                }
                self.marked = Some(index);
                self.unmarked_bytes = 0;
            }
            Kept::Turn(category, position) => {
                self.streams.entry(category.clone()).or_insert_with(|| Stream::at(position));
                self.turn_back(&category, position);
            }
            Kept::Group(batches) => {
                let mut heads = Vec::new();
                for bytes in &batches {
                    let (head, _) = batch::decode(bytes).map_err(doing)?;
                    self.is_of(head.spool).map_err(doing)?;
                    heads.push(head);
                }
                for Head { category, .. } in &heads {
                    let head =
                        heads.iter().find(|head| head.category == *category).expect("itself");
                    let begins = head.begins();
                    self.streams.entry(category.clone()).or_insert_with(|| Stream::at(begins));
                }
                for head in &heads {
                    if self.streams[&head.category].numbered != head.begins() {
                        return Err(doing(gap(&head.category)));
                    }
                    self.note(&head.category, head.ends(), index);
                }
                self.entries.push_back(Entry {
                    index,
                    left: heads.len(),
                    bytes: entry.len() as u64,
                });
                self.unmarked_bytes += entry.len() as u64;
            }
        }
        self.end = Index(index.0 + 1);
        Ok(())
    }

    fn is_of(&mut self, id: SpoolId) -> Result<()> {
        if self.id == SpoolId::NONE {
            self.id = id;
        }
        match self.id == id && id != SpoolId::NONE {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "it is of spool {id}, the ones before are of {}: files of two spools are in one directory",
                self.id
            ))),
        }
    }

    fn note(&mut self, category: &Category, ends: Position, index: Index) {
        let stream = self.streams.get_mut(category).expect("it was made");
        stream.numbered = ends;
        stream.pending.push_back((ends, index));
    }

    /// Whether messages of a category can be numbered: it is known, or there is room for one more.
    pub fn knows_or_may(&self, category: &Category) -> bool {
        self.streams.contains_key(category) || self.streams.len() < CATEGORIES_MAX
    }

    /// Numbers groups of batches, which are then kept in this order, and told by [`Spool::kept`]. Until
    /// then nothing has changed: of groups that are not kept, the numbers are given again.
    pub fn number(&self, groups: &[Vec<Packed>]) -> Vec<Numbered> {
        let mut at: BTreeMap<&Category, Position> = BTreeMap::new();
        let mut numbered = Vec::with_capacity(groups.len());
        for group in groups {
            let (mut entry, mut ends) = (vec![VERSION, GROUP], Vec::new());
            for packed in group {
                let known = self.streams.get(&packed.category).map(|stream| stream.numbered);
                let position =
                    at.entry(&packed.category).or_insert(known.unwrap_or(Position::START));
                let bytes = packed.number(self.id, *position);
                let (head, _) = batch::decode(&bytes).expect("it was just written");
                *position = head.ends();
                ends.push((packed.category.clone(), *position));
                put_bytes(&mut entry, &bytes);
            }
            numbered.push(Numbered { entry, ends });
        }
        numbered
    }

    /// A group is kept: its numbers are taken.
    pub fn kept(&mut self, index: Index, numbered: &Numbered) {
        assert!(index >= self.end, "entry {index} comes in front of {}", self.end);
        for (category, ends) in &numbered.ends {
            self.streams.entry(category.clone()).or_insert_with(|| Stream::at(Position::START));
            self.note(category, *ends, index);
        }
        let (left, bytes) = (numbered.ends.len(), numbered.entry.len() as u64);
        self.entries.push_back(Entry { index, left, bytes });
        self.unmarked_bytes += bytes;
        self.end = Index(index.0 + 1);
    }

    /// The entry behind the last one that is known.
    pub fn end(&self) -> Index {
        self.end
    }

    /// The mark to keep now.
    pub fn mark(&self) -> Vec<u8> {
        match planted!("scribe.numbers-begin-anew") {
            true => encode_mark(self.id, &BTreeMap::new()),
            false => encode_mark(self.id, &self.streams),
        }
    }

    /// A mark is kept.
    pub fn marked(&mut self, index: Index) {
        assert!(index >= self.end, "mark {index} comes in front of {}", self.end);
        self.marked = Some(index);
        self.end = Index(index.0 + 1);
        self.unmarked_bytes = 0;
    }

    /// Entries that nobody needs were given up, as far as [`Spool::trim_before`] says.
    pub fn gave_up(&mut self) {
        self.given_up_bytes = 0;
    }

    /// The turn to keep when a category's topic never takes what it is not known to have, and all of that
    /// was set aside; nothing where there is none.
    pub fn turn(&self, category: &Category) -> Option<Vec<u8>> {
        let stream = self.streams.get(category).filter(|stream| !stream.pending.is_empty())?;
        let mut out = vec![VERSION, TURN];
        put_position(&mut out, category, stream.delivered);
        Some(out)
    }

    /// A turn is kept; how many batches it let go.
    pub fn turned(&mut self, index: Index, category: &Category) -> usize {
        assert!(index >= self.end, "turn {index} comes in front of {}", self.end);
        self.end = Index(index.0 + 1);
        let before = self.streams[category].delivered;
        self.turn_back(category, before)
    }

    fn turn_back(&mut self, category: &Category, position: Position) -> usize {
        let stream = self.streams.get_mut(category).expect("it was made");
        let aside: Vec<_> = stream.pending.drain(..).collect();
        (stream.numbered, stream.delivered) = (position, position);
        self.let_go(&aside);
        aside.len()
    }

    /// Nobody needs these batches here any more.
    fn let_go(&mut self, batches: &[(Position, Index)]) {
        for (_, index) in batches {
            let at = self.entries.binary_search_by_key(index, |entry| entry.index);
            self.entries[at.expect("what is pending is in an entry")].left -= 1;
        }
        while let Some(entry) = self.entries.pop_front_if(|entry| entry.left == 0) {
            self.given_up_bytes += entry.bytes;
        }
    }

    /// Somebody says where the spool is in a category's topic.
    pub fn learn(&mut self, category: &Category, position: Position) -> Progress {
        let Some(stream) = self.streams.get_mut(category) else {
            // Nothing was ever numbered here.
            return if position == Position::START { Progress::Has(0) } else { Progress::Copied };
        };
        if stream.is_copied {
            return Progress::Copied;
        }
        if position.next < stream.delivered.next {
            return Progress::Behind;
        }
        if position == stream.delivered {
            return Progress::Has(0);
        }
        let Some(last) = stream.pending.iter().position(|(ends, _)| *ends == position) else {
            stream.is_copied = true;
            return Progress::Copied;
        };
        let delivered: Vec<_> = stream.pending.drain(..=last).collect();
        stream.delivered = position;
        self.let_go(&delivered);
        Progress::Has(delivered.len())
    }

    /// As [`Spool::learn`], of an answer to what was asked when the topic was known to have everything before
    /// message `known`. Several requests are under way at once, so it may be older than one that came first.
    pub fn hear(&mut self, category: &Category, position: Position, known: u64) -> Progress {
        let is_old = (known..self.delivered(category).next).contains(&position.next);
        match is_old && !planted!("scribe.old-answers-alarm") {
            true => Progress::Has(0),
            false => self.learn(category, position),
        }
    }

    /// Whether a batch, which this entry holds, is to be sent.
    pub fn wants_to_send(&self, index: Index, head: &Head) -> bool {
        !self.streams[&head.category].is_copied && self.is_pending(index, head)
    }

    /// Whether a category's topic is not known to have a batch, which this entry holds. Its number alone does not
    /// say so: one that was set aside may have the same.
    pub fn is_pending(&self, index: Index, head: &Head) -> bool {
        let stream = &self.streams[&head.category];
        let from = stream.pending.partition_point(|(_, at)| *at < index);
        let mut own = stream.pending.range(from..).take_while(|(_, at)| *at == index);
        own.any(|(ends, _)| *ends == head.ends())
    }

    /// What a category's topic is known to have.
    pub fn delivered(&self, category: &Category) -> Position {
        self.streams.get(category).map_or(Position::START, |stream| stream.delivered)
    }

    /// Of a category the position behind which its topic is not known to have anything, and the one behind each
    /// batch from there on.
    pub fn positions(&self, category: &Category) -> Vec<Position> {
        let Some(stream) = self.streams.get(category) else { return Vec::new() };
        let pending = stream.pending.iter().map(|(ends, _)| *ends);
        std::iter::once(stream.delivered).chain(pending).collect()
    }

    /// The first entry that holds something to be sent, of categories that are not left out, unless there
    /// is none.
    pub fn first_to_send(&self, without: &BTreeSet<Category>) -> Option<Index> {
        let streams = self.streams.iter();
        let sent = streams.filter(|(name, stream)| !stream.is_copied && !without.contains(*name));
        sent.filter_map(|(_, stream)| stream.pending.front()).map(|(_, index)| *index).min()
    }

    /// The first entry that holds what a category's topic is not known to have.
    pub fn first_pending(&self, category: &Category) -> Option<Index> {
        self.streams.get(category)?.pending.front().map(|(_, index)| *index)
    }

    /// Below which nobody needs entries: the topic has their batches, and there is a mark behind them.
    pub fn trim_before(&self) -> Option<Index> {
        let needed = self.entries.front().map_or(self.end, |entry| entry.index);
        self.marked.map(|marked| marked.min(needed))
    }

    /// Whether a mark now would let more go than those before it.
    pub fn wants_mark(&self) -> bool {
        let needed = self.entries.front().map_or(self.end, |entry| entry.index);
        self.marked.is_none_or(|marked| marked < needed && Index(marked.0 + 1) < self.end)
    }

    /// Bytes of entries behind the last mark: nothing behind it can be given up.
    pub fn unmarked_bytes(&self) -> u64 {
        self.unmarked_bytes
    }

    /// Bytes of entries that nobody needs, since files were last given up.
    pub fn given_up_bytes(&self) -> u64 {
        self.given_up_bytes
    }

    /// Batches that the topic is not known to have.
    pub fn pending(&self) -> usize {
        self.streams.values().map(|stream| stream.pending.len()).sum()
    }

    /// Messages of each category that the topic is not known to have.
    pub fn lag(&self) -> impl Iterator<Item = (&Category, u64)> {
        let lag = |stream: &Stream| stream.numbered.next - stream.delivered.next;
        self.streams.iter().map(move |(category, stream)| (category, lag(stream)))
    }

    /// Categories of which the topic has everything, and up to where that is.
    pub fn drained(&self) -> impl Iterator<Item = (&Category, Position)> {
        let drained = |stream: &&Stream| stream.pending.is_empty() && !stream.is_copied;
        let streams = self.streams.iter().filter(move |(_, stream)| drained(stream));
        streams.map(|(category, stream)| (category, stream.delivered))
    }

    /// Categories in which somebody else sends under this identity.
    pub fn copied(&self) -> impl Iterator<Item = &Category> {
        self.streams.iter().filter(|(_, stream)| stream.is_copied).map(|(category, _)| category)
    }

    /// Categories that were ever numbered.
    pub fn categories(&self) -> impl Iterator<Item = &Category> {
        self.streams.keys()
    }
}

fn gap(category: &Category) -> Error {
    Error::corrupt(format!(
        "its messages of `{category}` do not follow those before: entries of the spool are lost or mixed up"
    ))
}
