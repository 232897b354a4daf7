//! A future on the simulated network's queue: what a client waits for wakes it by an event. No
//! threads, no other executor; a client is written as it thinks.

use crate::SimNet;
use holdfast_env::HoldMutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

struct Task {
    net: SimNet,
    /// Away while it is polled; gone once it is done.
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Task {
    fn poll(self: &Arc<Task>) {
        let taken = self.future.held().take();
        let Some(mut future) = taken else { return };
        let waker = Waker::from(self.clone());
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            *self.future.held() = Some(future);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let net = self.net.clone();
        net.after_ns(0, move || self.poll());
    }
}

/// Runs `future` by events from now on.
pub fn spawn(net: &SimNet, future: impl Future<Output = ()> + Send + 'static) {
    let future = Mutex::new(Some(Box::pin(future) as Pin<Box<dyn Future<Output = ()> + Send>>));
    Arc::new(Task { net: net.clone(), future }).wake();
}

struct Slot<T> {
    value: Option<T>,
    waiting: Option<Waker>,
}

/// What a callback leaves, for who awaits it.
pub struct Left<T>(Arc<Mutex<Slot<T>>>);

/// A callback and what it leaves.
pub fn slot<T: Send + 'static>() -> (impl FnOnce(T) + Send + 'static, Left<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waiting: None }));
    let left = Left(slot.clone());
    let leave = move |value| {
        let waiting = {
            let mut slot = slot.held();
            slot.value = Some(value);
            slot.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    };
    (leave, left)
}

impl<T> Future for Left<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.held();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

pub async fn sleep(net: &SimNet, ns: u64) {
    let (leave, left) = slot();
    net.after_ns(ns, move || leave(()));
    left.await;
}
