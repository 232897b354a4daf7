//! Messages of Scribe's categories: batches of log messages on their way to a topic, where spools are, and
//! batches that are read. What a batch is, docs/formats/scribe.md says, and [`batch`]; here it is bytes.

pub mod batch;
pub mod category;

use holdfast_base::codec_struct;
use holdfast_base::ids::Index;
use holdfast_base::limits::FRAME_BODY_BYTES_MAX;

/// Batches of one append together, four bytes more counted for each.
pub const APPEND_BYTES_MAX: usize = 8 << 20;
/// Batches of one append.
pub const APPEND_BATCHES_MAX: usize = 4096;
/// Categories of one question, and words that are said at once.
pub const ASK_CATEGORIES_MAX: usize = 4096;
/// Batches of one answer.
pub const READ_BATCHES_MAX: usize = 4096;
/// Their bytes.
pub const READ_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(APPEND_BYTES_MAX <= FRAME_BODY_BYTES_MAX as usize);

/// Batches for categories. The body has them, each behind its length (u32).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Those that batches are of, each once: what rights are asked for.
    pub categories: Vec<String>,
}
codec_struct!(Append { categories });

/// Where a spool is in one category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The number of the message that the topic takes next.
    pub next: u64,
    /// Of the batch in front of it.
    pub checksum: u32,
    /// Why the category takes nothing of this spool; empty where it does.
    pub refused: String,
    /// Whether it never will.
    pub never: bool,
}
codec_struct!(Position { next, checksum, refused, never });

/// One for each batch of an append, in their order, or for each category that was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    pub positions: Vec<Position>,
}
codec_struct!(Positions { positions });

/// Where is a spool?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub spool: u64,
    pub categories: Vec<String>,
}
codec_struct!(Ask { spool, categories });

/// What a spool says of itself in categories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Say {
    pub spool: u64,
    /// What outlives the spool's directory: another spool that begins under it is in this one's place.
    pub name: String,
    pub words: Vec<Word>,
}
codec_struct!(Say { spool, name, words });

/// A word of a spool in one category.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub category: String,
    /// The entry that it was told last there; 0 for none.
    pub knows: Index,
    /// That it has nothing more than its topic; nothing for one that begins to send.
    pub drained: Option<Drained>,
}
codec_struct!(Word { category, knows, drained });

/// Up to where a topic has a spool that has nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    pub next: u64,
    pub checksum: u32,
}
codec_struct!(Drained { next, checksum });

/// What became of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Whether it counts. One that does not is said again, knowing `entry`.
    pub counts: bool,
    /// What the spool's next word there has to know.
    pub entry: Index,
    /// Why the category takes no words of this spool; empty where it does.
    pub refused: String,
}
codec_struct!(Heard { counts, entry, refused });

/// One for each word, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllHeard {
    pub heard: Vec<Heard>,
}
codec_struct!(AllHeard { heard });

/// No entry's index: the one behind the last.
pub const FROM_NEXT: Index = Index(u64::MAX);

/// Batches that count, from an entry of the category's topic on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub category: String,
    /// 0 for the oldest that there is; [`FROM_NEXT`] for the one that comes next: the answer says which that
    /// is, and has none.
    pub from: Index,
    /// At least one batch is answered, if there is one.
    pub bytes_max: u32,
    /// When there is no such entry yet, answer once there is (or at the request's deadline).
    pub wait: bool,
}
codec_struct!(Read { category, from, bytes_max, wait });

/// The body has the batches, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batches {
    pub batches: Vec<Indexed>,
    /// Where to read on.
    pub next: Index,
}
codec_struct!(Batches { batches, next });

/// The entry that holds a batch, and the batch's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexed {
    pub index: Index,
    pub bytes: u32,
}
codec_struct!(Indexed { index, bytes });

/// Changes how long messages of a category are kept, and makes it if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    pub category: String,
    /// Nothing leaves it as it is; 0 stands for no limit.
    pub retain_bytes: Option<u64>,
    pub retain_ms: Option<u64>,
    /// As long as readers hold them, beyond that.
    pub hold_bytes: Option<u64>,
    pub hold_ms: Option<u64>,
    /// Whether each hour of it becomes a file.
    pub hourly_files: Option<bool>,
}
codec_struct!(Keep { category, retain_bytes, retain_ms, hold_bytes, hold_ms, hourly_files });

/// How long messages of a category are kept: 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub retain_bytes: u64,
    pub retain_ms: u64,
    /// What readers hold of it at most: nothing, where neither has a limit.
    pub hold_bytes: u64,
    pub hold_ms: u64,
    pub hourly_files: bool,
    /// Hours that are in files, and hours that are over and wait to be.
    pub hours: u64,
    pub hours_waiting: u64,
}
codec_struct!(Kept {
    retain_bytes,
    retain_ms,
    hold_bytes,
    hold_ms,
    hourly_files,
    hours,
    hours_waiting
});

/// Where does a reader with a name read on; or, with `next`, from now on? 0 forgets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    pub category: String,
    pub reader: String,
    pub next: Option<Index>,
}
codec_struct!(Reader { category, reader, next });

/// A reader, and where it reads on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderAt {
    pub reader: String,
    pub next: Index,
}
codec_struct!(ReaderAt { reader, next });

/// A spool that was erased, or gave way to another one of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSpool {
    pub spool: u64,
    pub name: String,
    /// The first of its messages that the topic does not have; what it had from there on is lost.
    pub next: u64,
    /// The spool that is in its place, the entry that says so, and when, in ms since 1970.
    pub by: u64,
    pub entry: Index,
    pub unix_ms: u64,
}
codec_struct!(LostSpool { spool, name, next, by, entry, unix_ms });

/// Of a category's spools that are lost, so many are told, the last ones.
pub const LOST_TOLD_MAX: usize = 100;

/// How a category is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CategoryStatus {
    pub category: String,
    /// The oldest entry of its topic, and the one that comes next.
    pub first: Index,
    pub next: Index,
    /// Since it began: batches that count, their messages, and the messages' bytes.
    pub batches: u64,
    pub messages: u64,
    pub raw_bytes: u64,
    /// Batches that came again, or not in their turn.
    pub dropped: u64,
    /// Spools that ever sent something.
    pub spools: u64,
    /// What its topic takes in the log.
    pub log_bytes: u64,
    /// How long its messages are kept.
    pub kept: Kept,
    pub readers: Vec<ReaderAt>,
    /// Spools that are lost, and the last [`LOST_TOLD_MAX`] of them, oldest first.
    pub lost: u64,
    pub lost_spools: Vec<LostSpool>,
}
codec_struct!(CategoryStatus {
    category,
    first,
    next,
    batches,
    messages,
    raw_bytes,
    dropped,
    spools,
    log_bytes,
    kept,
    readers,
    lost,
    lost_spools
});
