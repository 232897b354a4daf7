//! What a rider is told when its ride ends before it is through: what was being done, what was
//! wrong, what to do.

use holdfast_base::Error;
use holdfast_base::ids::Index;

pub(super) fn outside(low: u64, high: u64) -> Error {
    let why = "this view holds none of them; ask a view that does";
    Error::invalid(format!("ride hashes {low} up to {high}: {why}"))
}

pub(super) fn not_here(index: Index) -> Error {
    let why = "there is neither an image of it nor a spin at it that can still be joined; ride at \
               the index of an image, or at any index from the beginning";
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
