"""What holds for every predictor of the registry; a new one joins by its entry and a case here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_drafters import tiny_eagle3
from tiny_models import tiny_checkpoint, tiny_config, tiny_model, tiny_prompt

from specfit_opt.routing_predictor import DraftNodes
from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.drafters import make_drafter
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.predictors import PREDICTORS, make_predictor
from specfit_runtime.predictors.routing_network import NetworkShape, RoutingNetwork
from specfit_runtime.predictors.routing_network_files import save_network

CONFIG = tiny_config("qwen3_moe")
SHAPE = CONFIG.num_hidden_layers, CONFIG.num_experts, CONFIG.num_experts_per_tok


def untrained(folder: Path) -> str:
    """Return the name of a network for the tiny target that predicts something, if not much."""
    torch.manual_seed(0)
    network = RoutingNetwork(
        NetworkShape(*SHAPE, CONFIG.vocab_size, CONFIG.hidden_size, embedding_size=8, hidden_size=8)
    )
    save_network(folder / "network", network, card="")
    return f"learned:{folder / 'network'}"


#: What to pass to `make_predictor`, once its folder was written.
CASES: dict[str, Callable[[Path], str]] = {
    "frequency": lambda folder: "frequency",
    "learned": untrained,
    "oracle": lambda folder: "oracle",
}


def asked(truth: np.ndarray | None = None) -> DraftNodes:
    tokens = np.array([3, 5, 5, 7])
    states = torch.randn(4, CONFIG.hidden_size, generator=torch.Generator().manual_seed(1))
    return DraftNodes(
        tokens, np.array([-1, 0, 0, 2]), np.array([0, 1, 1, 2]), np.ones(4), truth, states
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
    found = predictor.predict(asked(truth))
    assert found.dtype == np.int32
    assert found.shape == (4, n_layers, top_k)
    assert ((found >= -1) & (found < n_experts)).all()


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
        with pytest.raises(InvalidInputError, match="known of recorded nodes alone"):
            model.generate(tiny_prompt(), **arguments)
        return
    assert model.generate(tiny_prompt(), **arguments).tolist() == stock.tolist()
    assert spec.report.predictor == name


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        ("psychic", "'psychic' is unknown; the predictors are frequency, learned, oracle"),
        ("psychic:DIR", "'psychic' is unknown"),
        ("learnt:DIR", "'learnt' is unknown; did you mean 'learned'"),
        ("learned", "'learned' needs a DIR: use learned:DIR"),
        ("learned:", "'learned' needs a DIR: use learned:DIR"),
        ("frequency:x", "'frequency' takes nothing after a colon, got 'x'"),
        (3, "a name or a RoutingPredictor, got 3"),
    ],
)
def test_a_wrong_name_is_refused(predictor, message):
    with pytest.raises(InvalidInputError, match=message):
        make_predictor(predictor)
