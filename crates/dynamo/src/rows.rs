//! What the API needs of a store: rows of versioned bytes, ordered by their keys' bytes, and the
//! descriptions of tables. Whoever connects a store writes this and no more.

use holdfast_base::Result;

/// Writes of one group.
pub const GROUP_WRITES_MAX: usize = 128;
/// Bytes of one group: keys and what is put, and [`GROUP_WRITE_BYTES`] for each write.
pub const GROUP_BYTES_MAX: usize = 960 << 10;
/// What a write of a group counts beside its key and what it puts, with [`PREFIX_BYTES_MAX`].
pub const GROUP_WRITE_BYTES: usize = 64 + PREFIX_BYTES_MAX;
/// What a store may put in front of a key.
pub const PREFIX_BYTES_MAX: usize = 10;
/// Longest key.
pub const KEY_BYTES_MAX: usize = 6134;

/// What a write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Whatever is there.
    Any,
    /// Nothing.
    Absent,
    /// This version.
    Version(u64),
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is there, and will stay.
    Done,
    /// Something else was there than expected: nothing changed.
    Mismatch,
}

/// Bytes with a version, which is another one after each write of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// Of this write.
    pub version: u64,
    /// What was written.
    pub bytes: Vec<u8>,
}

/// Which rows are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of one of the table's indexes, by number; none for the table's own rows.
    pub index: Option<u8>,
    /// The least key.
    pub from: Vec<u8>,
    /// The key in front of which it ends; none for the table's end.
    pub to: Option<Vec<u8>>,
    /// From the end to the beginning.
    pub backwards: bool,
    /// No more rows than these, and at least one.
    pub rows_max: usize,
    /// No further row once so many bytes are found.
    pub bytes_max: usize,
}

/// One of several writes that stand or fall together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupWrite {
    /// Which row.
    pub place: Place,
    /// What it is to be.
    pub expect: Expect,
    /// What becomes of it.
    pub what: GroupDo,
}

/// Where a row of a group lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A table, and a key of it.
    Row(String, Vec<u8>),
    /// A table, one of its indexes by number, and a key of that.
    Index(String, u8, Vec<u8>),
    /// A table's description, by its version: it is only looked at. All rows of a group that lie in that table are
    /// those of the table that was described so.
    Table(String),
    /// What is known of a transaction's token.
    Token(String),
}

/// What becomes of a row of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupDo {
    /// It is this.
    Put(Vec<u8>),
    /// It goes: it has to be there.
    Delete,
    /// It goes, if it is there; whatever is expected of it.
    Remove,
    /// Nothing.
    Check,
}

/// What came of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupWritten {
    /// All of it is there, and will stay.
    Done,
    /// Nothing changed: this one, from 0, is the first that something else was there of than expected; or a table's
    /// description, wherever it stands.
    Mismatch(usize),
}

/// A store of tables.
///
/// # Errors
///
/// Of all of it: `NotFound` where there is no such table, `Retry` where the same request may be sent
/// again, anything else where it may not.
#[async_trait::async_trait]
pub trait Rows: Send + Sync {
    /// One row. `consistent`: with every write that was acknowledged before this was asked.
    async fn read(&self, table: &str, key: &[u8], consistent: bool) -> Result<Option<Versioned>>;

    /// Writes a row, or removes it where there are no bytes. What was expected and what is written
    /// are one step: of two that expect one version, one is done.
    async fn write(
        &self,
        table: &str,
        key: &[u8],
        bytes: Option<Vec<u8>>,
        expect: Expect,
    ) -> Result<Written>;

    /// Rows of tables by their keys, all as of one moment, with every write that was acknowledged before this was
    /// asked. `Invalid` where the store cannot read them together.
    async fn read_group(&self, keys: &[(String, Vec<u8>)]) -> Result<Vec<Option<Versioned>>>;

    /// Writes rows, none of them twice, all or none, in one step with what is expected of each. `Invalid` where the
    /// store cannot write them together.
    async fn write_group(&self, writes: Vec<GroupWrite>) -> Result<GroupWritten>;

    /// Whether any rows can be written together, a table's description among them.
    async fn is_one(&self) -> Result<bool>;

    /// What is known of a transaction's token, with every write that was acknowledged before this was asked.
    async fn token(&self, token: &str) -> Result<Option<Versioned>>;

    /// Rows of a span, in its direction, with their keys. Fewer than asked for says nothing; none
    /// says that the span has no more.
    async fn scan(
        &self,
        table: &str,
        span: &Span,
        consistent: bool,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// A table's description. `consistent`: with every change that was acknowledged before this was asked.
    async fn table(&self, name: &str, consistent: bool) -> Result<Option<Versioned>>;

    /// Creates a table, changes its description, or removes it, its rows with it.
    async fn set_table(
        &self,
        name: &str,
        description: Option<Vec<u8>>,
        expect: Expect,
    ) -> Result<Written>;

    /// Names of tables behind `after`, in order, `limit` at most.
    async fn table_names(&self, after: &str, limit: usize) -> Result<Vec<String>>;
}
