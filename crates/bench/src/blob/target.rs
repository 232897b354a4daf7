//! The service that a blob benchmark measures: a node of its own, which can be killed and started
//! again over the same data, or any other S3 service.

use super::BlobBench;
use crate::process::Process;
use crate::tls;
use holdfast_base::{Error, Result};
use holdfast_command::files::SETTINGS;
use holdfast_s3::{CREDENTIALS_FILE, Credentials};
use std::path::PathBuf;

/// What is measured. A node of its own ends, and its data go, when this is dropped.
pub struct Target {
    /// Who asks, and where.
    pub credentials: Credentials,
    /// Of its certificates, where it has some.
    pub authority: Option<PathBuf>,
    own: Option<Own>,
}

struct Own {
    process: Process,
    directory: PathBuf,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(Own { process, directory }) = self.own.take() {
            drop(process);
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

impl Target {
    /// The service that was named, or a node with these settings beside the usual ones.
    pub fn start(options: &BlobBench, settings: &str) -> Result<Target> {
        if let Some(endpoint) = &options.endpoint {
            let credentials = Credentials {
                access_key: options.access_key.clone(),
                secret_key: options.secret_key.clone(),
                endpoint: endpoint.clone(),
            };
            return Ok(Target { credentials, authority: None, own: None });
        }
        let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let directory = parent.join(format!("holdfast-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let settings = format!(
            "native_port = 0\nhttp_port = 0\ncache_port = 0\ns3_port = {port}\ndram = \"0\"\n\
             scrub = \"0\"\n{settings}"
        );
        std::fs::write(directory.join(SETTINGS), settings)?;
        let authority = (options.kind == "tls").then(|| tls::make(&directory)).transpose()?;
        let own = Own { process: Process::up(&directory)?, directory: directory.clone() };
        let text = std::fs::read_to_string(directory.join(CREDENTIALS_FILE)).unwrap_or_default();
        let credentials = Credentials::parse(&text)
            .ok_or_else(|| Error::bug("the node that was started wrote no credentials"))?;
        Ok(Target { credentials, authority, own: Some(own) })
    }

    /// Has requests go over TLS from now on, or as they are.
    pub fn speak_tls(&mut self, on: bool) {
        let (from, to) = if on { ("http://", "https://") } else { ("https://", "http://") };
        self.credentials.endpoint = self.credentials.endpoint.replacen(from, to, 1);
    }

    /// Whether this started the node: then its processor time, disk and memory are known.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Where the limits of the disk are measured: beside the node's data.
    pub fn scratch(&self) -> Option<PathBuf> {
        self.own.as_ref().map(|own| own.directory.join("limit"))
    }

    /// Processor time of the node since its start; 0 for a service that was named.
    pub fn cpu_seconds(&self) -> f64 {
        self.own.as_ref().map_or(0.0, |own| own.process.cpu_seconds())
    }

    /// Memory of the node's own, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.own.as_ref().map_or(0, |own| own.process.memory_bytes())
    }

    /// Calls of the read family that the node made, and bytes that it had the disk read.
    pub fn reads(&self) -> (u64, u64) {
        let pid = self.own.as_ref().map_or(0, |own| own.process.id());
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let field = |name: &str| {
            let line = io.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        (field("syscr:"), field("read_bytes:"))
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut next: Vec<PathBuf> = self.own.iter().map(|own| own.directory.clone()).collect();
        while let Some(directory) = next.pop() {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => next.push(entry.path()),
                    Ok(kind) if kind.is_file() => found.push(entry.path()),
                    _ => {}
                }
            }
        }
        found
    }

    /// Makes the next reads cold: of chunks, and of the index's files.
    pub fn drop_cached(&self) -> Result<()> {
        for path in self.files() {
            // One that is gone meanwhile is cold.
            let _ = holdfast_env::local::drop_cached(&path);
        }
        Ok(())
    }

    /// Bytes on disk of the files in one of the node's directories: `chunks`, `blobs`, `log`. Those
    /// that are made ahead for the next chunks are none of theirs.
    pub fn disk_bytes(&self, directory: &str) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let is_spare = |path: &PathBuf| path.extension().is_some_and(|end| end == "tmp");
        let is_in = |path: &PathBuf| {
            path.components().any(|c| c.as_os_str() == directory) && !is_spare(path)
        };
        let files = self.files().into_iter().filter(is_in);
        files.filter_map(|path| path.metadata().ok()).map(|found| found.blocks() * 512).sum()
    }

    /// Kills the node and starts it again over its data.
    pub fn restart(&mut self) -> Result<()> {
        let Some(own) = self.own.take() else {
            return Err(Error::invalid("restart: that is for a node of this benchmark's own"));
        };
        let Own { process, directory } = own;
        drop(process);
        self.drop_cached()?;
        self.own = Some(Own { process: Process::up(&directory)?, directory });
        Ok(())
    }
}
