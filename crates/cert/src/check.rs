//! What is right and wrong with certificates, of any maker, before somebody relies on them: the
//! dates, the names, the signature, the key. Pure; `holdfast cert check` prints it.

use crate::DAY_S;
use crate::name::Role;
use crate::read::{Bundle, Certificate, key_fits};
use holdfast_base::text::utc;
use holdfast_base::{Error, Result};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore};
use std::sync::Arc;
use std::time::Duration;

/// With fewer days left than this there is a warning.
pub const WARN_DAYS: i64 = 30;

/// What was found of one certificate.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The certificate.
    pub certificate: Certificate,
    /// Whole days until it ends; below zero when it has ended.
    pub days_left: i64,
    /// Whether the key is its own; unknown without one.
    pub key_fits: Option<bool>,
    /// Whether the authority vouches for it; unknown without one, and for authorities.
    pub is_trusted: Option<bool>,
    /// What keeps it from being used, each the end of a sentence.
    pub problems: Vec<String>,
    /// What will.
    pub warnings: Vec<String>,
}

/// Checks the certificates of a file. The first is that of a peer, with its chain behind it, or
/// all are authorities. `key` (PEM) is the first one's; `trusted` are authorities.
pub fn check(
    bundle: &Bundle,
    key: Option<&[u8]>,
    trusted: Option<&Bundle>,
    now_s: i64,
) -> Vec<Checked> {
    let mut checked: Vec<Checked> =
        bundle.certificates().iter().map(|certificate| dates(certificate, now_s)).collect();
    let first = &mut checked[0];
    if let Some(key) = key {
        let fits = key_fits(&first.certificate, key);
        first.key_fits = Some(matches!(fits, Ok(true)));
        match fits {
            Ok(true) => {}
            Ok(false) => first.problems.push("the key does not fit it".to_owned()),
            Err(e) => first.problems.push(e.message),
        }
    }
    if !first.certificate.is_authority {
        names(first, trusted);
        if let Some(trusted) = trusted {
            trust(first, &bundle.certificates()[1..], trusted, now_s);
        }
    }
    checked
}

fn dates(certificate: &Certificate, now_s: i64) -> Checked {
    let (first_s, last_s) = (certificate.not_before_s, certificate.not_after_s);
    let (mut problems, mut warnings) = (Vec::new(), Vec::new());
    let days_left = last_s.saturating_sub(now_s).div_euclid(DAY_S);
    if now_s > last_s {
        problems.push(format!("it has ended on {}: renew it", utc(last_s, ' ')));
    } else if now_s < first_s {
        problems.push(format!("it begins on {}: wait, or set the clock", utc(first_s, ' ')));
    } else if days_left < WARN_DAYS {
        warnings.push(format!("it ends in {days_left} days, on {}: renew it", utc(last_s, ' ')));
    }
    let certificate = certificate.clone();
    Checked { certificate, days_left, key_fits: None, is_trusted: None, problems, warnings }
}

/// Whether it says what a node or client needs.
fn names(checked: &mut Checked, trusted: Option<&Bundle>) {
    let certificate = &checked.certificate;
    let who = match &certificate.certified {
        Ok(certified) => &certified.who,
        Err(e) => return checked.problems.push(e.message.clone()),
    };
    let clusters: Vec<&str> = trusted
        .into_iter()
        .flat_map(|bundle| bundle.certificates())
        .filter_map(|authority| authority.cluster.as_deref())
        .collect();
    if !clusters.is_empty() && !clusters.contains(&who.cluster.as_str()) {
        checked.problems.push(format!(
            "it is for the cluster `{}`, and the CA is that of `{}`",
            who.cluster, clusters[0]
        ));
    }
    if !certificate.for_clients {
        checked.problems.push("it is not for clients: it lacks the usage clientAuth".to_owned());
    }
    if who.role == Role::Node {
        if !certificate.for_servers {
            checked
                .problems
                .push("it is not for servers: it lacks the usage serverAuth".to_owned());
        }
        if certificate.hosts.is_empty() {
            checked.problems.push("it names no host at which the node is reached".to_owned());
        }
    }
}

/// Whether a server that trusts these authorities takes it.
fn trust(checked: &mut Checked, chain: &[Certificate], trusted: &Bundle, now_s: i64) {
    let verified = verify(&checked.certificate, chain, trusted, now_s);
    checked.is_trusted = Some(verified.is_ok());
    if let Err(e) = verified {
        return checked.problems.push(e.message);
    }
    // The library takes whatever it is told to trust, also past its end.
    let signer = |authority: &&Certificate| checked.certificate.is_signed_by(authority);
    if let Some(authority) = trusted.certificates().iter().find(signer)
        && now_s > authority.not_after_s
    {
        checked.is_trusted = Some(false);
        let end = utc(authority.not_after_s, ' ');
        checked.problems.push(format!("its CA `{}` has ended on {end}", authority.subject));
    }
}

fn verify(leaf: &Certificate, chain: &[Certificate], trusted: &Bundle, now_s: i64) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for authority in trusted.certificates() {
        roots.add(authority.der.clone()).map_err(|e| {
            Error::invalid(format!("`{}` cannot be trusted as a CA: {e}", authority.subject))
        })?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|e| Error::invalid(format!("the CA cannot be trusted: {e}")))?;
    let chain: Vec<CertificateDer<'_>> = chain.iter().map(|above| above.der.clone()).collect();
    // Its own dates are told apart from its signature, by who has called this.
    let at_s = now_s.clamp(leaf.not_before_s, leaf.not_after_s.max(leaf.not_before_s));
    let at = UnixTime::since_unix_epoch(Duration::from_secs(at_s.max(0) as u64));
    match verifier.verify_client_cert(&leaf.der, &chain, at) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        )) => Err(Error::denied(format!(
            "the CA has not signed it, but `{}`: give the certificate of that one",
            leaf.issuer
        ))),
        Err(e) => Err(Error::denied(format!("servers refuse it: {e}"))),
    }
}

#[cfg(test)]
mod tests;
