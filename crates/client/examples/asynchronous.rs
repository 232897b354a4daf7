//! Many requests at once, from one connection that tasks share.
//! `cargo run -p holdfast-client --features async --example asynchronous [-- ADDRESS]`

use holdfast_base::Result;
use holdfast_client::aio::{AsyncClient, block_on, spawn};
use holdfast_client::{ClientOptions, Endpoint, NewFile};

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    block_on(run(Endpoint::parse(&address)?))?
}

async fn run(endpoint: Endpoint) -> Result<()> {
    let client = AsyncClient::connect(&endpoint, &ClientOptions::default()).await?;
    client.make_dir("/many", &NewFile::default()).await?;

    // A hundred puts under way at once; each task has a clone of the client.
    let puts: Vec<_> = (0..100u32)
        .map(|i| {
            let client = client.clone();
            spawn(async move {
                client.put(&format!("/many/{i}"), &i.to_le_bytes(), &NewFile::default()).await
            })
        })
        .collect::<Result<_>>()?;
    for put in puts {
        put.await??;
    }
    println!("{} files", client.list("/many", "").await?.entries.len());

    // A stream, with four slices on their way.
    let mut writer = client.create("/many/large", &NewFile::default())?;
    writer.set_in_flight(4);
    for i in 0..100u32 {
        writer.write(&i.to_le_bytes().repeat(10_000)).await?;
    }
    writer.close().await?;

    let mut reader = client.open("/many/large").await?;
    assert_eq!(reader.read_at(40_000, 4).await?, 1u32.to_le_bytes());
    let mut total = 0;
    while let Some(run) = reader.next().await? {
        total += run.len();
    }
    println!("{total} bytes, each verified");
    drop(reader);
    client.delete("/many", true).await?;
    client.close().await
}
