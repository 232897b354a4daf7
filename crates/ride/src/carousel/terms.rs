//! What goes into the core and what comes out of it, in words that the driver shares with it. Slabs
//! are known by what is said about them, never by their bytes.

use holdfast_base::ids::Index;
use holdfast_base::units::MIB;
use holdfast_base::{Error, Result};
use holdfast_env::trial::Knob;
use std::fmt;

/// Snapshots that riders share, at a time: one that turns, and the one before it for those that are not
/// through yet.
const SPINS_MAX: usize = 2;
/// The window of each head, at most.
pub static WINDOW_BYTES: Knob = Knob::new("ride.window-bytes", 64 * MIB, &[1, 300, 4096]);
/// Private scans of snapshots at a time.
pub const PRIVATE_MAX: usize = 4;

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    )*};
}

numbers! {
    /// Who rides. Given by the driver, and never given twice.
    RiderId "rider ";
    /// One snapshot of the engine, and all that is read of it. Given by the core, never twice.
    SpinId "spin ";
    /// One pass over rows of a snapshot or an image. Given by the core, never twice.
    ScanId "scan ";
}

/// Hashes from `low` up to, and without, `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first hash.
    pub low: u64,
    /// The first hash behind it.
    pub high: u64,
}

impl Span {
    /// Whether both have a hash in common.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.low.max(other.low) < self.high.min(other.high)
    }
}

/// What a carousel may hold and how patient it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// A head makes no further slab while it keeps so many bytes for riders that are behind. So
    /// it keeps less than this and one slab more.
    pub window_bytes: u64,
    /// Snapshots that riders share, at a time.
    pub spins_max: usize,
    /// Snapshots of riders that share none, at a time.
    pub dedicated_max: usize,
    /// Private scans of shared snapshots at a time, of all riders together.
    pub private_max: usize,
    /// A rider may hold up others for so long, and ...
    pub allowance_ns: u64,
    /// ... for this part of its time aboard, too.
    pub allowance_percent: u64,
    /// Who asks for nothing for so long may not hold a snapshot open any longer.
    pub idle_ns: u64,
    /// The same while somebody waits for a spin that there cannot be: as long as anybody may stand
    /// still who holds memory that is short.
    pub waited_ns: u64,
}

impl Limits {
    /// What a node uses.
    pub fn usual() -> Limits {
        Limits::of(u64::MAX, 1)
    }

    /// Where all windows of so many heads together may have so many bytes.
    pub fn of(windows_bytes: u64, heads: u32) -> Limits {
        let shares = SPINS_MAX as u64 * u64::from(heads.max(1));
        let window_bytes = WINDOW_BYTES.get().min(windows_bytes / shares).max(1);
        Limits {
            window_bytes,
            spins_max: SPINS_MAX,
            dedicated_max: 8,
            private_max: PRIVATE_MAX,
            allowance_ns: 20_000_000,
            allowance_percent: 2,
            idle_ns: 60_000_000_000,
            waited_ns: 5_000_000_000,
        }
    }
}

/// What a rider asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ticket {
    /// Everything, at whatever index costs least: no older than this one, which the view has
    /// reached when the rider comes.
    Shared {
        /// No snapshot below this index will do.
        at_least: Index,
    },
    /// The same from a snapshot and by scans of its own, from the beginning: for measuring.
    Dedicated {
        /// No snapshot below this index will do.
        at_least: Index,
    },
    /// At exactly this index, from an image of it or a spin that can still be joined. With a row,
    /// from this row on: where an earlier ride ended. The row lies in the rider's first head.
    /// A ride that had joined in the middle goes on as two: from its next row to the head's end, and
    /// through what it missed, leaving where it had joined.
    At {
        /// The one index.
        index: Index,
        /// The first row that is wanted of the first head; none, if all are.
        from: Option<Vec<u8>>,
    },
}

/// Who boards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Boarding {
    /// Hashes that the rider wants. It gets the heads that have some of them, whole: the driver
    /// leaves out what it does not want.
    pub span: Span,
    /// What it asks for.
    pub ticket: Ticket,
}

/// What the core knows of a slab.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slab {
    /// From 0 in its head; whoever begins at its first row counts on from it.
    pub number: u64,
    /// What it costs to keep and to send.
    pub bytes: u64,
    /// It begins with a key, not inside one.
    pub joinable: bool,
    /// Its first row; opaque.
    pub first: Vec<u8>,
    /// The head's range ends with it.
    pub last: bool,
}

/// Names the bytes of a slab that a scan has made, while the driver holds them. The same slab made
/// by two scans has two names, so that one may be forgotten while the other is still to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// Who made it.
    pub scan: ScanId,
    /// The slab's number in its head.
    pub number: u64,
}

/// Where a scan begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The number of the slab that begins there.
    pub number: u64,
    /// Its first row; none where the head begins.
    pub first: Option<Vec<u8>>,
}

impl Place {
    /// Where the head begins.
    pub const START: Place = Place { number: 0, first: None };
}

/// What a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The snapshot of a spin.
    Snapshot(SpinId),
    /// The image of an index; while it is being written, no further than was said to be written.
    Image(Index),
}

/// Whom a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reader {
    /// All who are aboard.
    Shared,
    /// This one alone.
    Private(RiderId),
}

/// What the driver is to do. Effects are begun in their order; the answers may come in any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Take a snapshot, or hand over the one that was taken for this image. Answer: `opened`.
    Open {
        /// The spin that it is for.
        spin: SpinId,
        /// The index of the image that is made of it.
        image: Option<Index>,
    },
    /// Give the snapshot back. None of its scans is under way.
    Close {
        /// The spin that has ended.
        spin: SpinId,
    },
    /// The rider rides, at this index.
    Boarded {
        /// Who.
        rider: RiderId,
        /// Of everything that it will be sent.
        index: Index,
        /// What it stands on; it may be sent the rest out of the spin's image later.
        on: Source,
    },
    /// Make the next slab. Answer: `made` or `failed`, even if the scan is stopped meanwhile.
    Scan {
        /// The scan; at most one slab of it is under way.
        scan: ScanId,
        /// What it reads.
        source: Source,
        /// Of which head.
        head: usize,
        /// Where it begins; none for a scan that goes on.
        at: Option<Place>,
        /// Whom it is for.
        reader: Reader,
    },
    /// The scan will not be asked again. Slabs that it made stay until they are forgotten.
    Stop {
        /// The scan.
        scan: ScanId,
    },
    /// Send it, but for what the rider does not want of it.
    Send {
        /// To whom.
        rider: RiderId,
        /// As the next one of this head.
        head: usize,
        /// What.
        slab: Held,
    },
    /// Write it to the image. Answer: `spooled`.
    Spool {
        /// Whose image.
        spin: SpinId,
        /// As the next one of this head.
        head: usize,
        /// What.
        slab: Held,
    },
    /// All slabs are written: sync the image and give it its name. Answer: `sealed`.
    Seal {
        /// Whose image.
        spin: SpinId,
    },
    /// The image is not made: a slab could not be written, or not be made, or its writer held up
    /// riders for too long. What is still being written of it needs no answer. [`Effect::Remove`]
    /// follows. For the operator.
    Abandon {
        /// Whose image.
        spin: SpinId,
    },
    /// Nobody reads this image, and nobody will: remove what there is of it, and the snapshot that
    /// was taken for it if no spin ever had it.
    Remove {
        /// Its index.
        image: Index,
    },
    /// Nobody else will be sent these bytes.
    Forget {
        /// Which.
        slab: Held,
    },
    /// The rider held up others of this head too long, and reads on by itself. For the operator.
    Moved {
        /// Who.
        rider: RiderId,
        /// Of which head.
        head: usize,
    },
    /// The ride is over: all was sent, or the reason why not.
    End {
        /// Whose.
        rider: RiderId,
        /// How it went.
        result: Result<(), Error>,
    },
}
