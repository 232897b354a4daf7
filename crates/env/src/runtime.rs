//! The one place that names tokio: a thread with a current-thread runtime that serves one
//! listening socket, for protocols whose libraries want one; and what the asynchronous client
//! takes from the runtime that it is used in: sockets, time, tasks.

mod places;
mod stream;

pub use places::{Activity, Busy, Place, Places};
pub use stream::{NO_TLS, Stream};

use crate::net::{Endpoint, Link, Socket, TlsClient, Wait, tls_error};
use crate::sockets::is_out_of_descriptors;
use crate::tasks::{self, Task};
use holdfast_base::{Error, Result};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;

pub use tokio::sync::Mutex;

/// A serving thread; ends when dropped.
pub struct Runtime {
    address: SocketAddr,
    /// Dropping it tells the thread to end.
    stop: Option<oneshot::Sender<()>>,
    task: Option<Task>,
}

impl Runtime {
    /// Where it listens; the port is real even if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(task) = self.task.take() {
            task.join();
        }
    }
}

/// What to do differs: a port is not to blame where this process has no descriptor left.
fn refused(address: SocketAddr, name: &str, e: io::Error) -> Error {
    let what_to_do = match is_out_of_descriptors(&e) {
        true => "let it open more files (`ulimit -n`)",
        false => "choose another port, or end who uses it",
    };
    Error::from(e).context(format_args!("listen on `{address}` for {name}: {what_to_do}"))
}

/// Binds `address` and runs `serve` on a thread of its own until the result is dropped.
pub fn serve<F: Future<Output = ()>>(
    name: &str,
    address: SocketAddr,
    serve: impl FnOnce(TcpListener) -> F + Send + 'static,
) -> Result<Runtime> {
    let listening = |e: io::Error| refused(address, name, e);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(listening)?;
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(listening)?;
    let address = listener.local_addr().map_err(listening)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tasks::spawn(name, move || {
        runtime.block_on(async {
            tokio::select! {
                () = serve(listener) => {}
                _ = stopped => {}
            }
        });
    })?;
    Ok(Runtime { address, stop: Some(stop), task: Some(task) })
}

/// As [`serve`], on several threads, each of which accepts from the same socket: a thread that is
/// busy leaves new connections to others. For services whose threads may wait for disks.
pub fn serve_on_threads<F: Future<Output = ()>>(
    name: &str,
    address: SocketAddr,
    threads: usize,
    serve: impl Fn(TcpListener) -> F + Clone + Send + 'static,
) -> Result<Vec<Runtime>> {
    let listening = |e: io::Error| refused(address, name, e);
    let socket = bind(address).map_err(listening)?;
    let address = socket.local_addr().map_err(listening)?;
    let mut runtimes = Vec::new();
    for i in 0..threads.max(1) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(listening)?;
        let socket = socket.try_clone().map_err(listening)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = serve.clone();
        let task = tasks::spawn(&format!("{name}-{i}"), move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(socket) else { return };
                tokio::select! {
                    () = serve(listener) => {}
                    _ = stopped => {}
                }
            });
        })?;
        runtimes.push(Runtime { address, stop: Some(stop), task: Some(task) });
    }
    Ok(runtimes)
}

#[expect(clippy::disallowed_methods, reason = "this is the seam")]
fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = std::net::TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A thread with a runtime, for futures of threads that have none. Ends when dropped, and what it
/// runs with it.
pub struct Background {
    handle: tokio::runtime::Handle,
    /// Dropping it tells the thread to end.
    stop: Option<oneshot::Sender<()>>,
    task: Option<Task>,
}

impl Background {
    /// Starts the thread.
    pub fn start(name: &str) -> Result<Background> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|e| Error::from(e).context("start an asynchronous runtime"))?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tasks::spawn(name, move || {
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Background { handle, stop: Some(stop), task: Some(task) })
    }

    /// Runs a future there; what it comes to, the future tells somebody itself.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(future));
    }

    /// Waits on this thread for what a future comes to there. Not for a thread of a runtime.
    pub fn wait_for<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, came) = oneshot::channel();
        self.spawn(async move {
            let _ = done.send(future.await);
        });
        let ended = |_| Error::retry("wait for a task: it panicked, or its runtime ended");
        came.blocking_recv().map_err(ended)?
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(task) = self.task.take() {
            task.join();
        }
    }
}

/// Runs `future` to its end on this thread, with a runtime of its own.
pub fn block_on<F: Future>(future: F) -> Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::from(e).context("start an asynchronous runtime"))?;
    Ok(runtime.block_on(future))
}

/// A future that the runtime runs by itself. Dropping this does not end it.
pub struct Spawned<T>(tokio::task::JoinHandle<T>);

/// Starts `future` on the runtime that this is called in; refused outside of one.
pub fn spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Result<Spawned<T>> {
    let handle = tokio::runtime::Handle::try_current().map_err(|_| {
        Error::invalid("start a task: call this inside a tokio runtime with I/O and time")
    })?;
    Ok(Spawned(handle.spawn(future)))
}

impl<T> Future for Spawned<T> {
    type Output = Result<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let ended = |_| Error::retry("wait for a task: it panicked, or its runtime ended");
        Pin::new(&mut self.0).poll(cx).map(|result| result.map_err(ended))
    }
}

pub async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// What `future` comes to, unless it takes longer than `time`.
pub async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(time, future).await.ok()
}

/// What `future` comes to, unless `end` comes first.
pub async fn unless<T>(
    end: impl Future<Output = ()>,
    future: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        () = end => None,
        done = future => Some(done),
    }
}

/// A time that can be put off.
pub struct Timer(Pin<Box<tokio::time::Sleep>>);

impl Timer {
    pub fn after(time: Duration) -> Timer {
        Timer(Box::pin(tokio::time::sleep(time)))
    }

    pub fn restart(&mut self, time: Duration) {
        self.0.as_mut().reset(tokio::time::Instant::now() + time);
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

/// A connected socket whose readiness the runtime waits for.
pub struct AsyncLink {
    link: Link,
    /// A descriptor of the same socket, which nobody else has.
    ready: AsyncFd<OwnedFd>,
}

impl AsyncLink {
    /// Refused outside of a runtime.
    pub async fn connect(endpoint: &Endpoint, timeout: Duration) -> io::Result<AsyncLink> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(io::Error::other("this is outside of a tokio runtime"));
        }
        let connect = async {
            Ok(match endpoint {
                Endpoint::Tcp(address) => {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Socket::from_nonblocking(stream.into_std()?.into(), false)
                }
                Endpoint::Unix(path) => {
                    let stream = UnixStream::connect(path).await?;
                    Socket::from_nonblocking(stream.into_std()?.into(), true)
                }
            })
        };
        let socket = tokio::time::timeout(timeout, connect).await;
        let socket = socket.map_err(|_| io::Error::from(io::ErrorKind::TimedOut)).flatten()?;
        // SAFETY: the descriptor stays open and the same, because `ready` owns it and lends it to
        // nobody.
        let ready = unsafe { AsyncFd::register(socket.duplicate()?) }?;
        Ok(AsyncLink { link: Link::new(socket), ready })
    }

    /// Agrees with the server at `address` on TLS, before anything else is sent.
    pub async fn agree_on_tls(
        &mut self,
        client: &TlsClient,
        address: &str,
        timeout: Duration,
    ) -> Result<()> {
        self.link.begin_tls(client, address)?;
        let shaken = async {
            while !poll_fn(|cx| self.poll_receive(cx, |link| link.shake(Wait::No))).await? {}
            Ok(())
        };
        let shaken = tokio::time::timeout(timeout, shaken).await;
        shaken.map_err(|_| io::ErrorKind::TimedOut.into()).flatten().map_err(tls_error)
    }

    /// Calls `receive`, which must not wait, when there may be something to receive, and again
    /// until it says anything but `WouldBlock`.
    pub fn poll_receive<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut receive: impl FnMut(&mut Link) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            let ready = self.ready.poll_read_ready(cx);
            let Poll::Ready(guard) = ready else { return Poll::Pending };
            if let Ok(result) = guard?.try_io(|_| receive(&mut self.link)) {
                return Poll::Ready(result);
            }
        }
    }

    /// As [`AsyncLink::poll_receive`], for sending.
    pub fn poll_send<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut send: impl FnMut(&mut Link) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            let ready = self.ready.poll_write_ready(cx);
            let Poll::Ready(guard) = ready else { return Poll::Pending };
            if let Ok(result) = guard?.try_io(|_| send(&mut self.link)) {
                return Poll::Ready(result);
            }
        }
    }
}

/// Starts what answers by a callback, and waits for its answer; `None` if it never will.
pub async fn answer<T>(start: impl FnOnce(Box<dyn FnOnce(T) + Send>)) -> Option<T>
where
    T: Send + 'static,
{
    let (send, receive) = oneshot::channel();
    // Whoever asked may have stopped waiting.
    start(Box::new(move |answer| drop(send.send(answer))));
    receive.await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever had too few descriptors was told to choose another port.
    #[test]
    fn what_to_do_about_a_port_depends_on_what_is_wrong() {
        let said = |code: i32| {
            let address = "127.0.0.1:80".parse().unwrap();
            refused(address, "s3", io::Error::from_raw_os_error(code)).message
        };
        let (taken, too_many) = (said(libc::EADDRINUSE), said(libc::EMFILE));
        assert!(taken.contains("choose another port") && !taken.contains("ulimit"), "{taken}");
        assert!(too_many.contains("ulimit -n") && !too_many.contains("port,"), "{too_many}");
    }
}
