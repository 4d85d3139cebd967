"""What holds for every predictor of the registry; a new one joins by its entry and a case here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_drafters import tiny_eagle3
from tiny_models import tiny_checkpoint, tiny_config, tiny_model, tiny_prompt

from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.drafters import make_drafter
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.predictors import PREDICTORS, DraftNodes, make_predictor
from specfit_runtime.predictors.router_network import RouterNetwork, RouterShape
from specfit_runtime.predictors.router_network_files import save_router

CONFIG = tiny_config("qwen3_moe")
SHAPE = CONFIG.num_hidden_layers, CONFIG.num_experts, CONFIG.num_experts_per_tok


def untrained(folder: Path) -> str:
    """Return the name of a network for the tiny target that predicts something, if not much."""
    torch.manual_seed(0)
    network = RouterNetwork(
        RouterShape(*SHAPE, CONFIG.vocab_size, CONFIG.hidden_size, embedding_size=8, hidden_size=8)
    )
    save_router(folder / "router", network, card="")
    return f"learned:{folder / 'router'}"


#: What to pass to `make_predictor`, once its folder was written.
CASES: dict[str, Callable[[Path], str]] = {
    "frequency": lambda folder: "frequency",
    "last-token": lambda folder: "last-token",
    "router": lambda folder: "router",
    "learned": untrained,
    "oracle": lambda folder: "oracle",
}


def asked(truth: np.ndarray | None = None) -> DraftNodes:
    tokens = np.array([3, 5, 5, 7])
    states = torch.randn(4, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1))
    return DraftNodes(
        tokens, np.array([-1, 0, 0, 2]), np.array([0, 1, 1, 2]), states, np.ones(4), truth
    )


def test_every_predictor_has_a_case():
    assert CASES.keys() == PREDICTORS.keys()


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_answer_has_the_shape_that_is_promised(name, tmp_path):
    predictor = make_predictor(CASES[name](tmp_path))
    assert predictor.name == name
    predictor.bind(tiny_model("qwen3_moe"), None)
    predictor.start(*SHAPE)
    n_layers, n_experts, top_k = SHAPE
    rng = np.random.default_rng(0)
    truth = np.argsort(rng.random((4, n_layers, n_experts)), axis=2)[:, :, :top_k]
    predictor.observe([3, 5], truth[:2].astype(np.int32))
    nodes = asked(truth)
    found = predictor.predict(nodes)
    assert found.dtype == np.int32
    assert found.shape == (4, n_layers, top_k)
    assert ((found >= -1) & (found < n_experts)).all()
    likely = predictor.probabilities(nodes)
    if likely is not None:
        assert likely.dtype == np.float32
        assert likely.shape == (4, n_layers, n_experts)
        assert ((likely >= 0) & (likely <= 1)).all()
        np.testing.assert_allclose(likely.sum(axis=2), top_k, rtol=0.2)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    root = tmp_path_factory.mktemp("target")
    model = load_offloaded(
        tiny_checkpoint("qwen3_moe", root / "target"), expert_cache=4, dtype="float32"
    )
    stock = tiny_model("qwen3_moe").generate(tiny_prompt(), max_new_tokens=24, do_sample=False)
    yield model, f"eagle3:{tiny_eagle3(root / 'head', CONFIG)}", stock
    offload_of(model).close()


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_text_does_not_depend_on_the_predictor(name, target, tmp_path):
    model, drafter, stock = target
    spec = SpecFit(make_drafter(drafter), policy="ecospec", predictor=CASES[name](tmp_path))
    arguments = {"max_new_tokens": 24, "do_sample": False, "custom_generate": spec}
    if name == "oracle":
        with pytest.raises(InvalidInputError, match="routing of recorded nodes alone"):
            model.generate(tiny_prompt(), **arguments)
        return
    assert model.generate(tiny_prompt(), **arguments).tolist() == stock.tolist()
    assert spec.report.predictor == name


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        ("psychic", "'psychic' is unknown; the predictors are "),
        ("psychic:DIR", "'psychic:DIR' is unknown"),
        ("learned", "'learned' needs a DIR: use learned:DIR"),
        ("learned:", "'learned' needs a DIR: use learned:DIR"),
        ("frequency:x", "'frequency' takes nothing after a colon, got 'x'"),
        (3, "a name or a RoutingPredictor, got 3"),
    ],
)
def test_a_wrong_name_is_refused(predictor, message):
    with pytest.raises(InvalidInputError, match=message):
        make_predictor(predictor)
