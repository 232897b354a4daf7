use super::*;

/// Mean, standard deviation as a share of the mean.
fn cov(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / n;
    let variance = values.map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    (mean, variance.sqrt() / mean)
}

/// The statistics of the paper's Figure 1 and section 2.2: mean below half of the bandwidth
/// (98 MB/s by its ideal of 51 s), CoV of most records in 0.4-0.6, much lower over an hour and a
/// day, 95% of changes within 36 MB/s, none above two thirds of 250.
#[test]
fn the_trace_has_the_papers_statistics() {
    let (nodes, records) = (700, 5760);
    let params = TraceParams::default();
    let generator = Generator::new(&params, nodes, 1, 0, 0.0, RECORD_S);
    let steps: Vec<Foreground> = generator.take(records).collect();
    let (mut means, mut covs, mut deltas) = (0.0, Vec::new(), Vec::new());
    for (i, step) in steps.iter().enumerate() {
        let (mean, cov) = cov(step.in_mb_s.iter().map(|v| f64::from(*v)));
        means += mean / records as f64;
        covs.push(cov);
        if i > 0 {
            let last = &steps[i - 1].in_mb_s;
            deltas.extend(step.in_mb_s.iter().zip(last).map(|(a, b)| (a - b).abs()));
        }
    }
    assert!((92.0..=104.0).contains(&means), "mean {means} MB/s");
    let within = covs.iter().filter(|cov| (0.4..=0.6).contains(*cov)).count();
    assert!(within as f64 >= 0.9 * records as f64, "{within} of {records} records in 0.4-0.6");
    let small = deltas.iter().filter(|delta| **delta <= 36.0).count() as f64 / deltas.len() as f64;
    assert!((0.935..=0.975).contains(&small), "{small} of the changes are within 36 MB/s");
    let largest = deltas.iter().fold(0f32, |a, b| a.max(*b));
    assert!(largest > 100.0 && largest <= 166.8, "largest change {largest} MB/s");
    let averaged = |records: usize| {
        let node =
            |node: usize| steps[..records].iter().map(|s| f64::from(s.in_mb_s[node])).sum::<f64>();
        cov((0..nodes).map(node).collect::<Vec<f64>>().into_iter()).1
    };
    let (hour, day) = (averaged(240), averaged(5760));
    assert!((0.15..=0.28).contains(&hour) && (0.07..=0.15).contains(&day), "{hour} {day}");
    assert!(steps.iter().all(|s| s.out_mb_s.iter().all(|v| (0.0..=250.0).contains(v))));
}

/// A trace of one-second steps is the same process seen more often.
#[test]
fn fine_steps_have_the_same_marginals() {
    let fine = Generator::new(&TraceParams::default(), 2000, 3, 0, 0.0, 1.0);
    let fine: Vec<Foreground> = fine.take(46).collect();
    let (mean, now) = cov(fine[45].out_mb_s.iter().map(|v| f64::from(*v)));
    assert!((90.0..=112.0).contains(&mean) && (0.4..=0.6).contains(&now), "{mean} {now}");
    let deltas = (0..2000)
        .flat_map(|i| [15, 30, 45].map(|t| (fine[t].out_mb_s[i] - fine[t - 15].out_mb_s[i]).abs()));
    let small = deltas.filter(|delta| *delta <= 36.0).count() as f64 / 6000.0;
    assert!((0.93..=0.98).contains(&small), "{small} of the changes in 15 s are within 36 MB/s");
}

#[test]
fn windows_repeat_and_differ() {
    let window = |seed, window| {
        let generator = Generator::new(&TraceParams::default(), 50, seed, window, 0.0, 15.0);
        generator.take(4).collect::<Vec<_>>()
    };
    assert_eq!(window(1, 2), window(1, 2));
    assert_ne!(window(1, 2), window(1, 3));
    assert_ne!(window(1, 2), window(2, 2));
}

#[test]
fn replicas_lie_on_distinct_racks_and_common_bytes_vary() {
    let nodes = 700;
    let placement = Placement::new(&PlacementParams::default(), nodes, 1);
    let tasks = placement.failure(9, 70_000, 0);
    assert_eq!(tasks.len(), 70_000);
    let mut common = vec![0.0f64; nodes];
    let mut full = 0;
    for task in 0..tasks.len() as u32 {
        let [a, b] = *tasks.sources(task) else { panic!("two survive of three") };
        let rack = |node: u32| placement.racks()[node as usize];
        assert!(rack(a) != rack(b) && rack(a) != rack(9) && rack(b) != rack(9));
        common[a as usize] += f64::from(tasks.mb(task));
        common[b as usize] += f64::from(tasks.mb(task));
        full += usize::from(tasks.mb(task) == 64.0);
    }
    assert!((full as f64 / 70_000.0 - 0.95).abs() < 0.01);
    let (_, cov) = cov(common.into_iter().filter(|c| *c > 0.0));
    assert!((0.25..=0.37).contains(&cov), "SC varies by {cov}");
}

#[test]
fn impossible_traces_are_refused() {
    let good = "slot,node,in_mb_s,out_mb_s\n0,0,1,2\n0,1,3,4\n1,1,5,6\n1,0,250,0\n";
    let trace = parse_csv(good, 2, 250.0).unwrap();
    assert_eq!((trace.nodes(), trace.steps.len()), (2, 2));
    assert_eq!(trace.at(15.0).in_mb_s, [250.0, 5.0]);
    assert_eq!(trace.at(30.0).in_mb_s, [1.0, 3.0], "it starts again");
    let head = "slot,node,in_mb_s,out_mb_s\n";
    for (body, says) in [
        ("0,0,1,2\n1,1,1,1\n1,0,1,1\n", "slot `0` has no line for node `1`"),
        ("0,0,1,2\n0,1,-3,4\n", "`-3` is impossible"),
        ("0,0,1,2\n0,1,NaN,4\n", "`NaN` is impossible"),
        ("0,0,1,2\n0,1,251,4\n", "`251` is impossible"),
        ("0,0,1,2\n0,7,3,4\n", "node `7` is unknown"),
        ("0,0,1,2\n0,0,1,2\n", "is there twice"),
        ("0,0,1\n", "is not `slot"),
        ("900000,0,1,2\n", "most before it are missing"),
        ("", "no slot follows"),
    ] {
        let error = parse_csv(&format!("{head}{body}"), 2, 250.0).unwrap_err();
        assert!(error.message.contains(says), "{body:?}: {error}");
    }
    assert!(parse_csv("a,b\n", 2, 250.0).unwrap_err().message.contains("header"));
}

#[test]
fn copysets_bound_how_many_nodes_share_chunks_and_so_how_fast_they_are_recovered() {
    let params = PlacementParams { rack_nodes: 10, scatter: 20, ..PlacementParams::default() };
    let placement = Placement::new(&params, 200, 3);
    let tasks = placement.failure(7, 5000, 1);
    let mut shares = std::collections::BTreeSet::new();
    for task in 0..tasks.len() as u32 {
        let holders = tasks.sources(task);
        assert_eq!(holders.len(), 2);
        let racks = [holders[0] / 10, holders[1] / 10, 0];
        assert!(racks[0] != racks[1] && racks[..2].iter().all(|rack| *rack != racks[2]));
        shares.extend(holders.iter().copied());
    }
    assert!((15..=20).contains(&shares.len()), "{}", shares.len());
    // The same sets for every failure of the node.
    let again = placement.failure(7, 5000, 2);
    assert!((0..5000).all(|task| again.sources(task).iter().all(|node| shares.contains(node))));
}
