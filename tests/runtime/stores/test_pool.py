"""Early jobs of a pool of threads: behind all others, one at a time."""

from __future__ import annotations

from threading import Event

import pytest
import torch

from specfit_runtime.errors import StoreError
from specfit_runtime.stores._meter import Meter
from specfit_runtime.stores._pool import FetchPool

CPU = torch.device("cpu")


def test_early_jobs_wait_until_nothing_else_runs() -> None:
    pool, gate, order = FetchPool(2, "test", Meter()), Event(), []

    def job(name: str, wait: bool = False):
        def run() -> None:
            if wait:
                gate.wait()
            order.append(name)

        return run

    needed = pool.start(job("needed", wait=True), CPU)
    early = [pool.start(job(f"early {i}"), CPU, True) for i in range(3)]
    assert order == []  # though a thread is idle
    early[2].wait()  # wanted after all
    assert order == ["early 2"]
    assert early[1].cancel()
    gate.set()
    needed.wait()
    early[0].wait()
    assert order == ["early 2", "needed", "early 0"]
    with pytest.raises(StoreError, match="given up"):
        early[1].wait()
    pool.close()


def test_a_closed_pool_fails_what_has_not_begun() -> None:
    pool, gate = FetchPool(1, "test", Meter()), Event()
    needed = pool.start(lambda: gate.wait() and None, CPU)
    early = pool.start(lambda: None, CPU, True)
    gate.set()
    pool.close()
    needed.wait()
    assert early.done()
    with pytest.raises(StoreError, match="closed"):
        pool.start(lambda: None, CPU, True)
