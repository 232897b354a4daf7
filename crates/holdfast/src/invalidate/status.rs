//! `holdfast invalidate status`: how far a pool's invalidations have come, who lacks what, and which keys change most.

use super::{SERVER_ID_FIRST, slot_of};
use holdfast_base::Result;
use holdfast_base::text::utc;
use holdfast_command::output::Output;
use holdfast_env::{Clock, RealClock, RealRng, Rng};
use holdfast_invalidate::heat::Hot;
use holdfast_invalidate::mariadb::{self, READ_BYTES_MAX};
use holdfast_invalidate::position::Position;
use holdfast_invalidate::postgres::{self, Slot};
use holdfast_invalidate::run::Connect;
use holdfast_invalidate::send::Lack;
use holdfast_invalidate::source::Database;
use holdfast_invalidate::status::{Standing, standing};
use holdfast_invalidate::table;
use serde_json::{Value, json};
use std::fmt::Write;

/// Prints a pool's standing; `from`: the database that it follows, to be asked, too.
pub fn print(
    connect: &Connect,
    pool: &str,
    from: Option<&str>,
    slot: Option<&str>,
    out: &mut Output,
) -> Result<()> {
    let client = &mut connect()?;
    let standing = standing(client, pool, RealClock::new().unix_ms() / 1000)?;
    out.line(|| text(pool, &standing), || object(pool, &standing))?;
    standing.servers.iter().try_for_each(|lack| print_lack(lack, out))?;
    let Some(from) = from else { return Ok(()) };
    match (Database::parse_with(from, &[], connect)?, &standing.position) {
        (Database::Postgres(servers), position) => {
            let name = slot_of(pool, slot)?;
            print_slot(&name, postgres::standing(&servers.from, &name)?, position, out)
        }
        (Database::MariaDb(servers), Position::MariaDb(at)) => {
            let server_id = SERVER_ID_FIRST | RealRng.next_u64() as u32 >> 2;
            let behind = mariadb::behind(&servers.from, at, server_id)?;
            let (bytes, name) = (behind.bytes, &servers.from.name);
            let more = if behind.is_cut {
                format!(", and more than {READ_BYTES_MAX} were not read")
            } else {
                String::new()
            };
            out.line(
                || format!("log of {name}: {bytes} bytes behind{more}"),
                || json!({"log": name, "behind_bytes": bytes, "is_cut": behind.is_cut}),
            )
        }
        (Database::Table(_), Position::Table(at)) => {
            let (table, behind) = (&at.table, table::behind(client, at)?);
            let said =
                behind.map_or("how many are not known".to_owned(), |steps| steps.to_string());
            out.line(
                || format!("changes of table {table} behind: {said}"),
                || json!({"table": table, "changes_behind": behind}),
            )
        }
        (Database::MariaDb(_) | Database::Table(_), _) => Ok(()),
    }
}

/// Keys as they may be shown: they hold whatever a row does.
fn named(hot: &Hot) -> String {
    hot.name.escape_ascii().to_string()
}

fn text(pool: &str, standing: &Standing) -> String {
    let Standing { position, changed_s, rate, counted, .. } = standing;
    let changed = utc(*changed_s as i64, ' ');
    let mut text = format!("{pool}: at {position}, changed {changed}");
    let _ = write!(text, "; {} keys in the last {} s", rate.keys, rate.seconds);
    for (what, hottest) in
        [("patterns", &standing.hottest_patterns), ("keys", &standing.hottest_keys)]
    {
        let each = hottest.iter().map(|hot| match hot.over {
            0 => format!("{} {}", named(hot), hot.count),
            over => format!("{} {} to {}", named(hot), hot.count - over, hot.count),
        });
        let each = each.collect::<Vec<_>>().join(", ");
        if !each.is_empty() {
            let _ = write!(text, "\nhottest {what} of the last {counted}: {each}");
        }
    }
    text
}

fn object(pool: &str, standing: &Standing) -> Value {
    let hottest = |hottest: &[Hot]| -> Vec<Value> {
        let one = |hot: &Hot| json!({"name": named(hot), "count": hot.count, "over": hot.over});
        hottest.iter().map(one).collect()
    };
    json!({
        "pool": pool,
        "position": standing.position.to_string(),
        "changed_s": standing.changed_s,
        "keys": standing.rate.keys,
        "seconds": standing.rate.seconds,
        "counted": standing.counted,
        "hottest_patterns": hottest(&standing.hottest_patterns),
        "hottest_keys": hottest(&standing.hottest_keys),
    })
}

fn print_lack(lack: &Lack, out: &mut Output) -> Result<()> {
    let Lack { server, entries, bytes, since_s, .. } = lack;
    let since = since_s.map(|since_s| utc(since_s as i64, ' '));
    let since = since.map_or(String::new(), |since| format!(", since {since}"));
    out.line(
        || format!("{server}: {entries} entries behind, {bytes} bytes of keys{since}"),
        || {
            json!({"server": server, "entries_behind": entries, "behind_bytes": bytes,
                   "behind_since_s": since_s})
        },
    )
}

/// What a slot keeps its database from deleting.
fn print_slot(name: &str, slot: Option<Slot>, position: &Position, out: &mut Output) -> Result<()> {
    let Some(slot) = slot else {
        return out.line(
            || format!("slot {name}: there is none"),
            || json!({"slot": name, "status": null}),
        );
    };
    let (retained, status) = (slot.retained_bytes, &slot.status);
    let (confirmed, is_read) = (slot.confirmed, slot.pid.is_some());
    let reader = if is_read { "read" } else { "nobody reads it" };
    let behind = match position {
        Position::Postgres(at) => Some(slot.end.0.saturating_sub(at.lsn.0)),
        Position::MariaDb(_) | Position::Table(_) => None,
    };
    let lacks = behind.map_or(String::new(), |bytes| format!("{bytes} bytes behind, "));
    out.line(
        || {
            format!(
                "slot {name}: {lacks}{retained} bytes of log kept, {status}, at {confirmed}, {reader}"
            )
        },
        || {
            json!({"slot": name, "status": status, "confirmed": confirmed.to_string(),
                   "behind_bytes": behind, "retained_bytes": retained, "is_read": is_read})
        },
    )
}
