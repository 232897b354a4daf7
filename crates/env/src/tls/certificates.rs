//! A node's certificates, shared by all of its ports: read from files, looked at again and again,
//! exchanged in one step when they were renewed. There is never a moment without a set in force: a
//! broken one (half a file, a key that does not fit) is told of and not used. Connections that are
//! open go on with what they began with.

use super::{ClientCertificates, client_verifier, pem, provider};
use crate::locks::HoldMutex;
use crate::planted;
use holdfast_base::{Error, Result};
use ring::digest;
use rustls::client::Resumption;
use rustls::crypto::ring as crypto;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoClientAuth, ParsedCertificate, ProducesTickets, ResolvesServerCert,
    ServerSessionMemoryCache, StoresServerSessions,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Of one chain: the longest that authorities hand out have four or five.
pub const CHAIN_MAX: usize = 10;
/// Of one file, the bundle of all authorities of a system included.
pub const FILE_BYTES_MAX: u64 = 256 << 10;
/// Sessions of TLS 1.2 that a port remembers by their numbers; those of tickets need no memory.
const SESSIONS: usize = 1024;
/// Permissions that a key's file must not have: those of a group and of others.
const NOT_THE_OWNERS: u32 = 0o077;

/// Where certificates are, each file in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The node's certificate, then those that lead to an authority.
    pub chain: PathBuf,
    /// The chain's key, which nobody but its owner may read.
    pub key: PathBuf,
    /// Whom this node believes when others show certificates.
    pub authorities: PathBuf,
    /// Further chains for other names of this server, each with its key beside it: `NAME.key` for
    /// `NAME.pem`.
    pub more: Vec<PathBuf>,
}

/// What a look at the files came to.
#[derive(Debug)]
pub enum Refreshed {
    /// Nothing to tell: the files are as they were, or again what is in force.
    Unchanged,
    /// New connections use a new set from now on.
    Renewed,
    /// The files changed, cannot be used, and what was in force stays so. Told once a change.
    Kept(Error),
}

/// The set in force, and the files that it came from.
pub struct Certificates {
    files: CertificateFiles,
    /// Held to make a configuration or to exchange the set, never while files are read.
    state: Mutex<State>,
    /// Held for a whole look at the files: two looks at once would judge one change twice.
    seen: Mutex<Seen>,
}

struct State {
    set: Set,
    /// Made when they are first asked for, anew after each exchange.
    servers: Vec<(Purpose, Arc<ServerConfig>)>,
    client: Option<Arc<ClientConfig>>,
    /// Outlive an exchange that leaves the authorities as they are.
    resumptions: Vec<(Purpose, Sessions)>,
    /// Why what lies in the files is not in force.
    trouble: Option<Error>,
    /// How often the authorities have changed.
    generation: u64,
}

/// What was read and judged as one. The first identity is the node's own.
struct Set {
    identities: Vec<Arc<CertifiedKey>>,
    authorities: Arc<RootCertStore>,
    asks: Arc<dyn ClientCertVerifier>,
    requires: Arc<dyn ClientCertVerifier>,
    /// Of the authorities, and of what leads from the certificates to theirs.
    authority: Digest,
}

/// What a port asks of a configuration. Sessions are resumed within one purpose only: a client that
/// showed no certificate where none was asked for must not be let in where one is required.
#[derive(Clone, PartialEq, Eq)]
struct Purpose {
    alpn: Vec<Vec<u8>>,
    clients: ClientCertificates,
    only_1_3: bool,
}

#[derive(Clone)]
struct Sessions {
    /// None if the machine gave no randomness: sessions are resumed by number then.
    tickets: Option<Arc<dyn ProducesTickets>>,
    store: Arc<dyn StoresServerSessions>,
}

type Digest = [u8; 32];

/// What tells that a file may have changed. The time of the last change of its node is among it, so
/// that a `chmod` and a copy that keeps times are noticed.
type Stamp = Option<(u64, i128, i128, u64, u64)>;

struct Seen {
    stamps: Vec<Stamp>,
    /// Of what was judged last.
    judged: Digest,
    /// Of what is in force.
    in_force: Digest,
    /// Whether all was read once more since the stamps changed: a file that is written twice within
    /// one tick of the file system's clock looks the same.
    settled: bool,
}

/// The files' bytes.
struct Contents {
    /// Chain and key of each identity.
    identities: Vec<(Vec<u8>, Vec<u8>)>,
    authorities: Vec<u8>,
}

impl Certificates {
    /// Reads and judges the files.
    ///
    /// `Invalid`, naming the file, if one of them is missing, too long, no PEM or readable by
    /// others, if a key does not fit its certificate, or if there is no authority.
    pub fn load(files: &CertificateFiles) -> Result<Arc<Certificates>> {
        let stamps = files.stamps();
        let contents = files.read()?;
        let judged = contents.digest();
        let set = files.judge(&contents)?;
        let seen = Seen { stamps, judged, in_force: judged, settled: false };
        let (servers, resumptions) = (Vec::new(), Vec::new());
        let (trouble, generation) = (None, 0);
        let state = State { set, servers, client: None, resumptions, trouble, generation };
        let (state, seen) = (Mutex::new(state), Mutex::new(seen));
        Ok(Arc::new(Certificates { files: files.clone(), state, seen }))
    }

    /// Where they come from.
    pub fn files(&self) -> &CertificateFiles {
        &self.files
    }

    /// For new connections of a port: ask again for each, so that renewed certificates are used.
    /// `alpn` are the protocols that it speaks, the best first; none for a port that does not ask.
    ///
    /// Sessions are resumed, by tickets whose keys change every six hours. A reload that leaves the
    /// authorities as they are goes on with those sessions; another one ends them. A resumed
    /// session has the client's certificate of its first handshake, which is not verified again:
    /// whoever revokes one has to look at each connection.
    pub fn server(
        &self,
        alpn: &[&[u8]],
        clients: ClientCertificates,
        only_1_3: bool,
    ) -> Arc<ServerConfig> {
        let mut state = self.state.held();
        let is_asked = |purpose: &Purpose| {
            purpose.alpn.iter().map(Vec::as_slice).eq(alpn.iter().copied())
                && (purpose.clients, purpose.only_1_3) == (clients, only_1_3)
        };
        if let Some((_, made)) = state.servers.iter().find(|(purpose, _)| is_asked(purpose)) {
            return made.clone();
        }
        let alpn = alpn.iter().map(|name| name.to_vec()).collect();
        let purpose = Purpose { alpn, clients, only_1_3 };
        let sessions = state.sessions(&purpose);
        let made = Arc::new(state.set.server(&purpose, sessions));
        state.servers.push((purpose, made.clone()));
        made
    }

    /// For connections to other nodes: TLS 1.3, trusts the authorities alone, shows the chain. It
    /// resumes sessions until the next reload.
    pub fn client(&self) -> Arc<ClientConfig> {
        let mut state = self.state.held();
        if let Some(made) = &state.client {
            return made.clone();
        }
        let made = Arc::new(state.set.client());
        state.client = Some(made.clone());
        made
    }

    /// The node's own certificate in force.
    pub fn leaf_der(&self) -> CertificateDer<'static> {
        self.state.held().set.identities[0].cert[0].clone()
    }

    /// How often the authorities have changed: whom a connection was made with may be believed no
    /// more since.
    pub fn generation(&self) -> u64 {
        self.state.held().generation
    }

    /// Why the newest files are not in force, as long as they are not.
    pub fn trouble(&self) -> Option<Error> {
        self.state.held().trouble.clone()
    }

    /// Looks at the files; reads all of them again if one has changed, and uses them if they are a
    /// whole.
    pub fn refresh(&self) -> Refreshed {
        self.refresh_if(&|_| Ok(()))
    }

    /// As [`Certificates::refresh`]; `fits` has the last word on the own certificate (DER).
    pub fn refresh_if(&self, fits: &dyn Fn(&[u8]) -> Result<()>) -> Refreshed {
        let mut seen = self.seen.held();
        // Before the files are read: a change behind this look shows at the next one.
        let stamps = self.files.stamps();
        let same = stamps == seen.stamps;
        if same && seen.settled {
            return Refreshed::Unchanged;
        }
        seen.settled = same;
        seen.stamps = stamps;
        let contents = self.files.read();
        let digest = match &contents {
            Ok(contents) => contents.digest(),
            Err(why) => digest_of(&[why.message.as_bytes()]),
        };
        if digest == seen.judged {
            return Refreshed::Unchanged;
        }
        seen.judged = digest;
        if digest == seen.in_force {
            self.state.held().trouble = None;
            return Refreshed::Unchanged;
        }
        let judged = contents.and_then(|contents| self.files.judge(&contents));
        let judged = judged.and_then(|set| {
            let doing = |e: Error| {
                e.context(format_args!("use the certificate `{}`", self.files.chain.display()))
            };
            fits(&set.identities[0].cert[0]).map_err(doing)?;
            Ok(set)
        });
        match judged {
            Ok(set) => {
                self.state.held().exchange(set);
                seen.in_force = digest;
                Refreshed::Renewed
            }
            Err(why) => {
                self.state.held().trouble = Some(why.clone());
                Refreshed::Kept(why)
            }
        }
    }
}

/// Keys are nobody's to print.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("files", &self.files).finish_non_exhaustive()
    }
}

impl State {
    fn exchange(&mut self, set: Set) {
        if set.authority != self.set.authority {
            self.resumptions.clear();
            self.generation += 1;
        }
        self.set = set;
        self.servers.clear();
        self.client = None;
        self.trouble = None;
    }

    fn sessions(&mut self, purpose: &Purpose) -> Sessions {
        let is_of = |of: &Purpose| of == purpose || planted!("tls.sessions-for-all-ports");
        if let Some((_, kept)) = self.resumptions.iter().find(|(of, _)| is_of(of)) {
            return kept.clone();
        }
        let made = Sessions {
            tickets: crypto::Ticketer::new().ok(),
            store: ServerSessionMemoryCache::new(SESSIONS),
        };
        self.resumptions.push((purpose.clone(), made.clone()));
        made
    }
}

impl Set {
    fn server(&self, purpose: &Purpose, sessions: Sessions) -> ServerConfig {
        let versions = match purpose.only_1_3 {
            true => &[&rustls::version::TLS13][..],
            false => rustls::ALL_VERSIONS,
        };
        let verifier = match purpose.clients {
            ClientCertificates::Ignored => Arc::new(NoClientAuth),
            ClientCertificates::Asked => self.asks.clone(),
            ClientCertificates::Required => self.requires.clone(),
        };
        let identities = Identities(self.identities.clone());
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .expect("the provider has suites for both versions")
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(identities));
        config.ignore_client_order = true;
        config.alpn_protocols = purpose.alpn.clone();
        config.session_storage = sessions.store;
        if let Some(tickets) = sessions.tickets {
            config.ticketer = tickets;
        }
        config
    }

    fn client(&self) -> ClientConfig {
        let own = SingleCertAndKey::from(self.identities[0].clone());
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites for TLS 1.3")
            .with_root_certificates(self.authorities.clone())
            .with_client_cert_resolver(Arc::new(own));
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        config
    }
}

/// Which certificate answers: the first one that is for the name that the client asks for, else the
/// first of all.
#[derive(Debug)]
struct Identities(Vec<Arc<CertifiedKey>>);

impl Identities {
    fn of_name(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = ServerName::try_from(name).ok()?;
        let is_for = |identity: &Arc<CertifiedKey>| {
            let parsed = ParsedCertificate::try_from(&identity.cert[0]);
            parsed.is_ok_and(|leaf| rustls::client::verify_server_name(&leaf, &name).is_ok())
        };
        self.0.iter().find(|identity| is_for(identity))
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = match self.0.len() {
            1 => None,
            _ => hello.server_name().and_then(|name| self.of_name(name)),
        };
        named.or_else(|| self.0.first()).cloned()
    }
}

impl CertificateFiles {
    /// Each identity's chain and key, the node's own first.
    fn identities(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> + '_ {
        let own = std::iter::once((self.chain.clone(), self.key.clone()));
        own.chain(self.more.iter().map(|chain| (chain.clone(), chain.with_extension("key"))))
    }

    fn stamps(&self) -> Vec<Stamp> {
        let stamp = |path: &Path| {
            let found = std::fs::metadata(path).ok()?;
            let time = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
            let written = time(found.mtime(), found.mtime_nsec());
            let changed = time(found.ctime(), found.ctime_nsec());
            Some((found.len(), written, changed, found.dev(), found.ino()))
        };
        let files = self.identities().flat_map(|(chain, key)| [chain, key]);
        files.chain([self.authorities.clone()]).map(|path| stamp(&path)).collect()
    }

    fn read(&self) -> Result<Contents> {
        let identities = self
            .identities()
            .map(|(chain, key)| Ok((read(&chain, Reader::Anybody)?, read(&key, Reader::Owner)?)))
            .collect::<Result<_>>()?;
        let authorities = read(&self.authorities, Reader::Anybody)?;
        Ok(Contents { identities, authorities })
    }

    fn judge(&self, contents: &Contents) -> Result<Set> {
        let mut identities = Vec::new();
        let mut leads = vec![contents.authorities.as_slice()];
        for ((chain, key), (chain_text, key_text)) in self.identities().zip(&contents.identities) {
            identities.push(Arc::new(identity((&chain, chain_text), (&key, key_text))?));
        }
        let of_chains = identities.iter().flat_map(|identity| &identity.cert[1..]);
        leads.extend(of_chains.map(|certificate| certificate.as_ref()));
        let authority = digest_of(&leads);
        let wrong = |e: &dyn fmt::Display| {
            let file = self.authorities.display();
            Error::invalid(format!("trust the authorities in `{file}`: {e}"))
        };
        let mut authorities = RootCertStore::empty();
        for found in pem(&contents.authorities, &self.authorities, "certificates of authorities")? {
            authorities.add(found).map_err(|e| wrong(&e))?;
        }
        let authorities = Arc::new(authorities);
        let verifier = |clients| {
            client_verifier(authorities.clone(), clients, provider()).map_err(|e| wrong(&e))
        };
        let asks = verifier(ClientCertificates::Asked)?;
        let requires = verifier(ClientCertificates::Required)?;
        Ok(Set { identities, authorities, asks, requires, authority })
    }
}

impl Contents {
    fn digest(&self) -> Digest {
        let identities = self.identities.iter().flat_map(|(chain, key)| [chain, key]);
        let all: Vec<&[u8]> = identities.chain([&self.authorities]).map(Vec::as_slice).collect();
        digest_of(&all)
    }
}

/// Of texts one after the other, each behind its length.
fn digest_of(texts: &[&[u8]]) -> Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    for text in texts {
        context.update(&(text.len() as u64).to_le_bytes());
        context.update(text);
    }
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// A chain with the key that fits its first certificate.
fn identity(chain: (&Path, &[u8]), key: (&Path, &[u8])) -> Result<CertifiedKey> {
    let certificates: Vec<CertificateDer<'static>> = pem(chain.1, chain.0, "certificates")?;
    if certificates.len() > CHAIN_MAX {
        return Err(Error::invalid(format!(
            "read the chain in `{}`: it has {} certificates, and {CHAIN_MAX} are the most: leave \
             out what does not lead from the first one to an authority",
            chain.0.display(),
            certificates.len()
        )));
    }
    let keys: Vec<PrivateKeyDer<'static>> = pem(key.1, key.0, "a private key")?;
    let mut keys = keys.into_iter();
    let (Some(found), None) = (keys.next(), keys.next()) else {
        let several = "there are several private keys: leave the one of the certificate";
        return Err(Error::invalid(format!("read `{}`: {several}", key.0.display())));
    };
    CertifiedKey::from_der(certificates, found, &provider()).map_err(|e| {
        let (chain, key) = (chain.0.display(), key.0.display());
        let why = match e {
            rustls::Error::InconsistentKeys(_) => "the key is not the certificate's".to_owned(),
            e => e.to_string(),
        };
        Error::invalid(format!(
            "use the certificate `{chain}` with the key `{key}`: {why}: give the two that were \
             made together"
        ))
    })
}

/// Who may be able to read a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Anybody,
    Owner,
}

#[expect(clippy::disallowed_methods, reason = "this is the seam")]
fn read(path: &Path, reader: Reader) -> Result<Vec<u8>> {
    let doing = |e: Error| e.context(format_args!("read `{}`", path.display()));
    let failed = |e: io::Error| match e.kind() {
        // As wrong as any other content, whatever the machine calls it.
        io::ErrorKind::NotFound => doing(Error::invalid("it is not there: name a file of PEM")),
        _ => doing(e.into()),
    };
    // Something else might wait for ever where it is opened.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(doing(Error::invalid("it is no file: name a file of PEM")));
    }
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode();
    if reader == Reader::Owner && mode & NOT_THE_OWNERS != 0 {
        return Err(doing(Error::invalid(format!(
            "others can read or write this key (mode {:03o}): run `chmod 600` on it, and replace \
             the key if somebody may have read it",
            mode & 0o777
        ))));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(doing(Error::invalid(format!(
            "it is longer than {} KiB: leave in it only what is needed",
            FILE_BYTES_MAX >> 10
        ))));
    }
    Ok(bytes)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files are what this is about")]
mod tests;
