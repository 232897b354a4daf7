//! How fast each transfer goes in a slot: the paper's iterative WSS (section 4.3), and the
//! deadline-based allocation that it is compared with.

/// What one transfer needs: bytes, and the links that it crosses. A link that does not apply is
/// given as one of infinite capacity.
#[derive(Clone, Copy, Debug)]
pub struct Flow<const LINKS: usize> {
    pub links: [u32; LINKS],
    pub mb: f32,
}

/// The paper's rates are done in five iterations.
pub const ITERATIONS_MAX: usize = 5;
/// Links this close to the slowest are frozen along with it. Exact ties are rare, and freezing one
/// link at a time would take an iteration for each node.
const TIE: f64 = 0.97;

/// Rates and what they took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// MB/s of each flow.
    pub mb_s: Vec<f32>,
    pub iterations: usize,
    /// Seconds until the slowest flow is through: the bottleneck's c / B.
    pub slowest_s: f64,
}

/// Iterative weighted shuffle scheduling: all flows get rates in proportion to their sizes, such
/// that the most loaded link is full; flows through it are done with, what they leave of the other
/// links is shared among the rest in the same way, and a flow's rate is the sum of its shares. No
/// link is ever given more than its capacity.
///
/// The paper's text stops once every transfer fits into the slot; since the greedy sees to that,
/// it would always stop after one round. We go on, to use what is left.
pub fn wss<const LINKS: usize>(flows: &[Flow<LINKS>], capacity_mb_s: &[f32]) -> Rates {
    let mut rates = Rates { mb_s: vec![0.0; flows.len()], ..Rates::default() };
    let mut left: Vec<f64> = capacity_mb_s.iter().map(|b| f64::from(*b)).collect();
    let mut load = vec![0f64; left.len()];
    // What crosses a link without capacity stands still, and takes nothing from the others.
    let moves = |flow: &Flow<LINKS>| flow.links.iter().all(|l| capacity_mb_s[*l as usize] > 0.0);
    for flow in flows.iter().filter(|flow| moves(flow)) {
        for link in flow.links {
            load[link as usize] += f64::from(flow.mb);
        }
    }
    let mut frozen = vec![false; left.len()];
    let mut active: Vec<u32> =
        (0..flows.len() as u32).filter(|flow| moves(&flows[*flow as usize])).collect();
    // Each active flow's rate so far is its size times this.
    let mut share = 0.0;
    while !active.is_empty() && rates.iterations < ITERATIONS_MAX {
        let finish = |link: usize| if load[link] > 1e-9 { load[link] / left[link] } else { 0.0 };
        let slowest = (0..left.len()).map(finish).fold(0.0, f64::max);
        rates.slowest_s = rates.slowest_s.max(if rates.iterations == 0 { slowest } else { 0.0 });
        if slowest <= 0.0 {
            break;
        }
        for (link, frozen) in frozen.iter_mut().enumerate() {
            *frozen |= finish(link) >= TIE * slowest;
        }
        share += 1.0 / slowest;
        for link in 0..left.len() {
            left[link] = (left[link] - load[link] / slowest).max(0.0);
        }
        active.retain(|flow| {
            let Flow { links, mb } = flows[*flow as usize];
            if !links.iter().any(|link| frozen[*link as usize]) {
                return true;
            }
            rates.mb_s[*flow as usize] = (f64::from(mb) * share) as f32;
            for link in links {
                load[link as usize] -= f64::from(mb);
            }
            false
        });
        for link in 0..left.len() {
            if frozen[link] {
                // What rounding leaves of a load must not look like a flow.
                load[link] = 0.0;
            }
        }
        rates.iterations += 1;
    }
    for flow in active {
        rates.mb_s[flow as usize] = (f64::from(flows[flow as usize].mb) * share) as f32;
    }
    rates
}

/// DA: a rate that is just enough to finish within the slot.
pub fn deadline<const LINKS: usize>(flows: &[Flow<LINKS>], slot_s: f32) -> Rates {
    let mb_s = flows.iter().map(|flow| flow.mb / slot_s).collect();
    Rates { mb_s, iterations: 0, slowest_s: f64::from(slot_s) }
}

/// Rounds of [`fair`]; each leaves a fraction of what the one before left.
const FAIR_ROUNDS: usize = 6;

/// What transfers get that share links without a plan, as TCP's would: each link offers what it
/// has left to its flows in equal parts, a flow takes the least of its offers, and so again.
pub fn fair(links: &[[u32; 2]], capacity_mb_s: &[f32]) -> Vec<f32> {
    let mut left = capacity_mb_s.to_vec();
    let mut flows = vec![0f32; left.len()];
    links.iter().flatten().for_each(|link| flows[*link as usize] += 1.0);
    let mut rates = vec![0f32; links.len()];
    let mut offer = vec![0f32; left.len()];
    for _ in 0..FAIR_ROUNDS {
        for (offer, (left, flows)) in offer.iter_mut().zip(left.iter().zip(&flows)) {
            *offer = left.max(0.0) / flows.max(1.0);
        }
        for (rate, [a, b]) in rates.iter_mut().zip(links) {
            let (a, b) = (*a as usize, *b as usize);
            let more = offer[a].min(offer[b]);
            *rate += more;
            left[a] -= more;
            left[b] -= more;
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn flows(pairs: &[(u32, u32, f32)]) -> Vec<Flow<2>> {
        pairs.iter().map(|(a, b, mb)| Flow { links: [*a, *b], mb: *mb }).collect()
    }

    #[test]
    fn the_bottleneck_is_full_and_the_rest_is_used() {
        // Link 0 carries two flows of one size; flow 2 crosses links 1 and 4 and has them almost
        // to itself after the first round.
        let flows = flows(&[(0, 3, 60.0), (0, 4, 60.0), (1, 4, 60.0)]);
        let rates = wss(&flows, &[60.0, 100.0, 0.0, 100.0, 100.0]);
        assert!((rates.mb_s[0] - 30.0).abs() < 1e-4 && (rates.mb_s[1] - 30.0).abs() < 1e-4);
        assert!((rates.mb_s[2] - 70.0).abs() < 1e-3, "{rates:?}");
        assert_eq!(rates.iterations, 2);
        assert!((rates.slowest_s - 2.0).abs() < 1e-9);
    }

    #[test]
    fn no_link_gets_more_than_its_capacity() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let nodes = 40;
            let capacity: Vec<f32> = (0..2 * nodes).map(|_| 30.0 + 157.0 * random.unit()).collect();
            let flows: Vec<Flow<2>> = (0..900)
                .map(|_| Flow {
                    links: [random.below(nodes) as u32, (nodes + random.below(nodes)) as u32],
                    mb: 1.0 + 63.0 * random.unit(),
                })
                .collect();
            let rates = wss(&flows, &capacity);
            assert!(rates.iterations <= ITERATIONS_MAX);
            let mut used = vec![0f64; capacity.len()];
            for (flow, rate) in flows.iter().zip(&rates.mb_s) {
                assert!(*rate > 0.0);
                // Nobody waits longer than the bottleneck.
                assert!(f64::from(flow.mb / rate) <= rates.slowest_s * 1.0001);
                flow.links.iter().for_each(|link| used[*link as usize] += f64::from(*rate));
            }
            let mut full = 0;
            for (used, capacity) in used.iter().zip(&capacity) {
                assert!(*used <= f64::from(*capacity) * 1.0001, "{used} of {capacity}");
                full += usize::from(*used > 0.99 * f64::from(*capacity));
            }
            assert!(full >= 1, "no link is full");
        }
    }

    #[test]
    fn a_link_without_capacity_stops_its_flows_alone() {
        let rates = wss(&flows(&[(0, 2, 10.0), (1, 2, 10.0)]), &[0.0, 50.0, 50.0]);
        assert_eq!(rates.mb_s, [0.0, 50.0]);
        assert!(wss::<2>(&[], &[]).mb_s.is_empty());
    }

    #[test]
    fn fair_shares_fill_links_and_never_overfill_them() {
        let mut random = Random::new(5);
        let nodes = 50;
        let capacity: Vec<f32> = (0..2 * nodes).map(|_| 30.0 + 157.0 * random.unit()).collect();
        let link = |random: &mut Random| {
            [random.below(nodes) as u32, (nodes + random.below(nodes)) as u32]
        };
        let links: Vec<[u32; 2]> = (0..250).map(|_| link(&mut random)).collect();
        let mut used = vec![0.0; capacity.len()];
        for (links, rate) in links.iter().zip(fair(&links, &capacity)) {
            links.iter().for_each(|link| used[*link as usize] += rate);
        }
        let full =
            used.iter().zip(&capacity).filter(|(used, capacity)| *used > &(0.97 * **capacity));
        assert!(full.count() > nodes, "half of the links are full");
        assert!(used.iter().zip(&capacity).all(|(used, capacity)| *used <= capacity * 1.0001));
    }

    #[test]
    fn deadlines_are_met_exactly() {
        let rates = deadline(&flows(&[(0, 1, 30.0)]), 15.0);
        assert_eq!(rates.mb_s, [2.0]);
    }
}
