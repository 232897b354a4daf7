//! How other threads talk to a reactor: messages in a list, and one wake for each time that the
//! list becomes non-empty.

use super::message::{Parts, Response};
use super::socket::Socket;
use crate::locks::HoldMutex;
use crate::planted;
use holdfast_base::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(super) enum Message {
    /// A connection that this reactor shall serve; so many others had no place for it.
    Accepted(Socket, usize),
    Answer {
        key: DeferredKey,
        response: Response,
        last: bool,
    },
    /// A deferred request that is to be handed to the service once more.
    Again {
        key: DeferredKey,
        meta: Vec<u8>,
    },
    Shutdown,
}

/// A deferred request in its reactor's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeferredKey {
    pub index: u32,
    /// Tells apart the requests that used the same place.
    pub generation: u32,
}

pub(super) struct Mailbox<M = Message> {
    /// Held for a push or a swap only. Emptied by the reactor; nobody closes it: what arrives
    /// after the reactor's end is dropped with the last sender.
    messages: Mutex<Vec<M>>,
    /// Says without the lock that `messages` is not empty. For reactors that never sleep.
    filled: AtomicBool,
    /// In the reactor's epoll set, unless it never sleeps.
    eventfd: File,
    /// The reactor looks at `filled` all the time, so waking it would be a wasted call.
    spins: bool,
}

impl<M> Mailbox<M> {
    pub fn new(spins: bool) -> io::Result<Mailbox<M>> {
        // SAFETY: no pointers; the result is checked.
        let eventfd = match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: just made, and owned by nobody else.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        Ok(Mailbox {
            messages: Mutex::default(),
            filled: AtomicBool::new(false),
            eventfd: eventfd.into(),
            spins,
        })
    }

    pub fn raw(&self) -> RawFd {
        self.eventfd.as_raw_fd()
    }

    pub fn push(&self, message: M) {
        let mut messages = self.messages.held();
        let was_empty = messages.is_empty();
        messages.push(message);
        self.filled.store(true, Ordering::Release);
        drop(messages);
        if was_empty && !self.spins {
            // Fails only when the counter is full, that is, when a wake is pending anyway.
            let _ = (&self.eventfd).write(&1u64.to_ne_bytes());
        }
    }

    /// Moves all messages into `into`, which is empty. Called by the reactor, when awake.
    pub fn take(&self, into: &mut Vec<M>) {
        if !self.filled.load(Ordering::Acquire) {
            return;
        }
        let mut messages = self.messages.held();
        std::mem::swap(&mut *messages, into);
        self.filled.store(false, Ordering::Release);
    }

    /// Takes note of a wake, so that epoll reports the next one.
    pub fn woken(&self) {
        let _ = (&self.eventfd).read(&mut [0; 8]);
    }
}

/// Sees what a request came to, an error or none, in front of its answer, which goes once what it is
/// given is called.
pub type Witness = Box<dyn FnOnce(Option<&Error>, Box<dyn FnOnce() + Send>) + Send>;

/// A deferred request: whoever holds it owes the answer. Dropped without one, the request is
/// answered as a bug instead of hanging.
pub struct Reply {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) key: DeferredKey,
    pub(super) deadline_ns: Option<u64>,
    pub(super) answered: bool,
    pub(super) witness: Option<Witness>,
    pub(super) gone: Arc<AtomicBool>,
}

impl Reply {
    /// Whether somebody still waits. Work that waited for its turn asks this before it begins:
    /// what a client has caused does not outlive it.
    pub fn is_wanted(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) || planted!("net.work-outlives-client")
    }

    /// On the server's clock; past it the request is answered without waiting for this.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Has somebody see what the request comes to before the client does. Parts of an answer in
    /// front of its last one are not held back.
    pub fn witness(&mut self, witness: Witness) {
        self.witness = Some(witness);
    }

    /// Sends the answer, or the last part of it. Goes nowhere if the client is gone.
    pub fn send(mut self, response: Response) {
        self.answer(response);
    }

    fn answer(&mut self, response: Response) {
        self.answered = true;
        let (mailbox, key) = (self.mailbox.clone(), self.key);
        let Some(witness) = self.witness.take() else {
            return mailbox.push(Message::Answer { key, response, last: true });
        };
        let outcome = response.result.as_ref().err().cloned();
        let send = move || mailbox.push(Message::Answer { key, response, last: true });
        witness(outcome.as_ref(), Box::new(send));
    }

    /// Sends a part of the answer; more must follow.
    pub fn send_part(&mut self, meta: Vec<u8>, body: impl Into<Parts>) {
        let response = Response::ok(meta, body);
        self.mailbox.push(Message::Answer { key: self.key, response, last: false });
    }

    /// Hands the request to the service once more, as one with this meta and without a body: for
    /// one that has waited, and is to be admitted now for the memory that its answer takes. It
    /// keeps its place and its deadline.
    pub fn again(mut self, meta: Vec<u8>) {
        self.answered = true;
        self.mailbox.push(Message::Again { key: self.key, meta });
    }

    /// `send` for a result whose value is the meta.
    pub fn finish(self, result: Result<Vec<u8>>) {
        self.send(match result {
            Ok(meta) => Response::ok(meta, ()),
            Err(error) => Response::error(error),
        });
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.answered {
            let response = Response::error(Error::bug(
                "the server dropped the request without an answer: please report this",
            ));
            self.answer(response);
        }
    }
}
