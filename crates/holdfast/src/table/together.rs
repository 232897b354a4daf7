//! `holdfast table write`: records that stand or fall together, from lines of JSON.

use super::{Session, read_up_to};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_wire::table::{Expect, GroupDo, GroupRow, GroupWritten};
use serde::Deserialize;
use serde_json::json;
use std::path::Path;

/// As text everything that a group may have is shorter.
const FILE_BYTES_MAX: usize = 8 << 20;

/// One line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: String,
    value: Option<String>,
    #[serde(default)]
    delete: bool,
    #[serde(default)]
    check: bool,
    if_version: Option<u64>,
    #[serde(default)]
    if_absent: bool,
}

impl Line {
    fn row(self) -> Result<GroupRow, &'static str> {
        let expect = match (self.if_absent, self.if_version) {
            (true, Some(_)) => {
                return Err("a record cannot be absent and have a version: choose one");
            }
            (true, None) => Expect::Absent,
            (false, Some(version)) => Expect::Version { version },
            (false, None) => Expect::Any,
        };
        let what = match (self.value, self.delete, self.check) {
            (Some(value), false, false) => GroupDo::Put(value.into_bytes()),
            (None, true, false) => GroupDo::Delete,
            (None, false, true) => GroupDo::Check,
            _ => return Err("say one of `value`, `delete` and `check`"),
        };
        Ok(GroupRow { expect, key: self.key.into_bytes(), what })
    }
}

fn rows(text: &[u8]) -> Result<Vec<GroupRow>> {
    let lines = text.split(|byte| *byte == b'\n').enumerate();
    let wanted = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    let row = |(at, line): (usize, &[u8])| {
        let line: Result<Line, _> = serde_json::from_slice(line).map_err(|e| e.to_string());
        let row = line.and_then(|line| line.row().map_err(str::to_owned));
        row.map_err(|why| Error::invalid(format!("line {}: {why}", at + 1)))
    };
    wanted.map(row).collect()
}

pub fn write(
    client: &mut Client,
    table: &str,
    file: &Path,
    session: &Session,
    out: &mut Output,
) -> Result<()> {
    let doing = |e: Error| e.context(format_args!("read what to write in `{}`", file.display()));
    let text = read_up_to(file, FILE_BYTES_MAX + 1).map_err(doing)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(doing(Error::invalid(format!(
            "it has more than {FILE_BYTES_MAX} bytes, and a group fewer by far"
        ))));
    }
    let rows = rows(&text).map_err(doing)?;
    let mut records = client.table(table);
    session.begin(&mut records)?;
    let written = records.write_together(&rows)?;
    let kept = session.end(&records);
    let key = |at: u16| {
        let key = rows.get(usize::from(at)).map_or(&[][..], |row| &row.key);
        String::from_utf8_lossy(key).escape_debug().to_string()
    };
    let table = table.escape_debug();
    match written {
        GroupWritten::Versions { versions } => {
            for (row, version) in rows.iter().zip(versions) {
                let key = String::from_utf8_lossy(&row.key);
                let done = match row.what {
                    GroupDo::Put(_) => format!("version {version}"),
                    GroupDo::Delete => format!("deleted, at version {version}"),
                    GroupDo::Check if version == 0 => "looked at, and absent".to_owned(),
                    GroupDo::Check => format!("looked at, version {version}"),
                };
                let shown = || format!("{}: {done}", key.escape_debug());
                out.line(shown, || json!({"key": key, "version": version}))?;
            }
            kept
        }
        GroupWritten::Found { at, version } => Err(Error::exists(format!(
            "record `{}` of table `{table}` has version {version}, and nothing was written: read it, and decide anew",
            key(at)
        ))),
        GroupWritten::Absent { at } => Err(Error::not_found(format!(
            "there is no record `{}` in table `{table}`, and nothing was written: read what there is, and decide anew",
            key(at)
        ))),
        GroupWritten::OtherHome { at } => Err(Error::invalid(format!(
            "record `{}` of table `{table}` is at home in another region than `{}`, and nothing was written: write \
             them one by one, or again once their homes are one",
            key(at),
            key(0)
        ))),
        GroupWritten::OtherTablet { at } => Err(Error::invalid(format!(
            "record `{}` of table `{table}` lies in another tablet than `{}`, and nothing was written: write them one \
             by one, or have a table of one tablet",
            key(at),
            key(0)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_becomes_of_each_record() {
        let text = b"{\"key\": \"a\", \"value\": \"1\", \"if_absent\": true}\n\n\
                     {\"key\": \"b\", \"delete\": true}\n{\"key\": \"c\", \"check\": true, \"if_version\": 3}";
        let row = |expect, key: &[u8], what| GroupRow { expect, key: key.to_vec(), what };
        let expected = [
            row(Expect::Absent, b"a", GroupDo::Put(b"1".to_vec())),
            row(Expect::Any, b"b", GroupDo::Delete),
            row(Expect::Version { version: 3 }, b"c", GroupDo::Check),
        ];
        assert_eq!(rows(text).unwrap(), expected);
        for (wrong, why) in [
            ("{}", "key"),
            ("{\"key\": \"a\"}", "say one of"),
            ("{\"key\": \"a\", \"value\": \"\", \"check\": true}", "say one of"),
            (
                "{\"key\": \"a\", \"check\": true, \"if_absent\": true, \"if_version\": 1}",
                "choose one",
            ),
            ("{\"key\": \"a\", \"values\": 1}", "values"),
        ] {
            let text = format!("\n{wrong}");
            let e = rows(text.as_bytes()).unwrap_err();
            assert!(e.message.starts_with("line 2: ") && e.message.contains(why), "{e}");
        }
    }
}
