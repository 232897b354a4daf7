//! Secret keys of S3 are sealed in entries and rows, by the secret of the data directory; builds
//! before there was one wrote them in clear. This file seals what such a build left in the log;
//! the rows are folded anew from it.

use crate::BLOBS_TOPIC;
use crate::command::Command;
use crate::model::AccessKey;
use holdfast_base::Result;
use holdfast_env::{Disk, Rng, Secret, planted};
use holdfast_log::{Rewritten, rewrite};
use holdfast_view::ENVELOPE_BYTES;
use std::path::Path;
use std::sync::Arc;

/// Seals every secret key that the log in `directory` holds in clear, before the log is opened.
/// Nothing if it is kept elsewhere.
pub fn seal_log(
    disk: &Arc<dyn Disk>,
    directory: &Path,
    secret: &Secret,
    rng: &dyn Rng,
) -> Result<Option<Rewritten>> {
    rewrite(disk, directory, BLOBS_TOPIC, &|entry| {
        let with_sealed = |name: String, key| {
            let key = sealed(secret, rng, &name, key)?;
            Some(Command::SetAccessKey { name, key: Some(key) })
        };
        if let Some((mark, command)) = Command::from_bare(entry) {
            let Command::SetAccessKey { name, key: Some(key) } = command else { return None };
            return Some(with_sealed(name, key)?.to_bare(mark));
        }
        let (envelope, command) = entry.split_at_checked(ENVELOPE_BYTES)?;
        let Ok(Command::SetAccessKey { name, key: Some(key) }) = Command::from_command(command)
        else {
            return None;
        };
        Some([envelope, &with_sealed(name, key)?.to_command()].concat())
    })
}

/// A key as entries and rows hold it; nothing if it is one already.
pub(crate) fn sealed(
    secret: &Secret,
    rng: &dyn Rng,
    name: &str,
    key: AccessKey,
) -> Option<AccessKey> {
    if Secret::is_sealed(&key.secret) || planted!("blob.secrets-in-clear") {
        return None;
    }
    Some(AccessKey { secret: secret.seal(rng, name, &key.secret), ..key })
}
