//! How many bytes of MariaDB's log lie behind a position: by the sizes of its files where the place of the position is
//! known, and else by reading them, since nothing tells the place of a transaction's number.

use super::server::failed;
use super::{Server, end, follow};
use crate::map::Map;
use crate::position::{Gtids, Place};
use holdfast_base::Result;
use holdfast_env::runtime::block_on;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};

/// Read at most, to say how many there are.
pub const READ_BYTES_MAX: u64 = 256 << 20;

/// What lies behind a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    pub bytes: u64,
    /// There is more, which was not read.
    pub is_cut: bool,
}

/// The log's files with their sizes, in their order.
pub async fn files(conn: &mut Conn) -> Result<Vec<(String, u64)>> {
    let rows: Vec<Row> = conn
        .query("SHOW BINARY LOGS")
        .await
        .map_err(|e| failed("ask for the files of the row log", &e))?;
    // More columns may follow.
    Ok(rows.iter().filter_map(|row| Some((row.get(0)?, row.get(1)?))).collect())
}

/// Bytes from one place to another one behind it; nothing where a file between is gone.
pub fn bytes_between(from: &Place, to: &Place, files: &[(String, u64)]) -> Option<u64> {
    let at = |place: &Place| files.iter().position(|(name, _)| *name == place.file);
    let (first, last) = (at(from)?, at(to)?);
    let sizes = files.get(first..last)?.iter().map(|(_, size)| size);
    Some((sizes.sum::<u64>() + to.offset).saturating_sub(from.offset))
}

/// Reads the log of a server behind a position, as a replica of this number.
pub fn behind(server: &Server, from: &Gtids, server_id: u32) -> Result<Behind> {
    block_on(async {
        let mut conn = server.connect().await?;
        let (end, _) = end(&mut conn).await?;
        let (mut at, mut behind) = (from.clone(), Behind { bytes: 0, is_cut: false });
        if at.covers_all(&end) {
            return Ok(behind);
        }
        let map = Map::default();
        let mut log = follow(server.connect().await?, from, server_id).await?;
        while !at.covers_all(&end) && !behind.is_cut {
            let (change, _) = log.next(&map).await?;
            at.pass(change.mark.gtid);
            behind = Behind { bytes: log.bytes(), is_cut: log.bytes() > READ_BYTES_MAX };
        }
        Ok(behind)
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_over_the_log_s_files() {
        let files = [("bin.000008", 900), ("bin.000009", 500), ("bin.000010", 70)];
        let files = files.map(|(name, size)| (name.to_owned(), size));
        let at = |file: &str, offset| Place { file: file.to_owned(), offset };
        let between = |from, to| bytes_between(&from, &to, &files);
        assert_eq!(between(at("bin.000009", 100), at("bin.000009", 400)), Some(300));
        assert_eq!(between(at("bin.000008", 850), at("bin.000010", 60)), Some(50 + 500 + 60));
        assert_eq!(between(at("bin.000008", 900), at("bin.000009", 4)), Some(4));
        assert_eq!(between(at("bin.000007", 1), at("bin.000010", 60)), None, "it was purged");
        assert_eq!(between(at("bin.000010", 60), at("bin.000009", 4)), None, "not behind it");
    }
}
