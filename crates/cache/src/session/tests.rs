use super::*;
use crate::settings::{Settings, Shared};
use crate::store::Store;
use holdfast_env::arena::SLACK_BYTES;
use holdfast_env::poll::Waker;
use holdfast_env::trial::Trial;
use holdfast_env::{Clock, RealClock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

fn engine_with(settings: Settings) -> Engine {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let store = Store::new(settings.memory_bytes, 1, settings.evicts, 1).unwrap();
    let writer = store.writer(0);
    let shared = Arc::new(Shared::new(settings, clock, Waker::new().unwrap()).unwrap());
    store.set_now(1000);
    Engine { store: Arc::new(store), shared, writer, scratch: Vec::new() }
}

fn engine() -> Engine {
    engine_with(Settings { memory_bytes: 8 << 20, ..Settings::default() })
}

/// Sends `input` in parts of `part` bytes; the answers, and whether the connection lives.
fn talk_in_parts(engine: &mut Engine, input: &[u8], part: usize) -> (Vec<u8>, bool) {
    let (mut session, mut batch, mut out) = (Session::default(), Batch::default(), Out::new());
    let (mut stash, mut answers) = (Vec::new(), Vec::new());
    for chunk in input.chunks(part) {
        stash.extend_from_slice(chunk);
        loop {
            let len = stash.len();
            stash.resize(len + SLACK_BYTES, b'#');
            let (used, wants) = session.consume(engine, &mut batch, (&stash, len), &mut out);
            stash.truncate(len);
            stash.drain(..used);
            answers.extend_from_slice(out.as_slice());
            out.clear();
            match wants {
                Wants::More => break,
                Wants::Drain => {}
                Wants::Close => return (answers, false),
            }
        }
    }
    session.abandon(engine);
    (answers, true)
}

fn talk(engine: &mut Engine, input: &str) -> String {
    let (answers, _) = talk_in_parts(engine, input.as_bytes(), usize::MAX);
    String::from_utf8_lossy(&answers).into_owned()
}

#[test]
fn answers_do_not_depend_on_how_requests_are_cut() {
    let large = "z".repeat(200_000);
    let input = format!(
        "set a 5 0 3\r\nabc\r\nget a b a\r\nget  a \r\nset b 0 0 200000\r\n{large}\r\nget b a\r\n\
         append b 0 0 2\r\n!!\r\nget b\r\ngat 100 a b\r\nmg b s v\r\nms m 2 F7\r\nhi\r\nmg m f v k\r\n\
         set bad 0 0 2\r\nabcd\r\nincr a 1\r\nset n 0 0 1\r\n9\r\nincr n 1\r\nnonsense\r\n\
         delete a\r\nget a\r\nset q 0 0 1 noreply\r\nx\r\nget q\r\n\r\nversion\r\n"
    );
    let whole = talk_in_parts(&mut engine(), input.as_bytes(), usize::MAX);
    assert!(whole.0.ends_with(format!("VERSION {}\r\n", crate::VERSION).as_bytes()));
    // Nor on how much is looked up or sent at once.
    let mut crossed = BTreeSet::new();
    for seed in 0..20 {
        let entered = Trial::drawn(seed).enter();
        for part in [1, 7, 1000, 70_000] {
            let parts = talk_in_parts(&mut engine(), input.as_bytes(), part);
            assert!(parts == whole, "in parts of {part}, seed {seed}");
        }
        let knobs = entered.knobs().into_iter().filter(|(_, knob)| knob.crossed);
        crossed.extend(knobs.map(|(name, _)| name));
    }
    let borders =
        ["cache.get-ahead", "cache.get-batch", "cache.out-bytes-full", "cache.out-bytes-max"];
    assert_eq!(crossed, BTreeSet::from(borders));
}

#[test]
fn a_get_of_any_length_is_answered_in_bounded_memory() {
    let mut engine = engine();
    talk(&mut engine, "set a 0 0 1\r\nx\r\n");
    let input = format!("get {}\r\n", "a ".repeat(1_000_000));
    let (answers, lives) = talk_in_parts(&mut engine, input.as_bytes(), 64 << 10);
    assert!(lives);
    assert_eq!(answers.len(), 1_000_000 * b"VALUE a 0 1\r\nx\r\n".len() + b"END\r\n".len());
    let mut out = Out::new();
    let mut stash = input.into_bytes();
    let len = stash.len();
    stash.resize(len + SLACK_BYTES, 0);
    let mut session = Session::default();
    let (used, wants) =
        session.consume(&mut engine, &mut Batch::default(), (&stash, len), &mut out);
    assert!(wants == Wants::Drain && used < len && out.len() < 2 * OUT_BYTES_FULL.size());
}

#[test]
fn wrong_lines_get_memcached_s_errors() {
    let long = "k".repeat(251);
    let mut engine = engine();
    for (input, answer) in [
        ("get\r\n".to_owned(), "ERROR\r\n"),
        ("get \r\n".to_owned(), "ERROR\r\n"),
        ("\r\n".to_owned(), "ERROR\r\n"),
        (format!("get {long}\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        (format!("get a {long} b\r\nmn\r\n"), "CLIENT_ERROR bad command line format\r\nMN\r\n"),
        ("set a 0 0 -1\r\n".to_owned(), "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0 99999999999\r\n".to_owned(), "CLIENT_ERROR bad command line format\r\n"),
        ("set a 0 0\r\n".to_owned(), "ERROR\r\n"),
        (
            "set a 1234567890123 0 1\r\nmn\r\n".to_owned(),
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        ("set a 4294967295 0 1\r\nx\r\n".to_owned(), "STORED\r\n"),
        ("set  a  0 0 1 \r\nx\r\n".to_owned(), "STORED\r\n"),
        ("set a 0 0 1\r\nxyz\r\n".to_owned(), "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
        (format!("set {long} 0 0 1\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        (
            "delete a b\r\n".to_owned(),
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        ("incr a x\r\n".to_owned(), "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("touch a x\r\n".to_owned(), "CLIENT_ERROR invalid exptime argument\r\n"),
        ("gat x a\r\n".to_owned(), "CLIENT_ERROR invalid exptime argument\r\n"),
        ("shutdown\r\n".to_owned(), "ERROR: shutdown not enabled\r\n"),
        ("mg\r\n".to_owned(), "ERROR\r\n"),
        ("mg a v v\r\n".to_owned(), "CLIENT_ERROR duplicate flag\r\n"),
        ("mg a !\r\n".to_owned(), "CLIENT_ERROR invalid flag\r\n"),
        ("ms a 1 MX\r\nx\r\n".to_owned(), "CLIENT_ERROR invalid mode for ms M token\r\n"),
        ("ma a MX\r\n".to_owned(), "CLIENT_ERROR invalid mode for ma M token\r\n"),
        // Control characters are letters like any other, but for the one that ends C's strings.
        (
            "set a\tb 0 0 1\r\nx\r\nget a\tb\r\n".to_owned(),
            "STORED\r\nVALUE a\tb 0 1\r\nx\r\nEND\r\n",
        ),
        (
            "set a\rb 0 0 1\r\nz\r\nget a\rb\r\n".to_owned(),
            "STORED\r\nVALUE a\rb 0 1\r\nz\r\nEND\r\n",
        ),
        (
            "set \x01\x7f 0 0 1\r\ny\r\nget \x01\x7f\r\n".to_owned(),
            "STORED\r\nVALUE \x01\x7f 0 1\r\ny\r\nEND\r\n",
        ),
        ("set a\0b 0 0 1\r\nx\r\n".to_owned(), "ERROR\r\nERROR\r\n"),
        ("get a\0b\r\n".to_owned(), "END\r\n"),
        (
            "set a 0 0 2147483648\r\nmn\r\n".to_owned(),
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "set a 0 0 2147483646\r\nmn\r\n".to_owned(),
            "CLIENT_ERROR bad command line format\r\nMN\r\n",
        ),
        (
            "set a 0 0 3\r\nabcde\r\nmn\r\n".to_owned(),
            "CLIENT_ERROR bad data chunk\r\nERROR\r\nMN\r\n",
        ),
        ("incr a -1\r\n".to_owned(), "CLIENT_ERROR invalid numeric delta argument\r\n"),
        (
            "incr a 18446744073709551616\r\n".to_owned(),
            "CLIENT_ERROR invalid numeric delta argument\r\n",
        ),
        // The year 2100 is later than what 32 bits count to.
        (
            "set d 0 4102444800 1\r\nx\r\nget d\r\n".to_owned(),
            "STORED\r\nVALUE d 0 1\r\nx\r\nEND\r\n",
        ),
        (
            "set d 0 9223372036854775808 1\r\n".to_owned(),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("set d 0 -99999999999 1\r\nx\r\nget d\r\n".to_owned(), "STORED\r\nEND\r\n"),
    ] {
        assert_eq!(talk(&mut engine, &input), answer, "{input:?}");
    }
}

#[test]
fn too_large_a_value_is_dropped_and_with_it_what_it_would_have_replaced() {
    let mut engine = engine();
    let input = format!(
        "set a 0 0 1\r\nx\r\nset a 0 0 {}\r\n{}\r\nget a\r\n",
        2 << 20,
        "y".repeat(2 << 20)
    );
    let answer = "STORED\r\nSERVER_ERROR object too large for cache\r\nEND\r\n";
    assert_eq!(talk(&mut engine, &input), answer);
}

#[test]
fn a_megabyte_without_a_line_end_ends_the_connection() {
    let (_, lives) = talk_in_parts(&mut engine(), &vec![b'x'; 1 << 20], 4096);
    assert!(!lives);
    // Of a get nothing is kept that cannot be a key: however it is cut, it has one answer.
    let input = format!("get {}\r\nmn\r\n", "y".repeat(1 << 20));
    for part in [300, 4096, usize::MAX] {
        let (answers, lives) = talk_in_parts(&mut engine(), input.as_bytes(), part);
        let answers = String::from_utf8_lossy(&answers).into_owned();
        assert!(lives);
        assert_eq!(answers, "CLIENT_ERROR bad command line format\r\nMN\r\n");
    }
}

/// What a line is must not depend on how it was cut: a line of 5,000 bytes was served if it came at
/// once, and ended the connection if it did not; a router could not foresee which.
#[test]
fn long_lines_end_alike_however_they_are_cut() {
    let spaces = " ".repeat(5000);
    for (input, answer) in [
        (format!("delete{spaces}a\r\n"), "CLIENT_ERROR line too long\r\n"),
        (format!("{spaces}get a\r\n"), "CLIENT_ERROR line too long\r\n"),
        (
            format!("gat 0 a{spaces}a\r\nmn\r\n"),
            "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\nMN\r\n",
        ),
        (
            format!(" get a a{spaces}b\r\nmn\r\n"),
            "VALUE a 0 1\r\nx\r\nVALUE a 0 1\r\nx\r\nEND\r\nMN\r\n",
        ),
    ] {
        for part in [1, 100, 3000, usize::MAX] {
            let mut engine = engine();
            talk(&mut engine, "set a 0 0 1\r\nx\r\n");
            let (answers, _) = talk_in_parts(&mut engine, input.as_bytes(), part);
            assert_eq!(String::from_utf8_lossy(&answers), answer, "{part}: {:?}", &input[..10]);
        }
    }
}

/// `gat` with a time that has passed was a miss, because the item was touched first and read then;
/// memcached gives the value, for the last time. And a miss of `mg` said nothing of the opaque and
/// the key by which a client that sends many tells the answers apart.
#[test]
fn gat_gives_what_it_ends_and_a_miss_says_whose_it_is() {
    let mut engine = engine();
    let large = "z".repeat(100_000);
    talk(&mut engine, &format!("set a 5 0 3\r\nabc\r\nset b 0 0 100000\r\n{large}\r\n"));
    let hit = "VALUE a 5 3\r\nabc\r\nEND\r\nEND\r\n";
    assert_eq!(talk(&mut engine, "gat -1 a\r\nget a\r\n"), hit);
    let hit = format!("VALUE b 0 100000\r\n{large}\r\nEND\r\nEND\r\n");
    assert!(talk(&mut engine, "gat 1 b\r\ngat -1 b\r\nget b\r\n").ends_with(&hit));
    assert_eq!(talk(&mut engine, "mg x v O1 k\r\n"), "EN O1 kx\r\n");
    assert_eq!(talk(&mut engine, "mg eA== b k O5 v s t\r\nmg x k q\r\n"), "EN keA== b O5\r\n");
}

#[test]
fn a_lease_is_won_by_one_and_lost_by_who_comes_late() {
    let mut engine = engine();
    assert_eq!(talk(&mut engine, "mg k N30 v t\r\n"), "VA 0 t30 W\r\n\r\n");
    assert_eq!(talk(&mut engine, "mg k N30 v\r\n"), "VA 0 Z\r\n\r\n");
    let cas = |line: &str| line.split(" c").nth(1).unwrap().trim().to_owned();
    let first = cas(&talk(&mut engine, "ms k 1 c\r\na\r\n"));
    // Invalidated: the next reader is to refresh it, who then stores; an older writer may store,
    // too, but what it stored is stale.
    assert_eq!(talk(&mut engine, "md k I T30\r\n"), "HD\r\n");
    let won = talk(&mut engine, "mg k c v\r\n");
    assert!(won.contains(" X W\r\na\r\n"), "{won}");
    assert_eq!(talk(&mut engine, "mg k v\r\n"), "VA 1 Z X\r\na\r\n");
    assert_eq!(talk(&mut engine, &format!("ms k 1 C{first}\r\nb\r\n")), "EX\r\n");
    assert_eq!(talk(&mut engine, &format!("ms k 1 I C{first}\r\nb\r\n")), "HD\r\n");
    assert_eq!(talk(&mut engine, "mg k v\r\n"), "VA 1 Z X\r\nb\r\n");
    assert_eq!(talk(&mut engine, "ms k 1\r\nc\r\nmg k v\r\n"), "HD\r\nVA 1\r\nc\r\n");
}

/// Another thread that asked between the making of a promise and its mark took the item for a value
/// without bytes, and so did the clients that it told.
#[test]
fn a_promise_is_marked_from_its_first_moment() {
    use crate::engine::{Mode, Storing};
    let mut engine = engine();
    assert!(engine.promise(&Storing::new(b"k", Mode::Add, 0, 2000)).is_some());
    assert_eq!(talk(&mut engine, "mg k N30 v\r\n"), "VA 0 Z\r\n\r\n");
    assert_eq!(engine.promise(&Storing::new(b"k", Mode::Add, 0, 2000)), None);
}

/// An invalidated item had the cas behind its old one, which another thread's next item may have from its
/// place: a token of before was then good for an item of after, and an old row was filled for good.
#[test]
fn tokens_of_before_are_never_good_again_whichever_thread_writes() {
    let store = Arc::new(Store::new(8 << 20, 2, true, 1).unwrap());
    store.set_now(1000);
    let mut engines = [0, 1].map(|thread| {
        let settings = Settings { memory_bytes: 8 << 20, ..Settings::default() };
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let shared = Arc::new(Shared::new(settings, clock, Waker::new().unwrap()).unwrap());
        let writer = store.writer(thread);
        Engine { store: store.clone(), shared, writer, scratch: Vec::new() }
    });
    let ask = |engine: &mut Engine| {
        let answer = talk(engine, "mg k c v N30\r\n");
        let words: Vec<&str> = answer.lines().next().unwrap().split(' ').collect();
        assert!(words.contains(&"W"), "{answer}");
        words.iter().find_map(|word| word.strip_prefix('c')).unwrap().to_owned()
    };
    let mut tokens = BTreeSet::new();
    for _ in 0..20 {
        assert!(tokens.insert(ask(&mut engines[0])), "each token is given once");
        for _ in 0..8 {
            talk(&mut engines[1], "md k I T30\r\n");
            assert!(tokens.insert(ask(&mut engines[1])), "each token is given once");
        }
        talk(&mut engines[1], "md k\r\n");
    }
}

#[test]
fn times_to_live_end_and_a_delayed_flush_comes() {
    let mut engine = engine();
    let input = "set a 0 10 1\r\nx\r\nset b 0 -1 1\r\ny\r\nset c 0 0 1\r\nz\r\nget a b c\r\n";
    let answer = "STORED\r\nSTORED\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nVALUE c 0 1\r\nz\r\nEND\r\n";
    assert_eq!(talk(&mut engine, input), answer);
    assert_eq!(talk(&mut engine, "touch c 5\r\nmg c t\r\n"), "TOUCHED\r\nHD t5\r\n");
    engine.store.set_now(1005);
    assert_eq!(talk(&mut engine, "get a c\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n");
    engine.store.set_now(1010);
    assert_eq!(talk(&mut engine, "get a\r\nadd a 0 0 1\r\nw\r\n"), "END\r\nSTORED\r\n");
    assert_eq!(talk(&mut engine, "flush_all 10\r\nget a\r\n"), "OK\r\nVALUE a 0 1\r\nw\r\nEND\r\n");
    assert_eq!(engine.shared.flush_at.load(std::sync::atomic::Ordering::Relaxed), 1020);
}

#[test]
fn nothing_is_served_before_the_log_in() {
    let users = Some(vec!["me:secret".to_owned()]);
    let settings = Settings { memory_bytes: 8 << 20, users, ..Settings::default() };
    let mut engine = engine_with(settings);
    let no = "CLIENT_ERROR unauthenticated\r\n";
    assert_eq!(talk(&mut engine, "get a\r\nmg a v\r\nstats\r\n"), no.repeat(3));
    let wrong = "set x 0 0 8\r\nme wrong\r\nget a\r\n";
    let answer = format!("CLIENT_ERROR authentication failure\r\n{no}");
    assert_eq!(talk(&mut engine, wrong), answer);
    assert_eq!(talk(&mut engine, "set x 0 0 9\r\nme secret\r\nget a\r\n"), "STORED\r\nEND\r\n");
}

/// Whatever comes in, nothing panics, memory stays bounded, and the connection answers after it
/// or ends.
#[test]
fn noise_is_survived() {
    let words: &[&[u8]] = &[
        b"get ",
        b"gets ",
        b"gat 5 ",
        b"set ",
        b"add ",
        b"cas ",
        b"ms ",
        b"mg ",
        b"md ",
        b"ma ",
        b"me ",
        b"a ",
        b"b ",
        b"0 ",
        b"1 ",
        b"-1 ",
        b"99999999999999999999 ",
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b"noreply",
        b"v ",
        b"N30 ",
        b"I ",
        b"b ",
        b"Zm9v ",
        b"q ",
        b"k ",
        b"c ",
        b"MA ",
        b"  ",
        b"x",
        b"delete ",
        b"incr ",
        b"touch ",
        b"flush_all ",
        b"stats ",
        b"300 ",
        b"70000 ",
        b"\xff",
    ];
    let mut engine = engine();
    let mut state = 7u64;
    for round in 0..400 {
        let mut input = Vec::new();
        for _ in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            input.extend_from_slice(words[(state >> 33) as usize % words.len()]);
        }
        let (_, _) = talk_in_parts(&mut engine, &input, 1 + round % 97);
        let answer = talk(&mut engine, "set probe 0 0 2\r\nok\r\nget probe\r\n");
        assert_eq!(answer, "STORED\r\nVALUE probe 0 2\r\nok\r\nEND\r\n");
    }
}

/// Plain commands against a map: whatever is pipelined with what, and however it is cut, the
/// answers are a map's. The short ways that plain gets and sets take are part of this.
#[test]
fn commands_do_what_a_map_does() {
    for seed in 1..=8u64 {
        let (mut engine, mut map) = (engine(), HashMap::<String, (u64, String)>::new());
        let mut state = seed;
        let mut dice = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut input, mut expected) = (String::new(), String::new());
        for _ in 0..3000 {
            let key = format!("k{}", dice(12));
            let value = "v".repeat(dice(200) as usize);
            let (flags, quiet) = (dice(3), dice(4) == 0);
            let noreply = if quiet { " noreply" } else { "" };
            let old = map.get(&key).cloned();
            let known = map.clone();
            let mut stores = |name: &str, stored: bool, with: String, flags: u64| {
                let line =
                    format!("{name} {key} {flags} 0 {}{noreply}\r\n{value}\r\n", value.len());
                if stored {
                    map.insert(key.clone(), (flags, with));
                }
                let answer = if stored { "STORED\r\n" } else { "NOT_STORED\r\n" };
                (line, if quiet { "" } else { answer })
            };
            let mut removed = false;
            let (line, answer) = match (dice(10), old) {
                (0..3, _) => stores("set", true, value.clone(), flags),
                (3, old) => stores("add", old.is_none(), value.clone(), flags),
                (4, old) => stores("replace", old.is_some(), value.clone(), flags),
                (5, Some((f, old))) => stores("append", true, old + &value, f),
                (5, None) => stores("append", false, String::new(), 0),
                (6, old) => {
                    removed = true;
                    let answer = if old.is_some() { "DELETED\r\n" } else { "NOT_FOUND\r\n" };
                    let line = format!("delete {key}{noreply}\r\n");
                    (line, if quiet { "" } else { answer })
                }
                _ => {
                    let keys: Vec<String> =
                        (0..1 + dice(3)).map(|_| format!("k{}", dice(12))).collect();
                    for key in &keys {
                        if let Some((flags, value)) = known.get(key) {
                            let line =
                                format!("VALUE {key} {flags} {}\r\n{value}\r\n", value.len());
                            expected.push_str(&line);
                        }
                    }
                    (format!("get {}\r\n", keys.join(" ")), "END\r\n")
                }
            };
            if removed {
                map.remove(&key);
            }
            input.push_str(&line);
            expected.push_str(answer);
        }
        let part = [usize::MAX, 1, 17, 3000][seed as usize % 4];
        let (answers, lives) = talk_in_parts(&mut engine, input.as_bytes(), part);
        assert!(lives && answers == expected.as_bytes(), "seed {seed}, in parts of {part}");
    }
}
