//! Whether what a get and a put cost a node stays as it is where its table has twenty times as many records.

use super::super::report::median;
use super::super::server::Settings;
use super::served::Served;
use super::{TableBench, figure};
use holdfast_base::Result;
use holdfast_command::output::Output;

const VALUE_BYTES: usize = 100;
const TIMES: u64 = 20;

/// Both nodes stand, and take turns: what the machine does meanwhile, it does to both.
pub fn run(options: &TableBench, out: &mut Output) -> Result<()> {
    let settings = Settings { tables_memory: "16G".to_owned(), ..Settings::default() };
    let start = |records| Served::start_with(options, &settings, records, VALUE_BYTES);
    let (few, many) = (start((options.many / TIMES).max(1))?, start(options.many)?);
    let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
    for _ in 0..options.repetitions {
        of_few.push(few.costs_us()?);
        of_many.push(many.costs_us()?);
    }
    type Which = fn(&(f64, f64)) -> f64;
    let cases: [(&str, Which); 2] = [("a get", |costs| costs.0), ("a put", |costs| costs.1)];
    for (name, which) in cases {
        let of = |costs: &[(f64, f64)]| median(costs.iter().map(which));
        let case = format!("{name} of 100 B, {} records: server CPU", options.many);
        let few = ("that of a twentieth", of(&of_few));
        figure(&case, of(&of_many), "us", few, (Some(1.15), false), out)?;
    }
    Ok(())
}
