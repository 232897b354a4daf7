//! The load on a cache: clients that keep so many requests outstanding (closed loop) over TCP or
//! UDP, in one thread. Requests are made before; answers are counted by the byte, and every so
//! many compared with what they must be.

use super::keys::Requests;
use holdfast_base::{Error, Result};
use holdfast_env::poll::{Events, Interest, Poller};
use holdfast_env::sockets;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

/// Without an answer for so long something is wrong: the answer is not what it must be.
const STUCK: Duration = Duration::from_secs(3);
/// Over UDP, what is not there by then is lost, and asked for again.
const LOST: Duration = Duration::from_millis(50);
const RECEIVE_BYTES: usize = 1 << 20;
/// One answer in so many is compared, byte for byte.
const COMPARED_EVERY: u64 = 64;

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Text commands over connections.
    Tcp,
    /// A datagram each, behind memcached's frame header.
    Udp,
    /// UDP with trains of datagrams in one call, at our end.
    Trains,
    /// The shipped client, over UDP; see [`super::client`].
    Client,
}

/// Who sends, and how much of it at once.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The same for all clients.
    pub transport: Transport,
    /// Connections or sockets.
    pub clients: usize,
    /// Requests that each has outstanding.
    pub depth: usize,
}

/// What a run came to.
#[derive(Default)]
pub struct Ran {
    /// Answered ones, of however many keys.
    pub requests: u64,
    /// From the first request to the end.
    pub seconds: f64,
    /// One a batch of requests, from its sending to its last byte.
    pub latencies_ns: Vec<u64>,
    /// Requests over UDP that nothing answered in time.
    pub lost: u64,
    /// Answers that were compared byte for byte.
    pub compared: u64,
}

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("load a cache: {what}"))
}

/// Keeps `target` under the load until `time` is over. `Corrupt` where an answer is seen to be
/// another one than what is stored.
pub fn run(target: SocketAddr, shape: Shape, requests: &Requests, time: Duration) -> Result<Ran> {
    match shape.transport {
        Transport::Tcp => tcp(target, shape, requests, time),
        Transport::Udp | Transport::Trains => udp(target, shape, requests, time),
        Transport::Client => {
            let (keys, value) = (requests.key_count, requests.value_bytes);
            super::client::run(target, keys, value, time)
        }
    }
}

struct Client {
    stream: TcpStream,
    /// Number of the first of the requests outstanding.
    at: usize,
    left: usize,
    sent: Instant,
    /// The answers, kept when they are to be compared.
    kept: Option<Vec<u8>>,
}

fn tcp(target: SocketAddr, shape: Shape, requests: &Requests, time: Duration) -> Result<Ran> {
    let poller = Poller::new()?;
    let mut clients = Vec::new();
    let batch_reply = requests.reply_bytes * shape.depth;
    for i in 0..shape.clients {
        let mut stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        let at = requests.start(i, shape.clients, shape.depth);
        stream.write_all(requests.batch(at, shape.depth))?;
        stream.set_nonblocking(true)?;
        poller.add(&stream, i as u64, Interest::Read)?;
        clients.push(Client { stream, at, left: batch_reply, sent: Instant::now(), kept: None });
    }
    let mut events = Events::new(256);
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut ran = Ran::default();
    let (start, mut rounds) = (Instant::now(), 0u64);
    let mut last = start;
    while start.elapsed() < time {
        // Never asleep: waking us would be the server's work.
        poller.wait(&mut events, Some(Duration::ZERO))?;
        if events.is_empty() {
            if last.elapsed() > STUCK {
                return Err(wrong("an answer is shorter than it must be: are all keys stored?"));
            }
            continue;
        }
        last = Instant::now();
        for i in 0..events.len() {
            let client = &mut clients[events.get(i).token as usize];
            let got = match sockets::receive(&client.stream, &mut buffer) {
                Ok(0) => return Err(wrong("the server has hung up")),
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e.into()),
            };
            if got > client.left {
                return Err(wrong("an answer is longer than it must be"));
            }
            client.left -= got;
            if let Some(kept) = &mut client.kept {
                kept.extend_from_slice(&buffer[..got]);
            }
            if client.left > 0 {
                continue;
            }
            if let Some(kept) = client.kept.take() {
                requests.compare(client.at, shape.depth, &kept)?;
                ran.compared += 1;
            }
            let now = Instant::now();
            ran.latencies_ns.push((now - client.sent).as_nanos() as u64);
            ran.requests += shape.depth as u64;
            rounds += 1;
            client.at = requests.next(client.at, shape.depth);
            client.left = batch_reply;
            client.sent = now;
            if rounds.is_multiple_of(COMPARED_EVERY) && requests.comparable {
                client.kept = Some(Vec::with_capacity(batch_reply));
            }
            send_all(&client.stream, requests.batch(client.at, shape.depth))?;
        }
    }
    ran.seconds = start.elapsed().as_secs_f64();
    Ok(ran)
}

/// Requests are small: what does not fit at once will soon.
fn send_all(stream: &TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match sockets::send(stream, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

struct Asker {
    socket: UdpSocket,
    at: usize,
    /// By place: which request id is outstanding, how many bytes of its answer are missing, since
    /// when.
    waits: Vec<(u16, usize, Instant)>,
    next_id: u16,
}

const FRAME_BYTES: usize = 8;

fn udp(target: SocketAddr, shape: Shape, requests: &Requests, time: Duration) -> Result<Ran> {
    let trains = shape.transport == Transport::Trains;
    let poller = Poller::new()?;
    let mut askers = Vec::new();
    for i in 0..shape.clients {
        let local = if target.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
        let local = local.parse().map_err(|_| Error::bug("an address of ours is wrong"))?;
        let socket = sockets::bind_udp(local, false)?;
        socket.connect(target)?;
        let _ = sockets::set_buffer_bytes(&socket, 4 << 20);
        if trains {
            sockets::enable_trains(&socket)?;
        }
        poller.add(&socket, i as u64, Interest::Read)?;
        let at = requests.start(i, shape.clients, 1);
        let waits = vec![(0, 0, Instant::now()); shape.depth];
        askers.push(Asker { socket, at, waits, next_id: 1 });
    }
    let mut train = Vec::new();
    for asker in &mut askers {
        asker.ask((0..shape.depth).collect(), requests, target, trains, &mut train)?;
    }
    let mut events = Events::new(256);
    let mut buffer = vec![0; sockets::DATAGRAM_BYTES_MAX];
    let mut ran = Ran::default();
    let start = Instant::now();
    let mut last = start;
    while start.elapsed() < time {
        poller.wait(&mut events, Some(Duration::ZERO))?;
        if events.is_empty() && last.elapsed() < LOST {
            continue;
        }
        last = Instant::now();
        for i in 0..events.len() {
            let asker = &mut askers[events.get(i).token as usize];
            let mut done = Vec::new();
            // All that is there: so that a train of requests can follow a train of answers.
            for _ in 0..shape.depth {
                let Ok(received) = sockets::receive_train(&asker.socket, &mut buffer) else {
                    break;
                };
                for datagram in buffer[..received.bytes].chunks(received.each) {
                    asker.received(datagram, requests, &mut done, &mut ran)?;
                }
            }
            if !done.is_empty() {
                asker.ask(done, requests, target, trains, &mut train)?;
            }
        }
        if events.is_empty() {
            for asker in &mut askers {
                let now = Instant::now();
                let late = |wait: &(u16, usize, Instant)| now - wait.2 > LOST;
                let lost: Vec<usize> =
                    (0..shape.depth).filter(|i| late(&asker.waits[*i])).collect();
                ran.lost += lost.len() as u64;
                asker.ask(lost, requests, target, trains, &mut train)?;
            }
            if ran.lost > 1000 && ran.requests == 0 {
                return Err(wrong("no answer over UDP"));
            }
        }
    }
    ran.seconds = start.elapsed().as_secs_f64();
    Ok(ran)
}

impl Asker {
    fn received(
        &mut self,
        datagram: &[u8],
        requests: &Requests,
        done: &mut Vec<usize>,
        ran: &mut Ran,
    ) -> Result<()> {
        let Some((frame, body)) = datagram.split_first_chunk::<FRAME_BYTES>() else {
            return Err(wrong("a datagram without a frame"));
        };
        let id = u16::from_be_bytes([frame[0], frame[1]]);
        // Of one that was given up, otherwise.
        let Some(place) = self.waits.iter().position(|wait| wait.0 == id && wait.1 > 0) else {
            return Ok(());
        };
        let wait = &mut self.waits[place];
        if body.len() > wait.1 {
            return Err(wrong("an answer is longer than it must be"));
        }
        if wait.1 == requests.reply_bytes
            && body.len() > 6
            && requests.comparable
            && !body.starts_with(b"VALUE ")
        {
            return Err(wrong(format_args!(
                "`{}`",
                String::from_utf8_lossy(&body[..body.len().min(80)])
            )));
        }
        wait.1 -= body.len();
        if wait.1 == 0 {
            ran.requests += 1;
            ran.latencies_ns.push(wait.2.elapsed().as_nanos() as u64);
            done.push(place);
        }
        Ok(())
    }

    /// Asks anew at these places.
    fn ask(
        &mut self,
        places: Vec<usize>,
        requests: &Requests,
        target: SocketAddr,
        trains: bool,
        train: &mut Vec<u8>,
    ) -> Result<()> {
        train.clear();
        let each = FRAME_BYTES + requests.request_bytes;
        let now = Instant::now();
        for place in places {
            let id = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            self.waits[place] = (id, requests.reply_bytes, now);
            let id = id.to_be_bytes();
            train.extend_from_slice(&[id[0], id[1], 0, 0, 0, 1, 0, 0]);
            train.extend_from_slice(requests.batch(self.at, 1));
            self.at = requests.next(self.at, 1);
            if !trains || train.len() + each > sockets::DATAGRAM_BYTES_MAX {
                self.send(train, each, target)?;
                train.clear();
            }
        }
        if !train.is_empty() {
            self.send(train, each, target)?;
        }
        Ok(())
    }

    fn send(&self, train: &[u8], each: usize, _target: SocketAddr) -> Result<()> {
        if train.len() <= each {
            match sockets::send(&self.socket, train) {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e.into()),
                _ => return Ok(()),
            }
        }
        match sockets::send_train(&self.socket, train, each, _target) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e.into()),
            _ => Ok(()),
        }
    }
}
