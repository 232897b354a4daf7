//! `holdfast invalidate`: keeps a pool of caches true to a database. Decides nothing about keys.

mod metrics;
mod status;

use crate::route;
use clap::{Args, Subcommand};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::files::read_text;
use holdfast_command::output::Output;
use holdfast_env::tasks::{self, Stop};
use holdfast_env::{Clock, RealClock, RealRng, Rng, local, signals};
use holdfast_invalidate::lease::{LEASE_S_MAX, LEASE_S_MIN};
use holdfast_invalidate::map::{self, Map};
use holdfast_invalidate::postgres;
use holdfast_invalidate::progress::Progress;
use holdfast_invalidate::run::{self, Connect, Settings};
use holdfast_invalidate::source::{About, Database};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `holdfast invalidate ...`.
#[derive(Subcommand, Debug)]
pub enum Invalidate {
    /// Follow a database or a table, and have the keys of changed rows dropped by every server that may hold them
    Run(RunOptions),
    /// Say how far a pool's invalidations have come
    Status {
        /// The pool
        #[arg(long, value_name = "POOL")]
        to: String,
        /// Database that is followed: say also how many bytes of its log the topic lacks, and of PostgreSQL how much
        /// the pool's slot makes it keep
        #[arg(long, env = "HOLDFAST_INVALIDATE_FROM", hide_env_values = true, value_name = "URL")]
        from: Option<String>,
        /// Its replication slot [default: holdfast_POOL]
        #[arg(long, value_name = "NAME")]
        slot: Option<String>,
    },
}

/// `holdfast invalidate run`.
#[derive(Args, Debug)]
#[command(after_long_help = map::EXAMPLE)]
pub struct RunOptions {
    /// Database whose row log is read: MariaDB, mysql://USER:PASSWORD@HOST:PORT, or PostgreSQL,
    /// postgres://USER:PASSWORD@HOST:PORT/DATABASE; best given in the environment, where other users do not
    /// see the password. Or a table of this cluster, table:NAME
    #[arg(long, env = "HOLDFAST_INVALIDATE_FROM", hide_env_values = true, value_name = "URL")]
    from: String,
    /// Replicas that the readers of this region read, with commas: keys are dropped once all of them show the
    /// change [default: the database of --from is read]
    #[arg(
        long,
        env = "HOLDFAST_INVALIDATE_READS",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "URLS"
    )]
    reads: Vec<String>,
    /// PostgreSQL's replication slot, made at the start, and publication, made before; two clusters that follow
    /// one database need two [default: holdfast_POOL]
    #[arg(long, value_name = "NAME")]
    slot: Option<String>,
    /// Pool whose servers, and those of its gutter and warm pool, are told
    #[arg(long, value_name = "POOL")]
    to: String,
    /// Pools and their servers, as `holdfast route --config` reads them
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Write metrics to this file every five seconds, as the textfile collector of Prometheus' node exporter
    /// reads them; it must end in `.prom`
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Tables, columns and the keys that they are in; --help shows one
    #[arg(long, value_name = "FILE")]
    map: PathBuf,
    /// Leave old values for so many seconds to readers that take them, and delete none; plain gets do not see
    /// that they are old
    #[arg(long, default_value_t = 0, value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(0..=STALE_S_MAX))]
    stale: u32,
    /// Give each server that was told everything a lease of so many seconds, again and again, so that readers
    /// who know of it (`server_lease`) leave the others out; without an invalidator they leave out all
    #[arg(long, value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(LEASE_S_MIN as i64..=LEASE_S_MAX as i64))]
    server_lease: Option<u32>,
    /// Go on giving leases for so many seconds while the database's log cannot be read to its end; values may be
    /// older by as much
    #[arg(long, default_value_t = 0, value_name = "SECONDS", requires = "server_lease",
          value_parser = clap::value_parser!(u32).range(0..=LEASE_S_MAX as i64))]
    server_lease_grace: u32,
}

/// Longer times are dates to memcached.
const STALE_S_MAX: i64 = 30 * 24 * 3600;
/// Where the numbers begin by which a database tells its invalidators from its replicas.
const SERVER_ID_FIRST: u32 = 1 << 30;

/// Carries out a command.
pub fn run(
    command: &Invalidate,
    connect: impl Fn() -> Result<Client> + Send + Sync + 'static,
    out: &mut Output,
) -> Result<()> {
    match command {
        Invalidate::Run(options) => follow(options, Arc::new(connect), out),
        Invalidate::Status { to, from, slot } => status::print(
            &(Arc::new(connect) as Connect),
            to,
            from.as_deref(),
            slot.as_deref(),
            out,
        ),
    }
}

fn slot_of(pool: &str, given: Option<&str>) -> Result<String> {
    match given {
        Some(name) => postgres::check_name(name).map(|()| name.to_owned()),
        None => postgres::name_of(pool),
    }
}

fn read_map(path: &Path, database: &Database) -> Result<Map> {
    let doing = |e: Error| e.context(format_args!("read the map `{}`", path.display()));
    database.read_map(&read_text(path).map_err(doing)?).map_err(doing)
}

fn follow(options: &RunOptions, connect: Connect, out: &mut Output) -> Result<()> {
    // Before any thread starts, so that only the one that waits for them gets signals.
    signals::block_shutdown_signals();
    local::keep_private();
    let plan = route::plan_from(&options.config)?;
    let pool = plan.pools.iter().position(|pool| pool.name == options.to).ok_or_else(|| {
        let names: Vec<&str> = plan.pools.iter().map(|pool| pool.name.as_str()).collect();
        Error::invalid(format!(
            "send invalidations to pool `{}`: `{}` has none of that name: use one of `{}`",
            options.to,
            options.config.display(),
            names.join("`, `")
        ))
    })?;
    let progress = Arc::new(Progress::default());
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let database = Database::parse_with(&options.from, &options.reads, &connect)?;
    let slot = match &database {
        Database::Postgres(_) => slot_of(&options.to, options.slot.as_deref())?,
        Database::MariaDb(_) | Database::Table(_) => String::new(),
    };
    let stop = Stop::new();
    let about = About {
        slot,
        stop: stop.clone(),
        map: read_map(&options.map, &database)?,
        server_id: SERVER_ID_FIRST | RealRng.next_u64() as u32 >> 2,
        progress: progress.clone(),
        clock: clock.clone(),
    };
    let (stale_s, lease_s) = (options.stale, options.server_lease.unwrap_or(0));
    let (about, lease_grace_s) = (Arc::new(about), options.server_lease_grace);
    let settings = Settings { database, about, plan, pool, stale_s, lease_s, lease_grace_s };
    let asked = stop.clone();
    // Not waited for: it ends with the process.
    let _signals = tasks::spawn("signals", move || {
        if signals::wait_for_shutdown().is_ok() {
            asked.request();
        }
    })?;
    let told = options
        .metrics
        .clone()
        .map(|path| metrics::start(path, progress.clone(), clock.clone(), stop.clone()));
    let told = told.transpose()?;
    let (from, to) = (settings.database.name().to_owned(), options.to.clone());
    let ended = run::run(settings, connect, clock, &stop, || {
        out.line(
            || format!("holdfast invalidate follows {from} for pool {to}"),
            || json!({"event": "ready", "from": from, "to": to}),
        )
    });
    if let Some(told) = told {
        told.join();
    }
    ended
}
