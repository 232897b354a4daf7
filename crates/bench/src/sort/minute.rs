//! MinuteSort: the most bytes that are read, sorted, written and synced in a minute.

use super::{Case, SortBench, inputs, line, run_case, text};
use holdfast_base::{Error, Result};
use holdfast_command::output::Output as Lines;
use holdfast_env::{Disk, RealDisk};
use std::path::Path;

const MINUTE_SECONDS: f64 = 60.0;
/// Nearer to the minute than this is near enough.
const NEAR_SECONDS: f64 = 4.0;
const ROUNDS: usize = 4;

/// Starts with `bytes`, and goes on with what the last rate promises for a minute.
pub fn run(
    options: &SortBench,
    directory: &Path,
    mut bytes: u64,
    memory: u64,
    lines: &mut Lines,
) -> Result<()> {
    let input = directory.join("input");
    let mut best = None;
    for _ in 0..ROUNDS {
        inputs::make(&options.kind, &input, bytes, options.seed)?;
        let made = std::fs::metadata(&input)?.len();
        let (kind, temp) = (&options.kind[..], vec![directory.to_owned()]);
        let note = "/minute".to_owned();
        let case = Case { directory, kind, bytes: made, memory, temp, pinned: false, note };
        let samples = run_case(&case, 1)?;
        let Some(sample) = samples.first() else { break };
        let (seconds, in_memory) = (sample.seconds, sample.report.in_memory);
        let line = line(&case, &samples, &[]);
        std::fs::remove_file(&input)?;
        std::fs::remove_file(directory.join("output"))?;
        if seconds <= MINUTE_SECONDS && best.as_ref().is_none_or(|(bytes, _)| *bytes < made) {
            best = Some((made, line));
        }
        let left = MINUTE_SECONDS - seconds;
        if (0.0..NEAR_SECONDS).contains(&left) {
            break;
        }
        // Input, temporary files and output; what fits in memory should stay there.
        let room = RealDisk.space(directory)?.free_bytes / 4;
        let most = if in_memory { room.min(memory / 8 * 7) } else { room };
        let next = (made as f64 * (MINUTE_SECONDS - NEAR_SECONDS / 2.0) / seconds) as u64;
        let next = next.min(most);
        if left > 0.0 && next <= made {
            break;
        }
        bytes = next;
    }
    match best {
        Some((_, line)) => lines.line(|| text(&line), || line.clone()),
        None => Err(Error::retry("sort in a minute: no size took less: start with a smaller `-s`")),
    }
}
