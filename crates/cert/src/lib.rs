//! Certificates. Who a peer is, as its certificate says it ([`PeerName::of_certificate`], which
//! servers call behind each handshake); and a small authority of a cluster's own, with what is
//! checked of certificates from anywhere (`holdfast cert`).
//!
//! Pure: bytes go in and come out, the time and serial numbers are arguments. Only keys are drawn
//! inside, by the library that makes them, from the kernel. No function opens a file.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod authority;
mod check;
mod issue;
mod name;
mod read;

pub use authority::Authority;
pub use check::{Checked, WARN_DAYS, check};
pub use issue::{
    AUTHORITY_DAYS, DAYS_MAX, Host, Issued, LEAF_DAYS, PrivateKey, SKEW_S, Serial, Wanted,
    new_authority,
};
pub use name::{CLUSTER_BYTES_MAX, Certified, NAME_BYTES_MAX, PeerName, Role, URI_BYTES_MAX};
pub use read::{Bundle, CERTIFICATE_BYTES_MAX, CERTIFICATES_MAX, Certificate, key_fits};

/// Seconds of a day.
pub const DAY_S: i64 = 86_400;
