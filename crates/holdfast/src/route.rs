//! `holdfast route`: reads the options or the file of routes, and runs the router until it is
//! told to end. Decides nothing about requests.

use clap::Args;
use holdfast_base::{Error, Result};
use holdfast_cache_client::fleet;
use holdfast_cache_client::route::{PoolPlan, RoutePlan, Server, Settings, VERSION};
use holdfast_cache_client::{Hashing, Member, Transport};
use holdfast_command::files::read_text;
use holdfast_command::output::Output;
use holdfast_env::tls::TlsTrust;
use holdfast_env::{RealClock, event, local, signals};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLE: &str = "\
A file of routes:

    listen = \"127.0.0.1:11311\"
    default = \"main\"                    # the pool of keys that no prefix is for
    gutter_expiry = 10                  # seconds that items live in a gutter pool

    [pools.main]
    servers = [\"10.0.0.1:11211\", \"10.0.0.2:11211 2\"]   # a weight behind it, or not
    gets = \"udp\"                        # or \"tcp\"
    hashing = \"ketama_weighted\"         # or \"ketama\", as libmemcached calls them
    gutter = \"spare\"                    # has the keys of dead servers meanwhile
    warm_from = \"old\"                   # is asked for what this pool misses
    server_lease = \"main\"               # servers count by leases of `invalidate run --to main`

    [pools.spare]
    servers = [\"10.0.1.1:11211\"]

    [pools.old]
    servers = [\"10.0.2.1:11211\", \"10.0.2.2:11211\"]

    [prefixes]
    \"session:\" = \"spare\"               # the longest prefix decides";

/// `holdfast route`.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = EXAMPLE)]
pub struct RouteOptions {
    /// Read pools and routes from this TOML file; --help shows one
    #[arg(long, value_name = "FILE", conflicts_with = "servers")]
    pub config: Option<PathBuf>,
    /// One pool of these servers, HOST:PORT or `HOST:PORT WEIGHT`, with commas
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', required_unless_present = "config")]
    pub servers: Vec<String>,
    /// Servers that have the keys of dead ones meanwhile
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', requires = "servers")]
    pub gutter: Vec<String>,
    /// Servers that are asked for what the pool misses
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', requires = "servers")]
    pub warm_from: Vec<String>,
    /// Servers count by the leases of `holdfast invalidate run --to POOL --server-lease`: of one without, nothing is
    /// read, and nothing is stored there
    #[arg(long, value_name = "POOL", requires = "servers")]
    pub server_lease: Option<String>,
    /// Send gets over UDP
    #[arg(long, requires = "servers")]
    pub udp: bool,
    /// The servers speak TLS: `ssl_ca_cert=FILE` says whom to believe, `ssl_chain_cert=FILE` and
    /// `ssl_key=FILE` what to show them
    #[arg(
        short = 'o',
        long = "extended",
        value_delimiter = ',',
        value_name = "NAME=FILE",
        requires = "servers"
    )]
    pub extended: Vec<String>,
    /// How keys are spread: ketama_weighted, or ketama
    #[arg(long, default_value = "ketama_weighted", value_name = "NAME")]
    pub hashing: String,
    /// Address to listen on, HOST, or HOST:PORT [default: the file's `listen`, or 127.0.0.1]
    #[arg(short = 'l', long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Port to listen on, if ADDR has none; -1 for any that is free
    #[arg(
        short = 'p',
        long,
        default_value_t = 11311,
        allow_negative_numbers = true,
        value_name = "PORT"
    )]
    pub port: i32,
    /// Threads
    #[arg(short = 't', long, default_value_t = 2, value_name = "N")]
    pub threads: usize,
    /// Connections of clients
    #[arg(short = 'c', long, default_value_t = 4096, value_name = "N")]
    pub connections: usize,
    /// Longest value, as the servers' -I
    #[arg(short = 'I', long, default_value = "1M", value_name = "BYTES")]
    pub value: String,
    /// Milliseconds after which a server that does not answer over TCP is taken for dead
    #[arg(long, default_value_t = 500, value_name = "MS")]
    pub patience: u64,
    /// How often a get that was lost over UDP is sent again before it is a miss
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub retries: u8,
    /// Check the configuration, and end
    #[arg(long)]
    pub check: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<String>,
    default: String,
    #[serde(default = "gutter_expiry")]
    gutter_expiry: u32,
    pools: BTreeMap<String, FilePool>,
    #[serde(default)]
    prefixes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePool {
    servers: Vec<String>,
    #[serde(default = "hashing")]
    hashing: String,
    #[serde(default = "gets")]
    gets: String,
    gutter: Option<String>,
    warm_from: Option<String>,
    server_lease: Option<String>,
    ssl_ca_cert: Option<PathBuf>,
    ssl_chain_cert: Option<PathBuf>,
    ssl_key: Option<PathBuf>,
}

fn gutter_expiry() -> u32 {
    10
}

fn hashing() -> String {
    "ketama_weighted".to_owned()
}

fn gets() -> String {
    "tcp".to_owned()
}

fn members(servers: &[String]) -> Result<Vec<Member>> {
    servers.iter().map(|server| Member::parse(server)).collect()
}

/// What is said of TLS, as memcached's options call it: `ssl_ca_cert` is what makes it TLS.
fn trust(
    authorities: Option<PathBuf>,
    chain: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<TlsTrust>> {
    let wrong = |why: &str| Err(Error::invalid(format!("speak TLS to servers: {why}")));
    let shows = match (chain, key) {
        (None, None) => None,
        (Some(chain), Some(key)) => Some((chain, key)),
        _ => return wrong("`ssl_chain_cert` and `ssl_key` belong together: name both, or none"),
    };
    match authorities {
        Some(authorities) => Ok(Some(TlsTrust { authorities, shows })),
        None if shows.is_some() => wrong("name whom to believe with `ssl_ca_cert`, too"),
        None => Ok(None),
    }
}

impl FilePool {
    fn plan(self, name: String) -> Result<PoolPlan> {
        let gets = match self.gets.as_str() {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            other => {
                return Err(Error::invalid(format!(
                    "plan routes: `gets = \"{other}\"` of pool `{name}`: give \"tcp\" or \"udp\""
                )));
            }
        };
        let doing = |e: Error| e.context(format_args!("plan pool `{name}`"));
        Ok(PoolPlan {
            servers: members(&self.servers).map_err(doing)?,
            hashing: Hashing::parse(&self.hashing).map_err(doing)?,
            gets,
            gutter: self.gutter,
            warm_from: self.warm_from,
            server_lease: self.server_lease,
            tls: trust(self.ssl_ca_cert, self.ssl_chain_cert, self.ssl_key).map_err(doing)?,
            name,
        })
    }
}

/// The plan of a file's text, and where it says to listen.
fn plan_of(text: &str) -> Result<(RoutePlan, Option<String>)> {
    let file: File = toml::from_str(text).map_err(|e| Error::invalid(e.to_string().trim_end()))?;
    if file.gutter_expiry == 0 {
        return Err(Error::invalid(
            "`gutter_expiry = 0` would keep old items for good: give 1 or more seconds",
        ));
    }
    let pools =
        file.pools.into_iter().map(|(name, pool)| pool.plan(name)).collect::<Result<_>>()?;
    let prefixes = file.prefixes.into_iter().collect();
    Ok((RoutePlan::new(pools, prefixes, &file.default, file.gutter_expiry)?, file.listen))
}

/// The plan of a file.
pub fn plan_from(path: &Path) -> Result<RoutePlan> {
    let doing = |e: Error| e.context(format_args!("read routes from `{}`", path.display()));
    Ok(plan_of(&read_text(path).map_err(doing)?).map_err(doing)?.0)
}

impl RouteOptions {
    fn plan(&self) -> Result<(RoutePlan, Option<String>)> {
        if let Some(path) = &self.config {
            let doing = |e: Error| e.context(format_args!("read routes from `{}`", path.display()));
            return plan_of(&read_text(path).map_err(doing)?).map_err(doing);
        }
        let tls = self.tls()?;
        let pool = |name: &str, servers: &[String]| -> Result<PoolPlan> {
            Ok(PoolPlan {
                tls: tls.clone(),
                name: name.to_owned(),
                servers: members(servers)?,
                hashing: Hashing::parse(&self.hashing)?,
                ..PoolPlan::default()
            })
        };
        let mut main = pool("main", &self.servers)?;
        main.gets = if self.udp { Transport::Udp } else { Transport::Tcp };
        main.server_lease = self.server_lease.clone();
        let mut pools = Vec::new();
        for (name, servers, names) in [
            ("gutter", &self.gutter, &mut main.gutter),
            ("warm", &self.warm_from, &mut main.warm_from),
        ] {
            if !servers.is_empty() {
                pools.push(pool(name, servers)?);
                *names = Some(name.to_owned());
            }
        }
        pools.push(main);
        Ok((RoutePlan::new(pools, Vec::new(), "main", gutter_expiry())?, None))
    }

    fn tls(&self) -> Result<Option<TlsTrust>> {
        let (mut authorities, mut chain, mut key) = (None, None, None);
        for option in &self.extended {
            let place = match option.split_once('=') {
                Some(("ssl_ca_cert", _)) => &mut authorities,
                Some(("ssl_chain_cert", _)) => &mut chain,
                Some(("ssl_key", _)) => &mut key,
                _ => {
                    return Err(Error::unsupported(format!(
                        "`-o {option}` is not supported; see `holdfast route --help`"
                    )));
                }
            };
            *place = option.split_once('=').map(|(_, file)| PathBuf::from(file));
        }
        trust(authorities, chain, key)
    }

    fn addresses(&self, listen: Option<String>) -> Result<Vec<SocketAddr>> {
        let text = self.listen.clone().or(listen).unwrap_or_else(|| "127.0.0.1".to_owned());
        let port = u16::try_from(self.port.max(0))
            .map_err(|_| Error::invalid(format!("`-p {}`: give 1 to 65535", self.port)))?;
        let found = match text.parse::<SocketAddr>() {
            Ok(address) => Ok(vec![address]),
            Err(_)
                if text.contains(':')
                    && !text.starts_with(':')
                    && text.parse::<std::net::IpAddr>().is_err() =>
            {
                text.to_socket_addrs().map(Iterator::collect)
            }
            Err(_) => {
                (text.trim_matches(['[', ']']), port).to_socket_addrs().map(Iterator::collect)
            }
        };
        found.map_err(|e| {
            Error::invalid(format!(
                "listen on `{text}`: {e}: give HOST or HOST:PORT of this machine"
            ))
        })
    }

    fn settings(&self, listen: Option<String>) -> Result<Settings> {
        if !(1..=256).contains(&self.threads) {
            return Err(Error::invalid(format!("`-t {}`: give 1 to 256 threads", self.threads)));
        }
        let value = holdfast_base::units::parse_bytes(&self.value).map_err(Error::invalid)?;
        if !(1..=1 << 30).contains(&value) {
            return Err(Error::invalid(format!("`-I {}`: give at most 1G", self.value)));
        }
        let fleet = fleet::Settings {
            patience_ns: self.patience.clamp(1, 3_600_000) * 1_000_000,
            retries: self.retries,
            // Of one request's keys, or one long value.
            answer_bytes_max: (2 * value as usize).max(fleet::Settings::default().answer_bytes_max),
            ..fleet::Settings::default()
        };
        Ok(Settings {
            listen: self.addresses(listen)?,
            threads: self.threads,
            connections_max: self.connections,
            value_bytes_max: value as usize,
            fleet,
        })
    }
}

/// Checks the routes, and unless that was all serves them until a signal.
pub fn run(options: &RouteOptions, out: &mut Output) -> Result<()> {
    signals::block_shutdown_signals();
    let (plan, listen) = options.plan()?;
    let settings = options.settings(listen)?;
    let (pools, servers) = (plan.pools.len(), plan.members.len());
    if options.check {
        return out.line(
            || format!("the routes are valid: {pools} pools, {servers} servers"),
            || serde_json::json!({"valid": true, "pools": pools, "servers": servers}),
        );
    }
    for address in settings.listen.iter().filter(|a| !a.ip().is_loopback()) {
        let open =
            format!("the caches behind `{address}` can be read and written by whoever reaches it");
        event!(OpenToAll, open);
    }
    // Clients', servers' and a few more; with less, those that come too many wait.
    let _ = local::raise_descriptors(local::DESCRIPTORS_WANTED.max(2 * options.connections as u64));
    let server = Server::start(plan, settings, Arc::new(RealClock::new()))?;
    let addresses: Vec<String> = server.addresses().iter().map(SocketAddr::to_string).collect();
    out.line(
        || {
            let places = addresses.join(", ");
            format!("holdfast route {VERSION} serves {places} from {servers} servers in {pools} pools")
        },
        || serde_json::json!({"event": "ready", "tcp": addresses, "pools": pools, "servers": servers}),
    )?;
    signals::wait_for_shutdown()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_help_shows_is_valid() {
        let text: Vec<&str> = EXAMPLE.lines().skip(1).map(str::trim_start).collect();
        let (plan, listen) = plan_of(&text.join("\n")).unwrap();
        assert_eq!((plan.pools.len(), plan.members.len()), (3, 5));
        assert_eq!(listen.as_deref(), Some("127.0.0.1:11311"));
        assert_eq!(plan.pools[plan.pool(b"session:1")].name, "spare");
        assert_eq!(plan.leases, [b"holdfast:invalidate:main"]);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let wrong = |text: &str, names: &[&str]| {
            let message = plan_of(text).err().unwrap().message;
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        };
        let main = "default = \"main\"\n[pools.main]\nservers = [\"a:1\"]\n";
        wrong("", &["missing field", "default"]);
        wrong("default = \"main\"\n[pools]\n", &["`main`", "there is not"]);
        wrong(&format!("gutter_expiry = 0\n{main}"), &["gutter_expiry"]);
        wrong(&format!("{main}gutter = \"x\"\n"), &["`gutter` of pool `main`", "`x`"]);
        wrong(&format!("{main}gets = \"sctp\"\n"), &["sctp", "udp"]);
        wrong(&format!("{main}hashing = \"crc\"\n"), &["pool `main`", "crc", "ketama"]);
        wrong(&format!("{main}ssl_key = \"k\"\n"), &["pool `main`", "belong together"]);
        wrong(&format!("{main}ssl_ca_cert = \"/none.pem\"\n"), &["pool `main`", "/none.pem"]);
        wrong(&format!("{main}gets = \"udp\"\nssl_ca_cert = \"c\"\n"), &["UDP has no TLS"]);
        wrong(&format!("{main}server_lease = \"\"\n"), &["`server_lease`", "pool `main`", "--to"]);
        wrong(&format!("{main}server_lease = \"a b\"\n"), &["`a b`", "--to"]);
        wrong(&format!("{main}color = \"red\"\n"), &["unknown field", "color"]);
        wrong(&main.replace("a:1", "a:99999"), &["a:99999", "65535"]);
        assert!(plan_of(main).is_ok());
    }
}
