//! `holdfast`: the command line. Reads what was asked, calls the part that does it, and turns an
//! error into one sentence on standard error.
#![forbid(unsafe_code)]

mod audit;
mod blob;
mod cache;
mod cert;
mod cli;
mod config;
mod credentials;
mod demo;
mod dev;
mod doctor;
mod dynamo;
mod fs;
mod http;
mod import;
mod invalidate;
mod kernel;
mod log;
mod node;
mod rebuild;
mod recovery;
mod ride;
mod roles;
mod route;
mod s3;
mod scribe;
mod shard;
mod sim;
mod sort;
mod table;
mod tail;
mod token;
mod up;
mod view;

use clap::Parser;
use cli::{Cli, Command};
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_command::files::read_text;
use holdfast_command::output::{self, Output};
use holdfast_command::{files, secrets};
use holdfast_env::events::{self, LeastLevel};
use holdfast_env::signals;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    signals::outlive_file_size_limit();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if output::reader_is_gone() => ExitCode::SUCCESS,
        Err(e) => {
            output::aside(&e.message);
            ExitCode::from(1)
        }
    }
}

fn work_with_files(cli: &Cli, command: &cli::Fs, out: &mut Output) -> Result<()> {
    let mut client = connect(cli)?;
    // A long copy outlives its node. One of another build may not know the question.
    let _ = client.learn_nodes();
    fs::run(&mut client, command, out)?;
    if client.is_stale() {
        output::aside(STALE);
    }
    Ok(())
}

fn run(cli: &Cli) -> Result<()> {
    let mut out = Output::new(cli.json);
    secrets::load(
        cli.secret.as_deref(),
        cli.server.as_deref(),
        cli.command.makes_its_own_secret(),
    )?;
    secrets::trust(cli.cacert.as_deref())?;
    secrets::prove(cli.token.as_deref())?;
    // A command tells its one refusal itself; but a thread of it may panic.
    let least = if cli.command.serves() { cli.events_level } else { LeastLevel::ERROR };
    events::write_to_stderr(cli.events, least);
    let secret = cli.secret.as_deref();
    match &cli.command {
        Command::Up(up) => up::run(up, (None, None), secret, &mut out),
        Command::Dev(dev) => dev::run(dev, &mut out),
        Command::Demo(options) => demo::run(options, &mut out),
        Command::Node(cli::Node::Run { up, join, log, attached }) => {
            if *attached {
                up::end_with_input()?;
            }
            up::run(up, (join.as_deref(), log.as_deref()), secret, &mut out)
        }
        Command::Node(command) => node::run(&mut connect(cli)?, command, &mut out),
        Command::Recovery(command) => recovery::run(&mut connect(cli)?, command, &mut out),
        Command::Status => doctor::status(&mut connect(cli)?, &mut out),
        Command::Doctor { machine: true, .. } => kernel::run(&mut out),
        Command::Doctor { data: Some(data), rebuild_names: true, into: Some(into), .. } => {
            rebuild::run(data, into, &mut out)
        }
        Command::Doctor { data: Some(data), .. } => doctor::check_directory(data, &mut out),
        Command::Doctor { data: None, .. } => doctor::ask(&mut connect(cli)?, &mut out),
        Command::Fs(command) => work_with_files(cli, command, &mut out),
        Command::Log(command) => log::run(|| connect(cli), command, &mut out),
        Command::Sort(command) => {
            // What is sorted may go to standard output, which this would hold.
            sort::run(command, &|| connect(cli), &mut out)
        }
        Command::Cert(command) => cert::run(command, &|| connect(cli), &mut out),
        Command::Audit(options) => audit::run(&mut connect(cli)?, options, &mut out),
        Command::Shard(command) => shard::run(&mut connect(cli)?, command, &mut out),
        Command::Table(command) => table::run(&mut connect(cli)?, command, &mut out),
        Command::Token(command) => token::run(&mut connect(cli)?, command, &mut out),
        Command::Config(cli::Config::PrintDefault) => print_default(),
        Command::Config(cli::Config::Check { file }) => check_config(file, &mut out),
        Command::View(command) => {
            if let Some((name, alone)) = command.alone()? {
                return alone.run(cli, &name, &|| connect(cli), &mut out);
            }
            view::run(&|| connect(cli), &mut each_node(cli, secrets::options()), command, &mut out)
        }
        Command::Ride(options) => {
            // A connection that breaks ends its ride: others go on with it at once.
            let once = ClientOptions { reconnects_max: 0, ..secrets::options() };
            let nodes = |silence_max: Option<Duration>| {
                let read_timeout = silence_max.or(once.read_timeout);
                each_node(cli, ClientOptions { read_timeout, ..once.clone() })
            };
            ride::run(&nodes, options, &mut out)
        }
        Command::Blob(blob) => blob::run(blob, &mut out),
        Command::S3(s3) => blob::users(s3, &mut out),
        Command::Scribe(command) => scribe::run(command, &|| connect(cli), &mut out),
        Command::Invalidate(command) => invalidate::run(command, connects(cli), &mut out),
        Command::Cache(options) => cache::run(options, &mut out),
        Command::Route(options) => route::run(options, &mut out),
        Command::Bench(bench) => holdfast_bench::run(bench, &mut out),
        Command::Sim(cli::Sim::Recovery(options)) => sim::recovery(options, &mut out),
    }
}

fn print_default() -> Result<()> {
    print!("{}", config::print_default());
    Ok(())
}

fn check_config(file: &Path, out: &mut Output) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("check `{}`", file.display()));
    let text = read_text(file).map_err(doing)?;
    let config = config::Config::parse(&text, std::env::vars()).map_err(doing)?;
    // As a node would read it whose data directory the file is in.
    config.certificates(file.parent().unwrap_or(Path::new("."))).map_err(doing)?;
    out.line(
        || format!("`{}` is valid", file.display()),
        || serde_json::json!({"file": file.display().to_string(), "valid": true}),
    )
}

/// What people are told of an answer that is labelled.
const STALE: &str = "the node that answered has not heard from the log for a while: what it says \
                     may be old; ask another one with --server";

/// Each node that was named, by a client that asks no other one; or the local one.
fn each_node(
    cli: &Cli,
    options: ClientOptions,
) -> Box<dyn Iterator<Item = Result<view::Node>> + '_> {
    let Some(servers) = &cli.server else {
        let local = || Ok(view::Node { name: "this node".to_owned(), client: connect(cli)? });
        return Box::new(std::iter::once_with(local));
    };
    Box::new(servers.split(',').map(move |server| {
        let client = Client::connect(&Endpoint::parse(server)?, &options)?;
        Ok(view::Node { name: server.to_owned(), client })
    }))
}

/// The node that was named, or the local one: its socket below `data`, else its port.
fn connect(cli: &Cli) -> Result<Client> {
    connect_to(cli.server.as_deref(), cli.token.is_some())
}

/// The same, for threads.
fn connects(cli: &Cli) -> impl Fn() -> Result<Client> + Send + Sync + 'static {
    let (servers, has_token) = (cli.server.clone(), cli.token.is_some());
    move || connect_to(servers.as_deref(), has_token)
}

fn connect_to(servers: Option<&str>, has_token: bool) -> Result<Client> {
    let mut options = secrets::options();
    if let Some(servers) = servers {
        // The first that answers; the others are where to go on when it does not any more.
        let mut nodes = servers.split(',').map(Endpoint::parse).collect::<Result<Vec<_>>>()?;
        for _ in 1..nodes.len() {
            options.others = nodes[1..].to_vec();
            if let Ok(client) = Client::connect(&nodes[0], &options) {
                return Ok(client);
            }
            nodes.rotate_left(1);
        }
        options.others = nodes[1..].to_vec();
        return Client::connect(&nodes[0], &options);
    }
    let socket = Path::new("data").join(files::SOCKET);
    // Over a socket one is its owner, whatever token one has.
    if !has_token
        && socket.exists()
        && let Ok(client) = Client::connect(&Endpoint::Unix(socket), &options)
    {
        return Ok(client);
    }
    Client::connect(&Endpoint::parse("127.0.0.1:7400")?, &options)
}
