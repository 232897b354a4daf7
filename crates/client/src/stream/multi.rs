//! Reading many files at once: requests to different files are outstanding together, and their
//! bytes are handed out as they come, each run with its file and place. For those who do not need
//! an order between files, nor within one.

use super::cursor::{Asked, Cursor};
use crate::client::{Client, Ticket};
use holdfast_base::limits::SLICE_BYTES;
use holdfast_base::{Error, Kind, Result};
use std::collections::{HashMap, VecDeque};

/// Many files open for reading at once.
pub struct MultiStream<'a> {
    client: &'a mut Client,
    outstanding_max: usize,
    /// Files that nobody has asked for yet, with their numbers.
    unopened: VecDeque<(usize, String)>,
    /// Files with runs that nobody has asked for yet, and where the next one begins.
    unread: VecDeque<(usize, u64)>,
    /// Open files of chunks.
    files: HashMap<usize, Open>,
    in_flight: HashMap<Ticket, InFlight>,
    buffer: Vec<u8>,
}

struct Open {
    cursor: Cursor,
    /// Runs on the way.
    runs: usize,
    /// There is nothing more to ask for.
    all_asked: bool,
}

enum InFlight {
    Description { file: usize, path: String },
    Run { file: usize, offset: u64, asked: Asked },
}

/// A verified run of one file.
#[derive(Debug)]
pub struct Run<'a> {
    /// Which of the paths that were given.
    pub file: usize,
    /// Where it belongs in that file.
    pub offset: u64,
    /// Valid until the next run is asked for.
    pub bytes: &'a [u8],
}

impl Client {
    /// Reads all of `paths` at once, with up to `outstanding_max` requests on their way.
    pub fn open_many<P: AsRef<str>>(
        &mut self,
        paths: &[P],
        outstanding_max: usize,
    ) -> MultiStream<'_> {
        let paths = paths.iter().map(|path| path.as_ref().to_owned());
        MultiStream {
            client: self,
            outstanding_max: outstanding_max.max(1),
            unopened: paths.enumerate().collect(),
            unread: VecDeque::new(),
            files: HashMap::new(),
            in_flight: HashMap::new(),
            buffer: Vec::new(),
        }
    }
}

impl MultiStream<'_> {
    /// The next run to arrive; none when every file was read. Empty files bring none.
    pub fn next_run(&mut self) -> Result<Option<Run<'_>>> {
        loop {
            self.ask()?;
            let in_flight = &self.in_flight;
            let Some(ticket) = self.client.wait_any_of(|ticket| in_flight.contains_key(&ticket))
            else {
                return Ok(None);
            };
            match self.in_flight.remove(&ticket) {
                Some(InFlight::Description { file, path }) => {
                    let mut cursor = self.described(&path, ticket)?;
                    if cursor.info.kind.is_container() {
                        return Err(Error::invalid(format!(
                            "read `{path}`: it is a {}; name the files in it",
                            cursor.info.kind.name()
                        )));
                    }
                    match cursor.whole.take() {
                        Some(whole) if whole.is_empty() => {}
                        Some(whole) => {
                            self.buffer = whole;
                            return Ok(Some(Run { file, offset: 0, bytes: &self.buffer }));
                        }
                        None => {
                            self.files.insert(file, Open { cursor, runs: 0, all_asked: false });
                            self.unread.push_back((file, 0));
                        }
                    }
                }
                Some(InFlight::Run { file, offset, asked }) => {
                    self.receive(file, &asked)?;
                    return Ok(Some(Run { file, offset, bytes: &self.buffer }));
                }
                None => return Err(Error::bug("read many files: an answer without a request")),
            }
        }
    }

    /// What a file is that was asked for; asked again where its node refuses it for now.
    fn described(&mut self, path: &str, ticket: Ticket) -> Result<Cursor> {
        match Cursor::asked(self.client, path, ticket) {
            Err(e) if e.kind == Kind::Retry && self.client.connection.failure().is_none() => {
                self.client.patiently(|client| {
                    let ticket = client.submit_get(path)?;
                    Cursor::asked(client, path, ticket)
                })
            }
            described => described,
        }
    }

    /// Asks for runs of open files, in turn, then for further files.
    fn ask(&mut self) -> Result<()> {
        while self.in_flight.len() < self.outstanding_max {
            if let Some((file, offset)) = self.unread.pop_front() {
                let Some(open) = self.files.get_mut(&file) else { continue };
                let span = open.cursor.span_at(self.client, offset, SLICE_BYTES as usize)?;
                let asked = open.cursor.ask(self.client, span)?;
                open.runs += 1;
                let next = offset + span.bytes as u64;
                open.all_asked = next >= open.cursor.info.size;
                if !open.all_asked {
                    self.unread.push_back((file, next));
                }
                self.in_flight.insert(asked.ticket, InFlight::Run { file, offset, asked });
            } else if let Some((file, path)) = self.unopened.pop_front() {
                let ticket = self.client.submit_get(&path)?;
                self.in_flight.insert(ticket, InFlight::Description { file, path });
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    fn receive(&mut self, file: usize, asked: &Asked) -> Result<()> {
        let Some(open) = self.files.get_mut(&file) else {
            return Err(Error::bug("read many files: a run of a file that is not open"));
        };
        self.buffer.resize(asked.span.bytes, 0);
        open.cursor.receive(self.client, asked, &mut self.buffer)?;
        open.runs -= 1;
        if open.runs == 0 && open.all_asked {
            self.files.remove(&file);
        }
        Ok(())
    }
}

impl Drop for MultiStream<'_> {
    fn drop(&mut self) {
        for ticket in self.in_flight.keys() {
            self.client.forget(*ticket);
        }
    }
}
