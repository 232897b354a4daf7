//! One server of MariaDB: its address, with what that says of TLS, connections to it, and what their failures
//! mean.

use crate::tls::{self, Checks, Words};
use holdfast_base::{Error, Result};
use holdfast_env::tls::{certificates_in, install_provider, refused_certificate};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, DriverError, IoError, Opts, OptsBuilder, SslOpts};
use url::Url;

/// What a log has no more: `ER_MASTER_FATAL_ERROR_READING_BINLOG`.
const GONE: u16 = 1236;
/// Errors that another try does not mend: a user that is refused, a right that is missing.
const REFUSED: [u16; 5] = [1044, 1045, 1142, 1227, 1698];

/// What one event of the log may be long: as much as a database sends to its replicas. An event has a row twice, as it
/// was and as it is, so it may pass what the database takes of its clients, which is what the driver would take.
const EVENT_BYTES_MAX: usize = 1 << 30;

/// As MySQL's clients call them.
const TLS: Words = Words { mode: "ssl-mode", authorities: "ssl-ca" };
/// As the driver calls them, which would believe anybody.
const DRIVERS_TLS: [&str; 4] = ["require_ssl", "verify_ca", "verify_identity", "built_in_roots"];

/// The host that a certificate is asked for where none is: nobody's. Who signed it, and until when, is looked at in
/// front of its names. The driver passes over what is wrong with these by the words of an older build of its TLS,
/// `NotValidForName`; today's say the host instead, so it has them. Were they others again, nobody would be believed.
const NO_NAME: &str = "NotValidForName.invalid";

/// A database server.
#[derive(Clone)]
pub struct Server {
    opts: Opts,
    /// Without its password.
    pub name: String,
}

impl Server {
    /// `mysql://USER:PASSWORD@HOST:PORT`, and behind it `?ssl-mode=MODE&ssl-ca=FILE` or not; the file is read now.
    pub fn parse(text: &str) -> Result<Server> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::invalid(format!(
                "read the database's address: {why}: write mysql://USER:PASSWORD@HOST:PORT"
            ))
        };
        let mut url = Url::parse(text).map_err(|e| wrong(&e))?;
        let (mut mode, mut authorities, mut others) = (None, None, Vec::new());
        for (name, value) in url.query_pairs().into_owned() {
            match name.as_str() {
                "ssl-mode" => mode = Some(value),
                "ssl-ca" => authorities = Some(value),
                name if DRIVERS_TLS.contains(&name) => {
                    return Err(wrong(&format!(
                        "`{name}` is not known, `ssl-mode` and `ssl-ca` are"
                    )));
                }
                _ => others.push((name, value)),
            }
        }
        url.set_query(None);
        if !others.is_empty() {
            url.query_pairs_mut().extend_pairs(others);
        }
        let given = Opts::from_url(url.as_str()).map_err(|e| wrong(&e))?;
        let builder = OptsBuilder::from_opts(given).max_allowed_packet(Some(EVENT_BYTES_MAX));
        let mut opts = Opts::from(builder);
        if let Some(asked) = tls::asked(&TLS, mode.as_deref(), authorities.as_deref())? {
            opts = with_tls(opts, &asked)?;
        }
        let name = format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port());
        Ok(Server { opts, name })
    }

    pub async fn connect(&self) -> Result<Conn> {
        let doing = format!("connect to database `{}`", self.name);
        let mut conn = Conn::new(self.opts.clone()).await.map_err(|e| failed(&doing, &e))?;
        // Row images and settings come as they are.
        conn.query_drop("SET NAMES binary").await.map_err(|e| failed(&doing, &e))?;
        Ok(conn)
    }
}

fn with_tls(opts: Opts, asked: &tls::Asked) -> Result<Opts> {
    if opts.socket().is_some() {
        return Err(Error::invalid(
            "speak TLS to the database: `socket` goes without: leave it away, or the parameters of TLS",
        ));
    }
    install_provider();
    let roots = certificates_in(&asked.authorities)?;
    let mut tls = SslOpts::default()
        .with_root_certs(roots.iter().map(|root| root.to_vec().into()).collect())
        .with_disable_built_in_roots(true);
    // An address of IPv6 stands in brackets there, and in no certificate.
    let host = opts.ip_or_hostname();
    if let Some(bare) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        tls = tls.with_danger_tls_hostname_override(Some(bare.to_owned()));
    }
    if asked.checks == Checks::Authority {
        tls = tls
            .with_danger_skip_domain_validation(true)
            .with_danger_tls_hostname_override(Some(NO_NAME.to_owned()));
    }
    // What asks for TLS does not go over a socket to whatever listens there.
    Ok(OptsBuilder::from_opts(opts).ssl_opts(tls).prefer_socket(false).into())
}

pub(super) fn failed(doing: &str, e: &mysql_async::Error) -> Error {
    match e {
        mysql_async::Error::Driver(DriverError::NoClientSslFlagFromServer) => {
            Error::invalid(format!(
                "{doing}: the server speaks no TLS, which `ssl-mode` or `ssl-ca` asks for: set `ssl_cert` and \
                 `ssl_key` there, or give `ssl-mode=disabled`"
            ))
        }
        mysql_async::Error::Io(IoError::Io(e)) if let Some(why) = refused_certificate(e) => {
            Error::invalid(format!(
                "{doing}: its certificate is refused: {}",
                tls::refused(&why, &TLS)
            ))
        }
        mysql_async::Error::Server(said) if said.code == GONE => {
            Error::not_found(format!("{doing}: {}", said.message))
        }
        mysql_async::Error::Server(said) if REFUSED.contains(&said.code) => {
            Error::invalid(format!("{doing}: {}", said.message))
        }
        e => Error::retry(format!("{doing}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_asked_for_in_the_words_of_mysql_s_clients() {
        let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/../env/tests/tls/ca.pem");
        let of = |query: &str| Server::parse(&format!("mysql://me:secret@[::1]:7/?{query}"));
        let plain = of("ssl-mode=DISABLED&prefer_socket=false").unwrap();
        assert!(plain.opts.ssl_opts().is_none() && !plain.opts.prefer_socket());
        for mode in ["", "ssl-mode=required&", "ssl-mode=VERIFY_IDENTITY&"] {
            let server = of(&format!("{mode}ssl-ca={ca}")).unwrap();
            let tls = server.opts.ssl_opts().unwrap();
            assert!(!server.opts.prefer_socket() && tls.disable_built_in_roots());
            assert!(!tls.skip_domain_validation() && !tls.accept_invalid_certs());
            assert_eq!(tls.root_certs().len(), 1);
            assert_eq!(
                (server.name.as_str(), tls.tls_hostname_override()),
                ("[::1]:7", Some("::1"))
            );
        }
        let by_authority = of(&format!("ssl-mode=verify-ca&ssl-ca={ca}")).unwrap();
        let tls = by_authority.opts.ssl_opts().unwrap();
        assert!(tls.skip_domain_validation() && !tls.accept_invalid_certs());
        assert!(tls.disable_built_in_roots() && !by_authority.opts.prefer_socket());
        for (query, names) in [
            ("ssl-mode=required", "`ssl-ca=FILE`"),
            ("ssl-mode=preferred", "`ssl-mode`"),
            ("ssl-mode=verify-ca", "`ssl-ca=FILE`"),
            (&*format!("socket=/run/mysqld.sock&ssl-ca={ca}"), "`socket`"),
            ("ssl-ca=/nonexistent.pem", "/nonexistent.pem"),
            ("require_ssl=true&verify_ca=false", "`require_ssl`"),
        ] {
            let message = of(query).err().unwrap().message;
            assert!(message.contains(names) && !message.contains("secret"), "{message}");
        }
    }
}
