//! `holdfast blob` and `holdfast s3`: S3 from the command line, against this node or any other
//! service; and what administrators ask of this node alone.

use clap::{Args, Subcommand};
use holdfast_base::units::format_bytes;
use holdfast_base::{Error, Result};
use holdfast_command::files::AUTHORITIES;
use holdfast_command::output::{self, Output};
use holdfast_command::secrets;
use holdfast_env::local;
use holdfast_s3::{CREDENTIALS_FILE, Client, Credentials, REGION, Request, element, elements};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where the service is and who asks; by default what the data directory says.
#[derive(Args, Debug, Clone)]
pub struct Access {
    /// Data directory whose credentials.json is used
    #[arg(long, global = true, default_value = "data", value_name = "DIR")]
    pub data: PathBuf,
    /// Service to ask instead, http://HOST:PORT or https://HOST:PORT
    #[arg(long, global = true, value_name = "URL")]
    pub endpoint: Option<String>,
    #[arg(long, global = true, env = "AWS_ACCESS_KEY_ID", value_name = "KEY")]
    pub access_key: Option<String>,
    #[arg(
        long,
        global = true,
        env = "AWS_SECRET_ACCESS_KEY",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub secret_key: Option<String>,
    /// Region of the service that is asked, where it has one
    #[arg(long, global = true, env = "AWS_REGION", default_value = REGION, value_name = "NAME")]
    pub region: String,
}

#[derive(Args, Debug)]
pub struct Blob {
    #[command(flatten)]
    pub access: Access,
    #[command(subcommand)]
    pub command: BlobCommand,
}

#[derive(Subcommand, Debug)]
pub enum BlobCommand {
    /// List buckets, or what is below BUCKET/PREFIX
    Ls {
        /// BUCKET or BUCKET/PREFIX
        path: Option<String>,
        /// Everything below, not only the next level
        #[arg(short, long)]
        recursive: bool,
    },
    /// Make a bucket
    Mb { bucket: String },
    /// Remove an empty bucket
    Rb { bucket: String },
    /// Store a file, or `-` for standard input, as BUCKET/KEY
    Put { file: PathBuf, path: String },
    /// Fetch BUCKET/KEY into a file, or `-` for standard output
    Get {
        path: String,
        file: PathBuf,
        /// The picture of this size, in a photo bucket
        #[arg(long, value_name = "PIXELS")]
        size: Option<u32>,
    },
    /// Delete BUCKET/KEY
    Rm { paths: Vec<String> },
    /// Show what is kept of BUCKET/KEY
    Stat { path: String },
    /// Keep uploads to a bucket in smaller sizes, too: `?size=720` then gets the picture whose
    /// longest side has 720 pixels. Without an option, show the sizes
    Photos {
        bucket: String,
        /// Longest sides in pixels, such as 2048,720,180,75
        #[arg(long, value_name = "LIST", conflicts_with = "off")]
        sizes: Option<String>,
        /// Keep later uploads as they come
        #[arg(long)]
        off: bool,
    },
    /// Show what the cache of lately written objects has done (`s3_hot`)
    Cache,
    /// Read every stored byte and every name, and compare them
    Verify,
    /// Rewrite, now, every chunk of this node in which anything is dead
    Compact,
    /// Name again what the needles of this node say and the index does not know
    RebuildIndex,
    /// Copy everything from another S3 service, or the files of a directory, into this one;
    /// what is there already is passed over, so that it can be repeated
    Import(Import),
}

#[derive(Args, Debug)]
pub struct Import {
    /// http://HOST:PORT or https://HOST:PORT of the other service, or a directory
    pub from: String,
    /// Bucket to copy; for a directory, where its files go [default: all buckets]
    #[arg(long, value_name = "BUCKET")]
    pub bucket: Option<String>,
    #[arg(long, env = "SOURCE_ACCESS_KEY_ID", default_value = "", value_name = "KEY")]
    pub source_access_key: String,
    #[arg(
        long,
        env = "SOURCE_SECRET_ACCESS_KEY",
        hide_env_values = true,
        default_value = "",
        value_name = "SECRET"
    )]
    pub source_secret_key: String,
    /// Region of the other service, where it has one
    #[arg(long, env = "SOURCE_REGION", default_value = REGION, value_name = "NAME")]
    pub source_region: String,
}

#[derive(Args, Debug)]
pub struct S3 {
    #[command(flatten)]
    pub access: Access,
    #[command(subcommand)]
    pub command: S3Command,
}

#[derive(Subcommand, Debug)]
pub enum S3Command {
    /// Users who may ask for things over S3
    #[command(subcommand)]
    User(User),
    /// Their access keys
    #[command(subcommand)]
    Key(Key),
}

#[derive(Subcommand, Debug)]
pub enum User {
    /// Make a user with a first key, which is written to a file
    Add(NewKey),
    /// List users and their keys
    Ls,
    /// Remove a user's keys
    Rm { user: String },
}

#[derive(Subcommand, Debug)]
pub enum Key {
    /// Give a user a further key, which is written to a file
    Add(NewKey),
    /// List keys
    Ls,
    /// Remove a key
    Rm { access_key: String },
}

#[derive(Args, Debug)]
pub struct NewKey {
    pub user: String,
    /// May do everything
    #[arg(long)]
    pub admin: bool,
    /// May only read
    #[arg(long)]
    pub read_only: bool,
    /// May use this bucket as its owner; other buckets are closed
    #[arg(long = "bucket", value_name = "BUCKET")]
    pub buckets: Vec<String>,
    /// Where the key goes, for nobody else to read [default: ACCESS_KEY.json in this directory]
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
}

impl Access {
    fn credentials(&self) -> Result<Credentials> {
        if let (Some(endpoint), Some(access_key), Some(secret_key)) =
            (&self.endpoint, &self.access_key, &self.secret_key)
        {
            let (access_key, secret_key) = (access_key.clone(), secret_key.clone());
            return Ok(Credentials { access_key, secret_key, endpoint: endpoint.clone() });
        }
        let path = self.data.join(CREDENTIALS_FILE);
        #[expect(clippy::disallowed_methods, reason = "a file of the node's that the user named")]
        let bytes = std::fs::read(&path).map_err(|e| {
            Error::from(e).context(format_args!(
                "read `{}`: name the data directory (`--data`), or `--endpoint`, `--access-key` and `--secret-key`",
                path.display()
            ))
        })?;
        let found = String::from_utf8(bytes).ok().and_then(|text| Credentials::parse(&text));
        let found = found.ok_or_else(|| {
            Error::invalid(format!("read `{}`: these are no credentials", path.display()))
        })?;
        let endpoint = self.endpoint.clone().unwrap_or(found.endpoint);
        Ok(Credentials { endpoint, ..found })
    }

    /// A client of that service, which connects with its first request.
    pub fn client(&self) -> Result<Client> {
        Client::trusting(&self.credentials()?, &self.region, self.authorities().as_deref())
    }

    /// What is trusted beside the system's authorities: as said, else what this node has.
    fn authorities(&self) -> Option<PathBuf> {
        let own = || Some(self.data.join(AUTHORITIES)).filter(|path| path.is_file());
        secrets::authorities().or_else(|| self.endpoint.is_none().then(own).flatten())
    }
}

fn split(path: &str) -> Result<(&str, &str)> {
    let path = path.strip_prefix("s3://").unwrap_or(path);
    let parts = path.split_once('/').filter(|(bucket, key)| !bucket.is_empty() && !key.is_empty());
    parts.ok_or_else(|| Error::invalid(format!("use `{path}`: give it as BUCKET/KEY")))
}

/// `holdfast blob`: one command against the service.
pub fn run(blob: &Blob, out: &mut Output) -> Result<()> {
    let mut client = blob.access.client()?;
    match &blob.command {
        BlobCommand::Ls { path: None, .. } => ls_buckets(&mut client, out),
        BlobCommand::Ls { path: Some(path), recursive } => ls(&mut client, path, *recursive, out),
        BlobCommand::Mb { bucket } => {
            let made = client.send(&Request::new("PUT", format!("/{bucket}")))?;
            made.ok(format_args!("make bucket `{bucket}`")).map(drop)
        }
        BlobCommand::Rb { bucket } => {
            let gone = client.send(&Request::new("DELETE", format!("/{bucket}")))?;
            gone.ok(format_args!("remove bucket `{bucket}`")).map(drop)
        }
        BlobCommand::Put { file, path } => put(&mut client, file, path, out),
        BlobCommand::Get { path, file, size } => get(&mut client, path, file, *size),
        BlobCommand::Photos { bucket, sizes, off } => {
            photos(&mut client, bucket, sizes.as_deref(), *off, out)
        }
        BlobCommand::Rm { paths } => paths.iter().try_for_each(|path| {
            let (bucket, key) = split(path)?;
            let gone = client.send(&Request::new("DELETE", format!("/{bucket}/{key}")))?;
            gone.ok(format_args!("delete `{path}`")).map(drop)
        }),
        BlobCommand::Stat { path } => stat(&mut client, path, out),
        BlobCommand::Cache => show_cache(&mut client, out),
        BlobCommand::Verify => verify(&mut client, out),
        BlobCommand::Compact => {
            let done = ask(&mut client, "compact", &json!({}))?;
            out.line(|| format!("{} chunks rewritten", done["chunks"]), || done.clone())
        }
        BlobCommand::RebuildIndex => rebuild_index(&mut client, out),
        BlobCommand::Import(import) => {
            crate::import::run(&mut client, import, secrets::authorities().as_deref(), out)
        }
    }
}

fn ask(client: &mut Client, what: &str, with: &Value) -> Result<Value> {
    let body = with.to_string();
    let mut request = Request::new("POST", "/").with("holdfast", what);
    request.body = body.as_bytes();
    let answer = client.send(&request)?.ok(format_args!("ask for `{what}`"))?;
    serde_json::from_slice(&answer.body)
        .map_err(|e| Error::invalid(format!("ask for `{what}`: the answer is not JSON: {e}")))
}

/// Sets the sizes that a bucket keeps photos in, if any are said, and shows those that it has.
fn photos(
    client: &mut Client,
    bucket: &str,
    sizes: Option<&str>,
    off: bool,
    out: &mut Output,
) -> Result<()> {
    let asked = match (sizes, off) {
        (Some(sizes), _) => json!({"bucket": bucket, "sizes": sizes}),
        (None, true) => json!({"bucket": bucket, "sizes": null}),
        (None, false) => json!({"bucket": bucket}),
    };
    let kept = ask(client, "photos", &asked)?;
    let text = || match kept["sizes"].as_str() {
        Some(sizes) => format!("`{bucket}` keeps photos in sizes {sizes}"),
        None => format!("`{bucket}` keeps what comes as it comes"),
    };
    out.line(text, || kept.clone())
}

fn show_cache(client: &mut Client, out: &mut Output) -> Result<()> {
    let counts = ask(client, "cache", &json!({}))?;
    let number = |name: &str| counts[name].as_u64().unwrap_or_default();
    let (hits, misses) = (number("hits"), number("misses"));
    let text = || {
        format!(
            "{hits} of {} gets were served from memory ({:.1}%); {} objects in {} are kept, {} were admitted",
            hits + misses,
            100.0 * hits as f64 / (hits + misses).max(1) as f64,
            number("objects"),
            format_bytes(number("bytes")),
            number("admitted")
        )
    };
    out.line(text, || counts.clone())
}

fn verify(client: &mut Client, out: &mut Output) -> Result<()> {
    let found = ask(client, "verify", &json!({}))?;
    let damaged = found["damaged"].as_array().map_or(0, Vec::len);
    let text = || {
        let list = found["damaged"].as_array().into_iter().flatten();
        let list: String = list.map(|d| format!("\n  {}", d.as_str().unwrap_or(""))).collect();
        format!("{} objects, {} bytes, {damaged} damaged{list}", found["objects"], found["bytes"])
    };
    out.line(text, || found.clone())?;
    match damaged {
        0 => Ok(()),
        n => Err(Error::corrupt(format!("verify blobs: {n} are damaged"))),
    }
}

fn rebuild_index(client: &mut Client, out: &mut Output) -> Result<()> {
    let made = ask(client, "rebuild-index", &json!({}))?;
    let text = || {
        format!(
            "{} needles read: {} objects named, {} known, {} refused",
            made["needles"],
            made["objects"],
            made["known"],
            made["refused"].as_array().map_or(0, Vec::len)
        )
    };
    out.line(text, || made.clone())
}

fn ls_buckets(client: &mut Client, out: &mut Output) -> Result<()> {
    let answer = client.send(&Request::new("GET", "/"))?.ok("list buckets")?;
    for bucket in elements(&answer.text(), "Bucket") {
        let name = element(bucket, "Name").unwrap_or_default();
        let made = element(bucket, "CreationDate").unwrap_or_default();
        out.line(|| format!("{made}  {name}"), || json!({"bucket": name, "created": made}))?;
    }
    Ok(())
}

/// One entry of a listing.
pub struct Listed {
    pub key: String,
    pub size: u64,
    pub etag: String,
    pub modified: String,
}

/// A page of a listing: keys, prefixes, and where the next page begins.
pub fn page(
    client: &mut Client,
    (bucket, prefix, delimiter): (&str, &str, &str),
    token: Option<String>,
) -> Result<(Vec<Listed>, Vec<String>, Option<String>)> {
    let mut request = Request::new("GET", format!("/{bucket}"))
        .with("list-type", "2")
        .with("prefix", prefix)
        .with("encoding-type", "url");
    if !delimiter.is_empty() {
        request = request.with("delimiter", delimiter);
    }
    if let Some(token) = token {
        request = request.with("continuation-token", token);
    }
    let answer = client.send(&request)?.ok(format_args!("list `{bucket}/{prefix}`"))?;
    let text = answer.text();
    let decoded = |encoded: Option<String>| {
        let encoded = encoded.unwrap_or_default();
        holdfast_s3::percent_decode(&encoded).unwrap_or(encoded)
    };
    let keys = elements(&text, "Contents").into_iter().map(|found| Listed {
        key: decoded(element(found, "Key")),
        size: element(found, "Size").and_then(|s| s.parse().ok()).unwrap_or_default(),
        etag: element(found, "ETag").unwrap_or_default().trim_matches('"').to_owned(),
        modified: element(found, "LastModified").unwrap_or_default(),
    });
    let prefixes = elements(&text, "CommonPrefixes");
    let prefixes = prefixes.into_iter().map(|found| decoded(element(found, "Prefix")));
    let next = element(&text, "NextContinuationToken").filter(|token| !token.is_empty());
    Ok((keys.collect(), prefixes.collect(), next))
}

fn ls(client: &mut Client, path: &str, recursive: bool, out: &mut Output) -> Result<()> {
    let path = path.strip_prefix("s3://").unwrap_or(path);
    let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
    let delimiter = if recursive { "" } else { "/" };
    let mut token = None;
    loop {
        let (keys, prefixes, next) = page(client, (bucket, prefix, delimiter), token)?;
        for prefix in prefixes {
            out.line(|| format!("{:>30}  {prefix}", ""), || json!({"prefix": prefix}))?;
        }
        for Listed { key, size, etag, modified } in keys {
            out.line(
                || format!("{:>10} {modified}  {key}", format_bytes(size)),
                || json!({"key": key, "size": size, "etag": etag, "modified": modified}),
            )?;
        }
        if next.is_none() {
            return Ok(());
        }
        token = next;
    }
}

/// All that comes on standard input, in a file without a name: a service wants to know how long an
/// object is before it takes a byte of it.
#[expect(clippy::disallowed_methods, reason = "a file of this command's own")]
fn standard_input() -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("holdfast-put-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    std::io::copy(&mut std::io::stdin().lock(), &mut file)?;
    file.rewind()?;
    Ok(file)
}

#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
fn put(client: &mut Client, file: &Path, path: &str, out: &mut Output) -> Result<()> {
    let (bucket, key) = split(path)?;
    let doing =
        |e: std::io::Error| Error::from(e).context(format_args!("read `{}`", file.display()));
    let source = if file == Path::new("-") { standard_input() } else { File::open(file) };
    let mut source = source.map_err(doing)?;
    let bytes = source.metadata().map_err(doing)?.len();
    let request = Request::new("PUT", format!("/{bucket}/{key}"));
    let stored = client.upload(&request, bytes, &mut source)?;
    let stored = stored.ok(format_args!("put `{path}`"))?;
    let etag = stored.header("etag").unwrap_or_default().trim_matches('"').to_owned();
    out.object(|| json!({"key": path, "bytes": bytes, "etag": etag}))
}

#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
fn get(client: &mut Client, path: &str, file: &Path, size: Option<u32>) -> Result<()> {
    let (bucket, key) = split(path)?;
    let mut request = Request::new("GET", format!("/{bucket}/{key}"));
    if let Some(size) = size {
        request = request.with("size", size.to_string());
    }
    if file == Path::new("-") {
        let answer = client.download(&request, &mut output::stdout())?;
        return answer.ok(format_args!("get `{path}`")).map(drop);
    }
    // Under its name only when it is whole.
    let part = file.with_extension("part");
    let doing =
        |e: std::io::Error| Error::from(e).context(format_args!("write `{}`", file.display()));
    let mut target = File::create(&part).map_err(doing)?;
    let answer = client
        .download(&request, &mut target)
        .and_then(|answer| answer.ok(format_args!("get `{path}`")));
    match answer {
        Ok(_) => std::fs::rename(&part, file).map_err(doing),
        Err(e) => {
            let _ = std::fs::remove_file(&part);
            Err(e)
        }
    }
}

fn stat(client: &mut Client, path: &str, out: &mut Output) -> Result<()> {
    let (bucket, key) = split(path)?;
    let answer = client.send(&Request::new("HEAD", format!("/{bucket}/{key}")))?;
    let answer = answer.ok(format_args!("look at `{path}`"))?;
    let shown = |name: &str| {
        [
            "content-",
            "etag",
            "last-modified",
            "x-amz-meta-",
            "x-amz-version-id",
            "x-holdfast-",
            "cache-control",
        ]
        .iter()
        .any(|start| name.starts_with(start))
    };
    let shown: Vec<&(String, String)> = answer.headers.iter().filter(|(n, _)| shown(n)).collect();
    out.line(
        || shown.iter().map(|(n, v)| format!("{n:<24} {v}")).collect::<Vec<_>>().join("\n"),
        || Value::Object(shown.iter().map(|(n, v)| (n.clone(), json!(v))).collect()),
    )
}

/// `holdfast s3`: users and keys of a node's own.
pub fn users(s3: &S3, out: &mut Output) -> Result<()> {
    let mut client = s3.access.client()?;
    match &s3.command {
        S3Command::User(User::Add(new)) | S3Command::Key(Key::Add(new)) => {
            let asked = json!({
                "user": new.user, "admin": new.admin, "read_only": new.read_only, "buckets": new.buckets,
            });
            let made = ask(&mut client, "add-key", &asked)?;
            let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
            let made = Credentials {
                access_key: text("access_key"),
                secret_key: text("secret_key"),
                endpoint: s3.access.credentials()?.endpoint,
            };
            let name = &made.access_key;
            let file = new.to.clone().unwrap_or_else(|| format!("{name}.json").into());
            // What is printed ends in logs and in scrollback.
            local::write_private(&file, made.text().as_bytes()).map_err(|e| {
                Error::from(e).context(format_args!(
                    "keep the key in `{}`; remove it with `holdfast s3 key rm {name}`",
                    file.display()
                ))
            })?;
            out.line(
                || format!("access key {name}\nits secret key is in {}", file.display()),
                || json!({"access_key": name, "user": new.user, "file": file.display().to_string()}),
            )
        }
        S3Command::User(User::Ls) | S3Command::Key(Key::Ls) => {
            let keys = ask(&mut client, "keys", &json!({}))?;
            for key in keys.as_array().into_iter().flatten() {
                let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
                let may = match (key["admin"].as_bool(), key["read_only"].as_bool()) {
                    (Some(true), _) => "everything",
                    (_, Some(true)) => "read",
                    _ => "read and write",
                };
                out.line(
                    || format!("{:<16} {}  {may}", text("user"), text("access_key")),
                    || key.clone(),
                )?;
            }
            Ok(())
        }
        S3Command::User(User::Rm { user }) => {
            ask(&mut client, "remove-user", &json!({"user": user})).map(drop)
        }
        S3Command::Key(Key::Rm { access_key }) => {
            ask(&mut client, "remove-key", &json!({"access_key": access_key})).map(drop)
        }
    }
}
