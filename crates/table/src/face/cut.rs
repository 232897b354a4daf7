//! A table's tablets as a request finds them: each key lies in one. A split may give some of its keys to another one
//! while the request is under way: the tablet says so, and who asked looks again.

use super::TableFace;
use crate::message::{Answer, Request as Asking};
use crate::name::{TableName, hash_of};
use crate::tablet::span::{self, Span};
use crate::tablets::OpenTablet;
use holdfast_base::{Error, Result};
use std::ops::Deref;
use std::sync::Arc;

/// The tablets, by their numbers.
pub struct Cut {
    pub name: TableName,
    tablets: Vec<Arc<OpenTablet>>,
    /// By their hashes: see [`span::cut`].
    spans: Vec<(u32, u32, u16)>,
}

impl Deref for Cut {
    type Target = [Arc<OpenTablet>];

    fn deref(&self) -> &[Arc<OpenTablet>] {
        &self.tablets
    }
}

impl Cut {
    /// Of a table that was made with so many tablets.
    ///
    /// # Errors
    /// What `open` says of a tablet's number.
    pub(super) fn of(
        name: TableName,
        tablets: u16,
        mut open: impl FnMut(u16) -> Result<(Arc<OpenTablet>, Span)>,
    ) -> Result<Cut> {
        let mut all = Vec::new();
        let spans = span::cut(tablets, |number| {
            let (tablet, span) = open(number)?;
            all.push((number, tablet));
            Ok::<_, Error>(span)
        })?;
        all.sort_unstable_by_key(|(number, _)| *number);
        // Numbers are given one after another, and the next one once that tablet is whole.
        if all.iter().zip(0..).any(|((number, _), at)| *number != at) {
            return Err(Error::corrupt(format!(
                "use table `{name}`: its tablets are not numbered one after another"
            )));
        }
        Ok(Cut { name, tablets: all.into_iter().map(|(_, tablet)| tablet).collect(), spans })
    }

    /// Which tablet a key lies in.
    pub fn number(&self, key: &[u8]) -> u16 {
        span::number_at(&self.spans, hash_of(key))
    }

    /// The tablet that a key lies in.
    pub fn of_key(&self, key: &[u8]) -> &Arc<OpenTablet> {
        &self.tablets[usize::from(self.number(key))]
    }

    /// The hashes of a tablet.
    pub fn span(&self, number: u16) -> (u32, u32) {
        let of = self.spans.iter().find(|(_, _, other)| *other == number);
        of.map_or((0, u32::MAX), |(first, last, _)| (*first, *last))
    }

    /// Whether a tablet begins at this hash.
    pub fn begins_at(&self, hash: u32) -> bool {
        self.spans.iter().any(|(first, _, _)| *first == hash)
    }
}

impl TableFace {
    /// Has a request for one record answered by the tablet that has it, whose number is told, too.
    pub(super) fn ask_of(
        self: &Arc<Self>,
        cut: &Cut,
        request: Asking,
        done: impl FnOnce(Result<Answer>, u16) + Send + 'static,
    ) {
        let number = cut.number(&request.key);
        let (face, name) = (self.clone(), cut.name.clone());
        let told = move |told: Result<Answer>| match told {
            Ok(Answer::Elsewhere(request)) => face.ask_elsewhere(&name, *request, Box::new(done)),
            told => done(told, number),
        };
        cut[usize::from(number)].ask(request, Box::new(told));
    }

    fn ask_elsewhere(
        self: &Arc<Self>,
        name: &TableName,
        request: Asking,
        done: Box<dyn FnOnce(Result<Answer>, u16) + Send>,
    ) {
        match self.table(name.as_str()) {
            Ok(cut) => self.ask_of(&cut, request, done),
            Err(e) => done(Err(e), 0),
        }
    }
}
