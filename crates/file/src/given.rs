//! What clients with rules were given at this node: the sessions that they opened, and where the
//! ends of their files lie. Numbers of either are easy to guess, and whoever guesses one could
//! answer for another, or name what is another's; so such a client uses what it was given, where it
//! was given it. At another node it is sent to begin anew.

use holdfast_base::ids::{FileId, Pointer, SessionId};
use holdfast_base::{Error, Result};
use holdfast_env::{HoldMutex, planted};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Of each; beyond that the oldest is forgotten, and its client begins anew.
const GIVEN_MAX: usize = 1 << 16;

#[derive(Default)]
pub(crate) struct Given {
    sessions: Mutex<BTreeMap<SessionId, String>>,
    ends: Mutex<BTreeMap<FileId, Pointer>>,
}

fn note<K: Ord, V>(map: &Mutex<BTreeMap<K, V>>, key: K, value: V) {
    let mut map = map.held();
    map.insert(key, value);
    if map.len() > GIVEN_MAX {
        // Ids grow.
        map.pop_first();
    }
}

impl Given {
    /// The client has opened a session.
    pub fn session(&self, session: SessionId, client: &str) {
        note(&self.sessions, session, client.to_owned());
    }

    /// Refuses a session that the client did not open here; `Fenced` has it open one.
    pub fn check_session(&self, session: SessionId, client: &str) -> Result<()> {
        let is_its = self.sessions.held().get(&session).is_some_and(|holder| holder == client);
        // Of requests that have no number.
        if session == SessionId(0) || is_its || planted!("file.anybodys-session") {
            return Ok(());
        }
        Err(Error::fenced(format!(
            "use session `{}`: this client did not open it here: open one",
            session.0
        )))
    }

    /// The end of this file was stored there.
    pub fn end(&self, file: FileId, pointer: Pointer) {
        note(&self.ends, file, pointer);
    }

    /// Refuses an object that was not stored here as the end of this file.
    pub fn check_end(&self, file: FileId, pointer: Pointer) -> Result<()> {
        if self.ends.held().get(&file) == Some(&pointer) {
            return Ok(());
        }
        Err(Error::denied(format!(
            "close file `{file}`: its end was not stored at this node: write the file again"
        )))
    }
}
