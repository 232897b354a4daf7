//! `holdfast cert check`: reads the files, prints what was found. What is wrong is decided by the
//! crate `cert`.

use super::date;
use super::place::{self, FILE_BYTES_MAX, at};
use holdfast_base::{Error, Result};
use holdfast_cert::{Bundle, Checked, check};
use holdfast_command::output::{self, Output};
use holdfast_env::local;
use serde_json::{Value, json};
use std::io;
use std::path::Path;

/// Checks files. Fails, when all are told, if anything was wrong with one.
pub fn run(
    files: &[impl AsRef<Path>],
    key: Option<&Path>,
    ca: Option<&Path>,
    now_s: i64,
    out: &mut Output,
) -> Result<()> {
    let doing = |e: Error| e.context("check certificates");
    if key.is_some() && files.len() > 1 {
        return Err(doing(Error::invalid("--key is of one certificate: check them one by one")));
    }
    let ca = ca.map(bundle).transpose().map_err(doing)?;
    let mut wrong = Vec::new();
    for file in files {
        let file = file.as_ref();
        match check_file(file, key, ca.as_ref(), now_s) {
            Ok(checked) => {
                for checked in &checked {
                    tell(file, checked, out)?;
                    wrong.extend(problems(file, &checked.problems));
                }
            }
            Err(e) => {
                out.object(
                    || json!({"file": file.display().to_string(), "problems": [e.message]}),
                )?;
                wrong.push(e.message);
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(doing(Error::invalid(wrong.join("; ")))),
    }
}

fn problems<'a>(file: &'a Path, problems: &'a [String]) -> impl Iterator<Item = String> + 'a {
    problems.iter().map(|problem| format!("`{}`: {problem}", file.display()))
}

/// Reads the certificates of a file.
pub fn bundle(file: &Path) -> Result<Bundle> {
    let bytes = local::read_small(file, FILE_BYTES_MAX).map_err(at("read", file))?;
    Bundle::of_pem(&bytes).map_err(|e| e.context(format_args!("read `{}`", file.display())))
}

/// Something that is looked for where nobody named it.
fn beside<T>(read: io::Result<T>) -> Option<T> {
    read.ok()
}

fn check_file(
    file: &Path,
    key: Option<&Path>,
    ca: Option<&Bundle>,
    now_s: i64,
) -> Result<Vec<Checked>> {
    let certificates = bundle(file)?;
    let near = file.with_extension(place::KEY);
    let key_bytes = match key {
        Some(key) => Some(local::read_small(key, FILE_BYTES_MAX).map_err(at("read", key))?),
        None => beside(local::read_small(&near, FILE_BYTES_MAX)),
    };
    if key_bytes.is_some() {
        place::warn_if_open(key.unwrap_or(&near));
    }
    let near = place::directory_of(file).join(place::CA);
    let near = match ca {
        None if near.exists() => Some(bundle(&near)?),
        _ => None,
    };
    Ok(check(&certificates, key_bytes.as_deref(), ca.or(near.as_ref()), now_s))
}

fn tell(file: &Path, checked: &Checked, out: &mut Output) -> Result<()> {
    let file = file.display();
    if !out.is_json() {
        for warning in &checked.warnings {
            output::aside(format_args!("`{file}`: {warning}"));
        }
    }
    out.line(|| text(&file.to_string(), checked), || object(&file.to_string(), checked))
}

fn uses(checked: &Checked) -> Vec<&'static str> {
    let certificate = &checked.certificate;
    let all = [
        (certificate.is_authority, "CA"),
        (certificate.for_servers && !certificate.is_authority, "server"),
        (certificate.for_clients && !certificate.is_authority, "client"),
    ];
    all.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect()
}

fn text(file: &str, checked: &Checked) -> String {
    let found = &checked.certificate;
    let whose = match (&found.certified, &found.cluster) {
        (Ok(certified), _) => format!("{}, number {}", certified.who, certified.serial),
        (Err(_), Some(cluster)) => format!("the CA of `{cluster}`, {}", found.subject),
        (Err(_), None) => found.subject.clone(),
    };
    let hosts = match found.hosts.is_empty() {
        true => String::new(),
        false => format!(" at {}", found.hosts.join(", ")),
    };
    let mut text = format!(
        "{file}: {whose}{hosts}; for use as {}; signed by {}; valid from {} until {}, {} days left",
        uses(checked).join(" and "),
        found.issuer,
        date(found.not_before_s),
        date(found.not_after_s),
        checked.days_left
    );
    let answers = [
        (checked.key_fits, "the key fits", "THE KEY DOES NOT FIT"),
        (checked.is_trusted, "the CA vouches for it", "THE CA DOES NOT VOUCH FOR IT"),
    ];
    for (answer, yes, no) in answers {
        if let Some(answer) = answer {
            text.push_str("; ");
            text.push_str(if answer { yes } else { no });
        }
    }
    text
}

fn object(file: &str, checked: &Checked) -> Value {
    let found = &checked.certificate;
    let certified = found.certified.as_ref().ok();
    json!({
        "file": file,
        "identity": certified.map(|certified| certified.who.to_string()),
        "serial": certified.map(|certified| certified.serial.clone()),
        "cluster": certified.map(|c| c.who.cluster.clone()).or(found.cluster.clone()),
        "subject": found.subject,
        "issuer": found.issuer,
        "hosts": found.hosts,
        "uses": uses(checked),
        "not_before": date(found.not_before_s),
        "not_after": date(found.not_after_s),
        "days_left": checked.days_left,
        "key_fits": checked.key_fits,
        "trusted": checked.is_trusted,
        "problems": checked.problems,
        "warnings": checked.warnings,
    })
}
