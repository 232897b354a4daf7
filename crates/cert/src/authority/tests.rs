//! What is issued, for how long, and a renewal of the authority in two steps.

use super::*;
use crate::issue::new_authority;
use crate::{PeerName, Role, SKEW_S, check, key_fits};
use holdfast_base::Kind;

const NOW: i64 = 1_800_000_000;

fn made(days: u32) -> (Issued, Authority) {
    let made = new_authority("prod", days, NOW, [7; 16]).unwrap();
    let pem = made.certificate.pem();
    let authority = Authority::load(pem.as_bytes(), made.key.pem()).unwrap();
    (made, authority)
}

fn node() -> Wanted {
    let hosts = ["N1.Example", "10.0.0.1", "::1", "n1.example", "*.s3.example"];
    Wanted::node("prod", "n1", &hosts.map(str::to_owned)).unwrap()
}

#[test]
fn a_node_gets_its_names_both_usages_and_a_year() {
    let (_, authority) = made(AUTHORITY_DAYS);
    let issued = authority.issue(&node(), None, NOW, [0xff; 16]).unwrap();
    let found = &issued.certificate;
    let certified = found.certified.clone().unwrap();
    assert_eq!(certified.who, PeerName::new("prod", Role::Node, "n1").unwrap());
    assert_eq!(certified.serial, format!("7f{}", "ff".repeat(15)), "16 bytes, positive");
    assert_eq!(found.hosts, ["n1.example", "10.0.0.1", "::1", "*.s3.example"]);
    assert!(found.for_servers && found.for_clients && !found.is_authority);
    assert_eq!(found.not_before_s, NOW - SKEW_S);
    assert_eq!(found.not_after_s, NOW + 397 * DAY_S);
    assert!(!issued.is_cut);
    assert!(found.is_signed_by(authority.own()) && authority.knows(found));
    assert!(key_fits(found, issued.key.pem()).unwrap());
    assert_eq!(found.subject, "CN=n1");
}

#[test]
fn a_client_serves_nobody() {
    let (_, authority) = made(AUTHORITY_DAYS);
    let wanted = Wanted::client("prod", "backup").unwrap();
    let issued = authority.issue(&wanted, Some(1), NOW, [0; 16]).unwrap();
    let found = &issued.certificate;
    let certified = found.certified.clone().unwrap();
    assert_eq!(certified.who.to_string(), "spiffe://prod/client/backup");
    assert_eq!(certified.serial.len(), 32, "16 bytes even of nothing but zeros");
    assert!(found.for_clients && !found.for_servers && found.hosts.is_empty());
    assert_eq!(found.not_after_s, NOW + DAY_S);
}

#[test]
fn keys_are_new_each_time_and_shown_by_nothing() {
    let (ca, authority) = made(AUTHORITY_DAYS);
    let [a, b] = [1, 2].map(|n| authority.issue(&node(), None, NOW, [n; 16]).unwrap());
    assert_ne!(a.key.pem(), b.key.pem());
    assert!(!key_fits(&a.certificate, b.key.pem()).unwrap());
    assert_eq!(format!("{:?}", a.key), "PrivateKey");
    for (text, key) in [(format!("{ca:?} {authority:?}"), &ca.key), (format!("{a:?}"), &a.key)] {
        let key = std::str::from_utf8(key.pem()).unwrap();
        assert!(key.lines().all(|line| !text.contains(line)), "{text}");
    }
}

#[test]
fn no_certificate_outlives_its_authority() {
    let (_, authority) = made(100);
    let last = authority.own().not_after_s;
    assert_eq!(last, NOW + 100 * DAY_S);
    let cut = authority.issue(&node(), None, NOW, [1; 16]).unwrap();
    assert!(cut.is_cut && cut.certificate.not_after_s == last);
    let whole = authority.issue(&node(), Some(100), NOW, [1; 16]).unwrap();
    assert!(!whole.is_cut && whole.certificate.not_after_s == last);
    let refused = authority.issue(&node(), Some(101), NOW, [1; 16]).expect_err("too long");
    assert_eq!(refused.kind, Kind::Invalid);
    assert!(refused.message.contains("give 100 at most"), "{refused}");
    let refused = authority.issue(&node(), None, last + 1, [1; 16]).expect_err("ended");
    assert!(refused.message.contains("has ended on"), "{refused}");
    authority.issue(&node(), None, last, [1; 16]).expect("its last second");
    let refused = authority.issue(&node(), Some(1), last, [1; 16]).expect_err("no day left");
    assert!(refused.message.contains(": renew the CA"), "{refused}");
    let refused = authority.issue(&node(), None, NOW - SKEW_S - 1, [1; 16]).expect_err("early");
    assert!(refused.message.contains("set this machine's clock"), "{refused}");
}

/// The machine that issues may have a clock behind the one that made the authority.
#[test]
fn no_certificate_begins_before_its_authority() {
    let (_, authority) = made(100);
    let issued = authority.issue(&node(), None, NOW - SKEW_S / 2, [1; 16]).unwrap();
    assert_eq!(issued.certificate.not_before_s, authority.own().not_before_s);
}

#[test]
fn an_authority_is_taken_up_with_its_own_key_alone() {
    let (ca, _) = made(100);
    let (other, _) = made(100);
    let pem = ca.certificate.pem();
    let refused = |bundle: &str, key: &[u8], why: &str| {
        let refused = Authority::load(bundle.as_bytes(), key).expect_err(why);
        assert!(refused.message.contains(why), "`{why}` is missing in: {refused}");
        assert_eq!(refused.kind, Kind::Invalid);
    };
    refused(&pem, other.key.pem(), "fits none of the CA's certificates");
    refused(&pem, b"", "no private key");
    refused(&pem, pem.as_bytes(), "no private key");
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";
    refused(&pem, locked.as_bytes(), "password");
    refused("", ca.key.pem(), "no certificate");
    let half = format!("-----BEGIN CERTIFICATE-----\n{}", "A".repeat(64));
    refused(&half, ca.key.pem(), "cut or damaged");
    refused(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ca.key.pem(),
        "certificate 1 of it",
    );
    // A leaf's own key fits it, and makes no authority of it.
    let (_, authority) = made(100);
    let leaf = authority.issue(&node(), None, NOW, [1; 16]).unwrap();
    refused(&leaf.certificate.pem(), leaf.key.pem(), "is not the CA of a cluster");
}

#[test]
fn names_that_break_the_rules_and_those_of_other_clusters_are_refused() {
    let (_, authority) = made(100);
    let elsewhere = Wanted::client("test", "c").unwrap();
    let refused = authority.issue(&elsewhere, None, NOW, [1; 16]).expect_err("another cluster");
    assert!(refused.message.contains("another cluster"), "{refused}");
    for host in ["", ".", "n1:7400", "n1.", "-x", "10.0.0.256", "a b", "*.", "a.*.b", "[::1]", "ü"]
    {
        let refused = Wanted::node("prod", "n1", &[host.to_owned()]).expect_err(host);
        assert!(refused.message.contains(&format!("`{host}` is no host")), "{refused}");
    }
    let refused = Wanted::node("prod", "n1", &[]).expect_err("nowhere");
    assert!(refused.message.contains("--host"), "{refused}");
    for cluster in ["", "Prod", "a/b", "ü", &"c".repeat(176)] {
        let refused = new_authority(cluster, 1, NOW, [1; 16]).expect_err(cluster);
        assert!(refused.message.contains("no name for a cluster"), "{refused}");
    }
}

#[test]
fn a_renewed_certificate_has_the_same_names_and_another_key() {
    let (_, authority) = made(AUTHORITY_DAYS);
    let old = authority.issue(&node(), None, NOW, [1; 16]).unwrap();
    let again = Wanted::again(&old.certificate).unwrap();
    assert_eq!(again, node());
    let later = NOW + 380 * DAY_S;
    let new = authority.issue(&again, None, later, [2; 16]).unwrap();
    assert_eq!(new.certificate.hosts, old.certificate.hosts);
    assert_eq!(new.certificate.not_after_s, later + 397 * DAY_S);
    assert_ne!(new.key.pem(), old.key.pem());
    let (ca, _) = made(100);
    let refused = Wanted::again(&ca.certificate).expect_err("an authority");
    assert_eq!(refused.kind, Kind::Denied);
}

/// Both authorities are trusted while certificates are renewed, and the old one is not forgotten
/// before the last of them.
#[test]
fn an_authority_is_renewed_in_two_steps_and_locks_nobody_out() {
    let (_, old) = made(100);
    let leaf = old.issue(&node(), None, NOW, [1; 16]).unwrap();
    let client = Wanted::client("prod", "c").unwrap();
    let second = old.issue(&client, None, NOW, [2; 16]).unwrap();

    let later = NOW + 50 * DAY_S;
    let (made, bundle) = old.renew(None, later, [3; 16]).unwrap();
    let new = Authority::load(bundle.as_bytes(), made.key.pem()).unwrap();
    assert_eq!(new.bundle().certificates().len(), 2);
    assert_eq!(new.own().not_after_s, later + 3650 * DAY_S);
    assert_ne!(new.own().subject, old.own().subject);
    let refused = new.renew(None, later, [4; 16]).expect_err("one after the other");
    assert!(refused.kind == Kind::Exists && refused.message.contains("--forget-old"), "{refused}");

    // Everybody trusts both.
    let renewed = new.issue(&node(), None, later, [5; 16]).unwrap();
    for certificate in [&leaf.certificate, &second.certificate, &renewed.certificate] {
        let file = Bundle::of_pem(certificate.pem().as_bytes()).unwrap();
        let checked = check(&file, None, Some(new.bundle()), later);
        assert_eq!(checked[0].problems, [""; 0]);
    }

    let in_use = [("n1.pem", &renewed.certificate), ("c.pem", &second.certificate)];
    let refused = new.forget(in_use).expect_err("the client's is of the old one");
    assert!(refused.kind == Kind::Exists && refused.message.contains("`c.pem`"), "{refused}");
    let client = new.issue(&client, None, later, [6; 16]).unwrap();
    let stranger = self::made(100).1.issue(&node(), None, NOW, [7; 16]).unwrap();
    let in_use = [
        ("n1.pem", &renewed.certificate),
        ("c.pem", &client.certificate),
        ("not-ours.pem", &stranger.certificate),
    ];
    let left = new.forget(in_use).unwrap().expect("the old one is forgotten");
    let left = Authority::load(left.as_bytes(), made.key.pem()).unwrap();
    assert_eq!(left.bundle().certificates().len(), 1);
    assert!(left.knows(&renewed.certificate) && !left.knows(&leaf.certificate));
    assert_eq!(left.forget([]).unwrap(), None, "nothing to forget");
}

/// Killed between the certificates and the key: the old key still signs, nothing is lost, and the
/// renewal is begun again, or taken back.
#[test]
fn a_renewal_that_was_interrupted_is_no_harm() {
    let (ca, old) = made(100);
    let (_, bundle) = old.renew(None, NOW, [3; 16]).unwrap();
    let between = Authority::load(bundle.as_bytes(), ca.key.pem()).unwrap();
    assert_eq!(between.own().subject, old.own().subject);
    let leaf = between.issue(&node(), None, NOW, [1; 16]).unwrap();
    assert!(leaf.certificate.is_signed_by(old.own()));

    let (made, bundle) = between.renew(None, NOW, [4; 16]).unwrap();
    let new = Authority::load(bundle.as_bytes(), made.key.pem()).unwrap();
    let subjects: Vec<&str> =
        new.bundle().certificates().iter().map(|c| c.subject.as_str()).collect();
    assert_eq!(subjects, [&made.certificate.subject, &old.own().subject]);

    let back = between.forget([("n1.pem", &leaf.certificate)]).unwrap().unwrap();
    let back = Authority::load(back.as_bytes(), ca.key.pem()).unwrap();
    assert!(back.knows(&leaf.certificate));
}
