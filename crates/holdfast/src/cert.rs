//! `holdfast cert`: what was asked for, and what is told of it. What a certificate says is decided
//! by the crate `cert`, how files change by `place.rs`. No key is ever printed.

mod check;
mod place;

use clap::Subcommand;
use holdfast_base::text::utc;
use holdfast_base::{Error, Result};
use holdfast_cert::{
    AUTHORITY_DAYS, Certificate, DAYS_MAX, Issued, LEAF_DAYS, Serial, Wanted, new_authority,
};
use holdfast_client::Client;
use holdfast_command::output::{self, Output};
use holdfast_env::{Clock, RealClock, RealDisk, RealRng, Rng};
use holdfast_wire::admin::Order;
use place::Place;
use serde_json::json;
use std::path::{Path, PathBuf};

/// `holdfast cert ...`.
#[derive(Subcommand, Debug)]
pub enum Cert {
    /// Make a CA for a cluster; --renew and, when all certificates are renewed, --forget-old
    /// replace it while the cluster runs
    Init {
        /// The cluster's name in all its certificates: lower-case letters, digits, `.`, `-`, `_`
        #[arg(
            required_unless_present_any = ["renew", "forget_old"],
            conflicts_with_all = ["renew", "forget_old"]
        )]
        cluster: Option<String>,
        /// The CA's directory, which becomes its owner's alone
        #[arg(long, visible_alias = "out", default_value = "tls", value_name = "DIR")]
        dir: PathBuf,
        /// Days that it is valid [default: 3650]
        #[arg(long, value_name = "N", value_parser = days(), conflicts_with = "forget_old")]
        days: Option<u32>,
        /// Make a new key and have DIR/ca.pem trust both, the new one and the old one
        #[arg(long)]
        renew: bool,
        /// Trust the new one alone from now on
        #[arg(long, conflicts_with = "renew")]
        forget_old: bool,
    },
    /// Issue a node's certificate: DIR/NAME.pem and DIR/NAME.key
    Node {
        /// 1 to 63 letters, digits, `.`, `-`, `_`
        name: String,
        /// A name of DNS or an address at which the node is reached; may be repeated. localhost and
        /// loopback addresses only if they are named
        #[arg(long, required = true, value_name = "HOST")]
        host: Vec<String>,
        #[command(flatten)]
        from: From,
    },
    /// Issue a client's certificate: DIR/NAME.pem and DIR/NAME.key
    Client {
        /// 1 to 63 letters, digits, `.`, `-`, `_`
        name: String,
        #[command(flatten)]
        from: From,
    },
    /// Replace a certificate by one with the same names and a new key
    Renew {
        /// The certificate; its key is the .key beside it
        #[arg(value_name = "FILE.pem")]
        file: PathBuf,
        /// The CA's directory [default: where FILE.pem is]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Days that it is valid [default: 397, or until the CA ends]
        #[arg(long, value_name = "N", value_parser = days())]
        days: Option<u32>,
    },
    /// Have the cluster's nodes refuse a certificate from now on, over open connections too; asks the
    /// node of --server
    Revoke {
        /// The certificate: only its first one, not those that it was signed by
        #[arg(value_name = "FILE.pem")]
        file: PathBuf,
    },
    /// Say whom certificates are for, for how long, and what is wrong with them, whoever made them
    Check {
        /// Certificates as PEM, each a node's, a client's or a CA's, with its chain behind it
        #[arg(required = true, value_name = "FILE.pem")]
        files: Vec<PathBuf>,
        /// The key, if there is one FILE [default: the .key beside it, where there is one]
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// The CAs that must have signed them [default: the ca.pem beside them, where there is one]
        #[arg(long, value_name = "FILE")]
        ca: Option<PathBuf>,
    },
}

/// What issues, and for how long.
#[derive(clap::Args, Debug)]
pub struct From {
    /// The CA's directory
    #[arg(long, default_value = "tls", value_name = "DIR")]
    dir: PathBuf,
    /// Days that it is valid [default: 397, or until the CA ends]
    #[arg(long, value_name = "N", value_parser = days())]
    days: Option<u32>,
}

fn days() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(DAYS_MAX))
}

/// Does what was asked for.
pub fn run(command: &Cert, connect: &dyn Fn() -> Result<Client>, out: &mut Output) -> Result<()> {
    match command {
        Cert::Init { renew: true, dir, days, .. } => renew_authority(dir, *days, out),
        Cert::Init { forget_old: true, dir, .. } => forget_old(dir, out),
        Cert::Init { cluster, dir, days, .. } => {
            let cluster = cluster.as_deref().unwrap_or_default();
            init(cluster, dir, days.unwrap_or(AUTHORITY_DAYS), out)
        }
        Cert::Node { name, host, from } => {
            issue(name, from, |cluster| Wanted::node(cluster, name, host), out)
        }
        Cert::Client { name, from } => {
            issue(name, from, |cluster| Wanted::client(cluster, name), out)
        }
        Cert::Renew { file, dir, days } => renew(file, dir.as_deref(), *days, out),
        Cert::Revoke { file } => revoke(&mut connect()?, file, out),
        Cert::Check { files, key, ca } => {
            check::run(files, key.as_deref(), ca.as_deref(), now_s(), out)
        }
    }
}

fn revoke(client: &mut Client, file: &Path, out: &mut Output) -> Result<()> {
    let doing = format!("revoke `{}`", file.display());
    let bundle = check::bundle(file).map_err(|e| e.context(&doing))?;
    let certified = bundle.certificates()[0].certified.clone().map_err(|e| e.context(&doing))?;
    let (serial, until_s) = (certified.serial.clone(), certified.not_after_s);
    client.order(&Order::Revoke { serial, until_s }).map_err(|e| e.context(&doing))?;
    out.line(
        || {
            format!(
                "certificate {} of `{}` is worth nothing any more",
                certified.serial, certified.who
            )
        },
        || json!({"revoked": certified.serial, "who": certified.who.to_string()}),
    )
}

fn now_s() -> i64 {
    (RealClock::new().unix_ms() / 1000) as i64
}

fn random() -> Serial {
    let mut bytes = Serial::default();
    bytes[..8].copy_from_slice(&RealRng.next_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&RealRng.next_u64().to_le_bytes());
    bytes
}

fn init(cluster: &str, dir: &Path, days: u32, out: &mut Output) -> Result<()> {
    let doing = format!("make the CA of `{cluster}` in `{}`", dir.display());
    let made = || {
        // A wrong name leaves no directory behind.
        let issued = new_authority(cluster, days, now_s(), random())?;
        place::prepare(&RealDisk, dir)?;
        Place::open(&RealDisk, dir)?.init(&issued)?;
        Ok(issued)
    };
    let issued = made().map_err(|e: Error| e.context(&doing))?;
    tell_authority("made the CA", cluster, dir, &issued, out)
}

fn tell_authority(
    what: &str,
    cluster: &str,
    dir: &Path,
    issued: &Issued,
    out: &mut Output,
) -> Result<()> {
    let (certificate, key) = (dir.join(place::CA), dir.join(place::CA_KEY));
    let (certificate, key) = (certificate.display(), key.display());
    let end = date(issued.certificate.not_after_s);
    out.line(
        || {
            format!(
                "{what} of `{cluster}`, valid until {end}: give `{certificate}` to every node and client, `{key}` to nobody"
            )
        },
        || {
            json!({
                "cluster": cluster,
                "ca": certificate.to_string(),
                "key": key.to_string(),
                "not_before": date(issued.certificate.not_before_s),
                "not_after": end,
            })
        },
    )
}

fn renew_authority(dir: &Path, days: Option<u32>, out: &mut Output) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("renew the CA in `{}`", dir.display()));
    let place = Place::of_ca(&RealDisk, dir).map_err(doing)?;
    let authority = place.authority().map_err(doing)?;
    let (issued, bundle) = authority.renew(days, now_s(), random()).map_err(doing)?;
    place.renew_authority(&issued, &bundle).map_err(doing)?;
    tell_authority("made a second CA", authority.cluster(), dir, &issued, out)
}

fn forget_old(dir: &Path, out: &mut Output) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("forget the old CA in `{}`", dir.display()));
    Place::of_ca(&RealDisk, dir).and_then(|place| place.forget_old()).map_err(doing)?;
    let certificate = dir.join(place::CA);
    out.line(
        || {
            format!(
                "the old CA is forgotten: give `{}` to every node and client",
                certificate.display()
            )
        },
        || json!({"ca": certificate.display().to_string()}),
    )
}

fn issue(
    name: &str,
    from: &From,
    wanted: impl FnOnce(&str) -> Result<Wanted>,
    out: &mut Output,
) -> Result<()> {
    let file = from.dir.join(format!("{name}.pem"));
    let issued = || {
        let place = Place::of_ca(&RealDisk, &from.dir)?;
        let authority = place.authority()?;
        let wanted = wanted(authority.cluster())?;
        let issued = authority.issue(&wanted, from.days, now_s(), random())?;
        place.add(&wanted.who.name, &issued)?;
        Ok(issued)
    };
    let issued = issued().map_err(|e: Error| e.context(format_args!("issue `{name}`")))?;
    tell(&file, &issued, out)
}

fn renew(file: &Path, dir: Option<&Path>, days: Option<u32>, out: &mut Output) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("renew `{}`", file.display()));
    let beside = place::directory_of(file);
    let issued = || {
        let place = Place::of_ca(&RealDisk, dir.unwrap_or(beside))?;
        let authority = place.authority()?;
        let old = place.certificate(file)?;
        if old.is_authority {
            return Err(Error::invalid(
                "it is a CA's: make its successor with `holdfast cert init --renew`",
            ));
        }
        if !authority.knows(&old) {
            return Err(Error::invalid(format!(
                "it was signed by `{}`, which is not the CA here: name the directory of its CA with --dir",
                old.issuer
            )));
        }
        let issued = authority.issue(&Wanted::again(&old)?, days, now_s(), random())?;
        place.replace(file, &issued)?;
        Ok(issued)
    };
    let issued = issued().map_err(doing)?;
    tell(file, &issued, out)
}

fn tell(file: &Path, issued: &Issued, out: &mut Output) -> Result<()> {
    let Certificate { certified, hosts, not_before_s, not_after_s, .. } = &issued.certificate;
    let certified = certified.clone()?;
    let (file, key) = (file.display(), file.with_extension(place::KEY));
    let end = date(*not_after_s);
    if issued.is_cut {
        output::aside(format_args!(
            "`{file}` is valid until its CA ends, on {end}, not for {LEAF_DAYS} days: renew the CA with `holdfast cert init --renew`"
        ));
    }
    let names = match hosts[..] {
        [] => String::new(),
        _ => format!(" at {}", hosts.join(", ")),
    };
    out.line(
        || {
            format!(
                "`{file}` is for {}{names}, valid until {end}; its key is `{}`",
                certified.who,
                key.display()
            )
        },
        || {
            json!({
                "certificate": file.to_string(),
                "key": key.display().to_string(),
                "identity": certified.who.to_string(),
                "hosts": hosts,
                "serial": certified.serial,
                "not_before": date(*not_before_s),
                "not_after": end,
            })
        },
    )
}

/// `2026-03-01T12:34:56Z` of seconds since 1970.
fn date(seconds: i64) -> String {
    utc(seconds, 'T') + "Z"
}
