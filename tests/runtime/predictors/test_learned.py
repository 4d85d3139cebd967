"""The predictor that was trained: what it predicts, and every checkpoint that it must refuse."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from routed_trace import EXPERTS, LAYERS, STATE, TOP_K, routed_trace
from safetensors.torch import load_file, save_file

from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor
from specfit_runtime.errors import CheckpointError, InvalidInputError
from specfit_runtime.predictor_training import train_predictor
from specfit_runtime.predictors import make_predictor
from specfit_runtime.predictors.routing_network_files import load_network, save_network


@pytest.fixture(scope="module")
def training():
    trace = routed_trace(prompts=12, positions=80)
    return train_predictor([trace], epochs=30, embedding_size=12, hidden_size=24, seed=3)


@pytest.fixture
def folder(training, tmp_path: Path) -> Path:
    save_network(tmp_path / "network", training.network, card="# A card\n", drafter="eagle3")
    return tmp_path / "network"


def started(folder: Path) -> RoutingPredictor:
    predictor = make_predictor(f"learned:{folder}")
    predictor.start(LAYERS, EXPERTS, TOP_K)
    return predictor


def nodes_of(trace: Any, states: bool = True) -> DraftNodes:
    return DraftNodes(
        token=trace.token.astype(np.int64),
        parent=trace.parent.astype(np.int64),
        depth=trace.depth.astype(np.int64),
        states=torch.from_numpy(trace.states.copy()) if states else None,
    )


def recall(found: np.ndarray, true: np.ndarray) -> float:
    return float((found[..., :, None] == true[..., None, :]).any(axis=2).mean())


class TestPredictions:
    def test_it_predicts_what_training_found(self, folder):
        fresh = routed_trace(seed=4)
        found = started(folder).predict(nodes_of(fresh))
        assert found.dtype == np.int32
        assert found.shape == (fresh.n_nodes, LAYERS, TOP_K)
        assert recall(found, fresh.experts) > 0.9

    def test_without_states_the_token_still_tells_its_half(self, folder):
        fresh = routed_trace(seed=4)
        predictor = started(folder)
        found = predictor.predict(nodes_of(fresh, states=False))
        assert 0.5 < recall(found, fresh.experts) < 0.75
        # Zeros are no state either.
        zeros = torch.zeros(fresh.n_nodes, STATE, dtype=torch.bfloat16)
        asked = nodes_of(fresh)
        asked = replace(asked, states=zeros)
        np.testing.assert_array_equal(predictor.predict(asked), found)

    def test_the_best_scores_come_first(self, folder, training):
        asked = nodes_of(routed_trace(seed=4))
        found = started(folder).predict(asked)
        with torch.inference_mode():
            scores = training.network(
                torch.from_numpy(asked.token), torch.from_numpy(asked.depth), asked.states.float()
            )
        np.testing.assert_array_equal(found, scores.topk(TOP_K, dim=-1).indices)

    def test_states_may_be_arrays_or_come_in_parts(self, folder):
        fresh = routed_trace(seed=4)
        asked, predictor = nodes_of(fresh), started(folder)
        found = predictor.predict(asked)
        assert not fresh.states.flags.writeable
        parts = [torch.from_numpy(fresh.states[:1].copy()), fresh.states[1:9], fresh.states[9:]]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for states in (fresh.states, [fresh.states], parts, tuple(parts)):
                again = predictor.predict(replace(asked, states=states))
                np.testing.assert_array_equal(again, found)

    def test_one_node_alone_is_predicted_as_among_others(self, folder):
        fresh = routed_trace(seed=4, prompts=2, positions=5)
        predictor = started(folder)
        asked = nodes_of(fresh)
        every = predictor.predict(asked)
        for i in (0, 7):
            one = DraftNodes(
                asked.token[i : i + 1],
                asked.parent[i : i + 1],
                asked.depth[i : i + 1],
                states=asked.states[i : i + 1],
            )
            np.testing.assert_array_equal(predictor.predict(one)[0], every[i])

    def test_depths_beyond_training_count_as_the_deepest(self, folder):
        predictor = started(folder)
        tokens, parent = np.array([3, 3]), np.array([0, 0])
        deep = predictor.predict(DraftNodes(tokens, parent, np.array([1, 50])))
        np.testing.assert_array_equal(deep[0], deep[1])

    def test_observing_checks_and_changes_nothing(self, folder):
        predictor = started(folder)
        asked = nodes_of(routed_trace(seed=4))
        before = predictor.predict(asked)
        predictor.observe([1], np.zeros((1, LAYERS, TOP_K), dtype=np.int32))
        predictor.observe([], np.zeros((0, LAYERS, TOP_K), dtype=np.int32))
        np.testing.assert_array_equal(predictor.predict(asked), before)
        with pytest.raises(InvalidInputError, match="must be 0 to 7"):
            predictor.observe([1], np.full((1, LAYERS, TOP_K), EXPERTS))


class TestOtherTargets:
    def test_it_has_to_be_started(self, folder):
        predictor = make_predictor(f"learned:{folder}")
        asked = nodes_of(routed_trace())
        with pytest.raises(InvalidInputError, match="call start first"):
            predictor.predict(asked)
        with pytest.raises(InvalidInputError, match="call start first"):
            predictor.observe([1], np.zeros((1, LAYERS, TOP_K), dtype=np.int32))

    @pytest.mark.parametrize(
        "shape", [(LAYERS + 1, EXPERTS, TOP_K), (LAYERS, 9, TOP_K), (LAYERS, EXPERTS, 1)]
    )
    def test_another_shape_is_refused(self, folder, shape):
        with pytest.raises(InvalidInputError, match="trained for 3 layers of 8 experts, top-2"):
            make_predictor(f"learned:{folder}").start(*shape)

    @pytest.mark.parametrize(
        "states",
        [
            torch.zeros(2, STATE + 1),
            torch.zeros(1, STATE),
            np.zeros(STATE),
            [np.zeros((1, STATE)), np.zeros((1, STATE + 1))],
            [np.zeros((1, STATE)), np.zeros((2, STATE))],
            [],
        ],
    )
    def test_other_states_are_refused(self, folder, states):
        asked = DraftNodes(np.array([1, 2]), np.array([-1, 0]), np.array([0, 1]), states=states)
        with pytest.raises(InvalidInputError, match="trained on states of size 5"):
            started(folder).predict(asked)

    def test_states_that_it_does_not_read_may_have_any_size(self, tmp_path):
        trace = routed_trace(states=False)
        network = train_predictor([trace], epochs=1, embedding_size=4, hidden_size=4).network
        save_network(tmp_path / "network", network, card="")
        asked = DraftNodes(np.array([1]), np.array([-1]), np.array([0]), states=np.ones((1, 77)))
        predictor = started(tmp_path / "network")
        bare = replace(asked, states=None)
        np.testing.assert_array_equal(predictor.predict(asked), predictor.predict(bare))

    def test_another_kind_of_drafter_is_refused(self, folder):
        model = torch.nn.Module()
        model.get_input_embeddings = lambda: torch.nn.Embedding(2, 2)  # type: ignore[assignment]
        predictor = make_predictor(f"learned:{folder}")
        predictor.bind(model, None)
        predictor.bind(model, SimpleNamespace(name="eagle3"))  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="of drafter eagle3, not of lm; train one"):
            predictor.bind(model, SimpleNamespace(name="lm"))  # type: ignore[arg-type]


class TestFiles:
    def test_round_trip(self, folder, training):
        network, drafter = load_network(folder)
        assert drafter == "eagle3"
        assert network.shape == training.network.shape
        for name, weight in training.network.state_dict().items():
            assert torch.equal(network.state_dict()[name], weight)
        assert (folder / "README.md").read_text() == "# A card\n"
        assert [p.name for p in folder.parent.iterdir()] == ["network"]

    def test_what_exists_is_left_alone(self, folder, training):
        before = sorted((p.name, p.read_bytes()) for p in folder.iterdir())
        with pytest.raises(InvalidInputError, match="exists already; name a new folder"):
            save_network(folder, training.network, card="")
        with pytest.raises(InvalidInputError, match="exists already"):
            save_network(folder / "README.md", training.network, card="")
        with pytest.raises(InvalidInputError, match="there is no folder"):
            save_network(folder / "a" / "b", training.network, card="")
        assert before == sorted((p.name, p.read_bytes()) for p in folder.iterdir())

    def test_an_empty_folder_will_do(self, training, tmp_path):
        (tmp_path / "empty").mkdir()
        save_network(tmp_path / "empty", training.network, card="")
        load_network(tmp_path / "empty")

    def test_an_interrupted_write_leaves_nothing(self, training, tmp_path, monkeypatch):
        def interrupt(*args: object, **kwargs: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(json, "dumps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save_network(tmp_path / "network", training.network, card="")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
    def test_a_missing_file(self, folder, missing):
        (folder / missing).unlink()
        with pytest.raises(CheckpointError, match="cannot read a routing network"):
            make_predictor(f"learned:{folder}")

    def test_no_folder(self, tmp_path):
        with pytest.raises(CheckpointError, match="cannot read a routing network"):
            make_predictor(f"learned:{tmp_path / 'nowhere'}")

    @pytest.mark.parametrize("kept", [0, 5, 400, -1])
    def test_truncated_weights(self, folder, kept):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(CheckpointError, match="cannot read a routing network"):
            make_predictor(f"learned:{folder}")

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, folder, bad):
        weights = load_file(folder / "model.safetensors")
        weights["second.bias"][3] = bad
        save_file(weights, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"second\.bias holds NaN, infinity or integers"):
            make_predictor(f"learned:{folder}")

    def test_weights_of_another_shape(self, folder):
        weights = load_file(folder / "model.safetensors")
        del weights["second.bias"]
        save_file(weights, folder / "model.safetensors")
        message = r"holds second\.bias of shape None, .* asks for \(24,\)"
        with pytest.raises(CheckpointError, match=message):
            make_predictor(f"learned:{folder}")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"format": "other"}, "does not describe a specfit routing network"),
            ({"version": 2}, "version 2 of a specfit routing network; this specfit reads"),
            ({"n_layers": 4}, r"asks for \(32,"),
            ({"n_experts": "8"}, "n_experts must be a whole number from 1 to 65536, got '8'"),
            ({"hidden_size": 0}, "hidden_size must be a whole number from 1"),
            ({"state_size": -1}, "state_size must be a whole number from 0"),
            ({"top_k": 9}, "top_k exceeds n_experts"),
            ({"drafter": 3}, "drafter must be a non-empty text"),
        ],
    )
    def test_a_config_that_says_something_else(self, folder, changes, message):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        with pytest.raises(CheckpointError, match=message):
            make_predictor(f"learned:{folder}")

    @pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
    def test_a_config_that_is_no_configuration(self, folder, text):
        (folder / "config.json").write_text(text)
        with pytest.raises(CheckpointError):
            make_predictor(f"learned:{folder}")

    def test_the_name_needs_a_folder(self):
        with pytest.raises(InvalidInputError, match="'learned' needs a DIR: use learned:DIR"):
            make_predictor("learned")
