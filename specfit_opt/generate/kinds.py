"""The kinds of generated instances."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..instance import Instance
from ..registry import Registry
from .hard import densest_k_subgraph, min_k_union, ties
from .realistic import realistic
from .shapes import SHAPES
from .trees import chain, roots_alone, with_zero_subtrees


@dataclass(frozen=True)
class InstanceKind:
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
    without : tuple of str
        Options of ``build`` that mean nothing to this kind.
    """

    name: str
    build: Callable[..., Instance]
    summary: str
    source: str
    without: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that :func:`.generate` may pass on to this kind."""
        parameters = inspect.signature(self.build).parameters
        return tuple(
            name for name in parameters if name not in ("rng", "shape", "grow", *self.without)
        )


#: Every kind by name.
KINDS: Registry[InstanceKind] = Registry(
    "kind",
    (
        InstanceKind(
            shape.name,
            partial(realistic, shape=shape),
            f"{shape.n_layers} layers x {shape.n_experts} experts x top-{shape.top_k}, offloaded",
            shape.source,
        )
        for shape in SHAPES.values()
    ),
)
#: The kinds that imitate real models; the others are hard on purpose.
REALISTIC: tuple[str, ...] = tuple(KINDS)

for _kind in (
    InstanceKind(
        "pool",
        partial(realistic, shape=SHAPES["qwen3-30b-a3b"], nodes=5000),
        "every candidate of a wide drafter, 5,000 nodes, Qwen3-30B-A3B",
        "EAGLE-2 ranks pools of 611 (10 x 10 over 6 levels after the first); 5,000 is to scale up",
    ),
    InstanceKind(
        "non-uniform",
        partial(realistic, shape=SHAPES["gpt-oss-120b"], time_spread=0.5),
        "expert times that differ within a layer, gpt-oss-120b",
        "mixed-precision experts, as in HOBBIT (arXiv 2411.01433), or several devices",
    ),
    # No cache, flat popularity, and neighbours that share by chance alone. The first nodes each
    # bring in new experts and hardly pay; once the layers are full, further nodes cost next to
    # nothing. That is what stops a greedy choice too early.
    InstanceKind(
        "saturating",
        partial(
            realistic,
            shape=SHAPES["mixtral-8x7b"],
            resident=0.0,
            overlap=0.0,
            skew=0.0,
            token_time=0.002,
        ),
        "a few tokens use every expert, so that groups beat their members",
        "Mixtral's 8 experts: the union of a few tokens is the whole layer",
    ),
    InstanceKind(
        "densest-k-subgraph",
        densest_k_subgraph,
        "star whose leaves are vertices and whose experts are edges of a graph, with a budget",
        "reduction from densest k-subgraph (Feige, Kortsarz, Peleg 2001)",
    ),
    InstanceKind(
        "min-k-union",
        min_k_union,
        "star whose leaves are edges and whose experts are vertices of a graph, with a budget",
        "reduction from minimum k-union (Chlamtac, Dinitz, Makarychev 2017)",
    ),
    InstanceKind(
        "ties",
        ties,
        "every closed set with nodes 0 and 1 has the same ratio, to the last bit",
        "constructed for the tie rule: the fewest nodes win",
    ),
    # Such nodes must never be chosen, also where residents make them nearly free.
    InstanceKind(
        "zero-probability",
        partial(realistic, shape=SHAPES["tiny"], grow=with_zero_subtrees),
        "subtrees that can never be accepted",
        "top-p or top-k sampling cuts tokens off: their probability is 0",
    ),
    InstanceKind(
        "one-node",
        partial(realistic, shape=SHAPES["tiny"], grow=roots_alone),
        "roots alone: plain decoding",
        "the smallest legal instance",
        without=("nodes", "budget", "overlap"),
    ),
    # What recursion fails on. OLMoE's experts are small enough that tens of nodes pay.
    InstanceKind(
        "deep-chain",
        partial(realistic, shape=SHAPES["olmoe-1b-7b"], grow=chain, nodes=500),
        "one path of 500 nodes with high acceptance",
        "prompt lookup and suffix decoding draft long single paths",
        without=("roots",),
    ),
):
    KINDS.register(_kind)
