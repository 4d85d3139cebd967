"""The output is that of stock decoding, whatever chooses, drafts, stores and caches."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from rounding import assert_no_near_ties
from tiny_drafters import tiny_eagle3
from tiny_models import MODEL_TYPES, tiny_checkpoint, tiny_config, tiny_model, tiny_prompt

from specfit_opt.policies import POLICIES
from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.drafters import DRAFTERS
from specfit_runtime.stores import STORES

NEW_TOKENS = 64
POLICY_NAMES = [kind.default_name for kind in POLICIES.values()]
ON_CPU = [kind.name for kind in STORES.values() if not kind.needs_cuda]
#: One slot per layer, some, all.
CACHES: list[int | float] = [1, 0.4, 1.0]


def product_of_all():
    return list(product(MODEL_TYPES, POLICY_NAMES, DRAFTERS, ON_CPU, CACHES))


def sample_of_all():
    """Return a case per family and policy; drafters, stores and caches meet in every pair."""
    cases = []
    for i, family in enumerate(MODEL_TYPES):
        for j, policy in enumerate(POLICY_NAMES):
            drafter = list(DRAFTERS)[(i + j) % len(DRAFTERS)]
            store = ON_CPU[(i + j // 3) % len(ON_CPU)]
            cases.append((family, policy, drafter, store, CACHES[(i + 2 * j) % len(CACHES)]))
    return cases


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return what makes the target, the drafters and the stock output of a family, once each."""
    known = {}

    def of(family: str):
        if family not in known:
            root: Path = tmp_path_factory.mktemp(family)
            target = tiny_checkpoint(family, root / "target", shards=2)
            head = tiny_eagle3(root / "head", tiny_config(family))
            # As a small model that drafts, the target itself: it is nearly always right.
            names = {
                "eagle3": f"eagle3:{head}",
                "lm": f"lm:{target}",
                "prompt-lookup": "prompt-lookup",
            }
            assert names.keys() == DRAFTERS.keys(), "a drafter is not tested here"
            stock = tiny_model(family).generate(
                tiny_prompt(),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
            assert_no_near_ties(torch.cat(stock.logits))
            known[family] = target, names, stock.sequences
        return known[family]

    return of


def check(places, family, policy, drafter, store, cache):
    target, drafters, stock = places(family)
    model = load_offloaded(target, expert_cache=cache, store=store, dtype="float32")
    with offload_of(model):
        spec = SpecFit(drafters[drafter], policy=policy)
        out = model.generate(
            tiny_prompt(), max_new_tokens=NEW_TOKENS, do_sample=False, custom_generate=spec
        )
        assert out.tolist() == stock.tolist()
        report = spec.report
        assert report.new_tokens == NEW_TOKENS
        if drafter == "lm" and policy in ("chain-4", "eagle-60"):
            # It must not be right by never speculating.
            assert report.totals.tokens_per_pass > 2


@pytest.mark.parametrize(("family", "policy", "drafter", "store", "cache"), sample_of_all())
@pytest.mark.filterwarnings("ignore:drafter .* the target accepted")
def test_output_is_stock(places, family, policy, drafter, store, cache):
    check(places, family, policy, drafter, store, cache)


@pytest.mark.slow
@pytest.mark.parametrize("family", MODEL_TYPES)
@pytest.mark.filterwarnings("ignore:drafter .* the target accepted")
def test_output_is_stock_in_every_combination(places, family):
    for case in product_of_all():
        if case[0] == family:
            check(places, *case)
