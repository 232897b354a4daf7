//! Messages of Scribe's categories: batches of log messages on their way to a topic, where spools are, and
//! batches that are read. What a batch is, docs/formats/scribe.md says; here it is bytes.

use holdfast_base::codec_struct;
use holdfast_base::ids::Index;
use holdfast_base::limits::FRAME_BODY_BYTES_MAX;

/// Batches of one append together, four bytes more counted for each.
pub const APPEND_BYTES_MAX: usize = 8 << 20;
/// Batches of one append.
pub const APPEND_BATCHES_MAX: usize = 4096;
/// Categories of one question.
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
}
codec_struct!(Keep { category, retain_bytes, retain_ms });

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
    /// How long its messages are kept: 0 for no limit.
    pub retain_bytes: u64,
    pub retain_ms: u64,
    pub readers: Vec<ReaderAt>,
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
    retain_bytes,
    retain_ms,
    readers
});
