//! Every entry of the blobs topic and every description in a needle has its golden bytes: what was
//! written once is read for ever (docs/formats/blob.md).

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::ids::{ChunkId, Cookie, Pointer, Slot};
use holdfast_blob::{
    AccessKey, Alternate, Bucket, Command, Condition, Document, Head, Lock, Object, ObjectExtent,
    Pair, Part, PartName, Trailer, Upload,
};
use std::fmt::Write;

const GOLDEN: &str = include_str!("golden.txt");
const MARK: u64 = 0x0807_0605_0403_0201;

fn extent(slot: u32, bytes: u32) -> ObjectExtent {
    let pointer = Pointer { chunk: ChunkId::new(1, 2), slot: Slot(slot), cookie: Cookie(0xc00c1e) };
    ObjectExtent { pointer, bytes }
}

fn head() -> Head {
    Head {
        content_type: "image/png".into(),
        headers: vec![Pair::new("cache-control", "no-cache")],
        metadata: vec![Pair::new("m", "1")],
        tags: vec![Pair::new("t", "2")],
        checksums: vec![Pair::new("crc32", "AAAAAA==")],
        acl: "private".into(),
    }
}

fn alternate() -> Alternate {
    let (content_type, etag) = ("image/jpeg".into(), "a".into());
    Alternate { size: 720, width: 720, height: 405, content_type, etag, extent: extent(5, 6) }
}

fn object() -> Object {
    Object {
        version: 3,
        null: true,
        marker: false,
        modified_ms: -4,
        size: 5,
        etag: "e".into(),
        head: head(),
        parts: vec![2, 3],
        extents: vec![extent(1, 2), extent(2, 3)],
        manifest: Some(extent(3, 4)),
        alternates: vec![alternate()],
        upload: 6,
        lock: Some(Lock { until_ms: 7, compliance: true }),
        hold: true,
    }
}

fn bucket() -> Bucket {
    Bucket {
        created_ms: 1,
        owner: "o".into(),
        versioning: 2,
        lockable: true,
        documents: vec![Document { name: "photos".into(), text: "720,75".into() }],
    }
}

fn commands() -> Vec<Command> {
    let (b, k) = (|| "b".to_owned(), || "k".to_owned());
    let condition = || Condition { if_match: Some("e".into()), if_absent: true };
    let mut all = vec![
        Command::CreateBucket { name: b(), bucket: bucket() },
        Command::DeleteBucket { name: b() },
        Command::SetVersioning { name: b(), versioning: 1 },
        Command::SetDocument { name: b(), document: "cors".into(), text: Some("{}".into()) },
        Command::Put { bucket: b(), key: k(), object: object(), condition: condition(), hold: 9 },
        Command::Delete { bucket: b(), key: k(), version: 1, now_ms: 2, condition: condition() },
        Command::DeleteVersion {
            bucket: b(),
            key: k(),
            version: "null".into(),
            now_ms: 1,
            bypass: true,
        },
    ];
    all.extend(upload_commands());
    all.extend([
        Command::AbortUpload { bucket: b(), key: k(), id: 1 },
        Command::Hold { id: 1, now_ms: 2, extents: vec![extent(1, 2)] },
        Command::ReleaseHold { id: 1 },
        Command::SetHead { bucket: b(), key: k(), version: "null".into(), head: head() },
        Command::SetLock {
            bucket: b(),
            key: k(),
            version: "null".into(),
            lock: Some(Lock { until_ms: 1, compliance: false }),
            hold: true,
            now_ms: 2,
            bypass: false,
        },
        Command::CloseChunk { chunk: ChunkId::new(1, 2) },
        Command::ForgetChunk { chunk: ChunkId::new(1, 2) },
        Command::SetAccessKey {
            name: "A".into(),
            key: Some(AccessKey {
                secret: "s".into(),
                user: "u".into(),
                created_ms: 1,
                admin: false,
                read_only: true,
                buckets: vec!["b".into()],
            }),
        },
    ]);
    all
}

/// Of an upload in parts, from its begin to its end.
fn upload_commands() -> [Command; 3] {
    let (b, k) = (|| "b".to_owned(), || "k".to_owned());
    let condition = || Condition { if_match: Some("e".into()), if_absent: true };
    [
        Command::BeginUpload {
            bucket: b(),
            key: k(),
            id: 1,
            upload: Upload {
                begun_ms: 2,
                head: head(),
                lock: None,
                hold: false,
                algorithm: "crc32".into(),
                full_object: true,
            },
        },
        Command::PutPart {
            bucket: b(),
            key: k(),
            id: 1,
            number: 2,
            part: Part {
                modified_ms: 3,
                size: 4,
                etag: "e".into(),
                checksums: vec![Pair::new("crc32", "AAAAAA==")],
                extents: vec![extent(1, 4)],
            },
            hold: 5,
        },
        Command::CompleteUpload {
            bucket: b(),
            key: k(),
            id: 1,
            parts: vec![PartName { number: 1, etag: "e".into() }],
            version: 2,
            now_ms: 3,
            etag: "w-1".into(),
            checksums: vec![Pair::new("crc32", "AAAAAA==")],
            manifest: Some(extent(3, 4)),
            alternates: vec![alternate()],
            condition: condition(),
        },
    ]
}

fn descriptions() -> Vec<Trailer> {
    let (bucket, key) = ("b".to_owned(), "k".to_owned());
    vec![
        Trailer::Whole { bucket: bucket.clone(), key: key.clone(), object: object() },
        Trailer::Piece { bucket: bucket.clone(), key: key.clone() },
        Trailer::Alternate { bucket, key, version: 3, alternate: alternate() },
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn entries_and_descriptions_have_their_golden_bytes() {
    let mut made = Vec::new();
    for command in commands() {
        let (entry, inner) = (command.to_bare(MARK), command.to_command());
        assert_eq!(Command::from_bare(&entry), Some((MARK, command.clone())));
        assert_eq!(Command::from_command(&entry).as_ref(), Ok(&command));
        assert_eq!(Command::from_command(&inner).as_ref(), Ok(&command));
        // The same bytes behind another version, without a mark.
        assert_eq!((inner[0], &inner[1..]), (3, &entry[9..]));
        let name = format!("{command:?}");
        let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
        made.push(format!("{name}: {}", hex(&entry)));
    }
    for description in descriptions() {
        let bytes = description.to_bytes();
        assert_eq!(Trailer::from_bytes(&bytes).unwrap(), description);
        let mut needle = b"data".to_vec();
        description.append_to(&mut needle);
        made.push(format!("needle: {}", hex(&needle)));
    }
    assert_eq!(made.join("\n"), GOLDEN.trim_end(), "all of it:\n{}", made.join("\n"));
}
