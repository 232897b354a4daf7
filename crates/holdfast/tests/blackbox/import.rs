//! Moving here from another S3 service: moto's server, written in Python by others.

use super::common::{Scratch, binary, bytes, finish, free_port};
use super::photos::{client, put, send};
use super::s3::{clients, start};
use holdfast_env::RealClock;
use holdfast_s3::{Client, Endpoint, REGION, Request, Signer, element, elements};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Ends with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// More by `make test-import`.
fn objects() -> usize {
    std::env::var("HOLDFAST_IMPORT_OBJECTS").map_or(2000, |text| text.parse().unwrap())
}

fn content(i: usize) -> Vec<u8> {
    bytes(i as u64, i * 37 % 3000)
}

fn key(i: usize) -> String {
    format!("{:02}/ü {i}", i % 40)
}

/// Keys, sizes and hashes of a whole bucket.
fn listing(client: &mut Client, bucket: &str) -> BTreeMap<String, (String, String)> {
    let (mut found, mut token) = (BTreeMap::new(), None::<String>);
    loop {
        let mut request = Request::new("GET", format!("/{bucket}")).with("list-type", "2");
        if let Some(token) = token {
            request = request.with("continuation-token", token);
        }
        let text = send(client, request).text();
        for one in elements(&text, "Contents") {
            let field = |name: &str| element(one, name).unwrap();
            let etag = field("ETag").replace("&quot;", "").replace('"', "");
            found.insert(field("Key"), (field("Size"), etag));
        }
        token = element(&text, "NextContinuationToken").filter(|token| !token.is_empty());
        if token.is_none() {
            return found;
        }
    }
}

#[test]
fn everything_of_another_service_comes_over_though_the_move_is_killed_twice() {
    let Some(moto) = clients("moto_server") else { return };
    let scratch = Scratch::new();
    let port = free_port();
    let mut serving = Command::new(moto);
    serving.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let _service = Service(serving.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let endpoint = format!("http://127.0.0.1:{port}");
    let signer = Signer {
        access_key: "testing".to_owned(),
        secret_key: "testing".to_owned(),
        region: REGION.to_owned(),
    };
    let clock = Arc::new(RealClock::new());
    let mut other = Client::new(Endpoint::parse(&endpoint).unwrap(), signer, clock).unwrap();
    // It answers once Python has read all of it.
    while other.send(&Request::new("GET", "/")).is_err() {}
    put(&mut other, "/moved", b"");
    let objects = objects();
    for i in 0..objects {
        let content = content(i);
        let mut request =
            Request { body: &content, ..Request::new("PUT", format!("/moved/{}", key(i))) };
        request.headers.push(("content-type", format!("image/x-{}", i % 7)));
        request.headers.push(("x-amz-meta-number", i.to_string()));
        send(&mut other, request);
    }
    let node = start(&scratch.path("data"));
    let mut own = client(&node.data);
    let import = || {
        let mut command = binary();
        command.args(["--json", "blob", "--data"]).arg(&node.data).args(["import", &endpoint]);
        command.env("SOURCE_ACCESS_KEY_ID", "testing").env("SOURCE_SECRET_ACCESS_KEY", "testing");
        command
    };
    for part in [objects / 4, objects / 2] {
        let mut moving = import().spawn().unwrap();
        // In its middle; the look at the listing is what takes the time.
        let last = format!("/moved/{}", key(0));
        while own.send(&Request::new("HEAD", &last)).unwrap().status != 200 {}
        while listing(&mut own, "moved").len() < part {}
        moving.kill().unwrap();
        moving.wait().unwrap();
    }
    let rest: Value = serde_json::from_str(&finish(&mut import(), b"").ok()).unwrap();
    let (copied, passed) = (rest["copied"].as_u64().unwrap(), rest["passed"].as_u64().unwrap());
    assert_eq!(copied + passed, objects as u64, "{rest}");
    assert!(passed >= objects as u64 / 2, "what was there is passed over: {rest}");
    assert_eq!(listing(&mut own, "moved"), listing(&mut other, "moved"));
    for i in (0..objects).step_by(objects / 50) {
        let got = send(&mut own, Request::new("GET", format!("/moved/{}", key(i))));
        assert_eq!(got.body, content(i));
        assert_eq!(got.header("content-type"), Some(format!("image/x-{}", i % 7).as_str()));
        assert_eq!(got.header("x-amz-meta-number"), Some(i.to_string().as_str()));
    }
    drop(own);
    node.stop();
}

/// A service on the internet speaks nothing but TLS: `https://...` was taken for a directory.
#[test]
fn a_service_that_speaks_only_tls_is_read_if_its_certificate_is_of_a_trusted_authority() {
    let Some(moto) = clients("moto_server") else { return };
    let pem =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../env/tests/tls").join(name);
    let scratch = Scratch::new();
    let port = free_port();
    let mut serving = Command::new(moto);
    serving.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    serving.arg("-s").arg("-c").arg(pem("cert.pem")).arg("-k").arg(pem("key.pem"));
    let _service = Service(serving.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let endpoint = format!("https://127.0.0.1:{port}");
    let of_service = |authorities: &Path, args: &[&str]| {
        let mut command = binary();
        command.args(["blob", "--endpoint", &endpoint]).args(args);
        command.args(["--access-key", "testing", "--secret-key", "testing"]);
        command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR");
        finish(&mut command, b"")
    };
    // It answers once Python has read all of it.
    while of_service(&pem("ca.pem"), &["ls"]).code != Some(0) {}
    of_service(&pem("ca.pem"), &["mb", "moved"]).ok();
    let file = scratch.path("file");
    std::fs::write(&file, content(80)).unwrap();
    let file = file.display().to_string();
    of_service(&pem("ca.pem"), &["put", &file, "moved/a/ü 1"]).ok();
    // A certificate of nobody that is trusted, and no authorities at all.
    let node = start(&scratch.path("data"));
    let none = scratch.path("none.pem");
    std::fs::write(&none, b"").unwrap();
    let refused = of_service(&pem("key.pem"), &["ls"]);
    refused.refused(&["read the certificates that the system trusts", "SSL_CERT_FILE"]);
    let import = |authorities: &Path| {
        let mut command = binary();
        command.args(["--json", "blob", "--data"]).arg(&node.data).args(["import", &endpoint]);
        command.env("SOURCE_ACCESS_KEY_ID", "testing").env("SOURCE_SECRET_ACCESS_KEY", "testing");
        command.env("SSL_CERT_FILE", authorities).env_remove("SSL_CERT_DIR");
        finish(&mut command, b"")
    };
    import(&pem("cert.pem")).refused(&["talk to `127.0.0.1:", "certificate"]);
    let said: Value = serde_json::from_str(&import(&pem("ca.pem")).ok()).unwrap();
    assert_eq!(said["copied"], 1, "{said}");
    let got = send(&mut client(&node.data), Request::new("GET", "/moved/a/ü 1"));
    assert_eq!(got.body, content(80));
    node.stop();
}

/// An import said that everything had come over, and had dropped tags, versions, versioning and
/// policies without a word.
#[test]
fn what_an_import_leaves_out_is_said_by_name() {
    let scratch = Scratch::new();
    let (source, target) = (start(&scratch.path("source")), start(&scratch.path("target")));
    let mut other = client(&source.data);
    put(&mut other, "/moved", b"");
    let set = |other: &mut Client, setting: &str, body: &str| {
        let request = Request::new("PUT", "/moved").with(setting, "");
        send(other, Request { body: body.as_bytes(), ..request });
    };
    let enabled = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    set(&mut other, "versioning", enabled);
    let policy = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
        "Action":"s3:GetObject","Resource":"arn:aws:s3:::moved/*"}]}"#;
    set(&mut other, "policy", policy);
    for content in [b"old", b"new"] {
        let mut request = Request { body: content, ..Request::new("PUT", "/moved/a") };
        request.headers.push(("x-amz-tagging", "colour=r%26d&empty=".to_owned()));
        send(&mut other, request);
    }
    put(&mut other, "/moved/gone", b"x");
    assert_eq!(other.send(&Request::new("DELETE", "/moved/gone")).unwrap().status, 204);
    let (endpoint, access, secret) = super::s3::credentials(&source.data);
    let mut import = binary();
    import.args(["--json", "blob", "--data"]).arg(&target.data).args(["import", &endpoint]);
    import.env("SOURCE_ACCESS_KEY_ID", access).env("SOURCE_SECRET_ACCESS_KEY", secret);
    let said: Value = serde_json::from_str(&finish(&mut import, b"").ok()).unwrap();
    assert_eq!((said["copied"].as_u64(), said["bytes"].as_u64()), (Some(1), Some(3)), "{said}");
    let left_out = said["left_out"].as_object().unwrap();
    // The older version of one key; the only version and the marker of the other.
    assert_eq!(left_out["older versions and delete markers of `moved`"], 3, "{said}");
    assert_eq!(left_out["policy of `moved`"], 1, "{said}");
    assert_eq!(left_out.len(), 2, "{said}");
    let mut own = client(&target.data);
    let tags = send(&mut own, Request::new("GET", "/moved/a").with("tagging", "")).text();
    assert!(tags.contains("<Value>r&amp;d</Value>") && tags.contains("<Key>empty</Key>"), "{tags}");
    let state = send(&mut own, Request::new("GET", "/moved").with("versioning", "")).text();
    assert!(state.contains("Enabled"), "{state}");
    source.stop();
    target.stop();
}
