"""Sampled text is distributed as the target says, whatever trees were verified."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from specfit_runtime import SpecFit

#: Level of each test. Draws are seeded, so a pass is a pass for good; a wrong rule of acceptance
#: moves probabilities by tens of percent and is found at far smaller levels.
LEVEL = 1e-3
TEMPERATURE, TOP_K, TOP_P = 1.3, 3, 0.95
DRAWS = 300


@pytest.fixture(scope="module")
def exact(target):
    """Return the target's probability of every text of three tokens."""

    def after(ids):
        logits = target.stock(ids).logits[0, -1].double() / TEMPERATURE
        values, tokens = logits.topk(TOP_K)
        probs = values.softmax(-1)
        # The smallest set of the likeliest whose sum reaches top_p.
        kept = int((probs.cumsum(-1) - probs < TOP_P).sum())
        probs = probs[:kept] / probs[:kept].sum()
        return dict(zip(tokens[:kept].tolist(), probs.tolist(), strict=True))

    found = {}
    with torch.no_grad():
        for a, pa in after(target.prompt).items():
            one = torch.cat([target.prompt, torch.tensor([[a]])], dim=1)
            for b, pb in after(one).items():
                two = torch.cat([one, torch.tensor([[b]])], dim=1)
                for c, pc in after(two).items():
                    found[a, b, c] = pa * pb * pc
    assert sum(found.values()) == pytest.approx(1.0)
    return found


def p_value(drawn, expected):
    """Return the chi-square test's p-value, cells of fewer than five expected draws pooled."""
    n = len(drawn)
    count = Counter(drawn)
    assert set(count) <= set(expected), "drew what the target never says"
    observed, wanted, rare = [], [], [0.0, 0.0]
    for cell, p in expected.items():
        if p * n < 5:
            rare[0] += count[cell]
            rare[1] += p * n
        else:
            observed.append(count[cell])
            wanted.append(p * n)
    if rare[1] > 0:
        observed.append(rare[0])
        wanted.append(rare[1])
    return chisquare(observed, np.array(wanted) * n / sum(wanted)).pvalue


def marginal(expected, length):
    totals: dict = {}
    for cell, p in expected.items():
        totals[cell[:length]] = totals.get(cell[:length], 0.0) + p
    return totals


@pytest.mark.parametrize("policy", ["eagle-16", "ecospec"])
def test_frequencies_are_the_targets_probabilities(model, target, exact, policy):
    # Policies that draft whatever it takes: the target drafts for itself, which would not pay.
    spec = SpecFit(f"lm:{target.folder}", policy=policy)
    torch.manual_seed(20)
    drawn, verified = [], 0
    for _ in range(DRAWS):
        out = model.generate(
            target.prompt,
            max_new_tokens=4,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            top_p=TOP_P,
            custom_generate=spec,
        )
        drawn.append(tuple(out[0, target.prompt.shape[1] :][:3].tolist()))
        verified += spec.report.totals.verified - spec.report.totals.passes
    assert verified > DRAWS, "nothing was speculated, so nothing is shown"
    for length in (1, 2, 3):
        p = p_value([cell[:length] for cell in drawn], marginal(exact, length))
        assert p > LEVEL, f"the first {length} tokens"


def test_the_test_finds_a_wrong_distribution(exact):
    """Sampling without top_p, which a verifier might ignore, is found."""
    rng = np.random.default_rng(3)
    cells = list(product(*[sorted({cell[i] for cell in exact}) for i in range(2)]))
    right = marginal(exact, 2)
    flat = [cells[i] for i in rng.integers(len(cells), size=DRAWS)]
    drawn = [cell for cell in flat if cell in right]
    assert p_value(drawn, right) < LEVEL
