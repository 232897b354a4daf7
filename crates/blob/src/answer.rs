//! What a command came to, as the fold keeps it for its proposer: an outcome, or a refusal by its
//! number. Only a refusal in words is the fold's own, whose words do not count in the digest: a build
//! may word them better. docs/formats/blob.md.

use crate::command::{Outcome, Refusal};
use crate::service::{Answer, Failure};
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::{Error, Kind, Result};
use holdfast_view::Applied;

type Answered = std::result::Result<Outcome, Refusal>;

pub fn applied(answered: Answered) -> Applied {
    let mut out = Vec::new();
    match answered {
        Ok(Outcome::Done) => out.push(0),
        Ok(Outcome::Named(object)) => {
            out.push(1);
            object.encode(&mut out);
        }
        Ok(Outcome::Deleted { version, marker }) => {
            out.push(2);
            version.encode(&mut out);
            marker.encode(&mut out);
        }
        Err(refusal) => match refusal {
            Refusal::NoSuchBucket => out.push(16),
            Refusal::BucketExists => out.push(17),
            Refusal::BucketNotEmpty => out.push(18),
            Refusal::NoSuchKey => out.push(19),
            Refusal::NoSuchVersion => out.push(20),
            Refusal::NoSuchUpload => out.push(21),
            Refusal::InvalidPart(part) => {
                out.push(22);
                part.encode(&mut out);
            }
            Refusal::PreconditionFailed => out.push(23),
            Refusal::Locked => out.push(24),
            Refusal::NotLockable => out.push(25),
            Refusal::ChunkClosed(chunk) => {
                out.push(26);
                chunk.encode(&mut out);
            }
            Refusal::Taken(pointer) => {
                out.push(27);
                pointer.encode(&mut out);
            }
            Refusal::Invalid(what) => return Applied::Refused(Error::invalid(what)),
        },
    }
    Applied::Ok(out)
}

fn decode(reader: &mut Reader<'_>) -> std::result::Result<Answered, DecodeError> {
    Ok(Err(match u8::decode(reader)? {
        0 => return Ok(Ok(Outcome::Done)),
        1 => return Ok(Ok(Outcome::Named(Box::new(Decode::decode(reader)?)))),
        2 => {
            let (version, marker) = (Decode::decode(reader)?, Decode::decode(reader)?);
            return Ok(Ok(Outcome::Deleted { version, marker }));
        }
        16 => Refusal::NoSuchBucket,
        17 => Refusal::BucketExists,
        18 => Refusal::BucketNotEmpty,
        19 => Refusal::NoSuchKey,
        20 => Refusal::NoSuchVersion,
        21 => Refusal::NoSuchUpload,
        22 => Refusal::InvalidPart(Decode::decode(reader)?),
        23 => Refusal::PreconditionFailed,
        24 => Refusal::Locked,
        25 => Refusal::NotLockable,
        26 => Refusal::ChunkClosed(Decode::decode(reader)?),
        27 => Refusal::Taken(Decode::decode(reader)?),
        _ => return Err(DecodeError::BadValue("answer of blobs")),
    }))
}

/// What a proposer is told of what the fold answered.
pub fn read_answer(result: Result<Vec<u8>>) -> Answer<Outcome> {
    match result {
        Ok(bytes) => {
            let mut reader = Reader::new(&bytes);
            let answered = decode(&mut reader).map_err(Error::from)?;
            answered.map_err(Failure::Refused)
        }
        Err(e) if e.kind == Kind::Invalid => Err(Refusal::Invalid(e.message).into()),
        Err(e) => Err(e.into()),
    }
}
