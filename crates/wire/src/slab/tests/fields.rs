//! Fields that are left of values, beside a reader of JSON that reads all of them.

use super::*;
use holdfast_base::Kind;
use serde_json::Value;

fn leave(slab: &Slab, names: &[String]) -> Slab {
    slab.with_fields(&Fields::new(names).unwrap(), |_, make| make())
}

fn received_in_order(slab: &Slab) -> Vec<Got> {
    in_order(received(slab))
}

/// Values of a few fields, some of them no objects and no JSON.
fn json_values() -> impl Strategy<Value = Option<Vec<u8>>> {
    let names = || prop::sample::select(vec!["a", "b", "c", "a b", "\u{e9}\""]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,9}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 12, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names().prop_map(String::from), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    let written = (value, any::<bool>()).prop_map(|(value, pretty)| match pretty {
        true => serde_json::to_vec_pretty(&value).unwrap(),
        false => serde_json::to_vec(&value).unwrap(),
    });
    let torn = (written.clone(), 0..40usize).prop_map(|(mut bytes, at)| {
        bytes.truncate(at);
        bytes
    });
    prop::option::weighted(0.8, prop_oneof![6 => written, 1 => torn])
}

proptest! {
    #![proptest_config(cases())]

    /// Whatever is selected, the fields of what is sent are what a reader of whole values finds.
    #[test]
    fn what_is_left_is_what_a_reader_of_the_whole_finds(
        rows in rows(),
        written in prop::collection::vec(json_values(), 1..40),
        names in prop::collection::vec(prop::sample::select(vec!["a", "c", "\u{e9}\"", "x"]), 1..4),
        wanted in wanteds(),
        limit in limits(),
    ) {
        let _entered = Trial::new().with(&SLAB_BYTES, limit).enter();
        let wanted = Wanted { keys_only: false, ..wanted };
        let mut rows = rows;
        for (row, value) in rows.iter_mut().zip(written.iter().cycle()) {
            row.value = value.clone();
        }
        let names: Vec<String> = names.into_iter().map(String::from).collect();
        let mut got = Vec::new();
        for (_, slab) in build(&rows, &Needs::of(&wanted), false) {
            got.extend(received(&leave(&select(&slab, &wanted), &names)));
        }
        let got = in_order(got);
        let expected = model(&rows, &wanted);
        prop_assert_eq!(got.len(), expected.len());
        for (got, whole) in got.iter().zip(&expected) {
            prop_assert_eq!((got.0, got.1, &got.2, got.3, got.4), (whole.0, whole.1, &whole.2, whole.3, whole.4));
            let Some(Some(value)) = &whole.5 else {
                prop_assert_eq!(&got.5, &whole.5);
                continue;
            };
            let Some(Some(left)) = &got.5 else { panic!("a value was not sent") };
            prop_assert!(left.len() <= value.len().max(2));
            let left: Value = serde_json::from_slice(left).unwrap();
            let all: Value = serde_json::from_slice(value).unwrap_or_default();
            let all = all.as_object().cloned().unwrap_or_default();
            let chosen = all.into_iter().filter(|(name, _)| names.contains(name));
            prop_assert_eq!(left, Value::Object(chosen.collect()));
        }
    }
}

#[test]
fn fields_are_left_as_they_were_written() {
    let names = ["b", "a\"\u{e9}", "b", "nested"].map(String::from);
    let cases: [(&[u8], &str); 16] = [
        (br#"{"a":1,"b":2}"#, r#"{"b":2}"#),
        (br#"{}"#, "{}"),
        (b"", "{}"),
        (br#"[{"b":1}]"#, "{}"),
        (br#""b""#, "{}"),
        (br#"{"b":1"#, "{}"),
        (br#"{"b":1} x"#, "{}"),
        (b"{\"b\":\"\xff\"}", "{}"),
        (br#" { "b" : 1.50e+07 , "c":null } "#, r#"{"b":1.50e+07}"#),
        (
            br#"{"b":123456789012345678901234567890.10}"#,
            r#"{"b":123456789012345678901234567890.10}"#,
        ),
        (br#"{"b":-0.0,"b":null}"#, r#"{"b":null}"#),
        (
            br#"{"nested":{"b": [1, 2,{}]},"b":"\u00e9\n"}"#,
            r#"{"b":"\u00e9\n","nested":{"b": [1, 2,{}]}}"#,
        ),
        ("{\"a\\\"\u{e9}\":true}".as_bytes(), "{\"a\\\"\u{e9}\":true}"),
        (br#"{"a\"\u00e9":false}"#, "{\"a\\\"\u{e9}\":false}"),
        (br#"{"\u0062":"escaped"}"#, r#"{"b":"escaped"}"#),
        (br#"{"B":1,"":2,"bb":3}"#, "{}"),
    ];
    let mut rows: Vec<Row> = Vec::new();
    for (at, (value, _)) in cases.iter().enumerate() {
        let key = vec![at as u8 + 1];
        let row = |index, value| Row { hash: 5, collection: 1, key: key.clone(), index, value };
        // An older version, a deletion and the newest: all of them are changed alike.
        rows.extend([row(1, Some(value.to_vec())), row(2, None), row(3, Some(value.to_vec()))]);
    }
    let slabs = build(&rows, &Needs::all(), false);
    let [(0, slab)] = &slabs[..] else { panic!("{slabs:?}") };
    let made = leave(slab, &names);
    let expected: Vec<Row> = rows
        .iter()
        .map(|row| {
            let left = cases[usize::from(row.key[0]) - 1].1;
            let value = row.value.as_ref().map(|_| left.as_bytes().to_vec());
            Row { value, ..row.clone() }
        })
        .collect();
    assert_eq!(received_in_order(&made), model(&expected, &Wanted::all()));
    // Keys are those of the slab, and what is left of a selection is a selection.
    let shared = made
        .columns()
        .iter()
        .map(|column| slab.columns.iter().any(|whole| Arc::ptr_eq(&whole.bytes, &column.bytes)));
    assert_eq!(shared.collect::<Vec<_>>(), [true, false, true, false]);
    let newest = Wanted { versions: false, indices: 3..4, ..Wanted::all() };
    let selected = leave(&select(slab, &newest), &names);
    assert_eq!(received_in_order(&selected), model(&expected, &newest));
    assert_eq!(Fields::new(&[]).unwrap_err().kind, Kind::Invalid);
    assert_eq!(Fields::new(&["x".repeat(FIELD_BYTES_MAX + 1)]).unwrap_err().kind, Kind::Invalid);
    let many: Vec<String> = (0..=FIELDS_MAX).map(|n| n.to_string()).collect();
    assert_eq!(Fields::new(&many).unwrap_err().kind, Kind::Invalid);
    assert!(Fields::new(&many[1..]).is_ok());
}
