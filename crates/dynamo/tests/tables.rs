//! The node's tables as a store, beside one in memory that is plainly right: tables made, changed, deleted
//! and made anew, rows of few keys, and sweeps at any time. Whatever anybody is told is the same.

#[path = "support/memory.rs"]
mod memory;
#[path = "support/node.rs"]
mod node;

use holdfast_base::random::Random;
use holdfast_dynamo::decimal::Decimal;
use holdfast_dynamo::form;
use holdfast_dynamo::index::{self, Index, Projection};
use holdfast_dynamo::rows::{
    Expect, GroupDo, GroupWrite, GroupWritten, Place, Rows, Span, Versioned, Written,
};
use holdfast_dynamo::table::{GLOBAL_FROM, KeyAttribute, Table};
use holdfast_dynamo::tables::{TABLE, Tables};
use holdfast_dynamo::token::Token;
use holdfast_dynamo::value::{Item, Value};
use holdfast_env::{SeededRng, runtime};
use holdfast_wire::table::Scan;
use memory::Memory;
use node::World;
use std::sync::Arc;

const NAMES: [&str; 3] = ["a", "ab", "b"];

/// The same question to both.
struct Both {
    own: Arc<Tables>,
    plain: Memory,
}

/// Versions are each store's own.
fn bytes(found: Option<&Versioned>) -> Option<Vec<u8>> {
    found.map(|found| found.bytes.clone())
}

impl Both {
    async fn read(&self, table: &str, key: &[u8], consistent: bool) -> Option<(Expect, Expect)> {
        let own = self.own.read(table, key, consistent).await;
        let plain = self.plain.read(table, key, consistent).await;
        match (&own, &plain) {
            (Ok(own), Ok(plain)) => {
                assert_eq!(bytes(own.as_ref()), bytes(plain.as_ref()), "{table} {key:?}");
                let expect = |found: &Option<Versioned>| {
                    found.as_ref().map_or(Expect::Absent, |found| Expect::Version(found.version))
                };
                Some((expect(own), expect(plain)))
            }
            (Err(own), Err(plain)) => {
                assert_eq!(own.kind, plain.kind);
                None
            }
            _ => panic!("{own:?}, {plain:?}"),
        }
    }

    async fn write(
        &self,
        table: &str,
        key: &[u8],
        bytes: Option<Vec<u8>>,
        expect: (Expect, Expect),
    ) {
        let own = self.own.write(table, key, bytes.clone(), expect.0).await;
        let plain = self.plain.write(table, key, bytes, expect.1).await;
        match (&own, &plain) {
            (Ok(own), Ok(plain)) => assert_eq!(own, plain, "{table} {key:?} {expect:?}"),
            (Err(own), Err(plain)) => assert_eq!(own.kind, plain.kind),
            _ => panic!("{own:?}, {plain:?}"),
        }
    }

    /// Rows that are read together, and then written together, as they were found or not.
    async fn group(&self, random: &mut Random, step: u64) {
        let mut keys: Vec<(String, Vec<u8>)> = Vec::new();
        for _ in 0..=random.below(3) {
            let key = (NAMES[random.below(3) as usize].to_owned(), vec![random.below(4) as u8]);
            // As every operation does.
            let _ = self.own.table(&key.0, false).await.unwrap();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let (own, plain) = (self.own.read_group(&keys).await, self.plain.read_group(&keys).await);
        let (own, plain) = match (own, plain) {
            (Ok(own), Ok(plain)) => (own, plain),
            (Err(own), Err(plain)) => return assert_eq!(own.kind, plain.kind),
            (own, plain) => panic!("{own:?}, {plain:?}"),
        };
        let contents = |found: &[Option<Versioned>]| -> Vec<Option<Vec<u8>>> {
            found.iter().map(|found| bytes(found.as_ref())).collect()
        };
        assert_eq!(contents(&own), contents(&plain), "{keys:?}");
        let (mut of_own, mut of_plain) = (Vec::new(), Vec::new());
        for (at, (table, key)) in keys.into_iter().enumerate() {
            let what = match random.below(5) {
                0 => GroupDo::Delete,
                1 => GroupDo::Check,
                2 => GroupDo::Remove,
                _ => GroupDo::Put(step.to_le_bytes().to_vec()),
            };
            let (is_any, is_stale) = (random.below(4) == 0, random.below(6) == 0);
            let is_any = what == GroupDo::Remove || is_any && what != GroupDo::Check;
            for (writes, found) in [(&mut of_own, &own[at]), (&mut of_plain, &plain[at])] {
                let expect = match found {
                    _ if is_any => Expect::Any,
                    Some(found) => Expect::Version(found.version + u64::from(is_stale)),
                    None if is_stale => Expect::Version(1),
                    None => Expect::Absent,
                };
                let place = Place::Row(table.clone(), key.clone());
                writes.push(GroupWrite { place, expect, what: what.clone() });
            }
        }
        // As the table is described, or was before.
        let name = of_own.first().map(|write| write.place.clone());
        if let Some(Place::Row(name, _)) = name.filter(|_| random.below(2) == 0) {
            let stale = u64::from(random.below(4) == 0);
            let own = self.own.table(&name, false).await.unwrap().unwrap().version;
            let plain = self.plain.table(&name, false).await.unwrap().unwrap().version;
            for (writes, version) in [(&mut of_own, own), (&mut of_plain, plain)] {
                let (place, what) = (Place::Table(name.clone()), GroupDo::Check);
                let expect = Expect::Version(version - stale);
                writes.insert(0, GroupWrite { place, expect, what });
            }
        }
        let token = format!("t{}", random.below(3));
        for writes in [&mut of_own, &mut of_plain] {
            let place = Place::Token(token.clone());
            let what = GroupDo::Put(Token::new(step, "[]").bytes());
            writes.push(GroupWrite { place, expect: Expect::Any, what });
        }
        let own = self.own.write_group(of_own.clone()).await.unwrap();
        assert_eq!(own, self.plain.write_group(of_plain).await.unwrap(), "{of_own:?}");
        let (own, plain) = (self.own.token(&token).await, self.plain.token(&token).await);
        assert_eq!(bytes(own.unwrap().as_ref()), bytes(plain.unwrap().as_ref()));
    }

    async fn all(&self, table: &str, span: &Span) {
        let (mut own, mut plain) = (Vec::new(), Vec::new());
        for (rows, found) in [(&*self.own as &dyn Rows, &mut own), (&self.plain, &mut plain)] {
            let mut span = span.clone();
            loop {
                let Ok(page) = rows.scan(table, &span, true).await else { return };
                assert!(page.len() <= span.rows_max);
                let Some((last, _)) = page.last() else { break };
                match span.backwards {
                    true => span.to = Some(last.clone()),
                    false => span.from = [&last[..], &[0]].concat(),
                }
                found.extend(page);
            }
        }
        assert_eq!(own, plain, "{table} {span:?}");
    }

    async fn tables(&self, limit: usize) {
        for after in ["", "a", "ab", "c"] {
            let own = self.own.table_names(after, limit).await.unwrap();
            assert_eq!(own, self.plain.table_names(after, limit).await.unwrap());
        }
        for name in NAMES {
            let own = self.own.table(name, false).await.unwrap();
            let plain = self.plain.table(name, false).await.unwrap();
            assert_eq!(bytes(own.as_ref()), bytes(plain.as_ref()), "{name}");
        }
    }

    async fn set_table(&self, name: &str, description: Option<Vec<u8>>, is_stale: bool) {
        let (own, plain) = (
            self.own.table(name, false).await.unwrap(),
            self.plain.table(name, false).await.unwrap(),
        );
        let expect = |found: Option<Versioned>| match found {
            Some(found) => Expect::Version(found.version + u64::from(is_stale)),
            None if is_stale => Expect::Version(1),
            None => Expect::Absent,
        };
        let own = self.own.set_table(name, description.clone(), expect(own)).await.unwrap();
        let plain = self.plain.set_table(name, description, expect(plain)).await.unwrap();
        assert_eq!(own, plain, "{name}");
        assert_eq!(own == Written::Mismatch, is_stale);
    }
}

/// A table's description, another one for each number.
fn described(number: u64, ttl: Option<&str>) -> Vec<u8> {
    let table = Table {
        name: "t".into(),
        id: number.to_string(),
        created_ms: number,
        partition: KeyAttribute { name: "p".into(), kind: "S".into() },
        sort: None,
        throughput: None,
        ttl: ttl.map(str::to_owned),
        indexes: Vec::new(),
        next_index: GLOBAL_FROM,
    };
    table.to_bytes()
}

async fn steps(both: &Both, random: &mut Random) {
    let key = |random: &mut Random| vec![random.below(4) as u8 * 85; random.below(3) as usize];
    for step in 0..600u64 {
        let name = NAMES[random.below(3) as usize];
        match random.below(20) {
            0 => both.set_table(name, Some(described(step, None)), random.below(4) == 0).await,
            1 => both.set_table(name, None, random.below(4) == 0).await,
            2 => both.own.sweep(0).await.unwrap(),
            3 => both.tables(1 + random.below(4) as usize).await,
            4..=6 => {
                let span = Span {
                    index: None,
                    from: key(random),
                    to: (random.below(2) == 0).then(|| key(random)),
                    backwards: random.below(2) == 0,
                    rows_max: 1 + random.below(3) as usize,
                    bytes_max: 1 + random.below(20) as usize,
                };
                both.all(name, &span).await;
            }
            7 | 8 => both.group(random, step).await,
            seven @ 9.. => {
                let (key, consistent) = (key(random), seven % 2 == 0);
                // As every operation does.
                let _ = both.own.table(name, false).await.unwrap();
                let Some(expect) = both.read(name, &key, consistent).await else { continue };
                let expect = match random.below(4) {
                    0 => (Expect::Any, Expect::Any),
                    1 => (Expect::Absent, Expect::Absent),
                    _ => expect,
                };
                let value = (random.below(3) > 0).then(|| step.to_le_bytes().to_vec());
                both.write(name, &key, value, expect).await;
            }
        }
    }
}

#[test]
fn whatever_is_asked_a_nodes_tables_answer_as_plain_ones() {
    for seed in 1..=3 {
        let world = World::new();
        let own = Tables::new(world.face.clone(), Arc::new(SeededRng::new(seed)));
        let both = Both { own, plain: Memory::default() };
        runtime::block_on(async {
            steps(&both, &mut Random::new(seed)).await;
            for name in NAMES {
                let live = both.own.table(name, false).await.unwrap().is_some();
                if live {
                    both.set_table(name, None, false).await;
                }
            }
            // What is gone goes in a few sweeps, names' rows with it, and old tokens.
            for _ in 0..4 {
                both.own.sweep(1_800_000_000).await.unwrap();
            }
            let scan = Scan {
                table: TABLE.into(),
                from: Vec::new(),
                until: None,
                backwards: false,
                rows_max: 10,
            };
            let left = runtime::answer(|done| world.face.ask_scan(scan, done)).await.unwrap();
            assert_eq!(left.unwrap().found, []);
        })
        .unwrap();
    }
}

/// An item goes with its rows in an index, whether its time is over or its table is gone.
#[test]
fn what_goes_by_itself_goes_from_indexes_too() {
    let world = World::new();
    let own = Tables::new(world.face.clone(), Arc::new(SeededRng::new(1)));
    let key = |name: &str, kind: &str| KeyAttribute { name: name.into(), kind: kind.into() };
    let by = Index {
        name: "by".into(),
        number: 0,
        partition: key("p", "S"),
        sort: Some(key("a", "N")),
        projection: Projection::KeysOnly,
        global: None,
    };
    let table = Table {
        name: "t".into(),
        id: "1".into(),
        created_ms: 1,
        partition: key("p", "S"),
        sort: Some(key("s", "N")),
        throughput: None,
        ttl: Some("t".into()),
        indexes: vec![by],
        next_index: GLOBAL_FROM,
    };
    let now_s = 1_800_000_000;
    let item = |number: u64| -> Item {
        let n = |number: u64| Value::N(Decimal::parse(&number.to_string()).unwrap());
        let attributes = [
            ("p", Value::S("x".into())),
            ("s", n(number)),
            ("a", n(number % 7)),
            ("t", n(now_s - 1 + number % 3)),
        ];
        attributes.map(|(name, value)| (name.to_owned(), value)).into()
    };
    let rows = async |index| {
        let (from, to) = (Vec::new(), None);
        let span = Span { index, from, to, backwards: false, rows_max: 1000, bytes_max: 1 << 20 };
        own.scan("t", &span, true).await.unwrap().len()
    };
    runtime::block_on(async {
        own.set_table("t", Some(table.to_bytes()), Expect::Absent).await.unwrap();
        own.table("t", false).await.unwrap();
        assert!(own.is_one().await.unwrap());
        for number in 0..30 {
            let item = item(number);
            let key = table.key_of_item(&item).unwrap();
            let what = GroupDo::Put(form::to_bytes(&item));
            let place = Place::Row("t".into(), key);
            let mut writes = vec![GroupWrite { place, expect: Expect::Absent, what }];
            writes.extend(index::writes(&table, None, Some(&item)));
            assert_eq!(own.write_group(writes).await.unwrap(), GroupWritten::Done);
        }
        assert_eq!((rows(None).await, rows(Some(0)).await), (30, 30));
        own.sweep(now_s).await.unwrap();
        assert_eq!((rows(None).await, rows(Some(0)).await), (20, 20));
        own.set_table("t", None, Expect::Any).await.unwrap();
        for _ in 0..3 {
            own.sweep(now_s).await.unwrap();
        }
        let (table, from, until) = (TABLE.into(), Vec::new(), None);
        let scan = Scan { table, from, until, backwards: false, rows_max: 10 };
        let left = runtime::answer(|done| world.face.ask_scan(scan, done)).await.unwrap();
        assert_eq!(left.unwrap().found, []);
    })
    .unwrap();
}

/// More items than one look sees: those whose time is over go, whatever lies between them, and no others.
#[test]
fn items_whose_time_is_over_go_and_others_stay() {
    let world = World::new();
    let own = Tables::new(world.face.clone(), Arc::new(SeededRng::new(1)));
    let item = |time: Option<u64>| {
        let time = time.map(|time| Value::N(Decimal::parse(&time.to_string()).unwrap()));
        form::to_bytes(&time.into_iter().map(|time| ("t".to_owned(), time)).collect())
    };
    runtime::block_on(async {
        own.set_table("t", Some(described(1, Some("t"))), Expect::Absent).await.unwrap();
        own.set_table("kept", Some(described(1, None)), Expect::Absent).await.unwrap();
        own.table("t", false).await.unwrap();
        let now_s = 1_800_000_000;
        for number in 0..1200u64 {
            let time = [None, Some(now_s - 1 - number), Some(now_s + number)][number as usize % 3];
            own.write("t", &number.to_be_bytes(), Some(item(time)), Expect::Any).await.unwrap();
        }
        own.write("kept", b"k", Some(item(Some(now_s - 1))), Expect::Any).await.unwrap();
        // One look sees a thousand of them.
        for _ in 0..2 {
            own.sweep(now_s).await.unwrap();
        }
        for number in 0..1200u64 {
            let there = own.read("t", &number.to_be_bytes(), false).await.unwrap().is_some();
            assert_eq!(there, number % 3 != 1, "{number}");
        }
        assert!(own.read("kept", b"k", false).await.unwrap().is_some());
        // Time goes on, and the look begins again.
        for _ in 0..2 {
            own.sweep(now_s + 3000).await.unwrap();
        }
        let gone = own.read("t", &2u64.to_be_bytes(), false).await.unwrap();
        assert_eq!(gone, None);
    })
    .unwrap();
}
