//! The first access key of a data directory: drawn at the first start, written for its owner's eyes.

use holdfast_base::{Error, Kind, Result};
use holdfast_blob::{AccessKey, Blobs};
use holdfast_env::disk::read_file;
use holdfast_env::{Disk, Rng, local, runtime};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// The file in the data directory.
pub const FILE: &str = "credentials.json";
const FILE_BYTES_MAX: u64 = 4096;

/// A key pair and where to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Names the key; no secret.
    pub access_key: String,
    /// Signs; never sent.
    pub secret_key: String,
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: String,
}

impl Credentials {
    /// Of the file's text; nothing if a field is missing.
    pub fn parse(text: &str) -> Option<Credentials> {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        let field = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
        Some(Credentials {
            access_key: field("access_key")?,
            secret_key: field("secret_key")?,
            endpoint: field("endpoint")?,
        })
    }

    /// The inverse.
    pub fn text(&self) -> String {
        let value = json!({
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "endpoint": self.endpoint,
        });
        format!("{value:#}\n")
    }
}

/// An access key's name and secret, with 100 and 200 bits of chance.
pub fn random_key(rng: &dyn Rng) -> (String, String) {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let draw = |letters: usize| -> String {
        (0..letters).map(|_| LETTERS[(rng.next_u64() % 32) as usize] as char).collect()
    };
    (draw(20), draw(40))
}

/// The credentials in a data directory. Without any, an administrator's key is drawn, named and
/// written there; a changed endpoint is written anew.
pub fn find_or_make(
    disk: &dyn Disk,
    data: &Path,
    blobs: &Arc<Blobs>,
    endpoint: &str,
) -> Result<Credentials> {
    let path = data.join(FILE);
    let doing =
        |e: std::io::Error| Error::from(e).context(format_args!("keep `{}`", path.display()));
    let found = match disk.exists(&path).map_err(doing)? {
        true => {
            let bytes = read_file(disk, &path, FILE_BYTES_MAX).map_err(doing)?;
            let parsed = std::str::from_utf8(&bytes).ok().and_then(Credentials::parse);
            Some(parsed.ok_or_else(|| {
                Error::invalid(format!(
                    "read `{}`: it is not what was written there: remove it, and a new key is drawn",
                    path.display()
                ))
            })?)
        }
        false => None,
    };
    let credentials = match found {
        Some(found) if found.endpoint == endpoint => found,
        Some(found) => Credentials { endpoint: endpoint.to_owned(), ..found },
        None => {
            let (access_key, secret_key) = random_key(&*blobs.node().machine.rng);
            Credentials { access_key, secret_key, endpoint: endpoint.to_owned() }
        }
    };
    // The file first: a key that nobody can read would be of no use.
    local::write_private(&path, credentials.text().as_bytes()).map_err(doing)?;
    let name = &credentials.access_key;
    let known = match blobs.access_key(name) {
        // Sealed with a secret that is gone. The file tells this key, with which the others can be
        // made anew.
        Err(e) if e.kind == Kind::Denied => None,
        known => known?,
    };
    if known.is_none() {
        let sealed = blobs.access_keys()?.into_iter().find(|(key, _)| key == name);
        let first = || AccessKey {
            user: "root".into(),
            created_ms: blobs.now_ms(),
            admin: true,
            ..AccessKey::default()
        };
        let key = sealed.map_or_else(first, |(_, key)| key);
        let key = AccessKey { secret: credentials.secret_key.clone(), ..key };
        runtime::block_on(blobs.set_access_key(&credentials.access_key, Some(key)))??;
    }
    Ok(credentials)
}
