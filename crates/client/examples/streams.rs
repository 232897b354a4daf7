//! Streams: large files written and read front to back, and several read as one.
//! `cargo run -p holdfast-client --example streams [-- ADDRESS]`

use holdfast_base::Result;
use holdfast_base::node::NodeKind;
use holdfast_client::{Client, ClientOptions, Endpoint, NewFile};

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let mut client = Client::connect(&Endpoint::parse(&address)?, &ClientOptions::default())?;
    let new = NewFile::default();
    let bag = NewFile { kind: NodeKind::MultiFile, ..NewFile::default() };
    client.make_dir("/bag", &bag)?;

    // A stream of unknown length. Nobody sees the file before its close.
    let mut writer = client.create("/bag/1", &new)?;
    for i in 0..100u32 {
        writer.write(&i.to_le_bytes().repeat(10_000))?;
    }
    writer.flush()?; // every byte so far is acknowledged
    writer.close()?;

    // Of known length: whole chunks, and the rest packed with other small objects.
    let bytes = vec![7; 3_000_000];
    client.put_sized("/bag/2", &bytes, &new)?;

    // From any place, and front to back without a copy in between.
    let mut reader = client.open("/bag/1")?;
    let mut word = [0; 4];
    reader.read_exact_at(&mut word, 40_000)?;
    assert_eq!(u32::from_le_bytes(word), 1);
    drop(reader);

    // Both files as one stream, in the order of their names.
    let mut reader = client.open("/bag")?;
    let mut total = 0;
    loop {
        let n = reader.next_bytes()?.len();
        if n == 0 {
            break;
        }
        total += n;
        reader.consume(n);
    }
    drop(reader);
    println!("{total} bytes in order");

    // Both at once, in whatever order the answers come.
    let mut stream = client.open_many(&["/bag/1", "/bag/2"], 8);
    let mut read = [0; 2];
    while let Some(run) = stream.next_run()? {
        read[run.file] += run.bytes.len();
    }
    drop(stream);
    println!("{read:?} bytes at once");
    client.delete("/bag", true)
}
