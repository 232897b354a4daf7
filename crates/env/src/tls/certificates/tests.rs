//! Certificates are made here, so that none of them expires; nothing is read but what a test wrote.

use super::*;
use crate::rng::{Rng, SeededRng};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{ClientConnection, HandshakeKind, ServerConnection};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// A directory of a test's own, gone with it.
struct Directory(PathBuf);

/// Each file is written later than the one before, on whatever file system.
static WRITES: AtomicU64 = AtomicU64::new(1);

impl Directory {
    fn new(name: &str) -> Directory {
        let place = format!("holdfast-certificates-{name}-{}", std::process::id());
        let place = std::env::temp_dir().join(place);
        let _ = fs::remove_dir_all(&place);
        fs::create_dir_all(&place).unwrap();
        Directory(place)
    }

    fn files(&self) -> CertificateFiles {
        let [chain, key, authorities] =
            ["node.pem", "node.key", "ca.pem"].map(|name| self.0.join(name));
        CertificateFiles { chain, key, authorities, more: Vec::new() }
    }

    /// Writes a file in place, for its owner's eyes.
    fn put(&self, name: &str, text: &str) {
        let place = self.0.join(name);
        fs::write(&place, text).unwrap();
        fs::set_permissions(&place, Permissions::from_mode(0o600)).unwrap();
        let seconds = WRITES.fetch_add(1, Ordering::Relaxed);
        let file = File::options().write(true).open(&place).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    fn put_all(&self, identity: &Made, authority: &Made) {
        self.put("node.pem", &identity.chain);
        self.put("node.key", &identity.key);
        self.put("ca.pem", &authority.chain);
    }

    fn load(&self) -> Arc<Certificates> {
        Certificates::load(&self.files()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A certificate as its files.
struct Made {
    chain: String,
    key: String,
    der: CertificateDer<'static>,
}

struct Authority {
    made: Made,
    issuer: Issuer<'static, KeyPair>,
}

fn made(certificate: &rcgen::Certificate, key: &KeyPair) -> Made {
    let (chain, key) = (certificate.pem(), key.serialize_pem());
    Made { chain, key, der: certificate.der().clone() }
}

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let made = made(&certificate, &key);
    Authority { made, issuer: Issuer::new(params, key) }
}

impl Authority {
    fn sign(&self, name: &str) -> Made {
        self.sign_as(name, |_| ())
    }

    fn sign_as(&self, name: &str, with: impl FnOnce(&mut CertificateParams)) -> Made {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        with(&mut params);
        made(&params.signed_by(&key, &self.issuer).unwrap(), &key)
    }
}

/// Both sides, in memory, until neither has more to say.
fn talk(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), rustls::Error> {
    loop {
        let mut sent = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut sent).unwrap();
        }
        let mut bytes = sent.as_slice();
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            server.process_new_packets()?;
        }
        let mut back = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut back).unwrap();
        }
        if sent.is_empty() && back.is_empty() {
            return Ok(());
        }
        let mut bytes = back.as_slice();
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            client.process_new_packets()?;
        }
    }
}

fn shake(
    client: &Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.clone(), name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    talk(&mut client, &mut server).map(|()| (client, server))
}

/// Trusts `authority` and shows nothing.
fn stranger(authority: &Made) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der.clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
}

fn shown(client: &ClientConnection) -> CertificateDer<'static> {
    client.peer_certificates().unwrap()[0].clone().into_owned()
}

const IGNORED: ClientCertificates = ClientCertificates::Ignored;

/// What a file holds in the model: of the identities and authorities, whole, half of it, nothing,
/// or no file at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Whole(usize),
    Half(usize),
    Nothing,
    Absent,
}

impl Holds {
    fn draw(rng: &SeededRng, of: u64) -> Holds {
        match rng.next_u64() % 8 {
            0 => Holds::Half((rng.next_u64() % of) as usize),
            1 => Holds::Nothing,
            2 => Holds::Absent,
            _ => Holds::Whole((rng.next_u64() % of) as usize),
        }
    }

    fn put(self, directory: &Directory, name: &str, texts: &[&str]) {
        match self {
            Holds::Whole(i) => directory.put(name, texts[i]),
            Holds::Half(i) => directory.put(name, &texts[i][..texts[i].len() / 2]),
            Holds::Nothing => directory.put(name, ""),
            Holds::Absent => drop(fs::remove_file(directory.0.join(name))),
        }
    }
}

#[test]
fn whatever_order_files_are_replaced_in_a_whole_set_is_in_force() {
    let directory = Directory::new("model");
    let (first, second) = (authority(), authority());
    let identities = [first.sign("a.test"), first.sign("b.test"), second.sign("c.test")];
    let chains = identities.each_ref().map(|identity| identity.chain.as_str());
    let keys = identities.each_ref().map(|identity| identity.key.as_str());
    let authorities = [first.made.chain.as_str(), second.made.chain.as_str()];
    let rng = SeededRng::new(19);
    directory.put_all(&identities[0], &first.made);
    let certificates = directory.load();
    let mut holds = [Holds::Whole(0); 3];
    let (mut in_force, mut judged) = ((0, 0), holds);
    let (mut renewed, mut kept) = (0, 0);
    for step in 0..1000 {
        for _ in 0..rng.next_u64() % 3 {
            let file = (rng.next_u64() % 3) as usize;
            let (name, texts): (_, &[&str]) =
                [("node.pem", &chains[..]), ("node.key", &keys), ("ca.pem", &authorities)][file];
            holds[file] = Holds::draw(&rng, texts.len() as u64);
            holds[file].put(&directory, name, texts);
        }
        let whole = match holds {
            [Holds::Whole(chain), Holds::Whole(key), Holds::Whole(authority)] if chain == key => {
                Some((chain, authority))
            }
            _ => None,
        };
        // What is broken in another way than before is told of again, unless the sentence is the same.
        let refreshed = certificates.refresh();
        match (&refreshed, whole) {
            (Refreshed::Renewed, Some(whole)) => {
                assert_ne!(whole, in_force, "step {step}: nothing was renewed");
                in_force = whole;
                renewed += 1;
            }
            (Refreshed::Unchanged, Some(whole)) => assert_eq!(whole, in_force, "step {step}"),
            (Refreshed::Kept(_), None) => {
                assert_ne!(holds, judged, "step {step}: told twice");
                kept += 1;
            }
            (Refreshed::Unchanged, None) => {
                assert!(certificates.trouble().is_some(), "step {step}: {holds:?}")
            }
            _ => panic!("step {step}: {refreshed:?} of {holds:?}"),
        }
        judged = holds;
        assert_eq!(certificates.trouble().is_some(), whole.is_none(), "step {step}: {holds:?}");
        assert_eq!(certificates.leaf_der(), identities[in_force.0].der, "step {step}");
        assert!(matches!(certificates.refresh(), Refreshed::Unchanged), "step {step}: told twice");
    }
    assert!(renewed > 20 && kept > 100, "{renewed} {kept}: the test draws too little");
}

#[test]
fn a_connection_that_is_open_goes_on_and_the_next_one_sees_the_new_certificate() {
    let directory = Directory::new("open");
    let authority = authority();
    let (old, new) = (authority.sign("node.test"), authority.sign("node.test"));
    directory.put_all(&old, &authority.made);
    let certificates = directory.load();
    let config = certificates.server(&[b"http/1.1"], IGNORED, false);
    assert!(Arc::ptr_eq(&config, &certificates.server(&[b"http/1.1"], IGNORED, false)));
    assert!(!Arc::ptr_eq(&config, &certificates.server(&[], IGNORED, false)));
    let client = stranger(&authority.made);
    let (mut open, mut server) = shake(&client, config, "node.test").unwrap();
    assert_eq!(shown(&open), old.der);
    // As somebody who does not rename: first the certificate, then the key.
    directory.put("node.pem", &new.chain);
    assert!(matches!(certificates.refresh(), Refreshed::Kept(_)));
    let meanwhile = certificates.server(&[], IGNORED, false);
    let fresh = stranger(&authority.made);
    assert_eq!(shown(&shake(&fresh, meanwhile, "node.test").unwrap().0), old.der);
    directory.put("node.key", &new.key);
    assert!(matches!(certificates.refresh(), Refreshed::Renewed));
    let renewed = certificates.server(&[], IGNORED, false);
    let fresh = stranger(&authority.made);
    assert_eq!(shown(&shake(&fresh, renewed, "node.test").unwrap().0), new.der);
    io::Write::write_all(&mut open.writer(), b"still here").unwrap();
    talk(&mut open, &mut server).unwrap();
    let mut got = [0; 10];
    server.reader().read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still here");
}

#[test]
fn a_reload_keeps_sessions_while_the_authorities_stay() {
    let directory = Directory::new("resumed");
    let (authority, other) = (authority(), authority());
    directory.put_all(&authority.sign("node.test"), &authority.made);
    let certificates = directory.load();
    for only_1_3 in [true, false] {
        let client = stranger(&authority.made);
        let kind = || {
            let server = certificates.server(&[], IGNORED, only_1_3);
            shake(&client, server, "node.test").unwrap().0.handshake_kind().unwrap()
        };
        assert_eq!(kind(), HandshakeKind::Full);
        assert_eq!(kind(), HandshakeKind::Resumed);
        directory.put_all(&authority.sign("node.test"), &authority.made);
        assert!(matches!(certificates.refresh(), Refreshed::Renewed));
        assert_eq!(kind(), HandshakeKind::Resumed);
        directory.put_all(&authority.sign("node.test"), &other.made);
        assert!(matches!(certificates.refresh(), Refreshed::Renewed));
        assert_eq!(kind(), HandshakeKind::Full);
        directory.put_all(&authority.sign("node.test"), &authority.made);
        assert!(matches!(certificates.refresh(), Refreshed::Renewed));
    }
}

/// A ticket of a port that asks for no certificate would let its owner in where one is required.
#[test]
fn a_session_is_not_resumed_at_a_port_that_asks_for_more() {
    let directory = Directory::new("purposes");
    let authority = authority();
    directory.put_all(&authority.sign("node.test"), &authority.made);
    let certificates = directory.load();
    let client = stranger(&authority.made);
    for _ in 0..2 {
        shake(&client, certificates.server(&[], IGNORED, true), "node.test").unwrap();
    }
    let required = certificates.server(&[], ClientCertificates::Required, true);
    assert!(shake(&client, required, "node.test").is_err());
    let asked = certificates.server(&[], ClientCertificates::Asked, true);
    shake(&client, asked, "node.test").unwrap();
}

#[test]
fn nodes_show_who_they_are_and_trust_the_authorities_alone() {
    let (ours, theirs) = (Directory::new("ours"), Directory::new("theirs"));
    let (first, second) = (authority(), authority());
    ours.put_all(&first.sign("node.test"), &first.made);
    theirs.put_all(&second.sign("node.test"), &second.made);
    let (ours, theirs) = (ours.load(), theirs.load());
    let server = || ours.server(&[], ClientCertificates::Required, true);
    let (_, server_side) = shake(&ours.client(), server(), "node.test").unwrap();
    assert_eq!(server_side.peer_certificates().unwrap()[0], ours.leaf_der());
    assert!(shake(&theirs.client(), server(), "node.test").is_err());
    let theirs = theirs.server(&[], IGNORED, true);
    assert!(shake(&ours.client(), theirs, "node.test").is_err());
    assert!(shake(&ours.client(), server(), "other.test").is_err());
}

/// Each end of a handshake judges the other's, by its own clock: one whose clock is a year off refuses
/// what is good for everybody else.
#[test]
fn certificates_that_are_no_good_end_a_handshake_and_say_why() {
    let authority = authority();
    let good = Directory::new("judged-good");
    good.put_all(&authority.sign("node.test"), &authority.made);
    let good = good.load();
    let ends = |year| rcgen::date_time_ymd(year, 1, 1);
    type Change<'a> = Box<dyn Fn(&mut CertificateParams) + 'a>;
    let wrong: [(&str, Change<'_>, [&str; 2]); 5] = [
        (
            "ended",
            Box::new(|of| (of.not_before, of.not_after) = (ends(2019), ends(2020))),
            ["Expired", "Expired"],
        ),
        ("not begun", Box::new(|of| of.not_before = ends(2999)), ["NotValidYet", "NotValidYet"]),
        (
            "no client's",
            Box::new(|of| of.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            ["", "Purpose"],
        ),
        (
            "no server's",
            Box::new(|of| of.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
            ["Purpose", ""],
        ),
        // An authority is nobody.
        (
            "an authority",
            Box::new(|of| of.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            ["CaUsedAsEndEntity", "CaUsedAsEndEntity"],
        ),
    ];
    for (i, (what, change, whys)) in wrong.iter().enumerate() {
        let directory = Directory::new(&format!("judged-{i}"));
        directory.put_all(&authority.sign_as("node.test", change), &authority.made);
        let shown = directory.load();
        let server = shown.server(&[], IGNORED, true);
        let asks = good.server(&[], ClientCertificates::Required, true);
        let by_client = shake(&good.client(), server, "node.test");
        let by_server = shake(&shown.client(), asks, "node.test");
        for (by, done, why) in [("client", by_client, whys[0]), ("server", by_server, whys[1])] {
            match done {
                Ok(_) => assert_eq!(why, "", "{what}: let in by the {by}"),
                Err(e) => assert!(
                    !why.is_empty() && format!("{e:?}").contains(why),
                    "{what}, refused by the {by}: {e:?}"
                ),
            }
        }
    }
}

#[test]
fn the_name_that_a_client_asks_for_chooses_the_certificate() {
    let directory = Directory::new("names");
    let authority = authority();
    let (own, site) = (authority.sign("node.test"), authority.sign("*.s3.test"));
    directory.put_all(&own, &authority.made);
    directory.put("site.pem", &site.chain);
    directory.put("site.key", &site.key);
    let more = vec![directory.0.join("site.pem")];
    let files = CertificateFiles { more, ..directory.files() };
    let certificates = Certificates::load(&files).unwrap();
    let server = || certificates.server(&[], IGNORED, false);
    let client = stranger(&authority.made);
    assert_eq!(shown(&shake(&client, server(), "node.test").unwrap().0), own.der);
    assert_eq!(shown(&shake(&client, server(), "photos.s3.test").unwrap().0), site.der);
    // Who asks for another name, or for none, gets the first one, and judges it.
    assert!(shake(&client, server(), "a.photos.s3.test").is_err());
    let renewed = authority.sign("*.s3.test");
    directory.put("site.pem", &renewed.chain);
    directory.put("site.key", &renewed.key);
    assert!(matches!(certificates.refresh(), Refreshed::Renewed));
    let client = stranger(&authority.made);
    assert_eq!(shown(&shake(&client, server(), "photos.s3.test").unwrap().0), renewed.der);
    assert_eq!(certificates.leaf_der(), own.der);
}

#[test]
fn what_cannot_be_used_is_refused_by_its_name() {
    let directory = Directory::new("refused");
    let authority = authority();
    let (own, other) = (authority.sign("node.test"), authority.sign("node.test"));
    let whole = |directory: &Directory| directory.put_all(&own, &authority.made);
    let long = own.chain.repeat(CHAIN_MAX + 1);
    let huge = format!("{}\n{}", own.chain, "#".repeat(FILE_BYTES_MAX as usize));
    let two_keys = format!("{}{}", own.key, other.key);
    for (name, text, why) in [
        ("node.pem", "", "node.pem"),
        ("node.pem", own.key.as_str(), "node.pem"),
        ("node.pem", other.chain.as_str(), "not the certificate's"),
        ("node.pem", long.as_str(), "10 are the most"),
        ("node.pem", huge.as_str(), "256 KiB"),
        ("node.pem", &own.chain[..own.chain.len() / 2], "no PEM"),
        ("node.key", own.chain.as_str(), "private key"),
        ("node.key", two_keys.as_str(), "several private keys"),
        ("ca.pem", "nothing", "ca.pem"),
    ] {
        whole(&directory);
        directory.load();
        directory.put(name, text);
        let error = Certificates::load(&directory.files()).expect_err("it is wrong");
        assert!(error.message.contains(why), "{name}: {error}");
    }
    whole(&directory);
    let certificates = directory.load();
    let key = directory.0.join("node.key");
    for mode in [0o644, 0o640, 0o620] {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let error = Certificates::load(&directory.files()).expect_err("others can read it");
        assert!(error.message.contains("chmod 600"), "{error}");
        // Noticed without a write, and mended without one.
        assert!(matches!(certificates.refresh(), Refreshed::Kept(_)), "{mode:o}");
    }
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(certificates.refresh(), Refreshed::Unchanged));
    assert_eq!(certificates.trouble(), None);
    fs::remove_file(&key).unwrap();
    fs::create_dir(&key).unwrap();
    let error = Certificates::load(&directory.files()).expect_err("it is a directory");
    assert!(error.message.contains("node.key"), "{error}");
}
