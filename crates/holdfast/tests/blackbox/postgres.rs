//! PostgreSQL as a child process on a free port, with a directory of its own; and one connection to it.

use super::common::{free_port, until};
use super::shop::Rows;
use holdfast_env::runtime::Background;
use holdfast_invalidate::postgres::{Connection, Server, Texts};
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What the log must say, or something else in its place.
pub const SETTINGS: &[&str] = &["wal_level=logical"];

/// PostgreSQL refuses to run as root: then it runs as nobody.
const NOBODY: u32 = 65_534;

pub struct Postgres {
    child: Child,
    directory: PathBuf,
    settings: Vec<String>,
    pub port: u16,
}

/// A program of the server; nothing, and that said, where there is none.
fn program(name: &str) -> Option<Command> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debian/usr");
    let found = [PathBuf::from("/usr"), unpacked].into_iter().find_map(|root| {
        let versions = std::fs::read_dir(root.join("lib/postgresql")).ok()?;
        let programs = versions.map(|version| version.unwrap().path().join("bin").join(name));
        let program = programs.into_iter().find(|program| program.exists())?;
        Some((program, root))
    });
    let Some((program, root)) = found else {
        eprintln!("SKIPPED: no PostgreSQL in target/debian: run .ci/tools");
        return None;
    };
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", root.join("lib/x86_64-linux-gnu"));
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    Some(command)
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t0\t")
}

/// A directory that the server may own.
fn directory_at(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// A file that only the server may read.
pub fn file_at(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn log_of(directory: &Path) -> File {
    let path = directory.with_extension("log");
    File::options().create(true).append(true).open(path).unwrap()
}

impl Postgres {
    /// `settings`: each `NAME=VALUE`.
    pub fn start(directory: &Path, settings: &[&str]) -> Option<Postgres> {
        let mut command = program("initdb")?;
        directory_at(directory);
        let made = command
            .args([
                "--no-sync",
                "--encoding=UTF8",
                "--locale=C",
                "--username=owner",
                "--auth=trust",
            ])
            .arg("--pgdata")
            .arg(directory)
            .stderr(log_of(directory))
            .status()
            .unwrap();
        assert!(made.success(), "see {}", directory.with_extension("log").display());
        Some(Postgres::serve(directory, settings))
    }

    /// A standby of this one, which begins with what this one has.
    pub fn standby(&self, directory: &Path) -> Postgres {
        directory_at(directory);
        let made = program("pg_basebackup")
            .unwrap()
            .args([
                "--no-sync",
                "--checkpoint=fast",
                "--wal-method=stream",
                "--write-recovery-conf",
            ])
            .args(["--host=127.0.0.1", "--username=owner", "--port", &self.port.to_string()])
            .arg("--pgdata")
            .arg(directory)
            .stderr(log_of(directory))
            .status()
            .unwrap();
        assert!(made.success(), "see {}", directory.with_extension("log").display());
        Postgres::serve(directory, &["wal_level=logical"])
    }

    fn serve(directory: &Path, settings: &[&str]) -> Postgres {
        let (port, directory) = (free_port(), directory.to_owned());
        let settings: Vec<String> = settings.iter().map(|one| (*one).to_owned()).collect();
        let child = spawn(&directory, &settings, port);
        let database = Postgres { child, directory, settings, port };
        database.sql();
        database
    }

    pub fn url(&self) -> String {
        url(self.port, "owner")
    }

    /// From now on a primary of its own.
    pub fn promote(&self) {
        self.sql().run("SELECT pg_promote()");
    }

    /// A connection, as soon as it is served.
    pub fn sql(&self) -> Sql {
        Sql::to(self.port)
    }

    /// Kills it with all that it has started, and starts it again with what it had.
    pub fn kill_and_start(&mut self) {
        self.kill();
        self.child = spawn(&self.directory, &self.settings, self.port);
        self.sql();
    }

    /// The same, with other settings.
    pub fn restart_with(&mut self, settings: &[&str]) {
        self.settings = settings.iter().map(|one| (*one).to_owned()).collect();
        self.kill_and_start();
    }

    /// Who may connect how, from now on.
    pub fn set_hba(&self, text: &str) {
        std::fs::write(self.directory.join("pg_hba.conf"), text).unwrap();
        self.sql().run("SELECT pg_reload_conf()");
    }

    /// At once, without a word to its files; processes that were left would write into a directory that is
    /// gone, or keep another one from starting there.
    fn kill(&mut self) {
        super::common::signal(self.child.id(), "QUIT");
        self.child.wait().unwrap();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

fn url(port: u16, role: &str) -> String {
    format!("postgres://{role}@127.0.0.1:{port}/postgres")
}

fn spawn(directory: &Path, settings: &[String], port: u16) -> Child {
    let mut command = program("postgres").unwrap();
    command.arg("-D").arg(directory).args(["-p", &port.to_string()]);
    for setting in [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "shared_buffers=16MB",
        "fsync=off",
        "autovacuum=off",
        "wal_retrieve_retry_interval=100ms",
    ] {
        command.args(["-c", setting]);
    }
    for setting in settings {
        command.args(["-c", setting]);
    }
    command.stderr(log_of(directory)).spawn().unwrap()
}

/// A connection that blocks.
pub struct Sql {
    url: String,
    runtime: Background,
    conn: Option<Connection>,
}

impl Sql {
    pub fn to(port: u16) -> Sql {
        Sql::at(&url(port, "owner"))
    }

    pub fn at(url: &str) -> Sql {
        let runtime = Background::start("sql").unwrap();
        let server = Server::parse(url).unwrap();
        let mut conn = None;
        until("the database serves", || {
            let server = server.clone();
            conn = runtime.wait_for(async move { server.connect(false).await }).ok();
            conn.is_some()
        });
        Sql { url: url.to_owned(), conn, runtime }
    }

    /// The rows of a statement; nothing if the database is away, or refuses it.
    pub fn ask(&mut self, text: &str) -> Option<Vec<Texts>> {
        let (mut conn, text) = (self.conn.take()?, text.to_owned());
        let asked = self.runtime.wait_for(async move {
            let rows = conn.ask(&text).await?;
            Ok((conn, rows))
        });
        let (conn, rows) = asked.ok()?;
        self.conn = Some(conn);
        Some(rows)
    }

    /// The only value of a statement.
    #[track_caller]
    pub fn one(&mut self, text: &str) -> String {
        self.ask(text).expect(text)[0][0].clone().unwrap_or_default()
    }

    #[track_caller]
    pub fn run(&mut self, text: &str) {
        assert!(self.ask(text).is_some(), "{text}");
    }
}

impl Rows for Sql {
    fn raise_price(&mut self, id: u64) -> Option<()> {
        // One transaction. Without a disk to wait for, writers would change every item before it is read twice.
        let text = format!(
            "UPDATE shop.items SET price = price + 1 WHERE id = {id}; SELECT pg_sleep(0.003)"
        );
        self.ask(&text).map(drop)
    }

    fn price(&mut self, id: u64) -> Option<Option<u64>> {
        let rows = self.ask(&format!("SELECT price FROM shop.items WHERE id = {id}"))?;
        Some(rows.first().map(|row| row[0].as_ref().unwrap().parse().unwrap()))
    }

    fn prices(&mut self) -> Option<Vec<(u64, u64)>> {
        let rows = self.ask("SELECT id, price FROM shop.items")?;
        let number = |cell: &Option<String>| cell.as_ref().unwrap().parse().unwrap();
        Some(rows.iter().map(|row| (number(&row[0]), number(&row[1]))).collect())
    }

    fn rest(&mut self) -> Option<()> {
        self.ask("SELECT pg_sleep(0.02)").map(drop)
    }

    fn reconnect(&mut self) {
        *self = Sql::at(&self.url);
    }
}
