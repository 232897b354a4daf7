//! Rows of builds from before this view was kept as all views are. Their position had a row of its
//! own, and no digest beside it: they are folded anew, which the fold does by itself with rows that
//! have no position. They are gone on from where the log does not hold all that they do any more.

use crate::BLOBS_TOPIC;
use crate::names::{Names, decoded};
use holdfast_base::ids::Index;
use holdfast_base::{Result, codec_struct};
use holdfast_env::planted;
use holdfast_env::rows::Batch;
use holdfast_log::Log;
use holdfast_node::Node;
use holdfast_view::{Context, InRows, Position, View};

/// The last entry that the rows contain, and its checksum.
const OLD_POSITION: &[u8] = b"m";

struct OldPosition {
    index: Index,
    entry_crc: u32,
}
codec_struct!(OldPosition { index, entry_crc });

/// To be called before the view is opened in its rows.
pub fn take_over(node: &Node, context: &Context) -> Result<()> {
    let Some(rows) = &context.rows else { return Ok(()) };
    let Some(bytes) = rows.get(OLD_POSITION)? else { return Ok(()) };
    let OldPosition { index, entry_crc } = decoded(&bytes, "the view's position")?;
    let mut taken = false;
    // The fold's own rows.
    rows.scan(&[0], &[1], &mut |_, _| {
        taken = true;
        Ok(false)
    })?;
    if !taken {
        let whole = match node.hosted() {
            // Its host has a snapshot, where the log was trimmed.
            None => true,
            Some(log) => {
                log.info(BLOBS_TOPIC).is_ok_and(|info| info.first == Index(1) && info.next > index)
            }
        };
        if whole || planted!("blob.old-rows-given-up") {
            return Ok(());
        }
        // No other node has had the same digest at any index: it begins here.
        let position = Position { applied: index, entry_crc, digest: 0, epoch: Index(0) };
        InRows::<Names>::begin(context).keep((position, Vec::new()))?;
    }
    let mut batch = Batch::default();
    batch.remove(OLD_POSITION.to_vec());
    rows.write(batch)
}
