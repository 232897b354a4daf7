//! Hot paths as named cases: `hotpaths CASE ITERATIONS` runs one, `hotpaths list` names them all,
//! `hotpaths features` says what the processor (or valgrind's) offers. Run by
//! `cargo xtask callgrind`, which counts instructions; measures nothing itself.
//!
//! A case prepares its input and returns what is repeated. It must do the same in every run: no
//! clock, no randomness, no map with a random hasher.
#![forbid(unsafe_code)]

mod cached;
mod ridden;
mod stored;

use holdfast_base::checksum::{crc32c, crc32c_combine};
use holdfast_base::frame::{self, Decoded, FrameKind};
use std::hint::black_box;

struct Case {
    name: &'static str,
    /// Enough that the first rounds (cold caches, lazy set-up) do not count.
    iterations: u32,
    prepare: fn() -> Box<dyn FnMut()>,
}

const CASES: &[Case] = &[
    Case { name: "crc32c_64", iterations: 10_000, prepare: || crc(64) },
    Case { name: "crc32c_4096", iterations: 1_000, prepare: || crc(4096) },
    Case { name: "crc32c_65536", iterations: 100, prepare: || crc(65536) },
    Case { name: "frame_encode_64", iterations: 10_000, prepare: frame_encode },
    Case { name: "frame_decode_64", iterations: 10_000, prepare: frame_decode },
    Case { name: "crc32c_combine_64k", iterations: 10_000, prepare: combine },
    Case { name: "slot_lookup", iterations: 10_000, prepare: stored::slot_lookup },
    Case { name: "name_lookup", iterations: 10_000, prepare: stored::name_lookup },
    Case { name: "name_lookup_16", iterations: 1_000, prepare: stored::name_lookup_16 },
    Case { name: "small_get_512", iterations: 1_000, prepare: stored::small_get },
    Case { name: "cache_get_100_keys", iterations: 1_000, prepare: cached::get_100_keys },
    Case { name: "cache_get_16_in_a_row", iterations: 1_000, prepare: cached::get_16_in_a_row },
    Case { name: "cache_set_16_in_a_row", iterations: 1_000, prepare: cached::set_16_in_a_row },
    Case { name: "file_info_encode", iterations: 10_000, prepare: stored::file_info_encode },
    Case { name: "file_info_decode", iterations: 10_000, prepare: stored::file_info_decode },
    Case { name: "slab_encode_1380_items", iterations: 50, prepare: ridden::slab_encode },
    Case { name: "slab_read_1380_items", iterations: 50, prepare: ridden::slab_read },
];

fn crc(len: usize) -> Box<dyn FnMut()> {
    let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
    Box::new(move || {
        black_box(crc32c(black_box(&bytes)));
    })
}

fn combine() -> Box<dyn FnMut()> {
    Box::new(|| {
        black_box(crc32c_combine(black_box(0x1234_5678), black_box(7), 64 << 10));
    })
}

fn encode(out: &mut Vec<u8>) {
    out.clear();
    frame::encode(out, FrameKind::Request, 0x0301, 77, 1500, 4096, |meta| {
        meta.extend_from_slice(black_box(&[7; 64]));
    });
}

fn frame_encode() -> Box<dyn FnMut()> {
    let mut out = Vec::new();
    Box::new(move || {
        encode(&mut out);
        black_box(&out);
    })
}

fn frame_decode() -> Box<dyn FnMut()> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    Box::new(move || assert!(matches!(frame::decode(black_box(&bytes)), Ok(Decoded::Frame(_)))))
}

/// Those that choose between kernels anywhere below.
fn features() -> String {
    let mut found = vec![std::env::consts::ARCH];
    #[cfg(target_arch = "x86_64")]
    for (name, there) in [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("vpclmulqdq", is_x86_feature_detected!("vpclmulqdq")),
    ] {
        if there {
            found.push(name);
        }
    }
    found.join(" ")
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => CASES.iter().for_each(|case| println!("{} {}", case.name, case.iterations)),
        ["features"] => println!("{}", features()),
        [name, iterations] => {
            let case = CASES.iter().find(|case| case.name == name);
            let (Some(case), Ok(iterations)) = (case, iterations.parse::<u32>()) else {
                eprintln!("run case `{name}` {iterations} times: see `hotpaths list`");
                return 2.into();
            };
            let mut run = (case.prepare)();
            for _ in 0..iterations {
                run();
            }
        }
        _ => {
            eprintln!("usage: hotpaths list | features | CASE ITERATIONS");
            return 2.into();
        }
    }
    0.into()
}
