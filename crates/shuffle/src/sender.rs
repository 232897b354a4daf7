//! One connection of a mapper to a receiver: proves the job's token, sends blocks as far as credit
//! goes, and says at the end what it sent.

use crate::credit::Credit;
use crate::ledger::Attempt;
use crate::limits::{BLOCK_BYTES_MAX, GREET, SILENT};
use crate::message::{self, Block, Window};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Result};
use holdfast_env::net::{Handshake, Role};
use holdfast_env::{Rng, Secret};
use holdfast_sort::hash::Sum;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

pub struct Sender {
    stream: TcpStream,
    credit: Credit,
    blocks: u64,
    pub sent_bytes: u64,
}

impl Sender {
    /// Connects; none if the receiver has the split already.
    pub fn begin(
        address: SocketAddr,
        token: &Secret,
        rng: &dyn Rng,
        attempt: Attempt,
    ) -> Result<Option<Sender>> {
        let doing = |e: Error| e.context(format_args!("send split {} to {address}", attempt.split));
        let begun = || -> Result<_> {
            let mut stream = TcpStream::connect_timeout(&address, GREET)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(GREET))?;
            stream.set_write_timeout(Some(SILENT))?;
            greet(&mut stream, token, rng)?;
            stream.set_read_timeout(Some(SILENT))?;
            let meta = |out: &mut Vec<u8>| attempt.encode(out);
            message::ask(&mut stream, message::OP_BEGIN, 0, meta, &[])?;
            let answer = message::read_answer(&mut stream)?;
            let Window { bytes: window, wanted } = Window::from_bytes(&answer.meta)?;
            if window < BLOCK_BYTES_MAX as u64 {
                return Err(Error::unsupported(format!(
                    "the receiver grants {window} bytes, less than a block: use matching builds"
                )));
            }
            let credit = Credit::new(window);
            Ok(wanted.then_some(Sender { stream, credit, blocks: 0, sent_bytes: 0 }))
        };
        begun().map_err(doing)
    }

    /// Sends a block, when the receiver has room for it.
    pub fn send(&mut self, partition: u32, block: &[u8]) -> Result<()> {
        let bytes = block.len() as u64;
        while !self.credit.allows(bytes) {
            self.hear()?;
        }
        self.blocks += 1;
        let crc = crc32c(block);
        let meta = |out: &mut Vec<u8>| Block { partition, crc }.encode(out);
        message::ask(&mut self.stream, message::OP_BLOCK, self.blocks, meta, block)?;
        self.credit.sent(bytes);
        self.sent_bytes += bytes;
        Ok(())
    }

    /// Hears that a block is written.
    fn hear(&mut self) -> Result<()> {
        let answer = message::read_answer(&mut self.stream)?;
        if answer.header.opcode != message::OP_BLOCK {
            return Err(Error::bug("send records: the receiver answered something else"));
        }
        self.credit.granted(u64::from_bytes(&answer.meta)?)
    }

    /// Waits until everything is written, and says what it was. After this it counts.
    pub fn finish(mut self, sums: &[(u32, Sum)]) -> Result<()> {
        while self.credit.under_way() > 0 {
            self.hear()?;
        }
        let meta = |out: &mut Vec<u8>| message::put_finish(out, self.blocks, sums);
        message::ask(&mut self.stream, message::OP_FINISH, 0, meta, &[])?;
        message::read_answer(&mut self.stream).map(drop)
    }
}

fn greet(stream: &mut TcpStream, token: &Secret, rng: &dyn Rng) -> Result<()> {
    let mut handshake = Handshake::new(token.clone().into(), Role::Client, rng);
    let mut bytes = [0; 1024];
    loop {
        stream.write_all(&handshake.output())?;
        let got = stream.read(&mut bytes)?;
        if got == 0 {
            return Err(Error::denied("the receiver closed the connection unproved"));
        }
        if handshake.received(&bytes[..got])? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{Config, Receiver};
    use holdfast_base::Kind;
    use holdfast_env::{RealDisk, RealRng};
    use std::net::{IpAddr, Ipv4Addr};

    /// A block whose bytes are not what the sender summed is refused, and its attempt is nothing.
    #[test]
    fn a_block_that_was_damaged_on_its_way_is_refused() {
        let token = Secret::draw(&RealRng);
        let config = Config {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            token: token.clone(),
            partitions: vec![0],
            connections_max: 1,
            kept_bytes: 0,
        };
        let receiver = Receiver::start(&RealDisk, &std::env::temp_dir(), config).unwrap();
        let attempt = Attempt { split: 0, id: 1 };
        let begun = Sender::begin(receiver.address(), &token, &RealRng, attempt).unwrap();
        let mut sender = begun.unwrap();
        let meta = |out: &mut Vec<u8>| Block { partition: 0, crc: crc32c(b"bytes") }.encode(out);
        message::ask(&mut sender.stream, message::OP_BLOCK, 1, meta, b"bytez").unwrap();
        sender.credit.sent(5);
        sender.blocks += 1;
        // Nothing but its bytes is wrong.
        let sum = Sum { records: 1, bytes: 5, hash: 0 };
        let refused = sender.finish(&[(0, sum)]).unwrap_err();
        assert_eq!(refused.kind, Kind::Corrupt, "{refused:?}");
        assert!(receiver.splits().is_empty());
    }
}
