//! The secret of a data directory, on the command line's side: where a node's comes from at its
//! start, and which ones a client tries. What it proves and seals is `env::secret`'s.

use crate::files;
use crate::output::aside;
use holdfast_base::{Error, Result};
use holdfast_client::{ClientOptions, Secret, Secrets, Silent, TlsClient, Token};
use holdfast_env::{HoldMutex, RealRng, local};
use holdfast_s3::CREDENTIALS_FILE;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

pub use holdfast_env::secret::FILE;

/// The token of the HTTP port, for who scrapes it.
pub const HTTP_TOKEN: &str = "http-token";
/// Of a directory in which a node has been at work.
const LOG: &str = "log";
/// Where nodes on this machine keep their data unless told otherwise.
const USUAL: [&str; 2] = ["data", "dev"];

/// What this process's commands prove to nodes.
static OWN: Mutex<Vec<Secret>> = Mutex::new(Vec::new());

fn own() -> MutexGuard<'static, Vec<Secret>> {
    OWN.held()
}

/// Whom this process's commands believe over TLS, and the file that says so.
static TRUSTED: Mutex<Option<(PathBuf, TlsClient)>> = Mutex::new(None);

/// Whose token this process's commands prove.
static TOKEN: Mutex<Option<Token>> = Mutex::new(None);

/// Options of a client that proves what this command was given, found or learned.
pub fn options() -> ClientOptions {
    let tls = TRUSTED.held().as_ref().map(|(_, client)| client.clone());
    let secrets = Secrets::new(own().clone());
    let token = TOKEN.held().clone();
    ClientOptions { secrets, token, tls, silence_told: Some(tell), ..ClientOptions::default() }
}

/// Whoever waits is told for whom: a node that was stopped, or hangs, keeps its connections.
fn tell(silent: Silent<'_>) {
    let Silent { endpoint, heard_nothing, waits } = silent;
    let goes_on = waits.map_or_else(String::new, |waits| {
        format!(
            "; it is given up after {} s more, and others are tried, or it once more",
            waits.as_secs()
        )
    });
    aside(format_args!(
        "`{endpoint}` has said nothing for {} s, not even that it is there{goes_on}",
        heard_nothing.as_secs()
    ));
}

/// Has this command's clients talk TLS over TCP from now on, to those alone whom one of
/// `authorities` has signed; without a file, no TLS.
pub fn trust(authorities: Option<&Path>) -> Result<()> {
    let client = authorities.map(|file| TlsClient::load(file, None)).transpose()?;
    *TRUSTED.held() = authorities.map(Path::to_owned).zip(client);
    Ok(())
}

/// Has this command's clients be the one whose token is in a file, where they ask over TCP.
pub fn prove(token: Option<&Path>) -> Result<()> {
    *TOKEN.held() = token.map(Token::load).transpose()?;
    Ok(())
}

/// The file of authorities that this command was given.
pub fn authorities() -> Option<PathBuf> {
    TRUSTED.held().as_ref().map(|(file, _)| file.clone())
}

/// Takes up the secret of nodes that this command has started.
pub fn learn(directory: &Path) -> Result<()> {
    let secret = Secret::load(&directory.join(FILE))?;
    own().push(secret);
    Ok(())
}

/// Loads the secrets of this command: the one that it was given; otherwise those beside a socket
/// that was named and those of the usual directories, of which the server says which is its own.
///
/// `servers` are what `--server` names, with commas; a command that `makes_its_own` may be given a
/// file that it is about to write.
pub fn load(given: Option<&Path>, servers: Option<&str>, makes_its_own: bool) -> Result<()> {
    let found: Vec<Secret> = match given {
        Some(file) if !exists(file) && makes_its_own => Vec::new(),
        Some(file) => vec![Secret::load(file)?],
        // One that is not ours to read is not ours.
        None => found(servers).iter().filter_map(|file| Secret::load(file).ok()).collect(),
    };
    own().extend(found);
    Ok(())
}

/// Files of secrets beside the sockets that `servers` names, and in the usual directories.
pub fn found(servers: Option<&str>) -> Vec<PathBuf> {
    let sockets = servers.iter().flat_map(|servers| servers.split(','));
    let beside = sockets
        .filter_map(|server| Some(Path::new(server.strip_prefix("unix:")?).parent()?.join(FILE)));
    let usual = USUAL.iter().map(|directory| Path::new(directory).join(FILE));
    beside.chain(usual).filter(|file| exists(file)).collect()
}

fn exists(file: &Path) -> bool {
    file.try_exists().unwrap_or(true)
}

/// The secret of a node's data directory, and whether it is new there: then [`begin`] with it, do
/// what the first start has to do, and [`keep`] it. A node that joins a cluster is given the
/// cluster's; one with which it did not come in leaves no trace. Writes nothing.
pub fn of_node(data: &Path, given: Option<&Path>, joins: &str) -> Result<(Secret, bool)> {
    let file = data.join(FILE);
    let given = given.filter(|given| exists(given)).map(Secret::load).transpose()?;
    if exists(&file) {
        let own = Secret::load(&file)?;
        let other = given.filter(|given| !joins.is_empty() && given.text() != own.text());
        if let Some(other) = other {
            if !exists(&data.join(LOG)) {
                return Ok((other, true));
            }
            return Err(Error::invalid(format!(
                "join the cluster at `{joins}`: `{}` is not the secret that was given: this directory belongs to another cluster; check the address",
                file.display()
            )));
        }
        return Ok((own, false));
    }
    // A start that was killed before it had done all drew one already.
    let begun = begun(data);
    match (given, exists(&begun)) {
        (Some(given), _) => Ok((given, true)),
        (None, true) => Ok((Secret::load(&begun)?, true)),
        (None, false) if !joins.is_empty() => Err(Error::denied(format!(
            "join the cluster at `{joins}`: its nodes share a secret: give it with `--secret FILE`, the file `{FILE}` of one of their data directories"
        ))),
        (None, false) => Ok((Secret::draw(&RealRng), true)),
    }
}

/// Whether a start before drew a secret there, and was killed before it had done all.
pub fn has_begun(data: &Path) -> bool {
    exists(&begun(data))
}

/// Has a start that follows go on with this secret, should this one be killed.
pub fn begin(data: &Path, secret: &Secret) -> Result<()> {
    write(&begun(data), &secret.text())
}

fn begun(data: &Path) -> PathBuf {
    data.join("secret.begun")
}

/// Makes it the directory's, and writes the token that follows from it.
pub fn keep(data: &Path, secret: &Secret) -> Result<()> {
    if !Secret::load(&data.join(FILE)).is_ok_and(|own| own.text() == secret.text()) {
        write(&data.join(FILE), &secret.text())?;
    }
    let _ = local::remove_file(&begun(data));
    let (file, token) = (data.join(HTTP_TOKEN), format!("{}\n", secret.bearer()));
    // A disk without room for it again is one on which people want to delete.
    if is_kept(&file, &token) { Ok(()) } else { write(&file, &token) }
}

#[expect(clippy::disallowed_methods, reason = "a file of the data directory, before it is opened")]
fn is_kept(file: &Path, text: &str) -> bool {
    std::fs::read(file).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// The secret that all nodes of a cluster for development are given.
pub fn of_cluster(directory: &Path) -> Result<PathBuf> {
    let file = directory.join(FILE);
    if !exists(&file) {
        local::make_private_dir(directory)
            .map_err(|e| Error::from(e).context(format_args!("make `{}`", directory.display())))?;
        write(&file, &Secret::draw(&RealRng).text())?;
    }
    Ok(file)
}

fn write(file: &Path, text: &str) -> Result<()> {
    local::write_private(file, text.as_bytes())
        .map_err(|e| Error::from(e).context(format_args!("keep `{}`", file.display())))
}

/// Closes a data directory to all but its owner, and what is in it that tells a secret.
pub fn close(data: &Path) -> Result<()> {
    local::make_private_dir(data).map_err(|e| {
        Error::from(e).context(format_args!(
            "keep other users out of `{}` (`chmod 700` by its owner does)",
            data.display()
        ))
    })?;
    for name in [FILE, HTTP_TOKEN, files::SETTINGS, CREDENTIALS_FILE, files::SOCKET] {
        local::make_private_file(&data.join(name)).map_err(|e| {
            Error::from(e).context(format_args!("keep `{}` private", data.join(name).display()))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("holdfast-secrets-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        close(&dir).unwrap();
        dir
    }

    #[test]
    fn a_start_that_was_killed_goes_on_with_the_secret_that_it_drew() {
        let dir = scratch("begun");
        let (drawn, new) = of_node(&dir, None, "").unwrap();
        assert!(new && !exists(&begun(&dir)));
        begin(&dir, &drawn).unwrap();
        assert!(!exists(&dir.join(FILE)));
        let (again, new) = of_node(&dir, None, "").unwrap();
        assert!(new && again.text() == drawn.text());
        keep(&dir, &again).unwrap();
        let (kept, new) = of_node(&dir, None, "").unwrap();
        assert!(!new && kept.text() == drawn.text() && !exists(&begun(&dir)));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_node_that_joins_is_given_the_clusters() {
        // A cluster for development, or of a benchmark, has no directory before its first start.
        let (cluster, dir) = (scratch("cluster").join("new"), scratch("joins"));
        let e = of_node(&dir, None, "127.0.0.1:7400").unwrap_err();
        assert!(e.message.contains("--secret FILE"), "{e}");
        let file = of_cluster(&cluster).unwrap();
        // A secret that opened nothing stayed, and the right one was refused for it.
        keep(&dir, &Secret::draw(&RealRng)).unwrap();
        let (given, new) = of_node(&dir, Some(&file), "127.0.0.1:7400").unwrap();
        assert!(new && given.text() == Secret::load(&file).unwrap().text());
        keep(&dir, &given).unwrap();
        // Later starts need it no more; another cluster's is refused, where the node came in.
        local::make_private_dir(&dir.join(LOG)).unwrap();
        assert!(!of_node(&dir, None, "127.0.0.1:7400").unwrap().1);
        local::remove_file(&file).unwrap();
        of_cluster(&cluster).unwrap();
        let e = of_node(&dir, Some(&file), "127.0.0.1:7400").unwrap_err();
        assert!(e.message.contains("another cluster"), "{e}");
        std::fs::remove_dir_all(cluster.parent().unwrap()).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }
}
