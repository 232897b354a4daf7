//! Issuing: what a certificate of a cluster's authority, a node or a client says, and how long.
//! Every decision about it is here; who may ask for it is decided by who can read the key.

use crate::name::{self, PeerName, Role};
use crate::{Bundle, Certificate, DAY_S};
use holdfast_base::text::to_hex;
use holdfast_base::{Error, Result};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::pki_types::DnsName;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use time::OffsetDateTime;

/// How long an authority is valid unless told otherwise: ten years.
pub const AUTHORITY_DAYS: u32 = 3650;
/// How long the certificate of a node or client is valid unless told otherwise: a year and a month
/// to renew it in.
pub const LEAF_DAYS: u32 = 397;
/// The longest time that may be asked for: a century.
pub const DAYS_MAX: u32 = 36_500;
/// So long before it is issued a certificate becomes valid: clocks differ, and a machine whose
/// clock is behind would refuse one that begins now.
pub const SKEW_S: i64 = 3600;

/// 16 random bytes that become a serial number.
pub type Serial = [u8; 16];

/// A private key as PEM (PKCS#8). It is shown by nothing but [`PrivateKey::pem`].
pub struct PrivateKey(String);

impl PrivateKey {
    /// For the file that its owner alone may read.
    pub fn pem(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Never the key.
impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

/// A certificate that was made, with its key.
#[derive(Debug)]
pub struct Issued {
    /// What was signed.
    pub certificate: Certificate,
    /// Its key, drawn for it.
    pub key: PrivateKey,
    /// Whether it ends sooner than usual, because its authority does.
    pub is_cut: bool,
}

/// A host that clients connect to: a name of DNS in lower case, whose first label may be `*`, or
/// an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// `n1.example.com`, `*.s3.example.com`.
    Dns(String),
    /// Of version 4 or 6.
    Ip(IpAddr),
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Host> {
        if let Ok(address) = text.parse() {
            return Ok(Host::Ip(address));
        }
        let name = text.to_ascii_lowercase();
        let below = name.strip_prefix("*.").unwrap_or(&name);
        match DnsName::try_from(below).is_ok() && !name.ends_with('.') {
            true => Ok(Host::Dns(name)),
            false => Err(Error::invalid(format!(
                "`{text}` is no host: give a name of DNS or an address, without a port"
            ))),
        }
    }
}

/// Who a certificate is for, and where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Who.
    pub who: PeerName,
    /// A node's, at least one; a client has none.
    pub hosts: Vec<Host>,
}

impl Wanted {
    /// For a node. `Invalid` without a host, or with a name that breaks the rules.
    pub fn node(cluster: &str, name: &str, hosts: &[String]) -> Result<Wanted> {
        let who = PeerName::new(cluster, Role::Node, name)?;
        let mut wanted = Wanted { who, hosts: Vec::new() };
        for host in hosts {
            let host: Host = host.parse()?;
            if !wanted.hosts.contains(&host) {
                wanted.hosts.push(host);
            }
        }
        match wanted.hosts.is_empty() {
            true => Err(Error::invalid("a node needs a host at which it is reached: give --host")),
            false => Ok(wanted),
        }
    }

    /// For a client. `Invalid` with a name that breaks the rules.
    pub fn client(cluster: &str, name: &str) -> Result<Wanted> {
        Ok(Wanted { who: PeerName::new(cluster, Role::Client, name)?, hosts: Vec::new() })
    }

    /// The same names as a certificate that was issued here has.
    pub fn again(certificate: &Certificate) -> Result<Wanted> {
        let certified = certificate.certified.clone()?;
        if certificate.has_other_names {
            return Err(Error::unsupported(
                "it has names of kinds that are not issued here: renew it where it was made",
            ));
        }
        let hosts = certificate.hosts.iter().map(|host| host.parse()).collect::<Result<_>>()?;
        Ok(Wanted { who: certified.who, hosts })
    }

    pub(crate) fn params(&self) -> Result<CertificateParams> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, self.who.name.as_str());
        params.subject_alt_names.push(SanType::URI(ia5(&self.who.to_string())?));
        for host in &self.hosts {
            params.subject_alt_names.push(match host {
                Host::Dns(name) => SanType::DnsName(ia5(name)?),
                Host::Ip(address) => SanType::IpAddress(*address),
            });
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match self.who.role {
            // A node asks other nodes, too.
            Role::Node => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Role::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        // Tells the old authority from the new one while both are trusted.
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

fn ia5(text: &str) -> Result<Ia5String> {
    Ia5String::try_from(text).map_err(|e| Error::bug(format!("write `{text}` as IA5: {e}")))
}

/// What the library could not do: nothing that who asks can mend.
pub(crate) fn failed(e: rcgen::Error) -> Error {
    Error::bug(format!("make a certificate: {e}"))
}

/// Positive, and always of 16 bytes.
pub(crate) fn serial(mut random: Serial) -> SerialNumber {
    random[0] = random[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&random)
}

/// Seconds since 1970 as the library wants them.
pub(crate) fn moment(seconds: i64) -> Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(seconds)
        .map_err(|_| Error::invalid("the clock says a year that no certificate can: set it"))
}

/// A new key, which servers and browsers of all kinds can use: ECDSA on P-256.
pub(crate) fn new_key() -> Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)
}

pub(crate) fn issued(certificate: &rcgen::Certificate, key: &KeyPair) -> Result<Issued> {
    let certificate = Certificate::of_der(certificate.der())
        .map_err(|e| Error::bug(format!("read a certificate that was just made: {e}")))?;
    Ok(Issued { certificate, key: PrivateKey(key.serialize_pem()), is_cut: false })
}

/// The certificate and key of a new authority for a cluster, signed by itself. `random` becomes
/// its serial number and part of its name, which tells it from the one that it may replace.
pub fn new_authority(cluster: &str, days: u32, now_s: i64, random: Serial) -> Result<Issued> {
    name::check_cluster(cluster)?;
    let mut params = CertificateParams::default();
    let serial = serial(random);
    let number = to_hex(&serial.as_ref()[..6]);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Holdfast CA {number}"));
    params.subject_alt_names.push(SanType::URI(ia5(&name::cluster_uri(cluster))?));
    params.serial_number = Some(serial);
    // It signs leaves and no other authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = moment(now_s - SKEW_S)?;
    params.not_after = moment(now_s + i64::from(days) * DAY_S)?;
    let key = new_key()?;
    issued(&params.self_signed(&key).map_err(failed)?, &key)
}

impl Issued {
    /// The certificate as the only one of a file.
    pub fn bundle(&self) -> Result<Bundle> {
        Bundle::of_pem(self.certificate.pem().as_bytes())
    }
}
