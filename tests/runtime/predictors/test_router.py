"""The predictor that applies the target's routers, without and with a fitted map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_drafters import tiny_eagle3
from tiny_models import MODEL_TYPES, tiny_checkpoint, tiny_model, tiny_prompt

from specfit_opt.files import Trace
from specfit_runtime import SpecFit, load_offloaded, offload_of
from specfit_runtime.errors import CheckpointError, InvalidInputError
from specfit_runtime.families import FAMILIES
from specfit_runtime.predictors import DraftNodes, RoutingPredictor, make_predictor
from specfit_runtime.predictors.fit_router_map import fit_router_map
from specfit_runtime.predictors.router_map import RouterMap

H, VOCAB = 48, 160


def nodes(tokens: Any, states: torch.Tensor | None = None, parent: Any = None) -> DraftNodes:
    m = len(tokens)
    return DraftNodes(
        tokens=np.array(tokens, dtype=np.int64),
        parent=np.arange(m) if parent is None else np.array(parent),
        depth=np.ones(m, dtype=np.int64),
        states=states,
    )


def bound(model: Any, folder: Path | None = None) -> RoutingPredictor:
    predictor = make_predictor("router" if folder is None else f"router:{folder}")
    predictor.bind(model, None)
    family, config = FAMILIES[model.config.model_type], model.config
    predictor.start(
        len(family.moe_layers(config)), family.n_experts(config), family.top_k(config)
    )
    return predictor


def random_states(n: int, size: int = H) -> torch.Tensor:
    return torch.randn(n, size, generator=torch.Generator().manual_seed(1))


def trace_of(
    tokens: NDArray[np.integer],
    experts: NDArray[np.integer],
    states: NDArray[np.floating] | None,
    n_experts: int = 8,
    name: str = "made",
) -> Trace:
    """Return a trace of roots alone, one text."""
    n = len(tokens)
    return Trace(
        cycle_start=np.arange(n + 1),
        prompt=np.zeros(n, np.int32),
        position=np.arange(n),
        parent=np.full(n, -1),
        token=tokens,
        path_prob=np.ones(n),
        depth=np.zeros(n, np.int16),
        accepted=np.ones(n, np.bool_),
        experts=experts,
        n_experts=n_experts,
        states=states,
        name=name,
    )


def random_trace(seed: int = 0, n: int = 400, **changes: Any) -> Trace:
    rng = np.random.default_rng(seed)
    experts = np.argsort(rng.random((n, 3, 8)), axis=2)[:, :, :2].astype(np.int16)
    parts: dict[str, Any] = {
        "tokens": rng.integers(0, VOCAB, n),
        "experts": experts,
        "states": rng.standard_normal((n, 5)),
        **changes,
    }
    return trace_of(**parts)


class TestWithoutAMap:
    @pytest.mark.parametrize("family", MODEL_TYPES)
    def test_first_layer_reads_the_embedding_and_last_the_state(self, family: str) -> None:
        model = tiny_model(family)
        spec, layers = FAMILIES[family], FAMILIES[family].moe_layers(model.config)
        tokens, states = list(range(20, 50)), random_states(30)
        found = bound(model).predict(nodes(tokens, states))
        assert found.dtype == np.int32
        assert found.shape == (30, len(layers), 2)
        inputs = {0: model.get_input_embeddings().weight[tokens], -1: states}
        for place, hidden in inputs.items():
            layer = model.get_submodule(f"model.layers.{layers[place]}")
            with torch.no_grad():
                # At unit scale the norm changes the gain alone, up to its epsilon.
                hidden = torch.nn.functional.rms_norm(hidden, (H,), eps=1e-6)
                normed = layer.get_submodule(spec.router_norm)(hidden)
                _, _, true = layer.get_submodule(spec.router_module)(normed)
            assert np.array_equal(np.sort(found[:, place]), true.sort().values.numpy())

    def test_the_most_likely_expert_comes_first(self) -> None:
        model = tiny_model("qwen3_moe")
        found = bound(model).predict(nodes([3], random_states(1)))
        layer = model.model.layers[-1]
        with torch.no_grad():
            hidden = torch.nn.functional.rms_norm(random_states(1), (H,), eps=1e-6)
            logits, _, _ = layer.mlp.gate(layer.post_attention_layernorm(hidden))
        assert found[0, -1, 0] == int(logits.argmax())

    def test_a_root_alone_needs_no_state(self) -> None:
        predictor = bound(tiny_model("mixtral"))
        alone = predictor.predict(nodes([7], parent=[-1]))
        zeros = predictor.predict(nodes([7], torch.zeros(1, H), parent=[-1]))
        assert np.array_equal(alone, zeros)

    def test_it_has_no_probabilities(self) -> None:
        assert bound(tiny_model("olmoe")).probabilities(nodes([7], random_states(1))) is None

    def test_a_drafter_without_states_is_refused(self) -> None:
        predictor = bound(tiny_model("qwen3_moe"))
        with pytest.raises(InvalidInputError, match=r"prompt-lookup has none, eagle3:DIR and lm"):
            predictor.predict(nodes([1, 2], parent=[-1, 0]))

    def test_states_of_another_size_are_refused(self) -> None:
        predictor = bound(tiny_model("qwen3_moe"))
        with pytest.raises(InvalidInputError, match="48, the target's hidden size; fit a map"):
            predictor.predict(nodes([1], random_states(1, 32)))

    def test_it_must_be_bound_and_started_with_the_targets_shape(self) -> None:
        predictor = make_predictor("router")
        with pytest.raises(InvalidInputError, match="call bind"):
            predictor.start(3, 8, 2)
        predictor.bind(tiny_model("qwen3_moe"), None)
        with pytest.raises(InvalidInputError, match="call start first"):
            predictor.predict(nodes([1], random_states(1)))
        with pytest.raises(InvalidInputError, match="3 layers of 8 experts, top-2, not 4 of 8"):
            predictor.start(4, 8, 2)

    def test_nothing_is_learned_but_the_routing_is_checked(self) -> None:
        predictor = bound(tiny_model("qwen3_moe"))
        before = predictor.predict(nodes([4], random_states(1)))
        predictor.observe([4], np.zeros((1, 3, 2), dtype=np.int32))
        assert np.array_equal(predictor.predict(nodes([4], random_states(1))), before)
        with pytest.raises(InvalidInputError, match="experts must be integers of shape"):
            predictor.observe([4], np.zeros((1, 2, 2), dtype=np.int32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("target"))


class TestDecoding:
    @pytest.mark.parametrize("policy", ["ecospec", "specfit-none"])
    def test_the_text_stays_the_same(self, folder: Path, policy: str, tmp_path: Path) -> None:
        model = load_offloaded(folder, expert_cache=4, dtype="float32")
        head = tiny_eagle3(tmp_path, model.config)
        spec = SpecFit(f"eagle3:{head}", policy=policy, predictor="router")
        options = {"max_new_tokens": 12, "do_sample": False}
        plain = model.generate(tiny_prompt(), **options)
        assert torch.equal(model.generate(tiny_prompt(), custom_generate=spec, **options), plain)
        assert spec.report.predictor == "router"
        offload_of(model).close()

    def test_prompt_lookup_is_refused(self, folder: Path) -> None:
        model = load_offloaded(folder, expert_cache=4, dtype="float32")
        spec = SpecFit("prompt-lookup", policy="ecospec", predictor="router")
        with pytest.raises(InvalidInputError, match="prompt-lookup has none"):
            model.generate(
                torch.arange(VOCAB).repeat(2)[None],  # so that whatever comes has come before
                max_new_tokens=12,
                do_sample=False,
                custom_generate=spec,
            )
        offload_of(model).close()


class TestFit:
    def test_a_linear_relation_is_recovered(self, tmp_path: Path) -> None:
        """Layer 0 goes by the token, layer 1 by the state, layer 2 by neither."""
        rng = np.random.default_rng(3)
        model = tiny_model("qwen3_moe", num_experts_per_tok=1)
        with torch.no_grad():
            model.get_input_embeddings().weight[:H] = 3.0 * torch.eye(H)
        tokens, kind = rng.integers(0, H, 3000), rng.integers(0, 5, 3000)
        states = 2.0 * np.eye(5)[kind]
        experts = np.stack([tokens % 8, (kind + 2) % 8, np.full(3000, 6)], axis=1)[:, :, None]
        trace = trace_of(tokens, experts.astype(np.int16), states)
        fitted = fit_router_map([trace], model, ridge=1e-9)
        assert fitted.state_size == 5
        assert fitted.nodes == 3000
        fitted.save(tmp_path / "map")
        predictor = bound(model, tmp_path / "map")
        # Pairs that did not occur, in an order of their own.
        tokens, kind = np.arange(H)[::-1], np.arange(H) % 5
        asked = nodes(tokens, torch.tensor(2.0 * np.eye(5)[kind]))
        found = predictor.predict(asked)
        assert np.array_equal(found[:, 0, 0], tokens % 8)
        assert np.array_equal(found[:, 1, 0], (kind + 2) % 8)
        assert (found[:, 2] == 6).all()
        likely = predictor.probabilities(asked)
        assert likely is not None
        assert likely.dtype == np.float32
        np.testing.assert_allclose(likely.sum(axis=2), 1.0, atol=1e-5)
        np.testing.assert_allclose(likely[np.arange(H), 0, tokens % 8], 1.0, atol=1e-3)

    def test_it_is_the_penalised_least_squares(self) -> None:
        model, ridge = tiny_model("qwen3_moe"), 0.05
        traces = [random_trace(1), random_trace(2, n=150)]
        fitted = fit_router_map(traces, model, ridge=ridge)
        embed = model.get_input_embeddings().weight.detach().double().numpy()

        def unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
            return rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-6)

        tokens = np.concatenate([t.token for t in traces])
        states = np.concatenate([t.states for t in traces if t.states is not None])
        x = np.hstack([unit(embed[tokens]), unit(states.astype(np.float64))])
        y = np.zeros((550, 3, 9))
        ids = np.concatenate([t.experts for t in traces])
        np.put_along_axis(y, ids.astype(np.int64), 1.0, axis=2)
        y = y[:, :, :8].reshape(550, 24)
        # The constant is not penalised: fit what deviates from the means.
        xc, yc = x - x.mean(axis=0), y - y.mean(axis=0)
        rows = np.vstack([xc, np.sqrt(ridge * 550) * np.eye(H + 5)])
        wanted, *_ = np.linalg.lstsq(rows, np.vstack([yc, np.zeros((H + 5, 24))]), rcond=None)
        got = torch.cat([fitted.embedding_weight, fitted.state_weight]).flatten(1).numpy()
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        constant = y.mean(axis=0) - x.mean(axis=0) @ wanted
        np.testing.assert_allclose(fitted.constant.flatten().numpy(), constant, atol=1e-5)

    def test_padding_is_no_expert(self) -> None:
        trace = random_trace()
        experts = np.array(trace.experts)
        experts[:, 1, :] = -1
        fitted = fit_router_map([random_trace(experts=experts)], tiny_model("qwen3_moe"))
        assert fitted.state_weight[:, 1].abs().max() == 0.0
        assert fitted.constant[1].abs().max() < 1e-6
        assert fitted.constant[0].abs().max() > 0.1

    @pytest.mark.parametrize(
        ("traces", "message"),
        [
            ([], "at least one"),
            ([random_trace(states=None)], "no drafter states: record it with specfit trace"),
            ([random_trace(), random_trace(states=np.ones((400, 4)))], "size 4, the first of 5"),
            ([random_trace(tokens=np.full(400, VOCAB))], "holds token 160"),
            ([random_trace(n_experts=9)], "3 layers of 9 experts, top-2; the model has 3 of 8"),
        ],
        ids=["none", "stateless", "sizes", "vocabulary", "shape"],
    )
    def test_traces_that_do_not_fit_are_refused(self, traces: list[Trace], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            fit_router_map(traces, tiny_model("qwen3_moe"))

    @pytest.mark.parametrize("ridge", [0.0, -1.0, float("nan")])
    def test_ridge_is_positive(self, ridge: float) -> None:
        with pytest.raises(InvalidInputError, match="ridge must be positive"):
            fit_router_map([random_trace()], tiny_model("qwen3_moe"), ridge=ridge)


@pytest.fixture(scope="module")
def fitted() -> RouterMap:
    return fit_router_map([random_trace()], tiny_model("qwen3_moe"))


class TestMapFiles:
    def test_what_is_loaded_is_what_was_saved(self, fitted: RouterMap, tmp_path: Path) -> None:
        folder = tmp_path / "map"
        fitted.save(folder)
        again = RouterMap.load(folder)
        for name in ("embedding_weight", "state_weight", "constant"):
            assert torch.equal(getattr(again, name), getattr(fitted, name)), name
        assert (again.top_k, again.target, again.nodes, again.ridge) == (2, "qwen3_moe", 400, 1e-3)
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert "400 draft nodes" in card
        names = sorted(p.name for p in folder.iterdir())
        assert names == ["README.md", "config.json", "model.safetensors"]
        with pytest.raises(InvalidInputError, match="exists already; name a new folder"):
            fitted.save(folder)

    def damaged(self, fitted: RouterMap, folder: Path, **changes: Any) -> Path:
        fitted.save(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config.update(changes)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"format": "other"}, "does not describe"),
            ({"version": 2}, "version 2"),
            ({"n_layers": 4}, "asks for"),
            ({"top_k": "two"}, "must be|lacks"),
        ],
    )
    def test_a_configuration_that_does_not_fit(
        self, fitted: RouterMap, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(CheckpointError, match=message):
            make_predictor(f"router:{self.damaged(fitted, tmp_path, **changes)}")

    def test_files_that_are_missing_or_broken(self, fitted: RouterMap, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="cannot read a router map"):
            make_predictor(f"router:{tmp_path / 'nowhere'}")
        fitted.save(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"no tensors")
        with pytest.raises(CheckpointError, match="cannot read a router map"):
            make_predictor(f"router:{tmp_path}")

    def test_weights_that_are_not_finite(self, fitted: RouterMap, tmp_path: Path) -> None:
        broken = RouterMap(
            fitted.embedding_weight,
            fitted.state_weight.clone().fill_(torch.nan),
            fitted.constant,
            *(fitted.top_k, fitted.target, fitted.nodes, fitted.ridge),
        )
        broken.save(tmp_path)
        with pytest.raises(CheckpointError, match="state_weight holds NaN"):
            RouterMap.load(tmp_path)

    @pytest.mark.parametrize(
        ("family", "changes", "message"),
        [
            ("mixtral", {}, "model type qwen3_moe, this one has mixtral"),
            ("qwen3_moe", {"num_experts": 16}, "experts per layer 8, this one has 16"),
            ("qwen3_moe", {"hidden_size": 32}, "hidden size 48, this one has 32"),
        ],
    )
    def test_another_target_is_refused(
        self,
        fitted: RouterMap,
        tmp_path: Path,
        family: str,
        changes: dict[str, int],
        message: str,
    ) -> None:
        fitted.save(tmp_path)
        predictor = make_predictor(f"router:{tmp_path}")
        with pytest.raises(InvalidInputError, match=message):
            predictor.bind(tiny_model(family, **changes), None)

    def test_states_of_another_size_are_refused(self, fitted: RouterMap, tmp_path: Path) -> None:
        fitted.save(tmp_path)
        predictor = bound(tiny_model("qwen3_moe"), tmp_path)
        with pytest.raises(InvalidInputError, match="needs size 5, what the map was fitted to"):
            predictor.predict(nodes([1], random_states(1)))


def test_a_colon_wants_a_folder() -> None:
    with pytest.raises(InvalidInputError, match=r"needs a DIR: use router\[:DIR\]"):
        make_predictor("router:")
