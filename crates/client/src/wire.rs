//! The messages of the services, and which numbers they may take. Every opcode belongs to the
//! range of its service; a server answers one that it does not know with `Unsupported`.

/// Sessions and administration: `0x0000..=0x00ff`.
pub const SESSION: u16 = 0x0000;
/// Chunks and regions: `0x0100..=0x01ff`.
pub const CHUNK: u16 = 0x0100;
/// The log: `0x0200..=0x02ff`.
pub const LOG: u16 = 0x0200;
/// Files: `0x0300..=0x03ff`.
pub const FILE: u16 = 0x0300;

/// Which range an opcode is in: one of the constants above, or of a later build.
pub const fn service_of(opcode: u16) -> u16 {
    opcode & 0xff00
}

/// Answered with the request's meta, by the network layer itself.
pub const OP_PING: u16 = holdfast_env::net::OP_PING;
/// Asks for a descriptor of the `dram` region; on Unix sockets only.
pub const OP_REGION: u16 = CHUNK + 1;

const _: () = assert!(service_of(OP_PING) == SESSION && service_of(OP_REGION) == CHUNK);
