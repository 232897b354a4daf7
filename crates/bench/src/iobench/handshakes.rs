//! What beginning a connection over TLS costs the node: handshakes at its port, each behind the other,
//! with a ping and its answer, over the processor time that they took it.

use super::{Bench, Work};
use crate::report::Meter;
use crate::tls::Shaker;
use holdfast_base::frame::{self, FrameKind};
use holdfast_base::{Error, Result};
use holdfast_env::net::OP_PING;
use std::io;
use std::net::TcpStream;

/// A request that the node answers to anybody, with as many bytes.
pub fn ping() -> Vec<u8> {
    let mut ping = Vec::new();
    frame::encode(&mut ping, FrameKind::Request, OP_PING, 1, 0, 0, |_| {});
    ping
}

/// Each resumes the session of the one before, or none.
pub fn work(bench: &Bench, resumes: bool) -> Result<Work<'_>> {
    let doing = |e: io::Error| Error::from(e).context("shake hands with the node");
    let Some(authority) = bench.server.authority() else {
        return Err(Error::invalid("measure handshakes: say `--transport tls`, which has them"));
    };
    let shaker = Shaker::new(authority, resumes).map_err(doing)?;
    let (address, ping) = (bench.server.tcp().to_owned(), ping());
    let mut answer = vec![0; ping.len()];
    Ok(Box::new(move |meter: &mut Meter<'_>| {
        let mut shake = || {
            let socket = TcpStream::connect(&address)?;
            shaker.shake(socket, &ping, &mut answer)
        };
        for _ in 0..bench.options.warmup.max(1) {
            shake().map_err(doing)?;
        }
        meter.run();
        while meter.more() {
            let resumed = meter.operation(0, || shake().map_err(doing))?;
            if resumed != resumes {
                return Err(Error::bug("shake hands: the node did not resume its own session"));
            }
        }
        meter.pause();
        Ok(())
    }))
}
