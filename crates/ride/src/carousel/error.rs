//! What a rider is told when its ride ends before it is through: what was being done, what was
//! wrong, what to do.

use holdfast_base::Error;
use holdfast_base::ids::Index;

pub(super) fn outside(low: u64, high: u64) -> Error {
    let why = "this view holds none of them; ask a view that does";
    Error::invalid(format!("ride hashes {low} up to {high}: {why}"))
}

/// `newest` is the newest image that is whole.
pub(super) fn not_here(index: Index, newest: Option<Index>) -> Error {
    let there = match newest {
        Some(newest) => format!("ride at {newest}, of which there is an image"),
        None => "there is no image here".to_owned(),
    };
    let why = format!(
        "there is neither an image of it nor a spin at it that can still be joined; {there}, or at any \
         index from the beginning"
    );
    Error::not_found(format!("ride at index {index}: {why}"))
}

pub(super) fn not_reached(at_least: Index, index: Index) -> Error {
    let why = format!("the view is at {index}; ride again when it has come there");
    Error::retry(format!("ride at index {at_least} or later: {why}"))
}

pub(super) fn idle(index: Index, idle_ns: u64) -> Error {
    let seconds = idle_ns as f64 / 1e9;
    let why = format!(
        "nothing was asked for in {seconds} s, while a snapshot or an old image was kept for it; \
         ride again, and ask as long as there is more"
    );
    Error::retry(format!("ride at index {index}: {why}"))
}

pub(super) fn out_of_order(number: u64, expected: u64) -> Error {
    let why = format!("the scan made slab {number} where slab {expected} follows; ride again");
    Error::bug(format!("scan a view: {why}"))
}

pub(super) fn cut_otherwise(number: u64) -> Error {
    let why = "does not begin or end where it did before, or a head begins inside a key";
    Error::bug(format!("scan a view: slab {number} {why}; ride again"))
}

pub(super) fn too_short(slabs: u64, wanted: u64) -> Error {
    let why = format!("it ends after {slabs} slabs of a head, and {wanted} are wanted; ride again");
    Error::corrupt(format!("scan a view: {why}"))
}
