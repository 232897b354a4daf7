//! The cluster of the experiment: real processes of this program, each in its network namespace,
//! and their data. What was loaded once is kept aside and put back before each run, so that all
//! methods recover the same chunks from the same places.

use super::network::{address, namespace};
use crate::process::Process;
use holdfast_base::ids::NodeId;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, Endpoint, NewFile};
use holdfast_cluster::placement::COPIES;
use holdfast_command::files::SETTINGS;
use holdfast_command::secrets;
use holdfast_env::tasks::Stop;
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What the foreground reads and writes at a time.
pub const OBJECT_BYTES: usize = 32 << 10;
/// Objects of each node that the foreground takes turns on.
pub const OBJECTS: usize = 16;
/// A sector at the front of a chunk's file says in which store it lies.
const OWN_SECTOR: usize = 4096;
const PORT: u16 = 7400;

/// How the leader chooses, and what nodes are told at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerSettings {
    /// As in the setting `planner`.
    pub planner: &'static str,
    /// Of a method with a fixed rate, bytes a second.
    pub rate: Option<u64>,
    /// The share of a link that foreground and recovery together may take.
    pub alpha: f64,
}

/// The processes and where their data are; all end, and the data go, when this is dropped. What was
/// loaded stays.
pub struct Nodes {
    running: Vec<Option<Process>>,
    chunk_bytes: u64,
    data: PathBuf,
    template: PathBuf,
}

/// Waits in real time, which the experiment takes.
pub fn pause(time: Duration) {
    Stop::new().sleep_until_stop(time);
}

/// Bytes of file number `seed`, which no other file has.
pub fn content(seed: u64, bytes: usize) -> Vec<u8> {
    holdfast_base::random::bytes(seed, bytes)
}

impl Nodes {
    /// Of nothing that runs; `parent` keeps the data and what they are put back from.
    pub fn new(parent: &Path, count: usize, chunk_bytes: u64) -> Nodes {
        Nodes {
            running: (0..count).map(|_| None).collect(),
            chunk_bytes,
            data: parent.join("nodes"),
            template: parent.join("template"),
        }
    }

    /// Whether an earlier run loaded as many chunks of this size on as many nodes.
    pub fn has_template(&self, chunks: usize) -> bool {
        self.ready(chunks).exists()
    }

    /// Stands for what was loaded.
    fn ready(&self, chunks: usize) -> PathBuf {
        let (nodes, bytes) = (self.running.len(), self.chunk_bytes);
        self.template.join(format!("ready-{nodes}-{chunks}-{bytes}"))
    }

    fn directory(&self, node: usize) -> PathBuf {
        self.data.join(format!("node-{node}"))
    }

    /// Where node `node`, counted from 0, speaks the native protocol.
    pub fn endpoint(node: usize) -> Result<Endpoint> {
        Endpoint::parse(&format!("{}:{PORT}", address(node)))
    }

    /// A client of that node alone.
    pub fn client(node: usize) -> Result<Client> {
        Client::connect(&Nodes::endpoint(node)?, &secrets::options())
    }

    /// The file of the secret that all of them share, beside their data.
    fn secret(&self) -> Result<PathBuf> {
        secrets::of_cluster(self.template.parent().unwrap_or(Path::new(".")))
    }

    /// Starts every node, the one with the log first.
    pub fn start(&mut self, link: u64, lost_ms: u64, plan: &PlannerSettings) -> Result<()> {
        secrets::learn(self.secret()?.parent().unwrap_or(Path::new(".")))?;
        for node in 0..self.running.len() {
            self.running[node] = Some(self.launch(node, link, lost_ms, plan)?);
        }
        Ok(())
    }

    fn launch(
        &self,
        node: usize,
        link: u64,
        lost_ms: u64,
        plan: &PlannerSettings,
    ) -> Result<Process> {
        let directory = self.directory(node);
        std::fs::create_dir_all(&directory)?;
        let join = match node {
            0 => String::new(),
            _ => format!("join = \"{}:{PORT}\"\n", address(0)),
        };
        let config = format!(
            "listen = \"{}\"\ninsecure = true\nnative_port = {PORT}\nhttp_port = 0\ns3_port = 0\n\
             cache_port = 0\ndram = \"0\"\nscrub = \"0\"\nhost = \"node-{node}\"\nreactors = 1\n\
             workers = 2\nlost_ms = {lost_ms}\nlink = \"{link}\"\nchunk = \"{}\"\n\
             capacity = \"64G\"\nplanner = \"{}\"\n{join}",
            address(node),
            self.chunk_bytes,
            plan.planner,
        );
        std::fs::write(directory.join(SETTINGS), config)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace(node)]).arg(std::env::current_exe()?);
        command.arg("--secret").arg(self.secret()?);
        Process::start(command.args(["--json", "node", "run", "--data"]).arg(&directory))
    }

    /// Processor time of all nodes so far.
    pub fn cpu_seconds(&self) -> f64 {
        self.running.iter().flatten().map(Process::cpu_seconds).sum()
    }

    /// As if its power had failed.
    pub fn kill(&mut self, node: usize) {
        self.running[node] = None;
    }

    /// Ends every node, the one with the log last; killed if not `in_order`.
    pub fn stop(&mut self, in_order: bool) -> Result<()> {
        for running in self.running.iter_mut().rev().filter_map(Option::take) {
            match in_order {
                true => running.end()?,
                false => drop(running),
            }
        }
        Ok(())
    }

    /// Writes `chunks` files of a chunk each through `failed`, which so has a copy of each, and
    /// small ones through every node for the foreground to read; keeps all of it aside.
    pub fn load(&mut self, chunks: usize, failed: usize) -> Result<()> {
        let _ = std::fs::remove_dir_all(&self.template);
        let _ = std::fs::remove_dir_all(&self.data);
        let plan = PlannerSettings { planner: "dayu", rate: None, alpha: 0.75 };
        self.start(0, 600_000, &plan)?;
        self.wait_for_members()?;
        let new = NewFile { parents: true, ..NewFile::default() };
        let mut client = Nodes::client(failed)?;
        client.make_dir("/data", &new)?;
        for at in 0..chunks {
            let bytes = content(at as u64, self.chunk_bytes as usize);
            // In slices, as a file of unknown length: otherwise it would be packed with others.
            let mut file = client.create(&format!("/data/{at}"), &new)?;
            file.append(&bytes)?;
            file.close()?;
        }
        for node in (0..self.running.len()).filter(|node| *node != failed) {
            let mut client = Nodes::client(node)?;
            for object in 0..OBJECTS {
                let bytes = content(u64::MAX - (node * OBJECTS + object) as u64, OBJECT_BYTES);
                client.put(&object_path(node, object), &bytes, &new)?;
            }
        }
        self.stop(true)?;
        std::fs::rename(&self.data, &self.template)?;
        std::fs::create_dir(self.ready(chunks))?;
        Ok(())
    }

    /// Puts everything back as it was loaded: chunk files are never written again once they are
    /// sealed, so they are linked; the rest is copied.
    pub fn put_back(&self) -> Result<()> {
        let _ = std::fs::remove_dir_all(&self.data);
        let copied = Command::new("cp").arg("-al").arg(&self.template).arg(&self.data).status()?;
        if !copied.success() {
            return Err(Error::retry("put the data back: `cp -al` failed; see its message"));
        }
        for node in 0..self.running.len() {
            let (from, to) = (self.template.join(format!("node-{node}")), self.directory(node));
            for entry in std::fs::read_dir(&from)? {
                let entry = entry?;
                if entry.file_name() == "chunks" {
                    self.unlink_open(&from, &to)?;
                    continue;
                }
                let target = to.join(entry.file_name());
                if entry.file_type()?.is_socket() {
                    let _ = std::fs::remove_file(&target);
                    continue;
                }
                let _ = std::fs::remove_file(&target).or_else(|_| std::fs::remove_dir_all(&target));
                let copied =
                    Command::new("cp").arg("-a").arg(entry.path()).arg(&target).status()?;
                if !copied.success() {
                    return Err(Error::retry("put the data back: `cp -a` failed; see its message"));
                }
            }
        }
        Ok(())
    }

    /// Files that are not sealed chunks may be written: they become copies of their own.
    fn unlink_open(&self, from: &Path, to: &Path) -> Result<()> {
        for entry in std::fs::read_dir(from.join("chunks"))? {
            let entry = entry?;
            let name = entry.file_name();
            if !name.to_string_lossy().ends_with(".chunk") && entry.file_type()?.is_file() {
                let target = to.join("chunks").join(&name);
                std::fs::remove_file(&target)?;
                std::fs::copy(entry.path(), &target)?;
            }
        }
        Ok(())
    }

    /// Bytes of each chunk file that `failed` had, with the nodes that have it too.
    pub fn tasks(&self, failed: usize) -> Result<Vec<(String, u64, Vec<usize>)>> {
        let mut held: BTreeMap<String, (u64, Vec<usize>)> = BTreeMap::new();
        for node in 0..self.running.len() {
            for (name, bytes) in chunk_files(&self.template.join(format!("node-{node}")))? {
                let of = held.entry(name).or_default();
                of.0 = bytes;
                of.1.push(node);
            }
        }
        held.retain(|_, (_, nodes)| nodes.contains(&failed));
        let others = |nodes: Vec<usize>| nodes.into_iter().filter(|n| *n != failed).collect();
        Ok(held.into_iter().map(|(name, (bytes, nodes))| (name, bytes, others(nodes))).collect())
    }

    /// Compares every copy that was made with the files that it can come from, byte by byte (that of
    /// the node that was killed among them: a copy may have been begun before); answers how many
    /// there are. Those who were left must have each chunk as often as is promised: mostly a new
    /// copy, but a chunk that had one too many may have lost just that.
    pub fn compare(&self, failed: usize) -> Result<usize> {
        let tasks = self.tasks(failed)?;
        let (mut made, mut short) = (0, Vec::new());
        for (name, bytes, holders) in &tasks {
            let mut copies = 0;
            for node in (0..self.running.len()).filter(|n| *n != failed) {
                let copy = self.directory(node).join("chunks").join(name);
                copies += usize::from(copy.exists());
                if !copy.exists() || holders.contains(&node) {
                    continue;
                }
                let bytes = read(&copy)?;
                let same = |holder: &usize| -> Result<bool> {
                    let source = self.template.join(format!("node-{holder}")).join("chunks");
                    let source = read(&source.join(name))?;
                    Ok(source.len() == bytes.len() && source[OWN_SECTOR..] == bytes[OWN_SECTOR..])
                };
                let mut equal = false;
                for holder in holders.iter().chain([&failed]) {
                    equal |= same(holder)?;
                }
                if !equal {
                    return Err(Error::corrupt(format!(
                        "compare `{}`: it is no copy of any file that it can come from",
                        copy.display()
                    )));
                }
                made += 1;
            }
            if copies < COPIES {
                short.push(format!("`{name}` ({bytes} bytes) has {copies}"));
            }
        }
        if !short.is_empty() {
            return Err(Error::corrupt(format!(
                "compare the copies: {} of {} chunks are not on {COPIES} nodes again: {}",
                short.len(),
                tasks.len(),
                short.join(", ")
            )));
        }
        Ok(made)
    }

    /// Until every node is live; answers which one leads. Only the leader knows how far a
    /// recovery is.
    pub fn wait_for_members(&self) -> Result<usize> {
        let patience = Duration::from_secs(60);
        let mut client = Nodes::client(0)?;
        let began = now();
        loop {
            let cluster = client.cluster()?;
            let live = cluster.nodes.iter().filter(|node| node.state == "live").count();
            if let Some(NodeId(leader)) = cluster.leader
                && live == self.running.len()
            {
                return Ok(leader as usize - 1);
            }
            if began.elapsed() > patience {
                return Err(Error::retry(format!(
                    "wait for the nodes: {live} of {} live after {patience:?}",
                    self.running.len()
                )));
            }
            pause(Duration::from_millis(100));
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = self.stop(false);
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// The moment on the machine's own clock, which never goes back.
pub fn now() -> Instant {
    Instant::now()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|e| Error::from(e).context(format_args!("read `{}`", path.display())))
}

/// The file that the foreground reads from `node`.
pub fn object_path(node: usize, object: usize) -> String {
    format!("/foreground/{node}/{object}")
}

/// Sealed chunks of a node's first store, with their bytes.
fn chunk_files(node: &Path) -> Result<Vec<(String, u64)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(node.join("chunks"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".chunk") {
            files.push((name, entry.metadata()?.len()));
        }
    }
    files.sort();
    Ok(files)
}
