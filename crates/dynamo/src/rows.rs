//! What the API needs of a store: rows of versioned bytes, ordered by their keys' bytes, and the
//! descriptions of tables. Whoever connects a store writes this and no more.

use holdfast_base::Result;

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

    /// Rows of a span, in its direction, with their keys. Fewer than asked for says nothing; none
    /// says that the span has no more.
    async fn scan(
        &self,
        table: &str,
        span: &Span,
        consistent: bool,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// A table's description.
    async fn table(&self, name: &str) -> Result<Option<Versioned>>;

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
