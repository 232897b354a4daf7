//! The one place that names tokio: a thread with a current-thread runtime that serves one
//! listening socket, for protocols whose libraries want one.

use crate::tasks::{self, Task};
use holdfast_base::{Error, Result};
use std::future::Future;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

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

/// Binds `address` and runs `serve` on a thread of its own until the result is dropped.
pub fn serve<F: Future<Output = ()>>(
    name: &str,
    address: SocketAddr,
    serve: impl FnOnce(TcpListener) -> F + Send + 'static,
) -> Result<Runtime> {
    let listening = |e: std::io::Error| {
        Error::from(e).context(format_args!(
            "listen on `{address}` for {name}: choose another port, or end who uses it"
        ))
    };
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
