use super::*;
use crate::settings::Settings;
use crate::store::{Lookup, Put, Writer};
use holdfast_env::poll::Waker;
use holdfast_env::{Clock, RealClock};
use holdfast_sim::SimDisk;

fn machine() -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    disk.create_dir_all(Path::new("/cache")).unwrap();
    disk
}

fn file() -> &'static Path {
    Path::new("/cache/items")
}

fn cache(memory_bytes: usize) -> (Store, Shared) {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let store = Store::new(memory_bytes, 1, true, 1).unwrap();
    let shared = Shared::new(Settings::default(), clock, Waker::new().unwrap()).unwrap();
    store.set_now(2);
    (store, shared)
}

fn set(store: &Store, writer: &mut Writer, key: &str, value: &str, flags: u32, expires: u32) {
    let new = NewItem {
        key: key.as_bytes(),
        value: [value.as_bytes(), &[]],
        flags,
        expires,
        ..NewItem::default()
    };
    assert!(matches!(store.put(writer, &new, store.hash(new.key), |_| true), Put::Stored(_)));
}

/// Value, flags, cas, expiry.
fn get(store: &Store, key: &str, with_cas: bool) -> Option<(String, u32, u64, u32)> {
    let mut writer = store.writer(0);
    store.read(key.as_bytes(), store.hash(key.as_bytes()), |found| {
        let Lookup::Found(seen) = found else { return None };
        let mut value = vec![0; seen.head.value_len() + SLACK_BYTES];
        store.copy_value(&seen, &mut value);
        value.truncate(seen.head.value_len());
        store.count_read(&mut writer, &seen, with_cas);
        let cas = store.cas(seen.place, seen.head);
        let value = String::from_utf8(value).unwrap();
        Some((value, store.flags(seen.place, seen.head), cas, seen.head.expires))
    })
}

#[test]
fn items_come_back_with_all_that_clients_know_of_them() {
    let disk = machine();
    let (store, shared) = cache(8 << 20);
    let (warm, note) = Warm::begin(&disk, file(), &store, &shared).unwrap();
    assert!(note.contains("is new"), "{note}");
    let mut writer = store.writer(0);
    let now = shared.epoch_s();
    for i in 0..20_000 {
        set(&store, &mut writer, &format!("key-{i}"), &format!("value-{i}"), i % 3, 0);
    }
    set(&store, &mut writer, "soon", "x", 0, 1000);
    set(&store, &mut writer, "gone", "x", 0, 2);
    let (_, _, cas, _) = get(&store, "key-7", true).unwrap();
    store.retire(&mut writer);
    assert_eq!(warm.save(&store, &shared).unwrap(), 20_001);
    drop(warm);

    let (store, shared) = cache(8 << 20);
    let (warm, note) = Warm::begin(&disk, file(), &store, &shared).unwrap();
    assert!(note.starts_with("20001 items are back"), "{note}");
    for i in 0..20_000 {
        let (value, flags, ..) = get(&store, &format!("key-{i}"), false).unwrap();
        assert_eq!((value, flags), (format!("value-{i}"), i % 3));
    }
    assert_eq!(get(&store, "key-7", false).unwrap().2, cas, "a cas that was seen changed");
    let (.., expires) = get(&store, "soon", false).unwrap();
    assert!((i64::from(expires) + shared.epoch_s() - now - 1000).abs() <= 1);
    assert_eq!(get(&store, "gone", false), None);
    let mut writer = store.writer(0);
    set(&store, &mut writer, "new", "x", 0, 0);
    assert!(get(&store, "new", false).unwrap().2 > cas, "a new cas is one of before");
    drop(warm);

    // That one did not end in order: what it was started with would be outdated.
    let (store, shared) = cache(8 << 20);
    let (_, note) = Warm::begin(&disk, file(), &store, &shared).unwrap();
    assert!(note.contains("starts empty") && note.contains("did not end in order"), "{note}");
    assert_eq!((get(&store, "key-7", false), store.totals().items), (None, 0));
}

#[test]
fn less_memory_takes_what_fits() {
    let disk = machine();
    let (store, shared) = cache(64 << 20);
    let (warm, _) = Warm::begin(&disk, file(), &store, &shared).unwrap();
    let mut writer = store.writer(0);
    for i in 0..40_000 {
        set(&store, &mut writer, &format!("key-{i}"), &"v".repeat(500), 0, 0);
    }
    set(&store, &mut writer, "long", &"v".repeat(store.large_bytes()), 0, 0);
    store.retire(&mut writer);
    warm.save(&store, &shared).unwrap();
    drop(warm);
    let (store, shared) = cache(4 << 20);
    let (_warm, note) = Warm::begin(&disk, file(), &store, &shared).unwrap();
    assert!(note.contains("1 had expired, or do not fit"), "{note}");
    assert!(store.memory_bytes() <= 4 << 20);
    // The oldest went first.
    assert!(get(&store, "key-39999", false).is_some() && get(&store, "key-0", false).is_none());
}

fn saved(disk: &Arc<dyn Disk>) -> Vec<u8> {
    let (store, shared) = cache(8 << 20);
    let (warm, _) = Warm::begin(disk, file(), &store, &shared).unwrap();
    let mut writer = store.writer(0);
    for i in 0..50 {
        set(&store, &mut writer, &format!("key-{i}"), "value", i, 3000);
    }
    store.retire(&mut writer);
    warm.save(&store, &shared).unwrap();
    holdfast_env::disk::read_file(&**disk, file(), 1 << 20).unwrap()
}

fn put_back(disk: &Arc<dyn Disk>, bytes: &[u8]) {
    disk.remove(file()).unwrap();
    disk.create(file(), Access::Cached).unwrap().write_at(bytes, 0).unwrap();
}

#[test]
fn whatever_a_file_holds_the_cache_is_whole_or_empty() {
    let disk = machine();
    let whole = saved(&disk);
    let mut state = 1u64;
    for round in 0..600 {
        let mut bytes = whole.clone();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // The first eight bytes say whose it is; without them it is not ours to touch.
        let at = 8 + (state >> 33) as usize % (bytes.len() - 8);
        if round % 8 == 0 {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << (state >> 60 & 7);
        }
        if bytes.len() < HEADER_BYTES {
            continue;
        }
        put_back(&disk, &bytes);
        let (store, shared) = cache(8 << 20);
        let (_, note) = Warm::begin(&disk, file(), &store, &shared).unwrap();
        assert!(note.starts_with("the cache starts empty: "), "byte {at}: {note}");
        assert_eq!(get(&store, "key-1", false), None);
    }
}

#[test]
fn a_file_of_somebody_else_and_a_file_in_use_are_refused() {
    let disk = machine();
    let bytes = saved(&disk);
    put_back(&disk, b"root:x:0:0:root:/root:/bin/bash\n");
    let (store, shared) = cache(8 << 20);
    let refused = |words: &str| {
        let error = Warm::begin(&disk, file(), &store, &shared).err().expect("it is refused");
        assert!(error.message.contains(words) && error.message.contains("/cache/items"), "{error}");
    };
    refused("no cache's of Holdfast");
    let kept = holdfast_env::disk::read_file(&*disk, file(), 1 << 20).unwrap();
    assert!(kept.starts_with(b"root:x"), "it was touched");
    put_back(&disk, &bytes);
    let (other, other_shared) = cache(8 << 20);
    let _first = Warm::begin(&disk, file(), &other, &other_shared).unwrap();
    refused("another cache uses it");
}

/// The mark that a cache runs is durable before the cache serves: after a power cut the items of
/// before, which clients have since changed, must not come back.
#[test]
fn a_power_cut_brings_nothing_old_back() {
    for (site, old_comes_back) in [(None, false), (Some("cache.warm.name"), true)] {
        let disk = SimDisk::new(7);
        let machine: Arc<dyn Disk> = Arc::new(disk.clone());
        machine.create_dir_all(Path::new("/cache")).unwrap();
        saved(&machine);
        // The machine ran on for a while.
        machine.open(file(), Access::Cached).unwrap().sync("test").unwrap();
        machine.sync_dir(Path::new("/cache"), "test").unwrap();
        machine.sync_dir(Path::new("/"), "test").unwrap();
        if let Some(site) = site {
            disk.disable_site(site);
        }
        let (store, shared) = cache(8 << 20);
        let begun = Warm::begin(&machine, file(), &store, &shared).unwrap();
        assert!(begun.1.starts_with("50 items"), "{}", begun.1);
        let after: Arc<dyn Disk> = Arc::new(disk.power_cut_losing_all());
        let (store, shared) = cache(8 << 20);
        let (_, note) = Warm::begin(&after, file(), &store, &shared).unwrap();
        assert_eq!(note.contains("items are back"), old_comes_back, "{note}");
        assert_eq!(note.contains("did not end in order"), !old_comes_back, "{note}");
    }
}

/// The format of version 1, byte for byte: see docs/formats/cache.md.
#[test]
fn the_format_is_what_its_page_says() {
    let header = Header {
        version: 1,
        state: State::Complete,
        blocks: 2,
        items: 3,
        opened: 4,
        next_large: 5,
        flush_at: 6,
        piece_bytes: 7,
    };
    let golden = "484f4c444341434801000000010000000200000000000000030000000000000004000000000000000500000000000000060000000000000007000000";
    let bytes = header.to_bytes();
    let text: String = bytes[..60].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(text, golden);
    assert_eq!(Header::from_bytes(&bytes), Some(header));
}
