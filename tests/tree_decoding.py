"""Plain decoding one token at a time, and decoding with trees that partly guess it right."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stock_routing import StockRouting

from specfit_runtime.verify import TargetSession, accept
from specfit_runtime.verify.transformers_api import (
    cache_argument,
    new_cache,
    read_generate_arguments,
)


class Plain:
    """A stock model that reads a text step by step, as the reference of what is right.

    Parameters
    ----------
    model : PreTrainedModel
    cache : DynamicCache, optional
        What was read before.
    hidden : bool
        Whether outputs hold all hidden states.
    """

    def __init__(self, model: Any, cache: Any = None, hidden: bool = False) -> None:
        self.model = model
        self.hidden = hidden
        self.cache = new_cache(model) if cache is None else cache

    @torch.no_grad()
    def read(self, tokens: Sequence[int]) -> Any:
        """Return the outputs; logits are those after the last token."""
        start = self.cache.get_seq_length()
        return self.model(
            input_ids=torch.tensor([list(tokens)]),
            position_ids=torch.arange(start, start + len(tokens))[None],
            use_cache=True,
            logits_to_keep=1,
            output_hidden_states=self.hidden,
            **{cache_argument(self.model): self.cache},
        )

    def branch(self) -> Plain:
        """Return a reader that has read the same and goes its own way."""
        return Plain(self.model, copy.deepcopy(self.cache), self.hidden)


def random_parents(n: int, rng: np.random.Generator) -> list[int]:
    """Return the parents of a random tree of ``n`` nodes: chains, stars and all between."""
    reach = int(rng.integers(1, n + 1))
    return [-1] + [int(rng.integers(max(0, v - reach), v)) for v in range(1, n)]


def path_to(node: int, parent: Sequence[int]) -> list[int]:
    """Return the nodes from the root to ``node``."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parent[node]
    return path


class TreeDecoder:
    """A decoding method for ``generate(custom_generate=...)`` that verifies random trees.

    Parameters
    ----------
    text : sequence of int
        The expected text, prompt included: a node that lies on it gets, now and then, a child that
        continues it.
    seed : int
    max_nodes : int
        Trees have 1 to so many nodes.
    """

    def __init__(self, text: Sequence[int] = (), seed: int = 0, max_nodes: int = 12) -> None:
        self.text = list(text)
        self.rng = np.random.default_rng(seed)
        self.max_nodes = max_nodes
        self.passes = 0
        self.sizes: list[int] = []

    def tree(self, root: int, length: int, vocab: int) -> tuple[list[int], list[int]]:
        """Return tokens and parents of a tree behind ``length`` tokens, the root's included."""
        parent = random_parents(int(self.rng.integers(1, self.max_nodes + 1)), self.rng)
        tokens = [root]
        reached = {0: length}  # of the nodes on the expected text: how much of it they continue
        for v, u in enumerate(parent[1:], start=1):
            at = reached.get(u)
            siblings = {tokens[w] for w in range(1, v) if parent[w] == u}
            if at is not None and at < len(self.text) and self.text[at] not in siblings:
                if self.rng.random() < 0.8:
                    tokens.append(self.text[at])
                    reached[v] = at + 1
                    continue
                siblings.add(self.text[at])
            tokens.append(int(self.rng.choice([t for t in range(vocab) if t not in siblings])))
        return tokens, parent

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        prompt = read_generate_arguments(input_ids, generation_config, model_kwargs)
        session = TargetSession(model, cache=prompt.cache, recorder=StockRouting(model))
        how = {
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "do_sample": generation_config.do_sample,
        }
        result = session.prefill(prompt.new_ids, chunk=prompt.chunk)
        last = int(input_ids[0, -1])
        accepted = accept(result.logits, [last], [-1], input_ids, **how)
        while not accepted.finished:
            ids = accepted.committed_ids
            tokens, parent = self.tree(
                accepted.tokens[-1], ids.shape[1], model.config.vocab_size
            )
            result = session.verify(tokens, parent)
            accepted = accept(result.logits, tokens, parent, ids, **how)
            session.commit(accepted.rows)
            self.passes += 1
            self.sizes.append(len(tokens))
        return accepted.committed_ids
