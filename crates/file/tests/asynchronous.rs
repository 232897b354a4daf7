//! The asynchronous client against a whole node: many requests at once, streams, and what it does
//! about broken connections, restarts and ended sessions.

mod common;

use common::{Proxy, World, assert_same, pattern, replacing};
use holdfast_base::Kind;
use holdfast_base::node::NodeKind;
use holdfast_client::aio::{AsyncClient, block_on, spawn};
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile, Secret, Secrets};
use holdfast_env::SeededRng;
use holdfast_node::{Keeper, KeeperOptions};
use std::time::Duration;

fn options() -> ClientOptions {
    ClientOptions { reconnect_pause: Duration::from_millis(1), ..ClientOptions::default() }
}

async fn connect(endpoint: &Endpoint) -> AsyncClient {
    AsyncClient::connect(endpoint, &options()).await.unwrap()
}

#[test]
fn requests_of_many_tasks_share_a_connection_and_a_session() {
    let world = World::new("async-many");
    block_on(async {
        let client = connect(&world.endpoint()).await;
        client.make_dir("/d", &NewFile::default()).await.unwrap();
        let mut tasks = Vec::new();
        for i in 0..300u64 {
            let client = client.clone();
            let task = async move {
                let (path, bytes) = (format!("/d/{i:03}"), pattern(i as usize * 40, i));
                client.put(&path, &bytes, &NewFile::default()).await.unwrap();
                assert_eq!(client.stat(&path).await.unwrap().size, bytes.len() as u64);
                assert_same(&client.get(&path).await.unwrap(), &bytes, &path);
            };
            tasks.push(spawn(task).unwrap());
        }
        for task in tasks {
            task.await.unwrap();
        }
        let page = client.list("/d", "").await.unwrap();
        assert_eq!((page.entries.len(), page.more), (300, false));
        assert_eq!(page.entries[7].name, "007");
        assert_eq!(world.node().shards.root().status().sessions, 1, "all tasks share one");
        client.rename("/d/000", "/d/a", false).await.unwrap();
        assert_eq!(client.stat("/d/000").await.unwrap_err().kind, Kind::NotFound);
        client.close().await.unwrap();
        assert_eq!(world.node().shards.root().status().sessions, 0);
    })
    .unwrap();
}

#[test]
fn more_than_the_connection_takes_waits_for_its_turn() {
    let world = World::new("async-full");
    block_on(async {
        let options = ClientOptions { outstanding_max: 3, ..options() };
        let client = AsyncClient::connect(&world.endpoint(), &options).await.unwrap();
        let tasks: Vec<_> = (0..40)
            .map(|i| {
                let client = client.clone();
                spawn(async move {
                    let bytes = pattern(1 << 20, i);
                    client.put(&format!("/{i}"), &bytes, &NewFile::default()).await.unwrap();
                })
                .unwrap()
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(client.usage("/").await.unwrap().bytes, 40 << 20);
    })
    .unwrap();
}

#[test]
fn streams_survive_broken_connections_and_restarts() {
    let mut world = World::new("async-stream");
    let bytes = pattern((20 << 20) + 5, 1);
    block_on(async {
        let client = connect(&world.endpoint()).await;
        let mut writer = client.create("/f", &NewFile::default()).unwrap();
        for (i, part) in bytes.chunks((1 << 20) + 77).enumerate() {
            writer.write(part).await.unwrap();
            match i {
                3 | 4 | 9 => world.cut_connections(),
                6 | 12 => world.restart(),
                7 => writer.flush().await.unwrap(),
                _ => {}
            }
        }
        writer.close().await.unwrap();
        assert_same(&client.get("/f").await.unwrap(), &bytes, "written");
        let mut reader = client.open("/f").await.unwrap();
        reader.set_in_flight(4);
        let mut read = Vec::new();
        while let Some(run) = reader.next().await.unwrap() {
            read.extend_from_slice(&run);
            match read.len() >> 19 {
                8 | 10 => world.cut_connections(),
                18 => world.restart(),
                _ => {}
            }
        }
        assert_same(&read, &bytes, "read");
        let part = reader.read_at(700_001, 3 << 20).await.unwrap();
        assert_same(&part, &bytes[700_001..700_001 + (3 << 20)], "from the middle");
        let past = reader.read_at(bytes.len() as u64, 1).await.unwrap_err();
        assert_eq!(past.kind, Kind::Invalid);
    })
    .unwrap();
    assert!(world.client().unclosed().unwrap().is_empty());
}

/// Streams over more than one chunk, through a proxy that loses answers: an append whose answer is
/// lost seals its chunk, and what follows goes to the next.
#[test]
fn a_stream_over_several_chunks_whose_answers_are_lost_is_whole() {
    let world = World::new("async-lost");
    let proxy = Proxy::new(&world);
    let bytes = pattern((66 << 20) + 5, 2);
    block_on(async {
        let client = connect(&proxy.endpoint()).await;
        let mut writer = client.create("/f", &replacing()).unwrap();
        for (i, part) in bytes.chunks(5 << 20).enumerate() {
            if i % 6 == 4 {
                proxy.lose_answers(1);
            }
            writer.write(part).await.unwrap();
        }
        writer.close().await.unwrap();
        assert_same(&client.get("/f").await.unwrap(), &bytes, "whole");
    })
    .unwrap();
}

#[test]
fn small_streams_become_puts_and_abandoned_ones_leave_nothing() {
    let world = World::new("async-small");
    block_on(async {
        let client = connect(&world.endpoint()).await;
        let mut writer = client.create("/small", &NewFile::default()).unwrap();
        writer.write(b"small").await.unwrap();
        writer.close().await.unwrap();
        let mut reader = client.open("/small").await.unwrap();
        assert_eq!(reader.read_at(1, 3).await.unwrap(), b"mal");
        assert_eq!(reader.next().await.unwrap().unwrap(), b"small");
        assert!(reader.next().await.unwrap().is_none());
        let mut writer = client.create("/gone", &NewFile::default()).unwrap();
        writer.write(&pattern(1 << 20, 1)).await.unwrap();
        writer.abandon().await.unwrap();
        assert_eq!(client.get("/gone").await.unwrap_err().kind, Kind::NotFound);
        let bag = NewFile { kind: NodeKind::MultiFile, ..NewFile::default() };
        client.make_dir("/bag", &bag).await.unwrap();
        assert_eq!(client.open("/bag").await.err().unwrap().kind, Kind::Invalid);
    })
    .unwrap();
    assert!(world.client().unclosed().unwrap().is_empty());
}

#[test]
fn changes_whose_answer_was_lost_happen_once() {
    let world = World::new("async-once");
    let proxy = Proxy::new(&world);
    block_on(async {
        let client = connect(&proxy.endpoint()).await;
        client.put("/warm", b"", &NewFile::default()).await.unwrap();
        proxy.lose_answers(1);
        client.put("/a", b"a", &NewFile::default()).await.unwrap();
        proxy.lose_answers(3);
        client.make_dir("/d", &NewFile::default()).await.unwrap();
        proxy.lose_answers(1);
        client.rename("/a", "/d/a", false).await.unwrap();
        proxy.lose_answers(1);
        let tasks: Vec<_> = (0..20)
            .map(|i| {
                let client = client.clone();
                let put =
                    async move { client.put(&format!("/d/{i}"), &[i], &NewFile::default()).await };
                spawn(put).unwrap()
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(proxy.left(), 0);
        assert_eq!(client.usage("/").await.unwrap().files, 22);
    })
    .unwrap();
}

#[test]
fn a_request_that_never_gets_through_fails_and_the_client_goes_on() {
    let world = World::new("async-give-up");
    let proxy = Proxy::new(&world);
    block_on(async {
        let options = ClientOptions { reconnects_max: 3, ..options() };
        let client = AsyncClient::connect(&proxy.endpoint(), &options).await.unwrap();
        client.put("/f", b"f", &NewFile::default()).await.unwrap();
        proxy.lose_answers(1000);
        assert_eq!(client.get("/f").await.unwrap_err().kind, Kind::Retry);
        proxy.lose_answers(0);
        assert_eq!(client.get("/f").await.unwrap(), b"f");
    })
    .unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the socket disappears and comes back")]
fn without_a_node_every_request_fails_in_the_end_and_works_again_later() {
    let world = World::new("async-down");
    let proxy = Proxy::new(&world);
    block_on(async {
        let options = ClientOptions { reconnects_max: 2, ..options() };
        let client = AsyncClient::connect(&proxy.endpoint(), &options).await.unwrap();
        let hidden = world.data.join("hidden");
        let Endpoint::Unix(path) = proxy.endpoint() else { panic!("a Unix socket") };
        std::fs::rename(&path, &hidden).unwrap();
        proxy.lose_answers(1);
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let client = client.clone();
                spawn(async move { client.stat("/").await }).unwrap()
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap_err().kind, Kind::Retry);
        }
        assert_eq!(client.stat("/").await.unwrap_err().kind, Kind::Retry);
        std::fs::rename(&hidden, &path).unwrap();
        client.stat("/").await.unwrap();
    })
    .unwrap();
}

#[test]
fn an_ended_session_is_replaced_unless_the_request_may_have_been_carried_out() {
    let world = World::new("async-ended");
    let proxy = Proxy::new(&world);
    let end_sessions = || {
        let options = KeeperOptions { session_idle_ms: 1000, ..KeeperOptions::default() };
        let mut keeper = Keeper::new(world.node().clone(), options);
        keeper.step(0);
        keeper.step(10_000_000_000);
        assert_eq!(world.node().shards.root().status().sessions, 0);
    };
    block_on(async {
        let client = connect(&proxy.endpoint()).await;
        client.put("/f", b"1", &NewFile::default()).await.unwrap();
        end_sessions();
        let tasks: Vec<_> = (0..5)
            .map(|i| {
                let client = client.clone();
                let put = async move { client.put(&format!("/{i}"), b"x", &replacing()).await };
                spawn(put).unwrap()
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(world.node().shards.root().status().sessions, 1, "one for all");
        end_sessions();
        proxy.lose_answers(1);
        let error = client.put("/f", b"2", &replacing()).await.unwrap_err();
        assert_eq!(error.kind, Kind::Fenced, "{error}");
        client.put("/f", b"3", &replacing()).await.unwrap();
        assert_eq!(client.get("/f").await.unwrap(), b"3");
    })
    .unwrap();
}

#[test]
fn a_dropped_future_takes_its_answer_with_it() {
    let world = World::new("async-drop");
    block_on(async {
        let client = connect(&world.endpoint()).await;
        let bytes = pattern(900_000, 3);
        client.put("/f", &bytes, &NewFile::default()).await.unwrap();
        for _ in 0..20 {
            let mut get = Box::pin(client.get("/f"));
            std::future::poll_fn(|cx| {
                assert!(get.as_mut().poll(cx).is_pending(), "nothing was sent yet");
                std::task::Poll::Ready(())
            })
            .await;
        }
        assert_same(&client.get("/f").await.unwrap(), &bytes, "the one that was waited for");
    })
    .unwrap();
}

#[test]
fn outside_of_a_runtime_it_is_refused_not_a_panic() {
    let world = World::new("async-outside");
    let (endpoint, options) = (world.endpoint(), options());
    let mut connect = Box::pin(AsyncClient::connect(&endpoint, &options));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(e)) = connect.as_mut().poll(&mut cx) else { panic!("refused") };
    assert!(e.message.contains("runtime"), "{e}");
}

/// Whoever connects over TCP greets first, and again after each cut; without the secret, or with
/// another one, the reason is the answer.
#[test]
fn clients_greet_over_tcp_and_again_after_a_cut() {
    let mut world = World::new("greets");
    let (secret, other) = (Secret::draw(&SeededRng::new(1)), Secret::draw(&SeededRng::new(2)));
    let endpoint = world.serve_over_tcp(&secret);
    let given =
        |secrets: Vec<Secret>| ClientOptions { secrets: Secrets::new(secrets), ..options() };
    let mut blocking =
        Client::connect(&endpoint, &given(vec![other.clone(), secret.clone()])).unwrap();
    blocking.put("/a", b"one", &NewFile::default()).unwrap();
    block_on(async {
        let client = AsyncClient::connect(&endpoint, &given(vec![secret])).await.unwrap();
        assert_eq!(client.get("/a").await.unwrap(), b"one");
        world.cut_connections();
        assert_eq!(client.get("/a").await.unwrap(), b"one");
        assert_eq!(blocking.get("/a").unwrap(), b"one");
        let stranger = AsyncClient::connect(&endpoint, &options()).await.unwrap();
        let e = stranger.get("/a").await.unwrap_err();
        assert!(e.kind == Kind::Denied && e.message.contains("--secret"), "{e}");
        let refused = AsyncClient::connect(&endpoint, &given(vec![other])).await;
        let e = refused.err().expect("another secret is refused");
        assert!(e.kind == Kind::Denied && e.message.contains("not this server's"), "{e}");
    })
    .unwrap();
}
