"""Stores of experts that are in host memory already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_experts import TinyExperts, write_experts

from specfit_runtime.errors import InvalidInputError, StoreError
from specfit_runtime.stores import PinnedStore, RamStore
from specfit_runtime.stores._slabs import load_slabs


@pytest.fixture
def experts(tmp_path: Path) -> TinyExperts:
    return write_experts(tmp_path)


def test_experts_come_from_the_slabs_and_no_file_is_needed(experts: TinyExperts) -> None:
    slabs = load_slabs(experts.index, "test", 1)
    nowhere = replace(experts.index, files=(), byte_ranges=(((),) * 6,) * 2)
    slots = experts.slots(6)
    with RamStore.from_slabs(nowhere, slabs, io_threads=2) as store:
        for layer in range(2):
            for e in range(6):
                store.fetch(layer, e, slots[e]).wait()
                assert experts.holds(slots[e], layer, e)
        # Not a copy: what is written into the slab later arrives, too.
        slabs[1][4] = 7.0
        store.fetch(1, 4, slots[0]).wait()
        assert bool((slots[0] == 7.0).all())
        assert store.counters().fetches == 13
        assert store.counters().bytes == 13 * int(store.moved_bytes[0])
    with pytest.raises(StoreError, match="closed"):
        store.fetch(0, 0, slots[0])


def test_slabs_that_do_not_fit_the_index_are_refused(experts: TinyExperts) -> None:
    slabs = load_slabs(experts.index, "test", 1)
    with pytest.raises(InvalidInputError, match="1 slabs for 2 MoE layers"):
        RamStore.from_slabs(experts.index, slabs[:1])
    wrong = {
        "dtype": slabs[1].float(),
        "experts": slabs[1][:5],
        "width": slabs[1][:, :-1].contiguous(),
        "strides": slabs[1].t().contiguous().t(),
        "device": slabs[1].to("meta"),
    }
    for name, slab in wrong.items():
        with pytest.raises(InvalidInputError, match=r"the slab of layer 1 must be contiguous"):
            RamStore.from_slabs(experts.index, [slabs[0], slab])
        assert name


def test_a_pinned_store_refuses_the_cpu(experts: TinyExperts) -> None:
    with pytest.raises(InvalidInputError, match="is for CUDA devices"):
        PinnedStore.from_slabs(experts.index, load_slabs(experts.index, "test", 1), device="cpu")
