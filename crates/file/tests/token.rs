//! A client with a token, over TCP to a real node: what its rules cover works as for anybody, large
//! files too; what they do not is refused; and it ends with its token, in the middle of a file.

mod common;

use common::{World, assert_same, pattern, replacing};
use holdfast_base::Kind;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, Generation, Sequence};
use holdfast_base::node::NodeKind;
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile, Secret};
use holdfast_cluster::ClusterCommand;
use holdfast_env::SeededRng;
use holdfast_wire::file::{Begin, Begun, Close, Extent, NewNode};
use holdfast_wire::{self as wire, Call};
use std::io::{Read, Write};
use std::time::Duration;

const CHUNK_BYTES: u64 = 1 << 20;
/// Several chunks and a remainder, which is packed.
const LARGE_BYTES: usize = 3 * CHUNK_BYTES as usize + 12_345;

struct Service {
    world: World,
    secret: Secret,
    endpoint: Endpoint,
}

impl Service {
    fn new(name: &str) -> Service {
        let mut world = World::with_chunks(name, CHUNK_BYTES);
        let secret = Secret::draw(&SeededRng::new(5));
        let endpoint = world.serve_over_tcp(&secret);
        Service { world, secret, endpoint }
    }

    fn change(&self, command: ClusterCommand) {
        let node = self.world.node();
        node.wait_for(|done| node.propose_cluster(&command, done)).unwrap();
    }

    fn allow(&self, name: &str, id: u64, rules: &[&str]) {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let (name, until_s, now_s) = (name.to_owned(), i64::MAX, 0);
        self.change(ClusterCommand::PutToken { name, id, until_s, now_s, rules });
    }

    fn connect(&self, name: &str, id: u64) -> holdfast_base::Result<Client> {
        let options = ClientOptions {
            token: Some(self.secret.token(name, id)),
            reconnects_max: 1,
            reconnect_pause: Duration::from_millis(1),
            ..ClientOptions::default()
        };
        Client::connect(&self.endpoint, &options)
    }
}

fn write(client: &mut Client, path: &str, bytes: &[u8]) -> holdfast_base::Result<()> {
    let mut writer = client.create(path, &replacing())?;
    writer.write_all(bytes).map_err(holdfast_base::Error::from)?;
    writer.close().map(|_| ())
}

fn read(client: &mut Client, path: &str) -> holdfast_base::Result<Vec<u8>> {
    client.open(path)?.read_to_end()
}

#[test]
fn what_rules_cover_works_in_all_sizes_and_nothing_else_does() {
    let service = Service::new("token-sizes");
    let mut owner = service.world.client();
    for directory in ["/mine", "/theirs", "/shared"] {
        owner.make_dir(directory, &NewFile::default()).unwrap();
    }
    service.allow("app", 1, &["fs:/mine:rw", "fs:/shared:r"]);
    let mut client = service.connect("app", 1).unwrap();
    for (name, bytes) in [("empty", 0), ("small", 5000), ("large", LARGE_BYTES)] {
        let content = pattern(bytes, bytes as u64);
        for root in ["/theirs", "/shared"] {
            let path = format!("{root}/{name}");
            let e = write(&mut client, &path, &content).unwrap_err();
            assert!(e.message.contains(&format!("it takes the right `fs:{path}:rw`")), "{e}");
            write(&mut owner, &path, &content).unwrap();
        }
        write(&mut client, &format!("/mine/{name}"), &content).unwrap();
        for root in ["/mine", "/shared"] {
            let got = read(&mut client, &format!("{root}/{name}")).unwrap();
            assert_same(&got, &content, name);
        }
        assert_eq!(read(&mut client, &format!("/theirs/{name}")).unwrap_err().kind, Kind::Denied);
        let got = read(&mut owner, &format!("/theirs/{name}")).unwrap();
        assert_same(&got, &content, "what was refused changed nothing");
    }
    client.rename("/mine/small", "/mine/moved", false).unwrap();
    assert_eq!(client.rename("/mine/moved", "/theirs/x", false).unwrap_err().kind, Kind::Denied);
    client.delete("/mine/moved", false).unwrap();
    assert_eq!(client.delete("/theirs/small", false).unwrap_err().kind, Kind::Denied);
    assert_eq!(client.stat("/nowhere").unwrap_err().kind, Kind::Denied, "nor whether it is there");
    assert_eq!(client.stat("/mine/nowhere").unwrap_err().kind, Kind::NotFound);
}

/// Whoever may write to a directory could have led out of it.
#[test]
fn links_lead_a_client_nowhere_that_it_may_not_go() {
    let service = Service::new("token-links");
    let mut owner = service.world.client();
    for directory in ["/mine", "/mine/d", "/theirs"] {
        owner.make_dir(directory, &NewFile::default()).unwrap();
    }
    write(&mut owner, "/theirs/secret", b"theirs").unwrap();
    write(&mut owner, "/mine/own", b"own").unwrap();
    owner.symlink("/mine/out", "/theirs", 1).unwrap();
    owner.symlink("/mine/d/up", "../own", 1).unwrap();
    owner.symlink("/mine/d/far", "../../theirs/secret", 1).unwrap();
    service.allow("app", 1, &["fs:/mine:rw"]);
    let mut client = service.connect("app", 1).unwrap();
    assert_eq!(read(&mut client, "/mine/d/up").unwrap(), b"own");
    for path in ["/mine/out/secret", "/mine/d/far"] {
        assert_eq!(read(&mut client, path).unwrap_err().kind, Kind::Denied, "{path}");
    }
    assert_eq!(client.symlink("/mine/new", "/theirs/secret", 1).unwrap_err().kind, Kind::Denied);
    assert_eq!(client.rename("/mine/d/up", "/mine/up", false).unwrap_err().kind, Kind::Denied);
    // With all that is in it: it leads where it led before, or is refused there.
    client.rename("/mine/d", "/mine/e", false).unwrap();
    assert_eq!(read(&mut client, "/mine/e/far").unwrap_err().kind, Kind::Denied);
    assert!(write(&mut client, "/mine/out/new", b"x").is_err());
    assert!(owner.stat("/theirs/new").is_err());
}

#[test]
fn a_token_that_is_revoked_ends_its_client_in_the_middle_of_a_file() {
    let service = Service::new("token-revoked");
    // More than is read ahead.
    let content = pattern(48 << 20, 3);
    service.world.client().make_dir("/mine", &NewFile::default()).unwrap();
    write(&mut service.world.client(), "/mine/large", &content).unwrap();
    service.allow("app", 1, &["fs:/mine:rw"]);
    let mut client = service.connect("app", 1).unwrap();
    let mut writer_of = service.connect("app", 1).unwrap();
    let mut writer = writer_of.create("/mine/new", &replacing()).unwrap();
    let mut reader = client.open("/mine/large").unwrap();
    let mut part = vec![0; 100_000];
    reader.read_exact(&mut part).unwrap();
    assert_same(&part, &content[..part.len()], "before");
    service.change(ClusterCommand::RemoveToken { name: "app".into() });
    // What was on its way arrives; nothing that is asked for from now on.
    let e = reader.read_to_end().map(|rest| rest.len()).unwrap_err();
    assert!(e.kind == Kind::Denied && e.message.contains("revoked"), "{e}");
    let wrote = writer.write_all(&content).map_err(holdfast_base::Error::from);
    let closed = wrote.and_then(|()| writer.close().map(|_| ()));
    assert!(closed.unwrap_err().message.contains("revoked"));
    assert!(service.world.client().stat("/mine/new").is_err());
    let mut again = service.connect("app", 1).unwrap();
    assert_eq!(again.stat("/mine/large").unwrap_err().kind, Kind::Denied);
    // Another cluster's.
    let options = ClientOptions {
        token: Some(Secret::draw(&SeededRng::new(6)).token("app", 1)),
        ..ClientOptions::default()
    };
    let e = Client::connect(&service.endpoint, &options).err().unwrap();
    assert!(e.kind == Kind::Denied && e.message.contains("--token"), "{e}");
}

/// A close names chunks, and sealed them before anybody asked whose they are.
#[test]
fn a_close_that_names_anothers_chunk_leaves_its_bytes_alone() {
    let world = World::with_chunks("token-close", CHUNK_BYTES);
    let content = pattern(LARGE_BYTES, 4);
    let mut victim = world.client();
    let mut writer = victim.create("/upload", &replacing()).unwrap();
    let half = LARGE_BYTES / 2;
    writer.write_all(&content[..half]).unwrap();
    writer.flush().unwrap();
    let chunks: Vec<ChunkId> =
        world.node().read_chunks(0, |view, _| view.iter().map(|chunk| chunk.id).collect()).unwrap();
    assert!(!chunks.is_empty());
    let mut other = world.connection();
    let session = common::open_session(&mut other).unwrap();
    let call = |n| Call { session, sequence: Sequence(n), acknowledged_below: Sequence(1) };
    let node = NewNode {
        path: "/other".into(),
        kind: NodeKind::File,
        mode: 0o644,
        mtime_ns: 1,
        class: None,
        replace: true,
        parents: false,
        metadata: Vec::new(),
    };
    let begin = Begin { call: call(1), node: node.clone() };
    let begun = other.call(wire::OP_BEGIN, |m| begin.encode(m), &[]).unwrap();
    let file = Begun::from_bytes(begun.meta()).unwrap().file;
    for (i, chunk) in chunks.into_iter().enumerate() {
        let extents = vec![Extent::Raw { chunk, generation: Generation(0), bytes: 10 }];
        let (call, node) = (call(2 + i as u64), node.clone());
        let close = Close { call, file, node, extents };
        let e = other.call(wire::OP_CLOSE, |m| close.encode(m), &[]).err().unwrap();
        assert_eq!(e.kind, Kind::Invalid, "{e}");
    }
    writer.write_all(&content[half..]).unwrap();
    writer.close().unwrap();
    assert_same(&read(&mut world.client(), "/upload").unwrap(), &content, "upload");
}
