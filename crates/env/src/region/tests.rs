use super::*;

fn region(frames: u64) -> Arc<Region> {
    Region::create("test", StoreId(42), frames * FRAME_BYTES).unwrap()
}

fn write(frames: &Frames, bytes: &[u8]) -> RegionSlice {
    let mut window = frames.reserve(bytes.len()).unwrap();
    window.copy_from_slice(bytes);
    window.freeze()
}

#[test]
fn frozen_bytes_are_read_by_server_and_client() {
    let region = region(4);
    let frames = region.allocate(2).unwrap();
    let slice = write(&frames, b"hello, region");
    assert_eq!(&*frames.slice(7, 6).unwrap(), b"region");
    assert_eq!(&*slice.slice(0..5), b"hello");
    let client = MappedRegion::from_fd(&region.client_fd().unwrap()).unwrap();
    assert_eq!((client.store(), client.frames()), (StoreId(42), 4));
    let mut copy = [0; 13];
    client.copy_out(slice.region_offset(), &mut copy).unwrap();
    assert_eq!(&copy, b"hello, region");
    assert_eq!(client.frame_of(slice.region_offset()), Some(frames.frames().start));
    assert!(client.copy_out(0, &mut copy).is_err(), "the header is not a frame");
    assert!(client.copy_out(u64::MAX - 3, &mut copy).is_err());
}

#[test]
fn a_client_cannot_map_for_writing() {
    let region = region(1);
    let fd = region.client_fd().unwrap();
    let refused = Mapping::read_write(&fd, FRAME_BYTES as usize).err().expect("it is read-only");
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    // Not even through the server's own descriptor: the file is sealed.
    let refused = Mapping::read_write(&region.file, FRAME_BYTES as usize).err().expect("sealed");
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_descriptor_that_is_no_region_is_refused() {
    let unsealed = memfd::create("unsealed", 4 * FRAME_BYTES).unwrap();
    assert!(MappedRegion::from_fd(&unsealed).err().unwrap().message.contains("not sealed"));
    memfd::seal_size(&unsealed).unwrap();
    assert!(
        MappedRegion::from_fd(&unsealed).err().unwrap().message.contains("not a memory region")
    );
}

#[test]
fn frames_return_only_after_the_last_slice() {
    let region = region(2);
    let frames = region.allocate(2).unwrap();
    let slice = write(&frames, b"kept");
    let part = slice.slice(1..3);
    let generation = region.frame_generation(0);
    drop(frames);
    drop(slice);
    assert!(region.allocate(1).is_none(), "a slice still reads");
    assert_eq!((&*part, region.frame_generation(0)), (&b"ep"[..], generation));
    drop(part);
    assert_ne!(region.frame_generation(0), generation, "clients can tell");
    assert_eq!(region.frames_free(), 2);
}

#[test]
fn a_client_notices_reuse_under_its_copy() {
    let region = region(1);
    let client = MappedRegion::from_fd(&region.client_fd().unwrap()).unwrap();
    let frames = region.allocate(1).unwrap();
    let offset = write(&frames, b"old").region_offset();
    let generation = client.generation(0);
    let mut copy = [0; 3];
    client.copy_out(offset, &mut copy).unwrap();
    assert!(client.unchanged(0, generation));
    drop(frames);
    assert!(!client.unchanged(0, generation));
}

#[test]
fn unsettled_bytes_cannot_be_read() {
    let region = region(1);
    let frames = region.allocate(1).unwrap();
    let (a, b) = (frames.reserve(10).unwrap(), frames.reserve(10).unwrap());
    drop(b.freeze());
    assert!(frames.slice(9, 2).is_none(), "what is in front is still being written");
    drop(a.freeze());
    assert_eq!(frames.slice(0, 20).unwrap().len(), 20);
    assert!(frames.slice(0, 21).is_none());
    assert!(frames.slice(u64::MAX, 2).is_none());
}

#[test]
fn an_abandoned_window_is_given_out_again_if_it_was_the_last() {
    let region = region(1);
    let frames = region.allocate(1).unwrap();
    drop(write(&frames, b"first"));
    drop(frames.reserve(100).unwrap());
    assert_eq!(frames.reserved_bytes(), 5);
    let (inner, last) = (frames.reserve(10).unwrap(), frames.reserve(10).unwrap());
    drop(inner);
    drop(last.freeze());
    assert_eq!((frames.reserved_bytes(), frames.settled_bytes()), (25, 25));
    // Three windows dropped from the front: the middle settles, and the last takes back only
    // itself, never what a slice may cover.
    assert!(frames.reserve(FRAME_BYTES as usize - 24).is_none());
    assert!(frames.reserve(FRAME_BYTES as usize - 25).is_some());
}

#[test]
fn runs_are_adjacent_and_tails_return() {
    let region = region(4);
    let a = region.allocate(3).unwrap();
    assert!(region.allocate(2).is_none());
    drop(write(&a, &[1; 10]));
    a.truncate(1);
    let b = region.allocate(3).unwrap();
    assert_eq!((a.frames(), b.frames()), (0..1, 1..4));
    drop((a, b));
    assert_eq!(region.frames_free(), 4);
}

#[test]
fn what_is_settled_behind_an_open_window_can_be_read() {
    let region = region(1);
    let frames = region.allocate(1).unwrap();
    let open = frames.reserve(4).unwrap();
    write(&frames, b"behind");
    write(&frames, b"it");
    assert_eq!(&*frames.slice(4, 6).unwrap(), b"behind");
    assert_eq!(&*frames.slice(10, 2).unwrap(), b"it");
    assert!(frames.slice(3, 2).is_none(), "the front of it is being written");
    assert!(frames.slice(10, 3).is_none(), "nobody wrote the rest");
    drop(open.freeze());
    assert_eq!(frames.slice(0, 12).unwrap().len(), 12);
}
