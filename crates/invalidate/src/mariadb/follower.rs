//! Events of MariaDB's log, as they come, to transactions with their keys and their places. Bytes come in; it holds no
//! connection. Pure.

use super::At;
use super::ends::{Ends, Known};
use super::event::{self, Event};
use super::rows::Rows;
use crate::gate::Change;
use crate::map::Map;
use crate::position::Gtid;
use holdfast_base::Result;

/// An event as it says itself.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    pub kind: u8,
    pub changed_s: u32,
    pub server: u32,
    /// Where it ends in its file, as far as its header can say that.
    pub end: u32,
    /// Of all of it.
    pub bytes: u32,
    pub data: &'a [u8],
}

/// See the module.
pub struct Follower {
    rows: Rows,
    ends: Ends,
    /// Where the last transaction began in its file.
    begun: u64,
    /// Of transactions.
    bytes: u64,
}

impl Follower {
    pub fn new(known: Known) -> Follower {
        Follower { rows: Rows::default(), ends: Ends::new(known), begun: 0, bytes: 0 }
    }

    /// The log's next event; the transaction that ends with it, and why its keys are not known if they are not.
    pub fn take(
        &mut self,
        said: &Said<'_>,
        map: &Map,
    ) -> Result<Option<(Change<At>, Option<String>)>> {
        if said.kind == event::kind::GTID
            && let Ok((sequence, domain, _)) = event::gtid(said.data)
        {
            self.ends.begins(Gtid { domain, server: said.server, sequence });
        }
        let event = Event {
            kind: said.kind,
            changed_s: said.changed_s.into(),
            server: said.server,
            end: self.ends.end(said.kind, said.end),
            data: said.data,
        };
        let mut change = self.rows.take(&event, map)?;
        self.ends.goes_on_in(self.rows.file());
        if let Some((change, _)) = &change {
            // By places: remarks lie between, and are not sent.
            self.bytes += change.mark.end.offset.saturating_sub(self.begun);
        }
        if event.kind == event::kind::GTID {
            self.begun = event.end.saturating_sub(said.bytes.into());
        }
        if let Some((change, _)) = &mut change {
            let At { gtid, end } = change.mark.clone();
            change.mark.end = self.ends.place(gtid, end);
        }
        Ok(change)
    }

    /// What the transactions that were read take in the log.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{Gtids, Place};

    const HEAD_BYTES: usize = 19;
    const SUM_BYTES: usize = 4;
    const GIB: u64 = 1 << 30;
    const FILE: &str = "bin.000001";
    /// The transaction of the file that inserts rows.
    const INSERTS: u64 = 5;

    /// A file of MariaDB 10.11, in hexadecimal.
    fn file() -> Vec<u8> {
        let text = include_str!("../../tests/binlog.hex").replace('\n', "");
        let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    fn number(bytes: &[u8]) -> u32 {
        u32::from_le_bytes(bytes[..4].try_into().unwrap())
    }

    /// The events of a log, one behind the other.
    fn events(mut log: &[u8]) -> Vec<Said<'_>> {
        let mut events = Vec::new();
        while !log.is_empty() {
            let bytes = number(&log[9..]);
            let (event, rest) = log.split_at(bytes as usize);
            events.push(Said {
                kind: event[4],
                changed_s: number(event),
                server: number(&event[5..]),
                end: number(&event[13..]),
                bytes,
                data: &event[HEAD_BYTES..event.len() - SUM_BYTES],
            });
            log = rest;
        }
        events
    }

    /// That log as it is sent, where one transaction has so many events more, each of them a GiB long by what it says
    /// of its end; and where each transaction really ends.
    fn large(more: u64) -> (Vec<u8>, Vec<(u64, u64)>) {
        let (file, mut log, mut ends) = (file(), Vec::new(), Vec::new());
        let name = [&[4, 0, 0, 0, 0, 0, 0, 0], FILE.as_bytes(), &[0; SUM_BYTES]].concat();
        let mut rotate = [0; HEAD_BYTES];
        rotate[4] = event::kind::ROTATE;
        rotate[9..13].copy_from_slice(&((HEAD_BYTES + name.len()) as u32).to_le_bytes());
        log.extend_from_slice(&rotate);
        log.extend_from_slice(&name);
        let (mut at, mut from, mut sequence, mut ended) = (4, 4, 0, 4);
        for said in events(&file[4..]) {
            let event = &file[from..from + said.bytes as usize];
            from += event.len();
            if said.kind == event::kind::GTID {
                ends.extend((sequence > 0).then_some((sequence, ended)));
                sequence = event::gtid(said.data).unwrap().0;
            }
            let mut push = |bytes: u64| {
                at += bytes;
                let begins = log.len();
                log.extend_from_slice(event);
                log[begins + 13..begins + 17].copy_from_slice(&(at as u32).to_le_bytes());
            };
            push(event.len() as u64);
            if event::is_rows(said.kind) && sequence == INSERTS {
                (0..more).for_each(|_| push(GIB));
            }
            // What the log has for itself ends nothing.
            if matches!(said.kind, event::kind::XID | event::kind::XA_PREPARE)
                || !event::kind::is_idle(said.kind)
            {
                ended = at;
            }
        }
        ends.push((sequence, ended));
        (log, ends)
    }

    /// Of a log that is read from its beginning and had so many transactions then, each with the place that it is
    /// told to end at.
    fn told(log: &[u8], ends: &[(u64, u64)], had: usize) -> (Vec<(u64, Place)>, u64) {
        let place = |offset: u64| Place { file: FILE.to_owned(), offset };
        let gtids = Gtids::parse(&format!("0-1-{had}")).unwrap();
        let (_, size) = ends[had - 1];
        let files = vec![(FILE.to_owned(), size)];
        let mut follower = Follower::new(Known::new(gtids, place(size), place(size), files));
        let map = Map::parse("[[keys]]\ntable = \"shop.items\"\nkey = \"item:{id}\"\n").unwrap();
        let mut told = Vec::new();
        for said in events(log) {
            let change = follower.take(&said, &map).unwrap();
            told.extend(change.map(|(change, _)| (change.mark.gtid.sequence, change.mark.end)));
        }
        (told, follower.bytes())
    }

    /// The bytes of a real log, in which a transaction is longer than a header's number. What ends behind it was told to
    /// end 4 GiB before it does, and so was visible before it was.
    #[test]
    fn behind_four_gigabytes_a_file_s_transactions_end_where_they_do() {
        for more in [0, 3, 5, 9] {
            let (log, ends) = large(more);
            let real = |at: usize| Place { file: FILE.to_owned(), offset: ends[at].1 };
            let (seen, bytes) = told(&log, &ends, INSERTS as usize - 1);
            assert_eq!(seen.len(), ends.len());
            for (at, (sequence, end)) in seen.iter().enumerate() {
                assert_eq!((*sequence, end), (ends[at].0, &real(at)), "{more} GiB more");
            }
            assert!(bytes >= more * GIB && bytes < more * GIB + file().len() as u64, "{bytes}");
            // Where it had all of that when it was begun to be read: at the end, or behind it.
            let (seen, _) = told(&log, &ends, ends.len());
            let last = ends.len() - 1;
            assert!(
                seen.iter()
                    .enumerate()
                    .all(|(at, (_, end))| { end.covers(&real(at)) && real(last).covers(end) })
            );
        }
    }
}
