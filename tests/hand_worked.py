"""Two instances that are worked out by hand in the tests of the methods.

The tree (times in seconds: fixed 1, 0.25 per node, 1 per expert)::

    node  parent  p     experts
    0     -       1     0
    1     0       0.8   1 2
    2     0       0.5   0 3
    3     1       0.6   1
    4     2       0.25  3

Node 3 rides free on node 1, and 4 on 2, so pairs pay where single nodes do not:

    {0} 1/2.25 = 0.444   {0,1} 1.8/4.5 = 0.4     {0,2} 1.5/3.5 = 0.429   {0,1,3} 2.4/4.75 = 0.505
    {0,2,4} 1.75/3.75 = 0.467   {0,1,2,3} 2.9/6 = 0.483   all 3.15/6.25 = 0.504

The forest of two sequences, with the same times::

    node  parent  p     experts
    0     -       1     0
    1     0       0.5   1
    2     1       0.5   2
    3     -       1     0
    4     3       0.9   1
    5     3       0.25  0

    roots 2/2.5 = 0.8   + 5: 2.25/2.75 = 0.818   + 4: 2.9/3.75 = 0.773   + 1 and 4: 3.4/4 = 0.85
    + 1, 4 and 5: 3.65/4.25 = 0.859, the best
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from specfit_opt import CostModel, DraftTree, ExpertRouting, Instance


def tree(node_time: Any = 0.25, resident: Iterable[int] = ()) -> Instance:
    """Return the tree; ``resident`` lists the experts that are in fast memory."""
    inside = set(resident)
    return Instance(
        DraftTree([-1, 0, 0, 1, 2], [1.0, 0.8, 0.5, 0.6, 0.25]),
        ExpertRouting(
            [[[0, -1]], [[1, 2]], [[0, 3]], [[1, 1]], [[3, -1]]],
            n_experts=4,
            resident=[[e in inside for e in range(4)]],
        ),
        CostModel(1.0, node_time, 1.0),
        name="tree",
    )


def forest(node_time: Any = 0.25) -> Instance:
    """Return the forest."""
    return Instance(
        DraftTree([-1, 0, 1, -1, 3, 3], [1.0, 0.5, 0.5, 1.0, 0.9, 0.25]),
        ExpertRouting([[[0]], [[1]], [[2]], [[0]], [[1]], [[0]]], n_experts=3),
        CostModel(1.0, node_time, 1.0),
        name="forest",
    )


def only(*sizes: int) -> list[float]:
    """Return a table of 0.25 s per node that allows nothing but ``sizes``, up to 6."""
    return [0.25 * k if k in sizes else math.inf for k in range(7)]
