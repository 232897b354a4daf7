//! `holdfast cert` from outside: what it makes and with which modes, what openssl says of it, a CA
//! renewed in two steps, and everything that is refused.

use crate::common::{Finished, Scratch, binary, finish};
use crate::mount::Mount;
use holdfast_cert::{Authority, DAY_S, Issued, Wanted, new_authority};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs `holdfast cert WORDS` in a directory, with nothing taken from what it makes.
fn cert(at: &Path, words: &[&str]) -> Finished {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 0 && exec \"$@\"", "sh"]).arg(env!("CARGO_BIN_EXE_holdfast"));
    // The environment that `binary` leaves.
    for (name, value) in binary().get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.arg("cert").args(words).current_dir(at);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(&mut command, b"")
}

#[track_caller]
fn json(finished: Finished) -> Vec<Value> {
    let text = String::from_utf8(finished.out).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

/// Whole days left, of which the moments since have taken one, or not yet.
fn is_about(days_left: &Value, days: i64) -> bool {
    days_left.as_i64().is_some_and(|left| (days - 1..=days).contains(&left))
}

/// A CA, a node and a client in `tls`.
fn cluster(scratch: &Scratch) {
    cert(&scratch.0, &["init", "prod"]).ok();
    cert(&scratch.0, &["node", "n1", "--host", "n1.example", "--host", "127.0.0.1"]).ok();
    cert(&scratch.0, &["client", "backup"]).ok();
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

/// Every file and what is in it.
fn picture(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// No line of any key of a directory is in a text.
#[track_caller]
fn tells_no_key(dir: &Path, text: &str) {
    for (name, bytes) in picture(dir).iter().filter(|(name, _)| name.contains(".key")) {
        let key = std::str::from_utf8(bytes).unwrap();
        let told = key.lines().filter(|line| !line.starts_with("---")).any(|l| text.contains(l));
        assert!(!told, "`{name}` is told in: {text}");
    }
}

#[test]
fn files_are_their_owners_alone_and_keys_are_never_printed() {
    let scratch = Scratch::new();
    let tls = scratch.path("tls");
    let mut told = String::new();
    for words in [
        &["init", "prod"][..],
        &["--json", "node", "n1", "--host", "n1.example", "--host", "::1"],
        &["client", "backup", "--days", "7"],
        &["--json", "client", "other"],
        &["check", "tls/n1.pem", "tls/ca.pem"],
        &["--json", "check", "tls/n1.pem", "--key", "tls/n1.key", "--ca", "tls/ca.pem"],
        &["renew", "tls/n1.pem"],
        &["--json", "init", "--renew"],
    ] {
        told.push_str(&cert(&scratch.0, words).ok());
    }
    assert_eq!(mode(&tls), 0o700);
    let files = picture(&tls);
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        ".lock",
        "backup.key",
        "backup.pem",
        "ca.key",
        "ca.key.old",
        "ca.pem",
        "n1.key",
        "n1.pem",
        "other.key",
        "other.pem",
    ];
    assert_eq!(names, expected);
    for name in names {
        assert_eq!(mode(&tls.join(name)), 0o600, "{name}");
    }
    tells_no_key(&tls, &told);
    assert!(told.contains("spiffe://prod/node/n1") && told.contains("give `tls/ca.pem`"), "{told}");
}

#[test]
fn what_was_issued_is_told_to_people_and_programs() {
    let scratch = Scratch::new();
    cluster(&scratch);
    let checked =
        cert(&scratch.0, &["--json", "check", "tls/n1.pem", "tls/backup.pem", "tls/ca.pem"]);
    assert_eq!((checked.code, checked.err.as_str()), (Some(0), ""));
    let [node, client, ca] = &json(checked)[..] else { panic!("three certificates") };
    assert_eq!(node["identity"], "spiffe://prod/node/n1");
    assert_eq!(node["hosts"], serde_json::json!(["n1.example", "127.0.0.1"]));
    assert_eq!(node["uses"], serde_json::json!(["server", "client"]));
    assert_eq!((&node["key_fits"], &node["trusted"]), (&true.into(), &true.into()));
    assert!(is_about(&node["days_left"], 397), "{node}");
    assert_eq!(node["serial"].as_str().unwrap().len(), 32);
    assert_eq!(client["identity"], "spiffe://prod/client/backup");
    assert_eq!(client["uses"], serde_json::json!(["client"]));
    assert_eq!(client["hosts"], serde_json::json!([]));
    assert_eq!((&ca["cluster"], &ca["uses"]), (&"prod".into(), &serde_json::json!(["CA"])));
    for object in [node, client, ca] {
        assert_eq!(object["problems"], serde_json::json!([]), "{object}");
    }
    let text = cert(&scratch.0, &["check", "tls/n1.pem"]).ok();
    for word in ["tls/n1.pem", "n1.example, 127.0.0.1", " days left", "the key fits", "vouches"] {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
}

fn openssl(at: &Path, words: &[&str]) -> Option<String> {
    match Command::new("openssl").args(words).current_dir(at).output() {
        Ok(done) => {
            let err = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "openssl {words:?}: {err}");
            Some(String::from_utf8(done.stdout).unwrap())
        }
        Err(e) => {
            eprintln!("SKIPPED: openssl is not installed here: {e}");
            None
        }
    }
}

#[test]
fn openssl_takes_what_was_issued_before_and_behind_a_renewal_of_the_ca() {
    let scratch = Scratch::new();
    cluster(&scratch);
    let verify = |purpose: &str, file: &str| {
        openssl(
            &scratch.0,
            &["verify", "-x509_strict", "-CAfile", "tls/ca.pem", "-purpose", purpose, file],
        )
    };
    let Some(said) = verify("sslserver", "tls/n1.pem") else { return };
    assert!(said.contains("tls/n1.pem: OK"), "{said}");
    verify("sslclient", "tls/n1.pem");
    verify("sslclient", "tls/backup.pem");
    let text = openssl(&scratch.0, &["x509", "-in", "tls/n1.pem", "-noout", "-text"]).unwrap();
    for part in [
        "Version: 3",
        "ecdsa-with-SHA256",
        "ASN1 OID: prime256v1",
        "URI:spiffe://prod/node/n1, DNS:n1.example, IP Address:127.0.0.1",
        "TLS Web Server Authentication, TLS Web Client Authentication",
        "CA:FALSE",
        "Digital Signature",
        "X509v3 Authority Key Identifier",
    ] {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    let text = openssl(&scratch.0, &["x509", "-in", "tls/ca.pem", "-noout", "-text"]).unwrap();
    for part in ["CA:TRUE, pathlen:0", "Certificate Sign, CRL Sign", "URI:spiffe://prod\n"] {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    // The certificate's key is the key.
    let of_certificate = openssl(&scratch.0, &["x509", "-in", "tls/n1.pem", "-noout", "-pubkey"]);
    let of_key = openssl(&scratch.0, &["pkey", "-in", "tls/n1.key", "-pubout"]);
    assert_eq!(of_certificate, of_key);

    cert(&scratch.0, &["init", "--renew"]).ok();
    cert(&scratch.0, &["node", "n2", "--host", "n2.example"]).ok();
    for file in ["tls/n1.pem", "tls/n2.pem"] {
        assert!(verify("sslserver", file).unwrap().contains("OK"), "{file}");
    }
}

#[test]
fn a_ca_is_renewed_in_two_steps_and_the_old_one_not_forgotten_too_soon() {
    let scratch = Scratch::new();
    cluster(&scratch);
    let tls = scratch.path("tls");
    let first_key = fs::read(tls.join("ca.key")).unwrap();
    cert(&scratch.0, &["init", "--forget-old"]).refused(&["one CA alone", "--renew"]);
    let told = cert(&scratch.0, &["init", "--renew", "--days", "1000"]).ok();
    assert!(told.contains("a second CA of `prod`"), "{told}");
    assert_eq!(fs::read(tls.join("ca.key.old")).unwrap(), first_key);
    assert_ne!(fs::read(tls.join("ca.key")).unwrap(), first_key);
    let trusted = json(cert(&scratch.0, &["--json", "check", "tls/ca.pem"]));
    let [new, old] = &trusted[..] else { panic!("two CAs: {trusted:?}") };
    assert!(is_about(&new["days_left"], 1000), "the new one is in front: {new}");
    assert!(is_about(&old["days_left"], 3650), "{old}");
    cert(&scratch.0, &["check", "tls/n1.pem", "tls/backup.pem"]).ok();
    cert(&scratch.0, &["init", "--renew"]).refused(&["is not finished", "--forget-old"]);

    let before = picture(&tls);
    cert(&scratch.0, &["init", "--forget-old"]).refused(&["`tls/backup.pem`", "renew"]);
    assert_eq!(picture(&tls), before);
    cert(&scratch.0, &["renew", "tls/backup.pem"]).ok();
    cert(&scratch.0, &["init", "--forget-old"]).refused(&["`tls/n1.pem`"]);
    cert(&scratch.0, &["renew", "tls/n1.pem"]).ok();
    let told = cert(&scratch.0, &["init", "--forget-old"]).ok();
    assert!(told.contains("give `tls/ca.pem`"), "{told}");
    assert!(!tls.join("ca.key.old").exists());
    assert_eq!(json(cert(&scratch.0, &["--json", "check", "tls/ca.pem"])).len(), 1);
    cert(&scratch.0, &["check", "tls/n1.pem", "tls/backup.pem"]).ok();
}

#[test]
fn a_renewed_certificate_keeps_its_names_wherever_it_is() {
    let scratch = Scratch::new();
    cluster(&scratch);
    let place = scratch.path("node");
    fs::create_dir(&place).unwrap();
    for name in ["n1.pem", "n1.key"] {
        fs::rename(scratch.path("tls").join(name), place.join(name)).unwrap();
    }
    let of = |finished: Finished| {
        let object = json(finished).remove(0);
        (object["identity"].clone(), object["hosts"].clone(), object["serial"].clone())
    };
    let look = || of(cert(&scratch.0, &["--json", "check", "node/n1.pem", "--ca", "tls/ca.pem"]));
    let before = look();
    // Its CA is not beside it.
    cert(&scratch.0, &["renew", "node/n1.pem"]).refused(&["`node/ca.key`", "--dir"]);
    assert!(!place.join(".lock").exists(), "nothing is left where nothing was done");
    cert(&scratch.0, &["renew", "node/n1.pem", "--dir", "tls", "--days", "20"]).ok();
    let after = look();
    assert_eq!((&after.0, &after.1), (&before.0, &before.1));
    assert_ne!(after.2, before.2);
    let checked = cert(&scratch.0, &["check", "node/n1.pem", "--ca", "tls/ca.pem"]);
    assert_eq!(checked.code, Some(0), "few days are a warning");
    let told = ["ends in 19 days", "ends in 20 days"].map(|told| checked.err.contains(told));
    assert!(told.contains(&true), "{}", checked.err);
}

#[test]
fn refusals_name_what_was_wrong_and_change_nothing() {
    let scratch = Scratch::new();
    cluster(&scratch);
    cert(&scratch.0, &["init", "test", "--out", "other"]).ok();
    cert(&scratch.0, &["client", "guest", "--dir", "other"]).ok();
    fs::write(scratch.path("noise.pem"), "noise").unwrap();
    fs::write(scratch.path("file"), "").unwrap();
    let long = "n".repeat(64);
    let tls = scratch.path("tls");
    let before = picture(&tls);
    let cases: &[(&[&str], &[&str])] = &[
        (&["init", "prod"], &["`tls/ca.key`", "already"]),
        (&["init", "Prod", "--out", "new"], &["`Prod`", "lower-case"]),
        (&["init", "a/b", "--out", "new"], &["`a/b`"]),
        (&["init", "prod", "--out", "file/new"], &["file/new`"]),
        (&["init", "prod", "--out", "file"], &["`file`"]),
        (&["init", "--renew", "--dir", "none"], &["`none/ca.key`", "cert init CLUSTER"]),
        (&["init", "--renew", "--dir", "file"], &["file"]),
        (&["node", "n1", "--host", "n1"], &["`tls/n1.pem`", "already"]),
        (&["node", "ca", "--host", "n1"], &["`tls/ca.pem`", "already"]),
        (&["node", "n/2", "--host", "n2"], &["`n/2`", "letters"]),
        (&["node", "..", "--host", "n2"], &["`..`"]),
        (&["node", "", "--host", "n2"], &["``", "letters"]),
        (&["node", &long, "--host", "n2"], &["1 to 63"]),
        (&["node", "n2", "--host", "n2:7400"], &["`n2:7400`", "without a port"]),
        (&["node", "n2", "--host", "n2", "--dir", "none"], &["`none/ca.key`", "cert init"]),
        (&["client", "n 2"], &["`n 2`"]),
        (&["client", "c", "--days", "3651"], &["3651 days", " at most"]),
        (&["renew", "none.pem", "--dir", "tls"], &["`none.pem`"]),
        (&["renew", "noise.pem", "--dir", "tls"], &["`noise.pem`", "no certificate"]),
        (&["renew", "tls/n1.key"], &["`tls/n1.key`", "`.pem`"]),
        (&["renew", "tls/ca.pem"], &["`tls/ca.pem`", "--renew"]),
        (&["renew", "other/guest.pem", "--dir", "tls"], &["`other/guest.pem`", "--dir"]),
        (&["check", "none.pem"], &["`none.pem`"]),
        (&["check", "noise.pem"], &["`noise.pem`", "no certificate"]),
        (&["check", "tls/n1.pem", "--ca", "none.pem"], &["`none.pem`"]),
        (&["check", "tls/n1.pem", "--key", "none.key"], &["`none.key`"]),
        (&["check", "tls/n1.pem", "tls/backup.pem", "--key", "tls/n1.key"], &["one by one"]),
    ];
    for (words, names) in cases {
        let sentence = cert(&scratch.0, words).refused(names);
        tells_no_key(&tls, &sentence);
    }
    assert_eq!(picture(&tls), before);
    assert!(!scratch.path("new").exists(), "a wrong name leaves no directory");
    let usages: &[&[&str]] = &[
        &["init"],
        &["init", "prod", "--renew"],
        &["init", "--renew", "--forget-old"],
        &["init", "--forget-old", "--days", "1"],
        &["init", "prod", "--out", "new", "--days", "0"],
        &["client", "c", "--days", "0"],
        &["client", "c", "--days", "-1"],
        &["client", "c", "--days", "36501"],
        &["node", "n2"],
        &["renew"],
        &["check"],
    ];
    for words in usages {
        assert_eq!(cert(&scratch.0, words).code, Some(2), "{words:?}");
    }
    assert_eq!(picture(&tls), before);
}

/// Checks come with a line for the certificate, and then the sentence.
#[track_caller]
fn wrong(finished: Finished, problems: &[&str]) {
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.err.starts_with("holdfast: check certificates: "), "{}", finished.err);
    assert_eq!(finished.err.matches('\n').count(), 1, "{}", finished.err);
    for problem in problems {
        assert!(finished.err.contains(problem), "`{problem}` is missing in: {}", finished.err);
    }
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// As the command would have left it at another time.
fn keep(dir: &Path, name: &str, issued: &Issued) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join(format!("{name}.pem")), issued.certificate.pem()).unwrap();
    let key = dir.join(format!("{name}.key"));
    fs::write(&key, issued.key.pem()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
}

fn made_at(dir: &Path, made_s: i64, days: u32) {
    let ca = new_authority("prod", days, made_s, [1; 16]).unwrap();
    let authority = Authority::load(ca.certificate.pem().as_bytes(), ca.key.pem()).unwrap();
    let wanted = Wanted::node("prod", "n1", &["n1.example".to_owned()]).unwrap();
    keep(dir, "ca", &ca);
    keep(dir, "n1", &authority.issue(&wanted, None, made_s, [2; 16]).unwrap());
}

#[test]
fn what_has_ended_or_not_begun_is_told_and_issues_nothing() {
    let scratch = Scratch::new();
    made_at(&scratch.path("past"), now_s() - 100 * DAY_S, 50);
    made_at(&scratch.path("future"), now_s() + 100 * DAY_S, 50);
    made_at(&scratch.path("soon"), now_s() - 100 * DAY_S + DAY_S / 2, 110);
    wrong(
        cert(&scratch.0, &["check", "past/n1.pem"]),
        &["`past/n1.pem`", "it has ended on", "its CA"],
    );
    wrong(cert(&scratch.0, &["check", "past/ca.pem"]), &["`past/ca.pem`", "it has ended on"]);
    wrong(cert(&scratch.0, &["check", "future/n1.pem"]), &["it begins on"]);
    // All are looked at, whatever the first was.
    let both = cert(&scratch.0, &["--json", "check", "none.pem", "past/n1.pem", "soon/n1.pem"]);
    assert_eq!(both.code, Some(1));
    let objects = json(both);
    assert_eq!(objects.len(), 3, "{objects:?}");
    assert!(objects[0]["problems"][0].as_str().unwrap().contains("none.pem"));
    assert!(objects[1]["problems"][0].as_str().unwrap().contains("has ended"));
    assert_eq!(objects[2]["problems"], serde_json::json!([]));
    assert!(objects[2]["warnings"][0].as_str().unwrap().contains("ends in 10 days"));

    cert(&scratch.0, &["client", "c", "--dir", "past"]).refused(&["has ended on", "--renew"]);
    cert(&scratch.0, &["renew", "past/n1.pem"]).refused(&["has ended on", "--renew"]);
    cert(&scratch.0, &["client", "c", "--dir", "future"]).refused(&["begins on", "clock"]);
    // A CA with days left issues for those, and says so.
    let cut = cert(&scratch.0, &["client", "c", "--dir", "soon"]);
    assert_eq!(cut.code, Some(0));
    assert!(cut.err.contains("valid until its CA ends"), "{}", cut.err);
    cert(&scratch.0, &["client", "d", "--dir", "soon", "--days", "11"]).refused(&["10 at most"]);
    // An ended CA has a successor.
    cert(&scratch.0, &["init", "--renew", "--dir", "past"]).ok();
    cert(&scratch.0, &["renew", "past/n1.pem"]).ok();
    cert(&scratch.0, &["check", "past/n1.pem"]).ok();
}

#[test]
fn pairs_that_do_not_belong_together_are_told() {
    let scratch = Scratch::new();
    cluster(&scratch);
    cert(&scratch.0, &["init", "test", "--out", "other"]).ok();
    cert(&scratch.0, &["init", "prod", "--out", "twin"]).ok();
    let check = |words: &[&str]| cert(&scratch.0, &[&["check"], words].concat());
    wrong(check(&["tls/n1.pem", "--key", "tls/backup.key"]), &["`tls/n1.pem`", "does not fit"]);
    wrong(check(&["tls/n1.pem", "--key", "tls/n1.pem"]), &["no private key"]);
    wrong(check(&["tls/n1.pem", "--ca", "twin/ca.pem"]), &["has not signed it"]);
    wrong(check(&["tls/n1.pem", "--ca", "other/ca.pem"]), &["that of `test`", "has not signed it"]);
    // A CA whose key is another's signs nothing.
    fs::copy(scratch.path("other/ca.key"), scratch.path("tls/ca.key")).unwrap();
    wrong(check(&["tls/ca.pem"]), &["does not fit"]);
    let sentence = cert(&scratch.0, &["client", "c"]).refused(&["fits none of the CA's"]);
    tells_no_key(&scratch.path("tls"), &sentence);
    for noise in
        ["", "noise", "-----BEGIN PRIVATE KEY-----\nbm9pc2Ugbm9pc2U=\n-----END PRIVATE KEY-----\n"]
    {
        fs::write(scratch.path("tls/ca.key"), noise).unwrap();
        let sentence = cert(&scratch.0, &["client", "c"]).refused(&["read the CA's key"]);
        assert!(!sentence.contains("bm9pc2U"), "{sentence}");
    }
    assert!(!scratch.path("tls/c.pem").exists() && !scratch.path("tls/c.key").exists());
}

#[test]
fn a_key_that_others_may_read_is_warned_of_each_time() {
    let scratch = Scratch::new();
    cluster(&scratch);
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(scratch.path("tls/ca.key"), open.clone()).unwrap();
    let warned = cert(&scratch.0, &["client", "c"]);
    assert_eq!(warned.code, Some(0));
    assert!(
        warned.err.contains("`tls/ca.key`") && warned.err.contains("chmod 600"),
        "{}",
        warned.err
    );
    fs::set_permissions(scratch.path("tls/n1.key"), open).unwrap();
    let warned = cert(&scratch.0, &["check", "tls/n1.pem"]);
    assert_eq!(warned.code, Some(0));
    assert!(warned.err.contains("`tls/n1.key`"), "{}", warned.err);
    // What is renewed is closed again.
    let renewed = cert(&scratch.0, &["renew", "tls/n1.pem"]);
    assert_eq!(renewed.code, Some(0));
    assert_eq!(mode(&scratch.path("tls/n1.key")), 0o600);
}

/// Somebody who means well says `--out .` where others work, too.
#[test]
fn other_peoples_directories_are_not_closed() {
    let scratch = Scratch::new();
    let shared = scratch.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(shared.join("theirs"), "x").unwrap();
    cert(&scratch.0, &["init", "prod", "--out", "shared"])
        .refused(&["others may use", "chmod 700"]);
    assert_eq!(mode(&shared), 0o755);
    fs::remove_file(shared.join("theirs")).unwrap();
    cert(&scratch.0, &["init", "prod", "--out", "shared"]).ok();
    assert_eq!(mode(&shared), 0o700);
}

#[test]
fn a_full_disk_is_told_and_leaves_what_was_there() {
    let scratch = Scratch::new();
    let at = scratch.path("small");
    let Some(_mount) = Mount::new(&at, "256k") else { return };
    cert(&at, &["init", "prod"]).ok();
    cert(&at, &["node", "n1", "--host", "n1"]).ok();
    let mut filler = fs::File::create(at.join("filler")).unwrap();
    while std::io::Write::write(&mut filler, &[0; 4096]).is_ok() {}
    drop(filler);
    let before = picture(&at.join("tls"));
    for words in [&["client", "c"][..], &["renew", "tls/n1.pem"], &["init", "--renew"]] {
        cert(&at, words).refused(&["write `tls/", "space"]);
        assert_eq!(picture(&at.join("tls")), before, "{words:?}");
    }
    cert(&at, &["check", "tls/n1.pem"]).ok();
    fs::remove_file(at.join("filler")).unwrap();
    cert(&at, &["renew", "tls/n1.pem"]).ok();
    cert(&at, &["check", "tls/n1.pem"]).ok();
}

/// The commands of docs/security.md for a CA of one's own.
const OWN_CA: &str = r#"set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -keyout company.key -out company.pem -subj /CN=Company -days 1000
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -keyout n1.key -out n1.csr -subj /CN=n1
openssl x509 -req -in n1.csr -CA company.pem -CAkey company.key -days 397 -out n1.pem -extfile /dev/stdin <<END
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = URI:spiffe://prod/node/n1, DNS:n1.example.com, IP:10.0.0.1
END
openssl ec -in n1.key -out sec1.key
openssl pkey -in n1.key -aes256 -passout pass:secret -out locked.key
"#;

#[test]
fn certificates_of_another_ca_are_checked_as_the_page_says() {
    let scratch = Scratch::new();
    if openssl(&scratch.0, &["version"]).is_none() {
        return;
    }
    let page = include_str!("../../../../docs/security.md");
    for line in OWN_CA.lines().filter(|line| !line.contains("-x509 ")).skip(1).take(7) {
        assert!(page.contains(line), "the page does not say: {line}");
    }
    let made = Command::new("sh").args(["-c", OWN_CA]).current_dir(&scratch.0).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    for key in ["n1.key", "sec1.key"] {
        let words = ["check", "n1.pem", "--ca", "company.pem", "--key", key];
        let checked = cert(&scratch.0, &[&["--json"][..], &words].concat());
        assert_eq!(checked.code, Some(0), "{checked:?}");
        let object = json(checked).remove(0);
        assert_eq!(object["identity"], "spiffe://prod/node/n1");
        assert_eq!((&object["key_fits"], &object["trusted"]), (&true.into(), &true.into()));
    }
    wrong(cert(&scratch.0, &["check", "n1.pem", "--key", "locked.key"]), &["password"]);
    // Its key is there, but it is no CA of a cluster.
    for (from, to) in [("company.pem", "ca.pem"), ("company.key", "ca.key")] {
        fs::rename(scratch.path(from), scratch.path(to)).unwrap();
    }
    cert(&scratch.0, &["renew", "n1.pem"])
        .refused(&["not the CA of a cluster", "tools of that CA"]);
}
