//! What a topic's settings must be, for its broker to keep what it acknowledged. Pure.

use holdfast_base::limits::ENTRY_BYTES_MAX;
use std::collections::BTreeMap;

/// What librdkafka adds to an entry, and some to spare.
const RECORD_BYTES_BESIDE: usize = 4096;
/// What a topic takes at least.
pub const RECORD_BYTES_MAX: usize = ENTRY_BYTES_MAX + RECORD_BYTES_BESIDE;

/// The settings that a topic is made with, on a cluster of so many brokers.
pub fn settings(brokers: usize) -> Vec<(&'static str, String)> {
    vec![
        ("cleanup.policy", "delete".to_owned()),
        ("retention.ms", "-1".to_owned()),
        ("retention.bytes", "-1".to_owned()),
        ("unclean.leader.election.enable", "false".to_owned()),
        ("min.insync.replicas", if brokers > 1 { "2" } else { "1" }.to_owned()),
        ("max.message.bytes", RECORD_BYTES_MAX.to_string()),
    ]
}

/// Copies of a topic, on a cluster of so many brokers.
pub fn replicas(brokers: usize) -> usize {
    brokers.clamp(1, 3)
}

/// Why what is acknowledged in a topic might be lost, or not be taken, and what to set: each reason.
/// `replicas` are the topic's, `brokers` those of the cluster.
pub fn unsafe_for(
    found: &BTreeMap<String, String>,
    (replicas, brokers): (usize, usize),
) -> Vec<String> {
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
    let compacted = "so the broker would drop all entries but the last";
    let led = "so a broker that lacks acknowledged entries may lead it";
    let alone = "so an entry is acknowledged that one broker alone has";
    let less = "which is less than the longest entry";
    // One broker of its own is what somebody tries things with; and says so.
    let few = (brokers > 1 && replicas < 3.min(brokers)).then(|| {
        format!(
            "it has {replicas} replicas on {brokers} brokers, so one disk that is lost may take \
             acknowledged entries with it: give it {}",
            3.min(brokers)
        )
    });
    let reasons = [
        wants("retention.ms", "-1", dropped),
        wants("retention.bytes", "-1", dropped),
        wants("cleanup.policy", "delete", compacted),
        wants("unclean.leader.election.enable", "false", led),
        few,
        (brokers > 1).then(|| at_least("min.insync.replicas", 2, alone)).flatten(),
        at_least("max.message.bytes", RECORD_BYTES_MAX, less),
    ];
    reasons.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(brokers: usize) -> BTreeMap<String, String> {
        let made = settings(brokers).into_iter();
        made.map(|(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn what_we_make_is_safe_and_no_setting_may_differ() {
        for brokers in [1, 2, 3, 9] {
            let size = (replicas(brokers), brokers);
            assert_eq!(unsafe_for(&made(brokers), size), Vec::<String>::new());
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
                let why = unsafe_for(&found, size).concat();
                assert!(why.contains(name) && why.contains("set it to"), "{why}");
            }
            let missing = unsafe_for(&BTreeMap::new(), size);
            assert!(missing.len() >= 5 && missing[0].contains("retention.ms"), "{missing:?}");
        }
    }

    #[test]
    fn one_copy_is_for_one_broker_alone() {
        let one_of_three = unsafe_for(&made(3), (1, 3)).concat();
        assert!(one_of_three.contains("1 replicas on 3 brokers"), "{one_of_three}");
        assert!(unsafe_for(&made(2), (2, 2)).is_empty());
        let alone = unsafe_for(&made(1), (3, 3)).concat();
        assert!(alone.contains("min.insync.replicas"), "{alone}");
    }
}
