//! `holdfast sort`: its options, the user's files and streams. The sorting is in
//! holdfast-sort.

mod bar;
mod ray;
mod store;

use clap::{Args, Subcommand};
use holdfast_base::units::{GIB, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::{self, Output as Lines};
use holdfast_env::disk::RealDisk;
use holdfast_env::local::raise_descriptors;
use holdfast_env::planted;
use holdfast_env::signals::Endings;
use holdfast_env::tasks::{self, Stop};
use holdfast_sort::gray::{check, generate};
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job, Report};
use holdfast_sort::key::{Key, LineOptions};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
use holdfast_sort::sorted;
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    disable_help_flag = true,
    disable_version_flag = true
)]
/// `holdfast sort`, whose options are GNU sort's where they have a letter; and its subcommands.
pub struct Sort {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: SortOptions,
}

/// Options with a letter are GNU sort's; the order is that of LC_ALL=C.
#[derive(Args, Debug)]
struct SortOptions {
    /// Files to sort; `-` or none is standard input, `holdfast:///PATH` is in the store
    #[arg(value_name = "IN")]
    inputs: Vec<String>,
    /// Sort the files that are named in F, each name ended by NUL
    #[arg(long, value_name = "F", conflicts_with = "inputs")]
    files0_from: Option<String>,
    /// Write here instead of to standard output; may be one of the inputs
    #[arg(short, long, value_name = "OUT")]
    output: Option<String>,
    /// Memory to use, all buffers together [default: 1G, or half of what the control group of this
    /// process may have if that is less]
    #[arg(short = 'S', long = "memory", alias = "buffer-size", value_name = "BYTES")]
    memory: Option<String>,
    /// Directory for temporary files; several share them [default: that of OUT; without OUT, TMPDIR
    /// or /tmp]
    #[arg(short = 'T', long = "temp", alias = "temporary-directory", value_name = "DIR")]
    temp: Vec<PathBuf>,
    /// Sort by a key: F[.C][OPTIONS][,F[.C][OPTIONS]], options of `bdfghiMnrV`
    #[arg(short, long = "key", value_name = "KEY")]
    key: Vec<String>,
    /// Fields are separated by this character instead of by blanks
    #[arg(short = 't', long, value_name = "CHAR")]
    field_separator: Option<String>,
    /// Ignore blanks at the start of keys
    #[arg(short = 'b', long)]
    ignore_leading_blanks: bool,
    /// Compare blanks, letters and digits alone
    #[arg(short, long)]
    dictionary_order: bool,
    /// Compare lower case as upper case
    #[arg(short = 'f', long)]
    ignore_case: bool,
    /// Compare printable characters alone
    #[arg(short = 'i', long)]
    ignore_nonprinting: bool,
    /// Compare month names: anything else < JAN < ... < DEC
    #[arg(short = 'M', long)]
    month_sort: bool,
    /// Compare numbers
    #[arg(short, long)]
    numeric_sort: bool,
    /// Compare numbers with exponents, infinities: what is none < NaN < -inf < ... < inf
    #[arg(short = 'g', long)]
    general_numeric_sort: bool,
    /// Compare numbers with suffixes: 2K < 1G
    #[arg(short = 'h', long)]
    human_numeric_sort: bool,
    /// Compare versions: a2 < a10
    #[arg(short = 'V', long)]
    version_sort: bool,
    /// The same as a letter: general-numeric, human-numeric, month, numeric or version
    #[arg(long, value_name = "WORD")]
    sort: Option<String>,
    /// The other way round
    #[arg(short, long)]
    reverse: bool,
    /// Lines with equal keys keep their order
    #[arg(short, long)]
    stable: bool,
    /// Only the first of lines with equal keys
    #[arg(short, long)]
    unique: bool,
    /// Merge inputs that are sorted already
    #[arg(short, long)]
    merge: bool,
    /// Say whether the one input is sorted, and do nothing else; `quiet` does not say where not
    #[arg(
        short,
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "diagnose-first",
        value_parser = ["diagnose-first", "quiet", "silent"],
        conflicts_with_all = ["merge", "output"]
    )]
    check: Option<String>,
    /// The same as --check=quiet
    #[arg(short = 'C', conflicts_with_all = ["check", "merge", "output"])]
    check_quietly: bool,
    /// Write only so many records, the first
    #[arg(long, value_name = "N", conflicts_with_all = ["merge", "check", "check_quietly"])]
    top: Option<u64>,
    /// Go on where a sort of the same, to the same file, was killed
    #[arg(long, requires = "output", conflicts_with_all = ["merge", "check", "check_quietly"])]
    resume: bool,
    /// Lines end with NUL instead of newline
    #[arg(short, long)]
    zero_terminated: bool,
    /// Records end with this byte instead: a character, or `\xNN`
    #[arg(long, value_name = "BYTE", conflicts_with = "zero_terminated")]
    delimiter: Option<String>,
    /// Records of so many bytes each instead of lines
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["zero_terminated", "delimiter", "key"])]
    record: Option<usize>,
    /// Records of a length (four bytes, big-endian) and so many bytes
    #[arg(long, conflicts_with_all = ["zero_terminated", "delimiter", "record", "key"])]
    length_prefixed: bool,
    /// The key of such records: OFFSET:LENGTH [default: all]
    #[arg(long, value_name = "OFFSET:LENGTH")]
    record_key: Option<String>,
    /// Threads that sort [default: one a processor]
    #[arg(long, value_name = "N")]
    parallel: Option<usize>,
    /// Keep threads that read and write on cores apart from those that sort
    #[arg(long)]
    pin: bool,
    /// Sort over the nodes of this Ray cluster, by the Python package `holdfast`; `local` starts one
    #[arg(long, value_name = "ADDRESS", requires = "output")]
    ray: Option<String>,
    /// With --ray: OUT is a directory of a file a partition
    #[arg(long, requires = "ray")]
    parts: bool,
    /// With --ray: replace OUT if it exists
    #[arg(long, requires = "ray")]
    replace: bool,
    /// With --ray: keys of --record are random bytes or text, so that no sample is read (Indy)
    #[arg(long, requires = "ray", value_name = "bytes|ascii")]
    uniform: Option<String>,
    /// With --ray: where s3:// paths are; keys are found as Amazon's tools find them
    #[arg(long, requires = "ray", value_name = "URL")]
    s3_endpoint: Option<String>,
    /// With --ray: draw what each node did when, as SVG
    #[arg(long, requires = "ray", value_name = "FILE")]
    picture: Option<PathBuf>,
    /// With --ray: say at the end what was done
    #[arg(long, requires = "ray")]
    stats: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make the sort benchmark's records, those of gensort
    Gen {
        /// How many
        #[arg(long, value_name = "N")]
        records: u64,
        /// Number of the first
        #[arg(long, default_value_t = 0, value_name = "R")]
        start: u128,
        /// Printable characters
        #[arg(long)]
        ascii: bool,
        /// Many equal keys
        #[arg(long)]
        skew: bool,
        /// New file, or `-`
        out: String,
    },
    /// Check what was sorted, as valsort does: order, duplicate keys, checksum
    Check {
        /// What is given are summaries of parts, in order
        #[arg(long)]
        summaries: bool,
        /// Write a summary that `--summaries` reads
        #[arg(long, value_name = "FILE")]
        summary_out: Option<PathBuf>,
        /// Files, checked as one after the other; of a directory its files by name; `-` is standard
        /// input
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
    },
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `connect` makes a client for each file of the store.
pub fn run(sort: &Sort, connect: &dyn Fn() -> Result<Client>, lines: &mut Lines) -> Result<()> {
    match &sort.command {
        None if sort.options.ray.is_some() => Err(ray::run(std::env::args_os())),
        None => sort_files(&sort.options, connect, lines),
        Some(Command::Gen { records, start, ascii, skew, out }) => {
            let shape = generate::Shape { ascii: *ascii, skew: *skew };
            let request = generate::Request {
                start: *start,
                records: *records,
                shape,
                threads: processors(),
            };
            if out == "-" {
                generate::stream(&mut output::stdout(), &request)?;
                return Ok(());
            }
            let made = generate::file(&RealDisk, Path::new(out), &request)?;
            let checksum = format!("{:x}", made.checksum);
            lines.line(
                || format!("{} records, checksum {checksum}", made.records),
                || json!({"records": made.records, "bytes": made.bytes, "checksum": checksum}),
            )
        }
        Some(Command::Check { summaries, summary_out, files }) => {
            check_files(*summaries, summary_out.as_deref(), files, lines)
        }
    }
}

/// A file is its own part. A directory's parts are its files in the order of their names, without those
/// that readers of parts pass over: in front of their names is a `.` or `_`.
#[expect(clippy::disallowed_methods, reason = "a directory that the user named")]
fn parts_of(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let doing = |e: Error| e.context(format_args!("check the parts in `{}`", path.display()));
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| doing(e.into()))? {
        let entry = entry.map_err(|e| doing(e.into()))?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".")
            && !entry.file_name().as_encoded_bytes().starts_with(b"_")
        {
            parts.push(entry.path());
        }
    }
    if parts.is_empty() {
        return Err(doing(Error::invalid("there are none")));
    }
    parts.sort_unstable();
    Ok(parts)
}

#[expect(clippy::disallowed_methods, reason = "summary files that the user named")]
fn check_files(
    summaries: bool,
    summary_out: Option<&Path>,
    files: &[String],
    lines: &mut Lines,
) -> Result<()> {
    let mut parts = Vec::new();
    for file in files {
        if summaries {
            let doing = |e: Error| e.context(format_args!("read summaries `{file}`"));
            let bytes = std::fs::read(file).map_err(|e| doing(e.into()))?;
            parts.extend(check::parse_summaries(&bytes).map_err(doing)?);
        } else if file == "-" {
            parts.extend(check::stream(&mut std::io::stdin())?);
        } else {
            for path in parts_of(Path::new(file))? {
                parts.extend(check::file(&RealDisk, &path, processors())?);
            }
        }
    }
    let Some(all) = check::chain(parts) else {
        return lines.line(
            || "0 records".to_owned(),
            || json!({"records": 0, "checksum": "0", "duplicates": 0, "unordered": 0}),
        );
    };
    if let Some(path) = summary_out {
        std::fs::write(path, all.to_bytes()).map_err(|e| {
            Error::from(e).context(format_args!("write summary `{}`", path.display()))
        })?;
    }
    let checksum = format!("{:x}", all.checksum);
    lines.line(
        || {
            format!(
                "{} records, checksum {checksum}, {} duplicate keys, {} unordered",
                all.records, all.duplicates, all.unordered
            )
        },
        || {
            json!({
                "records": all.records.to_string().parse::<u64>().unwrap_or(u64::MAX),
                "checksum": checksum,
                "duplicates": all.duplicates.to_string().parse::<u64>().unwrap_or(u64::MAX),
                "unordered": all.unordered.to_string().parse::<u64>().unwrap_or(u64::MAX),
            })
        },
    )?;
    if all.unordered == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "check: {} records are less than the one before them, the first is record {}",
        all.unordered, all.first_unordered
    )))
}

const WORDS: [&str; 5] = ["general-numeric", "human-numeric", "month", "numeric", "version"];

impl SortOptions {
    fn format(&self) -> Result<Format> {
        if let Some(bytes) = self.record {
            if bytes == 0 {
                return Err(Error::invalid("`--record 0`: a record has at least one byte"));
            }
            return Ok(Format::Fixed(bytes));
        }
        if self.length_prefixed {
            return Ok(Format::Prefixed);
        }
        if self.zero_terminated {
            return Ok(Format::Delimited(0));
        }
        let Some(text) = &self.delimiter else { return Ok(Format::Delimited(b'\n')) };
        byte(text).map(Format::Delimited).ok_or_else(|| {
            Error::invalid(format!("`--delimiter {text}`: write one character, or `\\xNN`"))
        })
    }

    fn order(&self, format: Format) -> Result<Order> {
        let word = |word: &str| self.sort.as_deref() == Some(word);
        if let Some(other) = self.sort.as_deref().filter(|word| !WORDS.contains(word)) {
            return Err(Error::invalid(format!(
                "`--sort={other}`: choose one of {}",
                WORDS.join(", ")
            )));
        }
        let letters = [
            (self.ignore_leading_blanks, 'b'),
            (self.dictionary_order, 'd'),
            (self.ignore_case, 'f'),
            (self.general_numeric_sort || word("general-numeric"), 'g'),
            (self.human_numeric_sort || word("human-numeric"), 'h'),
            (self.ignore_nonprinting, 'i'),
            (self.month_sort || word("month"), 'M'),
            (self.numeric_sort || word("numeric"), 'n'),
            (self.reverse, 'r'),
            (self.version_sort || word("version"), 'V'),
        ];
        let letters: String = letters.iter().filter(|(on, _)| *on).map(|(_, l)| *l).collect();
        if let Format::Delimited(_) = format {
            if self.record_key.is_some() {
                return Err(Error::invalid("`--record-key` goes with `--record`; lines have `-k`"));
            }
            let separator = match self.field_separator.as_deref() {
                None => None,
                Some("\\0") => Some(0),
                Some(text) => Some(byte(text).ok_or_else(|| {
                    Error::invalid(format!("`-t {text}`: a separator is one character"))
                })?),
            };
            return Order::lines(&LineOptions {
                keys: self.key.iter().map(|key| Key::parse(key)).collect::<Result<_>>()?,
                separator,
                letters,
                stable: self.stable || self.unique,
            });
        }
        if letters.chars().any(|letter| letter != 'r') {
            return Err(Error::invalid(format!(
                "`-{}`: records that are no lines are compared byte by byte, with `-r` at most",
                letters.replace('r', "")
            )));
        }
        let Some(text) = &self.record_key else {
            return Order::range(format, 0, None, self.reverse);
        };
        let range = text.split_once(':').and_then(|(offset, length)| {
            let (offset, length) = (offset.parse::<usize>().ok()?, length.parse::<usize>().ok()?);
            Some((offset, offset.checked_add(length)?))
        });
        let (start, end) = range.ok_or_else(|| {
            Error::invalid(format!("`--record-key {text}`: write OFFSET:LENGTH, e.g. 0:10"))
        })?;
        Order::range(format, start, Some(end), self.reverse)
    }
}

/// One byte, plain or as `\xNN`.
fn byte(text: &str) -> Option<u8> {
    match (text.as_bytes(), text.strip_prefix("\\x")) {
        ([byte], _) => Some(*byte),
        (_, Some(hex)) if hex.len() == 2 => u8::from_str_radix(hex, 16).ok(),
        _ => None,
    }
}

fn input_of(name: &str, connect: &dyn Fn() -> Result<Client>) -> Result<Input> {
    if let Some(path) = store::path(name) {
        return Ok(Input::Stream(name.to_owned(), store::read(connect()?, path)?));
    }
    let path = Path::new(name);
    // Whatever is no plain file is read once, front to back.
    #[expect(clippy::disallowed_methods, reason = "a file that the user named")]
    let stream = match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => std::fs::File::open(path).ok(),
        _ => None,
    };
    Ok(match stream {
        _ if name == "-" => Input::Stream("standard input".to_owned(), Box::new(std::io::stdin())),
        Some(file) => Input::Stream(name.to_owned(), Box::new(file)),
        None => Input::File(path.to_owned()),
    })
}

/// The names that a file lists, each ended by NUL.
#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
fn listed(file: &str) -> Result<Vec<String>> {
    let doing = |e: Error| e.context(format_args!("read the list of files `{file}`"));
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().read_to_end(&mut bytes).map(drop),
        _ => std::fs::read(file).map(|read| bytes = read),
    };
    read.map_err(|e| doing(e.into()))?;
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| doing(Error::invalid("a name is not UTF-8")))?;
    let names: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    match names.iter().any(String::is_empty) || names.is_empty() {
        true => Err(doing(Error::invalid("it has no names, or an empty one"))),
        false => Ok(names),
    }
}

fn output_of(name: Option<&str>, connect: &dyn Fn() -> Result<Client>) -> Result<Output> {
    if let Some((name, path)) = name.and_then(|name| Some((name, store::path(name)?))) {
        return Ok(Output::Stream(name.to_owned(), store::write(connect()?, path)?));
    }
    let Some(name) = name else {
        return Ok(Output::Stream("standard output".to_owned(), Box::new(output::stdout())));
    };
    let path = Path::new(name);
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            Err(Error::invalid(format!("write `{name}`: it is a directory")))
        }
        Ok(metadata) if !metadata.is_file() => {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(path)
                .map_err(|e| Error::from(e).context(format_args!("write `{name}`")))?;
            Ok(Output::Stream(name.to_owned(), Box::new(file)))
        }
        // A link stays a link: what it names is replaced.
        Ok(_) => Ok(Output::File(path.canonicalize().unwrap_or_else(|_| path.to_owned()))),
        Err(_) => Ok(Output::File(path.to_owned())),
    }
}

/// Files that a sort has open beside its inputs, and then some.
const DESCRIPTORS: u64 = 256;
/// Memory where nobody says.
const MEMORY_BYTES: u64 = GIB;
/// A control group's limit holds for others in it, too, and for what the kernel keeps of files.
const GROUP_PART: u64 = 2;

fn default_memory(limit_bytes: Option<u64>) -> u64 {
    let limit = limit_bytes.filter(|_| !planted!("sort.group-unseen"));
    let part = limit.map_or(MEMORY_BYTES, |limit| limit / GROUP_PART);
    // A group may be too small for any sort: one that fits is tried.
    part.clamp(holdfast_sort::memory_bytes_min(), MEMORY_BYTES)
}

fn sort_files(
    options: &SortOptions,
    connect: &dyn Fn() -> Result<Client>,
    lines: &mut Lines,
) -> Result<()> {
    let (progress, over) = (Arc::new(Progress::default()), Stop::new());
    let watch = watch_signals(progress.clone(), over.clone())?;
    let done = sort_watched(options, connect, lines, &progress);
    over.request();
    if done.is_err() && progress.is_stopped() {
        // Does not return: the process ends as the signal has it.
        watch.join();
    }
    done
}

fn sort_watched(
    options: &SortOptions,
    connect: &dyn Fn() -> Result<Client>,
    lines: &mut Lines,
    progress: &Arc<Progress>,
) -> Result<()> {
    let format = options.format()?;
    let order = options.order(format)?;
    let names = match (&options.files0_from, &options.inputs[..]) {
        (Some(file), _) => listed(file)?,
        (None, []) => vec!["-".to_owned()],
        (None, names) => names.to_vec(),
    };
    // All inputs are open at once. Where the limit stays below, opening the next one says so.
    let _ = raise_descriptors(names.len() as u64 + DESCRIPTORS);
    let inputs: Vec<Input> =
        names.iter().map(|name| input_of(name, connect)).collect::<Result<_>>()?;
    let output = output_of(options.output.as_deref(), connect)?;
    let memory_bytes = match &options.memory {
        Some(text) => parse_bytes(text).map_err(Error::invalid)?,
        None => default_memory(holdfast_env::memory::limit_bytes()),
    };
    let temp = match &options.temp[..] {
        [] => vec![job::default_temp(&output)],
        given => given.to_vec(),
    };
    let to_file = matches!(output, Output::File(_));
    let job = Job {
        inputs,
        output,
        format,
        order,
        unique: options.unique,
        memory_bytes,
        temp,
        threads: options.parallel.unwrap_or_else(processors),
        pinned: options.pin,
        first: options.top,
        resume: options.resume,
    };
    let quiet = options.check_quietly
        || options.check.as_deref().is_some_and(|how| how != "diagnose-first");
    if quiet || options.check.is_some() {
        return match sorted::first_unordered(&RealDisk, job, progress)? {
            None => Ok(()),
            // The exit status says it.
            Some(_) if quiet => std::process::exit(1),
            Some((number, record)) => Err(Error::invalid(format!(
                "check `{}`: record {number} is out of order: {}",
                names.first().map_or("-", |name| name),
                String::from_utf8_lossy(&record).trim_end()
            ))),
        };
    }
    let stop = Stop::new();
    let drawer = bar::draw(progress.clone(), stop.clone(), &job)?;
    let done = match options.merge {
        true => sorted::merge(&RealDisk, job, progress),
        false => job::run(&RealDisk, job, progress),
    };
    stop.request();
    drawer.into_iter().for_each(tasks::Task::join);
    let report = done?;
    // As GNU sort, it is silent; a program may ask for the figures.
    if to_file { lines.object(|| report_object(&report)) } else { Ok(()) }
}

fn report_object(report: &Report) -> serde_json::Value {
    json!({
        "records": report.records,
        "bytes": report.bytes,
        "records_out": report.records_out,
        "bytes_out": report.bytes_out,
        "in_memory": report.in_memory,
        "partitions": report.partitions,
        "kept_bytes": report.kept_bytes,
        "resumed": report.resumed,
        "split_partitions": report.split,
        "split_bytes": report.split_bytes,
    })
}

/// What a sort may take to end by itself after a signal. One that waits for a pipe never does.
const GRACE: Duration = Duration::from_secs(1);

/// Ends the process at a signal, when the sort has cleaned up or is cleaned up after. `over` is
/// requested when the sort has returned. Called before any other thread is spawned: each has the
/// mask of the one that spawned it, and a signal takes the one that does not block it.
fn watch_signals(progress: Arc<Progress>, over: Stop) -> Result<tasks::Task> {
    let endings = (!planted!("sort.signals-blocked-late")).then(Endings::block);
    tasks::spawn("sort-signals", move || {
        let endings = endings.unwrap_or_else(Endings::block);
        let Ok(ending) = endings.wait() else { return };
        progress.stop();
        over.sleep_until_stop(GRACE);
        progress.abandon(&RealDisk);
        ending.end()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_characters_or_hexadecimal() {
        assert_eq!([byte(","), byte("\\x00"), byte("\\xff")], [Some(b','), Some(0), Some(255)]);
        assert_eq!([byte(""), byte("ab"), byte("\\x0"), byte("\\xzz")], [None; 4]);
    }

    #[test]
    fn memory_is_what_a_control_group_has_room_for() {
        assert_eq!(default_memory(None), GIB);
        assert_eq!(default_memory(Some(64 * GIB)), GIB);
        assert_eq!(default_memory(Some(512 << 20)), 256 << 20);
        assert_eq!(default_memory(Some(1 << 20)), 32 << 20);
    }
}
