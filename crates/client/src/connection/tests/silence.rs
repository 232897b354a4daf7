//! Ports that take connections and say nothing, and nodes that fall silent: a program of another kind, or a node that
//! was stopped or hangs. The kernel accepts for them, so a client connected anew and asked again, eight times, and
//! said nothing itself for nine minutes.

use super::*;
use crate::Client;
use holdfast_env::tasks;
use holdfast_env::trial::{Knob, Trial};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// As the client has them.
static ASK_AFTER_MS: Knob = Knob::new("client.ask-after-ms", 5_000, &[20]);
static TELL_AFTER_MS: Knob = Knob::new("client.tell-after-ms", 5_000, &[20]);

/// What was asked on which connection, from 0.
type Asked = (usize, u16);
/// An answer: to which request, 0 for the one that was just heard; its opcode, and its status.
type Said = (u64, u16, u32);

/// Something that listens, and answers what it wants to.
struct Port {
    path: PathBuf,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Port {
    /// `answers` is told all that was asked until now, and says what is answered on the last one's connection.
    #[expect(clippy::disallowed_methods, reason = "a peer that is no server of ours")]
    fn new(name: &str, answers: impl Fn(&[Asked]) -> Vec<Said> + Send + Sync + 'static) -> Port {
        let path = std::env::temp_dir().join(format!("hf-{}-port-{name}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (heard, answers) = (asked.clone(), Arc::new(answers));
        tasks::spawn("port", move || {
            for (number, client) in listener.incoming().enumerate() {
                let (client, heard, answers) = (client.unwrap(), heard.clone(), answers.clone());
                tasks::spawn("port", move || serve(number, client, &heard, &*answers)).unwrap();
            }
        })
        .unwrap();
        Port { path, asked }
    }

    /// Answers whoever asks whether it is there on the first connection, and then nothing at all.
    fn falls_silent(name: &str) -> Port {
        Port::new(name, |asked| match asked {
            [(0, OP_PING)] => vec![(0, OP_PING, 0)],
            _ => Vec::new(),
        })
    }

    /// Answers everything.
    fn good(name: &str) -> Port {
        Port::new(name, |asked| vec![(0, asked.last().unwrap().1, 0)])
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.path.clone())
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    number: usize,
    mut client: UnixStream,
    asked: &Mutex<Vec<Asked>>,
    answers: &dyn Fn(&[Asked]) -> Vec<Said>,
) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = client.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..n]);
        while let Ok(frame::Decoded::Frame(header)) = frame::decode(&bytes) {
            bytes.drain(..HEADER_BYTES + (header.meta_bytes + header.body_bytes) as usize);
            let mut asked = asked.lock().unwrap();
            asked.push((number, header.opcode));
            let mut out = Vec::new();
            for (id, opcode, status) in answers(&asked) {
                let id = if id == 0 { header.request_id } else { id };
                frame::encode(&mut out, FrameKind::Response, opcode, id, status, 0, |_| {});
            }
            client.write_all(&out).unwrap();
        }
    }
}

fn impatient() -> ClientOptions {
    ClientOptions {
        // Whoever answers does so within that, also on a busy machine.
        connect_timeout: Duration::from_secs(2),
        read_timeout: Some(Duration::from_millis(80)),
        reconnect_pause: Duration::from_millis(1),
        reconnects_max: 2,
        ..ClientOptions::default()
    }
}

#[test]
fn who_takes_connections_and_says_nothing_is_no_node() {
    let port = Port::new("says-nothing", |_| Vec::new());
    let Err(e) = Connection::connect_with(&port.endpoint(), impatient()) else {
        panic!("nobody is there")
    };
    assert_eq!(e.kind, Kind::Retry);
    assert!(e.to_string().contains("no answer in time, though the connection was taken"), "{e}");
    let good = Port::good("says-nothing-good");
    let options = ClientOptions { others: vec![good.endpoint()], ..impatient() };
    let connection = Connection::connect_with(&port.endpoint(), options).unwrap();
    assert_eq!(*connection.endpoint(), good.endpoint());
}

#[test]
fn a_node_that_falls_silent_is_asked_once_and_given_up() {
    let port = Port::falls_silent("falls-silent");
    let mut client = Client::connect(&port.endpoint(), &impatient()).unwrap();
    let e = client.stat("/f").unwrap_err();
    assert_eq!(e.kind, Kind::Retry, "{e}");
    let asked: Vec<Asked> = port.asked().into_iter().filter(|(_, op)| *op != OP_PING).collect();
    assert_eq!(
        asked,
        [(0, holdfast_wire::OP_LOOKUP)],
        "it was asked again though nobody was there"
    );
}

#[test]
fn a_node_that_falls_silent_is_left_for_the_next_one() {
    let (port, good) = (Port::falls_silent("left"), Port::good("next"));
    let options = ClientOptions { others: vec![good.endpoint()], ..impatient() };
    let mut client = Client::connect(&port.endpoint(), &options).unwrap();
    client
        .act(holdfast_wire::file::Action::Delete { path: "/f".to_owned(), recursive: false })
        .unwrap_err();
    assert!(good.asked().contains(&(0, holdfast_wire::OP_CATCH_UP)), "{:?}", good.asked());
}

/// What was to be sent again was not, where the next node refused to go on: and its answer was waited for until the
/// silence of a node that had never been asked was too long.
#[test]
fn who_may_not_go_on_at_the_next_node_waits_for_no_answer_there() {
    let retry = u32::from(Error::retry("").code());
    let is_behind = move |asked: &[Asked]| match asked.last() {
        Some((_, holdfast_wire::OP_CATCH_UP)) => vec![(0, holdfast_wire::OP_CATCH_UP, retry)],
        Some((_, opcode)) => vec![(0, *opcode, 0)],
        None => Vec::new(),
    };
    let (port, behind) = (Port::falls_silent("goes-on"), Port::new("behind", is_behind));
    let options = ClientOptions { others: vec![behind.endpoint()], ..impatient() };
    let mut client = Client::connect(&port.endpoint(), &options).unwrap();
    let e = client.stat("/f").unwrap_err();
    assert!(e.to_string().contains("go on at"), "{e}");
    assert!(!behind.asked().iter().any(|(_, op)| *op == holdfast_wire::OP_LOOKUP));
}

/// Who was told, in the process: tests that look at it have a thread of their own each, and so a name.
static TOLD: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn tell(silent: Silent<'_>) {
    let Endpoint::Unix(path) = silent.endpoint else { panic!("a socket") };
    TOLD.lock().unwrap().push(path.clone());
}

fn told(port: &Port) -> usize {
    TOLD.lock().unwrap().iter().filter(|path| **path == port.path).count()
}

#[test]
fn a_silence_is_told_once_before_it_is_too_long() {
    let _trial = Trial::new().with(&ASK_AFTER_MS, 20).with(&TELL_AFTER_MS, 20).enter();
    let port = Port::falls_silent("told");
    let options = ClientOptions { silence_told: Some(tell), reconnects_max: 0, ..impatient() };
    let mut connection = Connection::connect_with(&port.endpoint(), options).unwrap();
    let e = connection.call(ECHO, |_| {}, &[]).unwrap_err();
    assert!(e.to_string().contains("silent for too long"), "{e}");
    assert_eq!(told(&port), 1);
    while port.asked().len() < 3 {
        std::thread::yield_now();
    }
    assert_eq!(port.asked(), [(0, OP_PING), (0, ECHO), (0, OP_PING)]);
}

/// What takes long is answered late, by a node that is there.
#[test]
fn who_answers_late_and_is_there_is_waited_for_and_nothing_is_told() {
    let _trial = Trial::new().with(&ASK_AFTER_MS, 20).with(&TELL_AFTER_MS, 60_000).enter();
    // The request is the connection's first, and the question whether it is there its second.
    let port = Port::new("late", |asked| match asked {
        [(0, OP_PING)] => vec![(0, OP_PING, 0)],
        [(0, OP_PING), (0, ECHO), (0, OP_PING)] => vec![(0, OP_PING, 0)],
        [.., (0, OP_PING)] => vec![(0, OP_PING, 0), (1, ECHO, 0)],
        _ => Vec::new(),
    });
    let options = ClientOptions { silence_told: Some(tell), read_timeout: None, ..impatient() };
    let mut connection = Connection::connect_with(&port.endpoint(), options).unwrap();
    let id = connection.submit(ECHO, |_| {}, &[]).unwrap();
    while port.asked().len() < 3 {
        connection.receive(None);
    }
    // Of requests that are outstanding another one is asked: its answer brings the first one's.
    connection.call(OP_PING, |_| {}, &[]).unwrap();
    connection.wait(id).unwrap();
    assert_eq!(told(&port), 0);
    assert_eq!(connection.outstanding(), 0, "nobody waits for what was asked by itself");
}

#[cfg(feature = "async")]
#[test]
fn tasks_give_up_a_node_that_falls_silent() {
    let port = Port::falls_silent("falls-silent-async");
    let asked = crate::aio::block_on(async {
        let client =
            crate::aio::AsyncClient::connect(&port.endpoint(), &impatient()).await.unwrap();
        let e = client.stat("/f").await.unwrap_err();
        assert_eq!(e.kind, Kind::Retry, "{e}");
        port.asked()
    })
    .unwrap();
    let asked: Vec<Asked> = asked.into_iter().filter(|(_, op)| *op != OP_PING).collect();
    assert_eq!(
        asked,
        [(0, holdfast_wire::OP_LOOKUP)],
        "it was asked again though nobody was there"
    );
}
