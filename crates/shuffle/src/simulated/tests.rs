use super::*;

fn small() -> Room {
    Room {
        servers: 8,
        block_bytes: 64 << 10,
        window_bytes: 128 << 10,
        blocks: 6,
        ..Room::default()
    }
}

/// Every block arrives once, whatever is dropped on the way: the run ends only then.
#[test]
fn all_blocks_arrive_once_in_any_room() {
    let mut dropped = 0;
    for seed in 1..40 {
        let room = Room {
            servers: 1 + (seed % 9) as u32,
            buffer_bytes: WIRE_BYTES * (1 + seed % 13),
            round_trip_ns: 1000 * seed,
            disk_bytes_per_second: 20_000_000 * seed,
            map_bytes_per_second: 2_000_000_000,
            seed,
            ..small()
        };
        let ran = room.run().unwrap();
        assert_eq!(
            ran.bytes,
            u64::from(room.servers).pow(2) * u64::from(room.blocks) * room.block_bytes
        );
        assert!(ran.held_bytes <= u64::from(room.servers) * room.window_bytes, "{room:?}: {ran:?}");
        // Whatever did not fit was sent again; a probe may have been sent for nothing.
        assert!(ran.repeated >= ran.dropped, "{room:?}: {ran:?}");
        let rate = ran.bytes as f64 * 1e9 / ran.time_ns as f64 / f64::from(room.servers);
        assert!(rate <= room.limit(), "{room:?}: {ran:?} at {rate}");
        assert_eq!(ran, room.run().unwrap());
        dropped += ran.dropped;
    }
    assert!(dropped > 1000);
}

/// A network that is never short lets the slower of mapper and disk go at its pace.
#[test]
fn a_wide_network_is_never_waited_for() {
    let wide = Room { bits_per_second: 100_000_000_000, buffer_bytes: 64 << 20, ..small() };
    let ran = Room { blocks: 60, ..wide }.run().unwrap();
    assert_eq!((ran.dropped, ran.repeated, ran.timeouts, ran.waited_ns), (0, 0, 0, 0));
    let making_ns = 60 * 8 * wide.block_bytes * NS / wide.map_bytes_per_second;
    assert!((making_ns..making_ns * 11 / 10).contains(&ran.time_ns), "{ran:?} for {making_ns}");
    let slow = Room { disk_bytes_per_second: 100_000_000, blocks: 60, ..wide };
    let ran = slow.run().unwrap();
    let writing_ns = 60 * 8 * wide.block_bytes * NS / slow.disk_bytes_per_second;
    assert!((writing_ns..writing_ns * 11 / 10).contains(&ran.time_ns), "{ran:?} for {writing_ns}");
    assert!(ran.waited_ns > 0 && ran.held_bytes > wide.block_bytes);
}

#[test]
fn a_room_that_cannot_be_is_refused() {
    for room in [
        Room { servers: 0, ..small() },
        Room { servers: 1001, ..small() },
        Room { blocks: 0, ..small() },
        Room { block_bytes: 1 << 20, ..small() },
        Room { buffer_bytes: 100, ..small() },
        Room { bits_per_second: 1, ..small() },
        Room { disk_bytes_per_second: 1, ..small() },
    ] {
        assert!(room.run().unwrap_err().message.starts_with("simulate an exchange: give"));
    }
}

/// Once each gift put the timer off: what was lost of a busy connection was found late, or never.
#[test]
fn what_is_under_way_is_not_waited_for_longer_because_more_is_given() {
    let mut flow = flow::Flow::new(100_000);
    flow.give(1);
    assert_eq!(flow.send(1000), Some(0));
    let deadline = flow.deadline_ns.unwrap();
    for now_ns in [2000, deadline - 1] {
        flow.give(1);
        assert!(flow.send(now_ns).is_some());
        assert_eq!(flow.deadline_ns, Some(deadline));
    }
}
