//! Many parts of many files at once: what data frames' readers ask for. Each file is looked up once;
//! its parts are asked for side by side over one connection.

use holdfast_base::{Error, Result};
use holdfast_client::aio::{AsyncClient, AsyncReader, spawn};
use std::collections::HashMap;
use std::sync::Arc;

/// A path, from, until: of nothing, the file's end.
pub type Part = (String, u64, Option<u64>);

/// The bytes of each part, in the order of the parts. A part that reaches past its file's end ends
/// there.
pub async fn of(client: &AsyncClient, parts: &[Part]) -> Result<Vec<Vec<u8>>> {
    let mut paths: Vec<&String> = parts.iter().map(|(path, ..)| path).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut opening = Vec::new();
    for path in paths {
        let (client, path) = (client.clone(), path.clone());
        opening.push(spawn(async move {
            let reader = client.open(&path).await?;
            Ok::<_, Error>((path, Arc::new(reader)))
        })?);
    }
    let mut readers: HashMap<String, Arc<AsyncReader>> = HashMap::new();
    for opened in opening {
        readers.extend([opened.await??]);
    }
    let mut reading = Vec::new();
    for (path, from, until) in parts {
        let (reader, from) = (readers[path].clone(), *from);
        let end = until.unwrap_or(u64::MAX).min(reader.info().size);
        let bytes = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX);
        reading.push(spawn(async move {
            match bytes {
                0 => Ok(Vec::new()),
                _ => reader.read_at(from, bytes).await,
            }
        })?);
    }
    let mut read = Vec::with_capacity(parts.len());
    for part in reading {
        read.push(part.await??);
    }
    Ok(read)
}
