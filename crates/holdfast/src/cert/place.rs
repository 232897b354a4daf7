//! A CA's directory: which files it has, and how they change. A file is never seen half written:
//! it is written beside its place, synced, renamed. A pair is renamed at once when both halves are
//! on the disk. One command at a time changes a directory. Decides nothing about certificates.

use holdfast_base::{Error, Result};
use holdfast_cert::{Authority, Bundle, Certificate, Issued};
use holdfast_command::output;
use holdfast_env::disk::{Access, Lock, create_dir_durable};
use holdfast_env::{Disk, local, planted};
use std::io;
use std::path::{Path, PathBuf};

/// The certificates that a cluster trusts.
pub const CA: &str = "ca.pem";
/// The key of the first of them.
pub const CA_KEY: &str = "ca.key";
/// The key before it, while a renewal is not finished.
const OLD_CA_KEY: &str = "ca.key.old";
/// What a certificate's file is called behind its name, and its key's.
const CERTIFICATE: &str = "pem";
pub const KEY: &str = "key";
const LOCK: &str = ".lock";

/// Sync sites: the bytes of a file, and its name.
const DATA_SITE: &str = "cert.data";
const NAME_SITE: &str = "cert.name";

/// The longest file that is read; a bundle of every CA of the world has half of it.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names the file of an error.
pub fn at<'a>(doing: &'a str, path: &'a Path) -> impl Fn(io::Error) -> Error + use<'a> {
    move |e| Error::from(e).context(format_args!("{doing} `{}`", path.display()))
}

/// The directory that a file is in.
pub fn directory_of(file: &Path) -> &Path {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Makes the directory, or makes one that is there its owner's alone. One with other people's files
/// in it is refused: they would be shut out.
pub fn prepare(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let is_open = local::is_open_to_others(dir).unwrap_or(false);
    if is_open && !disk.list(dir).map_err(at("list", dir))?.is_empty() {
        return Err(Error::invalid(format!(
            "others may use that directory, and it has files: name another one, or close it with `chmod 700 {}`",
            dir.display()
        )));
    }
    local::make_private_dir(dir).map_err(at("make", dir))?;
    create_dir_durable(disk, dir, 1, NAME_SITE).map_err(at("sync", dir))
}

/// A CA's directory that this command alone changes.
pub struct Place<'a> {
    disk: &'a dyn Disk,
    dir: PathBuf,
    _lock: Box<dyn Lock>,
}

/// A file that lies beside its place, whole and synced; gone unless it is put there.
struct Staged<'a> {
    disk: &'a dyn Disk,
    beside: PathBuf,
    place: PathBuf,
}

impl<'a> Staged<'a> {
    fn write(disk: &'a dyn Disk, place: PathBuf, bytes: &[u8]) -> Result<Staged<'a>> {
        let mut beside = place.clone().into_os_string();
        beside.push(".tmp");
        let staged = Staged { disk, beside: beside.into(), place };
        let write = || {
            if disk.exists(&staged.beside)? {
                disk.remove(&staged.beside)?;
            }
            let file = match planted!("cert.keys-open-to-others") {
                true => disk.create(&staged.beside, Access::Cached)?,
                false => disk.create_private(&staged.beside, Access::Cached)?,
            };
            file.write_at(bytes, 0)?;
            file.sync(DATA_SITE)
        };
        let written = write();
        written.map_err(at("write", &staged.place))?;
        Ok(staged)
    }

    fn put(self) -> Result<()> {
        self.disk.rename(&self.beside, &self.place).map_err(at("write", &self.place))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // Nothing is there any more once it was put in its place.
        let _ = self.disk.remove(&self.beside);
    }
}

impl<'a> Place<'a> {
    /// A directory that has a CA. `NotFound` where there is none, and then nothing is left there.
    pub fn of_ca(disk: &'a dyn Disk, dir: &Path) -> Result<Place<'a>> {
        let key = dir.join(CA_KEY);
        match disk.exists(&key).map_err(at("find", &key))? {
            true => Place::open(disk, dir),
            false => Err(Error::not_found(format!(
                "there is no CA's key `{}`: make a CA with `holdfast cert init CLUSTER`, or name its directory with --dir",
                key.display()
            ))),
        }
    }

    /// A directory that is there. `Retry` while another command changes it.
    pub fn open(disk: &'a dyn Disk, dir: &Path) -> Result<Place<'a>> {
        let lock = disk.lock(&dir.join(LOCK)).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Error::retry(format!(
                "another command is changing `{}`: try again when it is done",
                dir.display()
            )),
            _ => at("lock", dir)(e),
        })?;
        Ok(Place { disk, dir: dir.to_owned(), _lock: lock })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let read = || {
            let file = self.disk.open_to_read(path, Access::Cached)?;
            let bytes = file.len()?;
            if bytes > FILE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
            }
            let mut read = vec![0; bytes as usize];
            file.read_exact_at(&mut read, 0)?;
            Ok(read)
        };
        read().map_err(at("read", path))
    }

    /// The CA. Its key's file is not to be read by others: a warning where it is.
    pub fn authority(&self) -> Result<Authority> {
        let (certificates, key) = (self.path(CA), self.path(CA_KEY));
        warn_if_open(&key);
        Authority::load(&self.read(&certificates)?, &self.read(&key)?)
    }

    /// The certificate in a file named `*.pem`.
    pub fn certificate(&self, file: &Path) -> Result<Certificate> {
        if file.extension().is_none_or(|found| found != CERTIFICATE) {
            return Err(Error::invalid(
                "its name does not end in `.pem`: name the certificate, whose key is beside it",
            ));
        }
        Ok(Bundle::of_pem(&self.read(file)?)?.first().clone())
    }

    /// Keeps a CA that was just made. `Exists` where there is one, or part of one.
    pub fn init(&self, issued: &Issued) -> Result<()> {
        for name in [OLD_CA_KEY, CA_KEY, CA] {
            self.must_be_free(&self.path(name))?;
        }
        self.put_pair(self.path(CA), self.path(CA_KEY), issued)
    }

    /// Keeps a certificate that was just issued. `Exists` where there is one of this name.
    pub fn add(&self, name: &str, issued: &Issued) -> Result<()> {
        let (file, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        self.must_be_free(&file)?;
        self.must_be_free(&key)?;
        self.put_pair(file, key, issued)
    }

    /// Puts a certificate and its key where the file and the key beside it are.
    pub fn replace(&self, file: &Path, issued: &Issued) -> Result<()> {
        self.put_pair(file.to_owned(), file.with_extension(KEY), issued)
    }

    fn must_be_free(&self, path: &Path) -> Result<()> {
        match self.disk.exists(path).map_err(at("find", path))? {
            false => Ok(()),
            true => Err(Error::exists(format!(
                "there is `{}` already: renew what it belongs to, remove it, or take another name or --dir",
                path.display()
            ))),
        }
    }

    /// Both files are whole on the disk before the first is in its place; for the moment between
    /// the two names the key does not fit, which servers wait out.
    fn put_pair(&self, file: PathBuf, key: PathBuf, issued: &Issued) -> Result<()> {
        let directory = directory_of(&file).to_owned();
        let pem = issued.certificate.pem();
        let certificate = Staged::write(self.disk, file, pem.as_bytes())?;
        let key = Staged::write(self.disk, key, issued.key.pem())?;
        certificate.put()?;
        key.put()?;
        self.sync(&directory)
    }

    fn sync(&self, directory: &Path) -> Result<()> {
        self.disk.sync_dir(directory, NAME_SITE).map_err(at("sync", directory))
    }

    /// Keeps a second CA. The old key signs until the new one is in its place, and that comes
    /// behind the certificate which trusts it: also when the power fails between the two.
    pub fn renew_authority(&self, issued: &Issued, bundle: &str) -> Result<()> {
        let old = self.read(&self.path(CA_KEY))?;
        let old = Staged::write(self.disk, self.path(OLD_CA_KEY), &old)?;
        let trusted = Staged::write(self.disk, self.path(CA), bundle.as_bytes())?;
        let key = Staged::write(self.disk, self.path(CA_KEY), issued.key.pem())?;
        old.put()?;
        let (first, then) = match planted!("cert.new-ca-signs-before-it-is-trusted") {
            true => (key, trusted),
            false => (trusted, key),
        };
        first.put()?;
        self.sync(&self.dir)?;
        then.put()?;
        self.sync(&self.dir)
    }

    /// Keeps the newest CA alone, if no certificate of this directory needs another one.
    pub fn forget_old(&self) -> Result<()> {
        let authority = self.authority()?;
        let leaves = self.leaves()?;
        let named = leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
        let left = authority.forget(named)?;
        let old = self.path(OLD_CA_KEY);
        let has_old_key = self.disk.exists(&old).map_err(at("find", &old))?;
        if left.is_none() && !has_old_key {
            return Err(Error::not_found(
                "there is one CA alone: `holdfast cert init --renew` makes its successor first",
            ));
        }
        if let Some(left) = left {
            Staged::write(self.disk, self.path(CA), left.as_bytes())?.put()?;
            self.sync(&self.dir)?;
        }
        if has_old_key {
            self.disk.remove(&old).map_err(at("remove", &old))?;
        }
        self.sync(&self.dir)
    }

    /// The certificates of this directory but for the CA's, with their files.
    fn leaves(&self) -> Result<Vec<(String, Certificate)>> {
        let mut leaves = Vec::new();
        for entry in self.disk.list(&self.dir).map_err(at("list", &self.dir))? {
            let path = self.path(&entry.name);
            let is_certificate = path.extension().is_some_and(|found| found == CERTIFICATE);
            if entry.is_dir || entry.name == CA || !is_certificate {
                continue;
            }
            let bytes = self.read(&path)?;
            // Something else that is kept as PEM.
            if !bytes.windows(BEGIN.len()).any(|found| found == BEGIN) {
                continue;
            }
            let bundle = Bundle::of_pem(&bytes)
                .map_err(|e| e.context(format_args!("see who has signed `{}`", path.display())))?;
            leaves.push((path.display().to_string(), bundle.first().clone()));
        }
        Ok(leaves)
    }
}

const BEGIN: &[u8] = b"BEGIN CERTIFICATE";

/// Tells that a key may be read by others.
pub fn warn_if_open(key: &Path) {
    if local::is_open_to_others(key).unwrap_or(false) {
        let key = key.display();
        output::aside(format_args!(
            "others may use the key `{key}`: close it with `chmod 600 {key}`, and renew what it signed if they had reason to"
        ));
    }
}

#[cfg(test)]
mod tests;
