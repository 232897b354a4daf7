//! The lines that are written, and how many of a client's refusals are.

use super::*;
use serde_json::Value;

fn deed(what: &str) -> Deed {
    Deed {
        who: "token x 1f".to_owned(),
        address: "10.0.0.1:5".to_owned(),
        request: "1-2".to_owned(),
        operation: "fs rm".to_owned(),
        what: what.to_owned(),
    }
}

#[test]
fn a_line_says_when_who_what_and_what_came_of_it() {
    let read = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    let done = read(line(1_772_368_496_007, 3, &deed("/a\n\"b"), None, 0));
    assert_eq!(
        done,
        json!({
            "at": "2026-03-01T12:34:56.007Z", "node": 3, "who": "token x 1f",
            "address": "10.0.0.1:5", "request": "1-2", "operation": "fs rm", "what": "/a\n\"b",
            "outcome": "done",
        })
    );
    let refused = read(line(0, 3, &deed("/a"), Some(&Error::denied("no")), 7));
    assert_eq!((&refused["outcome"], &refused["why"]), (&json!("denied"), &json!("no")));
    assert_eq!(refused["refusals_left_out"], json!(7));
}

/// A path may have 4 KiB, and characters of several bytes.
#[test]
fn what_is_too_long_is_cut_between_two_characters() {
    for long in ["a".repeat(TEXT_BYTES_MAX + 1), "é".repeat(TEXT_BYTES_MAX), "€".repeat(3000)] {
        let text = line(0, 1, &deed(&long), None, 0);
        let value: Value = serde_json::from_str(&text).unwrap();
        let what = value["what"].as_str().unwrap();
        assert!(long.starts_with(what) && what.len() <= TEXT_BYTES_MAX, "{}", what.len());
        assert!(what.len() > TEXT_BYTES_MAX - 4);
    }
    assert_eq!(cut(&"a".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
}

/// A client that was refused without end would have pushed out what others did.
#[test]
fn refusals_of_a_second_have_a_limit_and_those_beyond_it_are_counted() {
    let mut refusals = Refusals::default();
    let admitted = (0..1000).filter(|_| refusals.admit(10)).count();
    assert_eq!(admitted, REFUSALS_PER_SECOND as usize);
    assert_eq!(refusals.left_out, 1000 - u64::from(REFUSALS_PER_SECOND));
    // The calendar may be set back; a second is a second.
    for second in [11, 9, 10] {
        assert!(refusals.admit(second));
    }
}
