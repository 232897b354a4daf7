//! The configuration: one typed struct, one TOML file, `HOLDFAST_` variables over it. Unknown
//! keys are refused; every key has its default and its sentence here, and nowhere else.

use holdfast_base::limits::CHUNK_BYTES;
use holdfast_base::node::StorageClass;
use holdfast_base::rates::Allowance;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use holdfast_command::files::SETTINGS;
use holdfast_env::Budget;
use holdfast_env::local::memory_bytes;
use holdfast_env::tls::{CertificateFiles, Certificates};
use holdfast_node::Trail;
use holdfast_s3::Domain;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whole segments of the log go, of 64 MiB each: with fewer than two there is nothing to give up.
const AUDIT_BYTES_MIN: u64 = 128 * MIB;
/// Two slabs: with less a ride would hardly be shared.
const VIEW_WINDOWS_MIN: u64 = MIB;

/// What a setting means that says what is written down.
fn trail(text: &str) -> Option<Trail> {
    match text {
        "off" => Some(Trail::Off),
        "admin" => Some(Trail::Admin),
        "data" => Some(Trail::Data),
        _ => None,
    }
}

/// The directory of a node's certificates in its data directory.
const TLS: &str = "tls";

macro_rules! config {
    ($($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:literal;)*) => {
        /// What a node can be told.
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $key: $type,)*
        }

        /// The defaults as a commented file.
        pub fn print_default() -> String {
            let mut text = String::from("# Holdfast's configuration, with every default.\n");
            $(
                text.push('\n');
                $( text.push_str(concat!("#", $doc, "\n")); )+
                text.push_str(concat!("# ", stringify!($key), " = ", $default, "\n"));
            )*
            text
        }

        const DEFAULTS: &str = concat!($(stringify!($key), " = ", $default, "\n"),*);
        const KEYS: &[&str] = &[$(stringify!($key)),*];
    };
}

config! {
    /// Host to listen on. Beyond loopback a node needs certificates (`holdfast cert`), and speaks
    /// TLS with other machines.
    listen: IpAddr = r#""127.0.0.1""#;
    /// Host by which other nodes reach this one; empty for `listen`, or where that is every address,
    /// for the system's name.
    announce: String = r#""""#;
    /// For tests and benchmarks alone: other machines may connect, and be joined, unencrypted where
    /// there are no certificates.
    insecure: bool = "false";
    /// Port of the native protocol; 0 switches TCP off and leaves the Unix socket.
    native_port: u16 = "7400";
    /// Port of metrics and health; 0 switches it off.
    http_port: u16 = "7480";
    /// Port of S3; 0 switches it off.
    s3_port: u16 = "9000";
    /// Blocks of the index of blobs' names that are kept in memory.
    s3_cache: String = r#""64M""#;
    /// Blocks of each disk view's rows that are kept in memory.
    view_cache: String = r#""64M""#;
    /// The last slabs of its rides that each disk view keeps for riders that are behind; at least
    /// 1M. Divided among its heads, 64M each at most.
    view_windows: String = r#""256M""#;
    /// Where objects go and what an acknowledgement promises: `disk` (synced) or `disk:memory`
    /// (written, not synced).
    s3_class: String = r#""disk""#;
    /// Objects asked for lately that are kept in memory: small ones, of the newest chunks; "0" for
    /// none.
    s3_hot: String = r#""64M""#;
    /// Domain below which buckets are host names: `BUCKET.DOMAIN`; empty for paths alone.
    s3_host: String = r#""""#;
    /// Further certificates (chains in PEM) of S3, HTTP and the cache for other names than the
    /// node's own, each with its key beside it: `NAME.key` for `NAME.pem`.
    s3_certificates: Vec<PathBuf> = "[]";
    /// The node's certificate and what leads from it to an authority, in PEM. This, `tls_key` and
    /// `tls_authorities` are named together; all empty for `node.pem`, `node.key` and `ca.pem` in
    /// the directory `tls` of the data directory, if it is there.
    tls_certificate: PathBuf = r#""""#;
    /// The certificate's key in PEM, which nobody but its owner may read.
    tls_key: PathBuf = r#""""#;
    /// Certificates in PEM of the authorities that other nodes' certificates are believed for.
    tls_authorities: PathBuf = r#""""#;
    /// Port of the cache, which speaks memcached's protocol; 0 switches it off.
    cache_port: u16 = "11211";
    /// What the cache may keep.
    cache_memory: String = r#""64M""#;
    /// Keys and values that all tables may have together: they are in memory; "0" for none, also of
    /// those that another node keeps.
    tables_memory: String = r#""1G""#;
    /// Which region this cluster is, for tables that are in several; the same on all of its nodes.
    region: u8 = "0";
    /// The other regions, by number: `{ 1 = { servers = "HOST:PORT", token = "FILE", cacert = "FILE" } }`.
    /// Servers are any of its nodes, several with commas; the token was made there
    /// (`holdfast token create NAME --allow region:NUMBER:rw`, the number of this region); cacert is its
    /// authority, for other machines.
    regions: BTreeMap<String, OtherRegion> = "{}";
    /// Port of DynamoDB's API, with the users of S3, whose port must be on; 0 switches it off.
    dynamodb_port: u16 = "0";
    /// Port of Scribe's protocol on 127.0.0.1, whose messages go to topics at once; 0 switches it off.
    /// Other machines send by `holdfast scribe agent`.
    scribe_port: u16 = "0";
    /// What becomes of messages at that port, by category: a file of TOML, as agents have it (`holdfast scribe
    /// agent --stores`); empty for all to their topics.
    scribe_stores: PathBuf = r#""""#;
    /// What the process may hold for its clients, all connections together: answers not yet taken,
    /// half-received bodies, reads under way; "0" for a sixteenth of the machine's memory, 64M to
    /// 2G.
    clients_memory: String = r#""0""#;
    /// What the audit trail (`holdfast audit`) is told: `admin` for what changes rights, nodes or
    /// settings of buckets; `data` for every change of files, objects and topics, too; or `off`.
    audit: String = r#""admin""#;
    /// How large the audit trail may become; then the older half of it goes. At least 128M.
    audit_size: String = r#""256M""#;
    /// Requests a second of each client with a name (a token's or a certificate's), all of its
    /// connections to this node together, and of each access key of S3 but administrators'; 0 for no
    /// limit. Beyond it a client is slowed, not refused.
    client_requests: u64 = "0";
    /// Bytes a second of each such client, requests and answers together; "0" for no limit.
    client_bytes: String = r#""0""#;
    /// Connections at once of each client with a name, at most half of what the port has; 0 for no
    /// limit.
    client_connections: u64 = "1024";
    /// Requests a second to S3 of each reader without a signature, by address (of IPv6 by /64); 0
    /// for no limit.
    anonymous_requests: u64 = "0";
    /// Bytes a second of each such reader; "0" for no limit.
    anonymous_bytes: String = r#""0""#;
    /// Size of the `dram` tier; "0" for none. Memory is taken as it is used.
    dram: String = r#""1G""#;
    /// Take the `dram` tier's memory at the start: a slower start, and no write waits for memory.
    dram_populate: bool = "false";
    /// Directories of further `disk` stores, one for each disk, beside the data directory's own.
    disks: Vec<PathBuf> = "[]";
    /// Label that replicas are spread over; empty for the system's name.
    host: String = r#""""#;
    /// Label of the rack; replicas go to different racks while there are enough.
    rack: String = r#""""#;
    /// Any node of the cluster that this node belongs to, `host:port`; empty for the first one.
    join: String = r#""""#;
    /// Brokers of Kafka's protocol that keep the log for all nodes, `kafka://HOST:PORT,...[/PREFIX]`; the
    /// same on each of them. Empty where the first node keeps it. `join` is whom a node borrows a
    /// snapshot of then, if it was away for long.
    log: String = r#""""#;
    /// How to speak to those brokers, in librdkafka's words: `{ "security.protocol" = "SSL" }`.
    log_client: BTreeMap<String, String> = "{}";
    /// Milliseconds without a sign of life after which a node counts as lost and its chunks are
    /// copied to others.
    lost_ms: u64 = "300000";
    /// Take orders that only a development cluster should, such as to cut connections.
    dev: bool = "false";
    /// Bytes a second that the background check of stored bytes may read, in all.
    scrub: String = r#""20M""#;
    /// What each disk store may use; "0" for its whole file system.
    capacity: String = r#""0""#;
    /// What the node's network link carries in each direction, bytes a second; "0" for a gigabit.
    /// Recovery keeps foreground and itself below a share of it.
    link: String = r#""0""#;
    /// What the link between the node's rack and the others carries in each direction, the same on
    /// all nodes of the rack; "0" where it carries what they can send. Recovery keeps all of them
    /// together below a share of it.
    rack_link: String = r#""0""#;
    /// What each of the node's disks carries, reading and writing together, bytes a second; "0"
    /// where its link carries less. Recovery keeps foreground and itself below a share of it.
    disk_throughput: String = r#""0""#;
    /// Capacity of new chunks, up to 64M: less only where a cluster is tried out in small.
    chunk: String = r#""64M""#;
    /// Keep one of the copies of what is written through this node in its own store, so that it
    /// reads without the network. Set false where all is written through few nodes: they would
    /// hold a copy of everything, and could take none of what another one loses.
    near: bool = "true";
    /// How the leader chooses who copies to whom: `dayu`, or `random` to compare it with.
    planner: String = r#""dayu""#;
    /// Milliseconds that a deleted file's bytes stay for readers that found it before.
    grace_ms: u64 = "5000";
    /// Hours after which a file that was begun, and that nobody writes or closes, is given up with
    /// its bytes (`holdfast fs unclosed`, `fs salvage`); 0 keeps it for ever.
    unclosed_hours: u64 = "168";
    /// Entries between two snapshots of a view: a start reads what came after the last one.
    snapshot_entries: u64 = "1000000";
    /// Threads that serve connections; 0 for one a core, at most four.
    reactors: usize = "0";
    /// Threads that wait for disks.
    workers: usize = "4";
    /// Poll for requests instead of sleeping: lower latency for a core that is always busy.
    spin: bool = "false";
}

/// How another region is reached.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherRegion {
    pub servers: String,
    pub token: PathBuf,
    #[serde(default)]
    pub cacert: PathBuf,
}

impl Default for Config {
    fn default() -> Config {
        Config::parse("", std::iter::empty()).expect("the defaults are tested")
    }
}

impl Config {
    /// Reads a file's text; `variables` are `HOLDFAST_KEY` settings that win over it.
    pub fn parse(text: &str, variables: impl Iterator<Item = (String, String)>) -> Result<Config> {
        Config::parse_over("", text, variables)
    }

    /// As [`Config::parse`], with other defaults for some keys.
    fn parse_over(
        defaults: &str,
        text: &str,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<Config> {
        let wrong = |e: String| Error::invalid(format!("read the configuration: {e}"));
        let parsed = |text: &str| text.parse::<toml::Table>().map_err(|e| wrong(e.to_string()));
        let mut table = parsed(DEFAULTS)?;
        table.extend(parsed(defaults)?);
        table.extend(parsed(text)?);
        for (name, value) in variables {
            let Some(key) = name.strip_prefix("HOLDFAST_").map(str::to_ascii_lowercase) else {
                continue;
            };
            if !KEYS.contains(&key.as_str()) {
                continue;
            }
            // `true`, `5` and `["/a"]` are TOML as they stand; everything else is text.
            let typed =
                format!("v = {value}").parse::<toml::Table>().ok().and_then(|mut t| t.remove("v"));
            table.insert(key, typed.unwrap_or(toml::Value::String(value)));
        }
        let config: Config = table.try_into().map_err(|e: toml::de::Error| wrong(e.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// The file in a data directory, if there is one.
    pub fn load(data: &Path) -> Result<Config> {
        Config::load_over("", data)
    }

    /// As [`Config::load`], with other defaults for some keys.
    #[expect(
        clippy::disallowed_methods,
        reason = "the configuration is read before there is a node"
    )]
    pub fn load_over(defaults: &str, data: &Path) -> Result<Config> {
        let path = data.join(SETTINGS);
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| {
                Error::invalid(format!("read `{}`: it is not UTF-8", path.display()))
            })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(Error::from(e).context(format_args!("read `{}`", path.display()))),
        };
        let parsed = Config::parse_over(defaults, &text, std::env::vars());
        parsed.map_err(|e| e.context(path.display()))
    }

    fn check_memory(&self) -> Result<()> {
        let least = holdfast_env::budget::BYTES_MIN;
        if (1..least).contains(&bytes("clients_memory", &self.clients_memory)?) {
            return Err(Error::invalid(format!(
                "`clients_memory = \"{}\"`: the largest requests need {} or more; or \"0\"",
                self.clients_memory,
                holdfast_base::units::format_bytes(least)
            )));
        }
        if bytes("view_windows", &self.view_windows)? < VIEW_WINDOWS_MIN {
            return Err(Error::invalid(format!(
                "`view_windows = \"{}\"`: a ride needs some slabs: set 1M or more",
                self.view_windows
            )));
        }
        Ok(())
    }

    /// `Invalid`, naming key and value, for the first setting that no node can run with.
    pub fn check(&self) -> Result<()> {
        for (key, size) in [
            ("audit_size", &self.audit_size),
            ("clients_memory", &self.clients_memory),
            ("client_bytes", &self.client_bytes),
            ("anonymous_bytes", &self.anonymous_bytes),
            ("dram", &self.dram),
            ("scrub", &self.scrub),
            ("capacity", &self.capacity),
            ("cache_memory", &self.cache_memory),
            ("tables_memory", &self.tables_memory),
            ("s3_cache", &self.s3_cache),
            ("view_cache", &self.view_cache),
            ("view_windows", &self.view_windows),
            ("s3_hot", &self.s3_hot),
            ("link", &self.link),
            ("rack_link", &self.rack_link),
            ("disk_throughput", &self.disk_throughput),
            ("chunk", &self.chunk),
        ] {
            bytes(key, size)?;
        }
        self.check_memory()?;
        let named = [&self.tls_certificate, &self.tls_key, &self.tls_authorities];
        let names = named.iter().filter(|path| !path.as_os_str().is_empty()).count();
        if !matches!(names, 0 | 3) {
            return Err(Error::invalid(
                "`tls_certificate`, `tls_key` and `tls_authorities` belong together: name all three, or none",
            ));
        }
        if self.disks.iter().any(|disk| disk.as_os_str().is_empty()) {
            return Err(Error::invalid(
                "`disks`: one of them is \"\", which is no directory: name it, or leave it out",
            ));
        }
        if !self.s3_host.is_empty() {
            Domain::new(&self.s3_host).map_err(|e| e.context("`s3_host`"))?;
        }
        if let Err(why) = self.s3_class.parse::<StorageClass>() {
            return Err(Error::invalid(format!("`s3_class = \"{}\"`: {why}", self.s3_class)));
        }
        self.check_regions()?;
        if self.dynamodb_port != 0 && self.s3_port == 0 {
            return Err(Error::invalid(format!(
                "`dynamodb_port = {}`: its users are those of S3, which is off: set `s3_port`, too",
                self.dynamodb_port
            )));
        }
        if !(MIB..=CHUNK_BYTES).contains(&self.chunk_bytes()) {
            return Err(Error::invalid(format!("`chunk = \"{}\"`: use 1M to 64M", self.chunk)));
        }
        if trail(&self.audit).is_none() {
            return Err(Error::invalid(format!(
                "`audit = \"{}\"`: use admin, data or off",
                self.audit
            )));
        }
        if self.audit_bytes() < AUDIT_BYTES_MIN {
            return Err(Error::invalid(format!(
                "`audit_size = \"{}\"`: use 128M or more",
                self.audit_size
            )));
        }
        if !["dayu", "random"].contains(&self.planner.as_str()) {
            return Err(Error::invalid(format!(
                "`planner = \"{}\"`: use dayu or random",
                self.planner
            )));
        }
        if self.workers == 0 || self.workers > 256 {
            return Err(Error::invalid(format!("`workers = {}`: use 1 to 256", self.workers)));
        }
        if self.reactors > 64 {
            return Err(Error::invalid(format!("`reactors = {}`: use at most 64", self.reactors)));
        }
        Ok(())
    }

    fn check_regions(&self) -> Result<()> {
        for (number, region) in &self.regions {
            let wrong = |why: &str| {
                Err(Error::invalid(format!("`regions.{}`: {why}", number.escape_debug())))
            };
            // `01` would be 1 once more, and one of the two would be nobody.
            if number.parse::<u8>().map_or(true, |parsed| parsed.to_string() != *number) {
                return wrong("it is no number: number the regions from 0, without zeros in front");
            }
            if region.servers.split(',').any(|server| server.trim().is_empty()) {
                return wrong("a server is empty: write `servers = \"HOST:PORT\"`");
            }
            if region.token.as_os_str().is_empty() {
                return wrong("it has no token: make one there (`holdfast token create`)");
            }
            let away = region.servers.split(',').any(|server| !is_loopback(server.trim()));
            if away && region.cacert.as_os_str().is_empty() && !self.insecure {
                return wrong(
                    "it leads to other machines, and without that region's authority everything would go there unencrypted: name its `cacert`",
                );
            }
        }
        Ok(())
    }

    /// `Invalid` where bytes would leave this machine and there are no certificates.
    fn check_open(&self) -> Result<()> {
        let doing = match (self.listen.is_loopback(), is_loopback(&self.join)) {
            _ if self.insecure => return Ok(()),
            (true, true) => return Ok(()),
            (false, _) => format!("listen on `{}`", self.listen),
            (true, false) => format!("join the cluster at `{}`", self.join),
        };
        Err(Error::invalid(format!(
            "{doing}: it leads to other machines, and without certificates everything would go there unencrypted: make some (`holdfast cert init`, `holdfast cert node`) and put `node.pem`, `node.key` and `ca.pem` into the directory `{TLS}` of the data directory, or stay on 127.0.0.1"
        )))
    }

    /// What the node shows and believes on its ports; nothing where it has no certificates, which
    /// is `Invalid` where other machines reach it.
    pub fn certificates(&self, data: &Path) -> Result<Option<Arc<Certificates>>> {
        let own = data.join(TLS);
        let files = match self.tls_certificate.as_os_str().is_empty() {
            false => {
                [&self.tls_certificate, &self.tls_key, &self.tls_authorities].map(Clone::clone)
            }
            true if own.is_dir() => ["node.pem", "node.key", "ca.pem"].map(|name| own.join(name)),
            true if self.s3_certificates.is_empty() => {
                self.check_open()?;
                return Ok(None);
            }
            true => {
                return Err(Error::invalid(format!(
                    "use `s3_certificates`: they are beside the node's own certificate, and there is \
                     none: name it with `tls_certificate`, or put it into `{}`",
                    own.display()
                )));
            }
        };
        let [chain, key, authorities] = files;
        let more = self.s3_certificates.clone();
        let files = CertificateFiles { chain, key, authorities, more };
        Certificates::load(&files).map(Some)
    }

    /// What `clients_memory` comes to; never 0.
    pub fn clients_bytes(&self) -> u64 {
        match bytes("clients_memory", &self.clients_memory).unwrap_or(0) {
            0 => Budget::default_bytes(memory_bytes()),
            bytes => bytes,
        }
    }

    /// What `audit` says.
    pub fn trail(&self) -> Trail {
        trail(&self.audit).unwrap_or(Trail::Admin)
    }

    /// Bytes of `audit_size`.
    pub fn audit_bytes(&self) -> u64 {
        bytes("audit_size", &self.audit_size).unwrap_or(0)
    }

    /// What a client with a name may take, where the port has so many places.
    pub fn client_allowance(&self, places: usize) -> Allowance {
        let half = (places as u64 / 2).max(1);
        Allowance {
            requests: self.client_requests,
            bytes: bytes("client_bytes", &self.client_bytes).unwrap_or(0),
            // One client is not to take all places, also where there are few.
            connections: self.client_connections.min(half),
        }
    }

    /// What a reader without a signature may take.
    pub fn anonymous_allowance(&self) -> Allowance {
        Allowance {
            requests: self.anonymous_requests,
            bytes: bytes("anonymous_bytes", &self.anonymous_bytes).unwrap_or(0),
            connections: 0,
        }
    }

    /// Size of the memory tier; 0 for none.
    pub fn dram_bytes(&self) -> u64 {
        bytes("dram", &self.dram).unwrap_or(0)
    }

    /// Bytes of `cache_memory`.
    pub fn cache_bytes(&self) -> u64 {
        bytes("cache_memory", &self.cache_memory).unwrap_or(0)
    }

    /// Bytes of `tables_memory`.
    pub fn tables_bytes(&self) -> u64 {
        bytes("tables_memory", &self.tables_memory).unwrap_or(0)
    }

    /// Bytes of `view_cache`.
    pub fn view_cache_bytes(&self) -> u64 {
        bytes("view_cache", &self.view_cache).unwrap_or(0)
    }

    /// Bytes of `view_windows`.
    pub fn view_windows_bytes(&self) -> u64 {
        bytes("view_windows", &self.view_windows).unwrap_or(VIEW_WINDOWS_MIN)
    }

    /// Bytes of `s3_cache`.
    pub fn s3_cache_bytes(&self) -> u64 {
        bytes("s3_cache", &self.s3_cache).unwrap_or(0)
    }

    /// The storage class of objects, as `s3_class` says it.
    pub fn s3_class(&self) -> StorageClass {
        self.s3_class.parse().unwrap_or(StorageClass::DEFAULT)
    }

    /// `s3_host`, if there is one.
    pub fn s3_domain(&self) -> Option<Domain> {
        Domain::new(&self.s3_host).ok()
    }

    /// Bytes of `s3_hot`; 0 for none.
    pub fn s3_hot_bytes(&self) -> u64 {
        bytes("s3_hot", &self.s3_hot).unwrap_or(0)
    }

    /// Bytes a second; 0 for no check.
    pub fn scrub_bytes(&self) -> u64 {
        bytes("scrub", &self.scrub).unwrap_or(0)
    }

    /// Of each disk store; 0 for its whole file system.
    pub fn capacity_bytes(&self) -> u64 {
        bytes("capacity", &self.capacity).unwrap_or(0)
    }

    /// Bytes a second each way; 0 for a link that limits nobody.
    pub fn rack_link_bytes(&self) -> u64 {
        bytes("rack_link", &self.rack_link).unwrap_or(0)
    }

    /// Bytes a second, reading and writing together; 0 for a disk that does not limit.
    pub fn disk_throughput_bytes(&self) -> u64 {
        bytes("disk_throughput", &self.disk_throughput).unwrap_or(0)
    }

    /// Bytes a second each way; 0 for a gigabit.
    pub fn link_bytes(&self) -> u64 {
        bytes("link", &self.link).unwrap_or(0)
    }

    /// Capacity of new chunks, 1 to 64 MiB.
    pub fn chunk_bytes(&self) -> u64 {
        bytes("chunk", &self.chunk).unwrap_or(CHUNK_BYTES)
    }

    /// Where other nodes reach a port.
    pub fn announced(&self, port: u16) -> Option<String> {
        let listens = self.address(port)?;
        Some(match self.announce.as_str() {
            "" if !self.listen.is_unspecified() => listens.to_string(),
            "" => format!("{}:{port}", holdfast_env::local::host_name()),
            host if host.contains(':') => format!("[{host}]:{port}"),
            host => format!("{host}:{port}"),
        })
    }

    /// Where a port is listened on; nothing for port 0, which switches it off.
    pub fn address(&self, port: u16) -> Option<SocketAddr> {
        (port != 0).then(|| SocketAddr::new(self.listen, port))
    }
}

/// Of `HOST:PORT`, or of nothing. A name other than this may lead anywhere.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.is_empty()
        || host == "localhost"
        || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn bytes(key: &str, text: &str) -> Result<u64> {
    holdfast_base::units::parse_bytes(text)
        .map_err(|e| Error::invalid(format!("`{key} = \"{text}\"`: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text, std::iter::empty())
    }

    #[test]
    fn the_printed_default_is_the_default() {
        let uncommented: String = print_default()
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| line.contains(" = ") && KEYS.contains(&line.split(' ').next().unwrap()))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(uncommented.lines().count(), KEYS.len(), "{uncommented}");
        assert_eq!(
            format!("{:?}", parse(&uncommented).unwrap()),
            format!("{:?}", Config::default())
        );
        assert_eq!(Config::default().dram_bytes(), 1 << 30);
    }

    #[test]
    fn clients_have_no_rates_unless_said_and_never_all_places() {
        let of = |text: &str, places| parse(text).unwrap().client_allowance(places);
        let usual = Allowance { connections: 1024, ..Allowance::default() };
        assert_eq!(of("", 16_384), usual);
        assert_eq!(of("", 300).connections, 150);
        assert_eq!(of("client_connections = 0", 300).connections, 0);
        let said = of("client_requests = 7\nclient_bytes = \"1M\"", 16_384);
        assert_eq!((said.requests, said.bytes), (7, 1 << 20));
        assert_eq!(Config::default().anonymous_allowance(), Allowance::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("prot = 1", "unknown field `prot`"),
            ("dram = \"lots\"", "`dram"),
            ("clients_memory = \"1M\"", "64"),
            ("view_windows = \"1K\"", "set 1M or more"),
            ("client_bytes = \"much\"", "`client_bytes"),
            ("workers = 0", "1 to 256"),
            ("link = \"fast\"", "`link"),
            ("chunk = \"65M\"", "1M to 64M"),
            ("native_port = 70000", "native_port"),
            ("listen", "configuration"),
            ("tls_key = \"a.key\"", "belong together"),
            ("s3_host = \"10.0.0.1\"", "`s3_host`"),
            ("disks = [\"/a\", \"\"]", "`disks`"),
        ] {
            let message = parse(text).unwrap_err().message;
            assert!(message.contains(why), "{text}: {message}");
        }
        for join in ["", "localhost:7400", "127.0.0.2:7400", "[::1]:7400"] {
            assert!(parse(&format!("join = \"{join}\"")).is_ok(), "{join}");
        }
    }

    #[test]
    fn ports_beyond_loopback_need_certificates() {
        let data = std::env::temp_dir().join(format!("holdfast-config-{}", std::process::id()));
        let refused = |config: &Config| config.certificates(&data).err().unwrap().message;
        for text in
            ["listen = \"0.0.0.0\"", "join = \"10.1.2.3:7400\"", "join = \"elsewhere:7400\""]
        {
            assert!(refused(&parse(text).unwrap()).contains("holdfast cert init"), "{text}");
            let insecure = parse(&format!("{text}\ninsecure = true")).unwrap();
            assert!(insecure.certificates(&data).unwrap().is_none());
        }
        assert!(Config::default().certificates(&data).unwrap().is_none());
        let more = parse("s3_certificates = [\"/a.pem\"]").unwrap();
        assert!(refused(&more).contains("tls_certificate"));
        let named = "tls_certificate = \"/a/b.pem\"\ntls_key = \"/c\"\ntls_authorities = \"/d\"";
        assert!(refused(&parse(named).unwrap()).contains("/a/b.pem"));
    }

    #[test]
    fn variables_win_over_the_file() {
        let variables =
            [("HOLDFAST_DRAM", "64M"), ("HOLDFAST_SPIN", "true"), ("HOLDFAST_SERVER", "x")];
        let variables = variables.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let config = Config::parse("dram = \"2G\"", variables.into_iter()).unwrap();
        assert_eq!((config.dram_bytes(), config.spin), (64 << 20, true));
    }
}
