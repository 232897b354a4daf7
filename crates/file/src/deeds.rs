//! What the audit trail is told of requests that change files: which name is used, and how. Of a
//! large file the beginning and the name that it gets are told, not each append in between.

use holdfast_base::codec::Decode;
use holdfast_server::Told;
use holdfast_wire::file as msg;

pub(crate) fn put(meta: &[u8]) -> Told {
    let node = msg::Put::from_bytes(meta).ok()?.node;
    Some(("fs put", node.path))
}

pub(crate) fn begin(meta: &[u8]) -> Told {
    let node = msg::Begin::from_bytes(meta).ok()?.node;
    Some(("fs begin", node.path))
}

pub(crate) fn close(meta: &[u8]) -> Told {
    let close = msg::Close::from_bytes(meta).ok()?;
    Some(("fs close", format!("{} (file {})", close.node.path, close.file)))
}

pub(crate) fn change(meta: &[u8]) -> Told {
    Some(match msg::Change::from_bytes(meta).ok()?.action {
        msg::Action::Make { node } => ("fs mkdir", node.path),
        msg::Action::Symlink { path, target, .. } => ("fs ln", format!("{path} to {target}")),
        msg::Action::Rename { from, to, .. } => ("fs mv", format!("{from} to {to}")),
        msg::Action::Delete { path, recursive: false } => ("fs rm", path),
        msg::Action::Delete { path, recursive: true } => ("fs rm -r", path),
        msg::Action::SetAttributes { path, .. } => ("fs set", path),
        msg::Action::SetClass { path, class } => ("fs class", format!("{path}: {class}")),
        msg::Action::Abandon { file } => ("fs abandon", format!("file {file}")),
        msg::Action::Salvage { file, path } => ("fs salvage", format!("file {file} as {path}")),
        // Part of writing a file, as appends are.
        msg::Action::Seal { .. } => return None,
    })
}
