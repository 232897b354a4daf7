//! Listening sockets: TCP, and Unix sockets that only this user may connect to.

use super::socket::Socket;
use crate::planted;
use holdfast_base::{Error, Result};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, path: PathBuf },
}

impl Listener {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn tcp(address: SocketAddr) -> Result<Listener> {
        let doing = || format!("listen on `{address}`");
        let listener = TcpListener::bind(address).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => Error::exists(format!(
                "{}: the port is taken: stop the other server, or choose another port",
                doing()
            )),
            _ => Error::from(e).context(doing()),
        })?;
        listener.set_nonblocking(true).map_err(|e| Error::from(e).context(doing()))?;
        Ok(Listener::Tcp(listener))
    }

    /// Replaces a socket that nobody listens on any more; refuses one that somebody does.
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    pub fn unix(path: &Path) -> Result<Listener> {
        let doing = || format!("listen on `unix:{}`", path.display());
        match UnixStream::connect(path) {
            Ok(_) => {
                return Err(Error::exists(format!(
                    "{}: another server listens there: stop it first",
                    doing()
                )));
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|e| Error::from(e).context(doing()))?;
            }
            Err(_) => {}
        }
        let prepare = || {
            let listener = UnixListener::bind(path)?;
            // Who connects before this line is refused by the check of the peer's user.
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = prepare().map_err(|e: io::Error| Error::from(e).context(doing()))?;
        Ok(Listener::Unix { listener, path: path.to_owned() })
    }

    pub fn raw(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix { listener, .. } => listener.as_raw_fd(),
        }
    }

    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix { .. } => None,
        }
    }

    /// The next connection; nothing if it belongs to another user than this one and root.
    pub fn accept(&self) -> io::Result<Option<Socket>> {
        match self {
            Listener::Tcp(listener) => {
                let fd: OwnedFd = listener.accept()?.0.into();
                Ok(Socket::from_accepted(fd, false).ok())
            }
            Listener::Unix { listener, .. } => {
                let fd: OwnedFd = listener.accept()?.0.into();
                let socket = Socket::from_accepted(fd, true)?;
                // SAFETY: takes no arguments and cannot fail.
                let own = unsafe { libc::geteuid() };
                let peer = socket.peer_uid()?;
                let welcome = peer == own || peer == 0 || planted!("env.every-user-is-the-owner");
                Ok(welcome.then_some(socket))
            }
        }
    }
}

impl Drop for Listener {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn drop(&mut self) {
        if let Listener::Unix { path, .. } = self {
            // A leftover is replaced at the next start.
            let _ = std::fs::remove_file(path);
        }
    }
}
