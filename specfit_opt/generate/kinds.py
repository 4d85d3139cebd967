"""The registry of instance kinds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..instance import Instance
from . import hard
from .realistic import realistic
from .shapes import SHAPES


@dataclass(frozen=True)
class Kind:
    """A kind of generated instance.

    Attributes
    ----------
    name : str
        What :func:`.generate` takes.
    build : callable
        ``build(rng, **options) -> Instance``.
    summary : str
        One line for tables.
    source : str
        Where the kind comes from.
    """

    name: str
    build: Callable[..., Instance]
    summary: str
    source: str

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that :func:`.generate` may pass on to this kind."""
        parameters = inspect.signature(self.build).parameters
        return tuple(name for name in parameters if name not in ("rng", "shape", "tree"))


_REALISTIC = tuple(
    Kind(
        shape.name,
        partial(realistic, shape=shape),
        f"{shape.n_layers} layers x {shape.n_experts} experts x top-{shape.top_k}, offloaded",
        shape.source,
    )
    for shape in SHAPES.values()
)
_HARD = (
    Kind(
        "pool",
        partial(realistic, shape=SHAPES["qwen3-30b-a3b"], nodes=5000),
        "every candidate of a wide drafter, 5,000 nodes, Qwen3-30B-A3B",
        "EAGLE-2 ranks pools of 611 (10 x 10 over 6 levels after the first); 5,000 is to scale up",
    ),
    Kind(
        "non-uniform",
        partial(realistic, shape=SHAPES["gpt-oss-120b"], time_spread=0.5),
        "expert times that differ within a layer, gpt-oss-120b",
        "mixed-precision experts, as in HOBBIT (arXiv 2411.01433), or several devices",
    ),
    Kind(
        "saturating",
        hard.saturating,
        "a few tokens use every expert, so that groups beat their members",
        "Mixtral's 8 experts: the union of a few tokens is the whole layer",
    ),
    Kind(
        "densest-k-subgraph",
        hard.densest_k_subgraph,
        "star whose leaves are vertices and whose experts are edges of a graph, with a budget",
        "reduction from densest k-subgraph (Feige, Kortsarz, Peleg 2001)",
    ),
    Kind(
        "min-k-union",
        hard.min_k_union,
        "star whose leaves are edges and whose experts are vertices of a graph, with a budget",
        "reduction from minimum k-union (Chlamtac, Dinitz, Makarychev 2017)",
    ),
    Kind(
        "ties",
        hard.ties,
        "every closed set with nodes 0 and 1 has the same ratio, to the last bit",
        "constructed for the tie rule: the fewest nodes win",
    ),
    Kind(
        "zero-probability",
        hard.zero_probability,
        "subtrees that can never be accepted",
        "top-p or top-k sampling cuts tokens off: their probability is 0",
    ),
    Kind(
        "one-node",
        hard.one_node,
        "roots alone: plain decoding",
        "the smallest legal instance",
    ),
    Kind(
        "deep-chain",
        hard.deep_chain,
        "one path of 500 nodes with high acceptance",
        "prompt lookup and suffix decoding draft long single paths",
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _REALISTIC + _HARD}
#: The kinds that imitate real models; the others are hard on purpose.
REALISTIC: tuple[str, ...] = tuple(kind.name for kind in _REALISTIC)
