//! Small files: one round trip each, or many at once.
//! `cargo run -p holdfast-client --example small_files [-- ADDRESS]`

use holdfast_base::Result;
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile};

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let mut client = Client::connect(&Endpoint::parse(&address)?, &ClientOptions::default())?;
    let new = NewFile { replace: true, parents: true, ..NewFile::default() };

    // One after the other: each returns when it is acknowledged.
    client.put("/examples/greeting", b"hello", &new)?;
    assert_eq!(client.get("/examples/greeting")?, b"hello");

    // A hundred at once: the log syncs them together.
    let mut tickets = Vec::new();
    for i in 0..100 {
        tickets.push(client.submit_put(&format!("/examples/{i}"), &[i; 32], &new)?);
    }
    for ticket in tickets {
        client.wait_put(ticket)?;
    }

    // Answers in the order in which they come.
    for i in 0..100 {
        let _ = client.submit_stat(&format!("/examples/{i}"), false)?;
    }
    let mut bytes = 0;
    while let Some(ticket) = client.wait_any() {
        bytes += client.wait_stat(ticket)?.size;
    }
    println!("100 files of {bytes} bytes");
    client.delete("/examples", true)
}
