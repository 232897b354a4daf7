//! A view that goes on behind an arrival by the entries that its owner hands it, one after the other: no
//! log, no thread, no place to be kept in. For readers that follow a topic from elsewhere, and are to make
//! of each entry what every fold does: repeats under a session, refusals and claims among them.

use super::machine::Machine;
use super::{Arrival, Context, View};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};

/// The view, and how far it has come.
pub struct GoesOn<V: View>(Machine<V>);

impl<V: View> GoesOn<V> {
    /// As it was when it arrived.
    pub fn new(context: &Context, arrival: Arrival<'_, '_>) -> Result<GoesOn<V>> {
        assert!(!V::OUTLIVES, "it is kept nowhere");
        let Arrival { applied, entry_crc, digest, source } = arrival;
        let machine = Machine::read(context, source, (applied, entry_crc, digest), false);
        let doing = |e: Error| e.context(format_args!("go on behind entry {applied}"));
        machine.map(GoesOn).map_err(doing)
    }

    /// The entry that it is to be handed next, or the first one behind it that there is: logs may have gaps.
    pub fn next(&self) -> Index {
        Index(self.0.applied.0 + 1)
    }

    /// Takes the next entry. What it comes to, the view says; an error is about an entry that this build
    /// does not know, in front of which it stops for good.
    pub fn take(&mut self, index: Index, entry: &[u8]) -> Result<&V> {
        assert!(index >= self.next(), "entries come in their order");
        // A refusal is what became of the entry, and the same everywhere.
        let _ = self.0.apply(index, entry);
        match self.0.stopped.clone() {
            Some(e) => Err(e),
            None => Ok(&self.0.view),
        }
    }

    /// As the entries so far have left it.
    pub fn view(&self) -> &V {
        &self.0.view
    }
}
