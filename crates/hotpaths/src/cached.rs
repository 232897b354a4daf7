//! The cache's way from a request's bytes to its answer's, without sockets.

use holdfast_cache::{Local, Settings};
use holdfast_env::RealClock;
use std::hint::black_box;
use std::sync::Arc;

const KEYS: usize = 20_000;
/// Requests that are made before, of which each is said in turn.
const REQUESTS: usize = 64;

fn key(n: usize) -> String {
    format!("key-{n:012}")
}

fn set(n: usize) -> String {
    format!("set {} 0 0 64\r\n{}\r\n", key(n), "v".repeat(64))
}

/// Its clock is asked for the time at the start alone.
fn filled() -> Local {
    let settings = Settings { memory_bytes: 64 << 20, ..Settings::default() };
    let mut cache = Local::new(settings, Arc::new(RealClock::new())).expect("memory is there");
    for n in 0..KEYS {
        assert!(cache.say(set(n).as_bytes(), |answer| assert_eq!(answer, b"STORED\r\n")));
    }
    cache
}

/// Says one request after the other; each answer is so long.
fn repeated(request: impl Fn(&mut usize) -> String, answer_bytes: usize) -> Box<dyn FnMut()> {
    let mut cache = filled();
    let mut turn = 0;
    let requests: Vec<String> = (0..REQUESTS).map(|_| request(&mut turn)).collect();
    let mut at = 0;
    Box::new(move || {
        at = (at + 1) % REQUESTS;
        let mut bytes = 0;
        cache.say(requests[at].as_bytes(), |answer| bytes += black_box(answer).len());
        assert_eq!(bytes, answer_bytes);
    })
}

/// Jumps about, the same in every run.
fn next(turn: &mut usize) -> usize {
    *turn = (*turn + 7919) % KEYS;
    *turn
}

/// `VALUE key 0 64`, the value, line ends.
const VALUE_BYTES: usize = 6 + 16 + 7 + 64 + 2;

pub fn get_100_keys() -> Box<dyn FnMut()> {
    let request = |turn: &mut usize| {
        let keys: Vec<String> = (0..100).map(|_| key(next(turn))).collect();
        format!("get {}\r\n", keys.join(" "))
    };
    repeated(request, 100 * VALUE_BYTES + b"END\r\n".len())
}

pub fn get_16_in_a_row() -> Box<dyn FnMut()> {
    let request =
        |turn: &mut usize| (0..16).map(|_| format!("get {}\r\n", key(next(turn)))).collect();
    repeated(request, 16 * (VALUE_BYTES + b"END\r\n".len()))
}

pub fn set_16_in_a_row() -> Box<dyn FnMut()> {
    let request = |turn: &mut usize| (0..16).map(|_| set(next(turn))).collect();
    repeated(request, 16 * b"STORED\r\n".len())
}
