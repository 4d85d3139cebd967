"""One draft tree of a text with its words, and what is verified of it."""

from __future__ import annotations

import textwrap

from specfit_opt.instance import Instance
from specfit_opt.policies.pool import Pool
from specfit_opt.policies.view import DraftView
from specfit_opt.solution import Solution
from specfit_opt.solve import solve_instance
from specfit_opt.text import seconds
from specfit_opt.tree_text import tree_text

from .side_by_side import SideBySide


class _Kept(Pool):
    """Keeps every problem that it solves, with the tokens of its nodes."""

    def __init__(self) -> None:
        super().__init__("exact", levels=3, top_k=3, width=3)  # fits on a screen
        self.problems: list[tuple[Instance, list[int]]] = []

    def problem(self, view: DraftView) -> Instance:
        """Return the problem, and keep it."""
        instance = super().problem(view)
        self.problems.append((instance, view.token.tolist()))
        return instance


def solved_tree(sides: SideBySide, prompt: str) -> str:
    """Decode once more and return, as text, the tree that its best choice parts most evenly.

    Parameters
    ----------
    sides : SideBySide
        Its last policy's model and cache serve.
    prompt : str

    Returns
    -------
    str
        Lines without a final line feed.
    """
    kept = _Kept()
    sides.decode_once(prompt, kept)
    solved = [(instance, solve_instance(instance), ids) for instance, ids in kept.problems]
    instance, solution, ids = max(solved, key=lambda entry: _parted(entry[1]))
    told = (
        f"One of the draft trees, by predicted routing: {solution.n_selected} of "
        f"{instance.tree.n_nodes} nodes are verified. They promise {solution.expected_tokens:.2f} "
        f"tokens in {seconds(solution.cycle_time)}, and no other part of the tree promises more "
        "tokens per second. probability: that a node is accepted; loads: experts that it adds to "
        "what is brought in; worth: tokens per second that it adds, where 1 is what all together "
        "make. What is verified is worth 1 or more; what is worth less is left out, a node with "
        "what it needs above it."
    )
    labels = [repr(sides.tokenizer.decode([i])) for i in ids]
    return f"{textwrap.fill(told, 96)}\n\n{tree_text(instance, solution, labels)}"


def _parted(solution: Solution) -> int:
    return min(solution.n_selected - 1, len(solution.mask) - solution.n_selected)
