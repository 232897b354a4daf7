//! A key's bytes, whose order is the key's: the hash of the partition key, the partition key, the
//! sort key. docs/formats/dynamo.md. Pure.

use crate::decimal::Decimal;
use crate::value::Value;
use holdfast_base::checksum::fnv1a;
use holdfast_base::ordered;
use holdfast_base::random::mix;

/// Bytes of the hash in front.
pub const HASH_BYTES: usize = 4;

/// The bytes of a key; nothing where a value is no string, number or binary.
pub fn of(partition: &Value, sort: Option<&Value>) -> Option<Vec<u8>> {
    let mut out = of_partition(partition)?;
    if let Some(sort) = sort {
        put_sort(&mut out, sort)?;
    }
    Some(out)
}

/// What the keys of a partition key begin with.
pub fn of_partition(partition: &Value) -> Option<Vec<u8>> {
    let mut key = Vec::new();
    match partition {
        Value::S(text) => put_ended(&mut key, text.as_bytes()),
        Value::B(bytes) => put_ended(&mut key, bytes),
        Value::N(number) => put_number(&mut key, *number),
        _ => return None,
    }
    let mut out = hash(&key).to_be_bytes().to_vec();
    out.append(&mut key);
    Some(out)
}

/// Appends a sort key. It is the last: strings and bytes need no end, so what a string begins with
/// begins its key.
pub fn put_sort(out: &mut Vec<u8>, sort: &Value) -> Option<()> {
    match sort {
        Value::S(text) => out.extend_from_slice(text.as_bytes()),
        Value::B(bytes) => out.extend_from_slice(bytes),
        Value::N(number) => put_number(out, *number),
        _ => return None,
    }
    Some(())
}

/// Longest string or binary of a partition key.
pub const PARTITION_BYTES_MAX: usize = 2048;
/// Longest string or binary of a sort key.
pub const SORT_BYTES_MAX: usize = 1024;

/// Appends a sort key, or the table's partition key in a row of a global index, that another one follows.
pub fn put_ended_sort(out: &mut Vec<u8>, sort: &Value) -> Option<()> {
    match sort {
        Value::S(text) => put_ended(out, text.as_bytes()),
        Value::B(bytes) => put_ended(out, bytes),
        Value::N(number) => put_number(out, *number),
        _ => return None,
    }
    Some(())
}

/// Appends what all sort keys begin with, as [`put_ended_sort`] appends them, that begin with this one.
pub fn put_open_sort(out: &mut Vec<u8>, sort: &Value) -> Option<()> {
    match sort {
        Value::S(text) => ordered::put_open(out, text.as_bytes()),
        Value::B(bytes) => ordered::put_open(out, bytes),
        Value::N(number) => put_number(out, *number),
        _ => return None,
    }
    Some(())
}

/// Where the hashes of a segment of a parallel scan begin; `segment` may be the one behind the last.
pub fn segment_start(segment: u32, segments: u32) -> u64 {
    (u64::from(segment) << 32).div_ceil(u64::from(segments.max(1)))
}

/// FNV-1a, whose bits are then mixed.
fn hash(key: &[u8]) -> u32 {
    (mix(fnv1a(key.iter().copied())) >> 32) as u32
}

/// The end is two zeros: what is longer comes later.
fn put_ended(out: &mut Vec<u8>, bytes: &[u8]) {
    ordered::put_open(out, bytes);
    out.extend_from_slice(&[0, 0]);
}

/// 0x80 is zero. A positive number is 0xc0, its magnitude, its digits in pairs, each larger by one,
/// and 0; a negative one the same with every bit turned.
fn put_number(out: &mut Vec<u8>, number: Decimal) {
    const ZERO: u8 = 0x80;
    const POSITIVE: u8 = 0xc0;
    if number.is_zero() {
        return out.push(ZERO);
    }
    let from = out.len();
    let (is_negative, coefficient, _) = number.parts();
    out.push(POSITIVE);
    // From -130 to 125.
    out.push((number.magnitude() + 130) as u8);
    let digits = coefficient.to_string();
    for pair in digits.as_bytes().chunks(2) {
        let second = pair.get(1).map_or(0, |digit| digit - b'0');
        out.push((pair[0] - b'0') * 10 + second + 1);
    }
    out.push(0);
    if is_negative {
        out[from..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::{Rng, SeededRng};

    fn number(text: &str) -> Value {
        Value::N(Decimal::parse(text).unwrap())
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_bytes_are_what_the_page_says() {
        let key =
            |partition: Value, sort: Option<Value>| hex(&of(&partition, sort.as_ref()).unwrap());
        let text = |text: &str| Value::S(text.into());
        let golden = [
            key(text("a\0b"), None),
            key(text("p"), Some(number("-12.3"))),
            key(number("0"), Some(Value::B(vec![0, 255]))),
            key(Value::B(vec![]), Some(number("1e125"))),
        ];
        assert_eq!(golden, GOLDEN);
    }

    /// Of version 1, for ever.
    const GOLDEN: [&str; 4] = [
        "368217786100ff620000",
        "552f27507000003f7cf2e0ff",
        "8aeab77d8000ff",
        "638256730000c0ff0b00",
    ];

    #[test]
    fn bytes_are_ordered_as_keys_are() {
        let rng = SeededRng::new(3);
        let any = |below: u64| rng.next_u64() % below;
        let mut numbers: Vec<Decimal> =
            ["0", "1", "-1", "10", "-10", "9.9", "9.99", "1e-130", "-1e-130"]
                .iter()
                .map(|text| Decimal::parse(text).unwrap())
                .collect();
        let mut blobs: Vec<Vec<u8>> =
            vec![vec![], vec![0], vec![0, 0], vec![0, 255], vec![255], vec![1]];
        for _ in 0..300 {
            let digits: String = (0..=any(38)).map(|_| char::from(b'0' + any(10) as u8)).collect();
            let sign = ["", "-"][any(2) as usize];
            let power = any(200) as i64 - 100;
            numbers.extend(Decimal::parse(&format!("{sign}0.{digits}e{power}")));
            blobs.push((0..any(5)).map(|_| [0, 1, 254, 255][any(4) as usize]).collect());
        }
        let bytes = |number: &Decimal| {
            let mut out = Vec::new();
            put_number(&mut out, *number);
            out
        };
        for a in &numbers {
            for b in &numbers {
                assert_eq!(bytes(a).cmp(&bytes(b)), a.cmp(b), "{a} {b}");
                let whole = |number: &Decimal| number.to_string();
                assert_eq!(whole(a) == whole(b), a == b);
            }
        }
        let ended = |blob: &[u8]| {
            let mut out = Vec::new();
            put_ended(&mut out, blob);
            out
        };
        for a in &blobs {
            for b in &blobs {
                // Whatever follows them.
                let follows = |blob: &[u8], next: u8| [ended(blob), vec![next]].concat();
                let expected = a.cmp(b).then(std::cmp::Ordering::Less);
                assert_eq!(follows(a, 1).cmp(&follows(b, 2)), expected, "{a:?} {b:?}");
                let begins = ordered::after_prefix(a).map_or(b >= a, |after| b >= a && *b < after);
                assert_eq!(begins, b.starts_with(a), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn hashes_spread_and_segments_share_them() {
        let mut counts = [0; 7];
        for i in 0..7000u64 {
            let key = of_partition(&number(&i.to_string())).unwrap();
            let hash = u64::from(u32::from_be_bytes(key[..4].try_into().unwrap()));
            let segment = (0..7).find(|s| hash < segment_start(s + 1, 7)).unwrap();
            assert!(hash >= segment_start(segment, 7));
            counts[segment as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert_eq!((segment_start(0, 3), segment_start(3, 3)), (0, 1 << 32));
    }
}
