//! Scribe's service, of which fb303 is a part: frames to calls, answers to frames. Pure; the door moves the
//! bytes, and what becomes of a call is decided elsewhere.

use crate::thrift::{self, Form, Header, Malformed, MessageType, Reader, Writer};

/// One frame: a call with all of its messages.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// The length in front of each frame.
pub const LENGTH_BYTES: usize = 4;

/// `TApplicationException`'s code of a method that nobody knows.
const UNKNOWN_METHOD: i32 = 1;

/// One message as it came: what names its category is not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub category: &'a [u8],
    pub message: &'a [u8],
}

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method<'a> {
    Log(Vec<Entry<'a>>),
    Name,
    Version,
    Status,
    StatusDetails,
    Counters,
    Counter(&'a [u8]),
    Option(&'a [u8]),
    Options,
    AliveSince,
    /// `setOption`: strangers change nothing here.
    SetOption,
    /// `shutdown` and `reinitialize`: nobody waits for an answer, and nothing is done.
    Ignored,
    CpuProfile,
    Unknown,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    pub header: Header<'a>,
    pub method: Method<'a>,
}

/// What a call of `Log` comes to, as Scribe's clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it is kept, or can never be.
    Ok = 0,
    /// Nothing of it counts: send it again.
    TryLater = 1,
}

/// How the service is, in fb303's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Alive = 2,
    Stopping = 3,
    Warning = 5,
}

/// The length of the frame that begins so, or why there is no use in reading on.
pub fn frame_bytes(length: [u8; LENGTH_BYTES]) -> Result<usize, Malformed> {
    match usize::try_from(i32::from_be_bytes(length)) {
        Ok(bytes @ 0..=FRAME_BYTES_MAX) => Ok(bytes),
        _ => Err(Malformed::Length),
    }
}

impl<'a> Call<'a> {
    /// Reads a whole frame, without its length.
    pub fn decode(frame: &'a [u8]) -> Result<Call<'a>, Malformed> {
        let mut reader = Reader::new(frame);
        let header = reader.header()?;
        if !matches!(header.kind, MessageType::Call | MessageType::Oneway) {
            return Err(Malformed::Type(header.kind as u8));
        }
        let mut entries = None;
        let mut first: &[u8] = &[];
        let takes_text = matches!(header.name, b"getCounter" | b"getOption");
        while let Some((code, number)) = reader.field()? {
            match (code, number) {
                (thrift::LIST, 1) if header.name == b"Log" => {
                    entries = Some(log_entries(&mut reader)?)
                }
                (thrift::STRING, 1) if takes_text => first = reader.bytes()?,
                (code, _) => reader.skip(code)?,
            }
        }
        reader.finish()?;
        let method = match header.name {
            b"Log" => Method::Log(entries.unwrap_or_default()),
            b"getName" => Method::Name,
            b"getVersion" => Method::Version,
            b"getStatus" => Method::Status,
            b"getStatusDetails" => Method::StatusDetails,
            b"getCounters" => Method::Counters,
            b"getCounter" => Method::Counter(first),
            b"getOption" => Method::Option(first),
            b"getOptions" => Method::Options,
            b"setOption" => Method::SetOption,
            b"aliveSince" => Method::AliveSince,
            b"getCpuProfile" => Method::CpuProfile,
            b"shutdown" | b"reinitialize" => Method::Ignored,
            _ => Method::Unknown,
        };
        Ok(Call { header, method })
    }

    /// Whether its caller waits for an answer.
    pub fn is_answered(&self) -> bool {
        self.header.kind == MessageType::Call && self.method != Method::Ignored
    }
}

fn log_entries<'a>(reader: &mut Reader<'a>) -> Result<Vec<Entry<'a>>, Malformed> {
    let element = reader.byte()?;
    let count = reader.count()?;
    if element != thrift::STRUCT {
        return match count {
            0 => Ok(Vec::new()),
            _ => Err(Malformed::Type(element)),
        };
    }
    // The smallest entry is one byte, its end: what is set aside is bounded by the frame all the same.
    let mut entries = Vec::with_capacity(count.min(1 << 16));
    for _ in 0..count {
        let (mut category, mut message): (&[u8], &[u8]) = (&[], &[]);
        while let Some((code, number)) = reader.field()? {
            match (code, number) {
                (thrift::STRING, 1) => category = reader.bytes()?,
                (thrift::STRING, 2) => message = reader.bytes()?,
                (code, _) => reader.skip(code)?,
            }
        }
        entries.push(Entry { category, message });
    }
    Ok(entries)
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Log(Answer),
    Health(Health),
    Number(i64),
    Text(Vec<u8>),
    Counters(Vec<(String, i64)>),
    Texts(Vec<(String, String)>),
    Nothing,
    UnknownMethod,
}

/// The frame that answers a call: in the form of its header, with its name and number.
pub fn encode_reply(call: &Header<'_>, reply: &Reply) -> Vec<u8> {
    let kind = match reply {
        Reply::UnknownMethod => MessageType::Exception,
        _ => MessageType::Reply,
    };
    let mut out = Writer::message(&Header { kind, ..*call });
    match reply {
        Reply::Log(answer) => {
            out.field(thrift::I32, 0);
            out.i32(*answer as i32);
        }
        Reply::Health(health) => {
            out.field(thrift::I32, 0);
            out.i32(*health as i32);
        }
        Reply::Number(number) => {
            out.field(thrift::I64, 0);
            out.i64(*number);
        }
        Reply::Text(text) => {
            out.field(thrift::STRING, 0);
            out.bytes(text);
        }
        Reply::Counters(counters) => {
            map_head(&mut out, thrift::I64, counters.len());
            for (name, count) in counters {
                out.bytes(name.as_bytes());
                out.i64(*count);
            }
        }
        Reply::Texts(texts) => {
            map_head(&mut out, thrift::STRING, texts.len());
            for (name, text) in texts {
                out.bytes(name.as_bytes());
                out.bytes(text.as_bytes());
            }
        }
        Reply::Nothing => {}
        Reply::UnknownMethod => {
            out.field(thrift::STRING, 1);
            out.bytes(b"there is no such method: Log, and fb303's, are answered here");
            out.field(thrift::I32, 2);
            out.i32(UNKNOWN_METHOD);
        }
    }
    out.stop();
    out.finish()
}

fn map_head(out: &mut Writer, value: u8, count: usize) {
    out.field(thrift::MAP, 0);
    out.byte(thrift::STRING);
    out.byte(value);
    out.i32(i32::try_from(count).expect("there are few counters"));
}

/// The frame of a call of `Log`, as a client sends it.
pub fn encode_log(form: Form, sequence: i32, entries: &[Entry<'_>]) -> Vec<u8> {
    let header = Header { form, kind: MessageType::Call, name: b"Log", sequence };
    let mut out = Writer::message(&header);
    out.field(thrift::LIST, 1);
    out.byte(thrift::STRUCT);
    out.i32(i32::try_from(entries.len()).expect("a frame has fewer entries"));
    for entry in entries {
        out.field(thrift::STRING, 1);
        out.bytes(entry.category);
        out.field(thrift::STRING, 2);
        out.bytes(entry.message);
        out.stop();
    }
    out.stop();
    out.finish()
}

#[cfg(test)]
mod tests;
