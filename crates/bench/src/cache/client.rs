//! The load that the shipped client makes: batches of single gets over UDP, as fast as its window
//! admits, each answer taken apart and every so many compared.

use super::keys;
use super::load::Ran;
use holdfast_base::{Error, Result};
use holdfast_cache_client::{Answer, Batch, CacheClientOptions, Client, Transport};
use holdfast_env::{Rng, SeededRng};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Made before anything is measured; they take turns.
const BATCHES: usize = 8;
const BATCH_GETS: usize = 8192;
/// One answer in so many is compared, byte for byte.
const COMPARED_EVERY: usize = 64;

/// Asks for keys 0 to `key_count` at random until `time` is over. Its latencies are the window's
/// own estimates of a round trip, one a batch; `Corrupt` for a value that was not stored.
pub fn run(target: SocketAddr, key_count: u64, value_bytes: usize, time: Duration) -> Result<Ran> {
    let rng = SeededRng::new(42);
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let mut batch = Batch::new();
        for _ in 0..BATCH_GETS {
            batch.get(keys::key(rng.next_u64() % key_count).as_bytes())?;
        }
        batches.push(batch);
    }
    let options = CacheClientOptions {
        gets: Transport::Udp,
        keys_per_request: 1,
        // Never asleep: waking us would be the server's work.
        spin: true,
        ..CacheClientOptions::default()
    };
    let mut client = Client::new(&[target.to_string()], options)?;
    let mut ran = Ran { requests: 0, seconds: 0.0, latencies_ns: Vec::new(), lost: 0, compared: 0 };
    let start = Instant::now();
    for round in 0.. {
        if start.elapsed() >= time {
            break;
        }
        let batch = &mut batches[round % BATCHES];
        client.run(batch)?;
        for (number, answer) in batch.answers().enumerate() {
            match answer {
                Answer::Hit { data, .. } => {
                    ran.requests += 1;
                    if number.is_multiple_of(COMPARED_EVERY) {
                        let wanted = batch.key(number).iter().cycle().take(value_bytes);
                        if !data.iter().eq(wanted) {
                            return Err(Error::corrupt("load a cache: a value is wrong"));
                        }
                        ran.compared += 1;
                    }
                }
                Answer::Lost => ran.lost += 1,
                other => {
                    return Err(Error::corrupt(format!("load a cache: it answers {other:?}")));
                }
            }
        }
        ran.latencies_ns.push(client.window().round_trip_ns());
    }
    ran.seconds = start.elapsed().as_secs_f64();
    Ok(ran)
}
