"""A solved draft tree as lines of text: which nodes are verified, and what each would bring."""

from __future__ import annotations

from collections.abc import Sequence

from .instance import Instance
from .solution import Solution, evaluate
from .text import format_table


def tree_text(instance: Instance, solution: Solution, labels: Sequence[str]) -> str:
    """Return a table with a line for each node, children below their parent.

    Parameters
    ----------
    instance : Instance
    solution : Solution
        Of this instance.
    labels : sequence of str
        What stands for each node.

    Returns
    -------
    str
        Lines without a final line feed.

    Raises
    ------
    InvalidInputError
        If the cost model forbids a set that is compared.

    Notes
    -----
    ``loads`` and ``worth`` say what a node but a root brings: experts to load, and expected tokens
    per second over those of the whole, by which the chosen set differs from that without the node
    and all below it, or, where it was left out, from that with the node and its ancestors. In the
    set of the highest ratio nothing chosen is worth less than 1, and nothing left out more: the
    other set would be better. What takes no time is ``free``. O(n) evaluations.
    """
    tree, children = instance.tree, instance.tree.children
    rows = []
    stack = tree.roots.tolist()[::-1]
    while stack:
        v = stack.pop()
        stack += reversed(children[v])
        depth = int(tree.depth[v])
        row = ["|  " * (depth - 1) + "|- " * (depth > 0) + labels[v]]
        row += ["yes" if solution.mask[v] else "no", f"{tree.path_prob[v]:.3f}"]
        rows.append(row + (_brings(instance, solution, v) if depth else ["", ""]))
    return format_table(["node", "verified", "probability", "loads", "worth"], rows)


def _brings(instance: Instance, solution: Solution, node: int) -> list[str]:
    tree = instance.tree
    other = solution.mask.copy()
    if solution.mask[node]:
        other[[u for u in range(node, tree.n_nodes) if node in tree.path(u)]] = False
    else:
        other[tree.path(node)] = True
    changed = evaluate(tree, instance.routing, instance.cost_model, other)
    less, more = sorted((solution, changed), key=lambda found: found.n_selected)
    loads = float((more.experts_loaded - less.experts_loaded).sum())
    seconds = more.cycle_time - less.cycle_time
    tokens = more.expected_tokens - less.expected_tokens
    if seconds > 0.0:
        return [f"{loads:.6g}", f"{tokens / seconds / solution.throughput:.2f}"]
    return [f"{loads:.6g}", "free"]
