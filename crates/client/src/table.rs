//! Tables, from the client's side: writes under a session that is drawn, reads as new as is asked for.

use crate::client::{Client, waits};
use crate::connection::Response;
use crate::patience::Patience;
use crate::sight::Sight;
use holdfast_base::codec::{Decode, Encode};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::{RealRng, Rng};
use holdfast_wire as wire;
use holdfast_wire::table::{
    self as msg, Expect, GroupRow, GroupWritten, Level, Page, Record, Row, Seen, TableInfo, Written,
};

mod branches;

pub use branches::{Keep, SEALED_WITHIN};

/// One write, before it has a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableWrite {
    /// The record's, of 1 to 6144 bytes.
    pub key: Vec<u8>,
    /// Nothing deletes the record.
    pub value: Option<Vec<u8>>,
    /// What must hold, or nothing is written.
    pub expect: Expect,
}

impl Client {
    /// Makes a table; one that was made with the same words is there.
    pub fn table_make(&mut self, make: &msg::Make) -> Result<TableInfo> {
        self.ask(wire::OP_TABLE_MAKE, make)
    }

    /// Drops a table, in all of its regions; those that are away drop it once they are back.
    pub fn table_drop(&mut self, table: &str) -> Result<msg::Dropped> {
        self.ask(wire::OP_TABLE_DROP, &msg::DropTable { table: table.to_owned() })
    }

    /// Cuts a tablet of a table of one region in two: at this hash, the first one of the upper half, or in the middle.
    /// Answered once both are served; asked again where something else is split meanwhile, as long as the deadline
    /// allows. After an error it may be under way, and goes on: [`Client::table_describe`] tells.
    pub fn table_split(&mut self, table: &str, tablet: u16, at: Option<u32>) -> Result<TableInfo> {
        let at = match at {
            Some(at) => at,
            // Said once: whoever repeats it splits it once.
            None => middle(&self.table_describe(table)?, tablet)?,
        };
        let split = msg::Split { table: table.to_owned(), tablet, at };
        let mut patience = Patience::default();
        loop {
            match self.ask(wire::OP_TABLE_SPLIT, &split) {
                Err(e)
                    if e.kind == Kind::Retry
                        && self.connection.failure().is_none()
                        && waits(&mut patience, &self.options) => {}
                told => break told,
            }
        }
    }

    /// The tables that there are.
    pub fn tables(&mut self) -> Result<Vec<TableInfo>> {
        self.ask(wire::OP_TABLE_LIST, &())
    }

    /// One table.
    pub fn table_describe(&mut self, table: &str) -> Result<TableInfo> {
        self.ask(wire::OP_TABLE_DESCRIBE, &table.to_owned())
    }

    /// What has shown in a table behind a place, of each tablet; waits for it as long as it is asked to. Of more
    /// tablets than are asked for where one was split since: the next question is for all of them.
    pub fn table_changes(&mut self, asked: &msg::Changes) -> Result<Vec<msg::TabletChanges>> {
        let ticket = self.submit(wire::OP_TABLE_CHANGES, asked, &[])?;
        decoded(self.wait(ticket)?.body())
    }

    /// A table, to be written and read.
    pub fn table<'c>(&'c mut self, table: &str) -> TableClient<'c> {
        TableClient {
            client: self,
            table: table.to_owned(),
            session: RealRng.next_u64(),
            next: 1,
            seen: Sight::default(),
        }
    }
}

/// See [`Client::table`].
pub struct TableClient<'c> {
    client: &'c mut Client,
    table: String,
    session: u64,
    /// The number of the next write.
    next: u64,
    seen: Sight,
}

impl TableClient<'_> {
    /// What this client has seen, by reads and writes, as a line of text: whoever goes on with it, in any
    /// region, is shown nothing older where it reads at [`Level::Session`].
    pub fn session(&self) -> String {
        self.seen.text(&self.table)
    }

    /// Goes on with what [`TableClient::session`] said, here or elsewhere. `Invalid` where the text is none, or
    /// another table's.
    pub fn go_on(&mut self, session: &str) -> Result<()> {
        let seen = Sight::parse(session, &self.table)?;
        self.seen.join(&seen);
        Ok(())
    }

    /// Writes records, each decided by itself, and durable on return; what came of each. After an error
    /// nobody knows: this client repeats a write while it may, and its number sees to it that it counts
    /// once.
    pub fn write(&mut self, writes: &[TableWrite]) -> Result<Vec<Written>> {
        let mut all = Vec::with_capacity(writes.len());
        for some in parts(writes) {
            let row = |(sequence, write): (u64, &TableWrite)| Row {
                sequence,
                expect: write.expect,
                key: write.key.clone(),
                value: write.value.clone(),
            };
            let rows: Vec<Row> = (self.next..).zip(some).map(row).collect();
            let table = self.table.clone();
            let write = msg::Write { table, session: self.session, below: self.next };
            self.next += some.len() as u64;
            let (written, seen): (Vec<Written>, Vec<Seen>) =
                self.send_and_see(wire::OP_TABLE_WRITE, &write, &rows.to_bytes())?;
            seen.iter().for_each(|place| self.seen.see(*place));
            if written.len() != some.len() {
                return Err(Error::bug("write to a table: there are fewer answers than writes"));
            }
            all.extend(written);
        }
        Ok(all)
    }

    /// Writes records of one tablet, no key twice, that stand or fall together; what came of all, durable on return.
    /// As with [`TableClient::write`], nobody knows after an error. At most [`msg::GROUP_WRITES_MAX`] of them.
    pub fn write_together(&mut self, rows: &[GroupRow]) -> Result<GroupWritten> {
        let (session, sequence) = (self.session, self.next);
        let table = self.table.clone();
        let group = msg::Group { table, session, sequence, below: sequence };
        self.next += 1;
        let (written, seen): (GroupWritten, Vec<Seen>) =
            self.send_and_see(wire::OP_TABLE_GROUP, &group, &rows.to_bytes())?;
        seen.iter().for_each(|place| self.seen.see(*place));
        Ok(written)
    }

    /// Reads records of one tablet as they show at one moment, one for each key: no half of what was written together.
    pub fn get_together(&mut self, keys: &[Vec<u8>], level: Level) -> Result<Vec<Option<Record>>> {
        let found = self.read(wire::OP_TABLE_READ_GROUP, keys, level)?;
        match found.len() == keys.len() {
            true => Ok(found),
            false => Err(Error::bug("read a table: the answers are not those to the keys")),
        }
    }

    fn read(&mut self, opcode: u16, keys: &[Vec<u8>], level: Level) -> Result<Vec<Option<Record>>> {
        let (table, keys) = (self.table.clone(), keys.to_vec());
        let (seen, forgot) = match level {
            Level::Session => (self.seen.places(), self.seen.forgot),
            _ => (Vec::new(), 0),
        };
        let read = msg::Read { table, level, keys, seen, forgot };
        let (found, seen): (Vec<Option<Record>>, Vec<Seen>) =
            self.send_and_see(opcode, &read, &[])?;
        seen.iter().for_each(|place| self.seen.see(*place));
        Ok(found)
    }

    /// Reads a record.
    pub fn get(&mut self, key: &[u8], level: Level) -> Result<Option<Record>> {
        Ok(self.get_all(&[key.to_vec()], level)?.pop().flatten())
    }

    /// Reads records, one for each key.
    pub fn get_all(&mut self, keys: &[Vec<u8>], level: Level) -> Result<Vec<Option<Record>>> {
        let mut all = Vec::with_capacity(keys.len());
        while all.len() < keys.len() {
            let left = &keys[all.len()..];
            let keys = &left[..left.len().min(msg::READ_KEYS_MAX)];
            let found = self.read(wire::OP_TABLE_READ, keys, level)?;
            if found.is_empty() || found.len() > left.len() {
                return Err(Error::bug("read a table: the answers are not those to the keys"));
            }
            all.extend(found);
        }
        Ok(all)
    }

    /// A page of records in order of their keys.
    pub fn scan(
        &mut self,
        from: &[u8],
        until: Option<&[u8]>,
        backwards: bool,
        rows_max: u32,
    ) -> Result<Page> {
        let scan = msg::Scan {
            table: self.table.clone(),
            from: from.to_vec(),
            until: until.map(<[u8]>::to_vec),
            backwards,
            rows_max,
        };
        let response = self.send(wire::OP_TABLE_SCAN, &scan, &[])?;
        decoded(response.body())
    }

    fn send_and_see<T: Decode>(
        &mut self,
        opcode: u16,
        message: &impl Encode,
        body: &[u8],
    ) -> Result<(T, Vec<Seen>)> {
        let response = self.send(opcode, message, body)?;
        Ok((decoded(response.body())?, decoded(response.meta())?))
    }

    /// Sends a request, again where nothing is known, for as long as its deadline allows.
    fn send(&mut self, opcode: u16, message: &impl Encode, body: &[u8]) -> Result<Response> {
        let mut patience = Patience::default();
        loop {
            let ticket = self.client.submit(opcode, message, &[body])?;
            match self.client.wait(ticket) {
                Err(e)
                    if e.kind == Kind::Retry
                        && self.client.connection.failure().is_none()
                        && waits(&mut patience, &self.client.options) => {}
                answer => break answer,
            }
        }
    }
}

/// The hash in the middle of a tablet's. Of one that has a single hash that is where it begins, and there it was split
/// already.
fn middle(info: &TableInfo, tablet: u16) -> Result<u32> {
    let Some(of) = info.tablets.get(usize::from(tablet)) else {
        let count = info.tablets.len();
        return Err(Error::not_found(format!(
            "split tablet {tablet} of table `{}`: it has {count} of them, numbered from 0",
            info.table
        )));
    };
    if of.first == of.last {
        return Err(Error::invalid(format!(
            "split tablet {tablet} of table `{}`: it has the hash {:08x} alone, and nothing to give away",
            info.table, of.first
        )));
    }
    Ok(of.first + (of.last - of.first) / 2 + 1)
}

fn decoded<T: Decode>(bytes: &[u8]) -> Result<T> {
    T::from_bytes(bytes).map_err(|e| {
        Error::unsupported(format!("read the node's answer: {e}: use matching builds"))
    })
}

/// As much at once as one request may have.
fn parts(writes: &[TableWrite]) -> Vec<&[TableWrite]> {
    let (mut parts, mut left) = (Vec::new(), writes);
    while !left.is_empty() {
        let mut bytes = 0;
        let fits = left.iter().take(msg::WRITES_MAX).take_while(|write| {
            let first = bytes == 0;
            bytes += write.key.len() + write.value.as_ref().map_or(0, Vec::len);
            first || bytes <= msg::WRITE_BYTES_MAX
        });
        let (part, rest) = left.split_at(fits.count());
        parts.push(part);
        left = rest;
    }
    parts
}
