//! Streams, small files, multifiles and tables, from the client to the disk and back.

mod common;

use common::{World, assert_same, pattern, replacing};
use holdfast_base::Kind;
use holdfast_base::limits::{BLOCK_BYTES, CHUNK_BYTES, PACKED_BYTES_MAX, SLICE_BYTES};
use holdfast_base::node::NodeKind;
use holdfast_client::{Client, NewFile};
use holdfast_node::{Keeper, KeeperOptions};
use holdfast_wire::file::Action;

/// Writes a stream in pieces of odd sizes.
fn write_oddly(client: &mut Client, path: &str, bytes: &[u8], sized: bool) {
    let new = NewFile::default();
    let mut writer = match sized {
        true => client.create_sized(path, &new, bytes.len() as u64).unwrap(),
        false => client.create(path, &new).unwrap(),
    };
    let mut rest = bytes;
    let mut size = 1;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(size.min(rest.len()));
        writer.write(now).unwrap();
        rest = later;
        size = (size * 3 + 1) % 3_000_017;
    }
    writer.close().unwrap();
}

fn around(size: u64) -> [usize; 3] {
    [size as usize - 1, size as usize, size as usize + 1]
}

#[test]
fn streams_of_every_size_come_back() {
    let world = World::new("sizes");
    let mut client = world.client();
    let mut sizes = vec![0, 1, 130 << 20];
    for size in [BLOCK_BYTES, SLICE_BYTES, PACKED_BYTES_MAX, CHUNK_BYTES] {
        sizes.extend(around(size));
    }
    for (i, size) in sizes.into_iter().enumerate() {
        let bytes = pattern(size, i as u64);
        for sized in [false, true] {
            let path = format!("/{size}-{sized}");
            write_oddly(&mut client, &path, &bytes, sized);
            assert_eq!(client.stat(&path).unwrap().size, size as u64);
            if sized {
                assert_same(&client.get(&path).unwrap(), &bytes, &path);
            } else {
                let mut read = Vec::new();
                let mut reader = client.open(&path).unwrap();
                std::io::Read::read_to_end(&mut reader, &mut read).unwrap();
                assert_same(&read, &bytes, &path);
            }
            client.delete(&path, false).unwrap();
        }
    }
}

#[test]
fn the_end_of_a_file_of_known_length_is_packed_and_of_an_unknown_one_raw() {
    let world = World::new("remainder");
    let mut client = world.client();
    let bytes = pattern(CHUNK_BYTES as usize + 100_000, 1);
    client.put_sized("/known", &bytes, &NewFile::default()).unwrap();
    write_oddly(&mut client, "/unknown", &bytes, false);
    let extents = |path: &str, client: &mut Client| {
        let file = client.stat(path).unwrap().id;
        let known = world.node().shards.root().read(|view, _| {
            view.extents(file).map(|(raw, last)| (raw.len(), last.map(|last| last.length)))
        });
        known.unwrap().unwrap()
    };
    assert_eq!(extents("/known", &mut client), (1, Some(100_000)));
    assert_eq!(extents("/unknown", &mut client), (2, None));
    assert_same(&client.get("/known").unwrap(), &bytes, "known");
    assert_same(&client.get("/unknown").unwrap(), &bytes, "unknown");
    let mut part = vec![0; 70_000];
    let mut reader = client.open("/known").unwrap();
    let at = CHUNK_BYTES as usize - 30_001;
    reader.read_exact_at(&mut part, at as u64).unwrap();
    assert_same(&part, &bytes[at..at + 70_000], "across chunk and remainder");
}

/// Every way to read, in any order, beside the bytes and a place in them.
#[test]
fn reads_and_seeks_in_any_order_give_what_lies_there() {
    let world = World::new("seek");
    let mut client = world.client();
    // Whole in one answer, a slice and a bit, and over the border of a chunk into what is packed.
    for size in [0, 5, 700_000, 2 * SLICE_BYTES as usize + 1, CHUNK_BYTES as usize + 900_000] {
        let bytes = pattern(size, 7);
        client.put_sized("/f", &bytes, &replacing()).unwrap();
        let mut reader = client.open("/f").unwrap();
        let mut place = 0_usize;
        let mut drawn = size as u64;
        let mut draw = |below: usize| {
            // Knuth's, of MMIX: what is drawn need not be good, only the same each time.
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (drawn >> 33) as usize % below.max(1)
        };
        for step in 0..300 {
            let borders = [0, SLICE_BYTES as usize, CHUNK_BYTES as usize, size];
            let near = (borders[draw(4)] + draw(20)).saturating_sub(10);
            let somewhere = if draw(2) == 0 { near } else { draw(size + 10) };
            let wanted = [1, 100, 70_000, SLICE_BYTES as usize, 3 * SLICE_BYTES as usize][draw(5)];
            match draw(4) {
                0 => {
                    reader.seek(somewhere as u64).unwrap();
                    place = somewhere.min(size);
                }
                1 => {
                    let from = somewhere.min(size);
                    let mut part = vec![0; wanted.min(size - from)];
                    reader.read_exact_at(&mut part, from as u64).unwrap();
                    assert_same(&part, &bytes[from..from + part.len()], "from a place");
                }
                2 => {
                    let ready = reader.next_bytes().unwrap().to_vec();
                    assert_eq!(ready.is_empty(), place == size, "{step}");
                    assert_same(&ready, &bytes[place..place + ready.len()], "ready");
                    let used = ready.len().min(wanted);
                    reader.consume(used);
                    place += used;
                }
                _ => {
                    let mut out = vec![0; wanted];
                    let read = reader.read(&mut out).unwrap();
                    assert_eq!(read == 0, place == size, "{step}");
                    assert_same(&out[..read], &bytes[place..place + read], "read on");
                    place += read;
                }
            }
            assert_eq!(reader.position(), place as u64, "{step} of {size}");
        }
    }
}

#[test]
fn a_file_that_turns_out_longer_or_shorter_than_said_is_stored_all_the_same() {
    let world = World::new("hint");
    let mut client = world.client();
    for (said, size) in [(10, 20 << 20), (100 << 20, 10), (CHUNK_BYTES, 1000), (0, 700_000)] {
        let bytes = pattern(size, said);
        let mut writer = client.create_sized("/f", &replacing(), said).unwrap();
        writer.write(&bytes).unwrap();
        writer.close().unwrap();
        assert_same(&client.get("/f").unwrap(), &bytes, &format!("said {said}"));
    }
}

#[test]
fn appends_are_acknowledged_one_by_one_and_survive_as_an_unclosed_file() {
    let mut world = World::new("salvage");
    let mut client = world.client();
    let bytes = pattern(3 << 20, 2);
    let mut writer = client.create("/lost", &NewFile::default()).unwrap();
    for part in bytes.chunks(100_001) {
        writer.append(part).unwrap();
    }
    drop(writer);
    assert_eq!(client.get("/lost").unwrap_err().kind, Kind::NotFound, "nobody sees it");
    drop(client);
    world.restart();
    let mut client = world.client();
    let unclosed = client.unclosed().unwrap();
    assert_eq!((unclosed.len(), unclosed[0].bytes), (1, bytes.len() as u64));
    assert_eq!(unclosed[0].path, "/lost");
    let (file, path) = (unclosed[0].file, "/found".to_owned());
    client.act(Action::Salvage { file, path }).unwrap();
    assert_same(&client.get("/found").unwrap(), &bytes, "salvaged");
    assert!(client.unclosed().unwrap().is_empty());
}

#[test]
fn an_abandoned_stream_leaves_nothing() {
    let world = World::new("abandon");
    let mut client = world.client();
    let mut writer = client.create("/f", &NewFile::default()).unwrap();
    writer.write(&pattern(2 << 20, 3)).unwrap();
    writer.flush().unwrap();
    writer.abandon().unwrap();
    assert!(client.unclosed().unwrap().is_empty());
    assert_eq!(client.stat("/f").unwrap_err().kind, Kind::NotFound);
    // The connection is in order: answers that nobody took do not stand in the way.
    client.put("/g", b"g", &NewFile::default()).unwrap();
    assert_eq!(client.outstanding(), 0);
}

#[test]
fn a_reader_of_a_replaced_file_gets_the_old_bytes_or_an_error_and_never_a_mix() {
    let world = World::new("replace");
    let mut client = world.client();
    let (old, new) = (pattern(3 << 20, 4), pattern(3 << 20, 5));
    let mut writer = client.create("/f", &NewFile::default()).unwrap();
    writer.write(&old).unwrap();
    writer.close().unwrap();
    let mut other = world.client();
    let mut reader = client.open("/f").unwrap();
    let first = reader.next_bytes().unwrap().to_vec();
    let mut writer = other.create("/f", &replacing()).unwrap();
    writer.write(&new).unwrap();
    writer.close().unwrap();
    let n = first.len();
    reader.consume(n);
    let mut read = first;
    match reader.read_to_end() {
        Ok(rest) => {
            read.extend(rest);
            assert_same(&read, &old, "within the grace");
        }
        Err(e) => assert_eq!(e.kind, Kind::NotFound, "{e}"),
    }
    drop(reader);
    assert_same(&client.get("/f").unwrap(), &new, "anew");
    assert_eq!(
        client.put("/f", b"third", &NewFile::default()).unwrap_err().kind,
        Kind::Exists,
        "replaced only when asked"
    );
}

#[test]
fn a_multifile_is_read_as_one_stream_in_the_order_of_its_names() {
    let world = World::new("multifile");
    let mut client = world.client();
    let new = NewFile { kind: NodeKind::MultiFile, ..NewFile::default() };
    client.make_dir("/bag", &new).unwrap();
    assert!(client.get("/bag").unwrap().is_empty());
    let sizes = [5, 0, 2 << 20, 0, 1 << 20, (1 << 20) + 1, 700_000, 0];
    let mut whole = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        let bytes = pattern(size, i as u64);
        write_oddly(&mut client, &format!("/bag/{i}"), &bytes, false);
        whole.extend(bytes);
    }
    assert_same(&client.get("/bag").unwrap(), &whole, "get");
    for size in [1000, SLICE_BYTES as usize, 3 << 20] {
        let mut reader = client.open("/bag").unwrap();
        assert_eq!(reader.info().size, 8, "its files");
        let (mut read, mut part) = (Vec::new(), vec![0; size]);
        loop {
            let n = reader.read(&mut part).unwrap();
            if n == 0 {
                break;
            }
            read.extend_from_slice(&part[..n]);
        }
        assert_same(&read, &whole, &format!("in parts of {size}"));
        assert_eq!(reader.read_exact_at(&mut part, 0).unwrap_err().kind, Kind::Invalid);
    }
    assert_eq!(client.outstanding(), 0);
}

#[test]
fn many_files_are_read_at_once_and_every_byte_arrives_once() {
    let world = World::new("multistream");
    let mut client = world.client();
    let sizes = [3 << 20, 0, 1, 1 << 20, (5 << 20) + 77, 600_000];
    let files: Vec<Vec<u8>> =
        sizes.iter().enumerate().map(|(i, size)| pattern(*size, i as u64)).collect();
    let mut paths = Vec::new();
    for (i, bytes) in files.iter().enumerate() {
        paths.push(format!("/{i}"));
        write_oddly(&mut client, &paths[i], bytes, i % 2 == 0);
    }
    for outstanding in [1, 3, 64] {
        let mut read: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        let mut total = 0;
        let mut stream = client.open_many(&paths, outstanding);
        while let Some(run) = stream.next_run().unwrap() {
            let at = run.offset as usize;
            read[run.file][at..at + run.bytes.len()].copy_from_slice(run.bytes);
            total += run.bytes.len();
        }
        assert_eq!(total, sizes.iter().sum::<usize>());
        assert!(read == files);
    }
    assert_eq!(client.outstanding(), 0);
    let mut stream = client.open_many(&["/nobody"], 4);
    assert_eq!(stream.next_run().unwrap_err().kind, Kind::NotFound);
}

#[test]
fn the_last_put_into_a_table_wins() {
    let world = World::new("table");
    let mut client = world.client();
    client.make_dir("/t", &NewFile { kind: NodeKind::Table, ..NewFile::default() }).unwrap();
    for value in ["one", "two", ""] {
        client.put("/t/key", value.as_bytes(), &NewFile::default()).unwrap();
        assert_eq!(client.get("/t/key").unwrap(), value.as_bytes());
    }
    let large = pattern(2 << 20, 1);
    write_oddly(&mut client, "/t/key", &large, false);
    assert_same(&client.get("/t/key").unwrap(), &large, "a stream into a table");
    let info = client.stat("/t/key").unwrap();
    assert_eq!((info.kind, client.stat("/t").unwrap().size), (NodeKind::KeyValue, 1));
}

#[test]
fn new_files_inherit_the_class_of_the_directory() {
    let world = World::new("class");
    let mut client = world.client();
    let class = Some("disk:memory".parse().unwrap());
    client.make_dir("/m", &NewFile { class, ..NewFile::default() }).unwrap();
    client.put("/m/small", b"x", &NewFile::default()).unwrap();
    write_oddly(&mut client, "/m/large", &pattern(1 << 20, 1), false);
    client.make_dir("/m/below", &NewFile::default()).unwrap();
    for path in ["/m/small", "/m/large", "/m/below"] {
        assert_eq!(client.stat(path).unwrap().class.to_string(), "disk:memory", "{path}");
    }
    let durable = NewFile { class: Some("disk".parse().unwrap()), ..NewFile::default() };
    client.put("/m/durable", b"x", &durable).unwrap();
    assert_eq!(client.stat("/m/durable").unwrap().class.to_string(), "disk:durable");
    let elsewhere = NewFile { class: Some("dram".parse().unwrap()), ..NewFile::default() };
    let refused = client.put("/dram", b"x", &elsewhere).unwrap_err();
    assert!(refused.message.contains("no store of that tier"), "{refused}");
}

#[test]
fn clients_work_side_by_side() {
    let world = World::new("concurrent");
    let threads: Vec<_> = (0..4u64)
        .map(|i| {
            let mut client = world.client();
            let (sender, receiver) = std::sync::mpsc::channel();
            let task = holdfast_env::tasks::spawn("client", move || {
                for round in 0..3 {
                    let bytes = pattern(1_500_000, i * 10 + round);
                    let path = format!("/{i}-{round}");
                    write_oddly(&mut client, &path, &bytes, round == 1);
                    for key in 0..20 {
                        let put = client.put(&format!("{path}-{key}"), &bytes[..key], &replacing());
                        put.unwrap();
                    }
                    assert_same(&client.get(&path).unwrap(), &bytes, &path);
                }
                sender.send(()).unwrap();
            });
            (task.unwrap(), receiver)
        })
        .collect();
    for (task, done) in threads {
        done.recv().unwrap();
        task.join();
    }
    assert_eq!(world.client().usage("/").unwrap().files, 4 * 3 * 21);
}

#[test]
fn answers_are_taken_in_any_order() {
    let world = World::new("tickets");
    let mut client = world.client();
    let puts: Vec<_> = (0..50)
        .map(|i| client.submit_put(&format!("/{i}"), &[i; 100], &NewFile::default()).unwrap())
        .collect();
    for ticket in puts.into_iter().rev() {
        client.wait_put(ticket).unwrap();
    }
    let mut gets: std::collections::HashMap<_, u8> =
        (0..50).map(|i| (client.submit_get(&format!("/{i}")).unwrap(), i)).collect();
    let stat = client.submit_stat("/7", false).unwrap();
    let mut stats = 0;
    while let Some(ticket) = client.wait_any() {
        if ticket == stat {
            assert_eq!(client.wait_stat(ticket).unwrap().size, 100);
            stats += 1;
            continue;
        }
        let i = gets.remove(&ticket).unwrap();
        assert_eq!(client.wait_get(&format!("/{i}"), ticket).unwrap(), [i; 100]);
    }
    assert_eq!((stats, gets.len()), (1, 0));
}

#[expect(clippy::disallowed_methods, reason = "looks at the store's files behind its back")]
#[test]
fn a_damaged_block_is_an_error_and_gives_no_bytes() {
    let world = World::new("damaged");
    let mut client = world.client();
    let bytes = pattern(2 << 20, 6);
    write_oddly(&mut client, "/f", &bytes, false);
    // The store seals in the background; a stat of the chunk says when.
    let chunks = world.data.join("chunks");
    let sealed = || {
        let names = std::fs::read_dir(&chunks).unwrap().map(|entry| entry.unwrap().path());
        names.into_iter().find(|path| path.extension().is_some_and(|e| e == "chunk"))
    };
    let path = loop {
        match sealed() {
            Some(path) => break path,
            None => std::thread::yield_now(),
        }
    };
    let stored = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let needle = &bytes[1_000_000..1_000_064];
    let mut content = vec![0; stored.metadata().unwrap().len() as usize];
    std::os::unix::fs::FileExt::read_exact_at(&stored, &mut content, 0).unwrap();
    let at = content.windows(64).position(|window| window == needle).unwrap() as u64;
    std::os::unix::fs::FileExt::write_all_at(&stored, &[!needle[0]], at).unwrap();
    assert_eq!(client.get("/f").unwrap_err().kind, Kind::Corrupt);
    let mut reader = client.open("/f").unwrap();
    let mut read = Vec::new();
    let error = loop {
        match reader.next_bytes() {
            Ok(ready) => read.extend_from_slice(ready),
            Err(e) => break e,
        }
        reader.consume(SLICE_BYTES as usize);
    };
    assert_eq!(error.kind, Kind::Corrupt, "{error}");
    assert!(read.len() <= 1_000_000 && bytes.starts_with(&read), "only what is right");
    let mut part = vec![0; 100_000];
    reader.read_exact_at(&mut part, 1 << 20).unwrap();
    assert_same(&part, &bytes[1 << 20..(1 << 20) + 100_000], "blocks that are not damaged");
}

/// Objects of up to 16 MiB are packed, and a small store has chunks of 4. One that filled its
/// chunk but for the checksums beside it never fitted: chunk after chunk was made for it, for ever.
#[test]
fn an_object_as_large_as_a_chunk_gets_one_that_takes_it() {
    const MIB: usize = 1 << 20;
    let world = World::with_chunks("large-objects", MIB as u64);
    let mut client = world.client();
    for (i, bytes) in [MIB - 5000, MIB - 1, MIB, MIB + 1, 5 * MIB].into_iter().enumerate() {
        let (path, bytes) = (format!("/{i}"), pattern(bytes, i as u64));
        client.put(&path, &bytes, &NewFile::default()).unwrap();
        assert_same(&client.get(&path).unwrap(), &bytes, &path);
    }
}

/// Files that were begun and never closed stayed for ever, each with a whole chunk of space: 393
/// MiB for 3.3 MiB of them. Their chunk ends first, without loss, and a writer that lives goes on
/// in another one; a long time after that the file itself ends.
#[test]
fn a_file_that_nobody_writes_gives_its_space_back_and_ends_in_the_end() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let world = World::new("forgotten");
    let mut client = world.client();
    let options = KeeperOptions { scrub_bytes_per_second: 0, ..KeeperOptions::default() };
    let mut keeper = Keeper::new(world.node().clone(), options);
    // What chunks take: the store's journal comes and goes beside them.
    let chunks = || world.node().stores.iter().flat_map(|own| own.store.list());
    let used = || chunks().map(|info| info.stored_bytes).sum::<u64>();
    let mut slow = client.create("/slow", &NewFile::default()).unwrap();
    slow.append(b"first, ").unwrap();
    let mut other = world.client();
    let mut gone = other.create("/gone", &NewFile::default()).unwrap();
    gone.append(b"forgotten").unwrap();
    drop(gone);
    drop(other);
    assert!(used() > 2 * CHUNK_BYTES);
    let mut now_ns = 0;
    let mut pass = |hours: u64| {
        for _ in 0..hours * 9 {
            now_ns += HOUR_NS / 9;
            keeper.step(now_ns);
        }
    };
    pass(3);
    assert!(used() < 1 << 20, "{} bytes", used());
    assert_eq!(client_unclosed(&world), 2, "all of it can be salvaged");
    slow.append(b"then, ").unwrap();
    // A week and more, in which one of them is written now and then.
    for _ in 0..4 {
        pass(2 * 24);
        slow.append(b"now and then, ").unwrap();
    }
    assert_eq!(client_unclosed(&world), 1, "the one that is written stays");
    slow.append(b"last.").unwrap();
    slow.close().unwrap();
    let text = b"first, then, now and then, now and then, now and then, now and then, last.";
    assert_eq!(client.get("/slow").unwrap(), text);
    assert_eq!(client_unclosed(&world), 0);
}

fn client_unclosed(world: &World) -> usize {
    world.client().unclosed().unwrap().len()
}
