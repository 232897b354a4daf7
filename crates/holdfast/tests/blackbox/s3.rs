//! S3 from outside: boto3, the AWS command line, our own commands, kill -9, and clients that
//! misbehave.

use super::common::{Finished, Node, Scratch, binary, bytes, finish, free_port};
use holdfast_base::checksum::crc32c;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn start(data: &Path) -> Node {
    start_with(data, "")
}

/// With further settings.
pub fn start_with(data: &Path, more: &str) -> Node {
    let port = free_port();
    let mut settings = "native_port = 0\ncache_port = 0\ndram = \"0\"\nworkers = 2\n".to_owned();
    if !more.contains("http_port") {
        settings += "http_port = 0\n";
    }
    let settings = format!("{settings}{more}");
    std::fs::create_dir_all(data).unwrap();
    std::fs::write(data.join("holdfast.toml"), format!("{settings}s3_port = {port}\n")).unwrap();
    Node::start(data)
}

pub fn credentials(data: &Path) -> (String, String, String) {
    let text = std::fs::read_to_string(data.join("credentials.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let field = |name: &str| value[name].as_str().unwrap().to_owned();
    (field("endpoint"), field("access_key"), field("secret_key"))
}

pub fn blob(data: &Path, words: &[&str], stdin: &[u8]) -> Finished {
    finish(binary().args(["--json", "blob", "--data"]).arg(data).args(words), stdin)
}

pub fn clients(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/bin").join(name);
    if !path.exists() {
        eprintln!("SKIPPED: no `{name}` in target/clients: run .ci/tools");
        return None;
    }
    Some(path)
}

#[test]
fn boto3_finds_s3() {
    let Some(python) = clients("python") else { return };
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let (endpoint, access, secret) = credentials(&node.data);
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/s3_suite.py");
    let done = Command::new(python).arg(suite).args([&endpoint, &access, &secret]).output();
    let done = done.unwrap();
    let err = String::from_utf8_lossy(&done.stderr);
    if err.contains("No module named 'boto3'") {
        eprintln!("SKIPPED: no boto3 in target/clients: run .ci/tools");
        return;
    }
    assert!(done.status.success(), "{err}");
    node.stop();
}

#[test]
fn the_aws_command_line_works_with_the_printed_keys() {
    let Some(aws) = clients("aws") else { return };
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let (endpoint, access, secret) = credentials(&node.data);
    let run = |words: &[&str]| {
        let mut command = Command::new(&aws);
        command.args(["--endpoint-url", &endpoint, "s3"]).args(words);
        command.env("AWS_ACCESS_KEY_ID", &access).env("AWS_SECRET_ACCESS_KEY", &secret);
        command.env("AWS_REGION", "us-east-1").env("HOME", &scratch.0);
        let done = command.output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{words:?}: {err}");
        String::from_utf8(done.stdout).unwrap()
    };
    let (tree, back) = (scratch.path("tree"), scratch.path("back"));
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    // More than the command line sends in one piece.
    std::fs::write(tree.join("large"), bytes(1, 20 << 20)).unwrap();
    std::fs::write(tree.join("sub/small"), b"small").unwrap();
    run(&["mb", "s3://photos"]);
    run(&["sync", tree.to_str().unwrap(), "s3://photos/tree"]);
    assert!(run(&["ls", "--recursive", "s3://photos"]).contains("tree/sub/small"));
    run(&["sync", "s3://photos/tree", back.to_str().unwrap()]);
    assert_eq!(std::fs::read(back.join("large")).unwrap(), bytes(1, 20 << 20));
    run(&["rb", "--force", "s3://photos"]);
    node.stop();
}

#[test]
fn our_own_commands_keep_what_they_are_given() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let data = node.data.clone();
    let ok = |words: &[&str]| blob(&data, words, b"").ok();
    ok(&["mb", "photos"]);
    let (file, back) = (scratch.path("file"), scratch.path("back"));
    std::fs::write(&file, bytes(2, 3 << 20)).unwrap();
    ok(&["put", file.to_str().unwrap(), "photos/a/b c"]);
    ok(&["get", "photos/a/b c", back.to_str().unwrap()]);
    assert_eq!(std::fs::read(&back).unwrap(), bytes(2, 3 << 20));
    let piped = bytes(5, 2 << 20);
    blob(&data, &["put", "-", "photos/piped"], &piped).ok();
    ok(&["get", "photos/piped", back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == piped);
    ok(&["rm", "photos/piped"]);
    assert!(ok(&["ls", "photos"]).contains("\"prefix\":\"a/\""));
    assert!(ok(&["ls", "-r", "photos/a"]).contains("\"key\":\"a/b c\""));
    assert!(ok(&["stat", "photos/a/b c"]).contains("x-holdfast-pointer"));
    let verified: Value = serde_json::from_str(&ok(&["verify"])).unwrap();
    assert_eq!((verified["objects"].as_u64(), verified["damaged"][0].as_str()), (Some(1), None));
    blob(&data, &["get", "photos/none", "-"], b"").refused(&["photos/none", "404"]);
    blob(&data, &["get", "photos", "-"], b"").refused(&["BUCKET/KEY"]);
    ok(&["rm", "photos/a/b c"]);
    ok(&["rb", "photos"]);
    node.stop();
}

#[test]
fn users_may_what_their_keys_say() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let data = node.data.clone();
    let s3 = |words: &[&str]| {
        finish(binary().args(["--json", "s3", "--data"]).arg(&data).args(words), b"")
    };
    blob(&data, &["mb", "photos"], b"").ok();
    let to = scratch.path("ann.json");
    let to = to.to_str().unwrap();
    let made: Value = serde_json::from_str(
        &s3(&["user", "add", "ann", "--bucket", "photos", "--read-only", "--to", to]).ok(),
    )
    .unwrap();
    assert!(made.get("secret_key").is_none(), "no secret is printed: {made}");
    let written = std::fs::read_to_string(scratch.path("ann.json")).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    let (key, secret) =
        (made["access_key"].as_str().unwrap(), written["secret_key"].as_str().unwrap());
    let (endpoint, root, _) = credentials(&data);
    let ann = |words: &[&str]| {
        let mut command = binary();
        command.args([
            "blob",
            "--endpoint",
            &endpoint,
            "--access-key",
            key,
            "--secret-key",
            secret,
        ]);
        finish(command.args(words), b"")
    };
    ann(&["ls", "photos"]).ok();
    ann(&["rb", "photos"]).refused(&["AccessDenied"]);
    ann(&["mb", "other"]).refused(&["AccessDenied"]);
    ann(&["verify"]).refused(&["AccessDenied"]);
    assert!(s3(&["user", "ls"]).ok().contains("\"user\":\"ann\""));
    s3(&["key", "rm", &root]).refused(&["last administrator"]);
    s3(&["user", "rm", "ann"]).ok();
    ann(&["ls", "photos"]).refused(&["InvalidAccessKeyId"]);
    node.stop();
}

#[test]
fn what_was_acknowledged_survives_kill_9_and_nothing_half_is_seen() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let file = |i: usize| scratch.path(&format!("file-{i}"));
    let content = |i: usize| bytes(i as u64, [0, 10, 5_000, 70_000, 9 << 20][i % 5]);
    (0..40).for_each(|i| std::fs::write(file(i), content(i)).unwrap());
    let mut node = start(&data);
    blob(&data, &["mb", "box"], b"").ok();
    let mut acknowledged: Vec<usize> = Vec::new();
    for round in 0..3 {
        let killed = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let (killed, data, file) = (&killed, &data, &file);
                    scope.spawn(move || {
                        let mut done = Vec::new();
                        for i in (0..40).filter(|i| i % 4 == writer) {
                            let path = format!("box/{round}/{i}");
                            let put = blob(data, &["put", file(i).to_str().unwrap(), &path], b"");
                            match put.code {
                                Some(0) => done.push(100 * round + i),
                                _ => assert!(killed.load(Ordering::Relaxed), "{put:?}"),
                            }
                        }
                        done
                    })
                })
                .collect();
            // In the middle of the puts: after some were acknowledged.
            while blob(&data, &["ls", "-r", &format!("box/{round}/")], b"").out.is_empty() {}
            killed.store(true, Ordering::Relaxed);
            node.kill();
            writers.into_iter().flat_map(|w| w.join().unwrap()).collect::<Vec<_>>()
        });
        acknowledged.extend(done);
        node = start(&data);
        let listed = blob(&data, &["ls", "-r", "box"], b"").ok();
        for number in &acknowledged {
            let key = format!("\"key\":\"{}/{}\"", number / 100, number % 100);
            assert!(listed.contains(&key), "{key} was acknowledged; round {round}: {listed}");
        }
    }
    let listed = blob(&data, &["ls", "-r", "box"], b"").ok();
    for line in listed.lines() {
        let found: Value = serde_json::from_str(line).unwrap();
        let key = found["key"].as_str().unwrap().to_owned();
        let i: usize = key.rsplit('/').next().unwrap().parse().unwrap();
        let got = finish(
            binary().args(["blob", "--data"]).arg(&data).args(["get", &format!("box/{key}"), "-"]),
            b"",
        );
        assert_eq!((got.code, crc32c(&got.out)), (Some(0), crc32c(&content(i))), "{key}");
    }
    assert!(!acknowledged.is_empty());
    let verified = blob(&data, &["verify"], b"").ok();
    assert!(verified.contains("\"damaged\":[]"), "{verified}");
    node.stop();
}

/// A service that was killed in the middle of a put left a broken pipe, which commands took for a
/// reader of their output that had had enough: they ended as if the object were stored.
#[test]
fn a_put_that_the_service_breaks_off_is_no_success() {
    let scratch = Scratch::new();
    let (data, file) = (scratch.path("data"), scratch.path("file"));
    std::fs::create_dir_all(&data).unwrap();
    std::fs::write(&file, bytes(1, 9 << 20)).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let keys = serde_json::json!({"endpoint": endpoint, "access_key": "A", "secret_key": "B"});
    std::fs::write(data.join("credentials.json"), keys.to_string()).unwrap();
    let service = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        // An end, then, as the rest was not read, a reset: that is a broken pipe to the writer.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    });
    blob(&data, &["put", file.to_str().unwrap(), "box/k"], b"").refused(&["talk to"]);
    service.join().unwrap();
}

#[test]
fn the_index_is_made_again_from_log_and_from_needles() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = start(&data);
    blob(&data, &["mb", "box"], b"").ok();
    let file = scratch.path("file");
    for i in 0..20 {
        std::fs::write(&file, bytes(i, 1000 * i as usize)).unwrap();
        blob(&data, &["put", file.to_str().unwrap(), &format!("box/{i}")], b"").ok();
    }
    std::fs::write(&file, bytes(99, 20 << 20)).unwrap();
    blob(&data, &["put", file.to_str().unwrap(), "box/large"], b"").ok();
    let before = blob(&data, &["ls", "-r", "box"], b"").ok();
    node.stop();
    // The rows alone are gone: they are folded again.
    std::fs::remove_dir_all(data.join("blobs")).unwrap();
    let node = start(&data);
    assert_eq!(blob(&data, &["ls", "-r", "box"], b"").ok(), before);
    node.stop();
    // Rows and topic are gone: the needles say what there was.
    std::fs::remove_dir_all(data.join("blobs")).unwrap();
    std::fs::remove_dir_all(data.join("log/topics/blobs+0")).unwrap();
    std::fs::remove_file(data.join("REACHED")).unwrap();
    let node = start(&data);
    assert_eq!(blob(&data, &["ls"], b"").ok(), "");
    let made: Value = serde_json::from_str(&blob(&data, &["rebuild-index"], b"").ok()).unwrap();
    assert_eq!((made["objects"].as_u64(), made["refused"][0].as_str()), (Some(21), None), "{made}");
    assert_eq!(blob(&data, &["ls", "-r", "box"], b"").ok(), before);
    let back = scratch.path("back");
    blob(&data, &["get", "box/large", back.to_str().unwrap()], b"").ok();
    assert_eq!(std::fs::read(back).unwrap(), bytes(99, 20 << 20));
    let again: Value = serde_json::from_str(&blob(&data, &["rebuild-index"], b"").ok()).unwrap();
    assert_eq!(again["objects"].as_u64(), Some(0), "they are known now: {again}");
    node.stop();
}

#[test]
fn compaction_gives_back_what_was_deleted_and_keeps_the_rest() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = start(&data);
    blob(&data, &["mb", "box"], b"").ok();
    let file = scratch.path("file");
    // More than one chunk, so that the first is sealed.
    for i in 0..10 {
        std::fs::write(&file, bytes(i, 8 << 20)).unwrap();
        blob(&data, &["put", file.to_str().unwrap(), &format!("box/{i}")], b"").ok();
    }
    for i in 0..6 {
        blob(&data, &["rm", &format!("box/{i}")], b"").ok();
    }
    let used = |node: &Node| node.client().status().unwrap().stores[0].used_bytes;
    let before = used(&node);
    let mut rewritten = 0;
    // The seal follows the chunk's last append in its own time.
    while rewritten == 0 {
        let done: Value = serde_json::from_str(&blob(&data, &["compact"], b"").ok()).unwrap();
        rewritten = done["chunks"].as_u64().unwrap();
    }
    node.until("the old generation is gone", |status| {
        status.stores[0].used_bytes + (20 << 20) < before
    });
    for i in 6..10 {
        let back = scratch.path("back");
        blob(&data, &["get", &format!("box/{i}"), back.to_str().unwrap()], b"").ok();
        assert_eq!(std::fs::read(back).unwrap(), bytes(i, 8 << 20));
    }
    assert!(blob(&data, &["verify"], b"").ok().contains("\"damaged\":[]"));
    node.stop();
}

/// A person asked for compaction while housekeeping freed the chunks that it had just listed: it
/// ended with "close chunk: it is not known"; and so did "free chunk", of one that went in between.
#[test]
fn compactions_at_once_do_not_stumble_over_each_other() {
    let scratch = Scratch::new();
    let data = scratch.path("data");
    let node = start_with(&data, "chunk = \"1M\"\n");
    blob(&data, &["mb", "box"], b"").ok();
    let file = scratch.path("file");
    let name = |i: usize| format!("box/{i}");
    for i in 0..30 {
        std::fs::write(&file, bytes(i as u64, 300_000)).unwrap();
        blob(&data, &["put", file.to_str().unwrap(), &name(i)], b"").ok();
    }
    let gone: Vec<String> = (0..30).filter(|i| i % 7 > 0).map(name).collect();
    let words: Vec<&str> = ["rm"].into_iter().chain(gone.iter().map(String::as_str)).collect();
    blob(&data, &words, b"").ok();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| blob(&data, &["compact"], b"").ok());
        }
    });
    for i in (0..30).step_by(7) {
        blob(&data, &["get", &name(i), file.to_str().unwrap()], b"").ok();
        assert_eq!(std::fs::read(&file).unwrap(), bytes(i as u64, 300_000));
    }
    node.stop();
}

/// Sends bytes as they are, and answers what comes back until the connection ends.
pub fn raw(endpoint: &str, request: &[u8]) -> String {
    let address = endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    // Whoever refuses in the middle does not read the rest.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn misbehaving_clients_get_an_answer_or_an_end_and_others_are_served() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let (endpoint, _, _) = credentials(&node.data);
    let many: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(300_000));
    for (request, answer) in [
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET / HTTP/1.1\r\nhost: x\r\n{many}\r\n"), "431"),
        (format!("GET / HTTP/1.1\r\nhost: x\r\n{long}\r\n"), "431"),
        ("GET /%zz/x HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), "400"),
        (
            "GET /b/k HTTP/1.1\r\nhost: x\r\nauthorization: AWS4-HMAC-SHA256 nonsense\r\n\r\n"
                .to_owned(),
            "400",
        ),
        ("PUT /bb/k HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf".to_owned(), "400"),
        ("GET /n/c0.1,0,00000000 HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(), "404"),
        (String::new(), ""),
    ] {
        let got = raw(&endpoint, request.as_bytes());
        let shown: String = request.chars().take(60).collect();
        // With a request that nobody reads to its end, the answer may be lost.
        let lost = got.is_empty() && (answer.is_empty() || request.len() > 100_000);
        assert!(lost || got.starts_with(&format!("HTTP/1.1 {answer}")), "{shown}: {got}");
    }
    blob(&node.data, &["ls"], b"").ok();
    node.stop();
}

#[test]
fn an_import_brings_over_a_directory_and_another_service_and_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let (one, two) = (start(&scratch.path("one")), start(&scratch.path("two")));
    let tree = scratch.path("tree");
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    for i in 0..20u64 {
        let name = if i % 2 == 0 { format!("{i}") } else { format!("sub/{i} ü") };
        std::fs::write(tree.join(name), bytes(i, 700 * i as usize)).unwrap();
    }
    let import = |words: &[&str]| -> Value {
        serde_json::from_str(&blob(&one.data, &[&["import"], words].concat(), b"").ok()).unwrap()
    };
    let done = import(&[tree.to_str().unwrap(), "--bucket", "tree"]);
    assert_eq!((done["copied"].as_u64(), done["passed"].as_u64()), (Some(20), Some(0)));
    let again = import(&[tree.to_str().unwrap(), "--bucket", "tree"]);
    assert_eq!((again["copied"].as_u64(), again["passed"].as_u64()), (Some(0), Some(20)));
    let (endpoint, access, secret) = credentials(&one.data);
    let over = || {
        let mut command = binary();
        command.args(["--json", "blob", "--data"]).arg(&two.data).args(["import", &endpoint]);
        command.env("SOURCE_ACCESS_KEY_ID", &access).env("SOURCE_SECRET_ACCESS_KEY", &secret);
        let text = finish(&mut command, b"").ok();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(over()["copied"].as_u64(), Some(20));
    blob(&two.data, &["rm", "tree/0", "tree/2"], b"").ok();
    let rest = over();
    assert_eq!((rest["copied"].as_u64(), rest["passed"].as_u64()), (Some(2), Some(18)));
    let hashes = |data: &Path| {
        let text = blob(data, &["ls", "-r", "tree"], b"").ok();
        let entries = text.lines().map(|line| {
            let found: Value = serde_json::from_str(line).unwrap();
            (found["key"].clone(), found["etag"].clone(), found["size"].clone())
        });
        entries.collect::<Vec<_>>()
    };
    assert_eq!(hashes(&one.data), hashes(&two.data));
    one.stop();
    two.stop();
}
