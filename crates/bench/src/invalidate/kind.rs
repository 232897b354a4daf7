//! What a case needs of a database, whichever kind it is of.

use super::stand::Stand;
use holdfast_base::Result;
use holdfast_invalidate::source::Source;
use std::path::Path;
use std::time::{Duration, Instant};

/// Before it is said that it does not do what it should.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A database with the items 1 to a number, each of a price of 0; its server ends with it.
pub trait Kind: Sized {
    /// As reports call it.
    const NAME: &'static str;
    /// Which keys an item is in: `item:ID` alone.
    const MAP: &'static str;
    /// How an invalidator reads its log.
    type Source: Source;
    type Items: Items;

    /// Begins a new one below a directory, or in the stand's node. It has `items`.
    fn start(packages: &Path, directory: &Path, stand: &Stand, items: u64) -> Result<Self>;

    /// Another server from which readers read, once that has what this one has; none where this one is read.
    fn replica(&self, packages: &Path, directory: &Path) -> Result<Option<Self>>;

    /// As `--from` and `--reads` name it.
    fn url(&self) -> String;

    /// The same, for a reader beside the invalidator.
    fn server(&self) -> Result<<Self::Source as Source>::Server>;

    /// A connection.
    fn items(&self) -> Result<Self::Items>;
}

/// A connection for who changes items, or reads them.
pub trait Items {
    fn set_price(&mut self, id: u64, price: u64) -> Result<()>;

    /// Asks without a rest until an item has this price; when the question was sent that was answered so: it is so for
    /// all who ask from then on, and was for no more than one question before.
    fn until_price(&mut self, id: u64, price: u64) -> Result<Instant>;

    /// Changes the prices of `first` up to `last`, so many in one transaction.
    fn raise(&mut self, first: u64, last: u64, each: u64) -> Result<()>;
}
