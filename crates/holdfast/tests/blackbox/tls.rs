//! Ports with certificates from outside: their clients, their renewal, and what they refuse.

use super::common::{Finished, Node, Scratch, attempts, binary, finish, free_port};
use super::memcached::{Memcached, python};
use super::s3::{blob, clients, credentials};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const DOMAIN: &str = "s3.test";

/// Whoever signs for a test's node.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // OpenSSL takes a certificate for its own signer if the two have one name.
        params.distinguished_name.push(DnType::CommonName, "an authority of tests");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key of a node on this machine.
    fn node(&self) -> (String, String) {
        self.server(&["localhost", "127.0.0.1", DOMAIN, "*.s3.test"], false)
    }

    /// Certificate and key of a server with these names; one that has expired, or has not.
    pub fn server(&self, names: &[&str], has_expired: bool) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        if has_expired {
            (params.not_before, params.not_after) =
                (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
        }
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.pem(), key.serialize_pem())
    }

    /// A new certificate in a directory, which it is answered of.
    fn install(&self, directory: &Path) -> PathBuf {
        let (chain, key) = self.node();
        put(directory, "ca.pem", &self.pem);
        put(directory, "node.pem", &chain);
        put(directory, "node.key", &key);
        directory.to_owned()
    }
}

/// In one step, as whoever renews certificates should.
fn put(directory: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(directory).unwrap();
    let new = directory.join("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&new, directory.join(name)).unwrap();
}

struct Ports {
    s3: u16,
    http: u16,
    cache: u16,
    /// Where the node's certificates are.
    tls: PathBuf,
    /// The file of whom to trust.
    ca: String,
}

/// That certificates are in this directory.
fn named(tls: &Path) -> String {
    let file = |name: &str| tls.join(name).display().to_string();
    format!(
        "tls_certificate = \"{}\"\ntls_key = \"{}\"\ntls_authorities = \"{}\"\n",
        file("node.pem"),
        file("node.key"),
        file("ca.pem")
    )
}

fn start(scratch: &Scratch, authority: &Authority, more: &str) -> (Node, Ports) {
    let tls = authority.install(&scratch.path("tls"));
    let ca = tls.join("ca.pem").display().to_string();
    let [s3, http, cache] = std::array::from_fn(|_| free_port());
    let settings = format!(
        "s3_port = {s3}\nhttp_port = {http}\ncache_port = {cache}\ncache_memory = \"16M\"\n\
         s3_host = \"{DOMAIN}\"\n{}{more}",
        named(&tls)
    );
    let node = Node::start_with(&scratch.path("data"), &settings);
    (node, Ports { s3, http, cache, tls, ca })
}

/// What a tool says, or nothing where this machine lacks it.
fn tool(name: &str, words: &[&str]) -> Option<Finished> {
    match Command::new(name).arg("--version").output() {
        Ok(_) => {
            let mut command = Command::new(name);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            Some(finish(command.args(words), b""))
        }
        Err(_) => {
            eprintln!("SKIPPED: no `{name}`");
            None
        }
    }
}

fn say(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn boto3_and_aws_speak_tls_by_path_and_by_host() {
    let Some(python) = clients("python") else { return };
    let scratch = Scratch::new();
    let (node, ports) = start(&scratch, &Authority::new(), "");
    let (_, access, secret) = credentials(&node.data);
    let endpoint = format!("https://localhost:{}", ports.s3);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/s3_tls.py");
    let arguments = [endpoint.as_str(), &access, &secret, &ports.ca, DOMAIN];
    let done = Command::new(python).arg(script).args(arguments).output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    if err.contains("No module named 'boto3'") {
        eprintln!("SKIPPED: no boto3 in target/clients: run .ci/tools");
        return;
    }
    assert!(done.status.success(), "{err}");
    let Some(aws) = clients("aws") else { return };
    let mut command = Command::new(aws);
    command.args(["--endpoint-url", &endpoint, "--ca-bundle", &ports.ca, "s3", "ls"]);
    command.env("AWS_ACCESS_KEY_ID", &access).env("AWS_SECRET_ACCESS_KEY", &secret);
    let done = command.env("AWS_REGION", "us-east-1").env("HOME", &scratch.0).output().unwrap();
    let listed = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && listed.contains("photos"), "{listed}{done:?}");
    node.stop();
}

#[test]
fn our_own_commands_trust_what_they_are_told() {
    let scratch = Scratch::new();
    let (node, ports) = start(&scratch, &Authority::new(), "");
    // Over loopback, as they find it.
    blob(&node.data, &["mb", "photos"], b"").ok();
    let (_, access, secret) = credentials(&node.data);
    let endpoint = format!("https://localhost:{}", ports.s3);
    let ask = |more: &[&str]| {
        let mut command = binary();
        command.args(["blob", "--endpoint", &endpoint, "--access-key", &access]);
        finish(command.args(["--secret-key", &secret]).args(more), b"")
    };
    assert!(ask(&["--cacert", &ports.ca, "ls"]).ok().contains("photos"));
    ask(&["ls"]).refused(&["certificate"]);
    ask(&["--cacert", "/nonexistent.pem", "ls"]).refused(&["/nonexistent.pem"]);
    let other = scratch.path("other.pem");
    std::fs::write(&other, Authority::new().pem).unwrap();
    ask(&["--cacert", other.to_str().unwrap(), "ls"]).refused(&["certificate"]);
    node.stop();
}

#[test]
fn the_cache_speaks_tls_beside_plain() {
    let scratch = Scratch::new();
    let (node, ports) = start(&scratch, &Authority::new(), "");
    python("cache_up_tls.py", &[ports.cache.to_string(), ports.ca.clone()]);
    let to = SocketAddr::from(([127, 0, 0, 1], ports.cache));
    // Garbage that begins as TLS does ends with an alert; half a handshake holds nobody up.
    let mut half = TcpStream::connect(to).unwrap();
    half.write_all(&[0x16, 3, 1]).unwrap();
    let garbage = say(to, &[&[0x16][..], &[0x25; 300]].concat());
    assert_eq!(garbage.as_bytes().first(), Some(&21), "{garbage:?}");
    assert_eq!(say(to, b"get none\r\nquit\r\n"), "END\r\n");
    node.stop();
}

/// What tools of others find from outside.
#[test]
fn old_versions_and_weak_suites_are_refused() {
    let scratch = Scratch::new();
    let (node, ports) = start(&scratch, &Authority::new(), "");
    let (ca, url) = (&ports.ca, format!("https://localhost:{}/health", ports.http));
    if let Some(done) = tool("curl", &["-sS", "--cacert", ca, &url]) {
        assert_eq!(done.ok(), "ok\n");
    }
    for port in [ports.s3, ports.http, ports.cache] {
        let to = format!("localhost:{port}");
        let shake = |more: &[&str]| {
            let words = ["s_client", "-connect", &to, "-CAfile", ca, "-verify_return_error"];
            tool("openssl", &[&words[..], more].concat())
        };
        for version in ["-tls1_2", "-tls1_3"] {
            let Some(done) = shake(&[version]) else { return };
            assert_eq!(done.code, Some(0), "{version} {port}: {done:?}");
        }
        for weak in [
            &["-tls1", "-cipher", "ALL:@SECLEVEL=0"][..],
            &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
            &["-tls1_2", "-cipher", "AES128-SHA:AES256-SHA:@SECLEVEL=0"],
            &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES256-SHA"],
            &["-tls1_2", "-cipher", "NULL:aNULL:eNULL:@SECLEVEL=0"],
        ] {
            let done = shake(weak).unwrap();
            assert_ne!(done.code, Some(0), "{weak:?} {port}: {done:?}");
        }
    }
    node.stop();
}

/// Whoever shakes hands again and again within one connection makes the other side work for nothing:
/// TLS 1.2 lets a client ask for it, and is refused at once.
#[test]
fn a_second_handshake_within_a_connection_is_refused() {
    let scratch = Scratch::new();
    let (node, ports) = start(&scratch, &Authority::new(), "");
    for port in [ports.s3, ports.http, ports.cache] {
        if Command::new("openssl").arg("version").output().is_err() {
            eprintln!("SKIPPED: no `openssl`");
            break;
        }
        let to = format!("localhost:{port}");
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &to, "-CAfile", &ports.ca, "-tls1_2"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let again = finish(&mut command, b"R\n");
        let said = String::from_utf8_lossy(&again.out) + again.err.as_str();
        assert!(said.contains("RENEGOTIATING"), "it never asked: {said}");
        assert!(said.contains("no renegotiation") && again.code != Some(0), "{port}: {said}");
    }
    node.stop();
}

/// Asks for health until it says so, which takes as long as the node takes to look at its files.
#[track_caller]
fn until(http: u16, wanted: &str) -> String {
    let to = SocketAddr::from(([127, 0, 0, 1], http));
    let ask = || say(to, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    for () in attempts() {
        let answer = ask();
        if answer.contains(wanted) {
            return answer;
        }
    }
    panic!("waited in vain for `{wanted}`: {}", ask());
}

#[test]
fn certificates_are_renewed_while_the_node_runs_and_half_a_file_is_not_used() {
    let scratch = Scratch::new();
    let authority = Authority::new();
    let (node, ports) = start(&scratch, &authority, "");
    let (chain, _) = authority.node();
    put(&ports.tls, "node.pem", &chain[..chain.len() / 2]);
    let said = until(ports.http, "certificates: ");
    assert!(said.contains("503") && said.contains("node.pem") && said.contains("are in force"));
    // The old one answers.
    let (ca, url) = (&ports.ca, format!("https://localhost:{}/health", ports.http));
    if let Some(done) = tool("curl", &["-sS", "--cacert", ca, &url]) {
        assert!(done.ok().contains("certificates: "));
    }
    // Another authority altogether: who trusts the old one alone is refused from now on.
    std::fs::copy(ca, scratch.path("old.pem")).unwrap();
    Authority::new().install(&ports.tls);
    until(ports.http, "200 OK");
    let old = scratch.path("old.pem").display().to_string();
    if let Some(done) = tool("curl", &["-sS", "--cacert", ca, &url]) {
        assert_eq!(done.ok(), "ok\n");
        assert_ne!(tool("curl", &["-sS", "--cacert", &old, &url]).unwrap().code, Some(0));
    }
    let mut node = node;
    super::common::signal(node.pid(), "TERM");
    let told = node.told.whole();
    assert!(told.contains("\"tls.kept\"") && told.contains("\"tls.renewed\""), "{told}");
    assert!(!told.contains("\"level\":\"error\""), "{told}");
}

/// The files that `holdfast up` looks for where nothing is named.
#[test]
fn the_directory_tls_of_a_node_is_found() {
    let scratch = Scratch::new();
    let (data, http) = (scratch.path("data"), free_port());
    let node = Node::start_with(&data, &format!("http_port = {http}\n"));
    let url = format!("https://localhost:{http}/health");
    if let Some(done) = tool("curl", &["-sS", "-k", &url]) {
        assert_ne!(done.code, Some(0), "{done:?}");
    }
    node.stop();
    let tls = Authority::new().install(&data.join("tls"));
    let node = Node::start(&data);
    let ca = tls.join("ca.pem").display().to_string();
    if let Some(done) = tool("curl", &["-sS", "--cacert", &ca, &url]) {
        assert_eq!(done.ok(), "ok\n");
    }
    node.stop();
}

/// This machine's address on its network, if it has one; nothing is sent to find out.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
}

#[test]
fn beyond_loopback_there_is_tls_or_one_sentence() {
    let scratch = Scratch::new();
    let more = "listen = \"0.0.0.0\"\nnative_port = 0\n";
    let (node, ports) = start(&scratch, &Authority::new(), more);
    let Some(own) = own_address() else {
        eprintln!("SKIPPED: this machine has no network");
        return;
    };
    for port in [ports.s3, ports.http] {
        let request = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let answer = say(SocketAddr::from((own, port)), request);
        let place = format!("this port speaks TLS: use https://{own}:{port}");
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(&place), "{answer}");
        assert!(!say(SocketAddr::from(([127, 0, 0, 1], port)), request).contains("speaks TLS"));
        let url = format!("https://{own}:{port}/health");
        let trusts = [
            "-sS",
            "--cacert",
            &ports.ca,
            "--connect-to",
            &format!("localhost:{port}:{own}:{port}"),
        ];
        let url = url.replace(&own.to_string(), "localhost");
        if let Some(done) = tool("curl", &[&trusts[..], &[url.as_str()]].concat()) {
            assert_eq!(done.code, Some(0), "{done:?}");
        }
    }
    let cache = SocketAddr::from((own, ports.cache));
    assert!(say(cache, b"get a\r\n").starts_with("CLIENT_ERROR this port speaks TLS"));
    // Strangers show a certificate at the cache.
    let to = cache.to_string();
    let words = ["s_client", "-connect", &to, "-tls1_2", "-CAfile", &ports.ca];
    if let Some(done) = tool("openssl", &words) {
        assert_ne!(done.code, Some(0), "{done:?}");
    }
    let own = [("-cert", "node.pem"), ("-key", "node.key")]
        .map(|(option, name)| [option.to_owned(), ports.tls.join(name).display().to_string()]);
    let own: Vec<&str> = own.iter().flatten().map(String::as_str).collect();
    if let Some(done) = tool("openssl", &[&words[..], &own].concat()) {
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    node.stop();
}

#[test]
fn what_is_wrong_with_certificates_ends_a_start_in_one_sentence() {
    let scratch = Scratch::new();
    let refused = |data: &Path, settings: &str, names: &[&str]| {
        std::fs::create_dir_all(data).unwrap();
        std::fs::write(data.join("holdfast.toml"), settings).unwrap();
        Node::try_start(data).err().expect("it starts").refused(names);
    };
    let ports = "native_port = 0\nhttp_port = 0\ncache_port = 0\ns3_port = 0\ndram = \"0\"\n";
    let data = scratch.path("data");
    let tls = data.join("tls");
    refused(&data, &format!("{ports}listen = \"0.0.0.0\"\n"), &["0.0.0.0", "unencrypted"]);
    let authority = Authority::new();
    authority.install(&tls);
    put(&tls, "node.key", &authority.node().1);
    refused(&data, ports, &["node.pem", "node.key", "not the certificate's"]);
    authority.install(&tls);
    let key = tls.join("node.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused(&data, ports, &["node.key", "chmod 600"]);
    std::fs::remove_file(&key).unwrap();
    refused(&data, ports, &["node.key", "not there"]);
}

/// The router's own clients speak plainly to it; its servers hear TLS alone.
#[test]
fn a_router_speaks_tls_to_its_servers() {
    let scratch = Scratch::new();
    let authority = Authority::new();
    authority.install(&scratch.path("tls"));
    let file = |name: &str| scratch.path("tls").join(name).display().to_string();
    let (chain, key, ca) = (file("node.pem"), file("node.key"), file("ca.pem"));
    let asks = format!("ssl_chain_cert={chain},ssl_key={key},ssl_ca_cert={ca},ssl_verify_mode=2");
    let cache =
        || Memcached::start(&["cache", "-t", "1", "-p", "-1", "-I", "4m", "-Z", "-o", &asks]);
    let caches = [cache(), cache()];
    let servers = caches.each_ref().map(Memcached::name).join(",");
    let route = |more: &str| {
        let patient =
            ["route", "-p", "-1", "-I", "4M", "--patience", "20000", "--servers", &servers];
        Memcached::start(&[&patient[..], &["-o", more]].concat())
    };
    let router = route(&format!("ssl_ca_cert={ca},ssl_chain_cert={chain},ssl_key={key}"));
    router.is_well();
    let place = [router.tcp.ip().to_string(), router.tcp.port().to_string()];
    python("cache_clients.py", &place);
    // One that trusts somebody else, and one that shows nothing, get nowhere and say so.
    std::fs::write(scratch.path("other.pem"), Authority::new().pem).unwrap();
    let other = scratch.path("other.pem").display().to_string();
    for wrong in [
        format!("ssl_ca_cert={other},ssl_chain_cert={chain},ssl_key={key}"),
        format!("ssl_ca_cert={ca}"),
    ] {
        route(&wrong).says(b"set k 0 0 1\r\nv\r\n", b"SERVER_ERROR");
    }
    let lacks = finish(binary().args(["route", "--servers", &servers, "-o", "ssl_key=x"]), b"");
    lacks.refused(&["ssl_chain_cert"]);
}
