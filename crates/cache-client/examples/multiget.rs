//! Stores and reads many keys on several servers at once: `multiget HOST:PORT...`, servers with
//! UDP on the same port (`holdfast cache -U 11211`).

use holdfast_base::{Error, Result};
use holdfast_cache_client::{Answer, Batch, CacheClientOptions, Client, Store, Transport};

fn main() -> Result<()> {
    let servers: Vec<String> = std::env::args().skip(1).collect();
    if servers.is_empty() {
        return Err(Error::invalid("run the example: name servers, HOST:PORT each"));
    }
    let options = CacheClientOptions { gets: Transport::Udp, ..CacheClientOptions::default() };
    let mut client = Client::new(&servers, options)?;
    client.set(b"greeting", b"hello", 60)?;
    println!("{:?}", client.get(b"greeting")?);

    let mut batch = Batch::new();
    for i in 0..1000 {
        let key = format!("user:{i}");
        batch.store(Store::Set, key.as_bytes(), b"a value", 0, 60)?;
    }
    client.run(&mut batch)?;
    batch.clear();
    for i in 0..1000 {
        batch.get(format!("user:{i}").as_bytes())?;
    }
    client.run(&mut batch)?;
    let (mut hits, mut lost) = (0, 0);
    for answer in batch.answers() {
        match answer {
            Answer::Hit { .. } => hits += 1,
            // As good as a miss; but what is asked for in its place need not be stored again.
            Answer::Lost => lost += 1,
            _ => {}
        }
    }
    let window = client.window();
    println!("{hits} hits, {lost} lost, a window of {:.0} datagrams", window.size());
    Ok(())
}
