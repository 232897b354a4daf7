//! The port over a store in memory, and requests to it that are signed as clients sign them.

use super::{Memory, api};
use holdfast_base::Result;
use holdfast_dynamo::server::{Limits, Server};
use holdfast_dynamo::users::{Key, Keys};
use holdfast_env::{Budget, Clock, RealClock};
use holdfast_s3::signature::{Scope, sha256_hex, signature};
use serde_json::Value as Json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

pub const ACCESS_KEY: &str = "HOLDFASTTEST";
pub const SECRET: &str = "secret";

struct Two;

impl Keys for Two {
    fn key(&self, name: &str) -> Result<Option<Key>> {
        let key = |writes| Key { secret: SECRET.into(), reads: true, writes };
        Ok(match name {
            ACCESS_KEY => Some(key(true)),
            "READER" => Some(key(false)),
            _ => None,
        })
    }
}

/// Starts the port over an empty store.
pub fn start(budget_bytes: u64) -> (Server, SocketAddr) {
    start_within(Budget::new(budget_bytes))
}

/// The same, with a budget that others have a part of.
pub fn start_within(budget: Arc<Budget>) -> (Server, SocketAddr) {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let limits = Limits {
        connections: 64,
        budget,
        head: Duration::from_secs(30),
        stall: Duration::from_secs(30),
        threads: 2,
    };
    let address = "127.0.0.1:0".parse().unwrap();
    let parts = (api(Arc::new(Memory::default())), Arc::new(Two) as Arc<dyn Keys>, clock);
    let server = Server::start(address, parts, limits, None).unwrap();
    let address = server.address().unwrap();
    (server, address)
}

/// An answer: status, headers in lower case, body.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or(Json::Null)
    }
}

/// A connection to a port that speaks DynamoDB's API.
pub struct Client {
    stream: TcpStream,
    address: SocketAddr,
    host: String,
    pub key: String,
}

impl Client {
    #[expect(clippy::disallowed_methods, reason = "a client is played by hand")]
    pub fn connect(address: SocketAddr) -> std::io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Client { stream, address, host: address.to_string(), key: ACCESS_KEY.into() })
    }

    /// Sends an operation, signed.
    pub fn call(&mut self, operation: &str, body: &[u8]) -> std::io::Result<Answer> {
        let head = self.head(operation, body, body.len());
        self.raw(&[head.as_bytes(), body].concat())
    }

    /// The head of an operation, signed for this body, of which so many bytes are announced.
    pub fn head(&self, operation: &str, body: &[u8], bytes: usize) -> String {
        let now_s = RealClock::new().unix_ms() / 1000;
        let date = holdfast_base::text::utc(now_s as i64, 'T').replace(['-', ':'], "") + "Z";
        let scope = Scope { day: &date[..8], region: "us-east-1", service: "dynamodb" };
        let target = format!("DynamoDB_20120810.{operation}");
        let names = "content-type;host;x-amz-date;x-amz-target";
        let kind = "application/x-amz-json-1.0";
        let lines = format!(
            "content-type:{kind}\nhost:{}\nx-amz-date:{date}\nx-amz-target:{}\n",
            self.host,
            target.trim()
        );
        let canonical = format!("POST\n/\n\n{lines}\n{names}\n{}", sha256_hex(body));
        let signature = signature(SECRET, &date, &scope, &canonical);
        format!(
            "POST / HTTP/1.1\r\nhost: {}\r\ncontent-type: {kind}\r\nx-amz-date: {date}\r\n\
             x-amz-target: {target}\r\nauthorization: AWS4-HMAC-SHA256 \
             Credential={}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\
             content-length: {bytes}\r\n\r\n",
            self.host, self.key
        )
    }

    /// Sends bytes and reads one answer.
    pub fn raw(&mut self, bytes: &[u8]) -> std::io::Result<Answer> {
        self.stream.write_all(bytes)?;
        let mut got = Vec::new();
        let mut buffer = [0; 1 << 16];
        loop {
            let end = got.windows(4).position(|window| window == b"\r\n\r\n");
            if let Some(end) = end {
                let head = String::from_utf8_lossy(&got[..end]).to_lowercase();
                let status = head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or(0);
                let answer = Answer { status, head, body: String::new() };
                let length = answer.header("content-length").and_then(|n| n.parse().ok());
                let length: usize = length.unwrap_or(0);
                if got.len() >= end + 4 + length {
                    let body = String::from_utf8_lossy(&got[end + 4..end + 4 + length]);
                    if answer.header("connection") == Some("close") {
                        self.stream = Client::connect(self.address)?.stream;
                    }
                    return Ok(Answer { body: body.into_owned(), ..answer });
                }
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => got.extend_from_slice(&buffer[..count]),
            }
        }
    }
}
