use super::*;

/// What node 1, node 2, ... say: digests by index; and that their snapshots cover as many entries
/// as their number.
fn told(digests: &[&[(u64, u64)]]) -> BTreeMap<NodeId, Told> {
    let one = |(at, digests): (usize, &&[(u64, u64)])| {
        let digests = digests.iter().map(|(index, digest)| (Index(*index), *digest)).collect();
        let id = NodeId(at as u32 + 1);
        (id, Told { covered: Index(id.0 as u64), digests, ..Told::default() })
    };
    digests.iter().enumerate().map(one).collect()
}

/// One letter a node: `a`grees, `w`ithdrawn, `o`utvoted, `d`isputed.
fn standings(nodes: usize, told: &BTreeMap<NodeId, Told>) -> String {
    let letter = |standing: &Standing| match standing {
        Standing::Agrees => 'a',
        Standing::Withdrawn => 'w',
        Standing::Outvoted(_) => 'o',
        Standing::Disputed(_) => 'd',
    };
    judge(nodes, told).values().map(letter).collect()
}

fn judged(nodes: usize, digests: &[&[(u64, u64)]]) -> String {
    standings(nodes, &told(digests))
}

#[test]
fn of_three_the_minority_is_outvoted_and_of_two_both_are_in_doubt() {
    assert_eq!(judged(3, &[&[(8, 1)], &[(8, 1)], &[(8, 2)]]), "aao");
    assert_eq!(judged(2, &[&[(8, 1)], &[(8, 2)]]), "dd");
    assert_eq!(judged(4, &[&[(8, 1)], &[(8, 2)], &[(8, 1)], &[(8, 2)]]), "dddd");
    assert_eq!(judged(5, &[&[(8, 1)], &[(8, 2)], &[(8, 1)], &[(8, 2)], &[(8, 3)]]), "ddddd");
    assert_eq!(judged(1, &[&[(8, 1)]]), "a");
    // No majority of those that told something is one of the cluster.
    assert_eq!(judged(5, &[&[(8, 1)], &[(8, 1)], &[(8, 2)]]), "ddd");
    assert_eq!(judged(5, &[&[(8, 1)], &[(8, 1)], &[(8, 2)], &[(8, 1)]]), "aaoa");
}

#[test]
fn equal_indices_alone_are_compared() {
    // Node 2 is behind, node 3 was booted from a snapshot: they share nothing with each other.
    assert_eq!(judged(3, &[&[(8, 1), (16, 2)], &[(8, 1)], &[(16, 2)]]), "aaa");
    assert_eq!(judged(3, &[&[(8, 1)], &[(9, 2)], &[(10, 3)]]), "aaa");
    // Node 3 is outvoted where node 2 was already, so node 1 is not in doubt where it was not yet.
    let far: &[&[(u64, u64)]] = &[&[(8, 1), (16, 2)], &[(8, 1)], &[(8, 7), (16, 8)]];
    assert_eq!(judged(3, far), "aao");
    let Standing::Outvoted(difference) = judge(3, &told(far))[&NodeId(3)].clone() else {
        panic!("it is outvoted")
    };
    assert_eq!(difference.to_string(), "up to entry 8, nodes 1, 2 and node 3 differ");
    assert_eq!(difference.others(NodeId(3)).collect::<Vec<_>>(), [NodeId(1), NodeId(2)]);
}

#[test]
fn a_view_that_its_node_has_stopped_counts_for_nobody() {
    let mut told = told(&[&[(8, 1)], &[(8, 1)], &[(8, 2)]]);
    told.get_mut(&NodeId(3)).unwrap().withdrawn = true;
    assert_eq!(standings(3, &told), "aaw");
    assert_eq!(trim_before(3, &told, &judge(3, &told)), Some(Index(1)));
    // Two of three are left, and differ: neither is more than half.
    told.get_mut(&NodeId(2)).unwrap().digests.insert(Index(16), 5);
    told.get_mut(&NodeId(1)).unwrap().digests.insert(Index(16), 4);
    assert_eq!(standings(3, &told), "ddw");
    assert_eq!(trim_before(3, &told, &judge(3, &told)), None);
}

/// Whoever is outvoted covers nothing: the log went no further than what it had, for ever.
#[test]
fn the_log_is_trimmed_by_those_who_agree_and_never_in_doubt() {
    let trim = |nodes, digests: &[&[(u64, u64)]]| {
        let told = told(digests);
        trim_before(nodes, &told, &judge(nodes, &told))
    };
    assert_eq!(trim(3, &[&[(8, 2)], &[(8, 1)], &[(8, 1)]]), Some(Index(2)));
    assert_eq!(trim(3, &[&[(8, 1)], &[(8, 1)], &[(8, 1)]]), Some(Index(1)));
    assert_eq!(trim(2, &[&[(8, 1)], &[(8, 2)]]), None);
    assert_eq!(trim(3, &[&[(8, 1)], &[(8, 1)]]), None, "one has told nothing");
    assert_eq!(trim(4, &[&[(8, 1)], &[(8, 2)], &[(8, 1)], &[(8, 2)]]), None);
}

/// Every cluster of up to four nodes, each of which tells nothing or one of three digests at either
/// of two indices.
#[test]
fn a_node_is_outvoted_by_more_than_half_and_by_nobody_else() {
    for nodes in 1..=4usize {
        let choices = [None, Some(1), Some(2)];
        for code in 0..9u32.pow(nodes as u32) {
            let digit = |at: usize| (code / 9u32.pow(at as u32) % 9) as usize;
            let of = |at: usize| {
                let at_8 = choices[digit(at) % 3].map(|digest| (8, digest));
                let at_16 = choices[digit(at) / 3].map(|digest| (16, digest));
                at_8.into_iter().chain(at_16).collect::<Vec<(u64, u64)>>()
            };
            let all: Vec<Vec<(u64, u64)>> = (0..nodes).map(of).collect();
            let told = told(&all.iter().map(|one| &one[..]).collect::<Vec<_>>());
            let standings = judge(nodes, &told);
            for (id, standing) in &standings {
                let own = &told[id].digests;
                let against = own.iter().map(|(index, digest)| {
                    let others = told.values().filter_map(|told| told.digests.get(index));
                    // Two digests: those that differ from one have the other.
                    others.filter(|other| *other != digest).count()
                });
                let against = against.max().unwrap_or(0);
                let outvoted = matches!(standing, Standing::Outvoted(_));
                assert_eq!(outvoted, against * 2 > nodes, "{id} of {told:?}");
                if against == 0 {
                    assert_eq!(*standing, Standing::Agrees, "{id} of {told:?}");
                }
            }
            a_liar_stops_nobody(nodes, &told);
        }
    }
}

/// Whatever one node says in addition, of nodes that agree none is outvoted.
fn a_liar_stops_nobody(nodes: usize, told: &BTreeMap<NodeId, Told>) {
    let agree = judge(nodes, told).values().all(|standing| *standing == Standing::Agrees);
    if !agree || told.len() < 2 {
        return;
    }
    for (at, digest) in [(8, 1), (8, 9), (16, 2), (16, 9), (99, 9)] {
        let mut told = told.clone();
        let liar = *told.keys().next_back().unwrap();
        told.get_mut(&liar).unwrap().digests.insert(Index(at), digest);
        let judged = judge(nodes, &told);
        let outvoted = |(id, standing): (&NodeId, &Standing)| {
            *id != liar && matches!(standing, Standing::Outvoted(_))
        };
        assert!(!judged.iter().any(outvoted), "{told:?}");
    }
}
