"""The selection inside an engine's own draft loop, without Transformers and without a model.

A toy engine stands for the real one: its target says a text that was drawn beforehand, its drafter
knows the probabilities that the text was drawn with, its experts have a cache, and its clock counts
what a pass, a draft level and a missing expert take. What an engine has to add is in ``speculate``:
a ``TreeSearch`` per pass, one ``extend`` per drafted level, and ``advise`` before the next one.

Run it with ``python examples/bare_draft_loop.py``.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel, TreeSearch

N_TOKENS, N_LAYERS, N_EXPERTS, TOP_K, SLOTS = 200, 4, 32, 2, 16
LENGTH = 400  # tokens to decode
LEVEL_TIME = 0.002  # seconds of drafting a level
COST = CostModel(fixed_time=0.020, node_time=0.0005, expert_time=0.004)
MOST_LEVELS = 4


class Engine:
    """A target that says its text, a drafter, an expert cache per layer, and a clock."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        scores = np.exp(2.0 * rng.gumbel(size=(N_TOKENS, N_TOKENS)))
        self.draft_prob = scores / scores.sum(axis=1, keepdims=True)
        self.text = [0]
        while len(self.text) <= LENGTH + MOST_LEVELS:
            self.text.append(int(rng.choice(N_TOKENS, p=self.draft_prob[self.text[-1]])))
        self.experts = np.array(
            [
                [rng.choice(N_EXPERTS, TOP_K, replace=False) for _ in range(N_LAYERS)]
                for _ in range(N_TOKENS)
            ]
        )
        self.cache: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(N_LAYERS)]
        self.seconds = 0.0
        self.loaded = self.passes = 0

    def resident(self) -> NDArray[np.bool_]:
        """Return which experts are in fast memory, shape (layers, experts)."""
        mask = np.zeros((N_LAYERS, N_EXPERTS), dtype=bool)
        for layer, cached in enumerate(self.cache):
            mask[layer, list(cached)] = True
        return mask

    def draft_level(
        self, tokens: list[int], parents: list[int], width: int = 4
    ) -> list[tuple[int, int, float]]:
        """Return (parent, token, probability) of two children of each parent, the best first."""
        self.seconds += LEVEL_TIME
        found = []
        for v in parents:
            prob = self.draft_prob[tokens[v]]
            found += [(v, int(t), float(prob[t])) for t in np.argsort(-prob)[:2]]
        return sorted(found, key=lambda child: -child[2])[:width]

    def verify(self, position: int, tokens: list[int], parent: list[int]) -> list[int]:
        """Run a pass over a tree behind ``position`` and return the tokens that it commits."""
        self.passes += 1
        self.seconds += COST.fixed_time + COST.node_time * len(tokens)
        for layer, cached in enumerate(self.cache):
            for expert in {int(e) for t in tokens for e in self.experts[t, layer]}:
                if expert not in cached:
                    self.loaded += 1
                    self.seconds += COST.expert_time
                cached[expert] = None
                cached.move_to_end(expert)
            while len(cached) > SLOTS:
                cached.popitem(last=False)
        committed, at = [], 0
        while True:
            token = self.text[position + len(committed) + 1]
            committed.append(token)
            for v in range(len(tokens)):
                if parent[v] == at and tokens[v] == token:
                    at = v
                    break
            else:
                return committed


def speculate(engine: Engine, root: int) -> tuple[list[int], list[int]]:
    """Draft while it should pay, and return the tokens and parents of what is worth verifying."""
    search = TreeSearch(COST, N_LAYERS, N_EXPERTS, engine.resident())
    tokens, parent, prob = [root], [-1], [1.0]
    # A real engine predicts these; here each token always uses the same ones.
    search.extend([-1], [1.0], engine.experts[[root]])
    frontier, levels = [0], 0
    while levels < MOST_LEVELS and search.advise(LEVEL_TIME, acceptance=0.6).go:
        drafted = engine.draft_level(tokens, frontier)
        frontier = list(range(len(tokens), len(tokens) + len(drafted)))
        parent += [v for v, _, _ in drafted]
        tokens += [token for _, token, _ in drafted]
        prob += [prob[v] * p for v, _, p in drafted]
        search.extend(
            [v for v, _, _ in drafted],
            prob[frontier[0] :],
            engine.experts[[token for _, token, _ in drafted]],
            draft_time=LEVEL_TIME,
        )
        levels += 1
    nodes = search.solution.nodes.tolist()  # ascending, so parents come first
    place = {v: i for i, v in enumerate(nodes)}
    return [tokens[v] for v in nodes], [place.get(parent[v], -1) for v in nodes]


def decode(speculative: bool) -> tuple[list[int], Engine]:
    """Decode the text, plainly or with draft trees."""
    engine = Engine()
    text = [0]
    while len(text) <= LENGTH:
        tree = speculate(engine, text[-1]) if speculative else ([text[-1]], [-1])
        text += engine.verify(len(text) - 1, *tree)
    return text[: LENGTH + 1], engine


def main() -> None:
    """Decode both ways and compare."""
    text, plain = decode(False)
    again, drafted = decode(True)
    print("same text:", text == again)
    for name, engine in (("plain", plain), ("specfit", drafted)):
        print(
            f"{name}: {LENGTH / engine.passes:.2f} tokens per pass, "
            f"{engine.loaded / LENGTH:.2f} experts loaded per token, "
            f"{LENGTH / engine.seconds:.1f} tokens/s"
        )


if __name__ == "__main__":
    main()
