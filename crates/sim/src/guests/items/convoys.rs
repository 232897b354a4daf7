//! Several who ride a node's half at once, and do not come together: who comes late joins a spin that turns
//! already, and takes what it missed from the image or from the same snapshot once more; who is slow is moved; who
//! has seen later entries than the spin waits for the next one. Each is held against what was acknowledged, as any
//! rider is.

use super::Items;
use super::rides::Wish;
use crate::world::guest::Visitor;
use std::future::poll_fn;
use std::task::Poll;

const RIDERS_MAX: u64 = 5;

impl Items {
    pub(super) async fn convoy(&self, visitor: &Visitor, gateway: usize) {
        let riders = 2 + visitor.below(RIDERS_MAX - 1);
        let first = self.last();
        let rider = || async {
            // Between two of them something is written, now and then.
            if visitor.below(4) == 0 {
                visitor.pause().await;
            }
            let last = self.last();
            let reached = if visitor.below(3) == 0 { last } else { first };
            let wish = Wish::draw(visitor, last);
            self.ride(visitor, gateway, reached, &wish).await;
        };
        all((0..riders).map(|_| rider()).collect()).await;
        visitor.sometimes(true, "several rode at once");
    }
}

/// Waits for all of them, side by side.
async fn all(work: Vec<impl Future<Output = ()> + Send>) {
    let mut under_way: Vec<_> = work.into_iter().map(Box::pin).collect();
    poll_fn(move |context| {
        under_way.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
