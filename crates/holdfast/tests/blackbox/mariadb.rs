//! MariaDB as a child process on a free port, with a directory of its own; and one connection to it.

use super::common::{free_port, until};
use holdfast_env::runtime::Background;
use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, Opts};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What the row log must say, or something else in its place.
pub const SETTINGS: &[&str] =
    &["--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL"];

pub struct MariaDb {
    child: Child,
    directory: PathBuf,
    settings: Vec<String>,
    pub port: u16,
}

/// The program, and what it brings along; nothing, and that said, where there is none.
fn found() -> Option<(PathBuf, PathBuf)> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debian/usr");
    let found = [PathBuf::from("/usr"), unpacked]
        .map(|root| (root.join("sbin/mariadbd"), root.join("share/mysql")))
        .into_iter()
        .find(|(program, _)| program.exists());
    if found.is_none() {
        eprintln!("SKIPPED: no MariaDB in target/debian: run .ci/tools");
    }
    found
}

fn program() -> Option<Command> {
    let (program, share) = found()?;
    let libraries = program.ancestors().nth(2).unwrap().join("lib/x86_64-linux-gnu");
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries).arg("--no-defaults");
    command.arg(format!("--lc-messages-dir={}", share.display()));
    command.arg(format!("--character-sets-dir={}", share.join("charsets").display()));
    // A test may run as root.
    command.arg("--user=root");
    Some(command)
}

impl MariaDb {
    pub fn start(directory: &Path, settings: &[&str]) -> Option<MariaDb> {
        let (_, share) = found()?;
        std::fs::create_dir_all(directory).unwrap();
        let mut tables = String::from("CREATE DATABASE mysql;\nUSE mysql;\n");
        for file in ["mysql_system_tables.sql", "mysql_system_tables_data.sql"] {
            tables += &std::fs::read_to_string(share.join(file)).unwrap();
        }
        let script = directory.with_extension("sql");
        std::fs::write(&script, tables).unwrap();
        let made = program()?
            .args(["--bootstrap", "--innodb-buffer-pool-size=16M"])
            .arg(format!("--datadir={}", directory.display()))
            // Tables that several of them make at the same time have the same names there.
            .arg(format!("--tmpdir={}", directory.display()))
            .stdin(File::open(&script).unwrap())
            .stdout(Stdio::null())
            .stderr(File::create(directory.with_extension("log")).unwrap())
            .status()
            .unwrap();
        assert!(made.success(), "see {}", directory.with_extension("log").display());
        let (port, directory) = (free_port(), directory.to_owned());
        let settings: Vec<String> = settings.iter().map(|one| (*one).to_owned()).collect();
        let child = spawn(&directory, &settings, port);
        let database = MariaDb { child, directory, settings, port };
        database.sql();
        Some(database)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}", self.port)
    }

    /// A connection, as soon as it is served.
    pub fn sql(&self) -> Sql {
        Sql::to(self.port)
    }

    /// Kills it, and starts it again with what it had.
    pub fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.directory, &self.settings, self.port);
        self.sql();
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(directory: &Path, settings: &[String], port: u16) -> Child {
    let log = File::options().append(true).open(directory.with_extension("log")).unwrap();
    program()
        .unwrap()
        .arg(format!("--datadir={}", directory.display()))
        .arg(format!("--tmpdir={}", directory.display()))
        .arg(format!("--port={port}"))
        .arg(format!("--socket={}", directory.with_extension("sock").display()))
        .args(["--bind-address=127.0.0.1", "--skip-grant-tables", "--innodb-buffer-pool-size=16M"])
        .args(["--log-bin=bin", "--server-id=1", "--skip-name-resolve", "--relay-log=relay"])
        .args(settings)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A connection that blocks.
pub struct Sql {
    pub port: u16,
    runtime: Background,
    conn: Option<Conn>,
}

impl Sql {
    pub fn to(port: u16) -> Sql {
        let runtime = Background::start("sql").unwrap();
        let url = format!("mysql://root@127.0.0.1:{port}");
        let mut conn = None;
        until("the database serves", || {
            conn = Sql::connect(&runtime, &url);
            conn.is_some()
        });
        Sql { port, conn, runtime }
    }

    fn connect(runtime: &Background, url: &str) -> Option<Conn> {
        let opts = Opts::from_url(url).unwrap();
        let wrong = |e: mysql_async::Error| holdfast_base::Error::retry(e.to_string());
        runtime.wait_for(async move { Conn::new(opts).await.map_err(wrong) }).ok()
    }

    /// The rows of a statement; nothing if the database is away.
    pub fn ask<R: FromRow + Send + 'static>(&mut self, text: &str) -> Option<Vec<R>> {
        let (mut conn, text) = (self.conn.take()?, text.to_owned());
        let wrong = |e: mysql_async::Error| holdfast_base::Error::retry(e.to_string());
        let asked = self.runtime.wait_for(async move {
            let rows = conn.query(text).await.map_err(wrong)?;
            Ok((conn, rows))
        });
        let (conn, rows) = asked.ok()?;
        self.conn = Some(conn);
        Some(rows)
    }

    #[track_caller]
    pub fn run(&mut self, text: &str) {
        assert!(self.ask::<mysql_async::Row>(text).is_some(), "{text}");
    }
}
