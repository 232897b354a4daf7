use super::*;

/// Five servers, named as libmemcached names them: two ports, and a name.
fn members(weights: [u32; 5]) -> Vec<Member> {
    let names = ["10.0.1.1", "10.0.1.2", "10.0.1.3:11212", "cache-d.example", "10.0.1.5:11299"];
    let named = names.iter().zip(weights).map(|(name, weight)| format!("{name} {weight}"));
    named.map(|text| Member::parse(&text).unwrap()).collect()
}

/// FNV-1a over the servers of 3,000 keys, and the first 40 of them.
fn servers_of(members: &[Member], hashing: Hashing) -> (String, u64) {
    let ring = Ring::new(members, hashing);
    let all: Vec<u32> =
        (0..3000).map(|i| ring.find(format!("key-{i}").as_bytes()).unwrap()).collect();
    let digest = all.iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, server| {
        (digest ^ u64::from(*server)).wrapping_mul(0x100_0000_01b3)
    });
    (all[..40].iter().map(u32::to_string).collect(), digest)
}

/// What libmemcached 1.1.4 says (`memcached_generate_hash`).
#[test]
fn keys_have_the_servers_that_libmemcached_gives_them() {
    let (equal, weighted) = ([1; 5], [1, 3, 2, 1, 5]);
    for (weights, hashing, first, digest) in [
        (equal, Hashing::Weighted, "3332214231342124233143443340332313133434", 0x9e91ab503f42dd36),
        (equal, Hashing::Ketama, "1210302001211422012401124434332444100030", 0x1944878d38f547c8),
        (
            weighted,
            Hashing::Weighted,
            "4334414241442114413141444440332343124424",
            0x846b23b0ba6fadf2,
        ),
        (weighted, Hashing::Ketama, "1442324014411444441011424411414410421131", 0x2daa038942879d62),
    ] {
        let found = servers_of(&members(weights), hashing);
        assert_eq!(found, (first.to_owned(), digest), "{weights:?} {hashing:?}");
    }
}

#[test]
fn a_server_that_goes_moves_only_its_own_keys() {
    let all = members([1; 5]);
    let (before, after) = (Ring::new(&all, Hashing::Ketama), Ring::new(&all[..4], Hashing::Ketama));
    let keys: Vec<String> = (0..2000).map(|i| format!("user:{i}")).collect();
    let mut moved = 0;
    for key in &keys {
        let (old, new) =
            (before.find(key.as_bytes()).unwrap(), after.find(key.as_bytes()).unwrap());
        moved += usize::from(old == 4);
        assert!(old == new || old == 4, "{key} moved from {old} to {new}");
        assert_eq!(before.find_where(key.as_bytes(), |server| server != 4), Some(new));
    }
    assert!((250..550).contains(&moved), "{moved}");
}

#[test]
fn empty_pools_and_pools_of_one_need_no_hash() {
    assert_eq!(Ring::new(&[], Hashing::Weighted).find(b"a"), None);
    let one = [Member::parse("a:1 7").unwrap()];
    let ring = Ring::new(&one, Hashing::Weighted);
    assert_eq!((ring.find(b"a"), ring.find_where(b"a", |_| false)), (Some(0), None));
}

#[test]
fn servers_are_read_and_printed() {
    let member = |host: &str, port, weight| Member { host: host.into(), port, weight };
    for (text, expected, printed) in [
        ("a", member("a", 11211, 1), "a:11211"),
        (" 10.0.0.1:5 ", member("10.0.0.1", 5, 1), "10.0.0.1:5"),
        ("[::1]:5 3", member("::1", 5, 3), "[::1]:5"),
        ("::1", member("::1", 11211, 1), "[::1]:11211"),
    ] {
        let read = Member::parse(text).unwrap();
        assert_eq!((&read, read.to_string().as_str()), (&expected, printed));
    }
    for wrong in ["", ":5", "a:0", "a:70000", "a:x", "a 0", "a x", "a 1 2", "a 1001"] {
        let message = Member::parse(wrong).unwrap_err().message;
        assert!(message.contains(&format!("`{wrong}`")), "{message}");
    }
}
