//! How an invalidation topic stands: what `holdfast invalidate status` says.

use crate::position::Position;
use crate::run::{known, topic};
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_client::Client;

/// How far a pool's invalidations have come.
pub struct Standing {
    /// In the database's row log.
    pub position: Position,
    /// When the last change up to there was made, in seconds since 1970, by the database's clock.
    pub changed_s: u64,
    /// Servers that have confirmed something, and how many entries of the topic each lacks. One that is to be
    /// emptied is left out.
    pub servers: Vec<(String, u64)>,
}

pub fn standing(client: &mut Client, pool: &str) -> Result<Standing> {
    let topic = topic(pool);
    let known = known(client, &topic)?;
    let Some((last, position, changed_s)) = known.position else {
        return Err(Error::not_found(format!(
            "read topic `{topic}`: it has no invalidations: run `holdfast invalidate run --to {pool}` first"
        )));
    };
    let servers = known.confirmed.map(|(_, servers)| servers).unwrap_or_default();
    let behind = |next: Index| (last.0 + 1).saturating_sub(next.0);
    let servers = servers.into_iter().map(|(name, next)| (name, behind(next))).collect();
    Ok(Standing { position, changed_s, servers })
}
