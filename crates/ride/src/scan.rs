//! A pass over a head of a spin, slab by slab. Whoever begins at a slab's first row makes the same
//! slabs from there on, whatever is needed of them.

use crate::carousel::{Place, Slab as About};
use crate::rides::{Kept, Shown};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Result, codec_struct};
use holdfast_env::planted;
use holdfast_view::items::Pass;
use holdfast_wire::slab::{Builder, Needs, Range, Slab};
use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) struct Scan {
    shown: Arc<Shown>,
    range: Range,
    needs: Arc<Needs>,
    pass: Pass,
    /// None once there are no more items.
    builder: Option<Builder>,
    /// Where the slab begins that is being made.
    first: Option<First>,
    /// The next slab's.
    number: u64,
    /// Slabs that are made, and wait to be asked for.
    made: VecDeque<(First, Option<Slab>)>,
}

/// What the core keeps as a slab's first row, for us to begin there again.
#[derive(Clone, Debug, Default)]
struct First {
    inside_key: bool,
    /// Empty where the head begins.
    row: Vec<u8>,
}
codec_struct!(First { inside_key, row });

impl Scan {
    pub fn new(shown: &Arc<Shown>, range: Range, needs: Arc<Needs>, at: &Place) -> Result<Scan> {
        let first = at.first.as_ref().map(|first| First::from_bytes(first)).transpose()?;
        let (row, inside_key) = match &first {
            Some(first) if !first.row.is_empty() => (Some(&*first.row), first.inside_key),
            _ => (None, false),
        };
        let pass = Pass::new(&*shown.moment, &shown.catalog, range, row)?;
        let index = shown.position.applied.0;
        let builder = Some(Builder::new(range, index, needs.clone(), inside_key));
        let (number, made) = (at.number, VecDeque::new());
        Ok(Scan { shown: shown.clone(), range, needs, pass, builder, first, number, made })
    }

    /// What it passes over.
    pub fn shown(&self) -> &Arc<Shown> {
        &self.shown
    }

    /// Goes on with what is needed now.
    pub fn with(self, needs: Arc<Needs>) -> Result<Scan> {
        if self.needs.covers(&needs) || !self.made.is_empty() || self.builder.is_none() {
            return Ok(self);
        }
        let first = self.first.as_ref().map(Encode::to_bytes);
        let first = first.filter(|_| !planted!("ride.wider-needs-start-over"));
        Scan::new(&self.shown, self.range, needs, &Place { number: self.number, first })
    }

    /// The next slab, and what the core is told of it.
    pub fn make(&mut self) -> Result<(About, Kept)> {
        while self.made.is_empty()
            && let Some(mut builder) = self.builder.take()
        {
            let Scan { pass, first, made, .. } = self;
            let goes_on = pass.advance(&mut |item| {
                let slab = builder.push(item);
                let Some(slab) = slab else {
                    first
                        .get_or_insert_with(|| First { inside_key: false, row: Pass::place(item) });
                    return Ok(true);
                };
                let next =
                    First { inside_key: slab.header.ends_inside_key, row: Pass::place(item) };
                let begun = first.replace(next).expect("a slab has a first item");
                made.push_back((begun, Some(slab)));
                Ok(false)
            })?;
            if goes_on {
                self.builder = Some(builder);
            } else if let Some(slab) = builder.finish() {
                let begun = first.take().expect("a slab has a first item");
                made.push_back((begun, Some(slab)));
            } else if made.is_empty() {
                made.push_back((First::default(), None));
            }
        }
        let (first, slab) = self.made.pop_front().expect("a head has one slab at least");
        let about = About {
            number: self.number,
            bytes: slab.as_ref().map_or(0, |slab| slab.body_bytes() as u64),
            joinable: !slab.as_ref().is_some_and(|slab| slab.header.begins_inside_key),
            first: first.to_bytes(),
            last: self.builder.is_none() && self.made.is_empty(),
        };
        self.number += 1;
        let (shown, range, first) = (self.shown.clone(), self.range, about.first.clone());
        Ok((about, Kept { shown, range, first, slab }))
    }
}
