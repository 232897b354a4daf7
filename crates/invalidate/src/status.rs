//! How an invalidation topic stands: what `holdfast invalidate status` says.

use crate::position::Position;
use crate::run::{known, topic};
use crate::send::Lack;
use holdfast_base::ids::Index;
use holdfast_base::{Error, Result};
use holdfast_client::Client;

/// How far a pool's invalidations have come.
pub struct Standing {
    /// In the database's row log.
    pub position: Position,
    /// When the last change up to there was made, in seconds since 1970, by the database's clock.
    pub changed_s: u64,
    /// What servers lack that have confirmed something. One that is to be emptied is left out.
    pub servers: Vec<Lack>,
}

pub fn standing(client: &mut Client, pool: &str) -> Result<Standing> {
    let topic = topic(pool);
    let known = known(client, &topic)?;
    let Some((_, position, changed_s)) = known.position else {
        return Err(Error::not_found(format!(
            "read topic `{topic}`: it has no invalidations: run `holdfast invalidate run --to {pool}` first"
        )));
    };
    let servers = known.confirmed.map(|(_, servers)| servers).unwrap_or_default();
    let changes = known.changes;
    let lack = |(server, next): (String, Index)| {
        let from = changes.partition_point(|(index, _)| *index < next);
        let since_s = changes.get(from).map(|(_, changed_s)| *changed_s);
        Lack { server, entries: (changes.len() - from) as u64, since_s, is_to_be_emptied: false }
    };
    let servers = servers.into_iter().map(lack).collect();
    Ok(Standing { position, changed_s, servers })
}
