//! Certificates of nodes that this program starts itself, to try things out or to measure: a CA in
//! a directory, and what nodes on this machine are given of it.

use holdfast_base::{Error, Result};
use holdfast_cert::{Authority, Serial, Wanted, new_authority};
use holdfast_env::{Clock, RealClock, RealRng, Rng, local};
use std::path::{Path, PathBuf};

/// In a data directory.
pub const TLS: &str = "tls";
/// The file of whom to trust, in such a directory and in that of the CA.
pub const CA: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
/// How nodes on this machine are reached.
const HOSTS: [&str; 2] = ["127.0.0.1", "localhost"];
/// Longer than a node warns of before its end.
const DAYS: u32 = 365;
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A CA in a directory.
pub struct Issuer {
    directory: PathBuf,
    authority: Authority,
    ca: Vec<u8>,
}

/// What a node is given.
pub struct NodeCertificate {
    /// The certificate as PEM.
    pub chain: Vec<u8>,
    /// Its key as PEM.
    pub key: Vec<u8>,
    /// The CA as PEM.
    pub authorities: Vec<u8>,
}

fn now_s() -> i64 {
    (RealClock::new().unix_ms() / 1000) as i64
}

fn random() -> Serial {
    let mut serial = Serial::default();
    for piece in serial.chunks_mut(8) {
        piece.copy_from_slice(&RealRng.next_u64().to_le_bytes()[..piece.len()]);
    }
    serial
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    local::write_private(file, bytes)
        .map_err(|e| Error::from(e).context(format_args!("write `{}`", file.display())))
}

fn make_directory(directory: &Path) -> Result<()> {
    local::make_private_dir(directory)
        .map_err(|e| Error::from(e).context(format_args!("make `{}`", directory.display())))
}

impl Issuer {
    /// The CA in `directory`, made if there is none.
    pub fn open(directory: &Path, cluster: &str) -> Result<Issuer> {
        make_directory(directory)?;
        let read = |name: &str| local::read_small(&directory.join(name), FILE_BYTES_MAX);
        let (ca, key) = match (read(CA), read(CA_KEY)) {
            (Ok(ca), Ok(key)) => (ca, key),
            _ => {
                let made = new_authority(cluster, DAYS, now_s(), random())?;
                let (ca, key) = (made.certificate.pem().into_bytes(), made.key.pem().to_vec());
                write(&directory.join(CA_KEY), &key)?;
                write(&directory.join(CA), &ca)?;
                (ca, key)
            }
        };
        let authority = Authority::load(&ca, &key)?;
        Ok(Issuer { directory: directory.to_owned(), authority, ca })
    }

    /// A certificate for a node that is reached on this machine.
    pub fn issue(&self, name: &str) -> Result<NodeCertificate> {
        let wanted = Wanted::node(self.authority.cluster(), name, &HOSTS.map(str::to_owned))?;
        let node = self.authority.issue(&wanted, None, now_s(), random())?;
        Ok(NodeCertificate {
            chain: node.certificate.pem().into_bytes(),
            key: node.key.pem().to_vec(),
            authorities: self.ca.clone(),
        })
    }

    /// Gives the data directory of a node what it lacks. One that was erased gets another name: the
    /// one that it had belongs to the node that is gone.
    pub fn equip(&self, data: &Path, name: &str) -> Result<()> {
        let tls = data.join(TLS);
        if local::read_small(&tls.join("node.pem"), FILE_BYTES_MAX).is_ok() {
            return Ok(());
        }
        let file = |name: &str| self.directory.join(format!("{name}.pem"));
        let is_free = |name: &String| local::read_small(&file(name), FILE_BYTES_MAX).is_err();
        let mut names =
            std::iter::once(name.to_owned()).chain((2..).map(|n| format!("{name}.{n}")));
        let name = names.find(is_free).expect("there are numbers without end");
        let issued = self.issue(&name)?;
        make_directory(&tls)?;
        write(&tls.join("node.key"), &issued.key)?;
        write(&tls.join(CA), &issued.authorities)?;
        write(&file(&name), &issued.chain)?;
        // Last: with it the node has everything.
        write(&tls.join("node.pem"), &issued.chain)
    }
}
