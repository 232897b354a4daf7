//! Just enough of HTTP/1.1: a request is written, its answer is read, with a length, in chunks, or
//! up to the end of the connection.

use super::Response;
use holdfast_env::local;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(120);
/// A line of an answer's head, and their number.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINES_MAX: usize = 200;
/// A head fits, and little of a body is copied out of it.
const BUFFER_BYTES: usize = 4 << 10;
/// What is read or written of a stream at a time.
const PART_BYTES: usize = 256 << 10;
/// Memory that an answer's length alone is trusted with.
const TRUSTED_BYTES: u64 = 16 << 20;

/// What is sent behind a head.
pub enum Body<'a> {
    Memory(&'a [u8]),
    /// So many bytes.
    Stream(u64, &'a mut dyn Read),
}

/// Where an answer's body goes.
pub enum Sink<'a> {
    Memory(&'a mut Vec<u8>),
    Stream(&'a mut dyn Write),
}

/// One connection, for one request after the other.
pub struct Connection {
    stream: BufReader<TcpStream>,
    /// Something of the last request's answer came.
    answered: bool,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Connection {
    /// Connects to `HOST:PORT`; gives up after ten seconds, and on two minutes of silence later.
    pub fn open(address: &str) -> io::Result<Connection> {
        let stream = local::connect_tcp(address, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Connection { stream: BufReader::with_capacity(BUFFER_BYTES, stream), answered: false })
    }

    /// A small body goes with its head: one packet, one system call.
    pub fn send(&mut self, head: &[u8], body: Body<'_>) -> io::Result<()> {
        self.answered = false;
        let stream = self.stream.get_mut();
        let (mut left, body) = match body {
            Body::Memory(body) => return write_both(stream, head, body),
            Body::Stream(bytes, body) => (bytes, body),
        };
        let mut head = head;
        let mut buf = vec![0; left.min(PART_BYTES as u64) as usize];
        while left > 0 {
            let now = left.min(buf.len() as u64) as usize;
            let got = body.read(&mut buf[..now])?;
            if got == 0 {
                return Err(wrong("the body ended early"));
            }
            write_both(stream, head, &buf[..got])?;
            head = &[];
            left -= got as u64;
        }
        stream.write_all(head)
    }

    /// Whether any of the last request's answer came: if not, it may be sent again.
    pub fn has_answered(&self) -> bool {
        self.answered
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        self.answered |= !line.is_empty();
        if line.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| wrong("the answer's head is not text"))
    }

    /// The answer; its body goes to `to` if it is one of success, else into the response. Whether
    /// the connection can be used again.
    pub fn receive(&mut self, method: &str, to: &mut Sink<'_>) -> io::Result<(Response, bool)> {
        let mut response = Response::default();
        loop {
            let status = self.line()?;
            response.status = status
                .split(' ')
                .nth(1)
                .and_then(|code| code.parse().ok())
                .ok_or_else(|| wrong("the answer has no status"))?;
            response.headers.clear();
            for _ in 0..LINES_MAX {
                let line = self.line()?;
                let Some((name, value)) = line.split_once(':') else { break };
                response.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            // 100 Continue comes before the answer.
            if response.status != 100 {
                break;
            }
        }
        let mut keep =
            response.header("connection").is_none_or(|c| !c.eq_ignore_ascii_case("close"));
        let length = response.header("content-length").and_then(|l| l.parse::<u64>().ok());
        let chunked = response.header("transfer-encoding").is_some_and(|t| t.contains("chunked"));
        let empty = method == "HEAD" || matches!(response.status, 204 | 304);
        let success = (200..300).contains(&response.status);
        if empty {
            return Ok((response, keep));
        }
        keep &= chunked || length.is_some();
        if success {
            self.body(chunked, length, to)?;
        } else {
            let mut body = Vec::new();
            self.body(chunked, length, &mut Sink::Memory(&mut body))?;
            response.body = body;
        }
        Ok((response, keep))
    }

    /// In chunks, of a length, or up to the connection's end.
    fn body(&mut self, chunked: bool, length: Option<u64>, to: &mut Sink<'_>) -> io::Result<()> {
        match length {
            _ if chunked => self.chunks(to),
            Some(length) => self.copy(length, to),
            None => self.copy_all(u64::MAX, to).map(|_| ()),
        }
    }

    /// Exactly `bytes` of a body.
    fn copy(&mut self, bytes: u64, to: &mut Sink<'_>) -> io::Result<()> {
        if let Sink::Memory(body) = to {
            body.reserve_exact(bytes.min(TRUSTED_BYTES) as usize);
        }
        match self.copy_all(bytes, to)? == bytes {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// What comes up to the end, `most` of it.
    fn copy_all(&mut self, most: u64, to: &mut Sink<'_>) -> io::Result<u64> {
        let mut part = (&mut self.stream).take(most);
        match to {
            Sink::Memory(body) => part.read_to_end(body).map(|bytes| bytes as u64),
            Sink::Stream(to) => {
                let mut buf = vec![0; most.min(PART_BYTES as u64) as usize];
                let mut copied = 0;
                loop {
                    let got = part.read(&mut buf)?;
                    if got == 0 {
                        return Ok(copied);
                    }
                    to.write_all(&buf[..got])?;
                    copied += got as u64;
                }
            }
        }
    }

    fn chunks(&mut self, to: &mut Sink<'_>) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size =
                u64::from_str_radix(digits, 16).map_err(|_| wrong("a chunk has no length"))?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(());
            }
            self.copy(size, to)?;
            self.line()?;
        }
    }
}

/// One after the other, in one system call where the socket has room for both.
fn write_both(stream: &mut TcpStream, first: &[u8], second: &[u8]) -> io::Result<()> {
    let mut parts = [IoSlice::new(first), IoSlice::new(second)];
    let mut parts = &mut parts[..];
    while parts.iter().any(|part| !part.is_empty()) {
        match stream.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut parts, written),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
