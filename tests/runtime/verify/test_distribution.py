"""Sampled tokens come with the target's probabilities, whatever tree they were verified in.

Pearson's chi-square test of the frequencies of the first token and of the first two, against the
exact probabilities after Transformers' own processors. Seeds are fixed, so a run that passes passes
always; a correct rule fails a test for one seed in a thousand (`ALPHA`).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from stock_routing import StockRouting
from tiny_models import tiny_model, tiny_prompt
from transformers import LogitsProcessorList
from transformers.generation import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from tree_decoding import Plain, random_parents

from specfit_runtime.verify import TargetSession, accept

VOCABULARY = 12
ALPHA = 1e-3
DRAWS = 1500
#: Cells are counted together until they are expected to be hit at least so often.
RARE = 5.0

PROMPT = tiny_prompt(6, seed=1, vocab_size=VOCABULARY)

PROCESSORS = {
    "plain": (),
    "top_p": (TemperatureLogitsWarper(6.0), TopPLogitsWarper(0.7)),
    "top_k": (TemperatureLogitsWarper(8.0), TopKLogitsWarper(4)),
    "penalty": (RepetitionPenaltyLogitsProcessor(1.5), TemperatureLogitsWarper(10.0)),
}


class Target:
    """A tiny model, the exact probabilities of the next two tokens, and how to draw them."""

    def __init__(self, processors) -> None:
        self.model = tiny_model("qwen3_moe", vocab_size=VOCABULARY)
        self.processors = LogitsProcessorList([TemperatureLogitsWarper(4.0), *processors])
        self.after = {}  # the logits after each first token
        reader = Plain(self.model)
        self.first = reader.read(PROMPT[0].tolist()).logits[0]
        for token in range(VOCABULARY):
            self.after[token] = reader.branch().read([token]).logits[0]
        p1 = self.probabilities(PROMPT, self.first)
        self.single = dict(enumerate(p1))
        self.pairs = {
            (a, b): p1[a] * p2
            for a in range(VOCABULARY)
            for b, p2 in enumerate(
                self.probabilities(torch.cat([PROMPT, torch.tensor([[a]])], 1), self.after[a])
            )
        }

    def probabilities(self, ids, logits):
        return torch.softmax(self.processors(ids, logits.clone()), -1)[0].double().numpy()

    def draw(self, tokens, parent, rule=accept, draws=DRAWS):
        """Return how often each pair of tokens came, the tree verified once and drawn from often.

        A pair that the tree ends within is completed by plain decoding.
        """
        session = TargetSession(self.model, recorder=StockRouting(self.model))
        session.prefill(PROMPT[:, :-1])
        logits = session.verify(tokens, parent).logits
        torch.manual_seed(0)
        how = {"logits_processor": self.processors, "do_sample": True}
        pairs = Counter()
        for _ in range(draws):
            result = rule(logits, tokens, parent, PROMPT, **how)
            drawn = list(result.tokens[:2])
            if len(drawn) == 1:
                more = accept(
                    self.after[drawn[0]], drawn, [-1], result.committed_ids, **how
                )
                drawn.append(more.tokens[0])
            pairs[tuple(drawn)] += 1
        return pairs


def chi_square_p(counts: Counter, probabilities: dict) -> float:
    """Return the p-value of the counts under the probabilities."""
    total = sum(counts.values())
    assert abs(sum(probabilities.values()) - 1) < 1e-5
    if any(counts[cell] and p == 0 for cell, p in probabilities.items()):
        return 0.0  # a token that the target never makes
    observed, expected = [0], [0.0]
    for cell, p in sorted(probabilities.items(), key=lambda item: item[1]):
        if expected[-1] >= RARE:
            observed.append(0)
            expected.append(0.0)
        observed[-1] += counts[cell]
        expected[-1] += p * total
    o, e = np.array(observed), np.array(expected)
    assert len(o) > 2
    return float(chi2.sf(((o - e) ** 2 / e).sum(), len(o) - 1))


def p_values(target: Target, pairs: Counter) -> tuple[float, float]:
    singles = Counter()
    for (a, _), n in pairs.items():
        singles[a] += n
    return chi_square_p(singles, target.single), chi_square_p(pairs, target.pairs)


def trees(target: Target):
    """Return fixed trees: none, likely ones, an unlikely one and random ones."""
    root = int(PROMPT[0, -1])
    best = target.first[0].argsort(descending=True).tolist()
    after = target.after[best[0]][0].argsort(descending=True).tolist()
    rng = np.random.default_rng(2)
    yield "root", [root], [-1]
    yield "chain", [root, best[0], after[0]], [-1, 0, 1]
    yield "star", [root, *best], [-1, *[0] * VOCABULARY]
    likely = [root, best[0], best[1], best[2], after[0], after[1], after[2]]
    yield "eagle", likely, [-1, 0, 0, 0, 1, 1, 1]
    yield "unlikely", [root, best[-1], best[-2], 3], [-1, 0, 0, 1]
    for i in range(2):
        parent = random_parents(9, rng)
        tokens = [root]
        for v in range(1, 9):
            taken = {tokens[w] for w in range(1, v) if parent[w] == parent[v]}
            tokens.append(int(rng.choice([t for t in range(VOCABULARY) if t not in taken])))
        yield f"random-{i}", tokens, parent


@pytest.fixture(scope="module")
def target_of():
    made = {}

    def make(name):
        if name not in made:
            made[name] = Target(PROCESSORS[name])
        return made[name]

    return make


@pytest.mark.parametrize(
    ("tree", "processors"),
    [("star", "plain"), ("eagle", "top_p"), ("unlikely", "top_k"), ("random-0", "penalty")],
)
def test_sampled_frequencies_are_the_targets(target_of, tree, processors):
    check(target_of(processors), tree)


@pytest.mark.slow
@pytest.mark.parametrize("processors", PROCESSORS)
def test_no_fixed_tree_bends_them(target_of, processors):
    target = target_of(processors)
    for name, _, _ in trees(target):
        check(target, name)


def check(target, name):
    tokens, parent = next((t, u) for n, t, u in trees(target) if n == name)
    for p in p_values(target, target.draw(tokens, parent)):
        assert p > ALPHA


class TestBugs:
    """Rules that look right and are not; the test must reject each."""

    def expect_rejected(self, target, rule, tree="eagle") -> None:
        tokens, parent = next((t, u) for n, t, u in trees(target) if n == tree)
        assert min(p_values(target, target.draw(tokens, parent, rule, 500))) < ALPHA / 1000

    def test_top_p_ignored_in_the_tree(self, target_of):
        # Children are accepted by the raw distribution, only the bonus token by the processed one.
        def raw_within_the_tree(logits, tokens, parent, ids, *, logits_processor, do_sample):
            drawn = accept(
                logits,
                tokens,
                parent,
                ids,
                logits_processor=LogitsProcessorList(logits_processor[:1]),
                do_sample=do_sample,
            )
            if len(drawn.rows) > 1:
                return drawn
            return accept(
                logits[:1],
                tokens[:1],
                parent[:1],
                ids,
                logits_processor=logits_processor,
                do_sample=do_sample,
            )

        self.expect_rejected(target_of("top_p"), raw_within_the_tree)
        self.expect_rejected(target_of("top_k"), raw_within_the_tree)

    def test_a_rejected_child_drawn_again_from_the_whole_distribution(self, target_of):
        # Offering each child with its own probability is right only if a rejected one is taken
        # out of the distribution.
        def no_residual(logits, tokens, parent, ids, *, logits_processor, do_sample):
            how = {"logits_processor": logits_processor, "do_sample": do_sample}
            p = torch.softmax(logits_processor(ids, logits[:1].clone()), -1)[0]
            for v in (w for w, u in enumerate(parent) if u == 0):
                if torch.rand(()) < p[tokens[v]]:
                    more = torch.cat([ids, torch.tensor([[tokens[v]]])], 1)
                    rest = accept(logits[v : v + 1], [tokens[v]], [-1], more, **how)
                    object.__setattr__(rest, "tokens", (tokens[v], *rest.tokens))
                    return rest
            return accept(logits[:1], tokens[:1], [-1], ids, **how)

        self.expect_rejected(target_of("plain"), no_residual)

    def test_the_best_token_where_a_draw_was_asked_for(self, target_of):
        def greedy(logits, tokens, parent, ids, *, logits_processor, do_sample):
            return accept(logits, tokens, parent, ids, logits_processor=logits_processor)

        self.expect_rejected(target_of("plain"), greedy)

    def test_the_tokens_of_another_node(self, target_of):
        # A row too far: what the target says after the last sibling.
        def shifted(logits, tokens, parent, ids, **how):
            return accept(logits.roll(1, 0), tokens, parent, ids, **how)

        self.expect_rejected(target_of("plain"), shifted)
