//! The replication slot that a pool has in its database: what it is called, whether the log is still there
//! behind a position, and how much of it the slot keeps the database from deleting.

use super::connection::{Connection, Server, Texts};
use super::wire::literal;
use crate::position::{Lsn, Origin, PostgresAt};
use holdfast_base::{Error, Result};
use holdfast_env::runtime::block_on;

/// What decodes the log for us; each server has it.
const PLUGIN: &str = "pgoutput";
/// Longer names are cut by the server.
const NAME_BYTES_MAX: usize = 63;

/// A slot as its server describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    pub plugin: String,
    pub database: String,
    /// Who reads it now.
    pub pid: Option<String>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub status: String,
    /// What was confirmed.
    pub confirmed: Lsn,
    /// The end of the log.
    pub end: Lsn,
    /// Bytes of the log that the server keeps for it.
    pub retained_bytes: u64,
}

/// The slot and the publication of a pool: `holdfast_POOL`, with what slots' names cannot have as `_` and two
/// digits.
pub fn name_of(pool: &str) -> Result<String> {
    let mut name = String::from("holdfast_");
    for byte in pool.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' => name.push(byte as char),
            other => name += &format!("_{other:02x}"),
        }
    }
    check_name(&name)?;
    Ok(name)
}

/// Refuses a name that no slot can have.
pub fn check_name(name: &str) -> Result<()> {
    let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(fits) {
        return Err(Error::invalid(format!(
            "name the replication slot `{name}`: use up to {NAME_BYTES_MAX} small letters, digits and `_`: \
             give one by `--slot`"
        )));
    }
    Ok(())
}

impl Slot {
    /// Asks for a slot; nothing if there is none.
    pub async fn find(conn: &mut Connection, name: &str) -> Result<Option<Slot>> {
        let query = format!(
            "SELECT plugin, coalesce(database, ''), active_pid, coalesce(wal_status, 'lost'), \
             coalesce(confirmed_flush_lsn, '0/0'), pg_current_wal_flush_lsn(), \
             coalesce(greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0), 0)::bigint \
             FROM pg_replication_slots WHERE slot_name = {}",
            literal(name)
        );
        let doing = |e: Error| e.context(format_args!("ask for replication slot `{name}`"));
        let rows = conn.ask(&query).await.map_err(doing)?;
        rows.into_iter().next().map(Slot::read).transpose().map_err(doing)
    }

    fn read(row: Texts) -> Result<Slot> {
        let mut cells = row.into_iter();
        let mut next = || cells.next().flatten();
        Ok(Slot {
            plugin: next().unwrap_or_default(),
            database: next().unwrap_or_default(),
            pid: next(),
            status: next().unwrap_or_default(),
            confirmed: Lsn::parse(&next().unwrap_or_default())?,
            end: Lsn::parse(&next().unwrap_or_default())?,
            retained_bytes: next().and_then(|text| text.parse().ok()).unwrap_or_default(),
        })
    }

    /// Refuses one that is not ours to read, or to drop.
    pub fn check_ours(&self, name: &str, database: &str) -> Result<()> {
        let Slot { plugin, database: of, .. } = self;
        if plugin != PLUGIN || of != database {
            return Err(Error::invalid(format!(
                "read replication slot `{name}`: it is of database `{of}` and plugin `{plugin}`, not of \
                 `{database}` and `{PLUGIN}`: drop it, or name another by `--slot`"
            )));
        }
        Ok(())
    }

    /// Waits for one that somebody reads.
    pub fn check_free(&self, name: &str) -> Result<()> {
        if let Some(pid) = &self.pid {
            return Err(Error::retry(format!(
                "read replication slot `{name}`: another invalidator has it (process {pid} of the database): \
                 this one goes on when that ends"
            )));
        }
        Ok(())
    }
}

/// Why the log behind a position is not, or may not be, all there.
pub fn missing(at: &PostgresAt, origin: Origin, slot: Option<&Slot>) -> Option<String> {
    let Some(slot) = slot else {
        return Some("its replication slot was dropped".to_owned());
    };
    if slot.status == "lost" {
        return Some("its replication slot was invalidated (`max_slot_wal_keep_size`)".to_owned());
    }
    if at.origin.system != origin.system || at.origin.database != origin.database {
        return Some("that is of another database".to_owned());
    }
    if at.origin.timeline != origin.timeline {
        return Some(format!(
            "timeline {} began since: a standby was promoted, or an older state restored",
            origin.timeline
        ));
    }
    if slot.confirmed > at.lsn {
        return Some(format!("somebody else has confirmed up to {}", slot.confirmed));
    }
    (at.lsn > slot.end).then(|| format!("its log ends at {}, before that", slot.end))
}

/// Drops a slot that is there, and makes one; behind its first commit is what it gives.
pub async fn make(conn: &mut Connection, name: &str, is_there: bool) -> Result<Lsn> {
    let doing = |e: Error| e.context(format_args!("make replication slot `{name}`"));
    let literal = literal(name);
    if is_there {
        let drop = format!("SELECT pg_drop_replication_slot({literal})");
        conn.ask(&drop).await.map_err(doing)?;
    }
    let make = format!("SELECT lsn FROM pg_create_logical_replication_slot({literal}, '{PLUGIN}')");
    let rows = conn.ask(&make).await.map_err(doing)?;
    let lsn = rows.into_iter().flatten().flatten().next().unwrap_or_default();
    Lsn::parse(&lsn).map_err(doing)
}

/// Asks a database for a slot, on this thread; nothing if it has none of that name.
pub fn standing(server: &Server, name: &str) -> Result<Option<Slot>> {
    block_on(async {
        let mut conn = server.connect(false).await?;
        Slot::find(&mut conn, name).await
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pool_has_a_slot_of_its_own() {
        assert_eq!(name_of("main").unwrap(), "holdfast_main");
        assert_eq!(name_of("my-pool").unwrap(), "holdfast_my_2dpool");
        assert_ne!(name_of("a_b").unwrap(), name_of("a-b").unwrap());
        assert!(name_of(&"a".repeat(55)).unwrap_err().message.contains("--slot"));
        assert!(check_name("Main").is_err() && check_name("").is_err());
    }

    /// A change between the topic's position and where reading begins would be skipped.
    #[test]
    fn a_position_is_good_only_where_all_that_follows_is_in_the_log() {
        let origin = Origin { system: 1, timeline: 2, database: 3 };
        let at = |lsn| PostgresAt { origin, shape: 0, lsn: Lsn(lsn) };
        let slot = Slot { confirmed: Lsn(100), end: Lsn(200), ..Slot::default() };
        let why = |lsn, origin, slot: Option<&Slot>| missing(&at(lsn), origin, slot);
        assert_eq!(why(100, origin, Some(&slot)), None);
        assert_eq!(why(200, origin, Some(&slot)), None);
        assert!(why(99, origin, Some(&slot)).unwrap().contains("confirmed up to 0/64"));
        assert!(why(201, origin, Some(&slot)).unwrap().contains("ends at 0/C8"));
        assert!(why(100, origin, None).unwrap().contains("dropped"));
        let lost = Slot { status: "lost".to_owned(), ..slot.clone() };
        assert!(why(100, origin, Some(&lost)).unwrap().contains("max_slot_wal_keep_size"));
        for (other, word) in [
            (Origin { system: 9, ..origin }, "another database"),
            (Origin { database: 9, ..origin }, "another database"),
            (Origin { timeline: 9, ..origin }, "promoted"),
        ] {
            assert!(why(100, other, Some(&slot)).unwrap().contains(word), "{word}");
        }
    }

    #[test]
    fn a_slot_of_others_is_left_alone() {
        let slot =
            Slot { plugin: PLUGIN.to_owned(), database: "shop".to_owned(), ..Slot::default() };
        slot.check_ours("s", "shop").unwrap();
        slot.check_free("s").unwrap();
        assert!(slot.check_ours("s", "other").unwrap_err().message.contains("`--slot`"));
        let other = Slot { plugin: "wal2json".to_owned(), ..slot.clone() };
        assert!(other.check_ours("s", "shop").unwrap_err().message.contains("wal2json"));
        let taken = Slot { pid: Some("7".to_owned()), ..slot };
        let e = taken.check_free("s").unwrap_err();
        assert_eq!(e.kind, holdfast_base::Kind::Retry);
        assert!(e.message.contains("another invalidator"));
    }
}
