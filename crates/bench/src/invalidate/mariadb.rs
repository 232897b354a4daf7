//! MariaDB to measure with: Debian's packages, installed or unpacked in a directory; each server a process of its
//! own with a directory of its own. Nothing of it waits for the disk, which is the node's to sync.

use super::free_port;
use super::kind::{Items, Kind, PATIENCE};
use super::stand::Stand;
use holdfast_base::{Error, Result};
use holdfast_env::runtime::Background;
use holdfast_invalidate::mariadb::{self, Server};
use mysql_async::Conn;
use mysql_async::prelude::{FromRow, Queryable};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What the row log must say (docs/invalidate.md).
const SETTINGS: [&str; 5] = [
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--sync-binlog=0",
    "--innodb-flush-log-at-trx-commit=0",
];

/// The program, and what it brings along.
struct Programs {
    /// `bin`, `sbin`, `share` and `lib` are below it.
    root: PathBuf,
}

impl Programs {
    /// Those of the system, or of a directory that packages were unpacked in.
    fn find(directory: &Path) -> Result<Programs> {
        let unpacked = directory.join("usr").canonicalize().ok();
        let roots = [Some(PathBuf::from("/usr")), unpacked].into_iter().flatten();
        let found = roots.into_iter().find(|root| root.join("sbin/mariadbd").exists());
        found.map(|root| Programs { root }).ok_or_else(|| {
            Error::not_found(format!(
                "find MariaDB to measure with: it is neither installed nor unpacked in `{}`: run `make tools` in the \
                 repository, or name the directory of Debian's packages by `--debian-dir`",
                directory.display()
            ))
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.root.join("sbin/mariadbd"));
        let share = self.root.join("share/mysql");
        command.env("LD_LIBRARY_PATH", self.root.join("lib/x86_64-linux-gnu")).arg("--no-defaults");
        command.arg(format!("--lc-messages-dir={}", share.display()));
        command.arg(format!("--character-sets-dir={}", share.join("charsets").display()));
        // Whoever measures may be root, as whom it does not run unless it is told so.
        command.args(["--user=root", "--innodb-buffer-pool-size=256M"]);
        command.stdout(Stdio::null());
        command
    }

    fn bootstrap(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        let mut tables = String::from("CREATE DATABASE mysql;\nUSE mysql;\n");
        for file in ["mysql_system_tables.sql", "mysql_system_tables_data.sql"] {
            tables += &std::fs::read_to_string(self.root.join("share/mysql").join(file))?;
        }
        let (script, log) = (directory.with_extension("sql"), directory.with_extension("log"));
        std::fs::write(&script, tables)?;
        let made = self
            .command()
            .arg("--bootstrap")
            .arg(format!("--datadir={}", directory.display()))
            .arg(format!("--tmpdir={}", directory.display()))
            .stdin(File::open(&script)?)
            .stderr(File::create(&log)?)
            .status()?;
        match made.success() {
            true => Ok(()),
            false => {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default();
                Err(Error::retry(format!("make a database to measure with: MariaDB says `{last}`")))
            }
        }
    }
}

/// A server; killed when dropped.
pub struct MariaDb {
    child: Child,
    url: String,
    port: u16,
}

impl MariaDb {
    /// A new one, whose files are below `directory`; `number` is its own among those that follow each other.
    fn begin(programs: &Programs, directory: &Path, number: u32) -> Result<MariaDb> {
        let port = free_port()?;
        programs.bootstrap(directory)?;
        let child = programs
            .command()
            .arg(format!("--datadir={}", directory.display()))
            .arg(format!("--tmpdir={}", directory.display()))
            .arg(format!("--socket={}", directory.with_extension("sock").display()))
            .arg(format!("--port={port}"))
            .arg(format!("--server-id={number}"))
            .args(["--bind-address=127.0.0.1", "--skip-grant-tables", "--skip-name-resolve"])
            .args(["--log-bin=bin", "--relay-log=relay"])
            .args(SETTINGS)
            .stdin(Stdio::null())
            .stderr(File::options().append(true).open(directory.with_extension("log"))?)
            .spawn()?;
        // A socket would be quicker, and is nothing that another machine has.
        let url = format!("mysql://root@127.0.0.1:{port}?prefer_socket=false");
        let database = MariaDb { child, url, port };
        database.sql()?;
        Ok(database)
    }

    /// Lets it apply what another one logs, from now on.
    fn follow(&self, primary: &MariaDb) -> Result<()> {
        let mut sql = self.sql()?;
        sql.run(&format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'root', \
             MASTER_USE_GTID = slave_pos",
            primary.port
        ))?;
        sql.run("START SLAVE")
    }

    /// A connection, as soon as it is served.
    fn sql(&self) -> Result<Sql> {
        let (server, began) = (Server::parse(&self.url)?, Instant::now());
        let runtime = Background::start("bench-sql")?;
        loop {
            let to = server.clone();
            match runtime.wait_for(async move { to.connect().await }) {
                Ok(conn) => return Ok(Sql { runtime, conn: Some(conn) }),
                Err(e) if began.elapsed() > PATIENCE => return Err(e),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Kind for MariaDb {
    const NAME: &'static str = "MariaDB";
    const MAP: &'static str = "[[keys]]\ntable = \"bench.items\"\nkey = \"item:{id}\"\n";
    type Source = mariadb::MariaDb;
    type Items = Sql;

    fn start(packages: &Path, directory: &Path, _: &Stand, items: u64) -> Result<MariaDb> {
        let database = MariaDb::begin(&Programs::find(packages)?, &directory.join("db"), 1)?;
        let mut sql = database.sql()?;
        sql.run("CREATE DATABASE bench")?;
        sql.run(
            "CREATE TABLE bench.items (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(40) NOT NULL, price BIGINT NOT NULL)",
        )?;
        sql.run(&format!(
            "INSERT INTO bench.items SELECT seq, CONCAT('the name of item ', seq), 0 FROM bench.seq_1_to_{items}"
        ))?;
        Ok(database)
    }

    fn replica(&self, packages: &Path, directory: &Path) -> Result<Option<MariaDb>> {
        let replica = MariaDb::begin(&Programs::find(packages)?, &directory.join("replica"), 2)?;
        replica.follow(self)?;
        let items: Vec<u64> = self.sql()?.ask("SELECT COUNT(*) FROM bench.items")?;
        let mut sql = replica.sql()?;
        let tables = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'bench'";
        sql.until_is(tables, 1)?;
        sql.until_is("SELECT COUNT(*) FROM bench.items", items.first().copied().unwrap_or(0))?;
        Ok(Some(replica))
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn server(&self) -> Result<Server> {
        Server::parse(&self.url)
    }

    fn items(&self) -> Result<Sql> {
        self.sql()
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that blocks.
pub struct Sql {
    runtime: Background,
    /// Lent to the runtime while it is asked.
    conn: Option<Conn>,
}

impl Sql {
    fn with<T, F>(&mut self, question: impl FnOnce(Conn) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<(Conn, T), mysql_async::Error>> + Send,
    {
        let failed = |e: mysql_async::Error| Error::retry(format!("ask the database: {e}"));
        let conn = self.conn.take().ok_or_else(|| Error::retry("ask the database: it is away"))?;
        let (conn, answer) =
            self.runtime.wait_for(async move { question(conn).await.map_err(failed) })?;
        self.conn = Some(conn);
        Ok(answer)
    }

    fn ask<R: FromRow + Send + 'static>(&mut self, text: &str) -> Result<Vec<R>> {
        let text = text.to_owned();
        self.with(|mut conn| async move {
            let rows = conn.query(text).await?;
            Ok((conn, rows))
        })
    }

    fn run(&mut self, text: &str) -> Result<()> {
        self.ask::<mysql_async::Row>(text).map(drop)
    }
}

impl Items for Sql {
    fn set_price(&mut self, id: u64, price: u64) -> Result<()> {
        self.run(&format!("UPDATE bench.items SET price = {price} WHERE id = {id}"))
    }

    fn until_price(&mut self, id: u64, price: u64) -> Result<Instant> {
        self.until_is(&format!("SELECT price FROM bench.items WHERE id = {id}"), price)
    }

    fn raise(&mut self, first: u64, last: u64, each: u64) -> Result<()> {
        self.run(&format!(
            "BEGIN NOT ATOMIC DECLARE n BIGINT DEFAULT {first}; WHILE n <= {last} DO \
             UPDATE bench.items SET price = price + 1 WHERE id BETWEEN n AND LEAST(n + {each} - 1, {last}); \
             SET n = n + {each}; END WHILE; END"
        ))
    }
}

impl Sql {
    /// As [`Items::until_price`], of the first value of an answer.
    fn until_is(&mut self, text: &str, value: u64) -> Result<Instant> {
        let text = text.to_owned();
        let is = self.with(move |mut conn| async move {
            let began = Instant::now();
            loop {
                let sent = Instant::now();
                let is: Option<u64> = conn.query_first(&text).await?;
                if is == Some(value) {
                    return Ok((conn, Some(sent)));
                }
                if began.elapsed() > PATIENCE {
                    return Ok((conn, None));
                }
            }
        })?;
        is.ok_or_else(|| Error::retry("wait for a change: the replica does not apply it"))
    }
}
