//! What a topic's settings must be, for its broker to keep what it acknowledged. Pure.

use std::collections::BTreeMap;

/// What librdkafka adds to an entry, and some to spare.
const RECORD_BYTES_BESIDE: usize = 4096;

/// The settings that a topic is made with, on a cluster of so many brokers.
pub fn settings(brokers: usize, entry_bytes_max: usize) -> Vec<(&'static str, String)> {
    vec![
        ("cleanup.policy", "delete".to_owned()),
        ("retention.ms", "-1".to_owned()),
        ("retention.bytes", "-1".to_owned()),
        ("unclean.leader.election.enable", "false".to_owned()),
        ("min.insync.replicas", if brokers > 1 { "2" } else { "1" }.to_owned()),
        ("max.message.bytes", (entry_bytes_max + RECORD_BYTES_BESIDE).to_string()),
    ]
}

/// Copies of a topic, on a cluster of so many brokers.
pub fn replicas(brokers: usize) -> usize {
    brokers.clamp(1, 3)
}

/// Why what is acknowledged in a topic might be lost, or not be taken: the first reason, and what to set.
/// `replicas` are the topic's, `brokers` those of the cluster.
pub fn unsafe_because(
    found: &BTreeMap<String, String>,
    (replicas, brokers): (usize, usize),
    entry_bytes_max: usize,
) -> Option<String> {
    let of = |name: &str| found.get(name).map_or("", String::as_str);
    let wants = |name: &str, wanted: &str, why: &str| {
        let is = of(name);
        (is != wanted).then(|| format!("its `{name}` is `{is}`, {why}: set it to `{wanted}`"))
    };
    let at_least = |name: &str, least: usize, why: &str| {
        let is = of(name);
        let enough = is.parse::<usize>().is_ok_and(|is| is >= least);
        (!enough).then(|| format!("its `{name}` is `{is}`, {why}: set it to {least} or more"))
    };
    let dropped = "so the broker would delete entries that views still need";
    wants("retention.ms", "-1", dropped)
        .or_else(|| wants("retention.bytes", "-1", dropped))
        .or_else(|| wants("cleanup.policy", "delete", "so the broker would drop all entries but the last"))
        .or_else(|| {
            let why = "so a broker that lacks acknowledged entries may lead it";
            wants("unclean.leader.election.enable", "false", why)
        })
        .or_else(|| {
            // One broker of its own is what somebody tries things with; and says so.
            let few = brokers > 1 && replicas < 3.min(brokers);
            few.then(|| {
                format!(
                    "it has {replicas} replicas on {brokers} brokers, so one disk that is lost may take \
                     acknowledged entries with it: give it {}",
                    3.min(brokers)
                )
            })
        })
        .or_else(|| {
            let why = "so an entry is acknowledged that one broker alone has";
            if brokers > 1 { at_least("min.insync.replicas", 2, why) } else { None }
        })
        .or_else(|| {
            let why = "which is less than the longest entry";
            at_least("max.message.bytes", entry_bytes_max + RECORD_BYTES_BESIDE, why)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(brokers: usize) -> BTreeMap<String, String> {
        let made = settings(brokers, 1000).into_iter();
        made.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn what_we_make_is_safe_and_no_setting_may_differ() {
        for brokers in [1, 2, 3, 9] {
            let size = (replicas(brokers), brokers);
            assert_eq!(unsafe_because(&made(brokers), size, 1000), None);
            let bad = [
                ("retention.ms", "604800000"),
                ("retention.bytes", "1"),
                ("cleanup.policy", "compact"),
                ("cleanup.policy", "compact,delete"),
                ("unclean.leader.election.enable", "true"),
                ("max.message.bytes", "1000"),
                ("max.message.bytes", ""),
            ];
            for (name, value) in bad {
                let mut found = made(brokers);
                found.insert(name.to_owned(), value.to_owned());
                let why = unsafe_because(&found, size, 1000).unwrap();
                assert!(why.contains(name) && why.contains("set it to"), "{why}");
            }
            let missing = unsafe_because(&BTreeMap::new(), size, 1000).unwrap();
            assert!(missing.contains("retention.ms"), "{missing}");
        }
    }

    #[test]
    fn one_copy_is_for_one_broker_alone() {
        let one_of_three = unsafe_because(&made(3), (1, 3), 1000).unwrap();
        assert!(one_of_three.contains("1 replicas on 3 brokers"), "{one_of_three}");
        assert!(unsafe_because(&made(2), (2, 2), 1000).is_none());
        let alone = unsafe_because(&made(1), (3, 3), 1000).unwrap();
        assert!(alone.contains("min.insync.replicas"), "{alone}");
    }
}
