use super::*;
use crate::json::{put_item, to_item};
use condition::Condition;
use serde_json::{Value as Json, json};

fn item(json: Json) -> Item {
    to_item(&json).unwrap().checked().unwrap()
}

fn sample() -> Item {
    item(json!({
        "s": {"S": "hello"}, "n": {"N": "5"}, "b": {"B": "AAEC"}, "t": {"BOOL": true},
        "z": {"NULL": true}, "ss": {"SS": ["a", "b"]}, "ns": {"NS": ["1", "2"]},
        "l": {"L": [{"N": "1"}, {"S": "x"}, {"M": {"k": {"N": "7"}}}]},
        "m": {"M": {"a": {"N": "1"}, "b": {"L": [{"S": "deep"}]}}}
    }))
}

fn values() -> Item {
    item(json!({
        ":s": {"S": "hello"}, ":he": {"S": "he"}, ":n": {"N": "5"}, ":six": {"N": "6"},
        ":one": {"N": "1"}, ":x": {"S": "x"}, ":a": {"S": "a"}, ":L": {"S": "L"},
        ":l": {"L": [{"S": "new"}]}, ":t": {"BOOL": true}, ":bb": {"B": "AQ=="},
        ":ss": {"SS": ["b", "c"]}, ":m": {"M": {}}, ":ab": {"SS": ["a", "b"]}
    }))
}

fn placeholders() -> Placeholders {
    let names = [("#n", "n"), ("#name", "name"), ("#dots", "a.b")];
    let names = names.map(|(name, of)| (name.to_owned(), of.to_owned())).into();
    Placeholders::new(Some(names), Some(values()), |_| None).unwrap()
}

fn parse(text: &str) -> std::result::Result<Condition, String> {
    condition::parse("C", text, &mut placeholders()).map_err(|fault| fault.message)
}

fn holds(text: &str) -> bool {
    parse(text).unwrap_or_else(|e| panic!("{text}: {e}")).holds(&sample())
}

#[test]
fn conditions_hold_or_do_not() {
    for text in [
        "s = :s",
        "n < :six",
        "#n >= :n AND n <= :n",
        "n <> :s",
        "gone <> :s",
        "m.a = :one",
        "l[1] = :x",
        "l[2].k > :six",
        "n BETWEEN :one AND :six",
        "s IN (:x, :s)",
        "NOT n = :six",
        "attribute_exists(m.b[0])",
        "attribute_not_exists(m.b[1])",
        "attribute_type(l, :L)",
        "begins_with(s, :he)",
        "contains(s, :he)",
        "contains(ss, :a)",
        "contains(l, :x)",
        "contains(ns, :one)",
        "contains(b, :bb)",
        "size(s) = :n",
        "size(l) < :n",
        "n = :six OR n = :n AND s = :s",
        "not (n = :six OR n = :n AND s = :x)",
        "t = :t",
        "(n = :n) and (s = :s)",
        "(n) = (:n)",
        "attribute_not_exists(#dots)",
        "ss = :ab",
        "NOT contains(gone, :x)",
        "NOT gone < :six",
        "size(s) BETWEEN :one AND size(s)",
    ] {
        assert!(holds(text), "{text}");
    }
    for text in [
        "n = :s",
        "n > :s",
        "gone = :s",
        "gone < :n",
        "NOT NOT n = :six",
        "size(n) = size(s)",
        "s BETWEEN :one AND :six",
        "n = :six OR n = :six",
        "begins_with(n, :he)",
        "z = :t",
        "attribute_type(gone, :L)",
        "s[0] = :s",
        "m[0] = :s",
        "l.a = :s",
        "gone IN (:n)",
        "contains(l, :he)",
        "size(t) > :one",
        "ss = :ss",
    ] {
        assert!(!holds(text), "{text}");
    }
}

#[test]
fn what_is_wrong_with_a_condition_is_told_in_dynamodbs_words() {
    for (text, told) in [
        ("", "The expression can not be empty;"),
        ("s =", "Syntax error; token: \"<EOF>\", near: \"=\""),
        ("s = :s s", "Syntax error; token: \"s\", near: \":s s\""),
        ("s ~ :s", "Syntax error; token: \"~\", near: \"s ~\""),
        ("s", "Syntax error"),
        (":s", "Syntax error"),
        ("s = and", "Syntax error"),
        ("# = :s", "Syntax error"),
        ("s = :s AND", "Syntax error"),
        ("l[x] = :s", "Syntax error"),
        ("l[0 = :s", "Syntax error"),
        ("((s = :s))", "The expression has redundant parentheses;"),
        ("abort = :s", "Attribute name is a reserved keyword; reserved keyword: abort"),
        ("Size = :s", "Attribute name is a reserved keyword; reserved keyword: Size"),
        ("#no = :s", "name used in the document path is not defined; attribute name: #no"),
        ("s = :no", "value used in expression is not defined; attribute value: :no"),
        ("foo(s)", "Invalid function name; function: foo"),
        ("Contains(s, :s)", "Invalid function name; function: Contains"),
        ("size(s)", "not allowed to be used this way in an expression; function: size"),
        ("contains(s, :s) = :t", "used this way in an expression; function: contains"),
        ("begins_with(s)", "operator or function: begins_with, number of operands: 1"),
        ("begins_with(s, :n)", "operator or function: begins_with, operand type: N"),
        (
            "attribute_exists(:s)",
            "requires a document path; operator or function: attribute_exists",
        ),
        ("attribute_type(s, :s)", "Invalid attribute type name found; type: hello"),
        ("attribute_type(s, n)", "operand type: {NS,SS,L,BS,N,M,B,BOOL,NULL,S}"),
        ("size(:n) = :n", "operator or function: size, operand type: N"),
        ("l[0] = l[0]", "operator: =, first operand: [l, [0]]"),
        (
            "n BETWEEN :six AND :one",
            "greater than or equal to lower bound; lower bound operand: \
          AttributeValue: {N:6}, upper bound operand: AttributeValue: {N:1}",
        ),
        ("n BETWEEN :six AND :s", "requires same data type for lower and upper bounds"),
        // Of several, what DynamoDB tells first.
        ("((abort = :no))", "redundant parentheses"),
        ("abort = :no", "reserved"),
        ("s = :no AND begins_with(s, :n)", ":no"),
        ("begins_with(s, :n) AND s = :no", "operand type: N"),
    ] {
        let why = parse(text).expect_err(text);
        assert!(why.starts_with("Invalid C: ") && why.contains(told), "{text}: {why}");
    }
}

#[test]
fn large_and_deep_expressions_are_refused() {
    let many = vec!["s=:s"; 300].join(" OR ");
    assert!(parse(&many).unwrap_err().contains("operator count: 599"));
    assert!(parse(&vec!["s=:s"; 150].join(" OR ")).is_ok());
    assert!(parse(&"s".repeat(4097)).unwrap_err().contains("expression size: 4097"));
    assert!(parse(&"(".repeat(4000)).unwrap_err().contains("nested too deeply"));
    assert!(parse(&format!("{} s = :s", "NOT ".repeat(200))).unwrap_err().contains("too deeply"));
    assert!(parse(&format!("{} s = :s", "NOT ".repeat(60))).is_ok());
    assert!(parse(&format!("s{} = :s", ".a".repeat(40))).unwrap_err().contains("nesting"));
}

/// Two names of a megabyte each, that were the same, took seconds to be told apart in forty paths of thirty steps.
#[test]
fn names_that_expressions_refer_to_are_as_long_as_attributes_names() {
    let named = |bytes: usize| {
        let names = [("#n".to_owned(), "x".repeat(bytes))].into();
        Placeholders::new(Some(names), None, |_| None).map(drop).map_err(|fault| fault.message)
    };
    assert_eq!(named(65_535), Ok(()));
    assert!(named(65_536).unwrap_err().contains("65536 bytes of 65535; key: \"#n\""));
}

fn from_item(item: &Item) -> Json {
    let mut text = String::new();
    put_item(&mut text, item);
    serde_json::from_str(&text).unwrap()
}

fn updated(text: &str) -> std::result::Result<Item, String> {
    let update = update::parse(text, &mut placeholders()).map_err(|fault| fault.message)?;
    let mut item = sample();
    update.apply(&mut item).map_err(|fault| fault.message)?;
    Ok(item)
}

#[test]
fn updates_change_what_they_say() {
    let at = |text: &str, name: &str| {
        let item = updated(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        from_item(&item)[name].clone()
    };
    assert_eq!(at("SET n = n + :one", "n"), json!({"N": "6"}));
    assert_eq!(at("set n = :one - n", "n"), json!({"N": "-4"}));
    assert_eq!(at("SET q = if_not_exists(q, :one) + :six", "q"), json!({"N": "7"}));
    assert_eq!(at("SET q = if_not_exists(n, :one)", "q"), json!({"N": "5"}));
    // Of the item as it was.
    assert_eq!(at("SET n = s, s = n", "s"), json!({"N": "5"}));
    assert_eq!(at("SET m.c = :x", "m")["M"]["c"], json!({"S": "x"}));
    let list = |text: &str| at(text, "l")["L"].as_array().unwrap().len();
    assert_eq!(list("SET l = list_append(l, :l)"), 4);
    assert_eq!(list("REMOVE l[0], l[1], l[9]"), 1);
    assert_eq!(at("SET l[9] = :x, l[5] = :n", "l")["L"][3], json!({"N": "5"}));
    assert_eq!(at("SET l[9] = :x REMOVE l[0]", "l")["L"][2], json!({"S": "x"}));
    assert_eq!(at("REMOVE s", "s"), Json::Null);
    assert_eq!(at("ADD n :one", "n"), json!({"N": "6"}));
    assert_eq!(at("ADD q :one", "q"), json!({"N": "1"}));
    assert_eq!(at("ADD ss :ss", "ss"), json!({"SS": ["a", "b", "c"]}));
    assert_eq!(at("DELETE ss :ss", "ss"), json!({"SS": ["a"]}));
    assert_eq!(at("DELETE ss :ab", "ss"), Json::Null);
    assert_eq!(at("DELETE q :ab", "q"), Json::Null);
    assert_eq!(at("ADD n :one SET q = (n + :one) REMOVE s", "q"), json!({"N": "6"}));
}

#[test]
fn what_is_wrong_with_an_update_is_told_in_dynamodbs_words() {
    for (text, told) in [
        ("", "The expression can not be empty;"),
        ("SET", "Syntax error"),
        ("SET n", "Syntax error"),
        ("SET n = n + :one + :one", "Syntax error; token: \"+\""),
        ("n = :one", "Syntax error; token: \"n\""),
        ("SET n = :one SET s = :s", "The \"SET\" section can only be used once"),
        (
            "SET n = :one, n = :six",
            "overlap with each other; must remove or rewrite one of these \
          paths; path one: [n], path two: [n]",
        ),
        ("SET m.a = :one REMOVE m", "path one: [m, a], path two: [m]"),
        ("SET m.a = :one, m[0] = :one", "conflict with each other"),
        ("ADD n :s", "operator: ADD, operand type: STRING"),
        ("DELETE ss :n", "operator: DELETE, operand type: NUMBER"),
        ("SET n = n + :s", "operator or function: +, operand type: S"),
        ("SET n = list_append(n, :s)", "operator or function: list_append, operand type: S"),
        ("SET n = if_not_exists(:s, :n)", "requires a document path"),
        ("SET n = list_append(n)", "list_append, number of operands: 1"),
        ("SET n = foo(n)", "Invalid function name; function: foo"),
        ("SET n = foo(:no), abort = :one", "reserved"),
        ("SET n = s + :one", "An operand in the update expression has an incorrect data type"),
        ("SET n = gone", "refers to an attribute that does not exist in the item"),
        ("SET gone.a = :one", "document path provided in the update expression is invalid"),
        ("SET s.a = :one", "invalid for update"),
        ("ADD s :one", "incorrect data type"),
        ("DELETE n :ss", "incorrect data type"),
    ] {
        let why = updated(text).expect_err(text);
        assert!(why.contains(told), "{text}: {why}");
    }
}

#[test]
fn projections_keep_the_shape_of_what_they_show() {
    let shown = |text: &str| {
        let paths = projection::parse(text, &mut placeholders()).map_err(|e| e.message)?;
        Ok::<Json, String>(from_item(&path::project(&paths, &sample())))
    };
    assert_eq!(
        shown("m.b[0], l[2].k, l[0], gone, s.x, #n").unwrap(),
        json!({
            "m": {"M": {"b": {"L": [{"S": "deep"}]}}},
            "l": {"L": [{"N": "1"}, {"M": {"k": {"N": "7"}}}]},
            "n": {"N": "5"}
        })
    );
    assert!(shown("m, m.a").unwrap_err().contains("Two document paths overlap"));
    assert!(shown("m.a, m[1]").unwrap_err().contains("Two document paths conflict"));
    assert!(shown("m,").unwrap_err().contains("Syntax error"));
    assert!(shown("#no").unwrap_err().contains("not defined; attribute name: #no"));
}

#[test]
fn placeholders_are_well_formed_and_all_used() {
    let name = |key: &str| Some(BTreeMap::from([(key.to_owned(), "n".to_owned())]));
    let new = |names, values| Placeholders::new(names, values, |_| None).map_err(|e| e.message);
    for (names, values, told) in [
        (Some(BTreeMap::new()), None, "ExpressionAttributeNames must not be empty"),
        (None, Some(Item::new()), "ExpressionAttributeValues must not be empty"),
        (name("n"), None, "contains invalid key: Syntax error; key: \"n\""),
        (name("#"), None, "key: \"#\""),
        (name("#a-b"), None, "key: \"#a-b\""),
    ] {
        assert!(new(names, values).unwrap_err().contains(told), "{told}");
    }
    let mut given = placeholders();
    condition::parse("C", "#n = :n", &mut given).unwrap();
    let told = given.finish().unwrap_err().message;
    assert!(told.contains("ExpressionAttributeNames unused in expressions: keys: {#dots, #name}"));
}

#[test]
fn a_large_value_that_is_named_often_is_not_copied_as_often() {
    let large = Item::from([(":v".to_owned(), Value::B(vec![0; 300 << 10]))]);
    let given = || Placeholders::new(None, Some(large.clone()), |_| None).unwrap();
    let sets: Vec<String> = (0..290).map(|i| format!("a{i}=:v")).collect();
    let update = update::parse(&format!("SET {}", sets.join(",")), &mut given()).unwrap();
    let refused = update.apply(&mut Item::new()).unwrap_err();
    assert!(refused.message.contains("Item size to update has exceeded"));
    // Zeros in zeros, which a search of a simple kind would compare for hours.
    let part = Value::B([vec![0; 150 << 10], vec![1]].concat());
    let values = Item::from([(":w".to_owned(), part), (":v".to_owned(), large[":v"].clone())]);
    let mut given = Placeholders::new(None, Some(values), |_| None).unwrap();
    let text = vec!["contains(:v,:w)"; 100].join(" OR ");
    assert!(!condition::parse("C", &text, &mut given).unwrap().holds(&Item::new()));
    let huge = Item::from([(":v".to_owned(), Value::B(vec![0; PLACEHOLDER_BYTES_MAX]))]);
    let refused = Placeholders::new(None, Some(huge), |_| None).unwrap_err();
    assert!(refused.message.contains("more than 2097152"), "{}", refused.message);
}
