//! What this node has of the images that a view begins with: read past the network. Where it has all of
//! them, the view takes them as they are read, and nothing is kept of them in between.

use super::{Boot, Leg};
use crate::carousel::Place as At;
use crate::image::Image;
use crate::scan::{First, ImageScan};
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_view::items::Catalog;
use holdfast_wire::slab::{Needs, Range, Slab, Wanted, select};
use holdfast_wire::view::Boarded;
use std::sync::Arc;

impl Boot {
    /// Where this node has all of it: the view takes it from the images themselves. False where one of
    /// them cannot be read, so that another node's may do.
    pub(super) fn open_here(self: &Arc<Boot>, legs: &[Leg]) -> Result<bool> {
        self.state.held().ridden = legs.iter().map(|leg| leg.offer.clone()).collect();
        let opened = legs.iter().map(|leg| {
            let image = self.image_here(leg)?;
            Ok((leg, image.bytes(), self.scan_here(&image, leg)?))
        });
        let Ok(scans) = opened.collect::<Result<Vec<_>>>() else { return Ok(false) };
        // Each slab has more bytes than its length takes.
        let bytes = scans.iter().map(|(_, bytes, _)| 2 * bytes).sum::<u64>() + 4;
        let (mut scans, mut left) = (scans.into_iter(), None);
        let (mut is_over, mut unread) = (false, false);
        let mut next = |out: &mut Vec<u8>| {
            if left.is_none() {
                left = scans.next();
                self.state.held().leg = left.as_ref().map(|(leg, ..)| (*leg).clone());
            }
            let Some((leg, _, scan)) = &mut left else {
                if is_over {
                    return Ok(false);
                }
                // In front of the end, without which nothing of it counts.
                self.check()?;
                is_over = true;
                out.extend_from_slice(&0u32.to_bytes());
                return Ok(true);
            };
            let (slab, is_last) = self.next_here(scan, leg.range)?;
            if let Some(slab) = slab {
                self.state.held().tally.read(&slab);
                let at = out.len();
                out.extend_from_slice(&[0; 4]);
                slab.write(out);
                let bytes = (out.len() - at - 4) as u32;
                out[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
                self.state.held().bytes += u64::from(bytes);
            }
            if is_last {
                left = None;
            }
            Ok(true)
        };
        let opened = self.open(bytes, &mut |out| {
            let more = next(out);
            unread |= more.is_err();
            more
        });
        match opened {
            Err(_) if unread => {
                let mut state = self.state.held();
                (state.leg, state.bytes, state.tally) = Default::default();
                Ok(false)
            }
            opened => opened.map(|()| true),
        }
    }

    /// This node's image, for a leg that it is offered for.
    fn image_here(&self, leg: &Leg) -> Result<Arc<Image>> {
        let views = self.views.upgrade().ok_or_else(|| Error::retry("the node is ending"))?;
        let index = leg.offer.index;
        let own = self.own.get(&index).filter(|_| leg.offer.view == self.name);
        let image = own.cloned().map_or_else(|| views.image(&leg.offer.view, index), Ok)?;
        let position = image.about.position;
        let (entry_crc, digest) = (position.entry_crc, position.digest);
        let front = image.about.front.clone();
        let horizon = Catalog::horizon_behind(&front)?;
        let (ride, heads, front_crc) = (0, 0, None);
        let boarded = Boarded { ride, heads, index, entry_crc, digest, horizon, front_crc };
        self.boarded(boarded, front)?;
        if let Some(sums) = image.sealed().and_then(|seal| seal.sums) {
            self.state.held().tally.said(leg.offer.range, &sums);
        }
        Ok(image)
    }

    fn scan_here(&self, image: &Arc<Image>, leg: &Leg) -> Result<ImageScan> {
        let first = leg.behind.as_ref().map(|last| First::behind(last).to_bytes());
        let needs = Arc::new(Needs::of(&self.wanted(leg.range)));
        ImageScan::new(image, leg.range, needs, &At { number: 0, first })
    }

    /// What the view begins with, of a leg.
    fn wanted(&self, range: Range) -> Wanted {
        Wanted { range, versions: self.wants_versions(), ..Wanted::all() }
    }

    /// The next slab, if there is something in it for the view; and whether it is the last one.
    fn next_here(&self, scan: &mut ImageScan, range: Range) -> Result<(Option<Slab>, bool)> {
        let (about, kept) = scan.make()?;
        let slab = kept.slab.map(|slab| select(&slab, &self.wanted(range)));
        Ok((slab.filter(|slab| slab.body_bytes() > 0), about.last))
    }

    /// A leg that this node has an image for.
    pub(super) fn read_here(self: &Arc<Boot>, leg: &Leg, number: u64) {
        let read = || {
            let mut scan = self.scan_here(&self.image_here(leg)?, leg)?;
            loop {
                let (slab, is_last) = self.next_here(&mut scan, leg.range)?;
                if let Some(slab) = slab {
                    let mut columns = Vec::with_capacity(slab.body_bytes());
                    let all = slab.columns().iter();
                    all.for_each(|column| columns.extend_from_slice(column.bytes()));
                    self.take(&slab.header_bytes(), &columns, 0, number)?;
                }
                if is_last {
                    return Ok(());
                }
            }
        };
        match read() {
            Ok(()) => self.ride(),
            Err(e) => self.elsewhere(number, e),
        }
    }
}
