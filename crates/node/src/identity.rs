//! Who a node is: its cluster's id and its own number, kept in the data directory's file `NODE`
//! as one line that `cat` shows. Written once, when the node has its number, and never changed.

use holdfast_base::checksum::crc32c;
use holdfast_base::ids::NodeId;
use holdfast_base::{Error, Result};
use holdfast_env::Disk;
use holdfast_env::disk::{ReplaceSites, read_file, replace_file};
use std::path::Path;

const SITES: ReplaceSites = ReplaceSites { data: "node.identity-data", name: "node.identity-name" };
const FILE_BYTES_MAX: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: u64,
    pub node: NodeId,
}

impl Identity {
    /// Its name in a data directory.
    pub const FILE: &str = "NODE";

    fn text(&self) -> String {
        let line = format!("cluster {:016x} node {}", self.cluster, self.node.0);
        format!("{line} check {:08x}\n", crc32c(line.as_bytes()))
    }

    /// None in a directory that has not been part of a cluster yet.
    pub fn load(disk: &dyn Disk, data: &Path) -> Result<Option<Identity>> {
        let path = data.join(Identity::FILE);
        if !disk.exists(&path)? {
            return Ok(None);
        }
        let text = read_file(disk, &path, FILE_BYTES_MAX)?;
        let identity = parse(&text).ok_or_else(|| {
            Error::corrupt(format!(
                "read `{}`: it says `{}`, which no node wrote: put it back, or erase the data directory and let the node join anew",
                path.display(),
                String::from_utf8_lossy(&text).trim().escape_debug()
            ))
        })?;
        Ok(Some(identity))
    }

    pub fn save(&self, disk: &dyn Disk, data: &Path) -> Result<()> {
        Ok(replace_file(disk, &data.join(Identity::FILE), self.text().as_bytes(), SITES)?)
    }
}

fn parse(text: &[u8]) -> Option<Identity> {
    let words: Vec<&str> = std::str::from_utf8(text).ok()?.split_whitespace().collect();
    let ["cluster", cluster, "node", node, "check", _] = words[..] else { return None };
    let identity = Identity {
        cluster: u64::from_str_radix(cluster, 16).ok()?,
        node: NodeId(node.parse().ok()?),
    };
    // The checksum, and every other byte.
    (identity.text().as_bytes() == text).then_some(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back_and_every_flipped_bit_is_refused() {
        let identity = Identity { cluster: 0x1234_5678_9abc_def0, node: NodeId(7) };
        let text = identity.text().into_bytes();
        assert_eq!(text, b"cluster 123456789abcdef0 node 7 check 947eba88\n");
        assert_eq!(parse(&text), Some(identity));
        for bit in 0..text.len() * 8 {
            let mut bad = text.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bad), None, "bit {bit}");
        }
        assert_eq!(parse(b""), None);
    }
}
