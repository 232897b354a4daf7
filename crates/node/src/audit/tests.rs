//! The lines that are written, and how much of what comes to nothing.

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
    let done = read(line(1_772_368_496_007, 3, &deed("/a\n\"b"), None, Missing::default()));
    assert_eq!(
        done,
        json!({
            "at": "2026-03-01T12:34:56.007Z", "node": 3, "who": "token x 1f",
            "address": "10.0.0.1:5", "request": "1-2", "operation": "fs rm", "what": "/a\n\"b",
            "outcome": "done",
        })
    );
    let refused =
        read(line(0, 3, &deed("/a"), Some(&Error::denied("no")), Missing { left_out: 7, lost: 2 }));
    assert_eq!((&refused["outcome"], &refused["why"]), (&json!("denied"), &json!("no")));
    assert_eq!((&refused["left_out"], &refused["lost"]), (&json!(7), &json!(2)));
}

/// A path may have 4 KiB, and characters of several bytes.
#[test]
fn what_is_too_long_is_cut_between_two_characters() {
    for long in ["a".repeat(TEXT_BYTES_MAX + 1), "é".repeat(TEXT_BYTES_MAX), "€".repeat(3000)] {
        let text = line(0, 1, &deed(&long), None, Missing::default());
        let value: Value = serde_json::from_str(&text).unwrap();
        let what = value["what"].as_str().unwrap();
        assert!(long.starts_with(what) && what.len() <= TEXT_BYTES_MAX, "{}", what.len());
        assert!(what.len() > TEXT_BYTES_MAX - 4);
    }
    assert_eq!(cut(&"a".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
}

/// A thousand control characters of a path were six thousand bytes of a line, which anybody could have
/// written until nothing else was left.
#[test]
fn a_text_takes_its_limit_as_it_is_written() {
    for text in ["\u{1}".repeat(5000), "\"".repeat(5000), "a\n\\é\u{1f}".repeat(2000)] {
        let written = serde_json::to_string(cut(&text)).unwrap().len() - 2;
        // A line feed has a short form.
        assert!((TEXT_BYTES_MAX / 2..=TEXT_BYTES_MAX).contains(&written), "{written}");
    }
}

/// A client that asked in vain without end would have pushed out what others did.
#[test]
fn failures_of_a_second_have_a_limit_and_those_beyond_it_are_counted() {
    let mut failures = Failures::default();
    let admitted = (0..1000).filter(|_| failures.admit(10, "noisy")).count();
    assert_eq!(admitted, FAILURES_PER_SECOND as usize);
    assert_eq!(failures.left_out, 1000 - u64::from(FAILURES_PER_SECOND));
    // It hides nobody else, and many together have a limit, too.
    assert!(failures.admit(10, "quiet"));
    let others = (0..1000).filter(|i| failures.admit(10, &format!("other {i}"))).count();
    assert_eq!(others as u32, ALL_FAILURES_PER_SECOND - FAILURES_PER_SECOND - 1);
    // The calendar may be set back; a second is a second.
    for second in [11, 9, 10] {
        assert!(failures.admit(second, "noisy"));
    }
}
