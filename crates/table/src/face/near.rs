//! The same operations for another face of this process, which asks in front of whichever node: here, or at
//! the node that keeps the log.

use super::TableFace;
use holdfast_base::codec::{Decode, Encode};
use holdfast_env::net::PeerReply;
use holdfast_log::Done;
use holdfast_server::ask_host;
use holdfast_wire as wire;
use holdfast_wire::table as msg;
use std::sync::Arc;

impl TableFace {
    /// Makes a table; one that was made with the same words is there.
    pub fn ask_make(self: &Arc<Self>, make: msg::Make, done: Done<msg::TableInfo>) {
        if self.node.answers_for_log() {
            return self.make_here(make, done);
        }
        let request = (wire::OP_TABLE_MAKE, make.to_bytes(), Vec::new());
        ask_host(&self.node, request, None, move |told| {
            done(told.and_then(|PeerReply { meta, .. }| Ok(msg::TableInfo::from_bytes(&meta)?)));
        });
    }

    /// Writes, each row by itself: see [`msg::Write`].
    pub fn ask_write(
        self: &Arc<Self>,
        write: msg::Write,
        rows: Vec<msg::Row>,
        done: Done<Vec<msg::Written>>,
    ) {
        if self.node.answers_for_log() {
            return self.write_here(&write, rows, |told| done(told.map(|(written, _)| written)));
        }
        let request = (wire::OP_TABLE_WRITE, write.to_bytes(), rows.to_bytes());
        ask_host(&self.node, request, None, move |told| {
            done(told.and_then(|PeerReply { body, .. }| Ok(Vec::from_bytes(&body)?)));
        });
    }

    /// Writes rows that stand or fall together: see [`msg::Group`].
    pub fn ask_group(
        self: &Arc<Self>,
        group: msg::Group,
        rows: Vec<msg::GroupRow>,
        done: Done<msg::GroupWritten>,
    ) {
        if self.node.answers_for_log() {
            return self.group_here(&group, rows, |told| done(told.map(|(written, _)| written)));
        }
        let request = (wire::OP_TABLE_GROUP, group.to_bytes(), rows.to_bytes());
        ask_host(&self.node, request, None, move |told| {
            done(told.and_then(|PeerReply { body, .. }| Ok(msg::GroupWritten::from_bytes(&body)?)));
        });
    }

    /// Reads keys of one tablet, as they show at one moment.
    pub fn ask_read_group(self: &Arc<Self>, read: msg::Read, done: Done<Vec<Option<msg::Record>>>) {
        if self.node.answers_for_log() {
            return self.read_group_here(read, |told| done(told.map(|(found, _)| found)));
        }
        let request = (wire::OP_TABLE_READ_GROUP, read.to_bytes(), Vec::new());
        ask_host(&self.node, request, None, move |told| {
            done(told.and_then(|PeerReply { body, .. }| Ok(Vec::from_bytes(&body)?)));
        });
    }

    /// Reads, of the keys from the first on as many as there is room for.
    pub fn ask_read(self: &Arc<Self>, read: msg::Read, done: Done<Vec<Option<msg::Record>>>) {
        if self.node.answers_for_log() {
            return self.read_here(read, |told| done(told.map(|(found, _)| found)));
        }
        let request = (wire::OP_TABLE_READ, read.to_bytes(), Vec::new());
        ask_host(&self.node, request, None, move |told| {
            done(told.and_then(|PeerReply { body, .. }| Ok(Vec::from_bytes(&body)?)));
        });
    }

    /// A page of a scan.
    pub fn ask_scan(self: &Arc<Self>, scan: msg::Scan, done: Done<msg::Page>) {
        if self.node.answers_for_log() {
            return self.scan_here(scan, done);
        }
        let request = (wire::OP_TABLE_SCAN, scan.to_bytes(), Vec::new());
        ask_host(&self.node, request, None, move |told| {
            done(told.and_then(|PeerReply { body, .. }| Ok(msg::Page::from_bytes(&body)?)));
        });
    }
}
