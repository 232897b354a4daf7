//! Which log it is that brokers keep under a prefix: a number in the first record of a topic of its own,
//! which is never trimmed. What is written first counts, so all who begin a log at once agree.

use crate::broker::{Broker, Place};
use crate::client::Clients;
use crate::writer::{Writer, wait};
use holdfast_base::{Error, Result};

/// What a process knows of the log that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is this one.
    This(u64),
    /// It is whichever is there, or begins with this number (not 0).
    Any(u64),
}

/// No topic of the log has a name like this: a byte in hexadecimal follows each `_`.
pub fn name_of(prefix: &str) -> String {
    format!("{prefix}._log")
}

fn text_of(log: u64) -> String {
    format!("Holdfast log {log:016x}\n")
}

fn log_of(text: &[u8]) -> Option<u64> {
    let digits =
        std::str::from_utf8(text).ok()?.strip_prefix("Holdfast log ")?.trim_end_matches('\n');
    // As it is written: a tool by which a person writes it may leave out the line feed.
    let is_written = |log: &u64| *log != 0 && text_of(*log) == format!("Holdfast log {digits}\n");
    u64::from_str_radix(digits, 16).ok().filter(is_written)
}

fn place(prefix: &str) -> Place {
    Place { topic: name_of(prefix), name: name_of(prefix), base: 0, id: None }
}

/// The number that is there first, in a topic that is there.
pub fn first(broker: &Broker) -> Result<Option<u64>> {
    let place = place(broker.prefix());
    let (low, _) = broker.ends_of(&place.name)?;
    let found = broker.records(&place, low, |text| log_of(text).is_some())?;
    Ok(found.iter().find_map(|text| log_of(text)))
}

/// The number of the log under the clients' prefix, if one has begun.
pub fn look(clients: &Clients) -> Result<Option<u64>> {
    let broker = Broker::new(clients.clone(), 0)?;
    if broker.is_gone(&name_of(broker.prefix()))? { Ok(None) } else { first(&broker) }
}

/// Says that the log under the prefix is this one, and answers which one it is: somebody else may have been
/// first.
pub fn begin(broker: &Broker, log: u64) -> Result<u64> {
    let place = place(broker.prefix());
    broker.make(&place.name)?;
    let writer = Writer::new(broker.clients.clone(), 0)?;
    wait(|done| writer.append(&place, &[text_of(log).into_bytes()], done))?;
    first(broker)?.ok_or_else(|| Error::bug("begin a log: what was written is not there"))
}

/// The number of the log under the clients' prefix; begins one where there is none, if it may.
pub fn find(clients: &Clients, expected: Expected) -> Result<u64> {
    let (prefix, brokers) = (&clients.options.prefix, &clients.options.brokers);
    // A record here is of no log yet.
    let broker = Broker::new(clients.clone(), 0)?;
    let name = name_of(prefix);
    let there = match expected {
        Expected::This(_) => !broker.is_gone(&name)?,
        Expected::Any(_) => broker.is_there(&name)?,
    };
    let found = if there { first(&broker)? } else { None };
    let found = match (found, expected) {
        (Some(found), _) => found,
        (None, Expected::This(log)) if there => {
            return Err(Error::invalid(format!(
                "open the log at the brokers `{brokers}`: the topic `{name}` says which log it is, and is \
                 empty: if it is this node's, write the line `Holdfast log {log:016x}` to it, with \
                 `kafka-console-producer`"
            )));
        }
        (None, Expected::This(log)) => {
            return Err(Error::invalid(format!(
                "open the log at the brokers `{brokers}`: no log has the prefix `{prefix}` there, and \
                 this node is of log `{log:016x}`: check the address and the prefix"
            )));
        }
        (None, Expected::Any(log)) => {
            // Who begins it at the same time makes them later than the one that says which log it is.
            if let Some(topic) = broker.topics()?.first() {
                return Err(Error::retry(format!(
                    "begin a log at the brokers `{brokers}`: the prefix `{prefix}` has topics there, \
                     `{topic}` is one, and what says which log they are, in `{name}`, is gone: bring it \
                     back, or choose another prefix"
                )));
            }
            begin(&broker, log)?
        }
    };
    match expected {
        Expected::This(log) if log != found => Err(Error::invalid(format!(
            "open the log at the brokers `{brokers}`: that of the prefix `{prefix}` is `{found:016x}`, \
             this node is of `{log:016x}`: check the address and the prefix, or choose an empty directory"
        ))),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::topic_of;

    #[test]
    fn a_number_is_read_as_it_was_written_and_its_topic_is_no_other_one() {
        assert_eq!(log_of(text_of(0xabc).as_bytes()), Some(0xabc));
        assert_eq!(log_of(text_of(0xabc).trim_end().as_bytes()), Some(0xabc));
        for bad in ["", "Holdfast log 0000000000000000\n", "Holdfast log abc\n", "log 1"] {
            assert_eq!(log_of(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(topic_of("a", &name_of("a")), None);
    }
}
