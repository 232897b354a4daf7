//! The view: what each addition makes of the sums. Total and deterministic: it reads no clock and no
//! setting, and every node comes to the same sums.

use holdfast_base::codec::{Decode, Encode};
use holdfast_base::codec_struct;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Result};
use holdfast_view::{Applied, Context, View};
use std::collections::BTreeMap;

/// Bytes of a counter's name.
pub const NAME_BYTES_MAX: usize = 255;
/// Of the command; a later build may have others.
const VERSION: u8 = 1;

/// The only command: adds to one counter, and answers its new sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Add {
    version: u8,
    pub name: String,
    pub by: u64,
}
codec_struct!(Add { version, name, by });

impl Add {
    pub fn new(name: &str, by: u64) -> Add {
        Add { version: VERSION, name: name.to_owned(), by }
    }
}

/// All sums.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// 0 for a counter that nobody has added to.
    pub fn sum(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    fn add(&mut self, add: &Add) -> Result<u64> {
        let refused = |what: &str| Error::invalid(format!("add to a counter: {what}"));
        if add.version != VERSION {
            return Err(refused("there never was such a version"));
        }
        if add.name.is_empty() || add.name.len() > NAME_BYTES_MAX {
            return Err(refused("its name has to have 1 to 255 bytes"));
        }
        let sum = self.sum(&add.name).checked_add(add.by);
        let sum = sum.ok_or_else(|| refused("the sum would be 2^64 or more: use another one"))?;
        self.0.insert(add.name.clone(), sum);
        Ok(sum)
    }
}

impl View for Counters {
    const NAME: &'static str = "counters";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> Counters {
        Counters::default()
    }

    fn apply(&mut self, _: Index, command: &[u8]) -> Applied {
        match command.first() {
            // A build that knows it goes on from here; this one stops rather than guess.
            Some(version) if *version > VERSION => {
                return Applied::UnknownVersion(format!("version {version} of an addition"));
            }
            _ => {}
        }
        match Add::from_bytes(command).map_err(Error::from).and_then(|add| self.add(&add)) {
            Ok(sum) => Applied::Ok(sum.to_bytes()),
            Err(e) => Applied::Refused(e),
        }
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        out.put(&(self.0.len() as u64));
        for (name, sum) in &self.0 {
            out.put(name);
            out.put(sum);
        }
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<Counters> {
        let count: u64 = source.get()?;
        let mut sums = BTreeMap::new();
        for _ in 0..count {
            sums.insert(source.get()?, source.get()?);
        }
        Ok(Counters(sums))
    }
}
