//! `holdfast cache`: memcached's command line for our cache. Reads its options as memcached does,
//! starts the server, waits for a signal.

mod metrics;

pub use metrics::register as register_metrics;

use clap::{ArgAction, Args};
use holdfast_base::{Error, Result};
use holdfast_cache::{Ablation, Server, Settings, VERSION};
use holdfast_command::files::read_text;
use holdfast_command::output::Output;
use holdfast_env::tls::{ClientCertificates, TlsFiles};
use holdfast_env::{Disk, RealClock, RealDisk, RealRng, event, local, signals};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the main thread looks whether a client has asked for the end.
const LOOK: Duration = Duration::from_millis(100);
const MIB: u64 = 1 << 20;
/// `ssl_min_version`, as memcached numbers versions: below it TLS 1.2 is served, too.
const SSL_MIN_VERSION_1_3: u64 = 3;
/// In front of an address that is served without TLS.
const NO_TLS: &str = "notls:";
/// Descriptors beside the clients'.
const DESCRIPTORS: u64 = 64;

/// A drop-in for memcached: `-p -U -l -s -a -m -c -t -I -M -R -C -b -B -F -A -d -P -u -v -Y -Z -e -o`
/// mean what they mean there.
#[derive(Args, Debug, Clone)]
pub struct CacheOptions {
    /// TCP port; 0 for none, -1 for any free one
    #[arg(
        short = 'p',
        long = "port",
        default_value_t = 11211,
        allow_negative_numbers = true,
        value_name = "PORT"
    )]
    pub port: i32,
    /// UDP port; 0 for none
    #[arg(
        short = 'U',
        long = "udp-port",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_name = "PORT"
    )]
    pub udp_port: i32,
    /// Addresses to listen on, with or without a port: `HOST[:PORT],...`
    #[arg(short = 'l', long = "listen", value_delimiter = ',', value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Unix socket to listen on, instead of the network
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    pub unix: Option<PathBuf>,
    /// Access to the Unix socket, in octal
    #[arg(short = 'a', long = "unix-mask", default_value = "0700", value_name = "MASK")]
    pub mask: String,
    /// Memory for items and their index, in MiB
    #[arg(short = 'm', long = "memory-limit", default_value_t = 64, value_name = "MIB")]
    pub memory: u64,
    /// Connections at once
    #[arg(short = 'c', long = "conn-limit", default_value_t = 1024, value_name = "N")]
    pub connections: usize,
    /// Threads that serve
    #[arg(short = 't', long = "threads", default_value_t = 4, value_name = "N")]
    pub threads: usize,
    /// Longest item, e.g. 1m or 512k
    #[arg(short = 'I', long = "max-item-size", default_value = "1m", value_name = "BYTES")]
    pub item: String,
    /// Answer with an error instead of evicting when memory is full
    #[arg(short = 'M', long = "disable-evictions")]
    pub no_evictions: bool,
    /// Requests of one event before other connections get their turn
    #[arg(short = 'R', long = "max-reqs-per-event", default_value_t = 20, value_name = "N")]
    pub requests: usize,
    /// Refuse cas
    #[arg(short = 'C', long = "disable-cas")]
    pub no_cas: bool,
    /// Connections that wait to be accepted
    #[arg(short = 'b', long = "listen-backlog", default_value_t = 1024, value_name = "N")]
    pub backlog: u32,
    /// Protocol: `auto` or `ascii`; the binary one is not supported
    #[arg(short = 'B', long = "protocol", default_value = "auto", value_name = "NAME")]
    pub protocol: String,
    /// Refuse flush_all
    #[arg(short = 'F', long = "disable-flush-all")]
    pub no_flush: bool,
    /// Allow the command `shutdown`
    #[arg(short = 'A', long = "enable-shutdown")]
    pub shutdown: bool,
    /// Run in the background
    #[arg(short = 'd', long = "daemon")]
    pub daemon: bool,
    /// Write the process id to a file
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// User to become, when started by root
    #[arg(short = 'u', long = "user", value_name = "NAME")]
    pub user: Option<String>,
    /// Say more; repeated, even more
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    pub verbose: u8,
    /// File of `user:password` lines that clients must log in with
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Serve TLS, with `-o ssl_chain_cert=FILE,ssl_key=FILE`; `-l notls:ADDR` goes without
    #[arg(short = 'Z', long = "enable-ssl")]
    pub tls: bool,
    /// Keep the items in a file from one run to the next
    #[arg(short = 'e', long = "memory-file", value_name = "FILE")]
    pub memory_file: Option<PathBuf>,
    /// `idle_timeout=SECONDS`, `busy_poll=MICROSECONDS`, `udp_reply=BYTES`, `udp_rate=BYTES`,
    /// `ssl_chain_cert=FILE`, `ssl_key=FILE`, `ssl_ca_cert=FILE`, `ssl_verify_mode=0..3`;
    /// `no_*` and the names of memcached's slab and LRU tuning are accepted and do nothing
    #[arg(short = 'o', long = "extended", value_delimiter = ',', value_name = "NAME=VALUE")]
    pub extended: Vec<String>,
    /// Allow UDP beyond loopback
    #[arg(long)]
    pub udp_beyond_loopback: bool,
    /// Keep thread I on core FIRST + I
    #[arg(long, value_name = "FIRST")]
    pub pin: Option<usize>,
    /// SASL: not supported
    #[arg(short = 'S', long = "enable-sasl", hide = true)]
    pub sasl: bool,
    /// Locked memory: not supported
    #[arg(short = 'k', long = "lock-memory", hide = true)]
    pub lock: bool,
    /// Huge pages: always used where there are some
    #[arg(short = 'L', long = "enable-largepages", hide = true)]
    pub large_pages: bool,
    /// Slabs: there are none
    #[arg(short = 'f', long = "slab-growth-factor", hide = true, value_name = "X")]
    pub factor: Option<f64>,
    /// Slabs: there are none
    #[arg(short = 'n', long = "slab-min-size", hide = true, value_name = "BYTES")]
    pub chunk: Option<u64>,
    /// Reads fixed requests and answers fixed replies: `REQUEST:REPLY` bytes
    #[arg(long, hide = true, value_name = "BYTES:BYTES")]
    pub null: Option<String>,
    /// Takes one decision of the design back, for benchmarks: shared-statistics, one-udp-socket,
    /// unbatched-sends, connection-buffers
    #[arg(long, hide = true, value_name = "NAME")]
    pub ablate: Option<String>,
}

/// Slab and LRU tuning that has no counterpart here: memory is not cut by size.
const IGNORED: &[&str] = &[
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_chunk_max",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "modern",
    "maxconns_fast",
    "hashpower",
    "hash_algorithm",
    "tail_repair_time",
    "track_sizes",
    "resp_obj_mem_limit",
    "read_buf_mem_limit",
    "ssl_session_cache",
    "ssl_wbuf_size",
];

impl CacheOptions {
    fn settings(&self) -> Result<Settings> {
        self.refuse_unsupported()?;
        let mut settings = Settings {
            unix: self.unix.clone(),
            unix_mode: u32::from_str_radix(&self.mask, 8)
                .map_err(|_| Error::invalid(format!("`-a {}`: give octal digits", self.mask)))?,
            memory_bytes: usize::try_from(self.memory.saturating_mul(MIB))
                .map_err(|_| Error::invalid(format!("`-m {}`: too much", self.memory)))?,
            connections_max: self.connections,
            threads: self.threads,
            item_bytes_max: item_bytes(&self.item)?,
            evicts: !self.no_evictions,
            requests_per_event: self.requests,
            cas: !self.no_cas,
            backlog: self.backlog,
            flush: !self.no_flush,
            shutdown_command: self.shutdown,
            verbose: self.verbose,
            first_core: self.pin,
            file: self.memory_file.clone(),
            ablation: ablation(self.ablate.as_deref())?,
            ..Settings::default()
        };
        if self.threads == 0 || self.threads > 256 {
            return Err(Error::invalid(format!("`-t {}`: give 1 to 256 threads", self.threads)));
        }
        if settings.item_bytes_max > settings.memory_bytes / 2 {
            return Err(Error::invalid(format!(
                "`-I {}`: an item may take at most half of the memory, see `-m`",
                self.item
            )));
        }
        if let Some(file) = &self.auth_file {
            settings.users = Some(read_users(file)?);
        }
        if let Some(null) = &self.null {
            let parts =
                null.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            settings.null =
                Some(parts.ok_or_else(|| Error::invalid("`--null`: give BYTES:BYTES"))?);
        }
        self.extend(&mut settings)?;
        self.check_tls(&settings)?;
        if self.unix.is_none() {
            self.addresses(&mut settings)?;
        }
        Ok(settings)
    }

    fn refuse_unsupported(&self) -> Result<()> {
        let refused = [
            (self.sasl, "-S (SASL): use -Y, which needs no binary protocol"),
            (self.lock, "-k (locked memory): switch swap off instead"),
            (self.protocol == "binary", "-B binary: use a client that speaks the text protocol"),
        ];
        for (is_asked, what) in refused {
            if is_asked {
                return Err(Error::unsupported(format!("start the cache: not supported: {what}")));
            }
        }
        match self.protocol.as_str() {
            "auto" | "ascii" => Ok(()),
            other => Err(Error::invalid(format!("`-B {other}`: give auto or ascii"))),
        }
    }

    fn extend(&self, settings: &mut Settings) -> Result<()> {
        let mut tls = TlsFiles::default();
        for option in &self.extended {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| Error::invalid(format!("`-o {option}`: `{name}` wants a number")))
            };
            let ignored = IGNORED.contains(&name.strip_prefix("no_").unwrap_or(name));
            match name {
                "idle_timeout" => {
                    settings.idle_timeout_s = number()?.min(u64::from(u32::MAX)) as u32
                }
                "busy_poll" => settings.busy_poll_us = number()?.min(1_000_000) as u32,
                "udp_reply" => settings.udp_reply_bytes_max = number()? as usize,
                "udp_rate" => settings.udp_bytes_per_second = number()?,
                "ssl_chain_cert" => tls.chain = value.into(),
                "ssl_key" => tls.key = value.into(),
                "ssl_ca_cert" => tls.client_authorities = Some(value.into()),
                "ssl_verify_mode" => {
                    tls.client_certificates = match number()? {
                        0 => ClientCertificates::Ignored,
                        1 => ClientCertificates::Asked,
                        _ => ClientCertificates::Required,
                    }
                }
                "ssl_min_version" => tls.only_1_3 = number()? >= SSL_MIN_VERSION_1_3,
                _ if ignored => {}
                _ => {
                    return Err(Error::unsupported(format!(
                        "`-o {name}` is not supported; see `holdfast cache --help`"
                    )));
                }
            }
        }
        settings.tls = self.tls.then_some(tls);
        Ok(())
    }

    fn check_tls(&self, settings: &Settings) -> Result<()> {
        let Some(tls) = &settings.tls else { return Ok(()) };
        if tls.chain.as_os_str().is_empty() || tls.key.as_os_str().is_empty() {
            return Err(Error::invalid(
                "serve TLS (`-Z`): name certificate and key: `-o ssl_chain_cert=FILE,ssl_key=FILE`",
            ));
        }
        if self.udp_port != 0 {
            return Err(Error::invalid("serve TLS (`-Z`): UDP has none: leave `-U` out"));
        }
        Ok(())
    }

    fn addresses(&self, settings: &mut Settings) -> Result<()> {
        let port = |port: i32| {
            u16::try_from(port.max(0))
                .map_err(|_| Error::invalid(format!("port {port}: give 1 to 65535")))
        };
        let (tcp, udp) = (port(self.port)?, port(self.udp_port)?);
        // As DESIGN: loopback, unless told otherwise; memcached listens everywhere.
        let loopback = ["127.0.0.1".to_owned()];
        let hosts = if self.listen.is_empty() { &loopback[..] } else { &self.listen[..] };
        for host in hosts {
            for address in resolve(host, tcp)? {
                let has_port = self.port != 0 || address.port() != 0;
                if has_port && self.tls && host.starts_with(NO_TLS) {
                    settings.tcp_plain.push(address);
                } else if has_port {
                    settings.tcp.push(address);
                }
                if self.udp_port == 0 {
                    continue;
                }
                if !address.ip().is_loopback() && !self.udp_beyond_loopback {
                    return Err(Error::invalid(format!(
                        "serve UDP on `{}`: forged requests would turn this machine against others; listen on 127.0.0.1, or add `--udp-beyond-loopback`",
                        address.ip()
                    )));
                }
                settings.udp.push(SocketAddr::new(address.ip(), udp));
            }
        }
        let places = settings.tcp.len() + settings.tcp_plain.len() + settings.udp.len();
        if places == 0 {
            return Err(Error::invalid(
                "start the cache: `-p 0` without `-U`: nothing to listen on",
            ));
        }
        Ok(())
    }
}

/// `HOST`, `HOST:PORT`, `[V6]:PORT`, `*`, `notls:` in front or not.
fn resolve(text: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let host = text.strip_prefix(NO_TLS).unwrap_or(text);
    if host == "*" {
        return Ok(vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)]);
    }
    if let Ok(ip) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found =
        if host.contains(':') { host.to_socket_addrs() } else { (host, port).to_socket_addrs() };
    let found: Vec<SocketAddr> = found
        .map_err(|e| {
            Error::invalid(format!("listen on `{text}`: {e}: give an address of this machine"))
        })?
        .collect();
    Ok(found)
}

fn ablation(name: Option<&str>) -> Result<Ablation> {
    let mut ablation = Ablation::default();
    match name {
        None => {}
        Some("shared-statistics") => ablation.shared_statistics = true,
        Some("one-udp-socket") => ablation.one_udp_socket = true,
        Some("unbatched-sends") => ablation.unbatched_sends = true,
        Some("connection-buffers") => ablation.connection_buffers = true,
        Some(other) => {
            return Err(Error::invalid(format!("`--ablate {other}`: there is no such decision")));
        }
    }
    Ok(ablation)
}

fn item_bytes(text: &str) -> Result<usize> {
    let (digits, unit) = match text.to_ascii_lowercase().strip_suffix(['k', 'm', 'g']) {
        Some(digits) => (digits.to_owned(), text.as_bytes()[text.len() - 1].to_ascii_lowercase()),
        None => (text.to_owned(), b' '),
    };
    let unit = match unit {
        b'k' => 1 << 10,
        b'm' => 1 << 20,
        b'g' => 1 << 30,
        _ => 1,
    };
    let bytes = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
    match bytes {
        Some(bytes) if (1024..=1 << 30).contains(&bytes) => Ok(bytes),
        _ => Err(Error::invalid(format!("`-I {text}`: give 1k to 1g, e.g. 4m"))),
    }
}

fn read_users(file: &Path) -> Result<Vec<String>> {
    let doing = |e: Error| e.context(format_args!("read `{}`", file.display()));
    let text = read_text(file).map_err(doing)?;
    let users: Vec<String> =
        text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    if users.is_empty() || users.iter().any(|user| !user.contains(':')) {
        return Err(doing(Error::invalid(
            "each line must be `user:password`, and one there must be",
        )));
    }
    Ok(users)
}

/// Serves until a signal or a client's `shutdown`, or goes on in the background. Items that were
/// kept for the next start are written in the end.
pub fn run(options: &CacheOptions, out: &mut Output) -> Result<()> {
    if options.daemon {
        return detach(options);
    }
    signals::block_shutdown_and_user_signals();
    let settings = options.settings()?;
    for address in settings.tcp.iter().filter(|a| !a.ip().is_loopback()) {
        let open =
            format!("the cache on `{address}` can be read and written by whoever reaches it");
        event!(OpenToAll, open);
    }
    raise_descriptors(&settings);
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let server = Server::start(settings, Arc::new(RealClock::new()), &RealRng, &disk)?;
    for note in &server.notes {
        event!(CacheNote, note);
    }
    if let Some(file) = &options.pid_file {
        write_pid(file, std::process::id())?;
    }
    if let Some(user) = &options.user {
        local::become_user(user)
            .map_err(|e| Error::from(e).context(format_args!("become user `{user}`")))?;
    }
    announce(&server, options, out)?;
    while signals::wait_for_signal(LOOK)?.is_none() {
        if server.shared.shutdown_wanted.load(Ordering::Relaxed) {
            break;
        }
    }
    let kept = server.end();
    if let Some(file) = &options.pid_file {
        remove(file);
    }
    if let Some(items) = kept? {
        event!(CacheKept, format_args!("{items} items are kept for the next cache"));
    }
    Ok(())
}

/// As many descriptors as clients may connect; with fewer, those that come too many wait.
fn raise_descriptors(settings: &Settings) {
    let wanted = settings.connections_max as u64 + DESCRIPTORS;
    match local::raise_descriptors(wanted) {
        Ok(limit) if limit < wanted => {
            let few = format!(
                "the machine allows {limit} descriptors, too few for `-c {}`: clients beyond them \
                 wait until others leave: raise `ulimit -n`",
                settings.connections_max
            );
            event!(FewDescriptors, few);
        }
        // It was not changed, and what there is may do.
        _ => {}
    }
}

fn announce(server: &Server, options: &CacheOptions, out: &mut Output) -> Result<()> {
    let list =
        |addresses: &[SocketAddr]| addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>();
    let (tcp, udp) = (list(server.tcp_addresses()), list(server.udp_addresses()));
    let text = || {
        let unix = options.unix.as_ref().map(|path| path.display().to_string());
        let places: Vec<String> = tcp.iter().cloned().chain(unix).collect();
        let udp = if udp.is_empty() { String::new() } else { format!(", UDP {}", udp.join(", ")) };
        format!("holdfast cache {VERSION} serves {}{udp}", places.join(", "))
    };
    out.line(text, || serde_json::json!({"event": "ready", "tcp": tcp, "udp": udp}))
}

#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
fn write_pid(file: &Path, pid: u32) -> Result<()> {
    std::fs::write(file, format!("{pid}\n"))
        .map_err(|e| Error::from(e).context(format_args!("write `{}`", file.display())))
}

#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
fn remove(file: &Path) {
    // Left over, it is overwritten by the next start.
    let _ = std::fs::remove_file(file);
}

/// Starts the same again in the background, and returns once it serves.
fn detach(_options: &CacheOptions) -> Result<()> {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    let doing = |e: std::io::Error| Error::from(e).context("start the cache in the background");
    let mut command = Command::new(std::env::current_exe().map_err(doing)?);
    for argument in std::env::args_os().skip(1) {
        let text = argument.to_string_lossy();
        if text == "--daemon" {
            continue;
        }
        match text.strip_prefix('-').filter(|t| !t.starts_with('-') && t.contains('d')) {
            // Flags without a value may share a dash with -d.
            Some(flags) if flags.bytes().all(|b| b"dvMCFA".contains(&b)) => {
                let rest: String = flags.chars().filter(|c| *c != 'd').collect();
                if !rest.is_empty() {
                    command.arg(format!("-{rest}"));
                }
            }
            _ => {
                command.arg(&argument);
            }
        }
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(doing)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(doing)?;
    }
    if line.is_empty() {
        return Err(Error::retry("start the cache in the background: it ended at once, see above"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn settings(line: &str) -> Result<Settings> {
        let words = ["holdfast", "cache"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            crate::cli::Command::Cache(options) => options.settings(),
            _ => unreachable!("it says cache"),
        }
    }

    #[test]
    fn memcached_command_lines_are_understood() {
        let line = "-d -m 128 -p 11311 -u memcache -l 127.0.0.1,[::1]:5 -P /tmp/x.pid -c 4096 -t 2 \
                    -I 2m -M -C -F -A -vv -R 50 -b 2048 -B ascii -o modern,idle_timeout=30 -U 11311";
        let settings = settings(line).unwrap();
        assert_eq!(settings.tcp, ["127.0.0.1:11311".parse().unwrap(), "[::1]:5".parse().unwrap()]);
        assert_eq!(settings.udp[0], "127.0.0.1:11311".parse().unwrap());
        assert_eq!((settings.memory_bytes, settings.item_bytes_max), (128 << 20, 2 << 20));
        assert_eq!((settings.connections_max, settings.threads), (4096, 2));
        assert!(!settings.evicts && !settings.cas && !settings.flush && settings.shutdown_command);
        assert_eq!((settings.verbose, settings.idle_timeout_s), (2, 30));
        let tls = "-Z -o ssl_chain_cert=c.pem,ssl_key=k.pem,ssl_verify_mode=2,ssl_ca_cert=a.pem \
                   -l 127.0.0.1,notls:127.0.0.1:9 -e /tmp/items";
        let tls = self::settings(tls).unwrap();
        assert_eq!((tls.tcp.len(), tls.tcp_plain[0].port()), (1, 9));
        assert_eq!(tls.file.as_deref(), Some(Path::new("/tmp/items")));
        let files = tls.tls.unwrap();
        assert_eq!(files.client_certificates, ClientCertificates::Required);
        assert_eq!((files.chain, files.key), ("c.pem".into(), "k.pem".into()));
        let default = self::settings("").unwrap();
        assert_eq!(default.tcp, ["127.0.0.1:11211".parse().unwrap()]);
        assert!(default.udp.is_empty(), "UDP is off by default");
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (line, why) in [
            ("-S", "SASL"),
            ("-Z", "ssl_chain_cert"),
            ("-Z -U 5 -o ssl_chain_cert=a,ssl_key=b", "UDP has none"),
            ("-o ssl_ciphers=x", "ssl_ciphers"),
            ("-B binary", "binary"),
            ("-k", "locked memory"),
            ("-o ext_path=/x:1g", "ext_path"),
            ("-I 2g", "1k to 1g"),
            ("-I 40m", "half of the memory"),
            ("-t 0", "1 to 256"),
            ("-p 0", "nothing to listen on"),
            ("-U 11211 -l 0.0.0.0", "--udp-beyond-loopback"),
            ("-a 9", "octal"),
            ("-Y /nonexistent/file", "/nonexistent/file"),
        ] {
            let message = settings(line).unwrap_err().message;
            assert!(message.contains(why), "{line}: {message}");
        }
    }
}
