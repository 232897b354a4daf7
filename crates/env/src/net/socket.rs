//! One connected stream socket, TCP or Unix, with the calls that the standard library lacks:
//! gathered and scattered transfers that do not wait, into memory not yet initialised, and with
//! descriptors. Used by the server's connections and by the client.

use holdfast_base::{Error, Result};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `host:port`.
    Tcp(String),
    Unix(PathBuf),
}

impl Endpoint {
    /// Reads `127.0.0.1:7400` or `unix:/path/to/socket`.
    pub fn parse(text: &str) -> Result<Endpoint> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(Error::invalid(
                    "read endpoint `unix:`: the path is missing, write `unix:/path`",
                ));
            }
            return Ok(Endpoint::Unix(path.into()));
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Endpoint::Tcp(text.to_owned()))
            }
            _ => Err(Error::invalid(format!(
                "read endpoint `{}`: write `host:port` or `unix:/path`",
                text.escape_debug()
            ))),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Whether a call waits for the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `WouldBlock` at once when nothing can be done.
    No,
    /// As long as the socket's timeout says, then `WouldBlock`.
    Yes,
}

/// Descriptors taken from one receive; a peer that sends more has the rest closed.
const FDS_MAX: usize = 4;

pub struct Socket {
    fd: OwnedFd,
    unix: bool,
    /// Who connected, of an accepted TCP socket.
    remote: Option<SocketAddr>,
    /// Of the descriptor itself; other sockets say per call that they do not wait.
    nonblocking: bool,
}

impl Socket {
    /// A blocking socket, connected to `endpoint`.
    pub fn connect(endpoint: &Endpoint, timeout: Duration) -> io::Result<Socket> {
        match endpoint {
            Endpoint::Unix(path) => {
                let fd = UnixStream::connect(path)?.into();
                Ok(Socket { fd, unix: true, remote: None, nonblocking: false })
            }
            Endpoint::Tcp(address) => {
                let mut failure = io::Error::new(io::ErrorKind::NotFound, "no such address");
                for address in address.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Socket {
                                fd: stream.into(),
                                unix: false,
                                remote: None,
                                nonblocking: false,
                            });
                        }
                        Err(e) => failure = e,
                    }
                }
                Err(failure)
            }
        }
    }

    /// As if it had been accepted from there.
    #[cfg(test)]
    pub(super) fn from_elsewhere(fd: OwnedFd, remote: SocketAddr) -> Socket {
        Socket { fd, unix: false, remote: Some(remote), nonblocking: true }
    }

    /// A connected socket that never waits, of a runtime that waits for it.
    pub(crate) fn from_nonblocking(fd: OwnedFd, unix: bool) -> Socket {
        Socket { fd, unix, remote: None, nonblocking: true }
    }

    pub(super) fn from_accepted(fd: OwnedFd, unix: bool) -> io::Result<Socket> {
        if unix {
            return Ok(Socket { fd, unix, remote: None, nonblocking: false });
        }
        let stream = TcpStream::from(fd);
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let remote = stream.peer_addr().ok();
        Ok(Socket { fd: stream.into(), unix, remote, nonblocking: true })
    }

    pub fn is_unix(&self) -> bool {
        self.unix
    }

    /// Whether the other end is on this machine; of an accepted socket.
    pub(super) fn is_local(&self) -> bool {
        self.unix || self.remote.is_some_and(|remote| remote.ip().to_canonical().is_loopback())
    }

    /// Who connected, of an accepted TCP socket.
    pub(super) fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Another descriptor of the same socket.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Marks what is sent from now on as lower effort (RFC 8622, and Linux' own bulk priority):
    /// queues that tell such bytes apart, in this host and in the network, send all others first.
    pub fn yield_to_others(&self) {
        const LOWER_EFFORT: libc::c_int = 1 << 2;
        const TC_PRIO_BULK: libc::c_int = 2;
        let set = |level, name, value: libc::c_int| {
            let bytes = size_of::<libc::c_int>() as libc::socklen_t;
            // SAFETY: the pointer and length describe `value`, which outlives the call. A socket
            // that knows no such option goes on without.
            unsafe {
                libc::setsockopt(self.raw(), level, name, (&raw const value).cast(), bytes);
            }
        };
        set(libc::IPPROTO_IP, libc::IP_TOS, LOWER_EFFORT);
        set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, LOWER_EFFORT);
        // Last, for the others change it.
        set(libc::SOL_SOCKET, libc::SO_PRIORITY, TC_PRIO_BULK);
    }

    /// Longest wait of a receive with [`Wait::Yes`]; nothing means for ever.
    pub fn set_receive_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let time = timeout.unwrap_or(Duration::ZERO);
        // Zero means for ever here, so the shortest wait is a microsecond.
        let micros = match timeout {
            Some(_) => time.subsec_micros().max((time.as_secs() == 0) as u32),
            None => 0,
        };
        let value = libc::timeval { tv_sec: time.as_secs() as i64, tv_usec: i64::from(micros) };
        // SAFETY: the pointer and length describe `value`, which outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.raw(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const value).cast(),
                size_of::<libc::timeval>() as u32,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends without waiting; `fd` travels with the first byte, and `more` says that bytes follow
    /// at once, so that a short head leaves together with them. A dead peer is an error, never a
    /// signal.
    pub fn send(
        &self,
        parts: &[IoSlice<'_>],
        fd: Option<BorrowedFd<'_>>,
        more: bool,
    ) -> io::Result<usize> {
        let mut control = Control::default();
        // SAFETY: msghdr is a plain C struct for which all zeros is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // IoSlice is ABI-compatible with iovec, and sendmsg only reads through it.
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len();
        if let Some(fd) = fd {
            // SAFETY: the control buffer is aligned and long enough for one descriptor; the
            // header that CMSG_FIRSTHDR points at lies in it.
            unsafe {
                message.msg_control = control.0.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
                libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
            }
        }
        let more = if more { libc::MSG_MORE } else { 0 };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
        // SAFETY: `message` points at the caller's slices and our control buffer, all alive.
        match unsafe { libc::sendmsg(self.raw(), &message, flags) } {
            n if n >= 0 => Ok(n as usize),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends `bytes` of `memory` from byte `offset` on without copying them, and without waiting.
    /// The kernel keeps the pages: until the peer has received them, whatever is written there is
    /// what it gets. So either nobody writes there before the peer's answer, or the peer can tell
    /// by a checksum. A dead peer is an error as long as the program ignores `SIGPIPE`, as Rust's
    /// programs do: this call has no flag for it.
    pub(crate) fn send_pages(
        &self,
        memory: &OwnedFd,
        offset: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        let mut offset = offset as libc::off_t;
        self.set_nonblocking_unless(true)?;
        // SAFETY: `offset` outlives the call; no other pointer.
        let sent =
            match unsafe { libc::sendfile(self.raw(), memory.as_raw_fd(), &mut offset, bytes) } {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                n if n > 0 => Ok(n as usize),
                _ => Err(io::Error::last_os_error()),
            };
        self.set_nonblocking_unless(false)?;
        sent
    }

    /// `sendfile` has no flag for one call.
    fn set_nonblocking_unless(&self, on: bool) -> io::Result<()> {
        if self.nonblocking {
            return Ok(());
        }
        let mut on = i32::from(on);
        // SAFETY: the pointer is to an int that outlives the call.
        match unsafe { libc::ioctl(self.raw(), libc::FIONBIO, &raw mut on) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Receives into `target`; 0 is the end of the stream.
    pub fn receive(
        &self,
        target: &mut [u8],
        wait: Wait,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        self.receive_two(target, &mut [], wait, fds)
    }

    /// Receives into `target`, and what is more into `tail`.
    pub fn receive_two(
        &self,
        target: &mut [u8],
        tail: &mut [u8],
        wait: Wait,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let mut into = [
            libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() },
            libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() },
        ];
        // SAFETY: both entries describe exclusively borrowed memory that outlives the call.
        unsafe { self.receive_raw(&mut into, wait, fds) }
    }

    /// Appends to `target` until it has `end` bytes, and puts what is more into `tail`; says how
    /// many bytes went to each.
    pub fn receive_append(
        &self,
        target: &mut Vec<u8>,
        end: usize,
        tail: &mut [u8],
        wait: Wait,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<(usize, usize)> {
        let room = end.saturating_sub(target.len());
        target.reserve(room);
        let spare = target.spare_capacity_mut();
        let mut into = [
            libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: room },
            libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() },
        ];
        // SAFETY: `room` bytes of spare capacity were reserved; the kernel only writes to them.
        let received = unsafe { self.receive_raw(&mut into, wait, fds)? };
        let appended = received.min(room);
        // SAFETY: the kernel initialised the first `appended` bytes of the spare capacity.
        unsafe { target.set_len(target.len() + appended) };
        Ok((appended, received - appended))
    }

    /// # Safety
    /// The entries describe memory that may be written during the call.
    unsafe fn receive_raw(
        &self,
        into: &mut [libc::iovec; 2],
        wait: Wait,
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let mut control = Control::default();
        // SAFETY: msghdr is a plain C struct for which all zeros is a value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = into.as_mut_ptr();
        message.msg_iovlen = into.len();
        if self.unix {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = size_of::<Control>();
        }
        let wait = if wait == Wait::No { libc::MSG_DONTWAIT } else { 0 };
        let received = loop {
            // SAFETY: the caller vouches for the entries; the control buffer outlives the call.
            let n =
                unsafe { libc::recvmsg(self.raw(), &mut message, libc::MSG_CMSG_CLOEXEC | wait) };
            if n >= 0 {
                break n as usize;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        if message.msg_controllen > 0 {
            take_fds(&message, fds);
        }
        Ok(received)
    }

    /// Waits until the socket can be read, or written if `write`; says whether it can be read.
    pub fn wait_ready(&self, write: bool, timeout: Option<Duration>) -> io::Result<bool> {
        let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
        let mut poll = libc::pollfd { fd: self.raw(), events, revents: 0 };
        let timeout_ms = timeout.map_or(-1, |t| t.as_millis().clamp(1, i32::MAX as u128) as i32);
        // SAFETY: one entry, alive during the call.
        match unsafe { libc::poll(&mut poll, 1, timeout_ms) } {
            0 => Err(io::ErrorKind::TimedOut.into()),
            n if n > 0 => Ok(poll.revents & !libc::POLLOUT != 0),
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                e => Err(e),
            },
        }
    }

    /// Whether there is something to receive, be it the end.
    pub fn is_readable(&self) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, alive during the call.
        match unsafe { libc::poll(&mut poll, 1, 0) } {
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                e => Err(e),
            },
            count => Ok(count > 0),
        }
    }

    /// Tells the peer that nothing more comes.
    pub fn shutdown_write(&self) {
        // SAFETY: a plain call on an open descriptor. It fails only if the peer is gone already.
        unsafe { libc::shutdown(self.raw(), libc::SHUT_WR) };
    }

    /// The user at the other end of a Unix socket.
    pub(super) fn peer_uid(&self) -> io::Result<u32> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as u32;
        // SAFETY: both pointers are to values that outlive the call, `len` is the first's size.
        let result = unsafe {
            libc::getsockopt(
                self.raw(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &mut len,
            )
        };
        if result == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
    }
}

/// A buffer for control messages, aligned as they want to be.
#[repr(align(8))]
struct Control([u8; 64]);

impl Default for Control {
    fn default() -> Control {
        Control([0; 64])
    }
}

const _: () = assert!(16 + FDS_MAX * size_of::<RawFd>() <= size_of::<Control>());

fn take_fds(message: &libc::msghdr, fds: &mut Vec<OwnedFd>) {
    // SAFETY: the kernel filled the control buffer that `message` describes; the CMSG macros walk
    // it, and each descriptor of SCM_RIGHTS is new and owned by nobody else.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
