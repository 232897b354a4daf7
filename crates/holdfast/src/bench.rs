//! `holdfast bench`: every benchmark, beside the limit measured in the same run.

use crate::cli::Iobench;
use crate::output::Output;
use holdfast_base::Result;

pub fn iobench(_options: &Iobench, _out: &mut Output) -> Result<()> {
    Ok(())
}
