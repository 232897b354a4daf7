//! Clients of every kind at a port's door, over real sockets. Who is to hear that it is over reads
//! until the end; nothing is timed.

use super::*;
use holdfast_env::runtime::Runtime;
use holdfast_env::tls::CertificateFiles;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;

const AWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3));
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// A certificate of `localhost`, and what trusts it.
fn certificates(name: &str) -> (Arc<Certificates>, Arc<ClientConfig>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let place = std::env::temp_dir().join(format!("holdfast-door-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let put = |name: &str, text: String| {
        let path = place.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let files = CertificateFiles {
        chain: put("node.pem", leaf.pem()),
        key: put("node.key", key.serialize_pem()),
        authorities: put("ca.pem", authority.pem()),
        more: Vec::new(),
    };
    let loaded = Certificates::load(&files).unwrap();
    std::fs::remove_dir_all(&place).unwrap();
    (loaded, client(authority.der().clone(), rustls::ALL_VERSIONS))
}

fn client(
    authority: CertificateDer<'static>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority).unwrap();
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(versions).unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Says whether the connection is encrypted.
struct Says(bool);

impl Service<Request<Incoming>> for Says {
    type Response = Response<String>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<String>, Self::Error>>;

    fn call(&self, _: Request<Incoming>) -> Self::Future {
        std::future::ready(Ok(Response::new(format!("encrypted: {}", self.0))))
    }
}

fn terms(certificates: Option<&Arc<Certificates>>) -> Terms {
    let minute = Duration::from_secs(60);
    Terms {
        certificates: certificates.cloned(),
        head: minute,
        stall: minute,
        places: Places::new(16),
        budget: Budget::new(64 << 20),
    }
}

/// A port whose clients come from `peer`, as far as it knows.
fn port(peer: IpAddr, terms: Terms) -> Runtime {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    runtime::serve("door", any, move |listener| async move {
        while let Ok((stream, _)) = listener.accept().await {
            serve(stream, peer, Says, &terms);
        }
    })
    .unwrap()
}

fn connect(port: &Runtime) -> TcpStream {
    TcpStream::connect(port.address()).unwrap()
}

/// All that comes until the other side ends, however it does.
fn all(stream: &mut impl Read) -> Vec<u8> {
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    got
}

fn say(port: &Runtime, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(port);
    stream.write_all(bytes).unwrap();
    all(&mut stream)
}

fn over_tls(
    port: &Runtime,
    config: &Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = "localhost".try_into().unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), connect(port))
}

/// What a client of TLS says first.
fn hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = "localhost".try_into().unwrap();
    let mut connection = ClientConnection::new(config.clone(), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

/// A first word of TLS 1.1, with one suite of its time and no extension.
fn old_hello() -> Vec<u8> {
    let mut hello = vec![3, 2];
    hello.extend([7; 32]);
    hello.extend([0, 0, 2, 0, 0x2f, 1, 0]);
    let mut record = vec![TLS_BEGINS, 3, 1, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    record.extend(hello);
    record
}

#[test]
fn who_may_speak_how() {
    let mapped: IpAddr = "::ffff:127.0.0.1".parse().unwrap();
    for (first, has_certificates, peer, expected) in [
        (TLS_BEGINS, true, AWAY, Way::Tls),
        (TLS_BEGINS, true, HERE, Way::Tls),
        (TLS_BEGINS, false, HERE, Way::NoTls),
        (b'G', true, HERE, Way::Plain),
        (b'G', true, mapped, Way::Plain),
        (b'G', true, "::1".parse().unwrap(), Way::Plain),
        (b'G', true, AWAY, Way::NeedsTls),
        (b'G', false, AWAY, Way::Plain),
    ] {
        let way = way(first, has_certificates, peer);
        assert_eq!(way, expected, "{first} {has_certificates} {peer}");
    }
}

#[test]
fn tls_is_answered_for_all_and_plain_for_this_machine() {
    let (certificates, client) = certificates("both");
    for peer in [HERE, AWAY] {
        let port = port(peer, terms(Some(&certificates)));
        let mut tls = over_tls(&port, &client);
        tls.write_all(GET).unwrap();
        let answer = String::from_utf8(all(&mut tls)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("encrypted: true"), "{answer}");
        assert_eq!(tls.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    }
    let port = port(HERE, terms(Some(&certificates)));
    assert!(say(&port, GET).ends_with(b"encrypted: false"));
}

#[test]
fn plain_from_another_machine_is_answered_with_where_to_go() {
    let (certificates, _) = certificates("plain");
    let port = port(AWAY, terms(Some(&certificates)));
    // Also with more behind it than anybody reads.
    let long = [GET, &[b'x'; 100_000]].concat();
    for request in [GET, &long] {
        let answer = String::from_utf8(say(&port, request)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let place = format!("this port speaks TLS: use https://{}\n", port.address());
        assert!(answer.ends_with(&place), "{answer}");
    }
}

#[test]
fn tls_on_a_plain_port_is_refused_in_its_own_words() {
    let (_, client) = certificates("alert");
    let port = port(HERE, terms(None));
    assert_eq!(say(&port, &hello(&client)), NO_TLS);
    let mut tls = over_tls(&port, &client);
    let refused = tls.write_all(GET).and_then(|()| tls.read(&mut [0])).unwrap_err();
    assert!(refused.to_string().contains("HandshakeFailure"), "{refused}");
    assert!(say(&port, GET).ends_with(b"encrypted: false"));
}

#[test]
fn old_versions_and_garbage_are_refused_with_an_alert() {
    let (certificates, _) = certificates("garbage");
    let port = port(AWAY, terms(Some(&certificates)));
    let alert = say(&port, &old_hello());
    assert_eq!((alert[0], alert[5]), (21, 2), "{alert:?}");
    let garbage = [&[TLS_BEGINS][..], &[0xa5; 300]].concat();
    let alert = say(&port, &garbage);
    assert_eq!((alert[0], alert[5]), (21, 2), "{alert:?}");
    // Another protocol inside: nothing is agreed on.
    let (other, client) = self::certificates("alpn");
    let mut wrong = ClientConfig::clone(&client);
    wrong.alpn_protocols = vec![b"h2".to_vec()];
    let port = self::port(AWAY, terms(Some(&other)));
    let mut tls = over_tls(&port, &Arc::new(wrong));
    let refused = tls.write_all(GET).and_then(|()| tls.read(&mut [0])).unwrap_err();
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
}

#[test]
fn half_a_handshake_ends_as_half_a_request_does() {
    let (certificates, client) = certificates("half");
    let hello = hello(&client);
    let patience = Terms { head: Duration::from_millis(50), ..terms(Some(&certificates)) };
    let port = port(AWAY, patience);
    for bytes in [&[][..], &hello[..1], &hello[..hello.len() / 2], &hello] {
        // Whoever says half of it, or all and then nothing, is told no answer.
        let answer = say(&port, bytes);
        assert!(!answer.windows(4).any(|part| part == b"HTTP"), "{answer:?}");
    }
}

#[test]
fn half_a_handshake_makes_way_for_a_newcomer() {
    let (certificates, client) = certificates("way");
    let one = Terms { places: Places::new(1), ..terms(Some(&certificates)) };
    let port = port(HERE, one);
    let hello = hello(&client);
    let mut half = connect(&port);
    half.write_all(&hello[..hello.len() / 2]).unwrap();
    assert!(say(&port, GET).ends_with(b"encrypted: false"));
    assert_eq!(all(&mut half), b"");
}

/// TLS 1.3 has new keys instead of a second handshake, and each costs both sides some work.
#[test]
fn a_flood_of_new_keys_ends_the_connection_that_it_comes_over() {
    let (certificates, client) = certificates("keys");
    let port = port(HERE, terms(Some(&certificates)));
    let mut tls = over_tls(&port, &client);
    asks(&mut tls);
    let flooded = (0..1000).find(|_| {
        let sent = tls.conn.refresh_traffic_keys().is_ok() && tls.flush().is_ok();
        !sent
    });
    let end = tls.write_all(GET).and_then(|()| tls.read(&mut [0; 1000]));
    assert!(flooded.is_some() || !matches!(end, Ok(1..)), "it was answered: {end:?}");
    // All others are.
    asks(&mut over_tls(&port, &client));
}

/// Asks, and leaves its connection open: by the answer TLS is at rest.
fn asks(tls: &mut StreamOwned<ClientConnection, TcpStream>) {
    tls.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"encrypted: true") {
        let mut piece = [0; 1000];
        let bytes = tls.read(&mut piece).unwrap();
        assert!(bytes > 0, "it ended");
        got.extend_from_slice(&piece[..bytes]);
    }
}

/// What TLS keeps of a connection was in no account: 4096 connections that said nothing, or half of
/// a first message, took half a gigabyte of a machine that had been told to keep 64 MiB for all of
/// its clients.
#[test]
fn what_tls_holds_is_counted_and_the_idlest_make_way_before_it_is_much() {
    let (certificates, client) = certificates("budget");
    let budget = Budget::new(0);
    let most = super::places(4096, Some(&certificates), &budget);
    assert_eq!(most as u64 * TLS_BYTES, budget.limit() / TLS_SHARE);
    assert_eq!(super::places(4096, None, &budget), 4096);
    let places = Places::new(most);
    let terms =
        Terms { places: places.clone(), budget: budget.clone(), ..terms(Some(&certificates)) };
    let port = port(HERE, terms);
    let clients: Vec<_> = (0..most + 20)
        .map(|_| {
            let mut tls = over_tls(&port, &client);
            asks(&mut tls);
            assert!(budget.used() <= most as u64 * TLS_BYTES + TLS_HANDSHAKE_BYTES);
            tls
        })
        .collect();
    assert_eq!((places.taken(), places.made_way()), (most, 20));
    // Who has made way gives its share back when its task ends: soon.
    while budget.used() != most as u64 * TLS_BYTES {
        std::thread::yield_now();
    }
    drop(clients);
    let hello = hello(&client);
    let halves: Vec<_> = (0..most + 20)
        .map(|_| {
            let mut half = connect(&port);
            half.write_all(&hello[..hello.len() / 2]).unwrap();
            half
        })
        .collect();
    while budget.used() != most as u64 * TLS_HANDSHAKE_BYTES {
        std::thread::yield_now();
    }
    assert!(budget.is_short(), "from here on they have five seconds");
    drop((halves, port));
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_handshake_stands_still_for_long_only_while_there_is_memory() {
    let budget = Budget::new(0);
    let short = budget.hold(budget.limit() / 2);
    let look = Duration::from_millis(1);
    let ended = runtime::block_on(async {
        let still = unless_short(&budget, look, std::future::pending::<()>()).await;
        drop(short);
        // Nobody wakes it: it is looked at again because it takes so long.
        let mut looks = 0;
        let slow = std::future::poll_fn(|_| {
            looks += 1;
            if looks == 5 { Poll::Ready(()) } else { Poll::Pending }
        });
        (still, unless_short(&budget, look, slow).await)
    });
    assert_eq!(ended.unwrap(), (None, Some(())));
}

/// Takes nothing, as a client whose window is full.
struct Full;

impl hyper::rt::Write for Full {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}

/// TLS takes an answer's last bytes into its own memory: what then waits for the client is a flush,
/// or the word of the end, and not a write.
#[test]
fn patience_ends_also_where_tls_waits_for_the_client() {
    let places = Places::new(1);
    let place = places.enter().unwrap();
    let patient = || Patient {
        io: Full,
        stall: Duration::from_millis(1),
        budget: Budget::new(64 << 20),
        activity: place.activity(),
        still: None,
    };
    let timed_out = |done: std::io::Result<()>| done.unwrap_err().kind();
    let ended = runtime::block_on(async {
        let (mut flushing, mut ending) = (patient(), patient());
        [
            std::future::poll_fn(|cx| hyper::rt::Write::poll_flush(Pin::new(&mut flushing), cx))
                .await,
            std::future::poll_fn(|cx| hyper::rt::Write::poll_shutdown(Pin::new(&mut ending), cx))
                .await,
        ]
    });
    assert_eq!(ended.unwrap().map(timed_out), [std::io::ErrorKind::TimedOut; 2]);
}
