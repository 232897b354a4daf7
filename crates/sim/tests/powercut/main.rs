//! The real code of log, fold, chunk store, node and blobs under power cuts: what was acknowledged is
//! there, what was not is whole or absent, and no sync can be left out.

mod blobs;
mod chunk;
mod common;
mod faults;
mod flips;
mod fold;
mod index;
mod joining;
mod log;
mod node;
mod quarantine;
mod reached;

use holdfast_sim::powercut::{CutPlan, Layer, undisturbed};

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    fn check<L: Layer>(layer: &L, plan: fn(u64, u64, u64) -> CutPlan) {
        let run = |seed| {
            let disk = undisturbed(layer, plan(seed, 40, 1)).unwrap();
            (disk.digest(), disk.trace())
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5).0, run(6).0);
    }
    check(&log::LogLayer, log::plan);
    check(&fold::FoldLayer, fold::plan);
    check(&chunk::ChunkLayer, chunk::plan);
    check(&node::NodeLayer, node::plan);
    check(&blobs::BlobsLayer, blobs::plan);
}
