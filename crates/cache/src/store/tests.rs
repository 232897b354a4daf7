use super::*;
use std::collections::HashMap;

fn set(store: &Store, writer: &mut Writer, key: &[u8], value: &[u8], expires: u32) -> Put {
    let new = NewItem { key, value: [value, &[]], expires, ..NewItem::default() };
    store.put(writer, &new, store.hash(key), |_| true)
}

fn get(store: &Store, writer: &mut Writer, key: &[u8]) -> Option<Vec<u8>> {
    // No value here is longer.
    let mut value = vec![0; 10_000];
    let seen = store.read(key, store.hash(key), |found| match found {
        // A racing writer may show any length, until the reading is confirmed.
        Lookup::Found(seen) => {
            if seen.head.value_len() < value.len() - 64 {
                store.copy_value(&seen, &mut value);
            }
            Some(seen)
        }
        _ => None,
    })?;
    store.count_read(writer, &seen, false);
    value.truncate(seen.head.value_len());
    Some(value)
}

fn delete(store: &Store, writer: &Writer, key: &[u8]) -> bool {
    store.remove(writer, key, store.hash(key), |_| true) == Removed::Done
}

/// Bytes that tell which version of which key they are.
fn value(key: u64, version: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 16);
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.resize(len.max(16), (key ^ version) as u8);
    bytes
}

#[test]
fn what_is_stored_is_found_until_replaced_or_deleted() {
    let store = Store::new(8 << 20, 1, true, 1).unwrap();
    let mut writer = store.writer(0);
    assert_eq!(get(&store, &mut writer, b"a"), None);
    set(&store, &mut writer, b"a", b"1", 0);
    set(&store, &mut writer, b"", b"", 0);
    assert_eq!(get(&store, &mut writer, b"a").as_deref(), Some(&b"1"[..]));
    set(&store, &mut writer, b"a", b"22", 0);
    assert_eq!(get(&store, &mut writer, b"a").as_deref(), Some(&b"22"[..]));
    assert_eq!(get(&store, &mut writer, b"").as_deref(), Some(&b""[..]));
    assert!(delete(&store, &writer, b"a") && !delete(&store, &writer, b"a"));
    assert_eq!(get(&store, &mut writer, b"a"), None);
    assert_eq!(store.totals().items, 1);
}

#[test]
fn items_expire_and_their_memory_comes_back() {
    let store = Store::new(8 << 20, 1, true, 1).unwrap();
    let mut writer = store.writer(0);
    store.set_now(100);
    for i in 0..20_000u64 {
        set(&store, &mut writer, &i.to_le_bytes(), &value(i, 0, 200), 110);
    }
    set(&store, &mut writer, b"later", b"x", 200);
    store.set_now(109);
    assert!(get(&store, &mut writer, &1u64.to_le_bytes()).is_some());
    store.set_now(110);
    assert_eq!(get(&store, &mut writer, &1u64.to_le_bytes()), None);
    let housekeeper = store.writer(1);
    store.keep(&housekeeper);
    let totals = store.totals();
    // Those of the one segment that is still written stay a while.
    assert!(totals.items < 400, "{} items", totals.items);
    assert_eq!(totals.evictions, 0);
    assert!(get(&store, &mut writer, b"later").is_some());
}

#[test]
fn a_flush_takes_all_that_was_before_and_nothing_after() {
    let store = Store::new(8 << 20, 1, true, 1).unwrap();
    let mut writer = store.writer(0);
    set(&store, &mut writer, b"before", b"1", 0);
    store.flush();
    assert_eq!(get(&store, &mut writer, b"before"), None);
    assert!(!delete(&store, &writer, b"before"));
    set(&store, &mut writer, b"after", b"2", 0);
    store.keep(&store.writer(1));
    assert!(get(&store, &mut writer, b"after").is_some());
    store.flush();
    assert_eq!(get(&store, &mut writer, b"after"), None);
}

#[test]
fn eviction_keeps_to_the_limit_and_keeps_what_is_read() {
    let limit = 8 << 20;
    let store = Store::new(limit, 1, true, 1).unwrap();
    let mut writer = store.writer(0);
    let hot = 2000u64;
    for i in 0..400_000u64 {
        set(&store, &mut writer, &i.to_le_bytes(), &value(i, 0, 100), 0);
        // A hot set that is read again and again.
        let key = (i % hot).to_le_bytes();
        if get(&store, &mut writer, &key).is_none() {
            set(&store, &mut writer, &key, &value(i % hot, 0, 100), 0);
        }
        assert!(store.memory_bytes() <= limit, "{} bytes after {i}", store.memory_bytes());
    }
    let kept = (0..hot).filter(|i| get(&store, &mut writer, &i.to_le_bytes()).is_some()).count();
    assert!(kept as u64 > hot * 9 / 10, "{kept} of {hot} hot items are there");
    let totals = store.totals();
    assert!(totals.evictions > 200_000 && totals.items > 30_000, "{totals:?}");
}

#[test]
fn shifting_value_sizes_find_memory() {
    // What memcached calls calcification: memory cut for one size is of no use for another.
    let store = Store::new(8 << 20, 1, true, 1).unwrap();
    let mut writer = store.writer(0);
    for (round, len) in [50, 4000, 300, 7000, 20].into_iter().enumerate() {
        let n = (16 << 20) / (len as u64 + 30);
        for i in 0..n {
            let key = (round as u64) << 32 | i;
            assert!(matches!(
                set(&store, &mut writer, &key.to_le_bytes(), &value(key, 0, len), 0),
                Put::Stored(_)
            ));
            assert_eq!(get(&store, &mut writer, &key.to_le_bytes()), Some(value(key, 0, len)));
        }
    }
}

#[test]
fn without_eviction_dead_memory_is_found_and_then_none() {
    let store = Store::new(8 << 20, 1, false, 1).unwrap();
    let mut writer = store.writer(0);
    let mut full = 0;
    for i in 0..200_000u64 {
        if set(&store, &mut writer, &i.to_le_bytes(), &value(i, 0, 100), 0) == Put::NoMemory {
            full = i;
            break;
        }
    }
    assert!(full > 40_000, "full after {full}");
    for i in (0..full).step_by(2) {
        assert!(delete(&store, &writer, &i.to_le_bytes()));
    }
    let mut again = 0;
    for i in 0..full {
        let key = 1 << 40 | i;
        if set(&store, &mut writer, &u64::to_le_bytes(key), &value(key, 0, 100), 0) == Put::NoMemory
        {
            break;
        }
        again += 1;
    }
    assert!(again > full * 4 / 10, "{again} of {full} fit again");
    assert!((1..full).step_by(2).all(|i| get(&store, &mut writer, &i.to_le_bytes()).is_some()));
}

#[test]
fn a_cas_that_was_seen_survives_a_move() {
    let store = Store::new(4 << 20, 1, true, 1).unwrap();
    let mut writer = store.writer(0);
    set(&store, &mut writer, b"seen", b"1", 0);
    let look = |writer: &mut Writer, with_cas| {
        let seen = store.read(b"seen", store.hash(b"seen"), |found| match found {
            Lookup::Found(seen) => Some((seen, store.cas(seen.place, seen.head))),
            _ => None,
        });
        for _ in 0..100 {
            store.count_read(writer, &seen?.0, with_cas);
        }
        seen.map(|(seen, cas)| (seen.place, cas))
    };
    let (place, cas) = look(&mut writer, true).unwrap();
    let mut moved = place;
    for i in 0..200_000u64 {
        set(&store, &mut writer, &i.to_le_bytes(), &value(i, 0, 100), 0);
        let (place, now) = look(&mut writer, false).expect("it is read all the time");
        assert_eq!(now, cas);
        moved = place;
    }
    assert_ne!(moved, place, "it was never moved");
}

/// Random operations against a map. What eviction may take is any item; nothing else may differ.
fn against_a_model(seed: u64, evicts: bool) {
    let store = Store::new(2 << 20, 1, evicts, seed).unwrap();
    let mut writer = store.writer(0);
    let mut model: HashMap<u64, (u64, usize, u32)> = HashMap::new();
    let (mut state, mut now) = (seed | 1, 1);
    let mut missing = 0;
    for version in 0..60_000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (key, dice, len) = (state >> 33 & 0x7ff, state >> 50 & 63, state >> 44 & 0x3ff);
        let bytes = key.to_le_bytes();
        match dice {
            0..20 => {
                let expires = if dice < 10 { 0 } else { now + 1 + (len as u32 & 31) };
                let len = (len as usize).max(16);
                if set(&store, &mut writer, &bytes, &value(key, version, len), expires)
                    != Put::NoMemory
                {
                    model.insert(key, (version, len, expires));
                }
            }
            20..30 => {
                let deleted = delete(&store, &writer, &bytes);
                let was = model.remove(&key);
                assert!(!deleted || was.is_some_and(|(_, _, e)| e == 0 || e > now));
            }
            30 => {
                now += 1;
                store.set_now(now);
                store.keep(&store.writer(1));
            }
            31 if len < 8 => {
                store.flush();
                model.clear();
            }
            _ => match get(&store, &mut writer, &bytes) {
                Some(found) => {
                    let (version, len, expires) = model[&key];
                    assert!(expires == 0 || expires > now, "an expired item was served");
                    assert_eq!(found, value(key, version, len));
                }
                None => {
                    let was = model.remove(&key);
                    missing += usize::from(was.is_some_and(|(_, _, e)| e == 0 || e > now));
                }
            },
        }
    }
    assert!(evicts || missing == 0, "{missing} items are gone though nothing is evicted");
}

#[test]
fn the_store_does_what_a_map_does() {
    for seed in 0..6 {
        against_a_model(seed * 77 + 5, seed % 2 == 0);
    }
}

#[test]
fn readers_never_see_a_mixture_while_writers_replace_and_evict() {
    let store = Store::new(2 << 20, 2, true, 1).unwrap();
    let keys = 3000u64;
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut writer = store.writer(0);
            for i in 0..300_000u64 {
                let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
                let len = 16 + (i % 900) as usize;
                set(&store, &mut writer, &key.to_le_bytes(), &value(key, i, len), 0);
            }
        });
        let mut writer = store.writer(1);
        let (mut hits, mut i) = (0u64, 0u64);
        while !writing.is_finished() || hits == 0 {
            i += 1;
            let key = i % keys;
            if let Some(found) = get(&store, &mut writer, &key.to_le_bytes()) {
                hits += 1;
                let version = u64::from_le_bytes(found[8..16].try_into().unwrap());
                assert_eq!(found, value(key, version, 16 + (version % 900) as usize));
            }
        }
    });
}
