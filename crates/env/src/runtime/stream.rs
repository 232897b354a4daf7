//! A connection of a port that may speak TLS: its first byte says whether this one does. What is
//! then read and written is plain on this side.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Says in TLS's own words that there is no handshake here: a fatal alert, `handshake_failure`.
pub const NO_TLS: [u8; 7] = [21, 3, 1, 0, 2, 2, 40];

/// How long a farewell waits for the other side to take it.
const FAREWELL: Duration = Duration::from_secs(2);

/// One connection, plain or not.
pub struct Stream(Kind);

enum Kind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Stream {
        Stream(Kind::Plain(stream))
    }
}

impl Stream {
    /// The address of this side.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Kind::Plain(stream) => stream.local_addr(),
            Kind::Tls(stream) => stream.get_ref().0.local_addr(),
        }
    }

    /// Whether what is read and written travels encrypted.
    pub fn is_tls(&self) -> bool {
        matches!(self.0, Kind::Tls(_))
    }

    /// Waits for the first byte and leaves it where it is. `None` if the other side ended before.
    pub async fn first_byte(&self) -> Option<u8> {
        let Kind::Plain(stream) = &self.0 else { return None };
        let mut byte = [0];
        match stream.peek(&mut byte).await {
            Ok(1) => Some(byte[0]),
            _ => None,
        }
    }

    /// Shakes hands. If that fails, the other side has been told why by an alert, and this has
    /// waited a moment for it to be taken.
    pub async fn into_tls(self, config: Arc<rustls::ServerConfig>) -> Option<Stream> {
        let Kind::Plain(stream) = self.0 else { return Some(self) };
        match TlsAcceptor::from(config).accept(stream).into_fallible().await {
            Ok(stream) => Some(Stream(Kind::Tls(Box::new(stream)))),
            Err((_, stream)) => {
                Stream::from(stream).farewell(&[]).await;
                None
            }
        }
    }

    /// Receives so many bytes behind those that are there; the buffer grows as they come, not before.
    /// False if the other side ended in front of the last one.
    pub async fn receive(&mut self, into: &mut Vec<u8>, bytes: usize) -> io::Result<bool> {
        let got = self.take(bytes as u64).read_to_end(into).await?;
        Ok(got == bytes)
    }

    /// Sends all of it.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await
    }

    /// Says `bytes`, ends, and waits a moment for the other side to end, too: what it had sent and
    /// nobody has read would make the kernel take the farewell back.
    pub async fn farewell(self, bytes: &[u8]) {
        let Kind::Plain(mut stream) = self.0 else { return };
        let goes = async {
            stream.write_all(bytes).await?;
            stream.shutdown().await?;
            let mut rest = [0; 4096];
            while stream.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        // Who does not take it does without.
        let _ = tokio::time::timeout(FAREWELL, goes).await;
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Kind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
