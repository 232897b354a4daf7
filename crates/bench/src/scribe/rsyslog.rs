//! rsyslog as the peer: Debian's packages, unpacked in a directory; TCP in, its disk queue, a file out.

use super::lines::{self, Lines};
use super::{Error, Result, free_port};
use crate::process::cpu_seconds;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What Debian's libraries are below.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Before it is said that it does not do what it should.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where it is unpacked.
pub struct Rsyslog(PathBuf);

/// Ended when dropped, and what it kept goes.
struct Running {
    child: Child,
    directory: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Rsyslog {
    pub fn find(directory: &Path) -> Option<Rsyslog> {
        let directory = directory.canonicalize().ok()?;
        directory.join("usr/sbin/rsyslogd").exists().then_some(Rsyslog(directory))
    }

    /// As Debian 12 has it.
    pub fn version(&self) -> &'static str {
        "8.2302"
    }

    /// So many lines over so many connections; from the first until its file has them all.
    pub fn messages_a_cpu_second(
        &self,
        parent: &Path,
        clients: usize,
        messages: u64,
        synced: bool,
    ) -> Result<f64> {
        let each = messages.div_ceil(clients as u64);
        let port = free_port()?;
        let directory =
            parent.canonicalize()?.join(format!("rsyslog-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let running = self.start(directory, port, synced)?;
        let file = running.directory.join("out");
        let stat = format!("/proc/{}/stat", running.child.id());
        let mut streams = Vec::new();
        for _ in 0..clients {
            streams.push(connect(port)?);
        }
        let before = cpu_seconds(&stat);
        thread::scope(|scope| {
            let send = |(seed, mut stream): (usize, TcpStream)| -> Result<()> {
                let mut lines = Lines::new(seed as u64);
                for _ in 0..each.div_ceil(100) {
                    let some: Vec<u8> =
                        (0..100).flat_map(|_| [&lines.line()[..], b"\n"].concat()).collect();
                    stream.write_all(&some)?;
                }
                Ok(())
            };
            let threads: Vec<_> =
                streams.into_iter().enumerate().map(|one| scope.spawn(move || send(one))).collect();
            threads.into_iter().try_for_each(|one| one.join().expect("a client panicked"))
        })?;
        let messages = each.div_ceil(100) * 100 * clients as u64;
        let (wanted, began) = (messages * (lines::BYTES as u64 + 1), Instant::now());
        while std::fs::metadata(&file).map_or(0, |file| file.len()) < wanted {
            if began.elapsed() > PATIENCE {
                let place = running.directory.display();
                return Err(Error::retry(format!(
                    "wait for rsyslog: its file in `{place}` does not get all lines"
                )));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(messages as f64 / (cpu_seconds(&stat) - before))
    }

    fn start(&self, directory: PathBuf, port: u16, synced: bool) -> Result<Running> {
        let libraries = self.0.join(LIBRARIES);
        let (place, sync) = (directory.display(), if synced { "on" } else { "off" });
        let settings = format!(
            "global(workDirectory=\"{place}\" maxMessageSize=\"8k\")\n\
             module(load=\"imtcp\" MaxSessions=\"1000\")\n\
             template(name=\"raw\" type=\"string\" string=\"%rawmsg%\\n\")\n\
             main_queue(queue.type=\"Disk\" queue.filename=\"main\" queue.maxDiskSpace=\"8g\" \
             queue.size=\"100000000\" queue.syncQueueFiles=\"{sync}\")\n\
             input(type=\"imtcp\" port=\"{port}\" address=\"127.0.0.1\" \
             supportOctetCountedFraming=\"off\")\n\
             action(type=\"omfile\" file=\"{place}/out\" template=\"raw\")\n"
        );
        let file = directory.join("conf");
        std::fs::write(&file, settings)?;
        let mut command = Command::new(self.0.join("usr/sbin/rsyslogd"));
        command.env("LD_LIBRARY_PATH", &libraries).arg("-n").arg("-f").arg(&file);
        command.arg("-i").arg(directory.join("pid")).arg("-M").arg(libraries.join("rsyslog"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        Ok(Running { child, directory })
    }
}

/// Once it listens.
fn connect(port: u16) -> Result<TcpStream> {
    let began = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return Ok(stream),
            Err(e) if began.elapsed() > Duration::from_secs(20) => return Err(e.into()),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}
