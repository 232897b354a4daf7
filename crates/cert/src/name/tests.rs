//! Identities against a plain model of their rules, with sizes at the borders; certificates with
//! every kind of alternative name; bytes that are none.

use super::*;
use holdfast_base::Kind;
use holdfast_base::random::Random;
use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType};
use std::sync::OnceLock;

fn key() -> &'static KeyPair {
    static KEY: OnceLock<KeyPair> = OnceLock::new();
    KEY.get_or_init(|| KeyPair::generate().unwrap())
}

/// Tag and bytes of an alternative name, whatever they are.
type Entry<'a> = (u8, &'a [u8]);

/// The extension as DER has it.
fn names_of(entries: &[Entry<'_>]) -> CustomExtension {
    let length = |bytes: usize| match bytes {
        0..0x80 => vec![bytes as u8],
        0x80..0x100 => vec![0x81, bytes as u8],
        _ => vec![0x82, (bytes >> 8) as u8, bytes as u8],
    };
    let mut inner = Vec::new();
    for (tag, bytes) in entries {
        inner.push(*tag);
        inner.extend(length(bytes.len()));
        inner.extend_from_slice(bytes);
    }
    let content = [vec![0x30], length(inner.len()), inner].concat();
    CustomExtension::from_oid_content(&[2, 5, 29, 17], content)
}

const URI: u8 = 0x86;
const DNS: u8 = 0x82;

fn certificate(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut params = CertificateParams::default();
    if !entries.is_empty() {
        params.custom_extensions.push(names_of(entries));
    }
    params.self_signed(key()).unwrap().der().to_vec()
}

fn who(entries: &[Entry<'_>]) -> Result<PeerName> {
    PeerName::of_certificate(&certificate(entries)).map(|certified| certified.who)
}

/// The rules once more, without a thought for speed.
fn model(bytes: &[u8]) -> Option<(String, Role, String)> {
    let text = String::from_utf8(bytes.to_vec()).ok()?;
    let parts: Vec<&str> = text.split('/').collect();
    if text.len() > 255 || parts.len() != 5 || parts[0] != "spiffe:" || !parts[1].is_empty() {
        return None;
    }
    let cluster_has = "abcdefghijklmnopqrstuvwxyz0123456789.-_";
    let name_has = cluster_has.to_owned() + "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let (cluster, name) = (parts[2], parts[4]);
    let role = match parts[3] {
        "node" => Role::Node,
        "client" => Role::Client,
        _ => return None,
    };
    let is_of = |text: &str, has: &str| !text.is_empty() && text.chars().all(|c| has.contains(c));
    let fits = is_of(cluster, cluster_has) && is_of(name, &name_has) && name.len() < 64;
    (fits && name != "." && name != "..").then(|| (cluster.to_owned(), role, name.to_owned()))
}

fn word(random: &mut Random, bytes: usize) -> String {
    const LETTERS: &[u8] = b"abcxyz019.-_";
    (0..bytes).map(|_| LETTERS[random.below(LETTERS.len() as u64) as usize] as char).collect()
}

/// An identity that is right, with sizes at the borders, and in two of three cases spoiled.
fn drawn(random: &mut Random) -> Vec<u8> {
    let sizes = [0, 1, 2, 3, 62, 63, 64];
    let name = sizes[random.below(sizes.len() as u64) as usize];
    let role = ["node", "client"][random.below(2) as usize];
    let rest = "spiffe:///".len() + role.len() + 1 + name;
    let clusters = [0, 1, 10, 254 - rest, 255 - rest, 256 - rest];
    let cluster = clusters[random.below(clusters.len() as u64) as usize];
    let (cluster, name) = (word(random, cluster), word(random, name));
    let mut uri = format!("spiffe://{cluster}/{role}/{name}").into_bytes();
    let spoils = [b'A', b'Z', b'%', b'/', b':', b'?', b'#', b'@', b' ', 0, 0x7f, 0x80, 0xff, b'a'];
    for _ in 0..random.below(3) {
        let at = random.below(uri.len() as u64) as usize;
        let spoil = spoils[random.below(spoils.len() as u64) as usize];
        match random.below(3) {
            0 => uri[at] = spoil,
            1 => uri.insert(at, spoil),
            _ => drop(uri.remove(at)),
        }
    }
    uri
}

#[test]
fn identities_are_read_as_the_plain_rules_say() {
    let mut random = Random::new(1);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let uri = drawn(&mut random);
        let Ok(text) = std::str::from_utf8(&uri) else { continue };
        let read = PeerName::parse(text);
        match model(&uri) {
            Some((cluster, role, name)) => {
                taken += 1;
                let read = read.unwrap();
                assert_eq!(read, PeerName { cluster, role, name }, "{text:?}");
                assert_eq!(read.to_string(), text, "one spelling");
            }
            None => {
                refused += 1;
                assert_eq!(read.expect_err(text).kind, Kind::Denied, "{text:?}");
            }
        }
    }
    assert!(taken > 10_000 && refused > 10_000, "{taken} taken, {refused} refused");
}

#[test]
fn certificates_are_read_as_the_plain_rules_say() {
    let mut random = Random::new(2);
    for _ in 0..1000 {
        let uri = drawn(&mut random);
        let read = who(&[(DNS, b"n1.example"), (URI, &uri)]);
        match model(&uri) {
            Some((cluster, role, name)) => {
                assert_eq!(read.unwrap(), PeerName { cluster, role, name }, "{uri:?}");
            }
            None => assert_eq!(read.expect_err("spoiled").kind, Kind::Denied, "{uri:?}"),
        }
    }
}

#[test]
fn one_identity_and_nothing_that_could_be_another() {
    let good: Entry<'_> = (URI, b"spiffe://prod/node/n1");
    assert_eq!(who(&[good]).unwrap().to_string(), "spiffe://prod/node/n1");
    let cases: &[(&str, &[Entry<'_>])] = &[
        ("has 0 URIs", &[]),
        ("has 0 URIs", &[(DNS, b"spiffe://prod/node/n1")]),
        ("has 2 URIs", &[good, good]),
        ("has 2 URIs", &[good, (URI, b"https://example.com")]),
        ("cannot be read", &[good, (URI, b"\xff\xfe")]),
        ("cannot be read", &[good, (DNS, b"\xff\xfe")]),
        ("is no identity", &[(URI, b"")]),
        ("is no identity", &[(URI, b"https://prod/node/n1")]),
        ("is no identity", &[(URI, b"SPIFFE://prod/node/n1")]),
        ("is no identity", &[(URI, b"spiffe://Prod/node/n1")]),
        ("is no identity", &[(URI, b"spiffe://prod:1/node/n1")]),
        ("is no identity", &[(URI, b"spiffe://a@prod/node/n1")]),
        ("is no identity", &[(URI, b"spiffe://prod/Node/n1")]),
        ("is no identity", &[(URI, b"spiffe://prod/admin/n1")]),
        ("is no identity", &[(URI, b"spiffe://prod/node/")]),
        ("is no identity", &[(URI, b"spiffe://prod/node")]),
        ("is no identity", &[(URI, b"spiffe:///node/n1")]),
        ("is no identity", &[(URI, b"spiffe://prod")]),
        ("is no identity", &[(URI, b"spiffe://prod/node/n1/")]),
        ("is no identity", &[(URI, b"spiffe://prod/node/n1/more")]),
        ("is no identity", &[(URI, b"spiffe://prod/node/..")]),
        ("is no identity", &[(URI, b"spiffe://prod/node/n%31")]),
        ("is no identity", &[(URI, b"spiffe://prod/node/n1?x")]),
        ("is no identity", &[(URI, b"spiffe://prod/node/n1\0")]),
        ("is no identity", &[(URI, "spiffe://prod/node/n\u{0661}".as_bytes())]),
    ];
    for (why, entries) in cases {
        let refused = who(entries).expect_err(why);
        assert_eq!(refused.kind, Kind::Denied, "{refused}");
        assert!(refused.message.contains(why), "`{why}` is missing in: {refused}");
    }
}

#[test]
fn alternative_names_that_are_there_twice_are_refused() {
    let mut params = CertificateParams::default();
    params.subject_alt_names.push(SanType::URI("spiffe://prod/node/n1".try_into().unwrap()));
    params.custom_extensions.push(names_of(&[(URI, b"spiffe://prod/node/n2")]));
    let der = params.self_signed(key()).unwrap().der().to_vec();
    let refused = PeerName::of_certificate(&der).expect_err("two extensions");
    assert!(refused.kind == Kind::Denied && refused.message.contains("twice"), "{refused}");
}

#[test]
fn a_refusal_shows_little_of_what_a_peer_has_sent_and_nothing_that_a_terminal_obeys() {
    let uri = format!("spiffe://\u{1b}[2J{}", "x".repeat(5000));
    let refused = who(&[(URI, uri.as_bytes())]).expect_err("too long");
    assert!(refused.message.len() < 400, "{refused}");
    assert!(!refused.message.contains('\u{1b}'), "{refused}");
}

#[test]
fn serial_numbers_have_one_spelling() {
    let serial = |bytes: &[u8]| {
        let mut params = CertificateParams::default();
        params.custom_extensions.push(names_of(&[(URI, b"spiffe://prod/client/c")]));
        params.serial_number = Some(rcgen::SerialNumber::from_slice(bytes));
        let der = params.self_signed(key()).unwrap().der().to_vec();
        PeerName::of_certificate(&der).map(|certified| certified.serial)
    };
    assert_eq!(serial(&[0x0a]).unwrap(), "0a");
    assert_eq!(serial(&[0x7f, 0xBC]).unwrap(), "7fbc");
    assert_eq!(serial(&[0x80, 1]).unwrap(), "8001", "without DER's byte of zeros");
    assert_eq!(serial(&[0xff; 20]).unwrap(), "ff".repeat(20));
    assert_eq!(serial(&[0x11; 21]).expect_err("21 bytes").kind, Kind::Denied);
}

#[test]
fn bytes_that_are_no_certificate_are_refused_and_never_more() {
    let good = certificate(&[(DNS, b"n1"), (URI, b"spiffe://prod/node/n1")]);
    PeerName::of_certificate(&good).unwrap();
    for cut in 0..good.len() {
        let refused = PeerName::of_certificate(&good[..cut]).expect_err("cut");
        assert_eq!(refused.kind, Kind::Denied);
    }
    let more = [&good[..], &[0]].concat();
    assert_eq!(PeerName::of_certificate(&more).expect_err("more").kind, Kind::Denied);
    let long = vec![0x30; crate::CERTIFICATE_BYTES_MAX + 1];
    let refused = PeerName::of_certificate(&long).expect_err("long");
    assert!(refused.message.contains("65536 at most"), "{refused}");
}

/// Whatever a peer sends is read or refused: nothing panics, and nothing is read as another name
/// than its bytes have.
#[test]
fn damaged_certificates_never_panic() {
    let good = certificate(&[(DNS, b"n1"), (0x87, b"abcd"), (URI, b"spiffe://prod/node/n1")]);
    PeerName::of_certificate(&good).unwrap();
    let mut random = Random::new(3);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(5) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.next() as u8,
                2 => bytes[at] = [0, 1, 0x7f, 0x80, 0x81, 0x84, 0xff][random.below(7) as usize],
                3 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random.next() as u8),
            }
        }
        let _ = crate::Certificate::of_der(&bytes);
        match PeerName::of_certificate(&bytes) {
            Ok(certified) => {
                read += 1;
                let uri = certified.who.to_string().into_bytes();
                assert!(bytes.windows(uri.len()).any(|found| found == uri));
                assert!(model(&uri).is_some());
            }
            Err(e) => {
                refused += 1;
                assert_eq!(e.kind, Kind::Denied, "{e}");
            }
        }
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
        assert!(PeerName::of_certificate(&bytes).is_err());
    }
    // Lengths within lengths, as deep as they go.
    let deep = [0x30, 0x80].repeat(crate::CERTIFICATE_BYTES_MAX / 2);
    assert!(PeerName::of_certificate(&deep).is_err());
}

#[test]
fn names_that_somebody_chooses_follow_the_same_rules() {
    for (cluster, name, fits) in [
        ("prod", "n1", true),
        ("prod.eu-1_a", "A.b-c_9", true),
        ("prod", "", false),
        ("prod", "a/b", false),
        ("prod", "..", false),
        ("prod", "ü", false),
        ("", "n1", false),
        ("Prod", "n1", false),
    ] {
        let made = PeerName::new(cluster, Role::Client, name);
        assert_eq!(made.is_ok(), fits, "{cluster} {name}: {made:?}");
        let parsed = PeerName::parse(&format!("spiffe://{cluster}/client/{name}"));
        assert_eq!(parsed.ok(), made.ok(), "{cluster} {name}");
    }
    let longest =
        PeerName::new(&"c".repeat(CLUSTER_BYTES_MAX), Role::Client, &"n".repeat(NAME_BYTES_MAX));
    assert_eq!(longest.unwrap().to_string().len(), URI_BYTES_MAX);
    assert!(check_cluster(&"c".repeat(CLUSTER_BYTES_MAX + 1)).is_err());
}
