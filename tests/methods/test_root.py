from __future__ import annotations

import hand_worked as hand
import pytest

from specfit_opt import InvalidInputError, Status, solve_instance


def test_root_alone():
    solution = solve_instance(hand.tree(), method="root")
    assert solution.nodes.tolist() == [0]
    assert solution.throughput == pytest.approx(1 / 2.25)
    assert solution.status is Status.FEASIBLE
    assert solution.bound is None
    assert solution.method == "root"


def test_every_root_of_a_forest():
    solution = solve_instance(hand.forest(), method="root")
    assert solution.nodes.tolist() == [0, 3]
    assert solution.throughput == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("sizes", "nodes"), [((2, 5), [0, 1]), ((3,), [0, 1, 3]), ((4, 5), [0, 1, 2, 3])]
)
def test_grows_by_path_probability_where_the_roots_are_a_forbidden_size(sizes, nodes):
    solution = solve_instance(hand.tree(hand.only(*sizes)), method="root")
    assert solution.nodes.tolist() == nodes


def test_surplus():
    solution = solve_instance(hand.tree(), method="root", rate=0.5)
    assert solution.objective == pytest.approx(1.0 - 0.5 * 2.25)


def test_takes_no_options():
    with pytest.raises(InvalidInputError, match="method 'root' has no option 'budget'"):
        solve_instance(hand.tree(), method="root", budget=3)
