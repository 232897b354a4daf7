//! Connections begun without waiting for them, and the names that addresses hold. What may take
//! time (a resolver) runs on a thread of its own.

use crate::net::socket::Socket;
use crate::tasks;
use holdfast_base::{Error, Result};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Finds the addresses behind `host:port` and hands them to `then`, last choice first; at once if
/// it is a number.
pub fn resolve(address: &str, then: impl FnOnce(Result<Vec<SocketAddr>>) + Send + 'static) {
    if let Ok(address) = address.parse() {
        return then(Ok(vec![address]));
    }
    let name = address.to_owned();
    // Dropped, and the dial ended by its time limit, should there be no thread.
    let _ = tasks::spawn("resolve", move || {
        let found = name.to_socket_addrs().map(|found| found.collect::<Vec<_>>());
        then(match found {
            Ok(mut found) if !found.is_empty() => {
                found.reverse();
                Ok(found)
            }
            Ok(_) => Err(Error::retry(format!("find `{name}`: the name has no address"))),
            Err(e) => Err(Error::from(e).context(format!("find `{name}`"))),
        })
    });
}

/// Begins to connect; the socket is writable once that has ended, one way or the other.
pub fn begin(address: SocketAddr) -> io::Result<Socket> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; the result is checked.
    let fd = match unsafe { libc::socket(family, kind, 0) } {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: just made, and owned by nobody else.
        fd => unsafe { OwnedFd::from_raw_fd(fd) },
    };
    let result = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            let bytes = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            // SAFETY: pointer and length describe `raw`, which outlives the call.
            unsafe { libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), bytes) }
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            let bytes = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            // SAFETY: pointer and length describe `raw`, which outlives the call.
            unsafe { libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), bytes) }
        }
    };
    if result != 0 {
        let e = io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(e);
        }
    }
    Socket::from_accepted(fd, false)
}

/// How connecting ended, for a socket that has become writable.
pub fn outcome(socket: &Socket) -> io::Result<()> {
    let mut code: libc::c_int = 0;
    let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: both pointers are to values that outlive the call, `bytes` is the first's size.
    let result = unsafe {
        libc::getsockopt(
            socket.raw(),
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut code).cast(),
            &mut bytes,
        )
    };
    match (result, code) {
        (0, 0) => Ok(()),
        (0, code) => Err(io::Error::from_raw_os_error(code)),
        _ => Err(io::Error::last_os_error()),
    }
}
