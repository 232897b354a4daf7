//! Who is told what: the entries of a topic, in order, to each server that may hold one of their keys, and how
//! far each has confirmed. One that was away gets what it missed; past a bound it is emptied instead. Pure.

use crate::entry::Entry;
use crate::run::key_bytes;
use holdfast_base::ids::Index;
use holdfast_env::planted;
use std::collections::{BTreeMap, VecDeque};

/// Keys that one server is told at once.
const WINDOW_KEYS: usize = 4000;
/// Keys that are kept for servers that are away.
const BACKLOG_KEYS_MAX: usize = 1_000_000;
const _: () = assert!(WINDOW_KEYS < BACKLOG_KEYS_MAX);

/// What one entry says to all servers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    /// Keys, each with the servers that may hold it.
    Keys(Vec<(Vec<u8>, Vec<u32>)>),
    Empty,
}

/// What a server is to be told next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    pub server: u32,
    pub what: What,
    /// Once it has confirmed that, it has everything before this entry.
    next: Index,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Keys(Vec<Vec<u8>>),
    /// All that it has goes.
    Empty,
}

/// What a server has not confirmed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub server: String,
    /// Entries of the topic that say something.
    pub entries: u64,
    /// Of their keys, also of those that are other servers'.
    pub bytes: u64,
    /// When the first change that it lacks was made, in seconds since 1970, by the database's clock.
    pub since_s: Option<u64>,
    /// It drops everything before it is told anything else.
    pub is_to_be_emptied: bool,
}

/// An entry that some server may lack.
#[derive(Clone, Debug)]
struct Waiting {
    index: Index,
    /// When the last change of it was made.
    changed_s: u64,
    order: Order,
    /// Bytes of keys up to its end, of all entries since the sender began.
    bytes_up_to: u64,
}

#[derive(Clone, Debug)]
struct Server {
    name: String,
    /// The first entry that it has not confirmed.
    next: Index,
    /// It has missed what nobody can tell it.
    is_to_be_emptied: bool,
}

/// The servers of a pool, and of those that have its keys meanwhile.
pub struct Sender {
    servers: BTreeMap<u32, Server>,
    entries: VecDeque<Waiting>,
    /// Bytes of keys of all that came.
    bytes: u64,
    /// Behind the last entry that was read.
    next: Index,
    backlog_keys: usize,
    backlog_keys_max: usize,
}

impl Sender {
    /// `servers`: numbers and names. `known`: how far they had confirmed; those that it does not name are
    /// emptied, for nobody knows what they have. Entries are read from [`Sender::next`] on.
    pub fn new(
        servers: impl IntoIterator<Item = (u32, String)>,
        known: &[(String, Index)],
        first: Index,
        end: Index,
    ) -> Sender {
        let servers: BTreeMap<u32, Server> = servers
            .into_iter()
            .map(|(number, name)| {
                let known = known.iter().find(|(of, _)| *of == name).map(|(_, next)| *next);
                // Entries before `first` are gone.
                let next = known.filter(|next| *next >= first);
                let is_to_be_emptied = next.is_none();
                (number, Server { name, next: next.unwrap_or(end), is_to_be_emptied })
            })
            .collect();
        let next = servers.values().map(|server| server.next).min().unwrap_or(end);
        let backlog_keys_max = BACKLOG_KEYS_MAX;
        let entries = VecDeque::new();
        Sender { servers, entries, bytes: 0, next, backlog_keys: 0, backlog_keys_max }
    }

    /// The next entry to read from the topic.
    pub fn next(&self) -> Index {
        self.next
    }

    /// Takes an entry, with what says which servers may hold a key. Indices grow, and may leave some out.
    pub fn push(&mut self, index: Index, entry: &Entry, holders: impl Fn(&[u8]) -> Vec<u32>) {
        assert!(index >= self.next, "entries come in order");
        self.next = Index(index.0 + 1);
        let (changed_s, order) = match entry {
            Entry::Confirmed { .. } => return,
            Entry::Empty { changed_s, .. } => (*changed_s, Order::Empty),
            Entry::Keys { keys, changed_s, .. } => {
                self.backlog_keys += keys.len();
                self.bytes += key_bytes(keys);
                let keys = keys.iter().map(|key| (key.clone(), holders(key))).collect();
                (*changed_s, Order::Keys(keys))
            }
        };
        self.entries.push_back(Waiting { index, changed_s, order, bytes_up_to: self.bytes });
        self.forget();
    }

    /// Gives up what all have confirmed, and what is too much to keep: who misses that is emptied.
    fn forget(&mut self) {
        while let Some(Waiting { index, order, .. }) = self.entries.front() {
            let (index, is_full) = (*index, self.backlog_keys > self.backlog_keys_max);
            if !is_full && self.servers.values().any(|server| server.next <= index) {
                return;
            }
            if let Order::Keys(keys) = order {
                self.backlog_keys -= keys.len();
            }
            self.entries.pop_front();
            for server in self.servers.values_mut().filter(|server| server.next <= index) {
                server.next = Index(index.0 + 1);
                server.is_to_be_emptied = true;
            }
        }
    }

    /// What each server is to be told now; nothing for those that have confirmed everything.
    pub fn due(&self) -> Vec<Due> {
        self.servers.iter().filter_map(|(number, server)| self.due_to(*number, server)).collect()
    }

    fn due_to(&self, number: u32, server: &Server) -> Option<Due> {
        let due = |what, next| Some(Due { server: number, what, next });
        if server.is_to_be_emptied {
            // It has no keys, and needs none of those that are known by now.
            return due(What::Empty, self.next.max(server.next));
        }
        let (mut keys, mut next) = (Vec::new(), server.next);
        for Waiting { index, order, .. } in self.entries.range(self.lacked_by(server)..) {
            match order {
                Order::Empty if keys.is_empty() => return due(What::Empty, Index(index.0 + 1)),
                Order::Empty => break,
                Order::Keys(of) => {
                    let held = of.iter().filter(|(_, holders)| holders.contains(&number));
                    keys.extend(held.map(|(key, _)| key.clone()));
                    next = Index(index.0 + 1);
                    if keys.len() >= WINDOW_KEYS {
                        break;
                    }
                }
            }
        }
        (next != server.next).then_some(Due { server: number, what: What::Keys(keys), next })
    }

    /// Where in the entries those begin that a server has not confirmed.
    fn lacked_by(&self, server: &Server) -> usize {
        self.entries.partition_point(|entry| entry.index < server.next)
    }

    /// What each server lacks, of what was read.
    pub fn lacks(&self) -> Vec<Lack> {
        let lack = |server: &Server| {
            let from = self.lacked_by(server);
            // Those of the entries before are no lack of this one.
            let before = from.checked_sub(1).map(|at| self.entries[at].bytes_up_to);
            let before = before.unwrap_or(self.bytes_before());
            Lack {
                server: server.name.clone(),
                entries: (self.entries.len() - from) as u64,
                bytes: self.bytes - before,
                since_s: self.entries.get(from).map(|entry| entry.changed_s),
                is_to_be_emptied: server.is_to_be_emptied,
            }
        };
        self.servers.values().map(lack).collect()
    }

    /// The first entry that a server has not confirmed, of those that say something; nothing of one that is to be
    /// emptied.
    pub fn told(&self, server: u32) -> Option<Index> {
        let server = self.servers.get(&server).filter(|server| !server.is_to_be_emptied)?;
        let lacked = self.entries.get(self.lacked_by(server));
        Some(lacked.map_or(self.next, |entry| entry.index))
    }

    /// A server has carried out what it was told.
    pub fn confirmed(&mut self, due: &Due) {
        let server = self.servers.get_mut(&due.server).expect("a server that was told something");
        assert!(due.next >= server.next, "a server confirms what it was told last");
        server.next = due.next;
        if due.what == What::Empty {
            server.is_to_be_emptied = false;
        }
        self.forget();
    }

    /// How far each server has confirmed, as [`Entry::Confirmed`] keeps it. One that is to be emptied is left
    /// out.
    pub fn positions(&self) -> Vec<(String, Index)> {
        let all = self.servers.values();
        if planted!("invalidate.confirmed-before-sent") {
            return all.map(|server| (server.name.clone(), self.next)).collect();
        }
        let known = all.filter(|server| !server.is_to_be_emptied);
        known.map(|server| (server.name.clone(), server.next)).collect()
    }

    /// The first entry that some server still needs.
    pub fn needed(&self) -> Index {
        self.entries.front().map_or(self.next, |entry| entry.index)
    }

    /// Bytes of keys that came before those that are kept.
    fn bytes_before(&self) -> u64 {
        let of = |entry: &Waiting| match &entry.order {
            Order::Keys(keys) => keys.iter().map(|(key, _)| key.len() as u64).sum(),
            Order::Empty => 0,
        };
        self.entries.front().map_or(self.bytes, |entry| entry.bytes_up_to - of(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{Gtids, Position};

    fn position() -> Position {
        Position::MariaDb(Gtids::default())
    }

    fn keys(names: &[&str]) -> Entry {
        let keys = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        Entry::Keys { position: position(), changed_s: names.len() as u64 - 1, keys }
    }

    /// Keys that begin with `a` are of server 0, the others of 1; server 2 may hold all.
    fn holders(key: &[u8]) -> Vec<u32> {
        vec![u32::from(!key.starts_with(b"a")), 2]
    }

    fn sender(known: &[u64]) -> Sender {
        let servers = (0..3).map(|number| (number, format!("s{number}")));
        let known: Vec<_> =
            known.iter().enumerate().map(|(n, next)| (format!("s{n}"), Index(*next))).collect();
        Sender::new(servers, &known, Index(10), Index(20))
    }

    fn told(sender: &Sender, server: u32) -> Option<Vec<String>> {
        sender.due().into_iter().find(|due| due.server == server).map(|due| match due.what {
            What::Empty => vec!["all".to_owned()],
            What::Keys(keys) => {
                keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
            }
        })
    }

    fn confirm(sender: &mut Sender, server: u32) {
        let due = sender.due().into_iter().find(|due| due.server == server).unwrap();
        sender.confirmed(&due);
    }

    fn words(words: &[&str]) -> Option<Vec<String>> {
        Some(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn who_was_away_gets_what_it_missed_in_order_and_others_do_not_wait() {
        let mut sender = sender(&[10, 10, 10]);
        assert_eq!((sender.next(), sender.due().len()), (Index(10), 0));
        sender.push(Index(10), &keys(&["a1", "b1"]), holders);
        sender.push(Index(12), &keys(&["a2", "a3"]), holders);
        assert_eq!(told(&sender, 0), words(&["a1", "a2", "a3"]));
        assert_eq!(told(&sender, 1), words(&["b1"]));
        confirm(&mut sender, 0);
        confirm(&mut sender, 2);
        assert_eq!((told(&sender, 0), sender.needed()), (None, Index(10)));
        let lacks = |sender: &Sender| -> Vec<(u64, Option<u64>)> {
            sender.lacks().iter().map(|lack| (lack.entries, lack.since_s)).collect()
        };
        assert_eq!(lacks(&sender), [(0, None), (2, Some(1)), (0, None)]);
        sender.push(Index(13), &keys(&["b2"]), holders);
        sender.push(Index(14), &Entry::Confirmed { servers: vec![], rings: vec![] }, holders);
        assert_eq!(told(&sender, 1), words(&["b1", "b2"]));
        assert_eq!(told(&sender, 0), words(&[]), "nothing of it, and it is behind that");
        let positions = |sender: &Sender| -> Vec<u64> {
            sender.positions().iter().map(|(_, next)| next.0).collect()
        };
        assert_eq!(positions(&sender), [13, 10, 13]);
        let told: Vec<_> = (0..3).map(|server| sender.told(server)).collect();
        assert_eq!(told, [Some(Index(13)), Some(Index(10)), Some(Index(13))]);
        (0..3).for_each(|server| confirm(&mut sender, server));
        assert_eq!(sender.told(0), Some(Index(15)), "also behind what says nothing to it");
        assert_eq!((positions(&sender), sender.needed()), (vec![14, 14, 14], Index(15)));
    }

    #[test]
    fn who_is_not_known_or_behind_the_first_entry_is_emptied_before_it_counts() {
        let mut sender = sender(&[15, 9]);
        assert_eq!(sender.next(), Index(15));
        sender.push(Index(15), &keys(&["a1", "b1"]), holders);
        assert_eq!(told(&sender, 0), words(&["a1"]));
        assert_eq!((told(&sender, 1), told(&sender, 2)), (words(&["all"]), words(&["all"])));
        assert_eq!((sender.told(0), sender.told(1)), (Some(Index(15)), None));
        let emptied: Vec<bool> = sender.lacks().iter().map(|lack| lack.is_to_be_emptied).collect();
        assert_eq!(emptied, [false, true, true]);
        assert_eq!(sender.positions(), [("s0".to_owned(), Index(15))]);
        confirm(&mut sender, 1);
        assert_eq!(sender.positions().len(), 2);
    }

    #[test]
    fn an_order_to_empty_keeps_its_place_between_keys() {
        let mut sender = sender(&[10, 10, 10]);
        let empty = Entry::Empty { position: position(), changed_s: 0 };
        sender.push(Index(10), &keys(&["a1"]), holders);
        sender.push(Index(11), &empty, holders);
        sender.push(Index(12), &keys(&["a2"]), holders);
        for expected in [&["a1"][..], &["all"], &["a2"]] {
            assert_eq!(told(&sender, 0), words(expected));
            confirm(&mut sender, 0);
        }
        assert_eq!(told(&sender, 0), None);
    }

    #[test]
    fn what_is_too_much_to_keep_is_forgotten_and_who_missed_it_is_emptied() {
        let mut sender = sender(&[10, 10, 10]);
        sender.backlog_keys_max = 3;
        for index in 10..20 {
            sender.push(Index(index), &keys(&["a", "b"]), holders);
            if index % 2 == 0 {
                confirm(&mut sender, 0);
            }
            assert!(sender.backlog_keys <= 3);
        }
        assert_eq!((told(&sender, 1), told(&sender, 0)), (words(&["all"]), words(&["a"])));
        assert_eq!(sender.needed(), Index(19));
    }
}
