"""ExpertRouting: packing, padding, duplicates and residents."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specfit_opt import ExpertRouting


def unpack(routing: ExpertRouting) -> NDArray[np.bool_]:
    """Return rows as a matrix of nodes, layers and experts, by the words' definition."""
    words = -(-routing.n_experts // 64)
    used = np.zeros((routing.n_nodes, routing.n_layers, routing.n_experts), dtype=np.bool_)
    for v in range(routing.n_nodes):
        for layer in range(routing.n_layers):
            for e in range(routing.n_experts):
                word = int(routing.rows[v, layer * words + e // 64])
                used[v, layer, e] = word >> (e % 64) & 1
    return used


def test_rows_by_hand() -> None:
    routing = ExpertRouting([[[0, 2], [65, -1]], [[1, 1], [63, 64]]], n_experts=66)
    assert routing.rows.dtype == np.uint64
    assert routing.rows.tolist() == [[0b101, 0, 0, 0b10], [0b10, 0, 1 << 63, 0b1]]
    assert (routing.n_nodes, routing.n_layers, routing.n_experts) == (2, 2, 66)
    assert not routing.resident.any()
    assert routing.resident.shape == (2, 66)


@given(st.data())
def test_rows_hold_exactly_the_ids(data: st.DataObject) -> None:
    routing = data.draw(strategies.routings(data.draw(st.integers(1, 4))))
    expected = np.zeros((routing.n_nodes, routing.n_layers, routing.n_experts), dtype=np.bool_)
    for (v, layer, _), e in np.ndenumerate(routing.experts):
        if e >= 0:
            expected[v, layer, e] = True
    assert np.array_equal(unpack(routing), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64])
def test_dtypes_pack_alike(dtype: type) -> None:
    ids = np.array([[[3, 0]], [[2, 2]]])
    routing = ExpertRouting(ids.astype(dtype), 4)
    assert routing.rows.tolist() == [[0b1001], [0b100]]
    assert routing.experts.tolist() == ids.tolist()


def test_other_layouts_pack_alike() -> None:
    ids = np.arange(24).reshape(2, 3, 4) % 7
    expected = ExpertRouting(ids, 7).rows
    for other in (np.asfortranarray(ids), ids.astype(">i4"), ids[:, ::-1][:, ::-1]):
        assert np.array_equal(ExpertRouting(other, 7).rows, expected)


def test_with_resident_shares_the_rows() -> None:
    routing = ExpertRouting([[[0, 1]]], 3)
    other = routing.with_resident(np.array([[True, False, True]]))
    assert other.rows is routing.rows
    assert other.resident.tolist() == [[True, False, True]]
    assert not routing.resident.any()
    assert not other.with_resident(None).resident.any()


def test_arrays_are_private_and_read_only() -> None:
    ids, resident = np.zeros((1, 1, 1), dtype=np.int16), np.zeros((1, 2), dtype=np.bool_)
    routing = ExpertRouting(ids, 2, resident)
    ids[...] = 1
    resident[...] = True
    assert routing.experts.tolist() == [[[0]]]
    assert not routing.resident.any()
    for array in (routing.experts, routing.rows, routing.resident):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_repr() -> None:
    routing = ExpertRouting([[[0]]], 4, np.array([[True, False, False, False]]))
    assert repr(routing) == ("ExpertRouting(n_nodes=1, n_layers=1, n_experts=4, resident=25.0%)")
