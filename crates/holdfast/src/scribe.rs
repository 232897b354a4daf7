//! `holdfast scribe`: an agent beside an application, and what categories hold. Decides nothing about
//! messages.

use crate::cli::Limits;
use crate::credentials::NodeCredentials;
use crate::log::{as_json, kept_for, text_or_hex};
use crate::tail::until_answered;
use clap::{Args, Subcommand};
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;
use holdfast_base::text::{shown, utc};
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::{CategoryReader, Client, ClientOptions, Endpoint, Secret};
use holdfast_command::files::read_text;
use holdfast_command::output::{self, Output};
use holdfast_command::secrets;
use holdfast_env::net::Credentials;
use holdfast_env::tls::{CertificateFiles, Certificates};
use holdfast_env::{Budget, Disk, RealClock, RealDisk, RealRng, Rng, event, local, signals};
use holdfast_log::Drive;
use holdfast_scribe::agent::{Agent, Settings};
use holdfast_scribe::aside::{self, Aside};
use holdfast_scribe::batch::{self, Messages};
use holdfast_scribe::carrier;
use holdfast_scribe::door;
use holdfast_scribe::resend::{Came, resend};
use holdfast_scribe::store::{Bounds, SEGMENT_BYTES, SEGMENTS_MIN, Store};
use holdfast_scribe::stores::translate::translate;
use holdfast_scribe::stores::{self, Stores};
use holdfast_scribe::word::NAME_BYTES_MAX;
use holdfast_wire::{log::Retention, scribe as msg};
use serde_json::{Value, json};
use std::io::{BufWriter, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `holdfast scribe ...`.
#[derive(Subcommand, Debug)]
pub enum Scribe {
    /// Take messages of Scribe's clients on this machine, keep them on its disk, and bring them to a cluster
    Agent(AgentOptions),
    /// Print the messages of a category as they come, until interrupted
    Tail {
        category: String,
        /// First entry of the category's topic [default: the next one; with --no-follow the oldest]
        #[arg(long, value_name = "INDEX")]
        from: Option<u64>,
        /// End with the last message that there is
        #[arg(long)]
        no_follow: bool,
        /// Go on where this reader was, unless --from says where, and keep in the cluster how far it is
        #[arg(long, value_name = "NAME")]
        reader: Option<String>,
    },
    /// Forget where a reader of a category is
    Forget { category: String, reader: String },
    /// Change how long messages of a category are kept, and make the category if there is none
    Keep {
        category: String,
        #[command(flatten)]
        limits: Limits,
        #[command(flatten)]
        holds: Holds,
        /// Write each hour, by the clock of the node that looks after the log, into
        /// /scribe/CATEGORY/YYYY-MM-DD/HH.zst, a line for each message; `false` ends that with what came until now
        #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        hourly_files: Option<bool>,
    },
    /// Say how categories are doing
    Status,
    /// Print an old scribe.conf as stores for an agent (--stores), with a sentence for what has no equivalent
    Translate {
        /// The scribe.conf
        #[arg(value_name = "FILE")]
        conf: PathBuf,
    },
    /// Bring out all that a spool has, while no agent runs on it: of a copied one, what only this copy has, under
    /// an identity of its own. May be done any number of times, and counts once
    Resend {
        /// The agent's spool
        #[arg(long, value_name = "DIR")]
        spool: PathBuf,
        /// Where a category was trimmed past what the copies share, send all that the spool has of it: some of
        /// its messages may be there twice then
        #[arg(long)]
        repeat: bool,
    },
    /// Print what an agent, or a node's own port, keeps aside since no category takes it
    Aside {
        /// The agent's spool
        #[arg(long, value_name = "DIR", required_unless_present = "data")]
        spool: Option<PathBuf>,
        /// The node's data directory
        #[arg(long, value_name = "DIR", conflicts_with = "spool")]
        data: Option<PathBuf>,
    },
}

/// What readers with a name hold of a category that its limits would let go.
#[derive(Args, Clone, Copy, Debug)]
pub struct Holds {
    /// What a reader (`tail --reader`) has not read stays until it is so old, whatever the other limits say; 0
    /// for no such limit; without any, readers hold nothing
    #[arg(long, value_name = "TIME", value_parser = crate::log::age_ms)]
    readers_hold: Option<u64>,
    /// And until the category has so many bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    readers_hold_bytes: Option<u64>,
}

/// `holdfast scribe agent`.
#[derive(Args, Debug)]
#[command(after_long_help = stores::EXAMPLE)]
pub struct AgentOptions {
    /// Directory that keeps messages until their topics have them; this agent's alone
    #[arg(long, value_name = "DIR")]
    spool: PathBuf,
    /// What the cluster calls this agent's spool, which outlives the directory: should it be erased, what is lost
    /// is named by it. Each agent has another one [default: the machine's name and the spool's directory]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Nodes of the cluster, HOST:PORT or unix:/path, or agents that carry (--carry-port): each spool uses
    /// another one of them first, and the next one while that is away
    #[arg(long, required = true, num_args = 1.., value_delimiter = ',', value_name = "ADDRESS")]
    to: Vec<String>,
    /// Port for Scribe's clients; 0 for any that is free
    #[arg(long, default_value_t = door::PORT, value_name = "PORT")]
    port: u16,
    /// Address to listen on; Scribe's protocol asks nobody who they are
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    listen: IpAddr,
    /// What the spool's files may take; clients are told to try later before that
    #[arg(long, default_value = "1G", value_parser = spool_bytes, value_name = "BYTES")]
    spool_size: u64,
    /// How long an agent that is told to end goes on to bring out what its spool has
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain: u64,
    /// What becomes of messages, by category: their topic, files, nothing (TOML; --help shows one) [default:
    /// their topics]
    #[arg(long, value_name = "FILE")]
    stores: Option<PathBuf>,
    #[command(flatten)]
    carry: CarryOptions,
}

/// An agent as a carrier.
#[derive(Args, Debug)]
pub struct CarryOptions {
    /// Carry for other agents, which name this port with --to; 0 for any that is free [default: off]
    #[arg(long, value_name = "PORT")]
    carry_port: Option<u16>,
    /// Address on which agents are carried for; beyond loopback with --carry-tls alone
    #[arg(long, default_value = "127.0.0.1", requires = "carry_port", value_name = "HOST")]
    carry_listen: IpAddr,
    /// What agents prove (their --secret); several carriers share one [default: `secret` in the spool's
    /// directory, drawn at the first start]
    #[arg(long, requires = "carry_port", value_name = "FILE")]
    carry_secret: Option<PathBuf>,
    /// Directory with node.pem, node.key and ca.pem, as a node has it: TLS for agents on other machines
    #[arg(long, requires = "carry_port", value_name = "DIR")]
    carry_tls: Option<PathBuf>,
}

fn spool_bytes(text: &str) -> std::result::Result<u64, String> {
    let least = SEGMENTS_MIN * SEGMENT_BYTES;
    match parse_bytes(text)? {
        bytes if bytes >= least => Ok(bytes),
        _ => Err(format!("a spool takes {} or more", format_bytes(least))),
    }
}

/// Below a node's data directory: what its own port keeps aside.
pub const ASIDE: &str = "scribe";

/// Silence of a node after which another one is asked: it answers when its log has synced.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Carries out a command: `agent` serves, `aside` looks into a directory, others ask a node.
pub fn run(command: &Scribe, connect: &dyn Fn() -> Result<Client>, out: &mut Output) -> Result<()> {
    match command {
        Scribe::Agent(options) => agent(options, out),
        Scribe::Aside { spool, data } => {
            let of_node = data.iter().map(|data| data.join(ASIDE));
            spool.iter().cloned().chain(of_node).try_for_each(|place| print_aside(&place, out))
        }
        Scribe::Resend { spool, repeat } => send_again(spool, *repeat, connect, out),
        Scribe::Translate { conf } => print_translated(conf, out),
        Scribe::Tail { category, from, no_follow, reader } => {
            let tail =
                Tail { category, from: *from, follow: !no_follow, reader: reader.as_deref() };
            tail.run(&mut connect()?, out)
        }
        Scribe::Forget { category, reader } => {
            connect()?.scribe_move_reader(category, reader, Index(0))
        }
        Scribe::Keep { category, limits, holds, hourly_files } => {
            let Limits { retain_bytes, retain_age } = *limits;
            let Holds { readers_hold, readers_hold_bytes } = *holds;
            let kept = connect()?.scribe_keep(&msg::Keep {
                category: category.clone(),
                retain_bytes,
                retain_ms: retain_age,
                hold_bytes: readers_hold_bytes,
                hold_ms: readers_hold,
                hourly_files: *hourly_files,
            })?;
            out.line(
                || format!("{category}  {}", kept_lines(&kept).join(", ")),
                || {
                    let mut object = kept_json(&kept);
                    object["category"] = json!(category);
                    object
                },
            )
        }
        Scribe::Status => {
            connect()?.scribe_status()?.iter().try_for_each(|one| print_status(one, out))
        }
    }
}

/// Spools that are lost, of one category, as people are shown them; programs have all that were told.
const LOST_SHOWN_MAX: usize = 10;

fn print_status(one: &msg::CategoryStatus, out: &mut Output) -> Result<()> {
    let (messages, log) = (one.messages, format_bytes(one.log_bytes));
    let last = one.next.0.saturating_sub(1);
    let at = |at: &msg::ReaderAt| format!("\n    reader {} at entry {}", at.reader, at.next);
    let readers: String = one.readers.iter().map(at).collect();
    // A category that is kept for ever says nothing.
    let kept = match one.kept == msg::Kept::default() {
        true => String::new(),
        false => format!(", {}", kept_lines(&one.kept).join(", ")),
    };
    out.line(
        || {
            format!(
                "{}  {messages} messages, {} in {} batches, {log} in the log (entries {} to {last}), \
                 {} spools, {} batches dropped{kept}{readers}{}",
                one.category,
                format_bytes(one.raw_bytes),
                one.batches,
                one.first,
                one.spools,
                one.dropped,
                lost_lines(one)
            )
        },
        || {
            let mut object = json!({
                "category": one.category, "messages": messages, "raw_bytes": one.raw_bytes,
                "batches": one.batches, "log_bytes": one.log_bytes, "first": one.first.0,
                "next": one.next.0, "spools": one.spools, "dropped": one.dropped,
                "readers": one.readers.iter().map(|at| {
                    json!({"reader": at.reader, "next": at.next.0})
                }).collect::<Vec<_>>(),
                "lost": one.lost,
                "lost_spools": one.lost_spools.iter().map(|lost| json!({
                    "spool": hex(lost.spool), "name": lost.name, "next": lost.next, "by": hex(lost.by),
                    "entry": lost.entry.0, "unix_ms": lost.unix_ms,
                })).collect::<Vec<_>>(),
            });
            let kept = kept_json(&one.kept);
            object.as_object_mut().expect("it is one").extend(kept.as_object().expect("too").clone());
            object
        },
    )
}

fn kept_json(kept: &msg::Kept) -> Value {
    json!({
        "retain_bytes": kept.retain_bytes, "retain_ms": kept.retain_ms,
        "readers_hold_bytes": kept.hold_bytes, "readers_hold_ms": kept.hold_ms,
        "hourly_files": kept.hourly_files, "hours": kept.hours, "hours_waiting": kept.hours_waiting,
    })
}

/// How long a category is kept, and how much longer for its readers.
fn kept_lines(kept: &msg::Kept) -> Vec<String> {
    let own = kept_for(&Retention { bytes: kept.retain_bytes, age_ms: kept.retain_ms });
    let held = Retention { bytes: kept.hold_bytes, age_ms: kept.hold_ms };
    let held = (held != Retention::default()).then(|| format!("for readers {}", kept_for(&held)));
    let has_files = kept.hourly_files || kept.hours + kept.hours_waiting > 0;
    let files = has_files.then(|| {
        let on = if kept.hourly_files { "on" } else { "off" };
        format!("hourly files {on} ({} there, {} to be written)", kept.hours, kept.hours_waiting)
    });
    [Some(own), held, files].into_iter().flatten().collect()
}

/// As spools are named everywhere.
fn hex(spool: u64) -> String {
    batch::SpoolId(spool).to_string()
}

/// The last spools of a category that are lost, and how many there are beside them.
fn lost_lines(one: &msg::CategoryStatus) -> String {
    let last = one.lost_spools.iter().rev().take(LOST_SHOWN_MAX);
    let line = |lost: &msg::LostSpool| {
        format!(
            "\n    lost: spool {} of `{}`, what it had from message {} on, since {}",
            hex(lost.spool),
            shown(&lost.name),
            lost.next,
            utc((lost.unix_ms / 1000) as i64, ' ')
        )
    };
    let lines: String = last.map(line).collect();
    match one.lost.saturating_sub(LOST_SHOWN_MAX as u64) {
        0 => lines,
        more => format!("{lines}\n    lost: {more} spools before these"),
    }
}

fn agent(options: &AgentOptions, out: &mut Output) -> Result<()> {
    // Before any thread starts, so that only the one that waits for them gets signals.
    signals::block_shutdown_signals();
    local::keep_private();
    let listen = SocketAddr::new(options.listen, options.port);
    if !listen.ip().is_loopback() {
        let open = format!("whoever reaches `{listen}` can send messages of any category");
        event!(OpenToAll, open);
    }
    let to = options.to.iter().map(|to| Endpoint::parse(to)).collect::<Result<Vec<_>>>()?;
    secrets::close(&options.spool)
        .map_err(|e| e.context(format_args!("open the spool `{}`", options.spool.display())))?;
    let _ = local::raise_descriptors(local::DESCRIPTORS_WANTED);
    let budget = Budget::new(Budget::default_bytes(local::memory_bytes()));
    let carries = options.carry.settings(&options.spool, &budget)?;
    let stores = read_stores(options.stores.as_deref().unwrap_or(Path::new("")))?;
    let settings = Settings {
        spool: options.spool.clone(),
        name: options.name.clone().unwrap_or_else(|| name_of(&options.spool)),
        bounds: Bounds {
            bound_bytes: options.spool_size,
            segment_bytes: SEGMENT_BYTES,
            drive: Drive::Threads,
        },
        listen,
        stores,
        to,
        client: ClientOptions {
            read_timeout: Some(SILENCE_MAX),
            // The thread that forwards has rests of its own, and an agent tells events.
            reconnects_max: 1,
            silence_told: None,
            ..secrets::options()
        },
        carries,
        connections_max: door::CONNECTIONS_MAX,
        budget,
    };
    let disk = Arc::new(RealDisk);
    let agent = Agent::start(settings, disk, Arc::new(RealRng), Arc::new(RealClock::new()))?;
    let (address, spool) = (agent.address().to_string(), agent.spool());
    let carries = agent.carries().map(|address| address.to_string());
    out.line(
        || {
            let to = options.to.join(", ");
            let carries =
                carries.as_ref().map_or(String::new(), |at| format!(", carries for agents at {at}"));
            format!(
                "holdfast scribe agent serves {address}, spool {spool}, brings messages to {to}{carries}"
            )
        },
        || json!({"event": "ready", "scribe": address, "spool": spool, "carries": carries}),
    )?;
    signals::wait_for_shutdown()?;
    let left = agent.end(Duration::from_secs(options.drain));
    out.line(
        || match left {
            0 => "holdfast: ended in order, everything was delivered".to_owned(),
            left => format!(
                "holdfast: ended in order; {left} batches stay in the spool until its next start"
            ),
        },
        || json!({"event": "ending", "batches_left": left}),
    )
}

/// What a file says of stores; where none is named, all messages go to their topics.
pub fn read_stores(file: &Path) -> Result<Stores> {
    if file.as_os_str().is_empty() {
        return Ok(Stores::default());
    }
    read_text(file)
        .and_then(|text| Stores::parse(&text))
        .map_err(|e| e.context(format_args!("use `{}`", file.display())))
}

/// The machine and the directory, wherever the command was typed. One that is too long keeps its end, and what
/// tells it from others.
fn name_of(spool: &Path) -> String {
    let path = spool.canonicalize().unwrap_or_else(|_| spool.to_owned());
    let name = format!("{}:{}", local::host_name(), path.display());
    let name: String = name
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let of_all = format!("{:08x}:", crc32c(name.as_bytes()));
    let from = name.ceil_char_boundary(name.len() + of_all.len() - NAME_BYTES_MAX);
    of_all + &name[from..]
}

impl CarryOptions {
    fn settings(&self, spool: &Path, budget: &Arc<Budget>) -> Result<Option<carrier::Settings>> {
        let Some(port) = self.carry_port else { return Ok(None) };
        let listen = SocketAddr::new(self.carry_listen, port);
        let doing = |e: Error| e.context(format_args!("carry for agents at `{listen}`"));
        if !listen.ip().is_loopback() && self.carry_tls.is_none() {
            return Err(doing(Error::invalid(
                "it leads to other machines, and without certificates everything would go there \
                 unencrypted: name some with `--carry-tls DIR` (`holdfast cert node` makes them), or stay on \
                 127.0.0.1",
            )));
        }
        let secret = match &self.carry_secret {
            Some(file) => file.clone(),
            None => secrets::of_cluster(spool).map_err(doing)?,
        };
        let credentials = match &self.carry_tls {
            None => None,
            Some(own) => {
                let [chain, key, authorities] =
                    ["node.pem", "node.key", "ca.pem"].map(|name| own.join(name));
                let files = CertificateFiles { chain, key, authorities, more: Vec::new() };
                let certificates = Certificates::load(&files).map_err(doing)?;
                let own = NodeCredentials::new(certificates, false).map_err(doing)?;
                Some(Arc::new(own) as Arc<dyn Credentials>)
            }
        };
        let (secret, budget) = (Secret::load(&secret).map_err(doing)?, budget.clone());
        Ok(Some(carrier::Settings { listen, secret, credentials, budget }))
    }
}

/// What `tail` is asked for.
struct Tail<'a> {
    category: &'a str,
    from: Option<u64>,
    follow: bool,
    reader: Option<&'a str>,
}

impl Tail<'_> {
    fn run(&self, client: &mut Client, out: &mut Output) -> Result<()> {
        let from = self.from.map(Index);
        let mut reader =
            CategoryReader::begin(client, self.category, from, self.reader, self.follow)?;
        let (mut prints, mut wait) = (Prints::new(out), Duration::ZERO);
        loop {
            let read = self.ask(|| reader.read(client, wait))?;
            wait = if read.is_none() { Duration::MAX } else { Duration::ZERO };
            for (index, messages) in read.iter().flatten() {
                prints.batch(*index, messages)?;
            }
            prints.flush()?;
            // Only behind what standard output took.
            self.ask(|| reader.taken(client))?;
            if read.is_none() && !self.follow {
                return Ok(());
            }
        }
    }

    /// Who follows waits for a node that is away.
    fn ask<T>(&self, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        match self.follow {
            true => until_answered(ask),
            false => ask(),
        }
    }
}

/// The stores, and what is wrong with them here, if anything is.
fn print_translated(conf: &Path, out: &mut Output) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("translate `{}`", conf.display()));
    let toml = read_text(conf).and_then(|text| translate(&text)).map_err(doing)?;
    out.line(|| toml.trim_end().to_owned(), || json!({"stores": toml}))?;
    Stores::parse(&toml).map(drop).map_err(doing)
}

fn send_again(
    spool: &Path,
    repeat: bool,
    connect: &dyn Fn() -> Result<Client>,
    out: &mut Output,
) -> Result<()> {
    let (bound_bytes, segment_bytes) = (u64::MAX, SEGMENT_BYTES);
    let bounds = Bounds { bound_bytes, segment_bytes, drive: Drive::Threads };
    let store = Store::open_there(Arc::new(RealDisk), spool, bounds, &RealRng)?;
    let outcome = resend(&store, &mut connect()?, repeat)?;
    let mut refused = Vec::new();
    for (category, came) in &outcome {
        let (messages, before, of) = match came {
            Came::Own { messages } => (*messages, 0, None),
            Came::Copied { messages, before, spool } => {
                (*messages, *before, Some(spool.to_string()))
            }
            Came::Refused(why) => {
                refused.push(format!("`{category}`: {why}"));
                continue;
            }
        };
        out.line(
            || match &of {
                None => format!("{category}  {messages} messages sent"),
                Some(_) if messages == 0 => {
                    format!("{category}  copied; its topic has all that this copy has")
                }
                Some(of) => format!(
                    "{category}  copied; {messages} messages that only this copy has are there as spool {of}'s, {before} \
                     of them were before"
                ),
            },
            || {
                json!({
                    "category": category.name(), "messages": messages, "before": before, "spool": of,
                })
            },
        )?;
    }
    match &refused[..] {
        [] => Ok(()),
        all => Err(Error::retry(format!("send a spool again: {}", all.join("; ")))),
    }
}

/// Also of what an agent or a node has open: then it is read in a copy, which others may not look into.
fn print_aside(place: &Path, out: &mut Output) -> Result<()> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let name = format!("holdfast-aside-{:016x}", RealRng.next_u64());
    let scratch = std::env::temp_dir().join(name);
    local::keep_private();
    let looked =
        aside::look(&disk, place, &scratch, Drive::Threads, &mut |_, entry| match Aside::decode(
            entry,
        )? {
            Aside::Message { why, category, bytes, beginning } => {
                let category = String::from_utf8_lossy(category).into_owned();
                aside_line(out, &category, why, beginning, Some(bytes))
            }
            Aside::Batch { why, batch } => {
                let (head, messages) = batch::verify(batch)?;
                let name = head.category.name();
                messages.iter().try_for_each(|message| aside_line(out, name, why, message, None))
            }
        });
    match local::remove_tree(&scratch) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => looked.and(Err(e.into())),
        _ => looked,
    }
}

/// One message, and why it is there; of one that is cut, how long it was.
fn aside_line(
    out: &mut Output,
    category: &str,
    why: &str,
    message: &[u8],
    bytes: Option<u64>,
) -> Result<()> {
    let line = message.strip_suffix(b"\n").unwrap_or(message);
    out.line(
        || format!("{}  {}  ({why})", category.escape_debug(), String::from_utf8_lossy(line)),
        || {
            let mut object = text_or_hex(message);
            object["category"] = json!(category);
            object["why"] = json!(why);
            object["bytes"] = json!(bytes.unwrap_or(message.len() as u64));
            object
        },
    )
}

/// Messages to standard output: as they are where that is a file or a pipe, each with a line's end; shown
/// where it is a terminal, which is to obey none of them.
struct Prints<'a> {
    out: &'a mut Output,
    raw: Option<BufWriter<output::Stdout>>,
}

impl<'a> Prints<'a> {
    fn new(out: &'a mut Output) -> Prints<'a> {
        let raw = !out.is_json() && !std::io::stdout().is_terminal();
        Prints { out, raw: raw.then(|| BufWriter::new(output::stdout())) }
    }

    fn batch(&mut self, index: Index, messages: &Messages) -> Result<()> {
        for message in messages.iter() {
            let line = message.strip_suffix(b"\n").unwrap_or(message);
            match &mut self.raw {
                Some(raw) => {
                    raw.write_all(line)?;
                    raw.write_all(b"\n")?;
                }
                None => self.out.line(
                    || String::from_utf8_lossy(line).into_owned(),
                    || as_json(index, message),
                )?,
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.raw.as_mut().map_or(Ok(()), |raw| Ok(raw.flush()?))
    }
}
