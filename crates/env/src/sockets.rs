//! Sockets for servers with a loop of their own: listeners that many threads share a port with,
//! stream sockets that never block, datagram sockets that take and send trains of datagrams in
//! one call (UDP_GRO, UDP_SEGMENT). Nothing here decides.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// A datagram's payload, at most; and so a train's.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Datagrams of one train, at most (UDP_MAX_SEGMENTS of older kernels).
pub const TRAIN_MAX: usize = 64;

/// An address in the kernel's form.
struct RawAddress {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddress {
    fn empty() -> RawAddress {
        // SAFETY: a plain C struct for which all zeros is a value.
        let storage = unsafe { MaybeUninit::zeroed().assume_init() };
        RawAddress { storage, len: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    fn new(address: SocketAddr) -> RawAddress {
        let mut raw = RawAddress::empty();
        let place = (&raw mut raw.storage).cast::<u8>();
        match address {
            SocketAddr::V4(v4) => {
                let value = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is made to hold any address.
                unsafe { place.cast::<libc::sockaddr_in>().write(value) };
                raw.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                let value = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { place.cast::<libc::sockaddr_in6>().write(value) };
                raw.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }

    fn address(&self) -> Option<SocketAddr> {
        let place = (&raw const self.storage).cast::<u8>();
        match libc::c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says what the storage holds; it is aligned for all.
                let v4 = unsafe { place.cast::<libc::sockaddr_in>().read() };
                let ip = IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip, u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { place.cast::<libc::sockaddr_in6>().read() };
                let ip = IpAddr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddr::new(ip, u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set_option(
    fd: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value outlives the call and has the length given.
    check(unsafe {
        libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), len)
    })?;
    Ok(())
}

fn socket(address: SocketAddr, kind: libc::c_int) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a plain call; the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, 0))?) })
}

/// A stream to `address` that never blocks: writable once it is connected, or has failed, which
/// [`TcpStream::take_error`] tells apart.
pub fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let fd = socket(address, libc::SOCK_STREAM)?;
    let raw = RawAddress::new(address);
    // SAFETY: the address outlives the call and has the length given.
    match check(unsafe { libc::connect(fd.as_raw_fd(), raw.pointer(), raw.len) }) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(TcpStream::from(fd)),
    }
}

fn bound(address: SocketAddr, kind: libc::c_int, share: bool) -> io::Result<OwnedFd> {
    let fd = socket(address, kind)?;
    set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    if share {
        set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    if address.is_ipv6() {
        set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    let raw = RawAddress::new(address);
    // SAFETY: the address outlives the call and has the length given.
    check(unsafe { libc::bind(fd.as_raw_fd(), raw.pointer(), raw.len) })?;
    Ok(fd)
}

/// A listener that never blocks. With `share`, others of this user may listen on the same port,
/// and the kernel spreads connections over them.
pub fn listen_tcp(address: SocketAddr, backlog: u32, share: bool) -> io::Result<TcpListener> {
    let fd = bound(address, libc::SOCK_STREAM, share)?;
    // SAFETY: a plain call on an open descriptor.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog.min(i32::MAX as u32) as libc::c_int) })?;
    Ok(TcpListener::from(fd))
}

/// A connection from an address of this machine: each has ports of its own, so that one machine
/// can be more clients than there are ports.
pub fn connect_tcp_from(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a plain call; the descriptor is new and nobody else's.
    let fd = unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        OwnedFd::from_raw_fd(check(fd)?)
    };
    // The port is chosen when the peer is known: it may be in use towards others.
    set_option(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    let (from, to) = (RawAddress::new(SocketAddr::new(from, 0)), RawAddress::new(to));
    // SAFETY: the addresses have the lengths given, and outlive the calls.
    unsafe {
        check(libc::bind(fd.as_raw_fd(), from.pointer(), from.len))?;
        check(libc::connect(fd.as_raw_fd(), to.pointer(), to.len))?;
    }
    Ok(TcpStream::from(fd))
}

/// A Unix listener that never blocks, with access as `mode` says. A socket that nobody listens on
/// is replaced.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
pub fn listen_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The next connection, which never blocks; who it is, if it comes over the network.
pub fn accept(listener: &impl AsFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let mut raw = RawAddress::empty();
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: address and length outlive the call; the descriptor is new and nobody else's.
    let fd = unsafe {
        let address = (&raw mut raw.storage).cast();
        let fd = libc::accept4(listener.as_fd().as_raw_fd(), address, &mut raw.len, flags);
        OwnedFd::from_raw_fd(check(fd)?)
    };
    Ok((fd, raw.address()))
}

/// Whether a call failed because this process, or the machine, has no descriptor left.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Small answers go out at once.
pub fn set_nodelay(fd: &impl AsFd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)
}

/// The kernel polls the device for so long before it sleeps (SO_BUSY_POLL).
pub fn set_busy_poll(fd: &impl AsFd, microseconds: u32) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, microseconds as libc::c_int)
}

pub fn set_buffer_bytes(fd: &impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = bytes.min(i32::MAX as usize) as libc::c_int;
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)
}

/// Receives what is there; `WouldBlock` if nothing is.
pub fn receive(fd: &impl AsFd, target: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `target`.
    let got = unsafe {
        let fd = fd.as_fd().as_raw_fd();
        libc::recv(fd, target.as_mut_ptr().cast(), target.len(), libc::MSG_DONTWAIT)
    };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
}

/// Sends as much as fits; `WouldBlock` if nothing does.
pub fn send(fd: &impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: pointer and length describe `bytes`.
    let sent =
        unsafe { libc::send(fd.as_fd().as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// A datagram socket that never blocks; others of this user may share the port if `share`.
pub fn bind_udp(address: SocketAddr, share: bool) -> io::Result<UdpSocket> {
    Ok(UdpSocket::from(bound(address, libc::SOCK_DGRAM, share)?))
}

/// Lets [`receive_train`] bring several datagrams of one sender at once.
pub fn enable_trains(fd: &impl AsFd) -> io::Result<()> {
    set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Datagrams of one sender, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Train {
    pub bytes: usize,
    pub from: SocketAddr,
    /// Bytes of each datagram but the last, which may be shorter.
    pub each: usize,
    /// It was longer than the buffer.
    pub cut: bool,
}

/// Room for one control message with a number.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn message(
    name: &mut RawAddress,
    part: &mut libc::iovec,
    control: &mut Control,
    control_len: usize,
) -> libc::msghdr {
    // SAFETY: a plain C struct for which all zeros is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = (&raw mut name.storage).cast();
    message.msg_namelen = name.len;
    message.msg_iov = part;
    message.msg_iovlen = 1;
    if control_len > 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control_len as _;
    }
    message
}

/// The next datagram, or several of one sender. Senders that have no address are dropped.
pub fn receive_train(fd: &impl AsFd, target: &mut [u8]) -> io::Result<Train> {
    let mut name = RawAddress::empty();
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let mut message = message(&mut name, &mut part, &mut control, size_of::<Control>());
    // SAFETY: everything the message points to outlives the call.
    let got = unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = got as usize;
    let mut each = bytes;
    // SAFETY: the kernel wrote well-formed control messages into `control`, within its length.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while let Some(found) = header.as_ref() {
            if found.cmsg_level == libc::SOL_UDP && found.cmsg_type == libc::UDP_GRO {
                each = libc::CMSG_DATA(found).cast::<libc::c_int>().read_unaligned() as usize;
            }
            header = libc::CMSG_NXTHDR(&message, found);
        }
    }
    let cut = message.msg_flags & libc::MSG_TRUNC != 0;
    let from = name.address().ok_or(io::ErrorKind::InvalidData)?;
    Ok(Train { bytes, from, each: each.max(1), cut })
}

/// Sends one datagram, or, if `each` is less than there is, a train of datagrams of `each` bytes,
/// at most [`TRAIN_MAX`] of them and [`DATAGRAM_BYTES_MAX`] in all.
pub fn send_train(fd: &impl AsFd, bytes: &[u8], each: usize, to: SocketAddr) -> io::Result<()> {
    let mut name = RawAddress::new(to);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let is_train = each < bytes.len();
    // SAFETY: computes with its argument alone.
    let space = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;
    let used = if is_train { space } else { 0 };
    let message = message(&mut name, &mut part, &mut control, used);
    if is_train {
        // SAFETY: `control` has room for the header and a number, and is aligned for the header.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = libc::UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(each as u16);
        }
    }
    // SAFETY: everything the message points to outlives the call, which only reads it.
    let sent = unsafe {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        libc::sendmsg(fd.as_fd().as_raw_fd(), &message, flags)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps the calling thread, and those it starts, on one core.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    pin_to_cores(core..core + 1)
}

/// The same for several.
pub fn pin_to_cores(cores: std::ops::Range<usize>) -> io::Result<()> {
    // SAFETY: a plain C struct for which all zeros is a value; CPU_SET checks the bound; the call
    // reads the set, and 0 names the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        cores.for_each(|core| libc::CPU_SET(core, &mut set));
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::{Events, Interest, Poller};

    fn wait(fd: &impl AsFd) {
        let poller = Poller::new().unwrap();
        poller.add(fd, 0, Interest::Read).unwrap();
        poller.wait(&mut Events::new(1), None).unwrap();
    }

    #[test]
    fn two_listeners_share_a_port_only_if_both_want_to() {
        let first = listen_tcp("127.0.0.1:0".parse().unwrap(), 8, true).unwrap();
        let address = first.local_addr().unwrap();
        assert!(listen_tcp(address, 8, true).is_ok());
        let alone = listen_tcp(address, 8, false).unwrap_err();
        assert_eq!(alone.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_client_has_the_address_that_it_chose() {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap(), 8, true).unwrap();
        let from = "127.0.0.77".parse().unwrap();
        let client = connect_tcp_from(from, listener.local_addr().unwrap()).unwrap();
        assert_eq!(client.local_addr().unwrap().ip(), from);
        let (_, peer) = accept(&listener).unwrap();
        assert_eq!(peer, Some(client.local_addr().unwrap()));
    }

    #[test]
    fn a_connection_is_made_or_refused_without_blocking() {
        let listener = listen_tcp("127.0.0.1:0".parse().unwrap(), 8, false).unwrap();
        let address = listener.local_addr().unwrap();
        let poller = Poller::new().unwrap();
        let made = connect_tcp(address).unwrap();
        poller.add(&made, 0, Interest::Write).unwrap();
        poller.wait(&mut Events::new(1), None).unwrap();
        assert!(made.take_error().unwrap().is_none() && made.peer_addr().unwrap() == address);
        drop((made, listener));
        let refused = match connect_tcp(address) {
            Ok(stream) => {
                poller.add(&stream, 0, Interest::Write).unwrap();
                poller.wait(&mut Events::new(1), None).unwrap();
                stream.take_error().unwrap().unwrap()
            }
            Err(error) => error,
        };
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_train_of_datagrams_arrives_in_order_with_its_lengths() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let receiver = bind_udp(host.parse().unwrap(), true).unwrap();
            let sender = bind_udp(host.parse().unwrap(), false).unwrap();
            enable_trains(&receiver).unwrap();
            let bytes: Vec<u8> = (0..2500u32).map(|i| (i / 1000) as u8).collect();
            send_train(&sender, &bytes, 1000, receiver.local_addr().unwrap()).unwrap();
            let (mut got, mut buffer) = (Vec::new(), vec![0; DATAGRAM_BYTES_MAX]);
            while got.len() < bytes.len() {
                wait(&receiver);
                let train = receive_train(&receiver, &mut buffer).unwrap();
                assert_eq!(train.from, sender.local_addr().unwrap());
                assert!(!train.cut && (train.each == 1000 || train.bytes <= 1000), "{train:?}");
                got.extend_from_slice(&buffer[..train.bytes]);
            }
            assert_eq!(got, bytes);
        }
    }
}
