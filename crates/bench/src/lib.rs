//! `holdfast bench`: every benchmark, beside the limit measured in the same run. Client and node
//! are processes of their own; limit and case take turns, so that a machine that drifts carries
//! both along. A node under test is the running program itself, started once more.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(
    clippy::disallowed_methods,
    reason = "a tool that people run: it measures with the machine's own clock, files and threads"
)]

mod blob;
mod cache;
mod cluster;
mod dynamo;
mod exchange;
mod incast;
mod invalidate;
mod iobench;
mod limits;
mod log;
mod process;
mod recovery;
pub mod report;
mod ride;
pub mod scheduler;
mod scribe;
mod server;
mod shards;
mod sort;
mod table;
mod tls;

use blob::BlobBench;
use cache::CacheBench;
use clap::Subcommand;
use cluster::ClusterBench;
use dynamo::DynamoBench;
use exchange::ExchangeBench;
use holdfast_base::Result;
use holdfast_command::output::Output;
use incast::IncastBench;
use invalidate::InvalidateBench;
use iobench::Iobench;
use log::LogBench;
use recovery::RecoveryBench;
use ride::RideBench;
use scheduler::SchedulerBench;
use scribe::ScribeBench;
use shards::ShardsBench;
use sort::SortBench;
use table::TableBench;

/// `holdfast bench ...`: which benchmark, and with what.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Crail's iobench: streams, look-ups and small gets of files
    Iobench(Iobench),
    /// The cache: gets and sets over TCP and UDP, beside a null server and memcached
    Cache(CacheBench),
    /// Blobs over S3: puts, gets and lists from many connections, beside the raw device
    Blob(BlobBench),
    /// Hundreds of servers answering one client at once through a shallow switch, simulated
    Incast(IncastBench),
    /// Keys of rows that MariaDB changed, dropped by an invalidator: how soon, and how many a second
    Invalidate(InvalidateBench),
    /// A node lost in a real cluster with limited links: time of repair and what the foreground
    /// feels of it, beside fixed rates
    Recovery(RecoveryBench),
    /// Requests of DynamoDB's API: what they cost a node's processors, beside dynalite
    Dynamo(DynamoBench),
    /// The exchange of a sort over many servers, simulated packet by packet
    Exchange(ExchangeBench),
    /// The recovery planner: tasks scheduled a second by each selector and search, on one core
    Scheduler(SchedulerBench),
    /// A cluster under load that loses a node; and what three copies cost beside one
    Cluster(ClusterBench),
    /// Rides over a view, beside a bare pass of the engine over its rows
    Ride(RideBench),
    /// The log on brokers: creates, restarts and look-ups, beside Kafka's own tools
    Log(LogBench),
    /// Names in two shards beside one, and a directory that moves between them
    Shards(ShardsBench),
    /// Scribe's messages through an agent and a node, beside rsyslog
    Scribe(ScribeBench),
    /// The external sort, beside the disk's bandwidth and GNU sort
    Sort(SortBench),
    /// Tables over regions, simulated: what each request costs by distance, beside its formula; a
    /// lost region
    Table(TableBench),
}

/// Measures what was asked for, and prints a line a case.
pub fn run(bench: &Bench, out: &mut Output) -> Result<()> {
    match bench {
        Bench::Iobench(options) => iobench::run(options, out),
        Bench::Cache(options) => cache::run(options, out),
        Bench::Blob(options) => blob::run(options, out),
        Bench::Incast(options) => incast::run(options, out),
        Bench::Invalidate(options) => invalidate::run(options, out),
        Bench::Dynamo(options) => dynamo::run(options, out),
        Bench::Exchange(options) => exchange::run(options, out),
        Bench::Recovery(options) => recovery::run(options, out),
        Bench::Scheduler(options) => scheduler::run(options, out),
        Bench::Cluster(options) => cluster::run(options, out),
        Bench::Ride(options) => ride::run(options, out),
        Bench::Log(options) => log::run(options, out),
        Bench::Shards(options) => shards::run(options, out),
        Bench::Scribe(options) => scribe::run(options, out),
        Bench::Sort(options) => sort::run(options, out),
        Bench::Table(options) => table::run(options, out),
    }
}
