//! Reading certificates, of any maker: one certificate's facts, files of several, and whether a
//! key is a certificate's. Total: arbitrary bytes give a refusal.

use crate::name::{self, Certified, PeerName};
use holdfast_base::{Error, Result};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fmt::Write;
use std::net::IpAddr;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// The longest certificate that is read: ten times what one with many names has.
pub const CERTIFICATE_BYTES_MAX: usize = 64 << 10;
/// The most certificates that are read from one file.
pub const CERTIFICATES_MAX: usize = 64;
/// The longest serial number (RFC 5280, 4.1.2.2).
const SERIAL_BYTES_MAX: usize = 20;

/// The certificate that these bytes are, all of them.
pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>> {
    if der.len() > CERTIFICATE_BYTES_MAX {
        return Err(Error::denied(format!(
            "it has {} bytes, of {CERTIFICATE_BYTES_MAX} at most: use one with fewer names",
            der.len()
        )));
    }
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err(Error::denied("these bytes are no X.509 certificate: issue another one")),
    }
}

fn alternative_names<'a, 'b>(
    certificate: &'b X509Certificate<'a>,
) -> Result<&'b [GeneralName<'a>]> {
    match certificate.subject_alternative_name() {
        Ok(Some(extension)) => Ok(&extension.value.general_names),
        Ok(None) => Ok(&[]),
        Err(_) => Err(Error::denied("its alternative names cannot be read, or are there twice")),
    }
}

/// The one identity of a certificate.
pub(crate) fn certified(certificate: &X509Certificate<'_>) -> Result<Certified> {
    let mut uris = Vec::new();
    for name in alternative_names(certificate)? {
        match name {
            GeneralName::URI(uri) => uris.push(*uri),
            // One that is not UTF-8 might be an identity to somebody else.
            GeneralName::Invalid(..) => {
                return Err(Error::denied("one of its alternative names cannot be read"));
            }
            _ => {}
        }
    }
    let [uri] = uris[..] else {
        return Err(Error::denied(format!(
            "it has {} URIs as alternative names: it must have one, `spiffe://CLUSTER/node/NAME` or `spiffe://CLUSTER/client/NAME`",
            uris.len()
        )));
    };
    Ok(Certified {
        who: PeerName::parse(uri)?,
        serial: serial(certificate)?,
        not_before_s: certificate.validity().not_before.timestamp(),
        not_after_s: certificate.validity().not_after.timestamp(),
    })
}

/// In one spelling, for it is compared with lists of those that were revoked.
fn serial(certificate: &X509Certificate<'_>) -> Result<String> {
    let raw = certificate.raw_serial();
    let bytes = match raw {
        // DER's byte in front of a number whose first bit is set.
        [0, rest @ ..] if rest.first().is_some_and(|first| first & 0x80 != 0) => rest,
        [first, ..] if first & 0x80 == 0 => raw,
        _ => &[],
    };
    if bytes.is_empty() || bytes.len() > SERIAL_BYTES_MAX || (bytes.len() > 1 && bytes[0] == 0) {
        return Err(Error::denied(format!(
            "its serial number is no positive number of 1 to {SERIAL_BYTES_MAX} bytes"
        )));
    }
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// One certificate and what it says.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub(crate) der: CertificateDer<'static>,
    /// Whom it names, as a distinguished name.
    pub subject: String,
    /// Who says that they have signed it.
    pub issuer: String,
    /// Who it is for in a cluster, with its serial number; or why that cannot be said.
    pub certified: Result<Certified>,
    /// The cluster, where this is the certificate of a cluster's authority.
    pub cluster: Option<String>,
    /// Names of DNS and addresses, as text, for which a client would take it.
    pub hosts: Vec<String>,
    /// Whether it has alternative names of other kinds than those of hosts and one URI.
    pub has_other_names: bool,
    /// Whether it may sign other certificates.
    pub is_authority: bool,
    /// Whether a server may show it.
    pub for_servers: bool,
    /// Whether a client may show it.
    pub for_clients: bool,
    /// The first second in which it is valid, since 1970.
    pub not_before_s: i64,
    /// The last second in which it is valid, since 1970.
    pub not_after_s: i64,
}

impl Certificate {
    /// Reads one (DER). `Denied` where the bytes are no certificate.
    pub fn of_der(der: &[u8]) -> Result<Certificate> {
        let parsed = parse(der)?;
        let names = alternative_names(&parsed)?;
        let (mut hosts, mut others, mut uris) = (Vec::new(), 0, Vec::new());
        for name in names {
            match name {
                GeneralName::DNSName(name) => hosts.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => match address(bytes) {
                    Some(address) => hosts.push(address.to_string()),
                    None => others += 1,
                },
                GeneralName::URI(uri) => uris.push(*uri),
                _ => others += 1,
            }
        }
        let cluster = match uris[..] {
            [uri] => name::cluster_of(uri).map(str::to_owned),
            _ => None,
        };
        let usage = parsed
            .extended_key_usage()
            .map_err(|_| Error::denied("what it is for cannot be read, or is there twice"))?;
        let constraints = parsed
            .basic_constraints()
            .map_err(|_| Error::denied("whether it may sign cannot be read, or is there twice"))?;
        Ok(Certificate {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            certified: certified(&parsed),
            cluster,
            hosts,
            has_other_names: others > 0 || uris.len() > 1,
            is_authority: constraints.is_some_and(|found| found.value.ca),
            // Without the extension it is for everything (RFC 5280, 4.2.1.12).
            for_servers: usage.as_ref().is_none_or(|usage| usage.value.server_auth),
            for_clients: usage.as_ref().is_none_or(|usage| usage.value.client_auth),
            not_before_s: parsed.validity().not_before.timestamp(),
            not_after_s: parsed.validity().not_after.timestamp(),
            der: CertificateDer::from(der.to_vec()),
        })
    }

    /// The bytes.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// As a file has it.
    pub fn pem(&self) -> String {
        pem::encode_config(
            &pem::Pem::new("CERTIFICATE", self.der.to_vec()),
            pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
        )
    }

    /// Whether the key of `authority` has signed this.
    pub fn is_signed_by(&self, authority: &Certificate) -> bool {
        let (Ok(own), Ok(above)) = (parse(&self.der), parse(&authority.der)) else { return false };
        own.issuer().as_raw() == above.subject().as_raw()
            && own.verify_signature(Some(above.public_key())).is_ok()
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The certificates of one file of PEM, at least one, in its order: a leaf and what signed it, or
/// authorities.
#[derive(Clone, Debug)]
pub struct Bundle(Vec<Certificate>);

impl Bundle {
    /// Reads all certificates of a file and passes over everything else in it, e.g. a key.
    /// `Invalid` where there is none, or too many, or one is none.
    pub fn of_pem(bytes: &[u8]) -> Result<Bundle> {
        let mut certificates = Vec::new();
        for der in CertificateDer::pem_slice_iter(bytes) {
            // What the library says quotes the file, which may hold a key.
            let der = der.map_err(|_| {
                Error::invalid("its PEM is cut or damaged: give the file as it was made")
            })?;
            if certificates.len() == CERTIFICATES_MAX {
                return Err(Error::invalid(format!(
                    "it has more than {CERTIFICATES_MAX} certificates: leave those that are needed"
                )));
            }
            let number = certificates.len() + 1;
            let read = Certificate::of_der(&der).map_err(|e| {
                Error::invalid(e.message).context(format_args!("certificate {number} of it"))
            })?;
            certificates.push(read);
        }
        match certificates.is_empty() {
            true => Err(Error::invalid("there is no certificate in it: give one as PEM")),
            false => Ok(Bundle(certificates)),
        }
    }

    /// All of them.
    pub fn certificates(&self) -> &[Certificate] {
        &self.0
    }

    /// The one in front, which a key belongs to.
    pub fn first(&self) -> &Certificate {
        &self.0[0]
    }
}

/// The first private key of a file of PEM. What is wrong is said without a byte of the file.
pub(crate) fn private_key(key: &[u8]) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        let is_locked = key.windows(9).any(|word| word == b"ENCRYPTED");
        Error::invalid(match is_locked {
            true => {
                "the key is locked by a password: give one without, in a file of its owner's alone"
            }
            false => "there is no private key in it: give one as PEM",
        })
    })
}

/// Whether a key (PEM: PKCS#8, SEC 1 or PKCS#1) is this certificate's, as a server would see it.
/// `Invalid` where it is none, or of a kind that servers do not take.
pub fn key_fits(certificate: &Certificate, key: &[u8]) -> Result<bool> {
    let key = any_supported_type(&private_key(key)?).map_err(|_| {
        Error::invalid(
            "the key is of a kind that is not known: use ECDSA P-256, P-384, Ed25519 or RSA",
        )
    })?;
    Ok(CertifiedKey::new(vec![certificate.der.clone()], key).keys_match().is_ok())
}
