//! `holdfast log doctor`: how the log is at the brokers that keep it. Asks them itself, so that it says it
//! also while no node runs.

use crate::cli::LogDoctor;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::Output;

/// Where the log is: what was said, else what the settings of a data directory say, else what the node says
/// that `connect` finds.
pub fn run(
    asked: &LogDoctor,
    connect: impl FnOnce() -> Result<Client>,
    out: &mut Output,
) -> Result<()> {
    let mut settings = Default::default();
    let mut place = asked.log.clone().unwrap_or_default();
    if let Some(data) = &asked.data {
        let config = crate::config::Config::load(data)?;
        settings = config.log_client;
        if place.is_empty() {
            place = config.log;
        }
    } else if place.is_empty() {
        place = connect()?.log_host()?;
    }
    if !place.contains("://") {
        return Err(Error::unsupported(
            "look at the log at its brokers: a node keeps it, in its data directory: `holdfast doctor` \
             there says what is wrong with it, `holdfast log verify TOPIC` reads a topic through",
        ));
    }
    look(asked, &place, settings, out)
}

#[cfg(feature = "kafka")]
mod brokers {
    use super::*;
    use holdfast_kafka::{ExaminedTopic, Options, examine};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    pub fn look(
        asked: &LogDoctor,
        place: &str,
        settings: BTreeMap<String, String>,
        out: &mut Output,
    ) -> Result<()> {
        let options = Options::parse(place, settings)?;
        let prefix = options.prefix.clone();
        let examined = examine(options, asked.topic.as_deref())?;
        let Some(log) = examined.log else {
            return Err(Error::not_found(format!(
                "look at the log at `{place}`: no log has the prefix `{prefix}` there: check the address \
                 and the prefix"
            )));
        };
        out.line(
            || format!("log {log:016x} at {place}; {} brokers run", examined.brokers),
            || json!({"log": format!("{log:016x}"), "place": place, "brokers": examined.brokers}),
        )?;
        for topic in &examined.topics {
            out.line(|| text_of(topic), || object_of(topic))?;
        }
        let findings: usize = examined.topics.iter().map(|topic| topic.findings.len()).sum();
        match findings {
            0 => Ok(()),
            count => Err(Error::corrupt(format!(
                "look at the log at `{place}`: {count} finding(s), listed above"
            ))),
        }
    }

    fn text_of(topic: &ExaminedTopic) -> String {
        let ends = topic.ends.map_or(String::new(), |ends| match ends.next > ends.first {
            true => format!("  entries {} to {}", ends.first, ends.next.0 - 1),
            false => "  no entries".to_owned(),
        });
        let base = if topic.base == 0 { String::new() } else { format!(", base {}", topic.base) };
        let copies = format!("{} of {} copies", topic.in_sync.len(), topic.replicas.len());
        let mut text = format!("{}{ends}{base}; {copies}, leader {}", topic.name, topic.leader);
        if topic.partitions > 1 {
            text.push_str(&format!("; only the first of {} partitions is used", topic.partitions));
        }
        if let Some(held) = &topic.held {
            text.push_str(&format!("; {} entries read", held.entries));
            for gap in &held.gaps {
                let (first, last) = (topic.index(gap.first), topic.index(gap.last));
                let which = match gap.first == gap.last {
                    true => format!("offset {} (index {first})", gap.first),
                    false => {
                        format!("offsets {} to {} (indices {first} to {last})", gap.first, gap.last)
                    }
                };
                text.push_str(&format!("\n  {which}: {}", gap.why));
            }
            if held.gaps_more > 0 {
                text.push_str(&format!("\n  and {} more", held.gaps_more));
            }
        }
        topic.findings.iter().for_each(|finding| text.push_str(&format!("\n- {finding}")));
        text
    }

    fn object_of(topic: &ExaminedTopic) -> Value {
        let gaps = |held: &holdfast_kafka::Held| -> Vec<Value> {
            let gaps = held.gaps.iter();
            gaps.map(|gap| json!({"first": gap.first, "last": gap.last, "why": gap.why})).collect()
        };
        json!({
            "topic": topic.topic, "name": topic.name, "id": topic.id.map(|id| format!("{id:032x}")),
            "base": topic.base, "first": topic.ends.map(|ends| ends.first.0),
            "next": topic.ends.map(|ends| ends.next.0), "leader": topic.leader,
            "partitions": topic.partitions, "replicas": topic.replicas, "in_sync": topic.in_sync,
            "entries": topic.held.as_ref().map(|held| held.entries),
            "gaps": topic.held.as_ref().map(gaps),
            "gaps_more": topic.held.as_ref().map(|held| held.gaps_more),
            "findings": topic.findings,
        })
    }
}

#[cfg(feature = "kafka")]
use brokers::look;

#[cfg(not(feature = "kafka"))]
fn look(
    _: &LogDoctor,
    place: &str,
    _: std::collections::BTreeMap<String, String>,
    _: &mut Output,
) -> Result<()> {
    Err(Error::unsupported(format!(
        "look at the log at `{place}`: this build knows no brokers: build it with the feature `kafka`"
    )))
}
