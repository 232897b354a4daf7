//! `fs ls`, `stat`, `du` and `unclosed`: what people and scripts read.

use super::put::join;
use holdfast_base::Result;
use holdfast_base::node::NodeKind;
use holdfast_base::text::shown;
use holdfast_base::units::format_bytes;
use holdfast_client::Client;
use holdfast_command::output::{Output, time};
use holdfast_wire::file::FileInfo;
use serde_json::{Value, json};

fn letter(kind: NodeKind) -> char {
    match kind {
        NodeKind::Directory => 'd',
        NodeKind::File => '-',
        NodeKind::Symlink => 'l',
        NodeKind::MultiFile => 'm',
        NodeKind::Table => 't',
        NodeKind::KeyValue => 'k',
    }
}

fn mode(info: &FileInfo) -> String {
    let mut text = String::from(letter(info.kind));
    for shift in [6, 3, 0] {
        let bits = info.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(if bits & 1 != 0 { 'x' } else { '-' });
    }
    text
}

fn object(path: &str, info: &FileInfo) -> Value {
    json!({
        "path": path,
        "id": info.id.0,
        "kind": info.kind.name(),
        "mode": format!("{:04o}", info.mode),
        "mtime_ns": info.mtime_ns,
        "size": info.size,
        "class": info.class.to_string(),
        "target": info.target,
    })
}

fn arrow(info: &FileInfo) -> String {
    if info.kind == NodeKind::Symlink {
        format!(" -> {}", shown(&info.target))
    } else {
        String::new()
    }
}

/// Prints a line an entry of a directory, in the order of names, or one for anything else.
pub fn ls(
    client: &mut Client,
    path: &str,
    long: bool,
    recursive: bool,
    out: &mut Output,
) -> Result<()> {
    let info = client.stat_followed(path)?;
    let line = |name: &str, info: &FileInfo| {
        if long {
            let (size, when) = (info.size, time(info.mtime_ns));
            format!("{} {size:>12} {when} {}{}", mode(info), shown(name), arrow(info))
        } else {
            shown(name).into_owned()
        }
    };
    if !info.kind.is_container() {
        return out.line(|| line(path, &info), || object(path, &info));
    }
    // Names are shown relative to what was asked for.
    let mut directories = vec![String::new()];
    while let Some(below) = directories.pop() {
        let directory = if below.is_empty() { path.to_owned() } else { join(path, &below) };
        let mut after = String::new();
        let mut found = Vec::new();
        loop {
            let page = client.list(&directory, &after)?;
            for entry in &page.entries {
                let name = if below.is_empty() {
                    entry.name.clone()
                } else {
                    format!("{below}/{}", entry.name)
                };
                out.line(|| line(&name, &entry.info), || object(&join(path, &name), &entry.info))?;
                if recursive && entry.info.kind.is_container() {
                    found.push(name);
                }
            }
            match page.entries.last() {
                Some(last) if page.more => after = last.name.clone(),
                _ => break,
            }
        }
        directories.extend(found.into_iter().rev());
    }
    Ok(())
}

/// Prints what is known of one name; a link is not followed.
pub fn stat(client: &mut Client, path: &str, out: &mut Output) -> Result<()> {
    let info = client.stat(path)?;
    let text = || {
        let what = if info.kind.is_container() { "entries" } else { "bytes" };
        format!(
            "{}{}\n  kind {}, id {}, {} {what}, mode {:04o}, modified {}\n  class {}",
            shown(path),
            arrow(&info),
            info.kind.name(),
            info.id.0,
            info.size,
            info.mode,
            time(info.mtime_ns),
            info.class,
        )
    };
    out.line(text, || object(path, &info))
}

/// Prints what is below a path, all of it together.
pub fn du(client: &mut Client, path: &str, out: &mut Output) -> Result<()> {
    let usage = client.usage(path)?;
    out.line(
        || {
            format!(
                "{} in {} files and {} directories below {}",
                format_bytes(usage.bytes),
                usage.files,
                usage.directories,
                shown(path)
            )
        },
        || json!({"path": path, "bytes": usage.bytes, "files": usage.files, "directories": usage.directories}),
    )
}

/// Prints the files that were begun and never closed, with the bytes that were acknowledged.
pub fn unclosed(client: &mut Client, out: &mut Output) -> Result<()> {
    for file in client.unclosed()? {
        out.line(
            || {
                format!(
                    "{}  {} acknowledged, begun as {}",
                    file.file.0,
                    format_bytes(file.bytes),
                    shown(&file.path)
                )
            },
            || json!({"file": file.file.0, "path": file.path, "bytes": file.bytes}),
        )?;
    }
    Ok(())
}
