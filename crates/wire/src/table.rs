//! Messages of tables: records with versions, written under a client's session, read as new as is asked
//! for. What a place in a stream is, docs/formats/table.md says.

use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::{Error, Result, codec_enum, codec_struct};

mod changes;

pub use changes::{
    CHANGES_MAX, CHANGES_WAIT_MS_MAX, Changes, ChangesAt, RecordChange, ShownAt, TabletChanges,
};

/// Longest key of a record.
pub const KEY_BYTES_MAX: usize = 6144;
/// Longest value of a record.
pub const VALUE_BYTES_MAX: usize = 900 << 10;
/// Writes of one request: as many as a tablet remembers the results of, of one session.
pub const WRITES_MAX: usize = 64;
/// Keys and values of one request's writes.
pub const WRITE_BYTES_MAX: usize = 8 << 20;
/// Writes of one group: as many as a transaction of DynamoDB's has, and rows beside them.
pub const GROUP_WRITES_MAX: usize = 128;
/// Keys and values of one group, and [`GROUP_WRITE_BYTES`] of each: it is one entry of a log.
pub const GROUP_BYTES_MAX: usize = 960 << 10;
/// What a write of a group has around its key and value.
pub const GROUP_WRITE_BYTES: usize = 64;
/// Keys of one read.
pub const READ_KEYS_MAX: usize = 100;
/// Records of one answer to a scan.
pub const SCAN_ROWS_MAX: usize = 1000;
/// Keys and values of one answer; there is always room for one record.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Tablets of one table.
pub const TABLETS_MAX: u16 = 64;
/// What a region says to another in one request: there is always room for one message.
pub const TELL_BYTES_MAX: usize = 4 << 20;

/// What a write's answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableMode {
    /// The log of the record's home.
    Timeline,
    /// The logs of a majority of regions.
    Strong,
}
codec_enum!(TableMode: "mode of a table" { 1 => Timeline {}, 2 => Strong {} });

/// Makes a table; one that is there with the same words is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Make {
    pub table: String,
    pub mode: TableMode,
    /// Into how many it is cut, by keys' hashes.
    pub tablets: u16,
    /// In all regions that the cluster knows of; else in its own alone.
    pub everywhere: bool,
}
codec_struct!(Make { table, mode, tablets, everywhere });

/// A table, as the node that serves it has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    pub table: String,
    pub mode: TableMode,
    /// The region that asked nodes belong to, and how many there are.
    pub region: u8,
    pub regions: u8,
    pub tablets: Vec<TabletInfo>,
    /// The other regions, as the first tablet hears them.
    pub others: Vec<RegionInfo>,
}
codec_struct!(TableInfo { table, mode, region, regions, tablets, others });

/// Another region of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    pub region: u8,
    /// How long ago it was heard last; nothing where it was not, since this node has decided.
    pub heard_ms: Option<u64>,
    /// An operator has called it lost, and nothing was heard of it since.
    pub is_called_lost: bool,
    /// Why it cannot be reached, if it was tried in vain.
    pub trouble: String,
}
codec_struct!(RegionInfo { region, heard_ms, is_called_lost, trouble });

/// One of its tablets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TabletInfo {
    /// The last entry of its topic that is applied.
    pub applied: u64,
    /// Records, without those that are deleted.
    pub records: u64,
    /// Deleted records that are not forgotten.
    pub tombstones: u64,
    /// Of keys and values.
    pub bytes: u64,
    /// Clients whose last results are remembered.
    pub sessions: u64,
    /// What regions had decided in streams that were sealed without them, and nobody has resolved.
    pub branches: u64,
    /// The home streams, one a region.
    pub streams: Vec<StreamInfo>,
    /// Why it takes nothing, if it has stopped.
    pub stopped: String,
    /// Its keys' hashes: from this one to that one, both included.
    pub first: u32,
    pub last: u32,
    /// What it is giving to another tablet.
    pub split: Option<SplitInfo>,
}
codec_struct!(TabletInfo {
    applied,
    records,
    tombstones,
    bytes,
    sessions,
    branches,
    streams,
    stopped,
    first,
    last,
    split
});

/// A split that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitInfo {
    /// The first hash of what goes.
    pub at: u32,
    /// The tablet that gets it.
    pub into: u16,
    /// Why the last step failed, if it did.
    pub trouble: String,
}
codec_struct!(SplitInfo { at, into, trouble });

/// Cuts a tablet in two, of a table of one region. Where it was cut there already, it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub table: String,
    pub tablet: u16,
    /// The first hash of the upper half, which another tablet gets.
    pub at: u32,
}
codec_struct!(Split { table, tablet, at });

/// A home stream, as a region has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// The region that it is named after.
    pub home: u8,
    /// The region that leads it, as far as is known.
    pub leader: u8,
    /// Entries that this region's log holds, and those that show.
    pub held: u64,
    pub shown: u64,
}
codec_struct!(StreamInfo { home, leader, held, shown });

/// From one region to another: what there is of a table, before it is made in several. Makes the topics of
/// its tablets where `after` says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// The region that asks.
    pub by: u8,
    /// The region that is asked.
    pub region: u8,
    pub table: String,
    pub tablets: u16,
    /// Of each tablet the highest number of a log that others know of the region that is asked; empty to
    /// look alone.
    pub after: Vec<u64>,
}
codec_struct!(Prepare { by, region, table, tablets, after });

/// What a region has of a tablet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// The number of its log; 0 where there is no topic.
    pub log: u64,
    /// The logs that it counts, or will: region and number.
    pub known: Vec<(u8, u64)>,
    /// The entry that made the tablet; empty where it is not made.
    pub made: Vec<u8>,
}

impl Encode for Prepared {
    fn encode(&self, out: &mut Vec<u8>) {
        self.log.encode(out);
        (self.known.len() as u32).encode(out);
        for (region, log) in &self.known {
            region.encode(out);
            log.encode(out);
        }
        put_bytes(out, &self.made);
    }
}

impl Decode for Prepared {
    fn decode(reader: &mut Reader<'_>) -> Result<Prepared, DecodeError> {
        let log = u64::decode(reader)?;
        let mut known = Vec::new();
        for _ in 0..u32::decode(reader)? {
            known.push((u8::decode(reader)?, u64::decode(reader)?));
        }
        Ok(Prepared { log, known, made: reader.bytes()?.to_vec() })
    }
}

/// From one region to another: makes a table's tablets there, by these entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adopt {
    /// The region that asks.
    pub by: u8,
    pub table: String,
    pub tablets: Vec<Vec<u8>>,
}
codec_struct!(Adopt { by, table, tablets });

/// Drops a table, in all of its regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropTable {
    pub table: String,
}
codec_struct!(DropTable { table });

/// A table is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The regions that could not be told, and drop it once they are back.
    pub away: Vec<u8>,
}
codec_struct!(Dropped { away });

/// From one region to another: tablets that were made by these entries are dropped, and no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The region that says so.
    pub by: u8,
    pub table: String,
    pub tablets: Vec<Vec<u8>>,
}
codec_struct!(Gone { by, table, tablets });

/// From one region to another, what its tablets say; the body has a list of [`Told`]. Nothing is answered but
/// that it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tell {
    /// The region that speaks.
    pub by: u8,
}
codec_struct!(Tell { by });

/// What one tablet says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub table: String,
    pub tablet: u16,
    /// CRC-32C of what the tablet was made as: nothing is said to one that was made otherwise.
    pub form: u32,
    /// The number of the speaker's log.
    pub log: u64,
    /// See docs/formats/table.md.
    pub message: Vec<u8>,
}

impl Encode for Told {
    fn encode(&self, out: &mut Vec<u8>) {
        self.table.encode(out);
        self.tablet.encode(out);
        self.form.encode(out);
        self.log.encode(out);
        put_bytes(out, &self.message);
    }
}

impl Decode for Told {
    fn decode(reader: &mut Reader<'_>) -> Result<Told, DecodeError> {
        Ok(Told {
            table: String::decode(reader)?,
            tablet: u16::decode(reader)?,
            form: u32::decode(reader)?,
            log: u64::decode(reader)?,
            message: reader.bytes()?.to_vec(),
        })
    }
}

/// Writes records; the body has a list of [`Row`]. Where they were decided, a list of [`Seen`], is beside the answer. Each is decided by itself; where nobody knows what came of
/// one of them, the request fails, and may be sent again as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub table: String,
    /// Drawn by the client.
    pub session: u64,
    /// The client has the results of all sequences below.
    pub below: u64,
}
codec_struct!(Write { table, session, below });

/// On what a write insists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// There is no such record.
    Absent,
    /// The record has this version.
    Version { version: u64 },
}
codec_enum!(Expect: "what a write expects" { 1 => Any {}, 2 => Absent {}, 3 => Version { version } });

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// From 1, increasing; a repetition gets the first answer.
    pub sequence: u64,
    pub expect: Expect,
    pub key: Vec<u8>,
    /// Nothing deletes the record.
    pub value: Option<Vec<u8>>,
}

/// What came of a write. The body of the answer has one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The record has this version by it.
    Version { version: u64 },
    /// It changed nothing: the record has this version.
    Found { version: u64 },
    /// It changed nothing: there is no such record.
    Absent,
}
codec_enum!(Written: "what came of a write" {
    1 => Version { version },
    2 => Found { version },
    3 => Absent {},
});

/// Writes records that stand or fall together; the body has a list of [`GroupRow`], of one tablet and no key twice.
/// The body of the answer has [`GroupWritten`]; where it was decided, a list of [`Seen`], is beside it. Where nobody
/// knows what came of it the request fails, and may be sent again as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub table: String,
    /// As of a [`Write`] and its [`Row`].
    pub session: u64,
    pub sequence: u64,
    pub below: u64,
}
codec_struct!(Group { table, session, sequence, below });

/// One write of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    pub expect: Expect,
    pub key: Vec<u8>,
    pub what: GroupDo,
}

/// What becomes of a record of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupDo {
    /// It gets this value.
    Put(Vec<u8>),
    /// It is deleted.
    Delete,
    /// Nothing: it is only to be as expected.
    Check,
}

/// What came of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupWritten {
    /// All was written: each record has this version now, in order; one that was to be absent and stays so has 0.
    Versions { versions: Vec<u64> },
    /// Nothing was: the record of this row, from 0, is the first that is not as expected, and has this version.
    Found { at: u16, version: u64 },
    /// Nothing was: there is no record of this row, the first that is not as expected.
    Absent { at: u16 },
    /// Nothing was: this row's record is at home in another region than the first row's.
    OtherHome { at: u16 },
    /// Nothing was: this row's key lies in another tablet than the first row's.
    OtherTablet { at: u16 },
}
codec_enum!(GroupWritten: "what came of a group of writes" {
    1 => Versions { versions },
    2 => Found { at, version },
    3 => Absent { at },
    4 => OtherHome { at },
    5 => OtherTablet { at },
});

/// How many bytes a group has whose keys and values have so many, if that is not too much.
pub fn group_bytes(sizes: impl Iterator<Item = (usize, usize)>) -> Option<usize> {
    let bytes = sizes.map(|(key, value)| key + value + GROUP_WRITE_BYTES).sum();
    (bytes <= GROUP_BYTES_MAX).then_some(bytes)
}

/// How new what a read shows must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Whatever shows.
    Any,
    /// This version of each record, or a later one.
    Critical { version: u64 },
    /// As new as the record's home shows.
    Latest,
    /// As new as anything that anybody was told of.
    Strong,
    /// Nothing older than what the client has seen, in whichever region.
    Session,
}
codec_enum!(Level: "how new a read is" {
    1 => Any {}, 2 => Critical { version }, 3 => Latest {}, 4 => Strong {}, 5 => Session {}
});

/// Places of a session that a client keeps: with more it lets those of a tablet go, and reads that one's records at home.
pub const SEEN_MAX: usize = 64;

/// A place in a home stream of a tablet that a client has seen, by a write or a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub tablet: u16,
    pub stream: u8,
    pub epoch: u64,
    pub number: u64,
}
codec_struct!(Seen { tablet, stream, epoch, number });

/// Reads records. The body of the answer has a list of optional [`Record`], one for each key from the
/// first on; if there is no room for all, the rest is to be asked for again. What is seen by it, a list of
/// [`Seen`], is beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub table: String,
    pub level: Level,
    pub keys: Vec<Vec<u8>>,
    /// Of a session: the places that the client has seen, at most [`SEEN_MAX`].
    pub seen: Vec<Seen>,
    /// A bit for each tablet of which it has let places go: records there are read as new as their homes show.
    pub forgot: u64,
}
codec_struct!(Read { table, level, keys, seen, forgot });

/// Says that a region is lost: what is at home there goes on without it, of a timeline table. Whoever wants to know
/// when all of it does asks again; once this was answered without `heard_for_ms`, it is in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    pub table: String,
    pub lost: u8,
}
codec_struct!(Seal { table, lost });

/// How far a region's homes are sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Every home is led by a region that is there.
    pub are_led: bool,
    /// The regions whose promise is waited for.
    pub waits_for: Vec<u8>,
    /// The region was heard a moment ago, and may be called lost after so long without a word of it; 0 where it may
    /// be.
    pub heard_for_ms: u64,
}
codec_struct!(Sealed { are_led, waits_for, heard_for_ms });

/// Which branch: of which key, and where its last version was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchName {
    pub key: Vec<u8>,
    pub stream: u8,
    pub epoch: u64,
    pub number: u64,
}

impl BranchName {
    /// Which of a key's branches it is, as people name it: home, epoch, number.
    pub fn place(&self) -> String {
        let BranchName { stream, epoch, number, .. } = self;
        format!("{stream}.{epoch}.{number}")
    }

    /// A key's branch at a [`BranchName::place`].
    pub fn at(key: Vec<u8>, place: &str) -> Result<BranchName> {
        let mut numbers = place.split('.').map(|number| number.parse::<u64>().ok());
        let mut number = || numbers.next().flatten();
        let name = (number(), number(), number(), numbers.next());
        match name {
            (Some(stream), Some(epoch), Some(number), None) if stream <= u64::from(u8::MAX) => {
                Ok(BranchName { key, stream: stream as u8, epoch, number })
            }
            _ => Err(Error::invalid(format!(
                "read the name of a branch, `{}`: write home, epoch and number, as `2.3.17`",
                place.escape_debug()
            ))),
        }
    }
}

/// What a key came to in a region that was sealed off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    pub name: BranchName,
    /// The version that it began behind; 0 where there was no record.
    pub after: u64,
    /// The version that it came to.
    pub version: u64,
    /// Nothing where the record was deleted.
    pub value: Option<Vec<u8>>,
}

/// Lists the branches of one tablet, in order of their keys, behind one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branches {
    pub table: String,
    pub tablet: u16,
    pub after: Option<BranchName>,
}
codec_struct!(Branches { table, tablet, after });

/// Says that somebody has seen to a branch: it is one no more. A repetition gets the first answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolve {
    pub table: String,
    pub branch: BranchName,
    /// As of a [`Write`] and its [`Row`].
    pub session: u64,
    pub sequence: u64,
    pub below: u64,
    /// What the branch has is the record's next version, if the record is as expected; nothing: it stays as it is.
    pub keep: Option<Expect>,
}
codec_struct!(Resolve { table, branch, session, sequence, below, keep });

impl Encode for BranchName {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.key);
        self.stream.encode(out);
        self.epoch.encode(out);
        self.number.encode(out);
    }
}

impl Decode for BranchName {
    fn decode(reader: &mut Reader<'_>) -> Result<BranchName, DecodeError> {
        Ok(BranchName {
            key: reader.bytes()?.to_vec(),
            stream: u8::decode(reader)?,
            epoch: u64::decode(reader)?,
            number: u64::decode(reader)?,
        })
    }
}

impl Encode for Branch {
    fn encode(&self, out: &mut Vec<u8>) {
        self.name.encode(out);
        self.after.encode(out);
        self.version.encode(out);
        put_value(out, self.value.as_deref());
    }
}

impl Decode for Branch {
    fn decode(reader: &mut Reader<'_>) -> Result<Branch, DecodeError> {
        Ok(Branch {
            name: BranchName::decode(reader)?,
            after: u64::decode(reader)?,
            version: u64::decode(reader)?,
            value: value_of(reader)?,
        })
    }
}

fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    value.is_some().encode(out);
    if let Some(value) = value {
        put_bytes(out, value);
    }
}

fn value_of(reader: &mut Reader<'_>) -> Result<Option<Vec<u8>>, DecodeError> {
    Ok(match bool::decode(reader)? {
        true => Some(reader.bytes()?.to_vec()),
        false => None,
    })
}

/// Seeks records, in the order of their keys' bytes, as they show. The body of the answer has a [`Page`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    pub table: String,
    /// The first key that may be answered.
    pub from: Vec<u8>,
    /// The first that may not; nothing for no end.
    pub until: Option<Vec<u8>>,
    /// From the end to the beginning.
    pub backwards: bool,
    pub rows_max: u32,
}
codec_struct!(Scan { table, from, until, backwards, rows_max });

/// A record as it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub version: u64,
    pub value: Vec<u8>,
}

/// A record and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub key: Vec<u8>,
    pub record: Record,
}
codec_struct!(Found { key, record });

/// What a scan finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub found: Vec<Found>,
    /// Where to go on, if there may be more: `from` of the next page, or `until` of it, backwards.
    pub next: Option<Vec<u8>>,
}
codec_struct!(Page { found, next });

impl Encode for Row {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sequence.encode(out);
        self.expect.encode(out);
        put_bytes(out, &self.key);
        put_value(out, self.value.as_deref());
    }
}

impl Decode for Row {
    fn decode(reader: &mut Reader<'_>) -> Result<Row, DecodeError> {
        Ok(Row {
            sequence: u64::decode(reader)?,
            expect: Expect::decode(reader)?,
            key: reader.bytes()?.to_vec(),
            value: value_of(reader)?,
        })
    }
}

impl Encode for GroupRow {
    fn encode(&self, out: &mut Vec<u8>) {
        self.expect.encode(out);
        put_bytes(out, &self.key);
        match &self.what {
            GroupDo::Put(value) => {
                1u8.encode(out);
                put_bytes(out, value);
            }
            GroupDo::Delete => 2u8.encode(out),
            GroupDo::Check => 3u8.encode(out),
        }
    }
}

impl Decode for GroupRow {
    fn decode(reader: &mut Reader<'_>) -> Result<GroupRow, DecodeError> {
        Ok(GroupRow {
            expect: Expect::decode(reader)?,
            key: reader.bytes()?.to_vec(),
            what: match u8::decode(reader)? {
                1 => GroupDo::Put(reader.bytes()?.to_vec()),
                2 => GroupDo::Delete,
                3 => GroupDo::Check,
                _ => return Err(DecodeError::BadValue("a write of a group")),
            },
        })
    }
}

impl Encode for Record {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        put_bytes(out, &self.value);
    }
}

impl Decode for Record {
    fn decode(reader: &mut Reader<'_>) -> Result<Record, DecodeError> {
        Ok(Record { version: u64::decode(reader)?, value: reader.bytes()?.to_vec() })
    }
}
