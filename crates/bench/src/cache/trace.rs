//! The part of gets that hit, on a trace with TTLs and values of many lengths, at equal memory:
//! both servers get the same gets in turns, and what misses is stored, as a client of a database
//! would. Paced, so that TTLs mean the same to both.

use super::server::{Target, version};
use super::{CacheBench, keys::key};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output;
use holdfast_env::{Rng, SeededRng};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Keys of one get.
const BATCH: usize = 100;
/// Gets a second that both servers see.
const GETS_PER_SECOND: f64 = 60_000.0;
/// Popularity falls with the rank to this power (the exponent of Breslau 1999's web traces).
const EXPONENT: f64 = 0.9;
/// Seconds to live, a quarter of the keys each; 0 for ever.
const TTLS: [u32; 4] = [0, 4, 12, 40];
/// Values: most are short, some long.
const VALUE_BYTES: [usize; 8] = [30, 60, 100, 150, 250, 400, 800, 2000];

/// Ranks by popularity, from a table of sums.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: u64) -> Zipf {
        let mut sum = 0.0;
        Zipf(
            (1..=keys)
                .map(|rank| {
                    sum += (rank as f64).powf(-EXPONENT);
                    sum
                })
                .collect(),
        )
    }

    fn next(&self, rng: &SeededRng) -> u64 {
        let all = self.0.last().copied().unwrap_or(0.0);
        let part = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * all;
        self.0.partition_point(|sum| *sum < part).min(self.0.len() - 1) as u64
    }
}

/// A number of its own for each key, so that popularity says nothing of length and TTL.
fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    n ^ n >> 29
}

struct Side {
    name: String,
    target: Target,
    stream: TcpStream,
    hits: u64,
    gets: u64,
    answer: Vec<u8>,
}

impl Side {
    fn new(name: String, target: Target) -> Result<Side> {
        let stream = TcpStream::connect(target.tcp)?;
        stream.set_nodelay(true)?;
        Ok(Side { name, target, stream, hits: 0, gets: 0, answer: Vec::new() })
    }

    /// Gets keys, and stores those that miss.
    fn get(&mut self, keys: &[u64], value: &[u8]) -> Result<()> {
        let mut request = b"get".to_vec();
        for n in keys {
            request.push(b' ');
            request.extend_from_slice(key(*n).as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        self.stream.write_all(&request)?;
        self.receive(b"END\r\n")?;
        let found = found(&self.answer)?;
        request.clear();
        let mut sets = 0;
        for n in keys {
            if found.contains(n) {
                continue;
            }
            let (ttl, len) =
                (TTLS[mixed(*n) as usize % 4], VALUE_BYTES[mixed(*n) as usize / 4 % 8]);
            request.extend_from_slice(format!("set {} 0 {ttl} {len}\r\n", key(*n)).as_bytes());
            request.extend_from_slice(&value[..len]);
            request.extend_from_slice(b"\r\n");
            sets += 1;
        }
        self.hits += (keys.len() - sets) as u64;
        self.gets += keys.len() as u64;
        if sets == 0 {
            return Ok(());
        }
        request.extend_from_slice(b"mn\r\n");
        self.stream.write_all(&request)?;
        self.receive(b"MN\r\n")
    }

    fn receive(&mut self, end: &[u8]) -> Result<()> {
        self.answer.clear();
        let mut part = [0; 65536];
        while !self.answer.ends_with(end) {
            match self.stream.read(&mut part)? {
                0 => return Err(Error::retry("measure hits: the server has hung up")),
                n => self.answer.extend_from_slice(&part[..n]),
            }
        }
        Ok(())
    }
}

/// The keys of `VALUE` lines. Values here hold no line ends.
fn found(answer: &[u8]) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    for line in answer.split(|b| *b == b'\n') {
        let Some(rest) = line.strip_prefix(b"VALUE key-") else { continue };
        let digits = rest.get(..12).and_then(|digits| std::str::from_utf8(digits).ok());
        let n = digits.and_then(|digits| digits.parse().ok());
        found.push(n.ok_or_else(|| Error::corrupt("measure hits: an answer's key is wrong"))?);
    }
    Ok(found)
}

/// Prints each server's share of hits, counted in the second half of the time.
pub fn run(options: &CacheBench, out: &mut Output) -> Result<()> {
    let mut sides = vec![Side::new("holdfast".to_owned(), Target::ours(options, 1, &[])?)?];
    if !options.no_peer
        && let Some(peer) = Target::peer(options)?
    {
        sides.push(Side::new(format!("memcached {}", version(&options.peer)), peer)?);
    }
    let (zipf, rng) = (Zipf::new(options.keys), SeededRng::new(11));
    let value = vec![b'v'; 2000];
    let (start, time) = (Instant::now(), Duration::from_secs_f64(options.seconds));
    let mut batches = 0u64;
    let mut warm = false;
    while start.elapsed() < time {
        let due = Duration::from_secs_f64(batches as f64 * BATCH as f64 / GETS_PER_SECOND);
        if let Some(early) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(early);
        }
        // Each key once: one that misses twice in a batch is stored once.
        let mut keys: Vec<u64> = (0..BATCH).map(|_| zipf.next(&rng)).collect();
        keys.sort_unstable();
        keys.dedup();
        for side in &mut sides {
            side.get(&keys, &value)?;
        }
        batches += 1;
        if !warm && start.elapsed() > time / 2 {
            warm = true;
            for side in &mut sides {
                (side.hits, side.gets) = (0, 0);
            }
        }
    }
    let part = |side: &Side| side.hits as f64 / side.gets.max(1) as f64;
    let peer = sides.get(1).map(part);
    for side in &sides {
        let hits = part(side);
        let memory = side.target.memory_bytes("VmRSS") >> 20;
        out.line(
            || {
                format!(
                    "{:<20} hits {:.2}% of {} gets, -m {}, {memory} MiB of memory in all",
                    side.name,
                    hits * 100.0,
                    side.gets,
                    options.memory
                )
            },
            || {
                json!({
                    "case": format!("hit ratio, Zipf {EXPONENT} with TTLs, {}", side.name),
                    "operations": side.gets, "seconds": options.seconds / 2.0, "hit_ratio": hits,
                    "memory_mib": options.memory, "rss_mib": memory,
                    "ratio_to_peer": peer.map(|peer| hits / peer), "better": "higher",
                })
            },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn popular_ranks_come_often_and_rare_ones_sometimes() {
        let (zipf, rng) = (Zipf::new(10_000), SeededRng::new(1));
        let ranks: Vec<u64> = (0..20_000).map(|_| zipf.next(&rng)).collect();
        let first = ranks.iter().filter(|rank| **rank == 0).count();
        // One in the sum of all popularities, 15.7.
        assert!((1150..1400).contains(&first), "{first} of 20000");
        assert!(ranks.iter().any(|rank| *rank > 9000) && ranks.iter().all(|rank| *rank < 10_000));
    }

    #[test]
    fn keys_that_hit_are_read_from_the_answer() {
        let answer =
            b"VALUE key-000000000007 0 2\r\nvv\r\nVALUE key-000000000123 0 1\r\nv\r\nEND\r\n";
        assert_eq!(found(answer).unwrap(), [7, 123]);
        assert!(found(b"VALUE key-00000000000x 0 1\r\nv\r\nEND\r\n").is_err());
    }
}
