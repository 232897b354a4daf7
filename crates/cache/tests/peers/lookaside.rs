//! A cache beside a database, with our cache and with memcached as its servers: what happens while a row is
//! loaded decides whether it may be stored.

use super::cache;
use super::memcached::Memcached;
use holdfast_base::{Error, Kind, Result};
use holdfast_cache_client::lookaside::standing::lease_key;
use holdfast_cache_client::{CacheClientOptions, Client, Invalidated, Lookaside, LookasideOptions};
use holdfast_env::tasks;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn lookaside(servers: &[SocketAddr], options: LookasideOptions) -> Lookaside {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    Lookaside::new(&servers, CacheClientOptions::default(), options).unwrap()
}

fn client(servers: &[SocketAddr]) -> Client {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    Client::new(&servers, CacheClientOptions::default()).unwrap()
}

fn row(text: &str) -> Result<Option<Vec<u8>>> {
    Ok(Some(text.as_bytes().to_vec()))
}

fn is_cached() -> Result<Option<Vec<u8>>> {
    panic!("loaded again")
}

/// Each rule with both servers.
fn with_each(test: impl Fn(&dyn Fn() -> (SocketAddr, Box<dyn std::any::Any>))) {
    test(&|| {
        let server = cache();
        (server.tcp_addresses()[0], Box::new(server))
    });
    let Some(first) = Memcached::start() else { return };
    drop(first);
    test(&|| {
        let server = Memcached::start().unwrap();
        (server.address, Box::new(server))
    });
}

/// A reader misses and reads the old row; an invalidation passes; the reader stores what it read. With a
/// plain set it stays for good: the same is done with one, to see that.
#[test]
fn a_row_that_was_loaded_before_an_invalidation_is_not_stored_behind_it() {
    with_each(|start| {
        let (server, _runs) = start();
        let mut plain = client(&[server]);
        let marked = Invalidated::Marked { takes_stale: false };
        for (stale_s, invalidated) in [(0, Invalidated::Deleted), (0, marked), (30, marked)] {
            let options = LookasideOptions { invalidated, ..LookasideOptions::default() };
            let mut reader = lookaside(&[server], options);
            let key = format!("price:{stale_s}:{invalidated:?}").replace(' ', "");
            let key = key.as_bytes();
            let got = reader.get(key, || {
                plain.invalidate(&[key], stale_s).unwrap();
                row("old")
            });
            assert_eq!(got.unwrap().unwrap(), b"old", "who began before may read it");
            assert_eq!(reader.get(key, || row("new")).unwrap().unwrap(), b"new");
            assert_eq!(reader.get(key, is_cached).unwrap().unwrap(), b"new");
            let counts = reader.counts();
            assert_eq!((counts.refused, counts.filled), (1, 1), "{invalidated:?}");
            assert_eq!((counts.hits, counts.unguarded), (1, 0), "{invalidated:?}");
        }

        let was_missing = plain.get(b"plain").unwrap().is_none();
        plain.invalidate(&[b"plain"], 0).unwrap();
        plain.set(b"plain", b"old", 0).unwrap();
        assert_eq!(
            (was_missing, plain.get(b"plain").unwrap().as_deref()),
            (true, Some(&b"old"[..]))
        );
    });
}

/// A server that starts anew counts its tokens anew: the third of this life is the third of the last one,
/// and a token of then would let an old row in.
#[test]
fn a_token_does_not_outlive_its_connection() {
    let Some(first) = Memcached::start() else { return };
    let address = first.address;
    let mut reader = lookaside(&[address], LookasideOptions::default());
    let mut other = lookaside(&[address], LookasideOptions::default());
    let mut first = Some(first);
    let mut second = None;
    let got = reader.get(b"k", || {
        drop(first.take());
        second = Some(Memcached::start_at(address).unwrap());
        // The same token as before, and an item that waits for it.
        let (mut taken, mut tries) = (false, 0);
        while !taken {
            let _ = other.get(b"k", || {
                taken = true;
                Err(Error::retry("the reader dies before it fills"))
            });
            tries += 1;
            assert!(tries < 10_000, "the server is back");
        }
        let won = other.get(b"k", || row("new"));
        assert_eq!(won.unwrap().unwrap(), b"new");
        row("old")
    });
    assert_eq!(got.unwrap().unwrap(), b"old");
    assert_eq!(reader.get(b"k", || row("new")).unwrap().unwrap(), b"new");
    assert_eq!(reader.counts().refused, 1);
}

#[test]
fn a_thousand_keys_are_asked_for_and_filled_together() {
    with_each(|start| {
        let (servers, _run): (Vec<_>, Vec<_>) = (0..3).map(|_| start()).unzip();
        let mut reader = lookaside(&servers, LookasideOptions::default());
        let keys: Vec<String> = (0..1000).map(|i| format!("row:{i}")).collect();
        let mut loads = Vec::new();
        let mut read = |reader: &mut Lookaside| {
            let mut asked = 0;
            let values = reader.get_many(&keys, |numbers| {
                asked += numbers.len();
                // No row has the number 500, and that of 501 is empty.
                Ok(numbers
                    .iter()
                    .map(|n| match n {
                        500 => None,
                        501 => Some(Vec::new()),
                        n => Some(format!("value {n}").into_bytes()),
                    })
                    .collect())
            });
            loads.push(asked);
            values.unwrap()
        };
        let first = read(&mut reader);
        assert_eq!(first, read(&mut reader));
        assert_eq!((&first[499], &first[500]), (&Some(b"value 499".to_vec()), &None));
        assert_eq!(first[501].as_deref(), Some(&b""[..]));
        client(&servers).invalidate(&keys[..10], 0).unwrap();
        assert_eq!(first, read(&mut reader));
        assert_eq!(loads, [1000, 1, 11], "one row is never there");
        // Twice the same key: who waits for himself would wait for ever.
        let twice =
            reader.get_many(&["twice", "twice"], |n| Ok(vec![Some(b"x".to_vec()); n.len()]));
        assert_eq!(twice.unwrap(), [Some(b"x".to_vec()), Some(b"x".to_vec())]);
    });
}

/// Threads that all miss the same key: one loads, the others wait for it or take what was invalidated.
#[test]
fn of_many_readers_one_loads() {
    with_each(|start| {
        let (server, _runs) = start();
        let loads = Arc::new(AtomicU32::new(0));
        let read = |takes_stale: bool| {
            let readers: Vec<_> = (0..16)
                .map(|_| {
                    let loads = loads.clone();
                    let options = LookasideOptions {
                        invalidated: Invalidated::Marked { takes_stale },
                        patience_ms: 20_000,
                        ..LookasideOptions::default()
                    };
                    let reads = move || {
                        let mut reader = lookaside(&[server], options);
                        let load = || row(&loads.fetch_add(1, Ordering::Relaxed).to_string());
                        let value = reader.get(b"k", load).unwrap().unwrap();
                        (value, reader.counts().stale)
                    };
                    tasks::spawn("reader", move || drop(reads())).unwrap()
                })
                .collect();
            for reader in readers {
                reader.join();
            }
            loads.load(Ordering::Relaxed)
        };
        assert_eq!(read(false), 1);
        client(&[server]).invalidate(&[b"k"], 30).unwrap();
        assert_eq!(read(true), 2);
    });
}

/// What a server says to one meta command, in its first line.
fn said(server: SocketAddr, command: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Without a gutter all readers loaded what a dead server had, every time.
#[test]
fn while_a_server_is_dead_its_keys_are_in_the_gutter_and_told_what_changes() {
    with_each(|start| {
        let (gutter, _runs) = start();
        let dead = cache().tcp_addresses()[0];
        let marked = Invalidated::Marked { takes_stale: false };
        for (stale_s, invalidated, expiry_s, most_s) in [
            (0, Invalidated::Deleted, 0, 1000),
            (30, marked, 3000, 1000),
            (0, Invalidated::Deleted, 500, 500),
        ] {
            let options = LookasideOptions {
                invalidated,
                expiry_s,
                gutter: vec![gutter.to_string()],
                gutter_expiry_s: 1000,
                ..LookasideOptions::default()
            };
            let [mut reader, mut other] = [(); 2].map(|()| lookaside(&[dead], options.clone()));
            let key = format!("price:{stale_s}:{expiry_s}");
            let key = key.as_bytes();
            assert_eq!(reader.get(key, || row("1")).unwrap().unwrap(), b"1");
            let text = String::from_utf8_lossy(key);
            let left = said(gutter, &format!("mg {text} t"));
            let left_s = left.strip_prefix("HD t").and_then(|s| s.parse::<u32>().ok());
            assert!(left_s.is_some_and(|left_s| left_s > 0 && left_s <= most_s), "{left}");
            for reader in [&mut reader, &mut other] {
                assert_eq!(reader.get(key, is_cached).unwrap().unwrap(), b"1");
            }
            let mut invalidates = client(&[gutter]);
            let got = other.get(key, is_cached).unwrap();
            invalidates.invalidate(&[key], stale_s).unwrap();
            let late = reader.get(key, || {
                invalidates.invalidate(&[key], stale_s).unwrap();
                row("2")
            });
            assert_eq!((got.unwrap(), late.unwrap().unwrap()), (b"1".to_vec(), b"2".to_vec()));
            assert_eq!(other.get(key, || row("3")).unwrap().unwrap(), b"3");
            assert_eq!(reader.get(key, is_cached).unwrap().unwrap(), b"3");
            let counts = reader.counts();
            assert_eq!((counts.filled, counts.refused, counts.unguarded), (1, 1, 0), "{counts:?}");
        }
    });
}

/// One that was told nothing for a while is no better than one that is dead.
#[test]
fn a_gutter_counts_by_its_lease() {
    let gutter = cache();
    let address = gutter.tcp_addresses()[0];
    let options = LookasideOptions {
        server_lease: Some("main".to_owned()),
        gutter: vec![address.to_string()],
        ..LookasideOptions::default()
    };
    let dead = cache().tcp_addresses()[0];
    let mut reader = lookaside(&[dead], options.clone());
    assert_eq!(reader.get(b"k", || row("1")).unwrap().unwrap(), b"1");
    assert_eq!(reader.get(b"k", || row("2")).unwrap().unwrap(), b"2", "nothing was stored");
    assert_eq!((reader.counts().left_out, reader.counts().gutter), (2, 0));
    client(&[address]).set(&lease_key("main"), b"1", 0).unwrap();
    let mut reader = lookaside(&[dead], options);
    assert_eq!(reader.get(b"k", || row("3")).unwrap().unwrap(), b"3");
    assert_eq!(reader.get(b"k", is_cached).unwrap().unwrap(), b"3");
    assert_eq!((reader.counts().left_out, reader.counts().filled), (0, 1));
}

#[test]
fn what_cannot_be_done_is_said_and_what_servers_cannot_do_is_loaded() {
    let address = cache().tcp_addresses()[0];
    let mut reader = lookaside(&[address], LookasideOptions::default());
    assert_eq!(reader.get(b"k", || row("x")).unwrap().unwrap(), b"x", "its server is gone");
    assert_eq!((reader.counts().unguarded, reader.counts().filled), (1, 0));
    let wrong = reader.get(b"a b", is_cached).unwrap_err();
    assert!(wrong.kind == Kind::Invalid && wrong.message.contains("`a b`"), "{wrong:?}");
    let failed = reader.get(b"k", || Err(Error::retry("ask the database: it is away")));
    assert!(failed.unwrap_err().message.contains("away"));

    let short = LookasideOptions { lease_s: 1, ..LookasideOptions::default() };
    let refused = Lookaside::new(&["a:1"], CacheClientOptions::default(), short).err().unwrap();
    assert!(refused.message.contains("lease_s"), "{refused:?}");

    for (servers, options, what) in [
        (
            vec!["a:1", "b:1"],
            LookasideOptions { gutter: vec!["b:1".into()], ..LookasideOptions::default() },
            "`b:1`",
        ),
        (
            vec!["a:1"],
            LookasideOptions { gutter_expiry_s: 0, ..LookasideOptions::default() },
            "gutter_expiry_s",
        ),
    ] {
        let refused = Lookaside::new(&servers, CacheClientOptions::default(), options);
        let refused = refused.err().unwrap();
        assert!(refused.kind == Kind::Invalid && refused.message.contains(what), "{refused:?}");
    }

    // A value that no server takes is returned, and not kept.
    with_each(|start| {
        let (server, _runs) = start();
        let mut reader = lookaside(&[server], LookasideOptions::default());
        let large = "z".repeat(2 << 20);
        assert_eq!(reader.get(b"k", || row(&large)).unwrap().unwrap(), large.as_bytes());
        assert_eq!(reader.counts().fills_failed, 1);
    });
}
