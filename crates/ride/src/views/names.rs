//! What views are called: by people, by files, and in the file that says which view a directory keeps.

use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, Encode};
use holdfast_view::items::NAME_BYTES_MAX;
use holdfast_wire::view::{ViewKind, ViewName};

/// As people say it.
pub fn describe(name: &ViewName) -> String {
    let ViewName { topic, kind, part, of } = name;
    let kind = match kind {
        ViewKind::Disk {} => "disk".to_owned(),
        ViewKind::Memory {} => "memory".to_owned(),
        ViewKind::Index { collection, field } => format!("index of {collection}.{field}"),
    };
    format!("{topic} {kind} {part}/{of}")
}

/// As files are called: short, and another one for each view.
pub(super) fn file_name(name: &ViewName) -> String {
    let readable: String = describe(name)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._".contains(c) { c } else { '-' })
        .take(NAME_BYTES_MAX + 50)
        .collect();
    format!("{readable}-{:08x}", crc32c(&name.to_bytes()))
}

/// What a view's fold is called, after which its snapshots are. As people say it where that is short and no
/// other view's: an index of field `b.c` in `a` and one of `c` in `a.b` are called the same, as are files
/// named after the fields `a/b` and `a b`.
pub(super) fn fold_name(name: &ViewName) -> String {
    let is_plain = |word: &str| word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match &name.kind {
        ViewKind::Index { collection, field }
            if !is_plain(collection) || !is_plain(field) || field.len() > NAME_BYTES_MAX =>
        {
            file_name(name)
        }
        _ => describe(name),
    }
}

/// With its checksum.
pub(super) fn written_name(name: &ViewName) -> Vec<u8> {
    let mut bytes = name.to_bytes();
    let crc = crc32c(&bytes);
    crc.encode(&mut bytes);
    bytes
}

pub(super) fn read_name(bytes: &[u8]) -> Option<ViewName> {
    let (name, crc) = bytes.split_last_chunk::<4>()?;
    let name = (crc32c(name).to_le_bytes() == *crc).then(|| ViewName::from_bytes(name))?;
    name.ok()
}
