//! What the router keeps of a request until it has an outcome, and what that asks for next.

use crate::route::command::{Keyed, Kind};

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
        verb: Vec<u8>,
        keys: Vec<u8>,
    },
    Keyed {
        reply: u32,
        pool: usize,
        stage: Stage,
        of: Owned,
    },
    /// A get of a warm pool, for a key that the cold pool `pool` misses.
    Warm {
        reply: u32,
        pool: usize,
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
}
