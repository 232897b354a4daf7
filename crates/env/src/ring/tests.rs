//! One process plays both sides; what a real server does with hostile clients is tested in
//! `client::connection`.

use super::*;
use crate::{Rng, SeededRng};
use std::collections::VecDeque;

fn pair() -> (Ring, Ring) {
    let (client, fd) = Ring::create().unwrap();
    (client, Ring::open(&fd).unwrap())
}

/// Reads into the two targets as the connection would, by one of the two calls.
fn read(ring: &mut Ring, append: bool, first: usize, second: usize) -> Vec<u8> {
    let (mut target, mut tail) = (vec![0; first], vec![0; second]);
    if append {
        target.clear();
        target.extend_from_slice(b"front");
        let (appended, more) = ring.read_append(&mut target, 5 + first, &mut tail).unwrap();
        assert!(target.starts_with(b"front") && target.len() == 5 + appended);
        return [&target[5..], &tail[..more]].concat();
    }
    let bytes = ring.read(&mut target, &mut tail).unwrap();
    target.extend_from_slice(&tail);
    target.truncate(bytes);
    target
}

#[test]
fn streams_behave_as_queues_do_over_many_laps() {
    for seed in 0..8 {
        let rng = SeededRng::new(seed);
        let below = |n: usize| rng.next_u64() as usize % n;
        let (mut client, mut server) = pair();
        let mut models = [VecDeque::new(), VecDeque::new()];
        let mut moved = 0;
        let mut next = 0u8;
        while moved < 12 * RING_BYTES {
            let way = below(2);
            let (from, to) =
                if way == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let model: &mut VecDeque<u8> = &mut models[way];
            let bound = [3, 100, 70_000, RING_BYTES][below(4)];
            if below(2) == 0 {
                let mut parts = Vec::new();
                for _ in 0..below(4) {
                    let part: Vec<u8> =
                        (0..below(bound)).map(|i| next.wrapping_add(i as u8)).collect();
                    next = next.wrapping_add(101);
                    parts.push(part);
                }
                let slices: Vec<IoSlice<'_>> =
                    parts.iter().map(|part| IoSlice::new(part)).collect();
                let whole = parts.concat();
                let written = from.write(&slices).unwrap();
                assert_eq!(written, whole.len().min(RING_BYTES - model.len()), "seed {seed}");
                model.extend(&whole[..written]);
            } else {
                let (first, second) = (below(bound), below(bound));
                let got = read(to, below(2) == 0, first, second);
                let expected: Vec<u8> = model.drain(..model.len().min(first + second)).collect();
                assert!(got == expected, "seed {seed}");
                moved += got.len();
            }
            assert_eq!(to.readable().unwrap(), model.len(), "seed {seed}");
            assert_eq!(from.writable().unwrap(), RING_BYTES - model.len(), "seed {seed}");
        }
    }
}

#[test]
fn two_threads_move_every_byte_once_and_in_order() {
    const BYTES: usize = 40 * RING_BYTES;
    let (mut client, mut server) = pair();
    let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 24) as u8;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut done = 0;
            while done < BYTES {
                let piece: Vec<u8> =
                    (done..BYTES.min(done + 1 + done % 50_000)).map(byte).collect();
                let written = client.write(&[IoSlice::new(&piece)]).unwrap();
                if written == 0 {
                    std::thread::yield_now();
                }
                done += written;
            }
        });
        let mut done = 0;
        while done < BYTES {
            let mut target = vec![0; 1 + done % 60_000];
            let bytes = server.read(&mut target, &mut []).unwrap();
            if bytes == 0 {
                std::thread::yield_now();
            }
            assert!((done..).zip(&target[..bytes]).all(|(i, b)| byte(i) == *b), "behind {done}");
            done += bytes;
        }
    });
}

#[test]
fn positions_outside_the_ring_or_going_back_are_refused() {
    let ring = RING_BYTES as u64;
    // After 100 bytes written and 40 of them taken, what each side may see of the other.
    for (written, sound) in
        [(100, true), (101, true), (ring + 40, true), (ring + 41, false), (99, false), (0, false)]
            .into_iter()
            .chain([(u64::MAX, false), (1 << 63, false)])
    {
        let (mut client, mut server) = pair();
        client.write(&[IoSlice::new(&[7; 100])]).unwrap();
        server.read(&mut [0; 40], &mut []).unwrap();
        client.mapping.atomic(REQUESTS.written_at).store(written, Ordering::Release);
        assert_eq!(server.readable().is_ok(), sound, "written {written}");
        let mut memory = vec![0; 2 * RING_BYTES];
        match server.read(&mut memory, &mut []) {
            Ok(bytes) => assert!(sound && bytes as u64 == written - 40),
            Err(e) => assert!(!sound && e.kind() == io::ErrorKind::InvalidData, "{e}"),
        }
    }
    for (taken, sound) in [(40, true), (100, true), (101, false), (39, false), (u64::MAX, false)] {
        let (mut client, mut server) = pair();
        client.write(&[IoSlice::new(&[7; 100])]).unwrap();
        server.read(&mut [0; 40], &mut []).unwrap();
        assert_eq!(client.writable().unwrap(), RING_BYTES - 60);
        server.mapping.atomic(REQUESTS.taken_at).store(taken, Ordering::Release);
        assert_eq!(client.writable().is_ok(), sound, "taken {taken}");
        assert_eq!(client.write(&[IoSlice::new(&[1])]).is_ok(), sound, "taken {taken}");
    }
}

/// A side that relied on its own positions in the shared page could be led anywhere.
#[test]
fn what_the_peer_writes_over_our_own_positions_changes_nothing() {
    let (mut client, mut server) = pair();
    client.write(&[IoSlice::new(b"abc")]).unwrap();
    client.mapping.atomic(REQUESTS.taken_at).store(u64::MAX, Ordering::Release);
    client.mapping.atomic(ANSWERS.written_at).store(u64::MAX, Ordering::Release);
    assert_eq!(read(&mut server, false, 3, 0), b"abc");
    server.write(&[IoSlice::new(b"def")]).unwrap();
    assert_eq!(read(&mut client, false, 3, 0), b"def");
}

#[test]
fn only_a_sealed_file_of_the_right_size_and_version_is_mapped() {
    let why = |fd: &OwnedFd| Ring::open(fd).map(|_| ()).unwrap_err().message;
    let unsealed = memfd::create("test", FILE_BYTES as u64).unwrap();
    assert!(why(&unsealed).contains("not sealed"));
    let short = memfd::create("test", 4096).unwrap();
    memfd::seal_size(&short).unwrap();
    assert!(why(&short).contains("4096 bytes instead of 528384"));
    let blank = memfd::create("test", FILE_BYTES as u64).unwrap();
    memfd::seal_size(&blank).unwrap();
    assert!(why(&blank).contains("header"));
    let (_, fd) = Ring::create().unwrap();
    assert!(Ring::open(&fd).is_ok());
    let read_only = crate::region::memfd::reopen_read_only(&fd).unwrap();
    assert!(Ring::open(&read_only).is_err(), "cannot be written");
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(Ring::open(&socket.into()).is_err(), "not memory at all");
}
