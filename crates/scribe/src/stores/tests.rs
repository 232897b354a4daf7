//! Which store a category has, what each makes of a message, and what is no file of stores.

use super::translate::translate;
use super::*;

fn category(name: &str) -> Category {
    Category::new(name).unwrap()
}

/// Where a message goes, in words.
fn sorted(stores: &Stores, name: &str, message: &str) -> String {
    let sorted = match stores.sort(&category(name), message.as_bytes(), &|| 3) {
        Ok(sorted) => sorted,
        Err(why) => return why.to_owned(),
    };
    let topics = sorted.messages.messages.iter().map(|(category, _)| format!("topic {category}"));
    let lines = sorted.lines.iter().map(|(at, _)| format!("file {} {}", at.store, at.category));
    let ignored = sorted.ignored.iter().map(|(category, n)| format!("null {category} {n}"));
    topics.chain(lines).chain(ignored).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_example_of_the_help_does_what_it_says() {
    let stores = Stores::parse(EXAMPLE.split_once('\n').unwrap().1).unwrap();
    assert_eq!(sorted(&stores, "debugger", "m"), "null debugger 1");
    assert_eq!(sorted(&stores, "search", "m"), "topic search, file 0 search");
    assert_eq!(sorted(&stores, "searches", "m"), "topic searches");
    let of = |message: &str| sorted(&stores, "clicks", message);
    assert!(of("user7:one").starts_with("topic clicks_0"));
    assert_eq!(of("user7:one"), of("user7:two"), "the key decides");
    let all: std::collections::BTreeSet<String> = (0..400).map(|n| of(&n.to_string())).collect();
    assert_eq!(all.len(), 16, "{all:?}");
    let FileStore { bytes_max, rotates, .. } = &stores.files()[0];
    assert_eq!((*bytes_max, *rotates), (1 << 30, Rotates::Hourly));
    assert!(!stores.are_topics() && Stores::default().are_topics());
    assert!(Stores::parse("").unwrap().are_topics());
}

#[test]
fn the_longest_prefix_decides_an_exact_name_before_it_and_default_behind() {
    let stores = "
        [[store]]
        category = 'web*'
        type = 'null'
        [[store]]
        categories = ['web_ads*', 'web']
        [[store]]
        category = 'default'
        type = 'file'
        file_path = '/var'
        [[store]]
        category = 'many'
        type = 'multi'
        stores = [{ type = 'bucket', num_buckets = 5, bucket_type = 'random', store = { type = 'null' } }, {}]";
    let stores = Stores::parse(stores).unwrap();
    for (name, goes) in [
        ("web", "topic web"),
        ("webs", "null webs 1"),
        ("web_ads", "topic web_ads"),
        ("web_ads7", "topic web_ads7"),
        ("we", "file 0 we"),
        ("many", "topic many, null many_003 1"),
    ] {
        assert_eq!(sorted(&stores, name, "m"), goes, "{name}");
    }
    let long = "x".repeat(62);
    let buckets = format!("[[store]]\ncategory = '{long}'\ntype = 'bucket'\nnum_buckets = 2");
    let stores = Stores::parse(&buckets).unwrap();
    assert_eq!(sorted(&stores, &long, "m"), "its bucket's name is too long");
}

#[test]
fn what_is_wrong_in_a_file_of_stores_is_said_in_one_sentence() {
    let deep = "{ type = 'multi', stores = [".repeat(4) + "{}" + &"] }".repeat(4);
    for (toml, says) in [
        ("[[store]]\ncategory = 'a'\nkind = 'null'", "unknown field `kind`"),
        ("[[stores]]\ncategory = 'a'", "unknown field `stores`"),
        ("[[store]]\ntype = 'null'", "it has no category"),
        ("[[store]]\ncategories = []", "it has no category"),
        ("[[store]]\ncategory = 'a'\ncategories = ['b']", "write one of them"),
        (
            "[[store]]\ncategory = 'a'\n[[store]]\ncategories = ['b', 'a']",
            "`a` has a store already",
        ),
        ("[[store]]\ncategory = 'a*'\n[[store]]\ncategory = 'a*'", "`a*` has a store already"),
        (
            "[[store]]\ncategory = 'default'\n[[store]]\ncategory = 'default'",
            "`default` has a store",
        ),
        ("[[store]]\ncategory = '../a'", "use category `../a`"),
        ("[[store]]\ncategory = '*'", "write `default`"),
        ("[[store]]\ncategory = 'a b*'", "use category `a b`"),
        (
            "[[store]]\ncategory = 'a'\ntype = 'hdfs'",
            "there is no type `hdfs`: write one of topic, null",
        ),
        ("[[store]]\ncategory = 'a'\ntype = 'null'\nmax_size = '1'", "`null` has no `max_size`"),
        ("[[store]]\ncategory = 'a'\ntype = 'file'", "it has no `file_path`"),
        (
            "[[store]]\ncategory = 'a'\ntype = 'file'\nfile_path = '/'\nmax_size = '7X'",
            "unknown unit",
        ),
        (
            "[[store]]\ncategory = 'a'\ntype = 'file'\nfile_path = '/'\nmax_size = '0'",
            "`max_size` is 0",
        ),
        (
            "[[store]]\ncategory = 'a'\ntype = 'file'\nfile_path = '/'\nbase_filename = '../b'",
            "`../b`",
        ),
        (
            "[[store]]\ncategory = 'a'\ntype = 'file'\nfile_path = '/'\nrotate_period = '1h'",
            "`hourly`",
        ),
        ("[[store]]\ncategory = 'a'\ntype = 'multi'", "it has no stores"),
        ("[[store]]\ncategory = 'a'\ntype = 'bucket'", "it has no `num_buckets`"),
        ("[[store]]\ncategory = 'a'\ntype = 'bucket'\nnum_buckets = 0", "write 1 to 1000"),
        (
            "[[store]]\ncategory = 'a'\ntype = 'bucket'\nnum_buckets = 2\nbucket_type = 'x'",
            "`random`",
        ),
        (
            "[[store]]\ncategory = 'a'\ntype = 'bucket'\nnum_buckets = 2\ndelimiter = 'ab'",
            "one character",
        ),
        (
            "[[store]]\ncategory = 'a'\ntype = 'bucket'\nnum_buckets = 2\nbucket_type = 'random'\ndelimiter = ':'",
            "leave `delimiter` out",
        ),
        (
            "[[store]]\ncategory = 'a'\ntype = 'bucket'\nnum_buckets = 2\nstore = { type = 'bucket', num_buckets = 2 }",
            "has buckets again",
        ),
        (
            "[[store]]\ncategory = 'a'\ntype = 'multi'\nstores = [{ category = 'b' }]",
            "leave its own out",
        ),
        (
            &format!("[[store]]\ncategory = 'a'\ntype = 'multi'\nstores = [{deep}]"),
            "more than 4 stores",
        ),
    ] {
        let wrong = Stores::parse(toml).unwrap_err();
        assert!(wrong.message.contains(says), "{toml}: {wrong}");
        assert!(wrong.message.starts_with("read "), "{wrong}");
    }
}

const CONF: &str = "
port=1463
max_msg_per_second=2000000
# the default
<store>
category=default
type=buffer
target_write_size=20480
retry_interval=30
<primary>
type=network
remote_host=central
remote_port=1456
</primary>
<secondary>
type=file
file_path=/tmp
max_size=3000000
</secondary>
</store>
<store>
categories=web search*
type=multi
report_success=any
<store0>
type=file
fs_type=hdfs
file_path=/logs
base_filename=w
max_size=1000
rotate_period=hourly
add_newlines=1
</store0>
<store1>
type=null
</store1>
</store>
<store>
category=clicks
type=bucket
num_buckets=6
bucket_type=key_hash
delimiter=1
<bucket>
type=thriftfile
file_path=/clicks
rotate_period=30m
</bucket>
</store>
";

#[test]
fn an_old_scribe_conf_is_translated_and_what_has_no_equivalent_is_said() {
    let toml = translate(CONF).unwrap();
    let stores = Stores::parse(&toml).unwrap_or_else(|e| panic!("{e}: {toml}"));
    assert_eq!(sorted(&stores, "other", "m"), "topic other");
    assert_eq!(sorted(&stores, "searching", "m"), "file 0 searching, null searching 1");
    assert!(sorted(&stores, "clicks", "k\x01m").starts_with("file 1 clicks_00"));
    assert_eq!(sorted(&stores, "clicks", "k\x01m"), sorted(&stores, "clicks", "k\x01n"));
    let FileStore { base, bytes_max, rotates, adds_newlines, .. } = &stores.files()[0];
    assert_eq!((base.as_deref(), *bytes_max), (Some("w"), 1000));
    assert_eq!((*rotates, *adds_newlines), (Rotates::Hourly, true));
    for sentence in [
        "# port=1463: give it to the agent: `--port 1463`.",
        "# max_msg_per_second=2000000: the spool's bound",
        "# target_write_size=20480: what came together",
        "# retry_interval=30: what is in the spool",
        "# remote_host=central: name nodes",
        "# <secondary>: the agent's spool",
        "# report_success=any: here all",
        "# fs_type=hdfs: files are of this machine.",
        "# type=thriftfile: files have lines",
        "# rotate_period=30m: there is `hourly`",
        "# buckets are categories",
    ] {
        assert!(toml.contains(sentence), "{sentence}: {toml}");
    }
}

#[test]
fn what_is_no_scribe_conf_is_refused_with_its_line() {
    for (conf, says) in [
        ("<store>\ncategory=a\ntype=null", "line 1: <store> has no end"),
        ("a=1\n</store>", "line 2: `</store>` ends nothing"),
        ("<store>\n</primary>", "line 2: `</primary>` ends nothing"),
        ("hello", "line 1: `hello` is neither"),
        ("<other>\n</other>", "line 1: there is a <other> outside"),
        ("\n<store>\ntype=null\n</store>", "line 2: the store has no category"),
        ("<store>\ncategory=a\n</store>", "line 1: the store has no type"),
        ("<store>\ncategory=a\ntype=buffer\n</store>", "no <primary>"),
        ("</>", "line 1: `</>` ends nothing"),
    ] {
        let wrong = translate(conf).unwrap_err();
        assert!(wrong.message.contains(says), "{conf:?}: {wrong}");
    }
}
