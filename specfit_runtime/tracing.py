"""Record real decoding: at every position the whole draft pool, its routing, and what is accepted.

The text does not depend on what is verified, so that a recording of every position with the whole
pool lets any policy be replayed afterwards; see `specfit_opt.files.trace`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specfit_opt.checks import Real, Whole
from specfit_opt.files import Trace

from ._ambient import usual_float_errors
from .drafters import Drafter
from .errors import InvalidInputError
from .exclusive import exclusively, loading, taken
from .offload import BUSY, Offload, offload_of
from .verify.session import TargetSession

__all__ = ["record_trace"]

#: The pool of one position unless asked for otherwise: levels, children per node, nodes expanded.
LEVELS, TOP_K, WIDTH = 5, 4, 4


def record_trace(
    model: Any,
    drafter: Drafter,
    prompts: Iterable[Sequence[int]],
    *,
    max_new_tokens: int,
    levels: int = LEVELS,
    top_k: int = TOP_K,
    width: int = WIDTH,
    ignore_eos: bool = False,
    states: bool = False,
    temperature: float = 0.0,
    seed: int = 0,
    name: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Decode ``prompts`` and record every position with its whole draft pool.

    At every committed token the drafter grows a pool, the target verifies all of it, what it makes
    of each node is recorded, and one token is committed. Decoding N tokens gives N - 1 positions,
    the passes of plain decoding: the first token comes from the prompt.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        From :func:`~specfit_runtime.load_offloaded`.
    drafter : Drafter
        Bound to ``model`` here.
    prompts : iterable of sequence of int
        Token ids, at least one for each prompt.
    max_new_tokens : int
        Tokens to decode after each prompt, at least 2.
    levels, top_k, width : int
        Levels to draft, children of each expanded node, and nodes that each level expands.
    ignore_eos : bool
        Whether to go on after the end-of-text tokens of the model's generation config. Otherwise a
        prompt's recording ends with the token before one, and nothing after one is accepted.
    states : bool
        Whether to record the drafter's hidden states, for predictors of routing that read them:
        2 H bytes per node.
    temperature : float
        At which tokens are drawn; 0: the most probable ones are taken.
    seed : int
        Of the draws.
    name : str
        A label of the trace.
    progress : callable, optional
        Called with the positions recorded and those expected.

    Returns
    -------
    Trace
        ``expert_bytes`` are the bytes of an expert in the checkpoint.

    Raises
    ------
    InvalidInputError
        If the model was not loaded by :func:`~specfit_runtime.load_offloaded`, a prompt is empty,
        a size is out of range, every text ends at once, or states are asked for and the drafter has
        none.
    BusyError
        If the model is decoding for someone else.
    DrafterError
        If the drafter drafts what cannot be verified.

    Notes
    -----
    The token at a position is the argmax of the target's logits, without the penalties and filters
    that a generation config may ask for. Where tokens are drawn, it is the argmax of the logits
    over the temperature plus Gumbel noise, which is a draw from their softmax (Maddison, Tarlow and
    Minka 2014, "A* sampling"). The noise belongs to a place in the text, whatever draft reaches it,
    so that the text does not depend on what is verified. A position costs one pass over the pool.
    """
    offload = offload_of(model)
    texts = [[int(token) for token in prompt] for prompt in prompts]
    for name_of, value, least in (
        ("max_new_tokens", max_new_tokens, 2),
        ("levels", levels, 1),
        ("top_k", top_k, 1),
        ("width", width, 1),
    ):
        Whole(least)(value, name_of)
    temperature, seed = Real()(temperature, "temperature"), Whole()(seed, "seed")
    if not texts:
        raise InvalidInputError("no prompt to record; give at least one")
    for i, text in enumerate(texts):
        if not text:
            raise InvalidInputError(f"prompt {i} has no token; it needs at least one")
    stop = frozenset() if ignore_eos else _end_tokens(model)
    pool = _Pool(drafter, levels, top_k, width, states)
    recording = _Recording(offload, pool)
    expected = len(texts) * (max_new_tokens - 1)

    def record() -> None:
        with loading():
            drafter.bind(model)
        for i, text in enumerate(texts):
            draw = _Draw(temperature, seed + i)
            for position, cycle in enumerate(
                _decode(model, drafter, pool, text, max_new_tokens, stop, draw)
            ):
                recording.add(i, position, cycle)
                if progress is not None:
                    progress(i * (max_new_tokens - 1) + position + 1, expected)

    with usual_float_errors():
        exclusively([(offload, BUSY), (drafter, taken("drafter"))], record)
    return recording.trace(name)


@dataclass(frozen=True, eq=False)
class _Cycle:
    """One position: the pool with the target's verdict."""

    parent: NDArray[np.int64]
    token: NDArray[np.int64]
    path_prob: NDArray[np.float64]
    depth: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    experts: NDArray[np.int32]
    states: NDArray[np.float16] | None


def _decode(
    model: Any,
    drafter: Drafter,
    pool: _Pool,
    prompt: list[int],
    max_new_tokens: int,
    stop: frozenset[int],
    draw: _Draw,
) -> Iterable[_Cycle]:
    """Yield one cycle per position of the continuation of ``prompt``."""
    session = TargetSession(model, feature_layers=drafter.feature_layers)
    ids = torch.tensor([prompt], dtype=torch.long, device=offload_of(model).device)
    first = session.prefill(ids)
    token = draw.tokens(first.logits[-1:], 0, np.zeros(1, dtype=np.int64))[0]
    drafter.start([*prompt, token], first.features)
    for place in range(1, max_new_tokens):
        if token in stop:
            return
        parent, tokens, path_prob, depth, states = pool.grow(token)
        verdict = session.verify(tokens.tolist(), parent.tolist())
        best = draw.tokens(verdict.logits, place, depth)
        accepted = _accepted(parent, tokens, best, stop)
        yield _Cycle(parent, tokens, path_prob, depth, accepted, verdict.experts, states)
        session.commit([0])
        token = best[0]
        drafter.commit([token], None if verdict.features is None else verdict.features[[0]])


class _Draw:
    """The target's token after each node of one text: the most probable one, or one drawn."""

    def __init__(self, temperature: float, seed: int) -> None:
        self._temperature = temperature
        self._random = torch.Generator().manual_seed(seed)
        self._noise: deque[Tensor] = deque()
        self._first = 0

    def tokens(self, logits: Tensor, place: int, depth: NDArray[np.int64]) -> list[int]:
        """Return the tokens after nodes, of which the root stands before ``place`` in the text."""
        if self._temperature:
            # Double precision, so that a small temperature does not overflow.
            noise = self._of_places(place, int(depth[-1]) + 1, logits.shape[-1])
            logits = logits.double() / self._temperature + noise[depth].to(logits.device)
        best: list[int] = logits.argmax(dim=-1).tolist()
        return best

    def _of_places(self, place: int, n: int, width: int) -> Tensor:
        """Return Gumbel noise of ``n`` places, float64 [n, width]; places only rise."""
        while self._first < place:
            self._noise.popleft()
            self._first += 1
        while len(self._noise) < n:
            waiting = torch.empty(width, dtype=torch.float64)
            self._noise.append(-waiting.exponential_(generator=self._random).log())
        return torch.stack([self._noise[i] for i in range(n)])


@dataclass(frozen=True, eq=False)
class _Pool:
    """Grows the pool of one position."""

    drafter: Drafter
    levels: int
    top_k: int
    width: int
    states: bool

    def grow(
        self, root: int
    ) -> tuple[
        NDArray[np.int64],
        NDArray[np.int64],
        NDArray[np.float64],
        NDArray[np.int64],
        NDArray[np.float16] | None,
    ]:
        """Return parents (-1 for the root), tokens, path probabilities, depths, and any states."""
        parent, token = [np.array([-1])], [np.array([root])]
        path_prob = np.ones(1)
        depth = np.zeros(1, dtype=np.int64)
        drafted: list[Tensor | None] = []
        self.drafter.begin()
        for d in range(1, self.levels + 1):
            level = self.drafter.level(self.top_k, self.width)
            if level is None or not len(level.parent):
                break
            parent.append(level.parent)
            token.append(level.token)
            path_prob = np.concatenate([path_prob, path_prob[level.parent] * level.prob])
            depth = np.concatenate([depth, np.full(len(level.parent), d)])
            drafted.append(level.states)
        states = self._states(drafted) if self.states else None
        return np.concatenate(parent), np.concatenate(token), path_prob, depth, states

    def _states(self, drafted: list[Tensor | None]) -> NDArray[np.float16] | None:
        """Return the states of a pool, None where there is no level to know their size by."""
        levels = [states for states in drafted if states is not None]
        if len(levels) < len(drafted):
            raise _no_states(self.drafter)
        root = self.drafter.root_state()
        if root is None:
            if not levels:
                return None
            root = torch.zeros_like(levels[0][:1])
        # Half precision as a file keeps it: bfloat16 is unknown to NumPy.
        return torch.cat([root, *levels]).to("cpu", torch.float16).numpy()


def _accepted(
    parent: NDArray[np.int64], token: NDArray[np.int64], best: list[int], stop: frozenset[int]
) -> NDArray[np.bool_]:
    """Mark the nodes on the target's greedy path; none follows an end-of-text token."""
    accepted = np.zeros(len(parent), dtype=np.bool_)
    node = 0
    while True:
        accepted[node] = True
        if int(token[node]) in stop:
            return accepted
        children = np.flatnonzero((parent == node) & (token == best[node]))
        if not children.size:
            return accepted
        node = int(children[0])  # siblings have distinct tokens


@dataclass(eq=False)
class _Recording:
    """Collects cycles."""

    offload: Offload
    pool: _Pool
    prompts: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    cycles: list[_Cycle] = field(default_factory=list)

    def add(self, prompt: int, position: int, cycle: _Cycle) -> None:
        self.prompts.append(prompt)
        self.positions.append(position)
        self.cycles.append(cycle)

    def trace(self, name: str) -> Trace:
        if not self.cycles:
            raise InvalidInputError(
                "nothing to record: the target ends every text at once; give other prompts, or"
                " ignore_eos"
            )
        sizes = [len(cycle.parent) for cycle in self.cycles]
        return Trace(
            cycle_start=np.concatenate([[0], np.cumsum(sizes)]),
            prompt=self.prompts,
            position=self.positions,
            **{
                key: np.concatenate([getattr(cycle, key) for cycle in self.cycles])
                for key in ("parent", "token", "path_prob", "depth", "accepted", "experts")
            },
            states=self._states() if self.pool.states else None,
            n_experts=self.offload.n_experts,
            expert_bytes=self.offload.index.stored_bytes,
            name=name,
        )

    def _states(self) -> NDArray[np.float16]:
        known = next((c.states for c in self.cycles if c.states is not None), None)
        if known is None:
            raise _no_states(self.pool.drafter)
        # Where nothing was drafted the root's state may be unknown.
        unknown = np.zeros((1, known.shape[1]), dtype=np.float16)
        return np.concatenate([unknown if c.states is None else c.states for c in self.cycles])


def _no_states(drafter: Drafter) -> InvalidInputError:
    return InvalidInputError(
        f"drafter {drafter.name} has no hidden states to record; leave states out"
    )


def _end_tokens(model: Any) -> frozenset[int]:
    """Return the end-of-text tokens of the model's generation config, one or several."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else [int(i) for i in ids])
