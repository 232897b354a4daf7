//! The HTTP port, by hand-written requests.

use crate::common::{Node, Scratch, free_port};
use std::io::{Read, Write};
use std::net::TcpStream;

/// With a header line more, or none.
pub fn get(port: u16, path: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}");
    write!(stream, "{head}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn health_and_metrics_answer() {
    let scratch = Scratch::new();
    let (data, port) = (scratch.path("data"), free_port());
    std::fs::create_dir_all(&data).unwrap();
    let settings =
        format!("native_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"0\"\nhttp_port = {port}\n");
    std::fs::write(data.join("holdfast.toml"), settings).unwrap();
    let node = Node::start(&data);
    assert_eq!(node.ready["http"], format!("127.0.0.1:{port}"));
    let health = get(port, "/health", "");
    assert!(health.starts_with("HTTP/1.1 200 ") && health.ends_with("ok\n"), "{health}");
    node.run(&["fs", "mkdir", "/d"]).ok();
    let read = |name: &str| std::fs::read_to_string(data.join(name)).unwrap().trim().to_owned();
    // Of anything but health strangers hear that they need the token, and nothing else.
    let (token, secret) = (read("http-token"), read("secret"));
    for wrong in ["", "Authorization: Bearer x\r\n", &format!("Authorization: Bearer {secret}\r\n")]
    {
        for path in ["/metrics", "/nothing", "/"] {
            let answer = get(port, path, wrong);
            assert!(
                answer.starts_with("HTTP/1.1 401 ") && answer.contains("http-token"),
                "{answer}"
            );
            assert!(!answer.contains("holdfast_"), "{answer}");
        }
    }
    let known = format!("Authorization: Bearer {token}\r\n");
    let metrics = get(port, "/metrics", &known);
    assert!(metrics.starts_with("HTTP/1.1 200 ") && metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(metrics.contains("\nholdfast_directories 2\n"), "{metrics}");
    assert!(metrics.contains("holdfast_store_free_bytes{"), "{metrics}");
    assert!(get(port, "/nothing", &known).starts_with("HTTP/1.1 404 "));
    node.stop();
}
