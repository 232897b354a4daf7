//! The command line: one table of commands and flags, from which help is made.

use clap::{Args, Parser, Subcommand};
use holdfast_command::supervisor::ClusterSettings;
use holdfast_env::events;
use std::path::PathBuf;

/// One storage system for a data-intensive service.
#[derive(Parser, Debug)]
#[command(name = "holdfast", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// Node to talk to: HOST:PORT or unix:/path, several with commas [default: unix:data/holdfast.sock, then 127.0.0.1:7400]
    #[arg(long, global = true, env = "HOLDFAST_SERVER", value_name = "ADDR")]
    pub server: Option<String>,
    /// The secret of the nodes to talk to over TCP, or of the cluster to join: the file `secret` of
    /// a data directory [default: the one beside a socket, in data or in dev]
    #[arg(long, global = true, env = "HOLDFAST_SECRET_FILE", value_name = "FILE")]
    pub secret: Option<PathBuf>,
    /// Be the client whose token, as `holdfast token create` printed it, is in this file, to nodes
    /// over TCP; no secret is proved then
    #[arg(long, global = true, env = "HOLDFAST_TOKEN_FILE", value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// The authority of the cluster's certificates, as PEM: talk TLS to nodes over TCP, and to nobody
    /// whom it has not signed; services of S3 are believed by it, too
    #[arg(long, global = true, env = "HOLDFAST_CA_FILE", value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// How what serves writes events to standard error: lines, or json, an object a line
    #[arg(
        long,
        global = true,
        env = "HOLDFAST_EVENTS",
        value_name = "FORM",
        default_value = "lines"
    )]
    pub events: events::Form,
    /// The least level of the events that are written: error, warn or info
    #[arg(
        long,
        global = true,
        env = "HOLDFAST_EVENTS_LEVEL",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub events_level: events::LeastLevel,
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// What to do; each variant's sentence is its help.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a whole node until interrupted
    Up(Up),
    /// Run a cluster of several nodes on this machine, to try it out; and do things to its nodes
    Dev(Dev),
    /// Watch a small cluster lose a node with its disk, and no file
    Demo(crate::demo::DemoOptions),
    /// Nodes of a cluster
    #[command(subcommand)]
    Node(Node),
    /// How lost copies are made again
    #[command(subcommand)]
    Recovery(Recovery),
    /// Say how a node is doing
    Status,
    /// Look for trouble: in a running node, or in a data directory that is not in use
    Doctor {
        /// Check this data directory instead of asking a node
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Look at this machine's kernel settings instead, and give advice
        #[arg(long, conflicts_with = "data")]
        machine: bool,
        /// The log of the data directory is lost: make names again from what its stores hold, in
        /// another directory with copies of them. Renames and deletions are unknown
        #[arg(long, requires_all = ["data", "into"], conflicts_with = "machine")]
        rebuild_names: bool,
        /// The new data directory, which must be empty
        #[arg(long, value_name = "DIR", requires = "rebuild_names")]
        into: Option<PathBuf>,
    },
    /// Work with files
    #[command(subcommand)]
    Fs(Fs),
    /// Work with the log: ordered entries in topics
    #[command(subcommand)]
    Log(Log),
    /// Work with topics of items and their views: what entries make of keys and values
    #[command(subcommand)]
    View(crate::view::View),
    /// Receive everything that a view holds at one index, and say how fast it came
    Ride(crate::ride::RideOptions),
    /// Work with tables: records with versions, written and read one by one
    #[command(subcommand)]
    Table(crate::table::Table),
    /// Collect log messages by Scribe's protocol, each once
    #[command(subcommand)]
    Scribe(crate::scribe::Scribe),
    /// Keep caches true to a database: drop what its changed rows made old
    #[command(subcommand)]
    Invalidate(crate::invalidate::Invalidate),
    /// Run a cache that speaks memcached's protocol, with memcached's own options
    Cache(crate::cache::CacheOptions),
    /// Work with blobs over S3, here or elsewhere
    Blob(crate::blob::Blob),
    /// Users of S3 and their access keys
    S3(crate::blob::S3),
    /// Spread the keys of any memcached client over pools of servers, with failover and warm-up
    Route(crate::route::RouteOptions),
    /// Sort what does not fit in memory; make and check the sort benchmark's records
    Sort(crate::sort::Sort),
    /// Certificates: a CA of the cluster's own, those of its nodes and clients, and what is wrong
    /// with those of any CA
    #[command(subcommand)]
    Cert(crate::cert::Cert),
    /// Clients that may do what rules say and nothing else
    #[command(subcommand)]
    Token(crate::token::Token),
    /// Parts of the names, each ordered by a log of its own
    #[command(subcommand)]
    Shard(crate::shard::Shard),
    /// Who did what that changes rights or nodes, and data where `audit = "data"` is set
    Audit(crate::audit::Audit),
    /// Show or check the configuration
    #[command(subcommand)]
    Config(Config),
    /// Measure, beside the machine's limits
    #[command(subcommand)]
    Bench(holdfast_bench::Bench),
    /// Simulate what cannot be had on one machine
    #[command(subcommand)]
    Sim(Sim),
}

impl Command {
    /// Whether this serves others until it is ended, and tells what happens to it.
    pub fn serves(&self) -> bool {
        matches!(
            self,
            Command::Up(_)
                | Command::Node(Node::Run { .. })
                | Command::Cache(_)
                | Command::Route(_)
                | Command::Scribe(crate::scribe::Scribe::Agent(_))
                | Command::Invalidate(crate::invalidate::Invalidate::Run(_))
        ) || matches!(self, Command::View(crate::view::View::Run { alone, .. }) if alone.data().is_some())
    }

    /// Whether this may be given the file of a secret that is yet to be made.
    pub fn makes_its_own_secret(&self) -> bool {
        matches!(self, Command::Up(_) | Command::Dev(_) | Command::Node(Node::Run { .. }))
    }
}

/// `holdfast sim ...`.
#[derive(Subcommand, Debug)]
pub enum Sim {
    /// Recovery of a failed node in a cluster of thousands, after the Dayu paper
    Recovery(SimRecovery),
}

/// `holdfast sim recovery`.
#[derive(Args, Debug)]
pub struct SimRecovery {
    /// Nodes of the cluster
    #[arg(long, default_value_t = 3500, value_name = "N")]
    pub nodes: usize,
    /// Chunks of the node that fails
    #[arg(long, default_value_t = 250_000, value_name = "N")]
    pub chunks: usize,
    /// Random failures that each figure is the mean of
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub failures: usize,
    /// Of dayu, hull, tops, scan, naive, g1, g2, random, b2r, wr, best; milp in builds with that feature
    #[arg(long, default_value = "dayu,g1,g2,b2r,wr,random", value_name = "NAMES")]
    pub algorithms: String,
    /// Of wss, da
    #[arg(long, default_value = "wss,da", value_name = "NAMES")]
    pub allocators: String,
    /// Share of a link that foreground and recovery together may take
    #[arg(long, default_value_t = 0.75, value_name = "SHARE")]
    pub alpha: f32,
    /// Share of the nodes looked at for underemployed ones
    #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
    pub beta: f32,
    /// Length of a slot, and of a report's period
    #[arg(long, default_value_t = 15.0, value_name = "SECONDS")]
    pub slot: f32,
    /// How far plans of `best` reach [default: 6]
    #[arg(long, value_name = "SECONDS")]
    pub horizon: Option<f32>,
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    pub seed: u64,
    /// Foreground traffic from a CSV file instead of the generator
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Copysets: a node shares its chunks with so many others only; 0 for all
    #[arg(long, default_value_t = 0, value_name = "NODES")]
    pub scatter: usize,
    /// Charge the time that planning takes on this machine, now, instead of the recorded one;
    /// then no two runs are the same
    #[arg(long)]
    pub measure_compute: bool,
    /// A figure of the paper: 6, 7, 8, 9a or 9b
    #[arg(long, value_name = "FIGURE")]
    pub figure: Option<String>,
    /// Draw the picture as SVG and PNG into this directory
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

/// What a node is started with.
#[derive(Args, Debug)]
pub struct Up {
    /// Directory that keeps everything
    #[arg(long, default_value = "data", value_name = "DIR")]
    pub data: PathBuf,
    /// Host to listen on; beyond loopback only with certificates (`holdfast cert`)
    #[arg(long, value_name = "HOST")]
    pub listen: Option<String>,
    /// Poll instead of sleeping: lower latency for a core that is always busy
    #[arg(long)]
    pub spin: bool,
    /// Port for Scribe's clients on this machine [default: the settings' `scribe_port`, off]
    #[arg(long, value_name = "PORT")]
    pub scribe_port: Option<u16>,
    /// What becomes of messages at that port, by category (TOML; `holdfast scribe agent --help` shows one)
    /// [default: the settings' `scribe_stores`, their topics]
    #[arg(long, value_name = "FILE")]
    pub scribe_stores: Option<PathBuf>,
    /// Port for clients of DynamoDB's API [default: the settings' `dynamodb_port`, off]
    #[arg(long, value_name = "PORT")]
    pub dynamodb_port: Option<u16>,
}

/// `holdfast dev`: its flags start a cluster, its subcommands speak to one.
#[derive(Args, Debug)]
pub struct Dev {
    #[command(flatten)]
    pub cluster: ClusterSettings,
    #[command(subcommand)]
    pub command: Option<DevCommand>,
}

/// What is done to nodes, which count from 1.
#[derive(Subcommand, Debug)]
pub enum DevCommand {
    /// End a node's process, in order or (--hard) with SIGKILL
    Kill {
        node: usize,
        #[arg(long)]
        hard: bool,
    },
    /// Delete everything that a stopped node kept, as if its disk were gone
    Erase { node: usize },
    /// Start a stopped node
    Start { node: usize },
    /// Keep two nodes from reaching each other, until --heal
    Cut {
        a: usize,
        b: usize,
        #[arg(long)]
        heal: bool,
    },
    /// List the nodes' processes
    Status,
}

/// Reads `st12` and `12`.
fn store_number(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("st").unwrap_or(text);
    digits.parse().map_err(|_| "write a store's number, as `holdfast node show` says it".to_owned())
}

/// `holdfast node ...`.
#[derive(Subcommand, Debug)]
pub enum Node {
    /// Run a node until interrupted; the first start with --join makes it part of a cluster
    Run {
        #[command(flatten)]
        up: Up,
        /// Any node of the cluster that it belongs to, HOST:PORT: at each start, unless the settings
        /// have it (`join`). A node without one keeps the log of a cluster of its own
        #[arg(long, value_name = "ADDR")]
        join: Option<String>,
        /// Brokers that keep the cluster's log, kafka://HOST:PORT,...[/PREFIX]: at each start, unless the
        /// settings have it (`log`). The first node begins a cluster there; others are given its secret
        #[arg(long, value_name = "URL")]
        log: Option<String>,
        /// End when standard input does: for `dev`, whose nodes end with it
        #[arg(long, hide = true)]
        attached: bool,
    },
    /// List the cluster's nodes
    Ls,
    /// Say everything about a node
    Show { node: u32 },
    /// Move everything off a node, so that it can be removed; --off takes that back
    Drain {
        node: u32,
        #[arg(long)]
        off: bool,
    },
    /// Have a store take no new chunks, only serve those it has; or take some again; or give up for
    /// good one that its node has started without
    Store {
        /// Its number, as `node show` says it, with `st` in front or without
        #[arg(value_parser = store_number)]
        store: u64,
        #[arg(value_enum)]
        state: StoreMode,
    },
    /// The node whose certificate has this name is gone for good: the next one that joins with such
    /// a certificate is another node
    Replace {
        /// As `node ls` says it
        name: String,
    },
    /// Give up nodes for good when the leader waits for that: many are silent at once
    ConfirmLost {
        #[arg(required = true)]
        nodes: Vec<u32>,
    },
}

/// Whether a store takes new chunks, or is given up.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    Writable,
    ReadOnly,
    Gone,
}

/// `holdfast recovery ...`.
#[derive(Subcommand, Debug)]
pub enum Recovery {
    /// Say which chunks are short of copies, and how their repair is doing
    Status,
    /// Set how recovery shares links with the foreground, on all nodes at once and for good
    Set(RecoverySet),
}

/// What is set anew; the rest stays.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true)))]
pub struct RecoverySet {
    /// By how many percent recovery may raise the 90th percentile of answers: alpha is found by
    /// itself; 0 ends that
    #[arg(long, group = "what", value_name = "PERCENT")]
    pub p90_budget: Option<u32>,
    /// For experts: the share of a link that foreground and recovery together may take; 0 for the
    /// default, 0.75
    #[arg(long, group = "what", value_name = "SHARE")]
    pub alpha: Option<f64>,
    /// For experts: what recovery may take of a link however busy it is, bytes a second; 0 for the
    /// default, 12% of it
    #[arg(long, group = "what", value_name = "BYTES")]
    pub b_min: Option<String>,
    /// What recovery may take of a link at most, bytes a second; 0 for no such limit
    #[arg(long, group = "what", value_name = "BYTES")]
    pub rate: Option<String>,
}

/// `holdfast config ...`.
#[derive(Subcommand, Debug)]
pub enum Config {
    /// Print the built-in configuration as a commented file
    PrintDefault,
    /// Say whether a configuration file is valid
    Check { file: PathBuf },
}

/// `holdfast fs ...`.
#[derive(Subcommand, Debug)]
pub enum Fs {
    /// Copy local files in: `put LOCAL... /path`; `-` reads standard input
    Put {
        /// Copy directories with everything below them, keeping modes, times and links
        #[arg(short, long)]
        recursive: bool,
        /// Replace files that exist
        #[arg(short, long)]
        force: bool,
        /// Make missing directories above the target
        #[arg(short, long)]
        parents: bool,
        /// Where the bytes go: `disk`, `disk:memory`, `dram` or `dram,disk` [default: the directory's]
        #[arg(long, value_name = "CLASS")]
        class: Option<String>,
        /// Local sources, then the target path
        #[arg(required = true, num_args = 2.., value_name = "LOCAL... /PATH")]
        paths: Vec<String>,
    },
    /// Copy files out: `get /path... LOCAL`; `-` writes standard output
    Get {
        #[arg(short, long)]
        recursive: bool,
        /// Replace local files that exist
        #[arg(short, long)]
        force: bool,
        /// Source paths, then the local target
        #[arg(required = true, num_args = 2.., value_name = "/PATH... LOCAL")]
        paths: Vec<String>,
    },
    /// List a directory
    Ls {
        #[arg(default_value = "/")]
        path: String,
        /// With kind, mode, size and time
        #[arg(short, long)]
        long: bool,
        /// With everything below
        #[arg(short, long)]
        recursive: bool,
    },
    /// Write files to standard output
    Cat {
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Say everything about names
    Stat {
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Make directories
    Mkdir {
        #[arg(short, long)]
        parents: bool,
        /// Storage class for what is made below: `disk`, `disk:memory`, `dram` or `dram,disk`
        #[arg(long, value_name = "CLASS")]
        class: Option<String>,
        /// `directory`, `multifile` (a bag of files read as one) or `table` (last put wins)
        #[arg(long, default_value = "directory", value_name = "KIND")]
        kind: String,
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Rename a file or directory
    Mv {
        /// Replace what is there
        #[arg(short, long)]
        force: bool,
        from: String,
        to: String,
    },
    /// Delete
    Rm {
        #[arg(short, long)]
        recursive: bool,
        /// No error for what does not exist
        #[arg(short, long)]
        force: bool,
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Bytes and names below a path
    Du {
        #[arg(default_value = "/")]
        path: String,
    },
    /// Make a symbolic link: `ln TARGET /path`
    Ln { target: String, path: String },
    /// Set the storage class that new files below a directory inherit
    SetClass { class: String, path: String },
    /// Files that were begun and never closed
    Unclosed {
        /// Give this one up with its bytes, which nobody can salvage then; may be repeated
        #[arg(long, value_name = "ID")]
        discard: Vec<u64>,
    },
    /// Give an unclosed file a name, with every byte that was acknowledged
    Salvage { file: u64, path: String },
}

/// `holdfast log ...`.
#[derive(Subcommand, Debug)]
pub enum Log {
    /// Append entries, in their order; without any, each line of standard input is one
    Append {
        /// Acknowledge before the sync; a later append without this syncs these, too
        #[arg(long, conflicts_with = "writer")]
        ordered: bool,
        /// Number the entries under this name, so that what is sent twice is read once
        #[arg(long, value_name = "NAME")]
        writer: Option<String>,
        /// Number of the first one [default: behind the writer's last one]
        #[arg(long, requires = "writer", value_name = "N")]
        number: Option<u64>,
        topic: String,
        entries: Vec<String>,
    },
    /// Print entries from an index on
    Read {
        topic: String,
        /// First index [default: the oldest entry]
        #[arg(long, value_name = "INDEX")]
        from: Option<u64>,
        /// At most so many entries
        #[arg(short = 'n', long, default_value_t = u64::MAX, hide_default_value = true, value_name = "N")]
        count: u64,
        /// Show what repeats an earlier entry, too, and who numbered it
        #[arg(long)]
        repeats: bool,
    },
    /// Print entries as they come, until interrupted
    Tail {
        topic: String,
        /// First index [default: the next entry]
        #[arg(long, value_name = "INDEX")]
        from: Option<u64>,
        /// Show what repeats an earlier entry, too, and who numbered it
        #[arg(long)]
        repeats: bool,
    },
    /// Make a topic, and say how long its entries are kept
    Create {
        topic: String,
        #[command(flatten)]
        limits: Limits,
    },
    /// Change how long a topic's entries are kept
    Set {
        topic: String,
        #[command(flatten)]
        limits: Limits,
    },
    /// Have all entries of a topic read where they are kept, and verify their checksums
    Verify { topic: String },
    /// Give up the entries before an index
    Trim { topic: String, before: u64 },
    /// Say how a topic is doing
    Info { topic: String },
    /// List topics
    Ls,
    /// Take the log of a node that does not run to brokers, which keep it from then on: each entry keeps
    /// its index. Goes on where it was interrupted. Nodes are started with `--log` then
    Move {
        /// Data directory of the node that keeps the log
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
        /// Brokers of Kafka's protocol, and what the names of its topics begin with
        #[arg(long, value_name = "kafka://HOST:PORT,...[/PREFIX]")]
        to: String,
    },
    /// Say how the log is at the brokers that keep it: copies, settings, indices; of one TOPIC also
    /// what in it is no entry
    Doctor(LogDoctor),
}

/// `holdfast log doctor`.
#[derive(Args, Debug)]
pub struct LogDoctor {
    /// Read this one through [default: look at all, and read none]
    pub topic: Option<String>,
    /// Where the log is, kafka://HOST:PORT,...[/PREFIX] [default: where the node says]
    #[arg(long, value_name = "URL")]
    pub log: Option<String>,
    /// Speak to the brokers, and find them, as the settings in this node's directory say
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// How long entries are kept: whole segment files go.
#[derive(Args, Debug)]
pub struct Limits {
    /// The oldest go once there are more bytes than this; 0 for no limit
    #[arg(long, value_name = "SIZE", value_parser = holdfast_base::units::parse_bytes)]
    pub retain_bytes: Option<u64>,
    /// They go once they are older than this, e.g. 7d; 0 for no limit
    #[arg(long, value_name = "TIME", value_parser = crate::log::age_ms)]
    pub retain_age: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_as_it_is_shown_or_by_its_number() {
        assert_eq!(store_number("12"), Ok(12));
        assert_eq!(store_number(&holdfast_base::ids::StoreId(u64::MAX).to_string()), Ok(u64::MAX));
        for wrong in ["", "st", "n1", "st-1", "stst1"] {
            assert!(store_number(wrong).is_err(), "{wrong}");
        }
    }
}
