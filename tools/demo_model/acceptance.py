"""Count what the target accepts of the drafter's chains and trees, decoding greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .drafter import EagleHead
from .model import FastMoe
from .tree import Trees, first_step, grow, select

if TYPE_CHECKING:
    from transformers import Qwen3MoeForCausalLM

__all__ = [
    "Grown",
    "accepted",
    "chain_figures",
    "committed",
    "greedy_continuation",
    "grow_along",
    "tree_figures",
]


@dataclass(frozen=True)
class Grown:
    """Trees along greedy continuations.

    Parameters
    ----------
    trees
        One tree per row of `places`.
    places
        int64[N, 2]: sequence and position.
    ids
        int64[B, S]: prompts and their continuations.
    """

    trees: Trees
    places: Tensor
    ids: Tensor


@torch.no_grad()
def greedy_continuation(stock: Qwen3MoeForCausalLM, prompts: Tensor, count: int) -> Tensor:
    """Return int64[B, S + count]: the prompts with what the target writes, end of text included."""
    pieces = []
    for some in prompts.split(32):
        made = stock.generate(
            some,
            attention_mask=torch.ones_like(some),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            temperature=None,
            top_k=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        pieces.append(made)
    return torch.cat(pieces)


@torch.no_grad()
def grow_along(
    head: EagleHead,
    target: FastMoe,
    ids: Tensor,
    positions: Sequence[int],
    width: int,
    levels: int,
) -> Grown:
    """Grow a tree at each of `positions` of each sequence."""
    grown: list[Trees] = []
    places = []
    for begin in range(0, len(ids), 8):
        some = ids[begin : begin + 8]
        _, features = target.features(some, head.shape.boundaries)
        assert features is not None
        first = first_step(head, target.embed, some, features)
        here = torch.cartesian_prod(torch.arange(len(some)), torch.tensor(positions)).view(-1, 2)
        grown += [grow(head, target.embed, first, part, width, levels) for part in here.split(256)]
        places.append(here + torch.tensor([begin, 0]))
    joined = Trees(
        torch.cat([trees.token for trees in grown]),
        torch.cat([trees.parent for trees in grown]),
        torch.cat([trees.log_prob for trees in grown]),
        grown[0].depth,
    )
    return Grown(joined, torch.cat(places), ids)


def accepted(grown: Grown, chosen: Tensor) -> NDArray[np.int64]:
    """Return the accepted depth of each tree: how far a chosen path follows the continuation."""
    trees = grown.trees
    levels = int(trees.depth.max())
    on_path = torch.zeros_like(trees.token, dtype=torch.bool)
    for level in range(1, levels + 1):
        at = (trees.depth == level).nonzero().squeeze(1)
        # The root is the token after the position; level 1 is the one after that.
        wanted = grown.ids[grown.places[:, 0], grown.places[:, 1] + 1 + level]
        hit = (trees.token[:, at] == wanted.unsqueeze(1)) & chosen[:, at]
        if level > 1:
            hit &= on_path.gather(1, trees.parent[:, at])
        on_path[:, at] = hit
    depth = torch.where(on_path, trees.depth, 0).max(1).values
    return depth.numpy()


def chain_figures(depth: NDArray[np.int64], grown: Grown, longest: int) -> dict[str, object]:
    """Return the acceptance by depth and the committed tokens per pass of chains 1 to `longest`."""
    by_depth: list[float | None] = []  # None where no chain got that far
    for level in range(1, longest + 1):
        reached = depth >= level - 1
        share = round(float((depth[reached] >= level).mean()), 4) if reached.any() else None
        by_depth.append(share)
    return {
        "acceptance_by_depth": by_depth,
        "committed_per_pass": {
            str(length): committed(np.minimum(depth, length), grown)
            for length in range(1, longest + 1)
        },
    }


def tree_figures(grown: Grown, sizes: Sequence[int]) -> dict[str, float]:
    """Return the committed tokens per pass of the `size` most probable nodes, root excluded."""
    return {
        str(size): committed(accepted(grown, select(grown.trees, size)), grown) for size in sizes
    }


def committed(depth: NDArray[np.int64], grown: Grown) -> float:
    """Return the tokens per pass, bonus token included, of passes made one after the other.

    A pass at a position commits its accepted depth and the bonus token, and the next pass starts
    behind them. With one position per sequence this is the mean of depth + 1.
    """
    tokens = passes = 0
    sequence, position = grown.places[:, 0].numpy(), grown.places[:, 1].numpy()
    for number in np.unique(sequence):
        rows = np.flatnonzero(sequence == number)
        first, at = position[rows[0]], 0
        while at < len(rows):
            if position[rows[at]] != first + at:
                raise ValueError("positions of a sequence must be consecutive")
            step = int(depth[rows[at]]) + 1
            tokens += step
            passes += 1
            at += step
    return round(tokens / passes, 4)
