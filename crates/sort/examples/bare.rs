#![allow(clippy::all, clippy::disallowed_methods)]
use holdfast_env::disk::RealDisk;
use holdfast_sort::input::Input;
use holdfast_sort::job::{self, Job};
use holdfast_sort::key::{Key, LineOptions};
use holdfast_sort::order::Order;
use holdfast_sort::output::Output;
use holdfast_sort::progress::Progress;
use holdfast_sort::record::Format;
fn io() -> (u64, u64) {
    let t = std::fs::read_to_string("/proc/self/io").unwrap();
    let f = |n: &str| t.lines().find_map(|l| l.strip_prefix(n)).unwrap().trim().parse().unwrap();
    (f("read_bytes:"), f("write_bytes:"))
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (input, output, memory, key) = (&a[1], &a[2], a[3].parse::<u64>().unwrap() << 20, &a[4]);
    let n: usize = a.get(5).map_or(1, |n| n.parse().unwrap());
    let bytes = std::fs::metadata(input).unwrap().len();
    for _ in 0..n {
        let (format, order) = if key == "rec" {
            (Format::Fixed(100), Order::range(Format::Fixed(100), 0, Some(10), false).unwrap())
        } else {
            let keys = if key == "-" { vec![] } else { vec![Key::parse(key).unwrap()] };
            (
                Format::Delimited(b'\n'),
                Order::lines(&LineOptions { keys, ..Default::default() }).unwrap(),
            )
        };
        let job = Job {
            inputs: vec![Input::File(input.into())],
            output: Output::File(output.into()),
            format,
            order,
            unique: false,
            memory_bytes: memory,
            temp: vec![job::default_temp(&Output::File(output.into()))],
            threads: 2,
            first: None,
            resume: false,
        };
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let t = std::time::Instant::now();
        let (u, s) = holdfast_env::local::cpu_seconds();
        let i = io();
        let p = std::sync::Arc::new(Progress::default());
        let p2 = p.clone();
        let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let over2 = over.clone();
        let th = std::thread::spawn(move || {
            let mut last = p2.phase();
            let mut marks = vec![];
            loop {
                std::thread::sleep(std::time::Duration::from_millis(5));
                let ph = p2.phase();
                if ph != last {
                    marks.push(format!("{ph:?}@{:.2}", t.elapsed().as_secs_f64()));
                    last = ph;
                }
                if over2.load(std::sync::atomic::Ordering::Relaxed) {
                    return marks;
                }
            }
        });
        let r = job::run(&RealDisk, job, &p).unwrap();
        let e = t.elapsed().as_secs_f64();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let (u2, s2) = holdfast_env::local::cpu_seconds();
        let j = io();
        let g = bytes as f64 / 1e9;
        let rss = std::fs::read_to_string("/proc/self/status").unwrap();
        let rss = rss.lines().find(|l| l.starts_with("VmHWM")).unwrap().to_string();
        println!(
            "{e:.2} s {:.0} MB/s user {:.2} sys {:.2} a GB, read {:.3} write {:.3} {rss} {:?} {r:?}",
            bytes as f64 / 1e6 / e,
            (u2 - u) / g,
            (s2 - s) / g,
            (j.0 - i.0) as f64 / bytes as f64,
            (j.1 - i.1) as f64 / bytes as f64,
            th.join().unwrap()
        );
    }
}
