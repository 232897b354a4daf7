#![expect(clippy::disallowed_methods, reason = "the service that breaks off is played by hand")]

use super::*;
use holdfast_env::RealClock;
use std::io::BufRead;
use std::net::TcpListener;

/// Answers the requests of one connection after another, each with what is listed, and closes.
fn service(connections: Vec<Vec<&'static [u8]>>) -> (Client, std::thread::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let served = std::thread::spawn(move || {
        let mut requests = 0;
        for answers in connections {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = std::io::BufReader::new(stream.try_clone().unwrap());
            for answer in answers {
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    lines.read_line(&mut line).unwrap();
                }
                requests += 1;
                (&stream).write_all(answer).unwrap();
            }
        }
        requests
    });
    let signer = Signer {
        access_key: "key".to_owned(),
        secret_key: "secret".to_owned(),
        region: "us-east-1".to_owned(),
    };
    let endpoint = Endpoint { tls: false, authority };
    (Client::new(endpoint, signer, Arc::new(RealClock::new())).unwrap(), served)
}

const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const HALF: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe";
const CHUNKED: &[u8] =
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";

#[test]
fn a_connection_that_was_closed_meanwhile_is_opened_again() {
    let (mut client, served) = service(vec![vec![WHOLE], vec![CHUNKED, WHOLE]]);
    for _ in 0..3 {
        let got = client.send(&Request::new("GET", "/b/k")).unwrap();
        assert_eq!(got.body, b"hello");
        client.recycle(got.body);
    }
    assert_eq!(served.join().unwrap(), 3);
}

/// It was asked for again, and its first bytes came twice.
#[test]
fn an_answer_that_breaks_off_is_an_error_and_not_asked_for_again() {
    let (mut client, served) = service(vec![vec![WHOLE, HALF]]);
    let mut file = Vec::new();
    client.download(&Request::new("GET", "/b/k"), &mut file).unwrap();
    let failed = client.download(&Request::new("GET", "/b/k"), &mut file).unwrap_err();
    assert_eq!(failed.kind, Kind::Retry);
    assert!(file.starts_with(b"hello") && b"hellohe".starts_with(&file), "{file:?}");
    assert_eq!(served.join().unwrap(), 2);
}
