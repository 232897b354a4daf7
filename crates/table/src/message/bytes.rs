//! The bytes of what regions say to each other; docs/formats/table.md describes them.

use super::{Answer, Asker, Expect, GroupDo, GroupWrite, Level, Message, Op, Position, Request};
use crate::ids::{Epoch, Place, StreamId, Value};
use crate::token::Token;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader, put_bytes};
use holdfast_base::codec_struct;

/// Places of one token, at most: streams of up to 255 regions, and of few epochs each.
const PLACES_MAX: usize = 4096;
/// What a home's `Retry` reads as where it was asked.
const ASK_AGAIN: &str = "the record's home could not say: ask again";

codec_struct!(Asker { region, ticket });
codec_struct!(Position { stream, matched, shown, promised });

impl Encode for Token {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.places().count() as u32).encode(out);
        for (stream, place) in self.places() {
            stream.encode(out);
            place.encode(out);
        }
    }
}

impl Decode for Token {
    fn decode(reader: &mut Reader<'_>) -> Result<Token, DecodeError> {
        let count = u32::decode(reader)?;
        if count as usize > PLACES_MAX {
            return Err(DecodeError::BadValue("token"));
        }
        let mut token = Token::default();
        for _ in 0..count {
            token.see(StreamId::decode(reader)?, Place::decode(reader)?);
        }
        // One byte form for each token.
        match token.places().count() == count as usize {
            true => Ok(token),
            false => Err(DecodeError::BadValue("token")),
        }
    }
}

impl Encode for Expect {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Expect::Any => out.push(1),
            Expect::Absent => out.push(2),
            Expect::Version(version) => {
                out.push(3);
                version.encode(out);
            }
        }
    }
}

impl Decode for Expect {
    fn decode(reader: &mut Reader<'_>) -> Result<Expect, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Expect::Any,
            2 => Expect::Absent,
            3 => Expect::Version(u64::decode(reader)?),
            _ => return Err(DecodeError::BadValue("what a write expects")),
        })
    }
}

impl Encode for Level {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Level::Any => out.push(1),
            Level::Critical(version) => {
                out.push(2);
                version.encode(out);
            }
            Level::Session(token) => {
                out.push(3);
                token.encode(out);
            }
            Level::Latest => out.push(4),
            Level::Strong => out.push(5),
        }
    }
}

impl Decode for Level {
    fn decode(reader: &mut Reader<'_>) -> Result<Level, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Level::Any,
            2 => Level::Critical(u64::decode(reader)?),
            3 => Level::Session(Token::decode(reader)?),
            4 => Level::Latest,
            5 => Level::Strong,
            _ => return Err(DecodeError::BadValue("how new a read is")),
        })
    }
}

impl Encode for GroupWrite {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.key);
        self.expect.encode(out);
        match &self.what {
            GroupDo::Put(value) => {
                out.push(1);
                put_bytes(out, value);
            }
            GroupDo::Delete => out.push(2),
            GroupDo::Check => out.push(3),
        }
    }
}

impl Decode for GroupWrite {
    fn decode(reader: &mut Reader<'_>) -> Result<GroupWrite, DecodeError> {
        Ok(GroupWrite {
            key: reader.bytes()?.to_vec(),
            expect: Expect::decode(reader)?,
            what: match u8::decode(reader)? {
                1 => GroupDo::Put(reader.bytes()?.into()),
                2 => GroupDo::Delete,
                3 => GroupDo::Check,
                _ => return Err(DecodeError::BadValue("a write of a group")),
            },
        })
    }
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.key);
        match &self.op {
            Op::Write { asked, value, expect } => {
                out.push(1);
                asked.encode(out);
                expect.encode(out);
                value.is_some().encode(out);
                if let Some(value) = value {
                    put_bytes(out, value);
                }
            }
            Op::Read(level) => {
                out.push(2);
                level.encode(out);
            }
            Op::Resolve { asked, stream, place, said, keep } => {
                out.push(4);
                asked.encode(out);
                stream.encode(out);
                place.encode(out);
                said.encode(out);
                keep.encode(out);
            }
            // The first of them has the key once more.
            Op::Group { asked, writes } => {
                out.push(5);
                asked.encode(out);
                writes.encode(out);
            }
        }
    }
}

impl Decode for Request {
    fn decode(reader: &mut Reader<'_>) -> Result<Request, DecodeError> {
        let key = reader.bytes()?.to_vec();
        let op = match u8::decode(reader)? {
            1 => Op::Write {
                asked: Decode::decode(reader)?,
                expect: Decode::decode(reader)?,
                value: match bool::decode(reader)? {
                    true => Some(reader.bytes()?.to_vec()),
                    false => None,
                },
            },
            2 => Op::Read(Level::decode(reader)?),
            // 3 was a branch's end that its stream's leader decided, by builds before this one.
            4 => Op::Resolve {
                asked: Decode::decode(reader)?,
                stream: Decode::decode(reader)?,
                place: Decode::decode(reader)?,
                said: Decode::decode(reader)?,
                keep: Decode::decode(reader)?,
            },
            5 => Op::Group { asked: Decode::decode(reader)?, writes: Decode::decode(reader)? },
            _ => return Err(DecodeError::BadValue("request")),
        };
        Ok(Request { key, op })
    }
}

impl Encode for Answer {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Done { outcome, stream, place } => {
                out.push(1);
                outcome.encode(out);
                stream.encode(out);
                place.encode(out);
            }
            Answer::Value { found, seen } => {
                out.push(2);
                found.is_some().encode(out);
                if let Some((version, value)) = found {
                    version.encode(out);
                    put_bytes(out, value);
                }
                seen.encode(out);
            }
            Answer::Branched => out.push(3),
            // Why, the event and the next attempt tell: it is for people.
            Answer::Retry(_) => out.push(4),
            // Where a table has several regions, nobody answers so.
            Answer::Elsewhere(_) | Answer::Split => out.push(4),
        }
    }
}

impl Decode for Answer {
    fn decode(reader: &mut Reader<'_>) -> Result<Answer, DecodeError> {
        Ok(match u8::decode(reader)? {
            1 => Answer::Done {
                outcome: Decode::decode(reader)?,
                stream: Decode::decode(reader)?,
                place: Decode::decode(reader)?,
            },
            2 => Answer::Value {
                found: match bool::decode(reader)? {
                    true => Some((u64::decode(reader)?, Value::from(reader.bytes()?))),
                    false => None,
                },
                seen: Token::decode(reader)?,
            },
            3 => Answer::Branched,
            4 => Answer::Retry(ASK_AGAIN),
            _ => return Err(DecodeError::BadValue("answer")),
        })
    }
}

impl Encode for Message {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Forward { asker, request, hops, after } => {
                out.push(1);
                asker.encode(out);
                request.encode(out);
                hops.encode(out);
                after.map(|(stream, _)| stream).encode(out);
                after.map(|(_, place)| place).unwrap_or_default().encode(out);
            }
            Message::Answered { ticket, answer } => {
                out.push(2);
                ticket.encode(out);
                answer.encode(out);
            }
            Message::NotShown { ticket } => {
                out.push(3);
                ticket.encode(out);
            }
            Message::MarkAsked { stream, ticket } => {
                out.push(4);
                stream.encode(out);
                ticket.encode(out);
            }
            Message::Push { stream, under, before, entries, kept } => {
                out.push(5);
                stream.encode(out);
                under.encode(out);
                before.encode(out);
                entries.encode(out);
                kept.encode(out);
            }
            Message::Behind { stream, under, ends } => {
                out.push(6);
                stream.encode(out);
                under.encode(out);
                ends.encode(out);
            }
            Message::Positions(positions) => {
                out.push(7);
                positions.encode(out);
            }
            Message::AskPromise { stream, epoch } => put_epoch(out, 8, *stream, *epoch),
            Message::Promised { stream, epoch, tail, before } => {
                put_epoch(out, 9, *stream, *epoch);
                tail.encode(out);
                before.encode(out);
            }
            Message::Refused { stream, promised } => put_epoch(out, 10, *stream, *promised),
            Message::Fetch { stream, epoch, ends } => {
                put_epoch(out, 11, *stream, *epoch);
                ends.encode(out);
            }
            Message::Fetched { stream, epoch, before, entries } => {
                put_epoch(out, 12, *stream, *epoch);
                before.encode(out);
                entries.encode(out);
            }
            Message::Forgotten { stream, up_to } => {
                out.push(13);
                stream.encode(out);
                up_to.encode(out);
            }
            Message::ImageAsked { image, part } => {
                out.push(14);
                image.encode(out);
                part.encode(out);
            }
            Message::ImagePart(part) => {
                out.push(15);
                part.encode(out);
            }
            Message::Branch { branch, shown } => {
                out.push(17);
                branch.encode(out);
                shown.encode(out);
            }
        }
    }
}

fn put_epoch(out: &mut Vec<u8>, tag: u8, stream: StreamId, epoch: Epoch) {
    out.push(tag);
    stream.encode(out);
    epoch.encode(out);
}

impl Decode for Message {
    fn decode(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
        let tag = u8::decode(reader)?;
        let r = reader;
        Ok(match tag {
            1 => {
                let (asker, request, hops) =
                    (Decode::decode(r)?, Decode::decode(r)?, Decode::decode(r)?);
                let (stream, place) = (Option::<StreamId>::decode(r)?, Place::decode(r)?);
                let after = stream.map(|stream| (stream, place));
                if after.is_none() && place != Place::default() {
                    return Err(DecodeError::BadValue("forwarded request"));
                }
                Message::Forward { asker, request, hops, after }
            }
            2 => Message::Answered { ticket: Decode::decode(r)?, answer: Decode::decode(r)? },
            3 => Message::NotShown { ticket: Decode::decode(r)? },
            4 => Message::MarkAsked { stream: Decode::decode(r)?, ticket: Decode::decode(r)? },
            5 => Message::Push {
                stream: Decode::decode(r)?,
                under: Decode::decode(r)?,
                before: Decode::decode(r)?,
                entries: Decode::decode(r)?,
                kept: Decode::decode(r)?,
            },
            6 => Message::Behind {
                stream: Decode::decode(r)?,
                under: Decode::decode(r)?,
                ends: Decode::decode(r)?,
            },
            7 => Message::Positions(Decode::decode(r)?),
            8 => Message::AskPromise { stream: Decode::decode(r)?, epoch: Decode::decode(r)? },
            9 => Message::Promised {
                stream: Decode::decode(r)?,
                epoch: Decode::decode(r)?,
                tail: Decode::decode(r)?,
                before: Decode::decode(r)?,
            },
            10 => Message::Refused { stream: Decode::decode(r)?, promised: Decode::decode(r)? },
            11 => Message::Fetch {
                stream: Decode::decode(r)?,
                epoch: Decode::decode(r)?,
                ends: Decode::decode(r)?,
            },
            12 => Message::Fetched {
                stream: Decode::decode(r)?,
                epoch: Decode::decode(r)?,
                before: Decode::decode(r)?,
                entries: Decode::decode(r)?,
            },
            13 => Message::Forgotten { stream: Decode::decode(r)?, up_to: Decode::decode(r)? },
            14 => Message::ImageAsked { image: Decode::decode(r)?, part: Decode::decode(r)? },
            15 => Message::ImagePart(Decode::decode(r)?),
            // 16 was a branch of builds before this one, which did not say what they show.
            17 => Message::Branch { branch: Decode::decode(r)?, shown: Decode::decode(r)? },
            _ => return Err(DecodeError::BadValue("message of a region")),
        })
    }
}
