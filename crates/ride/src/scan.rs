//! A pass over a head, slab by slab: of a spin's rows, or of an image. Whoever begins at a slab's
//! first row makes the same slabs from there on, whatever is needed of them.

use crate::carousel::{Place, Slab as About};
use crate::image::{Buffer, Image};
use crate::rides::{Again, Kept, Projections, Shown};
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Result, codec_struct};
use holdfast_env::planted;
use holdfast_view::items::Pass;
use holdfast_wire::slab::{self, Builder, Item, Needs, Range, Slab};
use holdfast_wire::view as msg;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a core's scan reads.
pub(crate) enum Pages {
    Rows(Box<Scan>),
    Image(ImageScan),
}

impl Pages {
    /// The next slab, and what the core is told of it.
    pub fn make(&mut self) -> Result<(About, Kept)> {
        match self {
            Pages::Rows(scan) => scan.make(),
            Pages::Image(scan) => scan.make(),
        }
    }

    /// The moment that it passes over.
    pub fn shown(&self) -> Option<&Arc<Shown>> {
        match self {
            Pages::Rows(scan) => Some(&scan.shown),
            Pages::Image(_) => None,
        }
    }

    /// The image that it reads.
    pub fn image(&self) -> Option<&Arc<Image>> {
        match self {
            Pages::Rows(_) => None,
            Pages::Image(scan) => Some(&scan.image),
        }
    }

    /// Goes on with what is needed now. Who reads an image needs the same to the end.
    pub fn with(self, needs: Arc<Needs>) -> Result<Pages> {
        match self {
            Pages::Rows(scan) => Ok(Pages::Rows(Box::new(scan.with(needs)?))),
            image => Ok(image),
        }
    }
}

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
pub(crate) struct First {
    pub inside_key: bool,
    /// Empty where the head begins.
    pub row: Vec<u8>,
}
codec_struct!(First { inside_key, row });

impl First {
    /// Where a ride goes on whose last item lay here.
    pub fn behind(last: &msg::Place) -> First {
        let msg::Place { hash, collection, key, index } = last;
        let (hash, collection, index) = (*hash, *collection, index.0 + 1);
        let row = Pass::place(&Item { hash, collection, key, index, value: None });
        First { inside_key: false, row }
    }
}

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
        let projections = Projections::default();
        let again = Again { shown: self.shown.clone(), range: self.range };
        Ok((about.clone(), Kept { again: Some(again), first, last: about.last, slab, projections }))
    }
}

/// A pass over an image, as far as that is written.
pub(crate) struct ImageScan {
    image: Arc<Image>,
    range: Range,
    needs: Arc<Needs>,
    /// The next slab's, as the core counts.
    number: u64,
    /// So many slabs of the image are in front of the one that the core counts as the first.
    skipped: u64,
    /// Only what lies at this row or behind it is given of the first slab.
    from: Option<Vec<u8>>,
    buf: Buffer,
}

impl ImageScan {
    pub fn new(
        image: &Arc<Image>,
        range: Range,
        needs: Arc<Needs>,
        at: &Place,
    ) -> Result<ImageScan> {
        let first = at.first.as_ref().map(|first| First::from_bytes(first)).transpose()?;
        let row = first.map(|first| first.row).filter(|row| !row.is_empty());
        let first = row.as_ref().map_or(at.number, |row| image.number_at(range, row));
        let skipped = first.saturating_sub(at.number);
        let (image, number) = (image.clone(), at.number);
        Ok(ImageScan { image, range, needs, number, skipped, from: row, buf: Buffer::default() })
    }

    pub fn make(&mut self) -> Result<(About, Kept)> {
        let found =
            self.image.slab(self.range, self.skipped + self.number, &self.needs, &mut self.buf)?;
        let last = found.is_last;
        let number = self.number;
        self.number += 1;
        let from = self.from.take();
        let projections = Projections::default();
        let Some((slab, row)) = found.slab else {
            let (bytes, joinable, first) = (0, true, First::default());
            let about = About { number, bytes, joinable, first: first.to_bytes(), last };
            return Ok((about, Kept { again: None, first, last, slab: None, projections }));
        };
        let first = First { inside_key: slab.header.begins_inside_key, row };
        let slab = match from.filter(|from| *from > first.row) {
            Some(from) => slab::retain(&slab, |item| Pass::place_of(item) >= from),
            None => slab,
        };
        let about = About {
            number,
            bytes: slab.body_bytes() as u64,
            joinable: !slab.header.begins_inside_key,
            first: first.to_bytes(),
            last,
        };
        Ok((about, Kept { again: None, first, last, slab: Some(slab), projections }))
    }
}
