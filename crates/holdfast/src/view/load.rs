//! `holdfast view load`: fills a topic, many changes an entry and several entries under way.

mod csv;
mod ntriples;
mod packages;

use clap::Subcommand;
use holdfast_base::random::mix;
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_client::view::{Changes, Changing, ViewClient};
use holdfast_command::output::Output;
use holdfast_env::{Clock, RealClock};
use holdfast_ride::check_json;
use holdfast_wire::slab::{Hashed, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use holdfast_wire::view::Collection;
use serde_json::json;
use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Bytes of changes in one entry, and entries under way.
const ENTRY_BYTES: usize = 256 << 10;
const AHEAD: usize = 8;
/// A line of an input; a longer one is no line.
const LINE_BYTES_MAX: usize = 900 << 10;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What a topic is filled with.
#[derive(Subcommand, Debug)]
pub enum Load {
    /// A graph, as Beam's own measurements had it: nodes, and as many edges beside them
    Graph {
        topic: String,
        /// Nodes, and edges
        #[arg(long, default_value_t = 1_000_000, value_name = "N")]
        nodes: u64,
        /// Of each value
        #[arg(long, default_value_t = 150, value_name = "BYTES")]
        value_bytes: usize,
        #[arg(long, default_value_t = 1, value_name = "SEED")]
        seed: u64,
    },
    /// Lines of a file, or of standard input (`-`): a key, a tab, and its value. A carriage return in
    /// front of a line feed is of the line's end. A line has up to 921600 bytes
    Lines { topic: String, collection: String, file: PathBuf },
    /// Records of a CSV file (RFC 4180), or of standard input (`-`): their first one names the columns.
    /// A record is a JSON object of its other columns, all of them strings, by the text in its key's.
    /// The collection is made if there is none
    Csv {
        topic: String,
        collection: String,
        file: PathBuf,
        /// Whose text is the key [default: the first one]
        #[arg(long, value_name = "COLUMN")]
        key: Option<String>,
    },
    /// Triples of an N-Triples file, or of standard input (`-`). The key is the triple, and hashed by
    /// its subject: `<http://s> <http://p> "o"`; the value is a JSON object of subject, predicate and
    /// object as text. The collection is made if there is none
    Ntriples { topic: String, collection: String, file: PathBuf },
    /// Stanzas of Debian packages, as `apt-cache dumpavail` prints them, of a file or of standard input
    /// (`-`): by a package's name, its version and section and the names of what it depends on, as
    /// JSON. The collection is made if there is none
    Packages { topic: String, collection: String, file: PathBuf },
}

/// What a file is read into: one key with its value after another.
type PutEach<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Sends changes, entry after entry.
struct Sender<'a, 'b> {
    view: &'a mut ViewClient<'b>,
    changes: Changes,
    under_way: VecDeque<Changing>,
    items: u64,
}

impl Sender<'_, '_> {
    fn put(&mut self, collection: u16, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.changes.is_empty() && self.changes.bytes() + key.len() + value.len() > ENTRY_BYTES
        {
            self.send()?;
        }
        self.changes.put(collection, key, value);
        self.items += 1;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if self.under_way.len() >= AHEAD
            && let Some(first) = self.under_way.pop_front()
        {
            self.view.wait(first)?;
        }
        let changes = std::mem::take(&mut self.changes);
        self.under_way.push_back(self.view.submit(&changes)?);
        Ok(())
    }

    /// The last entry's index, if there was one.
    fn finish(mut self) -> Result<(u64, u64)> {
        if !self.changes.is_empty() {
            self.send()?;
        }
        let mut last = 0;
        while let Some(first) = self.under_way.pop_front() {
            last = self.view.wait(first)?.0;
        }
        Ok((self.items, last))
    }
}

/// Carries out one `view load`.
pub fn run(client: &mut Client, load: &Load, out: &mut Output) -> Result<()> {
    let clock = RealClock::new();
    let (Load::Graph { topic, .. }
    | Load::Lines { topic, .. }
    | Load::Csv { topic, .. }
    | Load::Ntriples { topic, .. }
    | Load::Packages { topic, .. }) = load;
    let mut view = client.view(topic);
    let (items, last) = match load {
        Load::Graph { nodes, value_bytes, seed, .. } => {
            graph(&mut view, *nodes, *value_bytes, *seed)?
        }
        Load::Lines { collection, file, .. } => {
            let (_, of) = view.collection_of(collection)?;
            read(&mut view, Into::Known(collection), file, |input, put| lines(input, of.json, put))?
        }
        Load::Csv { collection, file, key, .. } => {
            let of = Into::Made(collection, Hashed::All);
            read(&mut view, of, file, |input, put| csv::read(input, key.as_deref(), put))?
        }
        Load::Ntriples { collection, file, .. } => {
            // Triples of a subject lie side by side; no term but a literal, which comes last, has a
            // space in it.
            read(&mut view, Into::Made(collection, Hashed::Until(b' ')), file, ntriples::read)?
        }
        Load::Packages { collection, file, .. } => {
            read(&mut view, Into::Made(collection, Hashed::All), file, packages::read)?
        }
    };
    let seconds = clock.monotonic_ns() as f64 / 1e9;
    out.line(
        || format!("{items} items up to entry {last}, in {seconds:.1} s"),
        || json!({"topic": topic, "items": items, "last": last, "seconds": seconds}),
    )
}

fn sender<'a, 'b>(view: &'a mut ViewClient<'b>) -> Sender<'a, 'b> {
    Sender { view, changes: Changes::default(), under_way: VecDeque::new(), items: 0 }
}

/// Nodes `n0000000000`, in an order that is none, and of each an edge to another one: its key begins
/// with the node's, so that it lies beside it.
fn graph(
    view: &mut ViewClient<'_>,
    nodes: u64,
    value_bytes: usize,
    seed: u64,
) -> Result<(u64, u64)> {
    if value_bytes > VALUE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "load a graph with values of {value_bytes} bytes: a value has up to {VALUE_BYTES_MAX}"
        )));
    }
    let collection =
        |name: &str| Collection { name: name.to_owned(), hashed: Hashed::Until(b'/'), json: false };
    view.make(collection("nodes"))?;
    view.make(collection("edges"))?;
    let (of_nodes, of_edges) = (view.collection("nodes")?, view.collection("edges")?);
    let mut value = vec![0; value_bytes];
    let mut sender = sender(view);
    // Of a number without a common factor with it: each node once.
    let step = (0x9e37_79b9_7f4a_7c15 % nodes.max(1)) | 1;
    let step = (step..).step_by(2).find(|step| gcd(*step, nodes.max(1)) == 1).unwrap_or(1);
    for n in 0..nodes {
        let node = (u128::from(n) * u128::from(step) % u128::from(nodes)) as u64;
        let drawn = mix(seed ^ node);
        for (at, bytes) in value.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&mix(drawn ^ at as u64).to_le_bytes()[..bytes.len()]);
        }
        sender.put(of_nodes, format!("n{node:010}").as_bytes(), &value)?;
        let edge = format!("n{node:010}/n{:010}", drawn % nodes);
        sender.put(of_edges, edge.as_bytes(), &value)?;
    }
    sender.finish()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Which collection a file is loaded into.
enum Into<'a> {
    /// One that is there.
    Known(&'a str),
    /// One of JSON, which is made if there is none.
    Made(&'a str, Hashed),
}

impl Into<'_> {
    fn number(&self, view: &mut ViewClient<'_>) -> Result<u16> {
        match *self {
            Into::Known(name) => view.collection(name),
            Into::Made(name, hashed) => made(view, name, hashed),
        }
    }
}

/// A collection of JSON: the one of this name, or a new one.
fn made(view: &mut ViewClient<'_>, name: &str, hashed: Hashed) -> Result<u16> {
    // Of a topic that is not there, it is the first one.
    let known = view.catalog().map_or_else(|_| Vec::new(), |catalog| catalog.collections);
    match known.iter().find(|one| one.name == name) {
        None => drop(view.make(Collection { name: name.to_owned(), hashed, json: true })?),
        Some(one) if one.json => {}
        Some(_) => {
            return Err(Error::invalid(format!(
                "load collection `{name}`: its values are bytes, and the file's become JSON: load \
                 another collection"
            )));
        }
    }
    view.collection(name)
}

/// Puts what a file, or standard input, has. A collection is made once there is something to be put into it:
/// a file whose first line is wrong, or that is not there, leaves none behind.
#[expect(clippy::disallowed_methods, reason = "a file that the user named")]
fn read(
    view: &mut ViewClient<'_>,
    into: Into<'_>,
    file: &Path,
    each: impl FnOnce(&mut dyn BufRead, &mut PutEach<'_>) -> Result<()>,
) -> Result<(u64, u64)> {
    let doing = |e: Error| e.context(format_args!("load `{}`", file.display()));
    let mut input: Box<dyn BufRead> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(file).map_err(|e| doing(e.into()))?)),
    };
    let mut sender = sender(view);
    let mut number = match into {
        Into::Known(_) => Some(into.number(sender.view)?),
        Into::Made(..) => None,
    };
    let put = &mut |key: &[u8], value: &[u8]| {
        let of = match number {
            Some(of) => of,
            None => *number.insert(into.number(sender.view)?),
        };
        sender.put(of, key, value)
    };
    each(&mut input, put).map_err(doing)?;
    if number.is_none() {
        into.number(sender.view)?;
    }
    sender.finish()
}

/// What is wrong with a line, and what is a right one.
fn wrong(number: u64, what: impl Display, right: &str) -> Error {
    Error::invalid(format!(
        "line {number} {what}: {right}; what is in front of it may be loaded already, and can be loaded \
         again"
    ))
}

/// Names the line of a key that no entry takes.
fn check_key(number: u64, key: &[u8]) -> Result<()> {
    match (1..=KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => {
            let right = format!("a key has 1 to {KEY_BYTES_MAX}");
            Err(wrong(number, format!("has a key of {} bytes", key.len()), &right))
        }
    }
}

/// The next line with its end, whatever it holds; false at the end of the input.
fn next_line(input: &mut dyn BufRead, number: u64, line: &mut Vec<u8>) -> Result<bool> {
    line.clear();
    let mut limited = Read::take(&mut *input, LINE_BYTES_MAX as u64 + 1);
    limited.read_until(b'\n', line)?;
    // What some programs write in front of UTF-8 is of no line.
    if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
        line.drain(..BYTE_ORDER_MARK.len());
    }
    match line.len() > LINE_BYTES_MAX {
        true => {
            Err(wrong(number, "is too long", &format!("a line has up to {LINE_BYTES_MAX} bytes")))
        }
        false => Ok(!line.is_empty()),
    }
}

/// The next line as text, without its end.
fn next_text<'a>(
    input: &mut dyn BufRead,
    number: u64,
    line: &'a mut Vec<u8>,
) -> Result<Option<&'a str>> {
    if !next_line(input, number, line)? {
        return Ok(None);
    }
    let text = std::str::from_utf8(line)
        .map_err(|_| wrong(number, "is not UTF-8", "the file has to be text"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    Ok(Some(text.strip_suffix('\r').unwrap_or(text)))
}

/// Whose values are to be JSON, or any bytes. The node would refuse what is none without saying in which line it
/// stands.
fn lines(input: &mut dyn BufRead, json: bool, put: &mut PutEach<'_>) -> Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        if !next_line(input, number, &mut line)? {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let tab = text.iter().position(|byte| *byte == b'\t');
        let tab =
            tab.ok_or_else(|| wrong(number, "has no tab", "a line is a key, a tab and a value"))?;
        let (key, value) = (&text[..tab], &text[tab + 1..]);
        check_key(number, key)?;
        if json && let Err(why) = check_json(value) {
            let right = "the collection's values are JSON";
            return Err(wrong(number, format!("has a value that is no JSON ({why})"), right));
        }
        put(key, value)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_says_how_long_a_line_may_be() {
        let load = Load::augment_subcommands(clap::Command::new("load"));
        let lines = load.find_subcommand("lines").and_then(|lines| lines.get_about());
        let about = lines.unwrap().to_string();
        assert!(about.contains(&format!("up to {LINE_BYTES_MAX} bytes")), "{about}");
    }

    /// Lines of other systems kept a carriage return at the end of each value, and a byte order mark in
    /// front of the first key; and a key that no entry takes was refused without its line.
    #[test]
    fn lines_end_as_other_systems_have_them_and_wrong_keys_are_named_by_theirs() {
        let mut found = Vec::new();
        let mut put = |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            Ok(())
        };
        lines(&mut &b"\xef\xbb\xbfa\t1\r\nb\t2\r3\n"[..], false, &mut put).unwrap();
        let of = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        assert_eq!(found, [of("a", "1"), of("b", "2\r3")]);
        let long = format!("a\t1\n{}\t2\n", "k".repeat(KEY_BYTES_MAX + 1));
        for (text, named) in [
            (long.as_str(), "line 2 has a key of 8193"),
            ("\t1\n", "line 1 has a key"),
            ("a\t1\nb\tno\n", "line 2 has a value that is no JSON"),
        ] {
            let refused = lines(&mut text.as_bytes(), true, &mut |_, _| Ok(())).unwrap_err();
            assert!(refused.message.contains(named), "{refused}");
        }
        lines(&mut &b"a\tno\n"[..], false, &mut |_, _| Ok(())).unwrap();
        // The node refused it, and said no line: a string whose bytes are no text.
        let refused = lines(&mut &b"a\t1\nb\t\"\xff\"\n"[..], true, &mut |_, _| Ok(()));
        let refused = refused.unwrap_err();
        assert!(refused.message.contains("line 2 has a value that is no JSON"), "{refused}");
    }

    #[test]
    fn a_byte_order_mark_is_of_no_triple() {
        let text = "\u{feff}<http://s> <http://p> \"o\" .\r\n";
        let mut keys = Vec::new();
        let mut put = |key: &[u8], _: &[u8]| {
            keys.push(key.to_vec());
            Ok(())
        };
        ntriples::read(&mut text.as_bytes(), &mut put).unwrap();
        assert_eq!(keys, [b"<http://s> <http://p> \"o\"".to_vec()]);
    }
}
