#![expect(clippy::disallowed_methods, reason = "looks at what lies on the disk")]

use super::*;
use holdfast_base::Kind;
use holdfast_env::RealDisk;
use holdfast_wire::slab::{Builder, Collections, Item, Wanted};
use holdfast_wire::view::ViewKind;

fn slab(key: &[u8], bytes: usize) -> Slab {
    let mut builder = Builder::new(Range::ALL, 7, Arc::new(Needs::all()), false);
    let value = vec![key[0]; bytes];
    let item = Item { hash: 5, collection: 1, key, index: 3, value: Some(&value) };
    assert!(builder.push(&item).is_none());
    builder.finish().unwrap()
}

/// Where the device lost a write, an older slab that lies there may be whole by all of its own
/// checksums.
#[test]
fn an_image_gets_its_name_only_if_the_device_holds_what_was_written() {
    let place = std::env::temp_dir().join(format!("holdfast-image-{}", std::process::id()));
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    for (other, seals) in [(None, true), (Some(slab(b"c", 5000)), false)] {
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).unwrap();
        let name = ViewName { topic: "t".to_owned(), kind: ViewKind::Disk {}, part: 0, of: 1 };
        let position = Position { applied: Index(7), ..Position::default() };
        let about = About { log: Some(4), view: name, position, front: Vec::new() };
        let image = Image::create(&disk, &place, about, &[Range::ALL]).unwrap();
        let slabs = [slab(b"a", 5000), slab(b"b", 5000)];
        for (at, slab) in slabs.iter().enumerate() {
            let first = First { inside_key: false, row: vec![at as u8] };
            image.write(0, Some((slab, &first)), at == 1).unwrap();
        }
        let path = image.path().with_extension("0");
        if let Some(other) = &other {
            let mut bytes = Vec::new();
            other.write(&mut bytes);
            let file = disk.open(&path, Access::Cached).unwrap();
            file.write_at(&bytes, 2 * SECTOR_BYTES as u64).unwrap();
        }
        let sealed = image.seal();
        assert_eq!(sealed.is_ok(), seals);
        assert_eq!(list(&*disk, &place).unwrap().0, [Index(7)][..usize::from(seals)]);
        if let Err(e) = sealed {
            assert_eq!(e.kind, Kind::Corrupt);
            continue;
        }
        // Each begins on a sector, and both are as they were.
        let image = Image::open(&disk, &place, Index(7)).unwrap();
        assert_eq!(image.bytes(), 4 * SECTOR_BYTES as u64);
        let needs = Arc::new(Needs::all());
        for (number, slab) in slabs.iter().enumerate() {
            let found =
                image.slab(Range::ALL, number as u64, &needs, &mut Buffer::default()).unwrap();
            let (found, _) = found.slab.unwrap();
            assert_eq!(found.header_bytes(), slab.header_bytes());
        }
    }
    std::fs::remove_dir_all(&place).unwrap();
}

/// Its writer is at work on another thread when a view is stopped. The image got its name behind that, in
/// a directory whose parts the next start of the view had removed as what a writer left: each start from
/// there on warned of it.
#[test]
fn an_image_gets_no_name_behind_the_end_of_its_view() {
    let place = std::env::temp_dir().join(format!("holdfast-ended-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let name = ViewName { topic: "t".to_owned(), kind: ViewKind::Disk {}, part: 0, of: 1 };
    let position = Position { applied: Index(7), ..Position::default() };
    let about = About { log: Some(4), view: name, position, front: Vec::new() };
    let image = Image::create(&disk, &place, about, &[Range::ALL]).unwrap();
    let first = First { inside_key: false, row: vec![0] };
    image.write(0, Some((&slab(b"a", 50), &first)), true).unwrap();
    image.give_up();
    assert_eq!(image.seal().unwrap_err().kind, Kind::Retry);
    assert_eq!(image.sealed(), None);
    assert_eq!(list(&*disk, &place).unwrap(), (Vec::new(), vec![Index(7)]));
    std::fs::remove_dir_all(&place).unwrap();
}

const GOLDEN: &str = include_str!("../golden/image.txt");

fn table() -> Table {
    let view = ViewName { topic: "t".to_owned(), kind: ViewKind::Disk {}, part: 1, of: 2 };
    let position = Position { applied: Index(7), entry_crc: 8, digest: 9, epoch: Index(1) };
    let mut sums = Sums::default();
    sums.add_made(&slab(b"a", 3));
    let entry = Entry { offset: 4096, bytes: 100, first_hash: 5, last_hash: 6, row: vec![1, 2] };
    let described = Described { low: 0, high: 1 << 31, bytes: 8192, slabs: vec![entry] };
    let about = About { log: Some(0x0123_4567_89ab_cdef), view, position, front: vec![3, 4] };
    Table { about, sums: Some(sums), parts: vec![described] }
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// Golden lines: a version, and its table in hexadecimal digits.
#[test]
fn a_table_has_its_golden_bytes_and_one_of_version_1_is_read() {
    let golden: Vec<&str> = GOLDEN.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    let table = table();
    let hex: String = table.written().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden[1]);
    assert_eq!(Table::read(&from_hex(golden[1])).unwrap(), table);
    let before = Table::read(&from_hex(golden[0])).unwrap();
    let about = About { log: None, ..table.about.clone() };
    assert_eq!(before, Table { about, sums: None, parts: table.parts.clone() });
    let mut later = table.written();
    later[0] = 3;
    let end = later.len() - 4;
    let crc = holdfast_base::checksum::crc32c(&later[..end]).to_le_bytes();
    later[end..].copy_from_slice(&crc);
    let refused = Table::read(&later).unwrap_err();
    assert_eq!(refused.kind, Kind::Unsupported, "{refused}");
    assert!(refused.message.contains("later build"), "{refused}");
}

#[test]
fn a_table_with_a_flipped_bit_is_refused_wherever_that_is() {
    let written = table().written();
    for bit in 0..written.len() * 8 {
        let mut flipped = written.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Table::read(&flipped).unwrap_err().kind, Kind::Corrupt, "bit {bit}");
    }
    for end in 0..written.len() {
        assert_eq!(Table::read(&written[..end]).unwrap_err().kind, Kind::Corrupt, "{end} bytes");
    }
}

/// Everything that a reader with these needs gets of an image, in every way of cutting it.
fn read(disk: &Arc<dyn Disk>, place: &Path, needs: &Arc<Needs>) -> Result<Vec<Vec<u8>>> {
    let image = Image::open(disk, place, Index(7))?;
    let mut all = Vec::new();
    for (range, mut buf) in [Range::ALL, Range::new(0, 0x9000_0000)].map(|r| (r, Buffer::default()))
    {
        for number in 0.. {
            let Found { slab, is_last } = image.slab(range, number, needs, &mut buf)?;
            let mut bytes = Vec::new();
            if let Some((slab, row)) = slab {
                slab.write(&mut bytes);
                bytes.extend_from_slice(&row);
            }
            all.push(bytes);
            if is_last {
                break;
            }
        }
    }
    Ok(all)
}

/// One bit after the other flips, at every byte of the table and of what the parts hold, and here and there in
/// what fills their sectors: whoever reads the image, all of it or less, is refused or reads what was written. One in
/// a slab's version was taken for a later build's slab: the image was not given up, and every rider was told to use
/// another build.
#[test]
fn an_image_with_a_flipped_bit_is_refused_or_reads_as_it_was() {
    let place = std::env::temp_dir().join(format!("holdfast-flips-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let halves = [Range::new(0, 1 << 31), Range::new(1 << 31, 1 << 32)];
    let image = Image::create(&disk, &place, table().about, &halves).unwrap();
    for (part, hash) in [(0, 5u32), (1, 0x9000_0000)] {
        let mut builder = Builder::new(halves[part], 7, Arc::new(Needs::all()), false);
        for (collection, index, value) in [
            (1, 3, Some(&b"older"[..])),
            (1, 4, Some(b"newest")),
            (2, 5, Some(b"{\"a\":1}")),
            (2, 6, None),
        ] {
            let item = Item { hash, collection, key: b"key", index, value };
            assert!(builder.push(&item).is_none());
        }
        let slab = builder.finish().unwrap();
        image
            .write(part, Some((&slab, &First { inside_key: false, row: vec![part as u8] })), true)
            .unwrap();
    }
    image.seal().unwrap();
    let some = |wanted: Wanted| Arc::new(Needs::of(&wanted));
    let needs = [
        Arc::new(Needs::all()),
        some(Wanted { keys_only: true, ..Wanted::all() }),
        some(Wanted { collections: Collections::Listed(vec![2]), versions: true, ..Wanted::all() }),
    ];
    let good: Vec<_> = needs.iter().map(|needs| read(&disk, &place, needs).unwrap()).collect();
    let (mut refused, mut same) = (0, 0);
    for file in [
        "image-00000000000000000007",
        "image-00000000000000000007.0",
        "image-00000000000000000007.1",
    ] {
        let path = place.join(file);
        let bytes = std::fs::read(&path).unwrap();
        let held = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        for at in (0..held).chain((held..bytes.len()).step_by(331)) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(&path, &flipped).unwrap();
            for (needs, good) in needs.iter().zip(&good) {
                match read(&disk, &place, needs) {
                    Ok(all) => {
                        assert_eq!(all, *good, "byte {at} of {file}");
                        same += 1;
                    }
                    Err(e) => {
                        assert_eq!(e.kind, Kind::Corrupt, "byte {at} of {file}: {e}");
                        refused += 1;
                    }
                }
            }
        }
        std::fs::write(&path, &bytes).unwrap();
    }
    // What nobody asked for is not looked at, and padding holds nothing.
    assert!(refused > 1000 && same > 50, "{refused} refused, {same} as they were");
    std::fs::remove_dir_all(&place).unwrap();
}

/// Whoever finds one of another log, with the same name and of the same topic, took it for its own.
#[test]
fn an_image_of_another_log_or_view_is_told_from_ones_own() {
    let place = std::env::temp_dir().join(format!("holdfast-whose-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let about = table().about;
    let image = Image::create(&disk, &place, about.clone(), &[Range::ALL]).unwrap();
    let whose = |view: &ViewName, log, entry| {
        let both = image.check_is_of(view, log).and_then(|()| image.check_is_at(entry));
        both.map_err(|e| e.message)
    };
    let (own, kept) = (about.log.unwrap(), EntryAt::Kept);
    assert_eq!(whose(&about.view, own, kept(8)), Ok(()));
    assert_eq!(whose(&about.view, own, EntryAt::Trimmed), Ok(()));
    let other = ViewName { topic: "u".to_owned(), ..about.view.clone() };
    let said = [
        (whose(&other, own, kept(8)), "it is of view `t disk 1/2`"),
        (whose(&about.view, 5, kept(8)), "it is of another cluster's log"),
        (whose(&about.view, own, kept(9)), "in which entry 7 is another one"),
        // The log was put back from before the mark, and has not come so far again.
        (whose(&about.view, own, EntryAt::None), "the topic's has no entry 7"),
    ];
    for (refused, says) in said {
        let refused = refused.unwrap_err();
        assert!(refused.contains(says) && refused.contains("stays where it is"), "{refused}");
    }
    // Nor is it written over.
    image
        .write(0, Some((&slab(b"a", 50), &First { inside_key: false, row: vec![0] })), true)
        .unwrap();
    image.seal().unwrap();
    let again = Image::create(&disk, &place, About { log: Some(5), ..about }, &[Range::ALL]);
    assert_eq!(again.err().unwrap().kind, Kind::Exists);
    assert!(Image::open(&disk, &place, Index(7)).is_ok());
    std::fs::remove_dir_all(&place).unwrap();
}
