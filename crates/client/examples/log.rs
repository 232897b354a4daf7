//! The log: ordered entries in topics.
//! `cargo run -p holdfast-client --example log [-- ADDRESS]`

use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_client::{Client, ClientOptions, Endpoint};
use std::time::Duration;

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let mut client = Client::connect(&Endpoint::parse(&address)?, &ClientOptions::default())?;
    let mut log = client.log();

    // Returns when both entries are synced. The first append makes the topic.
    let first = log.append("orders", &["3 apples", "1 pear"])?.first();
    let mut next = first;
    for entry in log.read("orders", next, 100)? {
        println!("{}  {}", entry.index, String::from_utf8_lossy(&entry.bytes));
        next = Index(entry.index.0 + 1);
    }
    // Waits for the next entry, here in vain.
    assert!(log.tail("orders", next, Duration::from_millis(10))?.is_empty());
    log.trim("orders", next)
}
