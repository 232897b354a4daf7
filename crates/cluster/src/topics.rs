//! The one registry of the names of topics that folds own: who folds them, and what a client may do
//! with them. Asked by the log's operations, and by whoever looks after the log of a topic that
//! nobody has opened. Pure; the decision is here, who the owner is the caller's to know.

use holdfast_base::{Error, Result};

/// The topic of the cluster view.
pub const CLUSTER_TOPIC: &str = "cluster";
/// The topic of shard 0's namespace.
pub const NAMESPACE_TOPIC: &str = "namespace/0";
/// The topic of a shard's namespace.
pub fn namespace_topic(shard: u16) -> String {
    format!("namespace/{shard}")
}

/// The topic of the names of blobs.
pub const BLOBS_TOPIC: &str = "blobs/0";
/// The topic of the audit trail. No fold's: nodes write it, and who has a right of its own reads it.
pub const AUDIT_TOPIC: &str = "audit-trail";

/// The family of topics of items: each has views of its parts, which snapshots of the views of the
/// whole topic do not cover.
pub const ITEMS: &str = "view";

/// The family of Scribe's categories: their entries are what is read, so snapshots replace none of them.
pub const SCRIBE: &str = "scribe";

/// The family of tables: a topic for each tablet.
pub const TABLES: &str = "table";

/// Whole families of names are the folds': a topic of a later shard, which a client had made before,
/// could never be folded. A face that is switched off is here, too: what a new one adds is a line.
const FAMILIES: [(&str, &str); 6] = [
    ("cluster", "the cluster's view"),
    ("namespace", "the view of names"),
    ("blobs", "S3"),
    (ITEMS, "views of items"),
    (SCRIBE, "Scribe"),
    (TABLES, "tables"),
];

/// What somebody wants to do with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Read,
    /// Append to it, trim it or make it.
    Change,
}

/// Who folds the topic, if a fold owns it.
pub fn folded_by(topic: &str) -> Option<&'static str> {
    let family = topic.split('/').next().unwrap_or(topic);
    FAMILIES.iter().find(|(name, _)| *name == family).map(|(_, fold)| *fold)
}

/// Whether snapshots that every node has of its view of the topic hold all that anybody needs of it.
pub fn is_covered_by_snapshots(topic: &str) -> bool {
    !matches!(topic.split('/').next(), Some(ITEMS | SCRIBE))
}

/// Whether a fold's topic is kept for as long as was asked for, by its category of Scribe's: what its view
/// needs is in snapshots, and what was asked for says what readers get.
pub fn is_kept_by_limits(topic: &str) -> bool {
    topic.split('/').next() == Some(SCRIBE)
}

/// Refuses what a client may not do with the audit trail: it would be worth nothing if those whom it
/// tells of could change it, and it says who has which rights. `has_right`: to read it.
pub fn check_audit(wanted: Use, has_right: bool) -> Result<()> {
    match wanted {
        Use::Read if has_right => Ok(()),
        Use::Read => Err(Error::denied(
            "read the audit trail: it takes the right `audit:r`: use a token that has it \
             (`holdfast token create NAME --allow audit:r`), or the node's own socket",
        )),
        Use::Change => Err(Error::denied(format!(
            "change topic `{AUDIT_TOPIC}`: it is the audit trail, which nodes write and nobody changes"
        ))),
    }
}

/// Refuses what a client may not do with a topic, which `fold` owns, if one does. An entry that no fold has written would stop the fold, or be
/// believed; a trim would take what the next start needs; and what a fold writes down (the names of
/// all files, access keys) is for the node's owner to read. Entries of a topic of items say no more than rides
/// bring: whoever may ride reads them, too, and so goes on behind a ride.
pub fn check_client(topic: &str, fold: Option<&str>, wanted: Use, is_owner: bool) -> Result<()> {
    let Some(fold) = fold else { return Ok(()) };
    match wanted {
        Use::Read if is_owner || topic.split('/').next() == Some(ITEMS) => Ok(()),
        Use::Read => Err(Error::invalid(format!(
            "read topic `{topic}`: it belongs to {fold}, and is read by the node's owner only: \
             connect to `unix:DATA/holdfast.sock` as the user whom the node runs as"
        ))),
        Use::Change => Err(Error::invalid(format!(
            "change topic `{topic}`: it belongs to {fold}, and nobody else writes or trims it: use \
             another name"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOBS_TOPIC, CLUSTER_TOPIC, NAMESPACE_TOPIC, Use, folded_by};
    use holdfast_base::Result;

    fn check_client(topic: &str, wanted: Use, is_owner: bool) -> Result<()> {
        super::check_client(topic, folded_by(topic), wanted, is_owner)
    }

    #[test]
    fn clients_change_no_topic_of_a_fold_and_its_owner_alone_reads_it() {
        for topic in [
            CLUSTER_TOPIC,
            NAMESPACE_TOPIC,
            BLOBS_TOPIC,
            "namespace/7",
            "blobs",
            "blobs/1/2",
            "view/orders",
            "scribe/web",
            "table/users/0",
        ] {
            let refused = check_client(topic, Use::Change, true).unwrap_err();
            assert!(refused.message.contains(topic), "{refused}");
            assert_eq!(check_client(topic, Use::Change, false), Err(refused));
            assert_eq!(check_client(topic, Use::Read, true), Ok(()));
            let read = check_client(topic, Use::Read, false);
            match topic == "view/orders" {
                true => assert_eq!(read, Ok(()), "rides bring the same"),
                false => assert!(read.as_ref().unwrap_err().message.contains("owner"), "{read:?}"),
            }
        }
        for topic in
            ["clusters", "mine", "my/blobs/0", "namespaces/0", "blobs0", "views/orders", "tables/0"]
        {
            for wanted in [Use::Read, Use::Change] {
                assert_eq!(check_client(topic, wanted, false), Ok(()), "{topic}");
            }
        }
    }
}
