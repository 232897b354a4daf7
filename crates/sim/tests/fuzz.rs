//! Decoders against mutated input: what is refused is refused without a panic, and what is
//! accepted means one thing only. `make fuzz` runs these for longer.

use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_base::ids::{ChunkId, Cookie, Durability, Pointer, Slot, Tier};
use holdfast_base::limits::FRAME_META_BYTES_MAX;
use holdfast_base::{codec_enum, codec_struct};
use holdfast_sim::fuzz;

#[test]
fn frames_are_refused_or_encode_to_the_same_bytes() {
    let frame = |kind, meta: &[u8], body_bytes| {
        let mut out = Vec::new();
        frame::encode(&mut out, kind, 0x0301, 77, 1500, body_bytes, |m| m.extend_from_slice(meta));
        out
    };
    let samples = [
        frame(FrameKind::Request, b"", 0),
        frame(FrameKind::Response, b"meta!", 9),
        frame(FrameKind::Part, &[7; 300], 4096),
    ];
    let mut accepted = 0;
    fuzz::run("frame", &samples, |input| match frame::decode(input) {
        Ok(Decoded::NeedBytes(n)) => {
            assert!(n > input.len() && n <= HEADER_BYTES + FRAME_META_BYTES_MAX as usize);
        }
        Ok(Decoded::Frame(h)) => {
            accepted += 1;
            let end = HEADER_BYTES + h.meta_bytes as usize;
            let mut again = Vec::new();
            frame::encode(
                &mut again,
                h.kind,
                h.opcode,
                h.request_id,
                h.deadline_or_status,
                h.body_bytes,
                |meta| meta.extend_from_slice(&input[HEADER_BYTES..end]),
            );
            assert_eq!(again, input[..end]);
        }
        Err(_) => {}
    });
    assert!(accepted > samples.len(), "no mutated frame was accepted: the fuzzer is too blunt");
}

#[derive(Debug, PartialEq)]
struct Inner {
    tier: Tier,
    durability: Durability,
    pointer: Pointer,
}
codec_struct!(Inner { tier, durability, pointer });

#[derive(Debug, PartialEq)]
enum Message {
    Named { name: String, inner: Option<Inner>, list: Vec<u16> },
    Nested { names: Vec<Option<String>>, flag: bool, number: i64 },
}
codec_enum!(Message: "message" {
    1 => Named { name, inner, list },
    9 => Nested { names, flag, number },
});

#[test]
fn messages_are_refused_or_encode_to_the_same_bytes() {
    let pointer = Pointer { chunk: ChunkId::new(1, 2), slot: Slot(3), cookie: Cookie(4) };
    let inner = Inner { tier: Tier::Disk, durability: Durability::Durable, pointer };
    let named = Message::Named { name: "é/name".into(), inner: Some(inner), list: vec![1, 2, 3] };
    let nested =
        Message::Nested { names: vec![None, Some("x".into())], flag: true, number: i64::MIN };
    let mut accepted = 0;
    fuzz::run("codec", &[named.to_bytes(), nested.to_bytes()], |input| {
        if let Ok(message) = Message::from_bytes(input) {
            accepted += 1;
            assert_eq!(message.to_bytes(), input);
        }
    });
    assert!(accepted > 100, "only {accepted} mutated messages were accepted");
}

#[test]
fn readers_never_go_past_the_end() {
    fuzz::run("reader", &[b"\x03\0\0\0abc\x02\0\0\0\xc3\xa9tail".to_vec()], |input| {
        let mut reader = Reader::new(input);
        let first = reader.bytes().map(<[u8]>::len);
        let second = reader.str().map(str::len);
        let rest = reader.remaining();
        if let (Ok(first), Ok(second)) = (first, second) {
            assert_eq!(4 + first + 4 + second + rest, input.len());
        }
        assert_eq!(reader.take(rest + 1), Err(DecodeError::Short));
        assert_eq!(reader.take(rest).map(<[u8]>::len), Ok(rest));
        assert_eq!(reader.finish(), Ok(()));
    });
}
