//! What the router keeps of a request until it has an outcome, and what that asks for next.

use crate::route::command::{Keyed, Kind, delete_line};

/// Which pool a request went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Main,
    Gutter,
}

/// What the outcome of a request is for.
pub enum Task {
    Gets {
        reply: u32,
        pool: usize,
        stage: Stage,
        server: u32,
        verb: Vec<u8>,
        keys: Vec<u8>,
    },
    Keyed {
        reply: u32,
        pool: usize,
        stage: Stage,
        server: u32,
        of: Owned,
    },
    /// A get of a warm pool, for a key that the cold pool `pool` misses.
    Warm {
        reply: u32,
        pool: usize,
        server: u32,
        key: Vec<u8>,
    },
    /// A delete in a warm pool.
    Forget {
        reply: u32,
        pool: usize,
        key: Vec<u8>,
        is_binary: bool,
    },
    /// One of a flush: all must be carried out.
    Flush {
        reply: u32,
    },
    /// Whether a server has the lease of a watch, asked when so many connections to it had ended.
    Look {
        watch: u32,
        ended: u64,
        asked_ns: u64,
    },
    /// Nobody waits for it.
    Aside,
}

/// What an outcome asks for next.
pub enum Next {
    /// Of a dead server's gutter pool.
    Gets {
        reply: u32,
        pool: usize,
        verb: Vec<u8>,
        keys: Vec<u8>,
    },
    Keyed {
        reply: u32,
        pool: usize,
        of: Owned,
    },
    /// Of a cold pool's warm one.
    Warm {
        reply: u32,
        pool: usize,
        key: Vec<u8>,
    },
    /// What the warm pool had belongs into the cold one.
    Fill {
        pool: usize,
        of: Owned,
    },
    /// A server could not be told of a delete: it is when it is back.
    Owe {
        pool: usize,
        key: Vec<u8>,
        is_binary: bool,
    },
    /// What the warm pool still has is old.
    Forget {
        reply: u32,
        pool: usize,
        key: Vec<u8>,
        is_binary: bool,
    },
}

/// A command about one key, kept until it is answered.
pub struct Owned {
    pub kind: Kind,
    pub key: Vec<u8>,
    pub is_binary: bool,
    pub line: Vec<u8>,
    pub value: Vec<u8>,
    pub is_quiet: bool,
}

impl Owned {
    pub fn as_keyed(&self) -> Keyed<'_> {
        Keyed {
            kind: self.kind,
            key: &self.key,
            is_binary: self.is_binary,
            line: self.line.clone(),
            value: &self.value,
            is_mute: false,
            is_quiet: self.is_quiet,
        }
    }

    /// What is said of a command in the place of a server that does not count: that nothing is there, and nothing
    /// was stored. Nothing of what is carried out there all the same.
    pub fn refusal(&self) -> Option<Vec<u8>> {
        let is_incr = self.line.starts_with(b"incr ") || self.line.starts_with(b"decr ");
        match self.kind {
            Kind::Delete | Kind::MetaDelete | Kind::MetaDebug | Kind::Touch => None,
            Kind::Change if is_incr || self.line.starts_with(b"cas ") => {
                Some(b"NOT_FOUND\r\n".to_vec())
            }
            Kind::Set | Kind::Change => Some(b"NOT_STORED\r\n".to_vec()),
            // Quiet ones tell what was stored or found not.
            Kind::MetaGet | Kind::MetaCount if self.is_quiet => Some(Vec::new()),
            Kind::MetaGet => Some(self.meta_answer(b"EN")),
            Kind::MetaCount => Some(self.meta_answer(b"NF")),
            Kind::MetaSet => Some(self.meta_answer(b"NS")),
        }
    }

    /// With the flags that answers repeat.
    fn meta_answer(&self, code: &[u8]) -> Vec<u8> {
        let mut answer = code.to_vec();
        let flags_at = if self.kind == Kind::MetaSet { 3 } else { 2 };
        for flag in self.line.split(|b| *b == b' ').skip(flags_at) {
            match flag {
                [b'O', ..] | b"b" => answer.extend_from_slice(&[b" ", flag].concat()),
                b"k" => answer.extend_from_slice(&[b" k", &self.key[..]].concat()),
                _ => {}
            }
        }
        answer.extend_from_slice(b"\r\n");
        answer
    }

    /// The delete of what this store should have replaced.
    pub fn into_delete(self) -> Owned {
        let kind = if self.is_binary { Kind::MetaDelete } else { Kind::Delete };
        let mut line = delete_line(&self.key, self.is_binary).0;
        line.truncate(line.len() - b"\r\n".len());
        Owned { kind, line, value: Vec::new(), is_quiet: false, ..self }
    }
}
