"""Grow draft trees with an EAGLE-3 head, at many positions of a text at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .drafter import Context, EagleHead

__all__ = ["Trees", "first_step", "grow", "select"]


@dataclass(frozen=True)
class Trees:
    """The candidates of N trees, level by level; the root is not among them.

    Parameters
    ----------
    token
        int64[N, M], ids of the target.
    parent
        int64[N, M]: candidate index of the parent, -1 for the root.
    log_prob
        float32[N, M]: of the path from the root, by the drafter.
    depth
        int64[M]: 1 for the root's children.
    """

    token: Tensor
    parent: Tensor
    log_prob: Tensor
    depth: Tensor


@torch.no_grad()
def first_step(
    head: EagleHead, embed: Tensor, ids: Tensor, features: Tensor
) -> tuple[Tensor, Tensor, Context]:
    """Run the step that reads the target's states, at every position of int64[B, S + 1] ids."""
    length = ids.shape[1] - 1
    states = head.fc(features[:, :length])
    return head.step(functional.embedding(ids[:, 1:], embed), states, None)


@torch.no_grad()
def grow(
    head: EagleHead,
    embed: Tensor,
    first: tuple[Tensor, Tensor, Context],
    places: Tensor,
    width: int,
    levels: int,
) -> Trees:
    """Grow a tree below each place.

    Every level keeps the `width` most probable nodes and gives each the `width` best children.

    Parameters
    ----------
    first
        From `first_step`.
    places
        int64[N, 2]: sequence and position whose next token is the root.
    width, levels
        Width 1 makes a chain.
    """
    logits, states, context = first
    batch, place = places[:, 0], places[:, 1]
    count = len(places)
    score, token = _children(head, logits[batch, place].unsqueeze(1), width)
    tokens, scores = [token.flatten(1)], [score.flatten(1)]
    parents = [torch.full((count, width), -1)]
    depth = [torch.ones(width, dtype=torch.int64)]
    keys, values = context.keys[batch], context.values[batch]  # [N, heads, S, d]
    seen = torch.arange(keys.shape[2]) <= place[:, None]
    # The frontier: candidate index, token, score and state of its parent, and its ancestors' keys.
    index = torch.arange(width).expand(count, width)
    token, score = tokens[0], scores[0]
    state = states[batch, place].unsqueeze(1).expand(-1, width, -1)
    shape = (count, width, 0, *keys.shape[1::2])
    own_keys, own_values = keys.new_zeros(shape), values.new_zeros(shape)
    made = width
    for level in range(1, levels):
        positions = (place + level).unsqueeze(1).expand(-1, width)
        query, key, value = head.project(functional.embedding(token, embed), state, positions)
        own_keys = torch.cat([own_keys, key.unsqueeze(2)], dim=2)
        own_values = torch.cat([own_values, value.unsqueeze(2)], dim=2)
        joined = _attend(query, keys, values, seen, own_keys, own_values)
        state = head.finish(joined, state)
        logits = head.lm_head(head.norm(state))
        child_score, child_token = _children(head, logits, width)
        child_score = child_score + score.unsqueeze(-1)
        flat_score, flat_token = child_score.flatten(1), child_token.flatten(1)
        tokens.append(flat_token)
        scores.append(flat_score)
        parents.append(index.repeat_interleave(width, 1))
        depth.append(torch.full((width * width,), level + 1))
        score, best = flat_score.topk(width, dim=1)
        token, index = flat_token.gather(1, best), made + best
        made += width * width
        origin = torch.div(best, width, rounding_mode="floor")
        rows = torch.arange(count).unsqueeze(1)
        state, own_keys, own_values = (
            state[rows, origin],
            own_keys[rows, origin],
            own_values[rows, origin],
        )
    return Trees(
        torch.cat(tokens, 1), torch.cat(parents, 1), torch.cat(scores, 1), torch.cat(depth)
    )


def select(trees: Trees, size: int) -> Tensor:
    """Return bool[N, M]: the `size` most probable candidates, which are closed under parents.

    A child is no more probable than its parent and comes later, so that a stable order keeps both.
    """
    order = torch.sort(trees.log_prob, dim=1, descending=True, stable=True).indices
    chosen = torch.zeros_like(trees.token, dtype=torch.bool)
    return chosen.scatter_(1, order[:, :size], True)


def _children(head: EagleHead, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and target ids of the best children, [N, nodes, width]."""
    log_chance = torch.log_softmax(logits.float(), dim=-1)
    score, draft = log_chance.topk(width, dim=-1)
    return score, head.kept[draft]


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, own_keys: Tensor, own_values: Tensor
) -> Tensor:
    """Attend from [N, width, heads, d] to the text before and to the node's own path."""
    scale = query.shape[-1] ** -0.5
    text = torch.einsum("nwhd,nhsd->nwhs", query, keys) * scale
    text = text.masked_fill(~seen[:, None, None, :], float("-inf"))
    path = torch.einsum("nwhd,nwlhd->nwhl", query, own_keys) * scale
    chance = torch.softmax(torch.cat([text, path], dim=-1), dim=-1)
    split = keys.shape[2]
    out = torch.einsum("nwhs,nhsd->nwhd", chance[..., :split], values)
    return out + torch.einsum("nwhl,nwlhd->nwhd", chance[..., split:], own_values)
