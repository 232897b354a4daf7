//! The progress bar of a sort: phase, rate, what is left, and the share of what the disk can do.

use holdfast_base::Result;
use holdfast_env::disk::RealDisk;
use holdfast_env::tasks::{self, Stop};
use holdfast_sort::input::Input;
use holdfast_sort::job::Job;
use holdfast_sort::probe;
use holdfast_sort::progress::{Phase, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

/// From so many bytes on it is worth a few seconds to ask what the disk can do.
const PACE_FROM_BYTES: u64 = 2 << 30;
const PACE_BYTES: u64 = 64 << 20;

/// Bytes a second, read and written together, that the first temporary disk can do: the bound of
/// the sort. None for small inputs, streams, and where it cannot be measured.
fn pace(job: &Job) -> Option<f64> {
    let bytes_of = |input: &Input| match input {
        Input::File(path) => std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
        Input::Stream(..) => 0,
    };
    let bytes: u64 = job.inputs.iter().map(bytes_of).sum();
    let temp = job.temp.first().filter(|_| bytes >= PACE_FROM_BYTES)?;
    probe::mixed_bandwidth(&RealDisk, temp, PACE_BYTES).ok()
}

/// The share of the bound that a sort has reached so far, in words.
fn share(bytes: u64, seconds: f64, pace: Option<f64>) -> String {
    match pace {
        Some(pace) if seconds > 0.0 => {
            format!("{:.0}% of the disk's pace", bytes as f64 / seconds / pace * 100.0)
        }
        _ => String::new(),
    }
}

/// Draws a bar until the stop, where standard error is a terminal.
pub fn draw(progress: Arc<Progress>, stop: Stop, job: &Job) -> Result<Option<tasks::Task>> {
    if !std::io::stderr().is_terminal() {
        return Ok(None);
    }
    let pace = pace(job);
    const EVERY: Duration = Duration::from_millis(200);
    let work = move || {
        let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {prefix} {eta} left";
        let bar = ProgressBar::no_length();
        let bar = match ProgressStyle::with_template(style) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        };
        while !stop.sleep_until_stop(EVERY) {
            let (read, written, total) = progress.bytes();
            bar.set_message(match progress.phase() {
                Phase::Sample => "sample",
                Phase::Distribute => "1: split",
                Phase::Sort => "2: sort",
                Phase::Finish => "sync",
            });
            if total > 0 {
                bar.set_length(total);
            }
            bar.set_position(read + written);
            bar.set_prefix(share(read + written, bar.elapsed().as_secs_f64(), pace));
        }
        bar.finish_and_clear();
    };
    tasks::spawn("sort-draw", work).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_bound_is_bytes_by_time_by_pace() {
        assert_eq!(share(600, 2.0, Some(400.0)), "75% of the disk's pace");
        assert_eq!([share(600, 2.0, None), share(600, 0.0, Some(1.0))], ["", ""]);
    }
}
