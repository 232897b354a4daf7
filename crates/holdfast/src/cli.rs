//! The command line: one table of commands and flags, from which help is made.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// One storage system for a data-intensive service.
#[derive(Parser, Debug)]
#[command(name = "holdfast", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// Node to talk to: HOST:PORT or unix:/path [default: unix:data/holdfast.sock, then 127.0.0.1:7400]
    #[arg(long, global = true, env = "HOLDFAST_SERVER", value_name = "ADDR")]
    pub server: Option<String>,
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a whole node until interrupted
    Up(Up),
    /// Say how a node is doing
    Status,
    /// Look for trouble: in a running node, or in a data directory that is not in use
    Doctor {
        /// Check this data directory instead of asking a node
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
    /// Work with files
    #[command(subcommand)]
    Fs(Fs),
    /// Work with the log: ordered entries in topics
    #[command(subcommand)]
    Log(Log),
    /// Sort what does not fit in memory; make and check the sort benchmark's records
    Sort(crate::sort::Sort),
    /// Show or check the configuration
    #[command(subcommand)]
    Config(Config),
    /// Measure, beside the machine's limits
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Args, Debug)]
pub struct Up {
    /// Directory that keeps everything
    #[arg(long, default_value = "data", value_name = "DIR")]
    pub data: PathBuf,
    /// Host to listen on; beyond loopback only with `insecure = true` in DIR/holdfast.toml
    #[arg(long, value_name = "HOST")]
    pub listen: Option<String>,
    /// Poll instead of sleeping: lower latency for a core that is always busy
    #[arg(long)]
    pub spin: bool,
}

#[derive(Subcommand, Debug)]
pub enum Config {
    /// Print the built-in configuration as a commented file
    PrintDefault,
    /// Say whether a configuration file is valid
    Check { file: PathBuf },
}

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
    Unclosed,
    /// Give an unclosed file a name, with every byte that was acknowledged
    Salvage { file: u64, path: String },
}

#[derive(Subcommand, Debug)]
pub enum Log {
    /// Append entries, all or none; without any, each line of standard input is one
    Append {
        /// Acknowledge before the sync; a later append without this syncs these, too
        #[arg(long)]
        ordered: bool,
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
    },
    /// Print entries as they come, until interrupted
    Tail {
        topic: String,
        /// First index [default: the next entry]
        #[arg(long, value_name = "INDEX")]
        from: Option<u64>,
    },
    /// Give up the entries before an index
    Trim { topic: String, before: u64 },
    /// Say how a topic is doing
    Info { topic: String },
    /// List topics
    Ls,
}

#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Crail's iobench: streams, look-ups and small gets of files
    Iobench(Iobench),
    /// The external sort, beside the disk's bandwidth and GNU sort
    Sort(crate::bench::sort::SortBench),
}

#[derive(Args, Debug, Clone)]
pub struct Iobench {
    /// write, writeAsync, readSequential, readRandom, readSequentialAsync, readMultiStream,
    /// createFile, createFileAsync, createMultiFile, getKey, getFile, getFileAsync, enumerateDir,
    /// memory, or `table` for every row of docs/benchmarks.md
    #[arg(short = 't', long = "type", value_name = "TYPE")]
    pub kind: String,
    /// File or directory to work on
    #[arg(short = 'f', long = "file", default_value = "/iobench", value_name = "PATH")]
    pub path: String,
    /// Bytes an operation
    #[arg(short = 's', long = "size", default_value = "4K", value_name = "BYTES")]
    pub size: String,
    /// Operations [default: as many as take about a second]
    #[arg(short = 'k', long = "operations", value_name = "N")]
    pub operations: Option<u64>,
    /// Operations outstanding at once (the Async types)
    #[arg(short = 'b', long = "batch", default_value_t = 64, value_name = "N")]
    pub batch: usize,
    /// Storage class: 0 is dram, 1 is disk
    #[arg(short = 'c', long = "class", default_value_t = 0, value_name = "CLASS")]
    pub class: u8,
    /// Operations that warm up
    #[arg(short = 'w', long = "warmup", default_value_t = 32, value_name = "N")]
    pub warmup: u64,
    /// Repetitions; the median is printed, with the spread
    #[arg(short = 'e', long = "repetitions", default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
    /// Buffered streams
    #[arg(short = 'm', long = "buffered", default_value_t = true, action = clap::ArgAction::Set)]
    pub buffered: bool,
    /// tcp, or local (Unix socket and mapped memory)
    #[arg(long, default_value = "tcp", value_name = "TRANSPORT")]
    pub transport: String,
    /// The server polls instead of sleeping
    #[arg(long)]
    pub spin: bool,
    /// Threads of the server that serve connections
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub reactors: usize,
    /// Directory for the server's data [default: a fresh one below the current directory]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}
