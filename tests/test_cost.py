"""CostModel: every form of the times."""

from __future__ import annotations

import math

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt import CostModel, InvalidInputError


def test_slope() -> None:
    cost = CostModel(0.5, 0.25, 0.125)
    assert cost.node_time == 0.25
    assert cost.resident_time == 0.0
    assert cost.node_table(4).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_table_is_cut_to_the_tree() -> None:
    cost = CostModel(0.5, [9.0, 1.0, 1.0, math.inf, 2.0], 0.125)
    assert cost.node_table(3).tolist() == [9.0, 1.0, 1.0, math.inf]
    cost.require_table(4)
    with pytest.raises(InvalidInputError, match="5 entries but the tree has 5 nodes"):
        cost.node_table(5)


def test_entry_0_is_not_used() -> None:
    for unused in (math.nan, -1.0, math.inf):
        assert CostModel(0.5, [unused, 1.0], 0.1).node_time[1] == 1.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("given_time", "expected"),
    [
        (0.5, [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]),
        ([1.0, 2.0], [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]),
        ([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    ],
)
def test_expert_table(given_time: object, expected: list[list[float]]) -> None:
    cost = CostModel(1.0, 0.0, given_time)  # type: ignore[arg-type]
    assert cost.expert_table(2, 3).tolist() == expected


def test_kernel_form_is_per_layer_where_uniform() -> None:
    assert CostModel(1.0, 0.0, 0.5).kernel_expert_time(2, 3).tolist() == [0.5, 0.5]
    alike = CostModel(1.0, 0.0, [[1.0, 1.0], [2.0, 2.0]])
    assert alike.kernel_expert_time(2, 2).tolist() == [1.0, 2.0]
    assert alike.kernel_expert_time(2, 2) is alike.kernel_expert_time(2, 2)
    mixed = CostModel(1.0, 0.0, [[1.0, 1.5], [2.0, 2.0]])
    assert mixed.kernel_expert_time(2, 2).tolist() == [[1.0, 1.5], [2.0, 2.0]]


@given(st.data())
def test_kernel_form_holds_the_same_times(data: st.DataObject) -> None:
    n_layers, n_experts = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    cost = data.draw(strategies.cost_models(3, 1, n_layers, n_experts))
    time = cost.kernel_expert_time(n_layers, n_experts)
    full = np.broadcast_to(time if time.ndim == 2 else time[:, None], (n_layers, n_experts))
    assert np.array_equal(full, cost.expert_table(n_layers, n_experts))


def test_with_fixed_time() -> None:
    cost = CostModel(1.0, [0.0, 0.5, math.inf], [0.25, 0.5], 0.125)
    other = cost.with_fixed_time(2.0)
    assert (cost.fixed_time, other.fixed_time) == (1.0, 2.0)
    assert other.node_time is cost.node_time
    assert other.expert_time is cost.expert_time
    assert other.resident_time == 0.125
    with pytest.raises(InvalidInputError, match="fixed_time must be a finite number"):
        cost.with_fixed_time(-1.0)


def test_arrays_are_private_and_read_only() -> None:
    table, time = np.array([0.0, 1.0]), np.array([0.5])
    cost = CostModel(1.0, table, time)
    table[1] = time[0] = 9.0
    assert cost.node_table(1).tolist() == [0.0, 1.0]
    assert cost.expert_table(1, 1).tolist() == [[0.5]]
    for array in (cost.node_time, cost.expert_time):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0  # type: ignore[index]


def test_repr() -> None:
    assert repr(CostModel(0.5, [0.0, 1.0], 0.25)) == (
        "CostModel(fixed_time=0.5, node_time=<table (2,)>, expert_time=0.25, resident_time=0)"
    )
