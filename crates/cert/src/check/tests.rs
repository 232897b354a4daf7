//! Each thing that can be wrong with a certificate, by its sentence; and certificates of other
//! makers.

use super::*;
use crate::{AUTHORITY_DAYS, Authority, Issued, Wanted, new_authority};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

const NOW: i64 = 1_800_000_000;

fn authority(cluster: &str, days: u32) -> Authority {
    let made = new_authority(cluster, days, NOW, [7; 16]).unwrap();
    Authority::load(made.certificate.pem().as_bytes(), made.key.pem()).unwrap()
}

fn node(authority: &Authority) -> Issued {
    let wanted = Wanted::node(authority.cluster(), "n1", &["n1.example".to_owned()]).unwrap();
    authority.issue(&wanted, None, NOW, [1; 16]).unwrap()
}

fn bundle(pem: &str) -> Bundle {
    Bundle::of_pem(pem.as_bytes()).unwrap()
}

#[track_caller]
fn finds(checked: &Checked, problem: &str) {
    let all = checked.problems.join("; ");
    assert!(all.contains(problem), "`{problem}` is missing in: {all}");
}

#[test]
fn a_good_pair_has_no_problem_until_its_last_second() {
    let authority = authority("prod", AUTHORITY_DAYS);
    let issued = node(&authority);
    let file = issued.bundle().unwrap();
    let at =
        |now_s| check(&file, Some(issued.key.pem()), Some(authority.bundle()), now_s).remove(0);
    let (first, last) = (issued.certificate.not_before_s, issued.certificate.not_after_s);
    let good = at(NOW);
    assert_eq!((good.days_left, good.key_fits, good.is_trusted), (397, Some(true), Some(true)));
    assert!(good.problems.is_empty() && good.warnings.is_empty(), "{good:?}");
    assert!(at(first).problems.is_empty());
    assert!(at(last).problems.is_empty());
    assert!(at(last - WARN_DAYS * DAY_S).warnings.is_empty());
    let soon = at(last - WARN_DAYS * DAY_S + 1);
    assert!(soon.problems.is_empty() && soon.warnings[0].contains("ends in 29 days"), "{soon:?}");
    finds(&at(first - 1), "it begins on");
    finds(&at(last + 1), "it has ended on");
    // Its dates hide nothing of the rest.
    assert_eq!(at(last + 1).is_trusted, Some(true));
    assert_eq!(at(last + 1).problems.len(), 1);
}

#[test]
fn another_key_another_authority_and_another_cluster_are_told() {
    let own = authority("prod", AUTHORITY_DAYS);
    let (same_cluster, other) = (authority("prod", 100), authority("test", 100));
    let (issued, stranger) = (node(&own), node(&own));
    let file = issued.bundle().unwrap();
    let checked = check(&file, Some(stranger.key.pem()), None, NOW).remove(0);
    finds(&checked, "the key does not fit it");
    assert_eq!((checked.key_fits, checked.is_trusted), (Some(false), None));
    finds(&check(&file, Some(b"none"), None, NOW)[0], "no private key");
    let checked = check(&file, None, Some(same_cluster.bundle()), NOW).remove(0);
    assert_eq!((checked.problems.len(), checked.is_trusted), (1, Some(false)), "{checked:?}");
    finds(&checked, "the CA has not signed it");
    let checked = check(&file, None, Some(other.bundle()), NOW).remove(0);
    finds(&checked, "for the cluster `prod`, and the CA is that of `test`");
    // Signed, but with a byte changed since.
    let mut der = issued.certificate.der.to_vec();
    let last = der.len() - 1;
    der[last] ^= 1;
    let bad = Certificate::of_der(&der).unwrap();
    let checked = check(&bundle(&bad.pem()), None, Some(own.bundle()), NOW).remove(0);
    finds(&checked, "the CA has not signed it");
}

#[test]
fn the_end_of_an_authority_is_the_end_of_what_it_signed() {
    // A foreign authority may sign what outlives it.
    let ca = foreign_ca(NOW + 10 * DAY_S);
    let leaf = foreign_leaf(&ca, |_| {});
    let trusted = bundle(&ca.pem());
    assert!(check(&leaf, None, Some(&trusted), NOW)[0].problems.is_empty());
    let checked = check(&leaf, None, Some(&trusted), NOW + 11 * DAY_S).remove(0);
    finds(&checked, "its CA");
    assert_eq!(checked.is_trusted, Some(false));
}

fn moment(seconds: i64) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(seconds).unwrap()
}

fn foreign_params(name: &str, end_s: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = moment(NOW - DAY_S);
    params.not_after = moment(end_s);
    params
}

type Foreign = CertifiedIssuer<'static, KeyPair>;

fn foreign_ca(end_s: i64) -> Foreign {
    let params = foreign_params("Some Company", end_s);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A node's certificate as another authority makes it, but for what `spoil` does.
fn foreign_leaf(ca: &Foreign, spoil: impl FnOnce(&mut CertificateParams)) -> Bundle {
    let mut params = foreign_params("n1", NOW + 300 * DAY_S);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = vec![
        SanType::DnsName("n1.example".try_into().unwrap()),
        SanType::URI("spiffe://prod/node/n1".try_into().unwrap()),
    ];
    spoil(&mut params);
    let key = KeyPair::generate().unwrap();
    bundle(&params.signed_by(&key, ca).unwrap().pem())
}

#[test]
fn certificates_of_other_makers_are_good_if_they_say_what_is_needed() {
    let ca = foreign_ca(NOW + 1000 * DAY_S);
    let trusted = bundle(&ca.pem());
    let checked = |spoil: fn(&mut CertificateParams)| {
        check(&foreign_leaf(&ca, spoil), None, Some(&trusted), NOW).remove(0)
    };
    assert_eq!(checked(|_| {}).problems, [""; 0]);
    assert_eq!(checked(|p| p.extended_key_usages.clear()).problems, [""; 0], "for everything");
    let usages =
        |checked: &Checked, usage: &str| finds(checked, &format!("lacks the usage {usage}"));
    usages(&checked(|p| p.extended_key_usages.truncate(1)), "clientAuth");
    usages(&checked(|p| drop(p.extended_key_usages.remove(0))), "serverAuth");
    finds(&checked(|p| drop(p.subject_alt_names.remove(0))), "names no host");
    finds(&checked(|p| drop(p.subject_alt_names.remove(1))), "has 0 URIs");
    finds(
        &checked(|p| p.subject_alt_names[1] = SanType::URI("spiffe://prod/n1".try_into().unwrap())),
        "is no identity",
    );
    // A client needs no host and serves nobody.
    let client = checked(|p| {
        p.extended_key_usages.remove(0);
        p.subject_alt_names = vec![SanType::URI("spiffe://prod/client/c".try_into().unwrap())];
    });
    assert_eq!(client.problems, [""; 0]);
}

#[test]
fn a_chain_leads_to_the_authority_and_is_missed() {
    let root = foreign_ca(NOW + 1000 * DAY_S);
    let key = KeyPair::generate().unwrap();
    let middle = Foreign::signed_by(foreign_params("Middle", NOW + 500 * DAY_S), key, &root);
    let middle = middle.unwrap();
    let leaf = foreign_leaf(&middle, |_| {});
    let trusted = bundle(&root.pem());
    finds(&check(&leaf, None, Some(&trusted), NOW)[0], "the CA has not signed it, but `");
    let chain = bundle(&(leaf.first().pem() + &middle.pem()));
    let checked = check(&chain, None, Some(&trusted), NOW);
    assert_eq!(checked.len(), 2);
    assert!(checked.iter().all(|checked| checked.problems.is_empty()), "{checked:?}");
    let late = check(&chain, None, Some(&trusted), NOW + 501 * DAY_S);
    finds(&late[1], "has ended on");
}

#[test]
fn authorities_are_checked_for_their_dates_and_key() {
    let made = new_authority("prod", 10, NOW, [7; 16]).unwrap();
    let file = made.bundle().unwrap();
    let checked = check(&file, Some(made.key.pem()), None, NOW).remove(0);
    assert!(checked.problems.is_empty() && checked.warnings.len() == 1, "{checked:?}");
    finds(&check(&file, None, None, NOW + 11 * DAY_S)[0], "it has ended on");
}

#[test]
fn files_of_too_many_certificates_are_refused() {
    let pem = node(&authority("prod", 100)).certificate.pem();
    assert_eq!(bundle(&pem.repeat(crate::CERTIFICATES_MAX)).certificates().len(), 64);
    let refused = Bundle::of_pem(pem.repeat(65).as_bytes()).expect_err("too many");
    assert!(refused.message.contains("more than 64"), "{refused}");
}
