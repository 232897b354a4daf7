//! Ways between processes on this machine that are as long as those between regions: who connects to a way is
//! passed on, and each byte takes its time in either direction. For trying out and for measurements.
#![expect(
    clippy::disallowed_methods,
    reason = "a network for development: it has this machine's clock and sockets"
)]

use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, tasks};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that are on their way in one direction of a connection.
const PIECES: usize = 1024;

/// Round trips between regions, by their numbers, the smaller one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distances(BTreeMap<(usize, usize), Duration>);

impl Distances {
    /// Reads lines of two regions and the milliseconds between them and back; `#` begins what is for people.
    pub fn parse(text: &str) -> Result<Distances> {
        let mut all = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let words: Vec<&str> =
                line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let read = match words[..] {
                [] => continue,
                [a, b, ms] => a.parse().ok().zip(b.parse().ok()).zip(ms.parse::<f64>().ok()),
                _ => None,
            };
            let read = read.filter(|((a, b), ms)| a != b && (0.0..=60_000.0).contains(ms));
            let Some(((a, b), ms)) = read else {
                return Err(Error::invalid(format!(
                    "read distances: line {number} is `{}`: write two regions and milliseconds, as in `0 1 87`",
                    line.escape_debug()
                )));
            };
            let pair: (usize, usize) = if a < b { (a, b) } else { (b, a) };
            if all.insert(pair, Duration::from_secs_f64(ms / 1000.0)).is_some() {
                return Err(Error::invalid(format!(
                    "read distances: line {number} says a second time how far {a} and {b} are apart: leave one out"
                )));
            }
        }
        Ok(Distances(all))
    }

    /// There and back; those of whom nothing is said are beside each other.
    pub fn round_trip(&self, a: usize, b: usize) -> Duration {
        self.0.get(&(a.min(b), a.max(b))).copied().unwrap_or_default()
    }
}

/// A way to a port of this machine.
pub struct Way {
    port: u16,
    is_cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    /// A way to `port` that takes `one_way` in either direction.
    pub fn to(port: u16, one_way: Duration) -> Result<Way> {
        let doing = |e: std::io::Error| Error::from(e).context("make a way between regions");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(doing)?;
        let own = listener.local_addr().map_err(doing)?.port();
        let (is_cut, open) =
            (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let way = Way { port: own, is_cut: is_cut.clone(), open: open.clone() };
        // It ends with the process.
        tasks::spawn("way", move || {
            for from in listener.incoming().flatten() {
                // Who is cut off, or finds nobody there, sees its connection end.
                if is_cut.load(Ordering::Acquire) {
                    continue;
                }
                let Ok(to) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _ = pass_on(from, to, one_way, &open);
            }
        })?;
        Ok(way)
    }

    /// Where it begins.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends all of its connections, and lets none through until it is healed.
    pub fn cut(&self, heal: bool) {
        self.is_cut.store(!heal, Ordering::Release);
        if !heal {
            for connection in self.open.held().drain(..) {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }
}

fn pass_on(
    from: TcpStream,
    to: TcpStream,
    one_way: Duration,
    open: &Mutex<Vec<TcpStream>>,
) -> Result<()> {
    for stream in [&from, &to] {
        stream.set_nodelay(true)?;
    }
    {
        let mut open = open.held();
        // Those that have ended are known by having no other end any more.
        open.retain(|stream: &TcpStream| stream.peer_addr().is_ok());
        open.push(from.try_clone()?);
        open.push(to.try_clone()?);
    }
    for (from, to) in [(from.try_clone()?, to.try_clone()?), (to, from)] {
        let (sends, takes) = sync_channel(PIECES);
        tasks::spawn("way-in", move || receive(from, &sends))?;
        tasks::spawn("way-out", move || deliver(to, &takes, one_way))?;
    }
    Ok(())
}

/// Reads what comes, with the time at which it came.
fn receive(mut from: TcpStream, sends: &SyncSender<(Instant, Vec<u8>)>) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(count) = from.read(&mut piece) {
        if count == 0 || sends.send((Instant::now(), piece[..count].to_vec())).is_err() {
            break;
        }
    }
}

fn deliver(mut to: TcpStream, takes: &Receiver<(Instant, Vec<u8>)>, one_way: Duration) {
    for (came, piece) in takes {
        let left = (came + one_way).saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_read_in_either_order_and_what_is_none_is_refused() {
        let all = Distances::parse("# far\n1 0 87 # there and back\n\n0 2 80.5\n").unwrap();
        assert_eq!(all.round_trip(0, 1), Duration::from_millis(87));
        assert_eq!(all.round_trip(2, 0), Duration::from_micros(80_500));
        assert_eq!(all.round_trip(1, 2), Duration::ZERO);
        for wrong in ["0 1", "0 0 5", "a 1 5", "0 1 -5", "0 1 NaN", "0 1 5 6", "0 1 5\n1 0 6"] {
            assert!(Distances::parse(wrong).is_err(), "{wrong}");
        }
        let three = include_str!("../../../deploy/wan/three.txt");
        assert_eq!(Distances::parse(three).unwrap().round_trip(1, 2), Duration::from_millis(137));
    }

    /// What goes through a way comes out as it went in, in either direction, and no more once it is cut.
    #[test]
    fn a_way_passes_everything_on_until_it_is_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Way::to(listener.local_addr().unwrap().port(), Duration::from_millis(1)).unwrap();
        let sent: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let mut here = TcpStream::connect(("127.0.0.1", way.port())).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| here.try_clone().unwrap().write_all(&sent).unwrap());
            let mut came = vec![0; sent.len()];
            there.read_exact(&mut came).unwrap();
            assert!(came == sent);
        });
        there.write_all(b"back").unwrap();
        let mut back = [0; 4];
        here.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"back");
        way.cut(false);
        assert!(matches!(here.read(&mut back), Ok(0) | Err(_)));
        let mut refused = TcpStream::connect(("127.0.0.1", way.port())).unwrap();
        assert!(matches!(refused.read(&mut back), Ok(0) | Err(_)));
        way.cut(true);
        let _again = TcpStream::connect(("127.0.0.1", way.port())).unwrap();
        listener.accept().unwrap();
    }
}
