"""Which of the verified tokens are committed: exactly those that plain decoding would have made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from ..errors import InvalidInputError
from .tree_mask import TreeShape

__all__ = ["Accepted", "accept"]


@dataclass(frozen=True, eq=False)
class Accepted:
    """What a verification commits.

    Attributes
    ----------
    rows : tuple of int
        The path from the root: nodes whose keys and values stay in the cache.
    tokens : tuple of int
        ``tokens[i]`` is the target's token after node ``rows[i]``. The last one is in no node's
        place: it is the root of the next tree.
    committed_ids : Tensor of int64, shape [1, t + len(tokens)]
        The text with the new tokens.
    finished : bool
        Whether a stopping criterion, an end token or the limit ended the text.
    scores : tuple of Tensor, each of float32 and shape [1, V], or None
        The processed scores from which each token was taken, if they were asked for.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    committed_ids: Tensor
    finished: bool
    scores: tuple[Tensor, ...] | None


@torch.no_grad()
def accept(
    logits: Tensor,
    tokens: Sequence[int],
    parent: Sequence[int],
    committed_ids: Tensor,
    *,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    do_sample: bool = False,
    max_new_tokens: int | None = None,
    eos_token_ids: Collection[int] = (),
    scores: tuple[Tensor, ...] | None = None,
) -> Accepted:
    """Walk down a verified tree and take the target's token at each node.

    Parameters
    ----------
    logits : Tensor, shape [n, V]
        The target's logits after each node.
    tokens : sequence of int, length n
        The nodes' tokens; the root's is the last committed one.
    parent : sequence of int, length n
        -1 for the root, which is node 0; parents first.
    committed_ids : Tensor of int64, shape [1, t]
        The text so far, prompt included, ending with the root's token.
    logits_processor : LogitsProcessorList, optional
        Applied at each node to the scores after it and the text up to it.
    stopping_criteria : StoppingCriteriaList, optional
        Asked after each token.
    do_sample : bool
        Draw from the processed scores, or take the best.
    max_new_tokens : int, optional
        Tokens that may still be committed.
    eos_token_ids : collection of int
        Tokens that end the text.
    scores : tuple of Tensor, optional
        Processed scores of the tokens before, which stopping criteria may look at; the result then
        brings those of the new tokens.

    Returns
    -------
    Accepted
        At least one token, at most one more than the tree is deep.

    Raises
    ------
    InvalidInputError
        If the arguments are not for one and the same tree and text.

    Notes
    -----
    At each node the next token is chosen as plain decoding chooses it, from the same scores and
    with the same draw from the random generator; if a child of the node holds that token, the walk
    goes on there. So the committed text is distributed as plain decoding's, and with the same seed
    is the same text, for any tree that was fixed before the draws (the "naive sampling" of
    SpecInfer, arXiv 2305.09781). Processors and criteria see each position once, in order.

    Examples
    --------
    >>> logits = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    >>> result = accept(logits, [0, 1, 2], [-1, 0, 0], torch.tensor([[0]]))
    >>> result.rows, result.tokens
    ((0, 1), (1, 2))
    """
    shape = TreeShape.of(parent)
    _check(logits, tokens, shape, committed_ids, max_new_tokens)
    children: list[dict[int, int]] = [{} for _ in range(shape.n_nodes)]
    for v, (u, token) in enumerate(zip(shape.parent.tolist(), tokens, strict=True)):
        if u >= 0:
            children[u].setdefault(int(token), v)
    processors = LogitsProcessorList() if logits_processor is None else logits_processor
    criteria = StoppingCriteriaList() if stopping_criteria is None else stopping_criteria

    node = 0
    ids = committed_ids
    rows: list[int] = []
    taken: list[int] = []
    new_scores: list[Tensor] = []
    finished = False
    while True:
        # A copy, because processors may write into what they are given.
        raw = logits[node : node + 1].to(copy=True, dtype=torch.float32, device=ids.device)
        processed = processors(cast(Any, ids), raw)
        if scores is not None:
            new_scores.append(processed)
        if do_sample:
            following = torch.multinomial(torch.softmax(processed, dim=-1), num_samples=1)[0]
        else:
            following = torch.argmax(processed, dim=-1)
        token = int(following)
        ids = torch.cat([ids, following[None]], dim=-1)
        rows.append(node)
        taken.append(token)
        child = children[node].get(token)
        so_far = None if scores is None else (*scores, *new_scores)
        # Asked first and always, as they may count the tokens that they have seen.
        finished = bool(criteria(cast(Any, ids), cast(Any, so_far)).all())
        finished |= token in eos_token_ids or len(taken) == max_new_tokens
        if finished or child is None:
            break
        node = child
    return Accepted(
        tuple(rows),
        tuple(taken),
        ids,
        finished,
        None if scores is None else tuple(new_scores),
    )


def _check(
    logits: Tensor,
    tokens: Sequence[int],
    shape: TreeShape,
    committed_ids: Tensor,
    max_new_tokens: int | None,
) -> None:
    if logits.ndim != 2 or not len(logits) == len(tokens) == shape.n_nodes:
        raise InvalidInputError(
            f"logits of shape {tuple(logits.shape)}, {len(tokens)} tokens and {shape.n_nodes} "
            "parents are not of one tree; give one row of logits and one token per node"
        )
    if committed_ids.ndim != 2 or committed_ids.shape[0] != 1 or committed_ids.shape[1] == 0:
        raise InvalidInputError(
            f"committed_ids has shape {tuple(committed_ids.shape)}; give the text of one sequence "
            "with at least one token, [1, t]"
        )
    if int(committed_ids[0, -1]) != tokens[0]:
        raise InvalidInputError(
            f"the text ends with token {int(committed_ids[0, -1])} but the root holds "
            f"{tokens[0]}; the root is the last committed token"
        )
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InvalidInputError(
            f"max_new_tokens = {max_new_tokens}, but a verification commits at least one token"
        )
