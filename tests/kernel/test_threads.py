"""The kernel holds no state between calls and lets other threads run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from specfit_opt import kernel, solve_instance
from specfit_opt.generate import NODE_TIMES, generate


def test_many_threads_at_once_give_the_serial_answers():
    problems = [
        generate("qwen3-30b-a3b", seed=seed, nodes=40, node_time=node_time)
        for seed in range(4)
        for node_time in NODE_TIMES
    ]
    serial = [solve_instance(problem) for problem in problems]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for one, other in zip(serial, pool.map(solve_instance, problems), strict=True):
                assert one.nodes.tolist() == other.nodes.tolist()
                assert one.throughput == other.throughput


@pytest.mark.skipif(kernel.NAME != "cython", reason="pure Python holds the GIL")
def test_other_threads_run_during_a_solve():
    instance = generate("densest-k-subgraph", seed=0, nodes=200)
    steps = 0
    done = threading.Event()

    def count():
        nonlocal steps
        while not done.is_set():
            steps += 1

    counter = threading.Thread(target=count)
    counter.start()
    try:
        before = steps
        solve_instance(instance, time_limit=0.3)
        during = steps - before
    finally:
        done.set()
        counter.join()
    # A call that kept the GIL would leave the counter at most the few steps around it.
    assert during > 1000
