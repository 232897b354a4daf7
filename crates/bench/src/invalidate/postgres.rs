//! PostgreSQL to measure with: Debian's packages, installed or unpacked in a directory; each server a process of its
//! own with a directory of its own. Nothing of it waits for the disk, which is the node's to sync.

use super::kind::{Items, Kind, PATIENCE};
use super::stand::{POOL, Stand};
use super::{READER, free_port};
use holdfast_base::{Error, Result};
use holdfast_env::runtime::Background;
use holdfast_invalidate::postgres::{self, Connection, Server, Texts, name_of};
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// It refuses to run as root: then it runs as nobody.
const NOBODY: u32 = 65_534;
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "wal_level=logical",
    "shared_buffers=256MB",
    "max_wal_size=8GB",
    "fsync=off",
];

fn is_root() -> Result<bool> {
    Ok(std::fs::metadata("/proc/self")?.uid() == 0)
}

/// A program of the server.
fn program(packages: &Path, name: &str) -> Result<Command> {
    let unpacked = packages.join("usr").canonicalize().ok();
    let roots = [Some(PathBuf::from("/usr")), unpacked].into_iter().flatten();
    let found = roots.into_iter().find_map(|root| {
        let versions = std::fs::read_dir(root.join("lib/postgresql")).ok()?;
        let mut programs =
            versions.map(|version| Some(version.ok()?.path().join("bin").join(name)));
        let program = programs.find_map(|program| program.filter(|program| program.exists()))?;
        Some((program, root))
    });
    let (program, root) = found.ok_or_else(|| {
        Error::not_found(format!(
            "find PostgreSQL to measure with: it is neither installed nor unpacked in `{}`: run `make tools` in the \
             repository, or name the directory of Debian's packages by `--debian-dir`",
            packages.display()
        ))
    })?;
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", root.join("lib/x86_64-linux-gnu"));
    if is_root()? {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

/// Runs a program to its end, that makes `directory`.
fn make(mut command: Command, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    if is_root()? {
        chown(directory, Some(NOBODY), Some(NOBODY))?;
    }
    let log = directory.with_extension("log");
    let made = command.arg("--pgdata").arg(directory).stderr(File::create(&log)?).status()?;
    match made.success() {
        true => Ok(()),
        false => {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let last = said.lines().last().unwrap_or_default();
            Err(Error::retry(format!("make a database to measure with: PostgreSQL says `{last}`")))
        }
    }
}

/// A server; killed when dropped.
pub struct Postgres {
    child: Child,
    port: u16,
}

impl Postgres {
    fn serve(packages: &Path, directory: &Path) -> Result<Postgres> {
        let port = free_port()?;
        let mut command = program(packages, "postgres")?;
        command.arg("-D").arg(directory).args(["-p", &port.to_string()]);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        let log = File::options().append(true).open(directory.with_extension("log"))?;
        let database = Postgres { child: command.stderr(log).spawn()?, port };
        database.items()?;
        Ok(database)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Its other processes end when they find it gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Kind for Postgres {
    const NAME: &'static str = "PostgreSQL";
    const MAP: &'static str = "[[keys]]\ntable = \"bench.items\"\nkey = \"item:{id}\"\n";
    type Source = postgres::Postgres;
    type Items = Sql;

    fn start(packages: &Path, directory: &Path, _: &Stand, items: u64) -> Result<Postgres> {
        if is_root()? {
            // Whoever it runs as has to come through.
            std::fs::set_permissions(directory, Permissions::from_mode(0o755))?;
        }
        let directory = directory.join("db");
        let mut command = program(packages, "initdb")?;
        command.args([
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            "--username=owner",
            "--auth=trust",
        ]);
        make(command, &directory)?;
        let database = Postgres::serve(packages, &directory)?;
        let mut sql = database.items()?;
        sql.ask("CREATE SCHEMA bench")?;
        sql.ask("CREATE TABLE bench.items (id bigint PRIMARY KEY, name text NOT NULL, price bigint NOT NULL)")?;
        sql.ask(&format!(
            "INSERT INTO bench.items SELECT n, 'the name of item ' || n, 0 FROM generate_series(1, {items}) n"
        ))?;
        for publication in [name_of(POOL)?, READER.to_owned()] {
            sql.ask(&format!(
                "CREATE PUBLICATION {publication} FOR TABLE bench.items WITH (publish_via_partition_root = true)"
            ))?;
        }
        Ok(database)
    }

    fn replica(&self, packages: &Path, directory: &Path) -> Result<Option<Postgres>> {
        let directory = directory.join("replica");
        let mut command = program(packages, "pg_basebackup")?;
        command.args([
            "--no-sync",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
        ]);
        command.args(["--host=127.0.0.1", "--username=owner", "--port", &self.port.to_string()]);
        make(command, &directory)?;
        Postgres::serve(packages, &directory).map(Some)
    }

    fn url(&self) -> String {
        format!("postgres://owner@127.0.0.1:{}/postgres", self.port)
    }

    fn server(&self) -> Result<Server> {
        Server::parse(&self.url())
    }

    fn items(&self) -> Result<Sql> {
        let (server, began) = (Server::parse(&self.url())?, Instant::now());
        let runtime = Background::start("bench-sql")?;
        loop {
            let to = server.clone();
            match runtime.wait_for(async move { to.connect(false).await }) {
                Ok(conn) => return Ok(Sql { runtime, conn: Some(conn) }),
                Err(e) if began.elapsed() > PATIENCE => return Err(e),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// A connection that blocks.
pub struct Sql {
    runtime: Background,
    /// Lent to the runtime while it is asked.
    conn: Option<Connection>,
}

impl Sql {
    fn lent(&mut self) -> Result<Connection> {
        self.conn.take().ok_or_else(|| Error::retry("ask the database: it is away"))
    }

    fn ask(&mut self, text: &str) -> Result<Vec<Texts>> {
        let (mut conn, text) = (self.lent()?, text.to_owned());
        let (conn, rows) = self.runtime.wait_for(async move {
            let rows = conn.ask(&text).await?;
            Ok((conn, rows))
        })?;
        self.conn = Some(conn);
        Ok(rows)
    }
}

impl Items for Sql {
    fn set_price(&mut self, id: u64, price: u64) -> Result<()> {
        self.ask(&format!("UPDATE bench.items SET price = {price} WHERE id = {id}")).map(drop)
    }

    fn until_price(&mut self, id: u64, price: u64) -> Result<Instant> {
        let mut conn = self.lent()?;
        let (text, wanted) =
            (format!("SELECT price FROM bench.items WHERE id = {id}"), price.to_string());
        let (conn, is) = self.runtime.wait_for(async move {
            let began = Instant::now();
            loop {
                let sent = Instant::now();
                let rows = conn.ask(&text).await?;
                if rows.first().is_some_and(|row| row[0].as_deref() == Some(wanted.as_str())) {
                    return Ok((conn, Some(sent)));
                }
                if began.elapsed() > PATIENCE {
                    return Ok((conn, None));
                }
            }
        })?;
        self.conn = Some(conn);
        is.ok_or_else(|| Error::retry("wait for a change: the replica does not apply it"))
    }

    fn raise(&mut self, first: u64, last: u64, each: u64) -> Result<()> {
        self.ask(&format!(
            "DO $$ BEGIN FOR n IN {first} .. {last} BY {each} LOOP \
             UPDATE bench.items SET price = price + 1 WHERE id BETWEEN n AND least(n + {each} - 1, {last}); \
             COMMIT; END LOOP; END $$"
        ))
        .map(drop)
    }
}
