"""A method that another package registers counts like those that are shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import hand_worked as hand
import pytest

from specfit_opt import (
    METHODS,
    Instance,
    InvalidInputError,
    Method,
    Solution,
    evaluate,
    save_instance,
    solve_instance,
    solve_many,
)
from specfit_opt.cli import main


def select(
    instance: Instance,
    *,
    rate: float | None,
    max_nodes: int | None,
    time_limit: float | None,
    count: int = 3,
) -> Solution:
    """Return the first nodes."""
    nodes = range(min(count, max_nodes or count))
    return evaluate(
        instance.tree, instance.routing, instance.cost_model, nodes, rate=rate, method="first"
    )


@pytest.fixture(autouse=True)
def registered() -> Iterator[Method]:
    yield METHODS.register(Method("first", select, "the first nodes", "this test"))
    METHODS.remove("first")


def test_solve_takes_its_name_and_options() -> None:
    assert solve_instance(hand.tree(), method="first").nodes.tolist() == [0, 1, 2]
    assert solve_instance(hand.tree(), method="first", count=2).nodes.tolist() == [0, 1]
    assert solve_instance(hand.tree(), method="first", max_nodes=1).nodes.tolist() == [0]
    with pytest.raises(InvalidInputError, match="'first' has no option 'size'; it takes count"):
        solve_instance(hand.tree(), method="first", size=2)


def test_threads_of_solve_many_know_it() -> None:
    with ThreadPoolExecutor(2) as executor:
        solutions = solve_many(
            [hand.tree()] * 5, executor=executor, chunk_size=1, method="first", count=4
        )
    assert [s.n_selected for s in solutions] == [4] * 5


def test_the_command_line_knows_it(tmp_path, capsys) -> None:
    path = tmp_path / "tree.npz"
    save_instance(path, hand.tree())
    assert main(["solve", str(path), "--method", "first", "--option", "count=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["nodes"] == [0]
    assert main(["compare", str(path), "--method", "first"]) == 0
    assert "\nfirst " in capsys.readouterr().out
    assert main(["methods"]) == 0
    assert "options: count=3" in capsys.readouterr().out


def test_what_is_removed_is_unknown_again() -> None:
    METHODS.remove("first")
    with pytest.raises(InvalidInputError, match="method 'first' is unknown"):
        solve_instance(hand.tree(), method="first")
    METHODS.register(Method("first", select, "", ""))
