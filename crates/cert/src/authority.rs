//! A cluster's own authority: the certificates that the cluster trusts and the key that signs for
//! one of them. While it is renewed there are several certificates, in this order: the newest
//! first. Pure; files are its caller's.

use crate::issue::{self, Issued, Serial, Wanted};
use crate::read::{self, Bundle, Certificate};
use crate::{AUTHORITY_DAYS, DAY_S, LEAF_DAYS, SKEW_S};
use holdfast_base::text::utc;
use holdfast_base::{Error, Result};
use rcgen::{Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use std::fmt;

/// What signs, and whom the cluster trusts.
pub struct Authority {
    bundle: Bundle,
    /// The certificate that the key belongs to: the first, but where a renewal was interrupted.
    own: usize,
    cluster: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Never the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({})", self.own().subject)
    }
}

impl Authority {
    /// Takes up an authority from the certificates that are trusted and the key, both PEM.
    /// `Invalid` where they do not belong together, or were not made for a cluster.
    pub fn load(bundle: &[u8], key: &[u8]) -> Result<Authority> {
        let bundle = Bundle::of_pem(bundle).map_err(|e| e.context("read the CA's certificates"))?;
        let doing = |e: Error| e.context("read the CA's key");
        let mut own = None;
        for (at, certificate) in bundle.certificates().iter().enumerate() {
            if own.is_none() && read::key_fits(certificate, key).map_err(doing)? {
                own = Some(at);
            }
        }
        let Some(own) = own else {
            return Err(Error::invalid(
                "the CA's key fits none of the CA's certificates: put back the one that was made with it",
            ));
        };
        let certificate = &bundle.certificates()[own];
        let Some(cluster) = certificate.cluster.clone().filter(|_| certificate.is_authority) else {
            return Err(Error::invalid(format!(
                "`{}` is not the CA of a cluster, which has one URI, `spiffe://CLUSTER`: issue certificates with the tools of that CA",
                certificate.subject
            )));
        };
        let PrivateKeyDer::Pkcs8(key) = read::private_key(key).map_err(doing)? else {
            return Err(doing(Error::invalid("it is not in PKCS#8's form: convert it")));
        };
        let key = KeyPair::try_from(&key)
            .map_err(|_| doing(Error::invalid("it cannot sign: use one that `cert init` makes")))?;
        let issuer = Issuer::from_ca_cert_der(&certificate.der, key).map_err(issue::failed)?;
        Ok(Authority { own, cluster, issuer, bundle })
    }

    /// The trust domain of the cluster.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// The certificate in whose name this signs.
    pub fn own(&self) -> &Certificate {
        &self.bundle.certificates()[self.own]
    }

    /// All certificates that the cluster trusts.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// Whether one of the authorities that the cluster trusts has signed this.
    pub fn knows(&self, certificate: &Certificate) -> bool {
        self.bundle.certificates().iter().any(|authority| certificate.is_signed_by(authority))
    }

    /// Issues a certificate with a new key. Without `days` it is valid as long as usual, or until
    /// its authority ends; with `days` beyond that end it is refused, and so it is under an
    /// authority that is not valid now.
    pub fn issue(
        &self,
        wanted: &Wanted,
        days: Option<u32>,
        now_s: i64,
        random: Serial,
    ) -> Result<Issued> {
        if wanted.who.cluster != self.cluster {
            return Err(Error::invalid(format!(
                "`{}` is of another cluster than the CA, which is that of `{}`: name the directory of its own CA",
                wanted.who, self.cluster
            )));
        }
        let (not_before_s, not_after_s, is_cut) = self.lifetime(days, now_s)?;
        let mut params = wanted.params()?;
        params.serial_number = Some(issue::serial(random));
        params.not_before = issue::moment(not_before_s)?;
        params.not_after = issue::moment(not_after_s)?;
        let key = issue::new_key()?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(issue::failed)?;
        Ok(Issued { is_cut, ..issue::issued(&certificate, &key)? })
    }

    /// From when until when, and whether that was cut.
    fn lifetime(&self, days: Option<u32>, now_s: i64) -> Result<(i64, i64, bool)> {
        let (first_s, last_s) = (self.own().not_before_s, self.own().not_after_s);
        if now_s > last_s {
            return Err(Error::invalid(format!(
                "the CA has ended on {}: make its successor with `holdfast cert init --renew`",
                utc(last_s, ' ')
            )));
        }
        if now_s < first_s {
            return Err(Error::invalid(format!(
                "the CA begins on {}: set this machine's clock",
                utc(first_s, ' ')
            )));
        }
        let end_s = now_s + i64::from(days.unwrap_or(LEAF_DAYS)) * DAY_S;
        // What is valid before its authority is trusted by nobody any sooner.
        let begin_s = (now_s - SKEW_S).max(first_s);
        match (end_s <= last_s, days) {
            (true, _) => Ok((begin_s, end_s, false)),
            (false, None) => Ok((begin_s, last_s, true)),
            (false, Some(days)) => {
                let most = match (last_s - now_s) / DAY_S {
                    0 => String::new(),
                    most => format!("give {most} at most, or "),
                };
                Err(Error::invalid(format!(
                    "{days} days are more than the CA has left, which ends on {}: {most}renew the CA with `holdfast cert init --renew`",
                    utc(last_s, ' ')
                )))
            }
        }
    }

    /// Step one of a renewal: a successor with a new key, and the certificates to trust from now
    /// on, the successor in front. `Exists` while the renewal before is not finished.
    pub fn renew(&self, days: Option<u32>, now_s: i64, random: Serial) -> Result<(Issued, String)> {
        // Certificates in front of ours are of a renewal that was interrupted before their key
        // was written: they have signed nothing, and make way.
        let kept = &self.bundle.certificates()[self.own..];
        if self.own == 0 && kept.len() > 1 {
            return Err(Error::exists(
                "the renewal before is not finished: renew what the old CA has signed, then run `holdfast cert init --forget-old`",
            ));
        }
        let days = days.unwrap_or(AUTHORITY_DAYS);
        let issued = issue::new_authority(&self.cluster, days, now_s, random)?;
        let all = std::iter::once(&issued.certificate).chain(kept);
        let bundle = all.map(Certificate::pem).collect();
        Ok((issued, bundle))
    }

    /// Step two: the certificates to trust when the others are forgotten. `leaves` are the
    /// certificates that are in use, with their files' names; `Exists` while one of them would not
    /// be trusted any more. Nothing where there are no others.
    pub fn forget<'a>(
        &self,
        leaves: impl IntoIterator<Item = (&'a str, &'a Certificate)>,
    ) -> Result<Option<String>> {
        let others: Vec<&Certificate> = self.others().collect();
        for (file, leaf) in leaves {
            if !leaf.is_signed_by(self.own()) && others.iter().any(|other| leaf.is_signed_by(other))
            {
                return Err(Error::exists(format!(
                    "`{file}` is still signed by the old CA and would be trusted by nobody: run `holdfast cert renew {file}`, or remove it if nobody uses it"
                )));
            }
        }
        Ok((!others.is_empty()).then(|| self.own().pem()))
    }

    /// The certificates that are trusted and are not this key's.
    fn others(&self) -> impl Iterator<Item = &Certificate> {
        let all = self.bundle.certificates().iter().enumerate();
        all.filter(|(at, _)| *at != self.own).map(|(_, certificate)| certificate)
    }
}

#[cfg(test)]
mod tests;
