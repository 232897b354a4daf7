//! kill -9 under load: what was acknowledged is there, what was not is there whole or not at all.

use crate::common::{Node, Random, Scratch, bytes};
use holdfast_base::{Error, Kind};
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile};
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};

const KILLS: usize = 50;
const LOADERS: u64 = 3;
/// Names that one loader works on: few, so that overwrites and renames meet.
const NAMES: u64 = 40;
const STREAM_BYTES_MAX: u64 = 3 << 20;

/// What a file holds: made from a number, so that models are small and mixed-up bytes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    seed: u64,
    len: usize,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        static POOL: OnceLock<Vec<u8>> = OnceLock::new();
        let pool = POOL.get_or_init(|| bytes(99, (2 * STREAM_BYTES_MAX) as usize));
        let start = (self.seed % STREAM_BYTES_MAX) as usize;
        let mut content = pool[start..start + self.len].to_vec();
        let head = self.len.min(8);
        content[..head].copy_from_slice(&self.seed.to_le_bytes()[..head]);
        content
    }
}

type Files = BTreeMap<String, Content>;

/// What one loader knows of its directory.
#[derive(Clone, Default)]
struct Known {
    acknowledged: Files,
    /// Operations under way when the node went: the directory may look like this instead, file
    /// by file for puts, as a whole for the others.
    in_doubt: InDoubt,
    /// Streams that never closed: what they wrote, and how much of it was acknowledged.
    unclosed: BTreeMap<String, (Content, usize)>,
}

#[derive(Clone, Default)]
enum InDoubt {
    #[default]
    Nothing,
    Puts(Files),
    Either(Files),
}

struct Loader {
    client: Client,
    random: Random,
    directory: String,
    known: Known,
    acknowledged: Sender<()>,
    next_stream: u64,
}

fn replace() -> NewFile {
    NewFile { replace: true, parents: true, ..NewFile::default() }
}

impl Loader {
    /// Works until the node goes.
    fn run(mut self) -> (Known, Random, u64) {
        let e = loop {
            let done = match self.random.below(10) {
                0..6 => self.puts(),
                6 => self.rename(),
                7 => self.delete(),
                _ => self.stream(),
            };
            if let Err(e) = done {
                break e;
            }
            self.known.in_doubt = InDoubt::Nothing;
            // Whoever counts may have had enough; then the end is near.
            let _ = self.acknowledged.send(());
        };
        assert_eq!(e.kind, Kind::Retry, "{e}");
        (self.known, self.random, self.next_stream)
    }

    fn name(&mut self) -> String {
        format!("{}/f{}", self.directory, self.random.below(NAMES))
    }

    fn content(&mut self, bytes_max: u64) -> Content {
        Content { seed: self.random.next(), len: self.random.below(bytes_max) as usize }
    }

    /// Some puts in flight together, of different names.
    fn puts(&mut self) -> Result<(), Error> {
        let mut puts = Files::new();
        for _ in 0..1 + self.random.below(8) {
            let bytes_max = if self.random.below(20) == 0 { 1 << 20 } else { 10_000 };
            let (name, content) = (self.name(), self.content(bytes_max));
            puts.insert(name, content);
        }
        self.known.in_doubt = InDoubt::Puts(puts.clone());
        let mut tickets = Vec::new();
        for (name, content) in &puts {
            tickets.push(self.client.submit_put(name, &content.bytes(), &replace())?);
        }
        for ((name, content), ticket) in puts.into_iter().zip(tickets) {
            self.client.wait(ticket)?;
            self.known.acknowledged.insert(name, content);
        }
        Ok(())
    }

    /// One operation on names whose outcome is `after`.
    fn change(
        &mut self,
        after: Files,
        change: impl FnOnce(&mut Client) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.known.in_doubt = InDoubt::Either(after.clone());
        change(&mut self.client)?;
        self.known.acknowledged = after;
        Ok(())
    }

    fn rename(&mut self) -> Result<(), Error> {
        let (from, to) = (self.name(), self.name());
        let mut after = self.known.acknowledged.clone();
        match after.remove(&from) {
            Some(content) if from != to => {
                after.insert(to.clone(), content);
                self.change(after, |client| client.rename(&from, &to, true))
            }
            _ => Ok(()),
        }
    }

    fn delete(&mut self) -> Result<(), Error> {
        let name = self.name();
        let mut after = self.known.acknowledged.clone();
        match after.remove(&name) {
            Some(_) => self.change(after, |client| client.delete(&name, false)),
            None => Ok(()),
        }
    }

    fn stream(&mut self) -> Result<(), Error> {
        self.next_stream += 1;
        // A name of its own: what an unclosed stream was is told by it.
        let name = format!("{}/s{}", self.directory, self.next_stream);
        let content = self.content(STREAM_BYTES_MAX);
        let bytes = content.bytes();
        self.known.in_doubt = InDoubt::Puts([(name.clone(), content)].into());
        self.known.unclosed.insert(name.clone(), (content, 0));
        let mut writer = self.client.create(&name, &replace())?;
        let (first, second) = bytes.split_at(bytes.len() / 2);
        writer.write(first)?;
        if first.len() > 600_000 {
            writer.flush()?;
            self.known.unclosed.insert(name.clone(), (content, first.len()));
        }
        writer.write(second)?;
        writer.close()?;
        self.known.unclosed.remove(&name);
        self.known.acknowledged.insert(name.clone(), content);
        // Room, and something to free.
        let mut after = self.known.acknowledged.clone();
        after.remove(&name);
        if self.random.below(8) != 0 {
            self.change(after, |client| client.delete(&name, false))?;
        }
        Ok(())
    }
}

/// What is really in a directory.
fn read(client: &mut Client, directory: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    match client.list(directory, "") {
        Ok(page) => {
            assert!(!page.more);
            for entry in page.entries {
                let name = format!("{directory}/{}", entry.name);
                let bytes = client.get(&name).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(bytes.len() as u64, entry.info.size, "{name}");
                found.insert(name, bytes);
            }
        }
        Err(e) => assert_eq!(e.kind, Kind::NotFound, "{e}"),
    }
    found
}

fn is(found: &BTreeMap<String, Vec<u8>>, expected: &Files) -> bool {
    found.len() == expected.len()
        && expected.iter().all(|(name, content)| found.get(name) == Some(&content.bytes()))
}

/// Checks a directory against what is known of it and answers how the doubts were resolved.
fn verify(client: &mut Client, directory: &str, known: Known) -> Files {
    let found = read(client, directory);
    match known.in_doubt {
        InDoubt::Nothing => {}
        InDoubt::Either(after) => {
            if is(&found, &after) {
                return after;
            }
        }
        InDoubt::Puts(puts) => {
            let mut resolved = known.acknowledged;
            for (name, content) in puts {
                if found.get(&name) == Some(&content.bytes()) {
                    resolved.insert(name, content);
                }
            }
            assert_holds(&found, &resolved);
            return resolved;
        }
    }
    assert_holds(&found, &known.acknowledged);
    known.acknowledged
}

#[track_caller]
fn assert_holds(found: &BTreeMap<String, Vec<u8>>, expected: &Files) {
    for (name, content) in expected {
        let there =
            found.get(name).unwrap_or_else(|| panic!("`{name}` was acknowledged and is lost"));
        assert!(*there == content.bytes(), "`{name}`: {} bytes, not {content:?}", there.len());
    }
    for name in found.keys() {
        assert!(expected.contains_key(name), "`{name}` was never made whole, or was deleted");
    }
}

fn impatient(endpoint: &Endpoint) -> Client {
    let options = ClientOptions { reconnects_max: 0, ..ClientOptions::default() };
    Client::connect(endpoint, &options).unwrap()
}

#[test]
fn fifty_kills_under_load_lose_nothing_that_was_acknowledged() {
    let scratch = Scratch::new();
    let mut node = Node::start(&scratch.path("data"));
    let mut random = Random::new(2026);
    let mut known: Vec<(Files, Random, u64)> =
        (0..LOADERS).map(|i| (Files::new(), Random::new(i), 0)).collect();
    let mut unclosed = BTreeMap::new();
    for kill in 0..KILLS {
        let (sender, receiver) = mpsc::channel();
        let endpoint = node.endpoint();
        let loaders: Vec<_> = known
            .into_iter()
            .enumerate()
            .map(|(i, (acknowledged, random, next_stream))| {
                let loader = Loader {
                    client: impatient(&endpoint),
                    random,
                    directory: format!("/load-{i}"),
                    known: Known { acknowledged, ..Known::default() },
                    acknowledged: sender.clone(),
                    next_stream,
                };
                std::thread::spawn(move || loader.run())
            })
            .collect();
        drop(sender);
        for _ in 0..1 + random.below(30) {
            receiver.recv().expect("a loader ended before the kill");
        }
        let data = node.kill();
        let ended: Vec<_> = loaders.into_iter().map(|loader| loader.join().unwrap()).collect();

        node = Node::start(&data);
        let mut client = node.client();
        known = Vec::new();
        for (i, (mut was, random, next_stream)) in ended.into_iter().enumerate() {
            unclosed.append(&mut was.unclosed);
            let resolved = verify(&mut client, &format!("/load-{i}"), was);
            known.push((resolved, random, next_stream));
        }
        let findings = client.status().unwrap().findings;
        let bad = findings.iter().find(|f| !f.contains("ended within a write"));
        assert_eq!(bad, None, "after kill {kill}");
    }
    salvage(&mut node.client(), &unclosed);
    let data = node.stop();
    let doctor =
        crate::common::finish(crate::common::binary().args(["doctor", "--data"]).arg(&data), b"");
    assert!(
        doctor.out.ends_with(b"is well\n")
            || String::from_utf8_lossy(&doctor.out).contains("ended within a write"),
        "{doctor:?}"
    );
}

/// Streams that a kill cut off have no name; each can be given one, with what was acknowledged.
fn salvage(client: &mut Client, written: &BTreeMap<String, (Content, usize)>) {
    let unclosed = client.unclosed().unwrap();
    assert!(!unclosed.is_empty(), "no kill hit a stream: change the seed");
    for (i, file) in unclosed.into_iter().enumerate() {
        let (content, acknowledged) = written[&file.path];
        let path = format!("/salvaged-{i}");
        let salvage = holdfast_wire::file::Action::Salvage { file: file.file, path: path.clone() };
        client.act(salvage).unwrap();
        let found = client.get(&path).unwrap();
        assert!(found.len() >= acknowledged, "{} of {acknowledged} are left", found.len());
        assert!(content.bytes().starts_with(&found), "`{}` is not what was written", file.path);
    }
    assert!(client.unclosed().unwrap().is_empty());
}

/// The node was killed and came back before the next write. The stream once gave up at the first
/// lost connection.
#[test]
fn a_stream_goes_on_when_its_node_was_killed_and_started_again() {
    let scratch = Scratch::new();
    let mut node = Node::start(&scratch.path("data"));
    let mut client = node.client();
    let content = bytes(5, 30 << 20);
    let mut writer = client.create("/stream", &NewFile::default()).unwrap();
    for (i, part) in content.chunks(5 << 20).enumerate() {
        writer.write(part).unwrap();
        if i % 2 == 0 {
            writer.flush().unwrap();
        }
        node = Node::start(&node.kill());
    }
    writer.close().unwrap();
    assert!(node.client().get("/stream").unwrap() == content);
    assert!(node.client().unclosed().unwrap().is_empty());
    let node = Node::start(&node.stop());
    assert!(node.client().get("/stream").unwrap() == content);
}

/// Kills meet whatever the stream is doing: appends, allocations, the close.
#[test]
fn a_stream_goes_on_over_kills_at_any_moment() {
    let scratch = Scratch::new();
    let mut node = Node::start(&scratch.path("data"));
    let content = Arc::new(bytes(6, 20 << 20));
    let mut random = Random::new(11);
    let (progress, watch) = mpsc::channel();
    let writer = {
        let (endpoint, content) = (node.endpoint(), content.clone());
        std::thread::spawn(move || {
            for i in 0..6 {
                let mut client = Client::connect(&endpoint, &ClientOptions::default()).unwrap();
                let mut writer = client.create(&format!("/f{i}"), &NewFile::default()).unwrap();
                for part in content.chunks(1 << 20) {
                    let _ = progress.send(());
                    writer.write(part).unwrap();
                }
                let _ = progress.send(());
                writer.close().unwrap();
            }
        })
    };
    loop {
        let steps = 1 + random.below(25);
        if (0..steps).any(|_| watch.recv().is_err()) {
            break;
        }
        node = Node::start(&node.kill());
    }
    writer.join().unwrap();
    let mut client = node.client();
    for i in 0..6 {
        assert!(client.get(&format!("/f{i}")).unwrap() == *content, "/f{i}");
    }
    assert!(client.unclosed().unwrap().is_empty());
}
