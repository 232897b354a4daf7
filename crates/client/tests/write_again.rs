//! A put whose bytes a seal cut off, because its gateway had been silent for too long, is refused,
//! and that refusal is its number's answer for ever. The client, which has the bytes, handed "write
//! the bytes again" on to its caller; it does so itself, as a new request.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::frame::Header;
use holdfast_base::ids::{FileId, SessionId};
use holdfast_base::{Error, Kind, Reason};
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile};
use holdfast_env::RealClock;
use holdfast_env::net::{Batch, BodyTarget, ConnectionId, Server, ServerConfig, Service, Who};
use holdfast_wire::{OP_OPEN_SESSION, OP_PUT, file::Put};
use std::sync::{Arc, Mutex};

/// Refuses the first `cut_off` numbers, each as often as it is asked, and keeps what came.
struct Gateway {
    cut_off: u64,
    puts: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Service for Gateway {
    fn body_target(&self, _: &Who, _: &Header, _: &[u8]) -> BodyTarget {
        BodyTarget::Buffer
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        for i in 0..batch.len() {
            match batch.header(i).opcode {
                OP_OPEN_SESSION => batch.reply(i, |m| SessionId(7).encode(m), ()),
                OP_PUT => {
                    let put = Put::from_bytes(batch.meta(i)).unwrap();
                    let number = put.call.sequence.0;
                    let body = batch.take_body(i).into_vec();
                    self.puts.lock().unwrap().push((number, body));
                    if number <= self.cut_off {
                        let what = "put `/f`: chunk `s0.9` was sealed: write the bytes again";
                        batch.reply_error(i, &Error::retry(what).because(Reason::WriteAgain));
                    } else {
                        batch.reply(i, |m| FileId(number).encode(m), ());
                    }
                }
                other => batch.reply_error(i, &Error::unsupported(format!("opcode {other:#x}"))),
            }
        }
    }

    fn disconnected(&self, _: ConnectionId) {}
}

/// Requests that the server took: their numbers and bodies.
type Taken = Vec<(u64, Vec<u8>)>;

fn put(cut_off: u64) -> (Result<FileId, Error>, Taken) {
    let service = Arc::new(Gateway { cut_off, puts: Mutex::default() });
    let config =
        ServerConfig { tcp: vec!["127.0.0.1:0".parse().unwrap()], ..ServerConfig::default() };
    let server = Server::start(config, service.clone(), Arc::new(RealClock::new())).unwrap();
    let endpoint = Endpoint::parse(&server.tcp_addresses()[0].to_string()).unwrap();
    let mut client = Client::connect(&endpoint, &ClientOptions::default()).unwrap();
    let answer = client.put("/f", b"bytes", &NewFile::default());
    drop(client);
    let puts = service.puts.lock().unwrap().clone();
    (answer, puts)
}

#[test]
fn a_put_that_a_seal_cut_off_is_sent_again_under_another_number() {
    let (answer, puts) = put(1);
    assert_eq!(answer, Ok(FileId(2)));
    assert_eq!(puts, [(1, b"bytes".to_vec()), (2, b"bytes".to_vec())]);
}

#[test]
fn it_is_not_sent_for_ever() {
    let (answer, puts) = put(100);
    assert_eq!(answer.unwrap_err().kind, Kind::Retry);
    assert_eq!(puts.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3]);
}
