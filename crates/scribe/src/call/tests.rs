//! Frames against a plain model: what was written is read, and bytes of any other kind are refused without
//! a panic, a large allocation or a deep stack.

use super::*;
use holdfast_base::random::Random;

fn body(frame: &[u8]) -> &[u8] {
    let length: [u8; 4] = frame[..4].try_into().unwrap();
    assert_eq!(frame_bytes(length).unwrap(), frame.len() - 4);
    &frame[4..]
}

/// What Apache's Thrift for Python sends for `Log([LogEntry("cat", "hi\n")])`, strict, number 0; and what
/// Scribe's own client sends, without a version.
#[test]
fn frames_of_real_clients_are_read() {
    let strict = b"\x80\x01\0\x01\0\0\0\x03Log\0\0\0\0\x0f\0\x01\x0c\0\0\0\x01\x0b\0\x01\0\0\0\x03cat\x0b\0\x02\0\0\0\x03hi\n\0\0";
    let old = b"\0\0\0\x03Log\x01\0\0\0\0\x0f\0\x01\x0c\0\0\0\x01\x0b\0\x01\0\0\0\x03cat\x0b\0\x02\0\0\0\x03hi\n\0\0";
    let entry = Entry { category: b"cat", message: b"hi\n" };
    for (frame, form) in [(&strict[..], Form::Strict), (&old[..], Form::Old)] {
        let call = Call::decode(frame).unwrap();
        assert_eq!(call.method, Method::Log(vec![entry]));
        assert_eq!((call.header.form, call.header.sequence), (form, 0));
        assert!(call.is_answered());
        assert_eq!(body(&encode_log(form, 0, &[entry])), frame);
    }
    let call = Call::decode(old).unwrap();
    let answer = encode_reply(&call.header, &Reply::Log(Answer::TryLater));
    assert_eq!(body(&answer), b"\0\0\0\x03Log\x02\0\0\0\0\x08\0\0\0\0\0\x01\0");
    let call = Call::decode(strict).unwrap();
    let answer = encode_reply(&call.header, &Reply::Log(Answer::Ok));
    assert_eq!(body(&answer), b"\x80\x01\0\x02\0\0\0\x03Log\0\0\0\0\x08\0\0\0\0\0\0\0");
}

#[test]
fn fb303_is_answered_and_strangers_change_nothing() {
    let ask = |name: &[u8], kind: MessageType, text: Option<&[u8]>| {
        let header = Header { form: Form::Strict, kind, name, sequence: 7 };
        let mut out = Writer::message(&header);
        if let Some(text) = text {
            out.field(thrift::STRING, 1);
            out.bytes(text);
        }
        out.stop();
        out.finish()
    };
    for (name, method) in [
        (&b"getName"[..], Method::Name),
        (b"getVersion", Method::Version),
        (b"getStatus", Method::Status),
        (b"getStatusDetails", Method::StatusDetails),
        (b"getCounters", Method::Counters),
        (b"getOptions", Method::Options),
        (b"aliveSince", Method::AliveSince),
        (b"getCpuProfile", Method::CpuProfile),
        (b"setOption", Method::SetOption),
        (b"shutdown", Method::Ignored),
        (b"nonsense", Method::Unknown),
    ] {
        let frame = ask(name, MessageType::Call, None);
        let call = Call::decode(body(&frame)).unwrap();
        assert_eq!(call.is_answered(), method != Method::Ignored);
        assert_eq!(call.method, method);
    }
    let frame = ask(b"getCounter", MessageType::Call, Some(b"x"));
    assert_eq!(Call::decode(body(&frame)).unwrap().method, Method::Counter(b"x"));
    let frame = ask(b"getName", MessageType::Oneway, None);
    assert!(!Call::decode(body(&frame)).unwrap().is_answered());
    let frame = ask(b"getName", MessageType::Reply, None);
    assert_eq!(Call::decode(body(&frame)), Err(Malformed::Type(2)));
    let header = Header { form: Form::Old, kind: MessageType::Call, name: b"x", sequence: 1 };
    let counters = Reply::Counters(vec![("a".into(), -1)]);
    assert_eq!(
        body(&encode_reply(&header, &counters)),
        b"\0\0\0\x01x\x02\0\0\0\x01\x0d\0\0\x0b\x0a\0\0\0\x01\0\0\0\x01a\xff\xff\xff\xff\xff\xff\xff\xff\0"
    );
    let unknown = encode_reply(&header, &Reply::UnknownMethod);
    assert_eq!(body(&unknown)[5], MessageType::Exception as u8);
}

#[test]
fn lengths_that_lie_are_refused() {
    assert_eq!(frame_bytes((FRAME_BYTES_MAX as u32).to_be_bytes()), Ok(FRAME_BYTES_MAX));
    for length in [FRAME_BYTES_MAX as u32 + 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        assert_eq!(frame_bytes(length.to_be_bytes()), Err(Malformed::Length), "{length:#x}");
    }
    // HTTP on this port.
    assert!(frame_bytes(*b"GET ").is_err());
    // Two billion entries, and a message of two billion bytes.
    let entries = b"\0\0\0\x03Log\x01\0\0\0\0\x0f\0\x01\x0c\x7f\xff\xff\xff";
    assert_eq!(Call::decode(entries), Err(Malformed::Length));
    let message = b"\0\0\0\x03Log\x01\0\0\0\0\x0f\0\x01\x0c\0\0\0\x01\x0b\0\x02\x7f\xff\xff\xff";
    assert_eq!(Call::decode(message), Err(Malformed::Length));
    let negative = b"\0\0\0\x03Log\x01\0\0\0\0\x0f\0\x01\x0c\xff\xff\xff\xff";
    assert_eq!(Call::decode(negative), Err(Malformed::Length));
}

/// A value of every type, to a depth.
fn value(random: &mut Random, out: &mut Writer, depth: u32) -> u8 {
    let types = [2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15];
    let simple = 7;
    let among = if depth == 0 { simple } else { types.len() as u64 };
    let code = types[random.below(among) as usize];
    write(random, out, code, depth);
    code
}

fn write(random: &mut Random, out: &mut Writer, code: u8, depth: u32) {
    match code {
        thrift::BOOL | thrift::BYTE => out.byte(random.next() as u8),
        thrift::I16 => out.i16(random.next() as i16),
        thrift::I32 => out.i32(random.next() as i32),
        thrift::I64 | thrift::DOUBLE => out.i64(random.next() as i64),
        thrift::STRING => out.bytes(&holdfast_base::random::bytes(random.next(), 5)),
        thrift::STRUCT => {
            for number in 0..random.below(3) {
                let mut inner = Random::new(random.next());
                let codes = [2, 8, 11, 12];
                let code = codes[inner.below(if depth == 0 { 3 } else { 4 }) as usize];
                out.field(code, number as i16 + 3);
                write(&mut inner, out, code, depth.saturating_sub(1));
            }
            out.stop();
        }
        thrift::MAP => {
            let count = random.below(3) as i32;
            out.byte(thrift::I32);
            out.byte(thrift::STRING);
            out.i32(count);
            for _ in 0..count {
                write(random, out, thrift::I32, 0);
                write(random, out, thrift::STRING, 0);
            }
        }
        _ => {
            let count = random.below(3) as i32;
            let element = if depth == 0 { thrift::I16 } else { thrift::STRUCT };
            out.byte(element);
            out.i32(count);
            for _ in 0..count {
                write(random, out, element, depth.saturating_sub(1));
            }
        }
    }
}

/// A call with fields that nobody knows, at the call and in its entries.
fn strange_log(random: &mut Random, entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let form = if random.below(2) == 0 { Form::Strict } else { Form::Old };
    let sequence = random.next() as i32;
    let header = Header { form, kind: MessageType::Call, name: b"Log", sequence };
    let mut out = Writer::message(&header);
    let strange = |random: &mut Random, out: &mut Writer| {
        for number in 0..random.below(3) {
            let mut inner = Writer::message(&header);
            let begun = inner.finish().len();
            inner = Writer::message(&header);
            let code = value(random, &mut inner, 4);
            out.field(code, 10 + number as i16);
            inner.finish()[begun..].iter().for_each(|byte| out.byte(*byte));
        }
    };
    strange(random, &mut out);
    out.field(thrift::LIST, 1);
    out.byte(thrift::STRUCT);
    out.i32(entries.len() as i32);
    for (category, message) in entries {
        strange(random, &mut out);
        out.field(thrift::STRING, 2);
        out.bytes(message);
        out.field(thrift::STRING, 1);
        out.bytes(category);
        strange(random, &mut out);
        out.stop();
    }
    strange(random, &mut out);
    out.stop();
    out.finish()
}

#[test]
fn what_was_written_is_read_and_what_was_cut_or_changed_never_panics() {
    let mut changed_and_read = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let entries: Vec<(Vec<u8>, Vec<u8>)> = (0..random.below(5))
            .map(|_| {
                let (seed, long) = (random.next(), random.below(40) as usize);
                (b"category".to_vec(), holdfast_base::random::bytes(seed, long))
            })
            .collect();
        let frame = strange_log(&mut random, &entries);
        let frame = body(&frame);
        let read = Call::decode(frame).unwrap();
        let wanted =
            entries.iter().map(|(category, message)| Entry { category, message }).collect();
        assert_eq!(read.method, Method::Log(wanted), "seed {seed}");
        for cut in 0..frame.len() {
            assert!(Call::decode(&frame[..cut]).is_err(), "seed {seed} cut at {cut}");
        }
        for _ in 0..200 {
            let mut changed = frame.to_vec();
            for _ in 0..1 + random.below(3) {
                let at = random.below(changed.len() as u64) as usize;
                changed[at] = random.next() as u8;
            }
            changed_and_read += usize::from(Call::decode(&changed).is_ok());
        }
        let noise = holdfast_base::random::bytes(random.next(), 100);
        let _ = Call::decode(&noise);
    }
    assert!(changed_and_read > 100, "changes in texts are still calls");
}

/// A stack is smaller than a frame: structs in structs in structs would end the process.
#[test]
fn what_nests_too_deep_is_refused() {
    let nested = |levels: usize, open: &[u8], close: &[u8]| {
        let mut frame = b"\0\0\0\x03Log\x01\0\0\0\0".to_vec();
        frame.extend_from_slice(b"\x0c\0\x05");
        (0..levels).for_each(|_| frame.extend_from_slice(open));
        (0..levels).for_each(|_| frame.extend_from_slice(close));
        frame.extend_from_slice(b"\0\0");
        frame
    };
    let structs = |levels| nested(levels, b"\x0c\0\x01", b"\0");
    assert!(Call::decode(&structs(thrift::DEPTH_MAX as usize - 1)).is_ok());
    assert_eq!(Call::decode(&structs(thrift::DEPTH_MAX as usize)), Err(Malformed::Depth));
    assert_eq!(Call::decode(&structs(2_000_000)), Err(Malformed::Depth));
    let mut lists = b"\0\0\0\x03Log\x01\0\0\0\0\x0f\0\x05".to_vec();
    (0..1_000_000).for_each(|_| lists.extend_from_slice(b"\x0f\0\0\0\x01"));
    assert_eq!(Call::decode(&lists), Err(Malformed::Depth));
}
