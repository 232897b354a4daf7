//! Just enough of HTTP/1.1: a request is written, its answer is read, with a length, in chunks, or
//! up to the end of the connection.

use super::Response;
use holdfast_env::local;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(120);
/// A line of an answer's head, and their number.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINES_MAX: usize = 200;

pub struct Connection {
    stream: BufReader<TcpStream>,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Connection {
    pub fn open(address: &str) -> io::Result<Connection> {
        let stream = local::connect_tcp(address, CONNECT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Connection { stream: BufReader::with_capacity(64 << 10, stream) })
    }

    pub fn send(&mut self, head: &[u8], bytes: u64, body: &mut dyn Read) -> io::Result<()> {
        let stream = self.stream.get_mut();
        // A small body goes with its head: one packet, one system call.
        let mut out = head.to_vec();
        let mut left = bytes;
        let mut buf = vec![0; (left as usize).min(256 << 10)];
        loop {
            let now = (left as usize).min(buf.len());
            let got = if now > 0 { body.read(&mut buf[..now])? } else { 0 };
            if got == 0 && left > 0 {
                return Err(wrong("the body ended early"));
            }
            out.extend_from_slice(&buf[..got]);
            left -= got as u64;
            if left == 0 {
                return stream.write_all(&out);
            }
            stream.write_all(&out)?;
            out.clear();
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
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
    pub fn receive(&mut self, method: &str, to: &mut dyn Write) -> io::Result<(Response, bool)> {
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
        let mut kept = Vec::new();
        let sink: &mut dyn Write = if success { to } else { &mut kept };
        if empty {
        } else if chunked {
            self.chunks(sink)?;
        } else if let Some(length) = length {
            let copied = io::copy(&mut (&mut self.stream).take(length), sink)?;
            if copied < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        } else {
            io::copy(&mut self.stream, sink)?;
            keep = false;
        }
        response.body = kept;
        Ok((response, keep))
    }

    fn chunks(&mut self, to: &mut dyn Write) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let digits = line.split(';').next().unwrap_or_default().trim();
            let size =
                u64::from_str_radix(digits, 16).map_err(|_| wrong("a chunk has no length"))?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(());
            }
            if io::copy(&mut (&mut self.stream).take(size), to)? < size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.line()?;
        }
    }
}
