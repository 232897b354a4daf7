//! Positions against a plain model: texts that are right, and texts that were right before some of their bytes were
//! others. What is read prints as the model says, and is read again as the same; what the model refuses is refused.

use super::*;
use holdfast_base::random::Random;
use holdfast_wire::table::TABLETS_MAX;

/// Digits alone, up to a bound: no sign, no blank, nothing that is empty.
fn number(text: &str, radix: u32, most: u64) -> Option<u64> {
    let mut number = 0_u128;
    for c in text.chars() {
        number = number * u128::from(radix) + u128::from(c.to_digit(radix)?);
        if number > u128::from(most) {
            return None;
        }
    }
    (!text.is_empty()).then_some(number as u64)
}

const NARROW: u64 = u32::MAX as u64;

fn parts<const N: usize>(text: &str, by: char) -> Option<[&str; N]> {
    text.split(by).collect::<Vec<_>>().try_into().ok()
}

/// Of each domain its server and number, in their order.
fn gtids(text: &str) -> Option<Vec<[u64; 3]>> {
    let mut all: Vec<[u64; 3]> = Vec::new();
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let [domain, server, sequence] = parts(one, '-')?;
        let domain = number(domain, 10, NARROW)?;
        if all.iter().any(|known| known[0] == domain) {
            return None;
        }
        all.push([domain, number(server, 10, NARROW)?, number(sequence, 10, u64::MAX)?]);
    }
    all.sort_unstable();
    Some(all)
}

fn lsn(text: &str) -> Option<[u64; 2]> {
    let [high, low] = parts(text, '/')?;
    Some([number(high, 16, NARROW)?, number(low, 16, NARROW)?])
}

fn postgres(text: &str) -> Option<String> {
    let [system, timeline, database, shape, at] = parts(text, '-')?;
    let (system, shape) = (number(system, 10, u64::MAX)?, number(shape, 16, u64::MAX)?);
    let [timeline, database] = [number(timeline, 10, NARROW)?, number(database, 10, NARROW)?];
    let [high, low] = lsn(at)?;
    Some(format!("pg-{system}-{timeline}-{database}-{shape:016x}-{high:X}/{low:X}"))
}

fn table(text: &str) -> Option<String> {
    let (name, tablets) = text.split_once(':')?;
    let mut printed = Vec::new();
    for one in tablets.split(',').filter(|one| !one.is_empty()) {
        let numbers: Vec<u64> =
            one.split('.').map(|part| number(part, 16, u64::MAX)).collect::<Option<_>>()?;
        let streams = numbers.len().checked_sub(3).filter(|rest| rest % 4 == 0)? / 4;
        let fits = streams <= 255
            && numbers[0] <= NARROW
            && numbers[3..].chunks(4).all(|stream| stream[0] <= 255);
        fits.then(|| {
            printed.push(numbers.iter().map(|n| format!("{n:x}")).collect::<Vec<_>>().join("."))
        })?;
    }
    let count = printed.len() <= usize::from(TABLETS_MAX);
    count.then(|| format!("table-{name}:{}", printed.join(",")))
}

/// As the position prints that a text is; nothing where it is none.
fn model(text: &str) -> Option<String> {
    if let Some(rest) = text.strip_prefix("table-") {
        return table(rest);
    }
    if let Some(rest) = text.strip_prefix("pg-") {
        return postgres(rest);
    }
    let one = |[domain, server, sequence]: [u64; 3]| format!("{domain}-{server}-{sequence}");
    Some(gtids(text)?.into_iter().map(one).collect::<Vec<_>>().join(","))
}

/// Small ones, those at the borders of what fits, and any.
fn drawn(random: &mut Random) -> u64 {
    const BORDERS: [u64; 6] = [0, 1, NARROW, NARROW + 1, u64::MAX - 1, u64::MAX];
    match random.below(4) {
        0 => BORDERS[random.below(6) as usize],
        1 => random.next(),
        2 => random.next() >> 33,
        _ => random.below(300),
    }
}

fn text(random: &mut Random) -> String {
    match random.below(3) {
        0 => {
            let one = |random: &mut Random| {
                let domain = random.below(5);
                format!("{domain}-{}-{}", random.below(9), drawn(random))
            };
            let all: Vec<String> = (0..random.below(5)).map(|_| one(random)).collect();
            all.join([",", ", ", ",,"][random.below(3) as usize])
        }
        1 => {
            let [system, shape] = [drawn(random), drawn(random)];
            let [timeline, database] = [random.below(1 << 33), random.below(1 << 33)];
            let [high, low] = [drawn(random), drawn(random)];
            format!("pg-{system}-{timeline}-{database}-{shape:x}-{high:X}/{low:x}")
        }
        _ => {
            let tablet = |random: &mut Random| {
                let count = [3, 7, 11, 4][random.below(4) as usize];
                let numbers = (0..count).map(|at| match at % 4 {
                    3 => random.below(260),
                    _ => drawn(random),
                });
                numbers.map(|n| format!("{n:x}")).collect::<Vec<_>>().join(".")
            };
            let most = if random.below(50) == 0 { 70 } else { 4 };
            let all: Vec<String> = (0..random.below(most)).map(|_| tablet(random)).collect();
            format!("table-users.v-2:{}", all.join(","))
        }
    }
}

/// Some characters of it are others, gone, or there twice.
fn changed(text: &str, random: &mut Random) -> String {
    const OTHERS: &[char] =
        &['0', '9', 'f', 'G', '-', '+', ' ', ',', '.', '/', ':', 'p', '\u{661}', 'é', '\0'];
    let mut all: Vec<char> = text.chars().collect();
    for _ in 0..1 + random.below(3) {
        let at = random.below(all.len() as u64 + 1) as usize;
        let other = OTHERS[random.below(OTHERS.len() as u64) as usize];
        match random.below(4) {
            0 => all.insert(at, other),
            _ if at == all.len() => {}
            1 => drop(all.remove(at)),
            2 => all.insert(at, all[at]),
            _ => all[at] = other,
        }
    }
    all.into_iter().collect()
}

/// A number with a sign was read (`0-+1-5`), and of a domain that was there twice the last transaction, which may lie
/// in front of the other: what was between was followed again, or never.
#[test]
fn whatever_is_read_as_a_position_is_what_a_plain_model_reads() {
    let mut random = Random::new(7);
    let (mut right, mut wrong) = (0, 0);
    for round in 0..60_000 {
        let mut text = text(&mut random);
        if round % 3 > 0 {
            text = changed(&text, &mut random);
        }
        let read = Position::parse(&text).ok();
        let printed = read.as_ref().map(ToString::to_string);
        assert_eq!(printed, model(&text), "`{text}`");
        match read {
            Some(read) => {
                right += 1;
                assert_eq!(Position::parse(&printed.unwrap()).as_ref(), Ok(&read), "`{text}`");
                assert!(read.covers(&read), "`{text}`");
            }
            None => wrong += 1,
        }
    }
    assert!(right > 10_000 && wrong > 10_000, "{right} right, {wrong} wrong");
}

#[test]
fn places_of_a_log_are_what_a_plain_model_reads() {
    let mut random = Random::new(8);
    for round in 0..20_000 {
        let mut text = format!("{:X}/{:x}", drawn(&mut random), drawn(&mut random));
        if round % 2 > 0 {
            text = changed(&text, &mut random);
        }
        let wanted = lsn(&text).map(|[high, low]| high << 32 | low);
        assert_eq!(Lsn::parse(&text).ok().map(|lsn| lsn.0), wanted, "`{text}`");
    }
}

/// Sets that go on behind transactions, against lists that are looked through.
#[test]
fn positions_cover_what_they_have_passed() {
    let mut random = Random::new(9);
    for _ in 0..500 {
        let (mut at, mut passed) = (Gtids::default(), Vec::<Gtid>::new());
        for _ in 0..random.below(20) {
            let gtid = Gtid {
                domain: random.below(4) as u32,
                server: random.below(3) as u32,
                sequence: random.below(9),
            };
            let last = passed.iter().rev().find(|last| last.domain == gtid.domain);
            assert_eq!(at.covers(gtid), last.is_some_and(|last| last.sequence >= gtid.sequence));
            let before = at.clone();
            at.pass(gtid);
            assert!(at.covers(gtid));
            let goes_on = last.is_none_or(|last| last.sequence <= gtid.sequence);
            assert_eq!(at.covers_all(&before), goes_on);
            passed.push(gtid);
        }
    }
}
