//! Whether a log holds an entry that somebody has read of it: what shows that it was put back from
//! an older copy, or that another one grew from that. Asks the log, changes nothing.

use crate::{Log, Scope};
use holdfast_base::Kind;
use holdfast_base::checksum::crc32c;
use holdfast_base::ids::Index;

/// What shows that the log is not the one of which somebody has read the entry at `index`, whose
/// CRC32C this is if it is known; nothing where it is, or cannot be told.
pub fn missing(log: &dyn Log, topic: &str, index: Index, crc: Option<u32>) -> Option<String> {
    let info = match log.info(topic) {
        Ok(info) => info,
        Err(e) if e.kind == Kind::NotFound => {
            return Some(format!("topic `{topic}` is gone, which had entry {index}"));
        }
        // It says itself what is wrong.
        Err(_) => return None,
    };
    if info.next <= index {
        let next = info.next;
        return Some(format!("topic `{topic}` had entry {index}, and goes on at {next} now"));
    }
    let page = log.read(topic, index, 1, 1, Scope::Written).ok()?;
    // A trim may have taken it, and damage is another's to tell.
    let (_, entry) = page.first().filter(|(found, _)| *found == index)?;
    (crc32c(entry) != crc?)
        .then(|| format!("entry {index} of topic `{topic}` is another one than it was"))
}
