//! The view of a category's topic: how far each spool has come, which entries count, which spools are lost, and
//! how far readers with a name have come. It takes a spool's next batch only, and drops every other. Total and deterministic; it
//! reads no message.

use crate::batch::{self, Head, Position, SpoolId};
use crate::category::Category;
use crate::hour::{self, Hours, Mark};
use crate::names::{Lost, Names};
use crate::reader::{self, Moved, READERS_MAX};
use crate::word::{self, Heard, Says, Word};
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};
use holdfast_env::planted;
use holdfast_view::{Applied, Context, View};
use std::collections::BTreeMap;

/// Spools that ever sent to a category: one is a directory of an agent's, made once.
pub const SPOOLS_MAX: usize = 1 << 16;

/// The version of a category's entry, where it is one that this build does not know: of a batch, or of what
/// else there is ([`reader`], [`word`], [`hour`]).
fn unknown_version(entry: &[u8]) -> Option<u8> {
    entry.first().copied().filter(|version| *version > hour::VERSION)
}

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
    names: Names,
    hours: Hours,
    taken: Runs,
    totals: Totals,
    /// Where each reads on.
    readers: BTreeMap<String, Index>,
}

impl CategoryView {
    /// How far a spool has come.
    pub fn position(&self, spool: SpoolId) -> Position {
        self.spools.get(&spool).copied().unwrap_or(Position::START)
    }

    /// Whether an entry's batch counts; or it is none, behind one that does.
    pub fn has_taken(&self, index: Index) -> bool {
        self.taken.has(index.0)
    }

    /// The first entry at or behind `from` of which that is so: a batch to be shown is not in front of it.
    pub fn next_taken(&self, from: Index) -> Option<Index> {
        self.taken.next(from.0).map(Index)
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub fn spools(&self) -> usize {
        self.spools.len()
    }

    /// Where a reader reads on, unless it never said.
    pub fn reader(&self, name: &str) -> Option<Index> {
        self.readers.get(name).copied()
    }

    /// All of them.
    pub fn readers(&self) -> impl Iterator<Item = (&str, Index)> {
        self.readers.iter().map(|(name, next)| (&**name, *next))
    }

    /// How many spools were erased, or are another's now.
    pub fn lost_count(&self) -> u64 {
        self.names.lost_count()
    }

    /// Spools that were erased, or are another's now, with their names: what they had from their position on
    /// is lost.
    pub fn lost(&self) -> impl Iterator<Item = (SpoolId, &str, Lost)> {
        self.names.lost()
    }

    /// Which hours are in files, or will be.
    pub fn hours(&self) -> &Hours {
        &self.hours
    }

    /// What a word would come to as the entry `at`.
    pub fn hear(&self, at: Index, word: &Word) -> Result<Heard> {
        let Word { spool, knows, says } = word;
        match says {
            Says::Begins { name, .. } => {
                self.has_room_for(*spool)?;
                let mut heard = self.names.hear_begins(at, *spool, name, *knows);
                heard.lost.iter_mut().for_each(|(of, next)| *next = self.position(*of).next);
                Ok(heard)
            }
            Says::Ends(position) => {
                Ok(self.names.hear_ends(*spool, *knows, *position, self.position(*spool)))
            }
        }
    }

    /// What a word comes to where nothing has to be changed for it.
    pub fn hear_at_once(&self, word: &Word) -> Result<Option<Heard>> {
        // In front of every entry that there is: what would begin with it does not say so.
        let heard = self.hear(Index(u64::MAX), word)?;
        let changes = match &word.says {
            Says::Begins { .. } => heard.entry == Index(u64::MAX),
            Says::Ends(_) => heard.counts && !self.names.has_ended(word.spool),
        };
        Ok((!changes).then_some(heard))
    }

    fn take_word(&mut self, at: Index, word: &Word) -> Result<Heard> {
        let heard = self.hear(at, word)?;
        match &word.says {
            Says::Begins { name, unix_ms } if heard.entry == at => {
                self.spools.entry(word.spool).or_insert(Position::START);
                self.names.begin(&heard, word.spool, name, *unix_ms);
            }
            Says::Ends(_) if heard.counts => self.names.end(word.spool),
            _ => {}
        }
        Ok(heard)
    }

    fn has_room_for(&self, spool: SpoolId) -> Result<()> {
        if !self.spools.contains_key(&spool) && self.spools.len() >= SPOOLS_MAX {
            return Err(Error::invalid(format!(
                "take messages of spool {spool}: their category has had {SPOOLS_MAX} spools: use another \
                 category"
            )));
        }
        Ok(())
    }

    fn move_reader(&mut self, moved: Moved) -> Result<()> {
        let Moved { reader, next } = moved;
        if next == Index(0) {
            self.readers.remove(&reader);
            return Ok(());
        }
        if !self.readers.contains_key(&reader) && self.readers.len() >= READERS_MAX {
            return Err(Error::invalid(format!(
                "keep the position of reader `{reader}`: its category has {READERS_MAX} readers: forget one \
                 (`holdfast scribe forget`)"
            )));
        }
        self.readers.insert(reader, next);
        Ok(())
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
        if is_next {
            self.has_room_for(head.spool)?;
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
            self.names.took(head.spool);
        }
        self.taken.add(index.0);
        self.hours.took();
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
    const VERSION: u32 = 3;
    const READS_FROM: u32 = 2;

    fn begin(context: &Context) -> CategoryView {
        CategoryView {
            topic: context.topic.clone(),
            spools: BTreeMap::new(),
            names: Names::default(),
            hours: Hours::default(),
            taken: Runs::default(),
            totals: Totals::default(),
            readers: BTreeMap::new(),
        }
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        if let Some(version) = unknown_version(command) {
            return Applied::UnknownVersion(format!("version {version} of a batch of messages"));
        }
        if !batch::is_one(command) {
            self.taken.pass(index.0);
        }
        if reader::is_one(command) {
            return match Moved::decode(command).and_then(|moved| self.move_reader(moved)) {
                Ok(()) => Applied::Ok(Vec::new()),
                Err(e) => Applied::Refused(e),
            };
        }
        if word::is_one(command) {
            return match Word::decode(command).and_then(|word| self.take_word(index, &word)) {
                Ok(heard) => Applied::Ok(heard.encode()),
                Err(e) => Applied::Refused(e),
            };
        }
        if hour::is_one(command) {
            return match Mark::decode(command) {
                Ok(mark) => {
                    self.hours.mark(index, mark);
                    Applied::Ok(Vec::new())
                }
                Err(e) => Applied::Refused(e),
            };
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
        out.put(&(self.readers.len() as u64));
        for (name, next) in &self.readers {
            out.put(name);
            out.put(&next.0);
        }
        self.names.write(out);
        self.hours.write(out);
    }

    fn describe(command: &[u8]) -> String {
        if let Ok(Word { spool, says, .. }) = Word::decode(command) {
            return match says {
                Says::Begins { name, .. } => format!("spool {spool} of `{name}` begins"),
                Says::Ends(_) => format!("spool {spool} has nothing more"),
            };
        }
        if let Ok(Moved { reader, next }) = Moved::decode(command) {
            return format!("reader {reader} reads on at entry {next}");
        }
        if let Ok(mark) = Mark::decode(command) {
            return format!("a mark of hours: {mark:?}");
        }
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
        for _ in 0..source.get::<u64>()? {
            view.readers.insert(source.get()?, Index(source.get()?));
        }
        // Version 2 ends here.
        if !source.is_at_end()? {
            view.names = Names::read(source)?;
            view.hours = Hours::read(source)?;
        }
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

    /// An entry that is no batch ends no run: each place of a reader would, for ever.
    fn pass(&mut self, index: u64) {
        if let Some(mut last) = self.0.last_entry()
            && *last.get() + 1 == index
        {
            *last.get_mut() = index;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Builder;
    use holdfast_base::stream;

    fn moved(view: &mut CategoryView, index: u64, reader: &str, next: u64) -> Applied {
        let moved = Moved { reader: reader.to_owned(), next: Index(next) };
        view.apply(Index(index), &moved.encode())
    }

    /// Names come from whoever may write: without a bound every snapshot would grow for ever.
    #[test]
    fn readers_are_bounded_forgotten_and_in_snapshots() {
        let context = context(&Category::new("web").unwrap());
        let mut view = CategoryView::begin(&context);
        let mut builder = Builder::default();
        builder.push(b"x");
        let batch = builder.pack(Category::new("web").unwrap()).without_number();
        assert!(matches!(view.apply(Index(1), &batch), Applied::Ok(_)));
        for reader in 0..READERS_MAX as u64 {
            let applied = moved(&mut view, 2 + reader, &format!("r{reader}"), reader + 1);
            assert_eq!(applied, Applied::Ok(Vec::new()));
        }
        let behind = 2 + READERS_MAX as u64;
        assert!(matches!(moved(&mut view, behind, "more", 1), Applied::Refused(_)));
        assert_eq!(moved(&mut view, behind + 1, "r7", 9), Applied::Ok(Vec::new()), "it is known");
        assert_eq!(moved(&mut view, behind + 2, "r8", 0), Applied::Ok(Vec::new()));
        assert_eq!(moved(&mut view, behind + 3, "more", 5), Applied::Ok(Vec::new()));
        assert_eq!((view.reader("r7"), view.reader("r8")), (Some(Index(9)), None));
        assert_eq!(view.totals().batches, 1);
        let mut bytes = Vec::new();
        stream::collect(&mut bytes, |out| view.snapshot(out));
        let restored = stream::read_all(&bytes, |source| CategoryView::restore(&context, source));
        assert_eq!(restored.unwrap(), view);
        let later = [5];
        assert!(matches!(view.apply(Index(9999), &later), Applied::UnknownVersion(_)));
    }

    /// A snapshot of the build before spools had names ends where they begin: without it a category that was
    /// trimmed would not open any more.
    #[test]
    fn a_snapshot_of_before_there_were_names_is_read() {
        let context = context(&Category::new("web").unwrap());
        let mut view = CategoryView::begin(&context);
        let mut builder = Builder::default();
        builder.push(b"x");
        let batch = builder.pack(Category::new("web").unwrap()).number(SpoolId(7), Position::START);
        assert!(matches!(view.apply(Index(1), &batch), Applied::Ok(_)));
        let mut bytes = Vec::new();
        stream::collect(&mut bytes, |out| view.snapshot(out));
        bytes.truncate(bytes.len() - (8 + 26));
        let restored = stream::read_all(&bytes, |source| CategoryView::restore(&context, source));
        assert_eq!(restored.unwrap(), view);
        // Its spools have names from their next word on.
        let (name, unix_ms) = ("h:/s".to_owned(), 5);
        let says = Says::Begins { name, unix_ms };
        let word = Word { spool: SpoolId(7), knows: Index(0), says };
        assert_eq!(view.hear_at_once(&word), Ok(None));
        let Applied::Ok(heard) = view.apply(Index(2), &word.encode()) else { panic!() };
        assert_eq!(Heard::decode(&heard).unwrap().entry, Index(2));
        assert_eq!(view.hear_at_once(&word).unwrap().unwrap().entry, Index(2));
        assert_eq!(
            (view.position(SpoolId(7)).next, view.next_taken(Index(2))),
            (2, Some(Index(2)))
        );
        let mut bytes = Vec::new();
        stream::collect(&mut bytes, |out| view.snapshot(out));
        let restored = stream::read_all(&bytes, |source| CategoryView::restore(&context, source));
        assert_eq!(restored.unwrap(), view);
    }

    /// A reader that says its place behind each page left a gap for each in what the category has taken, which was
    /// in memory and in every snapshot for ever.
    #[test]
    fn places_of_readers_leave_no_gaps() {
        let category = Category::new("web").unwrap();
        let mut view = CategoryView::begin(&context(&category));
        let mut builder = Builder::default();
        builder.push(b"x");
        let packed = builder.pack(category);
        for index in (1..2000).step_by(2) {
            assert!(matches!(view.apply(Index(index), &packed.without_number()), Applied::Ok(_)));
            moved(&mut view, index + 1, "loader", index + 1);
        }
        // One that comes too early is a gap, and stays one.
        let early = packed.number(SpoolId(7), Position { next: 5, checksum: 1 });
        assert!(matches!(view.apply(Index(2001), &early), Applied::Ok(_)));
        moved(&mut view, 2002, "loader", 2002);
        assert_eq!((view.has_taken(Index(2001)), view.next_taken(Index(2001))), (false, None));
        assert!(matches!(view.apply(Index(2003), &packed.without_number()), Applied::Ok(_)));
        assert_eq!(view.taken.0.len(), 2);
    }
}
