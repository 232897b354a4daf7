use super::*;

fn slice(key: &str, separator: Option<u8>, line: &str) -> String {
    let key = Key::parse(key).unwrap();
    String::from_utf8(key.slice(line.as_bytes(), separator).to_vec()).unwrap()
}

#[test]
fn keys_are_the_bytes_that_gnu_sort_takes() {
    let line = "  one two\tthree four";
    assert_eq!(slice("1", None, line), line);
    assert_eq!(slice("2", None, line), " two\tthree four");
    assert_eq!(slice("1,1", None, line), "  one");
    assert_eq!(slice("2,3", None, line), " two\tthree");
    assert_eq!(slice("2b,2", None, line), "two");
    assert_eq!(slice("2.3,3.1", None, line), "wo\t");
    assert_eq!(slice("2.2b,3.2b", None, line), "wo\tth");
    assert_eq!(slice("9", None, line), "");
    assert_eq!(slice("3,2", None, line), "");
    assert_eq!(slice("2,2", Some(b':'), "a:bb:c"), "bb");
    assert_eq!(slice("2,3.1", Some(b':'), "a:bb:c"), "bb:c");
    assert_eq!(slice("2", Some(b':'), "a"), "");
    assert_eq!(slice("1.2,1", Some(b':'), "abc::"), "bc");
}

#[test]
fn bad_keys_are_refused_with_what_is_wrong() {
    for (key, word) in [
        ("0", "from 1"),
        ("1.0", "from 1"),
        ("1,0", "from 1"),
        ("", "number"),
        ("x", "number"),
        ("1.,2", "number"),
        ("1z", "no option"),
        ("1V", "version"),
        ("1R", "random"),
        ("1nd", "do not go"),
        ("1nM", "one of"),
        ("1gd", "do not go"),
    ] {
        let e = Key::parse(key).unwrap_err();
        assert!(e.message.contains(word) && e.message.contains("read key"), "{key}: {e}");
    }
    let huge = Key::parse("99999999999999999999.99999999999999999999").unwrap();
    assert_eq!(huge.slice(b"a b", None), b"");
}
