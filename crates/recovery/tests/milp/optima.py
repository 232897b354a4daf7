"""Solves small recoveries exactly with HiGHS and prints them with their optima.

    pip install highspy && python3 optima.py > optima.txt

Each case: nodes with their bandwidth out and in (MB/s), tasks with their MB and two holders; then
the least time in which all can be copied, when each task has one source among its holders and one
destination that does not hold it. `tests/optima.rs` holds the planner against them.
"""

import random

import highspy

CASES = [(6, 12), (6, 20), (8, 16), (8, 24), (10, 20), (10, 40), (12, 24), (12, 48)]
TIME_LIMIT_S = 120.0


def case(nodes, tasks, seed):
    rng = random.Random(seed)
    bandwidth = [(rng.randint(30, 187), rng.randint(30, 187)) for _ in range(nodes)]
    chunks = []
    for _ in range(tasks):
        mb = 64 if rng.random() < 0.8 else rng.randint(1, 64)
        chunks.append((mb, *rng.sample(range(nodes), 2)))
    return bandwidth, chunks


def solve(bandwidth, chunks):
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.setOptionValue("mip_rel_gap", 0.0)
    h.setOptionValue("threads", 1)
    h.setOptionValue("time_limit", TIME_LIMIT_S)
    time = h.addVariable(lb=0.0, obj=1.0)
    out = [[] for _ in bandwidth]
    into = [[] for _ in bandwidth]
    for mb, a, b in chunks:
        from_a = h.addBinary()
        out[a].append(mb * from_a)
        out[b].append(mb - mb * from_a)
        to = {d: h.addBinary() for d in range(len(bandwidth)) if d not in (a, b)}
        h.addConstr(sum(to.values()) == 1)
        for d, x in to.items():
            into[d].append(mb * x)
    for node, (b_out, b_in) in enumerate(bandwidth):
        if out[node]:
            h.addConstr(sum(out[node]) <= b_out * time)
        if into[node]:
            h.addConstr(sum(into[node]) <= b_in * time)
    h.minimize(time)
    info = h.getInfo()
    return info.objective_function_value, info.mip_dual_bound


def main():
    for number, (nodes, tasks) in enumerate(CASES):
        bandwidth, chunks = case(nodes, tasks, number)
        best, bound = solve(bandwidth, chunks)
        print(f"case {nodes} {tasks}")
        for b_out, b_in in bandwidth:
            print(f"node {b_out} {b_in}")
        for mb, a, b in chunks:
            print(f"task {mb} {a} {b}")
        # Proven to lie between.
        print(f"optimum {best:.6f} {bound:.6f}", flush=True)


main()
