//! `holdfast view run ... --data DIR`: a view as a process of its own. It is a node of the cluster that
//! keeps views alone: it follows the log, answers and is ridden at its own address, and has no store.
//! Here is what comes before the node: which view the directory is for, whom to follow, where to listen.

use crate::cli::Cli;
use crate::config::Config;
use crate::up::{self, Start};
use clap::Args;
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::Encode;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, ClientOptions, Endpoint, Secret, Secrets};
use holdfast_command::files::{AUTHORITIES, SOCKET};
use holdfast_command::output::Output;
use holdfast_command::{secrets, supervisor};
use holdfast_env::{local, signals};
use holdfast_node::Identity;
use holdfast_ride::describe;
use holdfast_wire::view::{ViewKind, ViewName};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// In the data directory: which view the process keeps, in words that `cat` shows.
pub const FILE: &str = "VIEW";
/// What such a process does unless the settings in its directory say otherwise: beside a node of the same
/// machine no port is in the way.
const DEFAULTS: &str = "native_port = 0\nhttp_port = 0\n";

/// Where the search for a free port begins, for each directory somewhere in a range: processes that are
/// started together find different ones.
const FREE_FROM: u16 = 7500;
const FREE_RANGE: u32 = 1000;

/// How a view runs as a process of its own.
#[derive(Args, Debug)]
pub struct Alone {
    /// Run it in a process of its own, until interrupted: it follows the cluster of the node, keeps the
    /// view here, and no chunks
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where that process listens; beyond loopback only with certificates (`holdfast cert`)
    /// [default: 127.0.0.1, at a port that is free at its first start]
    #[arg(long, value_name = "HOST:PORT", requires = "data", value_parser = listens)]
    listen: Option<Listen>,
}

/// A host, and a port if one was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen {
    host: IpAddr,
    port: Option<u16>,
}

fn listens(text: &str) -> std::result::Result<Listen, String> {
    let whole = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    let whole = whole.map(|address| Listen { host: address.ip(), port: Some(address.port()) });
    let host = || text.parse().ok().map(|host| Listen { host, port: None });
    whole.or_else(host).ok_or_else(|| {
        "write an IP address, with a port or without one: e.g. 127.0.0.1:7500".to_owned()
    })
}

impl Alone {
    /// Where the process keeps everything; none where the node that is asked is to run the view.
    pub fn data(&self) -> Option<&Path> {
        self.data.as_deref()
    }

    /// Runs the view until a signal ends the process in order.
    pub fn run(
        &self,
        cli: &Cli,
        name: &ViewName,
        connect: &dyn Fn() -> Result<Client>,
        out: &mut Output,
    ) -> Result<()> {
        let Some(data) = self.data() else { return Err(Error::bug("run a view: without --data")) };
        // Before any thread starts, so that only the one that waits for them gets signals.
        signals::block_shutdown_signals();
        let before = read(data)?;
        check(before.as_ref(), data, name)?;
        let authorities = data.join(AUTHORITIES);
        if cli.cacert.is_none() && authorities.exists() {
            // Whom its node believes, it believes when it asks.
            secrets::trust(Some(&authorities))?;
        }
        let (follows, asked) = whom_to_follow(cli, connect, before.as_ref())?;
        if before.is_none() {
            // Before it is a node that somebody has to clear away.
            asked?.view(&name.topic).catalog()?;
        }
        let secret = match &cli.secret {
            Some(file) => Some(file.clone()),
            None if data.join(secrets::FILE).exists() => None,
            None => secret_of(cli, &follows),
        };
        let mut config = Config::load_over(DEFAULTS, data)?;
        let listens = self.listen.unwrap_or(Listen { host: config.listen, port: None });
        config.listen = listens.host;
        config.native_port = match (listens.port, config.native_port, before.as_ref()) {
            (Some(port), ..) => port,
            (None, 0, Some(before)) if supervisor::is_free(before.port) => before.port,
            (None, 0, _) => free_port(data)?,
            (None, port, _) => port,
        };
        // What others may ask a node for, it has no stores for.
        (config.s3_port, config.cache_port, config.dram) = (0, 0, "0".to_owned());
        (config.scribe_port, config.dynamodb_port) = (0, 0);
        config.tables_memory = "0".to_owned();
        config.disks = Vec::new();
        config.join = follows.clone();
        config.check()?;
        let (view, number) = titled(name);
        let place = Place { view, number, port: config.native_port, follows };
        up::serve(
            &Start { data, config, secret: secret.as_deref(), alone: Some((name, &place)) },
            out,
        )
    }
}

fn free_port(data: &Path) -> Result<u16> {
    let from = crc32c(data.as_os_str().as_encoded_bytes()) % FREE_RANGE;
    let mut ports = FREE_FROM + from as u16..=u16::MAX;
    let none = || Error::retry("listen: no port is free: name one with --listen HOST:PORT");
    ports.find(|port| supervisor::is_free(*port)).ok_or_else(none)
}

/// What is written down in the directory of such a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The view, as people say it, and a number that tells apart what looks alike.
    view: String,
    number: u32,
    /// Where it listened last.
    port: u16,
    /// The node that it followed last.
    pub follows: String,
}

impl Place {
    fn parse(text: &str) -> Option<Place> {
        let mut lines = text.lines();
        let mut line = |what: &str| lines.next()?.strip_prefix(what);
        let view = line("view ")?.to_owned();
        let number = u32::from_str_radix(line("number ")?, 16).ok()?;
        let (port, follows) = (line("port ")?.parse().ok()?, line("follows ")?.to_owned());
        Some(Place { view, number, port, follows })
    }

    fn is_of(&self, view: &str, number: u32) -> bool {
        self.view == view && self.number == number
    }

    /// Makes the directory this view's, or finds that it is. Called by whoever has the directory's lock.
    pub fn claim(&self, data: &Path) -> Result<()> {
        match read(data)? {
            Some(before) if !before.is_of(&self.view, self.number) => Err(other(&before)),
            Some(before) if before == *self => Ok(()),
            None if data.join(Identity::FILE).exists() => Err(Error::invalid(
                "it is the directory of a node that keeps chunks: name another one for the view",
            )),
            _ => {
                let Place { view, number, port, follows } = self;
                let text =
                    format!("view {view}\nnumber {number:08x}\nport {port}\nfollows {follows}\n");
                local::write_private(&data.join(FILE), text.as_bytes()).map_err(Error::from)
            }
        }
    }
}

/// As [`Place`] has it.
fn titled(name: &ViewName) -> (String, u32) {
    (describe(name).escape_debug().to_string(), crc32c(&name.to_bytes()))
}

#[expect(clippy::disallowed_methods, reason = "read before there is a node")]
fn read(data: &Path) -> Result<Option<Place>> {
    let file = data.join(FILE);
    let text = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::from(e).context(format_args!("read `{}`", file.display()))),
    };
    let place = std::str::from_utf8(&text).ok().and_then(Place::parse);
    place.map(Some).ok_or_else(|| {
        Error::corrupt(format!(
            "read `{}`: it does not say which view is kept there: choose an empty directory, and remove \
             this one",
            file.display()
        ))
    })
}

fn check(before: Option<&Place>, data: &Path, name: &ViewName) -> Result<()> {
    let (view, number) = titled(name);
    let doing = |e: Error| e.context(format_args!("run view `{view}` in `{}`", data.display()));
    match before.filter(|before| !before.is_of(&view, number)) {
        Some(before) => Err(doing(other(before))),
        None => Ok(()),
    }
}

fn other(before: &Place) -> Error {
    Error::invalid(format!(
        "view `{}` is kept there: name another directory, or that view",
        before.view
    ))
}

/// Refuses to run in, or look into, a directory that a view as a process of its own keeps.
pub fn refuse(data: &Path) -> Result<()> {
    match read(data)? {
        None => Ok(()),
        Some(place) => Err(Error::invalid(format!(
            "`{}` is the directory of a process that keeps view `{}` and no chunks: it is started with \
             `holdfast view run ... --data {}`",
            data.display(),
            place.view,
            data.display()
        ))),
    }
}

/// The address of the node to follow, as other nodes know it, and a client of it if it answers.
fn whom_to_follow(
    cli: &Cli,
    connect: &dyn Fn() -> Result<Client>,
    before: Option<&Place>,
) -> Result<(String, Result<Client>)> {
    let asked = connect().and_then(|mut client| Ok((address_of(&mut client)?, client)));
    let why = match asked {
        Ok((address, client)) => return Ok((address, Ok(client))),
        Err(e) => e,
    };
    let named = cli.server.iter().flat_map(|servers| servers.split(','));
    let tcp = named.filter(|server| matches!(Endpoint::parse(server), Ok(Endpoint::Tcp(_))));
    // It waits for the cluster there, as a node does that was part of it before.
    let remembered = before.map(|before| before.follows.as_str());
    match remembered.or(tcp.into_iter().next()) {
        Some(address) => Ok((address.to_owned(), Err(why))),
        None => Err(why),
    }
}

fn address_of(client: &mut Client) -> Result<String> {
    let cluster = client.cluster()?;
    let own = cluster.nodes.iter().find(|node| node.node == cluster.node);
    let address = own.map(|node| node.address.as_str()).unwrap_or_default();
    match Endpoint::parse(address) {
        Ok(Endpoint::Tcp(address)) => Ok(address),
        _ => Err(Error::invalid(
            "follow the node: it listens on its Unix socket alone: set `native_port` in its settings, and \
             start it again",
        )),
    }
}

/// The cluster's secret, of those that commands find by themselves: beside a socket that was named, and in
/// the usual directories the one that the node to follow takes.
fn secret_of(cli: &Cli, follows: &str) -> Option<PathBuf> {
    let found = secrets::found(cli.server.as_deref());
    let opens = |file: &&PathBuf| {
        let secret = Secret::load(file).map(|secret| Secrets::new(vec![secret]));
        let endpoint = Endpoint::Tcp(follows.to_owned());
        let tried = secret.and_then(|secrets| {
            let options = ClientOptions { secrets, reconnects_max: 0, ..secrets::options() };
            Client::connect(&endpoint, &options)?.cluster()
        });
        tried.is_ok()
    };
    let right = found.iter().find(opens);
    right.or(found.first()).cloned()
}

/// What to say to such a process.
pub fn tries(data: &Path, name: &ViewName) -> Vec<String> {
    let server = format!(" --server unix:{}", data.join(SOCKET).display());
    let mut tries = vec![format!("{server} view status")];
    if let ViewKind::Disk {} = name.kind {
        tries.push(format!("{server} ride {} {}/{}", name.topic, name.part, name.of));
    }
    tries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_directory_says_comes_back_and_nothing_else_does() {
        let (view, follows) = ("orders disk 0/2".to_owned(), "h:1".to_owned());
        let text = "view orders disk 0/2\nnumber 0a0b0c0d\nport 7400\nfollows h:1\n";
        let place = Place { view, number: 0x0a0b_0c0d, port: 7400, follows };
        assert_eq!(Place::parse(text), Some(place));
        for cut in 0..text.len() - "follows h:1\n".len() {
            assert_eq!(Place::parse(&text[..cut]), None, "{cut}");
        }
        for wrong in ["view x\nnumber 1\nport y\nfollows h:1\n", "port 1\nview x\nnumber 1\n"] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_place_to_listen_is_an_address_with_a_port_or_without() {
        let host: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(listens("10.0.0.1"), Ok(Listen { host, port: None }));
        assert_eq!(listens("10.0.0.1:7500"), Ok(Listen { host, port: Some(7500) }));
        assert_eq!(listens("[::1]:7500").unwrap().port, Some(7500));
        for wrong in ["", "7500", "host:7500", "10.0.0.1:0", "10.0.0.1:70000"] {
            assert!(listens(wrong).is_err(), "{wrong}");
        }
    }
}
