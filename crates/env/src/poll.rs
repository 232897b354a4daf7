//! Waiting for many sockets at once: epoll behind safe names, for servers with a loop of their
//! own. Level-triggered; it knows descriptors and numbers, nothing of what is sent.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

pub struct Poller {
    epoll: OwnedFd,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Read,
    Write,
    ReadWrite,
    /// Only the end of the connection.
    End,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// The peer has closed, or there was an error.
    pub ended: bool,
}

/// Room for what one wait brings.
pub struct Events {
    raw: Vec<libc::epoll_event>,
}

impl Events {
    pub fn new(count: usize) -> Events {
        Events { raw: Vec::with_capacity(count.max(1)) }
    }

    pub fn len(&self) -> usize {
        self.raw.len()
    }

    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    pub fn get(&self, i: usize) -> Event {
        let raw = self.raw[i];
        let has = |flags: libc::c_int| raw.events & flags as u32 != 0;
        Event {
            token: raw.u64,
            readable: has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR),
            writable: has(libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR),
            ended: has(libc::EPOLLHUP | libc::EPOLLERR),
        }
    }
}

impl Poller {
    pub fn new() -> io::Result<Poller> {
        // SAFETY: a plain call; the descriptor is new and nobody else's.
        unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Poller { epoll: OwnedFd::from_raw_fd(fd) })
        }
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: &impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let flags = match interest {
            Interest::Read => libc::EPOLLIN,
            Interest::Write => libc::EPOLLOUT,
            Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
            Interest::End => 0,
        };
        let mut event = libc::epoll_event { events: flags as u32, u64: token };
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: both descriptors are open, and `event` outlives the call.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Closing the descriptor ends it.
    pub fn add(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    pub fn change(&self, fd: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    pub fn remove(&self, fd: &impl AsFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, Interest::End)
    }

    /// Waits for events; none when the time is over or a signal came. `None` waits for ever.
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        // The kernel counts a wait in whole milliseconds, and too short a one would spin.
        if let Some(time) = timeout.filter(|t| !t.subsec_nanos().is_multiple_of(1_000_000)) {
            return self.wait_precisely(events, time);
        }
        let ms = timeout.map_or(-1, |t| t.as_millis().min(i32::MAX as u128) as i32);
        events.raw.clear();
        let room = events.raw.capacity() as i32;
        // SAFETY: the buffer has room for as many events as the call may write, and as many as it
        // says were written become part of the vector.
        unsafe {
            let fd = self.epoll.as_raw_fd();
            let count = libc::epoll_wait(fd, events.raw.as_mut_ptr(), room, ms);
            if count < 0 {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::Interrupted {
                    Ok(())
                } else {
                    Err(error)
                };
            }
            events.raw.set_len(count as usize);
        }
        Ok(())
    }

    /// The same to the nanosecond, by waiting for the epoll descriptor itself.
    fn wait_precisely(&self, events: &mut Events, time: Duration) -> io::Result<()> {
        let mut fd = libc::pollfd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        };
        events.raw.clear();
        // SAFETY: one entry, and the time, outlive the call; the signal mask stays as it is.
        match unsafe { libc::ppoll(&mut fd, 1, &time, std::ptr::null()) } {
            0 => Ok(()),
            n if n > 0 => self.wait(events, Some(Duration::ZERO)),
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(()),
                e => Err(e),
            },
        }
    }
}

/// Wakes a poller from another thread: readable once [`Waker::wake`] was called.
pub struct Waker {
    event: OwnedFd,
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        // SAFETY: a plain call; the descriptor is new and nobody else's.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Waker { event: OwnedFd::from_raw_fd(fd) })
        }
    }

    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer outlives the call. A full counter has woken already.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Readable no more, until woken again.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer outlives the call. Nothing to read is as good.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waker_is_seen_until_it_is_cleared() {
        let (poller, waker) = (Poller::new().unwrap(), Waker::new().unwrap());
        let mut events = Events::new(4);
        poller.add(&waker, 7, Interest::Read).unwrap();
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert!(events.is_empty());
        waker.wake();
        for _ in 0..2 {
            poller.wait(&mut events, None).unwrap();
            assert!(events.len() == 1 && events.get(0).token == 7 && events.get(0).readable);
        }
        poller.wait(&mut events, Some(Duration::from_micros(1500))).unwrap();
        assert_eq!(events.len(), 1, "a wait of no whole milliseconds sees it, too");
        waker.clear();
        for time in [Duration::ZERO, Duration::from_nanos(1)] {
            poller.wait(&mut events, Some(time)).unwrap();
            assert!(events.is_empty());
        }
    }
}
