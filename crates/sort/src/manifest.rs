//! What a sort that was killed leaves for `--resume`: a file of lines that says, once the first
//! phase is over, where the bytes of each partition are, and then which partitions are in the
//! output for good. Each line ends with its checksum; what follows a bad line was never written.
//! Partitions that were in memory are only named: a resumed sort reads the input again for them.

use crate::distribute::{Chain, Piece};
use crate::hash::Sum;
use crate::output::FileTarget;
use crate::progress::Progress;
use crate::spill::SpillExtent;
use holdfast_base::{Error, Result};
use holdfast_env::disk::{Access, Disk, File, Stamp};
use holdfast_env::{HoldMutex, planted};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const FIRST_LINE: &str = "holdfast-sort-manifest 2";
/// Of the version before, which did not say what the inputs were.
const FIRST_LINE_ONE: &str = "holdfast-sort-manifest 1";

pub(crate) fn manifest_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("holdfast-sort-{id}.manifest"))
}

/// A partition that is in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub offset: u64,
    pub bytes: u64,
    pub records: u64,
}

/// What is left of a sort.
pub(crate) struct Left {
    pub sums: Vec<Sum>,
    /// Partitions that were in memory, in part at least.
    pub kept: Vec<bool>,
    pub done: Vec<Option<Done>>,
    /// By lane and partition.
    pub extents: Vec<Vec<Vec<SpillExtent>>>,
    /// The inputs as they were; none where nobody noted it.
    pub inputs: Option<Vec<Stamp>>,
    /// Where the next line goes.
    end: u64,
}

fn line(text: &str) -> String {
    format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))
}

/// What a manifest begins with: of which job it is, and what its inputs were when they were opened.
pub(crate) struct Head {
    pub job: String,
    pub inputs: Vec<Stamp>,
}

fn header(head: &Head, chains: &[Vec<Chain>], sums: &[Sum]) -> String {
    let mut out = line(FIRST_LINE) + &line(&format!("job {}", head.job));
    for Stamp { inode, written_ns } in &head.inputs {
        out += &line(&format!("input {inode} {written_ns}"));
    }
    let shape = format!("lanes {} partitions {}", chains.len(), sums.len());
    out += &line(&shape);
    for (p, sum) in sums.iter().enumerate() {
        let pieces = || {
            chains
                .iter()
                .enumerate()
                .flat_map(|(l, lane)| lane[p].pieces.iter().map(move |piece| (l, piece)))
        };
        let kept = pieces().any(|(_, piece)| matches!(piece, Piece::Kept(..)));
        let Sum { records, bytes, hash } = sum;
        out += &line(&format!("partition {p} {records} {bytes} {hash} {}", u8::from(kept)));
        for (lane, piece) in pieces().filter(|_| !kept) {
            if let Piece::Spilled(SpillExtent { file, offset, bytes }) = piece {
                out += &line(&format!("extent {lane} {p} {file} {offset} {bytes}"));
            }
        }
    }
    out + &line("distributed")
}

/// Reads the numbers behind the first word.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    let mut words = text.split(' ').skip(1);
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    words.next().is_none().then_some(numbers)
}

/// What a manifest says; none if the first phase was not over.
fn parse(text: &str, job: &str) -> Option<std::result::Result<Left, String>> {
    let mut end = 0;
    let mut lines = text.split_inclusive('\n').map_while(|line| {
        let (text, sum) = line.strip_suffix('\n')?.rsplit_once(' ')?;
        let sum = u32::from_str_radix(sum, 16).ok()?;
        end += line.len() as u64;
        (sum == crc32fast::hash(text.as_bytes())).then_some(text)
    });
    let mut inputs = match lines.next()? {
        FIRST_LINE => Some(Vec::new()),
        FIRST_LINE_ONE => None,
        _ => return None,
    };
    let found = lines.next()?.strip_prefix("job ")?;
    if found != job {
        return Some(Err(found.to_owned()));
    }
    let mut next = lines.next()?;
    while let Some(inputs) = &mut inputs
        && let Some(stamp) = next.strip_prefix("input ")
    {
        let (inode, written_ns) = stamp.split_once(' ')?;
        inputs.push(Stamp { inode: inode.parse().ok()?, written_ns: written_ns.parse().ok()? });
        next = lines.next()?;
    }
    let shape = next.strip_prefix("lanes ")?;
    let (lanes, partitions) = shape.split_once(" partitions ")?;
    let (lanes, partitions): (usize, usize) = (lanes.parse().ok()?, partitions.parse().ok()?);
    let mut left = Left {
        sums: vec![Sum::default(); partitions],
        kept: vec![false; partitions],
        done: vec![None; partitions],
        extents: vec![vec![Vec::new(); partitions]; lanes],
        inputs,
        end: 0,
    };
    let mut distributed = false;
    for line in lines {
        match line.split(' ').next()? {
            "partition" => {
                let [p, records, bytes, hash, kept] = numbers(line)?;
                *left.sums.get_mut(p as usize)? = Sum { records, bytes, hash };
                left.kept[p as usize] = kept == 1;
            }
            "extent" => {
                let [lane, p, file, offset, bytes] = numbers(line)?;
                let chain = left.extents.get_mut(lane as usize)?.get_mut(p as usize)?;
                chain.push(SpillExtent { file: file as usize, offset, bytes });
            }
            "distributed" => distributed = true,
            "done" => {
                let [p, offset, bytes, records] = numbers(line)?;
                *left.done.get_mut(p as usize)? = Some(Done { offset, bytes, records });
            }
            _ => return None,
        }
    }
    left.end = end;
    distributed.then_some(Ok(left))
}

fn failed(path: &Path, e: std::io::Error) -> Error {
    Error::from(e).context(format_args!("write manifest `{}`", path.display()))
}

/// Reads what a sort of this job has left; none if it has not come far enough.
pub(crate) fn read(disk: &dyn Disk, path: &Path, head: &Head) -> Result<Option<Left>> {
    let bytes = || {
        if !disk.exists(path)? {
            return Ok(Vec::new());
        }
        let file = disk.open_to_read(path, Access::Cached)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    let bytes = bytes().map_err(|e: std::io::Error| {
        Error::from(e).context(format_args!("read manifest `{}`", path.display()))
    })?;
    match parse(&String::from_utf8_lossy(&bytes), &head.job) {
        None => Ok(None),
        Some(Ok(Left { inputs: Some(inputs), .. }))
            if inputs != head.inputs && !planted!("sort.resume-trusts-inputs") =>
        {
            Err(Error::invalid(
                "resume: an input was written to, or replaced, since the sort began: sort without `--resume`",
            ))
        }
        Some(Ok(left)) => Ok(Some(left)),
        Some(Err(found)) => Err(Error::invalid(format!(
            "resume: the sort that was interrupted was another: {found}: give its options and inputs, or sort without `--resume`"
        ))),
    }
}

/// The manifest while the second phase goes on.
pub(crate) struct Journal {
    path: PathBuf,
    state: Mutex<State>,
    /// Output between two checkpoints.
    every: u64,
}

#[derive(Default)]
struct State {
    /// None until the first phase is durable.
    file: Option<Arc<dyn File>>,
    /// Where the next line goes.
    end: u64,
    /// Lines of partitions that are written and perhaps not durable, and their bytes.
    lines: String,
    bytes: u64,
}

impl Journal {
    pub fn new(path: PathBuf, every: u64) -> Journal {
        Journal { path, state: Mutex::default(), every }
    }

    /// Goes on with a manifest that was read.
    pub fn resume(
        disk: &dyn Disk,
        path: PathBuf,
        left: &Left,
        every: u64,
        progress: &Progress,
    ) -> Result<Journal> {
        let opened = progress.name(&path, || disk.open(&path, Access::Cached));
        let file = opened.map_err(|e| failed(&path, e))?;
        let state = State { file: Some(file), end: left.end, ..State::default() };
        Ok(Journal { path, state: Mutex::new(state), every })
    }

    /// Writes down the first phase, all of whose bytes are durable.
    pub fn begin(
        &self,
        disk: &dyn Disk,
        head: &Head,
        chains: &[Vec<Chain>],
        sums: &[Sum],
        progress: &Progress,
    ) -> Result<()> {
        let text = header(head, chains, sums);
        let write = || {
            let create = || disk.create_private(&self.path, Access::Cached);
            let file = progress.name(&self.path, create)?;
            file.write_at(text.as_bytes(), 0)?;
            file.sync("sort.manifest")?;
            let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty());
            disk.sync_dir(parent.unwrap_or(Path::new(".")), "sort.manifest_name")?;
            Ok(file)
        };
        let file = write().map_err(|e| failed(&self.path, e))?;
        let mut state = self.state.held();
        (state.file, state.end) = (Some(file), text.len() as u64);
        Ok(())
    }

    /// Notes that partition `p` is written; now and then makes it durable, and says so.
    pub fn done(&self, target: &FileTarget, p: usize, done: Done) -> Result<()> {
        let mut state = self.state.held();
        let Done { offset, bytes, records } = done;
        let _ = write!(state.lines, "{}", line(&format!("done {p} {offset} {bytes} {records}")));
        state.bytes += bytes;
        if state.bytes < self.every {
            return Ok(());
        }
        let Some(file) = state.file.clone() else { return Ok(()) };
        target.sync("sort.checkpoint")?;
        let (lines, end) = (std::mem::take(&mut state.lines), state.end);
        file.write_at(lines.as_bytes(), end).map_err(|e| failed(&self.path, e))?;
        state.end += lines.len() as u64;
        state.bytes = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::buf::AlignedBuf;

    fn chains() -> (Vec<Vec<Chain>>, Vec<Sum>) {
        let spilled = |offset| Piece::Spilled(SpillExtent { file: 1, offset, bytes: 5000 });
        let kept = Piece::Kept(AlignedBuf::zeroed(1), 7);
        let chain = |pieces| Chain { sum: Sum::default(), pieces };
        let lane = vec![chain(vec![spilled(0), spilled(8192)]), chain(vec![kept, spilled(16384)])];
        let sum = |records| Sum { records, bytes: 100 * records, hash: u64::MAX - records };
        (vec![lane], vec![sum(3), sum(4)])
    }

    #[test]
    fn what_is_written_is_read_and_a_torn_line_is_nothing() {
        let (chains, sums) = chains();
        let stamps = vec![Stamp { inode: 7, written_ns: -8 }, Stamp { inode: 9, written_ns: 10 }];
        let head = Head { job: "of \"a\"".to_owned(), inputs: stamps.clone() };
        let mut text = header(&head, &chains, &sums);
        let begun = text.len();
        text += &line("done 1 300 400 4");
        let left = parse(&text, "of \"a\"").unwrap().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(left.sums, sums);
        assert_eq!(left.inputs, Some(stamps));
        assert_eq!(left.kept, [false, true]);
        let extent = |offset| SpillExtent { file: 1, offset, bytes: 5000 };
        assert_eq!(left.extents, [[vec![extent(0), extent(8192)], vec![]]]);
        assert_eq!(left.done, [None, Some(Done { offset: 300, bytes: 400, records: 4 })]);
        assert_eq!(left.end, text.len() as u64);
        for cut in 0..text.len() {
            match parse(&text[..cut], "of \"a\"") {
                None => assert!(cut < begun),
                Some(Ok(left)) => assert!(cut >= begun && left.done == [None, None]),
                Some(Err(_)) => panic!("{cut}"),
            }
        }
        // The version before is read, too.
        let one: String = text.lines().filter(|line| !line.starts_with("input ")).fold(
            String::new(),
            |out, text| {
                let (text, _) = text.rsplit_once(' ').unwrap();
                out + &line(&text.replace("manifest 2", "manifest 1"))
            },
        );
        let left = parse(&one, "of \"a\"").unwrap().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((left.inputs, left.sums), (None, sums));
        let garbled = text.replace("5000", "5001");
        assert!(parse(&garbled, "of \"a\"").is_none());
        assert!(parse(&text, "of \"b\"").unwrap().is_err_and(|found| found == "of \"a\""));
    }
}
