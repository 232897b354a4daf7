//! Rides of one mark, over the images of whichever nodes have some: they break off and go on elsewhere, now
//! and then by a token, as the client does it ([`Itinerary`]). In the end each item came once.

use super::rides::{Brought, Ridden, Wish, take};
use super::{Items, disks_of};
use crate::world::guest::Visitor;
use holdfast_base::ids::Index;
use holdfast_client::view::{Candidate, Itinerary, Leg};
use holdfast_wire::slab::{Range, Reader};
use holdfast_wire::view as msg;
use std::collections::BTreeSet;

/// Stands for what is ridden and how: all rides of one itinerary here are alike.
const WHAT: u32 = 1;
/// Times that a ride looks for somebody who goes on.
const TURNS_MAX: usize = 20;

/// An image that a node says it has.
#[derive(Clone)]
struct Offer {
    gateway: usize,
    view: msg::ViewName,
    applied: Index,
}

impl Offer {
    fn range(&self) -> Range {
        Range::part(self.view.part, self.view.of)
    }
}

/// What has come so far, and how.
#[derive(Default)]
struct Journey {
    brought: Brought,
    horizon: Option<Index>,
    /// Who sent something before a break: the gateway, and of how many parts its view is one.
    before: Option<(usize, u32)>,
    resumed_by_token: bool,
    /// Another one went on, whose view's parts are others.
    elsewhere: bool,
}

impl Items {
    /// Rides everything as of a mark, at several nodes.
    pub(super) async fn ride_marked(&self, visitor: &Visitor) {
        let Some((mark, mut offers)) = offers(visitor).await else { return };
        let wish = Wish::draw(visitor, self.last());
        let mut itinerary = Itinerary::new(mark, Range::ALL, WHAT);
        let mut journey = Journey::default();
        for _ in 0..TURNS_MAX {
            // Other ones each time, so that what is left is taken from views of other parts.
            let some: Vec<Offer> = match visitor.below(2) {
                0 => offers.iter().filter(|_| visitor.below(2) == 0).cloned().collect(),
                _ => {
                    let of = [2, 5][visitor.below(2) as usize];
                    offers.iter().filter(|offer| offer.view.of == of).cloned().collect()
                }
            };
            let mut asked = some;
            let mut legs = itinerary.divide(&candidates(&asked));
            if legs.is_err() {
                asked = offers.clone();
                legs = itinerary.divide(&candidates(&asked));
            }
            let Ok(legs) = legs else { return };
            let mut token = false;
            for leg in legs {
                let offer = asked[leg.candidate].clone();
                if token {
                    break;
                }
                if !self
                    .ride_leg(visitor, &wish, &mut itinerary, (&leg, &offer), &mut journey)
                    .await
                {
                    offers.retain(|one| one.gateway != offer.gateway || one.view != offer.view);
                }
                token = !itinerary.is_over() && visitor.below(4) == 0;
            }
            if token {
                // As if the process had ended here.
                let token = itinerary.token();
                itinerary = Itinerary::of_token(&token, WHAT).expect("a token is taken");
                journey.resumed_by_token = true;
            }
            if itinerary.is_over() {
                let Some(horizon) = journey.horizon else { return };
                visitor.sometimes(journey.resumed_by_token, "a token was resumed");
                let both = journey.resumed_by_token && journey.elsewhere;
                visitor.sometimes(both, "a token was resumed elsewhere, in other parts");
                let ridden = Ridden { range: Range::ALL, index: mark, horizon };
                return self.arrived(visitor, &wish, &ridden, &journey.brought);
            }
        }
    }

    /// Rides one leg, as far as it goes. False where its node is of no use any more.
    async fn ride_leg(
        &self,
        visitor: &Visitor,
        wish: &Wish,
        itinerary: &mut Itinerary,
        (leg, offer): (&Leg, &Offer),
        journey: &mut Journey,
    ) -> bool {
        let mark = itinerary.index();
        let board = msg::Board {
            at: Some(mark),
            behind: leg.behind.clone(),
            ..wish.board(offer.view.clone(), leg.range)
        };
        let mut patience = [1, 2, 3, 1000][visitor.below(4) as usize];
        let itinerary = std::sync::Mutex::new(itinerary);
        let held = || itinerary.lock().expect("no holder panics");
        let may_begin = |boarded: &msg::Boarded, _: &[u8]| match held().begun(
            leg.number,
            offer.range(),
            boarded,
        ) {
            Ok(()) => true,
            Err(e) => {
                visitor.violate(&format!("images of entry {mark}: {e}"));
                false
            }
        };
        let Journey { brought, before, elsewhere, .. } = journey;
        let mut each = |_: &[u8], items: &Reader<'_>| {
            let last = items.items().max_by_key(|i| (i.hash, i.collection, i.key, i.index));
            let last = last.map(|item| msg::Place {
                hash: item.hash,
                collection: item.collection,
                key: item.key.to_vec(),
                index: Index(item.index),
            });
            if !take(visitor, items, wish, brought) {
                return false;
            }
            if let Some(last) = last {
                held().received(leg.number, last);
                let (gateway, of) = (offer.gateway, offer.view.of);
                let other = |(before, parts): (usize, u32)| before != gateway && parts != of;
                *elsewhere |= leg.behind.is_some() && before.is_some_and(other);
                *before = Some((gateway, of));
            }
            patience -= 1;
            patience > 0
        };
        let came = self.receive(visitor, offer.gateway, &board, may_begin, &mut each).await;
        let itinerary = itinerary.into_inner().expect("no holder panics");
        match came {
            Ok(Some(boarded)) => {
                journey.horizon = Some(boarded.horizon);
                itinerary.ended(leg.number);
                true
            }
            Ok(None) => {
                itinerary.broke(leg.number);
                true
            }
            Err(e) => {
                self.does_not_ride(visitor, offer.gateway, Some(mark), &e);
                itinerary.broke(leg.number);
                false
            }
        }
    }
}

fn candidates(offers: &[Offer]) -> Vec<Candidate> {
    let one =
        |offer: &Offer| Candidate { range: offer.range(), applied: offer.applied, is_apart: false };
    offers.iter().map(one).collect()
}

/// A mark, and who says that it has images of it.
async fn offers(visitor: &Visitor) -> Option<(Index, Vec<Offer>)> {
    let mut all = Vec::new();
    for gateway in 1..=visitor.gateways() {
        let disks = disks_of(visitor, gateway).await.unwrap_or_default();
        all.extend(disks.into_iter().map(|disk| (gateway, disk)));
    }
    let images = all.iter().flat_map(|(_, disk)| &disk.images);
    let marks: BTreeSet<Index> = images.map(|image| image.index).collect();
    let mark = *marks.iter().nth(visitor.below(marks.len().max(1) as u64) as usize)?;
    let has = |disk: &msg::ViewStatus| disk.images.iter().any(|image| image.index == mark);
    let of_mark = all.into_iter().filter(|(_, disk)| has(disk));
    let offer = |(gateway, disk): (usize, msg::ViewStatus)| Offer {
        gateway,
        view: disk.view,
        applied: disk.applied,
    };
    Some((mark, of_mark.map(offer).collect()))
}
