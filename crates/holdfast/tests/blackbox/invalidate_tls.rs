//! The small shop, with certificates: databases and caches that are spoken to over TLS, or not at all.

use super::common::{Scratch, finish, free_port, until};
use super::invalidate as mariadb_shop;
use super::invalidate_postgres as postgres_shop;
use super::mariadb;
use super::postgres::{self, file_at};
use super::shop::{Cache, Invalidator, Stand};
use super::tls::Authority;
use holdfast_cache_client::{CacheClientOptions, Client, Transport};
use holdfast_env::tls::TlsTrust;
use std::path::{Path, PathBuf};

/// Files of a server's certificate and key, and of whoever signed it.
struct Files {
    authority: Authority,
    chain: PathBuf,
    key: PathBuf,
    /// Whom to believe, and whom not.
    right: PathBuf,
    wrong: PathBuf,
}

const HERE: &[&str] = &["localhost", "127.0.0.1"];

impl Files {
    fn new(scratch: &Scratch) -> Files {
        let [chain, key, right, wrong] =
            ["server.pem", "server.key", "ca.pem", "other.pem"].map(|name| scratch.path(name));
        let files = Files { authority: Authority::new(), chain, key, right, wrong };
        std::fs::write(&files.right, &files.authority.pem).unwrap();
        std::fs::write(&files.wrong, Authority::new().pem).unwrap();
        files.put(HERE, false);
        files
    }

    /// A new certificate, which the server has to be told of.
    fn put(&self, names: &[&str], has_expired: bool) {
        let (chain, key) = self.authority.server(names, has_expired);
        file_at(&self.chain, &chain);
        file_at(&self.key, &key);
    }
}

/// Drops a key by a change that is made over another connection.
fn drops(mut client: Client, change: impl FnOnce()) {
    client.set(b"item:1", b"x", 0).unwrap();
    change();
    until("the key is dropped", || client.get(b"item:1").unwrap().is_none());
}

fn refuses(stand: &Stand, url: &str, names: &[&str]) {
    finish(&mut Invalidator::command(stand, url), b"").refused(names);
}

/// Every connection, that of the log and those that ask, is TLS: the server counts them. A certificate that is
/// not right is refused by what is wrong with it, and so is a server that has none; never is one spoken to in
/// clear that was asked for TLS.
#[test]
fn mariadb_is_followed_over_tls_or_not_at_all() {
    let scratch = Scratch::new();
    let files = Files::new(&scratch);
    let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let (chain, key) = (option("ssl-cert", &files.chain), option("ssl-key", &files.key));
    let settings = [mariadb::SETTINGS, &[chain.as_str(), key.as_str()]].concat();
    let Some(shop) = mariadb_shop::shop(&scratch, &settings) else { return };
    let mut sql = shop.database.sql();
    let plain = shop.database.url();
    let by = |mode: &str, ca: &Path| format!("{plain}/?ssl-mode={mode}&ssl-ca={}", ca.display());
    let with = |ca: &Path| by("verify-full", ca);
    let others = ["certificate is refused", "BadSignature", "authorities of `ssl-ca`"];
    refuses(&shop, &with(&files.wrong), &others);
    refuses(&shop, &by("verify-ca", &files.wrong), &others);
    let renew = |sql: &mut mariadb::Sql, names: &[&str], has_expired| {
        files.put(names, has_expired);
        sql.run("FLUSH SSL");
    };
    renew(&mut sql, HERE, true);
    for mode in ["verify-full", "verify-ca"] {
        refuses(&shop, &by(mode, &files.right), &["certificate is refused", "expired"]);
    }
    // For another host.
    renew(&mut sql, &["db.test"], false);
    let not_here = "not valid for name \"127.0.0.1\"";
    refuses(&shop, &with(&files.right), &["certificate is refused", not_here]);
    refuses(&shop, &by("verify-ca", &files.wrong), &others);
    assert_eq!(shop.status(), None, "nothing was written");
    renew(&mut sql, HERE, false);
    let mut counts = || {
        ["Connections", "Ssl_finished_accepts"].map(|name| {
            let text = format!("SHOW GLOBAL STATUS LIKE '{name}'");
            sql.ask::<(String, u64)>(&text).unwrap()[0].1
        })
    };
    let before = counts();
    let invalidator = Invalidator::start_by(Invalidator::command(&shop, &with(&files.right)));
    until("the pool is emptied at first", || shop.status().is_some_and(|(_, b)| b == [0, 0]));
    let after = counts();
    let [connections, over_tls] = [0, 1].map(|number| after[number] - before[number]);
    assert!(over_tls >= 2 && connections == over_tls, "{over_tls} of {connections} over TLS");
    drops(shop.client(), || sql.run("UPDATE shop.items SET price = 2 WHERE id = 1"));
    invalidator.kill().judge();
    // Whoever asks for the authority alone follows a server whose certificate is for another host.
    renew(&mut sql, &["db.test"], false);
    let by_authority = by("verify-ca", &files.right);
    let invalidator = Invalidator::start_by(Invalidator::command(&shop, &by_authority));
    drops(shop.client(), || sql.run("UPDATE shop.items SET price = 3 WHERE id = 1"));
    invalidator.kill().judge();
}

#[test]
fn a_mariadb_without_tls_is_not_followed_in_clear() {
    let scratch = Scratch::new();
    let files = Files::new(&scratch);
    let settings = [mariadb::SETTINGS, &["--skip-ssl"]].concat();
    let Some(shop) = mariadb_shop::shop(&scratch, &settings) else { return };
    let url = format!("{}/?ssl-ca={}", shop.database.url(), files.right.display());
    refuses(&shop, &url, &["speaks no TLS", "`ssl_cert`"]);
    assert_eq!(shop.status(), None, "nothing was written");
}

/// The same of PostgreSQL, whose clients may also leave the host unchecked.
#[test]
fn postgresql_is_followed_over_tls_or_not_at_all() {
    let scratch = Scratch::new();
    let files = Files::new(&scratch);
    let Some(mut shop) = postgres_shop::shop(&scratch, postgres::SETTINGS) else { return };
    let plain = shop.database.url();
    let with =
        |mode: &str, ca: &Path| format!("{plain}?sslmode={mode}&sslrootcert={}", ca.display());
    refuses(&shop, &with("require", &files.right), &["speaks no TLS", "`ssl = on`"]);
    let (chain, key) = (
        format!("ssl_cert_file={}", files.chain.display()),
        format!("ssl_key_file={}", files.key.display()),
    );
    shop.database
        .restart_with(&[postgres::SETTINGS, &["ssl=on", chain.as_str(), key.as_str()]].concat());
    let mut sql = shop.database.sql();
    shop.database.set_hba("hostssl all all 127.0.0.1/32 trust\n");
    until("it takes nothing in clear", || {
        let said =
            finish(&mut Invalidator::command(&shop, &with("verify-full", &files.wrong)), b"");
        said.err.contains("BadSignature")
    });
    refuses(&shop, &plain, &["no encryption"]);
    let others = ["certificate is refused", "BadSignature", "authorities of `sslrootcert`"];
    refuses(&shop, &with("verify-ca", &files.wrong), &others);
    let mut renew = |names: &[&str], has_expired, mode: &str, why: &str| {
        files.put(names, has_expired);
        sql.run("SELECT pg_reload_conf()");
        until(why, || {
            let url = with(mode, &files.right);
            let said = finish(&mut Invalidator::command(&shop, &url), b"").err;
            said.contains("certificate is refused") && said.contains(why)
        });
    };
    renew(HERE, true, "verify-full", "expired");
    renew(HERE, true, "verify-ca", "expired");
    renew(&["db.test"], false, "verify-full", "not valid for name \"127.0.0.1\"");
    let standing = format!("unix:{}", shop.node.socket().display());
    let mut status = super::common::binary();
    status.args(["--server", &standing, "invalidate", "status", "--to", "main", "--from"]);
    assert_eq!(shop.status(), None, "nothing was written");
    let invalidator =
        Invalidator::start_by(Invalidator::command(&shop, &with("verify-ca", &files.right)));
    until("the pool is emptied at first", || shop.status().is_some_and(|(_, b)| b == [0, 0]));
    drops(shop.client(), || sql.run("UPDATE shop.items SET price = 2 WHERE id = 1"));
    let said = finish(status.arg(with("verify-ca", &files.right)), b"").ok();
    assert!(said.contains("slot holdfast_main"), "{said}");
    invalidator.kill().judge();
}

/// Caches that speak TLS are told over it, and one whose certificate is another's is not told, which is said.
#[test]
fn caches_are_told_over_tls() {
    let scratch = Scratch::new();
    let files = Files::new(&scratch);
    let Some(mut shop) = mariadb_shop::shop(&scratch, mariadb::SETTINGS) else { return };
    let (chain, key) = (files.chain.display(), files.key.display());
    let named = format!("ssl_chain_cert={chain},ssl_key={key}");
    let more = ["-Z", "-l", "127.0.0.1", "-o", &named];
    shop.stand.caches = (0..2).map(|_| Cache::start_with(free_port(), &more)).collect();
    let servers = shop.servers();
    let route =
        |ca: &Path| shop.write_routes_with(&format!("ssl_ca_cert = \"{}\"\n", ca.display()));
    let client = || {
        let tls = TlsTrust { authorities: files.right.clone(), shows: None };
        Client::new(&servers, CacheClientOptions { tls: Some(tls), ..Default::default() }).unwrap()
    };
    let mut sql = shop.database.sql();
    let url = shop.database.url();
    route(&files.right);
    let invalidator = Invalidator::start_by(Invalidator::command(&shop, &url));
    until("the pool is emptied at first", || shop.status().is_some_and(|(_, b)| b == [0, 0]));
    drops(client(), || sql.run("UPDATE shop.items SET price = 2 WHERE id = 1"));
    invalidator.kill().judge();

    route(&files.wrong);
    let invalidator = Invalidator::start_by(Invalidator::command(&shop, &url));
    let mut other = client();
    other.set(b"item:2", b"x", 0).unwrap();
    sql.run("UPDATE shop.items SET price = 2 WHERE id = 2");
    until("both lack it", || shop.status().unwrap().1.iter().all(|entries| *entries > 0));
    assert!(other.get(b"item:2").unwrap().is_some());
    let said = invalidator.kill().whole();
    assert!(said.contains("invalidate.waits"), "{said}");
}

#[test]
fn a_client_over_tls_asks_over_tcp() {
    let tls = TlsTrust { authorities: "/nonexistent.pem".into(), shows: None };
    let options = |gets| CacheClientOptions { gets, tls: Some(tls.clone()), ..Default::default() };
    let udp = Client::new(&["127.0.0.1:1"], options(Transport::Udp)).err().unwrap();
    assert!(udp.message.contains("UDP has no TLS"), "{}", udp.message);
    let file = Client::new(&["127.0.0.1:1"], options(Transport::Tcp)).err().unwrap();
    assert!(file.message.contains("/nonexistent.pem"), "{}", file.message);
}
